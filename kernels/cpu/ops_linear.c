/* The linear ops. Each is one matrix product, whose bits gemm.h defines. Bias and activation are applied
 * to each part of the result as soon as that part is complete. The bias ops are here too.
 *
 * bias_bwd sums columns. A piece owns COLUMNS columns and walks through all rows in ascending order. It
 * sums chunks of CHUNK_ROWS rows separately and then adds up the chunks. So neither threads nor shapes
 * affect the order, and long sums lose less precision.
 *
 * Any thread may call these functions after cpu_thread_init.
 */
#include <assert.h>
#include <string.h>

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

/* Adds the bias to a finished part of the matrix product, and then applies the activation. This is done while
 * the part is still in a cache. */
static void finish_fwd(const struct gemm *g, uint32_t m0, uint32_t m1, uint32_t n0, uint32_t n1)
{
    const struct op_linear_fwd *o = g->ctx;
    const float *b = o->b;
    float *y = o->y;

    for (uint32_t m = m0; m < m1; m++) {
        size_t at = (size_t)m * o->out + n0, n = n1 - n0;
        if (b)
            add_bias_row(g->c + at, b + n0, g->c + at, n);
        if (o->act != ACT_NONE)
            cpu_act_fwd(o->act, g->c + at, y + at, n);
    }
}

void cpu_op_linear_fwd(const struct op_call *call, struct pool *pool)
{
    const struct op_linear_fwd *o = &call->linear_fwd;
    assert(o->act != ACT_NONE || !o->z);
    gemm_run(&(struct gemm){.a = o->x,
                            .b = o->w,
                            .c = o->z ? o->z : o->y,
                            .m = o->rows,
                            .n = o->out,
                            .k = o->in,
                            .b_trans = true,
                            .done = o->b || o->act != ACT_NONE ? finish_fwd : NULL,
                            .ctx = o},
             pool);
}

/* Multiplies a finished part of the matrix product by act'(z), the slope of the activation. */
static void finish_bwd_data(const struct gemm *g, uint32_t m0, uint32_t m1, uint32_t n0, uint32_t n1)
{
    const struct op_linear_bwd_data *o = g->ctx;
    const float *z = o->z;

    for (uint32_t m = m0; m < m1; m++) {
        size_t at = (size_t)m * o->in + n0;
        cpu_act_bwd(o->act, z + at, g->c + at, g->c + at, n1 - n0);
    }
}

void cpu_op_linear_bwd_data(const struct op_call *call, struct pool *pool)
{
    const struct op_linear_bwd_data *o = &call->linear_bwd_data;
    gemm_run(&(struct gemm){.a = o->dy,
                            .b = o->w,
                            .c = o->dx,
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
    const float *x = o->x, *b = o->b;
    float *y = o->y;
    uint32_t per = piece_rows(o->n), first = i * per;
    uint32_t rows = o->rows - first < per ? o->rows - first : per;
    for (size_t r = first; r < (size_t)first + rows; r++)
        add_bias_row(x + r * o->n, b, y + r * o->n, o->n);
}

void cpu_op_bias_fwd(const struct op_call *call, struct pool *pool)
{
    struct op_bias_fwd o = call->bias_fwd;
    uint32_t per = piece_rows(o.n);
    pool_run(pool, bias_fwd_piece, &o, o.rows / per + (o.rows % per != 0));
}

/* Computes the sum of each column of `dy` and writes the sums to `db`. There are `width` columns, at most
 * COLUMNS. If `accumulate` is true, the sums are added to the old values of `db`. */
CPU_CLONES static void sum_bias_columns(const float *restrict dy, float *restrict db, size_t rows, size_t n,
                                        size_t width, bool accumulate)
{
    float total[COLUMNS] = {0};

    for (size_t r0 = 0; r0 < rows; r0 += CHUNK_ROWS) {
        float chunk[COLUMNS] = {0};
        size_t r1 = rows - r0 < CHUNK_ROWS ? rows : r0 + CHUNK_ROWS;
        for (size_t r = r0; r < r1; r++)
            for (size_t c = 0; c < width; c++)
                chunk[c] = chunk[c] + dy[r * n + c];
        for (size_t c = 0; c < width; c++)
            total[c] = total[c] + chunk[c];
    }
    for (size_t c = 0; c < width; c++)
        db[c] = accumulate ? db[c] + total[c] : total[c];
}

static void bias_bwd_piece(void *ctx, uint32_t i)
{
    const struct op_bias_bwd *o = ctx;
    const float *dy = o->dy;
    float *db = o->db;
    uint32_t first = i * COLUMNS, left = o->n - first;
    sum_bias_columns(dy + first, db + first, o->rows, o->n, left < COLUMNS ? left : COLUMNS, o->accumulate);
}

void cpu_op_bias_bwd(const struct op_call *call, struct pool *pool)
{
    struct op_bias_bwd o = call->bias_bwd;
    pool_run(pool, bias_bwd_piece, &o, o.n / COLUMNS + (o.n % COLUMNS != 0));
}
