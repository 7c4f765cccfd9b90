/* Tests how gpt2 and llama models are created from a spec: the names and keys that differ between the two,
 * initial values by their distribution and never drawn twice, the parameters of a tied head, sizes and
 * shapes, and where dropout applies. tests/cli/cases_transformers.py compares the results of such models with
 * PyTorch.
 *
 * All values are functions of the seed, so a test of them always passes or always fails.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/vec.h"
#include "daemon/spec/spec.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- models ---- */

static struct spec *parse(const char *model, uint64_t seed)
{
    struct spec *s = NULL;
    struct err err;
    char text[1024];

    snprintf(text, sizeof text,
             "{\"schema\":\"job/v1\",\"model\":%s,\"init\":{\"seed\":%" PRIu64 "},"
             "\"data\":{\"format\":\"tokens\",\"train\":\"tokens.bin\"},"
             "\"train\":{\"steps\":1,\"global_batch\":1},\"optimizer\":{\"type\":\"sgd\",\"lr\":1}}",
             model, seed);
    if (spec_parse(text, strlen(text), "job.json", &(struct spec_options){.base_dir = "/base"}, &s, &err) < 0)
        fail_msg("%s: refused: %s: %s", text, err.path, err.msg);
    return s;
}

static const struct layer *last_layer(const struct spec *s)
{
    return &s->model.layers[s->model.n_layers - 1];
}

static const struct layer *find_type(const struct layer *at, uint32_t n, const struct layer_type *type)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct layer *inside = find_type(at[i].inner, at[i].n_inner, type);
        if (at[i].type == type || inside)
            return at[i].type == type ? &at[i] : inside;
    }
    return NULL;
}

/* Every parameter of the model with its layer. `values` are the layer's W, NULL unless `draws`. */
static void for_params(const struct spec *s, bool draws,
                       void (*fn)(void *ctx, const struct layer *l, const struct layer_param *p,
                                  const float *values),
                       void *ctx)
{
    for (uint32_t i = 0; i < s->model.n_layers; i++) {
        const struct layer *l = &s->model.layers[i];
        struct layer_param params[16];
        struct layer_sizes size;
        uint32_t n = layer_type(l)->params(l, NULL);

        assert_in_range(n, 0, COUNT(params));
        layer_type(l)->params(l, params);
        layer_type(l)->sizes(l, 1, &size);
        float *w = draws && n > 0 ? malloc(size.w) : NULL;
        if (w)
            layer_init(l, s->seed, w);
        for (uint32_t k = 0; k < n; k++)
            fn(ctx, l, &params[k], w ? w + params[k].offset / sizeof *w : NULL);
        free(w);
    }
}

#define SHAPE_OF(layers) "\"layers\":" layers ",\"width\":64,\"heads\":4,\"vocab\":300,\"context\":32"
#define SHAPE            SHAPE_OF("3")
#define CONFIG                                                                                               \
    "\"vocab_size\":300,\"num_hidden_layers\":3,\"hidden_size\":64,"                                         \
    "\"num_attention_heads\":4"

static const struct beginning {
    const char *model;
    double std, proj_std; /* of weights; of those that write to the residual */
} beginnings[] = {
    {"{\"type\":\"gpt2\"," SHAPE "}", 0.02, 0.02 / 2.449489742783178},
    {"{\"type\":\"gpt2\"," SHAPE_OF("5") ",\"tied\":false,\"init_std\":0.3}", 0.3, 0.3 / 3.1622776601683795},
    {"{\"type\":\"llama\"," SHAPE "}", 0.02, 0.02},
    {"{\"type\":\"llama\"," SHAPE ",\"kv_heads\":2,\"hidden\":96,\"tied\":true,\"init_std\":0.3}", 0.3, 0.3},
    {"{\"config\":{\"model_type\":\"gpt2\"," CONFIG ",\"initializer_range\":0.05},\"context\":32}", 0.05,
     0.05 / 2.449489742783178},
    {"{\"config\":{\"model_type\":\"llama\"," CONFIG ",\"intermediate_size\":96},\"context\":32}", 0.02,
     0.02},
};

/* ---- names and keys ---- */

