/* Tests the executor on real cpu devices, with plans made by hand. Results and weights must equal those of
 * the layers called one after another, bit for bit, for any number of devices, updates on the host or on
 * devices, and any delays of streams.
 *
 * The chain is dense (relu, dropout) - dense - softmax_xent, with three micro-batches in one or three
 * replicas. The reference has its own blocks of memory and runs every op immediately in this thread.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "swap/exec.h"
#include "tests/skip.h"
#include "tests/unit/handmade_chain.h"
#include "tests/unit/spans.h"

/* ---- allocations of this thread ---- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 1
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t bytes);
static _Thread_local unsigned long allocations;

void *malloc(size_t bytes)
{
    allocations++;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t size)
{
    allocations++;
    return __libc_calloc(count, size);
}

void *realloc(void *p, size_t bytes)
{
    allocations++;
    return __libc_realloc(p, bytes);
}
#else
#define COUNTS_ALLOCATIONS 0
static unsigned long allocations;
#endif

/* ---- the data ---- */

enum { SEED = 42, MAX_STEPS = 32 };

static struct step_args args_of(uint64_t step, bool training)
{
    return (struct step_args){.step = step,
                              .seed = SEED,
                              .lr = 0.05f / (float)(step + 1),
                              .grad_scale = 1.0f / (MICROS * ROWS),
                              .valid_rows = training ? MICROS * ROWS : MICROS * ROWS - 2,
                              .training = training};
}

static void load_x(const struct scenario *sc, uint64_t step, uint32_t micro, float *ret)
{
    struct rng rng = {.seed = SEED + 1000 * step + micro};
    for (int i = 0; i < ROWS * IN; i++)
        ret[i] = rng_unit(rng_next(&rng)) * 2 - 1;
    if (step == sc->nan_step && micro == 1)
        ret[5] = NAN;
}

static void load_target(uint64_t step, uint32_t micro, int32_t *ret)
{
    struct rng rng = {.seed = SEED + 1000 * step + 500 + micro};
    for (int i = 0; i < ROWS; i++)
        ret[i] = (int32_t)rng_below(&rng, CLASSES);
}

/* ---- the reference ---- */

struct reference {
    const struct scenario *sc;
    struct pool *pool;
    float *w[LAYERS], *dw[LAYERS][MICROS], *k[LAYERS], *s[LAYERS], *scratch[LAYERS]; /* dw: of each replica */
    float *x[LAYERS + 1], *dx[LAYERS + 1];
    int32_t target[ROWS];
    struct step_result results[MAX_STEPS][MICROS]; /* of each training step */
    struct step_decision decisions[MAX_STEPS];
    struct group_state group;
    struct step_result eval[MICROS];
};

static int run_at_once(void *ctx, const struct op_call *call)
{
    cpu_ops[call->op](call, ctx);
    return 0;
}

static void *block(uint64_t bytes)
{
    return bytes ? xcalloc(1, bytes) : NULL;
}

static void ref_open(struct reference *ref, const struct scenario *sc)
{
    memset(ref, 0, sizeof *ref);
    ref->sc = sc;
    assert_int_equal(pool_create(1, &ref->pool), 0);
    for (uint32_t l = 0; l < LAYERS; l++) {
        const struct layer_sizes size = sizes_of(l);
        ref->w[l] = block(size.w);
        for (uint32_t r = 0; r < sc->replicas; r++)
            ref->dw[l][r] = block(size.w);
        ref->k[l] = size.w ? block(optimizer_k_bytes(sc->optimizer, layer_w_elements(&size))) : NULL;
        ref->s[l] = block(size.s);
        ref->scratch[l] = block(size.scratch_bwd);
        ref->x[l] = block(size.x);
        ref->dx[l] = l > 0 ? block(size.x) : NULL;
        if (size.w)
            layer_init(&layers[l], SEED, ref->w[l]);
    }
}

static void ref_close(struct reference *ref)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        float *blocks[] = {ref->w[l], ref->k[l], ref->s[l], ref->scratch[l], ref->x[l], ref->dx[l]};
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
            free(blocks[i]);
        for (uint32_t r = 0; r < ref->sc->replicas; r++)
            free(ref->dw[l][r]);
    }
    pool_destroy(ref->pool);
}

