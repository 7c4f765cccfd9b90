/* Implements op_cases.h: the tapes, the registry of rows, and the helpers that several rows use. */
#include "tests/unit/op_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/reference.h"

#define REGION_ALIGN 16 /* of arrays in a region, as malloc's */

const uint64_t lengths[N_LENGTHS] = {1, 2, 3, 15, 16, 17, 63, 65, 383, 384, 385, 769, 32768, 70001};
const uint32_t matrices[N_MATRICES][2] = {{1, 1},    {1, 65},   {2, 15},   {3, 16},  {17, 17},
                                          {63, 3},   {16, 10},  {33, 10},  {65, 63}, {600, 10},
                                          {513, 65}, {31, 769}, {97, 385}, {5, 8200}};
const uint32_t products[N_PRODUCTS][3] = {
    {1, 1, 1},       {1, 384, 1},    {2, 3, 15},     {3, 15, 2},     {15, 16, 17},
    {16, 16, 16},    {17, 63, 16},   {63, 65, 10},   {65, 383, 10},  {10, 385, 65},
    {1, 769, 65},    {15, 769, 63},  {16, 384, 17},  {17, 385, 383}, {383, 17, 65},
    {384, 65, 16},   {385, 63, 63},  {769, 65, 17},  {65, 769, 63},  {17, 16, 769},
    {130, 383, 129}, {33, 769, 385}, {300, 10, 200}, {385, 8, 200},  {130, 512, 300}};

const struct op_test *const op_tests[OP_COUNT] = {
#define OP(name) [OP_##name] = &name##_test,
#include "kernels/ops.def"
#undef OP
};

/* ---- tapes ---- */

static unsigned char *cut(struct tape *t, size_t bytes)
{
    size_t at = (t->region_used + REGION_ALIGN - 1) / REGION_ALIGN * REGION_ALIGN;

    assert_true(at <= t->region_bytes && bytes <= t->region_bytes - at);
    t->region_used = at + bytes;
    return t->region + at;
}

void *tape_bytes(struct tape *t, size_t bytes, size_t align)
{
    size_t skip = (t->shift + align - 1) / align * align;
    unsigned char *base = t->region ? cut(t, bytes + GUARD) : malloc(skip + bytes + GUARD);

    assert_non_null(base);
    assert_true(t->n < TAPE_MAX);
    t->mem[t->n].base = t->region ? NULL : base;
    t->mem[t->n].end = base + skip + bytes;
    memset(t->mem[t->n].end, GUARD_BYTE, GUARD);
    t->n++;
    return base + skip;
}

void tape_output(struct tape *t, const void *at, size_t bytes)
{
    assert_true(t->n_out < TAPE_MAX);
    t->out[t->n_out].at = at;
    t->out[t->n_out++].bytes = bytes;
}

void *tape_in(struct tape *t, enum dtype dtype, uint64_t n, float scale)
{
    void *x = tape_bytes(t, n * dtype_size(dtype), dtype_size(dtype));
    float *random = malloc(n * sizeof *random);

    assert_non_null(random);
    ref_fill(random, n, t->key++, scale);
    half_round(dtype, random, x, n);
    free(random);
    return x;
}

void *tape_inout(struct tape *t, enum dtype dtype, uint64_t n, float scale)
{
    void *x = tape_in(t, dtype, n, scale);
    tape_output(t, x, n * dtype_size(dtype));
    return x;
}

void *tape_out(struct tape *t, enum dtype dtype, uint64_t n)
{
    void *x = tape_inout(t, dtype, n, 0);
    for (uint64_t i = 0; i < n; i++)
        put(dtype, x, i, NAN);
    return x;
}

float *tape_floats(struct tape *t, uint64_t n, float scale)
{
    return tape_in(t, DTYPE_F32, n, scale);
}

float *tape_state(struct tape *t, uint64_t n, float scale)
{
    return tape_inout(t, DTYPE_F32, n, scale);
}

float *tape_result(struct tape *t, uint64_t n)
{
    return tape_out(t, DTYPE_F32, n);
}

float *tape_scratch(struct tape *t, uint64_t n)
{
    float *x = tape_result(t, n);
    t->out[t->n_out - 1].scratch = true;
    return x;
}

void tape_check_guards(const struct tape *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        for (int b = 0; b < GUARD; b++)
            assert_int_equal(t->mem[i].end[b], GUARD_BYTE);
}

void tape_finish(struct tape *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        free(t->mem[i].base);
}

void assert_same_outputs(const struct tape *a, const struct tape *b)
{
    assert_int_equal(a->n_out, b->n_out);
    for (uint32_t i = 0; i < a->n_out; i++)
        if (!a->out[i].scratch)
            assert_memory_equal(a->out[i].at, b->out[i].at, a->out[i].bytes);
}

/* ---- types ---- */

/* All combinations of types. The first must be F32 alone. */
static const struct op_types all_types[] = {
    {DTYPE_F32, DTYPE_F32, DTYPE_F32}, {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16},
    {DTYPE_F16, DTYPE_F16, DTYPE_F16}, {DTYPE_BF16, DTYPE_F32, DTYPE_BF16},
    {DTYPE_F16, DTYPE_F32, DTYPE_F16}, {DTYPE_BF16, DTYPE_BF16, DTYPE_F32},
    {DTYPE_F16, DTYPE_F16, DTYPE_F32}, {DTYPE_F32, DTYPE_F32, DTYPE_BF16},
    {DTYPE_F32, DTYPE_F32, DTYPE_F16},
};

