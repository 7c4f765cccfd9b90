/* Tests the choice of sizes. With functions that return scores of the test's choice: which pairs are
 * considered, which are planned, and which is chosen. With real plans of even tables: several devices give
 * nearly as many times the speed of one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>

#include "base/rng.h"
#include "scheduler/policy/sizes.h"
#include "tests/unit/even_table.h"

#define CASES      300
#define BATCH      240 /* most rows of a random batch */
#define LAYERS     5
#define PLENTY     (1ull << 40)
#define REAL_BATCH 64
#define SECOND     1000000000ull /* far more than any estimate, so that no pair is hopeless */
#define NOTHING    UINT64_MAX

/* What the functions of a test say about one pair. */
struct told {
    struct plan_sizes sizes;
    int code;
    struct score score;
    uint64_t least; /* if it does not fit */
};

/* The context of the functions that a test gives to sizes_choose. */
struct fake {
    struct table *table;
    struct machine machine;
    const struct told *told; /* n_told pairs; all others are not planned */
    uint32_t n_told;
    uint64_t work; /* of each plan */
    int model_code;
    /* What was asked, in this order. */
    struct plan_sizes models[BATCH * 8], plans[BATCH * 8], kept[BATCH * 8];
    uint64_t most_work[BATCH * 8];
    uint32_t n_models, n_plans, n_kept;
};

static int fake_model(void *ctx, struct plan_sizes sizes, struct outline_model **ret)
{
    struct fake *f = ctx;
    f->models[f->n_models++] = sizes;
    if (f->model_code < 0)
        return f->model_code;
    *ret = outline_model_table(f->table, &f->machine, &sizes.rows, 1);
    return 0;
}

static int fake_plan(void *ctx, struct plan_sizes sizes, uint64_t most_work, struct plan_report *ret,
                     uint64_t *ret_least, struct err *err)
{
    struct fake *f = ctx;
    (void)err;
    f->most_work[f->n_plans] = most_work;
    f->plans[f->n_plans++] = sizes;
    for (uint32_t i = 0; i < f->n_told; i++) {
        const struct told *t = &f->told[i];
        if (t->sizes.rows != sizes.rows || t->sizes.replicas != sizes.replicas)
            continue;
        ret->score = t->score;
        ret->work = f->work;
        if (t->code < 0 && t->least != NOTHING)
            *ret_least = t->least;
        return t->code;
    }
    return -ENOSPC;
}

static void fake_keep(void *ctx)
{
    struct fake *f = ctx;
    assert_true(f->n_plans > 0);
    f->kept[f->n_kept++] = f->plans[f->n_plans - 1];
}

static void fake_init(struct fake *f, uint32_t n_devices)
{
    *f = (struct fake){.table = even_table(LAYERS, MIB, 2 * MIB, 4 * KIB, 8 * KIB)};
    assert_non_null(f->table);
    machine_init_cuda(&f->machine);
    f->machine.n_devices = n_devices;
    f->machine.host_bytes = PLENTY;
    for (uint32_t d = 0; d < n_devices; d++)
        f->machine.capacity_bytes[d] = PLENTY;
}

static void fake_finish(struct fake *f)
{
    table_destroy(f->table);
}

/* Forgets what was asked, but not what is told. */
static void fake_forget(struct fake *f)
{
    f->n_models = f->n_plans = f->n_kept = 0;
}

static struct sizes_request request_of(struct fake *f, uint32_t batch)
{
    return (struct sizes_request){.batch = batch,
                                  .n_layers = LAYERS,
                                  .machine = &f->machine,
                                  .policy = POLICY_auto,
                                  .objective = OBJECTIVE_BALANCED,
                                  .ctx = f,
                                  .model = fake_model,
                                  .plan = fake_plan,
                                  .keep = fake_keep};
}

static bool has_pair(const struct plan_sizes *list, uint32_t n, uint32_t rows, uint32_t replicas)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++)
        found += list[i].rows == rows && list[i].replicas == replicas;
    assert_true(found <= 1);
    return found == 1;
}

static void assert_pair(struct plan_sizes is, uint32_t rows, uint32_t replicas)
{
    assert_int_equal(is.rows, rows);
    assert_int_equal(is.replicas, replicas);
}

/* ---- which pairs are considered ---- */

