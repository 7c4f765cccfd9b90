/* Lists the arrays that each op reads and writes. This is the only file that computes sizes in bytes from the
 * shapes of ops. The file compiles only if each op has a function here. The functions keep no state, so any
 * thread may call them. */
#include "kernels/op.h"

/* The arrays of one call that op_ranges has listed so far. */
struct range_list {
    struct op_range *at;
    uint32_t n;
};

static void add_range(struct range_list *l, const void *at, uint64_t bytes, bool write)
{
    if (at && bytes > 0)
        l->at[l->n++] = (struct op_range){at, bytes, write};
}

static void reads(struct range_list *l, const void *at, uint64_t bytes)
{
    add_range(l, at, bytes, false);
}

static void writes(struct range_list *l, const void *at, uint64_t bytes)
{
    add_range(l, at, bytes, true);
}

/* Returns the size in bytes of an array [a][b] of elements of type `dtype`. */
static uint64_t array(enum dtype dtype, uint64_t a, uint64_t b)
{
    return a * b * dtype_size(dtype);
}

/* Returns the size in bytes of an array [a][b] of an op whose elements are always floats. */
static uint64_t floats(uint64_t a, uint64_t b)
{
    return array(DTYPE_F32, a, b);
}

/* Adds the arrays of an elementwise op to the list. If the op works in place, input and output are the same
 * array, which is listed only as an output. */
static void add_mapped(struct range_list *l, const void *from, void *to, uint64_t bytes)
{
    if (from != to)
        reads(l, from, bytes);
    writes(l, to, bytes);
}

static void ranges_linear_fwd(const struct op_linear_fwd *o, struct range_list *l)
{
    reads(l, o->x, array(o->dtype, o->rows, o->in));
    reads(l, o->w, array(o->w_dtype, o->out, o->in));
    reads(l, o->b, array(o->w_dtype, 1, o->out));
    writes(l, o->z, array(o->y_dtype, o->rows, o->out));
    writes(l, o->y, array(o->y_dtype, o->rows, o->out));
}

static void ranges_linear_bwd_data(const struct op_linear_bwd_data *o, struct range_list *l)
{
    reads(l, o->dy, array(o->dtype, o->rows, o->out));
    reads(l, o->w, array(o->w_dtype, o->out, o->in));
    reads(l, o->z, array(o->dtype, o->rows, o->in));
    writes(l, o->dx, array(o->dtype, o->rows, o->in));
}

static void ranges_linear_bwd_weight(const struct op_linear_bwd_weight *o, struct range_list *l)
{
    reads(l, o->dy, array(o->dtype, o->rows, o->out));
    reads(l, o->x, array(o->dtype, o->rows, o->in));
    writes(l, o->dw, floats(o->out, o->in));
}

static void ranges_bias_fwd(const struct op_bias_fwd *o, struct range_list *l)
{
    reads(l, o->b, array(o->w_dtype, 1, o->n));
    add_mapped(l, o->x, o->y, array(o->dtype, o->rows, o->n));
}

static void ranges_bias_bwd(const struct op_bias_bwd *o, struct range_list *l)
{
    reads(l, o->dy, array(o->dtype, o->rows, o->n));
    writes(l, o->db, floats(1, o->n));
}

static void ranges_act_fwd(const struct op_act_fwd *o, struct range_list *l)
{
    add_mapped(l, o->x, o->y, array(o->dtype, 1, o->n));
}

static void ranges_act_bwd(const struct op_act_bwd *o, struct range_list *l)
{
    reads(l, o->x, array(o->dtype, 1, o->n));
    add_mapped(l, o->dy, o->dx, array(o->dtype, 1, o->n));
}

static void ranges_dropout(const struct op_dropout *o, struct range_list *l)
{
    add_mapped(l, o->x, o->y, array(o->dtype, o->rows, o->n));
}

