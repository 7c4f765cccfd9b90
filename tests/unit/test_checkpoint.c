/* Tests of checkpoints: a checkpoint is complete or absent, damage of any byte is found, old checkpoints are
 * removed as configured, and crashes and full disks leave a usable state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/worker/model/checkpoint.h"
#include "tests/unit/layer_running.h"

/* ------------------------------------------------------------------------------------------ a tiny run */

enum { MAX_LAYERS = 8, BLOCK = 256 };

struct run {
    struct spec *spec;
    struct checkpoint_tensors tensors;
    float w[MAX_LAYERS][BLOCK], k[MAX_LAYERS][2 * BLOCK];
};

static struct outdir out;
static struct run *adamw, *sgd, *plain;
static struct run *blocks; /* adamw with layers that a method has added: a head and label vectors */

static void *block(void *ctx, uint32_t layer, enum tensor_kind kind)
{
    struct run *r = ctx;

    return kind == TENSOR_K ? r->k[layer] : r->w[layer];
}

/* The blocks of a layer with buffers, for test_buffers_stand_beside_the_weights. */
struct blocks {
    float w[4], k[4], b[4];
};

static void *block_of_buffers(void *ctx, uint32_t layer, enum tensor_kind kind)
{
    struct blocks *x = &((struct blocks *)ctx)[layer];

    return kind == TENSOR_K ? x->k : kind == TENSOR_B ? x->b : x->w;
}

static void test_buffers_stand_beside_the_weights(void **state)
{
    struct layer layers[2] = {
        {.type = &layer_running, .in = shape_vector(4), .out = shape_vector(4)},
        {.type = &layer_running, .in = shape_vector(4), .out = shape_vector(4)},
    };
    const struct model model = {layers, 2};
    const struct optimizer momentum = {.kind = OPTIMIZER_SGD, .momentum = 0.9f};
    const char *const names[] = {"layers.0.running", "layers.0.weight", "layers.1.running",
                                 "layers.1.weight"};
    struct blocks memory[2];
    struct checkpoint_tensors t;

    (void)state;
    model_number(&model);
    checkpoint_tensors_init(&t, &model, model.n_layers, &momentum, block_of_buffers, memory);
    assert_int_equal(t.n_model, 4);
    assert_int_equal(t.n_optimizer, 2); /* buffers have no optimizer state */
    for (uint32_t i = 0; i < 4; i++) {
        assert_string_equal(t.model[i].name, names[i]);
        assert_ptr_equal(t.model[i].data, i % 2 ? memory[i / 2].w : memory[i / 2].b);
        assert_int_equal(t.model[i].shape[0], 4);
    }
    checkpoint_tensors_finish(&t);
}

static struct run *make_run(const char *optimizer)
{
    struct run *r = calloc(1, sizeof *r);
    struct err err;
    char text[1024];

