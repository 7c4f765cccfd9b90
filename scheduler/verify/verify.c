/* Implements plan_verify: the order of the checks, the reports, and the names in messages.
 *
 * Nothing checks the plan after this. The executor follows its addresses and waits blindly, so a wrong plan
 * that passes here corrupts a training run silently. For the same reason the verifier shares no code with the
 * builder, not even a helper: a mistake in one of them should not hide in the other.
 *
 * A plan may come from a file. The first two checks (verify_header, verify_indices) trust nothing in it, and
 * all later checks rely on them when they index arrays and add addresses.
 *
 * One defect should give one violation. Therefore a plan that the static checks refuse is not executed,
 * because the execution would report the same defect in other words. And after each report the execution
 * repairs the state to what the instruction needed, so that no other violations follow from the first.
 */
#include "scheduler/verify/verify.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "scheduler/verify/verify_internal.h"

/* ---- names ---- */

struct name name_tensor(const struct verify *v, tensor_id t)
{
    const struct plan_tensor *pt = &v->plan->tensors[t];
    struct name n;
    size_t at = 0;
    at += (size_t)snprintf(n.s, sizeof n.s, "%s", tensor_kind_names[pt->kind]);
    if (pt->layer != PLAN_NONE)
        at += (size_t)snprintf(n.s + at, sizeof n.s - at, "%u", pt->layer);
    if (pt->micro != PLAN_NONE)
        at += (size_t)snprintf(n.s + at, sizeof n.s - at, ".%u", pt->micro);
    if (pt->group != PLAN_NONE && pt->group > 0)
        at += (size_t)snprintf(n.s + at, sizeof n.s - at, "%u", pt->group);
    if (v->plan->n_replicas > 1 && pt->replica != PLAN_NONE)
        at += (size_t)snprintf(n.s + at, sizeof n.s - at, "/r%u", pt->replica);
    if (v->plan->steps > 1 && pt->step != PLAN_NONE)
        snprintf(n.s + at, sizeof n.s - at, "/s%u", pt->step);
    return n;
}

struct name name_range(const struct verify *v, tensor_id t, uint64_t begin, uint64_t end)
{
    struct name n = name_tensor(v, t);
    size_t at = strlen(n.s);
    if (begin != 0 || end != v->plan->tensors[t].bytes)
        snprintf(n.s + at, sizeof n.s - at, "[%llu..%llu)", (unsigned long long)begin,
                 (unsigned long long)end);
    return n;
}

struct name name_place(uint32_t loc, uint64_t addr)
{
    struct name n;
    if (loc == PLAN_HOST)
        snprintf(n.s, sizeof n.s, "host:%llu", (unsigned long long)addr);
    else
        snprintf(n.s, sizeof n.s, "d%u:%llu", loc, (unsigned long long)addr);
    return n;
}

struct name name_instr(const struct verify *v, enum program_kind k, uint32_t instr)
{
    const struct plan_program *prog = &v->plan->programs[k];
    const struct plan_instr *in = &prog->instrs[instr];
    struct name n;
    size_t at = (size_t)snprintf(n.s, sizeof n.s, "%s#%u %s", program_kind_names[k], instr,
                                 instr_kind_names[in->kind]);
    if (in->kind >= INSTR_FETCH && in->n_operands > 0)
        at += (size_t)snprintf(n.s + at, sizeof n.s - at, " %.40s",
                               name_tensor(v, prog->operands[in->operand].tensor).s);
    if (in->layer != PLAN_NONE)
        at += (size_t)snprintf(n.s + at, sizeof n.s - at, " l%u", in->layer);
    if (in->micro != PLAN_NONE)
        at += (size_t)snprintf(n.s + at, sizeof n.s - at, " m%u", in->micro);
    if (in->kind == INSTR_RED && in->replica != PLAN_NONE)
        at += (size_t)snprintf(n.s + at, sizeof n.s - at, " r%u", in->replica);
    if (v->plan->steps > 1)
        at += (size_t)snprintf(n.s + at, sizeof n.s - at, " s%u", in->step);
    if (in->stream == plan_host_stream(v->plan))
        snprintf(n.s + at, sizeof n.s - at, " on host");
    else
        snprintf(n.s + at, sizeof n.s - at, " on d%u.%s", in->stream / LANE_COUNT,
                 lane_names[in->stream % LANE_COUNT]);
    return n;
}

