/* Tests of profile tables: reading and writing, every kind of refusal with its place, and values between and
 * beyond the measured sizes against values computed by hand. Also tests the graph and the times that are made
 * from a table, and plans of every policy for random tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/graph.h"
#include "scheduler/policy/policy.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/table.h"
#include "scheduler/verify/verify.h"
#include "tests/unit/random_table.h"

/* Each axis has its own sizes, so that a value from the wrong axis is noticed. */
#define AXES                                                                                                 \
    "\"micro_batch_fwd\":[2,4,8],\"micro_batch_bwd\":[1,2],\"micro_batch_fwd_bytes\":[4],"                   \
    "\"micro_batch_bwd_bytes\":[2,6],\"micro_batch_input\":[1,3]"
#define LAYER0                                                                                               \
    "{\"id\":0,\"weight_bytes\":1000,\"buffer_bytes\":24,\"optimizer_bytes\":2000,\"input_bytes\":[100,300]" \
    ","                                                                                                      \
    "\"fwd_s\":[0.002,0.003,0.007],\"bwd_s\":[0.004,0.009],\"fwd_bytes\":[4000],\"bwd_bytes\":[5000,7000],"  \
    "\"update_cpu_s\":5e-4,\"update_gpu_s\":25e-5}"
#define LAYER1                                                                                               \
    "{\"weight_bytes\":0,\"input_bytes\":[10,50],\"fwd_s\":[0.001,0.001,0.001],\"bwd_s\":[0.002,0.001],"     \
    "\"fwd_bytes\":[80],\"bwd_bytes\":[100,60]}"

static const char good[] =
    "// a comment\n"
    "{\"schema\":\"profile/v1\",\"model\":\"m \\u00b5\",\"device\":\"d\",\"source\":\"by hand\"," AXES
    ",\"link\":{\"swap_bytes_per_s\":12e9,\"p2p_bytes_per_s\":8e9,\"host_copy_bytes_per_s\":16e9},"
    "\"layers\":[" LAYER0 "," LAYER1 "]}";