static void ranges_embedding_fwd(const struct op_embedding_fwd *o, struct range_list *l)
{
    reads(l, o->ids, (uint64_t)o->rows * sizeof *o->ids);
    reads(l, o->table, array(o->w_dtype, o->vocab, o->n));
    writes(l, o->y, array(o->dtype, o->rows, o->n));
}

static void ranges_embedding_bwd(const struct op_embedding_bwd *o, struct range_list *l)
{
    reads(l, o->ids, (uint64_t)o->rows * sizeof *o->ids);
    reads(l, o->dy, array(o->dtype, o->rows, o->n));
    writes(l, o->dtable, floats(o->vocab, o->n));
}

static void ranges_rownorm_fwd(const struct op_rownorm_fwd *o, struct range_list *l)
{
    reads(l, o->x, array(o->dtype, o->rows, o->n));
    reads(l, o->w, array(o->w_dtype, 1, o->n));
    reads(l, o->b, array(o->w_dtype, 1, o->n));
    writes(l, o->y, array(o->dtype, o->rows, o->n));
    writes(l, o->stats, floats(o->rows, 2));
}

static void ranges_rownorm_bwd(const struct op_rownorm_bwd *o, struct range_list *l)
{
    reads(l, o->x, array(o->dtype, o->rows, o->n));
    reads(l, o->w, array(o->w_dtype, 1, o->n));
    reads(l, o->stats, floats(o->rows, 2));
    if (o->dy != o->dx)
        reads(l, o->dy, array(o->dtype, o->rows, o->n));
    writes(l, o->dx, array(o->dtype, o->rows, o->n));
    writes(l, o->dw, floats(1, o->n));
    writes(l, o->db, floats(1, o->n));
}

/* Returns the number of elements that one token has in qkv. This includes its queries, keys and values. */
static uint64_t qkv_width(uint32_t heads, uint32_t kv_heads, uint32_t head)
{
    return ((uint64_t)heads + 2 * (uint64_t)kv_heads) * head;
}

static void ranges_attention_fwd(const struct op_attention_fwd *o, struct range_list *l)
{
    uint64_t tokens = (uint64_t)o->rows * o->seq;
    reads(l, o->qkv, array(o->dtype, tokens, qkv_width(o->heads, o->kv_heads, o->head)));
    writes(l, o->y, array(o->dtype, tokens, (uint64_t)o->heads * o->head));
    writes(l, o->lse, floats(tokens, o->heads));
}

static void ranges_attention_bwd(const struct op_attention_bwd *o, struct range_list *l)
{
    uint64_t tokens = (uint64_t)o->rows * o->seq;
    reads(l, o->qkv, array(o->dtype, tokens, qkv_width(o->heads, o->kv_heads, o->head)));
    reads(l, o->y, array(o->dtype, tokens, (uint64_t)o->heads * o->head));
    reads(l, o->lse, floats(tokens, o->heads));
    reads(l, o->dy, array(o->dtype, tokens, (uint64_t)o->heads * o->head));
    writes(l, o->dqkv, array(o->dtype, tokens, qkv_width(o->heads, o->kv_heads, o->head)));
    writes(l, o->scratch, floats(tokens, o->heads));
}

static void ranges_rope(const struct op_rope *o, struct range_list *l)
{
    writes(l, o->x, array(o->dtype, (uint64_t)o->rows * o->seq, o->n));
}

static void ranges_swiglu_fwd(const struct op_swiglu_fwd *o, struct range_list *l)
{
    reads(l, o->x, array(o->dtype, o->rows, 2 * (uint64_t)o->n));
    writes(l, o->y, array(o->dtype, o->rows, o->n));
}

static void ranges_swiglu_bwd(const struct op_swiglu_bwd *o, struct range_list *l)
{
    reads(l, o->dy, array(o->dtype, o->rows, o->n));
    add_mapped(l, o->x, o->dx, array(o->dtype, o->rows, 2 * (uint64_t)o->n));
}

