/* Tests that policy `lru` does what demand paging does. An oracle goes through the cycle of plans for random
 * chains and machines, and requires a reason for every move and drop. Where a formula for the traffic exists,
 * the traffic must match. Tests that run every policy check that the plans are correct. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/checked.h"
#include "base/vec.h"
#include "scheduler/policy/policy.h"
#include "tests/unit/random_chain.h"

#define CASES 1000

/* ---- the oracle ---- */

struct live {
    tensor_id tensor;
    uint32_t device;
    uint64_t addr, bytes;
    uint32_t used; /* by this instruction last */
};

struct oracle {
    const struct plan *p;
    const struct graph *g;
    const struct plan_program *prog;
    VEC(struct live) live;
    uint32_t *value, *at_host;        /* per tensor: writes so far; how many of them the host's copy has */
    uint32_t evicted_for[DEVICE_MAX]; /* the task that the last eviction made room for */
    uint32_t seed;
    uint32_t evictions, gathered; /* gathered: operands that left to make room for their own task */
};

static bool is_task(const struct plan_instr *in)
{
    return !instr_is_move(in->kind) && in->kind != INSTR_DROP;
}

static const struct plan_operand *operand_of(const struct oracle *o, uint32_t instr, tensor_id t)
{
    const struct plan_instr *in = &o->prog->instrs[instr];
    for (uint32_t k = 0; k < in->n_operands; k++)
        if (o->prog->operands[in->operand + k].tensor == t)
            return &o->prog->operands[in->operand + k];
    return NULL;
}

/* The next task on a device after an instruction, or PLAN_NONE. */
static uint32_t next_task(const struct oracle *o, uint32_t after, uint32_t device)
{
    for (uint32_t i = after + 1; i < o->prog->n_instrs; i++)
        if (o->prog->instrs[i].stream == plan_stream(device, LANE_COMPUTE) && is_task(&o->prog->instrs[i]))
            return i;
    return PLAN_NONE;
}

static bool used_later(const struct oracle *o, uint32_t after, tensor_id t)
{
    for (uint32_t i = after + 1; i < o->prog->n_instrs; i++)
        if (is_task(&o->prog->instrs[i]) && operand_of(o, i, t) != NULL)
            return true;
    return false;
}

static bool is_live(const struct oracle *o, tensor_id t, uint32_t device)
{
    for (size_t i = 0; i < o->live.n; i++)
        if (o->live.at[i].tensor == t && o->live.at[i].device == device)
            return true;
    return false;
}

static size_t live_index(const struct oracle *o, tensor_id t, uint32_t device)
{
    for (size_t i = 0; i < o->live.n; i++)
        if (o->live.at[i].tensor == t && o->live.at[i].device == device)
            return i;
    fail_msg("seed %u: tensor %u is not on device %u", o->seed, t, device);
    return 0;
}

static void come(struct oracle *o, uint32_t i, const struct plan_operand *op)
{
    uint64_t bytes = round_up(o->p->tensors[op->tensor].bytes, PLAN_ALIGN);
    vec_push(&o->live, (struct live){op->tensor, op->loc, op->addr, bytes, i});
}

/* A miss happens when its task comes up. */
static void check_on_demand(struct oracle *o, uint32_t i, const struct plan_operand *to)
{
    uint32_t task = next_task(o, i, to->loc);
    if (task == PLAN_NONE || operand_of(o, task, to->tensor) == NULL)
        fail_msg("seed %u: instruction %u brings what the next task does not use", o->seed, i);
    come(o, i, to);
}

/* Returns the lowest address on the device where `bytes` bytes are free. */
static uint64_t first_fit(const struct oracle *o, uint32_t device, uint64_t bytes)
{
    uint64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t k = 0; k < o->live.n; k++) {
            const struct live *l = &o->live.at[k];
            if (l->device != device || l->addr >= at + bytes || l->addr + l->bytes <= at)
                continue;
            at = l->addr + l->bytes;
            moved = true;
        }
    }
    return at;
}

/* Returns whether all operands that the task still needs fit into the free gaps of the device without an
 * eviction. */
