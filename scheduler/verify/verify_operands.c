/* Checks invariant 10 for the operands of tasks: an instruction has the operands of its graph task, in the
 * same order, with the same roles and the same byte ranges. It may leave out writes that are optional.
 *
 * RED and UPD may be done in shares. All W and dW operands of a share have the same range [b, e) of elements,
 * and K has a range in each of its parts, which the graph lists. A part with as many elements as W has the
 * range [b, e) too. A part with another number of elements has the proportional range, rounded down to a
 * multiple of PLAN_ALIGN bytes from the start of the part. If that range is empty, the share has no operand
 * for the part. That the shares cover the whole task is invariant 6.
 */
#include "scheduler/verify/verify_internal.h"

/* A task instruction that is being checked. */
struct checked_task {
    struct verify *v;
    enum program_kind k;
    uint32_t i;
    const struct plan_instr *in;
    const struct plan_operand *ops;
    const struct graph *g;
    const struct graph_task *task;
    uint32_t loc; /* location that its operands must have */
    /* The operand whose byte range is the share that the instruction does. NULL if the task is neither RED
     * nor UPD. */
    const struct plan_operand *share;
};

#define BAD(a, ...) refuse((a)->v, INVARIANT_AGREES, (a)->k, (a)->i, __VA_ARGS__)

static struct name name_checked_task(const struct checked_task *a)
{
    return name_instr(a->v, a->k, a->i);
}

/* ---- shares ---- */

static bool is_divided(enum tensor_kind k)
{
    return k == TENSOR_W || k == TENSOR_DW;
}

const struct plan_operand *share_operand(const struct verify *v, enum program_kind k, uint32_t i)
{
    const struct plan_instr *in = &v->plan->programs[k].instrs[i];
    const struct plan_operand *ops = &v->plan->programs[k].operands[in->operand];
    for (uint32_t j = 0; (in->kind == INSTR_RED || in->kind == INSTR_UPD) && j < in->n_operands; j++)
        if (is_divided(v->plan->tensors[ops[j].tensor].kind))
            return &ops[j];
    return NULL;
}

static uint64_t tensor_bytes(const struct checked_task *a, tensor_id t)
{
    return a->v->plan->tensors[t].bytes;
}

static uint64_t element_bytes(const struct checked_task *a, tensor_id t)
{
    return dtype_size(a->v->plan->tensors[t].dtype);
}

/* Byte `at` is the begin or the end of a share of W or dW. Returns the begin or end of this share in part `p`
 * of the optimizer state. */
static uint64_t state_byte(const struct checked_task *a, const struct state_part *p, uint64_t at)
{
    uint64_t whole = tensor_bytes(a, a->share->tensor), size = element_bytes(a, a->share->tensor),
             element = at / size;
    if (at == whole)
        return p->end;
    if (p->elements == whole / size)
        return p->begin + element * dtype_size(p->dtype);
    uint64_t proportion = (uint64_t)((unsigned __int128)element * p->elements / (whole / size));
    return p->begin + proportion * dtype_size(p->dtype) / PLAN_ALIGN * PLAN_ALIGN;
}

static bool agree_state(const struct checked_task *a, const struct plan_operand *ops, uint32_t n, tensor_id t)
{
    const struct graph_layer *layer = &a->g->layers[a->g->tensors[t].layer];
    uint32_t m = 0;
    for (uint32_t p = 0; p < layer->n_parts; p++) {
        uint64_t begin = state_byte(a, &layer->parts[p], a->share->begin),
                 end = state_byte(a, &layer->parts[p], a->share->end);
        if (begin == end)
            continue;
        if (m == n || ops[m].begin != begin || ops[m].end != end) {
            BAD(a, "%s: its share of part %u of %s must be the bytes %llu..%llu", name_checked_task(a).s, p,
                name_tensor(a->v, t).s, (unsigned long long)begin, (unsigned long long)end);
            return false;
        }
        m++;
    }
    if (m < n)
        BAD(a, "%s: has the operand %s, which is not in its share", name_checked_task(a).s,
            name_range(a->v, t, ops[m].begin, ops[m].end).s);
    return m == n;
}

/* Checks that operand `o` covers the same elements as the share, and that the share is aligned. All sizes are
 * below 2^53 bytes, so the products cannot overflow. */
static bool agree_share(const struct checked_task *a, const struct plan_operand *o)
{
    const struct plan_operand *s = a->share;
    uint64_t size = element_bytes(a, o->tensor), other = element_bytes(a, s->tensor),
             cut = plan_share_unit(a->g->layers[a->task->layer].size.w_dtype) * size;
    if (o->begin * other != s->begin * size || o->end * other != s->end * size)
        BAD(a, "%s: its shares differ: %s and %s", name_checked_task(a).s,
            name_range(a->v, s->tensor, s->begin, s->end).s, name_range(a->v, o->tensor, o->begin, o->end).s);
    else if (o->begin % cut != 0 || (o->end % cut != 0 && o->end != tensor_bytes(a, o->tensor)))
        BAD(a, "%s: the share %s is not aligned", name_checked_task(a).s,
            name_range(a->v, o->tensor, o->begin, o->end).s);
    else
        return true;
    return false;
}