/* Returns whether the header's rule allows a pair. */
static bool naive_allows(const struct sizes_request *q, uint32_t rows, uint32_t replicas)
{
    uint32_t n = q->machine->n_devices, largest = 1;
    for (uint32_t k = 1; k <= n && k <= q->batch; k++)
        if (q->batch % (k * (q->asked.rows > 0 ? q->asked.rows : 1)) == 0)
            largest = k;
    bool useful = q->asked.replicas > 0 ? replicas == q->asked.replicas
                                        : replicas <= n && (n % replicas == 0 || replicas == largest);
    bool allowed = q->asked.rows > 0 ? rows == q->asked.rows : q->allowed == NULL;
    for (uint32_t i = 0; i < q->n_allowed && q->asked.rows == 0; i++)
        allowed |= q->allowed[i] == rows;
    return q->batch % (rows * replicas) == 0 && useful && allowed;
}

static uint32_t random_divisor(struct rng *rng, uint32_t of)
{
    uint32_t divisors[SIZES_MAX_DIVISORS], n = sizes_divisors(of, divisors);
    return divisors[rng_below(rng, n)];
}

static void test_considers_the_pairs_that_divide_the_batch(void **state)
{
    (void)state;
    struct fake *f = malloc(sizeof *f);
    uint32_t asked = 0, odd = 0, limited = 0;
    for (uint32_t seed = 1; seed <= CASES; seed++) {
        struct rng rng = {.seed = seed};
        struct sizes_choice choice;
        uint32_t few[8], n_few = 0, pairs = 0;
        fake_init(f, 1 + rng_below(&rng, 8));
        struct sizes_request q = request_of(f, 1 + rng_below(&rng, BATCH));
        if (rng_below(&rng, 3) == 0)
            q.asked.replicas = random_divisor(&rng, q.batch);
        if (rng_below(&rng, 3) == 0)
            q.asked.rows = random_divisor(&rng, q.batch / (q.asked.replicas > 0 ? q.asked.replicas : 1));
        for (uint32_t rows = 1 + rng_below(&rng, 3); rows <= 8; rows += 1 + rng_below(&rng, 3))
            few[n_few++] = rows;
        if (rng_below(&rng, 3) == 0) {
            q.allowed = few;
            q.n_allowed = n_few;
        }
        int r = sizes_choose(&q, &choice, NULL);
        for (uint32_t replicas = 1; replicas <= q.batch; replicas++)
            for (uint32_t rows = 1; rows <= q.batch; rows++) {
                bool want = naive_allows(&q, rows, replicas);
                pairs += want;
                if (has_pair(f->models, f->n_models, rows, replicas) != want)
                    fail_msg("seed %u: batch %u, %u devices: %u rows and %u replicas", seed, q.batch,
                             q.machine->n_devices, rows, replicas);
            }
        assert_int_equal(f->n_models, pairs);
        assert_int_equal(choice.n_considered, pairs);
        assert_int_equal(r, -ENOSPC); /* nothing is told to fit */
        asked += q.asked.rows > 0 || q.asked.replicas > 0;
        limited += q.allowed != NULL && q.asked.rows == 0;
        odd += q.asked.replicas == 0 && q.batch % q.machine->n_devices != 0;
        fake_finish(f);
    }
    assert_true(asked > CASES / 4 && limited > CASES / 8 && odd > CASES / 8);
    free(f);
}

/* With 4 devices and a batch of 6 rows, 3 replicas do not divide the devices, but are the most that the batch
 * allows. With a batch of 8 rows, 3 replicas are not considered. */
static void test_most_replicas_that_the_batch_allows(void **state)
{
    (void)state;
    struct fake *f = malloc(sizeof *f);
    struct sizes_choice choice;
    fake_init(f, 4);
    struct sizes_request q = request_of(f, 6);
    assert_int_equal(sizes_choose(&q, &choice, NULL), -ENOSPC);
    assert_int_equal(f->n_models, 4 + 2 + 2);
    assert_true(has_pair(f->models, f->n_models, 2, 3));
    fake_forget(f);
    q = request_of(f, 8);
    assert_int_equal(sizes_choose(&q, &choice, NULL), -ENOSPC);
    assert_int_equal(f->n_models, 4 + 3 + 2);
    assert_true(has_pair(f->models, f->n_models, 2, 4));
    /* 5 devices and a batch of 12 allow 4 replicas, but with micro-batches of 4 rows only 3. */
    f->machine.n_devices = 5;
    fake_forget(f);
    q = request_of(f, 12);
    q.asked.rows = 4;
    assert_int_equal(sizes_choose(&q, &choice, NULL), -ENOSPC);
    assert_int_equal(f->n_models, 2);
    assert_true(has_pair(f->models, f->n_models, 4, 3));
    fake_finish(f);
    free(f);
}

