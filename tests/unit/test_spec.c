/* Tests of job specs: which specs are accepted and how they are resolved, which are refused with which path
 * and message, and the learning rate schedule, the steps at which work is due, and the hash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "daemon/spec/spec.h"
#include "daemon/worker/model/hf.h"

/* ------------------------------------------------------------------------------------------ helpers */

#define MODEL         "{\"type\":\"mlp\",\"input\":[4,2],\"hidden\":[16,8],\"classes\":3}"
#define DATA          "{\"format\":\"synthetic\",\"samples\":100,\"val_samples\":10}"
#define TRAIN         "{\"epochs\":2,\"global_batch\":8}"
#define OPTIMIZER     "{\"type\":\"adamw\",\"lr\":0.001}"
#define CHAIN(layers) "{\"type\":\"chain\",\"input\":8,\"layers\":[" layers "]}"

/* A whole spec; NULL takes the default of a section. `rest`: more members, each with a comma before it. */
static const char *job(const char *model, const char *data, const char *train, const char *optimizer,
                       const char *rest)
{
    static char text[8192];

    snprintf(text, sizeof text,
             "{\"schema\":\"job/v1\",\"model\":%s,\"data\":%s,\"train\":%s,\"optimizer\":%s%s}",
             model ? model : MODEL, data ? data : DATA, train ? train : TRAIN,
             optimizer ? optimizer : OPTIMIZER, rest ? rest : "");
    return text;
}

/* How the worker reads a spec. */
static const struct spec_options strict = {.base_dir = "/base", .read_folder = hf_read_folder};

static struct spec *parse(const char *text)
{
    struct spec *s = NULL;
    struct err err;

    if (spec_parse(text, strlen(text), "job.json", &strict, &s, &err) < 0)
        fail_msg("%s: refused: %s: %s", text, err.path, err.msg);
    return s;
}

static void check_refused(const char *text, int code, const char *path, const char *part)
{
    struct spec *s = (struct spec *)&s; /* must stay as it is */
    struct err err = {0};
    int r = spec_parse(text, strlen(text), "job.json", &strict, &s, &err);

    if (r >= 0)
        fail_msg("accepted: %s", text);
    if (r != code || err.code != code || strcmp(err.path, path) != 0 || !strstr(err.msg, part))
        fail_msg("%s: expected %d at \"%s\" with \"%s\", found %d at \"%s\": %s", text, code, path, part, r,
                 err.path, err.msg);
    assert_ptr_equal(s, &s);
}

static struct spec *resolved(const char *text, uint64_t samples)
{
    struct spec *s = parse(text);
    struct err err;

    if (spec_resolve(s, (struct spec_sizes){0}, samples, 0x1234, &err) < 0)
        fail_msg("%s: %s: %s", text, err.path, err.msg);
    return s;
}

/* ------------------------------------------------------------------------------------------ accepted */

static void test_defaults_are_set(void **state)
{
    struct spec *s = parse(job(NULL, NULL, NULL, NULL, NULL));

    (void)state;
    assert_string_equal(s->name, "job");
    assert_string_equal(s->output, "/base/runs/job");
    assert_true(s->data.shuffle && !s->data.transpose);
    assert_int_equal(s->train.micro_batch, 0);
    assert_int_equal(s->train.replicas, 0);
    assert_false(s->train.skip_nonfinite);
    assert_true(s->optimizer.clip == 0);
    assert_true(s->optimizer.beta1 == 0.9f && s->optimizer.beta2 == 0.999f && s->optimizer.eps == 1e-8f);
    assert_true(s->optimizer.weight_decay == 0.01f);
    assert_int_equal(s->rate.type, SCHEDULE_CONSTANT);
    assert_int_equal(s->checkpoint.keep, 2);
    assert_int_equal(s->checkpoint.best, BEST_NONE);
    assert_int_equal(s->eval.epochs + s->eval.steps + s->checkpoint.every.epochs + s->checkpoint.every.steps,
                     0);
    assert_int_equal(s->resources.devices_min, 1);
    assert_int_equal(s->resources.devices_max, 0);
    assert_int_equal(s->memory.policy, POLICY_auto);
    assert_int_equal(s->memory.update, UPDATE_AUTO);
    assert_int_equal(s->memory.cycle_steps, 1);
    assert_true(spec_has_val(s));
    spec_destroy(s);
}

static void check_demand(const char *rest, uint32_t devices_min, uint32_t devices_max, uint64_t device_bytes,
                         uint64_t host_bytes)
{
    struct spec *s = parse(job(NULL, NULL, NULL, NULL, rest));
    struct spec_demand demand = spec_demand(s);

    assert_int_equal(demand.devices_min, devices_min);
    assert_int_equal(demand.devices_max, devices_max);
    assert_int_equal(demand.device_bytes, device_bytes);
    assert_int_equal(demand.host_bytes, host_bytes);
    spec_destroy(s);
}

static void test_demand_fills_in_defaults(void **state)
{
    (void)state;
    check_demand("", 1, 1, 0, 0);
    check_demand(",\"resources\":{\"devices\":\"auto\",\"device_memory\":\"auto\"}", 1, 1, 0, 0);
    check_demand(",\"resources\":{\"devices\":4,\"device_memory\":512,\"host_memory\":\"1KB\"}", 4, 4, 512,
                 1000);
    check_demand(",\"resources\":{\"devices\":{\"min\":2,\"max\":8}}", 2, 8, 0, 0);
    check_demand(",\"resources\":{\"devices\":{\"min\":2}}", 2, 2, 0, 0);
    check_demand(",\"resources\":{\"devices\":{\"max\":3}}", 1, 3, 0, 0);
}

static void test_example_of_the_formats_page_is_read(void **state)
{
    static const char text[] =
        "{ \"schema\": \"job/v1\", \"name\": \"digits\", // a comment\n"
        "  \"model\": {\"type\": \"mlp\", \"input\": [28,28], \"hidden\": [1024,1024,1024,1024], "
        "\"classes\": 10,"
        " \"activation\": \"gelu\", \"dropout\": 0.1},\n"
        "  \"init\":  {\"seed\": 1337},\n"
        "  \"data\":  {\"format\": \"idx\", \"train\": {\"images\": \"a.gz\", \"labels\": \"/abs/b.gz\"},\n"
        "            \"val\": {\"images\": \"c\", \"labels\": \"d\"}, \"scale\": [-1,1], \"shuffle\": false,"
        " \"transpose\": true},\n"
        "  \"train\": {\"epochs\": 5, \"global_batch\": 256, \"micro_batch\": \"auto\", \"replicas\": "
        "\"auto\","
        " \"grad_clip\": 1.0, \"on_nonfinite\": \"skip\"},\n"
        "  \"optimizer\": {\"type\": \"adamw\", \"lr\": 1e-3, \"betas\": [0.8,0.99], \"eps\": 1e-7,"
        " \"weight_decay\": 0.1},\n"
        "  \"schedule\": {\"type\": \"cosine\", \"warmup_steps\": 100, \"min_lr_ratio\": 0.1},\n"
        "  \"precision\": \"fp32\", \"method\": {\"type\": \"backprop\"},\n"
        "  \"eval\": {\"every\": {\"epochs\": 1}},\n"
        "  \"checkpoint\": {\"every\": {\"steps\": 50}, \"keep\": 3, \"best\": \"val/accuracy\"},\n"
        "  \"resources\": {\"devices\": {\"min\": 1, \"max\": 4}, \"device_memory\": \"9GB\","
        " \"host_memory\": \"auto\"},\n"
        "  \"memory\": {\"policy\": \"harmony-pp\", \"optimizer_on\": \"host\", \"recompute\": \"auto\","
        " \"cycle_steps\": 7},\n"
        "  \"queue\": {\"time_limit\": \"1d12h\"},\n"
        "  \"output\": \"runs/x\" }";
    struct spec *s = NULL;
    struct err err;

    (void)state;
    const struct spec_options how = {.base_dir = "/base", .comments = true};
    assert_int_equal(spec_parse(text, strlen(text), "job.json", &how, &s, &err), 0);
    assert_string_equal(s->name, "digits");
    assert_string_equal(s->output, "/base/runs/x");
    assert_int_equal(s->model.n_layers, 6);
    assert_int_equal(s->features, 784);
    assert_int_equal(s->classes, 10);
    assert_int_equal(s->seed, 1337);
    assert_string_equal(s->data.train.images, "/base/a.gz");
    assert_string_equal(s->data.train.labels, "/abs/b.gz");
    assert_string_equal(s->data.val.labels, "/base/d");
    assert_true(s->data.scale_lo == -1 && s->data.scale_hi == 1 && s->data.transpose && !s->data.shuffle);
    assert_true(s->train.skip_nonfinite && s->optimizer.clip == 1.0 && s->rate.lr == 1e-3);
    assert_true(s->optimizer.beta1 == 0.8f && s->optimizer.beta2 == 0.99f && s->optimizer.eps == 1e-7f);
    assert_int_equal(s->rate.type, SCHEDULE_COSINE);
    assert_int_equal(s->eval.epochs, 1);
    assert_int_equal(s->checkpoint.every.steps, 50);
    assert_int_equal(s->checkpoint.keep, 3);
    assert_int_equal(s->checkpoint.best, BEST_VAL_ACCURACY);
    assert_int_equal(s->resources.devices_max, 4);
    assert_int_equal(s->resources.device_bytes, 9000000000);
    assert_int_equal(s->resources.host_bytes, 0);
    assert_int_equal(s->memory.policy, POLICY_harmony_pp);
    assert_int_equal(s->memory.update, UPDATE_HOST);
    assert_int_equal(s->memory.cycle_steps, 7);
    assert_int_equal(s->queue.time_limit_s, 36 * 3600);
    spec_destroy(s);
}

