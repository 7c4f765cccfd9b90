/* Ops that transformers apply to each token by itself: embedding, rotary positions and swiglu. The zero op
 * is here too.
 *
 * embedding_bwd adds rows to rows of the table, and several tokens may have the same row. A piece owns
 * columns of the table and walks through the tokens in ascending order. rope is the only op here whose
 * bits depend on the C library (sin, cos and pow in double, rounded to float). It computes the angles of a
 * position once per call and uses them for all rows and heads. For swiglu the expressions are part of the
 * contract:
 *
 *     y = silu(gate) * x                                          (silu and slope: vmath.h)
 *     dgate = (dy * x) * slope(gate), dx = dy * silu(gate)
 *
 * Any thread may call these functions.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/as_floats.h"
#include "kernels/cpu/ops.h"
#include "kernels/vmath.h"

#define COLUMNS 64 /* table columns in one piece */

static size_t table_row(const int32_t *ids, uint32_t r, uint32_t vocab)
{
    assert(ids[r] >= 0 && (uint32_t)ids[r] < vocab);
    (void)vocab;
    return (size_t)ids[r];
}

/* Copies `n` elements from element `from` of the table to element `to` of y. If the types differ, the
 * elements are widened or rounded. */
static void copy_vector(const struct op_embedding_fwd *o, uint64_t from, uint64_t to, size_t n)
{
    float buffer[FLOATS_BLOCK];

    if (o->dtype == o->w_dtype) {
        memcpy(floats_at(o->dtype, o->y, to), floats_at(o->w_dtype, o->table, from),
               n * dtype_size(o->dtype));
        return;
    }
    for (size_t i = 0, span; i < n; i += span) {
        span = floats_span(o->w_dtype, n - i);
        half_round(o->dtype, floats_in(o->w_dtype, o->table, from + i, span, buffer),
                   floats_at(o->dtype, o->y, to + i), span);
    }
}

static void embedding_fwd_piece(void *ctx, uint32_t i)
{
    const struct op_embedding_fwd *o = ctx;
    uint32_t per = piece_rows(o->n), first = i * per;
    uint32_t rows = o->rows - first < per ? o->rows - first : per;

    for (uint32_t r = first; r < first + rows; r++)
        copy_vector(o, (uint64_t)table_row(o->ids, r, o->vocab) * o->n, (uint64_t)r * o->n, o->n);
}

void cpu_op_embedding_fwd(const struct op_call *call, struct pool *pool)
{
    struct op_embedding_fwd o = call->embedding_fwd;
    uint32_t per = piece_rows(o.n);
    pool_run(pool, embedding_fwd_piece, &o, o.rows / per + (o.rows % per != 0));
}

CPU_CLONES static void add_row(float *restrict y, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = y[i] + x[i];
}

static void embedding_bwd_piece(void *ctx, uint32_t i)
{
    const struct op_embedding_bwd *o = ctx;
    float *dtable = o->dtable, buffer[COLUMNS];
    uint32_t first = i * COLUMNS, width = o->n - first < COLUMNS ? o->n - first : COLUMNS;

    for (uint32_t r = 0; r < o->rows; r++)
        add_row(dtable + table_row(o->ids, r, o->vocab) * o->n + first,
                floats_in(o->dtype, o->dy, (uint64_t)r * o->n + first, width, buffer), width);
}

void cpu_op_embedding_bwd(const struct op_call *call, struct pool *pool)
{
    struct op_embedding_bwd o = call->embedding_bwd;
    pool_run(pool, embedding_bwd_piece, &o, o.n / COLUMNS + (o.n % COLUMNS != 0));
}

/* The number of pairs of elements that are rotated together. The angles of these pairs are stored on the
 * stack. */
#define PAIRS 64

/* The angles by which up to PAIRS pairs of elements are rotated at one position in the sequence. */
struct rotation {
    double speed[PAIRS]; /* angle between neighbouring positions */
    float cos[PAIRS], sin[PAIRS];
};

struct rope_ctx {
    const struct op_rope *o;
    uint32_t per_piece; /* positions in one piece */
};

