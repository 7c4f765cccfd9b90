/* Tests of the arena (arena.h), the growing arrays (vec.h) and the arithmetic that detects overflow
 * (checked.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/rng.h"
#include "base/vec.h"

static void test_arena_allocations_are_zeroed_aligned_and_apart(void **state)
{
    enum { N = 5000 };
    static struct {
        unsigned char *at;
        size_t n;
    } got[N];
    struct arena *a = arena_create();
    struct rng r = {.seed = 1};

    (void)state;
    for (int i = 0; i < N; i++) {
        /* Mostly small, now and then larger than any chunk. */
        got[i].n = rng_below(&r, 100) == 0 ? rng_below(&r, 300000) : rng_below(&r, 200);
        got[i].at = arena_alloc(a, got[i].n);
        assert_int_equal((uintptr_t)got[i].at % 16, 0);
        for (size_t k = 0; k < got[i].n; k++)
            if (got[i].at[k] != 0)
                fail_msg("byte %zu of allocation %d is not zero", k, i);
        memset(got[i].at, i & 0xFF, got[i].n);
    }
    for (int i = 0; i < N; i++) /* nobody wrote into anybody else */
        for (size_t k = 0; k < got[i].n; k++)
            if (got[i].at[k] != (i & 0xFF))
                fail_msg("allocation %d was overwritten", i);
    arena_destroy(a);
}

static void test_arena_empty_allocations_are_distinct(void **state)
{
    struct arena *a = arena_create();
    char *p = arena_alloc(a, 0), *q = arena_alloc(a, 0);

    (void)state;
    assert_non_null(p);
    assert_ptr_not_equal(p, q);
    assert_non_null(arena_memdup(a, NULL, 0));
    arena_destroy(a);
}

static void test_arena_large_allocation_leaves_the_chunk_in_use(void **state)
{
    struct arena *a = arena_create();
    char *before = arena_alloc(a, 16), *after;

    (void)state;
    arena_alloc(a, 1 << 22);
    after = arena_alloc(a, 16);
    assert_true(after > before && after - before < 4096);
    arena_destroy(a);
}

static void test_arena_copies_are_equal(void **state)
{
    struct arena *a = arena_create();
    const int numbers[] = {3, 1, 4};
    char *s = arena_strdup(a, "tutti");
    int *n = arena_memdup(a, numbers, sizeof numbers);

    (void)state;
    assert_string_equal(s, "tutti");
    assert_memory_equal(n, numbers, sizeof numbers);
    arena_destroy(a);
}

static void test_arena_destroy_takes_null(void **state)
{
    (void)state;
    arena_destroy(NULL);
}

/* Runs `f` in a child and says which signal ended it. */
static int ended_by(void (*f)(void))
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        close(STDERR_FILENO);
        f();
        _exit(0);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    /* The address sanitizer turns a crash into an exit code. */
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) ? SIGABRT : 0;
}

static void overflow_array(void)
{
    arena_alloc_array(arena_create(), SIZE_MAX / 2, 4);
}

static void overflow_size(void)
{
    arena_alloc(arena_create(), SIZE_MAX - 8);
}

static void succeed(void)
{
    struct arena *a = arena_create();

    arena_alloc_array(a, 1000, 8);
    arena_destroy(a);
}

static void test_arena_overflow_aborts(void **state)
{
    (void)state;
    assert_int_equal(ended_by(succeed), 0);
    assert_int_equal(ended_by(overflow_array), SIGABRT);
    assert_int_equal(ended_by(overflow_size), SIGABRT);
}

static void test_xmalloc_family_never_gives_null(void **state)
{
    void *p = xmalloc(0), *q = xcalloc(0, 8);
    char *r = xrealloc(NULL, 4);

    (void)state;
    assert_non_null(p);
    assert_non_null(q);
    memcpy(r, "abc", 4);
    r = xrealloc(r, 4000);
    assert_string_equal(r, "abc");
    r = xrealloc(r, 0);
    assert_non_null(r);
    free(p);
    free(q);
    free(r);
}

static void test_vec_push_keeps_order(void **state)
{
    struct pair {
        int a, b;
    };
    VEC(struct pair) v = {0};

    (void)state;
    for (int i = 0; i < 1000; i++)
        vec_push(&v, (struct pair){i, -i});
    assert_int_equal(v.n, 1000);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(v.at[i].a, i);
        assert_int_equal(v.at[i].b, -i);
    }
    vec_reserve(&v, 5000);
    assert_true(v.cap >= 5000);
    assert_int_equal(v.at[999].a, 999);
    vec_free(&v);
    assert_null(v.at);
    assert_int_equal(v.n, 0);
}

static void test_checked_reports_overflow_and_leaves_result(void **state)
{
    uint64_t v = 7;

    (void)state;
    assert_true(checked_add(UINT64_MAX - 1, 1, &v));
    assert_true(v == UINT64_MAX);
    assert_false(checked_add(UINT64_MAX, 1, &v));
    assert_true(v == UINT64_MAX);
    assert_true(checked_mul(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &v));
    v = 7;
    assert_false(checked_mul(UINT64_C(1) << 32, UINT64_C(1) << 32, &v));
    assert_int_equal(v, 7);
}

static void test_round_up_gives_multiples(void **state)
{
    (void)state;
    assert_int_equal(round_up(0, 256), 0);
    assert_int_equal(round_up(1, 256), 256);
    assert_int_equal(round_up(256, 256), 256);
    assert_int_equal(round_up(257, 256), 512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_allocations_are_zeroed_aligned_and_apart),
        cmocka_unit_test(test_arena_empty_allocations_are_distinct),
        cmocka_unit_test(test_arena_large_allocation_leaves_the_chunk_in_use),
        cmocka_unit_test(test_arena_copies_are_equal),
        cmocka_unit_test(test_arena_destroy_takes_null),
        cmocka_unit_test(test_arena_overflow_aborts),
        cmocka_unit_test(test_xmalloc_family_never_gives_null),
        cmocka_unit_test(test_vec_push_keeps_order),
        cmocka_unit_test(test_checked_reports_overflow_and_leaves_result),
        cmocka_unit_test(test_round_up_gives_multiples),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
