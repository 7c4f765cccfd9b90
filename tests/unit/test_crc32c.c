/* Tests of CRC-32C: published vectors, the default and the portable implementation, data in pieces, unaligned
 * addresses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/rng.h"

typedef uint32_t (*crc_function)(uint32_t crc, const void *data, size_t bytes);

static const crc_function forms[] = {crc32c, crc32c_portable};
enum { FORMS = sizeof forms / sizeof *forms };

/* RFC 3720 B.4, and the check value of the catalogue of CRCs. */
static void test_crc32c_matches_published_vectors(void **state)
{
    unsigned char zeros[32] = {0}, ones[32], up[32], down[32];

    (void)state;
    memset(ones, 0xFF, sizeof ones);
    for (int i = 0; i < 32; i++) {
        up[i] = (unsigned char)i;
        down[i] = (unsigned char)(31 - i);
    }
    for (int f = 0; f < FORMS; f++) {
        assert_int_equal(forms[f](0, "123456789", 9), 0xE3069283);
        assert_int_equal(forms[f](0, zeros, 32), 0x8A9136AA);
        assert_int_equal(forms[f](0, ones, 32), 0x62A8AB43);
        assert_int_equal(forms[f](0, up, 32), 0x46DD794E);
        assert_int_equal(forms[f](0, down, 32), 0x113FDB5C);
    }
}

static void test_crc32c_nothing_changes_nothing(void **state)
{
    (void)state;
    for (int f = 0; f < FORMS; f++) {
        assert_int_equal(forms[f](0, NULL, 0), 0);
        assert_int_equal(forms[f](0x12345678, "", 0), 0x12345678);
    }
}

static void fill(unsigned char *p, size_t n)
{
    struct rng r = {.seed = 3};

    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)rng_next(&r);
}

static void test_crc32c_pieces_equal_the_whole(void **state)
{
    unsigned char data[100];

    (void)state;
    fill(data, sizeof data);
    for (int f = 0; f < FORMS; f++) {
        uint32_t whole = forms[f](0, data, sizeof data);
        for (size_t cut = 0; cut <= sizeof data; cut++)
            assert_int_equal(forms[f](forms[f](0, data, cut), data + cut, sizeof data - cut), whole);
    }
}

static void test_crc32c_forms_agree_at_any_address_and_length(void **state)
{
    unsigned char data[200];

    (void)state;
    fill(data, sizeof data);
    for (size_t start = 0; start < 16; start++)
        for (size_t n = 0; n <= sizeof data - start; n++)
            assert_int_equal(crc32c(n * 77, data + start, n), crc32c_portable(n * 77, data + start, n));
}

static void test_crc32c_sees_every_flipped_bit(void **state)
{
    unsigned char data[40];

    (void)state;
    fill(data, sizeof data);
    for (int f = 0; f < FORMS; f++) {
        uint32_t whole = forms[f](0, data, sizeof data);
        for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
            data[bit / 8] ^= (unsigned char)(1u << bit % 8);
            assert_int_not_equal(forms[f](0, data, sizeof data), whole);
            data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c_matches_published_vectors),
        cmocka_unit_test(test_crc32c_nothing_changes_nothing),
        cmocka_unit_test(test_crc32c_pieces_equal_the_whole),
        cmocka_unit_test(test_crc32c_forms_agree_at_any_address_and_length),
        cmocka_unit_test(test_crc32c_sees_every_flipped_bit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
