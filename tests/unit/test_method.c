/* Tests what the training methods make of a job: how they cut models into parts, and which phases, layers,
 * links and groups the parts become. Also tests how the errors against label vectors are judged.
 * tests/cli/cases_sil.py and cases_local.py train with the methods. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>

#include "base/bounded.h"
#include "base/strbuf.h"
#include "daemon/worker/labels.h"
#include "daemon/worker/phase.h"

/* ------------------------------------------------------------------------------------------ helpers */

#define MLP     "{\"type\":\"mlp\",\"input\":4,\"hidden\":[8,6,5],\"classes\":3}"
#define SHALLOW "{\"type\":\"mlp\",\"input\":4,\"hidden\":[],\"classes\":3}"
#define GPT2                                                                                                 \
    "{\"type\":\"gpt2\",\"layers\":3,\"width\":8,\"heads\":2,\"vocab\":20,\"context\":4,\"tied\":false}"
#define LLAMA                                                                                                \
    "{\"type\":\"llama\",\"layers\":2,\"width\":8,\"heads\":2,\"hidden\":12,\"vocab\":20,\"context\":4}"
#define CHAIN(layers) "{\"type\":\"chain\",\"input\":6,\"layers\":[" layers "]}"
#define LINEAR(out)   "{\"op\":\"linear\",\"out\":" #out "}"

static int try_spec(const char *model, const char *method, const char *rest, struct spec **ret,
                    struct err *err)
{
    struct strbuf b = {0};
    strbuf_addf(&b,
                "{\"schema\":\"job/v1\",\"model\":%s,\"method\":{%s},"
                "\"data\":{\"format\":\"synthetic\",\"samples\":100,\"val_samples\":10},"
                "\"train\":{\"epochs\":2,\"global_batch\":8,\"micro_batch\":4},"
                "\"optimizer\":{\"type\":\"sgd\",\"lr\":0.5}%s}",
                model, method, rest);
    int r = spec_parse(b.at, b.n, "job", &(struct spec_options){.base_dir = "/base"}, ret, err);
    strbuf_finish(&b);
    return r;
}

static struct spec *make_spec(const char *model, const char *method, const char *rest)
{
    struct spec *s;
    struct err err;
    if (try_spec(model, method, rest, &s, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, 100, 0, NULL), 0);
    return s;
}

/* A job and its phases. */
struct job {
    struct spec *spec;
    struct phase_list list;
};