/* Checks a layer whose rows are vectors. `out` is 0 for a loss. */
static const struct layer *check_layer(const struct spec *s, uint32_t i, const struct layer_type *type,
                                       uint32_t in, uint32_t out)
{
    const struct layer *l = &s->model.layers[i];
    struct shape want_in = shape_vector(in), want_out = out > 0 ? shape_vector(out) : (struct shape){0};

    assert_int_equal(l->id, i);
    assert_ptr_equal(l->type, type);
    assert_true(shape_equal(&l->in, &want_in));
    assert_true(shape_equal(&l->out, &want_out));
    return l;
}

static void check_dense(const struct spec *s, uint32_t i, uint32_t in, uint32_t out, enum act act,
                        float dropout)
{
    const struct layer *l = check_layer(s, i, &layer_dense, in, out);

    assert_int_equal(l->dense.act, act);
    assert_true(l->dense.dropout == dropout);
}

static void test_mlp_becomes_a_chain(void **state)
{
    struct spec *s = parse(job("{\"type\":\"mlp\",\"input\":[4,2],\"hidden\":[16],\"classes\":3,"
                               "\"activation\":\"tanh\",\"dropout\":0.25,\"bias\":false,\"loss\":\"mse\"}",
                               NULL, NULL, NULL, NULL));

    (void)state;
    assert_int_equal(s->model.n_layers, 3);
    check_dense(s, 0, 8, 16, ACT_TANH, 0.25f);
    check_dense(s, 1, 16, 3, ACT_NONE, 0);
    check_layer(s, 2, &layer_mse, 3, 0);
    assert_false(s->model.layers[0].dense.bias || s->model.layers[1].dense.bias);
    assert_true(s->mse);
    spec_destroy(s);
}

static void test_chain_is_expanded(void **state)
{
    struct spec *s = parse(job(CHAIN("{\"op\":\"linear\",\"out\":6,\"activation\":\"relu\",\"dropout\":0.5},"
                                     "{\"repeat\":2,\"block\":[{\"op\":\"gelu\"},{\"repeat\":2,\"block\":"
                                     "[{\"op\":\"dropout\",\"p\":0.125}]}]},{\"op\":\"linear\",\"out\":5,"
                                     "\"bias\":false}"),
                               NULL, NULL, NULL, NULL));

    (void)state;
    assert_int_equal(s->model.n_layers, 9);
    check_dense(s, 0, 8, 6, ACT_RELU, 0.5f);
    for (uint32_t i = 1; i < 7; i += 3) {
        assert_int_equal(check_layer(s, i, &layer_activation, 6, 6)->activation.act, ACT_GELU);
        assert_true(check_layer(s, i + 1, &layer_dropout, 6, 6)->dropout.p == 0.125f);
        assert_true(check_layer(s, i + 2, &layer_dropout, 6, 6)->dropout.p == 0.125f);
    }
    check_dense(s, 7, 6, 5, ACT_NONE, 0);
    check_layer(s, 8, &layer_softmax_xent, 5, 0);
    assert_int_equal(s->classes, 5);
    spec_destroy(s);
}

/* Registry-driven: a new name is covered on arrival. */
static void test_every_name_of_the_tables_is_accepted(void **state)
{
    char text[256];
    struct spec *s;

    (void)state;
    for (int i = 0; i < POLICY_COUNT; i++) {
        snprintf(text, sizeof text, ",\"memory\":{\"policy\":\"%s\"}", policy_names[i]);
        s = parse(job(NULL, NULL, NULL, NULL, text));
        assert_int_equal(s->memory.policy, i);
        spec_destroy(s);
    }
    for (int i = 0; i < UPDATE_PLACE_COUNT; i++) {
        snprintf(text, sizeof text, ",\"memory\":{\"optimizer_on\":\"%s\"}", update_place_names[i]);
        s = parse(job(NULL, NULL, NULL, NULL, text));
        assert_int_equal(s->memory.update, i);
        spec_destroy(s);
    }
    for (int i = 0; i < OPTIMIZER_COUNT; i++) {
        snprintf(text, sizeof text, "{\"type\":\"%s\",\"lr\":1}", optimizer_names[i]);
        s = parse(job(NULL, NULL, NULL, text, NULL));
        assert_int_equal(s->optimizer.kind, i);
        spec_destroy(s);
    }
    for (int i = 0; i < ACT_COUNT; i++) {
        snprintf(text, sizeof text, CHAIN("{\"op\":\"linear\",\"out\":3,\"activation\":\"%s\"}"),
                 act_names[i]);
        s = parse(job(text, NULL, NULL, NULL, NULL));
        assert_int_equal(s->model.layers[0].dense.act, i);
        spec_destroy(s);
    }
    for (int i = 0; i < SCHEDULE_COUNT; i++) {
        snprintf(text, sizeof text, ",\"schedule\":{\"type\":\"%s\"%s}", spec_schedule_names[i],
                 i == SCHEDULE_STEP ? ",\"every_steps\":3" : "");
        s = parse(job(NULL, NULL, NULL, NULL, text));
        assert_int_equal(s->rate.type, i);
        spec_destroy(s);
    }
}

static void check_types(const struct layer *layers, uint32_t n, enum dtype dtype)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(layers[i].dtype, dtype);
        assert_int_equal(layers[i].w_dtype, dtype);
        check_types(layers[i].inner, layers[i].n_inner, dtype);
    }
}

/* The precision sets the types of all layers, also of those inside blocks, and the settings of all
 * optimizers. The resolved spec names it, and so does the hash. */
static void test_precision_reaches_layers_and_optimizers(void **state)
{
    static const char gpt[] =
        "{\"type\":\"gpt2\",\"layers\":2,\"width\":8,\"heads\":2,\"vocab\":9,\"context\":4}";
    static const char *const words[] = {"",
                                        ",\"precision\":\"bf16\"",
                                        ",\"precision\":\"fp16\"",
                                        ",\"precision\":\"auto\"",
                                        ",\"precision\":\"fp32\"",
                                        ",\"precision\":\"tf32\""};
    static const enum spec_precision wanted[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_FP16,
                                                 PRECISION_FP32, PRECISION_FP32, PRECISION_TF32};
    uint64_t hash[6];

    (void)state;
    for (int i = 0; i < 6; i++) {
        struct strbuf b = {0};
        enum spec_precision read = PRECISION_COUNT;
        struct spec *s = parse(job(gpt, "{\"format\":\"synthetic\",\"samples\":16}", NULL, NULL, words[i]));
        assert_int_equal(s->precision, wanted[i]);
        check_types(s->model.layers, s->model.n_layers, spec_dtype(wanted[i]));
        assert_int_equal(s->optimizer.master, spec_dtype(wanted[i]) != DTYPE_F32);
        assert_int_equal(s->optimizer.scaling.growth_steps, wanted[i] == PRECISION_FP16 ? 2000 : 0);
        assert_true(s->optimizer.scaling.start == (wanted[i] == PRECISION_FP16 ? 65536 : 0));
        assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, 16, 0, NULL), 0);
        spec_resolved_json(s, &b);
        assert_true(spec_resolved_precision(b.at, b.n, &read));
        assert_int_equal(read, wanted[i]);
        strbuf_finish(&b);
        hash[i] = spec_hash(s);
        spec_destroy(s);
    }
    assert_true(hash[0] == hash[3] && hash[0] == hash[4]);
    assert_true(hash[0] != hash[1] && hash[0] != hash[2] && hash[1] != hash[2] && hash[0] != hash[5]);
}

