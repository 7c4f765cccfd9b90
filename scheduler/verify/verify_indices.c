/* The verifier's first checks (invariant 10): verify_header checks counts and pointers, then verify_indices
 * checks every number that is used as an index or added to an address.
 *
 * A plan may come from a file that somebody edited. After these two functions the rest of the verifier
 * can index and add without checks. They also bound the work of the verifier, because no two instructions
 * may share operands or waits.
 */
#include "base/bounded.h"
#include "base/checked.h"
#include "scheduler/verify/verify_internal.h"

/* ---- the header ---- */

#define BAD_HEADER(v, ...) refuse(v, INVARIANT_AGREES, PROGRAM_ENTRY, PLAN_NONE, __VA_ARGS__)

static void header_number(struct verify *v, const char *what, uint32_t is, uint32_t should)
{
    if (is != should)
        BAD_HEADER(v, "the plan has %s = %u, but the graph has %u", what, is, should);
}

static void header_program(struct verify *v, enum program_kind k)
{
    const struct plan_program *prog = &v->plan->programs[k];
    if ((prog->n_instrs > 0 && prog->instrs == NULL) || (prog->n_operands > 0 && prog->operands == NULL) ||
        (prog->n_waits > 0 && prog->waits == NULL))
        refuse(v, INVARIANT_AGREES, k, PLAN_NONE,
               "%s: its list of instructions, operands or waits is missing", program_kind_names[k]);
    if (prog->n_instrs > VERIFY_MAX_INSTRS)
        refuse(v, INVARIANT_AGREES, k, PLAN_NONE, "%s has %u instructions, more than the limit of %u",
               program_kind_names[k], prog->n_instrs, VERIFY_MAX_INSTRS);
}

void verify_header(struct verify *v)
{
    const struct plan *p = v->plan;
    if (p->n_devices == 0 || p->n_devices > DEVICE_MAX || p->n_devices > v->machine->n_devices)
        BAD_HEADER(v, "the plan is for %u devices, but the machine has %u", p->n_devices,
                   v->machine->n_devices);
    header_number(v, "n_layers", p->n_layers, v->train->n_layers);
    header_number(v, "n_micro", p->n_micro, v->train->n_micro);
    header_number(v, "n_replicas", p->n_replicas, v->train->n_replicas);
    header_number(v, "n_groups", p->n_groups, v->train->n_groups);
    header_number(v, "rows", p->rows, v->train->rows);
    header_number(v, "steps", p->steps, v->train->steps);
    header_number(v, "n_tensors", p->n_tensors, v->train->n_tensors);
    if (v->eval != NULL)
        header_number(v, "n_tensors (against eval)", p->n_tensors, v->eval->n_tensors);
    else if (p->programs[PROGRAM_EVAL].n_instrs > 0)
        BAD_HEADER(v, "the plan has an eval program, but there is no eval graph");
    if ((p->n_tensors > 0 && p->tensors == NULL) || (p->n_boundary > 0 && p->boundary == NULL))
        BAD_HEADER(v, "the list of tensors or boundary copies is missing");
    for (int k = 0; k < PROGRAM_COUNT; k++)
        header_program(v, (enum program_kind)k);
}

/* ---- indices ---- */

static bool range_within(uint32_t first, uint32_t n, uint32_t of)
{
    return first <= of && n <= of - first;
}

static void index_operand(struct verify *v, enum program_kind k, uint32_t i, uint32_t j)
{
    const struct plan *p = v->plan;
    const struct plan_operand *o = &p->programs[k].operands[j];
    uint64_t end;
    if (o->tensor >= p->n_tensors)
        refuse(v, INVARIANT_AGREES, k, i, "%s#%u: there is no tensor %u", program_kind_names[k], i,
               o->tensor);
    else if (o->loc != PLAN_HOST && o->loc >= p->n_devices)
        refuse(v, INVARIANT_AGREES, k, i, "%s#%u: there is no device %u", program_kind_names[k], i, o->loc);
    else if (o->access != ACCESS_READ && o->access != ACCESS_WRITE && o->access != ACCESS_RW &&
             o->access != ACCESS_DROP)
        refuse(v, INVARIANT_AGREES, k, i, "%s#%u: there is no access mode %u", program_kind_names[k], i,
               (unsigned)o->access);
    else if (o->begin >= o->end || o->end > v->train->tensors[o->tensor].bytes)
        refuse(v, INVARIANT_AGREES, k, i,
               "%s#%u: invalid byte range %llu..%llu of tensor %u, which has %llu bytes",
               program_kind_names[k], i, (unsigned long long)o->begin, (unsigned long long)o->end, o->tensor,
               (unsigned long long)v->train->tensors[o->tensor].bytes);
    else if (!checked_add(o->addr, operand_bytes(o), &end))
        refuse(v, INVARIANT_LEASE, k, i, "%s#%u: address %llu + %llu bytes overflows", program_kind_names[k],
               i, (unsigned long long)o->addr, (unsigned long long)operand_bytes(o));
}