static void ranges_zero(const struct op_zero *o, struct range_list *l)
{
    writes(l, o->y, o->bytes);
}

/* Adds the group state that an op of a loss reads for its loss scale. */
static void reads_loss_scale(const struct group_state *group, struct range_list *l)
{
    reads(l, group, sizeof *group);
}

/* Returns the number of bytes of the group state. Without loss scaling, it ends before the loss scale. */
static uint64_t group_bytes(bool scales)
{
    return scales ? sizeof(struct group_state) : offsetof(struct group_state, loss_scale);
}

static void ranges_softmax_xent(const struct op_softmax_xent *o, struct range_list *l)
{
    reads(l, o->target, (uint64_t)o->rows * sizeof *o->target);
    if (o->x != o->dx)
        reads(l, o->x, array(o->dtype, o->rows, o->n));
    reads_loss_scale(o->group, l);
    writes(l, o->dx, array(o->dx_dtype, o->rows, o->n));
    writes(l, o->result, sizeof *o->result);
}

static void ranges_mse_fwd(const struct op_mse_fwd *o, struct range_list *l)
{
    reads(l, o->x, array(o->dtype, o->rows, o->n));
    reads(l, o->target, floats(o->rows, o->n));
    writes(l, o->result, sizeof *o->result);
}

static void ranges_mse_bwd(const struct op_mse_bwd *o, struct range_list *l)
{
    reads(l, o->x, array(o->dtype, o->rows, o->n));
    reads(l, o->target, floats(o->rows, o->n));
    reads_loss_scale(o->group, l);
    writes(l, o->dx, array(o->dtype, o->rows, o->n));
}

static void ranges_gradients(const struct op_gradients *g, uint64_t n, struct range_list *l)
{
    for (uint32_t u = 0; u < g->n; u++)
        reads(l, g->dw[u], floats(1, n));
}

static void ranges_sgd(const struct op_sgd *o, struct range_list *l)
{
    ranges_gradients(&o->g, o->n, l);
    reads(l, o->group, group_bytes(false));
    writes(l, o->w, array(o->dtype, 1, o->n));
    writes(l, o->master, floats(1, o->n));
    writes(l, o->v, floats(1, o->n));
}

static void ranges_adamw(const struct op_adamw *o, struct range_list *l)
{
    ranges_gradients(&o->g, o->n, l);
    reads(l, o->group, group_bytes(false));
    writes(l, o->w, array(o->dtype, 1, o->n));
    writes(l, o->master, floats(1, o->n));
    writes(l, o->m, floats(1, o->n));
    writes(l, o->v, floats(1, o->n));
}

static void ranges_add(const struct op_add *o, struct range_list *l)
{
    reads(l, o->x, array(o->dtype, 1, o->n));
    writes(l, o->y, array(o->dtype, 1, o->n));
}

static void ranges_sumsq(const struct op_sumsq *o, struct range_list *l)
{
    ranges_gradients(&o->g, o->n, l);
    writes(l, o->sum, sizeof *o->sum);
}

static void ranges_norm_add(const struct op_norm_add *o, struct range_list *l)
{
    reads(l, o->sum, sizeof *o->sum);
    writes(l, o->decision, sizeof *o->decision);
}

static void ranges_decide(const struct op_decide *o, struct range_list *l)
{
    writes(l, o->decision, sizeof *o->decision);
    writes(l, o->group, group_bytes(o->growth_steps > 0));
}

uint32_t op_ranges(const struct op_call *call, struct op_range ret[OP_RANGES])
{
    struct range_list l = {ret, 0};

    switch (call->op) {
#define OP(name)                                                                                             \
    case OP_##name:                                                                                          \
        ranges_##name(&call->name, &l);                                                                      \
        break;
#include "kernels/ops.def"
#undef OP
    case OP_COUNT:
        break;
    }
    return l.n;
}
