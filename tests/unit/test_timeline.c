/* Tests the timeline: shares computed by hand, order, waits across runs, limits in both directions, and
 * random programs against a simulator that advances nanosecond by nanosecond. The result must not depend on
 * the order of simultaneous events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"
#include "scheduler/predict/timeline.h"

#define GIGA 1000000000ull /* one byte a nanosecond */
enum { MAX_OPS = 64, MAX_WAITS = 256, MAX_RESOURCES = 16 };

/* A program under construction, and its times. */
struct rig {
    struct timeline_op ops[MAX_OPS];
    struct plan_wait waits[MAX_WAITS];
    uint64_t per_s[MAX_RESOURCES];
    struct timeline t;
    uint32_t n_waits;
    struct arena *arena;
    struct timeline_result r;
};

static void rig_init(struct rig *g, uint32_t n_streams)
{
    *g = (struct rig){.arena = arena_create()};
    g->t = (struct timeline){.ops = g->ops, .waits = g->waits, .per_s = g->per_s, .n_streams = n_streams};
}

static uint32_t resource(struct rig *g, uint64_t per_s)
{
    g->per_s[g->t.n_resources] = per_s;
    return g->t.n_resources++;
}

static uint32_t fixed(struct rig *g, uint32_t stream, uint64_t ns)
{
    g->ops[g->t.n_ops] = (struct timeline_op){.stream = stream, .fixed_ns = ns, .wait = g->n_waits};
    return g->t.n_ops++;
}

static uint32_t bytes(struct rig *g, uint32_t stream, uint64_t n, uint32_t through)
{
    uint32_t op = fixed(g, stream, 0);
    g->ops[op].bytes = n;
    g->ops[op].uses[g->ops[op].n_uses++] = through;
    return op;
}

/* Of the operation added last. */
static void also_through(struct rig *g, uint32_t through)
{
    struct timeline_op *op = &g->ops[g->t.n_ops - 1];
    op->uses[op->n_uses++] = through;
}

static void waits_for(struct rig *g, uint32_t op, uint32_t distance)
{
    g->waits[g->n_waits++] = (struct plan_wait){op, distance};
    g->ops[g->t.n_ops - 1].n_waits++;
}

static void run(struct rig *g, uint32_t runs)
{
    assert_int_equal(timeline_run(&g->t, runs, g->arena, &g->r), 0);
}

static void check_span(const struct rig *g, uint32_t op, uint64_t start, uint64_t end)
{
    assert_int_equal(g->r.spans[op].start_ns, start);
    assert_int_equal(g->r.spans[op].end_ns, end);
}

/* ---- shares ---- */

/* B comes when A has half of its bytes left: until A ends each has half, then B has all. */
static void test_timeline_two_share_a_link(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 2);
    uint32_t link = resource(&g, GIGA);
    bytes(&g, 0, 1000, link);
    fixed(&g, 1, 500);
    bytes(&g, 1, 1000, link);
    run(&g, 1);
    check_span(&g, 0, 0, 1500);
    check_span(&g, 2, 500, 2000);
    assert_int_equal(g.r.total_ns, 2000);
    assert_int_equal(g.r.bound_ns[link], 2000);
    assert_int_equal(g.r.stream_ns[1], 2000);
    arena_destroy(g.arena);
}

/* Three operations run at 1 byte/ns each until 300, when the first ends. The two others run at 1.5 bytes/ns
 * until the third has moved its other 600 bytes at 700. The second then runs alone at 3 bytes/ns for its last
 * 900 bytes. */
static void test_timeline_three_end_one_after_another(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 3);
    uint32_t link = resource(&g, 3 * GIGA);
    bytes(&g, 0, 300, link);
    bytes(&g, 1, 1800, link);
    bytes(&g, 2, 900, link);
    run(&g, 1);
    check_span(&g, 0, 0, 300);
    check_span(&g, 2, 0, 700);
    check_span(&g, 1, 0, 1000);
    arena_destroy(g.arena);
}

/* Two links of 1 and 4 bytes/ns share a limit of 3 bytes/ns. The slow link gets 1 and the fast link gets the
 * other 2. When the slow link is done, the fast link gets all 3. */
