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

/* Returns the byte offset at which share `i` of `n` begins in a tensor of `bytes` bytes. For i = n, returns
 * `bytes`, the end of the last share. */
static uint64_t share_cut(uint64_t bytes, uint32_t n, uint32_t i)
{
    unsigned __int128 at = (unsigned __int128)bytes * i / n;
    return i >= n ? bytes : (uint64_t)at & ~(uint64_t)(PLAN_ALIGN - 1);
}

/* Returns the number of parts of K. Each part is as long as W, so AdamW's K, with two moments, has 2 parts.
 * If the size of K is not a multiple of the size of W, K counts as one part. */
static uint32_t k_parts(const struct graph *g, tensor_id t)
{
    uint64_t w = g->layers[g->tensors[t].layer].size.w, k = g->tensors[t].bytes;
    return w > 0 && k % w == 0 ? (uint32_t)(k / w) : 1;
}

/* Returns the byte offset in K at which share `i` of `n` begins within part number `part`. */
static uint64_t k_cut(const struct graph *g, tensor_id t, uint32_t n, uint32_t part, uint32_t i)
{
    uint64_t w = g->layers[g->tensors[t].layer].size.w, k = g->tensors[t].bytes;
    if (w > 0 && k % w == 0)
        return part * w + share_cut(w, n, i);
    unsigned __int128 at = w > 0 ? (unsigned __int128)share_cut(w, n, i) * k / w : 0;
    return i >= n ? k : (uint64_t)at & ~(uint64_t)(PLAN_ALIGN - 1);
}

uint32_t tensor_pieces(const struct graph *g, uint32_t n_shares, tensor_id t)
{
    const struct graph_tensor *gt = &g->tensors[t];
    if (is_shared(gt->kind))
        return n_shares;
    return gt->kind == TENSOR_K && n_shares > 1 ? n_shares * k_parts(g, t) : gt->pieces;
}

void tensor_piece(const struct graph *g, uint32_t n_shares, tensor_id t, uint32_t piece, uint64_t *ret_begin,
                  uint64_t *ret_end)
{
    const struct graph_tensor *gt = &g->tensors[t];
    if (is_shared(gt->kind)) {
        *ret_begin = share_cut(gt->bytes, n_shares, piece);
        *ret_end = share_cut(gt->bytes, n_shares, piece + 1);
    } else if (gt->kind == TENSOR_K && n_shares > 1) {
        *ret_begin = k_cut(g, t, n_shares, piece / n_shares, piece % n_shares);
        *ret_end = k_cut(g, t, n_shares, piece / n_shares, piece % n_shares + 1);
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
