/* Compares the bound with the true least traffic, which an exhaustive search finds for tiny chains (brute.h).
 * The least traffic must never be below the bound. Sizes are small units. The bound gets each unit as PARTS
 * parts, so that it need not round. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "scheduler/predict/bound.h"
#include "tests/unit/brute.h"

#define PARTS 60 /* of a unit */

struct tally {
    uint64_t cases, states;
    uint64_t positive, attained; /* bound above 0; the same as the least traffic */
    /* Cases where the least average is below the bound, but no plan with one cycle is. With cycles of one
     * step, this happens only when all updates are on the device. */
    uint64_t longer;
    double least, bound; /* sums, in units */
};

/* ---- the bound of a case ---- */

static uint32_t of_one_micro_batch(const struct brute_case *c, uint32_t end_layer)
{
    uint32_t sum = 0;
    for (uint32_t l = 1; l < end_layer; l++)
        sum += c->x[l];
    return sum;
}

static uint64_t room_beside(const struct brute_case *c, uint32_t working_set)
{
    uint32_t all = c->n_devices * c->capacity;
    return all > working_set ? (uint64_t)(all - working_set) * PARTS : 0;
}

/* What bound_sizes_of would find, with the turn at this layer (n_layers: the loss), in a plan of this chain
 * with as little stash as the case allows. */
static struct bound bound_at(const struct brute_case *c, uint32_t turn)
{
    uint32_t n = c->n_layers;
    struct bound_state states[BRUTE_MAX_LAYERS];
    for (uint32_t l = 0; l < n; l++) {
        uint64_t w = c->w[l] * PARTS;
        states[l] = (struct bound_state){w, w, c->k[l] * PARTS, c->decision && l > 0 ? w : 0, l > turn};
    }
    struct bound_sizes s = {.states = states, .n_states = n, .stash = of_one_micro_batch(c, turn)};
    if (turn == n) { /* X, dX */
        s.stash = c->stash == BRUTE_ANY ? s.stash : c->stash;
        s.turn_free_bytes = room_beside(c, 2 * c->x[n]);
    } else { /* dY, dW, X, and dX unless it is the first */
        s.turn_free_bytes = room_beside(c, c->x[turn + 1] + c->w[turn] + c->x[turn] * (turn > 0 ? 2 : 1));
    }
    s.end_free_bytes = room_beside(c, c->x[1] + c->w[0] + c->x[0]);
    s.stash = c->recompute ? 0 : s.stash * PARTS;
    struct bound b;
    bound_compute(&s, &b);
    return b;
}

/* Returns whether the case has a cycle of several steps or a chain in several parts. */
static bool has_cycle(const struct brute_case *c)
{
    return c->steps > 1 || c->ends > 0;
}

/* Returns what every plan needs beside W and K at the first backward task of layer l (n_layers: the loss):
 * the operands, and the inputs of the layers before l in the same part of the chain. */
static uint32_t beside_state(const struct brute_case *c, uint32_t l)
{
    bool begins = l > 0 && c->ends >> (l - 1) & 1; /* the first layer of a part returns no gradient */
    uint32_t sum = c->x[l] * (l > 0 && !begins ? 2 : 1);
    if (l < c->n_layers)
        sum += c->w[l] + (c->ends >> l & 1 ? 0 : c->x[l + 1]);
    else if (c->stash != BRUTE_ANY)
        return sum + c->stash;
    while (!c->recompute && l > 1 && !(c->ends >> (l - 1) & 1))
        sum += c->x[--l];
    return sum;
}

/* Returns the bound on a run of the cycle. */
static uint64_t bound_of_cycle(const struct brute_case *c)
{
    struct bound_state states[BRUTE_MAX_LAYERS];
    uint32_t most = 0;
    for (uint32_t l = 0; l <= c->n_layers; l++)
        most = beside_state(c, l) > most ? beside_state(c, l) : most;
    for (uint32_t l = 0; l < c->n_layers; l++)
        states[l] = (struct bound_state){.w = c->w[l] * PARTS, .dw = c->w[l] * PARTS, .k = c->k[l] * PARTS};
    return bound_cycle_compute(&(struct bound_cycle){
        .steps = c->steps > 0 ? c->steps : 1,
        .states = states,
        .n_states = c->n_layers,
        .free_bytes = ((int64_t)c->n_devices * c->capacity - most) * PARTS,
    });
}

