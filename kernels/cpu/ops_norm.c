/* Normalization of rows, forward and backward. The results are equal on every instruction set, bit by bit,
 * so these expressions are part of the contract. Each operation is rounded on its own, in float, and
 * nothing is fused:
 *
 *     sum:      lane l (of 16) adds the elements l, l + 16, ... in ascending order to 0;
 *               lanes are folded in halves (l += l + 8, then 4, 2, 1)
 *     forward:  mean = sum(x) / n                                         (rms: 0)
 *               d = x - mean                                              (rms: x)
 *               rstd = 1 / sqrt(sum(d * d) / n + eps)
 *               y = (d * rstd) * w + b                                    (without b: (d * rstd) * w)
 *
 *     backward: xhat = (x - mean) * rstd, g = dy * w
 *               dx = ((g - sum(g) / n) - xhat * (sum(g * xhat) / n)) * rstd       (rms: no sum(g))
 *               dw, db: sums of dy * xhat and dy over the rows; ascending chunks of 32 rows are summed
 *               separately and then added to 0; the total is added to the old value
 *
 * The column sums are computed before dx is written, because dx may be dy. A piece of the first run owns
 * columns, and a piece of the second run owns rows. If an array has a 16-bit type, a piece of rows keeps its
 * weights and its current row as floats in the thread's own memory.
 *
 * Any thread may call these functions.
 */
#include <math.h>

#include "kernels/cpu/as_floats.h"
#include "kernels/cpu/ops.h"

#define LANES      16
#define COLUMNS    64
#define CHUNK_ROWS 32

/* Adds up the 16 lanes of a sum by halving: lanes 8 to 15 are added to lanes 0 to 7, then lanes 4 to 7 to
 * lanes 0 to 3, and so on. The fixed order gives the same bits on every processor. */
CPU_INLINE float fold_row(float lane[LANES])
{
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] = lane[l] + lane[l + w];
    return lane[0];
}