static struct table *parse(const char *text)
{
    struct table *t = NULL;
    struct err err = {0};
    if (table_parse(text, strlen(text), "p.json", &t, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    return t;
}

/* `good` with the first occurrence of one text replaced; the caller frees it. */
static char *changed(const char *from, const char *to)
{
    struct strbuf b = {0};
    const char *at = strstr(good, from);
    if (at == NULL)
        fail_msg("the text lacks %s", from);
    strbuf_addn(&b, good, (size_t)(at - good));
    strbuf_addf(&b, "%s%s", to, at + strlen(from));
    return b.at;
}

static void check_refused(const char *text, int code, const char *path, const char *says)
{
    struct table *t = NULL;
    struct err err = {0};
    assert_int_equal(table_parse(text, strlen(text), "p.json", &t, &err), code);
    assert_null(t);
    if (strcmp(err.path, path) != 0 || strstr(err.msg, says) == NULL)
        fail_msg("expected %s: ...%s..., found %s: %s", path, says, err.path, err.msg);
    assert_int_equal(table_parse(text, strlen(text), "p.json", &t, NULL), code);
}

static void check_bad(const char *from, const char *to, const char *path, const char *says)
{
    char *text = changed(from, to);
    check_refused(text, -EINVAL, path, says);
    free(text);
}

/* Renames a key. The error message must ask "did you mean" and contain `key`. */
static void check_missing(const char *from, const char *to, const char *key)
{
    char *text = changed(from, to);
    struct table *t = NULL;
    struct err err = {0};
    assert_int_equal(table_parse(text, strlen(text), "p.json", &t, &err), -EINVAL);
    if (strstr(err.msg, "did you mean") == NULL || strstr(err.msg, key) == NULL)
        fail_msg("%s: %s", err.path, err.msg);
    free(text);
}

/* ---- reading and writing ---- */

static void test_everything_is_read(void **state)
{
    struct table *t = parse(good);
    (void)state;
    assert_string_equal(t->model, "m \u00b5");
    assert_string_equal(t->device, "d");
    assert_int_equal(t->fwd.n, 3);
    assert_int_equal(t->fwd.sizes[2], 8);
    assert_int_equal(t->bwd.n, 2);
    assert_int_equal(t->fwd_bytes.n, 1);
    assert_int_equal(t->bwd_bytes.sizes[1], 6);
    assert_int_equal(t->input.sizes[1], 3);
    assert_int_equal(t->link_bytes_per_s, 12000000000);
    assert_int_equal(t->peer_bytes_per_s, 8000000000);
    assert_int_equal(t->host_copy_bytes_per_s, 16000000000);
    assert_int_equal(t->n_layers, 2);
    assert_int_equal(t->layers[0].w, 1000);
    assert_int_equal(t->layers[0].b, 24);
    assert_int_equal(t->layers[0].k, 2000);
    assert_int_equal(t->layers[1].w + t->layers[1].b + t->layers[1].k, 0);
    assert_true(t->layers[0].input_bytes[1] == 300 && t->layers[0].fwd_s[2] == 0.007);
    assert_true(t->layers[0].bwd_s[0] == 0.004 && t->layers[0].fwd_bytes[0] == 4000);
    assert_true(t->layers[0].bwd_bytes[1] == 7000 && t->layers[1].bwd_bytes[1] == 60);
    assert_true(t->layers[0].update_cpu_s == 5e-4 && t->layers[0].update_gpu_s == 25e-5);
    assert_int_equal(table_largest(t), 2);
    table_destroy(t);
    table_destroy(NULL);
}

static void test_the_largest_size_is_measured_both_ways(void **state)
{
    (void)state;
    char *text = changed("\"micro_batch_bwd\":[1,2]", "\"micro_batch_bwd\":[1,9]");
    struct table *t = parse(text);
    assert_int_equal(table_largest(t), 8);
    table_destroy(t);
    free(text);
}

static void check_round_trip(const char *text)
{
    struct strbuf a = {0}, b = {0};
    struct table *t = parse(text);
    table_to_json(t, &a);
    struct table *again = parse(a.at);
    table_to_json(again, &b);
    assert_string_equal(a.at, b.at);
    assert_int_equal(again->n_layers, t->n_layers);
    for (uint32_t l = 0; l < t->n_layers; l++) {
        for (uint32_t size = 1; size < 40; size++) {
            struct table_point p, q;
            table_at(t, l, size, &p);
            table_at(again, l, size, &q);
            assert_memory_equal(&p, &q, sizeof p);
        }
        assert_int_equal(again->layers[l].w, t->layers[l].w);
        assert_int_equal(again->layers[l].b, t->layers[l].b);
        assert_int_equal(again->layers[l].k, t->layers[l].k);
    }
    table_destroy(t);
    table_destroy(again);
    strbuf_finish(&a);
    strbuf_finish(&b);
}

static void test_writing_and_reading_give_the_same(void **state)
{
    (void)state;
    check_round_trip(good);
    for (uint32_t seed = 1; seed <= 50; seed++) {
        struct rng rng = {.seed = seed};
        struct strbuf b = {0};
        random_table_json(&b, &rng);
        check_round_trip(b.at);
        strbuf_finish(&b);
    }
}

static void test_what_is_written_is_as_it_always_was(void **state)
{
    struct strbuf b = {0};
    struct table *t = parse(good);
    (void)state;
    table_to_json(t, &b);
    assert_string_equal(
        b.at, "{\"schema\":\"profile/v1\",\"model\":\"m \u00b5\",\"device\":\"d\"," AXES
              ",\"link\":{\"swap_bytes_per_s\":12000000000,\"p2p_bytes_per_s\":8000000000,"
              "\"host_copy_bytes_per_s\":16000000000},\"layers\":["
              "{\"id\":0,\"weight_bytes\":1000,\"buffer_bytes\":24,\"optimizer_bytes\":2000,"
              "\"input_bytes\":[100,300],\"fwd_s\":[0.002,0.0030000000000000001,0.0070000000000000001],"
              "\"bwd_s\":[0.0040000000000000001,0.0089999999999999993],\"fwd_bytes\":[4000],"
              "\"bwd_bytes\":[5000,7000],\"update_cpu_s\":0.00050000000000000001,"
              "\"update_gpu_s\":0.00025000000000000001},"
              "{\"id\":1,\"weight_bytes\":0,\"buffer_bytes\":0,\"optimizer_bytes\":0,"
              "\"input_bytes\":[10,50],\"fwd_s\":[0.001,0.001,0.001],\"bwd_s\":[0.002,0.001],"
              "\"fwd_bytes\":[80],\"bwd_bytes\":[100,60],\"update_cpu_s\":0,\"update_gpu_s\":0}]}");
    table_destroy(t);
    strbuf_finish(&b);
}

/* The parts of the optimizer state come from the file, and are never guessed from sizes. */
static void test_parts_of_the_optimizer_state_are_as_listed(void **state)
{
    static const char *const lists[] = {"", ",\"optimizer_part_bytes\":[2000]",
                                        ",\"optimizer_part_bytes\":[1200,0,800]"};
    static const uint64_t ends[][3] = {{2000}, {2000}, {1200, 1200, 2000}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct strbuf with = {0}, out = {0};
        struct graph *g;
        strbuf_addf(&with, "\"optimizer_bytes\":2000%s,", lists[i]);
        char *text = changed("\"optimizer_bytes\":2000,", with.at);
        struct table *t = parse(text);
        table_to_json(t, &out);
        assert_true((strstr(out.at, "optimizer_part_bytes") != NULL) == (i == 2));
        assert_true(i < 2 || strstr(out.at, with.at) != NULL);
        assert_int_equal(graph_build_table(t, 3, 2, true, &g, NULL), 0);
        assert_int_equal(g->layers[0].n_parts, i < 2 ? 1 : 3);
        for (uint32_t p = 0; p < g->layers[0].n_parts; p++)
            assert_int_equal(g->layers[0].parts[p].end, ends[i][p]);
        assert_int_equal(g->layers[1].n_parts, 0);
        graph_destroy(g);
        table_destroy(t);
        free(text);
        strbuf_finish(&with);
        strbuf_finish(&out);
    }
}

/* Weights of 16 bits have gradients of 32 bits, so dW is twice as large as W. */
static void test_precision_decides_the_size_of_gradients(void **state)
{
    static const char *const keys[] = {"", "\"precision\":\"fp32\",", "\"precision\":\"bf16\",",
                                       "\"precision\":\"fp16\","};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct strbuf with = {0}, out = {0};
        struct table_point at;
        struct graph *g;
        strbuf_addf(&with, "%s\"device\":\"d\"", keys[i]);
        char *text = changed("\"device\":\"d\"", with.at);
        struct table *t = parse(text);
        const uint64_t w = t->layers[0].w, dw = i < 2 ? w : 2 * w;
        assert_int_equal(t->dtype, types[i]);
        assert_int_equal(table_dw(t, 0), dw);
        table_at(t, 0, t->bwd_bytes.sizes[0], &at);
        assert_int_equal(at.s, (uint64_t)t->layers[0].bwd_bytes[0] - w - dw - t->layers[0].b - 2 * at.x);
        table_to_json(t, &out);
        assert_true((strstr(out.at, "precision") != NULL) == (i >= 2));
        assert_true(i < 2 || strstr(out.at, i == 2 ? "\"bf16\"" : "\"fp16\"") != NULL);
        assert_int_equal(graph_build_table(t, 3, 2, true, &g, NULL), 0);
        const struct graph_tensor *gt = &g->tensors[graph_tensor_find(g, TENSOR_DW, 0, 0, 0)];
        assert_int_equal(gt->bytes, dw);
        assert_int_equal(gt->dtype, i < 2 ? DTYPE_U8 : DTYPE_F32);
        graph_destroy(g);
        table_destroy(t);
        free(text);
        strbuf_finish(&with);
        strbuf_finish(&out);
    }
    check_bad("\"device\":\"d\"", "\"precision\":\"tf32\"", "precision", "must be bf16, fp16 or fp32");
    check_bad("\"device\":\"d\"", "\"precision\":16", "precision", "expected");
    check_bad("\"source\":\"by hand\"," AXES
              ",\"link\":{\"swap_bytes_per_s\":12e9,\"p2p_bytes_per_s\":8e9,\"host_copy_bytes_per_s\":16e9},"
              "\"layers\":[{\"id\":0,\"weight_bytes\":1000",
              "\"precision\":\"bf16\"," AXES ",\"layers\":[{\"id\":0,\"weight_bytes\":1001",
              "layers[0].weight_bytes", "even number of bytes");
}

static void check_bad_parts(const char *list, const char *path, const char *why)
{
    struct strbuf b = {0};
    strbuf_addf(&b, "\"optimizer_bytes\":2000,\"optimizer_part_bytes\":%s,", list);
    check_bad("\"optimizer_bytes\":2000,", b.at, path, why);
    strbuf_finish(&b);
}

static void test_mistakes_in_parts_are_named(void **state)
{
    (void)state;
    check_bad_parts("2000", "layers[0].optimizer_part_bytes", "must be an array of 1 to 64 sizes");
    check_bad_parts("[]", "layers[0].optimizer_part_bytes", "must be an array of 1 to 64 sizes");
    check_bad_parts("[1200,-800]", "layers[0].optimizer_part_bytes[1]", "");
    check_bad_parts("[1200,900]", "layers[0].optimizer_part_bytes",
                    "adds up to 2100, but optimizer_bytes is 2000");
}

static void test_unknown_rates_are_left_out(void **state)
{
    (void)state;
    char *text = changed("\"swap_bytes_per_s\":12e9,", "");
    struct strbuf b = {0};
    struct table *t = parse(text);
    assert_int_equal(t->link_bytes_per_s, 0);
    table_to_json(t, &b);
    assert_null(strstr(b.at, "swap_bytes_per_s"));
    assert_non_null(strstr(b.at, "\"link\":{\"p2p_bytes_per_s\":8000000000,"));
    table_destroy(t);
    strbuf_finish(&b);
    free(text);
}

/* ---- mistakes ---- */

static void test_mistakes_at_the_top_are_named(void **state)
{
    (void)state;
    check_refused("", -EINVAL, "p.json:1:1", "empty");
    check_refused("[]", -EINVAL, "", "expected an object");
    check_bad("profile/v1", "profile/v2", "schema", "this version reads profile/v1");
    check_bad("\"schema\":\"profile/v1\"", "\"schema\":1", "schema", "expected");
    check_bad("\"device\":\"d\"", "\"devices\":\"d\"", "devices", "did you mean \"device\"");
    check_bad("\"device\":\"d\"", "\"device\":7", "device", "expected");
    check_bad("\"source\":\"by hand\"", "\"source\":[]", "source", "expected");
    check_bad(
        "\"device\":\"d\"",
        "\"device\":\"01234567890123456789012345678901234567890123456789012345678901234567890123456789\"",
        "device", "at most 79 bytes");
    check_bad("\"m \\u00b5\"", "\"0123456789012345678901234567890123456789012345678901234567890123\"",
              "model", "at most 63 bytes");
    check_bad("\"device\":\"d\"", "\"device\":\"d\\u001b[2J\"", "device", "contains U+001B");
    check_bad("\"m \\u00b5\"", "\"m\\u2066\"", "model", "contains U+2066");
    check_missing("\"layers\":", "\"layer\":", "layers");
    check_refused("{" AXES "}", -EINVAL, "layers", "required");
    check_refused("{}", -EINVAL, "micro_batch_fwd", "");
}

static void test_mistakes_in_an_axis_are_named(void **state)
{
    static const char *const keys[] = {"micro_batch_fwd", "micro_batch_bwd", "micro_batch_fwd_bytes",
                                       "micro_batch_bwd_bytes", "micro_batch_input"};
    (void)state;
    for (int i = 0; i < 5; i++) {
        char from[40], to[40];
        snprintf(from, sizeof from, "\"%s\":[", keys[i]);
        snprintf(to, sizeof to, "\"%s\":[],\"x\":[", keys[i]);
        check_bad(from, to, keys[i], "1 to 4096 micro-batch sizes");
        snprintf(to, sizeof to, "\"x%s\":[", keys[i]);
        check_missing(from, to, keys[i]);
    }
    check_bad("[2,4,8]", "4", "micro_batch_fwd", "1 to 4096 micro-batch sizes");
    check_bad("[2,4,8]", "{\"2\":4}", "micro_batch_fwd", "1 to 4096 micro-batch sizes");
    check_bad("[2,4,8]", "[2,2,8]", "micro_batch_fwd[1]", "in ascending order");
    check_bad("[2,4,8]", "[2,4,3]", "micro_batch_fwd[2]", "in ascending order");
    check_bad("[2,4,8]", "[0,4,8]", "micro_batch_fwd[0]", "in ascending order");
    check_bad("[2,4,8]", "[2,4,2147483648]", "micro_batch_fwd[2]", "in ascending order");
    check_bad("[2,4,8]", "[2,4.5,8]", "micro_batch_fwd[1]", "whole");
    check_bad("[2,4,8]", "[2,-4,8]", "micro_batch_fwd[1]", "");
    check_bad("[2,4,8]", "[2,\"4\",8]", "micro_batch_fwd[1]", "expected");
    check_bad("[2,4,8]", "[2,4,8,9]", "layers[0].fwd_s",
              "has 3 numbers, but its list of micro-batch sizes has 4");
}

static void test_an_axis_has_a_most(void **state)
{
    (void)state;
    for (int more = 0; more < 2; more++) {
        struct strbuf axis = {0};
        strbuf_add(&axis, "[1");
        for (int i = 2; i <= TABLE_MAX_SAMPLES + more; i++)
            strbuf_addf(&axis, ",%d", i);
        strbuf_add(&axis, "]");
        check_bad("[2,4,8]", axis.at, more ? "micro_batch_fwd" : "layers[0].fwd_s",
                  more ? "1 to 4096" : "its list of micro-batch sizes has 4096");
        strbuf_finish(&axis);
    }
    char *text = changed("[2,4,8]", "[2,4,2147483647]"); /* the largest size of all */
    table_destroy(parse(text));
    free(text);
}

static void test_mistakes_in_the_links_are_named(void **state)
{
    (void)state;
    check_bad("12e9", "0", "link.swap_bytes_per_s", "at least 1");
    check_bad("12e9", "0.5", "link.swap_bytes_per_s", "at least 1");
    check_bad("8e9", "-8e9", "link.p2p_bytes_per_s", "at least 1");
    check_bad("16e9", "1e16", "link.host_copy_bytes_per_s", "at least 1");
    check_bad("12e9", "\"fast\"", "link.swap_bytes_per_s", "expected");
    check_bad("swap_bytes_per_s", "swap_byte_per_s", "link.swap_byte_per_s", "did you mean");
    check_bad("\"link\":{", "\"link\":[],\"x\":{", "x", "unknown key");
    check_bad("{\"swap_bytes_per_s\":12e9,\"p2p_bytes_per_s\":8e9,\"host_copy_bytes_per_s\":16e9}", "7",
              "link", "expected an object");
}

static void test_mistakes_in_a_layer_are_named(void **state)
{
    (void)state;
    check_bad("\"layers\":[" LAYER0 "," LAYER1 "]", "\"layers\":{}", "layers", "2 to 100000");
    check_bad("\"layers\":[" LAYER0 "," LAYER1 "]", "\"layers\":[" LAYER1 "]", "layers", "2 to 100000");
    check_bad(LAYER1, "7", "layers[1]", "expected an object");
    check_bad("\"id\":0", "\"id\":1", "layers[0].id", "is 1, but this is layer 0");
    check_bad("\"id\":0", "\"ids\":0", "layers[0].ids", "unknown key");
    check_bad("\"weight_bytes\":1000,", "", "layers[0].weight_bytes", "");
    check_bad("\"weight_bytes\":1000", "\"weight_bytes\":-1", "layers[0].weight_bytes", "");
    check_bad("\"weight_bytes\":1000", "\"weight_bytes\":1.5", "layers[0].weight_bytes", "");
    check_bad("\"buffer_bytes\":24", "\"buffer_bytes\":null", "layers[0].buffer_bytes", "");
    check_bad("\"optimizer_bytes\":2000", "\"optimizer_bytes\":[]", "layers[0].optimizer_bytes", "");
    check_bad("\"update_cpu_s\":5e-4", "\"update_cpu_s\":-5e-4", "layers[0].update_cpu_s", "between 0 and");
    check_bad("\"update_gpu_s\":25e-5", "\"update_gpu_s\":1e17", "layers[0].update_gpu_s", "between 0 and");
    check_bad("\"update_gpu_s\":25e-5", "\"update_gpu_s\":\"1\"", "layers[0].update_gpu_s", "expected");
    check_bad("\"weight_bytes\":0", "\"weight_byte\":0", "layers[1].weight_byte", "did you mean");
}

static void test_mistakes_in_measurements_are_named(void **state)
{
    static const struct {
        const char *key, *values;
    } arrays[] = {{"input_bytes", "[100,300]"},
                  {"fwd_s", "[0.002,0.003,0.007]"},
                  {"bwd_s", "[0.004,0.009]"},
                  {"fwd_bytes", "[4000]"},
                  {"bwd_bytes", "[5000,7000]"}};
    (void)state;
    for (int i = 0; i < 5; i++) {
        char from[80], to[80], path[80];
        snprintf(from, sizeof from, "\"%s\":%s", arrays[i].key, arrays[i].values);
        snprintf(path, sizeof path, "layers[0].%s", arrays[i].key);
        snprintf(to, sizeof to, "\"%s\":5", arrays[i].key);
        check_bad(from, to, path, "expected an array, found a number");
        snprintf(to, sizeof to, "\"%s\":[1,2,3,4]", arrays[i].key);
        check_bad(from, to, path, "has 4 numbers, but its list of micro-batch sizes has");
        snprintf(to, sizeof to, "\"x%s\":%s", arrays[i].key, arrays[i].values);
        check_missing(from, to, arrays[i].key);
    }
    check_bad(",\"fwd_s\":[0.002,0.003,0.007]", "", "layers[0].fwd_s", "");
    check_bad("[0.004,0.009]", "[0.004,-1e-9]", "layers[0].bwd_s[1]", "between 0 and 2^53");
    check_bad("[0.004,0.009]", "[0.004,1e16]", "layers[0].bwd_s[1]", "between 0 and 2^53");
    check_bad("[0.004,0.009]", "[null,0.009]", "layers[0].bwd_s[0]", "expected");
    check_bad("[10,50]", "[10,true]", "layers[1].input_bytes[1]", "expected");
}

/* 2^53 - 1 is the most of everything, and is let in. */
static void test_the_most_of_everything_is_let_in(void **state)
{
    static const char *const texts[][2] = {
        {"\"weight_bytes\":1000", "\"weight_bytes\":9007199254740991"},
        {"\"buffer_bytes\":24", "\"buffer_bytes\":9007199254740991"},
        {"\"optimizer_bytes\":2000", "\"optimizer_bytes\":9007199254740991"},
        {"[0.004,0.009]", "[0.004,9007199254740991]"},
        {"5e-4", "9007199254740991"},
        {"12e9", "9007199254740991"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *text = changed(texts[i][0], texts[i][1]);
        table_destroy(parse(text));
        free(text);
    }
    check_bad("\"weight_bytes\":1000", "\"weight_bytes\":\"9008TB\"", "layers[0].weight_bytes", "2^53");
    check_bad("\"buffer_bytes\":24", "\"buffer_bytes\":1e16", "layers[0].buffer_bytes", "2^53");
}

static void test_there_is_a_most_of_layers(void **state)
{
    struct strbuf b = {0};
    struct table *t = NULL;
    (void)state;
    strbuf_add(&b, "{\"micro_batch_fwd\":[1],\"micro_batch_bwd\":[1],\"micro_batch_fwd_bytes\":[1],"
                   "\"micro_batch_bwd_bytes\":[1],\"micro_batch_input\":[1],\"layers\":[");
    for (int i = 0; i < TABLE_MAX_LAYERS; i++)
        strbuf_addf(&b,
                    "%s{\"weight_bytes\":0,\"input_bytes\":[1],\"fwd_s\":[0],\"bwd_s\":[0],"
                    "\"fwd_bytes\":[1],\"bwd_bytes\":[1]}",
                    i > 0 ? "," : "");
    size_t n = b.n;
    strbuf_add(&b, "]}");
    t = parse(b.at);
    assert_int_equal(t->n_layers, TABLE_MAX_LAYERS);
    table_destroy(t);
    b.n = n;
    strbuf_add(&b, ",{}]}");
    check_refused(b.at, -EINVAL, "layers", "2 to 100000");
    strbuf_finish(&b);
}

static void test_a_cut_or_changed_text_never_crashes(void **state)
{
    char text[sizeof good];
    struct table *t = NULL;
    (void)state;
    for (size_t n = 0; n < sizeof good - 1; n++) {
        assert_true(table_parse(good, n, "p.json", &t, NULL) < 0);
        for (int bit = 0; bit < 8; bit++) {
            memcpy(text, good, sizeof text);
            text[n] = (char)(text[n] ^ 1 << bit);
            if (table_parse(text, sizeof text - 1, "p.json", &t, NULL) == 0) {
                table_destroy(t);
                t = NULL;
            }
        }
    }
}

/* ---- values ---- */

static void check_at(const struct table *t, uint32_t layer, uint32_t size, struct table_point want)
{
    struct table_point p;
    table_at(t, layer, size, &p);
    assert_int_equal(p.fwd_ns, want.fwd_ns);
    assert_int_equal(p.bwd_ns, want.bwd_ns);
    assert_int_equal(p.x, want.x);
    assert_int_equal(p.fwd_work, want.fwd_work);
    assert_int_equal(p.s, want.s);
    assert_int_equal(p.upd_host_ns, want.upd_host_ns);
    assert_int_equal(p.upd_device_ns, want.upd_device_ns);
}

static void test_values_between_and_beyond_the_measured_sizes(void **state)
{
    const uint64_t host = 500000, device = 250000;
    struct table *t = parse(good);
    (void)state;
    /* below: forward goes on along its first line, and its bytes have no room for anything but W, X and Y */
    check_at(t, 0, 1, (struct table_point){1500000, 2500000, 100, 0, 4500 - 2024 - 200, host, device});
    /* measured */
    check_at(
        t, 0, 2,
        (struct table_point){2000000, 7000000, 200, 2000 - 1024 - 200 - 30, 5000 - 2024 - 400, host, device});
    /* between, backward beyond */
    check_at(t, 0, 3,
             (struct table_point){2500000, 11500000, 300, 3000 - 1024 - 300 - 50, 5500 - 2024 - 600, host,
                                  device});
    check_at(t, 0, 6,
             (struct table_point){5000000, 24000000, 600, 6000 - 1024 - 600 - 110, 7000 - 2024 - 1200, host,
                                  device});
    /* beyond */
    check_at(t, 0, 16,
             (struct table_point){15000000, 64000000, 1600, 16000 - 1024 - 1600 - 310, 12000 - 2024 - 3200,
                                  host, device});
    /* the loss has no output; its backward falls below its forward, its bytes below its inputs */
    check_at(t, 1, 1, (struct table_point){1000000, 1000000, 10, 20 - 10, 110 - 20, 0, 0});
    check_at(t, 1, 4, (struct table_point){1000000, 0, 70, 80 - 70, 0, 0, 0});
    table_destroy(t);
}

static void test_a_line_never_goes_below_zero(void **state)
{
    (void)state;
    char *text = changed("[10,50]", "[50,10]");
    struct table *t = parse(text);
    struct table_point p;
    table_at(t, 1, 4, &p);
    assert_int_equal(p.x, 0);
    assert_int_equal(p.fwd_work, 80);
    table_at(t, 0, 4, &p); /* whose output it is */
    assert_int_equal(p.fwd_work, 4000 - 1024 - 400);
    table_destroy(t);
    free(text);
}

static void test_values_stay_within_what_integers_hold(void **state)
{
    (void)state;
    char *text = changed("\"input_bytes\":[100,300]", "\"input_bytes\":[0,9e15]");
    char *steep = strstr(text, "\"fwd_s\":[0.002,0.003,0.007]");
    memcpy(steep, "\"fwd_s\":[0,0.1,9000000e6]  ", strlen("\"fwd_s\":[0.002,0.003,0.007]"));
    struct table *t = parse(text);
    struct table_point p;
    table_at(t, 0, INT32_MAX, &p);
    assert_int_equal(p.x, 1ull << 53);
    assert_int_equal(p.fwd_ns, 1ull << 53);
    assert_int_equal(p.bwd_ns, 0); /* it ends long before the forward that it would contain */
    assert_int_equal(p.s, 0);
    table_destroy(t);
    free(text);
}

/* ---- graphs ---- */

static void test_a_graph_has_the_sizes_of_the_table(void **state)
{
    struct table *t = parse(good);
    struct graph *g = NULL;
    (void)state;
    assert_int_equal(graph_build_table(t, 3, 2, true, &g, NULL), 0);
    assert_int_equal(g->n_layers, 2);
    assert_int_equal(g->rows, 3);
    assert_int_equal(g->n_micro, 2);
    assert_int_equal(g->n_replicas, 1);
    assert_true(g->layers[0].backward && g->layers[1].backward && g->layers[1].returns);
    assert_true(g->training && !g->groups[0].decision && g->groups[0].state_bytes == 0);
    assert_string_equal(g->layers[0].type, "layer");
    assert_string_equal(g->layers[1].type, "loss");
    assert_int_equal(g->layers[0].size.y, 50);
    assert_int_equal(g->layers[1].size.y, 0);
    assert_int_equal(g->layers[0].k_bytes, 2000);
    assert_int_equal(g->layers[0].b_bytes, 24);

    static const struct {
        enum tensor_kind kind;
        uint32_t layer;
        uint64_t bytes;
        uint32_t n;
    } want[] = {{TENSOR_W, 0, 1000, 1},
                {TENSOR_K, 0, 2000, 1},
                {TENSOR_B, 0, 24, 1},
                {TENSOR_DW, 0, 1000, 1},
                {TENSOR_X, 0, 300, 2},
                {TENSOR_S, 0, 5500 - 2024 - 600, 2},
                {TENSOR_WORK, 0, 3000 - 1374, 2},
                {TENSOR_Y, 0, 50, 2},
                {TENSOR_WORK, 1, 60 - 50, 2},
                {TENSOR_DX, 1, 50, 2}};
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        for (uint32_t j = 0; j < want[i].n; j++) {
            tensor_id id =
                graph_tensor_find(g, want[i].kind, want[i].layer, want[i].n > 1 ? j : PLAN_NONE, 0);
            assert_int_not_equal(id, PLAN_NONE);
            assert_int_equal(g->tensors[id].bytes, want[i].bytes);
            n++;
        }
    }
    assert_int_equal(g->n_tensors, n); /* and no other: no targets, no results, no decision */
    assert_int_equal(g->n_tasks, 2 * 4 + 1);
    const struct graph_task *fwd = &g->tasks[graph_task_find(g, INSTR_FWD, 0, 1, 0)];
    bool reads_b = false;
    for (uint32_t i = 0; i < fwd->n_operands; i++)
        reads_b |= g->tensors[g->operands[fwd->operand + i].tensor].kind == TENSOR_B;
    assert_true(reads_b);
    graph_destroy(g);

    assert_int_equal(graph_build_table(t, 3, 2, false, &g, NULL), 0); /* forward only */
    assert_int_equal(g->n_tasks, 2 * 2);
    assert_false(g->training);
    graph_destroy(g);
    table_destroy(t);
}

static void check_no_graph(const struct table *t, uint32_t size, uint32_t n, int code, const char *says)
{
    struct graph *g = NULL;
    struct err err = {0};
    assert_int_equal(graph_build_table(t, size, n, true, &g, &err), code);
    assert_null(g);
    if (strstr(err.msg, says) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", err.msg, says);
}

static void test_a_graph_that_cannot_be_is_refused(void **state)
{
    struct table *t = parse(good);
    (void)state;
    check_no_graph(t, 0, 1, -EINVAL, "at least one row");
    check_no_graph(t, 1, 0, -EINVAL, "at least one row");
    check_no_graph(t, 1, 1u << 20, -EINVAL, "more tasks");
    table_destroy(t);
    char *text = changed("[10,50]", "[0,50]");
    t = parse(text);
    check_no_graph(t, 1, 1, -EINVAL, "layer 1 has no input at micro-batch 1");
    table_destroy(t);
    free(text);
    text = changed("\"input_bytes\":[100,300]", "\"input_bytes\":[0,9e15]");
    t = parse(text);
    check_no_graph(t, 3, 1, -EOVERFLOW, "2^53");
    table_destroy(t);
    free(text);
}

/* ---- times ---- */

static void test_times_are_the_tables_and_else_memory_traffic(void **state)
{
    struct table *t = parse(good);
    struct graph *g = NULL;
    struct machine m;
    (void)state;
    machine_init_cpu(&m, 1, 1ull << 30, 1ull << 30);
    assert_int_equal(graph_build_table(t, 2, 1, true, &g, NULL), 0);
    struct plan_request r = {.train = g, .machine = &m, .table = t};
    struct profile *p = plan_profile(&r), *analytic;
    assert_int_equal(profile_task_ns(p, INSTR_FWD, 0, false), 2000000);
    assert_int_equal(profile_task_ns(p, INSTR_REC, 0, false), 2000000);
    assert_int_equal(profile_task_ns(p, INSTR_BWD, 0, false), 7000000);
    assert_int_equal(profile_task_ns(p, INSTR_UPD, 0, true), 500000);
    assert_int_equal(profile_task_ns(p, INSTR_UPD, 0, false), 250000);
    assert_int_equal(profile_task_ns(p, INSTR_BWD, 1, false), 0);
    profile_destroy(p);
    t->layers[0].update_cpu_s = t->layers[0].update_gpu_s = 0; /* not measured */
    p = profile_from_table(t, g, &m);
    analytic = profile_analytic(g, &m);
    assert_int_equal(profile_task_ns(p, INSTR_UPD, 0, true), profile_task_ns(analytic, INSTR_UPD, 0, true));
    assert_int_equal(profile_task_ns(p, INSTR_UPD, 0, false), profile_task_ns(analytic, INSTR_UPD, 0, false));
    assert_true(profile_task_ns(p, INSTR_UPD, 0, true) > 0);
    profile_destroy(p);
    profile_destroy(analytic);
    graph_destroy(g);
    table_destroy(t);
}

/* ---- plans ---- */

/* At the least capacity and with plenty; the plan holds, and computes for as long as the table says. */
static void check_plans(struct plan_request *r, struct machine *m, uint32_t seed)
{
    const char *name = policy_names[r->policy];
    uint64_t least = 0;
    struct err err = {0};
    assert_int_equal(plan_least_capacity(r, &least, &err), 0);
    const uint64_t capacities[] = {least, least + 4096, 1ull << 40};
    for (int i = 0; i < 3; i++) {
        struct plan *p = NULL;
        for (uint32_t d = 0; d < m->n_devices; d++)
            m->capacity_bytes[d] = capacities[i];
        if (plan_make(r, &p, NULL, &err) < 0)
            fail_msg("seed %u, policy %s at %" PRIu64 ": %s", seed, name, capacities[i], err.msg);
        if (plan_verify(p, r->train, r->eval, m, NULL, &err) < 0)
            fail_msg("seed %u, policy %s at %" PRIu64 ": %s", seed, name, capacities[i], err.msg);
        plan_destroy(p);
    }
    for (uint32_t d = 0; d < m->n_devices; d++)
        m->capacity_bytes[d] = least / 2;
    struct plan *none = NULL;
    uint64_t told = 0;
    assert_int_equal(plan_make(r, &none, &told, &err), -ENOSPC);
    assert_int_equal(told, least);
}

static void test_plans_of_random_tables_hold_under_every_policy(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 60; seed++) {
        struct rng rng = {.seed = seed};
        struct strbuf b = {0};
        struct machine m;
        struct graph *train = NULL, *eval = NULL;
        random_table_json(&b, &rng);
        struct table *t = parse(b.at);
        uint32_t size = t->input.sizes[0] + rng_below(&rng, 12), n = 1 + rng_below(&rng, 4);
        machine_init_cpu(&m, 1 + rng_below(&rng, 4), 1ull << 40, 1ull << 40);
        assert_int_equal(graph_build_table(t, size, n, true, &train, NULL), 0);
        assert_int_equal(graph_build_table(t, size, n, false, &eval, NULL), 0);
        struct plan_request r = {.train = train, .machine = &m, .table = t};
        r.eval = rng_below(&rng, 2) ? eval : NULL;
        r.update = rng_below(&rng, UPDATE_PLACE_COUNT);
        for (int policy = 0; policy < POLICY_COUNT; policy++) {
            r.policy = (enum policy_id)policy;
            check_plans(&r, &m, seed);
        }
        graph_destroy(train);
        graph_destroy(eval);
        table_destroy(t);
        strbuf_finish(&b);
    }
}

static void make_by(struct plan_request *r, enum plan_objective objective, uint64_t *ret_ns,
                    uint64_t *ret_bytes)
{
    struct plan *p = NULL;
    r->objective = objective;
    assert_int_equal(plan_make(r, &p, NULL, NULL), 0);
    struct profile *times = plan_profile(r);
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, SIM_RUNS, times, r->machine);
    *ret_ns = sim->cycle_ns;
    *ret_bytes = sim->bytes.in + sim->bytes.out; /* what the objective counts */
    sim_destroy(sim);
    profile_destroy(times);
    plan_destroy(p);
}

