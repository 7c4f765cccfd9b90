/* Implements the forward passes of layers that reference.h declares, in double precision, by their
 * definitions. */
#include "tests/unit/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t seq_of(const struct layer *l)
{
    return l->seq > 1 ? l->seq : 1;
}

static double keep(const struct ref_layer *p, enum rng_purpose purpose, float rate, uint32_t row,
                   uint64_t element)
{
    if (rate <= 0 || !p->step->training)
        return 1;
    bool keeps = ref_dropout_keeps(p->step, purpose, p->l->key, p->first_row + row, element, rate);
    return keeps ? 1.0 / (1.0 - (double)rate) : 0;
}

static void drop(const struct ref_layer *p, double *y, uint32_t n)
{
    for (uint32_t r = 0; r < p->rows; r++)
        for (uint32_t i = 0; i < n; i++)
            y[(size_t)r * n + i] *= keep(p, RNG_DROPOUT, p->l->dropout, r, i);
}

/* y[tokens][out] = x[tokens][in] w^T + b; moves *w behind both. */
static void linear(const double **w, const double *x, double *y, uint32_t tokens, uint32_t in, uint32_t out,
                   bool bias)
{
    ref_matmul(&(struct ref_matmul){x, *w, tokens, out, in, false, true}, y, NULL);
    *w += (size_t)in * out;
    for (size_t i = 0; bias && i < (size_t)tokens * out; i++)
        y[i] += (*w)[i % out];
    *w += bias ? out : 0;
}

static void dense_fwd(const struct ref_layer *p, double *y)
{
    const struct layer *l = p->l;
    uint32_t seq = seq_of(l);
    const double *w = p->w;

    linear(&w, p->x, y, p->rows * seq, l->in / seq, l->out / seq, l->bias);
    for (size_t i = 0; i < (size_t)p->rows * l->out; i++)
        y[i] = ref_act(l->act, y[i]);
    drop(p, y, l->out);
}

static void norm_fwd(const struct ref_layer *p, double *y)
{
    uint32_t n = p->l->in / seq_of(p->l);

    for (size_t t = 0; t < (size_t)p->rows * seq_of(p->l); t++) {
        const double *x = p->x + t * n;
        double mean = 0, var = 0;
        for (uint32_t i = 0; i < n; i++)
            mean += p->l->rms ? 0 : x[i] / n;
        for (uint32_t i = 0; i < n; i++)
            var += (x[i] - mean) * (x[i] - mean) / n;
        for (uint32_t i = 0; i < n; i++)
            y[t * n + i] =
                (x[i] - mean) / sqrt(var + (double)p->l->eps) * p->w[i] + (p->l->bias ? p->w[n + i] : 0);
    }
}

static void embedding_fwd(const struct ref_layer *p, double *y)
{
    uint32_t n = p->l->out / seq_of(p->l);

    for (size_t t = 0; t < (size_t)p->rows * seq_of(p->l); t++) {
        float bits = (float)p->x[t]; /* an id in the place of a float */
        int32_t id;
        memcpy(&id, &bits, sizeof id);
        memcpy(y + t * n, p->w + (size_t)id * n, n * sizeof *y);
    }
}

static void positions_fwd(const struct ref_layer *p, double *y)
{
    for (size_t i = 0; i < (size_t)p->rows * p->l->in; i++)
        y[i] = p->x[i] + p->w[i % p->l->in];
    drop(p, y, p->l->in);
}

static void rotate(const struct layer *l, double *head, uint32_t n, uint32_t position)
{
    for (uint32_t i = 0; l->rope_theta > 0 && i < n / 2; i++) {
        double angle = position * pow((double)l->rope_theta, -2.0 * i / n), a = head[i], b = head[i + n / 2];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + n / 2] = b * cos(angle) + a * sin(angle);
    }
}

/* One query of one head; qkv of its row. */
static void attend(const struct ref_layer *p, const double *qkv, uint32_t row, uint32_t h, uint32_t q,
                   double *y)
{
    const struct layer *l = p->l;
    uint32_t seq = seq_of(l), n = l->in / seq / l->heads, width = (l->heads + 2 * l->kv_heads) * n;
    uint32_t kv = h / (l->heads / l->kv_heads);
    double *score = malloc((q + 1) * sizeof *score), sum = 0, max = -INFINITY;

    for (uint32_t k = 0; k <= q; k++) {
        score[k] = 0;
        for (uint32_t i = 0; i < n; i++)
            score[k] += qkv[q * width + h * n + i] * qkv[k * width + (l->heads + kv) * n + i] / sqrt(n);
        max = score[k] > max ? score[k] : max;
    }
    for (uint32_t k = 0; k <= q; k++)
        sum += exp(score[k] - max);
    for (uint32_t i = 0; i < n; i++) {
        y[i] = 0;
        for (uint32_t k = 0; k <= q; k++)
            y[i] += exp(score[k] - max) / sum *
                    keep(p, RNG_SCORES, l->score_dropout, row, ((uint64_t)h * seq + q) * seq + k) *
                    qkv[k * width + (l->heads + l->kv_heads + kv) * n + i];
    }
    free(score);
}