static void test_precision_of_every_part(void **state)
{
    struct spec *s =
        parse(job("{\"type\":\"mlp\",\"input\":8,\"hidden\":[16,8],\"classes\":3}", NULL,
                  "{\"epochs\":1,\"global_batch\":8,\"loss_scale\":{\"start\":512,\"growth_steps\":7}}", NULL,
                  ",\"precision\":\"fp16\",\"method\":{\"type\":\"sil\",\"recovery_epochs\":1,"
                  "\"each\":[{},{\"optimizer\":{\"type\":\"sgd\",\"lr\":1}}]}"));
    const struct optimizer *all[] = {&s->optimizer, &s->sil.each[0].optimizer, &s->sil.each[1].optimizer,
                                     &s->sil.recovery.optimizer};
    uint64_t hash;

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_true(all[i]->master && all[i]->scaling.start == 512);
        assert_int_equal(all[i]->scaling.growth_steps, 7);
    }
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, 64, 0, NULL), 0);
    hash = spec_hash(s);
    s->train.loss_scale.growth_steps = 8;
    assert_true(hash != spec_hash(s));
    spec_destroy(s);
}

/* An option replaces the precision of the spec. Settings of the spec that belong to its own precision are
 * then without effect. */
static void test_precision_can_be_replaced(void **state)
{
    const char *text = job(NULL, NULL, "{\"epochs\":1,\"global_batch\":8,\"loss_scale\":{\"start\":512}}",
                           NULL, ",\"precision\":\"fp16\"");
    struct spec_options how = {.precision = "bf16"};
    struct spec *s = NULL;
    struct err err;

    (void)state;
    assert_int_equal(spec_parse(text, strlen(text), "job", &how, &s, &err), 0);
    assert_int_equal(s->precision, PRECISION_BF16);
    check_types(s->model.layers, s->model.n_layers, DTYPE_BF16);
    assert_int_equal(s->optimizer.scaling.growth_steps, 0);
    spec_destroy(s);
    how.precision = "half";
    assert_int_equal(spec_parse(text, strlen(text), "job", &how, &s, &err), -EINVAL);
    assert_string_equal(err.path, "--precision");
}

static int parse_closed(const char *text, struct spec **ret, struct err *err)
{
    struct json *doc = NULL;
    int r = json_parse(text, strlen(text), "job", false, &doc, err);

    if (r == 0)
        r = spec_read(doc, &(struct spec_options){.base_dir = "/base"}, ret, err);
    json_free(doc);
    return r;
}

