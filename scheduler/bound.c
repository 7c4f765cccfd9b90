/* Lower bounds on host bytes per iteration.
 *
 * The argument looks at two moments of every step, in any order in which a plan may be executed:
 *
 *     the turn   the first backward task of the loss. For some micro-batch every layer has done its forward
 *                pass, and none but the loss its backward pass.
 *     the end    the last backward task of the first trained layer. All gradients are done, and no trained
 *                layer has begun its next forward pass, for that needs the update of the first.
 *
 * The W of a layer is needed before and after both. So its state moves, with the update
 *
 *     on the host     dW out, W in after the update, and in again after the turn unless it is on a device
 *                     then: 2W + G, or W + G with W bytes taken at the turn.
 *     on the device   W out and in and in: 3W; 2W when it is there at one of the moments; nothing when at
 *                     both. K out and in: 2K; nothing when it is there at both. (An update that waits beyond
 *                     the end, for clipping, moves or holds dW besides: that only adds.)
 *
 * Stash that is written before the turn and read after it is on a device at the turn, or goes out and in: 2
 * per byte. What is on the devices at a moment lies beside the other operands of that moment's task, so what
 * can be saved is a filling of the room that is left. It is relaxed to a fractional one, done greedily by
 * density: stash with 2 per byte, and state along the upper concave hull of (0, 0), (W, W), (W, 2W + G - 2K),
 * (W + K, 2W + G). To use the room of one moment alone is no better: what is saved by W that is there at the
 * end only (G - 2K) and by W or stash that is there at the turn only (W, 2W) is together no more than by W
 * that is there at both.
 *
 * Copies between devices cost no host bytes: N devices have the room of all. They have it less ONE working
 * set, because the others may be idle at that moment. All layers have the same K / W, by the one optimizer,
 * so sums over layers are enough.
 */
#include "scheduler/bound.h"

#include <stdlib.h>

#include "base/arena.h"
#include "scheduler/explain_parts.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t excess(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* ---- the free choice ---- */

/* So many bytes kept save so many moved. */
struct piece {
    uint64_t bytes, gain;
};

/* a * b / c, rounded up: a gain is never underrated. */
static uint64_t scale(uint64_t a, uint64_t b, uint64_t c)
{
    return (uint64_t)(((unsigned __int128)a * b + c - 1) / c);
}

static bool denser(const struct piece *a, const struct piece *b)
{
    return (unsigned __int128)a->gain * b->bytes > (unsigned __int128)b->gain * a->bytes;
}

static int by_density(const void *pa, const void *pb)
{
    return denser(pa, pb) ? -1 : denser(pb, pa);
}

static uint64_t fill(struct piece *pieces, size_t n, uint64_t room)
{
    uint64_t gain = 0;
    qsort(pieces, n, sizeof *pieces, by_density);
    for (size_t i = 0; i < n && room > 0; i++) {
        uint64_t bytes = least(pieces[i].bytes, room);
        if (bytes > 0)
            gain += scale(bytes, pieces[i].gain, pieces[i].bytes);
        room -= bytes;
    }
    return gain;
}

static uint64_t free_choice(const struct bound_sizes *s)
{
    uint64_t none = least(2 * s->w + s->dw, 3 * s->w + 2 * s->k); /* moved when nothing is kept */
    uint64_t with_w = least(s->w + s->dw, 2 * s->k);              /* when W is */
    struct piece pieces[3] = {{s->stash, 2 * s->stash}, {s->w, none - with_w}, {s->k, with_w}};
    size_t n = 3;
    if (!denser(&pieces[1], &pieces[2])) { /* not concave: W and K together or not at all */
        pieces[1] = (struct piece){s->w + s->k, none};
        n = 2;
    }
    return none + 2 * s->stash - fill(pieces, n, s->room);
}

void bound_compute(const struct bound_sizes *s, struct bound *ret)
{
    uint64_t lacking_w = excess(s->w, s->room), lacking_state = excess(s->w + s->k, s->room);
    ret->host = (struct bound_way){.in = s->w + lacking_w, .out = s->dw};
    ret->device = (struct bound_way){.in = lacking_w + lacking_state, .out = lacking_state};
    ret->host.total = ret->host.in + ret->host.out;
    ret->device.total = ret->device.in + ret->device.out;
    ret->bytes = free_choice(s);
}

