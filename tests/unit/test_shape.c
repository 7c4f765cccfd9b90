/* Tests the helpers of shape.h, and the sizes that layer.h derives from the shapes of a layer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/layer.h"
#include "kernels/shape.h"

static void check_elements(struct shape s, uint32_t want)
{
    uint32_t n = 77;

    assert_true(shape_elements(&s, &n));
    assert_int_equal(n, want);
}

static void check_too_many(struct shape s)
{
    uint32_t n = 77;

    assert_false(shape_elements(&s, &n));
    assert_int_equal(n, 77);
}

static void test_elements_are_the_product(void **state)
{
    (void)state;
    check_elements((struct shape){0}, 0);
    check_elements(shape_vector(784), 784);
    check_elements(shape_vector(0), 0);
    check_elements(shape_sequence(64, 32), 2048);
    check_elements((struct shape){3, {3, 28, 28}}, 2352);
    check_elements((struct shape){4, {2, 3, 5, 7}}, 210);
    check_elements((struct shape){1, {5, 9, 9, 9}}, 5); /* dimensions from the rank on do not count */
}

static void test_elements_must_fit_into_32_bits(void **state)
{
    (void)state;
    check_elements(shape_vector(UINT32_MAX), UINT32_MAX);
    check_elements(shape_sequence(65537, 65535), UINT32_MAX);
    check_too_many(shape_sequence(65536, 65536));
    check_too_many(shape_sequence(UINT32_MAX, UINT32_MAX));
    /* These products are 0 if they are computed in 64 bits without a check. */
    check_too_many((struct shape){4, {65536, 65536, 65536, 65536}});
    check_too_many((struct shape){3, {1u << 31, 1u << 31, 4}});
}

static void test_equal_shapes_have_equal_dimensions(void **state)
{
    const struct shape a = shape_sequence(4, 6), same = {2, {4, 6, 8, 9}}, turned = shape_sequence(6, 4),
                       flat = shape_vector(24), cube = {3, {4, 6, 1}}, none = {0};
    (void)state;

    assert_true(shape_equal(&a, &same));
    assert_false(shape_equal(&a, &turned));
    assert_false(shape_equal(&a, &flat));
    assert_false(shape_equal(&a, &cube));
    assert_false(shape_equal(&a, &none));
    assert_true(shape_equal(&none, &none));
}

static void test_a_row_can_be_read_in_another_shape(void **state)
{
    const struct shape image = {3, {1, 28, 28}}, flat = shape_vector(784), other = shape_vector(785),
                       huge = shape_sequence(65536, 65536), twice = {3, {2, 65536, 65536}};
    (void)state;

    assert_true(shape_same_elements(&image, &flat));
    assert_false(shape_same_elements(&image, &other));
    assert_true(shape_same_elements(&huge, &huge));
    assert_false(shape_same_elements(&huge, &twice));
}

static void check_text(struct shape s, const char *want)
{
    char text[SHAPE_TEXT_MAX];

    assert_string_equal(shape_text(&s, text), want);
}

static void test_text_is_for_people(void **state)
{
    (void)state;
    check_text((struct shape){0}, "nothing");
    check_text(shape_vector(784), "784");
    check_text(shape_sequence(28, 28), "28x28");
    check_text((struct shape){3, {3, 28, 28}}, "3x28x28");
    check_text((struct shape){4, {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}},
               "4294967295x4294967295x4294967295x4294967295");
}

static void check_layer(struct shape in, struct shape out, uint32_t seq, uint32_t width, uint32_t width_out)
{
    struct layer l = {.in = in, .out = out};

    assert_int_equal(layer_seq(&l), seq);
    assert_int_equal(layer_width(&l), width);
    assert_int_equal(layer_width_out(&l), width_out);
    assert_int_equal(layer_in(&l), seq * width);
    assert_int_equal(layer_out(&l), seq * width_out);
}

static void test_layer_sizes_follow_from_shapes(void **state)
{
    (void)state;
    check_layer(shape_vector(8), shape_vector(5), 1, 8, 5);
    check_layer(shape_sequence(4, 6), shape_sequence(4, 3), 4, 6, 3);
    check_layer(shape_sequence(1, 6), shape_sequence(1, 3), 1, 6, 3);
    check_layer(shape_sequence(4, 1), shape_sequence(4, 6), 4, 1, 6); /* an embedding */
    check_layer(shape_sequence(4, 6), (struct shape){0}, 4, 6, 0);    /* a loss */
    check_layer((struct shape){3, {3, 5, 7}}, shape_vector(2), 1, 105, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements_are_the_product),
        cmocka_unit_test(test_elements_must_fit_into_32_bits),
        cmocka_unit_test(test_equal_shapes_have_equal_dimensions),
        cmocka_unit_test(test_a_row_can_be_read_in_another_shape),
        cmocka_unit_test(test_text_is_for_people),
        cmocka_unit_test(test_layer_sizes_follow_from_shapes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