static void index_wait(struct verify *v, enum program_kind k, uint32_t i, uint32_t j)
{
    const struct plan_program *prog = &v->plan->programs[k];
    const struct plan_wait *w = &prog->waits[j];
    if (w->instr >= prog->n_instrs)
        refuse(v, INVARIANT_AGREES, k, i, "%s#%u waits for instruction %u, but there are only %u",
               program_kind_names[k], i, w->instr, prog->n_instrs);
    else if (w->distance > PLAN_MAX_DISTANCE)
        refuse(v, INVARIANT_AGREES, k, i, "%s#%u waits over a distance of %u runs, more than the limit of %u",
               program_kind_names[k], i, w->distance, PLAN_MAX_DISTANCE);
}

static bool index_fields(struct verify *v, enum program_kind k, uint32_t i)
{
    const struct plan_program *prog = &v->plan->programs[k];
    const struct plan_instr *in = &prog->instrs[i];
    const char *what = NULL;
    if ((unsigned)in->kind >= INSTR_KIND_COUNT)
        what = "kind";
    else if (in->stream >= plan_n_streams(v->plan))
        what = "stream";
    else if (in->step >= (k == PROGRAM_CYCLE ? v->plan->steps : 1))
        what = "step";
    else if (!range_within(in->operand, in->n_operands, prog->n_operands))
        what = "list of operands";
    else if (!range_within(in->wait, in->n_waits, prog->n_waits))
        what = "list of waits";
    if (what != NULL)
        refuse(v, INVARIANT_AGREES, k, i, "%s#%u: its %s is out of range", program_kind_names[k], i, what);
    return what == NULL;
}

static void index_program(struct verify *v, enum program_kind k)
{
    const struct plan_program *prog = &v->plan->programs[k];
    uint64_t operands = 0, waits = 0;
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        const struct plan_instr *in = &prog->instrs[i];
        bounded_poll();
        if (!index_fields(v, k, i))
            continue;
        operands += in->n_operands;
        waits += in->n_waits;
        if (operands > prog->n_operands || waits > prog->n_waits) {
            refuse(v, INVARIANT_AGREES, k, i, "%s#%u: its list of %s overlaps another instruction's",
                   program_kind_names[k], i, waits > prog->n_waits ? "waits" : "operands");
            return;
        }
        for (uint32_t j = 0; j < in->n_operands; j++)
            index_operand(v, k, i, in->operand + j);
        for (uint32_t j = 0; j < in->n_waits; j++)
            index_wait(v, k, i, in->wait + j);
    }
}

static void index_boundary(struct verify *v)
{
    const struct plan *p = v->plan;
    for (uint32_t i = 0; i < p->n_boundary; i++) {
        const struct plan_copy *c = &p->boundary[i];
        uint64_t end;
        if (c->tensor >= p->n_tensors || c->device >= p->n_devices || c->begin >= c->end ||
            c->end > v->train->tensors[c->tensor].bytes)
            refuse(v, INVARIANT_AGREES, PROGRAM_CYCLE, PLAN_NONE,
                   "boundary copy %u names a tensor, device or byte range that does not exist", i);
        else if (!checked_add(c->addr, c->end - c->begin, &end))
            refuse(v, INVARIANT_LEASE, PROGRAM_CYCLE, PLAN_NONE, "the address of boundary copy %u overflows",
                   i);
    }
}

/* Compares the plan's tensors with those of the graph. Their sizes must be checked here, because later checks
 * do arithmetic with them. */
static void index_tensors(struct verify *v, const struct graph *g, const char *name)
{
    for (uint32_t t = 0; t < v->plan->n_tensors; t++) {
        const struct plan_tensor *is = &v->plan->tensors[t];
        const struct graph_tensor *should = &g->tensors[t];
        if (is->kind != should->kind || is->layer != should->layer || is->micro != should->micro ||
            is->replica != should->replica || is->step != should->step || is->group != should->group)
            BAD_HEADER(v, "tensor %u differs from the %s graph, where it is a %s", t, name,
                       tensor_kind_names[should->kind]);
        else if (is->dtype != should->dtype)
            BAD_HEADER(v, "tensor %u (%s) has elements of type %s, but in the %s graph their type is %s", t,
                       tensor_kind_names[should->kind],
                       (unsigned)is->dtype < DTYPE_COUNT ? dtype_names[is->dtype] : "?", name,
                       dtype_names[should->dtype]);
        else if (is->bytes != should->bytes)
            BAD_HEADER(v, "tensor %u (%s) has %llu bytes, but in the %s graph it has %llu", t,
                       tensor_kind_names[should->kind], (unsigned long long)is->bytes, name,
                       (unsigned long long)should->bytes);
    }
}

void verify_indices(struct verify *v)
{
    index_tensors(v, v->train, "training");
    if (v->eval != NULL)
        index_tensors(v, v->eval, "evaluation");
    index_boundary(v);
    for (int k = 0; k < PROGRAM_COUNT; k++)
        index_program(v, (enum program_kind)k);
}