static void test_timeline_a_slow_link_leaves_the_rest(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 2);
    uint32_t slow = resource(&g, GIGA), fast = resource(&g, 4 * GIGA), all = resource(&g, 3 * GIGA);
    bytes(&g, 0, 100, slow);
    also_through(&g, all);
    bytes(&g, 1, 500, fast);
    also_through(&g, all);
    run(&g, 1);
    check_span(&g, 0, 0, 100);
    check_span(&g, 1, 0, 200);
    assert_int_equal(g.r.bound_ns[all], 200);
    assert_int_equal(g.r.bound_ns[slow], 0); /* of one stream only: part of its operation */
    arena_destroy(g.arena);
}

/* The resource has 4 bytes/ns. The first operation uses 3 bytes of it for each of its own bytes, and the
 * second uses 1, so both run at 1 byte/ns. When the first ends, the second runs at its own limit of 2
 * bytes/ns. */
static void test_timeline_weights_divide_a_resource(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 2);
    uint32_t link = resource(&g, 4 * GIGA);
    bytes(&g, 0, 100, link);
    g.ops[0].weights[0] = 3;
    bytes(&g, 1, 300, link);
    g.ops[1].most_per_s = 2 * GIGA;
    run(&g, 1);
    check_span(&g, 0, 0, 100);
    check_span(&g, 1, 0, 200);
    assert_int_equal(g.r.bound_ns[link], 100);
    arena_destroy(g.arena);
}

/* A weight also counts when an operation is alone: with a weight of 3, a resource of 3 bytes/ns carries 1
 * byte/ns. */
static void test_timeline_weights_count_alone(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 1);
    bytes(&g, 0, 100, resource(&g, 3 * GIGA));
    g.ops[0].weights[0] = 3;
    run(&g, 1);
    check_span(&g, 0, 0, 100);
    arena_destroy(g.arena);
}

/* Two limits affect each other: a and b share p, b and c share q. p = 2 gives a and b 1 each. Of q = 4, c
 * gets the 3 that b leaves. When a ends, b rises to 2 and c falls to 2. */
static void test_timeline_shares_follow_each_other(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 3);
    uint32_t p = resource(&g, 2 * GIGA), q = resource(&g, 4 * GIGA);
    bytes(&g, 0, 100, p);
    bytes(&g, 1, 300, p);
    also_through(&g, q);
    bytes(&g, 2, 900, q);
    run(&g, 1);
    check_span(&g, 0, 0, 100);
    check_span(&g, 1, 0, 200);
    check_span(&g, 2, 0, 300); /* 300 + 200, then 4 a nanosecond */
    arena_destroy(g.arena);
}

static void test_timeline_directions_do_not_disturb_each_other(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 4);
    uint32_t in = resource(&g, 2 * GIGA), out = resource(&g, GIGA);
    bytes(&g, 0, 1000, in);
    bytes(&g, 1, 1000, in);
    bytes(&g, 2, 1000, out);
    bytes(&g, 3, 1000, out);
    run(&g, 1);
    check_span(&g, 0, 0, 1000);
    check_span(&g, 1, 0, 1000);
    check_span(&g, 2, 0, 2000);
    check_span(&g, 3, 0, 2000);
    arena_destroy(g.arena);
}

/* A limit of an operation's own: 1/4, also when the rest is free. */
static void test_timeline_an_operation_may_have_a_limit(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 2);
    uint32_t memory = resource(&g, GIGA);
    bytes(&g, 0, 250, memory);
    g.ops[0].most_per_s = GIGA / 4;
    bytes(&g, 1, 750, memory);
    run(&g, 1);
    check_span(&g, 0, 0, 1000);
    check_span(&g, 1, 0, 1000);
    arena_destroy(g.arena);
}

/* The fixed part of an operation uses no resource. Meanwhile the other operation has the whole link. */
static void test_timeline_fixed_part_comes_first_and_uses_nothing(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 2);
    uint32_t link = resource(&g, GIGA);
    bytes(&g, 0, 100, link);
    g.ops[0].fixed_ns = 70;
    bytes(&g, 1, 100, link);
    run(&g, 1);
    check_span(&g, 1, 0, 130); /* 70 alone, then half of the other 60 */
    check_span(&g, 0, 0, 200);
    arena_destroy(g.arena);
}

