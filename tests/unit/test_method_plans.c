/* Tests the plans of jobs with the methods `local` and `sil`: no gradient crosses from one block to another,
 * the state of a block crosses the link at most once in a cycle, the plan of a partition has nothing of other
 * partitions, and the outputs at a cut move once and count as data.
 *
 * The tests look at the tensors and instructions of verified plans. They find the block or the partition of a
 * layer by the spec, and not by the links that the method makes. tests/cli/cases_local.py and cases_sil.py
 * train with the methods. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/strbuf.h"
#include "daemon/worker/job.h"
#include "scheduler/policy/policy.h"
#include "scheduler/predict/bound.h"

/* The layers 0 to 5 are dense, and layer 6 is the loss. */
#define MLP                                                                                                  \
    "{\"type\":\"mlp\",\"input\":10,\"hidden\":[24,20,18,22,16],\"classes\":4,\"activation\":\"tanh\"}"
#define LAYERS 7
#define BATCH  12
#define INPUT  10

/* ------------------------------------------------------------------------------------------ helpers */

/* Where a job runs. */
struct place {
    uint32_t devices;
    uint64_t device_bytes; /* 0 means plenty */
    enum policy_id policy;
    enum update_place update;
};

static struct prepared_job prepare(const char *method, bool clip, struct place at)
{
    struct strbuf b = {0};
    struct prepared_job j = {.output = "/nonexistent/output"};
    struct err err;
    strbuf_addf(&b,
                "{\"schema\":\"job/v1\",\"model\":" MLP ",\"method\":{%s},"
                "\"data\":{\"format\":\"synthetic\",\"samples\":120,\"val_samples\":12},"
                "\"train\":{\"epochs\":2,\"global_batch\":12,\"micro_batch\":4,\"replicas\":1%s},"
                "\"optimizer\":{\"type\":\"adamw\",\"lr\":0.5}}",
                method, clip ? ",\"grad_clip\":1" : "");
    const struct job_options o = {.devices = at.devices,
                                  .device_bytes = at.device_bytes > 0 ? at.device_bytes : 1u << 20,
                                  .policy = at.policy,
                                  .update = at.update,
                                  .objective = -1,
                                  .profile = "none",
                                  .backend = CHOICE_CPU,
                                  .threads = 1};
    if (spec_parse(b.at, b.n, "job", &(struct spec_options){0}, &j.spec, &err) < 0 ||
        job_prepare(&o, &j, &err) < 0)
        fail_msg("%s: %s", method, err.msg);
    strbuf_finish(&b);
    return j;
}

static void finish(struct prepared_job *j)
{
    j->output = NULL;
    job_finish(j);
}

/* Returns whether an earlier layer of the phase is the same layer. Then layer number `l` is a twin. */
static bool is_twin(const struct phase *p, uint32_t l)
{
    for (uint32_t i = 0; i < l; i++)
        if (p->model.layers[i].id == p->model.layers[l].id)
            return true;
    return false;
}

/* Returns the block of layer number `l` of the phase: the block in its name if it is in a head, otherwise the
 * first block that has the layer, and for a twin the block after that. */
static uint32_t block_of(const struct prepared_job *j, const struct phase *p, uint32_t l)
{
    const struct spec_local *local = &j->spec->local;
    const struct layer *layer = &p->model.layers[l];
    unsigned block;
    if (layer->id >= LAYERS) {
        assert_int_equal(sscanf(layer->name, "heads.%u.", &block), 1);
        return block;
    }
    for (uint32_t i = 0; i < local->n_blocks; i++)
        if (layer->id <= local->blocks[i].last || i + 1 == local->n_blocks)
            return i + is_twin(p, l);
    return PLAN_NONE;
}

/* ------------------------------------------------------------------------------------------ gradients */

/* Bytes that tasks of one block read and that belong to layers of another block. */
struct crossing {
    uint64_t outputs, gradients;
    uint32_t shared; /* gradients of twins, in the updates of their originals */
};

static void count_operand(const struct prepared_job *j, const struct phase *p, const struct plan_instr *in,
                          const struct plan_operand *o, struct crossing *ret)
{
    const struct plan_tensor *t = &p->plan->tensors[o->tensor];
    if (t->layer == PLAN_NONE)
        return;
    uint32_t from = block_of(j, p, t->layer);
    uint32_t to = in->kind == INSTR_DECIDE ? in->group : block_of(j, p, in->layer);
    bool same_layer = in->layer != PLAN_NONE && p->model.layers[t->layer].id == p->model.layers[in->layer].id;
    bool gradient = t->kind == TENSOR_DX || t->kind == TENSOR_DW || t->kind == TENSOR_SUMSQ;
    if (from == to)
        return;
    if (gradient && same_layer && (in->kind == INSTR_UPD || in->kind == INSTR_NORM))
        ret->shared++;
    else if (gradient)
        ret->gradients += operand_bytes(o);
    else if (t->kind == TENSOR_Y)
        ret->outputs += operand_bytes(o);
}

