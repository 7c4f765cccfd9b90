/* Tests scopes of bounded work: what they count, how they end, and that they release all memory.
 * AddressSanitizer finds leaks. The merge sort is tested here too, because it works inside such scopes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/rng.h"
#include "base/sort.h"
#include "base/strbuf.h"
#include "base/vec.h"

/* ---- counting ---- */

static int allocate_and_free(void *arg)
{
    char *a = xmalloc(1000), *b = xcalloc(10, 100);
    (void)arg;
    xfree(a);
    a = xmalloc(500);
    xfree(b);
    xfree(a);
    return 7;
}

static void test_peak_is_the_most_at_one_time(void **state)
{
    struct bounded b = {0};
    (void)state;
    assert_int_equal(bounded_run(&b, allocate_and_free, NULL), 7);
    assert_false(b.ended_early);
    assert_in_range(b.peak_bytes, 2000, 2000 + 2 * 16 + 16384); /* and the table of blocks */
    assert_int_equal(b.held_bytes, 0);
}

static int keep_some(void *arg)
{
    char **ret = arg;
    char *gone = xmalloc(100);
    *ret = xmalloc(3000);
    memset(*ret, 1, 3000);
    xfree(gone);
    return 0;
}

static void test_memory_outlives_a_scope_that_ends_by_itself(void **state)
{
    struct bounded b = {0};
    char *kept = NULL;
    (void)state;
    assert_int_equal(bounded_run(&b, keep_some, &kept), 0);
    assert_in_range(b.held_bytes, 3000, 3100);
    assert_int_equal(kept[2999], 1);
    free(kept); /* like any other memory */
}

static int grow_vectors(void *arg)
{
    VEC(uint64_t) v = {0};
    struct strbuf text = {0};
    struct arena *a = arena_create();
    (void)arg;
    for (uint64_t i = 0; i < 100000; i++) {
        vec_push(&v, i);
        if (i % 1000 == 0)
            arena_alloc(a, 5000);
        strbuf_addf(&text, "%llu,", (unsigned long long)i);
    }
    arena_destroy(a);
    strbuf_finish(&text);
    vec_free(&v);
    return 0;
}

static void test_vectors_arenas_and_texts_are_charged(void **state)
{
    struct bounded b = {0};
    (void)state;
    assert_int_equal(bounded_run(&b, grow_vectors, NULL), 0);
    assert_true(b.peak_bytes > 800000 + 500000 + 588890);
    assert_int_equal(b.held_bytes, 0);
}

/* Allocates many blocks and frees them in a random order. The table must find each of them. */
static int shuffle_blocks(void *arg)
{
    enum { N = 4000 };
    static void *blocks[N];
    struct rng r = {.seed = 5};
    (void)arg;
    memset(blocks, 0, sizeof blocks);
    for (int i = 0; i < 100000; i++) {
        uint32_t k = rng_below(&r, N);
        if (blocks[k] != NULL && rng_below(&r, 2)) {
            xfree(blocks[k]);
            blocks[k] = NULL;
        } else {
            blocks[k] = xrealloc(blocks[k], rng_below(&r, 300));
        }
    }
    for (int i = 0; i < N; i++)
        xfree(blocks[i]);
    return 0;
}

static void test_every_block_is_found_again(void **state)
{
    struct bounded b = {0};
    (void)state;
    assert_int_equal(bounded_run(&b, shuffle_blocks, NULL), 0);
    assert_int_equal(b.held_bytes, 0);
}

/* ---- the limit ---- */

static void test_a_limit_is_never_passed_and_leaves_nothing(void **state)
{
    struct bounded free_one = {0};
    (void)state;
    assert_int_equal(bounded_run(&free_one, grow_vectors, NULL), 0);
    for (uint64_t limit = 1; limit < free_one.peak_bytes; limit = limit * 3 / 2 + 1) {
        struct bounded b = {.limit_bytes = limit};
        assert_int_equal(bounded_run(&b, grow_vectors, NULL), -ENOMEM);
        assert_true(b.ended_early);
        assert_true(b.peak_bytes <= limit);
    }
    struct bounded enough = {.limit_bytes = free_one.peak_bytes};
    assert_int_equal(bounded_run(&enough, grow_vectors, NULL), 0);
    assert_int_equal(enough.peak_bytes, free_one.peak_bytes);
}

/* An allocation that the system refuses ends the scope, just as the limit does. The allocators of the
 * sanitizers return NULL only with allocator_may_return_null=1, which tests/meson.build sets. */
static int allocate_too_much(void *arg)
{
    (void)arg;
    xmalloc(1000);
    xcalloc(SIZE_MAX / 16, 8);
    return 0;
}

static void test_no_memory_in_the_system_ends_the_scope(void **state)
{
    struct bounded b = {0};
    (void)state;
    assert_int_equal(bounded_run(&b, allocate_too_much, NULL), -ENOMEM);
    assert_true(b.ended_early);
}

/* A block of the caller's is not freed with the scope, and freeing it inside is no matter of the scope. */
static int free_from_outside(void *arg)
{
    void **outside = arg;
    xfree(outside[0]);
    xmalloc(100);
    xmalloc((size_t)1 << 20);
    return 0;
}