static void test_timeline_rounds_up(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 2);
    uint32_t own = resource(&g, 3 * GIGA);
    bytes(&g, 0, 10, own); /* 3.33 */
    bytes(&g, 0, 9, own);
    run(&g, 1);
    check_span(&g, 0, 0, 4);
    check_span(&g, 1, 4, 7);
    arena_destroy(g.arena);
}

static void test_timeline_nothing_takes_no_time(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 3);
    uint32_t link = resource(&g, GIGA);
    bytes(&g, 0, 0, link);
    bytes(&g, 0, 50, link);
    fixed(&g, 1, 0);
    g.ops[2].bytes = 1000000; /* through nothing */
    bytes(&g, 2, 50, link);
    waits_for(&g, 2, 0);
    run(&g, 1);
    check_span(&g, 0, 0, 0);
    check_span(&g, 2, 0, 0);
    check_span(&g, 1, 0, 100);
    check_span(&g, 3, 0, 100);
    arena_destroy(g.arena);
}

/* ---- order ---- */

static void test_timeline_streams_are_first_in_first_out(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 2);
    fixed(&g, 0, 100);
    fixed(&g, 1, 10);
    waits_for(&g, 0, 0);
    fixed(&g, 1, 5); /* could begin at 0, but stands behind */
    fixed(&g, 0, 1);
    waits_for(&g, 2, 0);
    run(&g, 1);
    check_span(&g, 1, 100, 110);
    check_span(&g, 2, 110, 115);
    check_span(&g, 3, 115, 116);
    arena_destroy(g.arena);
}

static void test_timeline_waits_may_point_forwards(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 2);
    fixed(&g, 0, 10);
    waits_for(&g, 1, 0);
    fixed(&g, 1, 20);
    run(&g, 1);
    check_span(&g, 0, 20, 30);
    arena_destroy(g.arena);
}

/* Stream 0 may be two runs ahead of stream 1, which takes ten times as long. */
static void test_timeline_waits_across_runs(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 2);
    fixed(&g, 0, 10);
    waits_for(&g, 1, 2);
    fixed(&g, 1, 100);
    waits_for(&g, 0, 0);
    run(&g, 5);
    check_span(&g, 2 * 0 + 0, 0, 10);
    check_span(&g, 2 * 1 + 0, 10, 20);   /* runs before the first are done */
    check_span(&g, 2 * 2 + 0, 110, 120); /* after run 0 of the other */
    check_span(&g, 2 * 3 + 0, 210, 220);
    check_span(&g, 2 * 4 + 1, 410, 510);
    assert_int_equal(g.r.first_ns, 110);
    assert_int_equal(g.r.total_ns, 510);
    arena_destroy(g.arena);
}

/* Runs overlap on a link: the second fetch of a run shares with the first of the next. */
static void test_timeline_runs_share_links(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 2);
    uint32_t link = resource(&g, GIGA);
    bytes(&g, 0, 100, link);
    bytes(&g, 1, 100, link);
    waits_for(&g, 0, 0);
    run(&g, 3);
    check_span(&g, 0, 0, 100);
    check_span(&g, 1, 100, 300);
    check_span(&g, 2, 100, 300);
    check_span(&g, 5, 500, 600);
    arena_destroy(g.arena);
}

static void test_timeline_circles_are_found(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 3);
    fixed(&g, 0, 10);
    waits_for(&g, 1, 0);
    fixed(&g, 1, 10);
    waits_for(&g, 0, 0);
    fixed(&g, 2, 7);
    assert_int_equal(timeline_run(&g.t, 1, g.arena, &g.r), -EDEADLK);
    assert_true(g.r.spans[0].end_ns == TIMELINE_NEVER);
    check_span(&g, 2, 0, 7);
    assert_int_equal(g.r.total_ns, 7);
    arena_destroy(g.arena);
}

static void test_timeline_empty_programs_end_at_once(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 4);
    resource(&g, 1);
    run(&g, 3);
    assert_int_equal(g.r.total_ns, 0);
    arena_destroy(g.arena);
}

