/* Tests the bound on the time of a training step: against values by hand, and against an exhaustive search
 * for tiny chains. tests/unit/test_plans.c compares the bound with the plans of all policies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "scheduler/predict/time_bound.h"
#include "tests/cases.h"
#include "tests/unit/brute_time.h"
#include "tests/unit/random_linked.h"

#define BRUTE_CASES 5000

/* ---- tiny chains ---- */

/* The graph, the machine and the profile of a tiny chain. */
struct tiny {
    struct graph_layer layers[BRUTE_TIME_LAYERS + 1];
    struct profile_layer times[BRUTE_TIME_LAYERS + 1];
    struct graph_group group;
    struct graph graph;
    struct machine machine;
    struct profile profile;
};

static void tiny_layer(struct tiny *t, const struct brute_time_case *c, uint32_t l)
{
    const struct brute_time_layer *from = &c->layers[l];
    struct graph_layer *to = &t->layers[l];
    *to = (struct graph_layer){.type = "layer",
                               .rows = 1,
                               .input = l > 0 ? l - 1 : PLAN_NONE,
                               .original = l,
                               .reader = l < c->n_layers ? l + 1 : PLAN_NONE,
                               .backward = true,
                               .returns = l > 0,
                               .owner = l,
                               .is_loss = l == c->n_layers};
    to->size.x = l > 0 ? c->layers[l - 1].y : 0;
    t->times[l] = (struct profile_layer){.bwd_ns = c->loss_ns};
    if (l == c->n_layers)
        return;
    to->size.w = to->dw_bytes = from->w;
    to->size.y = from->y;
    to->size.s = from->s;
    to->k_bytes = from->k;
    to->n_uses = 1;
    t->times[l] = (struct profile_layer){.fwd_ns = from->fwd_ns,
                                         .bwd_ns = from->bwd_ns,
                                         .upd_device_ns = from->upd_device_ns,
                                         .upd_host_ns = from->upd_host_ns};
}

static void tiny_chain(struct tiny *t, const struct brute_time_case *c)
{
    *t = (struct tiny){.graph = {.n_layers = c->n_layers + 1,
                                 .n_groups = 1,
                                 .n_micro = c->n_micros,
                                 .n_replicas = 1,
                                 .rows = 1,
                                 .steps = 1,
                                 .training = true}};
    for (uint32_t l = 0; l <= c->n_layers; l++)
        tiny_layer(t, c, l);
    t->graph.layers = t->layers;
    t->graph.groups = &t->group;
    t->profile = (struct profile){.n_layers = c->n_layers + 1, .layers = t->times};
    t->machine = (struct machine){.n_devices = 1,
                                  .capacity_bytes = {c->capacity},
                                  .link_bytes_per_s = 1000000000 / c->in_ns,
                                  .link_out_bytes_per_s = 1000000000 / c->out_ns};
}

static void bound_of(const struct brute_time_case *c, struct time_bound *ret)
{
    struct tiny t;
    tiny_chain(&t, c);
    time_bound(&t.graph, &t.machine, &t.profile, ret);
}

static struct brute_time_case random_case(struct rng *r)
{
    static const uint32_t link_ns[] = {1, 2, 4, 8};
    struct brute_time_case c = {.n_layers = 1 + rng_below(r, 2), .loss_ns = 1 + rng_below(r, 20)};
    c.n_micros = c.n_layers == 1 ? 1 + rng_below(r, 3) : 1 + (rng_below(r, 4) == 0);
    c.in_ns = link_ns[rng_below(r, 4)];
    c.out_ns = rng_below(r, 2) ? c.in_ns : link_ns[rng_below(r, 4)];
    uint32_t everything = 0, slow = rng_below(r, 2) ? 1 + rng_below(r, 30) : 1 + rng_below(r, 8),
             state = 1 + rng_below(r, 6), stash = 1 + rng_below(r, 6);
    for (uint32_t l = 0; l < c.n_layers; l++) {
        struct brute_time_layer *layer = &c.layers[l];
        layer->w = 1 + rng_below(r, state);
        layer->k = rng_below(r, 3) * layer->w;
        layer->s =
            c.n_layers > 1 && c.n_micros > 1 ? 0 : rng_below(r, 1 + stash); /* keeps the search short */
        layer->y = 1 + rng_below(r, stash);
        layer->fwd_ns = 1 + rng_below(r, slow);
        layer->bwd_ns = 1 + rng_below(r, 2 * slow);
        layer->upd_device_ns = rng_below(r, slow);
        layer->upd_host_ns = rng_below(r, 4 * slow);
        everything += 2 * layer->w + layer->k + c.n_micros * (layer->s + 2 * layer->y);
    }
    c.capacity = 1 + rng_below(r, everything);
    return c;
}