/* The daemon reads the specs of other users and must not open any file that a spec names. */
static void test_closed_spec_opens_no_folder(void **state)
{
    static const char data[] = "{\"format\":\"bytes\",\"train\":\"text\"}";
    const char *text = job("{\"from\":\"no such folder\"}", data, NULL, NULL, NULL);
    struct err err = {0};
    struct spec *s = NULL;

    (void)state;
    assert_int_equal(spec_parse(text, strlen(text), "job", &strict, &s, &err), -ENOENT);
    if (parse_closed(text, &s, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    assert_string_equal(s->from, "/base/no such folder");
    assert_int_equal(s->model.n_layers, 0);
    assert_int_equal(s->train.global_batch, 8);
    spec_destroy(s);
    text = job("{\"from\":\"f\",\"contxt\":3}", data, NULL, NULL, NULL);
    assert_int_equal(parse_closed(text, &s, &err), -EINVAL);
}

/* ------------------------------------------------------------------------------------------ refused */

struct wrong {
    const char *model, *data, *train, *optimizer, *rest;
    int code;
    const char *path, *part;
};

static const struct wrong wrongs[] = {
    /* typos */
    {.rest = ",\"optimiser\":{}", .code = -EINVAL, .path = "optimiser", .part = "did you mean \"optimizer\""},
    {.train = "{\"epochs\":1,\"globl_batch\":8}",
     .code = -EINVAL,
     .path = "train.globl_batch",
     .part = "did you mean \"global_batch\""},
    {.model = "{\"tpye\":\"mlp\"}", .code = -EINVAL, .path = "model.tpye", .part = "did you mean \"type\""},
    {.model = "{\"type\":\"mpl\"}", .code = -EINVAL, .path = "model.type", .part = "did you mean \"mlp\""},
    {.model = CHAIN("{\"op\":\"linaer\",\"out\":3}"),
     .code = -EINVAL,
     .path = "model.layers[0].op",
     .part = "did you mean \"linear\""},
    {.model = CHAIN("{\"op\":\"linear\",\"uot\":3}"),
     .code = -EINVAL,
     .path = "model.layers[0].uot",
     .part = "did you mean \"out\""},
    {.optimizer = "{\"type\":\"sgd\",\"lr\":1,\"betas\":[0,0]}",
     .code = -EINVAL,
     .path = "optimizer.betas",
     .part = "unknown key"},
    {.data = "{\"format\":\"synthetic\",\"samples\":1,\"scale\":[0,1]}",
     .code = -EINVAL,
     .path = "data.scale",
     .part = "unknown key"},
    {.rest = ",\"memory\":{\"policy\":\"streem\"}",
     .code = -EINVAL,
     .path = "memory.policy",
     .part = "did you mean \"stream\""},
    {.rest = ",\"memory\":{\"cycle_steps\":0}", .code = -EINVAL, .path = "memory.cycle_steps", .part = "1"},
    {.rest = ",\"memory\":{\"cycle_steps\":65}", .code = -EINVAL, .path = "memory.cycle_steps", .part = "64"},

    /* types */
    {.train = "{\"epochs\":\"5\",\"global_batch\":8}",
     .code = -EINVAL,
     .path = "train.epochs",
     .part = "remove the quotes"},
    {.train = "[]", .code = -EINVAL, .path = "train", .part = "an object"},
    {.model = "7", .code = -EINVAL, .path = "model", .part = "an object"},
    {.model = "{\"type\":\"mlp\",\"input\":\"784\",\"hidden\":[],\"classes\":2}",
     .code = -EINVAL,
     .path = "model.input",
     .part = "a number"},
    {.model = "{\"type\":\"mlp\",\"input\":[2,\"x\"],\"hidden\":[],\"classes\":2}",
     .code = -EINVAL,
     .path = "model.input[1]",
     .part = "a number"},
    {.model = "{\"type\":\"mlp\",\"input\":2,\"hidden\":5,\"classes\":2}",
     .code = -EINVAL,
     .path = "model.hidden",
     .part = "an array"},
    {.model = "{\"type\":\"mlp\",\"input\":2,\"hidden\":[5,null],\"classes\":2}",
     .code = -EINVAL,
     .path = "model.hidden[1]",
     .part = "a number"},
    {.train = "{\"epochs\":1,\"global_batch\":8,\"micro_batch\":\"many\"}",
     .code = -EINVAL,
     .path = "train.micro_batch",
     .part = "\"auto\" or a whole number"},
    {.rest = ",\"precision\":32", .code = -EINVAL, .path = "precision", .part = "a string"},
    {.rest = ",\"checkpoint\":{\"every\":5}",
     .code = -EINVAL,
     .path = "checkpoint.every",
     .part = "an object"},
    {.optimizer = "{\"type\":\"adamw\",\"lr\":1,\"betas\":[0.9]}",
     .code = -EINVAL,
     .path = "optimizer.betas",
     .part = "two numbers"},
    {.optimizer = "{\"type\":\"adamw\",\"lr\":1,\"betas\":[0.9,1]}",
     .code = -EINVAL,
     .path = "optimizer.betas[1]",
     .part = "below 1"},

    /* sizes: negative, zero, too large, overflowing */
    {.train = "{\"epochs\":1,\"global_batch\":-8}",
     .code = -EINVAL,
     .path = "train.global_batch",
     .part = "-8"},
    {.train = "{\"epochs\":1,\"global_batch\":0}",
     .code = -EINVAL,
     .path = "train.global_batch",
     .part = "from 1"},
    {.train = "{\"epochs\":0,\"global_batch\":8}", .code = -EINVAL, .path = "train.epochs", .part = "from 1"},
    {.train = "{\"epochs\":1.5,\"global_batch\":8}",
     .code = -EINVAL,
     .path = "train.epochs",
     .part = "whole"},
    {.train = "{\"epochs\":1,\"global_batch\":99999999999}",
     .code = -EINVAL,
     .path = "train.global_batch",
     .part = "99999999999"},
    {.train = "{\"epochs\":1,\"global_batch\":1e300}",
     .code = -EINVAL,
     .path = "train.global_batch",
     .part = "2^53"},
    {.model = "{\"type\":\"mlp\",\"input\":[65536,65536],\"hidden\":[],\"classes\":2}",
     .code = -EINVAL,
     .path = "model.input[1]",
     .part = "more than"},
    {.model = "{\"type\":\"mlp\",\"input\":[0],\"hidden\":[],\"classes\":2}",
     .code = -EINVAL,
     .path = "model.input",
     .part = "from 1"},
    {.model = "{\"type\":\"mlp\",\"input\":[],\"hidden\":[],\"classes\":2}",
     .code = -EINVAL,
     .path = "model.input",
     .part = "at least one"},
    {.model = "{\"type\":\"mlp\",\"input\":1073741824,\"hidden\":[1073741824],\"classes\":2}",
     .code = -EINVAL,
     .path = "model.hidden[0]",
     .part = "2^50"},
    {.model = "{\"type\":\"mlp\",\"input\":4,\"hidden\":[8,0],\"classes\":2}",
     .code = -EINVAL,
     .path = "model.hidden[1]",
     .part = "from 1"},
    {.model = "{\"type\":\"mlp\",\"input\":1073741824,\"hidden\":[],\"classes\":2}",
     .train = "{\"epochs\":1,\"global_batch\":1000000}",
     .code = -EINVAL,
     .path = "train.global_batch",
     .part = "activations"},
    {.model = CHAIN("{\"repeat\":10000,\"block\":[{\"op\":\"relu\"},{\"op\":\"relu\"}]}"),
     .code = -EINVAL,
     .path = "model.layers[0].block[0]",
     .part = "10000 layers"},
    {.model = CHAIN("{\"repeat\":9999,\"block\":[{\"repeat\":9999,\"block\":[]}]}"),
     .code = -EINVAL,
     .path = "model.layers[0].block[0].block",
     .part = "at least one layer"},
    {.rest = ",\"resources\":{\"device_memory\":\"9XB\"}",
     .code = -EINVAL,
     .path = "resources.device_memory",
     .part = "9GB"},
    {.rest = ",\"resources\":{\"host_memory\":0}",
     .code = -EINVAL,
     .path = "resources.host_memory",
     .part = "auto"},
    {.rest = ",\"resources\":{\"devices\":65}", .code = -EINVAL, .path = "resources.devices", .part = "64"},
    {.rest = ",\"resources\":{\"devices\":{\"min\":3,\"max\":2}}",
     .code = -EINVAL,
     .path = "resources.devices.max",
     .part = "below min 3"},

    /* numbers */
    {.optimizer = "{\"type\":\"adamw\",\"lr\":0}",
     .code = -EINVAL,
     .path = "optimizer.lr",
     .part = "above 0"},
    {.optimizer = "{\"type\":\"adamw\",\"lr\":1e39}",
     .code = -EINVAL,
     .path = "optimizer.lr",
     .part = "at most 3.4028235e+38, the largest float32; found 1e+39"},
    {.optimizer = "{\"type\":\"adamw\",\"lr\":1e308}",
     .code = -EINVAL,
     .path = "optimizer.lr",
     .part = "found 1e+308"},
    {.optimizer = "{\"type\":\"adamw\",\"lr\":1e-60}",
     .code = -EINVAL,
     .path = "optimizer.lr",
     .part = "above 0, and 1e-60 becomes 0 as a float32; write at least 1.4012985e-45"},
    {.optimizer = "{\"type\":\"adamw\",\"lr\":1,\"betas\":[0.9,0.999999999]}",
     .code = -EINVAL,
     .path = "optimizer.betas[1]",
     .part = "below 1, and 0.999999999 becomes 1 as a float32; write at most 0.99999994"},
    {.optimizer = "{\"type\":\"adamw\",\"lr\":1,\"betas\":[\"x\",0.9]}",
     .code = -EINVAL,
     .path = "optimizer.betas[0]",
     .part = "expected a number"},
    {.optimizer = "{\"type\":\"sgd\",\"lr\":1,\"weight_decay\":1e300}",
     .code = -EINVAL,
     .path = "optimizer.weight_decay",
     .part = "largest float32; found 1e+300"},
    {.optimizer = "{\"type\":\"sgd\",\"lr\":1,\"momentum\":1}",
     .code = -EINVAL,
     .path = "optimizer.momentum",
     .part = "below 1"},
    {.optimizer = "{\"type\":\"sgd\",\"lr\":1,\"weight_decay\":-1}",
     .code = -EINVAL,
     .path = "optimizer.weight_decay",
     .part = "0 or"},
    {.model = CHAIN("{\"op\":\"linear\",\"out\":3},{\"op\":\"dropout\",\"p\":0.9999999999}"),
     .code = -EINVAL,
     .path = "model.layers[1].p",
     .part = "0.9999999999 becomes 1 as a float32; write at most 0.99999994"},
    {.train = "{\"epochs\":1,\"global_batch\":8,\"grad_clip\":0}",
     .code = -EINVAL,
     .path = "train.grad_clip",
     .part = "null"},
    {.rest = ",\"schedule\":{\"type\":\"cosine\",\"min_lr_ratio\":2}",
     .code = -EINVAL,
     .path = "schedule.min_lr_ratio",
     .part = "from 0 to 1, found 2"},
    {.rest = ",\"schedule\":{\"type\":\"cosine\",\"min_lr_ratio\":1.0000000000000002}",
     .code = -EINVAL,
     .path = "schedule.min_lr_ratio",
     .part = "from 0 to 1, found 1.0000000000000002"},
    {.rest = ",\"schedule\":{\"type\":\"constant\",\"min_lr_ratio\":0.5}",
     .code = -EINVAL,
     .path = "schedule.min_lr_ratio",
     .part = "remove \"min_lr_ratio\""},
    {.data = "{\"format\":\"idx\",\"train\":{\"images\":\"a\",\"labels\":\"b\"},\"scale\":[1,1]}",
     .code = -EINVAL,
     .path = "data.scale",
     .part = "equal"},
    {.data = "{\"format\":\"idx\",\"train\":{\"images\":\"a\",\"labels\":\"b\"},\"scale\":[0,1e38]}",
     .code = -EINVAL,
     .path = "data.scale[1]",
     .part = "between -8.5070587e+37 and 8.5070587e+37, found 1e+38"},

    /* cross-checks */
    {.train = "{\"epochs\":1,\"global_batch\":256,\"micro_batch\":48}",
     .code = -EINVAL,
     .path = "train.micro_batch",
     .part = "; write 32 or 64, or \"auto\""},
    {.train = "{\"epochs\":1,\"global_batch\":8,\"micro_batch\":9}",
     .code = -EINVAL,
     .path = "train.micro_batch",
     .part = "at most 8"},
    {.train = "{\"epochs\":1,\"global_batch\":24,\"replicas\":5}",
     .code = -EINVAL,
     .path = "train.replicas",
     .part = "5 does not divide global_batch 24; write 4 or 6, or \"auto\""},
    {.train = "{\"epochs\":1,\"global_batch\":8,\"replicas\":1000000}",
     .code = -EINVAL,
     .path = "train.replicas",
     .part = "at most 8"},
    {.train = "{\"epochs\":1,\"global_batch\":8,\"replicas\":0}",
     .code = -EINVAL,
     .path = "train.replicas",
     .part = "from 1 to"},
    {.train = "{\"epochs\":1,\"global_batch\":8,\"replicas\":\"many\"}",
     .code = -EINVAL,
     .path = "train.replicas",
     .part = "auto"},
    {.train = "{\"epochs\":1,\"global_batch\":24,\"replicas\":5,\"micro_batch\":7}",
     .code = -EINVAL,
     .path = "train.replicas",
     .part = "4 or 6"},
    {.train = "{\"epochs\":1,\"global_batch\":24,\"micro_batch\":8,\"replicas\":2}",
     .code = -EINVAL,
     .path = "train.micro_batch",
     .part =
         "8 x 2 replicas does not divide global_batch 24; change micro_batch to 6 or 12, or replicas to 1 "
         "or 3, or write"},
    {.train = "{\"epochs\":1,\"global_batch\":24,\"micro_batch\":7,\"replicas\":3}",
     .code = -EINVAL,
     .path = "train.micro_batch",
     .part = "change micro_batch to 4 or 8, or write"},
    {.train = "{\"epochs\":1,\"global_batch\":24,\"micro_batch\":24,\"replicas\":24}",
     .code = -EINVAL,
     .path = "train.micro_batch",
     .part = "change micro_batch to 1, or replicas to 1, or write"},
    {.train = "{\"epochs\":1,\"steps\":1,\"global_batch\":8}",
     .code = -EINVAL,
     .path = "train.steps",
     .part = "keep one"},
    {.train = "{\"global_batch\":8}", .code = -EINVAL, .path = "train", .part = "\"epochs\" or \"steps\""},
    {.rest = ",\"eval\":{\"every\":{}}", .code = -EINVAL, .path = "eval.every", .part = "one of"},
    {.rest = ",\"eval\":{\"every\":{\"steps\":1,\"epochs\":1}}",
     .code = -EINVAL,
     .path = "eval.every",
     .part = "one of"},
    {.data = "{\"format\":\"synthetic\",\"samples\":1}",
     .rest = ",\"eval\":{\"every\":{\"steps\":1}}",
     .code = -EINVAL,
     .path = "eval",
     .part = "data.val_samples"},
    {.rest = ",\"checkpoint\":{\"best\":\"val/loss\"}",
     .code = -EINVAL,
     .path = "checkpoint.best",
     .part = "\"eval\""},
    {.model = "{\"type\":\"mlp\",\"input\":4,\"hidden\":[],\"classes\":2,\"loss\":\"mse\"}",
     .rest = ",\"eval\":{\"every\":{\"steps\":1}},\"checkpoint\":{\"best\":\"val/accuracy\"}",
     .code = -EINVAL,
     .path = "checkpoint.best",
     .part = "val/loss"},
    {.model = "{\"type\":\"mlp\",\"input\":4,\"hidden\":[],\"classes\":1}",
     .code = -EINVAL,
     .path = "model.classes",
     .part = "at least 2"},
    {.model = CHAIN("{\"op\":\"relu\"}"),
     .code = -EINVAL,
     .path = "model.layers",
     .part = "nothing to train"},
    {.model = CHAIN(""), .code = -EINVAL, .path = "model.layers", .part = "at least one layer"},
    {.rest = ",\"name\":\"../x\"", .code = -EINVAL, .path = "name", .part = "64"},
    {.rest = ",\"name\":\"a\\u001b[2J\"", .code = -EINVAL, .path = "name", .part = "contains U+001B"},
    {.rest = ",\"name\":\"a\x7f\"", .code = -EINVAL, .path = "name", .part = "contains U+007F"},
    {.rest = ",\"name\":\"a\xC2\x9B\"", .code = -EINVAL, .path = "name", .part = "contains U+009B"},
    {.rest = ",\"name\":\"a\\u202eb\"", .code = -EINVAL, .path = "name", .part = "contains U+202E"},
    {.rest = ",\"name\":\"a\\u2067b\"", .code = -EINVAL, .path = "name", .part = "contains U+2067"},
    {.rest = ",\"name\":\"a\\u200bb\"", .code = -EINVAL, .path = "name", .part = "contains U+200B"},
    {.rest = ",\"name\":\"a b\"", .code = -EINVAL, .path = "name", .part = "no space"},
    {.rest = ",\"output\":\"\"", .code = -EINVAL, .path = "output", .part = "empty"},
    {.rest = ",\"queue\":{\"time_limit\":\"2 days\"}",
     .code = -EINVAL,
     .path = "queue.time_limit",
     .part = "2d"},
    {.data = "{\"format\":\"idx\"}", .code = -EINVAL, .path = "data.train", .part = "missing"},
    {.data = "{\"format\":\"idx\",\"train\":{\"images\":\"a\"}}",
     .code = -EINVAL,
     .path = "data.train.labels",
     .part = "missing"},

    /* known, not yet done */
    {.model = "{\"type\":\"vgg\"}", .code = -EOPNOTSUPP, .path = "model.type", .part = "\"mlp\", \"chain\""},
    {.model = "{\"type\":\"gpt2\"}", .code = -EINVAL, .path = "model.layers", .part = "missing"},
    {.model = "{\"from\":\"no such folder\"}",
     .code = -ENOENT,
     .path = "/base/no such folder",
     .part = "folder"},
    {.model = CHAIN("{\"op\":\"conv\",\"out\":64,\"k\":3}"),
     .code = -EOPNOTSUPP,
     .path = "model.layers[0].op",
     .part = "\"linear\""},
    {.model = CHAIN("{\"residual\":[]}"),
     .code = -EINVAL,
     .path = "model.layers[0].residual",
     .part = "at least one"},
    {.data = "{\"format\":\"npy\"}",
     .code = -EOPNOTSUPP,
     .path = "data.format",
     .part = "\"idx\", \"synthetic\""},
    {.rest = ",\"precision\":\"fp8\"", .code = -EINVAL, .path = "precision", .part = "\"bf16\""},
    {.train = "{\"epochs\":1,\"global_batch\":8,\"loss_scale\":{}}",
     .code = -EINVAL,
     .path = "train.loss_scale",
     .part = "this job has fp32"},
    {.train = "{\"epochs\":1,\"global_batch\":8,\"loss_scale\":{\"start\":128}}",
     .rest = ",\"precision\":\"bf16\"",
     .code = -EINVAL,
     .path = "train.loss_scale",
     .part = "this job has bf16"},
    {.train = "{\"epochs\":1,\"global_batch\":8,\"loss_scale\":{\"start\":0.5}}",
     .rest = ",\"precision\":\"fp16\"",
     .code = -EINVAL,
     .path = "train.loss_scale.start",
     .part = "from 1 to"},
    {.train = "{\"epochs\":1,\"global_batch\":8,\"loss_scale\":{\"growth_steps\":0}}",
     .rest = ",\"precision\":\"fp16\"",
     .code = -EINVAL,
     .path = "train.loss_scale.growth_steps",
     .part = "1"},
    {.train = "{\"epochs\":1,\"global_batch\":8,\"loss_scale\":3}",
     .rest = ",\"precision\":\"fp16\"",
     .code = -EINVAL,
     .path = "train.loss_scale",
     .part = "an object"},
    {.rest = ",\"memory\":{\"recompute\":\"always\"}",
     .code = -EOPNOTSUPP,
     .path = "memory.recompute",
     .part = "auto"},
    {.rest = ",\"memory\":{\"file_tier\":\"/x\"}",
     .code = -EOPNOTSUPP,
     .path = "memory.file_tier",
     .part = "not supported yet"},
    {.rest = ",\"queue\":{\"priority\":\"normal\"}",
     .code = -EOPNOTSUPP,
     .path = "queue.priority",
     .part = "not supported yet"},
    {.rest = ",\"queue\":{\"time_limit\":\"1d\",\"preemptible\":true}",
     .code = -EOPNOTSUPP,
     .path = "queue.preemptible",
     .part = "not supported yet"},
    {.rest = ",\"method\":{\"type\":\"local\"}", .code = -EINVAL, .path = "method.scheme", .part = "missing"},
    {.rest = ",\"method\":{\"type\":\"harmony\"}",
     .code = -EINVAL,
     .path = "method.type",
     .part = "backprop"},
    {.rest = ",\"method\":{\"type\":\"local\",\"scheme\":\"chunked\"}",
     .code = -EINVAL,
     .path = "method.blocks",
     .part = "missing"},
    {.rest = ",\"method\":{\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":[[0,0],[2,2]]}",
     .code = -EINVAL,
     .path = "method.blocks[1]",
     .part = "must begin at layer 1"},
    {.rest = ",\"method\":{\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":[[0,0],[1,1]]}",
     .code = -EINVAL,
     .path = "method.blocks[1]",
     .part = "ends at layer 1"},
    {.rest = ",\"method\":{\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":7}",
     .code = -EINVAL,
     .path = "method.blocks",
     .part = "at most 2"},
    {.rest = ",\"method\":{\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":1,\"head\":{\"hidden\":4}}",
     .code = -EINVAL,
     .path = "method.head",
     .part = "remove"},
    {.rest = ",\"method\":{\"type\":\"local\",\"scheme\":\"greedy\",\"blocks\":2}",
     .code = -EINVAL,
     .path = "method.blocks",
     .part = "remove"},
    {.rest = ",\"method\":{\"type\":\"local\",\"scheme\":\"overlapping\",\"blocks\":1,\"resident_steps\":4}",
     .code = -EINVAL,
     .path = "method.resident_steps",
     .part = "every step"},
    {.rest = ",\"method\":{\"type\":\"sil\",\"kappa\":0}",
     .code = -EINVAL,
     .path = "method.kappa",
     .part = "above 0"},
    {.rest = ",\"method\":{\"type\":\"sil\",\"partitions\":[3]}",
     .code = -EINVAL,
     .path = "method.partitions[0]",
     .part = "no weights"},
    {.rest = ",\"method\":{\"type\":\"sil\",\"partitions\":[1.5]}",
     .code = -EINVAL,
     .path = "method.partitions[0]",
     .part = "whole"},
    {.rest = ",\"method\":{\"type\":\"sil\",\"partitions\":[9]}",
     .code = -EINVAL,
     .path = "method.partitions",
     .part = "does not exist"},
    {.rest = ",\"method\":{\"type\":\"sil\",\"partitions\":4}",
     .code = -EINVAL,
     .path = "method.partitions",
     .part = "at most 2"},
    {.rest = ",\"method\":{\"type\":\"sil\",\"each\":[{}]}",
     .code = -EINVAL,
     .path = "method.each",
     .part = "2 objects"},
    {.rest = ",\"method\":{\"type\":\"sil\",\"each\":[{},{\"optimizer\":{\"type\":\"sgd\",\"lr\":-1}}]}",
     .code = -EINVAL,
     .path = "method.each[1].optimizer.lr",
     .part = "above 0"},
    {.rest = ",\"prune\":{\"density\":0.1}",
     .code = -EOPNOTSUPP,
     .path = "prune",
     .part = "not supported yet"},
};