/* Each objective must be at least as good in its own measure as the other. For some tables the two plans must
 * differ. */
static void test_the_objective_decides_between_plans(void **state)
{
    int differ = 0;
    (void)state;
    for (uint32_t seed = 1; seed <= 60; seed++) {
        struct rng rng = {.seed = seed};
        struct strbuf b = {0};
        struct machine m;
        struct graph *g = NULL;
        uint64_t least, ns[OBJECTIVE_COUNT], bytes[OBJECTIVE_COUNT];
        random_table_json(&b, &rng);
        struct table *t = parse(b.at);
        machine_init_cpu(&m, 1 + rng_below(&rng, 3), 1ull << 40, 1ull << 40);
        m.link_bytes_per_s = m.peer_bytes_per_s = 1u << (20 + rng_below(&rng, 10));
        assert_int_equal(graph_build_table(t, t->input.sizes[0], 3, true, &g, NULL), 0);
        struct plan_request r = {.train = g, .machine = &m, .table = t, .policy = POLICY_harmony_pp};
        assert_int_equal(plan_least_capacity(&r, &least, NULL), 0);
        for (uint32_t d = 0; d < m.n_devices; d++)
            m.capacity_bytes[d] = least + least / 2;
        for (int o = 0; o < OBJECTIVE_COUNT; o++)
            make_by(&r, (enum plan_objective)o, &ns[o], &bytes[o]);
        assert_true(ns[OBJECTIVE_TIME] <= ns[OBJECTIVE_BYTES]);
        assert_true(bytes[OBJECTIVE_BYTES] <= bytes[OBJECTIVE_TIME]);
        differ += bytes[OBJECTIVE_BYTES] < bytes[OBJECTIVE_TIME];
        graph_destroy(g);
        table_destroy(t);
        strbuf_finish(&b);
    }
    assert_true(differ > 0);
}

