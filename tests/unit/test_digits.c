/* Tests the digits that tools/digits generates: they have the same bytes on every machine, all classes occur
 * equally often, no two digits are equal, and none is blank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/crc32c.h"
#include "tools/digits/digit.h"
#include "tools/digits/glyphs.h"

enum { IMAGES = 200 };

static uint8_t set[IMAGES][DIGIT_PIXELS];

static uint32_t draw_set(uint64_t seed, enum digit_split split)
{
    for (uint32_t i = 0; i < IMAGES; i++)
        digit_draw(seed, split, i, set[i]);
    return crc32c(0, set, sizeof set);
}

/* The checksums are committed. Every machine, compiler and optimization level must compute the same
 * values. */
static void test_images_match_golden_checksums(void **state)
{
    (void)state;
    assert_int_equal(draw_set(1, DIGIT_TRAIN), 0x4848e02c);
    assert_int_equal(draw_set(1, DIGIT_TEST), 0xd55c889a);
    assert_int_equal(draw_set(UINT64_MAX, DIGIT_TRAIN), 0x5f9fa279);
}

static void test_labels_match_golden_checksum(void **state)
{
    uint8_t labels[IMAGES];

    (void)state;
    for (uint32_t i = 0; i < IMAGES; i++)
        labels[i] = (uint8_t)digit_label(1, DIGIT_TRAIN, i);
    assert_int_equal(crc32c(0, labels, sizeof labels), 0x9e8ad9e0);
}

static void test_ten_images_in_a_row_have_ten_labels(void **state)
{
    (void)state;
    for (uint32_t split = 0; split < DIGIT_SPLIT_COUNT; split++)
        for (uint32_t first = 0; first < 5000; first += 10) {
            uint32_t seen = 0;
            for (uint32_t i = first; i < first + 10; i++)
                seen |= 1u << digit_label(3, (enum digit_split)split, i);
            assert_int_equal(seen, 0x3ff);
        }
}

/* Sorted labels would make batches of one class where a job does not shuffle. */
static void test_order_of_labels_varies(void **state)
{
    int same = 0;

    (void)state;
    for (uint32_t i = 0; i < 1000; i++)
        same += digit_label(1, DIGIT_TRAIN, i) == digit_label(1, DIGIT_TRAIN, i + 10);
    assert_in_range(same, 50, 150);
}

static void test_no_two_images_are_identical(void **state)
{
    (void)state;
    draw_set(1, DIGIT_TRAIN);
    for (int i = 0; i < IMAGES; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(set[i], set[j], DIGIT_PIXELS);
}

static void test_seeds_and_splits_differ_in_every_image(void **state)
{
    uint8_t other[DIGIT_PIXELS];

    (void)state;
    draw_set(1, DIGIT_TRAIN);
    for (uint32_t i = 0; i < IMAGES; i++) {
        digit_draw(2, DIGIT_TRAIN, i, other);
        assert_memory_not_equal(set[i], other, DIGIT_PIXELS);
        digit_draw(UINT64_C(1) << 32 | 1, DIGIT_TRAIN, i, other);
        assert_memory_not_equal(set[i], other, DIGIT_PIXELS);
        digit_draw(1, DIGIT_TEST, i, other);
        assert_memory_not_equal(set[i], other, DIGIT_PIXELS);
    }
}

/* The middle of the image, where the digit is, has ink that stands out from the paper at the border. */
static void test_every_image_has_ink_in_the_middle(void **state)
{
    (void)state;
    draw_set(9, DIGIT_TRAIN);
    for (int i = 0; i < IMAGES; i++) {
        int border = 0, ink = 0;
        for (int x = 0; x < DIGIT_SIDE; x++)
            border += set[i][x] + set[i][DIGIT_PIXELS - 1 - x];
        border /= 2 * DIGIT_SIDE;
        for (int y = 5; y < DIGIT_SIDE - 5; y++)
            for (int x = 5; x < DIGIT_SIDE - 5; x++)
                ink += set[i][y * DIGIT_SIDE + x] > border + 50;
        assert_in_range(ink, 15, 18 * 18 * 3 / 4);
    }
}

static void test_glyphs_stay_in_their_box(void **state)
{
    (void)state;
    for (int c = 0; c < GLYPH_CLASSES; c++)
        for (int style = 0; style < GLYPH_STYLES; style++) {
            const struct glyph *g = &glyphs[c][style];
            assert_true(g->strokes[0].points > 0);
            for (int s = 0; s < GLYPH_MAX_STROKES; s++) {
                assert_true(g->strokes[s].points <= GLYPH_MAX_POINTS && g->strokes[s].points != 1);
                for (int i = 0; i < g->strokes[s].points; i++) {
                    assert_in_range(g->strokes[s].at[i][0], 0, 100);
                    assert_in_range(g->strokes[s].at[i][1], 0, 100);
                }
            }
        }
}

static void test_styles_of_a_digit_differ(void **state)
{
    (void)state;
    for (int c = 0; c < GLYPH_CLASSES; c++)
        for (int a = 0; a < GLYPH_STYLES; a++)
            for (int b = 0; b < a; b++)
                assert_memory_not_equal(glyphs[c][a].strokes[0].at, glyphs[c][b].strokes[0].at,
                                        sizeof glyphs[c][a].strokes[0].at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_images_match_golden_checksums),
        cmocka_unit_test(test_labels_match_golden_checksum),
        cmocka_unit_test(test_ten_images_in_a_row_have_ten_labels),
        cmocka_unit_test(test_order_of_labels_varies),
        cmocka_unit_test(test_no_two_images_are_identical),
        cmocka_unit_test(test_seeds_and_splits_differ_in_every_image),
        cmocka_unit_test(test_every_image_has_ink_in_the_middle),
        cmocka_unit_test(test_glyphs_stay_in_their_box),
        cmocka_unit_test(test_styles_of_a_digit_differ),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