/* ---- which pair is chosen ---- */

/* Asks for a choice among a few pairs of a batch of 4 rows, on 2 devices, and repeats it: the same question
 * has the same answer. Returns the result of sizes_choose. */
static int choose_among(struct fake *f, const struct told *told, uint32_t n, enum plan_objective objective,
                        struct sizes_choice *ret)
{
    struct sizes_choice again;
    f->told = told;
    f->n_told = n;
    struct sizes_request q = request_of(f, 4);
    q.objective = objective;
    fake_forget(f);
    int first = sizes_choose(&q, &again, NULL);
    uint32_t n_plans = f->n_plans;
    fake_forget(f);
    int r = sizes_choose(&q, ret, NULL);
    assert_int_equal(r, first);
    assert_int_equal(f->n_plans, n_plans);
    assert_int_equal(ret->n_shown, again.n_shown);
    assert_int_equal(ret->fits, r == 0);
    assert_pair(again.sizes, ret->sizes.rows, ret->sizes.replicas);
    for (uint32_t i = 0; i < ret->n_shown; i++) {
        assert_pair(again.shown[i].sizes, ret->shown[i].sizes.rows, ret->shown[i].sizes.replicas);
        assert_int_equal(again.shown[i].planned, ret->shown[i].planned);
    }
    assert_true(r < 0 || f->n_kept > 0);
    if (r == 0)
        assert_pair(f->kept[f->n_kept - 1], ret->sizes.rows, ret->sizes.replicas);
    else
        assert_int_equal(f->n_kept, 0);
    return r;
}

/* Every pair in turn is the best one, so the order of planning does not decide. */
static void test_fastest_pair_is_chosen(void **state)
{
    (void)state;
    static const struct plan_sizes pairs[] = {{1, 1}, {2, 1}, {4, 1}, {1, 2}};
    struct fake *f = malloc(sizeof *f);
    fake_init(f, 2);
    for (uint32_t best = 0; best < 4; best++) {
        struct told told[4];
        struct sizes_choice choice;
        for (uint32_t i = 0; i < 4; i++)
            told[i] =
                (struct told){pairs[i], 0, {(i == best ? 100 : 103 + i) * SECOND, 1000 * (i == best)}, 0};
        assert_int_equal(choose_among(f, told, 4, OBJECTIVE_BALANCED, &choice), 0);
        assert_pair(choice.sizes, pairs[best].rows, pairs[best].replicas);
        assert_int_equal(choose_among(f, told, 4, OBJECTIVE_TIME, &choice), 0);
        assert_pair(choice.sizes, pairs[best].rows, pairs[best].replicas);
    }
    fake_finish(f);
    free(f);
}

/* Among pairs that are at most 2 percent slower than the fastest, the fewest bytes decide, and then the
 * larger micro-batches, and then fewer replicas. */
static void test_bytes_decide_between_close_pairs(void **state)
{
    (void)state;
    static const struct plan_sizes pairs[] = {{1, 1}, {2, 1}, {4, 1}, {2, 2}};
    struct fake *f = malloc(sizeof *f);
    struct sizes_choice choice;
    fake_init(f, 2);
    for (uint32_t best = 0; best < 4; best++) {
        struct told told[4];
        for (uint32_t i = 0; i < 4; i++)
            told[i] =
                (struct told){pairs[i], 0, {i == best ? 102 * SECOND : 100 * SECOND, 9 - (i == best)}, 0};
        assert_int_equal(choose_among(f, told, 4, OBJECTIVE_BALANCED, &choice), 0);
        assert_pair(choice.sizes, pairs[best].rows, pairs[best].replicas);
        for (uint32_t i = 0; i < 4; i++)
            told[i].score.bytes = 9;
        assert_int_equal(choose_among(f, told, 4, OBJECTIVE_BALANCED, &choice), 0);
        assert_pair(choice.sizes, 4, 1);
        for (uint32_t i = 0; i < 4; i++)
            told[i].score = (struct score){(i == best ? 103 : 100) * SECOND, 9 - (i == best)};
        assert_int_equal(choose_among(f, told, 4, OBJECTIVE_BALANCED, &choice), 0);
        assert_true(choice.sizes.rows != pairs[best].rows || choice.sizes.replicas != pairs[best].replicas);
    }
    const struct told replicas[] = {{{2, 1}, 0, {100 * SECOND, 9}, 0}, {{2, 2}, 0, {100 * SECOND, 9}, 0}};
    assert_int_equal(choose_among(f, replicas, 2, OBJECTIVE_BALANCED, &choice), 0);
    assert_pair(choice.sizes, 2, 1);
    fake_finish(f);
    free(f);
}