static bool all_fit(struct oracle *o, uint32_t task, uint32_t device)
{
    const struct plan_instr *in = &o->prog->instrs[task];
    size_t n = o->live.n;
    bool fit = true;
    for (uint32_t k = 0; k < in->n_operands; k++) {
        const struct plan_operand *op = &o->prog->operands[in->operand + k];
        uint64_t bytes = round_up(op->end - op->begin, PLAN_ALIGN);
        if (is_live(o, op->tensor, device))
            continue;
        uint64_t at = first_fit(o, device, bytes);
        fit &= at + bytes <= o->p->devices[device].lease_bytes;
        vec_push(&o->live, (struct live){op->tensor, device, at, bytes, 0});
    }
    o->live.n = n;
    return fit;
}

/* Checks that an eviction was necessary and chose the right copy: the least recently used copy that the task
 * does not need. An operand of the task may be evicted only when nothing else is left. */
static void check_eviction(struct oracle *o, uint32_t i, const struct live *victim)
{
    uint32_t device = victim->device, task = next_task(o, i, device);
    if (task == PLAN_NONE)
        return; /* the end of the cycle */
    bool own = operand_of(o, task, victim->tensor) != NULL;
    for (size_t k = 0; k < o->live.n; k++) {
        const struct live *l = &o->live.at[k];
        if (l->device == device && operand_of(o, task, l->tensor) == NULL && (own || l->used < victim->used))
            fail_msg("seed %u: instruction %u evicts tensor %u, not %u", o->seed, i, victim->tensor,
                     l->tensor);
    }
    if (o->evicted_for[device] != task && all_fit(o, task, device))
        fail_msg("seed %u: instruction %u evicts though there is room", o->seed, i);
    o->evicted_for[device] = task;
    o->evictions++;
    o->gathered += own;
}

/* Returns whether a drop follows a task on the host or on another device that wrote the tensor, and so made
 * this copy stale. Other drops may stand between the two. */
static bool is_stale(const struct oracle *o, uint32_t drop, const struct plan_operand *op)
{
    uint32_t i = drop;
    while (i > 0 && o->prog->instrs[i].kind == INSTR_DROP)
        i--;
    const struct plan_operand *written = operand_of(o, i, op->tensor);
    return is_task(&o->prog->instrs[i]) && written != NULL && (written->access & ACCESS_WRITE) &&
           written->loc != op->loc;
}

/* A drop frees what is dead, clears what is stale or has moved, or evicts. */
static void check_drop(struct oracle *o, uint32_t i, const struct plan_operand *op)
{
    const struct graph_tensor *t = &o->g->tensors[op->tensor];
    const struct plan_instr *before = &o->prog->instrs[i - 1];
    size_t index = live_index(o, op->tensor, op->loc);
    bool stale = is_stale(o, i, op), dead = !t->persistent && t->kind != TENSOR_RESULT &&
                                            t->kind != TENSOR_DECISION && !used_later(o, i, op->tensor);
    if (before->kind == INSTR_SEND && o->prog->operands[before->operand].tensor == op->tensor)
        stale = true;
    if (!dead && !stale) {
        check_eviction(o, i, &o->live.at[index]);
        assert_int_equal(o->at_host[op->tensor], o->value[op->tensor]);
    }
    o->live.at[index] = o->live.at[--o->live.n];
}

static void check_task(struct oracle *o, uint32_t i)
{
    const struct plan_instr *in = &o->prog->instrs[i];
    for (uint32_t k = 0; k < in->n_operands; k++) {
        const struct plan_operand *op = &o->prog->operands[in->operand + k];
        if (op->access & ACCESS_WRITE)
            o->value[op->tensor]++;
        if (op->loc == PLAN_HOST) {
            if (op->access & ACCESS_WRITE)
                o->at_host[op->tensor] = o->value[op->tensor];
            continue;
        }
        if (op->access == ACCESS_WRITE)
            come(o, i, op);
        o->live.at[live_index(o, op->tensor, op->loc)].used = i;
    }
}

