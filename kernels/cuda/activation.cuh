/* The activation functions and their gradients, for the kernels that apply them. They use the arithmetic of
 * kernels/vmath.h, so the bits are those of the cpu backend. */
#ifndef KERNELS_CUDA_ACTIVATION_CUH
#define KERNELS_CUDA_ACTIVATION_CUH

#include "kernels/cuda/element.cuh"
#include "kernels/op.h"

#define VMATH_INLINE static inline __device__
#include "kernels/vmath.h"

static __device__ __forceinline__ float activate(enum act act, float x)
{
    switch (act) {
    case ACT_RELU:
        return vmath_relu(x);
    case ACT_GELU:
        return vmath_gelu(x);
    case ACT_TANH:
        return vmath_tanh(x);
    case ACT_GELU_ERF:
        return vmath_gelu_erf(x);
    case ACT_SILU:
        return vmath_silu(x);
    default:
        return x;
    }
}

/* Returns dy * act'(x). */
static __device__ __forceinline__ float act_gradient(enum act act, float x, float dy)
{
    switch (act) {
    case ACT_RELU:
        return x <= 0.0f ? 0.0f : dy;
    case ACT_GELU:
        return dy * vmath_gelu_slope(x);
    case ACT_TANH:
        return dy * vmath_tanh_slope(x);
    case ACT_GELU_ERF:
        return dy * vmath_gelu_erf_slope(x);
    case ACT_SILU:
        return dy * vmath_silu_slope(x);
    default:
        return dy;
    }
}

/* The same for the elements of a pack. These are real functions and not inlined, because they are long and
 * many kernels use them. The choice of the activation is made once for the whole pack. */
template <uint32_t N> static __device__ __noinline__ pack<N> activate_pack(enum act act, pack<N> x)
{
#pragma unroll
    for (uint32_t k = 0; k < N; k++)
        x.v[k] = activate(act, x.v[k]);
    return x;
}

template <uint32_t N>
static __device__ __noinline__ pack<N> act_gradient_pack(enum act act, pack<N> x, pack<N> dy)
{
#pragma unroll
    for (uint32_t k = 0; k < N; k++)
        dy.v[k] = act_gradient(act, x.v[k], dy.v[k]);
    return dy;
}

#endif
