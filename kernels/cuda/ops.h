/* Inside the cuda backend: the ops' functions. Included by C and by CUDA C.
 *
 * An op enqueues its kernels on the compute stream of a device and returns at once; what it needs of
 * `call->step` is copied into the kernels' arguments. The device is the current one. Addresses are those of
 * its arena.
 *
 * Bits. All .cu files are compiled without contraction (-fmad=false), with IEEE division and square root and
 * with denormals, and sums are made in the cpu backend's order (kernels/cpu/ops_*.c). So every op has the bits of
 * the cpu backend but these: the matrix products are cuBLAS's, attention is made in other tiles, rope goes through
 * CUDA's sine and the loss of softmax_xent through its log, both of double. (A NaN is a NaN; which of the many is
 * not part of it.) No op uses atomics.
 */
#ifndef KERNELS_CUDA_OPS_H
#define KERNELS_CUDA_OPS_H

#include "kernels/cuda/check.h"
#include "kernels/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Doubles of scratch that a device has for ops: partial sums on their way to one thread that adds them up in
 * order. More of them than fit are made in several rounds. */
#define CUDA_PARTIALS 65536u

/* Where an op runs. Const once the devset is open. */
struct cuda_place {
    struct cuda_fault *fault;
    cudaStream_t stream; /* the device's compute stream: one op at a time, so `partials` has one user */
    struct cublasContext *blas; /* bound to the stream, with a workspace of its own */
    double *partials;           /* [CUDA_PARTIALS], on the device */
};

typedef int cuda_op_fn(const struct cuda_place *at, const struct op_call *call); /* 0 or negative errno */
extern cuda_op_fn *const cuda_ops[OP_COUNT];

#define OP(name) cuda_op_fn cuda_op_##name;
#include "kernels/ops.def"
#undef OP

/* Bias and activation of a product that is in z, without one in y; nothing where the op has neither. */
int cuda_finish_linear(const struct cuda_place *at, const struct op_linear_fwd *o);

/* Launch every kernel of a file once, on nothing: a kernel is loaded when it is first launched, which may
 * allocate and synchronize, and should happen while the devset is opened. */
int cuda_warm_attention(const struct cuda_place *at);
int cuda_warm_elementwise(const struct cuda_place *at);
int cuda_warm_loss(const struct cuda_place *at);
int cuda_warm_rownorm(const struct cuda_place *at);
int cuda_warm_tokens(const struct cuda_place *at);
int cuda_warm_update(const struct cuda_place *at);

#ifdef __cplusplus
}
#endif

#endif
