/* See engine.h. */
#include "tests/engine/engine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/arena.h"
#include "kernels/cpu/cpu.h"
#include "scheduler/verify.h"
#include "swap/exec.h"
#include "swap/store.h"
#include "tests/unit/spans.h"

/* ---- what both sides share: data, weights, arguments ---- */

static uint32_t classes(const struct engine_case *c)
{
    return c->chain.layers[c->chain.model.n_layers - 1].in;
}

static bool is_mse(const struct engine_case *c)
{
    return c->chain.layers[c->chain.model.n_layers - 1].kind == LAYER_mse;
}

static void fill_input(const struct engine_case *c, uint64_t step, uint32_t micro, float *x, void *target)
{
    const struct random_chain *k = &c->chain;
    uint32_t n = k->rows * k->layers[0].in, width = classes(c);
    for (uint32_t i = 0; i < n; i++)
        x[i] = rng_unit(rng_philox(c->seed, i, micro, rng_word2(RNG_DATA, 0), (uint32_t)step).v[0]) * 2 - 1;
    if (c->nan_step != 0 && step == c->nan_step)
        x[n / 2] = NAN;
    for (uint32_t i = 0; i < k->rows; i++) {
        uint32_t label = rng_philox(c->seed, i, micro, rng_word2(RNG_DATA, 1), (uint32_t)step).v[0] % width;
        if (!is_mse(c)) {
            ((int32_t *)target)[i] = (int32_t)label;
            continue;
        }
        for (uint32_t e = 0; e < width; e++)
            ((float *)target)[i * width + e] = e == label;
    }
}

static struct step_args args_of(const struct engine_case *c, uint64_t step)
{
    uint32_t batch = c->chain.rows * c->chain.n_micro;
    return (struct step_args){
        .step = step,
        .seed = c->seed + 1,
        .lr = 0.05f / (float)(step + 1),
        .bias_correct1 = (float)(1 / (1 - pow(0.9, (double)step + 1))),
        .bias_correct2 = (float)(1 / (1 - pow(0.999, (double)step + 1))),
        .grad_scale = 1.0f / (float)batch,
        .valid_rows = batch,
        .training = 1,
    };
}

/* The evaluation batch: other data, the last rows are padding. */
#define EVAL_STEP 1000
static struct step_args eval_args(const struct engine_case *c)
{
    uint32_t batch = c->chain.rows * c->chain.n_micro;
    return (struct step_args){.step = 0, .valid_rows = batch - batch / 3, .grad_scale = 1};
}

static uint64_t hash_bytes(uint64_t h, const void *p, uint64_t bytes)
{
    const unsigned char *b = p;
    for (uint64_t i = 0; i < bytes; i++)
        h = (h ^ b[i]) * 0x100000001b3ull;
    return h;
}

void engine_assert_equal(const struct engine_result *a, const struct engine_result *b, const char *what)
{
    for (int s = 0; s < ENGINE_STEPS; s++) {
        if (memcmp(&a->loss[s], &b->loss[s], sizeof a->loss[s]) != 0)
            fail_msg("%s: loss of step %d is %.17g, reference %.17g", what, s, a->loss[s], b->loss[s]);
        if (memcmp(&a->sumsq[s], &b->sumsq[s], sizeof a->sumsq[s]) != 0)
            fail_msg("%s: squared norm of step %d is %.17g, reference %.17g", what, s, a->sumsq[s],
                     b->sumsq[s]);
    }
    if (memcmp(&a->eval_loss, &b->eval_loss, sizeof a->eval_loss) != 0 || a->eval_correct != b->eval_correct)
        fail_msg("%s: evaluation gives %.17g, reference %.17g", what, a->eval_loss, b->eval_loss);
    if (a->state_hash != b->state_hash)
        fail_msg("%s: weights or optimizer state differ from the reference", what);
}

/* ---- through the plan ---- */