/* Returns the largest bound over all turns. Each of them is a bound, so the largest is one too. */
static uint64_t bound_of(const struct brute_case *c)
{
    uint64_t most = 0;
    if (has_cycle(c))
        return bound_of_cycle(c);
    for (uint32_t turn = 0; turn <= c->n_layers; turn++) {
        struct bound b = bound_at(c, turn);
        uint64_t bytes = !c->update_on_device ? b.host.total : !c->update_on_host ? b.device.total : b.bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* ---- */

static void print_case(const struct brute_case *c, const struct brute_result *r, uint64_t bound)
{
    print_message("# w");
    for (uint32_t l = 0; l < c->n_layers; l++)
        print_message(" %u", c->w[l]);
    print_message(" k");
    for (uint32_t l = 0; l < c->n_layers; l++)
        print_message(" %u", c->k[l]);
    print_message(" x");
    for (uint32_t l = 0; l <= c->n_layers; l++)
        print_message(" %u", c->x[l]);
    print_message(
        " m %u steps %u ends %x devices %u capacity %u%s%s%s stash %d%s: least %u / %u, bound %.2f\n",
        c->n_micros, c->steps, c->ends, c->n_devices, c->capacity, c->update_on_host ? " host" : "",
        c->update_on_device ? " device" : "", c->decision ? " decision" : "", (int)c->stash,
        c->recompute ? " recompute" : "", r->bytes, r->cycles, (double)bound / PARTS);
}

/* False when the chain does not fit. */
static bool check(const struct brute_case *c, struct tally *t, struct brute_result *r)
{
    assert_true(brute_solve(c, r));
    t->states += r->n_states;
    if (r->cycles == 0)
        return false;
    uint64_t bound = bound_of(c), least = (uint64_t)r->bytes * PARTS;
    if (getenv("TUTTI_DUMP"))
        print_case(c, r, bound);
    if (bound * r->cycles > least) {
        t->longer++;
        if ((c->update_on_host && !has_cycle(c)) ||
            brute_one_cycle_below(c, (uint32_t)((bound + PARTS - 1) / PARTS))) {
            print_case(c, r, bound);
            fail_msg("the bound is wrong");
        }
    }
    t->cases++;
    t->positive += bound > 0;
    t->attained += bound > 0 && bound * r->cycles == least;
    t->least += (double)r->bytes / r->cycles;
    t->bound += (double)bound / PARTS;
    return true;
}

/* Tries all capacities, from too little for any task to more than everything needs. */
static void check_capacities(struct brute_case *c, struct tally *t)
{
    uint32_t everything = c->x[0];
    struct brute_result r;
    uint32_t micros = c->n_micros * (c->steps > 0 ? c->steps : 1);
    for (uint32_t l = 0; l < c->n_layers; l++)
        everything += 2 * c->w[l] + c->k[l] + 2 * micros * c->x[l + 1];
    for (c->capacity = 1; c->capacity * c->n_devices <= everything; c->capacity++)
        if (check(c, t, &r) && r.bytes == 0)
            return;
}

static void print_tally(const char *what, const struct tally *t)
{
    print_message(
        "# %s: %llu cases, %llu states, bound above 0 in %llu, attained in %llu of them, %.1f%% of the "
        "least traffic on average, %llu of more than one cycle\n",
        what, (unsigned long long)t->cases, (unsigned long long)t->states, (unsigned long long)t->positive,
        (unsigned long long)t->attained, 100 * t->bound / t->least, (unsigned long long)t->longer);
}

/* ---- every chain ---- */

struct shape {
    uint32_t n, w[BRUTE_MAX_LAYERS];
};

static const struct shape shapes[] = {
    {1, {1}},       {1, {3}},          {2, {1, 1}},       {2, {1, 3}},       {2, {3, 1}},
    {3, {1, 1, 1}}, {3, {2, 1, 1}},    {3, {1, 2, 1}},    {3, {1, 1, 2}},    {3, {1, 2, 3}},
    {3, {3, 2, 1}}, {4, {1, 1, 1, 1}}, {4, {2, 1, 1, 1}}, {4, {1, 2, 1, 1}}, {4, {1, 1, 1, 2}},
};

enum place { HOST, DEVICE, FREE, PLACES };

static struct brute_case case_of(const struct shape *s, uint32_t scale, uint32_t halves, uint32_t place)
{
    struct brute_case c = {.n_layers = s->n,
                           .n_micros = 1,
                           .n_devices = 1,
                           .stash = BRUTE_ANY,
                           .update_on_host = place != DEVICE,
                           .update_on_device = place != HOST};
    for (uint32_t l = 0; l < s->n; l++) {
        c.w[l] = s->w[l] * scale;
        c.k[l] = c.w[l] * halves / 2;
    }
    return c;
}

#define THREE_EVEN 5
#define FOUR_EVEN  11
#define N_SHAPES   (sizeof shapes / sizeof *shapes)

/* No stash: one to four layers, one to three micro-batches; K none, W / 2, W, 2W; updates on the host, on
 * the device and free; with and without decision. */
static void test_brute_state_never_below_bound(void **state)
{
    (void)state;
    static const struct {
        uint32_t scale, halves;
    } kinds[] = {{1, 0}, {2, 1}, {1, 2}, {1, 4}};
    struct tally t = {0};
    for (size_t s = 0; s < N_SHAPES; s++)
        for (uint32_t kind = 0; kind < 4; kind++)
            for (uint32_t place = 0; place < PLACES; place++)
                for (uint32_t m = 1; m <= 3; m++)
                    for (int decision = 0; decision < 2; decision++) {
                        bool many = kinds[kind].scale > 1 || decision || (m > 1 && s != FOUR_EVEN);
                        if (shapes[s].n == 4 && many)
                            continue;
                        struct brute_case c =
                            case_of(&shapes[s], kinds[kind].scale, kinds[kind].halves, place);
                        c.n_micros = m;
                        c.decision = decision;
                        check_capacities(&c, &t);
                    }
    print_tally("state", &t);
    assert_true(t.cases > 5000 && t.states > 5 * 1000 * 1000);
    assert_true(t.attained > t.cases / 3);
}

/* Layers with different proportions of K and W. */
static void test_brute_uneven_state_never_below_bound(void **state)
{
    (void)state;
    static const uint32_t ks[][3] = {{0, 2, 2}, {2, 0, 2}, {2, 2, 0}, {4, 0, 0},
                                     {0, 0, 4}, {1, 2, 3}, {0, 4, 0}};
    struct tally t = {0};
    for (size_t s = 0; s < N_SHAPES; s++)
        for (size_t k = 0; k < sizeof ks / sizeof *ks; k++)
            for (uint32_t place = DEVICE; place <= FREE; place++) {
                struct brute_case c = case_of(&shapes[s], 1, 0, place);
                for (uint32_t l = 0; l < c.n_layers; l++)
                    c.k[l] = ks[k][l % 3];
                if (c.n_layers < 4)
                    check_capacities(&c, &t);
            }
    print_tally("uneven state", &t);
    assert_true(t.cases > 500);
}

/* K of a quarter of W: then W stays first, and K travels. */
static void test_brute_small_k_never_below_bound(void **state)
{
    (void)state;
    struct tally t = {0};
    for (size_t s = 0; s < N_SHAPES; s++)
        for (uint32_t place = DEVICE; place <= FREE; place++) {
            struct brute_case c = case_of(&shapes[s], 4, 0, place);
            for (uint32_t l = 0; l < c.n_layers; l++)
                c.k[l] = shapes[s].w[l];
            if (c.n_layers < 3 || s == THREE_EVEN)
                check_capacities(&c, &t);
        }
    print_tally("small k", &t);
    assert_true(t.cases > 60);
}

/* The sum of all W and K alone says too little: three layers without K stay, and the fourth, with much of
 * it, has its update on the host. As if K were spread evenly, 8 would have to move. */
static void test_brute_keeps_layers_without_k(void **state)
{
    (void)state;
    struct brute_case c = case_of(&shapes[FOUR_EVEN], 1, 0, FREE);
    struct brute_result r;
    struct tally t = {0};
    c.k[3] = 8;
    c.capacity = 5;
    assert_true(check(&c, &t, &r));
    assert_int_equal(r.bytes, 2 * r.cycles);
    assert_int_equal(t.attained, 1);
}

static void check_stash(struct brute_case *c, struct tally *t)
{
    uint32_t least = of_one_micro_batch(c, c->n_layers), most = c->n_micros * least;
    c->stash = BRUTE_ANY;
    check_capacities(c, t);
    if (c->n_micros > 1 && !c->recompute)
        for (c->stash = least + 1; c->stash <= most + (c->n_micros - 1) * c->x[c->n_layers]; c->stash++)
            check_capacities(c, t);
}

/* Tries chains with stash: every amount of stash at the turn, and recomputation. */
static void test_brute_stash_never_below_bound(void **state)
{
    (void)state;
    static const struct {
        uint32_t x[BRUTE_MAX_LAYERS + 1];
    } stashes[] = {{{0, 1, 1, 1, 1}}, {{1, 1, 2, 1, 1}}, {{0, 2, 0, 2, 0}}, {{1, 3, 1, 1, 0}}};
    struct tally t = {0}, again = {0};
    for (size_t s = 0; s < N_SHAPES; s++)
        for (size_t x = 0; x < sizeof stashes / sizeof *stashes; x++)
            for (uint32_t halves = 0; halves <= 4; halves += 2)
                for (uint32_t place = 0; place < PLACES; place++)
                    for (uint32_t m = 1; m <= 3; m++) {
                        struct brute_case c = case_of(&shapes[s], 1, halves, place);
                        if (c.n_layers + m > 4)
                            continue;
                        c.n_micros = m;
                        for (uint32_t l = 0; l <= c.n_layers; l++)
                            c.x[l] = stashes[x].x[l];
                        check_stash(&c, &t);
                        c.recompute = true;
                        check_stash(&c, &again);
                    }
    print_tally("stash", &t);
    print_tally("stash or recomputation", &again);
    assert_true(t.cases > 5000 && again.cases > 2000);
}

/* Larger ones: four layers, or three micro-batches of two, or two of three. */
static void test_brute_long_stash_never_below_bound(void **state)
{
    (void)state;
    struct tally t = {0};
    for (uint32_t m = 1; m <= 3; m++)
        for (uint32_t halves = 0; halves <= 4; halves += 4) {
            struct brute_case c = case_of(&(struct shape){5 - m, {1, 1, 1, 1}}, 1, halves, FREE);
            c.n_micros = m;
            for (uint32_t l = 1; l <= c.n_layers; l++)
                c.x[l] = 1;
            check_capacities(&c, &t);
        }
    print_tally("long stash", &t);
    assert_true(t.cases > 40);
}

static void test_brute_two_devices_never_below_bound(void **state)
{
    (void)state;
    struct tally t = {0};
    for (size_t s = 0; s < N_SHAPES; s++)
        for (uint32_t halves = 0; halves <= 4; halves += 2)
            for (uint32_t place = 0; place < PLACES; place++)
                for (uint32_t m = 1; m <= 3; m++) {
                    struct brute_case c = case_of(&shapes[s], 1, halves, place);
                    c.n_devices = 2;
                    c.n_micros = m;
                    if (c.n_layers <= 2 || (c.n_layers == 3 && m == 1 && halves == 0))
                        check_capacities(&c, &t);
                }
    print_tally("two devices", &t);
    assert_true(t.cases > 100);
}

/* ---- cycles of several steps, and chains in parts ---- */

/* How a chain is cut: the last layers of the parts before the last one. */
enum { ONE_PART = 0, EACH_LAYER = 0x7, FIRST_TWO = 0x2 };

/* Tries a chain with cycles of `steps` steps, with every amount of memory. */
static void check_steps(const struct shape *s, uint32_t steps, uint32_t ends, struct tally *t)
{
    for (uint32_t halves = 0; halves <= 4; halves += 2)
        for (uint32_t place = 0; place < PLACES; place++)
            for (int decision = 0; decision < (s->n < 3 ? 2 : 1); decision++) {
                struct brute_case c = case_of(s, 1, halves, place);
                c.steps = steps;
                c.ends = ends & ((1u << (s->n - 1)) - 1);
                c.decision = decision;
                check_capacities(&c, t);
            }
}

static void test_brute_cycles_never_below_bound(void **state)
{
    (void)state;
    struct tally parts = {0}, chains = {0};
    for (size_t s = 0; s < N_SHAPES && shapes[s].n < 4; s++)
        for (uint32_t steps = 1; steps <= (shapes[s].n < 3 ? 4 : 2u + (s == THREE_EVEN)); steps++) {
            if (shapes[s].n > 1)
                check_steps(&shapes[s], steps, EACH_LAYER, &parts);
            if (shapes[s].n > 2)
                check_steps(&shapes[s], steps, FIRST_TWO, &parts);
            if (steps > 1 && (shapes[s].n < 3 || s == THREE_EVEN))
                check_steps(&shapes[s], steps, ONE_PART, &chains);
        }
    print_tally("cycles of parts", &parts);
    print_tally("cycles of chains", &chains);
    assert_true(parts.cases > 1000 && chains.cases > 200);
    assert_true(parts.attained > 200);
}

/* Outputs between parts, which may wait on the device or on the host; and several micro-batches. */
static void test_brute_cycles_with_stash_never_below_bound(void **state)
{
    (void)state;
    struct tally t = {0};
    for (size_t s = 0; s < N_SHAPES && shapes[s].n < 3; s++)
        for (uint32_t steps = 1; steps <= 3; steps++)
            for (uint32_t m = 1; m <= 2 && steps * m <= 3; m++)
                for (uint32_t place = 0; place < PLACES; place += 2) {
                    struct brute_case c = case_of(&shapes[s], 1, 4, place);
                    c.n_micros = m;
                    c.steps = steps;
                    c.ends = EACH_LAYER & ((1u << (c.n_layers - 1)) - 1);
                    for (uint32_t l = 1; l <= c.n_layers; l++)
                        c.x[l] = 1 + l % 2;
                    if (c.n_layers > 1)
                        check_stash(&c, &t);
                }
    print_tally("cycles with stash", &t);
    assert_true(t.cases > 200);
}

static void test_brute_cycles_on_two_devices_never_below_bound(void **state)
{
    (void)state;
    struct tally t = {0};
    for (uint32_t steps = 1; steps <= 3; steps++)
        for (uint32_t halves = 0; halves <= 4; halves += 4)
            for (uint32_t place = 0; place < PLACES; place++) {
                struct brute_case c = case_of(&(struct shape){2, {1, 1}}, 1, halves, place);
                c.n_devices = 2;
                c.steps = steps;
                c.ends = 1;
                check_capacities(&c, &t);
            }
    print_tally("cycles on two devices", &t);
    assert_true(t.cases > 20);
}

/* ---- where the bound is attained ---- */

/* Layers of one size w, no stash. */
static struct brute_case even_case(uint32_t n, uint32_t w, uint32_t halves, enum place place)
{
    struct shape s = {n, {w, w, w, w}};
    return case_of(&s, 1, halves, place);
}

static void assert_least(const struct brute_case *c, uint32_t bytes)
{
    struct tally t = {0};
    struct brute_result r;
    assert_true(check(c, &t, &r));
    if (r.bytes != bytes * r.cycles) {
        print_case(c, &r, bound_of(c));
        fail_msg("%u were expected", bytes);
    }
}

/* Updates on the host: at every capacity that is a whole number of layers, 3W - (C - w), and 2W from C = W +
 * w on. */
static void test_brute_attained_with_updates_on_host(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++)
        for (uint32_t w = 1; w <= 2; w++)
            for (uint32_t layers = 2; layers <= n + 2; layers++) {
                struct brute_case c = even_case(n, w, 4, HOST);
                c.capacity = layers * w;
                uint32_t kept = layers - 1 < n ? layers - 1 : n;
                assert_least(&c, (3 * n - kept) * w);
                assert_int_equal(bound_of(&c), (3 * n - kept) * w * PARTS);
            }
}

/* Adam, each update where it is best: the room of C - w is filled with d layers that stay, 3w each, and the
 * W of a others at the turn. One of these is needed where a layer does not stay: it takes w while it is
 * worked on. Where whole layers fill the room so, 3W - (C - w) is attained; else one w more is. */
static void test_brute_attained_with_adam(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++)
        for (uint32_t room = 1; room <= 3 * n; room++) {
            struct brute_case c = even_case(n, 1, 4, FREE);
            bool fills = room == 3 * n;
            for (uint32_t d = 0; d < n; d++)
                for (uint32_t a = 1; a + d <= n; a++)
                    fills |= a + 3 * d == room;
            c.capacity = room + 1;
            assert_int_equal(bound_of(&c), (3 * n - room) * PARTS);
            assert_least(&c, 3 * n - room + !fills);
        }
}