static struct job make(const char *model, const char *method, const char *rest)
{
    struct job j = {.spec = make_spec(model, method, rest)};
    struct err err;
    if (phases_make(j.spec, &j.list, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    return j;
}

static void finish(struct job *j)
{
    phases_finish(&j->list);
    spec_destroy(j->spec);
}

static void check_refused(const char *model, const char *method, const char *path, const char *part)
{
    struct spec *s;
    struct err err = {0};
    int r = try_spec(model, method, "", &s, &err);
    if (r != -EINVAL || strcmp(err.path, path) != 0 || strstr(err.msg, part) == NULL)
        fail_msg("%s: expected \"%s\" at %s, found %d at %s: %s", method, part, path, r, err.path, err.msg);
}

static const char *name_of(const struct layer *l)
{
    return l->name != NULL ? l->name : layer_type(l)->name;
}

/* Describes a phase with one line for each layer, such as "4 dense#2 <1 /1 stop": layer 4 of the phase is the
 * dense layer with the id 2, reads the output of layer 1, is in group 1 and returns no gradient. */
static void describe(const struct phase *p, struct strbuf *b)
{
    b->n = 0;
    for (uint32_t i = 0; i < p->model.n_layers; i++) {
        const struct layer *l = &p->model.layers[i];
        struct graph_link k = p->links != NULL ? p->links[i] : graph_chain_link(&p->model, i);
        strbuf_addf(b, "%u %s#%u <", i, name_of(l), l->id);
        if (k.input == PLAN_NONE)
            strbuf_add(b, "X");
        else
            strbuf_addf(b, "%u", k.input);
        strbuf_addf(b, " /%u%s%s", k.group, k.stop ? " stop" : "", l->mean_uses ? " mean" : "");
        if (k.twin_of != PLAN_NONE)
            strbuf_addf(b, " twin %u", k.twin_of);
        if (k.owner != PLAN_NONE)
            strbuf_addf(b, " owner %u", k.owner);
        assert_true(l->tied == (k.owner != PLAN_NONE));
        assert_true(!l->tied || l->owner == k.owner);
        assert_true(l->id < UINT32_MAX && l->key == l->id);
        strbuf_add(b, "\n");
    }
}

static void check_phase(const struct phase *p, const char *expected)
{
    struct strbuf b = {0};
    describe(p, &b);
    assert_string_equal(b.at, expected);
    strbuf_finish(&b);
}

/* ------------------------------------------------------------------------------------------ sil */

/* Checks a training phase of the method `sil`. `lr` is its learning rate. */
static void check_training(const struct phase *p, const char *name, uint32_t inputs, uint64_t steps,
                           uint32_t batch, double lr, bool on_labels)
{
    assert_string_equal(p->name, name);
    assert_true(p->training);
    assert_int_equal(p->inputs, inputs);
    assert_int_equal(p->steps, steps);
    assert_int_equal(p->batch, batch);
    assert_int_equal(p->sizes_as, p->number);
    assert_int_equal(p->n_groups, 1);
    assert_true(p->rate[0].lr == lr);
    assert_int_equal(p->eval, on_labels ? PHASE_EVAL_LABELS : PHASE_EVAL_MODEL);
    assert_int_equal(p->n_labels, on_labels ? 1 : 0);
    const struct layer *loss = &p->model.layers[p->model.n_layers - 1];
    if (!on_labels)
        return;
    assert_true(p->labels[0].kappa == 3.0);
    assert_int_equal(p->labels[0].classes, 3);
    assert_false(p->labels[0].known);
    assert_ptr_equal(loss->type, &layer_label_vectors);
    assert_int_equal(loss->label_vectors.classes, 3);
    assert_true(loss->label_vectors.scale == 3.0f);
    assert_true(shape_same_elements(&loss->in, &p->model.layers[p->model.n_layers - 2].out));
}

/* Checks a forward-only phase, which keeps the outputs that the phase before it has trained. */
static void check_outputs(const struct phase *p, const char *name, uint32_t inputs, uint32_t batch)
{
    assert_string_equal(p->name, name);
    assert_false(p->training);
    assert_int_equal(p->inputs, inputs);
    assert_int_equal(p->batch, batch);
    assert_int_equal(p->steps, 0);
    assert_int_equal(p->sizes_as, p->number - 1);
    assert_int_equal(p->eval, PHASE_EVAL_NONE);
    assert_int_equal(p->n_labels, 0);
}

static void test_sil_with_one_partition_is_backpropagation(void **state)
{
    struct job j = make(MLP, "\"type\":\"sil\",\"partitions\":1", "");
    (void)state;
    assert_int_equal(j.list.n, 1);
    assert_int_equal(j.list.all.n_layers, 5); /* no layer is added */
    check_training(&j.list.at[0], "partition 1 of 1", PHASE_DATA, 25, 8, 0.5, false);
    check_phase(&j.list.at[0], "0 dense#0 <X /0\n"
                               "1 dense#1 <0 /0\n"
                               "2 dense#2 <1 /0\n"
                               "3 dense#3 <2 /0\n"
                               "4 softmax_xent#4 <3 /0\n");
    finish(&j);
}

static void test_sil_with_two_partitions_has_three_phases(void **state)
{
    struct job j = make(MLP, "\"type\":\"sil\"", ""); /* two partitions if the job does not say */
    const struct phase *p = j.list.at;
    (void)state;
    assert_int_equal(j.list.n, 3);
    check_training(&p[0], "partition 1 of 2", PHASE_DATA, 25, 8, 0.5, true);
    check_phase(&p[0], "0 dense#0 <X /0\n"
                       "1 dense#1 <0 /0\n"
                       "2 labels.0#5 <1 /0\n");
    check_outputs(&p[1], "outputs of partition 1", PHASE_DATA, 8);
    check_phase(&p[1], "0 dense#0 <X /0\n"
                       "1 dense#1 <0 /0\n");
    check_training(&p[2], "partition 2 of 2", 1, 25, 8, 0.5, false);
    check_phase(&p[2], "0 dense#2 <X /0\n"
                       "1 dense#3 <0 /0\n"
                       "2 softmax_xent#4 <1 /0\n");
    finish(&j);
}

static void test_sil_with_three_partitions_and_recovery(void **state)
{
    struct job j = make(MLP, "\"type\":\"sil\",\"partitions\":[1,3],\"recovery_epochs\":1", "");
    const struct phase *p = j.list.at;
    (void)state;
    assert_int_equal(j.list.n, 6);
    check_training(&p[0], "partition 1 of 3", PHASE_DATA, 25, 8, 0.5, true);
    check_phase(&p[0], "0 dense#0 <X /0\n"
                       "1 labels.0#5 <0 /0\n");
    check_outputs(&p[1], "outputs of partition 1", PHASE_DATA, 8);
    check_training(&p[2], "partition 2 of 3", 1, 25, 8, 0.5, true);
    check_phase(&p[2], "0 dense#1 <X /0\n"
                       "1 dense#2 <0 /0\n"
                       "2 labels.1#6 <1 /0\n");
    check_outputs(&p[3], "outputs of partition 2", 1, 8);
    check_training(&p[4], "partition 3 of 3", 3, 25, 8, 0.5, false);
    check_training(&p[5], "recovery", PHASE_DATA, 13, 8, 0.5, false);
    assert_int_equal(p[5].model.n_layers, 5);
    assert_int_equal(phases_steps_before(&j.list, 6), 25 + 25 + 25 + 13);
    finish(&j);
}

/* Dropout belongs to the part before it, so the label vectors are compared with what the next part reads. */
static void test_sil_trains_the_outputs_that_the_next_partition_reads(void **state)
{
    struct job j =
        make(CHAIN(LINEAR(5) ",{\"op\":\"relu\"},{\"op\":\"dropout\",\"p\":0.5}," LINEAR(4) "," LINEAR(3)),
             "\"type\":\"sil\"", "");
    (void)state;
    check_phase(&j.list.at[0], "0 dense#0 <X /0\n"
                               "1 activation#1 <0 /0\n"
                               "2 dropout#2 <1 /0\n"
                               "3 labels.0#6 <2 /0\n");
    check_phase(&j.list.at[2], "0 dense#3 <X /0\n"
                               "1 dense#4 <0 /0\n"
                               "2 softmax_xent#5 <1 /0\n");
    finish(&j);
}

/* One phase trains all partitions at once. A partition after the first reads label vectors in training, and
 * the partition before it in evaluations. */
static void test_sil_trains_partitions_at_once(void **state)
{
    struct job j = make(MLP,
                        "\"type\":\"sil\",\"partitions\":[1,3],\"kappa\":5,\"concurrent\":true,"
                        "\"recovery_epochs\":1,\"each\":[{},{\"optimizer\":{\"type\":\"sgd\",\"lr\":2}},{}]",
                        "");
    const struct phase *p = &j.list.at[0];
    (void)state;
    assert_int_equal(j.list.n, 2);
    assert_string_equal(p->name, "all partitions at once");
    check_phase(p, "0 dense#0 <X /0\n"
                   "1 labels.0#5 <0 /0\n"
                   "2 dense#1 <X /1\n"
                   "3 dense#2 <2 /1\n"
                   "4 labels.1#6 <3 /1\n"
                   "5 dense#3 <X /2\n"
                   "6 softmax_xent#4 <5 /2\n");
    assert_int_equal(p->links[2].source, 1);
    assert_int_equal(p->links[5].source, 2);
    assert_int_equal(p->eval_links[2].input, 0);
    assert_int_equal(p->eval_links[5].input, 3);
    assert_int_equal(p->n_sources, 2);
    assert_int_equal(p->sources[1].reader, 5);
    assert_int_equal(p->sources[1].loss, 4);
    assert_int_equal(p->n_groups, 3);
    assert_true(p->rate[1].lr == 2 && p->rate[2].lr != 2);
    assert_int_equal(p->n_labels, 2);
    assert_true(p->labels[1].kappa == 5 && p->labels[1].part == 1 && !p->labels[1].known);
    assert_int_equal(p->eval, PHASE_EVAL_MODEL);
    assert_string_equal(j.list.at[1].name, "recovery");
    finish(&j);
}

/* Every partition may have a length, a batch, an optimizer and a schedule of its own. What it does not give
 * is that of the job. */
static void test_sil_partitions_have_their_own_settings(void **state)
{
    struct job j = make(MLP,
                        "\"type\":\"sil\",\"partitions\":3,\"kappa\":3,\"recovery_epochs\":3,\"each\":["
                        "{\"epochs\":4,\"global_batch\":10,\"optimizer\":{\"type\":\"adamw\",\"lr\":0.25}},"
                        "{\"steps\":7,\"schedule\":{\"type\":\"linear\",\"warmup_steps\":2}},"
                        "{\"global_batch\":16,\"micro_batch\":2,\"replicas\":4}]",
                        ",\"schedule\":{\"type\":\"cosine\",\"min_lr_ratio\":0.5}");
    const struct phase *p = j.list.at;
    (void)state;
    check_training(&p[0], "partition 1 of 3", PHASE_DATA, 40, 10, 0.25, true);
    assert_int_equal(p[0].optimizer[0].kind, OPTIMIZER_ADAMW);
    assert_true(p[0].optimizer[0].beta1 == 0.9f && p[0].optimizer[0].eps == 1e-8f);
    assert_int_equal(p[0].rate[0].type, SCHEDULE_COSINE);
    assert_int_equal(p[0].asked.micro_batch, 0); /* the job's 4 belongs to another batch */
    assert_int_equal(p[1].batch, 10);
    assert_int_equal(p[1].asked.micro_batch, 0);
    check_training(&p[2], "partition 2 of 3", 1, 7, 8, 0.5, true);
    assert_int_equal(p[2].rate[0].type, SCHEDULE_LINEAR);
    assert_int_equal(p[2].rate[0].warmup_steps, 2);
    assert_true(p[2].rate[0].min_lr_ratio == 0);
    assert_int_equal(p[2].optimizer[0].kind, OPTIMIZER_SGD);
    assert_int_equal(p[2].asked.micro_batch, 4);
    check_training(&p[4], "partition 3 of 3", 3, 13, 16, 0.5, false);
    assert_true(p[4].asked.micro_batch == 2 && p[4].asked.replicas == 4);
    check_training(&p[5], "recovery", PHASE_DATA, 38, 8, 0.5, false);
    assert_int_equal(p[5].rate[0].type, SCHEDULE_COSINE);
    finish(&j);
}

static void test_clipping_of_the_job_is_that_of_every_partition(void **state)
{
    struct spec *s;
    struct err err;
    struct phase_list list;
    const char *text =
        "{\"schema\":\"job/v1\",\"model\":" MLP ",\"method\":{\"type\":\"sil\",\"each\":["
        "{\"optimizer\":{\"type\":\"adamw\",\"lr\":0.25}},{}]},"
        "\"data\":{\"format\":\"synthetic\",\"samples\":100},"
        "\"train\":{\"steps\":2,\"global_batch\":8,\"grad_clip\":2.5,\"on_nonfinite\":\"skip\"},"
        "\"optimizer\":{\"type\":\"sgd\",\"lr\":0.5}}";
    (void)state;
    assert_int_equal(spec_parse(text, strlen(text), "job", &(struct spec_options){0}, &s, &err), 0);
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, 100, 0, NULL), 0);
    assert_int_equal(phases_make(s, &list, NULL), 0);
    for (int i = 0; i < 3; i += 2) {
        assert_true(list.at[i].optimizer[0].clip == 2.5f);
        assert_true(list.at[i].skip_nonfinite);
    }
    phases_finish(&list);
    spec_destroy(s);
}