static int compare_words(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

struct words {
    VEC(uint64_t) all;
};

static void check_differ(struct words *w, const char *what, const char *model)
{
    qsort(w->all.at, w->all.n, sizeof w->all.at[0], compare_words);
    for (size_t i = 1; i < w->all.n; i++)
        if (w->all.at[i] == w->all.at[i - 1])
            fail_msg("%s: a %s is there twice: %#" PRIx64, model, what, w->all.at[i]);
    vec_free(&w->all);
}

static void collect_keys(const struct layer *at, uint32_t n, struct words *ret)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_true(at[i].key < 1u << 24); /* above is the purpose: base/rng.h */
        vec_push(&ret->all, at[i].key);
        collect_keys(at[i].inner, at[i].n_inner, ret);
    }
}

static void check_keys(const char *model, size_t want)
{
    struct spec *s = parse(model, 0);
    struct words keys = {0};

    collect_keys(s->model.layers, s->model.n_layers, &keys);
    assert_int_equal(keys.all.n, want);
    check_differ(&keys, "key", model);
    spec_destroy(s);
}

/* A block, two residuals, in each a norm and a part. */
static void test_no_two_layers_have_a_key(void **state)
{
    (void)state;
    check_keys("{\"type\":\"gpt2\"," SHAPE "}", 4 + 3 * 7);
    check_keys("{\"type\":\"llama\"," SHAPE "}", 3 + 3 * 7);
    check_keys("{\"type\":\"gpt2\",\"layers\":8000,\"width\":2,\"heads\":1,\"context\":2}", 4 + 8000 * 7);
    check_keys("{\"type\":\"llama\",\"layers\":8000,\"width\":2,\"heads\":1,\"context\":2}", 3 + 8000 * 7);
}

struct names {
    VEC(char *) all;
};

/* As in checkpoints. */
static void collect_name(void *ctx, const struct layer *l, const struct layer_param *p, const float *values)
{
    struct names *names = ctx;
    char text[96];

    (void)values;
    snprintf(text, sizeof text, "layers.%" PRIu32 ".%s", l->id, p->name);
    vec_push(&names->all, strdup(text));
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void test_no_two_parameters_have_a_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(beginnings); i++) {
        struct spec *s = parse(beginnings[i].model, 0);
        struct names names = {0};

        for_params(s, false, collect_name, &names);
        assert_true(names.all.n > 0);
        qsort(names.all.at, names.all.n, sizeof names.all.at[0], compare_names);
        for (size_t k = 1; k < names.all.n; k++)
            assert_string_not_equal(names.all.at[k], names.all.at[k - 1]);
        for (size_t k = 0; k < names.all.n; k++)
            free(names.all.at[k]);
        vec_free(&names.all);
        spec_destroy(s);
    }
}

/* ---- initial values ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static void check_constant(const struct layer_param *p, const float *values, float want)
{
    for (uint64_t i = 0; i < p->count; i++)
        if (values[i] != want)
            fail_msg("%s[%" PRIu64 "] is %g, not %g", p->name, i, (double)values[i], (double)want);
}

/* Within five deviations of what n values of a normal distribution have. */
static void check_near(const char *what, const char *name, double found, double want, double deviation)
{
    if (!(fabs(found - want) <= 5 * deviation))
        fail_msg("%s of %s is %g, not %g", what, name, found, want);
}

static void check_normal(const struct layer_param *p, const float *values, double std)
{
    double n = (double)p->count, sum = 0, squares = 0, within[2] = {0};
    const double share[2] = {0.6826894921, 0.9544997361}; /* of values within 1 and 2 deviations */

    for (uint64_t i = 0; i < p->count; i++) {
        double z = (double)values[i] / std;
        sum += z;
        squares += z * z;
        for (int k = 0; k < 2; k++)
            within[k] += fabs(z) < k + 1;
    }
    check_near("mean", p->name, sum / n, 0, 1 / sqrt(n));
    check_near("deviation, to what it should be,", p->name, sqrt(squares / n), 1, 1 / sqrt(2 * n));
    for (int k = 0; k < 2; k++)
        check_near("share within deviations", p->name, within[k] / n, share[k],
                   sqrt(share[k] * (1 - share[k]) / n));
}