/* ---- ranges ---- */

static bool agree_range(const struct checked_task *a, const struct plan_operand *o,
                        const struct graph_operand *go)
{
    if (o->begin == go->begin && o->end == go->end)
        return true;
    BAD(a, "%s: its operand is %s instead of %s", name_checked_task(a).s,
        name_range(a->v, o->tensor, o->begin, o->end).s, name_range(a->v, go->tensor, go->begin, go->end).s);
    return false;
}

/* Checks the byte ranges of the `n` operands that belong to operand `go` of the graph. Only the optimizer
 * state K may have several operands, one per part. */
static bool agree_ranges(const struct checked_task *a, const struct plan_operand *ops, uint32_t n,
                         const struct graph_operand *go)
{
    enum tensor_kind kind = a->g->tensors[go->tensor].kind;
    bool whole = a->share == NULL || operand_bytes(a->share) == tensor_bytes(a, a->share->tensor);
    if (kind == TENSOR_K && a->share != NULL &&
        !(whole && n == 1 && operand_bytes(ops) == tensor_bytes(a, go->tensor)))
        return agree_state(a, ops, n, go->tensor);
    if (n > 1) {
        BAD(a, "%s: has two operands for %s", name_checked_task(a).s, name_tensor(a->v, go->tensor).s);
        return false;
    }
    return is_divided(kind) && !whole ? agree_share(a, ops) : agree_range(a, ops, go);
}

static bool agree_roles(const struct checked_task *a, const struct plan_operand *ops, uint32_t n,
                        const struct graph_operand *go)
{
    for (uint32_t i = 0; i < n; i++)
        if (ops[i].role != go->role) {
            BAD(a, "%s: its operand %s has the role %s instead of %s", name_checked_task(a).s,
                name_tensor(a->v, ops[i].tensor).s,
                (unsigned)ops[i].role < ROLE_COUNT ? role_names[ops[i].role] : "?", role_names[go->role]);
            return false;
        }
    return true;
}

static bool agree_places(const struct checked_task *a, const struct plan_operand *ops, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (ops[i].loc != a->loc) {
            BAD(a, "%s: its operand %s is on %s", name_checked_task(a).s, name_tensor(a->v, ops[i].tensor).s,
                name_place(ops[i].loc, ops[i].addr).s);
            return false;
        }
    return true;
}

/* Checks all operands of a task. A FWD or REC must have TENSOR_ROOM as its working memory if it saves S, and
 * TENSOR_WORK if it does not. */
static void agree_operands(const struct checked_task *a)
{
    bool rec = a->in->kind == INSTR_REC;
    bool saves = false, no_workspace = false;
    uint32_t n = 0, writes = 0;
    for (uint32_t j = 0; j < a->task->n_operands; j++) {
        const struct graph_operand *go = &a->g->operands[a->task->operand + j];
        uint32_t count = operands_for(&a->ops[n], a->in->n_operands - n, go);
        enum tensor_kind kind = a->g->tensors[go->tensor].kind;
        bool space = kind == TENSOR_WORK || kind == TENSOR_ROOM; /* S precedes both in every operand list */
        if (space && (kind == TENSOR_ROOM) != saves)
            continue;
        if (count > 0 || (kind == TENSOR_K && a->share != NULL)) {
            if (!agree_places(a, &a->ops[n], count) || !agree_roles(a, &a->ops[n], count, go) ||
                !agree_ranges(a, &a->ops[n], count, go))
                return;
            writes += go->access != ACCESS_READ && !space;
            saves |= kind == TENSOR_S && go->access == ACCESS_WRITE;
            n += count;
        } else if (space) {
            no_workspace = true;
        } else if (!go->optional && !(rec && go->access == ACCESS_WRITE)) {
            BAD(a, "%s: operand %u must be %s, %s", name_checked_task(a).s, n,
                name_tensor(a->v, go->tensor).s,
                go->access == ACCESS_READ    ? "read"
                : go->access == ACCESS_WRITE ? "written"
                                             : "read and written");
            return;
        }
    }
    if (n < a->in->n_operands)
        BAD(a, "%s: has the operand %s, which is not one of its task", name_checked_task(a).s,
            name_tensor(a->v, a->ops[n].tensor).s);
    else if (rec && writes == 0)
        BAD(a, "%s: recomputes nothing", name_checked_task(a).s);
    else if (no_workspace)
        BAD(a, "%s: has no workspace operand (%s)", name_checked_task(a).s,
            saves ? "room, since it saves S" : "work");
}

void verify_operands(struct verify *v, enum program_kind k, uint32_t i, const struct graph_task *task,
                     uint32_t loc)
{
    const struct plan_program *prog = &v->plan->programs[k];
    const struct plan_instr *in = &prog->instrs[i];
    const struct checked_task a = {
        v, k, i, in, prog->operands + in->operand, verify_graph(v, k), task, loc, share_operand(v, k, i)};
    agree_operands(&a);
}
