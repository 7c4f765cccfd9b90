/* Computes the reference results declared in engine.h: executes every task of the graph in the method's
 * order, one op after the other, without plan and executor.
 *
 * All tensors are in host memory. On the cpu backend an op is a call of its function. On any other backend
 * the op runs on one device: its operands are copied there, the op runs alone, and its results are copied
 * back. The reference therefore uses the arithmetic of the backend under test, and its order of ops is fixed.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/checked.h"
#include "kernels/cpu/cpu.h"
#include "kernels/half.h"
#include "tests/engine/problem.h"
#include "tests/unit/op_move.h"

struct reference {
    const struct engine_case *c;
    struct graph *g;
    void **mem;    /* per tensor */
    uint32_t step; /* training step within the cycle */
    struct step_args args;
    struct pool *pool; /* the cpu's */
    /* Used by backends other than cpu; ds is NULL on the cpu. `block` holds the tensors, at the same offsets
     * as on the device. */
    struct devset *ds;
    char *block;
    uint64_t block_bytes;
};

static void *on_device(const struct reference *r, const void *at)
{
    return devset_address(r->ds, 0, (uint64_t)((const char *)at - r->block));
}

static int launch_on_device(struct reference *r, const struct op_call *call)
{
    const struct op_call moved = op_move(call, r->block, r->block_bytes, devset_address(r->ds, 0, 0));
    struct op_range ranges[OP_RANGES];
    const uint32_t n = op_ranges(call, ranges);

    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(
            devset_copy(r->ds, LANE_IN, on_device(r, ranges[i].at), ranges[i].at, ranges[i].bytes), 0);
    assert_int_equal(devset_drain(r->ds), 0);
    assert_int_equal(devset_launch(r->ds, LANE_COMPUTE, &moved), 0);
    assert_int_equal(devset_drain(r->ds), 0);
    for (uint32_t i = 0; i < n; i++)
        if (ranges[i].write)
            assert_int_equal(devset_copy(r->ds, LANE_OUT, (void *)(uintptr_t)ranges[i].at,
                                         on_device(r, ranges[i].at), ranges[i].bytes),
                             0);
    assert_int_equal(devset_drain(r->ds), 0);
    return 0;
}

static int launch_now(void *ctx, const struct op_call *call)
{
    struct reference *r = ctx;
    if (r->ds != NULL)
        return launch_on_device(r, call);
    cpu_ops[call->op](call, r->pool);
    return 0;
}

/* Each tensor is an allocation of its own, so that a sanitizer sees an access outside of it. */
static void open_on_cpu(struct reference *r)
{
    cpu_thread_init();
    assert_int_equal(pool_create(1, &r->pool), 0);
    for (uint32_t t = 0; t < r->g->n_tensors; t++)
        r->mem[t] = calloc(1, r->g->tensors[t].bytes);
}