/* Times beyond 64 bits stop there; nothing wraps and nothing hangs. */
static void test_timeline_absurd_sizes_end(void **state)
{
    struct rig g;
    (void)state;
    rig_init(&g, 3);
    uint32_t slow = resource(&g, 1);
    bytes(&g, 0, UINT64_MAX, slow);
    bytes(&g, 1, UINT64_MAX, slow);
    fixed(&g, 2, UINT64_MAX);
    fixed(&g, 2, UINT64_MAX);
    bytes(&g, 0, 5, slow);
    run(&g, 2);
    assert_true(g.r.total_ns >= UINT64_MAX - 1);
    arena_destroy(g.arena);
}

/* ---- random programs ---- */

/* A second simulator that uses brute force: it computes the shares for every nanosecond, in doubles, from
 * their definition. */
struct brute {
    const struct rig *g;
    uint32_t runs;
    uint64_t now;
    uint32_t next[8], run[8];
    bool busy[8];
    double fixed_left[8], bytes_left[8], rate[8];
    struct plan_span spans[MAX_OPS * 4];
    bool done[MAX_OPS * 4];
};

static uint32_t brute_op(const struct brute *b, uint32_t stream)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->g->t.n_ops; i++)
        if (b->g->ops[i].stream == stream && n++ == b->next[stream])
            return i;
    return UINT32_MAX;
}

static bool brute_ready(const struct brute *b, const struct timeline_op *op, uint32_t run_now)
{
    for (uint32_t i = 0; i < op->n_waits; i++) {
        const struct plan_wait *w = &b->g->waits[op->wait + i];
        if (w->distance <= run_now && !b->done[(run_now - w->distance) * b->g->t.n_ops + w->instr])
            return false;
    }
    return true;
}

static bool flows(const struct brute *b, uint32_t s)
{
    return b->busy[s] && b->fixed_left[s] <= 0 && b->bytes_left[s] > 1e-7;
}

/* Begins and ends all operations that can at this instant. Returns true when anything happened. */
static bool brute_settle(struct brute *b)
{
    bool any = false;
    for (uint32_t s = 0; s < b->g->t.n_streams; s++) {
        uint32_t i = brute_op(b, s);
        if (i == UINT32_MAX && b->next[s] > 0) {
            b->next[s] = 0;
            b->run[s]++;
            i = brute_op(b, s);
        }
        if (i == UINT32_MAX || b->run[s] >= b->runs)
            continue;
        const struct timeline_op *op = &b->g->ops[i];
        size_t at = b->run[s] * b->g->t.n_ops + i;
        if (!b->busy[s] && brute_ready(b, op, b->run[s])) {
            b->busy[s] = any = true;
            b->spans[at].start_ns = b->now;
            b->fixed_left[s] = (double)op->fixed_ns;
            b->bytes_left[s] = op->n_uses > 0 || op->most_per_s > 0 ? (double)op->bytes : 0;
        }
        if (b->busy[s] && b->fixed_left[s] <= 0 && !flows(b, s)) {
            b->busy[s] = false;
            b->done[at] = any = true;
            b->spans[at].end_ns = b->now;
            b->next[s]++;
        }
    }
    return any;
}

static uint32_t weight(const struct timeline_op *op, uint32_t use)
{
    return op->weights[use] > 0 ? op->weights[use] : 1;
}

/* Computes the shares by their definition: raises all rates together until a resource is full, fixes the
 * rates of the operations that use it, and continues with the others. */