static struct layer_io ref_io(struct reference *ref, const struct step_args *args, uint32_t l, uint32_t micro,
                              struct step_result *result)
{
    return (struct layer_io){.step = args,
                             .rows = ROWS,
                             .first_row = micro * ROWS,
                             .accumulate = micro % (MICROS / ref->sc->replicas) > 0,
                             .w = ref->w[l],
                             .x = ref->x[l],
                             .y = ref->x[l + 1],
                             .s = ref->s[l],
                             .dw = ref->dw[l][micro / (MICROS / ref->sc->replicas)],
                             .dx = ref->dx[l],
                             .dy = ref->dx[l + 1],
                             .scratch = ref->scratch[l],
                             .target = l == LOSS ? ref->target : NULL,
                             .result = l == LOSS ? result : NULL};
}

static void ref_forward(struct reference *ref, const struct step_args *args, uint32_t micro,
                        struct step_result *result)
{
    const struct op_sink sink = {run_at_once, ref->pool};

    load_x(ref->sc, args->step, micro, ref->x[0]);
    load_target(args->step, micro, ref->target);
    for (uint32_t l = 0; l < LAYERS; l++) {
        const struct layer_io io = ref_io(ref, args, l, micro, result);
        assert_int_equal(layer_type(&layers[l])->fwd(&layers[l], &io, &sink), 0);
    }
}

/* ret NULL: no gradient decides. */
static void ref_decide(struct reference *ref, const struct step_args *args, struct step_decision *ret)
{
    const struct optimizer *o = ref->sc->optimizer;
    bool first = true;
    for (uint32_t l = 0; ret && l < LAYERS; l++) {
        double sum;
        if (!ref->w[l])
            continue;
        run_at_once(ref->pool, &(struct op_call){.op = OP_sumsq,
                                                 .step = args,
                                                 .sumsq = {.g = {.dw = {ref->dw[l][0]}, .n = 1},
                                                           .sum = &sum,
                                                           .n = sizes_of(l).w / sizeof(float)}});
        run_at_once(ref->pool,
                    &(struct op_call){.op = OP_norm_add, .step = args, .norm_add = {&sum, ret, first, l}});
        first = false;
    }
    run_at_once(ref->pool, &(struct op_call){.op = OP_decide,
                                             .step = args,
                                             .decide = {ret, &ref->group, o->clip, o->beta1, o->beta2}});
}

static void ref_update(struct reference *ref, const struct step_args *args, uint32_t l)
{
    const struct op_sink sink = {run_at_once, ref->pool};
    struct optimizer_io io = {.w = ref->w[l],
                              .g = {.dw = {ref->dw[l][0]}, .n = 1},
                              .group = has_group(ref->sc) ? &ref->group : NULL,
                              .n = sizes_of(l).w / sizeof(float)};

    optimizer_split(ref->sc->optimizer, ref->k[l], &io);
    assert_int_equal(optimizer_update(ref->sc->optimizer, args, &io, &sink), 0);
}

static void ref_step(struct reference *ref, uint64_t step)
{
    const struct op_sink sink = {run_at_once, ref->pool};
    const struct step_args args = args_of(step, true);

    for (uint32_t j = 0; j < MICROS; j++) {
        ref_forward(ref, &args, j, &ref->results[step][j]);
        for (uint32_t l = LAYERS; l-- > 0;) {
            const struct layer_io io = ref_io(ref, &args, l, j, NULL);
            assert_int_equal(layer_type(&layers[l])->bwd(&layers[l], &io, &sink), 0);
        }
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t r = 1; r < ref->sc->replicas; r++)
            run_at_once(ref->pool, &(struct op_call){
                                       .op = OP_add,
                                       .add = {ref->dw[l][0], ref->dw[l][r], sizes_of(l).w / sizeof(float)}});
    if (has_group(ref->sc))
        ref_decide(ref, &args, ref->sc->decision ? &ref->decisions[step] : NULL);
    for (uint32_t l = 0; l < LAYERS; l++)
        if (ref->w[l])
            ref_update(ref, &args, l);
}

/* ---- a job: the plan on devices, beside the reference ---- */

struct job {
    const struct scenario *sc;
    struct maker m;
    struct devset *devices;
    struct store *store;
    struct exec *exec;
    struct reference ref;
    uint64_t next;    /* step */
    uint64_t checked; /* steps whose results were compared */
    uint64_t runs[PROGRAM_COUNT];
};