static void open_on_device(struct reference *r)
{
    struct devset_config config = {.backend = engine_backend, .n_devices = 1, .threads = 1};
    struct err err = {0};
    void *block;
    uint64_t at = 0;

    for (uint32_t t = 0; t < r->g->n_tensors; t++)
        r->block_bytes += round_up(r->g->tensors[t].bytes, DEVICE_ALIGN);
    config.capacity_bytes[0] = r->block_bytes;
    if (devset_open(&config, &r->ds, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(devset_host_alloc(r->ds, r->block_bytes, &block, NULL), 0);
    r->block = block;
    for (uint32_t t = 0; t < r->g->n_tensors; t++) {
        r->mem[t] = r->block + at;
        at += round_up(r->g->tensors[t].bytes, DEVICE_ALIGN);
    }
}

static void open_memory(struct reference *r)
{
    r->mem = calloc(r->g->n_tensors, sizeof *r->mem);
    if (strcmp(engine_backend, "cpu") == 0)
        open_on_cpu(r);
    else
        open_on_device(r);
}

static void close_memory(struct reference *r)
{
    if (r->ds != NULL) {
        devset_host_free(r->ds, r->block, r->block_bytes);
        devset_close(r->ds);
    } else {
        for (uint32_t t = 0; t < r->g->n_tensors; t++)
            free(r->mem[t]);
        pool_destroy(r->pool);
    }
    free(r->mem);
}

/* of: the layer, or the decision group. which: the micro-batch, of a dW the replica. */
static void *mem(struct reference *r, enum tensor_kind k, uint32_t of, uint32_t which)
{
    tensor_id t = graph_tensor_find(r->g, k, of, which, r->step);
    return t == PLAN_NONE ? NULL : r->mem[t];
}

/* The link of a layer, as the case gives it. The reference follows the links itself and does not use what the
 * graph made of them. */
static struct graph_link link_of(const struct reference *r, uint32_t layer)
{
    const struct random_chain *c = &r->c->chain;
    return c->linked ? c->links[layer] : graph_chain_link(&c->model, layer);
}

/* The layer itself, or the layer whose twin it is. */
static uint32_t original_of(const struct reference *r, uint32_t layer)
{
    uint32_t twin_of = link_of(r, layer).twin_of;
    return twin_of != PLAN_NONE ? twin_of : layer;
}

static void *input_of(struct reference *r, uint32_t layer, uint32_t j)
{
    uint32_t input = link_of(r, layer).input;
    return input == PLAN_NONE ? mem(r, TENSOR_X, layer, j) : mem(r, TENSOR_Y, original_of(r, input), j);
}

/* The gradient that another layer returns, or NULL. */
static void *gradient_of(struct reference *r, uint32_t layer, uint32_t j)
{
    for (uint32_t l = layer + 1; l < r->g->n_layers; l++)
        if (link_of(r, l).input == layer && !link_of(r, l).stop)
            return mem(r, TENSOR_DX, l, j);
    return NULL;
}

static void reference_layer(struct reference *r, const struct graph_task *t, const struct op_sink *sink)
{
    const struct layer *l = &r->c->chain.layers[t->layer];
    uint32_t j = t->micro, original = original_of(r, t->layer);
    struct layer_io io = {
        .step = &r->args,
        .rows = r->c->chain.rows,
        .first_row = j * r->c->chain.rows,
        .accumulate = j % (r->g->n_micro / r->g->n_replicas) > 0,
        .w = mem(r, TENSOR_W, t->layer, PLAN_NONE),
        .b = mem(r, TENSOR_B, original, PLAN_NONE),
        .x = input_of(r, t->layer, j),
        .s = mem(r, TENSOR_S, original, j),
        .target = layer_type(l)->is_loss ? mem(r, TENSOR_TARGET, t->layer, j) : NULL,
    };
    bool late = layer_type(l)->loss_in_bwd && r->args.training;
    if (layer_type(l)->is_loss && late == (t->kind == INSTR_BWD))
        io.result = mem(r, TENSOR_RESULT, t->layer, j);
    if (t->kind == INSTR_FWD) {
        io.y = mem(r, TENSOR_Y, t->layer, j);
        io.stat = r->args.training ? mem(r, TENSOR_STAT, t->layer, j) : NULL;
        io.scratch = mem(r, io.s ? TENSOR_ROOM : TENSOR_WORK, t->layer, j);
        layer_type(l)->fwd(l, &io, sink);
        return;
    }
    io.dy = gradient_of(r, t->layer, j);
    io.dx = mem(r, TENSOR_DX, t->layer, j);
    io.dw = mem(r, TENSOR_DW, t->layer, t->replica);
    io.scratch = mem(r, TENSOR_SCRATCH, t->layer, j);
    if (layer_type(l)->is_loss && random_optimizers(&r->c->chain)[t->group].scaling.growth_steps > 0)
        io.group = mem(r, TENSOR_GROUP, t->group, PLAN_NONE);
    layer_type(l)->bwd(l, &io, sink);
}

/* The gradients of all layers that use the weights of `layer`, in ascending order. */
static struct op_gradients gradients_of(struct reference *r, uint32_t layer)
{
    struct op_gradients g = {.mean = r->c->chain.layers[layer].mean_uses};
    for (uint32_t l = 0; l < r->g->n_layers; l++) {
        float *dw = mem(r, TENSOR_DW, l, 0);
        if (dw != NULL && (l == layer || link_of(r, l).owner == layer))
            g.dw[g.n++] = dw;
    }
    return g;
}

static bool decays(const struct optimizer *o, const struct layer *l, uint64_t element)
{
    struct layer_param params[16];
    uint32_t n = layer_type(l)->params(l, params);
    for (uint32_t i = 0; i < n; i++)
        if (element >= dtype_elements(params[i].dtype, params[i].offset) &&
            element < dtype_elements(params[i].dtype, params[i].offset) + params[i].count)
            return (o->no_decay & 1u << params[i].class) == 0;
    fail_msg("element %llu of no parameter", (unsigned long long)element);
    return false;
}

static void reference_update(struct reference *r, uint32_t l, const struct op_sink *sink)
{
    const struct optimizer *o = &random_optimizers(&r->c->chain)[link_of(r, l).group];
    const struct layer *layer = &r->c->chain.layers[l];
    struct optimizer_io io = {.w = mem(r, TENSOR_W, l, PLAN_NONE),
                              .g = gradients_of(r, l),
                              .group = mem(r, TENSOR_GROUP, link_of(r, l).group, PLAN_NONE),
                              .n = layer_w_elements(&r->g->layers[l].size),
                              .dtype = r->g->layers[l].size.w_dtype};
    uint64_t n = io.g.n > 0 ? io.n : 0, begin = 0;

    optimizer_split(o, mem(r, TENSOR_K, l, PLAN_NONE), &io);
    for (uint64_t i = 1; i <= n; i++) { /* where it changes, a launch ends */
        if (i < n && (o->no_decay == 0 || decays(o, layer, i) == decays(o, layer, begin)))
            continue;
        struct optimizer_io part = optimizer_part(o, &io, begin, i);
        part.no_decay = !decays(o, layer, begin);
        optimizer_update(o, &r->args, &part, sink);
        begin = i;
    }
    float *b = mem(r, TENSOR_B, l, PLAN_NONE);
    for (uint32_t j = 0; b != NULL && j < r->g->n_micro; j++)
        layer_type(layer)->fold(layer, &r->args, b, mem(r, TENSOR_STAT, l, j), sink);
}

static void reference_state(struct reference *r, const struct graph_task *t, const struct op_sink *sink)
{
    const struct optimizer *o = &random_optimizers(&r->c->chain)[t->group];
    uint32_t l = t->layer;
    struct op_call call = {.step = &r->args};
    struct step_decision *decision = mem(r, TENSOR_DECISION, t->group, PLAN_NONE);
    bool first = true;
    switch (t->kind) {
    case INSTR_RED:
        call.op = OP_add;
        call.add = (struct op_add){.y = mem(r, TENSOR_DW, l, 0),
                                   .x = mem(r, TENSOR_DW, l, t->replica),
                                   .n = layer_w_elements(&r->g->layers[l].size),
                                   .dtype = LAYER_DW_DTYPE};
        launch_now(r, &call);
        break;
    case INSTR_NORM:
        call.op = OP_sumsq;
        call.sumsq = (struct op_sumsq){.g = gradients_of(r, l),
                                       .sum = mem(r, TENSOR_SUMSQ, l, PLAN_NONE),
                                       .n = layer_w_elements(&r->g->layers[l].size)};
        launch_now(r, &call);
        break;
    case INSTR_DECIDE:
        for (uint32_t k = 0; k < r->g->n_layers; k++) {
            double *sum = mem(r, TENSOR_SUMSQ, k, PLAN_NONE);
            const uint32_t group = link_of(r, k).group;
            if (sum == NULL || r->g->groups[group].scale != r->g->groups[t->group].scale)
                continue;
            const double added = group != t->group && isfinite(*sum) ? 0 : *sum;
            decision->sumsq = (first ? 0 : decision->sumsq) + added;
            first = false;
        }
        call.op = OP_decide;
        call.decide = (struct op_decide){decision, mem(r, TENSOR_GROUP, t->group, PLAN_NONE),
                                         o->clip,  o->beta1,
                                         o->beta2, o->scaling.growth_steps};
        launch_now(r, &call);
        break;
    default:
        reference_update(r, l, sink);
    }
}

static struct step_result reference_step(struct reference *r, const struct graph *tasks, uint64_t data_step)
{
    struct op_sink sink = {launch_now, r};
    struct step_result sum = {0};
    const uint64_t step = r->args.step;
    for (uint32_t j = 0; j < r->g->n_micro; j++)
        for (uint32_t l = 0; l < r->g->n_layers; l++)
            if (r->g->layers[l].is_loss)
                problem_fill(r->c, data_step, l, j, mem(r, TENSOR_X, 0, j), mem(r, TENSOR_TARGET, l, j));
    for (uint32_t i = 0; i < tasks->n_tasks; i++) {
        const struct graph_task *t = &tasks->tasks[i];
        if (r->args.training)
            r->args = problem_args(r->c, step, t->group);
        if (t->kind == INSTR_FWD || t->kind == INSTR_BWD)
            reference_layer(r, t, &sink);
        else
            reference_state(r, t, &sink);
    }
    for (uint32_t l = 0; l < r->g->n_layers; l++)
        for (uint32_t j = 0; r->g->layers[l].is_loss && j < r->g->n_micro; j++) {
            const struct step_result *one = mem(r, TENSOR_RESULT, l, j);
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
    struct random_chain one = c->chain; /* the reference has one step in a cycle, whatever the case has */
    one.steps = 1;
    assert_int_equal(random_graph(&one, true, &r.g), 0);
    assert_int_equal(random_graph(&one, false, &eval), 0);
    open_memory(&r);
    for (uint32_t l = 0; l < r.g->n_layers; l++)
        if (mem(&r, TENSOR_W, l, PLAN_NONE) != NULL && link_of(&r, l).owner == PLAN_NONE)
            problem_init(c, l, mem(&r, TENSOR_W, l, PLAN_NONE), mem(&r, TENSOR_K, l, PLAN_NONE));
    for (uint32_t i = 0; i < r.g->n_groups; i++)
        if (mem(&r, TENSOR_GROUP, i, PLAN_NONE) != NULL)
            problem_init_group(c, i, mem(&r, TENSOR_GROUP, i, PLAN_NONE));
    const uint64_t steps = engine_steps(c);
    for (uint64_t s = 0; s < steps; s++) {
        if (s == steps / ENGINE_CYCLES * 4) {
            r.args = problem_eval_args(c);
            struct step_result e = reference_step(&r, eval, EVAL_STEP);
            ret->eval_loss = e.loss;
            ret->eval_correct = e.correct;
        }
        r.args = problem_args(c, s, 0);
        ret->loss[s] = reference_step(&r, r.g, s).loss;
        for (uint32_t i = 0; i < r.g->n_groups; i++) {
            struct step_decision *d = mem(&r, TENSOR_DECISION, i, PLAN_NONE);
            ret->sumsq[s] += d != NULL ? d->sumsq : 0;
        }
    }
    uint64_t h = HASH_START;
    for (uint32_t t = 0; t < r.g->n_tensors; t++)
        if (r.g->tensors[t].persistent)
            h = problem_hash(h, r.mem[t], r.g->tensors[t].bytes);
    ret->state_hash = h;
    struct group_state *state = mem(&r, TENSOR_GROUP, 0, PLAN_NONE);
    ret->updates = state != NULL ? state->t : 0;
    ret->finite = true;
    for (uint32_t l = 0; l < r.g->n_layers; l++) {
        const struct layer_sizes *size = &r.g->layers[l].size;
        const char *w = mem(&r, TENSOR_W, l, PLAN_NONE);
        for (uint64_t i = 0; i < layer_w_elements(size); i++) {
            float value;
            half_widen(size->w_dtype, w + i * dtype_size(size->w_dtype), &value, 1);
            ret->finite &= isfinite(value) != 0;
        }
    }
    close_memory(&r);
    graph_destroy(r.g);
    graph_destroy(eval);
}
