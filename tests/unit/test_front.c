/* Tests how scores are compared and how the front of a search chooses a plan. A naive front, which keeps
 * every score and every comparison, says what the entries must be. The memory of a plan is counted by a
 * scope of bounded work (base/bounded.h), so a test knows how many plans are alive. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/rng.h"
#include "scheduler/policy/front.h"

#define CASES      2000
#define MAX_SCORES 40

/* Makes a plan that is empty but for its policy, which holds the number of the plan. */
static struct plan *numbered_plan(uint32_t number)
{
    struct arena *a = arena_create();
    struct plan *p = arena_alloc(a, sizeof *p);
    p->arena = a;
    p->n_layers = number;
    return p;
}

static void add(struct front *f, uint64_t ns, uint64_t bytes, uint32_t number)
{
    const struct score s = {ns, bytes};
    front_add(f, &s, numbered_plan(number));
}

/* ---- scores ---- */

static bool better(enum plan_objective objective, uint64_t ns, uint64_t bytes, uint64_t than_ns,
                   uint64_t than_bytes)
{
    const struct score a = {ns, bytes}, than = {than_ns, than_bytes};
    return score_is_better(objective, &a, &than);
}

static void test_time_decides_before_bytes(void **state)
{
    (void)state;
    assert_true(better(OBJECTIVE_TIME, 999999, 900, 1000000, 1));
    assert_false(better(OBJECTIVE_TIME, 1000001, 1, 1000000, 900));
    assert_true(better(OBJECTIVE_TIME, 1000000, 899, 1000000, 900));
    assert_false(better(OBJECTIVE_TIME, 1000000, 901, 1000000, 900));
}

static void test_bytes_decide_before_time(void **state)
{
    (void)state;
    assert_true(better(OBJECTIVE_BYTES, 9000000, 899, 1000000, 900));
    assert_false(better(OBJECTIVE_BYTES, 1000000, 901, 9000000, 900));
    assert_true(better(OBJECTIVE_BYTES, 999999, 900, 1000000, 900));
    assert_false(better(OBJECTIVE_BYTES, 1000001, 900, 1000000, 900));
}

/* Balanced, times that differ by at most 1 / SCORE_SAME_TIME are the same, in both directions. */
static void test_balanced_ignores_small_differences_of_time(void **state)
{
    (void)state;
    const uint64_t ns = 1000000, same = ns / SCORE_SAME_TIME;
    assert_int_equal(same, 5000);
    assert_true(better(OBJECTIVE_BALANCED, ns + same, 899, ns, 900));
    assert_false(better(OBJECTIVE_BALANCED, ns + same + 1, 899, ns, 900));
    assert_false(better(OBJECTIVE_BALANCED, ns - same, 901, ns, 900));
    assert_true(better(OBJECTIVE_BALANCED, ns - same - 1, 901, ns, 900));
    assert_true(better(OBJECTIVE_BALANCED, ns - 1, 900, ns, 900));
    assert_false(better(OBJECTIVE_BALANCED, ns + 1, 900, ns, 900));
}

static void test_no_score_is_better_than_itself(void **state)
{
    (void)state;
    for (int objective = 0; objective < OBJECTIVE_COUNT; objective++) {
        assert_false(better(objective, 1000000, 900, 1000000, 900));
        assert_false(better(objective, 0, 0, 0, 0));
        assert_true(better(objective, 0, 0, UINT64_MAX, UINT64_MAX));
        assert_false(better(objective, UINT64_MAX, UINT64_MAX, 0, 0));
    }
}

static void test_close_is_two_percent(void **state)
{
    (void)state;
    assert_true(score_is_close(1000000, 1000000));
    assert_true(score_is_close(1020000, 1000000));
    assert_false(score_is_close(1020001, 1000000));
    assert_true(score_is_close(1, 1000000));
    assert_true(score_is_close(0, 0));
    assert_false(score_is_close(1, 0));
    assert_true(score_is_close(UINT64_MAX, UINT64_MAX));
    assert_false(score_is_close(UINT64_MAX, UINT64_MAX / 2));
}

