/* The table of the cuda backend's ops, generated from ops.def. If an op has no function, the table does
 * not link. The linear ops are here too. They are calls of cuBLAS, and of the kernels in product.cu.
 *
 * cuBLAS works with column-major matrices. It sees a row-major matrix [r][c] as a column-major c x r
 * matrix with leading dimension c. So instead of C = A B it computes C^T = B^T A^T, which is the same
 * memory.
 *
 * Types. Both factors of a cuBLAS product have the same type. Its sums are floats, and it rounds each of them
 * once when it writes the result. So a product is the whole op if nothing follows it. If a bias, an
 * activation or the slope of an activation follows, one kernel applies it to the sums and rounds:
 *
 *     the result is float      cuBLAS writes the sums to the place of the result, and the kernel works there
 *     the result has 16 bits   cuBLAS writes the sums to the device's buffer `sums`, one tile of the result
 *                              after another, and the kernel rounds each tile into the result
 *
 * To get the same bits every time, each device has one handle on one stream, with a fixed workspace of its
 * own. F32 products use pedantic math (plain float), or TF32 if the devset was opened so. Reductions inside
 * cuBLAS must not use 16-bit numbers (open_blas). The order of the sums depends on the shapes, the types, the
 * kind of device and the library version. devset_numerics names the last two.
 *
 * Only the enqueueing thread runs this code.
 */
#include "kernels/cuda/cuda_ops.h"

#include <errno.h>
#include <limits.h>

#include <cublas_v2.h>

cuda_op_fn *const cuda_ops[OP_COUNT] = {
#define OP(name) [OP_##name] = cuda_op_##name,
#include "kernels/ops.def"
#undef OP
};

/* A product of row-major matrices: c[m][n] = a * b. a_trans and b_trans say whether a and b are stored
 * transposed. The pitch of a matrix is the number of elements from one stored row to the next. If
 * `accumulate` is true, the product is added to the old c. */
struct product {
    const void *a, *b;
    void *c;
    enum dtype dtype, c_dtype; /* of a and b; of c */
    uint32_t m, n, k;
    uint32_t a_pitch, b_pitch, c_pitch;
    bool a_trans, b_trans, accumulate;
};

static cudaDataType blas_type(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? CUDA_R_16BF : dtype == DTYPE_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* Returns how cuBLAS computes with factors of this type. The sums are always floats. */
static cublasComputeType_t compute_type(const struct cuda_compute *at, enum dtype dtype)
{
    if (dtype != DTYPE_F32)
        return CUBLAS_COMPUTE_32F;
    return at->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F_PEDANTIC;
}

static int multiply(const struct cuda_compute *at, const struct product *p)
{
    const float one = 1, beta = p->accumulate ? 1 : 0;
    const cudaDataType type = blas_type(p->dtype), c_type = blas_type(p->c_dtype);

    if (p->m > INT_MAX || p->n > INT_MAX || p->k > INT_MAX)
        return -EINVAL;
    if (p->a_pitch > INT_MAX || p->b_pitch > INT_MAX || p->c_pitch > INT_MAX)
        return -EINVAL;
    CUBLAS_TRY(at->fault,
               cublasGemmEx(at->blas, p->b_trans ? CUBLAS_OP_T : CUBLAS_OP_N,
                            p->a_trans ? CUBLAS_OP_T : CUBLAS_OP_N, (int)p->n, (int)p->m, (int)p->k, &one,
                            p->b, type, (int)p->b_pitch, p->a, type, (int)p->a_pitch, &beta, p->c, c_type,
                            (int)p->c_pitch, compute_type(at, p->dtype), CUBLAS_GEMM_DEFAULT));
    return 0;
}

/* Returns the address of element `index` of an array. */
static const void *element(const void *array, enum dtype dtype, uint64_t index)
{
    return (const char *)array + index * dtype_size(dtype);
}

/* ---- tiles ---- */

#define TILE_COLUMNS 2048u /* most columns of a tile */
#define TILE_ALIGN   64u   /* tiles begin at multiples of this column */

/* Computes one tile of an op's result. `op` is the struct of the op's arguments. */
typedef int tile_fn(const struct cuda_compute *at, const void *op, const struct cuda_tile *t);

/* Calls `fn` for every tile of a result [rows][n], one after another. All tiles use the buffer at->sums. The
 * sizes of the tiles follow from the shape alone: the columns are divided evenly, so that no tile is narrow,
 * and each tile has as many rows as the buffer can hold. */
static int for_each_tile(const struct cuda_compute *at, uint32_t rows, uint32_t n, tile_fn *fn,
                         const void *op)
{
    const uint32_t across = n / TILE_COLUMNS + (n % TILE_COLUMNS != 0);
    const uint32_t even = across > 0 ? n / across + (n % across != 0) : 0;
    const uint32_t most_columns = even + (TILE_ALIGN - even % TILE_ALIGN) % TILE_ALIGN;
    int r = 0;

    for (uint64_t column = 0; r == 0 && column < n; column += most_columns) {
        const uint32_t columns = n - column < most_columns ? (uint32_t)(n - column) : most_columns;
        const uint32_t most_rows = CUDA_SUMS / columns;
        for (uint64_t row = 0; r == 0 && row < rows; row += most_rows) {
            const struct cuda_tile t = {
                .sums = at->sums,
                .row = (uint32_t)row,
                .column = (uint32_t)column,
                .rows = rows - row < most_rows ? (uint32_t)(rows - row) : most_rows,
                .columns = columns,
            };
            r = fn(at, op, &t);
        }
    }
    return r;
}

/* ---- the ops ---- */

/* Returns the product of linear_fwd, for one tile of the result. Its sums go to t->sums. */
static struct product forward_product(const struct op_linear_fwd *o, const struct cuda_tile *t)
{
    return (struct product){
        .a = element(o->x, o->dtype, (uint64_t)t->row * o->in),
        .b = element(o->w, o->w_dtype, (uint64_t)t->column * o->in),
        .c = t->sums,
        .dtype = o->dtype,
        .c_dtype = DTYPE_F32,
        .m = t->rows,
        .n = t->columns,
        .k = o->in,
        .a_pitch = o->in,
        .b_pitch = o->in,
        .c_pitch = t->columns,
        .b_trans = true,
    };
}

static int forward_tile(const struct cuda_compute *at, const void *op, const struct cuda_tile *t)
{
    const struct op_linear_fwd *o = op;
    const struct product p = forward_product(o, t);
    const int r = o->dtype == o->w_dtype
                      ? multiply(at, &p)
                      : cuda_multiply_mixed(at, t, o->x, o->dtype, o->w, o->in, o->in, false);

    return r < 0 ? r : cuda_finish_forward(at, o, t);
}

int cuda_op_linear_fwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_linear_fwd *o = &call->linear_fwd;
    const bool is_plain = !o->b && o->act == ACT_NONE;
    const struct cuda_tile whole = {.sums = o->z ? o->z : o->y, .rows = o->rows, .columns = o->out};

    if (o->dtype != o->w_dtype || (o->y_dtype != DTYPE_F32 && !is_plain))
        return for_each_tile(at, o->rows, o->out, forward_tile, o);
    struct product p = forward_product(o, &whole);
    p.c_dtype = o->y_dtype;
    const int r = multiply(at, &p);
    return r < 0 || is_plain ? r : cuda_finish_forward(at, o, &whole);
}