CPU_CLONES static float norm_row_sum(const float *x, size_t n)
{
    float lane[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = lane[l] + x[i + l];
    for (size_t l = 0; i + l < n; l++)
        lane[l] = lane[l] + x[i + l];
    return fold_row(lane);
}

CPU_CLONES static float row_square_sum(const float *x, size_t n, float mean)
{
    float lane[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = lane[l] + (x[i + l] - mean) * (x[i + l] - mean);
    for (size_t l = 0; i + l < n; l++)
        lane[l] = lane[l] + (x[i + l] - mean) * (x[i + l] - mean);
    return fold_row(lane);
}

CPU_CLONES static void normalize_row(const float *restrict x, const float *restrict w,
                                     const float *restrict b, float *restrict y, size_t n, float mean,
                                     float rstd)
{
    if (b)
        for (size_t i = 0; i < n; i++)
            y[i] = ((x[i] - mean) * rstd) * w[i] + b[i];
    else
        for (size_t i = 0; i < n; i++)
            y[i] = ((x[i] - mean) * rstd) * w[i];
}

/* The weights of a norm as floats, and buffers for one row. The buffers are used only if `dtype` is a 16-bit
 * type. */
struct norm_rows {
    const float *w, *b; /* `b` is NULL if there is no bias */
    float *x, *y;
};

/* Returns the weights of a norm as floats, and two buffers. If all types are F32, the buffers are NULL, and
 * no memory is needed. */
static struct norm_rows norm_rows(enum dtype dtype, enum dtype w_dtype, const void *w, const void *b,
                                  size_t n)
{
    if (dtype == DTYPE_F32 && w_dtype == DTYPE_F32)
        return (struct norm_rows){.w = w, .b = b};
    float *memory = cpu_thread_memory(4 * n * sizeof *memory);
    return (struct norm_rows){.w = floats_in(w_dtype, w, 0, n, memory),
                              .b = b ? floats_in(w_dtype, b, 0, n, memory + n) : NULL,
                              .x = memory + 2 * n,
                              .y = memory + 3 * n};
}

static void norm_fwd_row(const struct op_rownorm_fwd *o, const struct norm_rows *p, size_t r)
{
    const float *x = floats_in(o->dtype, o->x, r * o->n, o->n, p->x);
    float n = (float)o->n, mean = o->rms ? 0.0f : norm_row_sum(x, o->n) / n;
    float rstd = 1.0f / sqrtf(row_square_sum(x, o->n, mean) / n + o->eps);

    if (o->stats) {
        o->stats[2 * r] = mean;
        o->stats[2 * r + 1] = rstd;
    }
    if (o->y) {
        float *y = floats_out(o->dtype, o->y, r * o->n, p->y);
        normalize_row(x, p->w, p->b, y, o->n, mean, rstd);
        floats_store(o->dtype, y, o->y, r * o->n, o->n);
    }
}

static void norm_fwd_piece(void *ctx, uint32_t i)
{
    const struct op_rownorm_fwd *o = ctx;
    uint32_t per = piece_rows(o->n), first = i * per;
    uint32_t rows = o->rows - first < per ? o->rows - first : per;
    const struct norm_rows p = norm_rows(o->dtype, o->w_dtype, o->w, o->b, o->n);

    for (size_t r = first; r < (size_t)first + rows; r++)
        norm_fwd_row(o, &p, r);
}

void cpu_op_rownorm_fwd(const struct op_call *call, struct pool *pool)
{
    struct op_rownorm_fwd o = call->rownorm_fwd;
    uint32_t per = piece_rows(o.n);
    pool_run(pool, norm_fwd_piece, &o, o.rows / per + (o.rows % per != 0));
}

/* Adds the column sums of dy * xhat to `dw`, and the column sums of dy to `db`. xhat is the normalized
 * input. `width` is the number of columns, at most COLUMNS. */
CPU_CLONES static void sum_norm_columns(const float *restrict x, const float *restrict dy,
                                        const float *restrict stats, size_t rows, size_t n, size_t width,
                                        float *restrict dw, float *restrict db)
{
    for (size_t r0 = 0; r0 < rows; r0 += CHUNK_ROWS) {
        float w[COLUMNS] = {0}, b[COLUMNS] = {0};
        size_t r1 = rows - r0 < CHUNK_ROWS ? rows : r0 + CHUNK_ROWS;
        for (size_t r = r0; r < r1; r++)
            for (size_t c = 0; c < width; c++) {
                w[c] = w[c] + dy[r * n + c] * ((x[r * n + c] - stats[2 * r]) * stats[2 * r + 1]);
                b[c] = b[c] + dy[r * n + c];
            }
        for (size_t c = 0; c < width; c++) {
            dw[c] = dw[c] + w[c];
            db[c] = db[c] + b[c];
        }
    }
}

static void store_sums(float *to, const float *sums, uint32_t width, bool accumulate)
{
    for (uint32_t c = 0; to && c < width; c++)
        to[c] = accumulate ? to[c] + sums[c] : sums[c];
}

/* Widens `width` columns of `rows` rows to floats. Rows are `n` elements apart at `from`, and COLUMNS
 * elements at `to`. */
CPU_CLONES static void widen_columns(enum dtype type, const uint16_t *restrict from, size_t rows, size_t n,
                                     size_t width, float *restrict to)
{
    for (size_t r = 0; r < rows; r++)
        if (type == DTYPE_BF16)
            for (size_t c = 0; c < width; c++)
                to[r * COLUMNS + c] = bf16_to_float(from[r * n + c]);
        else
            for (size_t c = 0; c < width; c++)
                to[r * COLUMNS + c] = f16_to_float(from[r * n + c]);
}

/* Adds up the same columns as sum_norm_columns, for arrays of a 16-bit type. One chunk of rows at a time is
 * widened into tiles on the stack. `first` is the number of the first column. */
static void sum_half_norm_columns(const struct op_rownorm_bwd *o, uint32_t first, uint32_t width, float *dw,
                                  float *db)
{
    float x[CHUNK_ROWS * COLUMNS], dy[CHUNK_ROWS * COLUMNS];

    for (size_t r0 = 0; r0 < o->rows; r0 += CHUNK_ROWS) {
        size_t rows = o->rows - r0 < CHUNK_ROWS ? o->rows - r0 : CHUNK_ROWS, at = r0 * o->n + first;
        widen_columns(o->dtype, (const uint16_t *)o->x + at, rows, o->n, width, x);
        widen_columns(o->dtype, (const uint16_t *)o->dy + at, rows, o->n, width, dy);
        sum_norm_columns(x, dy, o->stats + 2 * r0, rows, COLUMNS, width, dw, db);
    }
}

static void norm_bwd_columns(void *ctx, uint32_t i)
{
    const struct op_rownorm_bwd *o = ctx;
    float *to_dw = o->dw, *to_db = o->db;
    uint32_t first = i * COLUMNS, width = o->n - first < COLUMNS ? o->n - first : COLUMNS;
    float dw[COLUMNS] = {0}, db[COLUMNS] = {0};

    if (o->dtype == DTYPE_F32)
        sum_norm_columns((const float *)o->x + first, (const float *)o->dy + first, o->stats, o->rows, o->n,
                         width, dw, db);
    else
        sum_half_norm_columns(o, first, width, dw, db);
    store_sums(to_dw + first, dw, width, o->accumulate);
    store_sums(to_db ? to_db + first : NULL, db, width, o->accumulate);
}

/* Two results for one row: `g` is the sum or the mean of dy * w over the row, and `g_hat` is the sum or the
 * mean of dy * w * xhat. xhat is the normalized input. */
struct row_sums {
    float g, g_hat;
};

CPU_CLONES static struct row_sums row_gradient_sums(const float *restrict x, const float *restrict dy,
                                                    const float *restrict w, size_t n, float mean, float rstd)
{
    float g_lane[LANES] = {0}, hat_lane[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float g = dy[i + l] * w[i + l];
            g_lane[l] = g_lane[l] + g;
            hat_lane[l] = hat_lane[l] + g * ((x[i + l] - mean) * rstd);
        }
    for (size_t l = 0; i + l < n; l++) {
        float g = dy[i + l] * w[i + l];
        g_lane[l] = g_lane[l] + g;
        hat_lane[l] = hat_lane[l] + g * ((x[i + l] - mean) * rstd);
    }
    return (struct row_sums){fold_row(g_lane), fold_row(hat_lane)};
}

/* Computes dx, the gradient of the input, for one row. `dx` may be equal to `dy`. */
CPU_CLONES static void norm_row_gradient(const float *restrict x, const float *dy, const float *restrict w,
                                         float *dx, size_t n, float mean, float rstd, struct row_sums means)
{
    CPU_INDEPENDENT
    for (size_t i = 0; i < n; i++) {
        float hat = (x[i] - mean) * rstd;
        dx[i] = ((dy[i] * w[i] - means.g) - hat * means.g_hat) * rstd;
    }
}

static void norm_bwd_row(const struct op_rownorm_bwd *o, const struct norm_rows *p, size_t r)
{
    /* One buffer is enough for dy and dx. */
    const float *x = floats_in(o->dtype, o->x, r * o->n, o->n, p->x),
                *dy = floats_in(o->dtype, o->dy, r * o->n, o->n, p->y);
    float *dx = floats_out(o->dtype, o->dx, r * o->n, p->y);
    float n = (float)o->n, mean = o->stats[2 * r], rstd = o->stats[2 * r + 1];
    struct row_sums sums = row_gradient_sums(x, dy, p->w, o->n, mean, rstd);
    struct row_sums means = {o->rms ? 0.0f : sums.g / n, sums.g_hat / n};

    norm_row_gradient(x, dy, p->w, dx, o->n, mean, rstd, means);
    floats_store(o->dtype, dx, o->dx, r * o->n, o->n);
}

static void norm_bwd_rows(void *ctx, uint32_t i)
{
    const struct op_rownorm_bwd *o = ctx;
    uint32_t per = piece_rows(o->n), first = i * per;
    uint32_t rows = o->rows - first < per ? o->rows - first : per;
    const struct norm_rows p = norm_rows(o->dtype, o->w_dtype, o->w, NULL, o->n);

    for (size_t r = first; r < (size_t)first + rows; r++)
        norm_bwd_row(o, &p, r);
}

void cpu_op_rownorm_bwd(const struct op_call *call, struct pool *pool)
{
    struct op_rownorm_bwd o = call->rownorm_bwd;
    uint32_t per = piece_rows(o.n);

    pool_run(pool, norm_bwd_columns, &o, o.n / COLUMNS + (o.n % COLUMNS != 0));
    if (o.dx)
        pool_run(pool, norm_bwd_rows, &o, o.rows / per + (o.rows % per != 0));
}