static void check_beginning(void *ctx, const struct layer *l, const struct layer_param *p,
                            const float *values)
{
    const struct beginning *b = ctx;

    if (ends_with(p->name, "bias"))
        check_constant(p, values, 0);
    else if (l->type == &layer_norm || ends_with(p->name, "ln_1.weight") || ends_with(p->name, "ln_2.weight"))
        check_constant(p, values, 1);
    else
        check_normal(p, values, ends_with(p->name, ".proj.weight") ? b->proj_std : b->std);
}

static void test_values_begin_as_documented(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(beginnings); i++) {
        struct beginning b = beginnings[i];
        struct spec *s = parse(b.model, 7);
        for_params(s, true, check_beginning, &b);
        spec_destroy(s);
    }
}

/* Returns element `at` of the normally distributed numbers that a layer draws, counted from the first of the
 * layer's own parameters: the Box-Muller transform of Philox output. */
static float drawn(uint64_t seed, uint32_t key, uint64_t at)
{
    struct rng_block b = rng_philox(seed, (uint32_t)(at / 4), 0, rng_word2(RNG_INIT, key), 0);
    double u = 1 - (double)rng_unit(b.v[at & 2]), v = (double)rng_unit(b.v[(at & 2) + 1]);
    double r = sqrt(-2 * log(u)), angle = 2 * 3.14159265358979323846 * v;
    return (float)(at & 1 ? r * sin(angle) : r * cos(angle));
}

static void check_drawn(void *ctx, const struct layer *l, const struct layer_param *p, const float *values)
{
    static const struct {
        const char *name;
        /* index of the parameter's layer in the block: 0 is the block itself, followed by residual, norm,
         * attention, residual, norm, mlp */
        uint32_t n;
        uint64_t first;
        float std;
    } want[] = {
        {"attn.qkv.weight", 3, 0, 0.25f},
        {"attn.proj.weight", 3, 3 * 64 * 64 + 3 * 64, 0.125f},
        {"mlp.fc.weight", 6, 0, 0.25f},
        {"mlp.proj.weight", 6, 256 * 64 + 256, 0.125f},
    };
    uint32_t *found = ctx;

    for (size_t i = 0; i < COUNT(want); i++) {
        if (l->type != &layer_block || strcmp(p->name, want[i].name) != 0)
            continue;
        for (uint64_t k = 0; k < p->count; k++)
            assert_true(values[k] == drawn(7, want[i].n << 14 | l->id, want[i].first + k) * want[i].std);
        ++*found;
    }
}

#define EXACT SHAPE_OF("2") ",\"init_std\":0.25,\"tied\":false}" /* with proj_std powers of two */

/* The same seed, the same weights, also of another version. */
static void test_values_are_of_the_key_of_their_layer(void **state)
{
    struct spec *s = parse("{\"type\":\"gpt2\"," EXACT, 7);
    uint32_t found = 0;

    (void)state;
    for_params(s, true, check_drawn, &found);
    assert_int_equal(found, 2 * 4);
    spec_destroy(s);
}

struct pairs {
    struct words words;
    float std, proj_std;
};

/* A pair is what two uniform numbers of 24 bits become: no two of some 10^5 are the same by chance. */
static void collect_pairs(void *ctx, const struct layer *l, const struct layer_param *p, const float *values)
{
    struct pairs *d = ctx;
    float std = ends_with(p->name, ".proj.weight") ? d->proj_std : d->std;

    if (l->type == &layer_norm || p->rank != 2)
        return;
    for (uint64_t i = 0; i + 1 < p->count; i += 2) {
        float z[2] = {values[i] / std, values[i + 1] / std}; /* exact: powers of two */
        uint64_t word;
        memcpy(&word, z, sizeof word);
        vec_push(&d->words.all, word);
    }
}