static struct crossing count_crossing(const struct prepared_job *j, const struct phase *p)
{
    struct crossing c = {0};
    const struct plan_program *cycle = &p->plan->programs[PROGRAM_CYCLE];
    for (uint32_t i = 0; i < cycle->n_instrs; i++) {
        const struct plan_instr *in = &cycle->instrs[i];
        for (uint32_t k = 0; !instr_is_move(in->kind) && in->kind != INSTR_DROP && k < in->n_operands; k++)
            count_operand(j, p, in, &cycle->operands[in->operand + k], &c);
    }
    return c;
}

/* Checks that no plan has a gradient of the input of a block. */
static void check_no_input_gradients(const struct prepared_job *j, const struct phase *p)
{
    const struct spec_local *local = &j->spec->local;
    for (uint32_t i = 0; i < p->plan->n_tensors; i++) {
        const struct plan_tensor *t = &p->plan->tensors[i];
        if (t->kind != TENSOR_DX)
            continue;
        const struct layer *l = &p->model.layers[t->layer];
        assert_true(l->id >= LAYERS || l->id != local->blocks[block_of(j, p, t->layer)].first);
    }
}

static const struct place places[] = {
    {1, 0, POLICY_resident, UPDATE_DEVICE},    {1, 24 << 10, POLICY_stream, UPDATE_AUTO},
    {1, 48 << 10, POLICY_blocks, UPDATE_AUTO}, {2, 24 << 10, POLICY_auto, UPDATE_HOST},
    {3, 0, POLICY_auto, UPDATE_DEVICE},        {2, 24 << 10, POLICY_harmony_pp, UPDATE_DEVICE},
    {1, 40 << 10, POLICY_lru, UPDATE_AUTO},
};
#define N_PLACES (sizeof places / sizeof places[0])

/* `shared` is the number of layers with weights that two blocks have. An update reads the gradients of each
 * of them, and so does the task that computes the norm for clipping. */
static void check_gradients(const char *method, uint32_t shared)
{
    for (uint32_t i = 0; i < N_PLACES; i++)
        for (int clip = 0; clip < 2; clip++) {
            struct prepared_job j = prepare(method, clip, places[i]);
            const struct phase *p = &j.phases.at[0];
            const struct crossing c = count_crossing(&j, p);
            assert_int_equal(j.phases.n, 1);
            assert_int_equal(c.gradients, 0);
            assert_true(c.shared >= shared && (shared > 0 || c.shared == 0));
            assert_true(c.outputs > 0); /* the blocks are in fact connected */
            check_no_input_gradients(&j, p);
            finish(&j);
        }
}

static void test_no_gradient_crosses_a_block(void **state)
{
    (void)state;
    check_gradients("\"type\":\"local\",\"scheme\":\"greedy\"", 0);
    check_gradients("\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":3,\"resident_steps\":3", 0);
    check_gradients(
        "\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":[[0,0],[1,6]],\"head\":{\"hidden\":3}", 0);
}

/* Only the update of a shared layer reads a gradient that comes from the block above. */
static void test_gradients_of_shared_layers_meet_in_their_update(void **state)
{
    (void)state;
    check_gradients("\"type\":\"local\",\"scheme\":\"overlapping\",\"blocks\":[[0,1],[1,3],[3,6]]", 2);
    check_gradients("\"type\":\"local\",\"scheme\":\"overlapping\",\"blocks\":[[0,3],[2,6]]", 2);
}

/* With backpropagation, gradients do cross: the count above can see them. */
static void test_gradients_of_backpropagation_cross(void **state)
{
    struct prepared_job j =
        prepare("\"type\":\"local\",\"scheme\":\"chunked\",\"blocks\":1", false, places[0]);
    struct spec_block blocks[] = {{0, 2}, {3, 6}};
    (void)state;
    j.spec->local.n_blocks = 2;
    j.spec->local.blocks = blocks;
    const struct crossing c = count_crossing(&j, &j.phases.at[0]);
    assert_true(c.gradients >= BATCH * 18 * sizeof(float)); /* dX of layer 3 */
    finish(&j);
}

/* ------------------------------------------------------------------------------------------ residency */

