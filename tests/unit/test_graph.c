/* Tests the graph on random models, with replicas and with micro-batch sizes that differ between layers. An
 * oracle knows what a step is and follows versions and rows through the tasks in their order. Other tests
 * check a hand-built graph that is no chain, and which requests are refused, with which reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>

#include "base/rng.h"
#include "base/strbuf.h"
#include "scheduler/graph.h"
#include "scheduler/table.h"
#include "tests/unit/even_table.h"
#include "tests/unit/random_chain.h"
#include "tests/unit/random_linked.h"
#include "tests/unit/random_table.h"

#define CASES      600
#define MAX_LAYERS 16
#define MAX_PIECES 64

/* ---- an oracle ---- */

struct follow {
    const struct graph *g;
    uint32_t batch;
    uint32_t (*version)[MAX_PIECES]; /* per tensor and piece: writes of the step so far */
    uint32_t *writes;                /* per tensor */
};

static uint32_t layer_micros(const struct follow *f, uint32_t l)
{
    return f->batch / f->g->layers[l].rows;
}

/* Rows that an operand of X or dX stands for, from the ranges alone. */
static void operand_rows(const struct follow *f, const struct graph_operand *o, uint32_t *first,
                         uint32_t *last)
{
    const struct graph_tensor *t = &f->g->tensors[o->tensor];
    uint32_t count = 0;
    for (uint32_t i = 0; i < f->g->n_tensors; i++)
        count += f->g->tensors[i].kind == t->kind && f->g->tensors[i].layer == t->layer;
    uint64_t rows = f->batch / count;
    assert_int_equal(o->begin * rows % t->bytes, 0);
    *first = (uint32_t)(t->micro * rows + o->begin * rows / t->bytes);
    *last = (uint32_t)(t->micro * rows + o->end * rows / t->bytes);
}

static void follow_operand(struct follow *f, const struct graph_task *task, const struct graph_operand *o)
{
    const struct graph_tensor *t = &f->g->tensors[o->tensor];
    uint64_t piece = t->bytes / t->pieces;
    assert_true(t->pieces <= MAX_PIECES);
    assert_int_equal(t->bytes % t->pieces, 0);
    assert_true(o->begin < o->end && o->end <= t->bytes);
    assert_true(o->begin % piece == 0 && o->end % piece == 0);
    if (t->kind == TENSOR_X || t->kind == TENSOR_Y || t->kind == TENSOR_DX) {
        uint32_t first, last, rows = f->g->layers[task->layer].rows;
        operand_rows(f, o, &first, &last);
        assert_int_equal(first, task->micro * rows); /* the rows of the task, all of them and no others */
        assert_int_equal(last, (task->micro + 1) * rows);
    } else {
        assert_true(o->begin == 0 && o->end == t->bytes);
    }
    if (t->kind == TENSOR_DW && task->kind == INSTR_BWD)
        assert_int_equal(t->replica, task->replica);
    for (uint64_t p = o->begin / piece; p < o->end / piece; p++) {
        uint32_t *v = &f->version[o->tensor][p];
        if (o->access & ACCESS_READ)
            assert_int_equal(*v, o->read_version);
        if (o->access & ACCESS_WRITE) {
            assert_int_equal(o->write_version, *v + 1);
            *v = o->write_version;
        }
    }
    f->writes[o->tensor] += (o->access & ACCESS_WRITE) != 0;
}

static void check_task(struct follow *f, uint32_t i)
{
    const struct graph *g = f->g;
    const struct graph_task *t = &g->tasks[i];
    for (uint32_t k = 0; k < t->n_operands; k++)
        follow_operand(f, t, &g->operands[t->operand + k]);
    uint32_t which = t->micro != PLAN_NONE ? t->micro : t->kind == INSTR_RED ? t->replica : PLAN_NONE;
    assert_int_equal(
        graph_task_find(g, t->kind, t->kind == INSTR_DECIDE ? t->group : t->layer, which, t->step), i);
    if (t->kind == INSTR_FWD || t->kind == INSTR_BWD) {
        uint32_t of_replica = f->batch / g->n_replicas;
        assert_int_equal(t->replica, t->micro * g->layers[t->layer].rows / of_replica);
        assert_int_equal(t->place, PLACE_DEVICE);
    }
}

static uint32_t first_with_weights(const struct graph *g)
{
    uint32_t l = 0;
    while (l < g->n_layers && g->layers[l].size.w == 0)
        l++;
    return l;
}

/* Returns the number of tasks of this kind that the layer must have. */
static uint32_t wanted(const struct follow *f, enum instr_kind kind, uint32_t l)
{
    const struct graph *g = f->g;
    bool trained = g->layers[l].size.w > 0, own = trained && !g->layers[l].tied;
    switch (kind) {
    case INSTR_FWD:
        return layer_micros(f, l);
    case INSTR_BWD:
        return l >= first_with_weights(g) ? layer_micros(f, l) : 0;
    case INSTR_RED:
        return trained ? g->n_replicas - 1 : 0;
    case INSTR_NORM:
        return own && g->groups[0].decision;
    case INSTR_UPD:
        return own;
    default:
        return 0;
    }
}

static void check_counts(const struct follow *f)
{
    const struct graph *g = f->g;
    uint32_t sum = g->training && g->groups[0].state_bytes > 0;
    for (uint32_t l = 0; l < g->n_layers; l++)
        for (int kind = 0; kind < INSTR_KIND_COUNT; kind++) {
            uint32_t n = 0, want = wanted(f, kind, l);
            for (uint32_t i = 0; i < g->n_tasks; i++)
                n += (int)g->tasks[i].kind == kind && g->tasks[i].layer == l;
            assert_int_equal(n, want);
            sum += want;
        }
    assert_int_equal(g->n_tasks, sum);
}

/* Checks that the gradient sums of the replicas are added to the sum of replica 0 in ascending order, after
 * both are complete. */
