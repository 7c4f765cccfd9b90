/* Implements the forward passes of layers that reference.h declares, in double precision, by their
 * definitions. */
#include "tests/unit/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double keep(const struct ref_layer *p, enum rng_purpose purpose, float rate, uint32_t row,
                   uint64_t element)
{
    if (rate <= 0 || !p->step->training)
        return 1;
    bool keeps = ref_dropout_keeps(p->step, purpose, p->l->key, p->first_row + row, element, rate);
    return keeps ? 1.0 / (1.0 - (double)rate) : 0;
}

static void drop(const struct ref_layer *p, float rate, double *y, uint32_t n)
{
    for (uint32_t r = 0; r < p->rows; r++)
        for (uint32_t i = 0; i < n; i++)
            y[(size_t)r * n + i] *= keep(p, RNG_DROPOUT, rate, r, i);
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
    uint32_t seq = layer_seq(l);
    const double *w = p->w;

    linear(&w, p->x, y, p->rows * seq, layer_in(l) / seq, layer_out(l) / seq, l->dense.bias);
    for (size_t i = 0; i < (size_t)p->rows * layer_out(l); i++)
        y[i] = ref_act(l->dense.act, y[i]);
    drop(p, l->dense.dropout, y, layer_out(l));
}

static void norm_fwd(const struct ref_layer *p, double *y)
{
    uint32_t n = layer_in(p->l) / layer_seq(p->l);

    for (size_t t = 0; t < (size_t)p->rows * layer_seq(p->l); t++) {
        const double *x = p->x + t * n;
        double mean = 0, var = 0;
        for (uint32_t i = 0; i < n; i++)
            mean += p->l->norm.rms ? 0 : x[i] / n;
        for (uint32_t i = 0; i < n; i++)
            var += (x[i] - mean) * (x[i] - mean) / n;
        for (uint32_t i = 0; i < n; i++)
            y[t * n + i] = (x[i] - mean) / sqrt(var + (double)p->l->norm.eps) * p->w[i] +
                           (p->l->norm.bias ? p->w[n + i] : 0);
    }
}

static void embedding_fwd(const struct ref_layer *p, double *y)
{
    uint32_t n = layer_out(p->l) / layer_seq(p->l);

    for (size_t t = 0; t < (size_t)p->rows * layer_seq(p->l); t++) {
        float bits = (float)p->x[t]; /* an id in the place of a float */
        int32_t id;
        memcpy(&id, &bits, sizeof id);
        memcpy(y + t * n, p->w + (size_t)id * n, n * sizeof *y);
    }
}

static void positions_fwd(const struct ref_layer *p, double *y)
{
    for (size_t i = 0; i < (size_t)p->rows * layer_in(p->l); i++)
        y[i] = p->x[i] + p->w[i % layer_in(p->l)];
    drop(p, p->l->positions.dropout, y, layer_in(p->l));
}

static void rotate(const struct layer *l, double *head, uint32_t n, uint32_t position)
{
    for (uint32_t i = 0; l->attention.rope_theta > 0 && i < n / 2; i++) {
        double angle = position * pow((double)l->attention.rope_theta, -2.0 * i / n), a = head[i],
               b = head[i + n / 2];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + n / 2] = b * cos(angle) + a * sin(angle);
    }
}

/* One query of one head; qkv of its row. */
static void attend(const struct ref_layer *p, const double *qkv, uint32_t row, uint32_t h, uint32_t q,
                   double *y)
{
    const struct layer *l = p->l;
    uint32_t seq = layer_seq(l), n = layer_in(l) / seq / l->attention.heads,
             width = (l->attention.heads + 2 * l->attention.kv_heads) * n;
    uint32_t kv = h / (l->attention.heads / l->attention.kv_heads);
    double *score = malloc((q + 1) * sizeof *score), sum = 0, max = -INFINITY;

    for (uint32_t k = 0; k <= q; k++) {
        score[k] = 0;
        for (uint32_t i = 0; i < n; i++)
            score[k] +=
                qkv[q * width + h * n + i] * qkv[k * width + (l->attention.heads + kv) * n + i] / sqrt(n);
        max = score[k] > max ? score[k] : max;
    }
    for (uint32_t k = 0; k <= q; k++)
        sum += exp(score[k] - max);
    for (uint32_t i = 0; i < n; i++) {
        y[i] = 0;
        for (uint32_t k = 0; k <= q; k++)
            y[i] += exp(score[k] - max) / sum *
                    keep(p, RNG_SCORES, l->attention.score_dropout, row, ((uint64_t)h * seq + q) * seq + k) *
                    qkv[k * width + (l->attention.heads + l->attention.kv_heads + kv) * n + i];
    }
    free(score);
}

static void attention_fwd(const struct ref_layer *p, double *y)
{
    const struct layer *l = p->l;
    uint32_t seq = layer_seq(l), d = layer_in(l) / seq, n = d / l->attention.heads,
             width = (l->attention.heads + 2 * l->attention.kv_heads) * n;
    double *qkv = malloc((size_t)p->rows * seq * width * sizeof *qkv),
           *o = malloc((size_t)p->rows * layer_in(l) * sizeof *o);
    const double *w = p->w;

    linear(&w, p->x, qkv, p->rows * seq, d, width, l->attention.bias);
    for (uint32_t t = 0; t < p->rows * seq; t++)
        for (uint32_t h = 0; h < l->attention.heads + l->attention.kv_heads; h++)
            rotate(l, qkv + (size_t)t * width + h * n, n, t % seq);
    for (uint32_t r = 0; r < p->rows; r++)
        for (uint32_t h = 0; h < l->attention.heads; h++)
            for (uint32_t q = 0; q < seq; q++)
                attend(p, qkv + (size_t)r * seq * width, r, h, q, o + ((size_t)r * seq + q) * d + h * n);
    linear(&w, o, y, p->rows * seq, d, d, l->attention.bias);
    drop(p, l->attention.dropout, y, layer_out(l));
    free(qkv);
    free(o);
}