static void brute_share(struct brute *b)
{
    bool open[8];
    double left[MAX_RESOURCES];
    for (uint32_t r = 0; r < b->g->t.n_resources; r++)
        left[r] = (double)b->g->per_s[r] * 1e-9;
    for (uint32_t s = 0; s < b->g->t.n_streams; s++) {
        open[s] = flows(b, s);
        b->rate[s] = 0;
    }
    for (;;) {
        double step = INFINITY;
        uint32_t users[MAX_RESOURCES] = {0}, n = 0;
        for (uint32_t s = 0; s < b->g->t.n_streams; s++) {
            const struct timeline_op *op = open[s] ? &b->g->ops[brute_op(b, s)] : NULL;
            for (uint32_t k = 0; op != NULL && k < op->n_uses; k++)
                users[op->uses[k]] += weight(op, k);
            if (op != NULL && op->most_per_s > 0)
                step = fmin(step, (double)op->most_per_s * 1e-9 - b->rate[s]);
            n += open[s];
        }
        if (n == 0)
            return;
        for (uint32_t r = 0; r < b->g->t.n_resources; r++)
            if (users[r] > 0)
                step = fmin(step, left[r] / users[r]);
        for (uint32_t s = 0; s < b->g->t.n_streams; s++)
            b->rate[s] += open[s] ? step : 0;
        for (uint32_t r = 0; r < b->g->t.n_resources; r++)
            left[r] -= users[r] * step;
        for (uint32_t s = 0; s < b->g->t.n_streams; s++) {
            const struct timeline_op *op = open[s] ? &b->g->ops[brute_op(b, s)] : NULL;
            for (uint32_t k = 0; op != NULL && k < op->n_uses; k++)
                open[s] = open[s] && left[op->uses[k]] > 1e-12;
            if (op != NULL && op->most_per_s > 0 && b->rate[s] >= (double)op->most_per_s * 1e-9 - 1e-12)
                open[s] = false;
        }
    }
}

static bool brute_busy(const struct brute *b)
{
    for (uint32_t s = 0; s < b->g->t.n_streams; s++)
        if (b->busy[s])
            return true;
    return false;
}

static void brute_run(struct brute *b, const struct rig *g, uint32_t runs)
{
    *b = (struct brute){.g = g, .runs = runs};
    for (;;) {
        while (brute_settle(b))
            ;
        if (!brute_busy(b))
            return;
        brute_share(b);
        for (uint32_t s = 0; s < g->t.n_streams; s++) {
            if (!b->busy[s])
                continue;
            if (b->fixed_left[s] > 0)
                b->fixed_left[s]--;
            else
                b->bytes_left[s] -= b->rate[s];
        }
        b->now++;
    }
}

static uint64_t pick(struct rng *r, uint64_t least, uint64_t most)
{
    return least + rng_next(r) % (most - least + 1);
}

static void random_program(struct rig *g, struct rng *r)
{
    rig_init(g, (uint32_t)pick(r, 1, 6));
    uint32_t n = (uint32_t)pick(r, 1, 24), n_resources = (uint32_t)pick(r, 1, 6);
    for (uint32_t i = 0; i < n_resources; i++)
        resource(g, pick(r, 1, 16) * GIGA / 4);
    for (uint32_t i = 0; i < n; i++) {
        fixed(g, (uint32_t)pick(r, 0, g->t.n_streams - 1), pick(r, 0, 1) * pick(r, 0, 60));
        struct timeline_op *op = &g->ops[i];
        op->bytes = pick(r, 0, 3) * pick(r, 0, 150);
        for (uint32_t k = 0; k < n_resources && op->n_uses < TIMELINE_MAX_USES; k++)
            if (pick(r, 0, 2) == 0)
                op->uses[op->n_uses++] = k;
        op->most_per_s = pick(r, 0, 4) == 0 ? pick(r, 1, 4) * GIGA / 2 : 0;
        for (uint32_t k = (uint32_t)pick(r, 0, 2); k-- > 0 && i > 0;)
            waits_for(g, (uint32_t)pick(r, 0, i - 1), 0);
        if (pick(r, 0, 3) == 0)
            waits_for(g, (uint32_t)pick(r, 0, n - 1), (uint32_t)pick(r, 1, 2));
    }
}

static void random_weights(struct rig *g, struct rng *r)
{
    for (uint32_t i = 0; i < g->t.n_ops; i++)
        for (uint32_t k = 0; k < g->ops[i].n_uses; k++)
            g->ops[i].weights[k] = (uint32_t)pick(r, 0, 3);
}