static void check_reductions(const struct follow *f)
{
    const struct graph *g = f->g;
    uint32_t last_layer = PLAN_NONE, last = 0;
    for (uint32_t i = 0; i < g->n_tasks; i++) {
        const struct graph_task *t = &g->tasks[i];
        if (t->kind != INSTR_RED)
            continue;
        const struct graph_operand *o = &g->operands[t->operand];
        uint32_t each = layer_micros(f, t->layer) / g->n_replicas;
        assert_int_equal(t->replica, t->layer == last_layer ? last + 1 : 1);
        assert_int_equal(t->n_operands, 2);
        assert_int_equal(g->tensors[o[0].tensor].replica, 0);
        assert_int_equal(g->tensors[o[1].tensor].replica, t->replica);
        assert_int_equal(o[0].access, ACCESS_RW);
        assert_int_equal(o[1].access, ACCESS_READ);
        assert_int_equal(o[0].read_version, each + t->replica - 1);
        assert_int_equal(o[1].read_version, each);
        last_layer = t->layer;
        last = t->replica;
    }
}

/* Returns the type that a tensor must have. In a graph from a profile table, everything is bytes. But if the
 * weights of the table have the 16-bit type `half`, W and dW have types. */
static enum dtype wanted_dtype(const struct graph *g, const struct graph_tensor *t, enum dtype half)
{
    bool table = strcmp(g->layers[g->n_layers - 1].type, "loss") == 0;
    if (half != DTYPE_F32 && (t->kind == TENSOR_W || t->kind == TENSOR_DW))
        return t->kind == TENSOR_W ? half : DTYPE_F32;
    bool ids = t->kind == TENSOR_X && !table && strcmp(g->layers[t->layer].type, "embedding") == 0;
    switch (t->kind) {
    case TENSOR_W:
    case TENSOR_DW:
    case TENSOR_X:
    case TENSOR_Y:
    case TENSOR_DX:
        return table ? DTYPE_U8 : ids ? DTYPE_I32 : DTYPE_F32;
    case TENSOR_TARGET:
        return strcmp(g->layers[t->layer].type, "mse") == 0 ? DTYPE_F32 : DTYPE_I32;
    case TENSOR_SUMSQ:
        return DTYPE_F64;
    default:
        return DTYPE_U8;
    }
}

/* Checks that every tensor has its type and consists of whole elements, and that the parts of every K follow
 * one another and fill it. */
static void check_types(const struct graph *g, enum dtype half)
{
    for (uint32_t t = 0; t < g->n_tensors; t++) {
        assert_int_equal(g->tensors[t].dtype, wanted_dtype(g, &g->tensors[t], half));
        assert_int_equal(g->tensors[t].bytes % dtype_size(g->tensors[t].dtype), 0);
    }
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct graph_layer *gl = &g->layers[l];
        tensor_id k = graph_tensor_find(g, TENSOR_K, l, PLAN_NONE, 0);
        uint64_t at = 0;
        for (uint32_t p = 0; p < gl->n_parts; p++) {
            assert_int_equal(gl->parts[p].begin, at);
            assert_int_equal(gl->parts[p].elements * dtype_size(gl->parts[p].dtype), gl->parts[p].end - at);
            at = gl->parts[p].end;
        }
        assert_int_equal(gl->k_bytes, at);
        assert_int_equal(k == PLAN_NONE ? 0 : g->tensors[k].bytes, at);
    }
}

/* `half` is the type of 16-bit weights in a graph from a table, and DTYPE_F32 in all other graphs. */
static void check_graph(const struct graph *g, uint32_t batch, enum dtype half)
{
    check_types(g, half);
    struct follow f = {g, batch, calloc(g->n_tensors, sizeof *f.version),
                       calloc(g->n_tensors, sizeof *f.writes)};
    for (uint32_t t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *gt = &g->tensors[t];
        bool loaded = gt->kind == TENSOR_X || gt->kind == TENSOR_TARGET;
        for (uint32_t p = 0; p < MAX_PIECES; p++)
            f.version[t][p] = loaded;
        f.writes[t] = loaded;
        assert_int_equal(gt->external, loaded || gt->kind == TENSOR_RESULT || gt->kind == TENSOR_DECISION);
        assert_true(gt->bytes > 0);
    }
    for (uint32_t i = 0; i < g->n_tasks; i++)
        check_task(&f, i);
    for (uint32_t t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *gt = &g->tensors[t];
        assert_int_equal(gt->persistent, gt->kind == TENSOR_W || gt->kind == TENSOR_K ||
                                             gt->kind == TENSOR_B || gt->kind == TENSOR_GROUP);
        if (g->training && gt->kind != TENSOR_S && gt->kind != TENSOR_WORK && gt->kind != TENSOR_ROOM)
            assert_int_equal(f.version[t][0], gt->writes_per_cycle);
        if (g->training && (gt->kind == TENSOR_DW || gt->kind == TENSOR_W || gt->kind == TENSOR_K))
            assert_int_equal(f.writes[t], gt->writes_per_cycle); /* as a whole, each time */
        for (uint32_t p = 1; p < gt->pieces; p++)
            assert_int_equal(f.version[t][p], f.version[t][0]); /* no piece is left out */
    }
    check_counts(&f);
    check_reductions(&f);
    free(f.version);
    free(f.writes);
}

/* ---- random ones ---- */

/* Sizes that divide the part of a replica, and one another from layer to layer: up and down. */
static void random_rows(uint32_t n, uint32_t local, uint32_t *rows, struct rng *rng)
{
    for (uint32_t l = 0; l < n; l++) {
        do
            rows[l] = 1 + rng_below(rng, local);
        while (local % rows[l] != 0 || (l > 0 && rows[l] % rows[l - 1] != 0 && rows[l - 1] % rows[l] != 0));
    }
}