/* Returns the bytes of a tensor that one run of the cycle moves in one direction. */
static uint64_t bytes_moved(const struct plan *p, tensor_id tensor, enum instr_kind kind)
{
    const struct plan_program *cycle = &p->programs[PROGRAM_CYCLE];
    uint64_t n = 0;
    for (uint32_t i = 0; i < cycle->n_instrs; i++) {
        const struct plan_instr *in = &cycle->instrs[i];
        if (in->kind == kind && cycle->operands[in->operand].tensor == tensor)
            n += operand_bytes(&cycle->operands[in->operand]);
    }
    return n;
}

/* On a device with space for one block, weights and optimizer state cross the link at most once in a cycle,
 * in each direction, however many steps the cycle has. Gradients never cross it. */
static void test_state_of_a_block_crosses_once_in_a_cycle(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 16; k += 5) {
        char method[128];
        snprintf(method, sizeof method, "\"type\":\"local\",\"scheme\":\"greedy\",\"resident_steps\":%u", k);
        struct prepared_job j =
            prepare(method, false, (struct place){1, 20 << 10, POLICY_blocks, UPDATE_DEVICE});
        const struct plan *p = j.phases.at[0].plan;
        uint64_t state_bytes = 0;
        struct plan_bytes b;
        assert_int_equal(p->steps, k);
        for (tensor_id t = 0; t < p->n_tensors; t++) {
            enum tensor_kind kind = p->tensors[t].kind;
            uint64_t most = kind == TENSOR_W || kind == TENSOR_K ? p->tensors[t].bytes : 0;
            if (kind != TENSOR_W && kind != TENSOR_K && kind != TENSOR_DW)
                continue;
            assert_true(bytes_moved(p, t, INSTR_FETCH) <= most);
            assert_true(bytes_moved(p, t, INSTR_SPILL) <= most);
            state_bytes += most;
        }
        plan_count_bytes(p, PROGRAM_CYCLE, &b);
        assert_true(b.state_in > state_bytes / 2); /* most of it does not fit */
        assert_true(b.state_in <= state_bytes && b.state_out <= state_bytes);
        finish(&j);
    }
}

/* No plan moves less than the bound, with any number of steps in a cycle. */
static void test_plans_move_no_less_than_the_bound(void **state)
{
    static const char *const schemes[] = {
        "\"greedy\",\"resident_steps\":%u",
        "\"chunked\",\"blocks\":3,\"resident_steps\":%u",
        "\"chunked\",\"blocks\":4,\"head\":{\"hidden\":3},\"resident_steps\":%u",
    };
    static const struct place narrow[] = {
        {1, 16 << 10, POLICY_stream, UPDATE_AUTO}, {1, 20 << 10, POLICY_blocks, UPDATE_DEVICE},
        {1, 20 << 10, POLICY_auto, UPDATE_HOST},   {2, 16 << 10, POLICY_auto, UPDATE_AUTO},
        {1, 20 << 10, POLICY_lru, UPDATE_AUTO},    {3, 0, POLICY_auto, UPDATE_DEVICE},
    };
    uint32_t positive = 0;
    (void)state;
    for (uint32_t i = 0; i < 3 * 6; i++)
        for (uint32_t k = 1; k <= 9; k = 2 * k + 1) {
            char method[192], scheme[128];
            struct place at = narrow[i % 6];
            struct plan_bytes b;
            snprintf(scheme, sizeof scheme, schemes[i / 6], k);
            snprintf(method, sizeof method, "\"type\":\"local\",\"scheme\":%s", scheme);
            struct prepared_job j = prepare(method, k % 2 == 0, at);
            const struct plan *p = j.phases.at[0].plan;
            plan_count_bytes(p, PROGRAM_CYCLE, &b);
            assert_true(b.state_in + b.state_out + b.stash_in + b.stash_out >= bound_bytes(p));
            positive += bound_bytes(p) > 0;
            finish(&j);
        }
    assert_true(positive >= 12);
}

/* ------------------------------------------------------------------------------------------ partitions */

#define SIL "\"type\":\"sil\",\"partitions\":[2,4],\"recovery_epochs\":1"

/* Checks that the plan of a phase has tensors of the layers from `first` up to `end` only, and of the label
 * vectors of partition `part`, if it has any. Returns the bytes of weights. */
static uint64_t check_layers(const struct phase *p, uint32_t first, uint32_t end, uint32_t part)
{
    uint64_t w = 0;
    for (uint32_t i = 0; i < p->plan->n_tensors; i++) {
        const struct plan_tensor *t = &p->plan->tensors[i];
        if (t->layer == PLAN_NONE)
            continue;
        uint32_t id = p->model.layers[t->layer].id;
        assert_true((id >= first && id < end) || id == LAYERS + part);
        assert_true(p->training || (t->kind != TENSOR_K && t->kind != TENSOR_DW && t->kind != TENSOR_DX));
        w += t->kind == TENSOR_W ? t->bytes : 0;
    }
    return w;
}

