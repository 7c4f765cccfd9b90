/* Tests what limits the speed of a plan: the critical path of plans made by hand, and the gain from more
 * memory for random plans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>

#include "scheduler/policy/policy.h"
#include "scheduler/policy/what_if.h"
#include "scheduler/predict/why.h"
#include "tests/unit/handmade_plan.h"
#include "tests/unit/random_chain.h"
#include "tests/unit/tiny_plan.h"

#define RUNS  3
#define CASES 150

/* ---- the plan of tiny_plan.h: the path is worked out in test_simulate.c ---- */

struct scene {
    struct machine machine;
    struct profile_layer layers[2];
    struct profile profile;
};

static void scene_init(struct scene *s)
{
    *s = (struct scene){
        .machine = {.n_devices = 2,
                    .link_bytes_per_s = 1000000000,
                    .peer_bytes_per_s = 3000000000,
                    .launch_ns = 100},
        .layers = {{.fwd_ns = 1000, .bwd_ns = 2000, .upd_host_ns = 700},
                   {.fwd_ns = 300, .bwd_ns = 600, .upd_device_ns = 150}},
    };
    s->profile = (struct profile){.n_layers = 2, .layers = s->layers};
}

static uint64_t path_sum(const struct why *y)
{
    uint64_t sum = 0;
    for (int i = 0; i < PATH_PART_COUNT; i++)
        sum += y->path_ns[i];
    return sum;
}

static void why_tiny(const struct scene *s, struct why *ret)
{
    struct plan *p = tiny_plan();
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, RUNS, &s->profile, &s->machine);
    why_of(p, sim, ret);
    assert_int_equal(ret->cycle_ns, sim->cycle_ns);
    assert_int_equal(path_sum(ret), sim->cycle_ns); /* one chain through all the streams */
    sim_destroy(sim);
    plan_destroy(p);
}

/* fetch W0, fetch X0, FWD l0, send X1, FWD l1, BWD l1, send dX1, BWD l0, spill dW0, UPD l0 on the host. */
static void test_why_path_by_hand(void **state)
{
    struct scene s;
    struct why y;
    (void)state;
    scene_init(&s);
    why_tiny(&s, &y);
    assert_int_equal(y.path_ns[PATH_COMPUTE], 1000 + 300 + 600 + 2000);
    assert_int_equal(y.path_ns[PATH_IN], 4196 + 1124);
    assert_int_equal(y.path_ns[PATH_OUT], 4196);
    assert_int_equal(y.path_ns[PATH_PEER], 2 * 271);
    assert_int_equal(y.path_ns[PATH_HOST], 700);
    assert_int_equal(y.memory_wait_ns, 0); /* nothing on the path waits for a drop */
    assert_float_equal(y.busiest, 3000.0 / 14658, 1e-6);
    assert_int_equal(y.binds, BINDING_LINK);
}

static void test_why_names_what_binds(void **state)
{
    struct scene s;
    struct why y;
    (void)state;
    scene_init(&s);
    s.machine.peer_bytes_per_s = 30000000;
    why_tiny(&s, &y);
    assert_int_equal(y.binds, BINDING_PEER);

    scene_init(&s);
    s.layers[0].upd_host_ns = 20000;
    why_tiny(&s, &y);
    assert_int_equal(y.binds, BINDING_HOST);

    scene_init(&s);
    s.layers[0].fwd_ns = s.layers[0].bwd_ns = 50000;
    why_tiny(&s, &y);
    assert_int_equal(y.binds, BINDING_COMPUTE);
    assert_true(y.busiest > 0.8);

    s.layers[1].fwd_ns = s.layers[1].bwd_ns = 50000; /* and now the devices take turns */
    why_tiny(&s, &y);
    assert_int_equal(y.binds, BINDING_BUBBLE);
    assert_true(y.busiest < 0.5);
}

/* ---- memory ---- */

