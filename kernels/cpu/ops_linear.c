/* The linear ops. Each is one matrix product, whose bits gemm.h defines. Bias and activation are applied
 * to each part of the result as soon as that part is complete. The bias ops are here too.
 *
 * bias_bwd sums columns. A piece owns COLUMNS columns and walks through all rows in ascending order. It
 * sums chunks of CHUNK_ROWS rows separately and then adds up the chunks. So neither threads nor shapes
 * affect the order, and long sums lose less precision.
 *
 * Sums, biases and activations are computed in float. 16-bit arrays are widened into buffers on the stack
 * (as_floats.h). A part of a product has at most FLOATS_BLOCK columns, so one buffer has room for its row.
 *
 * Any thread may call these functions after cpu_thread_init.
 */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/as_floats.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"

#define COLUMNS    64
#define CHUNK_ROWS 32

/* Adds the bias to one row: y = x + b. `y` may be equal to `x`. */
CPU_CLONES static void add_bias_row(const float *x, const float *restrict b, float *y, size_t n)
{
    CPU_INDEPENDENT
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] + b[i];
}

/* Rounds `n` floats to the type `type`, but leaves them floats. */
static void round_floats(enum dtype type, float *x, size_t n)
{
    uint16_t rounded[FLOATS_BLOCK];

    if (type == DTYPE_F32)
        return;
    half_round(type, x, rounded, n);
    half_widen(type, rounded, x, n);
}

/* Applies the activation to a row `x` of a finished part, which is element number `at` of c. If z is written,
 * c is z, and the result goes to y. Otherwise c is y, and the result replaces the row. */
static void finish_activation(const struct op_linear_fwd *o, float *x, size_t at, size_t n)
{
    float buffer[FLOATS_BLOCK];

    round_floats(o->y_dtype, x, n);
    float *y = o->z ? floats_out(o->y_dtype, o->y, at, buffer) : x;
    cpu_act_fwd(o->act, x, y, n);
    if (o->z)
        floats_store(o->y_dtype, y, o->y, at, n);
}

/* Adds the bias to a finished part of the matrix product, and then applies the activation. This is done while
 * the part is still in a cache. */
static void finish_fwd(const struct gemm *g, const struct gemm_part *p)
{
    const struct op_linear_fwd *o = g->ctx;
    float buffer[FLOATS_BLOCK];
    size_t n = p->n1 - p->n0;
    const float *b = o->b ? floats_in(o->w_dtype, o->b, p->n0, n, buffer) : NULL;

    for (uint32_t m = p->m0; m < p->m1; m++) {
        float *row = p->at + (m - p->m0) * p->ld;
        if (b)
            add_bias_row(row, b, row, n);
        if (o->act != ACT_NONE)
            finish_activation(o, row, (size_t)m * o->out + p->n0, n);
    }
}

void cpu_op_linear_fwd(const struct op_call *call, struct pool *pool)
{
    const struct op_linear_fwd *o = &call->linear_fwd;
    assert(o->act != ACT_NONE || !o->z);
    gemm_run(&(struct gemm){.a = o->x,
                            .b = o->w,
                            .c = o->z ? o->z : o->y,
                            .a_type = o->dtype,
                            .b_type = o->w_dtype,
                            .c_type = o->y_dtype,
                            .m = o->rows,
                            .n = o->out,
                            .k = o->in,
                            .b_trans = true,
                            .done = o->b || o->act != ACT_NONE ? finish_fwd : NULL,
                            .ctx = o},
             pool);
}

/* Multiplies a finished part of the matrix product by act'(z), the slope of the activation. */
static void finish_bwd_data(const struct gemm *g, const struct gemm_part *p)
{
    const struct op_linear_bwd_data *o = g->ctx;
    float buffer[FLOATS_BLOCK];
    size_t n = p->n1 - p->n0;

    for (uint32_t m = p->m0; m < p->m1; m++) {
        float *row = p->at + (m - p->m0) * p->ld;
        const float *z = floats_in(o->dtype, o->z, (size_t)m * o->in + p->n0, n, buffer);
        cpu_act_bwd(o->act, z, row, row, n);
    }
}

void cpu_op_linear_bwd_data(const struct op_call *call, struct pool *pool)
{
    const struct op_linear_bwd_data *o = &call->linear_bwd_data;
    gemm_run(&(struct gemm){.a = o->dy,
                            .b = o->w,
                            .c = o->dx,
                            .a_type = o->dtype,
                            .b_type = o->w_dtype,
                            .c_type = o->dtype,
                            .m = o->rows,
                            .n = o->in,
                            .k = o->out,
                            .done = o->z ? finish_bwd_data : NULL,
                            .ctx = o},
             pool);
}

