/* Invariant 6: the program has the method's tasks, each once per step, and sums in the fixed order. Invariant
 * 8: waits point backwards. Needs no execution; relies on verify_agree for the task of each instruction.
 *
 * "In order" means issue order: that accesses to one tensor also happen in issue order is invariant 4.
 */
#include <stdio.h>

#include "scheduler/verify_internal.h"

/* ---- [6] ---- */

static void tasks_none(struct verify *v, enum program_kind k)
{
    const struct plan_program *prog = &v->plan->programs[k];
    for (uint32_t i = 0; i < prog->n_instrs; i++)
        if (prog->instrs[i].kind < INSTR_FETCH)
            refuse(v, INVARIANT_TASKS, k, i, "%s: %s has no tasks", name_instr(v, k, i).s,
                   program_kind_names[k]);
}

/* A REC may write what lives within the step only: nothing that survives it, nothing that others see. */
static void tasks_rec(struct verify *v, enum program_kind k, uint32_t i)
{
    const struct plan_program *prog = &v->plan->programs[k];
    const struct plan_instr *in = &prog->instrs[i];
    const struct graph *g = verify_graph(v, k);
    for (uint32_t j = 0; j < in->n_operands; j++) {
        const struct plan_operand *o = &prog->operands[in->operand + j];
        const struct graph_tensor *t = &g->tensors[o->tensor];
        if (o->access != ACCESS_READ && (t->persistent || t->external))
            refuse(v, INVARIANT_TASKS, k, i, "%s: a recomputation writes %s", name_instr(v, k, i).s,
                   name_tensor(v, o->tensor).s);
    }
}

static void tasks_report_missing(struct verify *v, enum program_kind k, uint32_t task, uint32_t step)
{
    const struct graph_task *t = &verify_graph(v, k)->tasks[task];
    char layer[24] = "", micro[24] = "";
    if (t->layer != PLAN_NONE)
        snprintf(layer, sizeof layer, " l%u", t->layer);
    if (t->micro != PLAN_NONE)
        snprintf(micro, sizeof micro, " m%u", t->micro);
    refuse(v, INVARIANT_TASKS, k, PLAN_NONE, "%s: no %s%s%s in step %u", program_kind_names[k],
           instr_kind_names[t->kind], layer, micro, step);
}

/* Each task exactly once per step. */
static void tasks_once(struct verify *v, enum program_kind k, uint32_t steps)
{
    const struct plan_program *prog = &v->plan->programs[k];
    const struct graph *g = verify_graph(v, k);
    if ((uint64_t)g->n_tasks * steps >
        (uint64_t)prog->n_instrs + g->n_tasks) { /* also bounds the table below */
        refuse(v, INVARIANT_TASKS, k, PLAN_NONE, "%s: %u instructions cannot be %u tasks in each of %u steps",
               program_kind_names[k], prog->n_instrs, g->n_tasks, steps);
        return;
    }
    size_t n = (size_t)g->n_tasks * steps;
    bool *seen = xcalloc(n + 1, sizeof *seen);
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        uint32_t task = v->task_of[k][i];
        if (task == PLAN_NONE || prog->instrs[i].kind == INSTR_REC)
            continue;
        bool *s = &seen[(size_t)prog->instrs[i].step * g->n_tasks + task];
        if (*s)
            refuse(v, INVARIANT_TASKS, k, i, "%s: a second time in the same step", name_instr(v, k, i).s);
        *s = true;
    }
    for (size_t j = 0; j < n; j++)
        if (!seen[j])
            tasks_report_missing(v, k, (uint32_t)(j % g->n_tasks), (uint32_t)(j / g->n_tasks));
    free(seen);
}

/* The writers of a tensor follow each other in the order of the graph: ascending micro-batches in a sum. */
static void tasks_ordered(struct verify *v, enum program_kind k, uint32_t steps)
{
    const struct plan_program *prog = &v->plan->programs[k];
    const struct graph *g = verify_graph(v, k);
    uint32_t *last = xcalloc((size_t)g->n_tensors * steps + 1, sizeof *last);
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        const struct plan_instr *in = &prog->instrs[i];
        if (v->task_of[k][i] == PLAN_NONE || in->kind == INSTR_REC)
            continue;
        const struct graph_task *task = &g->tasks[v->task_of[k][i]];
        for (uint32_t j = 0; j < task->n_operands; j++) {
            const struct graph_operand *o = &g->operands[task->operand + j];
            if (o->access == ACCESS_READ)
                continue;
            uint32_t *l = &last[(size_t)in->step * g->n_tensors + o->tensor];
            if (o->write_version <= *l)
                refuse(v, INVARIANT_TASKS, k, i, "%s: write %u of %s in this step, issued after write %u",
                       name_instr(v, k, i).s, o->write_version, name_tensor(v, o->tensor).s, *l);
            *l = o->write_version;
        }
    }
    free(last);
}

static void tasks_program(struct verify *v, enum program_kind k, uint32_t steps)
{
    for (uint32_t i = 0; i < v->plan->programs[k].n_instrs; i++)
        if (v->plan->programs[k].instrs[i].kind == INSTR_REC)
            tasks_rec(v, k, i);
    tasks_once(v, k, steps);
    if (!v->stop)
        tasks_ordered(v, k, steps);
}

void verify_tasks(struct verify *v)
{
    tasks_none(v, PROGRAM_ENTRY);
    tasks_none(v, PROGRAM_FLUSH);
    tasks_none(v, PROGRAM_EXIT);
    tasks_program(v, PROGRAM_CYCLE, v->plan->steps);
    if (v->eval != NULL)
        tasks_program(v, PROGRAM_EVAL, 1);
}

/* ---- [8] ---- */

void verify_waits(struct verify *v)
{
    for (int k = 0; k < PROGRAM_COUNT; k++) {
        const struct plan_program *prog = &v->plan->programs[k];
        for (uint32_t i = 0; i < prog->n_instrs; i++)
            for (uint32_t j = 0; j < prog->instrs[i].n_waits; j++) {
                const struct plan_wait *w = &prog->waits[prog->instrs[i].wait + j];
                if (w->distance == 0 && w->instr >= i)
                    refuse(v, INVARIANT_DEADLOCK, (enum program_kind)k, i,
                           "%s waits for #%u, which is not before it",
                           name_instr(v, (enum program_kind)k, i).s, w->instr);
                else if (w->distance > 0 && k != PROGRAM_CYCLE)
                    refuse(v, INVARIANT_DEADLOCK, (enum program_kind)k, i,
                           "%s waits for #%u of an earlier run, but only cycles follow each other",
                           name_instr(v, (enum program_kind)k, i).s, w->instr);
                else if (w->distance > v->max_distance)
                    v->max_distance = w->distance;
            }
    }
}