/* ---- the naive front ---- */

/* Returns whether score `i` belongs to the front of the first `n` scores: no other score is at least as good
 * in both, and of equal scores the first counts. */
static bool is_undominated(const struct score *all, uint32_t n, uint32_t i)
{
    for (uint32_t k = 0; k < n; k++) {
        bool equal = all[k].ns == all[i].ns && all[k].bytes == all[i].bytes;
        if (k != i && all[k].ns <= all[i].ns && all[k].bytes <= all[i].bytes && (!equal || k < i))
            return false;
    }
    return true;
}

static int compare_times(const void *pa, const void *pb)
{
    const struct score *a = pa, *b = pb;
    return a->ns < b->ns ? -1 : a->ns > b->ns;
}

static uint32_t naive_front(const struct score *all, uint32_t n, struct score *ret)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++)
        if (is_undominated(all, n, i))
            ret[found++] = all[i];
    qsort(ret, found, sizeof *ret, compare_times);
    return found;
}

/* Returns the score that the objective chooses from a front without gaps, as policy.h and score.h define it.
 * */
static struct score naive_choice(enum plan_objective objective, const struct score *front, uint32_t n)
{
    struct score best = front[0];
    for (uint32_t i = 1; i < n; i++) {
        bool may = objective == OBJECTIVE_BYTES ||
                   (objective == OBJECTIVE_BALANCED && front[i].ns <= front[0].ns + front[0].ns / 50);
        if (may && front[i].bytes < best.bytes)
            best = front[i];
    }
    return best;
}

static uint32_t random_scores(struct rng *rng, struct score *ret)
{
    static const uint32_t spreads[] = {4, 12, 60, 1000};
    uint32_t n = 1 + rng_below(rng, MAX_SCORES), spread = spreads[rng_below(rng, 4)];
    bool opposed = rng_below(rng, 2);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t more = rng_below(rng, spread), bytes = rng_below(rng, spread);
        /* Opposed numbers make long fronts. */
        ret[i] = (struct score){1000 + more, opposed ? spread - more + bytes / 8 : bytes};
    }
    return n;
}

static void assert_scores(const struct front *f, const struct score *want, uint32_t n, uint32_t seed)
{
    if (f->n != n)
        fail_msg("seed %u: %u entries instead of %u", seed, f->n, n);
    for (uint32_t i = 0; i < n; i++)
        if (f->at[i].score.ns != want[i].ns || f->at[i].score.bytes != want[i].bytes)
            fail_msg("seed %u: entry %u is wrong", seed, i);
}

/* After every addition the entries are the undominated scores in order of time. As long as they are few. */
static void test_front_keeps_what_is_not_dominated(void **state)
{
    (void)state;
    uint32_t compared = 0, most = 0;
    for (uint32_t seed = 1; seed <= CASES; seed++) {
        struct rng rng = {.seed = seed};
        struct score all[MAX_SCORES], want[MAX_SCORES];
        struct front f = {.objective = rng_below(&rng, OBJECTIVE_COUNT)};
        uint32_t n = random_scores(&rng, all);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t n_want = naive_front(all, i + 1, want);
            if (n_want >= FRONT_MAX)
                break;
            add(&f, all[i].ns, all[i].bytes, i);
            assert_scores(&f, want, n_want, seed);
            most = n_want > most ? n_want : most;
            compared++;
        }
        front_finish(&f);
        assert_int_equal(f.n, 0);
    }
    assert_true(compared > 10 * CASES);
    assert_int_equal(most, FRONT_MAX - 1);
}

/* ---- the choice ---- */

/* Checks the entry that is chosen: it has a plan, the plan was made for this score, and the objective could
 * not choose better among the scores that have a plan. */
