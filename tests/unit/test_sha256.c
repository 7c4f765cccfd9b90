/* Tests of SHA-256: the examples of FIPS 180-4 and its test suite, and every length near a block boundary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"

static void check(const char *data, size_t bytes, const char *want)
{
    char hex[SHA256_HEX_CHARS + 1];
    sha256_hex(data, bytes, hex);
    assert_string_equal(hex, want);
}

static void test_examples_of_the_standard(void **state)
{
    static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    static const char four[] = "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
                               "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";
    (void)state;
    check("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check(NULL, 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check(two, sizeof two - 1, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check(four, sizeof four - 1, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    check("\xbd", 1, "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b");
    check("\xc9\x8c\x8e\x55", 4, "7abc22c0ae5af26ce93dbb94433a0e0b2e119d014f8e7f65bd56c61ccccd9504");
}

static void test_long_inputs(void **state)
{
    char *a = malloc(1000000);
    (void)state;
    assert_non_null(a);
    memset(a, 'a', 1000000);
    check(a, 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    memset(a, 0, 1000000);
    check(a, 1000000, "d29751f2649b32ff572b5e0a9f541ea660a50f94ff0beedfb0b692b924cc8025");
    free(a);
}

/* Zeros of the lengths at which the padding needs another block: from the examples of NIST. */
static void test_lengths_at_the_ends_of_blocks(void **state)
{
    static const char zeros[64];
    (void)state;
    check(zeros, 55, "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7");
    check(zeros, 56, "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb");
    check(zeros, 57, "65a16cb7861335d5ace3c60718b5052e44660726da4cd13bb745381b235a1785");
    check(zeros, 64, "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples_of_the_standard),
        cmocka_unit_test(test_long_inputs),
        cmocka_unit_test(test_lengths_at_the_ends_of_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