static void test_graph_of_random_sizes_and_replicas(void **state)
{
    (void)state;
    static const uint32_t locals[] = {1, 2, 3, 4, 6, 8, 12, 24};
    uint32_t made = 0, mixed = 0, crossed = 0;
    for (uint32_t seed = 1; seed <= CASES; seed++) {
        struct rng rng = {.seed = seed};
        struct strbuf b = {0};
        struct table *t;
        struct graph *g;
        uint32_t rows[MAX_LAYERS], replicas = rng_below(&rng, 5), local = locals[rng_below(&rng, 8)];
        uint32_t batch = local * (replicas > 0 ? replicas : 1), least = local, most = 1;
        random_table_json(&b, &rng);
        assert_int_equal(table_parse(b.at, b.n, "t", &t, NULL), 0);
        random_rows(t->n_layers, local, rows, &rng);
        const struct graph_sizes sizes = {batch, replicas, rows};
        struct err err = {0};
        if (graph_build_sizes(t, &sizes, true, &g, &err) < 0) { /* a line that goes down to nothing */
            assert_non_null(strstr(err.msg, "has no input"));
            table_destroy(t);
            strbuf_finish(&b);
            continue;
        }
        made++;
        for (uint32_t l = 0; l < t->n_layers; l++) {
            least = rows[l] < least ? rows[l] : least;
            most = rows[l] > most ? rows[l] : most;
            assert_int_equal(g->layers[l].rows, rows[l]);
            assert_int_equal(graph_micros(g, l), batch / rows[l]);
        }
        for (uint32_t l = 0; l < t->n_layers; l++)
            crossed += most % rows[l] != 0;
        mixed += least != most;
        assert_int_equal(g->rows, least);
        assert_int_equal(g->n_micro, batch / least);
        assert_int_equal(g->n_replicas, replicas > 0 ? replicas : 1);
        check_graph(g, batch, t->dtype);
        graph_destroy(g);
        table_destroy(t);
        strbuf_finish(&b);
    }
    assert_true(made > CASES / 2 && mixed > CASES / 4);
    assert_true(crossed >
                10); /* sizes of which neither divides the other, with one between that divides both */
}

static void test_graph_of_random_chains(void **state)
{
    (void)state;
    uint32_t decisions = 0;
    for (uint32_t seed = 1; seed <= CASES; seed++) {
        struct rng rng = {.seed = seed};
        struct random_chain c;
        struct graph *train, *eval;
        random_chain(&c, &rng, 20);
        c.n_replicas = 1 + rng_below(&rng, 4);
        c.n_micro *= c.n_replicas;
        assert_int_equal(random_graph(&c, true, &train), 0);
        assert_int_equal(random_graph(&c, false, &eval), 0);
        check_graph(train, c.rows * c.n_micro, DTYPE_F32);
        decisions += train->groups[0].decision;
        /* The same ids in both. */
        assert_int_equal(train->n_tensors, eval->n_tensors);
        for (uint32_t t = 0; t < train->n_tensors; t++) {
            assert_int_equal(train->tensors[t].kind, eval->tensors[t].kind);
            assert_int_equal(train->tensors[t].layer, eval->tensors[t].layer);
            assert_int_equal(train->tensors[t].micro, eval->tensors[t].micro);
            assert_int_equal(train->tensors[t].replica, eval->tensors[t].replica);
            assert_int_equal(train->tensors[t].bytes, eval->tensors[t].bytes);
        }
        for (uint32_t i = 0; i < eval->n_tasks; i++)
            assert_int_equal(eval->tasks[i].kind, INSTR_FWD);
        assert_int_equal(eval->n_tasks, eval->n_layers * c.n_micro);
        graph_destroy(train);
        graph_destroy(eval);
    }
    assert_true(decisions > CASES / 4);
}

/* ---- several steps ---- */

/* Returns the tensor of training step `step` of `many` that stands for tensor `t` of `one`, the graph of the
 * same model with one step. */
static tensor_id tensor_of_step(const struct graph *one, const struct graph *many, tensor_id t, uint32_t step)
{
    const struct graph_tensor *gt = &one->tensors[t];
    uint32_t of = gt->kind == TENSOR_GROUP || gt->kind == TENSOR_DECISION ? gt->group : gt->layer;
    tensor_id first = graph_tensor_find(one, gt->kind, of, PLAN_NONE, 0);
    return graph_tensor_find(many, gt->kind, of, t - first, step);
}

static void check_tensor_of_step(const struct graph *one, const struct graph *many, tensor_id t,
                                 uint32_t step)
{
    tensor_id id = tensor_of_step(one, many, t, step);
    assert_in_range(id, 0, many->n_tensors - 1);
    const struct graph_tensor *a = &one->tensors[t], *b = &many->tensors[id];
    assert_int_equal(b->kind, a->kind);
    assert_int_equal(b->layer, a->layer);
    assert_int_equal(b->micro, a->micro);
    assert_int_equal(b->replica, a->replica);
    assert_int_equal(b->group, a->group);
    assert_int_equal(b->dtype, a->dtype);
    assert_int_equal(b->bytes, a->bytes);
    assert_int_equal(b->external, a->external);
    assert_int_equal(b->persistent, a->persistent);
    assert_int_equal(a->step, a->persistent ? PLAN_NONE : 0);
    assert_int_equal(b->step, a->persistent ? PLAN_NONE : step);
    assert_int_equal(b->writes_per_cycle, a->writes_per_cycle * (a->persistent ? many->steps : 1));
}

/* Compares task `i` of the graph of one step with the same task of step `step` of the other graph. A
 * persistent tensor has seen the writes of the steps before. */