/* ---- the sizes of a plan ---- */

static bool is_task(const struct plan_instr *in)
{
    return !instr_is_move(in->kind) && in->kind != INSTR_DROP;
}

static bool is_stash(const struct plan *p, tensor_id t)
{
    return tensor_byte_class(&p->tensors[t]) == BYTES_STASH;
}

static uint32_t first_trained(const struct plan *p)
{
    uint32_t layer = PLAN_NONE;
    for (uint32_t t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].kind == TENSOR_W && p->tensors[t].layer < layer)
            layer = p->tensors[t].layer;
    return layer;
}

/* The first or last backward task of a layer, or PLAN_NONE. */
static uint32_t find_backward(const struct plan_program *prog, uint32_t layer, bool last)
{
    uint32_t found = PLAN_NONE;
    for (uint32_t i = 0; i < prog->n_instrs; i++)
        if (prog->instrs[i].kind == INSTR_BWD && prog->instrs[i].layer == layer &&
            (last || found == PLAN_NONE))
            found = i;
    return found;
}

/* Marks in `across` what is written before the turn and read after it, without being made again in between.
 * Returns its bytes. */
static uint64_t stash_across(const struct plan *p, uint32_t turn, bool *across)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    bool *written = xcalloc(p->n_tensors + 1, sizeof *written),
         *settled = xcalloc(p->n_tensors + 1, sizeof *settled);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        const struct plan_instr *in = &prog->instrs[i];
        for (uint32_t k = 0; k < in->n_operands && is_task(in) && i != turn; k++) {
            const struct plan_operand *o = &prog->operands[in->operand + k];
            if (!is_stash(p, o->tensor))
                continue;
            if (i < turn) {
                written[o->tensor] |= (o->access & ACCESS_WRITE) != 0;
            } else if (!settled[o->tensor]) {
                settled[o->tensor] = true;
                across[o->tensor] = written[o->tensor] && (o->access & ACCESS_READ);
                bytes += across[o->tensor] ? p->tensors[o->tensor].bytes : 0;
            }
        }
    }
    free(written);
    free(settled);
    return bytes;
}

/* What a task needs that is not itself kept: neither W nor K, nor what is in `across`. */
static uint64_t working_set(const struct plan *p, uint32_t instr, const bool *across)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    const struct plan_instr *in = &prog->instrs[instr];
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < in->n_operands; k++) {
        tensor_id t = prog->operands[in->operand + k].tensor;
        if (p->tensors[t].kind != TENSOR_W && p->tensors[t].kind != TENSOR_K && !across[t])
            bytes += p->tensors[t].bytes;
    }
    return bytes;
}

static uint64_t memory_of(const struct plan *p)
{
    uint64_t sum = 0;
    for (uint32_t d = 0; d < p->n_devices; d++)
        sum = p->devices[d].lease_bytes > UINT64_MAX - sum ? UINT64_MAX : sum + p->devices[d].lease_bytes;
    return sum;
}

void bound_sizes_of(const struct plan *p, struct bound_sizes *ret)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    *ret = (struct bound_sizes){.room = memory_of(p)};
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        const struct plan_tensor *pt = &p->tensors[t];
        ret->w += pt->kind == TENSOR_W ? pt->bytes : 0;
        ret->dw += pt->kind == TENSOR_DW ? pt->bytes : 0;
        ret->k += pt->kind == TENSOR_K ? pt->bytes : 0;
    }
    uint32_t turn = find_backward(prog, p->n_layers - 1, false),
             end = find_backward(prog, first_trained(p), true);
    if (turn == PLAN_NONE || end == PLAN_NONE)
        return; /* nothing is trained */
    bool *across = xcalloc(p->n_tensors + 1, sizeof *across);
    ret->stash = stash_across(p, turn, across);
    ret->room = excess(ret->room, least(working_set(p, turn, across), working_set(p, end, across)));
    free(across);
}

uint64_t bound_bytes(const struct plan *p)
{
    struct bound_sizes s;
    struct bound b;
    bound_sizes_of(p, &s);
    bound_compute(&s, &b);
    return b.bytes;
}