static void check_program_bytes(struct devset *ds, const struct plan *p, enum program_kind k, uint32_t runs,
                                const struct device_counters *before)
{
    for (uint32_t d = 0; d < p->n_devices; d++) {
        struct device_counters now;
        struct plan_bytes want;
        devset_counters(ds, d, &now);
        plan_count_device_bytes(p, k, d, &want);
        assert_int_equal(now.in_bytes - before[d].in_bytes, runs * want.in);
        assert_int_equal(now.out_bytes - before[d].out_bytes, runs * want.out);
        assert_int_equal(now.peer_bytes - before[d].peer_bytes, runs * want.peer);
    }
}

struct runner {
    const struct engine_case *c;
    struct plan *plan;
    struct devset *ds;
    struct store *store;
    struct exec *exec;
};

static void counters(struct runner *r, struct device_counters *ret)
{
    for (uint32_t d = 0; d < r->plan->n_devices; d++)
        devset_counters(r->ds, d, &ret[d]);
}

/* Every second machine is measured: the times follow the plan, and the bits are those of the others. */
static struct plan_span *measure(struct runner *r, const struct engine_machine *m)
{
    const uint32_t n = r->plan->programs[PROGRAM_CYCLE].n_instrs;
    if ((r->c->seed + m->n_devices + m->threads + (m->capacity_bytes >> 8)) % 2)
        return NULL;
    struct plan_span *spans = xcalloc((size_t)ENGINE_STEPS * n, sizeof *spans);
    assert_int_equal(exec_trace(r->exec, 0, ENGINE_STEPS, spans), 0);
    return spans;
}

static void check_measured(struct runner *r, struct plan_span *spans)
{
    const uint32_t since_entry[ENGINE_STEPS] = {0, 1, 2, 3, 0}; /* see train */
    assert_int_equal(exec_traced(r->exec), spans ? ENGINE_STEPS : 0);
    if (spans)
        assert_spans_follow_plan(r->plan, spans, ENGINE_STEPS, since_entry);
    free(spans);
}

static void run_program(struct runner *r, enum program_kind k, const struct step_args *args)
{
    struct device_counters before[DEVICE_MAX];
    counters(r, before);
    assert_int_equal(exec_run(r->exec, k, args), 0);
    check_program_bytes(r->ds, r->plan, k, 1, before);
}

static void *host(struct runner *r, enum tensor_kind k, uint32_t layer, uint32_t micro, uint64_t step)
{
    tensor_id t = store_find(r->store, k, layer, micro);
    return t == PLAN_NONE ? NULL : store_ptr(r->store, t, step);
}

static void fill_slots(struct runner *r, uint64_t data_step, uint64_t step)
{
    for (uint32_t j = 0; j < r->plan->n_micro; j++)
        fill_input(r->c, data_step, j, host(r, TENSOR_X, 0, j, step),
                   host(r, TENSOR_TARGET, PLAN_NONE, j, step));
}

static struct step_result results(struct runner *r, uint64_t step)
{
    struct step_result sum = {0};
    for (uint32_t j = 0; j < r->plan->n_micro; j++) {
        const struct step_result *one = host(r, TENSOR_RESULT, PLAN_NONE, j, step);
        sum.loss += one->loss;
        sum.correct += one->correct;
    }
    return sum;
}

static void read_step(struct runner *r, uint64_t step, struct engine_result *ret)
{
    assert_int_equal(exec_wait(r->exec, step), 0);
    const struct step_decision *d = host(r, TENSOR_DECISION, PLAN_NONE, PLAN_NONE, step);
    ret->loss[step] = results(r, step).loss;
    ret->sumsq[step] = d != NULL ? d->sumsq : 0;
}

static uint64_t hash_state(struct runner *r)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (uint32_t t = 0; t < r->plan->n_tensors; t++) {
        const struct plan_tensor *pt = &r->plan->tensors[t];
        if (pt->kind == TENSOR_W || pt->kind == TENSOR_K)
            h = hash_bytes(h, store_ptr(r->store, t, 0), pt->bytes);
    }
    return h;
}