static void check_task_of_step(const struct graph *one, const struct graph *many, uint32_t i, uint32_t step)
{
    const struct graph_task *a = &one->tasks[i], *b = &many->tasks[step * one->n_tasks + i];
    uint32_t which = a->micro != PLAN_NONE ? a->micro : a->kind == INSTR_RED ? a->replica : PLAN_NONE;
    assert_int_equal(b->kind, a->kind);
    assert_int_equal(b->layer, a->layer);
    assert_int_equal(b->micro, a->micro);
    assert_int_equal(b->replica, a->replica);
    assert_int_equal(b->group, a->group);
    assert_int_equal(b->place, a->place);
    assert_int_equal(b->step, step);
    assert_int_equal(b->n_operands, a->n_operands);
    assert_int_equal(
        graph_task_find(many, a->kind, a->kind == INSTR_DECIDE ? a->group : a->layer, which, step),
        step * one->n_tasks + i);
    for (uint32_t k = 0; k < a->n_operands; k++) {
        const struct graph_operand *x = &one->operands[a->operand + k], *y = &many->operands[b->operand + k];
        const struct graph_tensor *t = &one->tensors[x->tensor];
        uint32_t before = t->persistent ? step * t->writes_per_cycle : 0;
        assert_int_equal(y->tensor, tensor_of_step(one, many, x->tensor, step));
        assert_int_equal(y->access, x->access);
        assert_int_equal(y->role, x->role);
        assert_int_equal(y->optional, x->optional);
        assert_int_equal(y->begin, x->begin);
        assert_int_equal(y->end, x->end);
        if (x->access != ACCESS_WRITE)
            assert_int_equal(y->read_version, x->read_version + before);
        if (x->access != ACCESS_READ)
            assert_int_equal(y->write_version, x->write_version + before);
    }
}

/* Checks that a training graph of `steps` steps consists of the graph of one step, `steps` times, and that an
 * evaluation graph has the same tensors, but only the tasks of step 0. */
static void check_steps(struct random_chain *c, uint32_t steps, bool training)
{
    struct graph *one, *many;
    c->steps = 1;
    assert_int_equal(random_graph(c, training, &one), 0);
    c->steps = steps;
    assert_int_equal(random_graph(c, training, &many), 0);
    uint32_t persistent = 0, of_tasks = training ? steps : 1;
    for (uint32_t t = 0; t < one->n_tensors; t++)
        persistent += one->tensors[t].persistent;
    assert_int_equal(many->n_tensors, persistent + steps * (one->n_tensors - persistent));
    assert_int_equal(many->n_tasks, of_tasks * one->n_tasks);
    for (uint32_t step = 0; step < steps; step++)
        for (uint32_t t = 0; t < one->n_tensors; t++)
            check_tensor_of_step(one, many, t, step);
    for (uint32_t step = 0; step < of_tasks; step++)
        for (uint32_t i = 0; i < one->n_tasks; i++)
            check_task_of_step(one, many, i, step);
    assert_int_equal(graph_tensor_find(many, TENSOR_X, 0, 0, steps), PLAN_NONE);
    assert_int_equal(graph_task_find(many, INSTR_FWD, 0, 0, steps), PLAN_NONE);
    graph_destroy(one);
    graph_destroy(many);
}

static void test_graph_of_several_steps_repeats_the_graph_of_one(void **state)
{
    (void)state;
    static const uint32_t steps[] = {2, 3, 7};
    for (uint32_t seed = 1; seed <= CASES / 4; seed++) {
        struct rng rng = {.seed = seed};
        struct random_chain c;
        struct linked_features features = {0};
        if (seed % 3 == 0)
            random_linked(&c, &rng, &features);
        else if (seed % 3 == 1)
            random_transformer(&c, &rng);
        else
            random_chain(&c, &rng, 20);
        c.n_replicas = 1 + rng_below(&rng, 3);
        c.n_micro *= c.n_replicas;
        for (uint32_t i = 0; i < sizeof steps / sizeof *steps; i++) {
            check_steps(&c, steps[i], true);
            check_steps(&c, steps[i], false);
        }
    }
}

/* ---- by hand ---- */

/* Three layers have micro-batches of 4, 2 and 1 rows. The X between two layers is as large as the larger of
 * their two micro-batches. */
static void test_graph_pieces_by_hand(void **state)
{
    (void)state;
    struct table *t = even_table(3, 4096, 8192, 1000, 3000);
    const uint32_t rows[] = {4, 2, 1};
    const struct graph_sizes sizes = {8, 2, rows};
    struct graph *g;
    assert_int_equal(graph_build_sizes(t, &sizes, true, &g, NULL), 0);
    const struct graph_tensor *x1 = &g->tensors[graph_tensor_find(g, TENSOR_Y, 0, 1, 0)],
                              *x2 = &g->tensors[graph_tensor_find(g, TENSOR_Y, 1, 3, 0)];
    assert_int_equal(graph_tensor_find(g, TENSOR_Y, 0, 2, 0), PLAN_NONE);
    assert_int_equal(x1->bytes, 4000);
    assert_int_equal(x1->pieces, 2);
    assert_int_equal(x1->replica, 1);
    assert_int_equal(x2->bytes, 2000);
    assert_int_equal(x2->pieces, 2);
    /* Micro-batch 3 of layer 1 is rows 6 and 7: the second half of the second X. */
    const struct graph_task *fwd = &g->tasks[graph_task_find(g, INSTR_FWD, 1, 3, 0)];
    for (uint32_t k = 0; k < fwd->n_operands; k++) {
        const struct graph_operand *o = &g->operands[fwd->operand + k];
        if (g->tensors[o->tensor].kind != TENSOR_Y)
            continue;
        assert_int_equal(g->tensors[o->tensor].micro, g->tensors[o->tensor].layer == 0 ? 1 : 3);
        assert_int_equal(o->begin, g->tensors[o->tensor].layer == 0 ? 2000 : 0);
        assert_int_equal(o->end, g->tensors[o->tensor].layer == 0 ? 4000 : 2000);
    }
    /* A replica has two micro-batches of layer 1 and one of layer 0. RED then adds one more write to the sum
     * of replica 0. */
    const struct graph_task *red = &g->tasks[graph_task_find(g, INSTR_RED, 1, 1, 0)];
    assert_int_equal(g->operands[red->operand].read_version, 2);
    assert_int_equal(g->operands[red->operand].write_version, 3);
    assert_int_equal(g->tensors[graph_tensor_find(g, TENSOR_DW, 1, 0, 0)].writes_per_cycle, 3);
    assert_int_equal(g->tensors[graph_tensor_find(g, TENSOR_DW, 1, 1, 0)].writes_per_cycle, 2);
    assert_int_equal(g->tensors[graph_tensor_find(g, TENSOR_DW, 0, 0, 0)].writes_per_cycle, 2);
    assert_int_equal(graph_task_find(g, INSTR_RED, 1, 0, 0), PLAN_NONE);
    assert_int_equal(graph_task_find(g, INSTR_RED, 1, 2, 0), PLAN_NONE);
    assert_int_equal(graph_task_find(g, INSTR_RED, 2, 1, 0), PLAN_NONE);
    assert_int_equal(graph_task_find(g, INSTR_UPD, 0, PLAN_NONE, 0), g->n_tasks - 2);
    graph_destroy(g);
    table_destroy(t);
}

