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
#include <string.h>

#include "base/arena.h"
#include "base/json.h"
#include "daemon/spec/spec.h"

/* The JSON text of the layers while it is being written. */
struct layer_text {
    struct strbuf *b;
    /* The model's standard deviations, if the model is of type gpt2 or llama. The JSON text of every layer
     * contains these values, even if the layer does not set them, because the texts of such models have
     * always had them. For any other model, both fields are 0, and the text leaves the values out. */
    float init_std, proj_std;
};

static void add_bias(const struct layer_text *t, bool bias)
{
    strbuf_addf(t->b, ",\"bias\":%s", bias ? "true" : "false");
}

static void add_activation(const struct layer_text *t, enum act act)
{
    strbuf_addf(t->b, ",\"activation\":\"%s\"", act_names[act]);
}

static void add_dropout(const struct layer_text *t, float p)
{
    strbuf_addf(t->b, ",\"dropout\":%.9g", (double)p);
}

static void add_seq(const struct layer_text *t, const struct layer *l)
{
    if (layer_seq(l) > 1)
        strbuf_addf(t->b, ",\"seq\":%" PRIu32, layer_seq(l));
}

static void add_smoothing(const struct layer_text *t, float smoothing)
{
    if (smoothing > 0)
        strbuf_addf(t->b, ",\"label_smoothing\":%.9g", (double)smoothing);
}

static void add_std(const struct layer_text *t, float init_std, float proj_std)
{
    if (init_std > 0 || proj_std > 0)
        strbuf_addf(t->b, ",\"init_std\":%.9g,\"proj_std\":%.9g", (double)init_std, (double)proj_std);
}

static void activation_text(const struct layer_text *t, const struct layer *l)
{
    add_activation(t, l->activation.act);
    add_seq(t, l);
}

static void attention_text(const struct layer_text *t, const struct layer *l)
{
    const struct attention_settings *a = &l->attention;

    add_bias(t, a->bias);
    if (a->dropout > 0)
        add_dropout(t, a->dropout);
    add_seq(t, l);
    strbuf_addf(t->b,
                ",\"heads\":%" PRIu32 ",\"kv_heads\":%" PRIu32 ",\"rope_theta\":%.9g,\"score_dropout\":%.9g",
                a->heads, a->kv_heads, (double)a->rope_theta, (double)a->score_dropout);
    add_std(t, a->init_std, a->proj_std);
}

/* Writes the JSON text of a layer that has no settings, such as a block. */
static void plain_text(const struct layer_text *t, const struct layer *l)
{
    add_seq(t, l);
    add_std(t, t->init_std, t->proj_std);
}

static void dense_text(const struct layer_text *t, const struct layer *l)
{
    add_bias(t, l->dense.bias);
    add_activation(t, l->dense.act);
    add_dropout(t, l->dense.dropout);
    add_seq(t, l);
    add_std(t, l->dense.init_std, t->proj_std);
}

static void dropout_text(const struct layer_text *t, const struct layer *l)
{
    add_dropout(t, l->dropout.p);
    add_seq(t, l);
}

static void embedding_text(const struct layer_text *t, const struct layer *l)
{
    add_seq(t, l);
    strbuf_addf(t->b, ",\"vocab\":%" PRIu32, l->embedding.vocab);
    add_std(t, l->embedding.init_std, t->proj_std);
}

static void label_vectors_text(const struct layer_text *t, const struct layer *l)
{
    strbuf_addf(t->b, ",\"classes\":%" PRIu32 ",\"scale\":%.9g", l->label_vectors.classes,
                (double)l->label_vectors.scale);
}

static void lm_head_text(const struct layer_text *t, const struct layer *l)
{
    add_seq(t, l);
    strbuf_addf(t->b, ",\"vocab\":%" PRIu32, l->lm_head.vocab);
    add_smoothing(t, l->lm_head.smoothing);
    add_std(t, l->lm_head.init_std, t->proj_std);
}

static void mlp_text(const struct layer_text *t, const struct layer *l)
{
    add_bias(t, l->mlp.bias);
    if (!l->mlp.gated)
        add_activation(t, l->mlp.act);
    if (l->mlp.dropout > 0)
        add_dropout(t, l->mlp.dropout);
    add_seq(t, l);
    strbuf_addf(t->b, ",\"hidden\":%" PRIu32 ",\"gated\":%s", l->mlp.hidden, l->mlp.gated ? "true" : "false");
    add_std(t, l->mlp.init_std, l->mlp.proj_std);
}

