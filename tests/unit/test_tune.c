/* Tests the choice between two variants of a computation (tune.h): trials alternate between the variants, the
 * faster variant is used afterwards, the default is used when the trials show no clear difference, and full
 * tables still work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <pthread.h>

#include <cmocka.h>

#include "kernels/cpu/tune.h"

static struct tune_table *new_table(void)
{
    struct tune_table *w = calloc(1, sizeof *w);
    assert_non_null(w);
    return w;
}

/* Runs trials of a key until no more are wanted, and returns their number. Each pair of trials compares the
 * default, which takes 1000, with the other variant, which takes `slower` in the first `losses` pairs and
 * `faster` in the rest. The simulated machine is up to three times slower from one pair to the next. */
static uint32_t try_all(struct tune_table *w, uint64_t key, uint32_t losses, uint64_t slower, uint64_t faster)
{
    struct tune_slot *slot;
    for (uint32_t i = 0;; i++) {
        uint64_t slow = 1 + i / 2 % 3;
        uint32_t way = tune_choose(w, key, &slot);
        if (!slot)
            return i;
        assert_true(i < 2 * TUNE_PAIRS);
        assert_int_equal(way, i % 2);
        tune_note(slot, way, slow * (way == 0 ? 1000 : i / 2 < losses ? slower : faster));
    }
}

static void expect_settled(struct tune_table *w, uint64_t key, uint32_t way)
{
    for (int i = 0; i < 3; i++) {
        struct tune_slot *slot;
        assert_int_equal(tune_choose(w, key, &slot), way);
        assert_null(slot);
    }
}

/* No more tries than tell. */
#define LOST (2 * (TUNE_PAIRS - TUNE_WINS + 1))

static void test_faster_way_is_taken(void **state)
{
    struct tune_table *w = new_table();
    (void)state;
    assert_int_equal(try_all(w, 7, 0, 0, 900), 2 * TUNE_WINS);
    expect_settled(w, 7, 1);
    assert_int_equal(try_all(w, 8, TUNE_PAIRS, 1100, 0), LOST);
    expect_settled(w, 8, 0);
    expect_settled(w, 7, 1); /* each key by itself */
    free(w);
}

static void test_default_is_taken_where_times_do_not_tell(void **state)
{
    struct tune_table *w = new_table();
    (void)state;
    assert_int_equal(try_all(w, 1, TUNE_PAIRS, 960, 0), LOST); /* faster, but not clearly */
    expect_settled(w, 1, 0);
    assert_int_equal(try_all(w, 2, TUNE_PAIRS - TUNE_WINS + 1, 1000, 100), LOST); /* not often enough */
    expect_settled(w, 2, 0);
    assert_int_equal(try_all(w, 3, TUNE_PAIRS - TUNE_WINS, 1000, 940), 2 * TUNE_PAIRS);
    expect_settled(w, 3, 1);
    free(w);
}

/* Tries whose times never came in, as when their threads are still at it. */
static void test_missing_times_mean_the_default(void **state)
{
    struct tune_table *w = new_table();
    struct tune_slot *slot;
    (void)state;
    for (uint32_t i = 0; i < 2 * TUNE_PAIRS; i++) {
        tune_choose(w, 5, &slot);
        assert_non_null(slot);
    }
    expect_settled(w, 5, 0);
    for (uint32_t i = 0; i < 2 * TUNE_PAIRS; i++)
        if (tune_choose(w, 6, &slot) == 1)
            tune_note(slot, 1, 10); /* and none of the default to hold it against */
    expect_settled(w, 6, 0);
    free(w);
}

static void test_full_table_takes_the_default(void **state)
{
    struct tune_table *w = new_table();
    uint32_t known = 0, unknown = 0;
    (void)state;
    for (uint64_t key = 1; key <= 4 * TUNE_SLOTS; key++) {
        struct tune_slot *slot;
        uint32_t way = tune_choose(w, key, &slot);
        assert_int_equal(way, 0);
        known += slot != NULL;
        unknown += slot == NULL;
    }
    assert_true(known <= TUNE_SLOTS && known > TUNE_SLOTS * 3 / 4);
    assert_int_equal(known + unknown, 4 * TUNE_SLOTS);
    free(w);
}

#define CALLS 2000

static void *call_often(void *arg)
{
    struct tune_table *w = arg;
    uintptr_t tries = 0;
    for (uint64_t i = 0; i < CALLS; i++) {
        struct tune_slot *slot;
        uint32_t way = tune_choose(w, 1 + i % 10, &slot);
        if (slot)
            tune_note(slot, way, way == 1 ? 90 : 1000);
        tries += slot != NULL;
    }
    return (void *)tries;
}

/* However many threads there are, there are no more tries than one would make. */
static void test_threads_share_the_tries(void **state)
{
    struct tune_table *w = new_table();
    pthread_t threads[4];
    uintptr_t tries = 0;
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, w), 0);
    for (int i = 0; i < 4; i++) {
        void *made;
        pthread_join(threads[i], &made);
        tries += (uintptr_t)made;
    }
    assert_true(tries >= 10 * LOST && tries <= 10 * 2 * TUNE_PAIRS);
    for (uint64_t key = 1; key <= 10; key++) {
        struct tune_slot *slot;
        tune_choose(w, key, &slot);
        assert_null(slot);
    }
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faster_way_is_taken),
        cmocka_unit_test(test_default_is_taken_where_times_do_not_tell),
        cmocka_unit_test(test_missing_times_mean_the_default),
        cmocka_unit_test(test_full_table_takes_the_default),
        cmocka_unit_test(test_threads_share_the_tries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