static void test_wrong_specs_are_refused_with_path_and_advice(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        const struct wrong *w = &wrongs[i];
        check_refused(job(w->model, w->data, w->train, w->optimizer, w->rest), w->code, w->path, w->part);
    }
}

/* A daemon of an earlier version accepted these keys; its jobs still run. */
static void test_accepted_spec_may_have_keys_that_are_refused_now(void **state)
{
    const char *text = job(NULL, NULL, NULL, NULL,
                           ",\"queue\":{\"priority\":\"high\",\"time_limit\":\"2s\",\"preemptible\":false}");
    struct spec *s = NULL;

    (void)state;
    check_refused(text, -EOPNOTSUPP, "queue.priority", "not supported yet");
    assert_int_equal(parse_closed(text, &s, NULL), -EOPNOTSUPP);
    const struct spec_options how = {.base_dir = "/base", .accepted = true};
    assert_int_equal(spec_parse(text, strlen(text), "job.json", &how, &s, NULL), 0);
    assert_int_equal(s->queue.time_limit_s, 2);
    spec_destroy(s);
    text = job(NULL, NULL, NULL, NULL, ",\"queue\":{\"prioriti\":\"high\"}");
    assert_int_equal(spec_parse(text, strlen(text), "job.json", &how, &s, NULL), -EINVAL);
}

