/* Ways: tries that take turns, the faster way afterwards, the default where they do not tell, and tables that are full. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <pthread.h>

#include <cmocka.h>

#include "kernels/cpu/ways.h"

static struct ways *new_table(void)
{
    struct ways *w = calloc(1, sizeof *w);
    assert_non_null(w);
    return w;
}

/* All tries of a key: of the pairs the other way takes `faster` in the first `wins`, and 1000 in the others; the default always
 * takes 1000, on a machine that is up to three times as slow from pair to pair. */
static void try_all(struct ways *w, uint64_t key, uint32_t wins, uint64_t faster)
{
    for (uint32_t i = 0; i < 2 * WAYS_PAIRS; i++) {
        struct ways_slot *slot;
        uint64_t slow = 1 + i / 2 % 3;
        uint32_t way = ways_choose(w, key, &slot);
        assert_non_null(slot);
        assert_int_equal(way, i % 2);
        ways_note(slot, way, slow * (way == 1 && i / 2 < wins ? faster : 1000));
    }
}

static void expect_settled(struct ways *w, uint64_t key, uint32_t way)
{
    for (int i = 0; i < 3; i++) {
        struct ways_slot *slot;
        assert_int_equal(ways_choose(w, key, &slot), way);
        assert_null(slot);
    }
}

static void test_faster_way_is_taken(void **state)
{
    struct ways *w = new_table();
    (void)state;
    try_all(w, 7, WAYS_PAIRS, 900);
    expect_settled(w, 7, 1);
    try_all(w, 8, WAYS_PAIRS, 1100);
    expect_settled(w, 8, 0);
    expect_settled(w, 7, 1); /* each key by itself */
    free(w);
}

static void test_default_is_taken_where_times_do_not_tell(void **state)
{
    struct ways *w = new_table();
    (void)state;
    try_all(w, 1, WAYS_PAIRS, 960); /* not clearly faster */
    expect_settled(w, 1, 0);
    try_all(w, 2, WAYS_WINS - 1, 100); /* not often enough */
    expect_settled(w, 2, 0);
    try_all(w, 3, WAYS_WINS, 940);
    expect_settled(w, 3, 1);
    free(w);
}

/* Tries whose times never came in, as when their threads are still at it. */
static void test_missing_times_mean_the_default(void **state)
{
    struct ways *w = new_table();
    struct ways_slot *slot;
    (void)state;
    for (uint32_t i = 0; i < 2 * WAYS_PAIRS; i++) {
        uint32_t way = ways_choose(w, 5, &slot);
        if (way == 1)
            ways_note(slot, way, 10);
    }
    expect_settled(w, 5, 0);
    free(w);
}

static void test_full_table_takes_the_default(void **state)
{
    struct ways *w = new_table();
    uint32_t known = 0, unknown = 0;
    (void)state;
    for (uint64_t key = 1; key <= 4 * WAYS_SLOTS; key++) {
        struct ways_slot *slot;
        uint32_t way = ways_choose(w, key, &slot);
        assert_int_equal(way, 0);
        known += slot != NULL;
        unknown += slot == NULL;
    }
    assert_true(known <= WAYS_SLOTS && known > WAYS_SLOTS * 3 / 4);
    assert_int_equal(known + unknown, 4 * WAYS_SLOTS);
    free(w);
}

#define CALLS 2000

static void *call_often(void *arg)
{
    struct ways *w = arg;
    uintptr_t tries = 0;
    for (uint64_t i = 0; i < CALLS; i++) {
        struct ways_slot *slot;
        uint32_t way = ways_choose(w, 1 + i % 10, &slot);
        if (slot)
            ways_note(slot, way, way == 1 ? 90 : 1000);
        tries += slot != NULL;
    }
    return (void *)tries;
}

/* However many threads there are, tries are as many as one would make. A try of the other way may be noted before any of the
 * default: that one cannot win. */
static void test_threads_share_the_tries(void **state)
{
    struct ways *w = new_table();
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
    assert_int_equal(tries, 10 * 2 * WAYS_PAIRS);
    for (uint64_t key = 1; key <= 10; key++) {
        struct ways_slot *slot;
        ways_choose(w, key, &slot);
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