static void job_open(struct job *job, const struct scenario *sc, uint64_t delay_seed)
{
    struct err err = {0};

    memset(job, 0, sizeof *job);
    job->sc = sc;
    job->devices = open_devices(sc->n_devices, delay_seed);
    make_plan(&job->m, sc);
    ref_open(&job->ref, sc);
    assert_int_equal(store_create(job->devices, &job->m.h.plan, &job->store, &err), 0);
    for (uint32_t l = 0; l < LAYERS; l++)
        if (job->m.w[l] != PLAN_NONE)
            layer_init(&layers[l], SEED, store_ptr(job->store, job->m.w[l], 0));
    const struct exec_config config = {&job->m.h.plan, &model, sc->optimizer, job->devices, job->store};
    if (exec_create(&config, &job->exec, &err) != 0)
        fail_msg("%s: %s: %s", sc->name, err.path, err.msg);
}

static void job_close(struct job *job)
{
    exec_destroy(job->exec);
    store_destroy(job->store);
    devset_close(job->devices);
    ref_close(&job->ref);
    hm_free(&job->m.h);
}

static void job_run(struct job *job, enum program_kind k, const struct step_args *args)
{
    assert_int_equal(exec_run(job->exec, k, args), 0);
    job->runs[k]++;
}

/* The host slot of a tensor of training step `step`, which loader and trainer use. */
static void *ring_ptr(const struct job *job, tensor_id t, uint64_t step)
{
    return store_ptr(job->store, t, exec_slot(&job->m.h.plan, step));
}

/* `of` is the step within the cycle whose tensors are used. */
static void load(struct job *job, uint64_t step, uint64_t of)
{
    for (uint32_t j = 0; j < MICROS; j++) {
        load_x(job->sc, step, j, ring_ptr(job, job->m.x0[of][j], step));
        load_target(step, j, ring_ptr(job, job->m.target[of][j], step));
    }
}

static void check_results(struct job *job, uint64_t step, uint64_t of,
                          const struct step_result expected[MICROS])
{
    for (uint32_t j = 0; j < MICROS; j++)
        assert_memory_equal(ring_ptr(job, job->m.result[of][j], step), &expected[j], sizeof expected[j]);
}

/* Waits for all steps before `end` and compares their results with the reference. */
static void job_check_steps(struct job *job, uint64_t end)
{
    for (; job->checked < end; job->checked++) {
        const uint64_t s = job->checked;
        assert_int_equal(exec_wait(job->exec, s), 0);
        check_results(job, s, s % job->sc->steps, job->ref.results[s]);
        if (job->sc->decision)
            assert_memory_equal(ring_ptr(job, job->m.decisions[s % job->sc->steps], s),
                                &job->ref.decisions[s], sizeof job->ref.decisions[s]);
    }
}

static void job_cycles(struct job *job, uint32_t n)
{
    const uint32_t steps = job->sc->steps;

    for (; n > 0; n--) {
        struct step_args args[MAX_STEPS];
        for (uint32_t i = 0; i < steps; i++, job->next++) {
            if (job->next >= PLAN_RING * steps)
                job_check_steps(job, job->next - PLAN_RING * steps + 1);
            load(job, job->next, job->next % steps);
            args[i] = args_of(job->next, true);
            assert_true(job->next < MAX_STEPS);
            ref_step(&job->ref, job->next);
        }
        const unsigned long before = allocations;
        assert_int_equal(exec_cycle(job->exec, args), 0);
        assert_int_equal(allocations, before);
        memset(args, 0xff, sizeof args); /* they were copied */
        job->runs[PROGRAM_CYCLE]++;
    }
}

static void job_check_state(struct job *job)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        const uint64_t w_bytes = sizes_of(l).w;
        if (job->m.w[l] != PLAN_NONE)
            assert_memory_equal(store_ptr(job->store, job->m.w[l], 0), job->ref.w[l], w_bytes);
        if (job->m.k[l] != PLAN_NONE)
            assert_memory_equal(store_ptr(job->store, job->m.k[l], 0), job->ref.k[l],
                                optimizer_k_bytes(job->sc->optimizer, w_bytes / sizeof(float)));
    }
    if (job->m.group != PLAN_NONE)
        assert_memory_equal(store_ptr(job->store, job->m.group, 0), &job->ref.group, sizeof job->ref.group);
}

