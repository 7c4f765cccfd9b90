/* Lower bounds on host bytes per iteration. docs/bound.md has the proof at leisure.
 *
 * The argument looks at two moments of every step, in the order in which the plan issues its tasks:
 *
 *     the turn   the first backward task of the loss, or of some layer. For one micro-batch every layer has
 *                done its forward pass, and no layer before this one its backward pass.
 *     the end    the last backward task of the first layer with weights. All gradients are done, and no layer
 *                with weights has begun its next forward pass, for that needs the update of the first.
 *
 * A cycle is one step, so what is on the devices at a moment is the same in every step. W is read between the
 * moments, either way. So of the state of a layer moves, with the update
 *
 *     on the host     dW out, W in after the update, and W in after the turn unless it is on a device then.
 *     on the device   W in after each moment at which it is on no device, and out if there is one; K out and
 *                     in unless it is on a device at both. With a decision all gradients wait for it: dW out
 *                     and in unless it is on a device at the end.
 *
 * Layers behind that of the turn may have done their backward pass: their W is not read after the turn for
 * sure, and with the update on the device goes out and in once, like K.
 *
 * Stash that is written before the turn and read after it is on a device at the turn, or goes out and in.
 * What is on the devices at a moment lies beside the other operands of that moment's task, in the room that
 * they leave. So let a byte pay rent for being there, p at the turn and q at the end. Whatever p and q, a
 * plan pays at most p * turn room + q * end room, and moves and pays together at least, with W, G, K and A
 * bytes of W, dW, K and stash,
 *
 *     for a layer   the lesser of   W + G + W min(1, p)
 *                             and   W min(3, 2 + p, 2 + q, p + q) + K min(2, p + q) + G min(2, q)
 *     behind        the lesser of   W + G
 *                             and   W min(2, p + q) + K min(2, p + q) + G min(2, q)
 *     for stash     A min(2, p)
 *
 * with G min(2, q) only for dW that waits for a decision. The difference is a lower bound; p and q are
 * chosen to make it large. With room R at both moments and without stash it is 3W - R for K = 2W, at p = 1
 * and q = 0; 3W - 1.5R for K = W, at p = 1.5 and q = 0; 3W - 3R for K = 0, at p = 2 and q = 1.
 *
 * Copies between devices cost no host bytes: N devices have the room of all. They have it less ONE working
 * set, because the others may be idle at that moment.
 */
#include "scheduler/predict/bound.h"

#include <stdlib.h>

#include "base/arena.h"
#include "base/bounded.h"

#define UNIT     5040 /* rent is counted in parts of a byte */
#define MAX_RENT (3 * UNIT)

typedef __int128 parts;

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t excess(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* ---- the free choice ---- */

static parts state_parts(const struct bound_state *s, uint64_t p, uint64_t q)
{
    uint64_t w_rate =
        s->passed ? least(2 * UNIT, p + q) : least(least(3 * UNIT, p + q), 2 * UNIT + least(p, q));
    parts host = (parts)(s->w + s->dw) * UNIT + (s->passed ? 0 : (parts)s->w * least(UNIT, p));
    parts device =
        (parts)s->w * w_rate + (parts)s->k * least(2 * UNIT, p + q) + (parts)s->waiting * least(2 * UNIT, q);
    return host < device ? host : device;
}

/* Moved at least, by the rents p and q. */
static parts moved(const struct bound_sizes *s, uint64_t p, uint64_t q)
{
    bounded_poll_steps(s->n_states);
    parts sum = (parts)s->stash * least(2 * UNIT, p) - (parts)s->turn_room * p - (parts)s->end_room * q;
    for (uint32_t i = 0; i < s->n_states; i++)
        sum += state_parts(&s->states[i], p, q);
    return sum;
}

/* Looks at the rents around p and q, as far as `reach`, and takes the best. */
static void look_around(const struct bound_sizes *s, uint64_t reach, uint64_t step, uint64_t *p, uint64_t *q)
{
    uint64_t p_first = excess(*p, reach), p_last = *p + reach, q_first = excess(*q, reach),
             q_last = *q + reach;
    parts best = moved(s, *p, *q);
    for (uint64_t x = p_first; x <= p_last; x += step)
        for (uint64_t y = q_first; y <= q_last; y += step) {
            parts here = moved(s, x, y);
            if (here > best) {
                best = here;
                *p = x;
                *q = y;
            }
        }
}

static uint64_t free_choice(const struct bound_sizes *s)
{
    uint64_t p = 0, q = 0;
    look_around(s, MAX_RENT, UNIT / 12, &p, &q); /* with the usual optimizers that finds it */
    look_around(s, UNIT / 12, UNIT / 60, &p, &q);
    look_around(s, UNIT / 60, UNIT / 420, &p, &q);
    look_around(s, UNIT / 420, 1, &p, &q);
    parts best = moved(s, p, q);
    return best > 0 ? (uint64_t)((best + UNIT - 1) / UNIT) : 0; /* a part of a byte is a byte */
}

void bound_compute(const struct bound_sizes *s, struct bound *ret)
{
    uint64_t w = 0, turn_w = 0, dw = 0, state = 0;
    for (uint32_t i = 0; i < s->n_states; i++) {
        w += s->states[i].w;
        turn_w += s->states[i].passed ? 0 : s->states[i].w;
        dw += s->states[i].dw;
        state += s->states[i].w + s->states[i].k;
    }
    uint64_t lacking_w = excess(turn_w, s->turn_room);
    ret->host = (struct bound_way){.in = w + lacking_w, .out = dw};
    ret->device = (struct bound_way){.in = lacking_w + excess(state, s->end_room),
                                     .out = excess(state, least(s->turn_room, s->end_room))};
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

/* The first layer with weights, or PLAN_NONE. */
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
    xfree(written);
    xfree(settled);
    return bytes;
}

/* What a task needs that does not count as kept: neither W nor K, nor what is in `across` (NULL: nothing). */
static uint64_t working_set(const struct plan *p, uint32_t instr, const bool *across)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    const struct plan_instr *in = &prog->instrs[instr];
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < in->n_operands; k++) {
        tensor_id t = prog->operands[in->operand + k].tensor;
        if (p->tensors[t].kind != TENSOR_W && p->tensors[t].kind != TENSOR_K && !(across && across[t]))
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

static bool has_decision(const struct plan *p)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    for (uint32_t i = 0; i < prog->n_instrs; i++)
        if (prog->instrs[i].kind == INSTR_NORM)
            return true;
    return false;
}