/* Returns whether an op has cases with these types. */
static bool takes(enum op op, const struct op_types *t)
{
    const uint32_t n = op_dtypes[op].n;
    const bool has_out = n == 3 || op == OP_softmax_xent, has_w = n == 3 || (n == 2 && !has_out);

    if (t == &all_types[0])
        return true;
    if (n == 0) /* losses are scaled in jobs of type F16, so decide has other cases with this type */
        return op == OP_decide && t->dtype == DTYPE_F16 && t->w == t->dtype && t->out == t->dtype;
    if (t->dtype == DTYPE_F32) /* only the gradient of float logits may be smaller */
        return op == OP_softmax_xent;
    return (has_w || t->w == t->dtype) && (has_out || t->out == t->dtype);
}

uint32_t op_case_count(enum op op)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < COUNT(all_types); i++)
        n += takes(op, &all_types[i]) ? op_tests[op]->variants : 0;
    return n;
}

/* Returns the types of case number `number`. */
static const struct op_types *case_types(enum op op, uint32_t number)
{
    uint32_t i = 0, skip = number / op_tests[op]->variants;

    while (skip > 0)
        skip -= takes(op, &all_types[++i]);
    assert_true(i < COUNT(all_types));
    return &all_types[i];
}

/* ---- building ---- */

/* The key depends on the name of the op and not on its number. A new op therefore does not change the values
 * and hashes of the other ops. */
static uint32_t key_of(enum op op, uint32_t variant)
{
    uint32_t key = 0;
    for (const char *c = op_names[op]; *c; c++)
        key = key * 31 + (unsigned char)*c;
    return key << 16 | variant << 6;
}

static void build_on(enum op op, uint32_t number, struct tape *t, struct op_call *call)
{
    const uint32_t variant = number % op_tests[op]->variants;

    t->types = *case_types(op, number);
    t->key = key_of(op, variant);
    t->step = (struct step_args){.step = (UINT64_C(3) << 32) + 12345,
                                 .seed = UINT64_C(0x123456789abcdef),
                                 .lr = 1e-2f,
                                 .grad_scale = 0.125f,
                                 .valid_rows = UINT32_MAX,
                                 .training = 1};
    *call = (struct op_call){.op = op, .step = &t->step};
    op_tests[op]->build(t, variant, call);
}

void op_build(enum op op, uint32_t number, size_t shift, struct tape *t, struct op_call *call)
{
    *t = (struct tape){.shift = shift};
    build_on(op, number, t, call);
}

void op_build_in(enum op op, uint32_t number, void *region, size_t bytes, struct tape *t,
                 struct op_call *call)
{
    *t = (struct tape){.region = region, .region_bytes = bytes};
    build_on(op, number, t, call);
}

struct tape op_move_tape(const struct tape *t, const void *from, const void *to)
{
    struct tape moved = *t;

    moved.region = (unsigned char *)(uintptr_t)to;
    for (uint32_t i = 0; i < t->n; i++)
        moved.mem[i].end = (unsigned char *)move_word((uintptr_t)t->mem[i].end, from, t->region_bytes, to);
    for (uint32_t i = 0; i < t->n_out; i++)
        moved.out[i].at = (const void *)move_word((uintptr_t)t->out[i].at, from, t->region_bytes, to);
    return moved;
}

/* ---- elements ---- */

float get(enum dtype dtype, const void *array, uint64_t i)
{
    if (dtype == DTYPE_F32)
        return ((const float *)array)[i];
    const uint16_t x = ((const uint16_t *)array)[i];
    return dtype == DTYPE_BF16 ? bf16_to_float(x) : f16_to_float(x);
}

void put(enum dtype dtype, void *array, uint64_t i, float value)
{
    half_round(dtype, &value, (unsigned char *)array + i * dtype_size(dtype), 1);
}

float *to_floats(enum dtype dtype, const void *array, uint64_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    half_widen(dtype, array, x, n);
    return x;
}

double *to_doubles(enum dtype dtype, const void *array, uint64_t n)
{
    float *x = to_floats(dtype, array, n);
    double *d = ref_to_double(x, n);
    free(x);
    return d;
}

double rounding_error(enum dtype dtype, double size)
{
    if (dtype == DTYPE_F32)
        return 0;
    const int bits = dtype == DTYPE_BF16 ? 8 : 11, least = dtype == DTYPE_BF16 ? -126 : -14;
    const int exponent = size > ldexp(1, least) ? ilogb(size) : least;
    return ldexp(1, exponent - bits);
}

/* ---- checking ---- */

void assert_near(float got, double want, double tolerance)
{
    if (!(fabs((double)got - want) <= tolerance))
        fail_msg("got %.9g, want %.9g +- %.3g", (double)got, want, tolerance);
}

void assert_bits(float got, float want)
{
    if (memcmp(&got, &want, sizeof got) != 0)
        fail_msg("got %a, want %a exactly", (double)got, (double)want);
}

void assert_near_in(enum dtype dtype, const void *got, uint64_t i, double want, double tolerance)
{
    assert_near(get(dtype, got, i), want, tolerance + rounding_error(dtype, fabs(want) + tolerance));
}

void assert_rounded(enum dtype dtype, const void *got, uint64_t i, float want)
{
    float rounded;
    put(dtype, &rounded, 0, want);
    assert_bits(get(dtype, got, i), get(dtype, &rounded, 0));
}