/* Nothing moves from C = W + K + w on, and something does below: the bound says the same. With a decision
 * all dW must be there together: from C = W + K + W on. */
static void test_brute_attained_when_everything_fits(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++)
        for (uint32_t halves = 0; halves <= 4; halves += 2)
            for (int decision = 0; decision < 2; decision++)
                for (int below = 0; below < 2; below++) {
                    struct brute_case c = even_case(n, 1, halves, FREE);
                    struct tally t = {0};
                    struct brute_result r;
                    c.decision = decision;
                    c.capacity = n + n * halves / 2 + (decision ? n : 1) - below;
                    assert_int_equal(bound_of(&c) > 0, below);
                    if (check(&c, &t, &r))
                        assert_int_equal(r.bytes > 0, below);
                }
}

/* Parts of one layer each, AdamW, updates on the device, and space for one layer in work. In each cycle, W
 * and K of every layer come in once and go out once, however many steps the cycle has. The bound lacks the
 * state of one layer, because it does not see that the layer in work needs memory. */
static void test_brute_parts_cross_once_in_a_cycle(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 3; n++)
        for (uint32_t steps = 1; steps <= 3; steps++) {
            struct brute_case c = even_case(n, 1, 4, DEVICE);
            c.steps = steps;
            c.ends = EACH_LAYER & ((1u << (n - 1)) - 1);
            c.capacity = 4; /* W, K and dW of a layer */
            /* With one or two steps, updates on the host would be cheaper. */
            assert_int_equal(bound_of(&c), 2 * steps * (n - 1) * PARTS);
            assert_false(brute_one_cycle_below(&c, 6 * n));
            assert_true(brute_one_cycle_below(&c, 6 * n + 1));
            c.capacity = 3 * n + 1; /* everything fits */
            assert_int_equal(bound_of(&c), 0);
            c.capacity--;
            assert_true(bound_of(&c) > 0);
        }
}

