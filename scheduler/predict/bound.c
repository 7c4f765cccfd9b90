/* Computes lower bounds on the host bytes of one run of the cycle. docs/bound.md has the full proof; this is
 * a summary.
 *
 * For a chain whose cycle is one training step, the argument looks at two moments of the step, in the order
 * in which the plan issues its tasks:
 *
 *     the turn   the first backward task of the loss, or of another chosen layer. For one micro-batch, every
 *                layer has done its forward pass, and no layer before the chosen one its backward pass.
 *     the end    the last backward task of the first layer with weights. All gradients are complete. No layer
 *                with weights has started its next forward pass, which needs the update of the first layer.
 *
 * Every W is read between the turn and the end, and again between the end and the next turn. The cycle is one
 * step, so the same copies are on the devices at the turn of every step, and likewise at the end. Therefore a
 * layer moves at least these bytes:
 *
 *     update on the host     dW goes out, and W comes in after the update. W comes in once more after the
 *                            turn, unless it is on a device at the turn.
 *     update on the device   W comes in after each moment at which it is on no device, and goes out once if
 *                            there is such a moment. K goes out and in unless it is on a device at both
 *                            moments. If updates wait for a decision, dW goes out and in unless it is on a
 *                            device at the end.
 *
 * Layers after the chosen one may have finished their backward pass at the turn. Their W need not be read
 * after the turn. If their update is on the device, W goes out and in once, like K.
 *
 * Stash that is written before the turn and read after it is on a device at the turn, or goes out and in.
 *
 * At either moment, the copies that stay on the devices must fit in the free bytes: the memory that the
 * working set of the current task leaves. Suppose each byte pays a rent for being there: p at the turn and q
 * at the end. For any p and q, a plan pays at most p * free bytes at the turn + q * free bytes at the end.
 * With W, G, K and A bytes of W, dW, K and stash, moved bytes and rent together are at least
 *
 *     a layer                   the lesser of  W + G + W min(1, p)
 *                               and            W min(3, 2 + p, 2 + q, p + q) + K min(2, p + q) + G min(2, q)
 *     a layer after the chosen  the lesser of  W + G
 *                               and            W min(2, p + q) + K min(2, p + q) + G min(2, q)
 *     stash                     A min(2, p)
 *
 * where G min(2, q) applies only to dW that waits for a decision. This sum less the largest possible rent is
 * a lower bound on the moved bytes. p and q are chosen to make it large. With R free bytes at both moments
 * and no stash, the bound is 3W - R for K = 2W (p = 1, q = 0), 3W - 1.5R for K = W (p = 1.5, q = 0), and 3W -
 * 3R for K = 0 (p = 2, q = 1).
 *
 * For all other plans the argument looks at one moment of the cycle, the start of a backward task. It needs
 * no order of tasks, so it holds for blocks with losses of their own, and for cycles of several steps. With k
 * steps in the cycle, a layer moves at least these bytes in one run of the cycle:
 *
 *     all updates on the host    in every step dW goes out and W comes in: k (W + G)
 *     otherwise                  W and K go out and in, unless they are always on a device: 2 (W + K)
 *
 * What is always on a device must fit in the free bytes at the chosen moment. Activations that are written
 * before this moment and read after it take some of these bytes, or go out and in. With a rent of p for each
 * byte, from 0 to 2, the bound is the sum over the layers of the lesser of k (W + G) and p (W + K), less
 * p * free bytes.
 *
 * Transfers between devices do not use the host link, so the memory of all devices counts as one. Only one
 * working set is subtracted from it, because the other devices may be idle at that moment.
 */
#include "scheduler/predict/bound.h"

#include <stdlib.h>

#include "base/arena.h"
#include "base/bounded.h"

#define UNIT     5040ull /* rents are in units of 1/5040 byte */
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

/* ---- choosing the rents ---- */

/* Returns the least possible sum of moved bytes and rents for the layers of `s`, in units of 1/UNIT byte. `p`
 * and `q` are the rents per byte. */
static parts state_parts(const struct bound_state *s, uint64_t p, uint64_t q)
{
    uint64_t w_rate =
        s->passed ? least(2 * UNIT, p + q) : least(least(3 * UNIT, p + q), 2 * UNIT + least(p, q));
    parts host = (parts)(s->w + s->dw) * UNIT + (s->passed ? 0 : (parts)s->w * least(UNIT, p));
    parts device =
        (parts)s->w * w_rate + (parts)s->k * least(2 * UNIT, p + q) + (parts)s->waiting * least(2 * UNIT, q);
    return host < device ? host : device;
}

/* Returns a lower bound on the bytes that a step moves, in units of 1/UNIT byte. Negative if the rents `p`
 * (at the turn) and `q` (at the end) give no bound. */
static parts moved(const struct bound_sizes *s, uint64_t p, uint64_t q)
{
    bounded_poll_steps(s->n_states);
    parts sum =
        (parts)s->stash * least(2 * UNIT, p) - (parts)s->turn_free_bytes * p - (parts)s->end_free_bytes * q;
    for (uint32_t i = 0; i < s->n_states; i++)
        sum += state_parts(&s->states[i], p, q);
    return sum;
}