static void attention_fwd(const struct ref_layer *p, double *y)
{
    const struct layer *l = p->l;
    uint32_t seq = seq_of(l), d = l->in / seq, n = d / l->heads, width = (l->heads + 2 * l->kv_heads) * n;
    double *qkv = malloc((size_t)p->rows * seq * width * sizeof *qkv),
           *o = malloc((size_t)p->rows * l->in * sizeof *o);
    const double *w = p->w;

    linear(&w, p->x, qkv, p->rows * seq, d, width, l->bias);
    for (uint32_t t = 0; t < p->rows * seq; t++)
        for (uint32_t h = 0; h < l->heads + l->kv_heads; h++)
            rotate(l, qkv + (size_t)t * width + h * n, n, t % seq);
    for (uint32_t r = 0; r < p->rows; r++)
        for (uint32_t h = 0; h < l->heads; h++)
            for (uint32_t q = 0; q < seq; q++)
                attend(p, qkv + (size_t)r * seq * width, r, h, q, o + ((size_t)r * seq + q) * d + h * n);
    linear(&w, o, y, p->rows * seq, d, d, l->bias);
    drop(p, y, l->out);
    free(qkv);
    free(o);
}

static void mlp_fwd(const struct ref_layer *p, double *y)
{
    const struct layer *l = p->l;
    uint32_t tokens = p->rows * seq_of(l), d = l->in / seq_of(l), fc = l->gated ? 2 * l->hidden : l->hidden;
    double *z = malloc((size_t)tokens * fc * sizeof *z), *h = malloc((size_t)tokens * l->hidden * sizeof *h);
    const double *w = p->w;

    linear(&w, p->x, z, tokens, d, fc, l->bias);
    for (size_t t = 0; t < tokens; t++)
        for (uint32_t i = 0; i < l->hidden; i++)
            h[t * l->hidden + i] = l->gated ? ref_act(ACT_SILU, z[t * fc + i]) * z[t * fc + l->hidden + i]
                                            : ref_act(l->act, z[t * fc + i]);
    linear(&w, h, y, tokens, l->hidden, d, l->bias);
    drop(p, y, l->out);
    free(z);
    free(h);
}

static void composite_fwd(const struct ref_layer *p, double *y)
{
    double *x = malloc((size_t)p->rows * p->l->in * sizeof *x);
    struct ref_layer in = *p;

    memcpy(x, p->x, (size_t)p->rows * p->l->in * sizeof *x);
    for (uint32_t i = 0; i < p->l->n_inner; i++) {
        struct layer_sizes size;
        in.l = &p->l->inner[i];
        layer_type(in.l)->sizes(in.l, p->rows, &size);
        in.x = x;
        double *out = malloc(size.y / sizeof(float) * sizeof *out);
        ref_layer_fwd(&in, out);
        in.w += size.w / sizeof(float);
        free(x);
        x = out;
    }
    for (size_t i = 0; i < (size_t)p->rows * p->l->out; i++)
        y[i] = x[i] + (p->l->kind == LAYER_residual ? p->x[i] : 0);
    free(x);
}

static double smooth_xent(const struct ref_layer *p, const double *x, uint32_t n, int32_t target)
{
    double s = p->step->training ? (double)p->l->smoothing : 0,
           loss = (1 - s) * ref_xent(x, n, (uint32_t)target);

    for (uint32_t c = 0; s > 0 && c < n; c++)
        loss += s / n * ref_xent(x, n, c);
    return loss;
}

static double token_losses(const struct ref_layer *p, uint32_t r)
{
    uint32_t seq = seq_of(p->l), d = p->l->in / seq, n = p->l->kind == LAYER_lm_head ? p->l->vocab : d;
    double *logits = malloc(n * sizeof *logits), loss = 0;

    for (uint32_t t = r * seq; t < (r + 1) * seq; t++) {
        const double *w = p->w;
        int32_t target = ((const int32_t *)p->target)[t];
        if (p->l->kind == LAYER_lm_head)
            linear(&w, p->x + (size_t)t * d, logits, 1, d, n, false);
        else
            memcpy(logits, p->x + (size_t)t * d, n * sizeof *logits);
        loss += target >= 0 ? smooth_xent(p, logits, n, target) : 0;
    }
    free(logits);
    return loss;
}

static double loss_row(const struct ref_layer *p, uint32_t r)
{
    if (p->l->kind != LAYER_mse)
        return token_losses(p, r);
    double *t = ref_to_double((const float *)p->target + (size_t)r * p->l->in, p->l->in);
    double loss = ref_mse(p->x + (size_t)r * p->l->in, t, p->l->in);
    free(t);
    return loss;
}

void ref_layer_fwd(const struct ref_layer *p, double *y)
{
    uint64_t n = (uint64_t)p->rows * p->l->in;

    switch (p->l->kind) {
    case LAYER_activation:
        for (uint64_t i = 0; i < n; i++)
            y[i] = ref_act(p->l->act, p->x[i]);
        return;
    case LAYER_attention:
        attention_fwd(p, y);
        return;
    case LAYER_block:
    case LAYER_residual:
        composite_fwd(p, y);
        return;
    case LAYER_dense:
        dense_fwd(p, y);
        return;
    case LAYER_dropout:
        memcpy(y, p->x, n * sizeof *y);
        drop(p, y, p->l->in);
        return;
    case LAYER_embedding:
        embedding_fwd(p, y);
        return;
    case LAYER_mlp:
        mlp_fwd(p, y);
        return;
    case LAYER_norm:
        norm_fwd(p, y);
        return;
    case LAYER_positions:
        positions_fwd(p, y);
        return;
    case LAYER_lm_head:
    case LAYER_mse:
    case LAYER_softmax_xent:
        *y = 0;
        for (uint32_t r = 0; r < p->rows && p->first_row + r < p->step->valid_rows; r++)
            *y += loss_row(p, r);
        return;
    case LAYER_COUNT:
        break;
    }
    abort();
}