static void test_a_plan_by_a_table_takes_the_tables_time(void **state)
{
    struct table *t = parse(good);
    struct graph *g = NULL;
    struct machine m;
    struct plan *p = NULL;
    (void)state;
    machine_init_cpu(&m, 1, 1ull << 30, 1ull << 30);
    assert_int_equal(graph_build_table(t, 2, 3, true, &g, NULL), 0);
    struct plan_request r = {
        .train = g, .machine = &m, .table = t, .policy = POLICY_resident, .update = UPDATE_DEVICE};
    assert_int_equal(plan_make(&r, &p, NULL, NULL), 0);
    struct profile *prof = plan_profile(&r);
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, 1, prof, &m);
    /* three micro-batches: forward 2 + 1 ms, backward 7 and 0 ms; one update */
    assert_int_equal(sim->compute_ns[0], 3 * (3000000 + 7000000) + 250000);
    sim_destroy(sim);
    profile_destroy(prof);
    plan_destroy(p);
    graph_destroy(g);
    table_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_is_read),
        cmocka_unit_test(test_the_largest_size_is_measured_both_ways),
        cmocka_unit_test(test_writing_and_reading_give_the_same),
        cmocka_unit_test(test_what_is_written_is_as_it_always_was),
        cmocka_unit_test(test_unknown_rates_are_left_out),
        cmocka_unit_test(test_parts_of_the_optimizer_state_are_as_listed),
        cmocka_unit_test(test_mistakes_in_parts_are_named),
        cmocka_unit_test(test_precision_decides_the_size_of_gradients),
        cmocka_unit_test(test_mistakes_at_the_top_are_named),
        cmocka_unit_test(test_mistakes_in_an_axis_are_named),
        cmocka_unit_test(test_an_axis_has_a_most),
        cmocka_unit_test(test_mistakes_in_the_links_are_named),
        cmocka_unit_test(test_mistakes_in_a_layer_are_named),
        cmocka_unit_test(test_mistakes_in_measurements_are_named),
        cmocka_unit_test(test_the_most_of_everything_is_let_in),
        cmocka_unit_test(test_there_is_a_most_of_layers),
        cmocka_unit_test(test_a_cut_or_changed_text_never_crashes),
        cmocka_unit_test(test_values_between_and_beyond_the_measured_sizes),
        cmocka_unit_test(test_a_line_never_goes_below_zero),
        cmocka_unit_test(test_values_stay_within_what_integers_hold),
        cmocka_unit_test(test_a_graph_has_the_sizes_of_the_table),
        cmocka_unit_test(test_a_graph_that_cannot_be_is_refused),
        cmocka_unit_test(test_times_are_the_tables_and_else_memory_traffic),
        cmocka_unit_test(test_plans_of_random_tables_hold_under_every_policy),
        cmocka_unit_test(test_the_objective_decides_between_plans),
        cmocka_unit_test(test_a_plan_by_a_table_takes_the_tables_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