/* Steps 0 and 1 overlap, a flush is before step 2, an evaluation before step 4: every order of programs. */
static void train(struct runner *r, struct engine_result *ret)
{
    struct device_counters before[DEVICE_MAX];
    run_program(r, PROGRAM_ENTRY, NULL);
    counters(r, before);
    uint64_t known = 0, runs = 0;
    for (uint64_t s = 0; s < ENGINE_STEPS; s++) {
        if (s == 2 || s == 4) {
            while (known < s)
                read_step(r, known++, ret);
            assert_int_equal(devset_drain(r->ds), 0);
            check_program_bytes(r->ds, r->plan, PROGRAM_CYCLE, (uint32_t)runs, before);
            if (s == 2) {
                run_program(r, PROGRAM_FLUSH, NULL);
            } else {
                run_program(r, PROGRAM_EXIT, NULL);
                fill_slots(r, EVAL_STEP, 0);
                struct step_args e = eval_args(r->c);
                run_program(r, PROGRAM_EVAL, &e);
                struct step_result sum = results(r, 0);
                ret->eval_loss = sum.loss;
                ret->eval_correct = sum.correct;
                run_program(r, PROGRAM_ENTRY, NULL);
            }
            counters(r, before);
            runs = 0;
        }
        fill_slots(r, s, s);
        struct step_args a = args_of(r->c, s);
        assert_int_equal(exec_cycle(r->exec, &a), 0);
        runs++;
        if (s - known >= PLAN_RING - 1)
            read_step(r, known++, ret);
    }
    while (known < ENGINE_STEPS)
        read_step(r, known++, ret);
    assert_int_equal(devset_drain(r->ds), 0);
    check_program_bytes(r->ds, r->plan, PROGRAM_CYCLE, (uint32_t)runs, before);
    run_program(r, PROGRAM_EXIT, NULL);
}

struct planned {
    struct graph *graph, *eval;
    struct machine machine;
    struct plan_request request;
};

static void planned_init(struct planned *p, const struct engine_case *c, const struct engine_machine *m)
{
    assert_int_equal(random_graph(&c->chain, true, &p->graph), 0);
    assert_int_equal(random_graph(&c->chain, false, &p->eval), 0);
    machine_init_cpu(&p->machine, m->n_devices, m->capacity_bytes, 1ull << 32);
    p->request = (struct plan_request){p->graph, p->eval, &p->machine, m->policy, m->update};
}

static void planned_finish(struct planned *p)
{
    graph_destroy(p->graph);
    graph_destroy(p->eval);
}

uint64_t engine_least_capacity(const struct engine_case *c, const struct engine_machine *m)
{
    struct planned p;
    uint64_t least;
    planned_init(&p, c, m);
    assert_int_equal(plan_least_capacity(&p.request, &least, NULL), 0);
    planned_finish(&p);
    return least;
}