static void test_graph_refuses_sizes(void **state)
{
    (void)state;
    static const struct {
        uint32_t batch, replicas, rows[3];
        const char *says; /* NULL: it is a graph */
    } cases[] = {
        {8, 2, {4, 2, 1}, NULL},
        {8, 0, {8, 8, 8}, NULL},
        {12, 1, {6, 2, 4}, NULL}, /* neighbours divide one another */
        {0, 1, {1, 1, 1}, "cannot be shared"},
        {8, 3, {1, 1, 1}, "8 rows cannot be shared by 3 replicas"},
        {8, 16, {1, 1, 1}, "cannot be shared"},
        {8, 2, {8, 4, 4}, "micro-batches of 8 rows do not divide the 4 of a replica"},
        {8, 2, {3, 1, 1}, "do not divide"},
        {8, 2, {4, 0, 4}, "do not divide"},
        {12, 1, {6, 4, 4}, "layer 1 has micro-batches of 4 rows and the layer before of 6: neither divides"},
        {12, 1, {2, 2, 3}, "layer 2"},
        {1u << 30, 1, {1, 1, 1}, "more tasks than a plan can hold"},
        {1u << 30, 1, {1u << 29, 1u << 29, 1}, "more tasks than a plan can hold"},
    };
    struct table *t = even_table(3, 4096, 8192, 1000, 3000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct graph *g = NULL;
        struct err err = {0};
        const struct graph_sizes sizes = {cases[i].batch, cases[i].replicas, cases[i].rows};
        int e = graph_build_sizes(t, &sizes, true, &g, &err);
        if (cases[i].says == NULL) {
            assert_int_equal(e, 0);
            check_graph(g, cases[i].batch, t->dtype);
            graph_destroy(g);
            continue;
        }
        assert_int_equal(e, -EINVAL);
        assert_null(g);
        if (strstr(err.msg, cases[i].says) == NULL)
            fail_msg("case %zu: %s", i, err.msg);
    }
    table_destroy(t);
}

static void test_graph_refuses_replicas_of_a_chain(void **state)
{
    (void)state;
    struct rng rng = {.seed = 1};
    struct random_chain c;
    struct graph *g;
    struct err err = {0};
    random_chain(&c, &rng, 20);
    struct graph_config config = {
        .model = &c.model, .optimizer = &c.optimizer, .rows = 2, .n_micro = 6, .training = true};
    for (uint32_t replicas = 0; replicas <= 12; replicas++) {
        config.n_replicas = replicas;
        int e = graph_build(&config, &g, &err);
        if (replicas == 0 || 6 % replicas == 0) {
            assert_int_equal(e, 0);
            assert_int_equal(g->n_replicas, replicas > 0 ? replicas : 1);
            graph_destroy(g);
        } else {
            assert_int_equal(e, -EINVAL);
            assert_string_equal(err.path, "train.replicas");
        }
    }
}

/* Builds the graph of an activation, a dense layer and a loss. The activation gives rows of shape `given`,
 * and the dense layer takes rows of shape `taken`. */
static int build_with_shapes(struct shape given, struct shape taken, struct err *err)
{
    struct layer layers[] = {
        {.type = &layer_activation, .id = 0, .in = given, .out = given},
        {.type = &layer_dense, .id = 1, .in = taken, .out = {1, {3}}},
        {.type = &layer_softmax_xent, .id = 2, .in = {1, {3}}},
    };
    struct model model = {layers, 3};
    struct optimizer sgd = {.kind = OPTIMIZER_SGD};
    struct graph_config config = {
        .model = &model, .optimizer = &sgd, .rows = 2, .n_micro = 1, .training = true};
    struct graph *g = NULL;
    int r = graph_build(&config, &g, err);

    graph_destroy(g);
    return r;
}

static void test_graph_compares_shapes_by_elements(void **state)
{
    struct err err = {0};
    (void)state;

    assert_int_equal(build_with_shapes(shape_vector(784), shape_vector(784), &err), 0);
    assert_int_equal(build_with_shapes((struct shape){3, {1, 28, 28}}, shape_vector(784), &err), 0);
    assert_int_equal(build_with_shapes((struct shape){3, {3, 28, 28}}, shape_vector(784), &err), -EINVAL);
    assert_string_equal(err.msg, "layer 1 takes rows of 784 but layer 0 gives rows of 3x28x28");
    struct shape huge = {3, {65536, 65536, 4}};
    assert_int_equal(build_with_shapes(huge, huge, &err), -EOVERFLOW);
    assert_string_equal(err.msg, "layer 0 (65536x65536x4 to 65536x65536x4) is too large to address");
}

/* ---- graphs that are no chains ---- */

/* Makes the graph of linked_by_hand with clipping in both decision groups. */
static void hand_built(struct random_chain *c, uint32_t steps)
{
    struct rng r = {.seed = 1};
    linked_by_hand(c, &r, 6, 3);
    c->rows = 2;
    c->n_micro = 2;
    c->n_replicas = 1;
    c->steps = steps;
    for (uint32_t i = 0; i < c->n_groups; i++)
        c->optimizers[i] = (struct optimizer){.kind = OPTIMIZER_ADAMW, .clip = 1.0};
}