static void check_chosen(const struct front *f, const struct score *all, uint32_t seed)
{
    const struct front_entry *e = front_chosen(f);
    if (e->plan == NULL)
        fail_msg("seed %u: the chosen entry has no plan", seed);
    const struct score *made = &all[e->plan->n_layers];
    assert_int_equal(made->ns, e->score.ns);
    assert_int_equal(made->bytes, e->score.bytes);
    if (f->objective == OBJECTIVE_BALANCED && e->score.ns > f->at[0].score.ns + f->at[0].score.ns / 50)
        fail_msg("seed %u: the chosen plan is more than 2 percent slower than the fastest", seed);
    for (uint32_t i = 0; i < f->n; i++)
        if (f->objective == OBJECTIVE_BALANCED && f->at[i].plan != NULL &&
            score_is_close(f->at[i].score.ns, f->at[0].score.ns) && f->at[i].score.bytes < e->score.bytes)
            fail_msg("seed %u: a plan as good in time moves fewer bytes", seed);
}

static void test_chosen_entry_has_a_good_plan(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= CASES; seed++) {
        struct rng rng = {.seed = seed};
        struct score all[MAX_SCORES], front[MAX_SCORES];
        struct front f = {.objective = rng_below(&rng, OBJECTIVE_COUNT)};
        uint32_t n = random_scores(&rng, all);
        /* With the fastest score first, every objective can be compared with the definition. Otherwise a plan
         * may already be free when the fastest plan becomes faster. */
        bool sorted = rng_below(&rng, 2);
        for (uint32_t i = 1; sorted && i < n; i++)
            if (all[i].ns < all[0].ns) {
                struct score first = all[0];
                all[0] = all[i];
                all[i] = first;
            }
        for (uint32_t i = 0; i < n; i++) {
            uint32_t n_front = naive_front(all, i + 1, front);
            if (n_front >= FRONT_MAX)
                break;
            add(&f, all[i].ns, all[i].bytes, i);
            check_chosen(&f, all, seed);
            struct score want = naive_choice(f.objective, front, n_front), is = front_chosen(&f)->score;
            if ((sorted || f.objective != OBJECTIVE_BALANCED) && (is.ns != want.ns || is.bytes != want.bytes))
                fail_msg("seed %u: not the entry that the objective chooses", seed);
        }
        front_finish(&f);
    }
}

/* Adds the plans of the example in front.h. */
static void add_example(struct front *f)
{
    add(f, 10000000000, 8000000000, 0);
    add(f, 10100000000, 3000000000, 1);
    add(f, 10300000000, 5000000000, 2);
    add(f, 14000000000, 1000000000, 3);
}

/* A full front makes room for a new plan, but never by giving up the plan that the objective chooses. */
static void test_full_front_keeps_the_chosen_plan(void **state)
{
    (void)state;
    struct front f = {.objective = OBJECTIVE_BALANCED};
    for (uint32_t i = 0; i < FRONT_MAX - 1; i++)
        add(&f, 1000 + i, 1000 - i, i);
    assert_int_equal(front_chosen(&f)->score.bytes, 1000 - (FRONT_MAX - 2));
    add(&f, 2000, 1, FRONT_MAX - 1);
    add(&f, 3000, 0, FRONT_MAX);
    assert_int_equal(f.n, FRONT_MAX);
    assert_int_equal(front_chosen(&f)->score.bytes, 1000 - (FRONT_MAX - 2));
    front_finish(&f);
}

static void test_objectives_choose_as_in_the_example(void **state)
{
    (void)state;
    static const uint32_t chosen[OBJECTIVE_COUNT] = {
        [OBJECTIVE_TIME] = 0, [OBJECTIVE_BALANCED] = 1, [OBJECTIVE_BYTES] = 3};
    for (int objective = 0; objective < OBJECTIVE_COUNT; objective++) {
        struct front f = {.objective = objective};
        add_example(&f);
        assert_int_equal(f.n, 3);
        assert_int_equal(f.at[0].score.ns, 10000000000);
        assert_int_equal(f.at[1].score.ns, 10100000000);
        assert_int_equal(f.at[2].score.ns, 14000000000);
        assert_int_equal(front_chosen(&f)->plan->n_layers, chosen[objective]);
        front_finish(&f);
    }
}

