/* Pieces: the byte ranges that tensors are cut into, for data-parallel shares and for micro-batch sizes that
 * differ from layer to layer.
 *
 * Shares begin at aligned addresses, so some shares of a small tensor may be empty. An order has no tasks for
 * an empty share. Every stage that builds a plan uses this arithmetic; the verifier has its own, so that it
 * can find mistakes in this one.
 */
#include "base/checked.h"
#include "scheduler/build/build.h"

static bool is_shared(enum tensor_kind k)
{
    return k == TENSOR_W || k == TENSOR_DW || k == TENSOR_B;
}

/* Divides a tensor of `elements` elements into `n` shares. Returns the element at which share `i` begins, a
 * multiple of `unit`, or `elements` if i = n. */
static uint64_t share_cut(uint64_t elements, uint64_t unit, uint32_t n, uint32_t i)
{
    unsigned __int128 at = (unsigned __int128)elements * i / n;
    return i >= n ? elements : (uint64_t)at / unit * unit;
}

/* Returns the byte at which share `i` of `n` of a W, dW or B begins. W and dW are cut at the same
 * elements. */
static uint64_t shared_cut(const struct graph *g, const struct graph_tensor *gt, uint32_t n, uint32_t i)
{
    enum dtype cut_as = gt->kind == TENSOR_B ? gt->dtype : g->layers[gt->layer].size.w_dtype;
    uint64_t elements = dtype_elements(gt->dtype, gt->bytes);
    if (i >= n)
        return gt->bytes;
    return share_cut(elements, plan_share_unit(cut_as), n, i) * dtype_size(gt->dtype);
}

/* Returns where share `i` of `n` begins within one part of the optimizer state K, as a byte offset into K. */
static uint64_t part_cut(const struct graph *g, const struct graph_tensor *gt, uint32_t n, uint32_t part,
                         uint32_t i)
{
    const struct graph_layer *gl = &g->layers[gt->layer];
    const struct state_part *p = &gl->parts[part];
    uint64_t w = layer_w_elements(&gl->size), unit = plan_share_unit(p->dtype),
             at = share_cut(w, plan_share_unit(gl->size.w_dtype), n, i);
    if (i >= n)
        return p->end;
    /* A part with another number of elements is cut in the same proportions as W. */
    if (p->elements != w)
        at = w > 0 ? (uint64_t)((unsigned __int128)at * p->elements / w) / unit * unit : 0;
    return p->begin + at * dtype_size(p->dtype);
}

uint32_t tensor_pieces(const struct graph *g, uint32_t n_shares, tensor_id t)
{
    const struct graph_tensor *gt = &g->tensors[t];
    if (is_shared(gt->kind))
        return n_shares;
    return gt->kind == TENSOR_K && n_shares > 1 ? n_shares * g->layers[gt->layer].n_parts : gt->pieces;
}

void tensor_piece(const struct graph *g, uint32_t n_shares, tensor_id t, uint32_t piece, uint64_t *ret_begin,
                  uint64_t *ret_end)
{
    const struct graph_tensor *gt = &g->tensors[t];
    if (is_shared(gt->kind)) {
        *ret_begin = shared_cut(g, gt, n_shares, piece);
        *ret_end = shared_cut(g, gt, n_shares, piece + 1);
    } else if (gt->kind == TENSOR_K && n_shares > 1) {
        *ret_begin = part_cut(g, gt, n_shares, piece / n_shares, piece % n_shares);
        *ret_end = part_cut(g, gt, n_shares, piece / n_shares, piece % n_shares + 1);
    } else {
        *ret_begin = gt->bytes / gt->pieces * piece;
        *ret_end = *ret_begin + gt->bytes / gt->pieces;
    }
}

struct extent extent_whole(const struct graph *g, uint32_t n_shares, tensor_id t)
{
    return (struct extent){0, tensor_pieces(g, n_shares, t), 0, g->tensors[t].bytes};
}

struct extent extent_piece(const struct graph *g, uint32_t n_shares, tensor_id t, uint32_t piece)
{
    struct extent e = {.piece = piece, .n_pieces = 1};
    tensor_piece(g, n_shares, t, piece, &e.begin, &e.end);
    return e;
}

uint64_t segment_bytes(const struct segment *s)
{
    return round_up(s->of.end - s->of.begin, PLAN_ALIGN);
}

/* ---- operands of tasks ---- */

uint32_t todo_extents(const struct order *o, const struct todo *t, const struct graph_operand *op)
{
    bool parts = t->share != SHARE_ALL && o->graph->tensors[op->tensor].kind == TENSOR_K;
    return parts ? tensor_pieces(o->graph, o->n_shares, op->tensor) / o->n_shares : 1;
}

struct extent todo_extent(const struct order *o, const struct todo *t, const struct graph_operand *op,
                          uint32_t i)
{
    const struct graph_tensor *gt = &o->graph->tensors[op->tensor];
    if (t->share != SHARE_ALL && (is_shared(gt->kind) || gt->kind == TENSOR_K))
        return extent_piece(o->graph, o->n_shares, op->tensor, i * o->n_shares + t->share);
    if (gt->pieces > 1 && op->end - op->begin < gt->bytes)
        return extent_piece(o->graph, o->n_shares, op->tensor, (uint32_t)(op->begin / (op->end - op->begin)));
    return extent_whole(o->graph, o->n_shares, op->tensor);
}