/* Tries all rents that differ from *p and *q by at most `reach`, in steps of `step`. Sets *p and *q to the
 * rents with the largest bound. */
static void try_rents(const struct bound_sizes *s, uint64_t reach, uint64_t step, uint64_t *p, uint64_t *q)
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

static uint64_t best_bound(const struct bound_sizes *s)
{
    uint64_t p = 0, q = 0;
    /* First search coarsely, among multiples of 1/12. They contain the best rents for the usual
     * optimizers. */
    try_rents(s, MAX_RENT, UNIT / 12, &p, &q);
    try_rents(s, UNIT / 12, UNIT / 60, &p, &q);
    try_rents(s, UNIT / 60, UNIT / 420, &p, &q);
    try_rents(s, UNIT / 420, 1, &p, &q);
    parts best = moved(s, p, q);
    return best > 0 ? (uint64_t)((best + UNIT - 1) / UNIT) : 0; /* plans move whole bytes, so round up */
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
    uint64_t lacking_w = excess(turn_w, s->turn_free_bytes);
    ret->host = (struct bound_way){.in = w + lacking_w, .out = dw};
    ret->device = (struct bound_way){.in = lacking_w + excess(state, s->end_free_bytes),
                                     .out = excess(state, least(s->turn_free_bytes, s->end_free_bytes))};
    ret->host.total = ret->host.in + ret->host.out;
    ret->device.total = ret->device.in + ret->device.out;
    ret->bytes = best_bound(s);
}

/* ---- the sizes of a plan ---- */

static bool is_task(const struct plan_instr *in)
{
    return !instr_is_move(in->kind) && in->kind != INSTR_DROP;
}

/* Returns whether a tensor is an activation that only devices read. Statistics are not: an update on the host
 * reads them, so they need not come back to a device. */
static bool is_stash(const struct plan *p, tensor_id t)
{
    return tensor_byte_class(&p->tensors[t]) == BYTES_STASH && p->tensors[t].kind != TENSOR_STAT;
}

/* Returns the number of the first layer with weights, or PLAN_NONE if no layer has weights. */
static uint32_t first_trained(const struct plan *p)
{
    uint32_t layer = PLAN_NONE;
    for (uint32_t t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].kind == TENSOR_W && p->tensors[t].layer < layer)
            layer = p->tensors[t].layer;
    return layer;
}

/* Returns the index of the first BWD instruction of a layer, or of the last one if `last` is true. Returns
 * PLAN_NONE if the layer has no BWD instruction. */
static uint32_t find_backward(const struct plan_program *prog, uint32_t layer, bool last)
{
    uint32_t found = PLAN_NONE;
    for (uint32_t i = 0; i < prog->n_instrs; i++)
        if (prog->instrs[i].kind == INSTR_BWD && prog->instrs[i].layer == layer &&
            (last || found == PLAN_NONE))
            found = i;
    return found;
}

/* Sets across[t] to true for each activation tensor t that is written before instruction `turn` and read
 * after it. Returns the total size of these tensors in bytes. */
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

/* Returns the number of bytes of all operands of instruction `instr`, except W, K and each tensor t for which
 * across[t] is true. The bound counts these elsewhere. */
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

/* Returns an array with the sizes in bytes of W, dW and K of each layer. The caller frees the array. */
static struct bound_state *collect_layers(const struct plan *p)
{
    struct bound_state *layers = xcalloc(p->n_layers, sizeof *layers);
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        const struct plan_tensor *pt = &p->tensors[t];
        if (pt->kind == TENSOR_W)
            layers[pt->layer].w += pt->bytes;
        /* Only the dW of replica 0 counts, because the gradients of all other replicas are added to it. */
        else if (pt->kind == TENSOR_DW && pt->replica == 0)
            layers[pt->layer].dw += pt->bytes;
        else if (pt->kind == TENSOR_K)
            layers[pt->layer].k += pt->bytes;
    }
    return layers;
}

/* Fills s->states. Each element has the total size of all layers with the same proportions of W, dW and K.
 * Most models need only one to three elements. */
