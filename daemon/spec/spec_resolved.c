/* Writes the resolved spec, the text of everything that determines the bits of a run, and computes its hash.
 * A checkpoint stores both, and a job resumes from a checkpoint only if its own text and hash are the same.
 * Numbers are printed so that they read back as the same bits.
 *
 * Changing this text makes every older checkpoint look like one of another job. Add a key only for something
 * that changes bits, and leave it out when it has the value that was implied before.
 *
 * on_nonfinite is left out. It only matters after the last step with finite numbers, and a user whose job
 * stopped at a NaN may want to resume it with "skip".
 *
 * All functions are pure; any thread may call them.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/json.h"
#include "daemon/spec/spec.h"

static const char *const layer_names[LAYER_COUNT] = {
#define LAYER(name) [LAYER_##name] = #name,
#include "kernels/layers.def"
#undef LAYER
};

static void add_layers(struct strbuf *b, const struct layer *layers, uint32_t n);

/* Returns true if a positions layer has the default init_std, 0.02. The resolved text leaves a default out.
 * Earlier versions of Tutti also left out their default, which was 1. So an old job still has the same text
 * and can resume from its checkpoint. */
static bool is_implied_std(const struct layer *l)
{
    return l->kind == LAYER_positions && l->init_std == LAYER_EMBEDDING_STD && l->proj_std <= 0;
}

/* Keys that the text has always had are written every time, in their old order. Newer keys are written only
 * if their value is not the default, so that the hashes of older jobs stay the same. */
void spec_layer_json(const struct layer *l, struct strbuf *b)
{
    bool dense = l->kind == LAYER_dense;

    strbuf_addf(b, "{\"kind\":\"%s\",\"in\":%" PRIu32 ",\"out\":%" PRIu32, layer_names[l->kind], l->in,
                l->out);
    if (dense || l->kind == LAYER_norm || l->kind == LAYER_attention || l->kind == LAYER_mlp)
        strbuf_addf(b, ",\"bias\":%s", l->bias ? "true" : "false");
    if (dense || l->kind == LAYER_activation || (l->kind == LAYER_mlp && !l->gated))
        strbuf_addf(b, ",\"activation\":\"%s\"", act_names[l->act]);
    if (dense || l->kind == LAYER_dropout || l->dropout > 0)
        strbuf_addf(b, ",\"dropout\":%.9g", (double)l->dropout);
    if (l->seq > 1)
        strbuf_addf(b, ",\"seq\":%" PRIu32, l->seq);
    if (l->kind == LAYER_norm)
        strbuf_addf(b, ",\"rms\":%s,\"eps\":%.9g", l->rms ? "true" : "false", (double)l->eps);
    if (l->kind == LAYER_attention)
        strbuf_addf(
            b, ",\"heads\":%" PRIu32 ",\"kv_heads\":%" PRIu32 ",\"rope_theta\":%.9g,\"score_dropout\":%.9g",
            l->heads, l->kv_heads, (double)l->rope_theta, (double)l->score_dropout);
    if (l->kind == LAYER_mlp)
        strbuf_addf(b, ",\"hidden\":%" PRIu32 ",\"gated\":%s", l->hidden, l->gated ? "true" : "false");
    if (l->vocab > 0)
        strbuf_addf(b, ",\"vocab\":%" PRIu32, l->vocab);
    if (l->kind == LAYER_positions)
        strbuf_addf(b, ",\"positions\":%" PRIu32, l->positions);
    if (l->smoothing > 0)
        strbuf_addf(b, ",\"label_smoothing\":%.9g", (double)l->smoothing);
    if ((l->init_std > 0 || l->proj_std > 0) && !is_implied_std(l))
        strbuf_addf(b, ",\"init_std\":%.9g,\"proj_std\":%.9g", (double)l->init_std, (double)l->proj_std);
    if (l->tied)
        strbuf_addf(b, ",\"tied_to\":%" PRIu32, l->owner);
    if (l->n_inner > 0) {
        strbuf_add(b, ",\"inner\":[");
        add_layers(b, l->inner, l->n_inner);
        strbuf_add(b, "]");
    }
    strbuf_add(b, "}");
}

static void add_layers(struct strbuf *b, const struct layer *layers, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            strbuf_add(b, ",");
        spec_layer_json(&layers[i], b);
    }
}

static void add_data(struct strbuf *b, const struct spec *s)
{
    strbuf_addf(b, ",\"data\":{\"format\":\"%s\",\"samples\":%" PRIu64 ",\"shuffle\":%s",
                data_format_names[s->data.format], s->resolved.train_samples,
                s->data.shuffle ? "true" : "false");
    if (s->tokens)
        strbuf_addf(b, ",\"context\":%" PRIu32, s->seq);
    if (s->data.format == DATA_SYNTHETIC)
        strbuf_addf(b, ",\"seed\":%" PRIu64 ",\"noise\":%.9g", s->data.seed, (double)(float)s->data.noise);
    else
        strbuf_addf(b, ",\"crc32c\":\"%08" PRIx32 "\"", s->resolved.data_crc);
    if (s->data.format == DATA_IDX)
        strbuf_addf(b, ",\"scale\":[%.17g,%.17g],\"transpose\":%s", s->data.scale_lo, s->data.scale_hi,
                    s->data.transpose ? "true" : "false");
    if (s->data.has_ignore)
        strbuf_addf(b, ",\"ignore\":%" PRIu32, s->data.ignore);
    strbuf_add(b, "}");
}