static void test_memory_of_the_caller_stays(void **state)
{
    struct bounded b = {.limit_bytes = 100000};
    char *outside[2] = {xmalloc(10), xmalloc(10)};
    (void)state;
    assert_int_equal(bounded_run(&b, free_from_outside, outside), -ENOMEM);
    strcpy(outside[1], "here");
    assert_string_equal(outside[1], "here");
    xfree(outside[1]);
}

/* ---- stopping ---- */

static bool stop_after(void *ctx)
{
    uint64_t *left = ctx;
    return (*left)-- == 0;
}

static int poll_much(void *arg)
{
    VEC(int) v = {0};
    (void)arg;
    for (int i = 0; i < 10000; i++) {
        vec_push(&v, i);
        bounded_poll();
        bounded_poll_steps(2);
    }
    vec_free(&v);
    return 0;
}

static void test_a_stop_is_seen_at_any_poll(void **state)
{
    struct bounded never = {.poll_every = 10};
    uint64_t endless = UINT64_MAX;
    (void)state;
    never.stop = stop_after;
    never.ctx = &endless;
    assert_int_equal(bounded_run(&never, poll_much, NULL), 0);
    assert_in_range(never.asked, 2400, 3000); /* three steps a turn; what passes over a question is lost */
    for (uint64_t k = 0; k < never.asked; k += 1 + k / 8) {
        uint64_t left = k;
        struct bounded b = {.poll_every = 10, .stop = stop_after, .ctx = &left};
        assert_int_equal(bounded_run(&b, poll_much, NULL), -ECANCELED);
        assert_true(b.ended_early);
        assert_int_equal(b.asked, k + 1);
    }
}

static void test_polls_outside_of_a_scope_do_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 100000; i++)
        bounded_poll();
    bounded_poll_steps(SIZE_MAX);
    assert_int_equal(poll_much(NULL), 0);
}

/* ---- sorting ---- */

struct pair {
    uint32_t key, at;
    char more[5];
};

static int compare_pairs(const void *pa, const void *pb)
{
    const struct pair *a = pa, *b = pb;
    return a->key < b->key ? -1 : a->key > b->key;
}

static void check_sort(uint32_t n, uint32_t keys, bool nearly, uint32_t seed)
{
    struct rng r = {.seed = seed};
    struct pair *p = xcalloc(n + 1, sizeof *p);
    uint64_t sum = 0, sorted = 0;
    for (uint32_t i = 0; i < n; i++) {
        p[i] = (struct pair){nearly && rng_below(&r, 20) ? i : rng_below(&r, keys), i, "abcd"};
        sum += (uint64_t)p[i].key * (i + 1);
    }
    sort_array(p, n, sizeof *p, compare_pairs);
    for (uint32_t i = 0; i < n; i++) {
        sorted += (uint64_t)p[i].key * (p[i].at + 1); /* the same pairs */
        assert_string_equal(p[i].more, "abcd");
        if (i > 0 && (p[i - 1].key > p[i].key || (p[i - 1].key == p[i].key && p[i - 1].at >= p[i].at)))
            fail_msg("n %u, keys %u, seed %u: not in order at %u", n, keys, seed, i);
    }
    assert_int_equal(sum, sorted);
    xfree(p);
}

static void test_sort_is_stable_for_any_input(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 70; n++)
        check_sort(n, 1 + n / 2, n % 2, n);
    for (uint32_t seed = 1; seed < 60; seed++)
        check_sort(1 + seed * 97, seed % 3 == 0 ? 1 : seed * 40, seed % 4 == 0, seed);
    sort_array(NULL, 0, 8, compare_pairs);
}

static int sort_much(void *arg)
{
    (void)arg;
    for (uint32_t seed = 1; seed < 20; seed++)
        check_sort(5000, 1000, false, seed);
    return 0;
}

static void test_a_sort_can_be_stopped(void **state)
{
    (void)state;
    for (uint64_t k = 0; k < 60; k++) {
        uint64_t left = k;
        struct bounded b = {.stop = stop_after, .ctx = &left};
        assert_int_equal(bounded_run(&b, sort_much, NULL), -ECANCELED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peak_is_the_most_at_one_time),
        cmocka_unit_test(test_memory_outlives_a_scope_that_ends_by_itself),
        cmocka_unit_test(test_vectors_arenas_and_texts_are_charged),
        cmocka_unit_test(test_every_block_is_found_again),
        cmocka_unit_test(test_a_limit_is_never_passed_and_leaves_nothing),
        cmocka_unit_test(test_no_memory_in_the_system_ends_the_scope),
        cmocka_unit_test(test_memory_of_the_caller_stays),
        cmocka_unit_test(test_a_stop_is_seen_at_any_poll),
        cmocka_unit_test(test_polls_outside_of_a_scope_do_nothing),
        cmocka_unit_test(test_sort_is_stable_for_any_input),
        cmocka_unit_test(test_a_sort_can_be_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
