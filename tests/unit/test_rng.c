/* Tests of random numbers: Philox against published vectors, the permutation, and the small generator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

/* kat_vectors of Random123, philox 4x32 with 10 rounds. */
static void test_philox_matches_published_vectors(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t *c = cases[i].counter;
        uint64_t seed = (uint64_t)cases[i].key[1] << 32 | cases[i].key[0];
        struct rng_block b = rng_philox(seed, c[0], c[1], c[2], c[3]);
        assert_memory_equal(b.v, cases[i].want, sizeof b.v);
    }
}

static void test_rng_unit_stays_below_one(void **state)
{
    (void)state;
    assert_true(rng_unit(0) == 0.0f);
    assert_true(rng_unit(UINT32_MAX) < 1.0f);
    assert_true(rng_unit(1u << 31) == 0.5f);
}

/* Every value is reached exactly once. */
static void check_bijective(uint64_t seed, uint32_t epoch, uint64_t n)
{
    bool *seen = calloc(n, sizeof *seen);

    assert_non_null(seen);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t v = rng_permute(seed, epoch, i, n);
        if (v >= n || seen[v])
            fail_msg("n %llu, epoch %u: %llu goes to %llu, outside or taken", (unsigned long long)n, epoch,
                     (unsigned long long)i, (unsigned long long)v);
        seen[v] = true;
    }
    free(seen);
}

static void test_permute_is_bijective_for_every_small_n(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 300; n++)
        for (uint32_t epoch = 0; epoch < 3; epoch++)
            check_bijective(n * 7919, epoch, n);
}

static void test_permute_is_bijective_around_powers_of_two(void **state)
{
    (void)state;
    for (int bit = 9; bit <= 15; bit++)
        for (uint64_t n = (UINT64_C(1) << bit) - 1; n <= (UINT64_C(1) << bit) + 1; n++)
            check_bijective(42, 5, n);
    check_bijective(1337, 0, 60000);
}

static void test_permute_stays_below_huge_n(void **state)
{
    static const uint64_t sizes[] = {UINT64_C(1) << 32, (UINT64_C(1) << 32) + 1, UINT64_C(1) << 53,
                                     (UINT64_C(1) << 62) + 1, UINT64_MAX};

    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        uint64_t n = sizes[k], first = rng_permute(3, 0, 0, n), last = rng_permute(3, 0, n - 1, n);
        assert_true(first < n && last < n && first != last);
    }
}

static void test_permute_one_is_zero(void **state)
{
    (void)state;
    for (uint32_t epoch = 0; epoch < 10; epoch++)
        assert_int_equal(rng_permute(epoch, epoch, 0, 1), 0);
}

static int count_equal_positions(uint64_t seed_a, uint32_t epoch_a, uint64_t seed_b, uint32_t epoch_b)
{
    int equal = 0;

    for (uint64_t i = 0; i < 1000; i++)
        equal += rng_permute(seed_a, epoch_a, i, 1000) == rng_permute(seed_b, epoch_b, i, 1000);
    return equal;
}

static void test_permute_depends_on_seed_and_epoch(void **state)
{
    (void)state;
    assert_int_equal(count_equal_positions(1, 0, 1, 0), 1000);
    assert_in_range(count_equal_positions(1, 0, 1, 1), 0, 10); /* 1 is expected by chance */
    assert_in_range(count_equal_positions(1, 0, 2, 0), 0, 10);
    assert_in_range(count_equal_positions(1, 0, UINT64_C(1) << 32 | 1, 0), 0, 10);
}

/* Over many epochs each sample visits each position about equally often. */
static void test_permute_spreads_evenly(void **state)
{
    enum { N = 10, EPOCHS = 20000 };
    int count[N][N] = {{0}};

    (void)state;
    for (uint32_t e = 0; e < EPOCHS; e++)
        for (uint64_t i = 0; i < N; i++)
            count[i][rng_permute(99, e, i, N)]++;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) /* mean 2000, deviation 42: six deviations */
            assert_in_range(count[i][j], 2000 - 255, 2000 + 255);
}