static void print_case(const struct brute_time_case *c, uint32_t least, const struct time_bound *b)
{
    for (uint32_t l = 0; l < c->n_layers; l++) {
        const struct brute_time_layer *x = &c->layers[l];
        print_message("# layer %u: w %u k %u s %u y %u, fwd %u bwd %u upd %u or %u\n", l, x->w, x->k, x->s,
                      x->y, x->fwd_ns, x->bwd_ns, x->upd_device_ns, x->upd_host_ns);
    }
    print_message("# %u micro-batches, capacity %u, loss %u, in %u out %u: least %u, bound %llu by %s%s\n",
                  c->n_micros, c->capacity, c->loss_ns, c->in_ns, c->out_ns, least, (unsigned long long)b->ns,
                  time_bound_names[b->kind], b->traded ? " and others" : "");
}

static void test_time_bound_never_above_brute_force(void **state)
{
    (void)state;
    uint32_t n = random_cases(BRUTE_CASES), fitting = 0, traded = 0, attained = 0;
    uint64_t states = 0;
    double sum = 0;
    for (uint32_t seed = 1; seed <= n; seed++) {
        struct rng rng = {.seed = seed};
        struct brute_time_case c = random_case(&rng);
        struct time_bound b;
        uint32_t least = brute_time(&c, &states);
        if (least == UINT32_MAX)
            continue;
        bound_of(&c, &b);
        if (b.ns > least) {
            print_case(&c, least, &b);
            fail_msg("seed %u: the bound is wrong", seed);
        }
        fitting++;
        traded += b.traded;
        attained += b.ns + 1 >= least;
        sum += (double)b.ns / least;
    }
    print_message(
        "# %u cases that fit, %llu states, traded in %u, attained in %u, %.1f%% of the least time on "
        "average\n",
        fitting, (unsigned long long)states, traded, attained, 100 * sum / fitting);
    assert_true(n < BRUTE_CASES || (fitting > n / 3 && traded > fitting / 30 && attained > fitting / 8));
}

/* ---- values by hand ---- */

/* Two layers of 10 bytes of W and 20 of K, two micro-batches. The passes take 2 * (3 + 3 + 6 + 6 + 2) = 40
 * ns. */
static struct brute_time_case by_hand(uint32_t capacity)
{
    struct brute_time_layer layer = {.w = 10, .k = 20, .y = 1, .fwd_ns = 3, .bwd_ns = 6, .upd_host_ns = 4};
    struct brute_time_case c = {.n_layers = 2,
                                .n_micros = 2,
                                .capacity = capacity,
                                .layers = {layer, layer},
                                .loss_ns = 2,
                                .in_ns = 1,
                                .out_ns = 1};
    c.layers[0].upd_device_ns = c.layers[1].upd_device_ns = 1;
    return c;
}

static void assert_bound(const struct brute_time_case *c, uint64_t ns, enum time_bound_kind kind)
{
    struct time_bound b;
    bound_of(c, &b);
    if (b.ns + 1 < ns || b.ns > ns || b.kind != kind)
        fail_msg("%llu ns by %s, not %llu by %s", (unsigned long long)b.ns, time_bound_names[b.kind],
                 (unsigned long long)ns, time_bound_names[kind]);
}

/* If everything fits, the passes and the updates on the device bind: 40 + 2 ns. On the host the updates would
 * take 8 ns beside the passes, but their weights would have to come in and their gradients go out. */
