/* Kernels of the simulator's own tests: one for each kind of code that nvcc makes of kernels like ours,
 * and some that are wrong. Launchers are extern "C", for programs.c. */
#include <stdint.h>

#include "kernels.h"

#define GRID(n, block) (unsigned)(((n) + (block)-1) / (block)), (block)

static __device__ uint64_t index_of_thread(void)
{
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

extern "C" __global__ void k_add(const float *a, const float *b, float *c, uint64_t n)
{
    uint64_t i = index_of_thread();
    if (i < n)
        c[i] = a[i] + b[i];
}
extern "C" void launch_add(const float *a, const float *b, float *c, uint64_t n, cudaStream_t s)
{
    k_add<<<GRID(n, 256), 0, s>>>(a, b, c, n);
}

/* Four at a time, and a loop over the grid. */
extern "C" __global__ void k_scale4(float4 *x, float by, uint64_t n)
{
    for (uint64_t i = index_of_thread(); i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        float4 v = x[i];
        x[i] = make_float4(v.x * by, v.y * by, v.z * by, v.w * by);
    }
}
extern "C" void launch_scale4(float *x, float by, uint64_t n, cudaStream_t s)
{
    k_scale4<<<3, 64, 0, s>>>((float4 *)x, by, n / 4);
}

extern "C" __global__ void k_ieee(const float *a, const float *b, const float *c, float *out, uint64_t n)
{
    uint64_t i = index_of_thread();
    if (i >= n)
        return;
    out[0 * n + i] = a[i] / b[i];
    out[1 * n + i] = sqrtf(fabsf(a[i]));
    out[2 * n + i] = fmaf(a[i], b[i], c[i]);
    out[3 * n + i] = __fadd_rn(__fmul_rn(a[i], b[i]), c[i]);
    out[4 * n + i] = a[i] * b[i] + c[i]; /* contracted by nvcc */
    out[5 * n + i] = 1.0f / b[i];
    out[6 * n + i] = (float)((double)a[i] * (double)b[i] + (double)c[i]);
    out[7 * n + i] = __fadd_rz(a[i], b[i]);
    out[8 * n + i] = fmaxf(a[i], b[i]) + fminf(a[i], c[i]);
}
extern "C" void launch_ieee(const float *a, const float *b, const float *c, float *out, uint64_t n,
                            cudaStream_t s)
{
    k_ieee<<<GRID(n, 128), 0, s>>>(a, b, c, out, n);
}

extern "C" __global__ void k_ieee_double(const double *a, const double *b, const double *c, double *out,
                                         uint64_t n)
{
    uint64_t i = index_of_thread();
    if (i >= n)
        return;
    out[0 * n + i] = a[i] / b[i];
    out[1 * n + i] = sqrt(fabs(a[i]));
    out[2 * n + i] = fma(a[i], b[i], c[i]);
    out[3 * n + i] = (double)isfinite(a[i]) + (double)isnan(b[i]) * 2 + (double)(a[i] < b[i]) * 4;
}
extern "C" void launch_ieee_double(const double *a, const double *b, const double *c, double *out, uint64_t n,
                                   cudaStream_t s)
{
    k_ieee_double<<<GRID(n, 128), 0, s>>>(a, b, c, out, n);
}

extern "C" __global__ void k_functions(const float *x, float *out, uint64_t n)
{
    uint64_t i = index_of_thread();
    float v;
    if (i >= n)
        return;
    v = x[i];
    out[0 * n + i] = expf(v);
    out[1 * n + i] = tanhf(v);
    out[2 * n + i] = logf(fabsf(v));
    out[3 * n + i] = sinf(v);
    out[4 * n + i] = cosf(v);
    out[5 * n + i] = rsqrtf(fabsf(v));
    out[6 * n + i] = log1pf(fabsf(v));
    out[7 * n + i] = erff(v);
    out[8 * n + i] = powf(fabsf(v), 1.5f);
    out[9 * n + i] = (float)exp((double)v);
    out[10 * n + i] = (float)log(fabs((double)v));
    out[11 * n + i] = (float)pow(fabs((double)v), 0.25);
    out[12 * n + i] = (float)sin((double)v * 1e6);
}
extern "C" void launch_functions(const float *x, float *out, uint64_t n, cudaStream_t s)
{
    k_functions<<<GRID(n, 128), 0, s>>>(x, out, n);
}

extern "C" __global__ void k_integers(const uint32_t *x, const uint32_t *y, uint64_t *out, uint64_t n)
{
    uint64_t i = index_of_thread();
    uint32_t a, b;
    int32_t sa, sb;
    if (i >= n)
        return;
    a = x[i];
    b = y[i];
    sa = (int32_t)a;
    sb = (int32_t)b;
    out[0 * n + i] = (uint64_t)a * b;
    out[1 * n + i] = (uint64_t)((int64_t)sa * sb);
    out[2 * n + i] = __umulhi(a, b);
    out[3 * n + i] = __umul64hi((uint64_t)a << 21 | b, (uint64_t)b << 17 | a);
    out[4 * n + i] = (a / (b | 1)) + ((uint64_t)(a % (b | 1)) << 32);
    out[5 * n + i] = (uint64_t)(int64_t)(sa / (sb | 1)) ^ (uint64_t)(int64_t)(sa % (sb | 1)) << 7;
    out[6 * n + i] = (uint64_t)(int64_t)(sa >> (b & 31)) ^ (uint64_t)(a << (b & 31)) << 16;
    out[7 * n + i] = (uint64_t)(uint32_t)(__popc(a) | __clz(sb) << 8 | __ffs(sa) << 16) | (uint64_t)__brev(a)
                                                                                              << 32;
    out[8 * n + i] = __byte_perm(a, b, 0x5163) | (uint64_t)__funnelshift_l(a, b, b) << 32;
    out[9 * n + i] = (uint64_t)(uint32_t)max(sa, sb) | (uint64_t)min(a, b) << 32;
    out[10 * n + i] = (uint64_t)(uint32_t)abs(sa >> 1) + ((a ^ b) & ~(a | 5u)) * 3ull;
    out[11 * n + i] =
        (uint64_t)(int64_t)(int8_t)a ^ (uint64_t)(uint16_t)b << 20 ^ (uint64_t)(int64_t)(int16_t)b << 40;
}
extern "C" void launch_integers(const uint32_t *x, const uint32_t *y, uint64_t *out, uint64_t n,
                                cudaStream_t s)
{
    k_integers<<<GRID(n, 128), 0, s>>>(x, y, out, n);
}

extern "C" __global__ void k_convert(const float *x, int64_t *out, uint64_t n)
{
    uint64_t i = index_of_thread();
    if (i >= n)
        return;
    out[0 * n + i] = (int32_t)x[i];
    out[1 * n + i] = (int64_t)(uint32_t)x[i];
    out[2 * n + i] = __float2int_rn(x[i]);
    out[3 * n + i] = __float2int_rd(x[i]);
    out[4 * n + i] = __float2int_ru(x[i]);
    out[5 * n + i] = (int64_t)x[i];
    out[6 * n + i] =
        __float_as_int((float)(int64_t)x[i]) ^ __float_as_int(truncf(x[i]) + floorf(x[i]) * 2 + ceilf(x[i]));
    out[7 * n + i] = __float_as_int((float)((double)x[i] * (1.0 / 3.0)));
}
extern "C" void launch_convert(const float *x, int64_t *out, uint64_t n, cudaStream_t s)
{
    k_convert<<<GRID(n, 128), 0, s>>>(x, out, n);
}

extern "C" __global__ void k_philox(uint32_t *out, uint64_t n, uint64_t seed)
{
    uint64_t i = index_of_thread();
    uint32_t c[4] = {(uint32_t)i, (uint32_t)(i >> 32), 7, 9},
             key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    if (i >= n)
        return;
    for (int r = 0; r < 10; r++) {
        uint64_t p = 0xD2511F53ull * c[0], q = 0xCD9E8D57ull * c[2];
        uint32_t c0 = (uint32_t)(q >> 32) ^ c[1] ^ key[0], c2 = (uint32_t)(p >> 32) ^ c[3] ^ key[1];
        c[1] = (uint32_t)q;
        c[3] = (uint32_t)p;
        c[0] = c0;
        c[2] = c2;
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    for (int j = 0; j < 4; j++)
        out[4 * i + j] = c[j];
}
extern "C" void launch_philox(uint32_t *out, uint64_t n, uint64_t seed, cudaStream_t s)
{
    k_philox<<<GRID(n, 64), 0, s>>>(out, n, seed);
}

/* Sums of 256 each in double, by a tree in shared memory. */
template <bool WITH_BARRIERS> static __device__ void reduce(const float *x, double *out, uint64_t n)
{
    __shared__ double sums[256];
    unsigned t = threadIdx.x;
    uint64_t i = index_of_thread();
    sums[t] = i < n ? (double)x[i] * (double)x[i] : 0;
    if (WITH_BARRIERS)
        __syncthreads();
    for (unsigned half = 128; half > 0; half /= 2) {
        if (t < half)
            sums[t] += sums[t + half];
        if (WITH_BARRIERS)
            __syncthreads();
    }
    if (t == 0)
        out[blockIdx.x] = sums[0];
}
extern "C" __global__ void k_reduce(const float *x, double *out, uint64_t n)
{
    reduce<true>(x, out, n);
}
extern "C" __global__ void k_reduce_wrong(const float *x, double *out, uint64_t n)
{
    reduce<false>(x, out, n);
}
extern "C" void launch_reduce(const float *x, double *out, uint64_t n, int barriers, cudaStream_t s)
{
    if (barriers)
        k_reduce<<<GRID(n, 256), 0, s>>>(x, out, n);
    else
        k_reduce_wrong<<<GRID(n, 256), 0, s>>>(x, out, n);
}

/* One warp of any number of lanes. */
extern "C" __global__ void k_warp(const uint32_t *x, uint32_t *out)
{
    unsigned t = threadIdx.x, n = blockDim.x;
    uint32_t v = x[t], sum = v;
    for (int by = 16; by > 0; by /= 2)
        sum += __shfl_down_sync(~0u, sum, by);
    out[0 * n + t] = sum;
    out[1 * n + t] = __shfl_up_sync(~0u, v, 3, 8);
    out[2 * n + t] = __shfl_xor_sync(~0u, v, 5);
    out[3 * n + t] = __shfl_sync(~0u, v, 2, 16);
    out[4 * n + t] = __ballot_sync(~0u, v & 1);
    out[5 * n + t] =
        __any_sync(~0u, v > 4000000000u) + 2 * __all_sync(~0u, v > 0) + 4 * __any_sync(~0u, v == 0);
    if (t < 8)
        out[6 * n + t] = __shfl_xor_sync(0xffu, v, 1);
    __syncwarp();
}
extern "C" void launch_warp(const uint32_t *x, uint32_t *out, unsigned lanes, cudaStream_t s)
{
    k_warp<<<1, lanes, 0, s>>>(x, out);
}

extern "C" __global__ void k_atomics(uint32_t *x, float *f, unsigned long long *w)
{
    unsigned i = (unsigned)index_of_thread();
    atomicAdd(&x[0], i);
    atomicMax(&x[1], i);
    atomicMin((int *)&x[2], -(int)i);
    atomicOr(&x[3], 1u << (i % 32));
    atomicCAS(&x[4], 0u, 77u);
    atomicAdd(f, 0.5f);
    atomicAdd(w, 1ull << 33);
}
extern "C" void launch_atomics(uint32_t *x, float *f, unsigned long long *w, cudaStream_t s)
{
    k_atomics<<<4, 64, 0, s>>>(x, f, w);
}

static __constant__ float table[4] = {1, 10, 100, 1000};
static __device__ int counter_of_blocks[2] = {5, 7};

static __device__ __noinline__ float pick(const float *from, int i)
{
    float a[4] = {from[3], from[2], from[1], from[0]};
    return a[i & 3];
}

/* A struct by value, __constant__ and __device__ variables, a call, a local array, dynamic shared memory. */
extern "C" __global__ void k_mixed(float *out, struct mixed m, int n)
{
    extern __shared__ float row[];
    int t = (int)threadIdx.x;
    if (t < n)
        row[t] = (float)t * m.by + table[t & 3];
    __syncthreads();
    if (t < n)
        out[t] = row[n - 1 - t] + pick(m.values, t) + (float)counter_of_blocks[m.which & 1] +
                 (float)m.bytes[t % 3];
}
extern "C" cudaError_t launch_mixed(float *out, const struct mixed *m, int n, size_t shared_bytes,
                                    cudaStream_t s)
{
    k_mixed<<<1, 64, shared_bytes, s>>>(out, *m, n);
    return cudaPeekAtLastError();
}
extern "C" cudaError_t allow_shared(int bytes)
{
    return cudaFuncSetAttribute(k_mixed, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

/* ---- wrong on purpose; programs.c and test_cudasim.py know these lines by their marks  */

extern "C" __global__ void k_beyond(float *x, uint64_t n)
{
    x[n + threadIdx.x] = 1; /* MARK beyond */
}
extern "C" __global__ void k_misaligned(char *x)
{
    *(float *)(x + 2) = 1; /* MARK misaligned */
}
extern "C" __global__ void k_barrier(float *x)
{
    if (threadIdx.x < 16) {
        x[0] = 1;
        __syncthreads(); /* MARK barrier */
        x[2] = 1;
    } else {
        x[1] = 2;
        __syncthreads();
        x[3] = 2;
    }
}
extern "C" __global__ void k_lane(float *x)
{
    if (threadIdx.x < 16)
        x[threadIdx.x] = __shfl_down_sync(~0u, x[threadIdx.x], 1); /* MARK lane */
}
extern "C" __global__ void k_mask(float *x)
{
    x[threadIdx.x] = __shfl_sync(0xf0u, x[threadIdx.x], 4); /* MARK mask */
}
extern "C" __global__ void k_shared(float *x, int n)
{
    extern __shared__ float row[];
    row[threadIdx.x + n] = x[threadIdx.x]; /* MARK shared */
    __syncthreads();
    x[threadIdx.x] = row[threadIdx.x];
}
extern "C" __global__ void k_trap(float *x)
{
    if (x)
        __trap(); /* MARK trap */
}
extern "C" void launch_wrong(enum wrong what, float *x, uint64_t n, cudaStream_t s)
{
    switch (what) {
    case WRONG_BEYOND:
        k_beyond<<<1, 32, 0, s>>>(x, n);
        break;
    case WRONG_MISALIGNED:
        k_misaligned<<<1, 1, 0, s>>>((char *)x);
        break;
    case WRONG_BARRIER:
        k_barrier<<<1, 32, 0, s>>>(x);
        break;
    case WRONG_LANE:
        k_lane<<<1, 32, 0, s>>>(x);
        break;
    case WRONG_MASK:
        k_mask<<<1, 32, 0, s>>>(x);
        break;
    case WRONG_SHARED:
        k_shared<<<1, 32, 128, s>>>(x, 8);
        break;
    case WRONG_TRAP:
        k_trap<<<1, 1, 0, s>>>(x);
        break;
    }
}