static void set_speeds(struct rotation *a, const struct op_rope *o, uint32_t first, uint32_t pairs)
{
    for (uint32_t i = 0; i < pairs; i++)
        a->speed[i] =
            pow((double)o->theta, -2.0 * (double)(first + i) / (double)o->head) * (o->inverse ? -1.0 : 1.0);
}

static void set_position(struct rotation *a, uint32_t t, uint32_t pairs)
{
    for (uint32_t i = 0; i < pairs; i++) {
        a->cos[i] = (float)cos((double)t * a->speed[i]);
        a->sin[i] = (float)sin((double)t * a->speed[i]);
    }
}

CPU_CLONES static void rotate(float *restrict x, float *restrict y, const struct rotation *restrict a,
                              uint32_t pairs)
{
    for (uint32_t i = 0; i < pairs; i++) {
        float from_x = x[i], from_y = y[i];
        x[i] = from_x * a->cos[i] - from_y * a->sin[i];
        y[i] = from_x * a->sin[i] + from_y * a->cos[i];
    }
}

/* Rotates `pairs` pairs of elements. The first elements of the pairs begin at element `at` of x. */
static void rotate_pairs(const struct op_rope *o, uint64_t at, const struct rotation *a, uint32_t pairs)
{
    const uint64_t second = at + o->head / 2;
    float x_buffer[PAIRS], y_buffer[PAIRS];
    float *x = floats_inout(o->dtype, o->x, at, pairs, x_buffer),
          *y = floats_inout(o->dtype, o->x, second, pairs, y_buffer);

    rotate(x, y, a, pairs);
    floats_store(o->dtype, x, o->x, at, pairs);
    floats_store(o->dtype, y, o->x, second, pairs);
}

/* Rotates some pairs of elements in every token at position `t` of its sequence: in each head, `pairs` pairs,
 * starting with pair number `first`. */
static void rotate_position(const struct op_rope *o, uint32_t t, const struct rotation *a, uint32_t first,
                            uint32_t pairs)
{
    for (uint32_t r = 0; r < o->rows; r++)
        for (uint32_t h = 0; h < o->heads; h++)
            rotate_pairs(o, ((uint64_t)r * o->seq + t) * o->n + (uint64_t)h * o->head + first, a, pairs);
}

static void rope_piece(void *ctx, uint32_t i)
{
    const struct rope_ctx *c = ctx;
    const struct op_rope *o = c->o;
    uint32_t t0 = i * c->per_piece, t1 = o->seq - t0 < c->per_piece ? o->seq : t0 + c->per_piece,
             half = o->head / 2;
    struct rotation a;

    for (uint32_t first = 0; first < half; first += PAIRS) {
        uint32_t pairs = half - first < PAIRS ? half - first : PAIRS;
        set_speeds(&a, o, first, pairs);
        for (uint32_t t = t0; t < t1; t++) {
            set_position(&a, t, pairs);
            rotate_position(o, t, &a, first, pairs);
        }
    }
}

void cpu_op_rope(const struct op_call *call, struct pool *pool)
{
    const struct op_rope *o = &call->rope;
    uint64_t work = (uint64_t)o->rows * o->heads * o->head; /* elements at one position */
    struct rope_ctx c = {o, work < PIECE ? (uint32_t)(PIECE / work) : 1};

    assert(o->head % 2 == 0 && (uint64_t)o->heads * o->head <= o->n);
    pool_run(pool, rope_piece, &c, o->seq / c.per_piece + (o->seq % c.per_piece != 0));
}

CPU_CLONES static void swiglu_fwd_row(const float *restrict gate, const float *restrict x, float *restrict y,
                                      size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = vmath_silu(gate[i]) * x[i];
}

/* Computes row number `r` of a call. */
static void gate_row(const struct op_swiglu_fwd *o, uint64_t r)
{
    float gate_buffer[FLOATS_BLOCK], x_buffer[FLOATS_BLOCK], y_buffer[FLOATS_BLOCK];

    for (size_t i = 0, n; i < o->n; i += n) {
        n = floats_span(o->dtype, o->n - i);
        const float *gate = floats_in(o->dtype, o->x, 2 * r * o->n + i, n, gate_buffer),
                    *x = floats_in(o->dtype, o->x, (2 * r + 1) * o->n + i, n, x_buffer);
        float *y = floats_out(o->dtype, o->y, r * o->n + i, y_buffer);
        swiglu_fwd_row(gate, x, y, n);
        floats_store(o->dtype, y, o->y, r * o->n + i, n);
    }
}

