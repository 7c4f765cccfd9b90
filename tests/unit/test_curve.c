/* Tests of curves: the number of points is bounded, each point is the exact mean over the same number of
 * values, runs may go back to an earlier step, values may be infinite or NaN, and a curve survives conversion
 * to JSON and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/curve.h"
#include "base/rng.h"

/* Small whole numbers: every sum and mean below is exact. */
static double value_at(uint64_t step)
{
    return (double)(step % 97) - 13;
}

static double mean(uint64_t first, uint64_t last)
{
    double sum = 0;
    for (uint64_t s = first; s <= last; s++)
        sum += value_at(s);
    return sum / (double)(last - first + 1);
}

static void add_steps(struct curve *c, uint64_t first, uint64_t last)
{
    for (uint64_t s = first; s <= last; s++)
        curve_add(c, s, value_at(s));
}

static void check_point(const struct curve *c, uint32_t i, uint64_t step, double value)
{
    assert_int_equal(c->points[i].step, step);
    assert_true(c->points[i].value == value);
}

static char *text_of(const struct curve *c)
{
    struct strbuf b = {0};
    curve_json(c, &b);
    return b.at;
}

static void check_text(const struct curve *c, const char *want)
{
    char *text = text_of(c);
    assert_string_equal(text, want);
    free(text);
}

/* The curve of `c`'s text. Also: the text is JSON. */
static struct curve *read_back(const struct curve *c)
{
    struct curve *back = calloc(1, sizeof *back);
    struct json *doc;
    char *text = text_of(c);

    assert_int_equal(json_parse(text, strlen(text), "curve", false, &doc, NULL), 0);
    curve_from_json(back, doc);
    json_free(doc);
    free(text);
    return back;
}

static void test_few_values_are_kept_as_they_are(void **state)
{
    struct curve c = {0};
    (void)state;

    check_text(&c, "[]");
    curve_add(&c, 1, 2.5);
    check_text(&c, "[[1,2.5]]");
    add_steps(&c, 2, CURVE_POINTS - 1);
    assert_int_equal(c.n, CURVE_POINTS - 1);
    for (uint32_t i = 1; i < c.n; i++)
        check_point(&c, i, i + 1, value_at(i + 1));
}

static void test_a_full_curve_halves(void **state)
{
    struct curve c = {0};
    (void)state;

    add_steps(&c, 1, CURVE_POINTS);
    assert_int_equal(c.n, CURVE_POINTS / 2);
    assert_int_equal(c.stride, 2);
    for (uint32_t i = 0; i < c.n; i++)
        check_point(&c, i, 2 * i + 2, mean(2 * i + 1, 2 * i + 2));
}

static void test_points_are_means_over_equally_many_steps_at_any_length(void **state)
{
    static const uint64_t lengths[] = {1,   2,    255,  256,  257,    511,     512,
                                       513, 1000, 4096, 5000, 100000, 1u << 18};
    (void)state;

    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        struct curve c = {0};
        uint64_t last = 0;
        add_steps(&c, 1, lengths[k]);
        assert_true(c.n < CURVE_POINTS);
        uint64_t stride = c.stride > 0 ? c.stride : 1;
        for (uint32_t i = 0; i < c.n; i++) {
            check_point(&c, i, last + stride, mean(last + 1, last + stride));
            last += stride;
        }
        assert_int_equal(last + c.pending, lengths[k]); /* nothing is lost */
        assert_true(c.pending < stride);
    }
}

static void test_what_is_pending_comes_last(void **state)
{
    struct curve c = {0};
    char tail[64];
    (void)state;

    add_steps(&c, 1, CURVE_POINTS + 1); /* stride 2, one value over */
    assert_int_equal(c.pending, 1);
    snprintf(tail, sizeof tail, ",[%d,%g]]", CURVE_POINTS + 1, value_at(CURVE_POINTS + 1));
    char *text = text_of(&c);
    assert_true(strlen(text) > strlen(tail));
    assert_string_equal(text + strlen(text) - strlen(tail), tail);
    free(text);
}

static void test_going_back_drops_what_did_not_happen(void **state)
{
    struct curve c = {0};
    (void)state;

    add_steps(&c, 1, 20);
    curve_add(&c, 11, 100);
    assert_int_equal(c.n, 11);
    check_point(&c, 9, 10, value_at(10));
    check_point(&c, 10, 11, 100);
    curve_add(&c, 11, 50); /* the same step again */
    assert_int_equal(c.n, 11);
    check_point(&c, 10, 11, 50);
    curve_add(&c, 1, 7); /* from the beginning */
    assert_int_equal(c.n, 1);
    check_point(&c, 0, 1, 7);
}

static void test_going_back_after_halving_keeps_whole_points_before(void **state)
{
    struct curve c = {0};
    (void)state;

    add_steps(&c, 1, 1003); /* stride 4 */
    assert_int_equal(c.stride, 4);
    curve_add(&c, 602, 9); /* inside the point of 601 to 604 */
    assert_int_equal(c.n, 150);
    check_point(&c, 149, 600, mean(597, 600));
    assert_int_equal(c.pending, 1);
    char *text = text_of(&c);
    assert_non_null(strstr(text, ",[602,9]]"));
    free(text);
    add_steps(&c, 603, 605);
    check_point(&c, 150, 605, (9 + value_at(603) + value_at(604) + value_at(605)) / 4);
}