static void check_instr(struct oracle *o, uint32_t i)
{
    const struct plan_instr *in = &o->prog->instrs[i];
    const struct plan_operand *ops = &o->prog->operands[in->operand];
    switch (in->kind) {
    case INSTR_FETCH:
        assert_int_equal(o->at_host[ops->tensor], o->value[ops->tensor]);
        check_on_demand(o, i, &ops[1]);
        break;
    case INSTR_SEND:
        assert_true(o->at_host[ops->tensor] < o->value[ops->tensor]);
        check_on_demand(o, i, &ops[1]);
        break;
    case INSTR_SPILL: /* never what the host has already */
        assert_true(o->at_host[ops->tensor] < o->value[ops->tensor]);
        o->at_host[ops->tensor] = o->value[ops->tensor];
        break;
    case INSTR_DROP:
        check_drop(o, i, ops);
        break;
    default:
        check_task(o, i);
    }
}

/* On each device the tasks of a micro-batch are done before the next begins, and updates come last. */
static void check_order(const struct oracle *o)
{
    uint64_t done[DEVICE_MAX] = {0};
    for (uint32_t i = 0; i < o->prog->n_instrs; i++) {
        const struct plan_instr *in = &o->prog->instrs[i];
        uint32_t device = in->stream / LANE_COUNT;
        if (!is_task(in) || in->stream == plan_host_stream(o->p))
            continue;
        uint32_t micro = in->kind == INSTR_FWD || in->kind == INSTR_BWD ? in->micro : PLAN_NONE;
        uint64_t now = (uint64_t)in->step << 32 | micro;
        assert_true(now >= done[device]);
        done[device] = now;
    }
}

/* With several replicas and devices, each device runs the whole chain on its own replicas. Only one device
 * adds up and updates a layer. */
static void check_devices(const struct oracle *o)
{
    uint32_t replicas = o->p->n_replicas, n = o->p->n_devices < replicas ? o->p->n_devices : replicas;
    uint32_t owner[RANDOM_MAX_LAYERS];
    memset(owner, 0xff, sizeof owner);
    while (replicas % n != 0)
        n--;
    for (uint32_t i = 0; n > 1 && i < o->prog->n_instrs; i++) {
        const struct plan_instr *in = &o->prog->instrs[i];
        uint32_t device = in->stream / LANE_COUNT;
        if (!is_task(in) || in->stream == plan_host_stream(o->p))
            continue;
        if (in->kind == INSTR_FWD || in->kind == INSTR_BWD) {
            assert_int_equal(device, in->replica / (replicas / n));
            continue;
        }
        assert_true(owner[in->layer] == PLAN_NONE || owner[in->layer] == device);
        owner[in->layer] = device;
    }
}

static void check_plan(const struct plan_request *r, uint32_t seed, uint32_t *evictions, uint32_t *gathered)
{
    struct plan *p;
    assert_int_equal(plan_make(r, &p, NULL, NULL), 0);
    struct oracle o = {.p = p, .g = r->train, .prog = &p->programs[PROGRAM_CYCLE], .seed = seed};
    o.value = xcalloc(p->n_tensors, sizeof *o.value);
    o.at_host = xcalloc(p->n_tensors, sizeof *o.at_host);
    assert_int_equal(p->n_boundary, 0);
    for (uint32_t i = 0; i < o.prog->n_instrs; i++)
        check_instr(&o, i);
    check_order(&o);
    check_devices(&o);
    assert_int_equal(o.live.n, 0);
    *evictions += o.evictions;
    *gathered += o.gathered;
    vec_free(&o.live);
    free(o.value);
    free(o.at_host);
    plan_destroy(p);
}

/* Checks plans of random chains. With `parallel`, the chains have 2 to 4 replicas, and a cycle may have two
 * steps. */