/* Returns the product of linear_bwd_data, for one tile of the result. Its sums go to t->sums. */
static struct product backward_product(const struct op_linear_bwd_data *o, const struct cuda_tile *t)
{
    return (struct product){
        .a = element(o->dy, o->dtype, (uint64_t)t->row * o->out),
        .b = element(o->w, o->w_dtype, t->column),
        .c = t->sums,
        .dtype = o->dtype,
        .c_dtype = DTYPE_F32,
        .m = t->rows,
        .n = t->columns,
        .k = o->out,
        .a_pitch = o->out,
        .b_pitch = o->in,
        .c_pitch = t->columns,
    };
}

static int backward_tile(const struct cuda_compute *at, const void *op, const struct cuda_tile *t)
{
    const struct op_linear_bwd_data *o = op;
    const struct product p = backward_product(o, t);
    const int r = o->dtype == o->w_dtype
                      ? multiply(at, &p)
                      : cuda_multiply_mixed(at, t, o->dy, o->dtype, o->w, o->out, o->in, true);

    return r < 0 ? r : cuda_finish_backward(at, o, t);
}

int cuda_op_linear_bwd_data(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_linear_bwd_data *o = &call->linear_bwd_data;
    const struct cuda_tile whole = {.sums = o->dx, .rows = o->rows, .columns = o->in};

    if (o->dtype != o->w_dtype || (o->dtype != DTYPE_F32 && o->z))
        return for_each_tile(at, o->rows, o->in, backward_tile, o);
    struct product p = backward_product(o, &whole);
    p.c_dtype = o->dtype;
    const int r = multiply(at, &p);
    return r < 0 || !o->z ? r : cuda_finish_backward(at, o, &whole);
}

int cuda_op_linear_bwd_weight(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_linear_bwd_weight *o = &call->linear_bwd_weight;

    return multiply(at, &(struct product){.a = o->dy,
                                          .b = o->x,
                                          .c = o->dw,
                                          .dtype = o->dtype,
                                          .c_dtype = DTYPE_F32,
                                          .m = o->out,
                                          .n = o->in,
                                          .k = o->rows,
                                          .a_pitch = o->out,
                                          .b_pitch = o->in,
                                          .c_pitch = o->in,
                                          .a_trans = true,
                                          .accumulate = o->accumulate});
}
