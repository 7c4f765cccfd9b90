/* Weight updates, the sums of gradients that they use, and the decision whether to apply them. The results
 * are equal bit by bit to those of kernels/cpu/ops_update.c. The comment at the top of that file states
 * the expressions and the order of every sum. An update reads the group state on the device when it runs.
 *
 * Only the enqueueing thread runs this code.
 */
#include <math.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernel.cuh"

#define BIAS_INLINE static __device__ __forceinline__
#include "kernels/bias.h"

/* ---- add ---- */

static __global__ void add(float *y, const float *x, uint64_t n)
{
    FOR_EACH(i, n)
    y[i] = y[i] + x[i];
}

int cuda_op_add(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_add *o = &call->add;

    add<<<grid_for(o->n, THREADS), THREADS, 0, at->stream>>>((float *)o->y, (const float *)o->x, o->n);
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

/* ---- sgd ---- */

/* The constants of one sgd update. The scale of the gradients is not one of them, because the kernel reads
 * the scale from the group state. */
struct cuda_sgd_scalars {
    float momentum, weight_decay, lr;
};

static __global__ void sgd(float *w, struct op_gradients gradients, float *v, const struct group_state *group,
                           uint64_t n, struct cuda_sgd_scalars s)
{
    const float scale = group_scale(group);

    if (group_skips(group))
        return;
    FOR_EACH(i, n)
    {
        const float g = gradient(gradients, i) * scale;
        float d = g + s.weight_decay * w[i];
        if (v) {
            d = s.momentum * v[i] + d;
            v[i] = d;
        }
        w[i] = w[i] - s.lr * d;
    }
}

int cuda_op_sgd(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_sgd *o = &call->sgd;
    const struct cuda_sgd_scalars s = {o->momentum, o->weight_decay, call->step->lr};

    sgd<<<grid_for(o->n, THREADS), THREADS, 0, at->stream>>>((float *)o->w, o->g, o->v, o->group, o->n, s);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

/* ---- adamw ---- */

/* The constants of one adamw update. The scale of the gradients and the bias corrections are not among them,
 * because the kernel reads both from the group state. */
struct cuda_adamw_scalars {
    float beta1, beta2, c1, c2, eps, decay, lr;
};

static __global__ void adamw(float *w, struct op_gradients gradients, float *m, float *v,
                             const struct group_state *group, uint64_t n, struct cuda_adamw_scalars s)
{
    const float scale = group_scale(group);
    const float bias_correct1 = group ? group->bias_correct1 : 1.0f;
    const float bias_correct2 = group ? group->bias_correct2 : 1.0f;

    if (group_skips(group))
        return;
    FOR_EACH(i, n)
    {
        const float g = gradient(gradients, i) * scale;
        const float m1 = s.beta1 * m[i] + s.c1 * g;
        const float v1 = s.beta2 * v[i] + (s.c2 * g) * g;
        const float step = (s.lr * (m1 * bias_correct1)) / (sqrtf(v1 * bias_correct2) + s.eps);
        m[i] = m1;
        v[i] = v1;
        w[i] = (w[i] - s.decay * w[i]) - step;
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
    adamw<<<grid_for(o->n, THREADS), THREADS, 0, at->stream>>>((float *)o->w, o->g, o->m, o->v, o->group,
                                                               o->n, s);
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

static __global__ void norm_add(const double *sum, struct step_decision *decision, bool first, uint32_t layer)
{
    decision->sumsq = (first ? 0.0 : decision->sumsq) + *sum;
    if (first)
        decision->bad_layer = STEP_NO_LAYER;
    if (!isfinite(*sum))
        decision->bad_layer = layer;
}

int cuda_op_norm_add(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_norm_add *o = &call->norm_add;

    norm_add<<<1, 1, 0, at->stream>>>(o->sum, o->decision, o->first, o->layer);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

static __global__ void decide(struct step_decision *d, struct group_state *g, double clip, float beta1,
                              float beta2)
{
    const double norm = d ? sqrt(d->sumsq) : 0;

    g->apply = isfinite(norm) ? 1 : 0;
    if (d)
        d->apply = g->apply;
    if (!g->apply)
        return;
    g->t++;
    g->scale = clip > 0 && norm > clip ? (float)(clip / (norm + 1e-6)) : 1.0f;
    g->bias_correct1 = bias_correction(beta1, g->t);
    g->bias_correct2 = bias_correction(beta2, g->t);
}

int cuda_op_decide(const struct cuda_compute *at, const struct op_call *call)
{
    const struct op_decide *o = &call->decide;

    decide<<<1, 1, 0, at->stream>>>(o->decision, o->group, o->clip, o->beta1, o->beta2);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}

int cuda_warm_update(const struct cuda_compute *at)
{
    const struct cuda_sgd_scalars s = {0};
    const struct cuda_adamw_scalars a = {0};
    struct step_decision *scratch = (struct step_decision *)at->partials;
    struct group_state *group = (struct group_state *)(at->partials + 4);
    const struct op_gradients none = {{NULL}, 1, false};

    add<<<1, THREADS, 0, at->stream>>>(NULL, NULL, 0);
    sgd<<<1, THREADS, 0, at->stream>>>(NULL, none, NULL, NULL, 0, s);
    adamw<<<1, THREADS, 0, at->stream>>>(NULL, none, NULL, NULL, NULL, 0, a);
    block_sumsq<<<1, THREADS, 0, at->stream>>>(none, 0, 0, NULL, 0);
    add_blocks<<<1, THREADS, 0, at->stream>>>(NULL, 0, true, at->partials);
    norm_add<<<1, 1, 0, at->stream>>>(at->partials, scratch, true, 0);
    decide<<<1, 1, 0, at->stream>>>(scratch, group, 0, 0, 0);
    return CUDA_CHECK(at->fault, cudaGetLastError());
}