static void check_random_plans(bool parallel)
{
    uint32_t evictions = 0, gathered = 0;
    for (uint32_t seed = 1; seed <= CASES; seed++) {
        struct rng rng = {.seed = seed};
        struct random_chain c;
        struct machine m;
        struct graph *g;
        uint64_t least;
        random_chain(&c, &rng, 200);
        if (parallel) {
            c.n_replicas = 2 + rng_below(&rng, 3);
            c.n_micro = c.n_replicas * (1 + rng_below(&rng, 2));
            c.steps = 1 + rng_below(&rng, 2);
        }
        machine_init_cpu(&m, 1 + rng_below(&rng, 4), 0, 1ull << 40);
        assert_int_equal(random_graph(&c, true, &g), 0);
        struct plan_request r = {g, NULL, &m, POLICY_lru, UPDATE_HOST + rng_below(&rng, 2)};
        assert_int_equal(plan_least_capacity(&r, &least, NULL), 0);
        for (uint32_t d = 0; d < m.n_devices; d++)
            m.capacity_bytes[d] = least + (seed % 3 ? rng_below(&rng, 1u << 16) * least >> 16 : 0);
        check_plan(&r, seed, &evictions, &gathered);
        graph_destroy(g);
    }
    print_message("# %u evictions, %u of operands\n", evictions, gathered);
    assert_true(evictions > 10 * CASES);
    assert_true(gathered > 0);
}

static void test_paging_every_move_has_a_reason(void **state)
{
    (void)state;
    check_random_plans(false);
}

static void test_paging_of_replicas_every_move_has_a_reason(void **state)
{
    (void)state;
    check_random_plans(true);
}

/* Policy `lru` exists only for comparison. `auto` must never choose it, even when it would need the least
 * memory or be the fastest. */
static void test_paging_is_never_what_auto_takes(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 100; seed++) {
        struct rng rng = {.seed = seed};
        struct random_chain c;
        struct machine m;
        struct graph *g;
        struct plan *p;
        uint64_t least;
        random_chain(&c, &rng, 200);
        machine_init_cpu(&m, 1 + rng_below(&rng, 4), 0, 1ull << 40);
        assert_int_equal(random_graph(&c, true, &g), 0);
        struct plan_request r = {g, NULL, &m, POLICY_auto, UPDATE_AUTO};
        assert_int_equal(plan_least_capacity(&r, &least, NULL), 0);
        for (uint32_t d = 0; d < m.n_devices; d++)
            m.capacity_bytes[d] = least + rng_below(&rng, 2) * least;
        assert_int_equal(plan_make(&r, &p, NULL, NULL), 0);
        assert_string_not_equal(p->policy, "lru");
        plan_destroy(p);
        graph_destroy(g);
    }
}

/* ---- closed form ---- */

#define DEPTH 6
#define MICRO 3
#define ONE   ((uint64_t)(64 * 64 + 64) * sizeof(float)) /* W of a layer */

/* Equal layers on `n` devices of `times` the least memory (0: plenty). Each replica has MICRO micro-batches
 * in each step of the cycle. */
static struct plan_bytes even_bytes(enum update_place update, uint32_t n, uint32_t times, uint32_t replicas,
                                    uint32_t steps)
{
    struct layer layers[DEPTH + 1];
    for (uint32_t l = 0; l < DEPTH; l++)
        layers[l] = (struct layer){.type = &layer_dense,
                                   .id = l,
                                   .in = {1, {64}},
                                   .out = {1, {64}},
                                   .dense = {.bias = true, .act = ACT_RELU}};
    layers[DEPTH - 1].dense.act = ACT_NONE;
    layers[DEPTH] = (struct layer){.type = &layer_softmax_xent, .id = DEPTH, .in = {1, {64}}};
    struct model model = {layers, DEPTH + 1};
    struct optimizer adam = {.kind = OPTIMIZER_ADAMW};
    struct graph_config c = {.model = &model,
                             .optimizer = &adam,
                             .rows = 8,
                             .n_micro = MICRO * replicas,
                             .n_replicas = replicas,
                             .steps = steps,
                             .training = true};
    struct graph *g;
    struct machine m;
    struct plan *p;
    struct plan_bytes b;
    uint64_t least;
    assert_int_equal(graph_build(&c, &g, NULL), 0);
    machine_init_cpu(&m, n, 1ull << 40, 1ull << 40);
    struct plan_request r = {g, NULL, &m, POLICY_lru, update};
    assert_int_equal(plan_least_capacity(&r, &least, NULL), 0);
    for (uint32_t d = 0; d < n && times > 0; d++)
        m.capacity_bytes[d] = times * least;
    assert_int_equal(plan_make(&r, &p, NULL, NULL), 0);
    plan_count_bytes(p, PROGRAM_CYCLE, &b);
    plan_destroy(p);
    graph_destroy(g);
    return b;
}

