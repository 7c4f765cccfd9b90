/* The linear ops: each is one matrix product (gemm.h says what its bits are), and the bias beside it.
 *
 * bias_bwd sums columns: a piece owns COLUMNS of them and walks all rows in ascending order, in chunks of
 * CHUNK_ROWS that are summed on their own and then added, so that neither threads nor shapes decide an order
 * and long sums lose less.
 *
 * Any thread, after cpu_thread_init.
 */
#include <string.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"

#define COLUMNS    64
#define CHUNK_ROWS 32

void cpu_op_linear_fwd(const struct op_call *call, struct pool *pool)
{
    const struct op_linear_fwd *o = &call->linear_fwd;
    gemm_run(
        &(struct gemm){
            .a = o->x, .b = o->w, .c = o->y, .m = o->rows, .n = o->out, .k = o->in, .b_trans = true},
        pool);
}

void cpu_op_linear_bwd_data(const struct op_call *call, struct pool *pool)
{
    const struct op_linear_bwd_data *o = &call->linear_bwd_data;
    gemm_run(&(struct gemm){.a = o->dy, .b = o->w, .c = o->dx, .m = o->rows, .n = o->in, .k = o->out}, pool);
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

CPU_CLONES static void add_bias(float *restrict y, const float *restrict b, size_t rows, size_t n)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < n; c++)
            y[r * n + c] = y[r * n + c] + b[c];
}

static void bias_fwd_piece(void *ctx, uint32_t i)
{
    const struct op_bias_fwd *o = ctx;
    uint32_t per = piece_rows(o->n), first = i * per;
    uint32_t rows = o->rows - first < per ? o->rows - first : per;
    add_bias(o->y + (size_t)first * o->n, o->b, rows, o->n);
}

void cpu_op_bias_fwd(const struct op_call *call, struct pool *pool)
{
    struct op_bias_fwd o = call->bias_fwd;
    uint32_t per = piece_rows(o.n);
    pool_run(pool, bias_fwd_piece, &o, o.rows / per + (o.rows % per != 0));
}

/* db[c] = or += the sum of column c, for `width` <= COLUMNS columns. */
CPU_CLONES static void sum_columns(const float *restrict dy, float *restrict db, size_t rows, size_t n,
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
    uint32_t first = i * COLUMNS, left = o->n - first;
    sum_columns(o->dy + first, o->db + first, o->rows, o->n, left < COLUMNS ? left : COLUMNS, o->accumulate);
}

void cpu_op_bias_bwd(const struct op_call *call, struct pool *pool)
{
    struct op_bias_bwd o = call->bias_bwd;
    pool_run(pool, bias_bwd_piece, &o, o.n / COLUMNS + (o.n % COLUMNS != 0));
}