static void norm_text(const struct layer_text *t, const struct layer *l)
{
    add_bias(t, l->norm.bias);
    add_seq(t, l);
    strbuf_addf(t->b, ",\"rms\":%s,\"eps\":%.9g", l->norm.rms ? "true" : "false", (double)l->norm.eps);
    add_std(t, t->init_std, t->proj_std);
}

/* In a chain model, the JSON text leaves out init_std if its value is the default 0.02. In earlier versions
 * of Tutti, the default was 1, and the text left out the value 1. So the text of an old job is unchanged, and
 * the job can resume from its checkpoint. In a gpt2 model, the text always contains init_std. */
static void positions_text(const struct layer_text *t, const struct layer *l)
{
    bool implied = l->positions.init_std == LAYER_EMBEDDING_STD && t->proj_std <= 0;

    if (l->positions.dropout > 0)
        add_dropout(t, l->positions.dropout);
    add_seq(t, l);
    strbuf_addf(t->b, ",\"positions\":%" PRIu32, l->positions.count);
    if (!implied)
        add_std(t, l->positions.init_std, t->proj_std);
}

static void softmax_xent_text(const struct layer_text *t, const struct layer *l)
{
    add_seq(t, l);
    add_smoothing(t, l->softmax_xent.smoothing);
}

/* The functions that write the settings of each kind of layer. Keys that have always been in the JSON text
 * are written every time, in their old order. Newer keys are written only if their value is not the default,
 * so that the hashes of older jobs stay the same. */
static const struct {
    const struct layer_type *type;
    void (*add)(const struct layer_text *t, const struct layer *l);
} settings_texts[] = {
    {&layer_activation, activation_text},
    {&layer_attention, attention_text},
    {&layer_block, plain_text},
    {&layer_dense, dense_text},
    {&layer_dropout, dropout_text},
    {&layer_embedding, embedding_text},
    {&layer_label_vectors, label_vectors_text},
    {&layer_lm_head, lm_head_text},
    {&layer_mlp, mlp_text},
    {&layer_mse, plain_text},
    {&layer_norm, norm_text},
    {&layer_positions, positions_text},
    {&layer_residual, plain_text},
    {&layer_softmax_xent, softmax_xent_text},
};

static void add_layer_texts(const struct layer_text *t, const struct layer *layers, uint32_t n);

static void add_layer_text(const struct layer_text *t, const struct layer *l)
{
    strbuf_addf(t->b, "{\"kind\":\"%s\",\"in\":%" PRIu32 ",\"out\":%" PRIu32, layer_type(l)->name,
                layer_in(l), layer_out(l));
    for (size_t i = 0; i < sizeof settings_texts / sizeof settings_texts[0]; i++)
        if (settings_texts[i].type == l->type)
            settings_texts[i].add(t, l);
    if (l->tied)
        strbuf_addf(t->b, ",\"tied_to\":%" PRIu32, l->owner);
    if (l->n_inner > 0) {
        strbuf_add(t->b, ",\"inner\":[");
        add_layer_texts(t, l->inner, l->n_inner);
        strbuf_add(t->b, "]");
    }
    strbuf_add(t->b, "}");
}

static void add_layer_texts(const struct layer_text *t, const struct layer *layers, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            strbuf_add(t->b, ",");
        add_layer_text(t, &layers[i]);
    }
}

void spec_layer_json(const struct layer *l, struct strbuf *b)
{
    add_layer_text(&(struct layer_text){.b = b}, l);
}