/* Several pairs that are each a little slower than the one planned before must not add up: the chosen pair is
 * close to the fastest of all. */
static void test_close_pairs_do_not_add_up(void **state)
{
    (void)state;
    static const struct plan_sizes pairs[] = {{1, 1}, {2, 1}, {4, 1}, {2, 2}};
    struct fake *f = malloc(sizeof *f);
    struct sizes_choice choice;
    fake_init(f, 2);
    /* Whatever the order of planning, one of these has 1000 s and the others are up to 5.7 percent slower. */
    for (uint32_t first = 0; first < 4; first++) {
        struct told told[4];
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t rank = (i + 4 - first) % 4;
            told[i] = (struct told){pairs[i], 0, {(1000 + 19 * rank) * SECOND, 9 - rank}, 0};
        }
        assert_int_equal(choose_among(f, told, 4, OBJECTIVE_BALANCED, &choice), 0);
        for (uint32_t i = 0; i < 4; i++)
            if (choice.sizes.rows == pairs[i].rows && choice.sizes.replicas == pairs[i].replicas)
                assert_true(told[i].score.ns <= 1020 * SECOND);
    }
    fake_finish(f);
    free(f);
}

static void test_objective_bytes_ignores_the_time(void **state)
{
    (void)state;
    const struct told told[] = {{{1, 1}, 0, {100 * SECOND, 9}, 0},
                                {{2, 1}, 0, {900 * SECOND, 8}, 0},
                                {{1, 2}, 0, {100 * SECOND, 10}, 0}};
    struct fake *f = malloc(sizeof *f);
    struct sizes_choice choice;
    fake_init(f, 2);
    assert_int_equal(choose_among(f, told, 3, OBJECTIVE_BYTES, &choice), 0);
    assert_pair(choice.sizes, 2, 1);
    fake_finish(f);
    free(f);
}

/* A pair that fits is chosen, however many others do not. */
static void test_only_pair_that_fits_is_chosen(void **state)
{
    (void)state;
    static const struct plan_sizes pairs[] = {{1, 1}, {2, 1}, {4, 1}, {1, 2}, {2, 2}};
    struct fake *f = malloc(sizeof *f);
    fake_init(f, 2);
    for (uint32_t i = 0; i < 5; i++) {
        const struct told told = {pairs[i], 0, {100 * SECOND, 9}, 0};
        struct sizes_choice choice;
        bool shown = false;
        assert_int_equal(choose_among(f, &told, 1, OBJECTIVE_BALANCED, &choice), 0);
        assert_pair(choice.sizes, pairs[i].rows, pairs[i].replicas);
        assert_int_equal(f->n_plans, 5);
        for (uint32_t k = 0; k < choice.n_shown; k++)
            shown |= choice.shown[k].fits && choice.shown[k].sizes.rows == pairs[i].rows &&
                     choice.shown[k].sizes.replicas == pairs[i].replicas;
        assert_true(shown);
    }
    fake_finish(f);
    free(f);
}

/* The chosen pair is shown even if its estimate is one of the worst. */
static void test_chosen_pair_is_shown(void **state)
{
    (void)state;
    struct fake *f = malloc(sizeof *f);
    fake_init(f, 4);
    struct sizes_request q = request_of(f, 60);
    struct sizes_choice choice;
    assert_int_equal(sizes_choose(&q, &choice, NULL), -ENOSPC);
    assert_int_equal(choice.n_shown, SIZES_SHOWN);
    assert_true(choice.n_considered > 2 * SIZES_SHOWN);
    const struct plan_sizes last = f->plans[f->n_plans - 1];
    const struct told told = {last, 0, {100 * SECOND, 9}, 0};
    f->told = &told;
    f->n_told = 1;
    assert_int_equal(sizes_choose(&q, &choice, NULL), 0);
    assert_pair(choice.sizes, last.rows, last.replicas);
    assert_int_equal(choice.n_shown, SIZES_SHOWN);
    assert_pair(choice.shown[SIZES_SHOWN - 1].sizes, last.rows, last.replicas);
    assert_true(choice.shown[SIZES_SHOWN - 1].fits);
    for (uint32_t i = 1; i + 1 < SIZES_SHOWN; i++)
        assert_true(choice.shown[i - 1].estimate_ns <= choice.shown[i].estimate_ns);
    fake_finish(f);
    free(f);
}