static void check_by_brute_force(bool weights, int64_t most_off_ns)
{
    static struct rig g;
    static struct brute b;
    struct rng r = {.seed = 1};
    for (int i = 0; i < 2000; i++) {
        uint32_t runs = (uint32_t)pick(&r, 1, 3);
        random_program(&g, &r);
        if (weights)
            random_weights(&g, &r);
        run(&g, runs);
        brute_run(&b, &g, runs);
        for (uint32_t k = 0; k < g.t.n_ops * runs; k++) {
            int64_t start = (int64_t)(g.r.spans[k].start_ns - b.spans[k].start_ns);
            int64_t end = (int64_t)(g.r.spans[k].end_ns - b.spans[k].end_ns);
            if (llabs(start) > most_off_ns || llabs(end) > most_off_ns)
                fail_msg("program %d, op %u: %ld..%ld, by brute force %ld..%ld", i, k,
                         (long)g.r.spans[k].start_ns, (long)g.r.spans[k].end_ns, (long)b.spans[k].start_ns,
                         (long)b.spans[k].end_ns);
        }
        arena_destroy(g.arena);
    }
}

/* Both simulators end operations at whole nanoseconds, but one rounds shares and the other compares doubles.
 * An end that falls exactly on a nanosecond may therefore come one nanosecond later in one of them, and so
 * may everything that depends on it. */
static void test_timeline_random_programs_as_by_brute_force(void **state)
{
    (void)state;
    check_by_brute_force(false, 2);
}

/* Weights make the shares smaller, so a difference of one nanosecond in one operation can cost another
 * several. */
static void test_timeline_random_weights_as_by_brute_force(void **state)
{
    (void)state;
    check_by_brute_force(true, 12);
}

/* Renumbers the streams and resources. Events at the same instant are then handled in another order, and the
 * result must not change. */
static void test_timeline_numbers_do_not_matter(void **state)
{
    static struct rig g, turned;
    struct rng r = {.seed = 2};
    (void)state;
    for (int i = 0; i < 200; i++) {
        random_program(&g, &r);
        turned = g;
        turned.t.ops = turned.ops;
        turned.t.waits = turned.waits;
        turned.t.per_s = turned.per_s;
        for (uint32_t k = 0; k < g.t.n_ops; k++) {
            turned.ops[k].stream = g.t.n_streams - 1 - g.ops[k].stream;
            for (uint32_t u = 0; u < g.ops[k].n_uses; u++)
                turned.ops[k].uses[u] = g.t.n_resources - 1 - g.ops[k].uses[u];
        }
        for (uint32_t k = 0; k < g.t.n_resources; k++)
            turned.per_s[g.t.n_resources - 1 - k] = g.per_s[k];
        run(&g, 2);
        run(&turned, 2);
        assert_memory_equal(g.r.spans, turned.r.spans, 2 * g.t.n_ops * sizeof *g.r.spans);
        for (uint32_t k = 0; k < g.t.n_resources; k++)
            assert_int_equal(g.r.bound_ns[k], turned.r.bound_ns[g.t.n_resources - 1 - k]);
        arena_destroy(g.arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timeline_two_share_a_link),
        cmocka_unit_test(test_timeline_three_end_one_after_another),
        cmocka_unit_test(test_timeline_a_slow_link_leaves_the_rest),
        cmocka_unit_test(test_timeline_weights_divide_a_resource),
        cmocka_unit_test(test_timeline_weights_count_alone),
        cmocka_unit_test(test_timeline_shares_follow_each_other),
        cmocka_unit_test(test_timeline_directions_do_not_disturb_each_other),
        cmocka_unit_test(test_timeline_an_operation_may_have_a_limit),
        cmocka_unit_test(test_timeline_fixed_part_comes_first_and_uses_nothing),
        cmocka_unit_test(test_timeline_rounds_up),
        cmocka_unit_test(test_timeline_nothing_takes_no_time),
        cmocka_unit_test(test_timeline_streams_are_first_in_first_out),
        cmocka_unit_test(test_timeline_waits_may_point_forwards),
        cmocka_unit_test(test_timeline_waits_across_runs),
        cmocka_unit_test(test_timeline_runs_share_links),
        cmocka_unit_test(test_timeline_circles_are_found),
        cmocka_unit_test(test_timeline_empty_programs_end_at_once),
        cmocka_unit_test(test_timeline_absurd_sizes_end),
        cmocka_unit_test(test_timeline_random_programs_as_by_brute_force),
        cmocka_unit_test(test_timeline_random_weights_as_by_brute_force),
        cmocka_unit_test(test_timeline_numbers_do_not_matter),
    };
    return cmocka_run_group_tests_name("timeline", tests, NULL, NULL);
}