/* A change of these values changes the sample order of every job: a checkpoint could not be resumed. */
static void test_permute_is_pinned(void **state)
{
    static const uint64_t want[] = {53828, 10921, 2580, 29971, 34951, 57697, 47568, 54143};

    (void)state;
    for (uint64_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_int_equal(rng_permute(1337, 1, i, 60000), want[i]);
}

static void test_next_walks_the_words_of_philox(void **state)
{
    struct rng r = {.seed = 5};

    (void)state;
    for (uint32_t block = 0; block < 3; block++) {
        struct rng_block b = rng_philox(5, block, 0, rng_word2(RNG_TEST, 0), 0);
        for (int k = 0; k < 4; k++)
            assert_int_equal(rng_next(&r), b.v[k]);
    }
    assert_int_equal(r.at, 12);
}

static void test_below_covers_the_range(void **state)
{
    struct rng r = {.seed = 11};
    int count[7] = {0};

    (void)state;
    for (int i = 0; i < 70000; i++) {
        uint32_t v = rng_below(&r, 7);
        assert_true(v < 7);
        count[v]++;
    }
    for (int i = 0; i < 7; i++)
        assert_in_range(count[i], 9400, 10600);
    assert_int_equal(rng_below(&r, 1), 0);
}

/* Rows of fewer than 2^34 elements draw what they always drew. */
static void test_quad_below_2_to_32_is_counter_word_0(void **state)
{
    static const uint32_t quads[] = {0, 1, 12345, UINT32_MAX};
    const uint64_t seed = UINT64_C(0x0012345689abcdef);

    (void)state;
    for (size_t i = 0; i < sizeof quads / sizeof *quads; i++) {
        struct rng_block got = rng_quad(seed, quads[i], 7, rng_word2(RNG_SCORES, 3), 11);
        struct rng_block want = rng_philox(seed, quads[i], 7, rng_word2(RNG_SCORES, 3), 11);
        assert_memory_equal(got.v, want.v, sizeof got.v);
    }
}

/* Key and counter are different together for different quads, however far apart. */
static void test_quad_beyond_2_to_32_does_not_repeat(void **state)
{
    enum { N = 4 * 64 };
    struct rng_block seen[N];
    int n = 0;

    (void)state;
    for (uint64_t high = 0; high < 4; high++)
        for (uint64_t i = 0; i < 64; i++) {
            uint64_t quad = (high << 32) + i * 0x3ffffff;
            seen[n] = rng_quad(UINT64_MAX - 5, quad, 7, rng_word2(RNG_SCORES, 3), 11);
            for (int k = 0; k < n; k++)
                assert_memory_not_equal(seen[k].v, seen[n].v, sizeof seen[n].v);
            n++;
        }
    assert_int_equal(rng_quad_key(5, UINT64_C(0x300000000)), UINT64_C(0x300000005));
    assert_int_equal(rng_quad_key(5, UINT64_C(0xffffffff)), 5);
}

static void test_phase_seeds_differ(void **state)
{
    uint64_t seen[64];
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++)
        assert_int_equal(rng_phase_seed(seed, 0), seed); /* the bits of a job with one phase stay */
    for (uint32_t p = 0; p < 64; p++) {
        seen[p] = rng_phase_seed(42, p);
        for (uint32_t q = 0; q < p; q++)
            assert_true(seen[p] != seen[q]);
    }
    assert_true(rng_phase_seed(42, 1) != rng_phase_seed(43, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_phase_seeds_differ),
        cmocka_unit_test(test_quad_below_2_to_32_is_counter_word_0),
        cmocka_unit_test(test_quad_beyond_2_to_32_does_not_repeat),
        cmocka_unit_test(test_philox_matches_published_vectors),
        cmocka_unit_test(test_rng_unit_stays_below_one),
        cmocka_unit_test(test_permute_is_bijective_for_every_small_n),
        cmocka_unit_test(test_permute_is_bijective_around_powers_of_two),
        cmocka_unit_test(test_permute_stays_below_huge_n),
        cmocka_unit_test(test_permute_one_is_zero),
        cmocka_unit_test(test_permute_depends_on_seed_and_epoch),
        cmocka_unit_test(test_permute_spreads_evenly),
        cmocka_unit_test(test_permute_is_pinned),
        cmocka_unit_test(test_next_walks_the_words_of_philox),
        cmocka_unit_test(test_below_covers_the_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