static void test_wrong_documents_are_refused(void **state)
{
    (void)state;
    check_refused("", -EINVAL, "job.json:1:1", "");
    check_refused("[]", -EINVAL, "", "an object");
    check_refused("{}", -EINVAL, "schema", "missing");
    check_refused("{\"schema\":\"job/v2\"}", -EINVAL, "schema", "job/v1");
    check_refused("{\"schema\":\"job/v1\"}", -EINVAL, "model", "missing");
    check_refused("{\"schema\":\"job/v1\",}", -EINVAL, "job.json:1:20", "");
}

static void test_truncated_and_mutated_specs_never_crash(void **state)
{
    char text[1024];
    size_t n = strlen(job(NULL, NULL, NULL, NULL, ",\"eval\":{\"every\":{\"epochs\":1}}"));
    struct rng r = {.seed = 1};
    struct spec *s;

    (void)state;
    for (size_t i = 0; i < n; i++)
        assert_true(spec_parse(job(NULL, NULL, NULL, NULL, ",\"eval\":{\"every\":{\"epochs\":1}}"), i, "x",
                               &(struct spec_options){0}, &s, NULL) < 0);
    for (int i = 0; i < 20000; i++) {
        memcpy(text, job(NULL, NULL, NULL, NULL, ",\"eval\":{\"every\":{\"epochs\":1}}"), n);
        for (int k = 0; k < 3; k++)
            text[rng_below(&r, (uint32_t)n)] = "0123456789{}[]\",:x-e."[rng_below(&r, 21)];
        if (spec_parse(text, n, "x", &(struct spec_options){0}, &s, NULL) == 0)
            spec_destroy(s);
    }
}

/* ------------------------------------------------------------------------------------------ loading */

static void test_load_reads_comments_and_names_the_file(void **state)
{
    char path[] = "/tmp/test_spec_XXXXXX";
    int fd = mkstemp(path);
    struct spec *s = NULL;
    struct err err;
    FILE *f = fdopen(fd, "w");

    (void)state;
    fprintf(f, "// a job\n%s\n// end\n", job(NULL, NULL, NULL, NULL, NULL));
    fclose(f);
    assert_int_equal(spec_load(path, &(struct spec_options){.comments = true}, &s, &err), 0);
    assert_string_equal(s->output, "./runs/job");
    spec_destroy(s);
    unlink(path);
    assert_int_equal(spec_load(path, &(struct spec_options){.comments = true}, &s, &err), -ENOENT);
    assert_string_equal(err.path, path);
    assert_int_equal(spec_load("/tmp", &(struct spec_options){0}, &s, &err), -EISDIR);
    assert_string_equal(err.path, "/tmp");
}

/* ------------------------------------------------------------------------------------------ resolution */

static void test_epochs_become_steps(void **state)
{
    struct spec *s = resolved(job(NULL, NULL, NULL, NULL, NULL), 100);

    (void)state;
    assert_int_equal(s->resolved.total_steps, 25); /* 2 * 100 / 8 */
    assert_int_equal(s->resolved.phases[0].micro_batch, 8);
    assert_int_equal(s->train.global_batch / s->resolved.phases[0].micro_batch, 1);
    assert_int_equal(spec_resolve(s, (struct spec_sizes){2, 0}, 101, 0, NULL), 0);
    assert_int_equal(s->resolved.total_steps, 26); /* 202 / 8 = 25.25 */
    assert_int_equal(s->train.global_batch / s->resolved.phases[0].micro_batch, 4);
    spec_destroy(s);
}

static void test_resolution_is_checked(void **state)
{
    struct spec *s =
        parse(job(NULL, NULL, "{\"epochs\":4294967295,\"global_batch\":8,\"micro_batch\":4}", NULL, NULL));
    struct err err;

    (void)state;
    assert_int_equal(spec_resolve(s, (struct spec_sizes){2, 0}, 100, 0, &err), -EINVAL);
    assert_string_equal(err.path, "train.micro_batch");
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, 1ull << 40, 0, &err), -EINVAL);
    assert_string_equal(err.path, "train.epochs");
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, 100, 0, &err), -EINVAL);
    assert_string_equal(err.path, "train.epochs");
    assert_int_equal(s->resolved.total_steps, 0);
    spec_destroy(s);
}