/* With plenty of memory everything comes once and what was changed goes once, since the cache is flushed each
 * cycle. */
static void test_paging_with_plenty_moves_state_once(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        struct plan_bytes b = even_bytes(UPDATE_DEVICE, n, 0, 1, 1);
        assert_int_equal(b.state_in, 3 * DEPTH * ONE); /* W and K */
        assert_int_equal(b.state_out, 3 * DEPTH * ONE);
        assert_int_equal(b.stash_in + b.stash_out, 0);
        assert_int_equal(b.peer, (n - 1) * MICRO * 2 * 8 * 64 * sizeof(float)); /* X and dX of each cut */
        b = even_bytes(UPDATE_HOST, n, 0, 1, 1);
        assert_int_equal(b.state_in, DEPTH * ONE);
        assert_int_equal(b.state_out, DEPTH * ONE);
    }
}

/* With room for one layer: W for each pass of each micro-batch, but for the layers where a pass turns, which
 * are there still; the unfinished sums out and in again between micro-batches. */
static void test_paging_with_the_least_moves_state_per_micro_batch(void **state)
{
    (void)state;
    struct plan_bytes b = even_bytes(UPDATE_HOST, 1, 1, 1, 1);
    uint64_t turns = 2 * MICRO - 1;
    assert_int_equal(b.state_in, (2 * MICRO * DEPTH - turns) * ONE + (MICRO - 1) * DEPTH * ONE);
    assert_int_equal(b.state_out, MICRO * DEPTH * ONE);
    assert_true(b.stash_in > 0 && b.stash_in == b.stash_out);
}

/* One replica per device and plenty of memory: every device fetches all W. The owner of a layer gets the
 * other replicas' gradients from their devices, fetches K, and writes W and K back. In the second step of a
 * cycle, the owner writes W back for the other devices, which fetch it. */
static void test_paging_of_replicas_with_plenty_fetches_weights_once_each(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 4; n++)
        for (uint32_t steps = 1; steps <= 2; steps++) {
            struct plan_bytes b = even_bytes(UPDATE_DEVICE, n, 0, n, steps);
            assert_int_equal(b.state_in, (n + (steps - 1) * (n - 1) + 2) * DEPTH * ONE);
            assert_int_equal(b.state_out, (steps + 2) * DEPTH * ONE);
            assert_int_equal(b.peer, steps * (n - 1) * DEPTH * ONE); /* dW */
            assert_int_equal(b.stash_in + b.stash_out, 0);
            b = even_bytes(UPDATE_HOST, n, 0, n, steps);
            assert_int_equal(b.state_in, steps * n * DEPTH * ONE);
            assert_int_equal(b.state_out, steps * n * DEPTH * ONE); /* dW */
            assert_int_equal(b.peer, 0);
        }
}

/* One replica per device and room for one layer: each device moves what one device alone moves. */
static void test_paging_of_replicas_with_the_least_moves_state_per_replica(void **state)
{
    (void)state;
    struct plan_bytes one = even_bytes(UPDATE_HOST, 1, 1, 1, 1);
    for (uint32_t n = 2; n <= 4; n++) {
        struct plan_bytes b = even_bytes(UPDATE_HOST, n, 1, n, 1);
        assert_int_equal(b.state_in, n * one.state_in);
        assert_int_equal(b.state_out, n * one.state_out);
        assert_int_equal(b.stash_in, n * one.stash_in);
        assert_int_equal(b.stash_out, n * one.stash_out);
        assert_int_equal(b.peer, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paging_every_move_has_a_reason),
        cmocka_unit_test(test_paging_of_replicas_every_move_has_a_reason),
        cmocka_unit_test(test_paging_is_never_what_auto_takes),
        cmocka_unit_test(test_paging_with_plenty_moves_state_once),
        cmocka_unit_test(test_paging_with_the_least_moves_state_per_micro_batch),
        cmocka_unit_test(test_paging_of_replicas_with_plenty_fetches_weights_once_each),
        cmocka_unit_test(test_paging_of_replicas_with_the_least_moves_state_per_replica),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