/* ------------------------------------------------------------------------------------------ local */

static void test_local_with_one_block_is_backpropagation(void **state)
{
    struct job j = make(MLP, "\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":1", "");
    (void)state;
    assert_int_equal(j.list.n, 1);
    assert_int_equal(j.list.at[0].n_groups, 1);
    assert_false(j.list.at[0].cycle_auto);
    check_phase(&j.list.at[0], "0 dense#0 <X /0\n"
                               "1 dense#1 <0 /0\n"
                               "2 dense#2 <1 /0\n"
                               "3 dense#3 <2 /0\n"
                               "4 softmax_xent#4 <3 /0\n");
    finish(&j);
}

static void test_chunked_blocks_have_heads(void **state)
{
    struct job j = make(MLP, "\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":2", "");
    const struct phase *p = &j.list.at[0];
    (void)state;
    assert_int_equal(j.list.n, 1);
    assert_string_equal(p->name, "training");
    assert_true(p->training && p->steps == 25 && p->batch == 8 && p->inputs == PHASE_DATA);
    assert_int_equal(p->eval, PHASE_EVAL_MODEL);
    assert_int_equal(p->n_groups, 2);
    assert_true(p->cycle_auto && p->cycle_steps == 1);
    check_phase(p, "0 dense#0 <X /0\n"
                   "1 dense#1 <0 /0\n"
                   "2 heads.0.out#5 <1 /0\n"
                   "3 heads.0.loss#6 <2 /0\n"
                   "4 dense#2 <1 /1 stop\n"
                   "5 dense#3 <4 /1\n"
                   "6 softmax_xent#4 <5 /1\n");
    const struct layer *out = &p->model.layers[2];
    assert_true(out->in.dim[0] == 6 && out->out.dim[0] == 3 && out->dense.bias);
    assert_int_equal(out->dense.act, ACT_NONE);
    assert_ptr_equal(p->model.layers[3].type, &layer_softmax_xent);
    uint32_t losses[2];
    assert_int_equal(phase_losses(p, losses), 2);
    assert_true(losses[0] == 3 && losses[1] == 6);
    assert_int_equal(j.list.n_model, 5);
    assert_int_equal(j.list.all.n_layers, 7);
    finish(&j);
}

static void test_hidden_layer_of_a_head(void **state)
{
    struct job j =
        make(MLP, "\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":2,\"head\":{\"hidden\":11}", "");
    const struct phase *p = &j.list.at[0];
    (void)state;
    check_phase(p, "0 dense#0 <X /0\n"
                   "1 dense#1 <0 /0\n"
                   "2 heads.0.hidden#5 <1 /0\n"
                   "3 heads.0.out#6 <2 /0\n"
                   "4 heads.0.loss#7 <3 /0\n"
                   "5 dense#2 <1 /1 stop\n"
                   "6 dense#3 <5 /1\n"
                   "7 softmax_xent#4 <6 /1\n");
    assert_int_equal(p->model.layers[2].out.dim[0], 11);
    assert_int_equal(p->model.layers[2].dense.act, ACT_RELU);
    assert_int_equal(p->model.layers[3].in.dim[0], 11);
    finish(&j);
}

/* The classifier at the end of the model belongs to the last block. */
static void test_greedy_blocks_are_the_layers_with_weights(void **state)
{
    struct job j = make(MLP, "\"type\":\"local\",\"scheme\":\"greedy\"", "");
    (void)state;
    assert_int_equal(j.list.at[0].n_groups, 3);
    assert_true(j.list.at[0].cycle_auto);
    check_phase(&j.list.at[0], "0 dense#0 <X /0\n"
                               "1 heads.0.out#5 <0 /0\n"
                               "2 heads.0.loss#6 <1 /0\n"
                               "3 dense#1 <0 /1 stop\n"
                               "4 heads.1.out#7 <3 /1\n"
                               "5 heads.1.loss#8 <4 /1\n"
                               "6 dense#2 <3 /2 stop\n"
                               "7 dense#3 <6 /2\n"
                               "8 softmax_xent#4 <7 /2\n");
    finish(&j);
}

/* The shared layer 1 belongs to block 0. Its twin returns the gradient of block 1, and stops it. */
static void test_overlapping_blocks_share_layers(void **state)
{
    struct job j =
        make(MLP, "\"type\":\"local\",\"scheme\":\"overlapping\",\"blocks\":[[0,1],[1,2],[2,4]]", "");
    const struct phase *p = &j.list.at[0];
    (void)state;
    assert_int_equal(p->n_groups, 3);
    assert_false(p->cycle_auto);
    check_phase(p, "0 dense#0 <X /0\n"
                   "1 dense#1 <0 /0 mean\n"
                   "2 heads.0.out#5 <1 /0\n"
                   "3 heads.0.loss#6 <2 /0\n"
                   "4 dense#1 <0 /0 stop mean twin 1 owner 1\n"
                   "5 dense#2 <4 /1 mean\n"
                   "6 heads.1.out#7 <5 /1\n"
                   "7 heads.1.loss#8 <6 /1\n"
                   "8 dense#2 <4 /1 stop mean twin 5 owner 5\n"
                   "9 dense#3 <8 /2\n"
                   "10 softmax_xent#4 <9 /2\n");
    assert_int_equal(phase_find_layer(p, 0), 0);
    assert_int_equal(phase_find_layer(p, 1), 1); /* and not its twin */
    assert_int_equal(phase_find_layer(p, 2), 5);
    assert_int_equal(phase_find_layer(p, 3), 9);
    assert_int_equal(phase_find_layer(p, 7), 6);
    assert_int_equal(phase_find_layer(p, 9), PLAN_NONE);
    finish(&j);
}

/* Blocks may share several layers. Only the first of them stops the gradient. A layer without weights has a
 * twin without an owner. */
static void test_overlap_of_several_layers(void **state)
{
    struct job j = make(CHAIN(LINEAR(5) "," LINEAR(4) ",{\"op\":\"relu\"}," LINEAR(4) "," LINEAR(3)),
                        "\"type\":\"local\",\"scheme\":\"overlapping\",\"blocks\":[[0,2],[1,4]]", "");
    (void)state;
    check_phase(&j.list.at[0], "0 dense#0 <X /0\n"
                               "1 dense#1 <0 /0 mean\n"
                               "2 activation#2 <1 /0\n"
                               "3 heads.0.out#6 <2 /0\n"
                               "4 heads.0.loss#7 <3 /0\n"
                               "5 dense#1 <0 /0 stop mean twin 1 owner 1\n"
                               "6 activation#2 <5 /0 twin 2\n"
                               "7 dense#3 <6 /1\n"
                               "8 dense#4 <7 /1\n"
                               "9 softmax_xent#5 <8 /1\n");
    assert_int_equal(phase_find_layer(&j.list.at[0], 2), 2);
    finish(&j);
}

/* A head of a gpt2 has a norm like that of the model, and a projection of its own to the vocabulary. */
static void test_heads_of_language_models(void **state)
{
    struct job j = make(GPT2, "\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":2", "");
    const struct phase *p = &j.list.at[0];
    (void)state;
    check_phase(p, "0 embedding#0 <X /0\n"
                   "1 positions#1 <0 /0\n"
                   "2 block#2 <1 /0\n"
                   "3 block#3 <2 /0\n"
                   "4 heads.0.norm#7 <3 /0\n"
                   "5 heads.0.out#8 <4 /0\n"
                   "6 block#4 <3 /1 stop\n"
                   "7 norm#5 <6 /1\n"
                   "8 lm_head#6 <7 /1\n");
    assert_true(p->model.layers[4].norm.bias && !p->model.layers[4].norm.rms);
    assert_ptr_equal(p->model.layers[5].type, &layer_lm_head);
    finish(&j);
    j = make(LLAMA, "\"type\":\"local\",\"scheme\":\"greedy\",\"head\":{\"hidden\":5}", "");
    p = &j.list.at[0];
    check_phase(p, "0 embedding#0 <X /0\n"
                   "1 block#1 <0 /0\n"
                   "2 heads.0.norm#5 <1 /0\n"
                   "3 heads.0.hidden#6 <2 /0\n"
                   "4 heads.0.out#7 <3 /0\n"
                   "5 block#2 <1 /1 stop\n"
                   "6 norm#3 <5 /1\n"
                   "7 lm_head#4 <6 /1\n");
    assert_true(p->model.layers[2].norm.rms);
    assert_int_equal(p->model.layers[3].dense.act, ACT_GELU);
    assert_true(p->model.layers[4].in.dim[0] == 4 && p->model.layers[4].in.dim[1] == 5);
    finish(&j);
}

static void test_tied_head_stays_tied_inside_a_block(void **state)
{
    struct job j = make("{\"type\":\"gpt2\",\"layers\":2,\"width\":8,\"heads\":2,\"vocab\":20,\"context\":4}",
                        "\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":1", "");
    (void)state;
    check_phase(&j.list.at[0], "0 embedding#0 <X /0\n"
                               "1 positions#1 <0 /0\n"
                               "2 block#2 <1 /0\n"
                               "3 block#3 <2 /0\n"
                               "4 norm#4 <3 /0\n"
                               "5 lm_head#5 <4 /0 owner 0\n");
    finish(&j);
}

static void test_label_smoothing_is_that_of_every_head(void **state)
{
    struct spec *s;
    struct phase_list list;
    const char *text =
        "{\"schema\":\"job/v1\",\"model\":" MLP ",\"method\":{\"type\":\"local\",\"scheme\":\"greedy\"},"
        "\"data\":{\"format\":\"synthetic\",\"samples\":100},"
        "\"train\":{\"steps\":2,\"global_batch\":8,\"label_smoothing\":0.25},"
        "\"optimizer\":{\"type\":\"sgd\",\"lr\":0.5}}";
    uint32_t losses[3];
    (void)state;
    assert_int_equal(spec_parse(text, strlen(text), "job", &(struct spec_options){0}, &s, NULL), 0);
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, 100, 0, NULL), 0);
    assert_int_equal(phases_make(s, &list, NULL), 0);
    assert_int_equal(phase_losses(&list.at[0], losses), 3);
    for (int i = 0; i < 3; i++)
        assert_true(list.at[0].model.layers[losses[i]].softmax_xent.smoothing == 0.25f);
    phases_finish(&list);
    spec_destroy(s);
}

static void test_blocks_have_their_own_rates(void **state)
{
    struct job j =
        make(MLP,
             "\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":3,\"resident_steps\":4,\"each\":"
             "[{},{\"lr\":0.125},{\"schedule\":{\"type\":\"step\",\"every_steps\":3}}]",
             "");
    const struct phase *p = &j.list.at[0];
    (void)state;
    assert_true(p->rate[0].lr == 0.5 && p->rate[1].lr == 0.125 && p->rate[2].lr == 0.5);
    assert_true(p->rate[0].type == SCHEDULE_CONSTANT && p->rate[2].type == SCHEDULE_STEP);
    assert_true(p->rate[2].every_steps == 3 && p->rate[2].gamma == 0.1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(p->optimizer[i].kind, OPTIMIZER_SGD);
    assert_true(p->cycle_steps == 4 && !p->cycle_auto);
    finish(&j);
}

/* The memory of the list of phases grows with the number of layers, and not with its square. */
static int make_phases(void *arg)
{
    struct job *j = arg;
    return phases_make(j->spec, &j->list, NULL);
}

static uint64_t bytes_of_greedy(const char *model)
{
    struct job j = {.spec = make_spec(model, "\"type\":\"local\",\"scheme\":\"greedy\"", "")};
    struct bounded b = {0};
    assert_int_equal(bounded_run(&b, make_phases, &j), 0);
    finish(&j);
    return b.peak_bytes;
}

static void test_memory_grows_with_the_number_of_heads(void **state)
{
    (void)state;
    uint64_t few = bytes_of_greedy(CHAIN("{\"repeat\":500,\"block\":[" LINEAR(3) "]}"));
    uint64_t many = bytes_of_greedy(CHAIN("{\"repeat\":5000,\"block\":[" LINEAR(3) "]}"));
    assert_in_range(many, few, 20 * few);
}

static void test_too_many_heads_are_refused(void **state)
{
    struct job j = {.spec = make_spec(CHAIN("{\"repeat\":6000,\"block\":[" LINEAR(3) "]}"),
                                      "\"type\":\"local\",\"scheme\":\"greedy\"", "")};
    struct err err = {0};
    (void)state;
    assert_int_equal(phases_make(j.spec, &j.list, &err), -EINVAL);
    assert_string_equal(err.path, "method");
    assert_non_null(strstr(err.msg, "16384 layers"));
    finish(&j);
}

/* ------------------------------------------------------------------------------------------ cuts */

/* Checks where `sil` cuts a model into `n` partitions: the first layers of all partitions but the first. */
static void check_cuts(const char *model, uint32_t n, const char *expected)
{
    char method[64], found[128] = "";
    snprintf(method, sizeof method, "\"type\":\"sil\",\"partitions\":%u", n);
    struct spec *s = make_spec(model, method, "");
    assert_int_equal(s->sil.partitions, n);
    assert_int_equal(s->sil.cuts[0], 0);
    for (uint32_t i = 1; i < n; i++)
        sprintf(found + strlen(found), "%s%u", i > 1 ? " " : "", s->sil.cuts[i]);
    assert_string_equal(found, expected);
    spec_destroy(s);
}

static void check_blocks(const char *model, const char *scheme, uint32_t n, const char *expected)
{
    char method[96], found[256] = "";
    snprintf(method, sizeof method, "\"type\":\"local\",\"scheme\":\"%s\"", scheme);
    if (n > 0)
        sprintf(method + strlen(method), ",\"blocks\":%u", n);
    struct spec *s = make_spec(model, method, "");
    for (uint32_t i = 0; i < s->local.n_blocks; i++)
        sprintf(found + strlen(found), "%s%u-%u", i > 0 ? " " : "", s->local.blocks[i].first,
                s->local.blocks[i].last);
    assert_string_equal(found, expected);
    spec_destroy(s);
}

static void test_parts_have_about_equal_work(void **state)
{
    (void)state;
    /* The work of the layers is as 32 : 48 : 30 : 15, and the last two are one unit. */
    check_cuts(MLP, 1, "");
    check_cuts(MLP, 2, "2");
    check_cuts(MLP, 3, "1 2");
    /* One wide layer is a part of its own, wherever it is. */
    check_cuts(CHAIN(LINEAR(6) "," LINEAR(6) "," LINEAR(600) "," LINEAR(3)), 2, "2");
    check_cuts(CHAIN(LINEAR(600) "," LINEAR(6) "," LINEAR(6) "," LINEAR(3)), 2, "1");
    check_cuts(CHAIN("{\"repeat\":12,\"block\":[" LINEAR(6) "]}"), 4, "3 6 9");
    /* The last layer has nearly all the work: the parts before it have one unit each. */
    check_cuts(CHAIN(LINEAR(6) "," LINEAR(6) "," LINEAR(6) "," LINEAR(6) "," LINEAR(9000)), 4, "1 2 3");
    check_blocks(CHAIN("{\"repeat\":12,\"block\":[" LINEAR(6) "]}"), "chunked", 3, "0-3 4-7 8-12");
}

/* A unit begins with a layer with weights, or with the embedding or the norm before it. Layers without
 * weights follow their unit. */
static void test_units_keep_layers_together(void **state)
{
    (void)state;
    check_blocks(MLP, "greedy", 0, "0-0 1-1 2-4");
    check_blocks(GPT2, "greedy", 0, "0-2 3-3 4-6");
    check_blocks(LLAMA, "greedy", 0, "0-1 2-4");
    check_blocks(CHAIN(LINEAR(5) ",{\"op\":\"relu\"},{\"op\":\"layernorm\"}," LINEAR(
                     4) ",{\"op\":\"tanh\"}," LINEAR(3)),
                 "greedy", 0, "0-1 2-6");
    /* The last norm belongs to the end of the model. */
    check_blocks(CHAIN(LINEAR(5) "," LINEAR(4) ",{\"op\":\"layernorm\"}," LINEAR(3)), "greedy", 0, "0-0 1-4");
    check_blocks(CHAIN(LINEAR(5) "," LINEAR(4) "," LINEAR(3) ",{\"op\":\"layernorm\"}"), "greedy", 0,
                 "0-0 1-1 2-4");
    check_blocks(CHAIN(LINEAR(5) ",{\"residual\":[{\"op\":\"layernorm\"}," LINEAR(5) "]}," LINEAR(3)),
                 "greedy", 0, "0-0 1-3");
    check_blocks(SHALLOW, "greedy", 0, "0-1");
}

static void test_last_unit_has_the_end_of_the_model(void **state)
{
    (void)state;
    /* As many parts as there are units: the projection of a transformer is no unit of its own, and neither is
     * its last norm. */
    check_blocks(GPT2, "chunked", 3, "0-2 3-3 4-6");
    check_blocks(GPT2, "chunked", 1, "0-6");
    check_refused(GPT2, "\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":4", "method.blocks",
                  "3 layers");
    check_refused(MLP, "\"type\":\"sil\",\"partitions\":4", "method.partitions", "3 layers");
}

static void test_overlapping_blocks_share_a_unit(void **state)
{
    (void)state;
    check_blocks(MLP, "overlapping", 1, "0-4");
    check_blocks(MLP, "overlapping", 2, "0-1 1-4");
    check_blocks(GPT2, "overlapping", 2, "0-3 3-6");
    check_refused(MLP, "\"type\":\"local\",\"scheme\":\"overlapping\",\"blocks\":3", "method.blocks",
                  "at most 2");
}

static void test_cuts_do_not_depend_on_the_batch(void **state)
{
    struct spec *a = make_spec(MLP, "\"type\":\"sil\",\"partitions\":3", "");
    struct spec *b = make_spec(MLP,
                               "\"type\":\"sil\",\"partitions\":3,\"each\":[{\"global_batch\":100},{},"
                               "{\"global_batch\":1}]",
                               "");
    (void)state;
    assert_memory_equal(a->sil.cuts, b->sil.cuts, 3 * sizeof *a->sil.cuts);
    spec_destroy(a);
    spec_destroy(b);
}

/* ------------------------------------------------------------------------------------------ refusals */

static void test_models_that_sil_cannot_train_are_refused(void **state)
{
    (void)state;
    check_refused(GPT2, "\"type\":\"sil\"", "method.type", "one class per sample");
    check_refused("{\"type\":\"mlp\",\"input\":4,\"hidden\":[8],\"classes\":3,\"loss\":\"mse\"}",
                  "\"type\":\"sil\"", "method.type", "mse");
    check_refused(CHAIN(LINEAR(5) ",{\"op\":\"relu\"}," LINEAR(3)), "\"type\":\"sil\",\"partitions\":[1,2]",
                  "method.partitions[0]", "layers 1 to 1 have no weights");
    check_refused(CHAIN("{\"op\":\"relu\"}," LINEAR(3)), "\"type\":\"sil\",\"partitions\":[1]",
                  "method.partitions[0]", "layers 0 to 0 have no weights");
    check_refused(MLP, "\"type\":\"sil\",\"partitions\":[4]", "method.partitions[0]", "no weights");
    check_refused(MLP, "\"type\":\"sil\",\"partitions\":[5]", "method.partitions", "does not exist");
    check_refused(MLP, "\"type\":\"sil\",\"partitions\":[2,2]", "method.partitions[1]", "after layer 2");
    check_refused(MLP, "\"type\":\"sil\",\"partitions\":0", "method.partitions", "from 1");
    check_refused(MLP, "\"type\":\"sil\",\"kapa\":1", "method.kapa", "kappa");
    check_refused(MLP, "\"type\":\"sil\",\"each\":[{\"steps\":1,\"epochs\":1},{}]", "method.each[0].steps",
                  "both");
    check_refused(MLP, "\"type\":\"sil\",\"each\":[{},{\"global_batch\":9,\"micro_batch\":2}]",
                  "method.each[1].micro_batch", "divide");
    check_refused(MLP, "\"type\":\"sil\",\"each\":[{},{\"schedule\":{\"type\":\"sine\"}}]",
                  "method.each[1].schedule.type", "cosine");
}

/* Partitions that are trained at once are one phase, with the same steps and batches for all. */
static void test_concurrent_partitions_that_differ_are_refused(void **state)
{
    (void)state;
    check_refused(MLP, "\"type\":\"sil\",\"concurrent\":true,\"keep_outputs\":true", "method.keep_outputs",
                  "no outputs are kept");
    check_refused(MLP, "\"type\":\"sil\",\"concurrent\":true,\"each\":[{},{\"steps\":3}]", "method.each[1]",
                  "\"steps\"");
    check_refused(MLP, "\"type\":\"sil\",\"concurrent\":true,\"each\":[{\"global_batch\":4},{}]",
                  "method.each[0]", "\"global_batch\"");
    check_refused(
        MLP,
        "\"type\":\"sil\",\"concurrent\":true,\"each\":[{},{\"optimizer\":{\"type\":\"adamw\",\"lr\":1}}]",
        "method.each[1]", "\"sgd\"");
    check_refused(MLP,
                  "\"type\":\"sil\",\"concurrent\":true,"
                  "\"each\":[{},{\"optimizer\":{\"type\":\"sgd\",\"lr\":1,\"momentum\":0.5}}]",
                  "method.each[1]", "without momentum");
    check_refused(MLP, "\"type\":\"sil\",\"concurrent\":1", "method.concurrent", "true");
}

static void test_activations_of_a_partition_are_limited(void **state)
{
    (void)state;
    check_refused("{\"type\":\"mlp\",\"input\":1000000,\"hidden\":[8,6],\"classes\":3}",
                  "\"type\":\"sil\",\"each\":[{},{\"global_batch\":1073741824}]",
                  "method.each[1].global_batch", "2^50 bytes");
}

static void test_blocks_that_local_cannot_train_are_refused(void **state)
{
    static const char tied[] =
        "{\"type\":\"gpt2\",\"layers\":2,\"width\":8,\"heads\":2,\"vocab\":20,\"context\":4}";
#define CHUNKED "\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":"
#define OVERLAP "\"type\":\"local\",\"scheme\":\"overlapping\",\"blocks\":"
    (void)state;
    check_refused(tied, CHUNKED "2", "method.blocks", "\"tied\": false");
    check_refused(tied, "\"type\":\"local\",\"scheme\":\"greedy\"", "method.blocks", "\"tied\": false");
    check_refused(MLP, CHUNKED "[[0,1],[3,4]]", "method.blocks[1]", "must begin at layer 2");
    check_refused(MLP, CHUNKED "[[0,1],[1,4]]", "method.blocks[1]", "must begin at layer 2");
    check_refused(MLP, CHUNKED "[[0,1],[2,5]]", "method.blocks[1]", "does not exist");
    check_refused(MLP, CHUNKED "[[0,1],[2,2]]", "method.blocks[1]", "ends at layer 2");
    check_refused(MLP, CHUNKED "[[1,0]]", "method.blocks[0]", "before");
    check_refused(MLP, CHUNKED "[[0,1,2]]", "method.blocks[0]", "[0,3]");
    check_refused(MLP, CHUNKED "[]", "method.blocks", "from 1");
    check_refused(MLP, OVERLAP "[[0,1],[2,4]]", "method.blocks[1]", "such as layer 1");
    check_refused(MLP, OVERLAP "[[0,1],[0,4]]", "method.blocks[1]", "such as layer 1");
    check_refused(MLP, OVERLAP "[[0,2],[1,3],[2,4]]", "method.blocks[2]", "such as layer 3");
    check_refused(GPT2, CHUNKED "[[0,2],[3,5]]", "method.blocks[1]", "ends at layer 6");
    check_refused(CHAIN("{\"op\":\"relu\"}," LINEAR(3)), CHUNKED "[[0,0],[1,1]]", "method.blocks[0]",
                  "have no weights");
    check_refused(CHAIN(LINEAR(4) "," LINEAR(3)), CHUNKED "[[0,1],[2,2]]", "method.blocks[1]",
                  "have no weights");
    check_refused(MLP, CHUNKED "2,\"each\":[{}]", "method.each", "2 objects");
    check_refused(MLP, "\"type\":\"local\",\"scheme\":\"greedy\",\"each\":[{}]", "method.each", "chunked");
    check_refused(MLP, CHUNKED "2,\"each\":[{},{\"lr\":0}]", "method.each[1].lr", "above 0");
    check_refused(MLP, CHUNKED "2,\"head\":{}", "method.head.hidden", "missing");
    check_refused(MLP, CHUNKED "2,\"resident_steps\":65", "method.resident_steps", "64");
    check_refused(MLP, CHUNKED "2,\"max_cycle_seconds\":0", "method.max_cycle_seconds", "above 0");
}

static void test_backprop_has_no_settings(void **state)
{
    (void)state;
    check_refused(MLP, "\"type\":\"backprop\",\"kappa\":3", "method.kappa", "unknown");
}

static void test_steps_of_a_cycle_are_not_for_local(void **state)
{
    struct spec *s;
    struct err err = {0};
    (void)state;
    assert_int_equal(try_spec(MLP, CHUNKED "2", ",\"memory\":{\"cycle_steps\":2}", &s, &err), -EINVAL);
    assert_string_equal(err.path, "memory.cycle_steps");
    struct job j = make(MLP, "\"type\":\"sil\"", ",\"memory\":{\"cycle_steps\":2}");
    assert_true(j.list.at[0].cycle_steps == 2 && j.list.at[1].cycle_steps == 1 &&
                j.list.at[2].cycle_steps == 2);
    finish(&j);
    assert_int_equal(
        try_spec(MLP, "\"type\":\"sil\"", ",\"eval\":{\"every\":{\"epochs\":1},\"heads\":true}", &s, &err),
        -EINVAL);
    assert_string_equal(err.path, "eval.heads");
}

/* ------------------------------------------------------------------------------------------ resolved.json */

/* Checks whether two jobs have the same hash, and so may continue from each other's checkpoints. */
static void check_same(bool same, const char *method, const char *rest, const char *other_method,
                       const char *other_rest)
{
    struct spec *a = make_spec(MLP, method, rest), *b = make_spec(MLP, other_method, other_rest);
    assert_int_equal(spec_hash(a) == spec_hash(b), same);
    spec_destroy(a);
    spec_destroy(b);
}

static void test_hash_has_what_changes_bits(void **state)
{
    static const char sil[] = "\"type\":\"sil\"", local[] = CHUNKED "2";
    (void)state;
    check_same(true, sil, "", "\"type\":\"sil\",\"partitions\":[2],\"kappa\":3,\"each\":[{},{}]", "");
    check_same(false, sil, "", "\"type\":\"sil\",\"partitions\":[1]", "");
    check_same(false, sil, "", "\"type\":\"sil\",\"kappa\":2", "");
    check_same(false, sil, "", "\"type\":\"sil\",\"recovery_epochs\":1", "");
    check_same(false, sil, "", "\"type\":\"sil\",\"concurrent\":true", "");
    check_same(true, sil, "", "\"type\":\"sil\",\"concurrent\":false", "");
    check_same(false, sil, "", "\"type\":\"sil\",\"each\":[{\"epochs\":3},{}]", "");
    check_same(false, sil, "", "\"type\":\"sil\",\"each\":[{},{\"global_batch\":4}]", "");
    check_same(false, sil, "", "\"type\":\"sil\",\"each\":[{},{\"optimizer\":{\"type\":\"sgd\",\"lr\":1}}]",
               "");
    check_same(true, local, "", CHUNKED "[[0,1],[2,4]],\"resident_steps\":5,\"max_cycle_seconds\":1", "");
    check_same(false, local, "", CHUNKED "[[0,2],[3,4]]", "");
    check_same(false, local, "", "\"type\":\"local\",\"scheme\":\"overlapping\",\"blocks\":2", "");
    check_same(false, local, "", CHUNKED "2,\"head\":{\"hidden\":4}", "");
    check_same(false, local, "", CHUNKED "2,\"each\":[{},{\"lr\":0.25}]", "");
    check_same(false, local, "", "\"type\":\"backprop\"", "");
    check_same(true, local, "", local, ",\"eval\":{\"every\":{\"epochs\":1},\"heads\":true}");
    check_same(true, CHUNKED "3", "",
               "\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":[[0,0],[1,1],[2,4]]", "");
}

static uint64_t hash_of_steps(const char *method, uint64_t samples)
{
    struct spec *s = make_spec(MLP, method, "");
    s->train.epochs = 0;
    s->train.steps = samples;
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, 100, 0, NULL), 0);
    uint64_t hash = spec_hash(s);
    spec_destroy(s);
    return hash;
}

/* A job with constant learning rates may be given more steps later. A learning rate that depends on the
 * number of steps forbids this, also if it is the rate of one block. */
static void test_hash_has_the_steps_if_a_rate_depends_on_them(void **state)
{
    static const char constant[] = CHUNKED "2,\"each\":[{\"lr\":0.25},{}]";
    static const char step[] = CHUNKED "2,\"each\":[{\"schedule\":{\"type\":\"step\",\"every_steps\":3}},{}]";
    static const char cosine[] = CHUNKED "2,\"each\":[{\"schedule\":{\"type\":\"cosine\"}},{}]";
    (void)state;
    assert_true(hash_of_steps(constant, 20) == hash_of_steps(constant, 30));
    assert_true(hash_of_steps(step, 20) == hash_of_steps(step, 30));
    assert_true(hash_of_steps(cosine, 20) != hash_of_steps(cosine, 30));
}

/* ------------------------------------------------------------------------------------------ labels */

static void check_verdict(double kappa, uint32_t classes, double relative_error, enum labels_verdict v)
{
    struct labels l = {
        .kappa = kappa, .classes = classes, .known = true, .error = relative_error * kappa * kappa};
    assert_int_equal(labels_judge(&l), v);
}

/* A part whose error is still large has learned something if many samples are nearest to the right vector. */
static void test_near_labels_are_learning(void **state)
{
    struct labels l = {.kappa = 3, .classes = 10, .known = true, .error = 0.675};
    (void)state;
    l.nearest = 0.15;
    assert_int_equal(labels_judge(&l), LABELS_COLLAPSED);
    l.nearest = 0.6;
    assert_int_equal(labels_judge(&l), LABELS_LEARNING);
    l.nearest = NAN;
    assert_int_equal(labels_judge(&l), LABELS_COLLAPSED);
}

static void test_errors_are_judged(void **state)
{
    (void)state;
    for (double kappa = 0.1; kappa < 50; kappa *= 3) {
        for (uint32_t classes = 2; classes <= 1000; classes *= 5) {
            double constant = (1 - 1.0 / classes) / 12;
            check_verdict(kappa, classes, 1.0 / 3, LABELS_DEAD); /* outputs of 0 */
            check_verdict(kappa, classes, 7, LABELS_DEAD);
            check_verdict(kappa, classes, NAN, LABELS_DEAD);
            check_verdict(kappa, classes, INFINITY, LABELS_DEAD);
            check_verdict(kappa, classes, constant, LABELS_COLLAPSED); /* outputs that are the mean vector */
            check_verdict(kappa, classes, 1.05 * constant, LABELS_COLLAPSED);
            check_verdict(kappa, classes, 0.95 * constant, LABELS_COLLAPSED);
            check_verdict(kappa, classes, 0.2, LABELS_LEARNING);
            check_verdict(kappa, classes, 0.03, LABELS_LEARNING);
            check_verdict(kappa, classes, 0.01, LABELS_WORKING);
            check_verdict(kappa, classes, 0, LABELS_WORKING);
        }
    }
}

/* Returns the advice for a part with 10 classes, without validation data. `relative_error` is the error
 * divided by the square of kappa. */
static const char *advice_for(double kappa, double relative_error)
{
    struct labels l = {.kappa = kappa,
                       .classes = 10,
                       .known = true,
                       .error = relative_error * kappa * kappa,
                       .nearest = NAN};
    return labels_advice(&l);
}

static void test_advice_is_given_where_something_is_wrong(void **state)
{
    (void)state;
    assert_null(advice_for(3, 0.01));
    assert_null(advice_for(3, 0.2));
    assert_null(advice_for(0.1, 0.2));
    assert_non_null(strstr(advice_for(3, 1.0 / 3), "learning rate"));
    assert_non_null(strstr(advice_for(3, 0.075), "method.kappa"));
    struct labels l = {.kappa = 3, .classes = 10, .known = true, .over = true, .error = 0.5, .nearest = 0.9};
    assert_non_null(strstr(labels_advice(&l), "train it longer"));
    l.error = 0.1;
    assert_null(labels_advice(&l));
    /* Another learning rate does not help a part that is dead because of kappa. */
    for (double kappa = 0.01; kappa < 5000; kappa *= 10000) {
        assert_non_null(strstr(advice_for(kappa, 1.0 / 3), "method.kappa between 3 and 10"));
        assert_null(strstr(advice_for(kappa, 1.0 / 3), "learning rate"));
    }
    for (int v = 0; v < LABELS_VERDICT_COUNT; v++)
        assert_non_null(labels_verdict_names[v]);
}

/* ------------------------------------------------------------------------------------------ kept outputs */

static void test_outputs_for_validation_are_kept_where_a_later_phase_evaluates(void **state)
{
    struct job j = make(CHAIN(LINEAR(6) "," LINEAR(5) "," LINEAR(4) "," LINEAR(4) "," LINEAR(3)),
                        "\"type\":\"sil\",\"partitions\":4", "");
    struct phase *p = j.list.at;
    (void)state;
    assert_int_equal(j.list.n, 7);
    for (uint32_t i = 1; i < 7; i += 2)
        assert_true(phases_keep_val(&j.list, i));
    p[4].eval = PHASE_EVAL_NONE; /* phase 3 is still read by phase 5, whose outputs phase 6 evaluates */
    p[2].eval = PHASE_EVAL_NONE;
    assert_true(phases_keep_val(&j.list, 1) && phases_keep_val(&j.list, 3) && phases_keep_val(&j.list, 5));
    p[6].eval = PHASE_EVAL_NONE;
    assert_false(phases_keep_val(&j.list, 1) || phases_keep_val(&j.list, 3) || phases_keep_val(&j.list, 5));
    p[2].eval = PHASE_EVAL_LABELS;
    assert_true(phases_keep_val(&j.list, 1) && !phases_keep_val(&j.list, 3));
    assert_int_equal(phases_last_reader(&j.list, 1), 3);
    assert_int_equal(phases_last_reader(&j.list, 5), 6);
    finish(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sil_with_one_partition_is_backpropagation),
        cmocka_unit_test(test_sil_with_two_partitions_has_three_phases),
        cmocka_unit_test(test_sil_with_three_partitions_and_recovery),
        cmocka_unit_test(test_sil_trains_the_outputs_that_the_next_partition_reads),
        cmocka_unit_test(test_sil_trains_partitions_at_once),
        cmocka_unit_test(test_sil_partitions_have_their_own_settings),
        cmocka_unit_test(test_clipping_of_the_job_is_that_of_every_partition),
        cmocka_unit_test(test_local_with_one_block_is_backpropagation),
        cmocka_unit_test(test_chunked_blocks_have_heads),
        cmocka_unit_test(test_hidden_layer_of_a_head),
        cmocka_unit_test(test_greedy_blocks_are_the_layers_with_weights),
        cmocka_unit_test(test_overlapping_blocks_share_layers),
        cmocka_unit_test(test_overlap_of_several_layers),
        cmocka_unit_test(test_heads_of_language_models),
        cmocka_unit_test(test_tied_head_stays_tied_inside_a_block),
        cmocka_unit_test(test_label_smoothing_is_that_of_every_head),
        cmocka_unit_test(test_blocks_have_their_own_rates),
        cmocka_unit_test(test_memory_grows_with_the_number_of_heads),
        cmocka_unit_test(test_too_many_heads_are_refused),
        cmocka_unit_test(test_parts_have_about_equal_work),
        cmocka_unit_test(test_units_keep_layers_together),
        cmocka_unit_test(test_last_unit_has_the_end_of_the_model),
        cmocka_unit_test(test_overlapping_blocks_share_a_unit),
        cmocka_unit_test(test_cuts_do_not_depend_on_the_batch),
        cmocka_unit_test(test_models_that_sil_cannot_train_are_refused),
        cmocka_unit_test(test_concurrent_partitions_that_differ_are_refused),
        cmocka_unit_test(test_activations_of_a_partition_are_limited),
        cmocka_unit_test(test_blocks_that_local_cannot_train_are_refused),
        cmocka_unit_test(test_backprop_has_no_settings),
        cmocka_unit_test(test_steps_of_a_cycle_are_not_for_local),
        cmocka_unit_test(test_hash_has_what_changes_bits),
        cmocka_unit_test(test_hash_has_the_steps_if_a_rate_depends_on_them),
        cmocka_unit_test(test_errors_are_judged),
        cmocka_unit_test(test_near_labels_are_learning),
        cmocka_unit_test(test_advice_is_given_where_something_is_wrong),
        cmocka_unit_test(test_outputs_for_validation_are_kept_where_a_later_phase_evaluates),
    };
    return cmocka_run_group_tests_name("method", tests, NULL, NULL);
}
