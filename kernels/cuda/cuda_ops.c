/* The table of the cuda backend's ops, generated from ops.def. If an op has no function, the table does
 * not link. The linear ops are here too. Each is one call of cuBLAS, and one kernel if a bias or an
 * activation follows.
 *
 * cuBLAS works with column-major matrices. It sees a row-major matrix [r][c] as a column-major c x r
 * matrix with leading dimension c. So instead of C = A B it computes C^T = B^T A^T, which is the same
 * memory.
 *
 * To get the same bits every time, each device has one handle on one stream, with a fixed workspace of its
 * own and pedantic math (plain float, no TF32). The order of the sums depends on the shapes, the kind of
 * device and the library version. devset_numerics names the last two.
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

/* A product of row-major matrices: c[m][n] = a * b. If `accumulate` is true, the product is added to the old
 * c. a_trans and b_trans say whether a and b are stored transposed. */
struct product {
    const float *a, *b;
    float *c;
    uint32_t m, n, k;
    bool a_trans, b_trans, accumulate;
};

static int multiply(const struct cuda_compute *at, const struct product *p)
{
    const float one = 1, beta = p->accumulate ? 1 : 0;

    if (p->m > INT_MAX || p->n > INT_MAX || p->k > INT_MAX)
        return -EINVAL;
    CUBLAS_TRY(at->fault, cublasSgemm(at->blas, p->b_trans ? CUBLAS_OP_T : CUBLAS_OP_N,
                                      p->a_trans ? CUBLAS_OP_T : CUBLAS_OP_N, (int)p->n, (int)p->m, (int)p->k,
                                      &one, p->b, (int)(p->b_trans ? p->k : p->n), p->a,
                                      (int)(p->a_trans ? p->m : p->k), &beta, p->c, (int)p->n));
    return 0;
}

int cuda_op_linear_fwd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_linear_fwd *o = &call->linear_fwd;
    const int r = multiply(at, &(struct product){.a = o->x,
                                                 .b = o->w,
                                                 .c = o->z ? o->z : o->y,
                                                 .m = o->rows,
                                                 .n = o->out,
                                                 .k = o->in,
                                                 .b_trans = true});

    return r < 0 ? r : cuda_finish_linear(at, o);
}

int cuda_op_linear_bwd_data(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_linear_bwd_data *o = &call->linear_bwd_data;
    const struct op_call slope = {.op = OP_act_bwd,
                                  .act_bwd = {.x = o->z,
                                              .dy = o->dx,
                                              .dx = o->dx,
                                              .n = (uint64_t)o->rows * o->in,
                                              .act = o->act,
                                              .dtype = o->dtype}};
    const int r = multiply(
        at, &(struct product){.a = o->dy, .b = o->w, .c = o->dx, .m = o->rows, .n = o->in, .k = o->out});

    return r < 0 || !o->z ? r : cuda_op_act_bwd(at, &slope);
}

int cuda_op_linear_bwd_weight(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_linear_bwd_weight *o = &call->linear_bwd_weight;

    return multiply(at, &(struct product){.a = o->dy,
                                          .b = o->x,
                                          .c = o->dw,
                                          .m = o->out,
                                          .n = o->in,
                                          .k = o->rows,
                                          .a_trans = true,
                                          .accumulate = o->accumulate});
}