static bool in_proportion(const struct bound_state *a, const struct bound_state *b)
{
    typedef unsigned __int128 product;
    return a->passed == b->passed && (product)a->w * b->dw == (product)b->w * a->dw &&
           (product)a->w * b->k == (product)b->w * a->k &&
           (product)a->w * b->waiting == (product)b->w * a->waiting;
}

/* Of each layer. The caller frees it. */
static struct bound_state *collect_layers(const struct plan *p)
{
    struct bound_state *layers = xcalloc(p->n_layers, sizeof *layers);
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        const struct plan_tensor *pt = &p->tensors[t];
        if (pt->kind == TENSOR_W)
            layers[pt->layer].w += pt->bytes;
        else if (pt->kind == TENSOR_DW && pt->replica == 0) /* the other replicas' sums end in this one */
            layers[pt->layer].dw += pt->bytes;
        else if (pt->kind == TENSOR_K)
            layers[pt->layer].k += pt->bytes;
    }
    return layers;
}

/* Sums the state of layers that are in proportion: mostly that leaves one to three. */
static void add_states(const struct plan *p, uint32_t turn_layer, struct bound_sizes *s)
{
    struct bound_state *layers = collect_layers(p);
    bool decision = has_decision(p);
    uint32_t first = first_trained(p); /* its dW is an operand of the end */
    s->states = xcalloc(p->n_layers, sizeof *s->states);
    for (uint32_t l = first; l < p->n_layers; l++) {
        struct bound_state *layer = &layers[l];
        uint32_t i = 0;
        if (layer->w == 0)
            continue;
        layer->waiting = decision && l != first ? layer->dw : 0;
        layer->passed = l > turn_layer;
        while (i < s->n_states && !in_proportion(&s->states[i], layer))
            i++;
        s->states[i].w += layer->w;
        s->states[i].dw += layer->dw;
        s->states[i].k += layer->k;
        s->states[i].waiting += layer->waiting;
        s->states[i].passed = layer->passed;
        s->n_states += i == s->n_states;
    }
    xfree(layers);
}

bool bound_sizes_of(const struct plan *p, uint32_t turn_layer, struct bound_sizes *ret)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    uint32_t turn = find_backward(prog, turn_layer, false), end = find_backward(prog, first_trained(p), true);
    *ret = (struct bound_sizes){0};
    if (turn == PLAN_NONE || end == PLAN_NONE || p->steps != 1)
        return false;
    add_states(p, turn_layer, ret);
    bool *across = xcalloc(p->n_tensors + 1, sizeof *across);
    ret->stash = stash_across(p, turn, across);
    ret->turn_room = excess(memory_of(p), working_set(p, turn, across));
    ret->end_room = excess(memory_of(p), working_set(p, end, NULL));
    xfree(across);
    return true;
}

void bound_sizes_finish(struct bound_sizes *s)
{
    xfree(s->states);
    s->states = NULL;
}

uint32_t bound_turn_layer(const struct plan *p)
{
    struct bound_state *layers = collect_layers(p);
    uint64_t behind = 0, most = 0;
    uint32_t best = p->n_layers - 1;
    for (uint32_t l = p->n_layers; l-- > 0;) {
        if (excess(layers[l].dw, behind) > most) {
            most = layers[l].dw - behind;
            best = l;
        }
        behind += layers[l].w;
    }
    xfree(layers);
    return best;
}

uint64_t bound_bytes(const struct plan *p)
{
    const uint32_t turns[2] = {p->n_layers - 1, bound_turn_layer(p)};
    uint64_t most = 0;
    for (int i = 0; i < 2; i++) {
        struct bound_sizes s;
        struct bound b;
        if (!bound_sizes_of(p, turns[i], &s))
            continue;
        bound_compute(&s, &b);
        most = b.bytes > most ? b.bytes : most;
        bound_sizes_finish(&s);
    }
    return most;
}