struct name name_task(const struct graph_task *t)
{
    struct name n;
    size_t at = (size_t)snprintf(n.s, sizeof n.s, "%s", instr_kind_names[t->kind]);
    if (t->layer != PLAN_NONE)
        at += (size_t)snprintf(n.s + at, sizeof n.s - at, " l%u", t->layer);
    if (t->micro != PLAN_NONE)
        at += (size_t)snprintf(n.s + at, sizeof n.s - at, " m%u", t->micro);
    else if (t->replica != PLAN_NONE)
        at += (size_t)snprintf(n.s + at, sizeof n.s - at, " r%u", t->replica);
    if (t->kind == INSTR_DECIDE && t->group > 0)
        at += (size_t)snprintf(n.s + at, sizeof n.s - at, " g%u", t->group);
    if (t->step > 0)
        snprintf(n.s + at, sizeof n.s - at, " s%u", t->step);
    return n;
}

/* ---- reports ---- */

static void add_violation(struct verify *v, int invariant, enum program_kind k, uint32_t instr,
                          const char *fmt, va_list ap)
{
    struct violation w = {.invariant = invariant, .program = k, .instr = instr};
    vsnprintf(w.text, sizeof w.text, fmt, ap);
    if (v->total++ == 0)
        err_set(v->err, -EBADMSG, "invariant %d: %s", invariant, w.text);
    if (v->report == NULL)
        return;
    v->report->total++;
    v->report->by_number[invariant]++;
    if (v->report->n < v->report->max)
        v->report->violations[v->report->n++] = w;
}

void violate(struct verify *v, int invariant, enum program_kind k, uint32_t instr, const char *fmt, ...)
{
    if (instr != PLAN_NONE && v->reported[k] != NULL) {
        uint16_t bit = (uint16_t)(1u << invariant);
        if (v->reported[k][instr] & bit)
            return;
        v->reported[k][instr] |= bit;
    }
    va_list ap;
    va_start(ap, fmt);
    add_violation(v, invariant, k, instr, fmt, ap);
    va_end(ap);
}

void violate_tensor(struct verify *v, int invariant, enum program_kind k, tensor_id t, const char *fmt, ...)
{
    uint64_t bit = 1ull << (11 * k + invariant);
    if (v->reported_tensor[t] & bit)
        return;
    v->reported_tensor[t] |= bit;
    va_list ap;
    va_start(ap, fmt);
    add_violation(v, invariant, k, PLAN_NONE, fmt, ap);
    va_end(ap);
}

/* ---- the checks in order ---- */

static void verify_init(struct verify *v)
{
    for (int k = 0; k < PROGRAM_COUNT; k++) {
        uint32_t n = v->plan->programs[k].n_instrs;
        v->task_of[k] = xcalloc(n + 1, sizeof *v->task_of[k]);
        v->reported[k] = xcalloc(n + 1, sizeof *v->reported[k]);
        memset(v->task_of[k], 0xff, n * sizeof *v->task_of[k]);
    }
    v->reported_tensor = xcalloc((size_t)v->plan->n_tensors + 1, sizeof *v->reported_tensor);
}

static void verify_finish(struct verify *v)
{
    for (int k = 0; k < PROGRAM_COUNT; k++) {
        xfree(v->task_of[k]);
        xfree(v->reported[k]);
    }
    xfree(v->reported_tensor);
    vec_free(&v->homes);
}

static void verify_all(struct verify *v)
{
    verify_header(v);
    if (v->stop)
        return;
    verify_init(v);
    verify_indices(v);
    if (v->stop)
        return;
    verify_agree(v);
    verify_lease(v);
    verify_waits(v);
    if (!v->stop)
        verify_tasks(v);
    if (!v->stop)
        verify_run(v);
}

int plan_verify(const struct plan *p, const struct graph *train, const struct graph *eval,
                const struct machine *m, struct verify_report *report, struct err *err)
{
    struct verify v = {.plan = p, .train = train, .eval = eval, .machine = m, .report = report, .err = err};
    if (report != NULL) {
        report->n = report->total = 0;
        memset(report->by_number, 0, sizeof report->by_number);
    }
    verify_all(&v);
    verify_finish(&v);
    return v.total == 0 ? 0 : -EBADMSG;
}