static void test_going_back_drops_the_pending_ones(void **state)
{
    struct curve c = {0};
    (void)state;

    add_steps(&c, 1, CURVE_POINTS + 1);
    curve_add(&c, CURVE_POINTS + 1, 3);
    assert_int_equal(c.pending, 1);
    assert_true(c.sum == 3);
}

static void test_steps_may_have_holes_and_begin_anywhere(void **state)
{
    struct curve c = {0};
    (void)state;

    curve_add(&c, 0, 1); /* step 0 too */
    curve_add(&c, 5, 2);
    curve_add(&c, 1ull << 53, 3);
    check_text(&c, "[[0,1],[5,2],[9007199254740992,3]]");
}

static void test_what_is_not_finite_is_left_out(void **state)
{
    struct curve c = {0};
    (void)state;

    curve_add(&c, 1, NAN);
    curve_add(&c, 2, INFINITY);
    curve_add(&c, 3, -INFINITY);
    check_text(&c, "[]");
    curve_add(&c, 4, 1);
    curve_add(&c, 5, NAN);
    check_text(&c, "[[4,1]]");
    curve_add(&c, 4, NAN); /* a step that happened again, without a value */
    check_text(&c, "[]");
}

/* The mean of finite values is finite, whatever their sum. */
static void test_huge_values_stay_finite(void **state)
{
    struct curve c = {0};
    (void)state;

    for (uint64_t s = 1; s <= 3 * CURVE_POINTS; s++) {
        curve_add(&c, s, s % 5 ? DBL_MAX : -DBL_MAX);
        char *text = text_of(&c);
        assert_null(strstr(text, "inf"));
        assert_null(strstr(text, "nan"));
        free(text);
    }
    free(read_back(&c));
}

static void test_json_survives_the_way(void **state)
{
    static const uint64_t lengths[] = {0, 1, 2, 200, 255, 256, 300, 500, 510, 5000, 66000};
    (void)state;

    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        struct curve c = {0};
        add_steps(&c, 1, lengths[k]);
        struct curve *back = read_back(&c);
        char *a = text_of(&c), *b = text_of(back);
        assert_string_equal(a, b);
        free(a);
        free(b);
        free(back);
    }
}

static void test_what_is_no_curve_is_skipped(void **state)
{
    static const struct {
        const char *json, *want;
    } cases[] = {
        {"null", "[]"},
        {"{}", "[]"},
        {"\"x\"", "[]"},
        {"[]", "[]"},
        {"[1,[],[1],[\"1\",2],[1,\"2\"],[-1,2],[1.5,2],[1,null],{\"a\":1}]", "[]"},
        {"[[3,4],7,[5,6,7,8],[],[9,1e2]]", "[[3,4],[5,6],[9,100]]"},
        {"[[3,4],[2,5]]", "[[2,5]]"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct curve c = {.n = 3, .step = 9}; /* whatever was there is gone */
        struct json *doc;
        assert_int_equal(json_parse(cases[i].json, strlen(cases[i].json), "x", false, &doc, NULL), 0);
        curve_from_json(&c, doc);
        check_text(&c, cases[i].want);
        json_free(doc);
    }
    struct curve c = {.n = 3};
    curve_from_json(&c, NULL);
    check_text(&c, "[]");
}

/* Whatever comes: never more than fits, steps ascend, and the text is JSON. */
static void test_random_runs_stay_in_bounds(void **state)
{
    struct rng rng = {.seed = 3};
    (void)state;

    for (int run = 0; run < 30; run++) {
        struct curve c = {0};
        uint64_t step = 0;
        for (int i = 0; i < 3000; i++) {
            step = rng_below(&rng, 400) == 0 ? rng_below(&rng, (uint32_t)step + 2)
                                             : step + 1 + rng_below(&rng, 3);
            curve_add(&c, step, rng_below(&rng, 50) == 0 ? NAN : (double)rng_below(&rng, 1000));
            assert_true(c.n < CURVE_POINTS);
            for (uint32_t k = 1; k < c.n; k++)
                assert_true(c.points[k - 1].step < c.points[k].step);
            assert_true(c.n == 0 || c.points[c.n - 1].step <= c.step);
        }
        free(read_back(&c));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_values_are_kept_as_they_are),
        cmocka_unit_test(test_a_full_curve_halves),
        cmocka_unit_test(test_points_are_means_over_equally_many_steps_at_any_length),
        cmocka_unit_test(test_what_is_pending_comes_last),
        cmocka_unit_test(test_going_back_drops_what_did_not_happen),
        cmocka_unit_test(test_going_back_after_halving_keeps_whole_points_before),
        cmocka_unit_test(test_going_back_drops_the_pending_ones),
        cmocka_unit_test(test_steps_may_have_holes_and_begin_anywhere),
        cmocka_unit_test(test_what_is_not_finite_is_left_out),
        cmocka_unit_test(test_huge_values_stay_finite),
        cmocka_unit_test(test_json_survives_the_way),
        cmocka_unit_test(test_what_is_no_curve_is_skipped),
        cmocka_unit_test(test_random_runs_stay_in_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