/* One device; the weights of two layers come in turn, either to one address or to one each. */
static void two_fetches(struct handmade *h, bool roomy)
{
    hm_init(h, 1, roomy ? 2048 : 1024);
    for (uint32_t l = 0; l < 2; l++)
        hm_tensor(h, TENSOR_W, l, PLAN_NONE, 1000, 1);
    h->now = PROGRAM_CYCLE;
    for (uint32_t l = 0; l < 2; l++) {
        uint64_t addr = roomy ? 1024 * l : 0;
        hm_instr(h, INSTR_FETCH, plan_stream(0, LANE_IN), PLAN_NONE, PLAN_NONE, 0);
        hm_operand(h, l, PLAN_HOST, 0, ACCESS_READ);
        hm_operand(h, l, 0, addr, ACCESS_WRITE);
        hm_instr(h, INSTR_FWD, plan_stream(0, LANE_COMPUTE), l, 0, 0);
        hm_operand(h, l, 0, addr, ACCESS_READ);
        hm_instr(h, INSTR_DROP, plan_stream(0, LANE_COMPUTE), PLAN_NONE, PLAN_NONE, 0);
        hm_operand(h, l, 0, addr, ACCESS_DROP);
    }
    hm_derive_waits(h, PROGRAM_CYCLE);
    h->plan.n_layers = 2;
}

static void why_two_fetches(bool roomy, uint64_t fwd_ns, struct why *ret)
{
    struct profile_layer layers[2] = {{.fwd_ns = fwd_ns}, {.fwd_ns = fwd_ns}};
    struct profile profile = {.n_layers = 2, .layers = layers};
    struct machine m = {.n_devices = 1, .link_bytes_per_s = 1000000000};
    struct handmade h;
    two_fetches(&h, roomy);
    struct plan *p = hm_finish(&h);
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, RUNS, &profile, &m);
    why_of(p, sim, ret);
    sim_destroy(sim);
    hm_free(&h);
}

static void test_why_memory_binds_where_it_is_waited_for(void **state)
{
    struct why y;
    (void)state;
    why_two_fetches(false, 1000, &y); /* fetch, compute, fetch, compute: nothing overlaps */
    assert_int_equal(y.cycle_ns, 4000);
    assert_int_equal(y.path_ns[PATH_COMPUTE], 2000);
    assert_int_equal(y.path_ns[PATH_IN], 2000);
    assert_int_equal(y.memory_wait_ns, 2000);
    assert_int_equal(y.binds, BINDING_MEMORY);

    why_two_fetches(true, 1000, &y); /* with an address each all of it does */
    assert_int_equal(y.cycle_ns, 2000);
    assert_int_equal(y.memory_wait_ns, 0);
    assert_int_not_equal(y.binds, BINDING_MEMORY);

    why_two_fetches(false, 100, &y); /* waits for memory, but the link is what it is busy with */
    assert_int_equal(y.cycle_ns, 2200);
    assert_int_equal(y.memory_wait_ns, 200);
    assert_int_equal(y.binds, BINDING_LINK);
}

static void test_why_memory_binds_where_more_brings_much(void **state)
{
    struct why_report r = {.why = {.cycle_ns = 1000, .binds = BINDING_LINK}, .memory = {true, 880, 0}};
    (void)state;
    why_report_settle(&r);
    assert_int_equal(r.why.binds, BINDING_LINK); /* nobody asked */
    r.asked = true;
    why_report_settle(&r);
    assert_int_equal(r.why.binds, BINDING_MEMORY);
    r.why.binds = BINDING_COMPUTE;
    r.memory.cycle_ns = 950;
    why_report_settle(&r);
    assert_int_equal(r.why.binds, BINDING_COMPUTE);
    r.memory = (struct what_if){0};
    why_report_settle(&r);
    assert_int_equal(r.why.binds, BINDING_COMPUTE);
}

/* ---- what would be ---- */

static void test_what_if_machine_grows(void **state)
{
    struct machine m, more;
    (void)state;
    machine_init_cpu(&m, 2, 4096, 1 << 20);
    m.capacity_bytes[1] = 8192;
    assert_int_equal(what_if_machine(&m, 1000, 0, &more), 0);
    assert_int_equal(more.n_devices, 2);
    assert_int_equal(more.capacity_bytes[0], 4096 + 768); /* whole granules */
    assert_int_equal(more.capacity_bytes[1], 8192 + 768);
    assert_int_equal(what_if_machine(&m, 0, 1, &more), 0);
    assert_int_equal(more.n_devices, 3);
    assert_int_equal(more.capacity_bytes[0], 4096);
    assert_int_equal(more.capacity_bytes[2], 8192);
    assert_int_equal(what_if_machine(&m, 0, DEVICE_MAX - 1, &more), -ERANGE);
}

struct question {
    struct random_chain chain;
    struct graph *train;
    struct machine machine;
    struct plan_request request;
};