static void add_model(struct strbuf *b, const struct spec *s)
{
    struct layer_text t = {.b = b};

    if (s->transformer) {
        t.init_std = s->transformer->init_std;
        t.proj_std = transformer_proj_std(s->transformer);
    }
    strbuf_add(b, "{\"model\":[");
    add_layer_texts(&t, s->model.layers, s->model.n_layers);
    strbuf_add(b, "]");
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

    strbuf_addf(b, ",\"optimizer\":{\"type\":\"%s\",\"lr\":%.17g,", optimizer_names[o->kind], s->rate.lr);
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

/* Returns whether the learning rates depend on the number of training steps. */
static bool depends_on_steps(const struct spec_rate *rate)
{
    return rate->type != SCHEDULE_CONSTANT && rate->type != SCHEDULE_STEP;
}

static void add_schedule(struct strbuf *b, const struct spec *s)
{
    strbuf_addf(b, ",\"schedule\":{\"type\":\"%s\",\"warmup_steps\":%" PRIu64,
                spec_schedule_names[s->rate.type], s->rate.warmup_steps);
    if (s->rate.type == SCHEDULE_STEP)
        strbuf_addf(b, ",\"min_lr_ratio\":%.17g,\"every_steps\":%" PRIu64 ",\"gamma\":%.17g",
                    s->rate.min_lr_ratio, s->rate.every_steps, s->rate.gamma);
    else if (depends_on_steps(&s->rate))
        strbuf_addf(b, ",\"min_lr_ratio\":%.17g,\"total_steps\":%" PRIu64, s->rate.min_lr_ratio,
                    s->resolved.total_steps);
    strbuf_add(b, "}");
}

/* Appends the sizes of all phases. Appends nothing for a job with one phase, because its sizes are in the
 * section `train`. */
static void add_phases(struct strbuf *b, const struct spec *s)
{
    if (s->resolved.n_phases == 1)
        return;
    for (uint32_t i = 0; i < s->resolved.n_phases; i++)
        strbuf_addf(b, "%s{\"micro_batch\":%" PRIu32 ",\"replicas\":%" PRIu32 "}",
                    i == 0 ? ",\"phases\":[" : ",", s->resolved.phases[i].micro_batch,
                    s->resolved.phases[i].replicas);
    strbuf_add(b, "]");
}

static void add_rate(struct strbuf *b, const struct spec_rate *rate)
{
    strbuf_addf(b,
                "\"lr\":%.17g,\"schedule\":\"%s\",\"warmup_steps\":%" PRIu64
                ",\"min_lr_ratio\":%.17g,\"every_steps\":%" PRIu64 ",\"gamma\":%.17g",
                rate->lr, spec_schedule_names[rate->type], rate->warmup_steps, rate->min_lr_ratio,
                rate->every_steps, rate->gamma);
}

static void add_part(struct strbuf *b, const struct spec_part *p)
{
    const struct optimizer *o = &p->optimizer;

    strbuf_addf(b, "{\"epochs\":%" PRIu64 ",\"steps\":%" PRIu64 ",\"global_batch\":%" PRIu32 ",", p->epochs,
                p->steps, p->global_batch);
    strbuf_addf(b,
                "\"optimizer\":\"%s\",\"beta1\":%.9g,\"beta2\":%.9g,\"eps\":%.9g,\"momentum\":%.9g,"
                "\"weight_decay\":%.9g,\"no_decay\":%" PRIu32 ",",
                optimizer_names[o->kind], (double)o->beta1, (double)o->beta2, (double)o->eps,
                (double)o->momentum, (double)o->weight_decay, o->no_decay);
    add_rate(b, &p->rate);
    strbuf_add(b, "}");
}

static void add_sil(struct strbuf *b, const struct spec_sil *sil)
{
    strbuf_addf(b, ",\"sil\":{\"kappa\":%.9g,\"recovery_epochs\":%" PRIu64 ",\"cuts\":[",
                (double)(float)sil->kappa, sil->recovery_epochs);
    for (uint32_t i = 1; i < sil->partitions; i++)
        strbuf_addf(b, "%s%" PRIu32, i > 1 ? "," : "", sil->cuts[i]);
    strbuf_addf(b, "]%s,\"each\":[", sil->concurrent ? ",\"concurrent\":true" : "");
    for (uint32_t i = 0; i < sil->partitions; i++) {
        strbuf_add(b, i > 0 ? "," : "");
        add_part(b, &sil->each[i]);
    }
    strbuf_add(b, "]}");
}

/* local.resident_steps is not written, because the results of training do not depend on it. */
static void add_local(struct strbuf *b, const struct spec *s)
{
    const struct spec_local *local = &s->local;

    strbuf_addf(b, ",\"local\":{\"scheme\":\"%s\",\"head_hidden\":%" PRIu32 ",\"blocks\":[",
                local_scheme_names[local->scheme], local->head_hidden);
    for (uint32_t i = 0; i < local->n_blocks; i++)
        strbuf_addf(b, "%s[%" PRIu32 ",%" PRIu32 "]", i > 0 ? "," : "", local->blocks[i].first,
                    local->blocks[i].last);
    strbuf_add(b, "],\"each\":[");
    for (uint32_t i = 0; i < local->n_blocks; i++) {
        strbuf_add(b, i > 0 ? ",{" : "{");
        add_rate(b, &local->rates[i]);
        if (depends_on_steps(&local->rates[i]))
            strbuf_addf(b, ",\"total_steps\":%" PRIu64, s->resolved.total_steps);
        strbuf_add(b, "}");
    }
    strbuf_add(b, "]}");
}

void spec_resolved_json(const struct spec *s, struct strbuf *b)
{
    const struct spec_sizes *first = &s->resolved.phases[0];

    assert(s->resolved.total_steps > 0);
    add_model(b, s);
    strbuf_addf(b, ",\"seed\":%" PRIu64, s->seed);
    if (s->from)
        strbuf_addf(b, ",\"from_crc32c\":\"%08" PRIx32 "\"", s->from_crc);
    add_data(b, s);
    strbuf_addf(b,
                ",\"train\":{\"global_batch\":%" PRIu32 ",\"micro_batch\":%" PRIu32 ",\"replicas\":%" PRIu32
                ",\"grad_clip\":%.17g",
                s->train.global_batch, first->micro_batch, first->replicas, s->optimizer.clip);
    add_phases(b, s);
    strbuf_add(b, "}");
    add_optimizer(b, s);
    add_schedule(b, s);
    strbuf_addf(b, ",\"precision\":\"%s\"", spec_precision_names[s->precision]);
    if (s->precision == PRECISION_FP16)
        strbuf_addf(b, ",\"loss_scale\":{\"start\":%.9g,\"growth_steps\":%" PRIu32 "}",
                    (double)s->train.loss_scale.start, s->train.loss_scale.growth_steps);
    strbuf_addf(b, ",\"method\":\"%s\"", method_names[s->method]);
    if (s->method == METHOD_sil)
        add_sil(b, &s->sil);
    if (s->method == METHOD_local)
        add_local(b, s);
    strbuf_add(b, "}");
}

/* The hash is FNV-1a. It detects that two specs differ by mistake, but it does not detect an attack. */
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

static int read_size(const struct json *node, const char *where, const char *key, uint32_t *ret,
                     struct err *err)
{
    char path[96];
    uint64_t v = 0;

    snprintf(path, sizeof path, "%s.%s", where, key);
    int r = json_u64(json_get(node, key), path, &v, err);
    if (r == 0 && (v < 1 || v > SPEC_MAX_DIM))
        r = err_set_at(err, -EINVAL, path, "is %" PRIu64 ", but must be from 1 to %u", v, SPEC_MAX_DIM);
    if (r == 0)
        *ret = (uint32_t)v;
    return r;
}

static int read_sizes(const struct json *node, const char *where, struct spec_sizes *ret, struct err *err)
{
    int r = read_size(node, where, "micro_batch", &ret->micro_batch, err);

    return r < 0 ? r : read_size(node, where, "replicas", &ret->replicas, err);
}

static int read_phases(const struct json *train, uint32_t n_phases, struct spec_sizes *ret, struct err *err)
{
    const struct json *list = json_get(train, "phases");
    char where[64];
    int r;

    r = read_sizes(train, "resolved.train", ret, err);
    if (r < 0 || n_phases == 1)
        return r;
    if (list == NULL || json_type(list) != JSON_ARRAY || json_array_size(list) != n_phases) {
        ret[0] = (struct spec_sizes){0}; /* of another job */
        return 0;
    }
    for (uint32_t i = 0; i < n_phases && r == 0; i++) {
        json_path_index(where, sizeof where, "resolved.train.phases", i);
        r = read_sizes(json_array_at(list, i), where, &ret[i], err);
    }
    return r;
}

int spec_resolved_sizes(const char *resolved_json, size_t bytes, uint32_t n_phases, struct spec_sizes *ret,
                        struct err *err)
{
    struct spec_sizes *sizes;
    struct json *doc;
    int r = json_parse(resolved_json, bytes, "resolved spec", false, &doc, err);

    if (r < 0)
        return r;
    sizes = xcalloc(n_phases, sizeof *sizes);
    r = read_phases(json_get(doc, "train"), n_phases, sizes, err);
    json_free(doc);
    if (r == 0)
        memcpy(ret, sizes, n_phases * sizeof *ret);
    xfree(sizes);
    return r;
}

bool spec_resolved_precision(const char *resolved_json, size_t bytes, enum spec_precision *ret)
{
    struct json *doc;
    const char *name = "";
    int i = 0;

    if (json_parse(resolved_json, bytes, "resolved spec", false, &doc, NULL) < 0)
        return false;
    if (json_string(json_get(doc, "precision"), "precision", &name, NULL) < 0)
        name = "";
    while (spec_precision_names[i] && strcmp(spec_precision_names[i], name) != 0)
        i++;
    json_free(doc);
    if (i == PRECISION_COUNT)
        return false;
    *ret = (enum spec_precision)i;
    return true;
}