static void add_optimizer(struct strbuf *b, const struct spec *s)
{
    const struct optimizer *o = &s->optimizer;

    strbuf_addf(b, ",\"optimizer\":{\"type\":\"%s\",\"lr\":%.17g,", optimizer_names[o->kind], s->lr);
    if (o->kind == OPTIMIZER_ADAMW)
        strbuf_addf(b, "\"betas\":[%.9g,%.9g],\"eps\":%.9g,", (double)o->beta1, (double)o->beta2,
                    (double)o->eps);
    else
        strbuf_addf(b, "\"momentum\":%.9g,", (double)o->momentum);
    strbuf_addf(b, "\"weight_decay\":%.9g", (double)o->weight_decay);
    if (o->no_decay != 0)
        strbuf_addf(b, ",\"no_decay\":%" PRIu32, o->no_decay);
    strbuf_add(b, "}");
}

static void add_schedule(struct strbuf *b, const struct spec *s)
{
    strbuf_addf(b, ",\"schedule\":{\"type\":\"%s\",\"warmup_steps\":%" PRIu64,
                spec_schedule_names[s->schedule.type], s->schedule.warmup_steps);
    if (s->schedule.type == SCHEDULE_STEP)
        strbuf_addf(b, ",\"min_lr_ratio\":%.17g,\"every_steps\":%" PRIu64 ",\"gamma\":%.17g",
                    s->schedule.min_lr_ratio, s->schedule.every_steps, s->schedule.gamma);
    else if (s->schedule.type != SCHEDULE_CONSTANT)
        strbuf_addf(b, ",\"min_lr_ratio\":%.17g,\"total_steps\":%" PRIu64, s->schedule.min_lr_ratio,
                    s->resolved.total_steps);
    strbuf_add(b, "}");
}

void spec_resolved_json(const struct spec *s, struct strbuf *b)
{
    assert(s->resolved.total_steps > 0);
    strbuf_add(b, "{\"model\":[");
    add_layers(b, s->model.layers, s->model.n_layers);
    strbuf_addf(b, "],\"seed\":%" PRIu64, s->seed);
    if (s->from)
        strbuf_addf(b, ",\"from_crc32c\":\"%08" PRIx32 "\"", s->from_crc);
    add_data(b, s);
    strbuf_addf(b,
                ",\"train\":{\"global_batch\":%" PRIu32 ",\"micro_batch\":%" PRIu32 ",\"replicas\":%" PRIu32
                ",\"grad_clip\":%.17g}",
                s->train.global_batch, s->resolved.micro_batch, s->resolved.replicas, s->optimizer.clip);
    add_optimizer(b, s);
    add_schedule(b, s);
    strbuf_add(b, ",\"precision\":\"fp32\",\"method\":\"backprop\"}");
}

/* The hash is FNV-1a. It detects that two specs differ by mistake, but it does not protect against an
 * attacker. */
uint64_t spec_hash(const struct spec *s)
{
    uint64_t h = 0xcbf29ce484222325ull;
    struct strbuf b = {0};

    spec_resolved_json(s, &b);
    for (size_t i = 0; i < b.n; i++)
        h = (h ^ (unsigned char)b.at[i]) * 0x100000001b3ull;
    strbuf_finish(&b);
    return h;
}

static int read_size(const struct json *doc, const char *key, uint32_t *ret, struct err *err)
{
    char path[64];
    uint64_t v = 0;

    snprintf(path, sizeof path, "resolved.train.%s", key);
    int r = json_u64(json_get(json_get(doc, "train"), key), path, &v, err);
    if (r == 0 && (v < 1 || v > SPEC_MAX_DIM))
        r = err_set_at(err, -EINVAL, path, "is %" PRIu64 ", but must be from 1 to %u", v, SPEC_MAX_DIM);
    if (r == 0)
        *ret = (uint32_t)v;
    return r;
}

int spec_resolved_sizes(const char *resolved_json, size_t bytes, struct spec_sizes *ret, struct err *err)
{
    struct spec_sizes sizes = {0};
    struct json *doc;
    int r = json_parse(resolved_json, bytes, "resolved spec", false, &doc, err);

    if (r < 0)
        return r;
    r = read_size(doc, "micro_batch", &sizes.micro_batch, err);
    if (r == 0)
        r = read_size(doc, "replicas", &sizes.replicas, err);
    json_free(doc);
    if (r == 0)
        *ret = sizes;
    return r;
}
