/* The conversions between float and the 16-bit types: every 16-bit number is widened, and floats between all
 * neighbouring 16-bit numbers are rounded. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/half.h"

#define NUMBERS 65536u

static bool is_nan16(enum dtype t, uint32_t v)
{
    return t == DTYPE_BF16 ? (v & 0x7fff) > 0x7f80 : (v & 0x7fff) > 0x7c00;
}

static float widened(enum dtype t, uint32_t v)
{
    return t == DTYPE_BF16 ? bf16_to_float((uint16_t)v) : f16_to_float((uint16_t)v);
}

static uint32_t rounded(enum dtype t, float x)
{
    return t == DTYPE_BF16 ? bf16_from_float(x) : f16_from_float(x);
}

/* The value of an F16 number by the definition of the format. */
static double value_of_f16(uint32_t v)
{
    const int exponent = (int)(v >> 10 & 0x1f), fraction = (int)(v & 0x3ff);
    const double size = exponent == 0x1f ? (double)INFINITY
                        : exponent > 0   ? ldexp(1024 + fraction, exponent - 25)
                                         : ldexp(fraction, -24);
    return v & 0x8000 ? -size : size;
}

static void test_half_widens_every_number(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < NUMBERS; v++) {
        const float f16 = f16_to_float((uint16_t)v);
        if (is_nan16(DTYPE_F16, v))
            assert_true(isnan(f16));
        else
            assert_true((double)f16 == value_of_f16(v) && !signbit(f16) == !(v & 0x8000));
        assert_int_equal(half_float_bits(bf16_to_float((uint16_t)v)), v << 16);
    }
}

static void test_half_rounds_what_it_widened_to_itself(void **state)
{
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16};
    (void)state;
    for (uint32_t t = 0; t < 2; t++)
        for (uint32_t v = 0; v < NUMBERS; v++) {
            if (is_nan16(types[t], v))
                assert_true(is_nan16(types[t], rounded(types[t], widened(types[t], v))));
            else
                assert_int_equal(rounded(types[t], widened(types[t], v)), v);
        }
}

/* Checks a float between two neighbouring numbers, at least 0: just above the lower, below, at and above the
 * middle, and just below the upper. */
static void check_between(enum dtype t, uint32_t v)
{
    const float low = widened(t, v), high = widened(t, v + 1);
    /* Behind the largest number, the next one would be this far away. */
    const double step = isinf(high) ? (double)low - (double)widened(t, v - 1) : (double)high - (double)low;
    const double half = (double)low + step / 2;
    const float middle = half <= 3.4028234663852886e38 ? (float)half : INFINITY;
    const uint32_t even = v % 2 == 0 ? v : v + 1;

    if ((double)middle != half) /* the middle is no float: BF16 at the end of its range */
        return;
    assert_int_equal(rounded(t, nextafterf(low, INFINITY)), v);
    assert_int_equal(rounded(t, nextafterf(middle, 0)), v);
    assert_int_equal(rounded(t, middle), even);
    assert_int_equal(rounded(t, nextafterf(middle, INFINITY)), v + 1);
    assert_int_equal(rounded(t, -middle), even | 0x8000);
    assert_int_equal(rounded(t, -nextafterf(middle, INFINITY)), (v + 1) | 0x8000);
}

static void test_half_rounds_to_the_nearest_even(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 0x7c00; v++)
        check_between(DTYPE_F16, v);
    for (uint32_t v = 0; v < 0x7f80; v++)
        check_between(DTYPE_BF16, v);
    assert_int_equal(f16_from_float(65519.996f), 0x7bff);
    assert_int_equal(f16_from_float(65520.0f), 0x7c00); /* infinite */
    assert_int_equal(f16_from_float(INFINITY), 0x7c00);
    assert_int_equal(f16_from_float(-1e30f), 0xfc00);
    assert_int_equal(f16_from_float(1e-30f), 0);
    assert_int_equal(bf16_from_float(3.4e38f), 0x7f80); /* infinite */
    assert_int_equal(bf16_from_float(-INFINITY), 0xff80);
}

/* A NaN whose payload is only in the dropped bits must not become infinite. */
static void test_half_keeps_nan(void **state)
{
    static const uint32_t nans[] = {0x7f800001u, 0xff800001u, 0x7fc00000u, 0x7fffffffu, 0xffffffffu};
    (void)state;
    for (uint32_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        assert_true(is_nan16(DTYPE_BF16, bf16_of_bits(nans[i])));
        assert_true(is_nan16(DTYPE_F16, f16_of_bits(nans[i])));
        assert_int_equal(bf16_of_bits(nans[i]) >> 15, nans[i] >> 31);
    }
}

/* The loops over arrays do the same as the functions for one number, whatever the vector code of the loop. */
static void test_half_arrays_equal_single_numbers(void **state)
{
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16};
    enum { N = 4099 };
    float *x = malloc(N * sizeof *x), *back = malloc(N * sizeof *back);
    uint16_t *to = malloc(N * sizeof *to);
    uint32_t bits = 12345;
    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        bits = bits * 1664525u + 1013904223u;
        x[i] = half_float_of(i % 3 == 0 ? bits : (bits & 0x8fffffffu) | 0x30000000u);
    }
    for (uint32_t t = 0; t < 2; t++) {
        half_round(types[t], x, to, N);
        half_widen(types[t], to, back, N);
        for (uint32_t i = 0; i < N; i++) {
            assert_int_equal(to[i], rounded(types[t], x[i]));
            assert_int_equal(half_float_bits(back[i]), half_float_bits(widened(types[t], to[i])));
        }
    }
    half_round(DTYPE_F32, x, back, N);
    assert_memory_equal(back, x, N * sizeof *x);
    free(to);
    free(back);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half_widens_every_number),
        cmocka_unit_test(test_half_rounds_what_it_widened_to_itself),
        cmocka_unit_test(test_half_rounds_to_the_nearest_even),
        cmocka_unit_test(test_half_keeps_nan),
        cmocka_unit_test(test_half_arrays_equal_single_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
