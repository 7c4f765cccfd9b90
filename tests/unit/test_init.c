/* Tests initial values against the table in docs/job.md: the initial value of each parameter of each layer,
 * the effect of the keys of `init` and of a layer's own `init`, which of these keys the resolved spec
 * contains, and which values are refused. test_layers and test_transformer test that the drawn numbers have
 * these distributions. */
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "daemon/spec/spec.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static int try_parse(const char *model, const char *init, struct spec **ret, struct err *err)
{
    bool tokens = strstr(model, "tokens") || strstr(model, "context");
    char text[4096];

    snprintf(text, sizeof text,
             "{\"schema\":\"job/v1\",\"model\":%s,\"init\":{%s},\"data\":%s,"
             "\"train\":{\"steps\":1,\"global_batch\":1},\"optimizer\":{\"type\":\"sgd\",\"lr\":1}}",
             model, init,
             tokens ? "{\"format\":\"tokens\",\"train\":\"t.bin\"}"
                    : "{\"format\":\"synthetic\",\"samples\":8}");
    return spec_parse(text, strlen(text), "job.json", &(struct spec_options){.base_dir = "/base"}, ret, err);
}

static struct spec *parse(const char *model, const char *init)
{
    struct spec *s = NULL;
    struct err err;

    if (try_parse(model, init, &s, &err) < 0)
        fail_msg("%s with init {%s}: refused: %s: %s", model, init, err.path, err.msg);
    return s;
}

/* The parameter "LAYER.NAME". */
static struct layer_param find(const struct spec *s, const char *name)
{
    struct layer_param params[32];
    unsigned layer;
    int n;

    assert_int_equal(sscanf(name, "%u.%n", &layer, &n), 1);
    assert_true(layer < s->model.n_layers);
    const struct layer *l = &s->model.layers[layer];
    uint32_t count = layer_type(l)->params(l, NULL);
    assert_true(count <= COUNT(params));
    layer_type(l)->params(l, params);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(params[i].name, name + n) == 0)
            return params[i];
    fail_msg("there is no parameter %s", name);
    return params[0];
}

/* What is expected: U(fan in), N(std), ones or zeros. */
struct want {
    const char *name;
    enum param_init init;
    double number; /* fan-in or standard deviation */
};
#define UNIFORM(name, fan_in)                                                                                \
    {                                                                                                        \
        name, INIT_UNIFORM_FAN_IN, fan_in                                                                    \
    }
#define NORMAL(name, std)                                                                                    \
    {                                                                                                        \
        name, INIT_NORMAL, std                                                                               \
    }
#define ONES(name)                                                                                           \
    {                                                                                                        \
        name, INIT_ONES, 0                                                                                   \
    }
#define ZEROS(name)                                                                                          \
    {                                                                                                        \
        name, INIT_ZEROS, 0                                                                                  \
    }

static void check(const char *model, const char *init, const struct want *want, size_t n)
{
    struct spec *s = parse(model, init);

    for (size_t i = 0; i < n; i++) {
        const struct layer_param p = find(s, want[i].name);
        bool good = p.init == want[i].init;
        if (p.init == INIT_UNIFORM_FAN_IN)
            good = good && p.fan_in == (uint32_t)want[i].number;
        if (p.init == INIT_NORMAL)
            good = good && p.std == (float)want[i].number;
        if (!good)
            fail_msg("init {%s}: %s begins by rule %d, fan-in %" PRIu32 ", std %g; expected rule %d, %g",
                     init, want[i].name, (int)p.init, p.fan_in, (double)p.std, (int)want[i].init,
                     want[i].number);
    }
    spec_destroy(s);
}
#define CHECK(model, init, ...)                                                                              \
    do {                                                                                                     \
        const struct want want[] = {__VA_ARGS__};                                                            \
        check(model, init, want, COUNT(want));                                                               \
    } while (0)

