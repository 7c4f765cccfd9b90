/* The op functions of the cuda backend. C and CUDA C files include this header.
 *
 * An op enqueues its kernels on the compute stream of a device and returns at once. The values of
 * `call->step` that it needs are copied into the kernels' arguments. The device must be the current one.
 * All addresses must lie in its arena.
 *
 * Bits: all .cu files are compiled without contraction (-fmad=false), with IEEE division and square root
 * and with denormals. Sums follow the order of the cpu backend (kernels/cpu/ops_*.c). So every op has the
 * bits of the cpu backend, with these exceptions: cuBLAS computes matrix products, attention uses other
 * tiles, rope uses CUDA's sine in double, and the loss of softmax_xent uses CUDA's log in double. (The
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

/* Everything that an op needs in order to run on one device. The fields do not change while the devset is
 * open. */
struct cuda_compute {
    struct cuda_fault *fault;
    /* The device's compute stream. The stream runs one op after another, so all ops can use the same buffer
     * `partials`. */
    cudaStream_t stream;
    struct cublasContext *blas; /* bound to `stream`, with its own workspace */
    double *partials;           /* [CUDA_PARTIALS], on the device */
};

/* A function that enqueues one op and returns 0 or a negative errno. The table cuda_ops has one such
 * function for each op. */
typedef int cuda_op_fn(const struct cuda_compute *at, const struct op_call *call);
extern cuda_op_fn *const cuda_ops[OP_COUNT];

#define OP(name) cuda_op_fn cuda_op_##name;
#include "kernels/ops.def"
#undef OP

/* Adds the bias to the result of a matrix product, and then applies the activation. The result of the product
 * is in o->z, or in o->y if o->z is NULL. Does nothing if the op has neither a bias nor an activation. */
int cuda_finish_linear(const struct cuda_compute *at, const struct op_linear_fwd *o);

/* Each of these functions launches all kernels of one .cu file once, on empty input. CUDA loads a kernel at
 * its first launch, which may allocate memory and block. The functions are therefore called while the devset
 * is opened. */
int cuda_warm_attention(const struct cuda_compute *at);
int cuda_warm_elementwise(const struct cuda_compute *at);
int cuda_warm_loss(const struct cuda_compute *at);
int cuda_warm_rownorm(const struct cuda_compute *at);
int cuda_warm_tokens(const struct cuda_compute *at);
int cuda_warm_update(const struct cuda_compute *at);

#ifdef __cplusplus
}
#endif

#endif