static void swiglu_fwd_piece(void *ctx, uint32_t i)
{
    const struct op_swiglu_fwd *o = ctx;
    uint32_t per = piece_rows(o->n), first = i * per;
    uint32_t rows = o->rows - first < per ? o->rows - first : per;

    for (size_t r = first; r < (size_t)first + rows; r++)
        gate_row(o, r);
}

void cpu_op_swiglu_fwd(const struct op_call *call, struct pool *pool)
{
    struct op_swiglu_fwd o = call->swiglu_fwd;
    uint32_t per = piece_rows(o.n);
    pool_run(pool, swiglu_fwd_piece, &o, o.rows / per + (o.rows % per != 0));
}

/* Computes the gradients of one row of swiglu. `dgate` may be equal to `gate`, and `dx` may be equal to
 * `x`. */
CPU_CLONES static void swiglu_bwd_row(const float *gate, const float *x, const float *restrict dy,
                                      float *dgate, float *dx, size_t n)
{
    CPU_INDEPENDENT
    for (size_t i = 0; i < n; i++) {
        float g = gate[i], v = x[i];
        dgate[i] = (dy[i] * v) * vmath_silu_slope(g);
        dx[i] = dy[i] * vmath_silu(g);
    }
}

/* Computes the gradients of row number `r` of a call. */
static void gate_row_gradient(const struct op_swiglu_bwd *o, uint64_t r)
{
    /* One buffer is enough for an input and its gradient. */
    float gate_buffer[FLOATS_BLOCK], x_buffer[FLOATS_BLOCK], dy_buffer[FLOATS_BLOCK];

    for (size_t i = 0, n; i < o->n; i += n) {
        const uint64_t gate_at = 2 * r * o->n + i, x_at = gate_at + o->n;
        n = floats_span(o->dtype, o->n - i);
        const float *gate = floats_in(o->dtype, o->x, gate_at, n, gate_buffer),
                    *x = floats_in(o->dtype, o->x, x_at, n, x_buffer),
                    *dy = floats_in(o->dtype, o->dy, r * o->n + i, n, dy_buffer);
        float *dgate = floats_out(o->dtype, o->dx, gate_at, gate_buffer),
              *dx = floats_out(o->dtype, o->dx, x_at, x_buffer);
        swiglu_bwd_row(gate, x, dy, dgate, dx, n);
        floats_store(o->dtype, dgate, o->dx, gate_at, n);
        floats_store(o->dtype, dx, o->dx, x_at, n);
    }
}

static void swiglu_bwd_piece(void *ctx, uint32_t i)
{
    const struct op_swiglu_bwd *o = ctx;
    uint32_t per = piece_rows(o->n), first = i * per;
    uint32_t rows = o->rows - first < per ? o->rows - first : per;

    for (size_t r = first; r < (size_t)first + rows; r++)
        gate_row_gradient(o, r);
}

void cpu_op_swiglu_bwd(const struct op_call *call, struct pool *pool)
{
    struct op_swiglu_bwd o = call->swiglu_bwd;
    uint32_t per = piece_rows(o.n);
    pool_run(pool, swiglu_bwd_piece, &o, o.rows / per + (o.rows % per != 0));
}

/* The size in bytes of one piece of the zero op's work. */
#define ZERO_BYTES (128u << 10)

static void zero_piece(void *ctx, uint32_t i)
{
    const struct op_zero *o = ctx;
    uint64_t at = (uint64_t)i * ZERO_BYTES, left = o->bytes - at;

    memset((char *)o->y + at, 0, left < ZERO_BYTES ? (size_t)left : ZERO_BYTES);
}

void cpu_op_zero(const struct op_call *call, struct pool *pool)
{
    struct op_zero o = call->zero;
    pool_run(pool, zero_piece, &o, (uint32_t)(o.bytes / ZERO_BYTES + (o.bytes % ZERO_BYTES != 0)));
}