/* Every kind of layer that has parameters. */
#define CHAIN                                                                                                \
    "{\"type\":\"chain\",\"input\":{\"tokens\":8,\"vocab\":32},\"layers\":["                                 \
    "{\"op\":\"embedding\",\"out\":16},{\"op\":\"positions\"},"                                              \
    "{\"op\":\"layernorm\"},{\"op\":\"attention\",\"heads\":2},{\"op\":\"mlp\",\"hidden\":64},"              \
    "{\"op\":\"swiglu\",\"hidden\":48,\"bias\":true},{\"op\":\"linear\",\"out\":20},{\"op\":\"lm_head\"}]}"

static void test_chain_begins_as_documented(void **state)
{
    (void)state;
    CHECK(CHAIN, "\"seed\":1", NORMAL("0.weight", 0.02), NORMAL("1.weight", 0.02), ONES("2.weight"),
          ZEROS("2.bias"), UNIFORM("3.qkv.weight", 16), UNIFORM("3.qkv.bias", 16),
          UNIFORM("3.proj.weight", 16), UNIFORM("3.proj.bias", 16), UNIFORM("4.fc.weight", 16),
          UNIFORM("4.fc.bias", 16), UNIFORM("4.proj.weight", 64), UNIFORM("4.proj.bias", 64),
          UNIFORM("5.fc.weight", 16), UNIFORM("5.proj.weight", 48), UNIFORM("6.weight", 16),
          UNIFORM("6.bias", 16), UNIFORM("7.weight", 20));
}

static void test_init_changes_every_layer_of_a_chain(void **state)
{
    (void)state;
    CHECK(CHAIN, "\"std\":0.1", NORMAL("0.weight", 0.1), NORMAL("1.weight", 0.1), ONES("2.weight"),
          ZEROS("2.bias"), NORMAL("3.qkv.weight", 0.1), ZEROS("3.qkv.bias"), NORMAL("3.proj.weight", 0.1),
          ZEROS("3.proj.bias"), NORMAL("4.fc.weight", 0.1), NORMAL("4.proj.weight", 0.1),
          NORMAL("5.fc.weight", 0.1), ZEROS("5.fc.bias"), NORMAL("6.weight", 0.1), ZEROS("6.bias"),
          NORMAL("7.weight", 0.1));
    CHECK(CHAIN, "\"std\":0.1,\"proj_std\":0.05,\"embedding_std\":0.3", NORMAL("0.weight", 0.3),
          NORMAL("1.weight", 0.3), NORMAL("3.qkv.weight", 0.1), NORMAL("3.proj.weight", 0.05),
          NORMAL("4.proj.weight", 0.05), NORMAL("5.proj.weight", 0.05), NORMAL("7.weight", 0.1));
    CHECK(CHAIN, "\"proj_std\":0.05", NORMAL("0.weight", 0.02), UNIFORM("3.qkv.weight", 16),
          UNIFORM("3.qkv.bias", 16), NORMAL("3.proj.weight", 0.05), ZEROS("3.proj.bias"),
          UNIFORM("6.weight", 16));
    CHECK(CHAIN, "\"embedding_std\":1", NORMAL("0.weight", 1), NORMAL("1.weight", 1),
          UNIFORM("3.qkv.weight", 16));
}

static void test_init_of_a_layer_goes_before(void **state)
{
    static const char chain[] = "{\"type\":\"chain\",\"input\":{\"tokens\":8,\"vocab\":32},\"layers\":["
                                "{\"op\":\"embedding\",\"out\":16,\"init\":{\"std\":0.5}},{\"op\":"
                                "\"positions\",\"init\":{\"std\":1}},"
                                "{\"residual\":[{\"op\":\"attention\",\"heads\":2,\"init\":{\"std\":0.4}}]},"
                                "{\"op\":\"mlp\",\"hidden\":64,\"init\":{\"proj_std\":0.7}},{\"op\":\"mlp\","
                                "\"hidden\":64,\"init\":{}},"
                                "{\"op\":\"lm_head\",\"init\":{\"std\":0.6}}]}";

    (void)state;
    CHECK(chain, "", NORMAL("0.weight", 0.5), NORMAL("1.weight", 1), NORMAL("2.0.qkv.weight", 0.4),
          NORMAL("2.0.proj.weight", 0.4), ZEROS("2.0.proj.bias"), UNIFORM("3.fc.weight", 16),
          NORMAL("3.proj.weight", 0.7), UNIFORM("4.fc.weight", 16), UNIFORM("4.proj.weight", 64),
          NORMAL("5.weight", 0.6));
    CHECK(chain, "\"std\":0.1,\"proj_std\":0.2,\"embedding_std\":0.3", NORMAL("0.weight", 0.5),
          NORMAL("1.weight", 1), NORMAL("2.0.proj.weight", 0.4), NORMAL("3.fc.weight", 0.1),
          NORMAL("3.proj.weight", 0.7), NORMAL("4.fc.weight", 0.1), NORMAL("4.proj.weight", 0.2),
          NORMAL("5.weight", 0.6));
}

