/* Functions that append instructions to a draft. The stages residency and paging use them.
 *
 * The instructions set the lifetime of a segment. A segment starts at the first instruction that writes it,
 * and ends at its drop.
 */
#include "scheduler/build/build.h"

bool todo_uses(const struct todo *t, const struct graph_tensor *tensor, const struct graph_operand *op)
{
    if (t->kind != INSTR_FWD && t->kind != INSTR_REC)
        return true;
    if (!(op->access & ACCESS_WRITE))
        return true;
    switch (tensor->kind) {
    case TENSOR_S:
        return t->save;
    case TENSOR_WORK:
        return !t->save || !op->optional;
    case TENSOR_ROOM:
        return t->save;
    case TENSOR_Y:
        return t->output;
    case TENSOR_STAT: /* a recomputation has no effect on state */
        return t->kind == INSTR_FWD;
    default:
        return true;
    }
}

bool trainer_reads(const struct graph_tensor *t)
{
    return t->external && (t->kind == TENSOR_RESULT || t->kind == TENSOR_DECISION || t->kind == TENSOR_Y);
}

static uint32_t put_instr(struct draft *d, enum instr_kind kind, uint32_t stream)
{
    vec_push(&d->instrs, (struct plan_instr){
                             .kind = kind,
                             .stream = stream,
                             .layer = PLAN_NONE,
                             .micro = PLAN_NONE,
                             .replica = PLAN_NONE,
                             .operand = (uint32_t)d->operands.n,
                         });
    return (uint32_t)d->instrs.n - 1;
}

static void put_role(struct draft *d, tensor_id tensor, uint32_t segment, enum access access, enum role role,
                     struct extent of)
{
    vec_push(&d->operands, (struct draft_operand){tensor, segment, access, role, of});
    d->instrs.at[d->instrs.n - 1].n_operands++;
}

static void put_operand(struct draft *d, tensor_id tensor, uint32_t segment, enum access access,
                        struct extent of)
{
    put_role(d, tensor, segment, access, ROLE_NONE, of);
}

void draft_put_task(struct draft *d, const struct todo *t)
{
    uint32_t host = d->n_devices * LANE_COUNT;
    uint32_t index = put_instr(d, t->kind, t->loc == PLAN_HOST ? host : plan_stream(t->loc, LANE_COMPUTE));
    struct plan_instr *in = &d->instrs.at[index];
    in->layer = t->layer;
    in->micro = t->micro;
    in->replica = d->graph->tasks[t->task].replica;
    in->step = d->graph->tasks[t->task].step;
    in->group = d->graph->tasks[t->task].group;
}

/* Must be called when the newest instruction writes a segment. The segment starts at its first write, unless
 * it was already on the device before the program began. */
static void created(struct draft *d, uint32_t segment)
{
    struct segment *s = &d->segments.at[segment];
    if (s->start == SEGMENT_UNBORN)
        s->start = (uint32_t)d->instrs.n - 1;
}

void draft_put_use(struct draft *d, const struct graph_operand *op, uint32_t segment, struct extent of)
{
    put_role(d, op->tensor, segment, op->access, op->role, of);
    if (segment != SEGMENT_NONE && op->access == ACCESS_WRITE)
        created(d, segment);
}

void draft_put_fetch(struct draft *d, uint32_t to, struct extent of)
{
    struct segment *s = &d->segments.at[to];
    put_instr(d, INSTR_FETCH, plan_stream(s->device, LANE_IN));
    put_operand(d, s->tensor, SEGMENT_NONE, ACCESS_READ, of);
    put_operand(d, s->tensor, to, ACCESS_WRITE, of);
    created(d, to);
}

void draft_put_spill(struct draft *d, uint32_t from, struct extent of)
{
    const struct segment *s = &d->segments.at[from];
    put_instr(d, INSTR_SPILL, plan_stream(s->device, LANE_OUT));
    put_operand(d, s->tensor, from, ACCESS_READ, of);
    put_operand(d, s->tensor, SEGMENT_NONE, ACCESS_WRITE, of);
}

void draft_put_send(struct draft *d, uint32_t from, uint32_t to, struct extent of)
{
    const struct segment *s = &d->segments.at[from];
    bool within = s->device == d->segments.at[to].device;
    put_instr(d, within ? INSTR_COPY : INSTR_SEND, plan_stream(s->device, LANE_PEER));
    put_operand(d, s->tensor, from, ACCESS_READ, of);
    put_operand(d, s->tensor, to, ACCESS_WRITE, of);
    created(d, to);
}

void draft_put_drop(struct draft *d, uint32_t segment, enum lane lane)
{
    struct segment *s = &d->segments.at[segment];
    s->end = put_instr(d, INSTR_DROP, plan_stream(s->device, lane));
    put_operand(d, s->tensor, segment, ACCESS_DROP, s->of);
}

void draft_finish(struct draft *d)
{
    vec_free(&d->instrs);
    vec_free(&d->operands);
    vec_free(&d->waits);
    vec_free(&d->segments);
}