static void add_states(const struct plan *p, uint32_t turn_layer, struct bound_sizes *s)
{
    struct bound_state *layers = collect_layers(p);
    bool decision = has_decision(p);
    /* The last backward task of this layer is the end. Its dW is already counted as an operand, and so must
     * not be counted as `waiting`. */
    uint32_t first = first_trained(p);
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
    ret->turn_free_bytes = excess(memory_of(p), working_set(p, turn, across));
    ret->end_free_bytes = excess(memory_of(p), working_set(p, end, NULL));
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

/* ---- one run of any cycle ---- */

/* Returns the least possible sum of moved bytes and rents of a run of the cycle, less the largest possible
 * rent, in units of 1/UNIT byte. `p` is the rent per byte, at most 2 * UNIT. */
static parts moved_in_cycle(const struct bound_cycle *s, uint64_t p)
{
    parts sum = -(parts)s->free_bytes * (int64_t)p;
    bounded_poll_steps(s->n_states);
    for (uint32_t i = 0; i < s->n_states; i++) {
        const struct bound_state *l = &s->states[i];
        parts host = (parts)(l->w + l->dw) * s->steps * UNIT, device = (parts)(l->w + l->k) * p;
        if (l->dw > 0) /* otherwise nothing updates these layers */
            sum += host < device ? host : device;
    }
    return sum;
}

/* Between two rents at which a layer changes from the device to the host, the bound is linear in the rent. So
 * the best rent is one of these, or the largest. */
uint64_t bound_cycle_compute(const struct bound_cycle *s)
{
    parts best = moved_in_cycle(s, 2 * UNIT);
    for (uint32_t i = 0; i < s->n_states; i++) {
        const struct bound_state *l = &s->states[i];
        parts p = (parts)(l->w + l->dw) * s->steps * (parts)UNIT / (parts)(l->w + l->k);
        parts here = p < 2 * (parts)UNIT ? moved_in_cycle(s, (uint64_t)p) : 0;
        best = here > best ? here : best;
    }
    return best > 0 ? (uint64_t)((best + UNIT - 1) / UNIT) : 0; /* plans move whole bytes, so round up */
}

/* Adds the bytes of each activation to *change[i] where it begins to be alive between two tasks, and
 * subtracts them where it is read. So the sum of change[0] to change[i] is the number of bytes that are
 * written before instruction i and read after it. */
static void count_alive(const struct plan *p, int64_t *change)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    uint32_t *last = xcalloc(p->n_tensors + 1, sizeof *last); /* the task that used a tensor last, plus 1 */
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        const struct plan_instr *in = &prog->instrs[i];
        for (uint32_t k = 0; k < in->n_operands && is_task(in); k++) {
            const struct plan_operand *o = &prog->operands[in->operand + k];
            if (!is_stash(p, o->tensor))
                continue;
            if (o->access & ACCESS_READ && last[o->tensor] > 0 && last[o->tensor] <= i) {
                change[last[o->tensor]] += (int64_t)operand_bytes(o);
                change[i] -= (int64_t)operand_bytes(o);
            }
            last[o->tensor] = i + 1;
        }
    }
    xfree(last);
}

/* Returns the number of bytes of an instruction's operands other than W and K. */
static uint64_t other_operands(const struct plan *p, const struct plan_instr *in)
{
    const struct plan_operand *o = &p->programs[PROGRAM_CYCLE].operands[in->operand];
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < in->n_operands; k++)
        if (p->tensors[o[k].tensor].kind != TENSOR_W && p->tensors[o[k].tensor].kind != TENSOR_K)
            bytes += operand_bytes(&o[k]);
    return bytes;
}

/* Returns the most bytes that tasks need beside W and K when a backward task starts: the operands of this
 * task, and activations that later tasks read. */
static uint64_t most_beside_state(const struct plan *p)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    int64_t *change = xcalloc((size_t)prog->n_instrs + 1, sizeof *change), alive = 0;
    uint64_t most = 0;
    count_alive(p, change);
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        alive += change[i];
        uint64_t here =
            prog->instrs[i].kind == INSTR_BWD ? (uint64_t)alive + other_operands(p, &prog->instrs[i]) : 0;
        most = here > most ? here : most;
    }
    xfree(change);
    return most;
}

bool bound_cycle_of(const struct plan *p, struct bound_cycle *ret)
{
    struct bound_sizes layers = {0};
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    *ret = (struct bound_cycle){.steps = p->steps};
    if (first_trained(p) == PLAN_NONE || find_backward(prog, p->n_layers - 1, false) == PLAN_NONE)
        return false; /* nothing is trained */
    add_states(p, p->n_layers - 1, &layers);
    ret->states = layers.states;
    ret->n_states = layers.n_states;
    uint64_t has = memory_of(p), beside = most_beside_state(p);
    ret->free_bytes = has > INT64_MAX ? INT64_MAX : (int64_t)has - (int64_t)beside;
    return true;
}

void bound_cycle_finish(struct bound_cycle *s)
{
    xfree(s->states);
    s->states = NULL;
}

static uint64_t cycle_bound(const struct plan *p)
{
    struct bound_cycle s;
    uint64_t bytes = 0;
    if (bound_cycle_of(p, &s))
        bytes = bound_cycle_compute(&s);
    bound_cycle_finish(&s);
    return bytes;
}

/* Returns whether each layer reads the output of the layer before it, and all layers have one loss. */
static bool is_one_chain(const struct plan *p)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        const struct plan_instr *in = &prog->instrs[i];
        for (uint32_t k = 0; k < in->n_operands && in->kind == INSTR_FWD; k++) {
            const struct plan_operand *o = &prog->operands[in->operand + k];
            const struct plan_tensor *t = &p->tensors[o->tensor];
            if (o->role == ROLE_X && t->kind == TENSOR_Y && t->layer + 1 != in->layer)
                return false;
        }
    }
    return p->n_groups == 1;
}

/* ---- */

uint64_t bound_bytes(const struct plan *p)
{
    if (p->steps != 1 || !is_one_chain(p))
        return cycle_bound(p);
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