static void test_mlp_begins_as_documented(void **state)
{
    static const char mlp[] = "{\"type\":\"mlp\",\"input\":8,\"hidden\":[16],\"classes\":3}";

    (void)state;
    CHECK(mlp, "", UNIFORM("0.weight", 8), UNIFORM("0.bias", 8), UNIFORM("1.weight", 16),
          UNIFORM("1.bias", 16));
    CHECK(mlp, "\"std\":0.1", NORMAL("0.weight", 0.1), ZEROS("0.bias"), NORMAL("1.weight", 0.1),
          ZEROS("1.bias"));
}

#define SHAPE "\"layers\":2,\"width\":16,\"heads\":2,\"vocab\":32,\"context\":8"

static void test_transformers_begin_as_documented(void **state)
{
    static const char gpt2[] = "{\"type\":\"gpt2\"," SHAPE "}", llama[] = "{\"type\":\"llama\"," SHAPE "}";

    (void)state;
    CHECK(gpt2, "", NORMAL("0.weight", 0.02), NORMAL("1.weight", 0.02), NORMAL("2.attn.qkv.weight", 0.02),
          ZEROS("2.attn.qkv.bias"), NORMAL("2.attn.proj.weight", 0.01), NORMAL("3.mlp.proj.weight", 0.01),
          ONES("4.weight"), ZEROS("4.bias"));
    CHECK(gpt2, "\"std\":0.1", NORMAL("0.weight", 0.1), NORMAL("1.weight", 0.1),
          NORMAL("2.attn.proj.weight", 0.05));
    CHECK(gpt2, "\"proj_std\":0.3,\"embedding_std\":0.4", NORMAL("0.weight", 0.4), NORMAL("1.weight", 0.4),
          NORMAL("2.attn.qkv.weight", 0.02), NORMAL("3.mlp.proj.weight", 0.3));
    CHECK(llama, "", NORMAL("0.weight", 0.02), NORMAL("1.attn.qkv.weight", 0.02),
          NORMAL("1.attn.proj.weight", 0.02), NORMAL("2.mlp.proj.weight", 0.02), NORMAL("4.weight", 0.02));
    CHECK(llama, "\"std\":0.1,\"embedding_std\":0.4", NORMAL("0.weight", 0.4),
          NORMAL("1.attn.proj.weight", 0.1), NORMAL("4.weight", 0.1));
    CHECK("{\"config\":{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":16,\"n_head\":2,\"vocab_size\":32},"
          "\"context\":8}",
          "\"std\":0.1", NORMAL("0.weight", 0.1), NORMAL("2.attn.proj.weight", 0.05));
}

/* ---- the resolved spec ---- */

static void resolve(const char *model, const char *init, struct strbuf *ret)
{
    struct spec *s = parse(model, init);

    assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, 8, 0, NULL), 0);
    spec_resolved_json(s, ret);
    spec_destroy(s);
}

