/* Tests AdamW's bias correction, which uses plain arithmetic instead of pow. The results must be the same
 * floats that the C library's pow gives, for common betas and extreme ones, so that jobs keep the bits they
 * had when the code used pow. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/bias.h"

static void check(float beta, uint64_t t)
{
    float want = (float)(1.0 / (1.0 - pow((double)beta, (double)t))), got = bias_correction(beta, t);

    if (memcmp(&want, &got, sizeof got) != 0)
        fail_msg("beta %.9g, t %llu: %.9g, want %.9g", (double)beta, (unsigned long long)t, (double)got,
                 (double)want);
}

static void test_correction_is_that_of_pow(void **state)
{
    static const float betas[] = {0,     0.1f,   0.5f,   0.8f,    0.85f,   0.9f,     0.95f,    0.98f,
                                  0.99f, 0.995f, 0.999f, 0.9995f, 0.9999f, 0.99999f, 0x1p-40f, 0.9999999f};
    (void)state;
    for (size_t i = 0; i < sizeof betas / sizeof *betas; i++) {
        for (uint64_t t = 1; t <= 20000; t++)
            check(betas[i], t);
        for (uint64_t t = 20001; t < UINT64_C(1) << 50; t = t * 3 / 2)
            check(betas[i], t);
    }
}

static void test_power_by_hand(void **state)
{
    (void)state;
    assert_true(bias_power(0.5, 1) == 0.5);
    assert_true(bias_power(0.5, 10) == 0x1p-10);
    assert_true(bias_power(0.75, 2) == 0.5625);
    assert_true(bias_power(0.75, 0) == 1);
    assert_true(bias_power(0.5, 5000) == 0); /* below the least double */
    assert_true(bias_correction(0, 1) == 1);
    assert_true(bias_correction(0.5f, 1) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_correction_is_that_of_pow),
        cmocka_unit_test(test_power_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
