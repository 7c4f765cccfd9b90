/* Implements engine.h: runs a chain through planner, verifier and executor.
 *
 * Under the CUDA simulator the harness does what a well-behaved program would do. It reports which host
 * memory it reads and writes, so that the detector also sees races with the loader and the trainer. Each run
 * gets its own interleaving. The backend's byte counters are compared with the bytes that copies really
 * moved. At the end the simulator must have reported no problem.
 */
#include "tests/engine/engine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/strbuf.h"
#include "scheduler/explain/explain.h"
#include "scheduler/verify/verify.h"
#include "swap/exec.h"
#include "swap/store.h"
#include "tests/cudasim/lookup.h"
#include "tests/engine/plan_features.h"
#include "tests/engine/problem.h"
#include "tests/unit/spans.h"

const char *engine_backend = "cpu";

/* Returns whether two numbers have the same bits. All NaNs count as equal, because the sign of a NaN depends
 * on the order in which a compiler puts the operands. */
static bool same(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

void engine_assert_equal(const struct engine_result *a, const struct engine_result *b, const char *what)
{
    for (int s = 0; s < ENGINE_MAX_STEPS; s++) {
        if (!same(a->loss[s], b->loss[s]))
            fail_msg("%s: loss of step %d is %.17g, reference %.17g", what, s, a->loss[s], b->loss[s]);
        if (!same(a->sumsq[s], b->sumsq[s]))
            fail_msg("%s: squared norm of step %d is %.17g, reference %.17g", what, s, a->sumsq[s],
                     b->sumsq[s]);
    }
    if (!same(a->eval_loss, b->eval_loss) || a->eval_correct != b->eval_correct)
        fail_msg("%s: evaluation gives %.17g, reference %.17g", what, a->eval_loss, b->eval_loss);
    if (a->state_hash != b->state_hash)
        fail_msg("%s: weights or optimizer state differ from the reference", what);
}

/* ---- bytes ---- */

struct moved {
    struct device_counters counted;  /* by the backend */
    struct cudasim_copied simulated; /* by the simulator, where there is one */
};

static void look(const struct engine *e, struct moved *ret)
{
    struct cudasim_calls sim;
    const bool simulated = cudasim_lookup(&sim);

    for (uint32_t d = 0; d < e->plan->n_devices; d++) {
        devset_counters(e->ds, d, &ret[d].counted);
        if (simulated)
            sim.copied((int)d, &ret[d].simulated);
    }
}

/* Compares the bytes that the simulator's copies moved with the bytes that the backend counted. Where two
 * devices have no peer access, the simulator sees a copy between them as one copy to the host and one copy
 * from the host. */
static void check_simulated_bytes(const struct engine *e, const struct moved *before, const struct moved *now)
{
    struct cudasim_calls sim;
    uint64_t all_in = 0, all_counted_in = 0;

    if (!cudasim_lookup(&sim))
        return;
    for (uint32_t d = 0; d < e->plan->n_devices; d++) {
        const struct device_counters *c0 = &before[d].counted, *c1 = &now[d].counted;
        const struct cudasim_copied *s0 = &before[d].simulated, *s1 = &now[d].simulated;
        const uint64_t peer = s1->peer_bytes - s0->peer_bytes, counted_peer = c1->peer_bytes - c0->peer_bytes;
        assert_int_equal(s1->out_bytes - s0->out_bytes + peer, c1->out_bytes - c0->out_bytes + counted_peer);
        all_in += s1->in_bytes - s0->in_bytes + peer;
        all_counted_in += c1->in_bytes - c0->in_bytes + counted_peer;
    }
    assert_int_equal(all_in, all_counted_in);
}

static void check_program_bytes(const struct engine *e, enum program_kind k, uint32_t runs,
                                const struct moved *before)
{
    struct moved now[DEVICE_MAX] = {0};
    look(e, now);
    for (uint32_t d = 0; d < e->plan->n_devices; d++) {
        const struct device_counters *c0 = &before[d].counted, *c1 = &now[d].counted;
        struct plan_bytes want;
        plan_count_device_bytes(e->plan, k, d, &want);
        assert_int_equal(c1->in_bytes - c0->in_bytes, runs * want.in);
        assert_int_equal(c1->out_bytes - c0->out_bytes, runs * want.out);
        assert_int_equal(c1->peer_bytes - c0->peer_bytes, runs * want.peer);
    }
    check_simulated_bytes(e, before, now);
}

/* ---- times ---- */

/* Every second machine is measured. The measured times must follow the plan, and measuring must not change
 * the bits. */
static struct plan_span *measure(const struct engine *e)
{
    const uint32_t n = e->plan->programs[PROGRAM_CYCLE].n_instrs;
    const struct engine_machine *m = e->machine;
    if ((e->c->seed + m->n_devices + m->threads + (m->capacity_bytes >> 8)) % 2)
        return NULL;
    struct plan_span *spans = xcalloc((size_t)ENGINE_CYCLES * n, sizeof *spans);
    assert_int_equal(exec_trace(e->exec, 0, ENGINE_CYCLES, spans), 0);
    return spans;
}

static void check_measured(const struct engine *e, struct plan_span *spans)
{
    const uint32_t since_entry[ENGINE_CYCLES] = {0, 1, 2, 3, 0}; /* see train */
    assert_int_equal(exec_traced(e->exec), spans ? ENGINE_CYCLES : 0);
    if (spans)
        assert_spans_follow_plan(e->plan, spans, ENGINE_CYCLES, since_entry);
    free(spans);
}

/* ---- what loader and trainer do ---- */

/* The host copy of a tensor as a run of the cycle uses it, for the host thread to read or write. NULL without
 * one. */
static void *host_at(const struct engine *e, tensor_id t, uint64_t run, bool write)
{
    struct cudasim_calls sim;
    void *at = store_ptr(e->store, t, run);
    if (cudasim_lookup(&sim))
        sim.host_access(at, e->plan->tensors[t].bytes, write);
    return at;
}

/* of: the layer, or the decision group. step: the training step. */
static void *host(const struct engine *e, enum tensor_kind k, uint32_t of, uint32_t micro, uint64_t step,
                  bool write)
{
    tensor_id t = store_find(e->store, k, of, micro, (uint32_t)(step % e->plan->steps));
    return t == PLAN_NONE ? NULL : host_at(e, t, exec_slot(e->plan, step), write);
}

static void fill_slots(const struct engine *e, uint64_t data_step, uint64_t step)
{
    for (uint32_t j = 0; j < e->plan->n_micro; j++)
        for (uint32_t l = 0; l < e->plan->n_layers; l++)
            if (e->graph->layers[l].is_loss)
                problem_fill(e->c, data_step, l, j, host(e, TENSOR_X, 0, j, step, true),
                             host(e, TENSOR_TARGET, l, j, step, true));
}

static struct step_result results(const struct engine *e, uint64_t step)
{
    struct step_result sum = {0};
    for (uint32_t l = 0; l < e->plan->n_layers; l++)
        for (uint32_t j = 0; e->graph->layers[l].is_loss && j < e->plan->n_micro; j++) {
            const struct step_result *one = host(e, TENSOR_RESULT, l, j, step, false);
            sum.loss += one->loss;
            sum.correct += one->correct;
        }
    return sum;
}

static void read_step(const struct engine *e, uint64_t step, struct engine_result *ret)
{
    assert_int_equal(exec_wait(e->exec, step), 0);
    ret->loss[step] = results(e, step).loss;
    for (uint32_t i = 0; i < e->plan->n_groups; i++) {
        const struct step_decision *d = host(e, TENSOR_DECISION, i, PLAN_NONE, step, false);
        ret->sumsq[step] += d != NULL ? d->sumsq : 0;
    }
}

static void init_weights(const struct engine *e)
{
    for (uint32_t l = 0; l < e->c->chain.model.n_layers; l++) {
        void *w = host(e, TENSOR_W, l, PLAN_NONE, 0, true);
        if (w != NULL && !e->graph->layers[l].tied)
            problem_init(e->c, l, w, host(e, TENSOR_K, l, PLAN_NONE, 0, true));
    }
    for (uint32_t i = 0; i < e->plan->n_groups; i++) {
        struct group_state *state = host(e, TENSOR_GROUP, i, PLAN_NONE, 0, true);
        if (state != NULL)
            problem_init_group(e->c, i, state);
    }
}

static uint64_t hash_state(const struct engine *e)
{
    uint64_t h = HASH_START;
    for (uint32_t t = 0; t < e->plan->n_tensors; t++) {
        const struct plan_tensor *pt = &e->plan->tensors[t];
        if (pt->step == PLAN_NONE)
            h = problem_hash(h, host_at(e, t, 0, false), pt->bytes);
    }
    return h;
}

/* ---- the programs ---- */

static void run_program(const struct engine *e, enum program_kind k, const struct step_args *args)
{
    struct moved before[DEVICE_MAX] = {0};
    look(e, before);
    assert_int_equal(exec_run(e->exec, k, args), 0);
    check_program_bytes(e, k, 1, before);
}

/* Enqueues one run of the cycle, which begins at training step `first`. */
static void run_cycle(const struct engine *e, uint64_t first)
{
    const uint32_t steps = e->plan->steps, groups = e->plan->n_groups;
    struct step_args *args = xcalloc((size_t)steps * groups, sizeof *args);
    for (uint32_t i = 0; i < steps * groups; i++) {
        if (i % groups == 0)
            fill_slots(e, first + i / groups, first + i / groups);
        args[i] = problem_args(e->c, first + i / groups, i % groups);
    }
    assert_int_equal(exec_cycle(e->exec, args), 0);
    free(args);
}

/* Runs 0 and 1 of the cycle overlap, a flush is before run 2, an evaluation before run 4: every order of
 * programs. */
static void train(const struct engine *e, struct engine_result *ret)
{
    struct moved before[DEVICE_MAX] = {0};
    const uint64_t steps = e->plan->steps;
    run_program(e, PROGRAM_ENTRY, NULL);
    look(e, before);
    uint64_t known = 0, runs = 0;
    for (uint64_t c = 0; c < ENGINE_CYCLES; c++) {
        if (c == 2 || c == 4) {
            while (known < c * steps)
                read_step(e, known++, ret);
            assert_int_equal(devset_drain(e->ds), 0);
            check_program_bytes(e, PROGRAM_CYCLE, (uint32_t)runs, before);
            if (c == 2) {
                run_program(e, PROGRAM_FLUSH, NULL);
            } else {
                run_program(e, PROGRAM_EXIT, NULL);
                fill_slots(e, EVAL_STEP, 0);
                struct step_args a = problem_eval_args(e->c);
                run_program(e, PROGRAM_EVAL, &a);
                struct step_result sum = results(e, 0);
                ret->eval_loss = sum.loss;
                ret->eval_correct = sum.correct;
                run_program(e, PROGRAM_ENTRY, NULL);
            }
            look(e, before);
            runs = 0;
        }
        run_cycle(e, c * steps);
        runs++;
        while (c * steps >= known + (PLAN_RING - 1) * steps)
            read_step(e, known++, ret);
    }
    while (known < ENGINE_CYCLES * steps)
        read_step(e, known++, ret);
    assert_int_equal(devset_drain(e->ds), 0);
    check_program_bytes(e, PROGRAM_CYCLE, (uint32_t)runs, before);
    run_program(e, PROGRAM_EXIT, NULL);
}

/* ---- the calls ---- */

#define HOST_BYTES (1ull << 32)

static void make_request(struct engine *e, const struct engine_case *c, const struct engine_machine *m)
{
    *e = (struct engine){.c = c, .machine = m};
    assert_int_equal(random_graph(&c->chain, true, &e->graph), 0);
    assert_int_equal(random_graph(&c->chain, false, &e->eval), 0);
    machine_init_cpu(&e->planned_for, m->n_devices, m->capacity_bytes, HOST_BYTES);
    if (m->slow_compute)
        e->planned_for.device_flops_per_s = 100000000;
    e->request = (struct plan_request){.train = e->graph,
                                       .eval = e->eval,
                                       .machine = &e->planned_for,
                                       .policy = m->policy,
                                       .update = m->update,
                                       .objective = m->objective};
}

static void finish_request(struct engine *e)
{
    graph_destroy(e->graph);
    graph_destroy(e->eval);
}

uint64_t engine_least_capacity(const struct engine_case *c, const struct engine_machine *m)
{
    struct engine e;
    uint64_t least;
    make_request(&e, c, m);
    assert_int_equal(plan_least_capacity(&e.request, &least, NULL), 0);
    finish_request(&e);
    return least;
}

static void open_devices(struct engine *e, const struct engine_machine *m)
{
    struct err err = {0};
    struct devset_config config = {.backend = engine_backend,
                                   .n_devices = m->n_devices,
                                   .threads = m->threads,
                                   .delay_seed = m->delay_seed};
    for (uint32_t d = 0; d < m->n_devices; d++) {
        /* The arena is no larger than the plan's peak: one byte further faults. */
        config.capacity_bytes[d] =
            e->plan->devices[d].peak_bytes > 0 ? e->plan->devices[d].peak_bytes : DEVICE_ALIGN;
        assert_true(e->plan->devices[d].peak_bytes <= m->capacity_bytes);
    }
    if (devset_open(&config, &e->ds, &err) < 0)
        fail_msg("%s", err.msg);
}

/* TUTTI_DUMP in the environment: with the plan. */
_Noreturn static void no_plan(const struct engine *e, const struct err *err)
{
    struct strbuf dump = {0};
    if (e->plan != NULL && getenv("TUTTI_DUMP") != NULL) {
        plan_dump(e->plan, &dump);
        fprintf(stderr, "%s\n", dump.at);
        strbuf_finish(&dump);
    }
    fail_msg("seed %llu, %u replicas, policy %s by %s, %u devices of %llu bytes%s, update on %s: %s",
             (unsigned long long)e->c->seed, e->graph->n_replicas, policy_names[e->machine->policy],
             plan_objective_names[e->machine->objective], e->machine->n_devices,
             (unsigned long long)e->machine->capacity_bytes,
             e->machine->slow_compute ? " that compute slowly" : "", update_place_names[e->machine->update],
             err->msg);
    abort();
}

static void verify(const struct engine *e)
{
    struct err err = {0};
    if (plan_verify(e->plan, e->graph, e->eval, &e->planned_for, NULL, &err) < 0)
        no_plan(e, &err);
}

/* Plans again with less host memory than the plan at hand takes: the homes of the tensors and, of the rest,
 * as few eighths as possible. */
static void plan_with_scarce_host(struct engine *e)
{
    struct err err;
    struct plan *made = NULL;
    uint64_t homes = 0, rest;
    for (tensor_id t = 0; t < e->made->n_tensors; t++)
        homes += e->made->tensors[t].host_slots * round_up(e->made->tensors[t].bytes, PLAN_ALIGN);
    rest = e->made->host_bytes - homes;
    for (uint64_t eighths = 0; made == NULL && eighths < 8; eighths++) {
        e->planned_for.host_bytes = homes + rest * eighths / 8;
        if (plan_make(&e->request, &made, NULL, &err) < 0)
            made = NULL;
    }
    if (made == NULL) {
        e->planned_for.host_bytes = HOST_BYTES;
        return;
    }
    plan_destroy(e->made);
    e->made = made;
}

void engine_open(struct engine *e, const struct engine_case *c, const struct engine_machine *m)
{
    struct err err = {0};
    make_request(e, c, m);
    if (plan_make(&e->request, &e->made, NULL, &err) < 0)
        no_plan(e, &err);
    if (m->scarce_host)
        plan_with_scarce_host(e);
    e->plan = e->made;
    verify(e);
    open_devices(e, m);
}

void engine_open_plan(struct engine *e, const struct engine_case *c, const struct engine_machine *m,
                      const struct plan *plan)
{
    make_request(e, c, m);
    e->plan = plan;
    verify(e);
    open_devices(e, m);
}

void engine_close(struct engine *e)
{
    devset_close(e->ds);
    plan_destroy(e->made);
    finish_request(e);
}

/* Each case on each machine has another interleaving of the simulated streams. */
static void begin_simulation(const struct engine *e)
{
    struct cudasim_calls sim;
    const uint64_t words[] = {e->c->seed,
                              e->machine->delay_seed,
                              e->machine->capacity_bytes,
                              e->machine->n_devices,
                              (uint64_t)e->machine->policy,
                              (uint64_t)e->machine->update};
    if (cudasim_lookup(&sim))
        sim.begin(problem_hash(HASH_START, words, sizeof words));
}

void engine_train(struct engine *e, struct engine_result *ret)
{
    struct err err = {0};
    memset(ret, 0, sizeof *ret);
    snprintf(ret->policy, sizeof ret->policy, "%s", e->plan->policy);
    ret->features = plan_features(e->plan);
    begin_simulation(e);
    assert_int_equal(store_create(e->ds, e->plan, &e->store, &err), 0);
    struct exec_config ec = {e->plan, &e->c->chain.model, random_optimizers(&e->c->chain), e->ds, e->store};
    if (exec_create(&ec, &e->exec, &err) < 0)
        fail_msg("%s", err.msg);
    init_weights(e);
    struct plan_span *spans = measure(e);
    train(e, ret);
    check_measured(e, spans);
    ret->state_hash = hash_state(e);
    exec_destroy(e->exec);
    store_destroy(e->store);
}

static void run(struct engine *e, struct engine_result *ret)
{
    const struct engine_machine *m = e->machine;
    const uint64_t seed = e->c->seed;
    struct cudasim_calls sim;
    engine_train(e, ret);
    engine_close(e);
    if (cudasim_lookup(&sim) && sim.problems() > 0)
        fail_msg("seed %llu, policy %s, %u devices of %llu bytes: the simulator has reported %llu problems",
                 (unsigned long long)seed, ret->policy, m->n_devices, (unsigned long long)m->capacity_bytes,
                 (unsigned long long)sim.problems());
}

void engine_run(const struct engine_case *c, const struct engine_machine *m, struct engine_result *ret)
{
    struct engine e;
    engine_open(&e, c, m);
    run(&e, ret);
}

void engine_run_plan(const struct engine_case *c, const struct engine_machine *m, const struct plan *plan,
                     struct engine_result *ret)
{
    struct engine e;
    engine_open_plan(&e, c, m, plan);
    run(&e, ret);
}