/* Not in two parameters, blocks or seeds, nor in another scale. */
static void test_no_value_is_drawn_twice(void **state)
{
    static const char *const models[] = {"{\"type\":\"gpt2\"," EXACT, "{\"type\":\"llama\"," EXACT};
    static const uint64_t seeds[] = {1, 2, UINT64_C(1) << 32 | 1};

    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        struct pairs d = {.std = 0.25f, .proj_std = i == 0 ? 0.125f : 0.25f};
        for (size_t k = 0; k < COUNT(seeds); k++) {
            struct spec *s = parse(models[i], seeds[k]);
            for_params(s, true, collect_pairs, &d);
            spec_destroy(s);
        }
        assert_true(d.words.all.n > 150000);
        check_differ(&d.words, "pair of values", models[i]);
    }
}

/* ---- parameters ---- */

static void test_only_an_untied_head_has_weights(void **state)
{
    static const struct {
        const char *model;
        bool tied;
    } models[] = {
        {"{\"type\":\"gpt2\"," SHAPE "}", true},
        {"{\"type\":\"gpt2\"," SHAPE ",\"tied\":false}", false},
        {"{\"type\":\"llama\"," SHAPE "}", false},
        {"{\"type\":\"llama\"," SHAPE ",\"tied\":true}", true},
        {"{\"config\":{\"model_type\":\"gpt2\"," CONFIG ",\"tie_word_embeddings\":false}}", false},
        {"{\"config\":{\"model_type\":\"llama\"," CONFIG ",\"tie_word_embeddings\":true}}", true},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        struct spec *s = parse(models[i].model, 0);
        const struct layer *head = last_layer(s);
        struct layer_param p;

        assert_ptr_equal(head->type, &layer_lm_head);
        assert_int_equal(head->tied, models[i].tied);
        assert_int_equal(layer_type(head)->params(head, NULL), models[i].tied ? 0 : 1);
        if (models[i].tied) {
            assert_ptr_equal(s->model.layers[head->owner].type, &layer_embedding);
        } else {
            layer_type(head)->params(head, &p);
            assert_string_equal(p.name, "weight");
            assert_int_equal(p.rank, 2);
            assert_true(p.shape[0] == 300 && p.shape[1] == 64);
        }
        spec_destroy(s);
    }
}

static void add_count(void *ctx, const struct layer *l, const struct layer_param *p, const float *values)
{
    (void)l;
    (void)values;
    *(uint64_t *)ctx += p->count;
}

/* As published; by their own names: OpenAI's GPT-2 and GPT-3, llama2.c, TinyLlama, OpenLLaMA, Llama. */
static const struct published {
    enum transformer_arch arch;
    const char *size;
    uint64_t layers, width, heads, kv_heads, hidden;
    bool tied;
    uint64_t parameters; /* 0: nobody has published it for this vocabulary */
} published[] = {
    {ARCH_GPT2, "124M", 12, 768, 12, 12, 3072, true, 124439808},
    {ARCH_GPT2, "355M", 24, 1024, 16, 16, 4096, true, 354823168},
    {ARCH_GPT2, "774M", 36, 1280, 20, 20, 5120, true, 774030080},
    {ARCH_GPT2, "1.5B", 48, 1600, 25, 25, 6400, true, 1557611200},
    {ARCH_GPT2, "2.7B", 32, 2560, 32, 32, 10240, true, 0},
    {ARCH_GPT2, "6.7B", 32, 4096, 32, 32, 16384, true, 0},
    {ARCH_GPT2, "10B", 48, 4096, 32, 32, 16384, true, 0},
    {ARCH_LLAMA, "15M", 6, 288, 6, 6, 768, true, 15191712},
    {ARCH_LLAMA, "42M", 8, 512, 8, 8, 1376, true, 0},
    {ARCH_LLAMA, "110M", 12, 768, 12, 12, 2048, true, 0},
    {ARCH_LLAMA, "1.1B", 22, 2048, 32, 4, 5632, false, 1100048384},
    {ARCH_LLAMA, "3B", 26, 3200, 32, 32, 8640, false, 3426473600},
    {ARCH_LLAMA, "7B", 32, 4096, 32, 32, 11008, false, 6738415616},
};

/* Matrices, biases, norms. */
static uint64_t parameters_of(const struct published *m)
{
    const uint64_t w = m->width, kv = w / m->heads * m->kv_heads;

    if (m->arch == ARCH_GPT2)
        return 50257 * w + 1024 * w + m->layers * (12 * w * w + (3 + 1 + 4 + 1) * w + 2 * 2 * w) + 2 * w;
    return (m->tied ? 1 : 2) * 32000 * w + m->layers * (2 * w * w + 2 * w * kv + 3 * w * m->hidden + 2 * w) +
           w;
}