/* ---- the solver ---- */

/* Shows that the search loses nothing when it leaves out choices that cannot be better: with `eager` the
 * result is the same. */
static void test_brute_shortcuts_lose_nothing(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++)
        for (uint32_t halves = 0; halves <= 4; halves += 2)
            for (uint32_t x = 0; x <= 1; x++) {
                struct brute_case c = case_of(&shapes[s], 1, halves, FREE);
                struct brute_result lazy, eager;
                if (c.n_layers > 2)
                    continue;
                c.n_micros = 2;
                c.x[1] = c.x[2] = x;
                for (c.capacity = 2; c.capacity < 14; c.capacity++) {
                    c.eager = false;
                    assert_true(brute_solve(&c, &lazy));
                    c.eager = true;
                    assert_true(brute_solve(&c, &eager));
                    assert_int_equal(lazy.bytes * eager.cycles, eager.bytes * lazy.cycles);
                    assert_true(lazy.n_states <= eager.n_states);
                }
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_brute_state_never_below_bound),
        cmocka_unit_test(test_brute_uneven_state_never_below_bound),
        cmocka_unit_test(test_brute_small_k_never_below_bound),
        cmocka_unit_test(test_brute_keeps_layers_without_k),
        cmocka_unit_test(test_brute_stash_never_below_bound),
        cmocka_unit_test(test_brute_long_stash_never_below_bound),
        cmocka_unit_test(test_brute_two_devices_never_below_bound),
        cmocka_unit_test(test_brute_cycles_never_below_bound),
        cmocka_unit_test(test_brute_cycles_with_stash_never_below_bound),
        cmocka_unit_test(test_brute_cycles_on_two_devices_never_below_bound),
        cmocka_unit_test(test_brute_attained_with_updates_on_host),
        cmocka_unit_test(test_brute_attained_with_adam),
        cmocka_unit_test(test_brute_attained_when_everything_fits),
        cmocka_unit_test(test_brute_parts_cross_once_in_a_cycle),
        cmocka_unit_test(test_brute_shortcuts_lose_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