/* A faster plan can make the chosen one too slow. The fastest is then chosen. */
static void test_faster_plan_ends_a_choice(void **state)
{
    (void)state;
    struct front f = {.objective = OBJECTIVE_BALANCED};
    add(&f, 1000, 900, 0);
    add(&f, 1020, 100, 1);
    assert_int_equal(front_chosen(&f)->plan->n_layers, 1);
    add(&f, 990, 950, 2);
    assert_int_equal(front_chosen(&f)->plan->n_layers, 0);
    add(&f, 970, 990, 3);
    assert_int_equal(front_chosen(&f)->plan->n_layers, 3);
    assert_int_equal(f.n, 4);
    front_finish(&f);
}

static void test_equal_score_does_not_replace_a_plan(void **state)
{
    (void)state;
    for (int objective = 0; objective < OBJECTIVE_COUNT; objective++) {
        struct front f = {.objective = objective};
        add(&f, 1000, 900, 0);
        add(&f, 1000, 900, 1);
        assert_int_equal(f.n, 1);
        assert_int_equal(front_chosen(&f)->plan->n_layers, 0);
        add(&f, 1000, 899, 2);
        assert_int_equal(f.n, 1);
        assert_int_equal(front_chosen(&f)->plan->n_layers, 2);
        front_finish(&f);
    }
}

/* ---- who owns the plans ---- */

/* The additions that a scope of bounded work makes. */
struct additions {
    const struct score *all;
    uint32_t n;
    struct front *front;
    bool finish;
};

static int make_additions(void *arg)
{
    const struct additions *a = arg;
    for (uint32_t i = 0; i < a->n; i++)
        add(a->front, a->all[i].ns, a->all[i].bytes, i);
    if (a->finish)
        front_finish(a->front);
    return 0;
}

static uint32_t plans_of(const struct front *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n; i++)
        n += f->at[i].plan != NULL;
    return n;
}

static struct bounded count_bytes(const struct score *all, uint32_t n, struct front *f, bool finish)
{
    struct additions a = {all, n, f, finish};
    struct bounded b = {0};
    assert_int_equal(bounded_run(&b, make_additions, &a), 0);
    return b;
}

/* Counts the bytes of one plan: bounded.held_bytes is the plan, and bounded.peak_bytes also has what the
 * scope itself needs. */
static struct bounded count_one_plan(void)
{
    const struct score one = {1, 1};
    struct front f = {0};
    struct bounded b = count_bytes(&one, 1, &f, false);
    front_finish(&f);
    assert_true(b.held_bytes > 0);
    return b;
}

/* At most two plans are alive after an addition, and exactly those that the entries show. During an addition
 * there is the new plan as well. */
static void test_front_holds_two_plans(void **state)
{
    (void)state;
    const struct bounded one = count_one_plan();
    const uint64_t bytes = one.held_bytes;
    uint32_t by_plans[3] = {0};
    for (uint32_t seed = 1; seed <= CASES; seed++) {
        struct rng rng = {.seed = seed};
        struct score all[MAX_SCORES];
        struct front f = {.objective = seed % OBJECTIVE_COUNT};
        uint32_t n = random_scores(&rng, all), part = 1 + rng_below(&rng, n);
        struct bounded b = count_bytes(all, part, &f, false);
        uint32_t alive = plans_of(&f);
        if (alive > 2 || alive == 0 || (f.objective != OBJECTIVE_BALANCED && alive != 1))
            fail_msg("seed %u: %u plans are kept", seed, alive);
        if (b.held_bytes != alive * bytes)
            fail_msg("seed %u: plans are lost", seed);
        if (b.peak_bytes > one.peak_bytes + 2 * bytes)
            fail_msg("seed %u: more than two plans and a new one are alive", seed);
        by_plans[alive]++;
        front_finish(&f);
        f.n = 0;
        assert_int_equal(count_bytes(all, n, &f, true).held_bytes, 0);
    }
    assert_true(by_plans[1] > CASES / 4 && by_plans[2] > CASES / 10);
}

