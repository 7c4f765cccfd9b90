/* temporary */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"
#include "kernels/cpu/ops.h"
static float keepf_(const struct step_args *st, uint32_t layer, uint32_t pos, uint64_t e, float p)
{
    if (p <= 0 || !st->training) return 1;
    struct rng_block b = rng_philox(st->seed, (uint32_t)(e / 4), pos, rng_word2(RNG_DROPOUT, layer), (uint32_t)st->step);
    return rng_unit(b.v[e % 4]) >= p ? 1.0f / (1.0f - p) : 0.0f;
}
void cpu_op_attention_fwd(const struct op_call *c, struct pool *pool)
{
    const struct op_attention_fwd *o = &c->attention_fwd; (void)pool;
    uint32_t T = o->seq, H = o->heads, K = o->kv_heads, n = o->head, W = (H + 2 * K) * n;
    float *s = malloc(T * sizeof *s), sc = 1.0f / sqrtf((float)n);
    for (uint32_t r = 0; r < o->rows; r++) for (uint32_t h = 0; h < H; h++) for (uint32_t q = 0; q < T; q++) {
        const float *b = o->qkv + (size_t)r * T * W, *qq = b + (size_t)q * W + h * n; uint32_t kv = h / (H / K); float mx = -INFINITY, sum = 0;
        for (uint32_t k = 0; k <= q; k++) { const float *kk = b + (size_t)k * W + (H + kv) * n; float d = 0; for (uint32_t i = 0; i < n; i++) d += qq[i] * kk[i]; s[k] = d * sc; if (s[k] > mx) mx = s[k]; }
        for (uint32_t k = 0; k <= q; k++) { s[k] = expf(s[k] - mx); sum += s[k]; }
        o->lse[((size_t)r * H + h) * T + q] = mx + logf(sum);
        float *y = o->y + ((size_t)r * T + q) * H * n + h * n; memset(y, 0, n * 4);
        for (uint32_t k = 0; k <= q; k++) { float p = s[k] / sum * keepf_(c->step, o->layer, o->first_row + r, ((uint64_t)h * T + q) * T + k, o->p); const float *v = b + (size_t)k * W + (H + K + kv) * n; for (uint32_t i = 0; i < n; i++) y[i] += p * v[i]; }
    }
    free(s);
}
void cpu_op_attention_bwd(const struct op_call *c, struct pool *pool)
{
    const struct op_attention_bwd *o = &c->attention_bwd; (void)pool;
    uint32_t T = o->seq, H = o->heads, K = o->kv_heads, n = o->head, W = (H + 2 * K) * n; float sc = 1.0f / sqrtf((float)n);
    memset(o->dqkv, 0, (size_t)o->rows * T * W * 4);
    for (uint32_t r = 0; r < o->rows; r++) for (uint32_t h = 0; h < H; h++) for (uint32_t q = 0; q < T; q++) {
        const float *b = o->qkv + (size_t)r * T * W, *qq = b + (size_t)q * W + h * n; float *db = o->dqkv + (size_t)r * T * W; uint32_t kv = h / (H / K);
        const float *y = o->y + ((size_t)r * T + q) * H * n + h * n, *dy = o->dy + ((size_t)r * T + q) * H * n + h * n; float D = 0;
        for (uint32_t i = 0; i < n; i++) D += y[i] * dy[i];
        for (uint32_t k = 0; k <= q; k++) { const float *kk = b + (size_t)k * W + (H + kv) * n, *v = b + (size_t)k * W + (H + K + kv) * n; float d = 0, dp = 0;
            for (uint32_t i = 0; i < n; i++) { d += qq[i] * kk[i]; dp += dy[i] * v[i]; }
            float p = expf(d * sc - o->lse[((size_t)r * H + h) * T + q]), m = keepf_(c->step, o->layer, o->first_row + r, ((uint64_t)h * T + q) * T + k, o->p), ds = p * (dp * m - D) * sc;
            float *dq = db + (size_t)q * W + h * n, *dk = db + (size_t)k * W + (H + kv) * n, *dv = db + (size_t)k * W + (H + K + kv) * n;
            for (uint32_t i = 0; i < n; i++) { dq[i] += ds * kk[i]; dk[i] += ds * qq[i]; dv[i] += p * m * dy[i]; } }
    }
}