static void mlp_fwd(const struct ref_layer *p, double *y)
{
    const struct layer *l = p->l;
    uint32_t tokens = p->rows * layer_seq(l), d = layer_in(l) / layer_seq(l),
             fc = l->mlp.gated ? 2 * l->mlp.hidden : l->mlp.hidden;
    double *z = malloc((size_t)tokens * fc * sizeof *z),
           *h = malloc((size_t)tokens * l->mlp.hidden * sizeof *h);
    const double *w = p->w;

    linear(&w, p->x, z, tokens, d, fc, l->mlp.bias);
    for (size_t t = 0; t < tokens; t++)
        for (uint32_t i = 0; i < l->mlp.hidden; i++)
            h[t * l->mlp.hidden + i] = l->mlp.gated
                                           ? ref_act(ACT_SILU, z[t * fc + i]) * z[t * fc + l->mlp.hidden + i]
                                           : ref_act(l->mlp.act, z[t * fc + i]);
    linear(&w, h, y, tokens, l->mlp.hidden, d, l->mlp.bias);
    drop(p, l->mlp.dropout, y, layer_out(l));
    free(z);
    free(h);
}

static void composite_fwd(const struct ref_layer *p, double *y)
{
    double *x = malloc((size_t)p->rows * layer_in(p->l) * sizeof *x);
    struct ref_layer in = *p;

    memcpy(x, p->x, (size_t)p->rows * layer_in(p->l) * sizeof *x);
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
    for (size_t i = 0; i < (size_t)p->rows * layer_out(p->l); i++)
        y[i] = x[i] + (p->l->type == &layer_residual ? p->x[i] : 0);
    free(x);
}

static double smooth_xent(const struct ref_layer *p, float smoothing, const double *x, uint32_t n,
                          int32_t target)
{
    double s = p->step->training ? (double)smoothing : 0, loss = (1 - s) * ref_xent(x, n, (uint32_t)target);

    for (uint32_t c = 0; s > 0 && c < n; c++)
        loss += s / n * ref_xent(x, n, c);
    return loss;
}

static double token_losses(const struct ref_layer *p, uint32_t r)
{
    bool head = p->l->type == &layer_lm_head;
    float smoothing = head ? p->l->lm_head.smoothing : p->l->softmax_xent.smoothing;
    uint32_t seq = layer_seq(p->l), d = layer_width(p->l), n = head ? p->l->lm_head.vocab : d;
    double *logits = malloc(n * sizeof *logits), loss = 0;

    for (uint32_t t = r * seq; t < (r + 1) * seq; t++) {
        const double *w = p->w;
        int32_t target = ((const int32_t *)p->target)[t];
        if (head)
            linear(&w, p->x + (size_t)t * d, logits, 1, d, n, false);
        else
            memcpy(logits, p->x + (size_t)t * d, n * sizeof *logits);
        loss += target >= 0 ? smooth_xent(p, smoothing, logits, n, target) : 0;
    }
    free(logits);
    return loss;
}

/* Returns the vector of targets of a row: of its class, or in the target itself. */
static const float *target_vector(const struct ref_layer *p, uint32_t r)
{
    if (p->l->type == &layer_label_vectors)
        return p->b + (size_t)((const int32_t *)p->target)[r] * layer_in(p->l);
    return (const float *)p->target + (size_t)r * layer_in(p->l);
}

static double loss_row(const struct ref_layer *p, uint32_t r)
{
    if (p->l->type != &layer_mse && p->l->type != &layer_label_vectors)
        return token_losses(p, r);
    double *t = ref_to_double(target_vector(p, r), layer_in(p->l));
    double loss = ref_mse(p->x + (size_t)r * layer_in(p->l), t, layer_in(p->l));
    free(t);
    return loss;
}

static void activation_fwd(const struct ref_layer *p, double *y)
{
    for (uint64_t i = 0; i < (uint64_t)p->rows * layer_in(p->l); i++)
        y[i] = ref_act(p->l->activation.act, p->x[i]);
}

static void dropout_fwd(const struct ref_layer *p, double *y)
{
    memcpy(y, p->x, (uint64_t)p->rows * layer_in(p->l) * sizeof *y);
    drop(p, p->l->dropout.p, y, layer_in(p->l));
}

static void loss_fwd(const struct ref_layer *p, double *y)
{
    *y = 0;
    for (uint32_t r = 0; r < p->rows && p->first_row + r < p->step->valid_rows; r++)
        *y += loss_row(p, r);
}

static const struct {
    const struct layer_type *type;
    void (*fwd)(const struct ref_layer *p, double *y);
} references[] = {
    {&layer_activation, activation_fwd},
    {&layer_attention, attention_fwd},
    {&layer_block, composite_fwd},
    {&layer_dense, dense_fwd},
    {&layer_dropout, dropout_fwd},
    {&layer_embedding, embedding_fwd},
    {&layer_label_vectors, loss_fwd},
    {&layer_lm_head, loss_fwd},
    {&layer_mlp, mlp_fwd},
    {&layer_mse, loss_fwd},
    {&layer_norm, norm_fwd},
    {&layer_positions, positions_fwd},
    {&layer_residual, composite_fwd},
    {&layer_softmax_xent, loss_fwd},
};

void ref_layer_fwd(const struct ref_layer *p, double *y)
{
    for (size_t i = 0; i < sizeof references / sizeof references[0]; i++)
        if (references[i].type == p->l->type) {
            references[i].fwd(p, y);
            return;
        }
    abort();
}