/* A random chain with a little more than the least memory. */
static void question_init(struct question *q, uint32_t seed)
{
    struct rng rng = {.seed = seed};
    uint64_t least;
    random_chain(&q->chain, &rng, 300);
    assert_int_equal(random_graph(&q->chain, true, &q->train), 0);
    machine_init_cpu(&q->machine, 1 + rng_below(&rng, 4), 1ull << 40, 1ull << 40);
    q->request = (struct plan_request){
        .train = q->train, .machine = &q->machine, .policy = rng_below(&rng, POLICY_COUNT)};
    assert_int_equal(plan_least_capacity(&q->request, &least, NULL), 0);
    for (uint32_t d = 0; d < q->machine.n_devices; d++)
        q->machine.capacity_bytes[d] = least + rng_below(&rng, 16) * PLAN_ALIGN;
}

/* The path accounts for the iteration, whatever the plan. */
static void test_why_path_of_random_plans_is_the_iteration(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= CASES; seed++) {
        struct question q;
        struct plan *p;
        struct why y;
        question_init(&q, seed);
        assert_int_equal(plan_make(&q.request, &p, NULL, NULL), 0);
        struct profile *prof = plan_profile(&q.request);
        struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, RUNS, prof, &q.machine);
        why_of(p, sim, &y);
        uint64_t sum = path_sum(&y);
        if (sum > sim->cycle_ns || sum < sim->cycle_ns - sim->cycle_ns / 100)
            fail_msg("seed %u, policy %s: the path of %llu ns has %llu", seed, p->policy,
                     (unsigned long long)sim->cycle_ns, (unsigned long long)sum);
        assert_true(y.memory_wait_ns < sim->cycle_ns);
        sim_destroy(sim);
        profile_destroy(prof);
        plan_destroy(p);
        graph_destroy(q.train);
    }
}

static void test_what_if_more_memory_is_not_slower(void **state)
{
    uint32_t faster = 0;
    (void)state;
    for (uint32_t seed = 1; seed <= CASES; seed++) {
        struct question q;
        struct machine more;
        struct what_if now, then;
        question_init(&q, seed);
        what_if_plan(&q.request, &now);
        assert_int_equal(what_if_machine(&q.machine, 1 << 20, 0, &more), 0);
        q.request.machine = &more;
        what_if_plan(&q.request, &then);
        assert_true(now.fits && then.fits);
        what_if_keep(&then, &now, OBJECTIVE_TIME);
        assert_true(then.cycle_ns <= now.cycle_ns);
        faster += then.cycle_ns < now.cycle_ns;
        graph_destroy(q.train);
    }
    assert_true(faster > CASES / 4);
}

static void test_what_if_keeps_the_plan_at_hand(void **state)
{
    const struct what_if now = {true, 100, 50};
    struct what_if slower = {true, 110, 40}, same = slower, none = {0};
    (void)state;
    what_if_keep(&slower, &now, OBJECTIVE_TIME);
    assert_int_equal(slower.cycle_ns, 100);
    assert_int_equal(slower.host_bytes, 50);
    what_if_keep(&same, &now, OBJECTIVE_BYTES);
    assert_int_equal(same.cycle_ns, 110);
    what_if_keep(&none, &now, OBJECTIVE_TIME);
    assert_true(none.fits);
}

static void test_what_if_that_does_not_fit_says_so(void **state)
{
    struct question q;
    struct what_if w = {.fits = true};
    (void)state;
    question_init(&q, 1);
    for (uint32_t d = 0; d < q.machine.n_devices; d++)
        q.machine.capacity_bytes[d] = PLAN_ALIGN;
    what_if_plan(&q.request, &w);
    assert_false(w.fits);
    graph_destroy(q.train);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_why_path_by_hand),
        cmocka_unit_test(test_why_names_what_binds),
        cmocka_unit_test(test_why_memory_binds_where_it_is_waited_for),
        cmocka_unit_test(test_why_memory_binds_where_more_brings_much),
        cmocka_unit_test(test_what_if_machine_grows),
        cmocka_unit_test(test_why_path_of_random_plans_is_the_iteration),
        cmocka_unit_test(test_what_if_more_memory_is_not_slower),
        cmocka_unit_test(test_what_if_keeps_the_plan_at_hand),
        cmocka_unit_test(test_what_if_that_does_not_fit_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