/* ---- what fits nowhere ---- */

static void test_closest_pair_when_none_fits(void **state)
{
    (void)state;
    static const struct plan_sizes pairs[] = {{1, 1}, {2, 1}, {4, 1}, {1, 2}, {2, 2}};
    struct fake *f = malloc(sizeof *f);
    struct sizes_choice choice;
    fake_init(f, 2);
    for (uint32_t best = 0; best < 5; best++) {
        struct told told[5];
        for (uint32_t i = 0; i < 5; i++)
            told[i] = (struct told){pairs[i], -ENOSPC, {0}, i == best ? 700 : i % 2 ? 701 : NOTHING};
        assert_int_equal(choose_among(f, told, 5, OBJECTIVE_BALANCED, &choice), -ENOSPC);
        assert_pair(choice.sizes, pairs[best].rows, pairs[best].replicas);
        assert_false(choice.fits);
        for (uint32_t i = 0; i < choice.n_shown; i++)
            assert_true(choice.shown[i].planned && !choice.shown[i].fits);
    }
    fake_finish(f);
    free(f);
}

static void test_too_many_tasks(void **state)
{
    (void)state;
    struct fake *f = malloc(sizeof *f);
    struct sizes_choice choice;
    fake_init(f, 2);
    struct sizes_request q = request_of(f, 12);
    q.n_layers = GRAPH_MAX_TASKS / 2 + 1;
    assert_int_equal(sizes_choose(&q, &choice, NULL), -ENOSPC);
    assert_pair(choice.sizes, 12, 1);
    q.asked.replicas = 2;
    assert_int_equal(sizes_choose(&q, &choice, NULL), -ENOSPC);
    assert_pair(choice.sizes, 6, 2);
    q.asked.rows = 3;
    assert_int_equal(sizes_choose(&q, &choice, NULL), -ENOSPC);
    assert_pair(choice.sizes, 3, 2);
    assert_int_equal(choice.n_considered, 0);
    assert_false(choice.fits);
    /* The pair that comes closest has an allowed size. */
    static const uint32_t few[] = {1, 2, 4, 8};
    q.asked = (struct plan_sizes){0};
    q.allowed = few;
    q.n_allowed = 4;
    assert_int_equal(sizes_choose(&q, &choice, NULL), -ENOSPC);
    assert_pair(choice.sizes, 4, 1);
    q.allowed = NULL;
    q.n_allowed = 0;
    assert_int_equal(f->n_models + f->n_plans, 0);
    /* One layer less is just allowed, with the whole batch in one micro-batch and no other size. */
    q.asked = (struct plan_sizes){0};
    q.n_layers = GRAPH_MAX_TASKS / 2;
    assert_int_equal(sizes_choose(&q, &choice, NULL), -ENOSPC);
    assert_int_equal(choice.n_considered, 1);
    assert_pair(choice.sizes, 12, 1);
    fake_finish(f);
    free(f);
}

/* ---- errors and limits ---- */

static void test_errors_end_the_search(void **state)
{
    (void)state;
    const struct told told[] = {
        {{4, 1}, -EINVAL, {0}, 0}, {{2, 1}, -EINVAL, {0}, 0}, {{1, 1}, -EINVAL, {0}, 0}};
    struct fake *f = malloc(sizeof *f);
    struct sizes_choice choice;
    fake_init(f, 1);
    f->told = told;
    f->n_told = 3;
    struct sizes_request q = request_of(f, 4);
    assert_int_equal(sizes_choose(&q, &choice, NULL), -EINVAL);
    assert_int_equal(f->n_plans, 1);
    static const int ends[] = {-ENOMEM, -ECANCELED};
    for (int i = 0; i < 2; i++) {
        fake_forget(f);
        f->model_code = ends[i];
        assert_int_equal(sizes_choose(&q, &choice, NULL), ends[i]);
        assert_int_equal(f->n_models, 1);
        assert_int_equal(f->n_plans, 0);
    }
    fake_finish(f);
    free(f);
}