/* Runs of the version whose positions were N(0, 1) have this text, and go on from their checkpoints. */
static void test_resolved_text_of_older_runs_is_the_same(void **state)
{
    struct strbuf b = {0};

    (void)state;
    resolve("{\"type\":\"chain\",\"input\":{\"tokens\":8,\"vocab\":32},\"layers\":[{\"op\":\"embedding\","
            "\"out\":16},"
            "{\"op\":\"positions\"},{\"op\":\"lm_head\",\"tied\":true}]}",
            "", &b);
    static const char want[] =
        "{\"model\":[{\"kind\":\"embedding\",\"in\":8,\"out\":128,\"seq\":8,\"vocab\":32,\"init_std\":0."
        "0199999996,"
        "\"proj_std\":0},{\"kind\":\"positions\",\"in\":128,\"out\":128,\"seq\":8,\"positions\":8},"
        "{\"kind\":\"lm_head\",\"in\":128,\"out\":0,\"seq\":8,\"vocab\":32,\"tied_to\":0}],";
    if (strncmp(b.at, want, strlen(want)) != 0)
        fail_msg("found %s", b.at);
    strbuf_finish(&b);
}

/* A job can resume from a checkpoint of an earlier version only if its text has the same hash as then. */
static void test_resolved_text_keeps_its_hash(void **state)
{
    static const struct {
        const char *model, *init;
        uint64_t hash;
    } cases[] = {
        {CHAIN, "\"std\":0.1,\"proj_std\":0.05", UINT64_C(0x8c30129ec14f8283)},
        {"{\"type\":\"chain\",\"input\":{\"tokens\":8,\"vocab\":32},\"layers\":[{\"op\":\"embedding\","
         "\"out\":16},{\"residual\":[{\"op\":\"rmsnorm\"},{\"op\":\"attention\",\"heads\":4,\"kv_heads\":2,"
         "\"rope_theta\":100,\"dropout\":0.1,\"score_dropout\":0.2}]},{\"block\":[{\"op\":\"linear\","
         "\"out\":20,\"dropout\":0.1},{\"op\":\"gelu\"},{\"op\":\"dropout\",\"p\":0.5}]},"
         "{\"op\":\"linear\",\"out\":32}]}",
         "", UINT64_C(0xad7142298ef085ff)},
        {"{\"type\":\"mlp\",\"input\":[4,2],\"hidden\":[16],\"classes\":3,\"dropout\":0.1,\"loss\":\"mse\"}",
         "\"std\":0.1", UINT64_C(0xbc9a7d10c219383a)},
        {"{\"type\":\"gpt2\",\"layers\":2,\"width\":16,\"heads\":2,\"vocab\":32,\"context\":8,\"dropout\":0."
         "1}",
         "\"embedding_std\":0.3", UINT64_C(0xe9bab6ac1f53a2bc)},
        {"{\"type\":\"llama\",\"layers\":2,\"width\":16,\"heads\":2,\"vocab\":32,\"context\":8}", "",
         UINT64_C(0xf6232dfc7ecf5f14)},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct spec *s = parse(cases[i].model, cases[i].init);
        assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, 8, 0, NULL), 0);
        if (spec_hash(s) != cases[i].hash)
            fail_msg("%s: the hash is %016" PRIx64, cases[i].model, spec_hash(s));
        spec_destroy(s);
    }
}