/* Writes the operands of a task as text, such as "w=W1/0 x=Y0.1 y=Y1.1". A read operand of a persistent
 * tensor has the version that it reads. */
static const char *tell_operands(const struct graph *g, uint32_t task, struct strbuf *b)
{
    const struct graph_task *t = &g->tasks[task];
    b->n = 0;
    for (uint32_t i = t->operand; i < t->operand + t->n_operands; i++) {
        const struct graph_operand *o = &g->operands[i];
        const struct graph_tensor *gt = &g->tensors[o->tensor];
        const uint32_t of = gt->layer != PLAN_NONE ? gt->layer : gt->group;
        strbuf_addf(b, "%s%s=%s%u", i > t->operand ? " " : "", role_names[o->role],
                    tensor_kind_names[gt->kind], of);
        if (gt->micro != PLAN_NONE)
            strbuf_addf(b, ".%u", gt->micro);
        if (gt->persistent)
            strbuf_addf(b, "/%u", o->read_version);
    }
    return b->at;
}

/* The tasks of the hand-built graph name exactly these operands: the fork, the twin, the three uses of W1,
 * the two losses and the buffers. */
static void test_graph_built_by_hand_has_these_operands(void **state)
{
    static const struct {
        enum instr_kind kind;
        uint32_t of, which;
        const char *operands;
    } cases[] = {
        {INSTR_FWD, 2, 1, "w=W1/1 x=Y1.1 y=Y2.1 s=S2.1"},
        {INSTR_FWD, 3, 1, "w=W3/1 b=B3/1 x=Y2.1 y=Y3.1 stat=stat3.1"},
        {INSTR_FWD, 7, 1, "w=W7/1 x=Y2.1 y=Y7.1 s=S7.1"},
        {INSTR_BWD, 8, 1, "x=Y7.1 target=T8.1 dx=dX8.1"},
        {INSTR_BWD, 7, 1, "w=W7/1 x=Y2.1 s=S7.1 dy=dX8.1 dw=dW7 dx=dX7.1 scratch=scratch7.1"},
        {INSTR_BWD, 6, 1, "w=W1/1 x=Y1.1 s=S2.1 dy=dX7.1 dw=dW6 scratch=scratch6.1"},
        {INSTR_BWD, 3, 1, "w=W3/1 b=B3/1 x=Y2.1 dy=dX4.1 dw=dW3 dx=dX3.1"},
        {INSTR_BWD, 2, 1, "w=W1/1 x=Y1.1 s=S2.1 dy=dX3.1 dw=dW2 dx=dX2.1 scratch=scratch2.1"},
        {INSTR_NORM, 1, PLAN_NONE, "dw=dW1 dw=dW2 dw=dW6 sumsq=N1"},
        {INSTR_DECIDE, 0, PLAN_NONE, "sumsq=N0 sumsq=N1 sumsq=N3 sumsq=N4 decision=decision0 group=group0/1"},
        {INSTR_DECIDE, 1, PLAN_NONE, "sumsq=N7 decision=decision1 group=group1/1"},
        {INSTR_UPD, 1, PLAN_NONE, "dw=dW1 dw=dW2 dw=dW6 group=group0/2 w=W1/1 k=K1/1"},
        {INSTR_UPD, 3, PLAN_NONE, "dw=dW3 group=group0/2 w=W3/1 k=K3/1 stat=stat3.0 stat=stat3.1 b=B3/1"},
        {INSTR_UPD, 7, PLAN_NONE, "dw=dW7 group=group1/2 w=W7/1 k=K7/1"},
    };
    struct random_chain c;
    struct strbuf b = {0};
    struct graph *g;
    (void)state;
    hand_built(&c, 2);
    for (uint32_t l = 0; l < c.model.n_layers; l++)
        if (c.layers[l].type == &layer_dense)
            c.layers[l].dense = (struct dense_settings){.bias = true, .act = ACT_TANH};
    assert_int_equal(random_graph(&c, true, &g), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t task = graph_task_find(g, cases[i].kind, cases[i].of, cases[i].which, 1);
        assert_int_not_equal(task, PLAN_NONE);
        assert_string_equal(tell_operands(g, task, &b), cases[i].operands);
    }
    assert_int_equal(graph_task_find(g, INSTR_FWD, 6, 0, 0), PLAN_NONE); /* a twin only runs backward */
    assert_int_equal(graph_task_find(g, INSTR_UPD, 2, PLAN_NONE, 0), PLAN_NONE);
    strbuf_finish(&b);
    graph_destroy(g);
}

/* Each decision group updates by itself: NORM of its layers, then DECIDE, then UPD of its layers. */
static void test_graph_groups_update_one_after_another(void **state)
{
    static const enum instr_kind phases[] = {INSTR_NORM, INSTR_DECIDE, INSTR_UPD};
    struct random_chain c;
    struct graph *g;
    uint32_t at = 0;
    (void)state;
    hand_built(&c, 3);
    assert_int_equal(random_graph(&c, true, &g), 0);
    for (uint32_t i = 0; i < g->n_tasks; i++) {
        const struct graph_task *t = &g->tasks[i];
        if (t->kind == INSTR_FWD || t->kind == INSTR_BWD)
            continue;
        while (at < 3 * 6 && (t->kind != phases[at % 3] || t->group != at / 3 % 2 || t->step != at / 6))
            at++;
        assert_true(at < 3 * 6); /* or the task comes too early */
        assert_true(t->layer == PLAN_NONE || g->layers[t->layer].group == t->group);
    }
    assert_int_equal(at, 3 * 6 - 1);
    graph_destroy(g);
}

/* The loss of group 1 sends a gradient to layers of group 0, so in fp16 both groups have one loss scale. Each
 * decision then waits for the gradients of both. Without a loss scale the groups have nothing in common. */