/* When the plans of two pairs have built all that may be built, further pairs get the least work. */
static void test_much_work_leaves_little_for_later_pairs(void **state)
{
    (void)state;
    struct fake *f = malloc(sizeof *f);
    struct sizes_choice choice;
    const struct told told[] = {{{1, 1}, -ENOSPC, {0}, NOTHING},
                                {{2, 1}, -ENOSPC, {0}, NOTHING},
                                {{4, 1}, -ENOSPC, {0}, NOTHING},
                                {{8, 1}, -ENOSPC, {0}, NOTHING},
                                {{16, 1}, -ENOSPC, {0}, NOTHING}};
    fake_init(f, 1);
    f->told = told;
    f->n_told = 5;
    f->work = PLAN_WORK;
    struct sizes_request q = request_of(f, 16);
    assert_int_equal(sizes_choose(&q, &choice, NULL), -ENOSPC);
    assert_int_equal(f->n_plans, 5);
    assert_int_equal(f->most_work[0], 0);
    assert_int_equal(f->most_work[2], 0);
    assert_int_equal(f->most_work[3], 1);
    assert_int_equal(f->most_work[4], 1);
    fake_finish(f);
    free(f);
}

/* A plan that the caller has ends the search if no estimate comes near it. */
static void test_pairs_that_cannot_win_are_not_planned(void **state)
{
    (void)state;
    const struct score unbeatable = {1, 0};
    const struct told told = {{4, 1}, 0, {100 * SECOND, 9}, 0};
    struct fake *f = malloc(sizeof *f);
    struct sizes_choice choice;
    fake_init(f, 1);
    f->told = &told;
    f->n_told = 1;
    struct sizes_request q = request_of(f, 4);
    q.to_beat = &unbeatable;
    for (int objective = 0; objective < OBJECTIVE_COUNT; objective++) {
        fake_forget(f);
        q.objective = objective;
        assert_int_equal(sizes_choose(&q, &choice, NULL), -ENOSPC);
        assert_int_equal(f->n_plans, 0);
    }
    fake_finish(f);
    free(f);
}

/* Products of few rows count as slower: with 32 rows nearly twice as slow as with 512 rows or more. */
static void test_few_rows_count_as_slower(void **state)
{
    (void)state;
    const struct told told[] = {{{1, 1}, 0, {100 * SECOND, 9}, 0}, {{2, 1}, 0, {110 * SECOND, 9}, 0}};
    struct fake *f = malloc(sizeof *f);
    struct sizes_choice choice;
    fake_init(f, 1);
    f->told = told;
    f->n_told = 2;
    struct sizes_request q = request_of(f, 2);
    assert_int_equal(sizes_choose(&q, &choice, NULL), 0);
    assert_pair(choice.sizes, 1, 1);
    q.product_rows = 32;
    assert_int_equal(sizes_choose(&q, &choice, NULL), 0);
    assert_pair(choice.sizes, 2, 1);
    for (uint32_t i = 0; i < choice.n_shown; i++)
        assert_int_equal(choice.shown[i].score.ns,
                         choice.shown[i].sizes.rows == 1 ? 200 * SECOND : 165 * SECOND);
    q.product_rows = 512;
    assert_int_equal(sizes_choose(&q, &choice, NULL), 0);
    assert_pair(choice.sizes, 1, 1);
    fake_finish(f);
    free(f);
}

static void test_divisors(void **state)
{
    (void)state;
    uint32_t divisors[SIZES_MAX_DIVISORS];
    for (uint32_t of = 1; of <= 1000; of++) {
        uint32_t n = sizes_divisors(of, divisors), at = 0;
        for (uint32_t k = 1; k <= of; k++)
            if (of % k == 0)
                assert_int_equal(divisors[at++], k);
        assert_int_equal(at, n);
    }
    assert_int_equal(sizes_divisors(UINT32_MAX, divisors), 32); /* 3 * 5 * 17 * 257 * 65537 */
    assert_int_equal(divisors[31], UINT32_MAX);
}

/* ---- real plans ---- */

/* The context of the functions that plan a table. */
struct real {
    struct table *table;
    struct machine machine;
    struct score made, best;
};

static int real_model(void *ctx, struct plan_sizes sizes, struct outline_model **ret)
{
    const struct real *c = ctx;
    *ret = outline_model_table(c->table, &c->machine, &sizes.rows, 1);
    return 0;
}