static void test_resolved_text_has_what_was_changed(void **state)
{
    static const struct {
        const char *model, *init, *part;
    } cases[] = {
        {CHAIN, "\"embedding_std\":1", "\"positions\":8,\"init_std\":1,\"proj_std\":0}"},
        {CHAIN, "\"proj_std\":0.5", "\"gated\":true,\"init_std\":0,\"proj_std\":0.5}"},
        {CHAIN, "\"std\":0.5", "\"dropout\":0,\"seq\":8,\"init_std\":0.5,\"proj_std\":0}"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct strbuf b = {0};
        resolve(cases[i].model, cases[i].init, &b);
        if (!strstr(b.at, cases[i].part))
            fail_msg("init {%s}: %s lacks %s", cases[i].init, b.at, cases[i].part);
        strbuf_finish(&b);
    }
}

/* ---- refusals ---- */

static void test_wrong_init_is_refused(void **state)
{
#define ONE(op)                                                                                              \
    "{\"type\":\"chain\",\"input\":{\"tokens\":8,\"vocab\":32},\"layers\":[{\"op\":\"embedding\",\"out\":"   \
    "16}," op "]}"
    static const char mlp[] = "{\"type\":\"mlp\",\"input\":8,\"hidden\":[16],\"classes\":3}";
    static const struct {
        const char *model, *init, *path, *part;
    } cases[] = {
        {mlp, "\"sdt\":0.1", "init.sdt", "did you mean \"std\""},
        {mlp, "\"std\":0", "init.std", "above 0, found 0"},
        {mlp, "\"std\":1e-60", "init.std", "1e-60 becomes 0 as a float32"},
        {mlp, "\"proj_std\":0.1", "init.proj_std", "changes nothing"},
        {mlp, "\"embedding_std\":0.1", "init.embedding_std", "changes nothing"},
        {ONE("{\"op\":\"lm_head\",\"init\":{\"sdt\":1}}"), "", "model.layers[1].init.sdt",
         "did you mean \"std\""},
        {ONE("{\"op\":\"lm_head\",\"init\":{\"proj_std\":1}}"), "", "model.layers[1].init.proj_std",
         "unknown key"},
        {ONE("{\"op\":\"lm_head\",\"init\":{\"std\":-1}}"), "", "model.layers[1].init.std", "found -1"},
        {ONE("{\"op\":\"lm_head\",\"tied\":true,\"init\":{\"std\":1}}"), "", "model.layers[1].init",
         "embedding"},
        {ONE("{\"op\":\"layernorm\",\"init\":{\"std\":1}}"), "", "model.layers[1].init", "unknown key"},
        {"{\"type\":\"gpt2\"," SHAPE ",\"init_std\":0.1}", "\"std\":0.1", "model.init_std", "keep one"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct spec *s = NULL;
        struct err err = {0};
        int r = try_parse(cases[i].model, cases[i].init, &s, &err);
        if (r != -EINVAL || strcmp(err.path, cases[i].path) != 0 || !strstr(err.msg, cases[i].part))
            fail_msg("%s with init {%s}: expected %s: %s, found %d, %s: %s", cases[i].model, cases[i].init,
                     cases[i].path, cases[i].part, r, err.path, err.msg);
    }
}

/* A model that starts from the weights of a folder draws no initial values, so `init` is refused. */
static void test_init_of_a_folder_is_refused(void **state)
{
    static const char text[] =
        "{\"schema\":\"job/v1\",\"model\":{\"from\":\"folder\"},\"init\":{\"std\":0.1},"
        "\"data\":{\"format\":\"bytes\",\"train\":\"t\"},\"train\":{\"steps\":1,\"global_batch\":1},"
        "\"optimizer\":{\"type\":\"sgd\",\"lr\":1}}";
    struct spec *s = NULL;
    struct json *doc = NULL;
    struct err err = {0};

    (void)state;
    assert_int_equal(json_parse(text, strlen(text), "job.json", false, &doc, &err), 0);
    assert_int_equal(spec_read(doc, &(struct spec_options){.base_dir = "/base"}, &s, &err), -EINVAL);
    json_free(doc);
    assert_string_equal(err.path, "init.std");
    assert_non_null(strstr(err.msg, "/base/folder"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain_begins_as_documented),
        cmocka_unit_test(test_init_changes_every_layer_of_a_chain),
        cmocka_unit_test(test_init_of_a_layer_goes_before),
        cmocka_unit_test(test_mlp_begins_as_documented),
        cmocka_unit_test(test_transformers_begin_as_documented),
        cmocka_unit_test(test_resolved_text_of_older_runs_is_the_same),
        cmocka_unit_test(test_resolved_text_keeps_its_hash),
        cmocka_unit_test(test_resolved_text_has_what_was_changed),
        cmocka_unit_test(test_wrong_init_is_refused),
        cmocka_unit_test(test_init_of_a_folder_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