static void test_replicas_are_resolved(void **state)
{
    struct spec *s =
        resolved(job(NULL, NULL, "{\"epochs\":1,\"global_batch\":24,\"replicas\":3}", NULL, NULL), 100);
    struct err err;

    (void)state;
    assert_int_equal(s->resolved.phases[0].replicas, 3);
    assert_int_equal(s->resolved.phases[0].micro_batch, 8);                         /* the largest */
    assert_int_equal(s->train.global_batch / s->resolved.phases[0].micro_batch, 3); /* of all of them */
    assert_int_equal(s->resolved.total_steps, 5);
    assert_int_equal(spec_resolve(s, (struct spec_sizes){4, 3}, 100, 0, &err), 0);
    assert_int_equal(s->train.global_batch / s->resolved.phases[0].micro_batch, 6);
    assert_int_equal(spec_resolve(s, (struct spec_sizes){6, 3}, 100, 0, &err), -EINVAL);
    assert_string_equal(err.path, "train.micro_batch");
    assert_int_equal(spec_resolve(s, (struct spec_sizes){4, 2}, 100, 0, &err), -EINVAL);
    assert_string_equal(err.path, "train.replicas");
    spec_destroy(s);

    s = resolved(job(NULL, NULL, "{\"epochs\":1,\"global_batch\":24,\"replicas\":\"auto\"}", NULL, NULL),
                 100);
    assert_int_equal(s->resolved.phases[0].replicas, 1);
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0, 2}, 100, 0, &err), 0); /* what it meant before */
    assert_true(s->resolved.phases[0].replicas == 2 && s->resolved.phases[0].micro_batch == 12);
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0, 7}, 100, 0, &err), -EINVAL);
    assert_string_equal(err.path, "train.replicas");
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0, 100}, 100, 0, &err), -EINVAL);
    assert_string_equal(err.path, "train.replicas");
    spec_destroy(s);
}

static void test_nearest_divisors_are_found(void **state)
{
    uint32_t below, above;

    (void)state;
    for (uint32_t batch = 1; batch <= 60; batch++) {
        for (uint32_t want = 1; want <= 70; want++) {
            uint32_t b = 0, a = 0;
            for (uint32_t d = 1; d <= batch; d++) {
                if (batch % d == 0 && d <= want)
                    b = d;
                if (batch % d == 0 && d >= want && !a)
                    a = d;
            }
            spec_nearest_divisors(batch, want, &below, &above);
            assert_int_equal(below, b);
            assert_int_equal(above, a);
        }
    }
}

/* ------------------------------------------------------------------------------------------ schedule */

#define SCHEDULED(type)                                                                                      \
    job(NULL, NULL, "{\"steps\":20,\"global_batch\":8}", "{\"type\":\"sgd\",\"lr\":0.5}",                    \
        ",\"schedule\":{\"type\":\"" type "\",\"warmup_steps\":4,\"min_lr_ratio\":0.1}")

static void test_lr_warms_up_and_goes_down(void **state)
{
    struct spec *s = resolved(SCHEDULED("cosine"), 100);

    (void)state;
    assert_float_equal(spec_lr(&s->rate, s->resolved.total_steps, 0), 0.125, 1e-12);
    assert_float_equal(spec_lr(&s->rate, s->resolved.total_steps, 3), 0.5, 1e-12);
    assert_float_equal(spec_lr(&s->rate, s->resolved.total_steps, 4), 0.5, 1e-12);
    assert_float_equal(spec_lr(&s->rate, s->resolved.total_steps, 12), 0.5 * 0.55,
                       1e-12); /* halfway: (1 + 0.1) / 2 */
    assert_float_equal(spec_lr(&s->rate, s->resolved.total_steps, 20), 0.05, 1e-12);
    assert_float_equal(spec_lr(&s->rate, s->resolved.total_steps, 1000), 0.05, 1e-12);
    for (uint64_t i = 4; i < 20; i++)
        assert_true(spec_lr(&s->rate, s->resolved.total_steps, i + 1) <
                        spec_lr(&s->rate, s->resolved.total_steps, i) &&
                    spec_lr(&s->rate, s->resolved.total_steps, i) >= 0.05);
    spec_destroy(s);
    s = resolved(SCHEDULED("linear"), 100);
    assert_float_equal(spec_lr(&s->rate, s->resolved.total_steps, 8), 0.5 * (1 - 0.9 * 0.25), 1e-12);
    assert_float_equal(spec_lr(&s->rate, s->resolved.total_steps, 19), 0.5 * (1 - 0.9 * 15 / 16), 1e-12);
    spec_destroy(s);
    s = resolved(job(NULL, NULL, NULL, NULL, NULL), 100);
    assert_true(spec_lr(&s->rate, s->resolved.total_steps, 0) == 0.001 &&
                spec_lr(&s->rate, s->resolved.total_steps, 1000) == 0.001);
    spec_destroy(s);
}

static void test_warmup_longer_than_the_run_never_divides_by_zero(void **state)
{
    struct spec *s = resolved(SCHEDULED("cosine"), 100);

    (void)state;
    s->resolved.total_steps = 4;
    for (uint64_t i = 0; i < 10; i++)
        assert_true(isfinite(spec_lr(&s->rate, s->resolved.total_steps, i)));
    s->resolved.total_steps = 2;
    for (uint64_t i = 0; i < 10; i++)
        assert_true(isfinite(spec_lr(&s->rate, s->resolved.total_steps, i)));
    spec_destroy(s);
}

static void test_due_counts_epochs_and_steps(void **state)
{
    struct spec *s =
        resolved(job(NULL, NULL, NULL, NULL, NULL), 20); /* batches of 8: epochs end in steps 3, 5, 8, 10 */
    struct spec_every epoch = {.epochs = 1}, two = {.epochs = 2}, steps = {.steps = 3}, never = {0};
    struct spec_every huge = {.epochs = UINT64_MAX / 2};

    (void)state;
    for (uint64_t done = 0; done <= 10; done++) {
        assert_int_equal(spec_due(s, &epoch, s->train.global_batch, done),
                         done == 3 || done == 5 || done == 8 || done == 10);
        assert_int_equal(spec_due(s, &two, s->train.global_batch, done), done == 5 || done == 10);
        assert_int_equal(spec_due(s, &steps, s->train.global_batch, done), done && done % 3 == 0);
        assert_false(spec_due(s, &never, s->train.global_batch, done) ||
                     spec_due(s, &huge, s->train.global_batch, done));
    }
    spec_destroy(s);
}

/* ------------------------------------------------------------------------------------------ resolved text */

static uint64_t hash_of(const char *text)
{
    struct spec *s = resolved(text, 100);
    uint64_t h = spec_hash(s);

    spec_destroy(s);
    return h;
}

static void test_hash_changes_with_what_changes_bits_only(void **state)
{
    uint64_t h = hash_of(job(NULL, NULL, NULL, NULL, NULL));

    (void)state;
    /* places, names, resources and, for a constant schedule, the length do not matter */
    assert_true(h == hash_of(job(NULL, NULL, NULL, NULL, ",\"name\":\"x\",\"output\":\"y\"")));
    assert_true(h == hash_of(job(NULL, NULL, NULL, NULL,
                                 ",\"resources\":{\"devices\":4,\"device_memory\":\"1GB\"}")));
    assert_true(h == hash_of(job(NULL, NULL, NULL, NULL, ",\"memory\":{\"policy\":\"stream\"}")));
    assert_true(h == hash_of(job(NULL, NULL, NULL, NULL, ",\"memory\":{\"cycle_steps\":4}")));
    assert_true(h == hash_of(job(NULL, NULL, "{\"epochs\":9,\"global_batch\":8}", NULL, NULL)));
    assert_true(h ==
                hash_of(job(NULL, NULL, "{\"epochs\":2,\"global_batch\":8,\"micro_batch\":8}", NULL, NULL)));
    assert_true(h ==
                hash_of(job(NULL, NULL, "{\"epochs\":2,\"global_batch\":8,\"replicas\":1}", NULL, NULL)));
    /* these do */
    assert_true(h !=
                hash_of(job(NULL, NULL, "{\"epochs\":2,\"global_batch\":8,\"micro_batch\":4}", NULL, NULL)));
    assert_true(h != hash_of(job(NULL, NULL, "{\"epochs\":2,\"global_batch\":16}", NULL, NULL)));
    assert_true(hash_of(job(NULL, NULL, "{\"epochs\":2,\"global_batch\":8,\"micro_batch\":4}", NULL, NULL)) !=
                hash_of(job(NULL, NULL, "{\"epochs\":2,\"global_batch\":8,\"replicas\":2}", NULL, NULL)));
    assert_true(h != hash_of(job(NULL, NULL, NULL, NULL, ",\"init\":{\"seed\":1}")));
    assert_true(h !=
                hash_of(job(NULL, NULL, NULL, "{\"type\":\"adamw\",\"lr\":0.0010000000000000002}", NULL)));
    assert_true(h != hash_of(job(NULL, NULL, NULL, "{\"type\":\"sgd\",\"lr\":0.001}", NULL)));
    assert_true(h != hash_of(job(NULL, NULL, NULL, NULL, ",\"schedule\":{\"type\":\"cosine\"}")));
    assert_true(h != hash_of(job(CHAIN("{\"op\":\"linear\",\"out\":3}"), NULL, NULL, NULL, NULL)));
    assert_true(
        h != hash_of(job(NULL, "{\"format\":\"synthetic\",\"samples\":100,\"seed\":1}", NULL, NULL, NULL)));
}