static void test_time_bound_of_compute(void **state)
{
    (void)state;
    struct brute_time_case c = by_hand(1000);
    c.layers[0].upd_host_ns = c.layers[1].upd_host_ns = 100;
    assert_bound(&c, 42, TIME_BOUND_COMPUTE);
}

/* With slow links and little memory, bytes bind. The bound on bytes is 3 W - R: with 12 bytes free at the
 * turn, 48 of 60 bytes move. At best half of them come in, at 40 ns each. */
static void test_time_bound_of_links(void **state)
{
    (void)state;
    struct brute_time_case c = by_hand(14);
    c.in_ns = c.out_ns = 40;
    struct time_bound b;
    uint64_t states = 0;
    bound_of(&c, &b);
    assert_true(b.kind == TIME_BOUND_LINK_IN || b.kind == TIME_BOUND_LINK_OUT);
    assert_true(b.ns >= 24 * 40 && b.ns <= brute_time(&c, &states));
}

/* One micro-batch on two devices: the passes are one chain, which two devices do not shorten. */
static void test_time_bound_of_a_chain(void **state)
{
    (void)state;
    struct brute_time_case c = by_hand(1000);
    struct time_bound b;
    struct tiny t;
    c.n_micros = 1;
    tiny_chain(&t, &c);
    t.machine.n_devices = 2;
    t.machine.capacity_bytes[1] = 1000;
    time_bound(&t.graph, &t.machine, &t.profile, &b);
    assert_int_equal(b.kind, TIME_BOUND_CHAIN);
    assert_int_equal(b.ns, 20); /* and nearly half a nanosecond for the update by both devices and the host */
}

/* More memory, more devices and faster links never make the bound longer. */
static void test_time_bound_falls_with_more(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 200; seed++) {
        struct rng rng = {.seed = seed};
        struct brute_time_case c = random_case(&rng);
        struct tiny t;
        tiny_chain(&t, &c);
        uint64_t before = time_bound_ns(&t.graph, &t.machine, &t.profile);
        t.machine.capacity_bytes[0] *= 2;
        t.machine.link_bytes_per_s *= 2;
        uint64_t after = time_bound_ns(&t.graph, &t.machine, &t.profile);
        if (after > before + before / 50 + 1) /* the search for weights is not exact */
            fail_msg("seed %u: %llu ns, and %llu with more", seed, (unsigned long long)before,
                     (unsigned long long)after);
    }
}

/* Where layers form no chain, the bound is what the tasks take. Several steps in a cycle leave the bound by
 * tasks as it is. */
static void test_time_bound_of_any_graph(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 100; seed++) {
        struct rng rng = {.seed = seed};
        struct random_chain c;
        struct linked_features f;
        struct machine m;
        struct time_bound b[2];
        random_linked(&c, &rng, &f);
        machine_init_cpu(&m, 1 + rng_below(&rng, 3), 1 << 20, 1ull << 40);
        for (uint32_t steps = 1; steps <= 2; steps++) {
            struct graph *g;
            uint64_t ns = 0;
            c.steps = steps;
            assert_int_equal(random_graph(&c, true, &g), 0);
            struct profile *prof = profile_analytic(g, &m);
            for (uint32_t i = 0; i < g->n_tasks; i++)
                if (g->tasks[i].place == PLACE_DEVICE)
                    ns += profile_task_ns(prof, g->tasks[i].kind, g->tasks[i].layer, false);
            time_bound(g, &m, prof, &b[steps - 1]);
            assert_true((double)b[steps - 1].ns >= (double)(ns / steps / m.n_devices) * (1 - 1e-8) - 1);
            profile_destroy(prof);
            graph_destroy(g);
        }
        assert_true(b[1].ns <= b[0].ns + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_bound_of_compute),
        cmocka_unit_test(test_time_bound_of_links),
        cmocka_unit_test(test_time_bound_of_a_chain),
        cmocka_unit_test(test_time_bound_falls_with_more),
        cmocka_unit_test(test_time_bound_of_any_graph),
        cmocka_unit_test(test_time_bound_never_above_brute_force),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