    snprintf(text, sizeof text,
             "{\"schema\":\"job/"
             "v1\",\"model\":{\"type\":\"chain\",\"input\":3,\"layers\":[{\"op\":\"linear\",\"out\":2},"
             "{\"op\":\"relu\"},{\"op\":\"linear\",\"out\":2,\"bias\":false}]},\"init\":{\"seed\":9},"
             "\"data\":{\"format\":\"synthetic\",\"samples\":10,\"val_samples\":4,\"seed\":5},"
             "\"train\":{\"steps\":100,\"global_batch\":4},\"optimizer\":%s}",
             optimizer);
    if (spec_parse(text, strlen(text), "job", &(struct spec_options){0}, &r->spec, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    assert_int_equal(spec_resolve(r->spec, (struct spec_sizes){2, 0}, 10, 0, NULL), 0);
    checkpoint_tensors_init(&r->tensors, &r->spec->model, r->spec->model.n_layers, &r->spec->optimizer, block,
                            r);
    return r;
}

/* Adds the layers of a method to a run: layer 4 is the output of a head, and layer 5 has label vectors. */
static void add_layers(struct run *r)
{
    static struct layer all[6];

    assert_int_equal(r->spec->model.n_layers, 4);
    memcpy(all, r->spec->model.layers, 4 * sizeof *all);
    all[4] = all[2];
    all[4].name = "heads.0.out";
    all[5] = (struct layer){.type = &layer_label_vectors,
                            .in = shape_vector(2),
                            .name = "labels.0",
                            .label_vectors = {.classes = 2, .scale = 3}};
    for (uint32_t i = 4; i < 6; i++)
        all[i].id = all[i].key = i;
    checkpoint_tensors_finish(&r->tensors);
    checkpoint_tensors_init(&r->tensors, &(struct model){all, 6}, 4, &r->spec->optimizer, block, r);
}

static void destroy_run(struct run *r)
{
    checkpoint_tensors_finish(&r->tensors);
    spec_destroy(r->spec);
    free(r);
}

static void fill(struct run *r, float value)
{
    for (int i = 0; i < MAX_LAYERS; i++) {
        for (int j = 0; j < BLOCK; j++)
            r->w[i][j] = value + (float)(i * 1000 + j);
        for (int j = 0; j < 2 * BLOCK; j++)
            r->k[i][j] = -value - (float)(i * 1000 + j);
    }
}

static struct checkpoint_data data_of(struct run *r, uint64_t step)
{
    return (struct checkpoint_data){.step = step,
                                    .data_position = step * 4,
                                    .spec = r->spec,
                                    .optimizer = &r->spec->optimizer,
                                    .numerics = "cpu \"test\"",
                                    .tensors = &r->tensors};
}

static int save(struct run *r, uint64_t step, struct err *err)
{
    struct checkpoint_data d = data_of(r, step);

    fill(r, (float)step);
    return checkpoint_save(&out, &d, err);
}

static void save_good(struct run *r, uint64_t step)
{
    struct err err;

    if (save(r, step, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
}

static void save_eval(struct run *r, uint64_t step, double loss, double accuracy)
{
    struct checkpoint_data d = data_of(r, step);

    d.eval = (struct checkpoint_eval){.valid = true, .loss = loss, .accuracy = accuracy};
    fill(r, (float)step);
    assert_int_equal(checkpoint_save(&out, &d, NULL), 0);
}

static void save_group(struct run *r, uint64_t step, uint64_t skipped, const struct group_state *group)
{
    struct checkpoint_data d = data_of(r, step);

    d.skipped_steps = skipped;
    d.groups = group;
    d.n_groups = group != NULL;
    fill(r, (float)step);
    assert_int_equal(checkpoint_save(&out, &d, NULL), 0);
}

static struct checkpoint *open_good(uint64_t step)
{
    struct checkpoint *c = NULL;
    struct err err;

    if (checkpoint_open(&out, step, &c, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    return c;
}

static void check_tensors(const struct run *r, const struct run *expected, const struct st_tensor *tensors,
                          size_t n_tensors)
{
    for (size_t i = 0; i < n_tensors; i++) {
        const struct st_tensor *t = &tensors[i];
        ptrdiff_t at = (char *)t->data - (char *)r->w;
        size_t n = sizeof(float);
        for (uint32_t k = 0; k < t->rank; k++)
            n *= t->shape[k];
        assert_memory_equal(t->data, (char *)expected->w + at, n);
    }
}

/* Checks that the checkpoint of a step contains every tensor, bit for bit. */
static void check_loads(struct run *r, uint64_t step)
{
    struct checkpoint *c = open_good(step);
    static struct run expected;

    fill(r, -1);
    assert_int_equal(checkpoint_read_weights(c, &r->tensors, NULL), 0);
    assert_int_equal(checkpoint_read_optimizer(c, &r->tensors, NULL), 0);
    checkpoint_close(c);
    fill(&expected, (float)step);
    check_tensors(r, &expected, r->tensors.model, r->tensors.n_model);
    check_tensors(r, &expected, r->tensors.method, r->tensors.n_method);
    check_tensors(r, &expected, r->tensors.optimizer, r->tensors.n_optimizer);
}

/* ------------------------------------------------------------------------------------------ files */

static int setup_test(void **state)
{
    static char dir[40];

    (void)state;
    strcpy(dir, "/tmp/test_checkpoint_XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    out.name = dir;
    out.fd = open(dir, O_RDONLY | O_DIRECTORY);
    return out.fd < 0;
}

static int teardown_test(void **state)
{
    (void)state;
    close(out.fd);
    return fs_remove_tree(AT_FDCWD, out.name);
}

/* Names in `checkpoints`, sorted, separated by spaces. */
static const char *listing(void)
{
    static char text[512];
    struct dirent **names;
    char path[128];
    int n;

    snprintf(path, sizeof path, "%s/checkpoints", out.name);
    n = scandir(path, &names, NULL, alphasort);
    text[0] = '\0';
    for (int i = 0; i < n; i++) {
        if (names[i]->d_name[0] != '.') {
            strcat(text, text[0] ? " " : "");
            strcat(text, names[i]->d_name);
        }
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    return text;
}

/* Only checkpoints of a method that adds layers have the last file. */
static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                                    "method.safetensors"};

static char *get(const char *name, size_t *n)
{
    char *text;

    assert_int_equal(fs_read_text(out.fd, name, 1 << 20, &text, n), 0);
    return text;
}

static void put(const char *name, const char *text, size_t n)
{
    int fd = openat(out.fd, name, O_WRONLY | O_CREAT | O_TRUNC, 0666);

    assert_true(fd >= 0);
    assert_int_equal(fs_write_all(fd, text, n), 0);
    close(fd);
}

static void check_damaged(uint64_t step, const char *file, const char *part)
{
    struct checkpoint *c = (struct checkpoint *)&c;
    struct err err = {0};
    int r = checkpoint_open(&out, step, &c, &err);

    if (r >= 0)
        fail_msg("damage of %s was not found", file);
    if (r != -EBADMSG || !strstr(err.path, file) || !strstr(err.msg, part) || !strstr(err.msg, "remove"))
        fail_msg("expected \"%s\" in \"%s\", found %d at \"%s\": %s", part, file, r, err.path, err.msg);
    assert_ptr_equal(c, &c);
}

/* ------------------------------------------------------------------------------------------ save, load */

static void test_what_is_saved_is_loaded(void **state)
{
    struct run *runs[] = {adamw, sgd, plain, blocks};

    (void)state;
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "checkpoints/step-%d/method.safetensors", 10 + i);
        save_good(runs[i], 10 + (uint64_t)i);
        check_loads(runs[i], 10 + (uint64_t)i);
        assert_int_equal(faccessat(out.fd, name, F_OK, 0), runs[i] == blocks ? 0 : -1);
    }
    assert_string_equal(listing(), "step-10 step-11 step-12 step-13");
}

static void test_tensors_have_their_names(void **state)
{
    static const char *const names[] = {"layers.0.weight.exp_avg", "layers.0.weight.exp_avg_sq",
                                        "layers.0.bias.exp_avg",   "layers.0.bias.exp_avg_sq",
                                        "layers.2.weight.exp_avg", "layers.2.weight.exp_avg_sq"};

    (void)state;
    assert_int_equal(adamw->tensors.n_model, 3);
    assert_string_equal(adamw->tensors.model[1].name, "layers.0.bias");
    assert_int_equal(adamw->tensors.n_optimizer, 6);
    for (int i = 0; i < 6; i++)
        assert_string_equal(adamw->tensors.optimizer[i].name, names[i]);
    assert_ptr_equal(adamw->tensors.optimizer[2].data,
                     adamw->k[0] + 6); /* m of the bias, after 2 x 3 weights */
    assert_ptr_equal(adamw->tensors.optimizer[3].data,
                     adamw->k[0] + 8 + 6); /* v begins after the whole of m */
    assert_int_equal(sgd->tensors.n_optimizer, 3);
    assert_string_equal(sgd->tensors.optimizer[0].name, "layers.0.weight.momentum_buffer");
    assert_int_equal(plain->tensors.n_optimizer, 0);
}

/* If the optimizer keeps master weights, they are the parameters, and no part of the optimizer state. */
static void test_master_weights_are_the_parameters(void **state)
{
    struct run *r[] = {make_run("{\"type\":\"adamw\",\"lr\":1},\"precision\":\"bf16\""),
                       make_run("{\"type\":\"sgd\",\"lr\":1},\"precision\":\"fp16\"")};

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i]->spec->model.layers[0].w_dtype, i == 0 ? DTYPE_BF16 : DTYPE_F16);
        assert_int_equal(r[i]->tensors.n_model, adamw->tensors.n_model);
        for (size_t k = 0; k < r[i]->tensors.n_model; k++) {
            const struct st_tensor *t = &r[i]->tensors.model[k], *same = &adamw->tensors.model[k];
            assert_string_equal(t->name, same->name);
            assert_int_equal(t->dtype, DTYPE_F32);
            assert_int_equal((char *)t->data - (char *)r[i]->w, (char *)same->data - (char *)adamw->w);
        }
        save_good(r[i], 30 + (uint64_t)i);
        check_loads(r[i], 30 + (uint64_t)i);
    }
    assert_int_equal(r[0]->tensors.n_optimizer, adamw->tensors.n_optimizer);
    assert_string_equal(r[0]->tensors.optimizer[0].name, "layers.0.weight.exp_avg");
    assert_ptr_equal(r[0]->tensors.optimizer[0].data, r[0]->k[0] + 8); /* after the 8 master weights */
    assert_ptr_equal(r[0]->tensors.optimizer[3].data, r[0]->k[0] + 16 + 6);
    assert_int_equal(r[1]->tensors.n_optimizer, 0);
    destroy_run(r[0]);
    destroy_run(r[1]);
}

static void test_added_layers_have_their_names(void **state)
{
    static const char *const names[] = {"heads.0.out.weight", "labels.0.vectors", "labels.0.offsets"};

    (void)state;
    assert_int_equal(blocks->tensors.n_model, 3); /* the model is as without the method */
    assert_int_equal(blocks->tensors.n_method, 3);
    for (int i = 0; i < 3; i++)
        assert_string_equal(blocks->tensors.method[i].name, names[i]);
    assert_int_equal(blocks->tensors.n_optimizer, 8); /* vectors are not trained */
    assert_string_equal(blocks->tensors.optimizer[7].name, "heads.0.out.weight.exp_avg_sq");
    assert_int_equal(adamw->tensors.n_method, 0);
}

static void test_export_has_only_the_model(void **state)
{
    struct checkpoint_data d = data_of(blocks, 5);
    struct safetensors *f = NULL;
    uint64_t bytes;

    (void)state;
    assert_int_equal(checkpoint_export_weights(&out, "model.safetensors", &d, NULL), 0);
    int fd = fs_open_read(out.fd, "model.safetensors", &bytes);
    assert_int_equal(safetensors_open(fd, "model.safetensors", &f, NULL), 0);
    assert_int_equal(safetensors_count(f), 3);
    assert_null(safetensors_find(f, "heads.0.out.weight"));
    safetensors_close(f);
    close(fd);
}

static void test_info_is_what_was_saved(void **state)
{
    const struct checkpoint_info *i;
    struct checkpoint *c;
    struct spec_sizes sizes = {0};

    (void)state;
    save_eval(adamw, 7, 0.1 + 0.2, 1.0 / 3);
    c = open_good(7);
    i = checkpoint_info(c);
    assert_int_equal(i->step, 7);
    assert_int_equal(i->data_position, 28);
    assert_int_equal(i->seed, 9);
    assert_int_equal(i->data_seed, 5);
    assert_true(i->spec_hash == spec_hash(adamw->spec));
    assert_string_equal(i->numerics, "cpu \"test\"");
    assert_true(i->eval.valid && i->eval.loss == 0.1 + 0.2 && i->eval.accuracy == 1.0 / 3);
    assert_int_equal(spec_resolved_sizes(i->resolved, strlen(i->resolved), 1, &sizes, NULL), 0);
    assert_true(sizes.micro_batch == 2 && sizes.replicas == 1);
    checkpoint_close(c);
    save_eval(adamw, 8, NAN, INFINITY);
    c = open_good(8);
    assert_true(checkpoint_info(c)->eval.valid && isnan(checkpoint_info(c)->eval.loss));
    checkpoint_close(c);
    save_good(adamw, 9);
    c = open_good(9);
    assert_false(checkpoint_info(c)->eval.valid);
    checkpoint_close(c);
}

static uint64_t saved_t(uint64_t step)
{
    struct checkpoint *c = open_good(step);
    uint64_t t = checkpoint_info(c)->groups[0].t;

    checkpoint_close(c);
    return t;
}

/* A checkpoint saves AdamW's number of updates t. Older checkpoints have no group state. For these, t is the
 * number of steps minus the number of skipped steps. */
static void test_updates_made_are_what_was_saved(void **state)
{
    const struct group_state group = {.t = 17, .bias_correct1 = 2, .scale = 3, .apply = 1};
    (void)state;

    save_group(adamw, 20, 2, &group);
    assert_int_equal(saved_t(20), 17);
    save_group(adamw, 21, 2, NULL);
    assert_int_equal(saved_t(21), 19);
    save_group(sgd, 22, 4, &group); /* SGD has no part to keep */
    assert_int_equal(saved_t(22), 18);
    save_group(adamw, 23, 24, NULL); /* more skipped than made */
    struct checkpoint *c = NULL;
    assert_int_equal(checkpoint_open(&out, 23, &c, NULL), -EBADMSG);
}

/* The loss scale is saved with the group state, also if the optimizer has nothing else to save. */
static void test_loss_scale_is_what_was_saved(void **state)
{
    const struct group_state group = {.t = 17, .apply = 1, .loss_scale = 0x1.8p20f, .good_steps = 5};
    const char *const optimizers[] = {"{\"type\":\"adamw\",\"lr\":1},\"precision\":\"fp16\"",
                                      "{\"type\":\"sgd\",\"lr\":1},\"precision\":\"fp16\""};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct run *r = make_run(optimizers[i]);
        save_group(r, 20 + (uint64_t)i, 2, &group);
        struct checkpoint *c = open_good(20 + (uint64_t)i);
        const struct group_state *saved = checkpoint_info(c)->groups;
        assert_int_equal(checkpoint_info(c)->n_groups, 1);
        assert_int_equal(saved->t, i == 0 ? 17 : 0);
        assert_true(saved->loss_scale == group.loss_scale);
        assert_int_equal(saved->good_steps, 5);
        checkpoint_close(c);
        destroy_run(r);
    }
    save_group(adamw, 23, 2, &group); /* this job scales no loss */
    struct checkpoint *c = open_good(23);
    assert_true(checkpoint_info(c)->groups->loss_scale == 0);
    checkpoint_close(c);
}

static void test_groups_are_what_was_saved(void **state)
{
    const struct group_state groups[] = {{.t = 17}, {.t = 0}, {.t = 16, .bias_correct1 = 3}};
    struct checkpoint_data d = data_of(blocks, 17);

    (void)state;
    d.groups = groups;
    d.n_groups = 3;
    d.skipped_steps = 17; /* steps in which at least one block was skipped */
    assert_int_equal(checkpoint_save(&out, &d, NULL), 0);
    struct checkpoint *c = open_good(17);
    const struct checkpoint_info *i = checkpoint_info(c);
    assert_int_equal(i->n_groups, 3);
    for (int g = 0; g < 3; g++)
        assert_int_equal(i->groups[g].t, groups[g].t);
    assert_true(i->groups[2].bias_correct1 == 0); /* DECIDE computes it again */
    checkpoint_close(c);
}

static void test_labels_are_what_was_saved(void **state)
{
    const struct checkpoint_labels labels[] = {
        {.phase = 0, .step = 5, .error = 0.1 + 0.2, .nearest = 1.0 / 3},
        {.phase = 2, .step = 9, .error = INFINITY, .nearest = NAN}};
    struct checkpoint_data d = data_of(blocks, 9);
    struct checkpoint *c;

    (void)state;
    save_good(blocks, 8);
    c = open_good(8);
    assert_int_equal(checkpoint_info(c)->n_labels, 0);
    checkpoint_close(c);
    d.n_phases = 5;
    d.phase = 2;
    d.phase_step = 4;
    d.labels = labels;
    d.n_labels = 2;
    assert_int_equal(checkpoint_save(&out, &d, NULL), 0);
    c = open_good(9);
    const struct checkpoint_info *i = checkpoint_info(c);
    assert_int_equal(i->n_labels, 2);
    assert_true(i->labels[0].phase == 0 && i->labels[0].step == 5);
    assert_true(i->labels[0].error == 0.1 + 0.2 && i->labels[0].nearest == 1.0 / 3);
    assert_true(i->labels[1].phase == 2 && i->labels[1].step == 9);
    assert_true(isnan(i->labels[1].error) && isnan(i->labels[1].nearest));
    checkpoint_close(c);
}

static void test_position_is_what_was_saved(void **state)
{
    struct checkpoint_data d = data_of(adamw, 9);
    struct checkpoint *c;

    (void)state;
    save_good(adamw, 8); /* a job with one phase */
    c = open_good(8);
    assert_true(checkpoint_info(c)->phase == 0 && checkpoint_info(c)->phase_step == 8);
    assert_false(checkpoint_info(c)->has_inputs);
    checkpoint_close(c);
    d.n_phases = 4;
    d.phase = 2;
    d.phase_step = 3;
    d.has_inputs = true;
    d.inputs_crc = 0x0badcafe;
    assert_int_equal(checkpoint_save(&out, &d, NULL), 0);
    c = open_good(9);
    assert_true(checkpoint_info(c)->phase == 2 && checkpoint_info(c)->phase_step == 3);
    assert_true(checkpoint_info(c)->has_inputs && checkpoint_info(c)->inputs_crc == 0x0badcafe);
    checkpoint_close(c);
}

static void test_other_tensors_are_refused(void **state)
{
    struct checkpoint *c;
    struct err err;

    (void)state;
    save_good(adamw, 1);
    c = open_good(1);
    assert_int_equal(checkpoint_read_optimizer(c, &sgd->tensors, &err), -EINVAL);
    assert_non_null(strstr(err.path, "optimizer.safetensors"));
    assert_int_equal(checkpoint_read_weights(c, &blocks->tensors, &err), -EINVAL);
    assert_non_null(strstr(err.path, "method.safetensors"));
    checkpoint_close(c);
}

static void test_latest_is_the_largest_number(void **state)
{
    uint64_t step = 77;
    struct err err;

    (void)state;
    assert_int_equal(checkpoint_latest(&out, &step, &err), -ENOENT);
    assert_int_equal(checkpoint_clean(&out, &err), 0);
    assert_int_equal(checkpoint_latest(&out, &step, &err), -ENOENT);
    assert_int_equal(step, 77);
    for (uint64_t s = 9; s <= 11; s++)
        save_good(plain, s);
    mkdirat(out.fd, "checkpoints/step-99.tmp", 0777);
    mkdirat(out.fd, "checkpoints/step-099", 0777);
    mkdirat(out.fd, "checkpoints/step-99x", 0777);
    mkdirat(out.fd, "checkpoints/step-", 0777);
    put("checkpoints/step-98", "", 0);
    assert_int_equal(symlinkat("step-11", out.fd, "checkpoints/step-97"), 0);
    assert_int_equal(checkpoint_latest(&out, &step, &err), 0);
    assert_int_equal(step, 11);
    assert_int_equal(checkpoint_open(&out, 12, &(struct checkpoint *){NULL}, &err), -ENOENT);
    assert_true(checkpoint_open(&out, 97, &(struct checkpoint *){NULL}, &err) < 0);
}

/* ------------------------------------------------------------------------------------------ damage */

/* Flips bits in every byte: all eight bits in state.json, and every third bit in the other files. */
static void test_every_flipped_bit_is_found(void **state)
{
    (void)state;
    save_good(blocks, 5);
    for (int f = 0; f < 4; f++) {
        char name[64], byte, bad;
        struct stat st;
        int fd;
        snprintf(name, sizeof name, "checkpoints/step-5/%s", files[f]);
        fd = openat(out.fd, name, O_RDWR);
        assert_int_equal(fstat(fd, &st), 0);
        for (off_t i = 0; i < st.st_size; i++) {
            assert_int_equal(pread(fd, &byte, 1, i), 1);
            for (int bit = f == 2 ? 0 : (int)(i % 3); bit < 8; bit += f == 2 ? 1 : 3) {
                bad = (char)(byte ^ (1 << bit));
                assert_int_equal(pwrite(fd, &bad, 1, i), 1);
                check_damaged(5, files[f], "");
            }
            assert_int_equal(pwrite(fd, &byte, 1, i), 1);
        }
        close(fd);
        check_loads(blocks, 5);
    }
}

static void test_every_truncation_and_a_tail_are_found(void **state)
{
    (void)state;
    save_good(blocks, 5);
    for (int f = 0; f < 4; f++) {
        char name[64], *text;
        size_t n;
        int fd;
        snprintf(name, sizeof name, "checkpoints/step-5/%s", files[f]);
        text = get(name, &n);
        fd = openat(out.fd, name, O_RDWR);
        assert_int_equal(ftruncate(fd, (off_t)n + 1), 0);
        check_damaged(5, files[f], "");
        for (size_t i = n; i-- > 0;) {
            assert_int_equal(ftruncate(fd, (off_t)i), 0);
            check_damaged(5, files[f], "");
        }
        close(fd);
        unlinkat(out.fd, name, 0);
        check_damaged(5, files[f], "missing");
        put(name, text, n);
        free(text);
    }
    check_loads(blocks, 5);
}

static void test_damage_is_reported_with_numbers_and_the_way_out(void **state)
{
    size_t n;
    char *text;

    (void)state;
    save_good(adamw, 5);
    text = get("checkpoints/step-5/model.safetensors", &n);
    text[n - 1] ^= 1;
    put("checkpoints/step-5/model.safetensors", text, n);
    check_damaged(5, "step-5/model.safetensors", "should have the CRC-32C");
    check_damaged(5, "step-5/model.safetensors", "to start from the beginning");
    save_good(adamw, 3);
    check_damaged(5, "step-5/model.safetensors", "step-5 to resume from step 3");
    put("checkpoints/step-5/model.safetensors", text, n - 2);
    check_damaged(5, "step-5/model.safetensors", "bytes, but has");
    free(text);
}

static void test_renamed_checkpoint_is_refused(void **state)
{
    (void)state;
    save_good(adamw, 5);
    assert_int_equal(renameat(out.fd, "checkpoints/step-5", out.fd, "checkpoints/step-6"), 0);
    check_damaged(6, "step-6", "step 5");
}

static void test_links_in_a_checkpoint_are_not_followed(void **state)
{
    struct checkpoint *c;

    (void)state;
    save_good(adamw, 5);
    assert_int_equal(renameat(out.fd, "checkpoints/step-5/model.safetensors", out.fd, "elsewhere"), 0);
    assert_int_equal(symlinkat("../../elsewhere", out.fd, "checkpoints/step-5/model.safetensors"), 0);
    assert_int_equal(checkpoint_open(&out, 5, &c, NULL), -ELOOP);
}

/* ------------------------------------------------------------------------------------------ saving again */

static void test_sound_checkpoint_is_not_written_again(void **state)
{
    struct stat before, after;

    (void)state;
    save_good(adamw, 5);
    fstatat(out.fd, "checkpoints/step-5/model.safetensors", &before, 0);
    save_good(adamw, 5);
    fstatat(out.fd, "checkpoints/step-5/model.safetensors", &after, 0);
    assert_true(before.st_ino == after.st_ino);
    assert_string_equal(listing(), "step-5");
}

static void test_checkpoint_of_another_spec_is_kept(void **state)
{
    struct err err;

    (void)state;
    save_good(adamw, 5);
    assert_int_equal(save(sgd, 5, &err), -EEXIST);
    check_loads(adamw, 5);
    assert_string_equal(listing(), "step-5");
}

static void test_damaged_checkpoint_is_replaced(void **state)
{
    (void)state;
    save_good(adamw, 5);
    put("checkpoints/step-5/state.json", "x", 1);
    save_good(adamw, 5);
    check_loads(adamw, 5);
    assert_string_equal(listing(), "step-5");
}

/* ------------------------------------------------------------------------------------ crashes, full disks */

static void test_leftovers_are_removed(void **state)
{
    uint64_t step;

    (void)state;
    save_good(adamw, 5);
    mkdirat(out.fd, "checkpoints/step-6.tmp", 0777);
    put("checkpoints/step-6.tmp/model.safetensors", "half", 4);
    mkdirat(out.fd, "checkpoints/step-4.old.tmp", 0777);
    put("checkpoints/step-4.old.tmp/state.json", "half", 4);
    mkdirat(out.fd, "checkpoints/step-4.old.tmp/sub", 0777);
    put("checkpoints/step-7.tmp", "a file", 6);
    put("keep", "x", 1);
    assert_int_equal(symlinkat("../../keep", out.fd, "checkpoints/step-4.old.tmp/link"), 0);
    assert_int_equal(checkpoint_latest(&out, &step, NULL), 0);
    assert_int_equal(step, 5);
    assert_int_equal(checkpoint_clean(&out, NULL), 0);
    assert_string_equal(listing(), "step-5");
    assert_int_equal(faccessat(out.fd, "keep", F_OK, 0), 0);
    mkdirat(out.fd, "checkpoints/step-6.tmp", 0777); /* and saving does not mind one */
    save_good(adamw, 6);
    assert_string_equal(listing(), "step-5 step-6");
    check_loads(adamw, 6);
}

/* A limit on the size of files plays the full disk: at every length, the old one is intact and the new one
 * absent. */
static void test_full_disk_leaves_no_half_checkpoint(void **state)
{
    struct rlimit old, small;
    struct err err = {0};
    int refused = 0, r;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    save_good(adamw, 5);
    for (rlim_t room = 0;; room += 41) {
        small = old;
        small.rlim_cur = room;
        setrlimit(RLIMIT_FSIZE, &small);
        r = save(adamw, 6, &err);
        setrlimit(RLIMIT_FSIZE, &old);
        if (r == 0)
            break;
        assert_int_equal(r, -EFBIG);
        assert_non_null(strstr(err.path, "step-6.tmp/"));
        assert_string_equal(listing(), "step-5");
        refused++;
    }
    assert_true(refused > 20);
    check_loads(adamw, 5);
    check_loads(adamw, 6);
}

/* Without descriptors to spare, at every count. */
static void test_no_descriptors_leaves_no_half_checkpoint(void **state)
{
    struct rlimit old, small;
    struct err err;

    (void)state;
    getrlimit(RLIMIT_NOFILE, &old);
    save_good(blocks, 5);
    for (rlim_t n = (rlim_t)out.fd + 1;; n++) {
        int r;
        small = old;
        small.rlim_cur = n;
        setrlimit(RLIMIT_NOFILE, &small);
        r = save(blocks, 6, &err);
        if (r == 0)
            r = checkpoint_prune(&out, 1, BEST_NONE, &err);
        setrlimit(RLIMIT_NOFILE, &old);
        assert_int_equal(checkpoint_clean(&out, NULL), 0);
        if (r == 0)
            break;
        assert_int_equal(r, -EMFILE);
    }
    assert_string_equal(listing(), "step-6");
    check_loads(blocks, 6);
}

/* Kills a child during its saves, many times, each time a little later. The checkpoints that remain must
 * always be complete. */
static void test_killed_saves_leave_complete_checkpoints_only(void **state)
{
    uint64_t step = 0, begin = clock_now_ns(), one_ns;

    (void)state;
    for (uint64_t s = 1; s <= 4; s++)
        save_good(blocks, s);
    one_ns = (clock_now_ns() - begin) / 4;
    for (int i = 0; i < 40 || step <= 4;
         i++) { /* ever later, until saves succeed: a busy computer forks slowly */
        pid_t pid = fork();
        int status;
        assert_true(pid >= 0);
        if (pid == 0) {
            for (uint64_t s = step + 1; s < step + 1000; s++)
                if (save(blocks, s, NULL) < 0 || checkpoint_prune(&out, 2, BEST_NONE, NULL) < 0)
                    _exit(1);
            _exit(0);
        }
        clock_sleep_ns(one_ns * (uint64_t)i / 13); /* up to three saves later */
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(checkpoint_clean(&out, NULL), 0);
        if (checkpoint_latest(&out, &step, NULL) == 0)
            check_loads(blocks, step);
        assert_null(strstr(listing(), ".tmp"));
    }
}

static void test_missing_directory_is_an_error_with_its_name(void **state)
{
    struct outdir bad = {.fd = -1, .name = "/nowhere"};
    struct checkpoint_data d = data_of(adamw, 1);
    struct err err;

    (void)state;
    assert_int_equal(checkpoint_save(&bad, &d, &err), -EBADF);
    assert_string_equal(err.path, "/nowhere/checkpoints");
    assert_int_equal(checkpoint_clean(&bad, &err), -EBADF);
    assert_int_equal(checkpoint_export_weights(&bad, "m", &d, &err), -EBADF);
}

/* ------------------------------------------------------------------------------------------ retention */

static void test_last_ones_are_kept(void **state)
{
    (void)state;
    for (uint64_t s = 8; s <= 12; s++)
        save_good(plain, s);
    assert_int_equal(checkpoint_prune(&out, 2, BEST_NONE, NULL), 0);
    assert_string_equal(listing(), "step-11 step-12");
    assert_int_equal(checkpoint_prune(&out, 2, BEST_NONE, NULL), 0);
    assert_int_equal(checkpoint_prune(&out, 5, BEST_NONE, NULL), 0);
    assert_string_equal(listing(), "step-11 step-12");
}

static void test_best_is_kept(void **state)
{
    (void)state;
    save_eval(plain, 1, 0.5, 0.6);
    save_eval(plain, 2, 0.9, 0.9); /* best by accuracy, and the first of two */
    save_eval(plain, 3, 0.1, 0.9); /* best by loss */
    save_eval(plain, 4, NAN, NAN);
    save_good(plain, 5); /* not evaluated */
    assert_int_equal(checkpoint_prune(&out, 4, BEST_VAL_ACCURACY, NULL), 0);
    assert_string_equal(listing(), "step-2 step-3 step-4 step-5");
    assert_int_equal(checkpoint_prune(&out, 1, BEST_VAL_ACCURACY, NULL), 0);
    assert_string_equal(listing(), "step-2 step-5");
    save_eval(plain, 6, 0.05, 0.95);
    assert_int_equal(checkpoint_prune(&out, 1, BEST_VAL_ACCURACY, NULL), 0);
    assert_string_equal(listing(), "step-6");
}

static void test_best_by_loss_is_the_smallest(void **state)
{
    (void)state;
    save_eval(plain, 1, NAN, 0.6);
    save_eval(plain, 2, 0.2, 0.1);
    save_eval(plain, 3, 0.3, 0.9);
    save_good(plain, 4);
    assert_int_equal(checkpoint_prune(&out, 1, BEST_VAL_LOSS, NULL), 0);
    assert_string_equal(listing(), "step-2 step-4");
}

static void test_damaged_ones_neither_count_nor_go(void **state)
{
    (void)state;
    for (uint64_t s = 1; s <= 4; s++)
        save_good(plain, s);
    put("checkpoints/step-4/state.json", "x", 1);
    assert_int_equal(checkpoint_prune(&out, 1, BEST_NONE, NULL), 0);
    assert_string_equal(listing(), "step-3 step-4");
}

/* ------------------------------------------------------------------------------------------ weights */

static void test_weights_are_exported(void **state)
{
    struct checkpoint_data d = data_of(adamw, 5);
    struct safetensors *f = NULL;
    struct err err;
    uint64_t bytes;
    int fd;

    (void)state;
    fill(adamw, 5);
    put("model.safetensors", "old", 3);
    put("model.safetensors.tmp", "stale", 5);
    assert_int_equal(checkpoint_export_weights(&out, "model.safetensors", &d, &err), 0);
    fd = fs_open_read(out.fd, "model.safetensors", &bytes);
    assert_int_equal(safetensors_open(fd, "model.safetensors", &f, &err), 0);
    assert_int_equal(safetensors_count(f), 3);
    assert_string_equal(safetensors_meta(f, "format"), "pt");
    assert_string_equal(safetensors_meta(f, "step"), "5");
    assert_non_null(safetensors_find(f, "layers.2.weight"));
    safetensors_close(f);
    close(fd);
    assert_int_equal(faccessat(out.fd, "model.safetensors.tmp", F_OK, 0), -1);
}

/* ------------------------------------------------------------------------------------------ */

static int setup(void **state)
{
    (void)state;
    adamw = make_run("{\"type\":\"adamw\",\"lr\":0.1}");
    sgd = make_run("{\"type\":\"sgd\",\"lr\":0.1,\"momentum\":0.9}");
    plain = make_run("{\"type\":\"sgd\",\"lr\":0.1}");
    blocks = make_run("{\"type\":\"adamw\",\"lr\":0.1}");
    add_layers(blocks);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    destroy_run(adamw);
    destroy_run(sgd);
    destroy_run(plain);
    destroy_run(blocks);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup_test, teardown_test)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buffers_stand_beside_the_weights),
        TEST(test_what_is_saved_is_loaded),
        TEST(test_tensors_have_their_names),
        TEST(test_master_weights_are_the_parameters),
        TEST(test_added_layers_have_their_names),
        TEST(test_export_has_only_the_model),
        TEST(test_info_is_what_was_saved),
        TEST(test_updates_made_are_what_was_saved),
        TEST(test_loss_scale_is_what_was_saved),
        TEST(test_groups_are_what_was_saved),
        TEST(test_labels_are_what_was_saved),
        TEST(test_position_is_what_was_saved),
        TEST(test_other_tensors_are_refused),
        TEST(test_latest_is_the_largest_number),
        TEST(test_every_flipped_bit_is_found),
        TEST(test_every_truncation_and_a_tail_are_found),
        TEST(test_damage_is_reported_with_numbers_and_the_way_out),
        TEST(test_renamed_checkpoint_is_refused),
        TEST(test_links_in_a_checkpoint_are_not_followed),
        TEST(test_sound_checkpoint_is_not_written_again),
        TEST(test_checkpoint_of_another_spec_is_kept),
        TEST(test_damaged_checkpoint_is_replaced),
        TEST(test_leftovers_are_removed),
        TEST(test_full_disk_leaves_no_half_checkpoint),
        TEST(test_no_descriptors_leaves_no_half_checkpoint),
        TEST(test_killed_saves_leave_complete_checkpoints_only),
        TEST(test_missing_directory_is_an_error_with_its_name),
        TEST(test_last_ones_are_kept),
        TEST(test_best_is_kept),
        TEST(test_best_by_loss_is_the_smallest),
        TEST(test_damaged_ones_neither_count_nor_go),
        TEST(test_weights_are_exported),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