static void check_published(const struct published *m)
{
    char model[128];
    uint64_t found = 0;
    snprintf(model, sizeof model, "{\"type\":\"%s\",\"size\":\"%s\"}", transformer_arch_names[m->arch],
             m->size);
    struct spec *s = parse(model, 0);
    const struct transformer *t = s->transformer;

    assert_true(t->arch == m->arch && t->tied == m->tied);
    assert_true(t->layers == m->layers && t->width == m->width && t->hidden == m->hidden);
    assert_true(t->heads == m->heads && t->kv_heads == m->kv_heads);
    for_params(s, false, add_count, &found);
    if (found != parameters_of(m) || (m->parameters && found != m->parameters))
        fail_msg("%s: %" PRIu64 " parameters, not %" PRIu64, model, found, parameters_of(m));
    spec_destroy(s);
}

static void test_sizes_are_the_published_ones(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(published); i++)
        check_published(&published[i]);
}

static void check_hidden(const char *type, uint32_t width, uint32_t want)
{
    char model[128];
    snprintf(model, sizeof model, "{\"type\":\"%s\",\"layers\":1,\"width\":%" PRIu32 ",\"heads\":1}", type,
             width);
    struct spec *s = parse(model, 0);

    assert_int_equal(s->transformer->hidden, want);
    spec_destroy(s);
}

static void test_hidden_is_the_usual_width(void **state)
{
    (void)state;
    check_hidden("gpt2", 50, 200);
    check_hidden("llama", 288, 768); /* 8/3, nothing to round */
    check_hidden("llama", 290, 1024);
    check_hidden("llama", 4096, 11008);
}

/* ---- dropout ---- */

struct drops {
    float embd, scores, resid;
};

static void check_drops(const char *model, struct drops want)
{
    struct spec *s = parse(model, 0);
    const struct layer *at = s->model.layers, *positions = find_type(at, s->model.n_layers, &layer_positions),
                       *attention = find_type(at, s->model.n_layers, &layer_attention),
                       *mlp = find_type(at, s->model.n_layers, &layer_mlp);

    assert_int_equal(positions != NULL, s->transformer->arch == ARCH_GPT2);
    assert_true(!positions || positions->positions.dropout == want.embd);
    assert_true(attention->attention.score_dropout == want.scores);
    assert_true(attention->attention.dropout == want.resid);
    assert_true(mlp->mlp.dropout == want.resid);
    spec_destroy(s);
}

static void test_dropout_is_where_it_belongs(void **state)
{
    (void)state;
    check_drops("{\"type\":\"gpt2\"," SHAPE "}", (struct drops){0, 0, 0});
    check_drops("{\"type\":\"gpt2\"," SHAPE ",\"dropout\":0.25}", (struct drops){0.25f, 0.25f, 0.25f});
    check_drops("{\"type\":\"llama\"," SHAPE ",\"dropout\":0.25}", (struct drops){0, 0.25f, 0.25f});
    check_drops("{\"config\":{\"model_type\":\"gpt2\"," CONFIG
                ",\"embd_pdrop\":0.5,\"attn_pdrop\":0.25,\"resid_pdrop\":0.125}}",
                (struct drops){0.5f, 0.25f, 0.125f});
    check_drops("{\"config\":{\"model_type\":\"llama\"," CONFIG ",\"attention_dropout\":0.25}}",
                (struct drops){0, 0.25f, 0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_two_layers_have_a_key),
        cmocka_unit_test(test_no_two_parameters_have_a_name),
        cmocka_unit_test(test_values_begin_as_documented),
        cmocka_unit_test(test_values_are_of_the_key_of_their_layer),
        cmocka_unit_test(test_no_value_is_drawn_twice),
        cmocka_unit_test(test_only_an_untied_head_has_weights),
        cmocka_unit_test(test_sizes_are_the_published_ones),
        cmocka_unit_test(test_hidden_is_the_usual_width),
        cmocka_unit_test(test_dropout_is_where_it_belongs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