static void test_graph_groups_with_one_loss_scale_decide_together(void **state)
{
    static const struct {
        enum dtype dtype;
        uint32_t scale; /* of group 1 */
        const char *operands[2];
    } cases[] = {{DTYPE_F16,
                  0,
                  {"sumsq=N0 sumsq=N1 sumsq=N3 sumsq=N4 sumsq=N7 decision=decision0 group=group0/1",
                   "sumsq=N0 sumsq=N1 sumsq=N3 sumsq=N4 sumsq=N7 decision=decision1 group=group1/1"}},
                 {DTYPE_BF16,
                  1,
                  {"sumsq=N0 sumsq=N1 sumsq=N3 sumsq=N4 decision=decision0 group=group0/1",
                   "sumsq=N7 decision=decision1 group=group1/1"}}};
    struct strbuf b = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct random_chain c;
        struct graph *g;
        hand_built(&c, 2);
        random_precision(&c, cases[i].dtype);
        assert_int_equal(random_graph(&c, true, &g), 0);
        assert_int_equal(g->groups[0].scale, 0);
        assert_int_equal(g->groups[1].scale, cases[i].scale);
        for (uint32_t group = 0; group < 2; group++) {
            uint32_t task = graph_task_find(g, INSTR_DECIDE, group, PLAN_NONE, 1);
            assert_string_equal(tell_operands(g, task, &b), cases[i].operands[group]);
        }
        graph_destroy(g);
    }
    strbuf_finish(&b);
}

static void test_graph_of_evaluation_has_the_same_tensors(void **state)
{
    struct random_chain c;
    struct graph *train, *eval;
    (void)state;
    hand_built(&c, 2);
    assert_int_equal(random_graph(&c, true, &train), 0);
    assert_int_equal(random_graph(&c, false, &eval), 0);
    assert_int_equal(eval->n_tensors, train->n_tensors);
    for (tensor_id t = 0; t < train->n_tensors; t++) {
        assert_int_equal(eval->tensors[t].kind, train->tensors[t].kind);
        assert_int_equal(eval->tensors[t].layer, train->tensors[t].layer);
        assert_int_equal(eval->tensors[t].bytes, train->tensors[t].bytes);
    }
    for (uint32_t i = 0; i < eval->n_tasks; i++)
        assert_true(eval->tasks[i].kind == INSTR_FWD && eval->tasks[i].step == 0);
    graph_destroy(train);
    graph_destroy(eval);
}

/* Changes the link of layer `l` of the hand-built graph. graph_build must refuse it with this message. */
static void expect_refusal(uint32_t l, void (*change)(struct graph_link *), const char *says)
{
    struct random_chain c;
    struct graph *g = NULL;
    struct err err = {0};
    hand_built(&c, 1);
    change(&c.links[l]);
    const struct graph_config config = {.model = &c.model,
                                        .links = c.links,
                                        .optimizer = c.optimizers,
                                        .n_groups = c.n_groups,
                                        .rows = c.rows,
                                        .n_micro = c.n_micro,
                                        .training = true};
    assert_int_equal(graph_build(&config, &g, &err), -EINVAL);
    assert_null(g);
    if (strstr(err.msg, says) == NULL)
        fail_msg("'%s' does not contain '%s'", err.msg, says);
}

#define CHANGE(name, code)                                                                                   \
    static void name(struct graph_link *link)                                                                \
    {                                                                                                        \
        code;                                                                                                \
    }
CHANGE(reads_itself, link->input = 4)
CHANGE(reads_a_loss, link->input = 5)
CHANGE(reads_other_rows, link->input = 4)
CHANGE(is_twin_of_a_later_layer, link->twin_of = 7)
CHANGE(is_twin_of_a_twin, link->twin_of = 6)
CHANGE(has_another_input, link->input = 0)
CHANGE(uses_a_later_layer, link->owner = 7)
CHANGE(uses_a_user, link->owner = 2)
CHANGE(is_in_another_group, link->group = 1)
CHANGE(is_in_no_group, link->group = 2)
CHANGE(returns_a_second_gradient, link->input = 2)
CHANGE(uses_other_weights, link->owner = 3)
#undef CHANGE

static void test_graph_refuses_links(void **state)
{
    (void)state;
    expect_refusal(4, reads_itself, "layer 4: it reads a layer that does not come before it (layer 4)");
    expect_refusal(7, reads_a_loss, "layer 7: a loss has no output to read (layer 5)");
    expect_refusal(7, reads_other_rows, "layer 7 takes rows of 6 but layer 4 gives rows of 3");
    expect_refusal(6, is_twin_of_a_later_layer, "layer 6: it can only be the twin of an earlier layer");
    expect_refusal(7, is_twin_of_a_twin, "layer 7: it can only be the twin of an earlier layer that is no");
    expect_refusal(6, has_another_input, "layer 6: a twin must have the input of its original (layer 2)");
    expect_refusal(2, uses_a_later_layer, "layer 2: it can only use the weights of an earlier layer");
    expect_refusal(4, uses_a_user, "layer 4: it can only use the weights of an earlier layer that owns them");
    expect_refusal(6, is_in_another_group, "layer 6: it must be in the decision group of the layer whose");
    expect_refusal(8, is_in_no_group, "layer 8: its decision group does not exist");
    expect_refusal(7, returns_a_second_gradient, "layer 7: two layers return a gradient to one layer");
    expect_refusal(4, uses_other_weights, "layer 4: its weights have another size or type than those");
}