void cpu_op_linear_bwd_weight(const struct op_call *call, struct pool *pool)
{
    const struct op_linear_bwd_weight *o = &call->linear_bwd_weight;
    gemm_run(&(struct gemm){.a = o->dy,
                            .b = o->x,
                            .c = o->dw,
                            .a_type = o->dtype,
                            .b_type = o->dtype,
                            .m = o->out,
                            .n = o->in,
                            .k = o->rows,
                            .a_trans = true,
                            .accumulate = o->accumulate},
             pool);
}

static void bias_fwd_piece(void *ctx, uint32_t i)
{
    const struct op_bias_fwd *o = ctx;
    uint32_t per = piece_rows(o->n), first = i * per;
    uint32_t rows = o->rows - first < per ? o->rows - first : per;
    float b_buffer[FLOATS_BLOCK], x_buffer[FLOATS_BLOCK], y_buffer[FLOATS_BLOCK];

    for (size_t c = 0, n; c < o->n; c += n) {
        n = floats_span(o->dtype, o->n - c);
        const float *b = floats_in(o->w_dtype, o->b, c, n, b_buffer);
        for (size_t r = first; r < (size_t)first + rows; r++) {
            const size_t at = r * o->n + c;
            const float *x = floats_in(o->dtype, o->x, at, n, x_buffer);
            float *y = floats_out(o->dtype, o->y, at, y_buffer);
            add_bias_row(x, b, y, n);
            floats_store(o->dtype, y, o->y, at, n);
        }
    }
}

void cpu_op_bias_fwd(const struct op_call *call, struct pool *pool)
{
    struct op_bias_fwd o = call->bias_fwd;
    uint32_t per = piece_rows(o.n);
    pool_run(pool, bias_fwd_piece, &o, o.rows / per + (o.rows % per != 0));
}

/* The inner loop of sum_bias_columns: adds a row of `width` elements of type `type` to the sums. */
CPU_INLINE void add_row(enum dtype type, const void *row, float *restrict sums, size_t width)
{
    if (type == DTYPE_F32)
        for (size_t c = 0; c < width; c++)
            sums[c] = sums[c] + ((const float *)row)[c];
    else if (type == DTYPE_BF16)
        for (size_t c = 0; c < width; c++)
            sums[c] = sums[c] + bf16_to_float(((const uint16_t *)row)[c]);
    else
        for (size_t c = 0; c < width; c++)
            sums[c] = sums[c] + f16_to_float(((const uint16_t *)row)[c]);
}

/* Computes the sum of each column of `dy` and writes the sums to `db`. The rows of `dy` have `n` elements, of
 * which `width` are summed, at most COLUMNS. If `accumulate` is true, the sums are added to the old values of
 * `db`. */
CPU_CLONES static void sum_bias_columns(enum dtype type, const void *restrict dy, float *restrict db,
                                        size_t rows, size_t n, size_t width, bool accumulate)
{
    float total[COLUMNS] = {0};

    for (size_t r0 = 0; r0 < rows; r0 += CHUNK_ROWS) {
        float chunk[COLUMNS] = {0};
        size_t r1 = rows - r0 < CHUNK_ROWS ? rows : r0 + CHUNK_ROWS;
        for (size_t r = r0; r < r1; r++)
            add_row(type, floats_at(type, dy, r * n), chunk, width);
        for (size_t c = 0; c < width; c++)
            total[c] = total[c] + chunk[c];
    }
    for (size_t c = 0; c < width; c++)
        db[c] = accumulate ? db[c] + total[c] : total[c];
}

static void bias_bwd_piece(void *ctx, uint32_t i)
{
    const struct op_bias_bwd *o = ctx;
    uint32_t first = i * COLUMNS, left = o->n - first;

    sum_bias_columns(o->dtype, floats_at(o->dtype, o->dy, first), o->db + first, o->rows, o->n,
                     left < COLUMNS ? left : COLUMNS, o->accumulate);
}

void cpu_op_bias_bwd(const struct op_call *call, struct pool *pool)
{
    struct op_bias_bwd o = call->bias_bwd;
    pool_run(pool, bias_bwd_piece, &o, o.n / COLUMNS + (o.n % COLUMNS != 0));
}