static int take_and_finish(void *arg)
{
    struct front f = {.objective = OBJECTIVE_BALANCED};
    struct plan **ret = arg;
    add_example(&f);
    *ret = front_take(&f);
    front_finish(&f);
    return (int)f.n;
}

/* The plan that was taken outlives the front, and nothing else does. */
static void test_taken_plan_belongs_to_the_caller(void **state)
{
    (void)state;
    struct plan *p = NULL;
    struct bounded b = {0};
    assert_int_equal(bounded_run(&b, take_and_finish, &p), 0);
    assert_int_equal(b.held_bytes, count_one_plan().held_bytes);
    assert_non_null(p);
    assert_int_equal(p->n_layers, 1);
    plan_destroy(p);
}

static void test_empty_front_has_no_plan(void **state)
{
    (void)state;
    struct front f = {0};
    assert_null(front_take(&f));
    front_finish(&f);
    assert_int_equal(f.n, 0);
}

/* ---- more scores than a front keeps ---- */

/* Score `i` of a long front: each takes 1 ns more than the one before and moves 1 byte less. */
static struct score long_score(uint64_t first_ns, uint32_t i)
{
    return (struct score){first_ns + i, 1000 - i};
}

/* In whatever order the scores come, both ends of the front stay, and so do the order and the limit. */
static void test_full_front_keeps_both_ends(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 300; seed++) {
        struct rng rng = {.seed = seed};
        struct front f = {.objective = seed % OBJECTIVE_COUNT};
        uint32_t n = FRONT_MAX + 1 + rng_below(&rng, 30), fastest = UINT32_MAX, slowest = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t k = (uint32_t)rng_permute(seed, 0, i, n);
            struct score s = long_score(1000, k);
            add(&f, s.ns, s.bytes, k);
            fastest = k < fastest ? k : fastest;
            slowest = k > slowest ? k : slowest;
            assert_int_equal(f.n, i < FRONT_MAX ? i + 1 : FRONT_MAX);
            assert_int_equal(f.at[0].score.ns, 1000 + fastest);
            assert_int_equal(f.at[f.n - 1].score.ns, 1000 + slowest);
            for (uint32_t e = 1; e < f.n; e++)
                assert_true(f.at[e - 1].score.ns < f.at[e].score.ns &&
                            f.at[e - 1].score.bytes > f.at[e].score.bytes);
            assert_non_null(front_chosen(&f)->plan);
            if (f.objective != OBJECTIVE_BALANCED)
                assert_int_equal(front_chosen(&f)->plan->n_layers,
                                 f.objective == OBJECTIVE_TIME ? fastest : slowest);
        }
        front_finish(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_decides_before_bytes),
        cmocka_unit_test(test_bytes_decide_before_time),
        cmocka_unit_test(test_balanced_ignores_small_differences_of_time),
        cmocka_unit_test(test_no_score_is_better_than_itself),
        cmocka_unit_test(test_close_is_two_percent),
        cmocka_unit_test(test_front_keeps_what_is_not_dominated),
        cmocka_unit_test(test_chosen_entry_has_a_good_plan),
        cmocka_unit_test(test_full_front_keeps_the_chosen_plan),
        cmocka_unit_test(test_objectives_choose_as_in_the_example),
        cmocka_unit_test(test_faster_plan_ends_a_choice),
        cmocka_unit_test(test_equal_score_does_not_replace_a_plan),
        cmocka_unit_test(test_front_holds_two_plans),
        cmocka_unit_test(test_taken_plan_belongs_to_the_caller),
        cmocka_unit_test(test_empty_front_has_no_plan),
        cmocka_unit_test(test_full_front_keeps_both_ends),
    };
    return cmocka_run_group_tests_name("front", tests, NULL, NULL);
}