/* Connected layers have the same type of activations, and layers that share a W the same type of weights. */
static void test_graph_refuses_other_types(void **state)
{
    static const char *const says[] = {NULL, "layer 1 reads elements of type BF16 but layer 0 writes F32",
                                       "layer 1: its weights have another size or type", NULL};
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct optimizer sgd = {.kind = OPTIMIZER_SGD};
        struct rng r = {.seed = 1};
        struct layer layers[] = {
            linked_dense(4, 4, &r), linked_dense(4, 4, &r), {.type = &layer_mse, .in = shape_vector(4)}};
        struct graph_link links[] = {linked_to(PLAN_NONE, 0), linked_to(0, 0), linked_to(1, 0)};
        struct model m = {layers, 3};
        struct graph_config config = {
            .model = &m, .links = links, .optimizer = &sgd, .rows = 1, .n_micro = 1, .training = true};
        struct err err = {0};
        struct graph *g = NULL;
        links[1].owner = 0;
        layers[1].dtype = i == 1 || i == 3 ? DTYPE_BF16 : DTYPE_F32;
        layers[1].w_dtype = i == 2 ? DTYPE_I32 : DTYPE_F32; /* of the same size */
        layers[0].dtype = layers[2].dtype = i == 3 ? DTYPE_BF16 : DTYPE_F32;
        assert_int_equal(graph_build(&config, &g, &err), says[i] != NULL ? -EINVAL : 0);
        if (says[i] != NULL && strstr(err.msg, says[i]) == NULL)
            fail_msg("'%s' does not contain '%s'", err.msg, says[i]);
        graph_destroy(g);
    }
}

/* OP_USES layers may use one W, and not one more. */
static void test_graph_limits_the_uses_of_one_weight(void **state)
{
    (void)state;
    for (uint32_t uses = OP_USES; uses <= OP_USES + 1; uses++) {
        struct layer layers[OP_USES + 2] = {0};
        struct graph_link links[OP_USES + 2];
        struct optimizer sgd = {.kind = OPTIMIZER_SGD};
        struct rng r = {.seed = 1};
        struct err err = {0};
        struct graph *g = NULL;
        for (uint32_t l = 0; l < uses; l++) {
            layers[l] = linked_dense(4, 4, &r);
            links[l] = linked_to(l > 0 ? l - 1 : PLAN_NONE, 0);
            links[l].owner = l > 0 ? 0 : PLAN_NONE;
        }
        layers[uses] = (struct layer){.type = &layer_softmax_xent, .in = shape_vector(4)};
        links[uses] = linked_to(uses - 1, 0);
        struct model m = {layers, uses + 1};
        struct graph_config config = {
            .model = &m, .links = links, .optimizer = &sgd, .rows = 1, .n_micro = 1, .training = true};
        int e = graph_build(&config, &g, &err);
        assert_int_equal(e, uses > OP_USES ? -EINVAL : 0);
        if (uses > OP_USES)
            assert_string_equal(err.msg, "9 layers use the weights of layer 0, and at most 8 can use one W");
        graph_destroy(g);
    }
}

/* ---- precision ---- */

static uint64_t bytes_of_kind(const struct graph *g, enum tensor_kind kind)
{
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < g->n_tensors; t++)
        bytes += g->tensors[t].kind == kind ? g->tensors[t].bytes : 0;
    return bytes;
}

/* In 16 bits, weights, activations and their gradients have half the bytes. The gradients of weights do
 * not, and the optimizer state has the master weights too: 2 + 4 + 8 bytes per parameter with AdamW. */
static void test_16_bits_halve_weights_and_activations(void **state)
{
    static const enum tensor_kind halved[] = {TENSOR_W, TENSOR_Y, TENSOR_DX};
    static const enum tensor_kind same[] = {TENSOR_DW, TENSOR_X, TENSOR_TARGET, TENSOR_RESULT};
    (void)state;
    for (uint32_t seed = 1; seed <= 20; seed++) {
        struct rng rng = {.seed = seed};
        struct random_chain c;
        struct graph *full, *half;
        random_transformer(&c, &rng);
        c.optimizer.kind = OPTIMIZER_ADAMW;
        assert_int_equal(random_graph(&c, true, &full), 0);
        random_precision(&c, seed % 2 ? DTYPE_BF16 : DTYPE_F16);
        assert_int_equal(random_graph(&c, true, &half), 0);
        for (uint32_t i = 0; i < sizeof halved / sizeof *halved; i++)
            assert_int_equal(2 * bytes_of_kind(half, halved[i]), bytes_of_kind(full, halved[i]));
        for (uint32_t i = 0; i < sizeof same / sizeof *same; i++)
            assert_int_equal(bytes_of_kind(half, same[i]), bytes_of_kind(full, same[i]));
        /* S also has statistics in float, but most of it is activations. */
        assert_true(bytes_of_kind(half, TENSOR_S) * 10 < bytes_of_kind(full, TENSOR_S) * 7);
        const uint64_t parameters = bytes_of_kind(full, TENSOR_W) / sizeof(float);
        assert_int_equal(bytes_of_kind(half, TENSOR_W) + bytes_of_kind(half, TENSOR_K), 14 * parameters);
        graph_destroy(full);
        graph_destroy(half);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graph_of_random_sizes_and_replicas),
        cmocka_unit_test(test_graph_of_random_chains),
        cmocka_unit_test(test_graph_of_several_steps_repeats_the_graph_of_one),
        cmocka_unit_test(test_graph_pieces_by_hand),
        cmocka_unit_test(test_graph_refuses_sizes),
        cmocka_unit_test(test_graph_refuses_replicas_of_a_chain),
        cmocka_unit_test(test_graph_compares_shapes_by_elements),
        cmocka_unit_test(test_graph_built_by_hand_has_these_operands),
        cmocka_unit_test(test_graph_groups_update_one_after_another),
        cmocka_unit_test(test_graph_groups_with_one_loss_scale_decide_together),
        cmocka_unit_test(test_graph_of_evaluation_has_the_same_tensors),
        cmocka_unit_test(test_graph_refuses_links),
        cmocka_unit_test(test_graph_refuses_other_types),
        cmocka_unit_test(test_graph_limits_the_uses_of_one_weight),
        cmocka_unit_test(test_16_bits_halve_weights_and_activations),
    };
    return cmocka_run_group_tests_name("graph", tests, NULL, NULL);
}