void engine_run(const struct engine_case *c, const struct engine_machine *m, struct engine_result *ret)
{
    struct err err = {0};
    struct planned pl;
    struct runner r = {.c = c};
    memset(ret, 0, sizeof *ret);
    planned_init(&pl, c, m);
    if (plan_make(&pl.request, &r.plan, NULL, &err) < 0 ||
        plan_verify(r.plan, pl.graph, pl.eval, &pl.machine, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    snprintf(ret->policy, sizeof ret->policy, "%s", r.plan->policy);
    struct devset_config config = {
        .backend = "cpu", .n_devices = m->n_devices, .threads = m->threads, .delay_seed = m->delay_seed};
    for (uint32_t d = 0; d < m->n_devices; d++) {
        /* The arena is no larger than the plan's peak: one byte further faults. */
        config.capacity_bytes[d] =
            r.plan->devices[d].peak_bytes > 0 ? r.plan->devices[d].peak_bytes : DEVICE_ALIGN;
        assert_true(r.plan->devices[d].peak_bytes <= m->capacity_bytes);
    }
    assert_int_equal(devset_open(&config, &r.ds, &err), 0);
    assert_int_equal(store_create(r.ds, r.plan, &r.store, &err), 0);
    struct exec_config ec = {r.plan, &c->chain.model, &c->chain.optimizer, r.ds, r.store};
    if (exec_create(&ec, &r.exec, &err) < 0)
        fail_msg("%s", err.msg);
    for (uint32_t l = 0; l < c->chain.model.n_layers; l++) {
        void *w = host(&r, TENSOR_W, l, PLAN_NONE, 0);
        if (w != NULL)
            layer_init(&c->chain.layers[l], c->seed, w);
    }
    struct plan_span *spans = measure(&r, m);
    train(&r, ret);
    check_measured(&r, spans);
    ret->state_hash = hash_state(&r);
    exec_destroy(r.exec);
    store_destroy(r.store);
    devset_close(r.ds);
    plan_destroy(r.plan);
    planned_finish(&pl);
}

/* ---- without the plan ---- */

struct reference {
    const struct engine_case *c;
    struct graph *g;
    void **mem; /* per tensor */
    struct pool *pool;
    struct step_args args;
};

static int launch_now(void *ctx, const struct op_call *call)
{
    struct reference *r = ctx;
    cpu_ops[call->op](call, r->pool);
    return 0;
}

static void *mem(struct reference *r, enum tensor_kind k, uint32_t layer, uint32_t micro)
{
    tensor_id t = graph_tensor_find(r->g, k, layer, micro);
    return t == PLAN_NONE ? NULL : r->mem[t];
}

static void reference_layer(struct reference *r, const struct graph_task *t, const struct op_sink *sink)
{
    const struct layer *l = &r->c->chain.layers[t->layer];
    uint32_t j = t->micro;
    struct layer_io io = {
        .step = &r->args,
        .rows = r->c->chain.rows,
        .first_row = j * r->c->chain.rows,
        .accumulate = j > 0,
        .w = mem(r, TENSOR_W, t->layer, PLAN_NONE),
        .x = mem(r, TENSOR_X, t->layer, j),
        .s = mem(r, TENSOR_S, t->layer, j),
        .target = layer_type(l)->is_loss ? mem(r, TENSOR_TARGET, PLAN_NONE, j) : NULL,
    };
    if (t->kind == INSTR_FWD) {
        io.y = mem(r, TENSOR_X, t->layer + 1, j);
        io.result = layer_type(l)->is_loss ? mem(r, TENSOR_RESULT, PLAN_NONE, j) : NULL;
        layer_type(l)->fwd(l, &io, sink);
        return;
    }
    io.dy = mem(r, TENSOR_DX, t->layer + 1, j);
    io.dx = mem(r, TENSOR_DX, t->layer, j);
    io.dw = mem(r, TENSOR_DW, t->layer, PLAN_NONE);
    io.scratch = mem(r, TENSOR_SCRATCH, t->layer, j);
    layer_type(l)->bwd(l, &io, sink);
}

static void reference_state(struct reference *r, const struct graph_task *t, const struct op_sink *sink)
{
    uint32_t l = t->layer;
    struct op_call call = {.step = &r->args};
    struct step_decision *decision = mem(r, TENSOR_DECISION, PLAN_NONE, PLAN_NONE);
    bool first = true;
    switch (t->kind) {
    case INSTR_NORM:
        call.op = OP_sumsq;
        call.sumsq = (struct op_sumsq){mem(r, TENSOR_DW, l, PLAN_NONE), mem(r, TENSOR_SUMSQ, l, PLAN_NONE),
                                       r->g->layers[l].size.w / 4};
        launch_now(r, &call);
        break;
    case INSTR_DECIDE:
        for (uint32_t k = 0; k < r->g->n_layers; k++) {
            double *sum = mem(r, TENSOR_SUMSQ, k, PLAN_NONE);
            if (sum == NULL)
                continue;
            decision->sumsq = (first ? 0 : decision->sumsq) + *sum;
            first = false;
        }
        call.op = OP_decide;
        call.decide = (struct op_decide){decision, r->c->chain.optimizer.clip};
        launch_now(r, &call);
        break;
    default:
        optimizer_update(&r->c->chain.optimizer, &r->args, mem(r, TENSOR_W, l, PLAN_NONE),
                         mem(r, TENSOR_DW, l, PLAN_NONE), mem(r, TENSOR_K, l, PLAN_NONE), decision,
                         r->g->layers[l].size.w, sink);
    }
}

static struct step_result reference_step(struct reference *r, const struct graph *tasks, uint64_t data_step)
{
    struct op_sink sink = {launch_now, r};
    struct step_result sum = {0};
    for (uint32_t j = 0; j < r->g->n_micro; j++)
        fill_input(r->c, data_step, j, mem(r, TENSOR_X, 0, j), mem(r, TENSOR_TARGET, PLAN_NONE, j));
    for (uint32_t i = 0; i < tasks->n_tasks; i++) {
        const struct graph_task *t = &tasks->tasks[i];
        if (t->kind == INSTR_FWD || t->kind == INSTR_BWD)
            reference_layer(r, t, &sink);
        else
            reference_state(r, t, &sink);
    }
    for (uint32_t j = 0; j < r->g->n_micro; j++) {
        const struct step_result *one = mem(r, TENSOR_RESULT, PLAN_NONE, j);
        sum.loss += one->loss;
        sum.correct += one->correct;
    }
    return sum;
}

void engine_reference(const struct engine_case *c, struct engine_result *ret)
{
    struct reference r = {.c = c};
    struct graph *eval;
    memset(ret, 0, sizeof *ret);
    cpu_thread_init();
    assert_int_equal(random_graph(&c->chain, true, &r.g), 0);
    assert_int_equal(random_graph(&c->chain, false, &eval), 0);
    assert_int_equal(pool_create(1, &r.pool), 0);
    r.mem = calloc(r.g->n_tensors, sizeof *r.mem);
    for (uint32_t t = 0; t < r.g->n_tensors; t++)
        r.mem[t] = calloc(1, r.g->tensors[t].bytes);
    for (uint32_t l = 0; l < r.g->n_layers; l++)
        if (r.g->layers[l].size.w > 0)
            layer_init(&c->chain.layers[l], c->seed, mem(&r, TENSOR_W, l, PLAN_NONE));
    for (uint64_t s = 0; s < ENGINE_STEPS; s++) {
        if (s == 4) {
            r.args = eval_args(c);
            struct step_result e = reference_step(&r, eval, EVAL_STEP);
            ret->eval_loss = e.loss;
            ret->eval_correct = e.correct;
        }
        r.args = args_of(c, s);
        ret->loss[s] = reference_step(&r, r.g, s).loss;
        struct step_decision *d = mem(&r, TENSOR_DECISION, PLAN_NONE, PLAN_NONE);
        ret->sumsq[s] = d != NULL ? d->sumsq : 0;
    }
    uint64_t h = 0xcbf29ce484222325ull;
    for (uint32_t t = 0; t < r.g->n_tensors; t++)
        if (r.g->tensors[t].kind == TENSOR_W || r.g->tensors[t].kind == TENSOR_K)
            h = hash_bytes(h, r.mem[t], r.g->tensors[t].bytes);
    ret->state_hash = h;
    ret->finite = true;
    for (uint32_t l = 0; l < r.g->n_layers; l++) {
        const float *w = mem(&r, TENSOR_W, l, PLAN_NONE);
        for (uint64_t i = 0; i < r.g->layers[l].size.w / 4; i++)
            ret->finite &= isfinite(w[i]) != 0;
    }
    for (uint32_t t = 0; t < r.g->n_tensors; t++)
        free(r.mem[t]);
    free(r.mem);
    pool_destroy(r.pool);
    graph_destroy(r.g);
    graph_destroy(eval);
}
