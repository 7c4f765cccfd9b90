/* Weight updates, the sums of gradients that they use, and the decision whether to apply them. The results
 * are equal bit by bit to those of kernels/cpu/ops_update.c. The comment at the top of that file states
 * the expressions and the order of every sum. An update reads the group state on the device when it runs.
 *
 * Only the enqueueing thread runs this code.
 */
#include <math.h>

#define STEP_INLINE static __device__ __forceinline__
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernel.cuh"

#define BIAS_INLINE static __device__ __forceinline__
#include "kernels/bias.h"

/* ---- add ---- */

template <class T> static __global__ void add(T *y, const T *x, uint64_t n)
{
    const uint32_t N = PACK_OF(T);

    FOR_EACH_PACK(at, n, N)
    {
        const pack<N> p = load_pack<N>(x + at, n - at);
        pack<N> sum = load_pack<N>(y + at, n - at);
#pragma unroll
        for (uint32_t k = 0; k < N; k++)
            sum.v[k] = sum.v[k] + p.v[k];
        store_pack(y + at, sum, n - at);
    }
}

int cuda_op_add(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_add *o = &call->add;

    WITH_TYPE(T, o->dtype,
              add<<<grid_for(o->n, THREADS * PACK_OF(T)), THREADS, 0, at->stream>>>((T *)o->y,
                                                                                    (const T *)o->x, o->n));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- the group state ---- */

static __device__ __forceinline__ bool group_skips(const struct group_state *g)
{
    return g && !g->apply;
}

static __device__ __forceinline__ float group_scale(const struct group_state *g)
{
    return g ? g->scale : 1.0f;
}

/* Returns element i of the combined gradients. The loop is unrolled, so that the compiler reads the pointers
 * directly from the arguments of the kernel. */
static __device__ __forceinline__ float gradient(const struct op_gradients &g, uint64_t i)
{
    float sum = ((const float *)g.dw[0])[i];

#pragma unroll
    for (uint32_t u = 1; u < OP_USES; u++)
        if (u < g.n)
            sum = sum + ((const float *)g.dw[u])[i];
    return g.mean ? sum * (1.0f / (float)g.n) : sum;
}

/* Returns a pack of the combined gradients, from element `at` on. `n` is the size of the arrays. */
template <uint32_t N>
static __device__ __forceinline__ pack<N> gradients_at(const struct op_gradients &g, uint64_t at, uint64_t n)
{
    pack<N> sum = load_pack<N>(g.dw[0] + at, n - at);

#pragma unroll
    for (uint32_t u = 1; u < OP_USES; u++)
        if (u < g.n) {
            const pack<N> p = load_pack<N>(g.dw[u] + at, n - at);
#pragma unroll
            for (uint32_t k = 0; k < N; k++)
                sum.v[k] = sum.v[k] + p.v[k];
        }
    const float part = 1.0f / (float)g.n;
#pragma unroll
    for (uint32_t k = 0; k < N; k++)
        sum.v[k] = g.mean ? sum.v[k] * part : sum.v[k];
    return sum;
}

/* The weights that an update reads and writes. */
template <class T> struct weights {
    float *master; /* the weights themselves if T is float */
    T *rounded;    /* also gets each new weight, rounded to type T; NULL if T is float */
};

template <class T> static weights<T> weights_of(void *w, float *master)
{
    const weights<T> result = {master, (T *)w};

    return result;
}

template <> weights<float> weights_of<float>(void *w, float *)
{
    const weights<float> result = {(float *)w, NULL};

    return result;
}

/* Writes a pack of new weights. */
template <uint32_t N, class T>
static __device__ __forceinline__ void store_weights(const weights<T> &to, uint64_t at, const pack<N> &w,
                                                     uint64_t n)
{
    store_pack(to.master + at, w, n - at);
    if (to.rounded)
        store_pack(to.rounded + at, w, n - at);
}

/* ---- sgd ---- */

/* The constants of one sgd update. The scale of the gradients is not one of them, because the kernel reads
 * the scale from the group state. */
struct cuda_sgd_scalars {
    float momentum, weight_decay, lr;
};

template <class T>
static __global__ void sgd(weights<T> w, struct op_gradients gradients, float *v,
                           const struct group_state *group, uint64_t n, struct cuda_sgd_scalars s)
{
    const uint32_t N = PACK_OF(T);
    const float scale = group_scale(group);

    if (group_skips(group))
        return;
    FOR_EACH_PACK(at, n, N)
    {
        const pack<N> g = gradients_at<N>(gradients, at, n);
        pack<N> x = load_pack<N>(w.master + at, n - at), d;
#pragma unroll
        for (uint32_t k = 0; k < N; k++)
            d.v[k] = g.v[k] * scale + s.weight_decay * x.v[k];
        if (v) {
            const pack<N> old = load_pack<N>(v + at, n - at);
#pragma unroll
            for (uint32_t k = 0; k < N; k++)
                d.v[k] = s.momentum * old.v[k] + d.v[k];
            store_pack(v + at, d, n - at);
        }
#pragma unroll
        for (uint32_t k = 0; k < N; k++)
            x.v[k] = x.v[k] - s.lr * d.v[k];
        store_weights(w, at, x, n);
    }
}

int cuda_op_sgd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_sgd *o = &call->sgd;
    const struct cuda_sgd_scalars s = {o->momentum, o->weight_decay, call->step->lr};

    WITH_TYPE(T, o->dtype,
              sgd<<<grid_for(o->n, THREADS * PACK_OF(T)), THREADS, 0, at->stream>>>(
                  weights_of<T>(o->w, o->master), o->g, o->v, o->group, o->n, s));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- adamw ---- */

/* The constants of one adamw update. The scale of the gradients and the bias corrections are not among them,
 * because the kernel reads both from the group state. */
struct cuda_adamw_scalars {
    float beta1, beta2, c1, c2, eps, decay, lr;
};

template <class T>
static __global__ void adamw(weights<T> w, struct op_gradients gradients, float *m, float *v,
                             const struct group_state *group, uint64_t n, struct cuda_adamw_scalars s)
{
    const uint32_t N = PACK_OF(T);
    const float scale = group_scale(group);
    const float bias_correct1 = group ? group->bias_correct1 : 1.0f;
    const float bias_correct2 = group ? group->bias_correct2 : 1.0f;

    if (group_skips(group))
        return;
    FOR_EACH_PACK(at, n, N)
    {
        const pack<N> sum = gradients_at<N>(gradients, at, n);
        pack<N> x = load_pack<N>(w.master + at, n - at);
        pack<N> m1 = load_pack<N>(m + at, n - at), v1 = load_pack<N>(v + at, n - at);
#pragma unroll
        for (uint32_t k = 0; k < N; k++) {
            const float g = sum.v[k] * scale;
            m1.v[k] = s.beta1 * m1.v[k] + s.c1 * g;
            v1.v[k] = s.beta2 * v1.v[k] + (s.c2 * g) * g;
            const float step = (s.lr * (m1.v[k] * bias_correct1)) / (sqrtf(v1.v[k] * bias_correct2) + s.eps);
            x.v[k] = (x.v[k] - s.decay * x.v[k]) - step;
        }
        store_pack(m + at, m1, n - at);
        store_pack(v + at, v1, n - at);
        store_weights(w, at, x, n);
    }
}

int cuda_op_adamw(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_adamw *o = &call->adamw;
    const struct step_args *step = call->step;
    struct cuda_adamw_scalars s;

    s.beta1 = o->beta1;
    s.beta2 = o->beta2;
    s.c1 = 1.0f - o->beta1;
    s.c2 = 1.0f - o->beta2;
    s.eps = o->eps;
    s.decay = step->lr * o->weight_decay;
    s.lr = step->lr;
    WITH_TYPE(T, o->dtype,
              adamw<<<grid_for(o->n, THREADS * PACK_OF(T)), THREADS, 0, at->stream>>>(
                  weights_of<T>(o->w, o->master), o->g, o->m, o->v, o->group, o->n, s));
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- the norm ---- */

#define BLOCK 4096u /* elements of one partial sum */

/* Computes the sum of squares of each block of the combined gradients. Block 0 begins at element `first`, and
 * the last block ends at element n - 1. Half a warp, which is 16 threads, computes one block. */
static __global__ void block_sumsq(struct op_gradients gradients, uint64_t first, uint64_t n, double *sums,
                                   uint32_t blocks)
{
    const uint32_t b = blockIdx.x * SUMS + threadIdx.x / LANES;
    const uint64_t begin = first + (uint64_t)b * BLOCK, end = begin + BLOCK < n ? begin + BLOCK : n;
    double sum = 0;

    if (b >= blocks)
        return;
#pragma unroll 8
    for (uint64_t i = begin + threadIdx.x % LANES; i < end; i += LANES) {
        const double v = (double)gradient(gradients, i);
        sum = sum + v * v;
    }
    sum = fold_lanes(sum);
    if (threadIdx.x % LANES == 0)
        sums[b] = sum;
}

static __global__ void add_blocks(const double *sums, uint32_t blocks, bool first, double *total)
{
    const double sum = add_in_order(first ? 0.0 : *total, sums, blocks);

    if (threadIdx.x == 0)
        *total = sum;
}

int cuda_op_sumsq(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_sumsq *o = &call->sumsq;
    const uint64_t most = (uint64_t)CUDA_PARTIALS * BLOCK;

    for (uint64_t begin = 0; begin == 0 || begin < o->n; begin += most) {
        const uint64_t n = o->n - begin < most ? o->n - begin : most;
        const uint32_t blocks = (uint32_t)((n + BLOCK - 1) / BLOCK);
        if (blocks > 0)
            block_sumsq<<<blocks / SUMS + (blocks % SUMS != 0), THREADS, 0, at->stream>>>(
                o->g, begin, begin + n, at->partials, blocks);
        add_blocks<<<1, THREADS, 0, at->stream>>>(at->partials, blocks, begin == 0, o->sum);
    }
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

static __global__ void norm_add(const double *sum, struct step_decision *decision, bool first, bool other,
                                uint32_t layer)
{
    decision->sumsq = (first ? 0.0 : decision->sumsq) + (other && isfinite(*sum) ? 0.0 : *sum);
    if (first)
        decision->bad_layer = STEP_NO_LAYER;
    if (!isfinite(*sum))
        decision->bad_layer = layer;
}

int cuda_op_norm_add(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_norm_add *o = &call->norm_add;

    norm_add<<<1, 1, 0, at->stream>>>(o->sum, o->decision, o->first, o->other, o->layer);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

static __global__ void decide(const struct op_decide o)
{
    struct step_decision *d = o.decision;
    struct group_state *g = o.group;
    /* The gradients of this step were computed from losses multiplied by this number. The field exists
     * only if losses are scaled. */
    const double loss_scale = o.growth_steps > 0 ? (double)g->loss_scale : 1.0;
    const double norm = d ? sqrt(d->sumsq) / loss_scale : 0;

    g->apply = isfinite(norm) ? 1 : 0;
    if (d)
        d->apply = g->apply;
    if (o.growth_steps > 0)
        loss_scale_change(o.growth_steps, g->apply != 0, &g->loss_scale, &g->good_steps);
    if (!g->apply)
        return;
    g->t++;
    g->scale = (float)((o.clip > 0 && norm > o.clip ? o.clip / (norm + 1e-6) : 1.0) / loss_scale);
    g->bias_correct1 = bias_correction(o.beta1, g->t);
    g->bias_correct2 = bias_correction(o.beta2, g->t);
}

int cuda_op_decide(const struct cuda_compute *at, const struct op_call *call)
{
    decide<<<1, 1, 0, at->stream>>>(call->decide);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

template <class T> static void warm(const struct cuda_compute *at)
{
    const struct cuda_sgd_scalars s = {0};
    const struct cuda_adamw_scalars a = {0};
    const struct op_gradients none = {{NULL}, 1, false};
    const weights<T> nowhere = {NULL, NULL};

    add<<<1, THREADS, 0, at->stream>>>((T *)NULL, (const T *)NULL, 0);
    sgd<<<1, THREADS, 0, at->stream>>>(nowhere, none, NULL, NULL, 0, s);
    adamw<<<1, THREADS, 0, at->stream>>>(nowhere, none, NULL, NULL, NULL, 0, a);
}

int cuda_warm_update(const struct cuda_compute *at)
{
    struct op_decide decision = {0};
    const struct op_gradients none = {{NULL}, 1, false};

    warm<float>(at);
    warm<bf16>(at);
    warm<f16>(at);
    decision.decision = (struct step_decision *)at->partials;
    decision.group = (struct group_state *)(at->partials + 4);
    block_sumsq<<<1, THREADS, 0, at->stream>>>(none, 0, 0, NULL, 0);
    add_blocks<<<1, THREADS, 0, at->stream>>>(NULL, 0, true, at->partials);
    norm_add<<<1, 1, 0, at->stream>>>(at->partials, decision.decision, true, false, 0);
    decide<<<1, 1, 0, at->stream>>>(decision);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}
