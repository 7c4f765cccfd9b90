/* The op functions of the cuda backend. C and CUDA C files include this header.
 *
 * An op enqueues its kernels on the compute stream of a device and returns at once. The values of
 * `call->step` that it needs are copied into the kernels' arguments. The device must be the current one.
 * All addresses must lie in its arena.
 *
 * Bits: all .cu files are compiled without contraction (-fmad=false), with IEEE division and square root and
 * with denormals. Sums follow the order of the cpu backend (kernels/cpu/ops_*.c). So every op, in every type,
 * has the bits of the cpu backend, with these exceptions: cuBLAS computes matrix products, attention uses
 * other tiles, rope uses CUDA's sine in double, and the loss of softmax_xent uses CUDA's log in double. (The
 * payload bits of a NaN may differ.) No op uses atomics.
 */
#ifndef KERNELS_CUDA_CUDA_OPS_H
#define KERNELS_CUDA_CUDA_OPS_H

#include "kernels/cuda/check.h"
#include "kernels/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The number of partial sums in the buffer of each device. A partial sum is a double. One thread adds them up
 * in order. An op that needs more partial sums fills the buffer several times. */
#define CUDA_PARTIALS 65536u

/* The number of floats in the buffer `sums` of each device. The buffer holds one tile of a matrix product
 * whose result has 16 bits. 4 Mi floats are enough products to keep a large device busy, and 16 MiB stay
 * in the L2 cache of most. */
#define CUDA_SUMS (UINT32_C(4) << 20)

/* Everything that an op needs in order to run on one device. The fields do not change while the devset is
 * open. */
struct cuda_compute {
    struct cuda_fault *fault;
    /* The device's compute stream. The stream runs one op after another, so all ops can use the same buffer
     * `partials`. */
    cudaStream_t stream;
    struct cublasContext *blas; /* bound to `stream`, with its own workspace */
    double *partials;           /* [CUDA_PARTIALS], on the device */
    float *sums;                /* [CUDA_SUMS], on the device */
    bool tf32;                  /* products of F32 matrices may round their factors to TF32 */
};

/* A tile of the result of a matrix product: its sums before they are rounded, and where they belong. The
 * kernels get this struct by value. */
struct cuda_tile {
    float *sums; /* [rows][columns] */
    /* The tile's first element in the result, and the tile's size. */
    uint32_t row, column, rows, columns;
};

/* A function that enqueues one op and returns 0 or a negative errno. The table cuda_ops has one such
 * function for each op. */
typedef int cuda_op_fn(const struct cuda_compute *at, const struct op_call *call);
extern cuda_op_fn *const cuda_ops[OP_COUNT];

#define OP(name) cuda_op_fn cuda_op_##name;
#include "kernels/ops.def"
#undef OP

/* Adds the bias to a tile of sums, applies the activation, and writes the tile to o->y, and to o->z if
 * that is not NULL. Each sum is rounded to the type of y before the activation. */
int cuda_finish_forward(const struct cuda_compute *at, const struct op_linear_fwd *o,
                        const struct cuda_tile *t);
/* Multiplies a tile of sums by the slope of the activation if o->z is not NULL, and writes the tile to
 * o->dx. */
int cuda_finish_backward(const struct cuda_compute *at, const struct op_linear_bwd_data *o,
                         const struct cuda_tile *t);
/* Computes a tile of the product of the 16-bit matrix a[rows][k_count] and of float weights, which are
 * w[columns][k_count] or, if `along` is true, w[k_count][columns]. `pitch` is the length of a row of w. */
int cuda_multiply_mixed(const struct cuda_compute *at, const struct cuda_tile *t, const void *a,
                        enum dtype dtype, const float *w, uint32_t k_count, uint32_t pitch, bool along);

/* Each of these functions launches all kernels of one .cu file once, on empty input. CUDA loads a kernel at
 * its first launch, which may allocate memory and block. The functions are therefore called while the devset
 * is opened. */
int cuda_warm_attention(const struct cuda_compute *at);
int cuda_warm_elementwise(const struct cuda_compute *at);
int cuda_warm_loss(const struct cuda_compute *at);
int cuda_warm_product(const struct cuda_compute *at);
int cuda_warm_rownorm(const struct cuda_compute *at);
int cuda_warm_tokens(const struct cuda_compute *at);
int cuda_warm_update(const struct cuda_compute *at);

#ifdef __cplusplus
}
#endif

#endif
