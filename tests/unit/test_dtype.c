/* Tests the table of types: names, sizes, overflow, and the layers and shares that use the sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "kernels/dtype.h"
#include "kernels/layer.h"
#include "kernels/layer_impl.h"
#include "scheduler/plan.h"

static void test_names_are_those_of_safetensors(void **state)
{
    static const struct {
        const char *name;
        enum dtype dtype;
        uint64_t bytes;
    } known[] = {
        {"BOOL", DTYPE_BOOL, 1}, {"U8", DTYPE_U8, 1},   {"I8", DTYPE_I8, 1},     {"I16", DTYPE_I16, 2},
        {"U16", DTYPE_U16, 2},   {"F16", DTYPE_F16, 2}, {"BF16", DTYPE_BF16, 2}, {"I32", DTYPE_I32, 4},
        {"U32", DTYPE_U32, 4},   {"F32", DTYPE_F32, 4}, {"F64", DTYPE_F64, 8},   {"I64", DTYPE_I64, 8},
        {"U64", DTYPE_U64, 8},
    };

    (void)state;
    assert_int_equal(sizeof known / sizeof *known, DTYPE_COUNT);
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        enum dtype found = DTYPE_COUNT;
        assert_true(dtype_find(known[i].name, &found));
        assert_int_equal(found, known[i].dtype);
        assert_string_equal(dtype_names[found], known[i].name);
        assert_int_equal(dtype_size(found), known[i].bytes);
    }
}

static void test_unknown_names_are_not_found(void **state)
{
    static const char *const names[] = {"", "f32", "F32 ", "F8_E4M3", "COUNT"};
    enum dtype found = DTYPE_I64;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_false(dtype_find(names[i], &found));
    assert_int_equal(found, DTYPE_I64);
}

static void test_bytes_detect_overflow(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPE_COUNT; d++) {
        const uint64_t size = dtype_size((enum dtype)d), most = UINT64_MAX / size;
        uint64_t bytes = 7;
        assert_true(dtype_bytes((enum dtype)d, most, &bytes));
        assert_int_equal(bytes, most * size);
        assert_int_equal(dtype_elements((enum dtype)d, bytes), most);
        assert_int_equal(dtype_elements((enum dtype)d, 3 * size + size / 2), 3);
        bytes = 7;
        if (size > 1)
            assert_false(dtype_bytes((enum dtype)d, most + 1, &bytes));
        assert_int_equal(bytes, 7);
    }
}

static void test_layer_bytes_are_limited(void **state)
{
    const uint64_t most = UINT64_C(1) << 60;
    const struct layer l = {.dtype = DTYPE_BF16, .w_dtype = DTYPE_F64};

    (void)state;
    assert_int_equal(layer_bytes_of(DTYPE_F32, 3, 5), 60);
    assert_int_equal(layer_bytes_of(DTYPE_BF16, 3, 5), 30);
    assert_int_equal(layer_act_bytes(&l, 3, 5), 30);
    assert_int_equal(layer_w_bytes(&l, 3, 5), 120);
    assert_int_equal(layer_stat_bytes(3, 5), 60);
    assert_int_equal(layer_bytes_of(DTYPE_F32, UINT32_MAX, UINT32_MAX), most);
    assert_int_equal(layer_bytes_of(DTYPE_F64, UINT32_MAX, UINT32_MAX), most);
    assert_int_equal(layer_bytes_of(DTYPE_F64, 1u << 31, 1u << 26), most);
    assert_int_equal(layer_bytes_of(DTYPE_F64, (1u << 31) - 1, 1u << 26), most - (UINT64_C(1) << 29));
}

static void test_shares_are_cut_at_whole_lines(void **state)
{
    (void)state;
    assert_int_equal(plan_share_unit(DTYPE_F32), 64);
    assert_int_equal(plan_share_unit(DTYPE_BF16), 128);
    assert_int_equal(plan_share_unit(DTYPE_F16), 128);
    for (int d = 0; d < DTYPE_COUNT; d++)
        assert_int_equal(plan_share_unit((enum dtype)d) * dtype_size((enum dtype)d), PLAN_ALIGN);
}

static void test_layers_have_types(void **state)
{
    struct layer embedding = {.type = &layer_embedding,
                              .in = shape_sequence(4, 1),
                              .out = shape_sequence(4, 8),
                              .embedding = {.vocab = 16}};
    struct layer loss = {.type = &layer_softmax_xent, .in = shape_vector(8)};
    struct layer_sizes size;
    struct layer_param param;

    (void)state;
    layer_type(&embedding)->sizes(&embedding, 2, &size);
    assert_int_equal(size.x_dtype, DTYPE_I32);
    assert_int_equal(size.y_dtype, DTYPE_F32);
    assert_int_equal(layer_w_elements(&size), 16 * 8);
    assert_int_equal(layer_type(&embedding)->params(&embedding, &param), 1);
    assert_int_equal(param.dtype, size.w_dtype);
    assert_int_equal(param.count, layer_w_elements(&size));
    layer_type(&loss)->sizes(&loss, 2, &size);
    assert_int_equal(size.x_dtype, DTYPE_F32);
    assert_int_equal(size.target_dtype, DTYPE_I32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_those_of_safetensors),
        cmocka_unit_test(test_unknown_names_are_not_found),
        cmocka_unit_test(test_bytes_detect_overflow),
        cmocka_unit_test(test_layer_bytes_are_limited),
        cmocka_unit_test(test_shares_are_cut_at_whole_lines),
        cmocka_unit_test(test_layers_have_types),
    };
    return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