static void test_resolved_sizes_of_phases_read_back(void **state)
{
    struct spec *s = resolved(job(NULL, NULL, "{\"steps\":2,\"global_batch\":8}", NULL, NULL), 100);
    struct spec_sizes sizes[3], none = {0};
    struct strbuf one = {0}, three = {0};
    struct err err;

    (void)state;
    spec_resolved_json(s, &one);
    assert_null(strstr(one.at, "phases"));
    assert_int_equal(spec_resolve_phase(s, 2, 12, none, (struct spec_sizes){3, 2}, NULL), 0);
    assert_int_equal(spec_resolve_phase(s, 1, 6, (struct spec_sizes){2, 1}, none, NULL), 0);
    assert_int_equal(spec_resolve_phase(s, 1, 6, none, (struct spec_sizes){4, 1}, &err), -EINVAL);
    assert_int_equal(s->resolved.n_phases, 3);
    spec_resolved_json(s, &three);
    assert_int_equal(spec_resolved_sizes(three.at, three.n, 3, sizes, NULL), 0);
    assert_true(sizes[0].micro_batch == 8 && sizes[0].replicas == 1);
    assert_true(sizes[1].micro_batch == 2 && sizes[1].replicas == 1);
    assert_true(sizes[2].micro_batch == 3 && sizes[2].replicas == 2);
    /* The texts of jobs with other numbers of phases give no sizes. */
    assert_int_equal(spec_resolved_sizes(one.at, one.n, 3, sizes, NULL), 0);
    assert_true(sizes[0].micro_batch == 0 && sizes[2].micro_batch == 0);
    strbuf_finish(&one);
    strbuf_finish(&three);
    spec_destroy(s);
}

static void test_resolved_sizes_read_back(void **state)
{
    struct spec *s = resolved(
        job(NULL, NULL, "{\"epochs\":2,\"global_batch\":8,\"micro_batch\":4,\"replicas\":2}", NULL, NULL),
        100);
    static const char *const bad[] = {"",
                                      "{}",
                                      "{\"train\":{\"micro_batch\":4}}",
                                      "{\"train\":{\"replicas\":2}}",
                                      "{\"train\":{\"micro_batch\":4,\"replicas\":0}}",
                                      "{\"train\":{\"micro_batch\":4,\"replicas\":5000000000}}"};
    struct spec_sizes sizes = {0};
    struct strbuf b = {0};

    (void)state;
    spec_resolved_json(s, &b);
    assert_int_equal(spec_resolved_sizes(b.at, b.n, 1, &sizes, NULL), 0);
    assert_true(sizes.micro_batch == 4 && sizes.replicas == 2);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_true(spec_resolved_sizes(bad[i], strlen(bad[i]), 1, &sizes, NULL) < 0);
    assert_true(sizes.micro_batch == 4 && sizes.replicas == 2);
    strbuf_finish(&b);
    spec_destroy(s);
}

static void test_largest_chain_is_built(void **state)
{
    struct spec *s = resolved(
        job(CHAIN("{\"repeat\":9999,\"block\":[{\"op\":\"linear\",\"out\":8}]}"), NULL, NULL, NULL, NULL),
        100);

    (void)state;
    assert_int_equal(s->model.n_layers, SPEC_MAX_LAYERS);
    (void)spec_hash(s);
    spec_destroy(s);
}

/* Whichever allocation fails, a closed reading returns -ENOMEM and leaves nothing behind (the sanitizer
 * counts). */
static void test_without_memory_a_closed_reading_fails_and_leaves_nothing(void **state)
{
    struct strbuf b = {0};
    uint64_t n = 0;

    (void)state;
    strbuf_add(&b, "{\"schema\":\"job/v1\",\"model\":{\"type\":\"chain\",\"input\":6,\"layers\":[");
    for (int i = 0; i < 300; i++)
        strbuf_add(&b, "{\"op\":\"linear\",\"out\":6},{\"residual\":[{\"op\":\"linear\",\"out\":6},{\"op\":"
                       "\"tanh\"}]},");
    strbuf_add(&b, "{\"op\":\"linear\",\"out\":3}]},\"data\":{\"format\":\"synthetic\",\"samples\":64},"
                   "\"train\":{\"steps\":3,\"global_batch\":8},\"optimizer\":{\"type\":\"sgd\",\"lr\":0.1}}");
    struct json *doc = NULL;
    assert_int_equal(json_parse(b.at, b.n, "job", false, &doc, NULL), 0);
    for (bool failed = true; failed;) {
        struct spec *s = NULL;
        struct err err = {0};
        mem_fail_nth(++n);
        int r = spec_read(doc, &(struct spec_options){.base_dir = "/base"}, &s, &err);
        failed = mem_has_failed();
        mem_fail_nth(0);
        if (r != (failed ? -ENOMEM : 0))
            fail_msg("allocation %d: %d %s", (int)n, r, err.msg);
        assert_int_equal(err.code, r);
        assert_true((s != NULL) == (r == 0));
        spec_destroy(s);
    }
    assert_true(n > 5); /* chunks of the arena */
    json_free(doc);
    strbuf_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_memory_a_closed_reading_fails_and_leaves_nothing),
        cmocka_unit_test(test_defaults_are_set),
        cmocka_unit_test(test_demand_fills_in_defaults),
        cmocka_unit_test(test_example_of_the_formats_page_is_read),
        cmocka_unit_test(test_mlp_becomes_a_chain),
        cmocka_unit_test(test_chain_is_expanded),
        cmocka_unit_test(test_every_name_of_the_tables_is_accepted),
        cmocka_unit_test(test_precision_reaches_layers_and_optimizers),
        cmocka_unit_test(test_precision_of_every_part),
        cmocka_unit_test(test_precision_can_be_replaced),
        cmocka_unit_test(test_closed_spec_opens_no_folder),
        cmocka_unit_test(test_wrong_specs_are_refused_with_path_and_advice),
        cmocka_unit_test(test_accepted_spec_may_have_keys_that_are_refused_now),
        cmocka_unit_test(test_wrong_documents_are_refused),
        cmocka_unit_test(test_truncated_and_mutated_specs_never_crash),
        cmocka_unit_test(test_load_reads_comments_and_names_the_file),
        cmocka_unit_test(test_epochs_become_steps),
        cmocka_unit_test(test_resolution_is_checked),
        cmocka_unit_test(test_replicas_are_resolved),
        cmocka_unit_test(test_nearest_divisors_are_found),
        cmocka_unit_test(test_lr_warms_up_and_goes_down),
        cmocka_unit_test(test_warmup_longer_than_the_run_never_divides_by_zero),
        cmocka_unit_test(test_due_counts_epochs_and_steps),
        cmocka_unit_test(test_hash_changes_with_what_changes_bits_only),
        cmocka_unit_test(test_resolved_sizes_of_phases_read_back),
        cmocka_unit_test(test_resolved_sizes_read_back),
        cmocka_unit_test(test_largest_chain_is_built),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
