/* Tests of base64: the examples of RFC 4648, every byte value, random content encoded and decoded, and texts
 * that are not base64. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"

static void check(const void *data, size_t bytes, const char *want)
{
    struct strbuf b = {0};
    char back[4096];
    strbuf_add(&b, "");
    base64_add(&b, data, bytes);
    if (want != NULL)
        assert_string_equal(b.at, want);
    assert_int_equal(b.n, (bytes + 2) / 3 * 4);
    assert_int_equal(base64_decode(b.at, b.n, back), (long)bytes);
    assert_memory_equal(back, data, bytes);
    strbuf_finish(&b);
}

static void test_examples_of_the_rfc(void **state)
{
    static const char *const words[][2] = {{"", ""},
                                           {"f", "Zg=="},
                                           {"fo", "Zm8="},
                                           {"foo", "Zm9v"},
                                           {"foob", "Zm9vYg=="},
                                           {"fooba", "Zm9vYmE="},
                                           {"foobar", "Zm9vYmFy"}};
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        check(words[i][0], strlen(words[i][0]), words[i][1]);
}

static void test_any_content_comes_back(void **state)
{
    uint8_t data[3000];
    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 167 + (i >> 8) * 13);
    for (size_t n = 0; n < 300; n++)
        check(data + n, n, NULL);
    check(data, sizeof data, NULL);
    check(data, 768, NULL); /* exactly one buffer of the encoder */
    check(data, 769, NULL);
}

static void test_what_is_no_base64_is_refused(void **state)
{
    static const char *const wrong[] = {
        "Z",     "Zg",   "Zg=",  "Z===", "====", "Zg==Zg==", "Zm9v=",
        "Zm9\n", "Zm 9", "Zh==", "Zm9=", "Zm-v", "Zm_v",     "Zm9v\xff\xff\xff\xff"};
    char out[64];
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (base64_decode(wrong[i], strlen(wrong[i]), out) != -EINVAL)
            fail_msg("\"%s\" was decoded", wrong[i]);
    assert_int_equal(base64_decode("Zm9\0", 4, out), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples_of_the_rfc),
        cmocka_unit_test(test_any_content_comes_back),
        cmocka_unit_test(test_what_is_no_base64_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