static uint64_t weight_bytes(const struct spec *s, uint32_t first, uint32_t end)
{
    uint64_t n = 0;
    for (uint32_t l = first; l < end; l++)
        n += job_master_bytes(&s->model.layers[l]);
    return n;
}

static void test_plan_of_a_phase_has_one_partition(void **state)
{
    static const uint32_t first[] = {0, 0, 2, 2, 4, 0}, end[] = {2, 2, 4, 4, LAYERS, LAYERS};
    (void)state;
    for (uint32_t i = 0; i < N_PLACES; i++) {
        if (places[i].policy == POLICY_blocks)
            continue;
        struct prepared_job j = prepare(SIL, false, places[i]);
        assert_int_equal(j.phases.n, 6);
        for (uint32_t n = 0; n < 6; n++) {
            const struct phase *p = &j.phases.at[n];
            assert_int_equal(check_layers(p, first[n], end[n], n / 2),
                             weight_bytes(j.spec, first[n], end[n]));
            for (uint32_t d = 0; d < p->plan->n_devices; d++)
                assert_true(p->plan->devices[d].peak_bytes <= p->plan->devices[d].lease_bytes);
        }
        finish(&j);
    }
}

/* The outputs of a partition go out once: samples times units times 4 bytes. The next partition takes them in
 * once in an epoch. Both count as data, and nothing else of a resident plan moves but targets, results and
 * the group state. */
static void test_outputs_cross_the_cut_as_data(void **state)
{
    static const struct place resident[] = {{1, 0, POLICY_resident, UPDATE_DEVICE},
                                            {1, 0, POLICY_auto, UPDATE_DEVICE},
                                            {2, 0, POLICY_resident, UPDATE_DEVICE}};
    static const uint64_t units[] = {INPUT, 20, 22};
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct prepared_job j = prepare(SIL, false, resident[i]);
        for (uint32_t n = 0; n < 5; n++) {
            const struct phase *p = &j.phases.at[n];
            struct plan_bytes b;
            plan_count_bytes(p->plan, PROGRAM_CYCLE, &b);
            uint64_t in = BATCH * units[n / 2] * sizeof(float);
            assert_int_equal(b.state_in + b.state_out + b.stash_in + b.stash_out, 0);
            if (p->training) {
                assert_int_equal(b.data_in - b.group_in, in + BATCH * sizeof(int32_t));
                assert_true(b.data_out <= 3 * sizeof(struct step_result) + sizeof(struct group_state));
            } else {
                assert_int_equal(b.data_in, in);
                assert_int_equal(b.data_out, BATCH * units[n / 2 + 1] * sizeof(float));
            }
        }
        finish(&j);
    }
}

/* A partition that needs little memory gets a plan for little memory. The whole model does not fit there. */
static void test_memory_is_that_of_the_largest_partition(void **state)
{
    const struct place plenty = {1, 0, POLICY_resident, UPDATE_DEVICE};
    uint64_t parts = 0, whole, live[DEVICE_MAX];
    (void)state;
    struct prepared_job j = prepare("\"type\":\"sil\",\"partitions\":[1,2,3,4]", false, plenty);
    for (uint32_t n = 0; n < j.phases.n; n++) {
        const struct phase *p = &j.phases.at[n];
        plan_live_peak(p->plan, live);
        assert_true(live[0] <= phase_everything_bytes(p) + p->plan->n_tensors * 2 * PLAN_ALIGN);
        parts = live[0] > parts ? live[0] : parts;
    }
    finish(&j);
    j = prepare("\"type\":\"backprop\"", false, plenty);
    plan_live_peak(j.phases.at[0].plan, live);
    whole = live[0];
    finish(&j);
    assert_true(2 * parts < whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_gradient_crosses_a_block),
        cmocka_unit_test(test_gradients_of_shared_layers_meet_in_their_update),
        cmocka_unit_test(test_gradients_of_backpropagation_cross),
        cmocka_unit_test(test_state_of_a_block_crosses_once_in_a_cycle),
        cmocka_unit_test(test_plans_move_no_less_than_the_bound),
        cmocka_unit_test(test_plan_of_a_phase_has_one_partition),
        cmocka_unit_test(test_outputs_cross_the_cut_as_data),
        cmocka_unit_test(test_memory_is_that_of_the_largest_partition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