static int real_plan(void *ctx, struct plan_sizes sizes, uint64_t most_work, struct plan_report *ret,
                     uint64_t *ret_least, struct err *err)
{
    struct real *c = ctx;
    uint32_t rows[LAYERS * 4];
    struct graph *g;
    struct plan *p = NULL;
    for (uint32_t l = 0; l < c->table->n_layers; l++)
        rows[l] = sizes.rows;
    const struct graph_sizes of = {REAL_BATCH, sizes.replicas, rows};
    assert_int_equal(graph_build_sizes(c->table, &of, true, &g, err), 0);
    const struct plan_request r = {.train = g,
                                   .machine = &c->machine,
                                   .policy = POLICY_auto,
                                   .table = c->table,
                                   .objective = OBJECTIVE_BALANCED,
                                   .most_work = most_work,
                                   .report = ret};
    int e = plan_make(&r, &p, ret_least, err);
    c->made = ret->score;
    plan_destroy(p);
    graph_destroy(g);
    return e;
}

static void keep_real(void *ctx)
{
    struct real *c = ctx;
    c->best = c->made;
}

/* Returns the time of a step of the best plan on machines with plenty of memory. */
static uint64_t best_ns(uint32_t layers, uint32_t n_devices)
{
    static const uint32_t measured[] = {1, 2};
    struct real c = {.table = even_table(layers, MIB, 2 * MIB, 4 * KIB, 8 * KIB)};
    struct sizes_choice choice;
    struct err err = {0};
    machine_init_cuda(&c.machine);
    c.machine.n_devices = n_devices;
    c.machine.host_bytes = PLENTY;
    for (uint32_t d = 0; d < n_devices; d++)
        c.machine.capacity_bytes[d] = PLENTY;
    const struct sizes_request q = {.batch = REAL_BATCH,
                                    .n_layers = layers,
                                    .allowed = measured,
                                    .n_allowed = 2,
                                    .machine = &c.machine,
                                    .policy = POLICY_auto,
                                    .objective = OBJECTIVE_BALANCED,
                                    .ctx = &c,
                                    .model = real_model,
                                    .plan = real_plan,
                                    .keep = keep_real};
    if (sizes_choose(&q, &choice, &err) < 0)
        fail_msg("%u layers on %u devices: %s", layers, n_devices, err.msg);
    assert_true(choice.fits);
    assert_true(c.best.ns > 0);
    table_destroy(c.table);
    return c.best.ns;
}

/* Nothing but computing takes time here, so N devices are nearly N times as fast, and not faster than that.
 * */
static void test_devices_share_the_computing(void **state)
{
    (void)state;
    static const uint32_t chains[] = {3, 9, 16};
    for (int i = 0; i < 3; i++) {
        uint64_t one = best_ns(chains[i], 1);
        assert_true(one >= 3ull * 1000000 * REAL_BATCH * chains[i]);
        for (uint32_t n = 2; n <= 8; n *= 2) {
            double speedup = (double)one / (double)best_ns(chains[i], n);
            print_message("# %u layers, %u devices: %.3f times as fast\n", chains[i], n, speedup);
            if (speedup < 0.9 * n || speedup > 1.02 * n)
                fail_msg("%u layers on %u devices are %.3f times as fast", chains[i], n, speedup);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_considers_the_pairs_that_divide_the_batch),
        cmocka_unit_test(test_most_replicas_that_the_batch_allows),
        cmocka_unit_test(test_fastest_pair_is_chosen),
        cmocka_unit_test(test_bytes_decide_between_close_pairs),
        cmocka_unit_test(test_close_pairs_do_not_add_up),
        cmocka_unit_test(test_objective_bytes_ignores_the_time),
        cmocka_unit_test(test_only_pair_that_fits_is_chosen),
        cmocka_unit_test(test_chosen_pair_is_shown),
        cmocka_unit_test(test_closest_pair_when_none_fits),
        cmocka_unit_test(test_too_many_tasks),
        cmocka_unit_test(test_errors_end_the_search),
        cmocka_unit_test(test_much_work_leaves_little_for_later_pairs),
        cmocka_unit_test(test_pairs_that_cannot_win_are_not_planned),
        cmocka_unit_test(test_few_rows_count_as_slower),
        cmocka_unit_test(test_divisors),
        cmocka_unit_test(test_devices_share_the_computing),
    };
    return cmocka_run_group_tests_name("sizes", tests, NULL, NULL);
}