static void job_eval(struct job *job, uint64_t step)
{
    const struct step_args args = args_of(step, false);

    load(job, step, 0);
    job_run(job, PROGRAM_EVAL, &args);
    for (uint32_t j = 0; j < MICROS; j++)
        ref_forward(&job->ref, &args, j, &job->ref.eval[j]);
    check_results(job, step, 0, job->ref.eval);
}

static void count_moves(const struct job *job, enum program_kind k, uint32_t device,
                        struct device_counters *add)
{
    const struct plan_program *p = &job->m.h.plan.programs[k];

    for (uint32_t i = 0; i < p->n_instrs; i++) {
        const struct plan_instr *in = &p->instrs[i];
        const struct plan_operand *o = &p->operands[in->operand];
        if (!instr_is_move(in->kind) || in->kind == INSTR_COPY || in->stream / LANE_COUNT != device)
            continue;
        uint64_t *to = in->kind == INSTR_FETCH   ? &add->in_bytes
                       : in->kind == INSTR_SPILL ? &add->out_bytes
                                                 : &add->peer_bytes;
        *to += job->runs[k] * operand_bytes(o);
    }
}

static void job_check_bytes(const struct job *job)
{
    for (uint32_t d = 0; d < job->sc->n_devices; d++) {
        struct device_counters moved, planned = {0};
        devset_counters(job->devices, d, &moved);
        for (uint32_t k = 0; k < PROGRAM_COUNT; k++)
            count_moves(job, k, d, &planned);
        assert_int_equal(moved.in_bytes, planned.in_bytes);
        assert_int_equal(moved.out_bytes, planned.out_bytes);
        assert_int_equal(moved.peer_bytes, planned.peer_bytes);
        assert_true(moved.in_bytes > 0 && (d == 1 || job->sc->n_devices == 1 || moved.peer_bytes > 0));
    }
}

/* Measures some of the runs that come. */
struct watch {
    struct plan_span *spans;
    uint32_t runs;
};

static void watch_open(struct watch *w, struct job *job, uint64_t first_run, uint32_t runs)
{
    const size_t n = (size_t)runs * job->m.h.plan.programs[PROGRAM_CYCLE].n_instrs;

    *w = (struct watch){xcalloc(n, sizeof *w->spans), runs};
    assert_int_equal(exec_trace(job->exec, first_run * job->sc->steps, runs, w->spans), 0);
}

/* All was measured, between then and now. */
static void watch_close(struct watch *w, struct job *job, uint64_t begin_ns, const uint32_t *since_entry)
{
    const uint32_t n = job->m.h.plan.programs[PROGRAM_CYCLE].n_instrs;
    const uint64_t now = clock_now_ns();

    assert_int_equal(exec_traced(job->exec), w->runs);
    for (uint32_t i = 0; i < w->runs * n; i++)
        assert_true(w->spans[i].start_ns >= begin_ns && w->spans[i].end_ns <= now);
    assert_spans_follow_plan(&job->m.h.plan, w->spans, w->runs, since_entry);
    free(w->spans);
}

/* watched: with two windows, across a flush and across an evaluation. */
static void train(const struct scenario *sc, uint64_t delay_seed, bool watched)
{
    const uint64_t begin_ns = clock_now_ns();
    struct watch watch;
    struct job job;

    print_message("# %s, delays %d%s\n", sc->name, (int)delay_seed, watched ? ", watched" : "");
    job_open(&job, sc, delay_seed);
    if (watched)
        watch_open(&watch, &job, 3, 3);
    job_run(&job, PROGRAM_ENTRY, NULL);
    job_cycles(&job, 5);
    job_run(&job, PROGRAM_FLUSH, NULL);
    job_check_state(&job);
    job_check_steps(&job, job.next);
    job_cycles(&job, 1);
    if (watched) {
        assert_int_equal(exec_wait(job.exec, job.next - 1), 0);
        watch_close(&watch, &job, begin_ns, (const uint32_t[]){3, 4, 5});
        watch_open(&watch, &job, 0, 4);
    }
    job_cycles(&job, 2);
    job_run(&job, PROGRAM_EXIT, NULL);
    job_check_state(&job);
    job_check_steps(&job, job.next);

    job_eval(&job, 3);
    job_eval(&job, 30);
    job_check_state(&job);

    job_run(&job, PROGRAM_ENTRY, NULL);
    job_cycles(&job, 4);
    assert_int_equal(exec_wait(job.exec, job.next - 1), 0);
    job_check_steps(&job, job.next);
    job_run(&job, PROGRAM_EXIT, NULL);
    job_check_state(&job);
    job_check_bytes(&job);
    if (watched)
        watch_close(&watch, &job, begin_ns, (const uint32_t[]){6, 7, 0, 1});
    job_close(&job);
}

static void test_training_equals_layers_in_sequence(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        train(&scenarios[i], 0, false);
}

static void test_random_delays_change_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        for (uint64_t seed = 1; seed <= 2; seed++)
            train(&scenarios[i], seed, false);
}

static void test_measured_times_follow_the_plan_and_change_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        for (uint64_t seed = 0; seed <= 1; seed++)
            train(&scenarios[i], seed, true);
}

static void test_a_step_that_is_not_finite_leaves_state_alone(void **state)
{
    const struct scenario *sc = &scenarios[NAN_ON_DEVICES];
    float w[2][IN * 20 + 20];
    struct job job;
    (void)state;

    assert_int_equal(sc->nan_step, 3);
    job_open(&job, sc, 7);
    job_run(&job, PROGRAM_ENTRY, NULL);
    for (int i = 0; i < 2; i++) {
        job_cycles(&job, i == 0 ? 3 : 1);
        job_run(&job, PROGRAM_FLUSH, NULL);
        memcpy(w[i], store_ptr(job.store, job.m.w[0], 0), sizeof w[i]);
    }
    assert_int_equal(job.ref.decisions[2].apply, 1);
    assert_int_equal(job.ref.decisions[3].apply, 0);
    assert_memory_equal(w[0], w[1], sizeof w[0]);
    job_check_steps(&job, 4);
    job_check_state(&job);
    job_run(&job, PROGRAM_EXIT, NULL);
    job_close(&job);
}

static void test_nothing_is_allocated_while_training(void **state)
{
    struct step_args args = args_of(0, true);
    struct job job;
    (void)state;

    if (!COUNTS_ALLOCATIONS)
        SKIP_TEST("the sanitizers bring their own allocator");
    job_open(&job, &scenarios[0], 0);
    const unsigned long before = allocations;
    assert_int_equal(exec_run(job.exec, PROGRAM_ENTRY, NULL), 0);
    for (args.step = 0; args.step < 10; args.step++) {
        assert_int_equal(exec_cycle(job.exec, &args), 0);
        assert_int_equal(exec_wait(job.exec, args.step), 0);
    }
    assert_int_equal(exec_run(job.exec, PROGRAM_FLUSH, NULL), 0);
    assert_int_equal(exec_run(job.exec, PROGRAM_EXIT, NULL), 0);
    assert_int_equal(exec_run(job.exec, PROGRAM_EVAL, &args), 0);
    assert_int_equal(allocations, before);
    free(malloc(1));
    assert_int_equal(allocations, before + 1); /* the counter counts */
    job_close(&job);
}

static void test_programs_with_tasks_or_rings_need_args(void **state)
{
    struct scenario sc = scenarios[0];
    struct maker m;
    struct exec *e;
    struct store *store;
    (void)state;

    struct devset *devices = open_devices(1, 0);
    make_plan(&m, &sc);
    m.h.plan.programs[PROGRAM_ENTRY] = m.h.plan.programs[PROGRAM_EVAL];
    assert_int_equal(store_create(devices, &m.h.plan, &store, NULL), 0);
    const struct exec_config config = {&m.h.plan, &model, sc.optimizer, devices, store};
    assert_int_equal(exec_create(&config, &e, NULL), 0);
    assert_int_equal(exec_run(e, PROGRAM_ENTRY, NULL), -EINVAL);
    const struct step_args args = args_of(0, false);
    assert_int_equal(exec_run(e, PROGRAM_ENTRY, &args), 0); /* that was no failure of a device */
    exec_destroy(e);
    exec_destroy(NULL);
    store_destroy(store);
    devset_close(devices);
    hm_free(&m.h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training_equals_layers_in_sequence),
        cmocka_unit_test(test_random_delays_change_nothing),
        cmocka_unit_test(test_measured_times_follow_the_plan_and_change_nothing),
        cmocka_unit_test(test_a_step_that_is_not_finite_leaves_state_alone),
        cmocka_unit_test(test_nothing_is_allocated_while_training),
        cmocka_unit_test(test_programs_with_tasks_or_rings_need_args),
    };
    cpu_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
