/* Tests the matrix products and the linear ops of the cpu backend with 16-bit types.
 *
 * Products are compared with double precision, within the error of a sum of floats plus one rounding to the
 * type of the result. Where 16-bit operands are widened, the bits must be those of the product of the widened
 * floats. Every product is computed in both ways: with the processor's own BF16 products, where it has them,
 * and with widened operands (GEMM_WIDENED). Bits must not depend on threads, on alignment, on what else runs
 * or on which products were computed before.
 */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/as_floats.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "reference.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define EPS      ((double)FLT_EPSILON)

static struct pool *pools[4]; /* pools[n]: of n threads */

/* ---- arrays ---- */

/* An array of `n` elements of type `type`. make_array makes it, and free_array frees it. The bytes before and
 * behind the elements are GUARD_BYTE. */
struct array {
    enum dtype type;
    size_t n;
    unsigned char *memory, *at;
};

#define GUARD      ((size_t)64)
#define GUARD_BYTE 0xa5

/* Makes an array whose address is `shift` elements behind a cache line. All its bytes are GUARD_BYTE. */
static struct array make_array(enum dtype type, size_t n, size_t shift)
{
    size_t bytes = n * dtype_size(type), skip = GUARD + shift * dtype_size(type);
    size_t all = (skip + bytes + 2 * GUARD - 1) / GUARD * GUARD;
    struct array ret = {.type = type, .n = n, .memory = aligned_alloc(GUARD, all)};

    assert_non_null(ret.memory);
    memset(ret.memory, GUARD_BYTE, all);
    ret.at = ret.memory + skip;
    return ret;
}

static void free_array(struct array *a)
{
    const unsigned char *end = a->at + a->n * dtype_size(a->type);

    for (const unsigned char *b = a->memory; b < a->at; b++)
        assert_int_equal(*b, GUARD_BYTE);
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(end[i], GUARD_BYTE);
    free(a->memory);
}

/* The random numbers of random_array for each key. The group setup makes them once, because making them takes
 * longer than most products. */
#define KEYS           4
#define RANDOM_NUMBERS 300000
static float *random_numbers[KEYS];

/* Makes an array of random numbers in [-1, 1), which depend on `key` alone. */
static struct array random_array(enum dtype type, size_t n, size_t shift, uint32_t key)
{
    struct array ret = make_array(type, n, shift);

    assert_true(n <= RANDOM_NUMBERS && key < KEYS);
    half_round(type, random_numbers[key], ret.at, n);
    return ret;
}

/* Returns the elements of an array as floats. The caller frees them. */
static float *floats_of(const struct array *a)
{
    float *ret = malloc((a->n + 1) * sizeof *ret);
    assert_non_null(ret);
    half_widen(a->type, a->at, ret, a->n);
    return ret;
}

static double element(const struct array *a, size_t i)
{
    float x;
    half_widen(a->type, floats_at(a->type, a->at, i), &x, 1);
    return (double)x;
}

static void set_element(struct array *a, size_t i, float x)
{
    half_round(a->type, &x, a->at + i * dtype_size(a->type), 1);
}

static void assert_same_array(const struct array *a, const struct array *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->at, b->at, a->n * dtype_size(a->type));
}

/* Returns the largest error of one rounding of `x` to the type `type`. */
static double rounding(enum dtype type, double x)
{
    return type == DTYPE_BF16  ? ldexp(fabs(x), -8)
           : type == DTYPE_F16 ? ldexp(fabs(x), -11) + ldexp(1, -25)
                               : ldexp(fabs(x), -24);
}

/* Fails unless `got` is within the rounding to `type` of a number that is at most `error` away from
 * `want`. */
static void assert_rounded(enum dtype type, double got, double want, double error)
{
    if (!(fabs(got - want) <= error + rounding(type, fabs(want) + error)))
        fail_msg("got %.9g, want %.9g +- %.3g as %s", got, want, error, dtype_names[type]);
}

/* ---- products ---- */

/* The types of a, b and c. */
static const enum dtype types[][3] = {
    {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16}, {DTYPE_BF16, DTYPE_BF16, DTYPE_F32},
    {DTYPE_F16, DTYPE_F16, DTYPE_F16},    {DTYPE_F16, DTYPE_F16, DTYPE_F32},
    {DTYPE_BF16, DTYPE_F32, DTYPE_BF16},  {DTYPE_BF16, DTYPE_F32, DTYPE_F32},
    {DTYPE_F32, DTYPE_BF16, DTYPE_F32},   {DTYPE_F16, DTYPE_F32, DTYPE_F16},
    {DTYPE_F32, DTYPE_F32, DTYPE_BF16},   {DTYPE_F32, DTYPE_F32, DTYPE_F16}};

/* {m, n, k}: small products, tiles with odd edges, several tiles, several blocks of k. */
static const uint32_t shapes[][3] = {{1, 1, 1},      {1, 65, 384},    {3, 2, 15},      {15, 300, 385},
                                     {200, 10, 769}, {130, 15, 33},   {16, 16, 1},     {17, 19, 3},
                                     {65, 33, 63},   {129, 385, 130}, {300, 200, 10},  {130, 130, 770},
                                     {600, 97, 20},  {16, 1023, 40},  {128, 1024, 130}};

/* The ways in which the linear ops transpose and accumulate. */
static const struct {
    bool a_trans, b_trans, accumulate;
} forms[] = {{false, true, false}, {false, false, false}, {true, false, false}, {true, false, true}};

/* A product and its arrays. make_product makes it with random operands, and free_product frees the arrays. */
struct product {
    struct gemm g;
    struct array a, b, c;
};

static struct product make_product(const enum dtype *type, const uint32_t *shape, uint32_t form, size_t shift)
{
    uint32_t m = shape[0], n = shape[1], k = shape[2];
    struct product p = {.a = random_array(type[0], (size_t)m * k, shift, 1),
                        .b = random_array(type[1], (size_t)k * n, 3 * shift, 2),
                        .c = random_array(type[2], (size_t)m * n, 5 * shift, 3)};

    p.g = (struct gemm){.a = p.a.at,
                        .b = p.b.at,
                        .c = p.c.at,
                        .a_type = type[0],
                        .b_type = type[1],
                        .c_type = type[2],
                        .m = m,
                        .n = n,
                        .k = k,
                        .a_trans = forms[form].a_trans,
                        .b_trans = forms[form].b_trans,
                        .accumulate = forms[form].accumulate};
    return p;
}

static void free_product(struct product *p)
{
    free_array(&p->a);
    free_array(&p->b);
    free_array(&p->c);
}

static bool is_form_of(uint32_t form, const enum dtype *type)
{
    return !forms[form].accumulate || type[2] == DTYPE_F32;
}

/* Calls `check` for every combination of types, shape and form. */
static void for_all_products(void (*check)(const enum dtype *type, const uint32_t *shape, uint32_t form))
{
    for (size_t t = 0; t < COUNT(types); t++)
        for (size_t s = 0; s < COUNT(shapes); s++)
            for (uint32_t f = 0; f < COUNT(forms); f++)
                if (is_form_of(f, types[t]))
                    check(types[t], shapes[s], f);
}

/* Compares c with the product in double precision. `old` is the value of c before, or NULL. */
static void check_against_double(const struct product *p, const float *old)
{
    float *a = floats_of(&p->a), *b = floats_of(&p->b);
    double *da = ref_to_double(a, p->a.n), *db = ref_to_double(b, p->b.n);
    double *want = malloc(p->c.n * sizeof *want), *size = malloc(p->c.n * sizeof *size);

    assert_true(want && size);
    ref_matmul(&(struct ref_matmul){.a = da,
                                    .b = db,
                                    .m = p->g.m,
                                    .n = p->g.n,
                                    .k = p->g.k,
                                    .a_trans = p->g.a_trans,
                                    .b_trans = p->g.b_trans},
               want, size);
    for (size_t i = 0; i < p->c.n; i++) {
        double before = old ? (double)old[i] : 0;
        assert_rounded(p->c.type, element(&p->c, i), before + want[i],
                       (p->g.k + 2.0) * EPS * (size[i] + fabs(before)));
    }
    free(a);
    free(b);
    free(da);
    free(db);
    free(want);
    free(size);
}

static void check_reference(const enum dtype *type, const uint32_t *shape, uint32_t form)
{
    static const enum gemm_variant variants[] = {GEMM_DEFAULT, GEMM_OTHER_COPIES, GEMM_WIDENED};

    for (size_t v = 0; v < COUNT(variants); v++) {
        struct product p = make_product(type, shape, form, 0);
        float *old = forms[form].accumulate ? floats_of(&p.c) : NULL;
        gemm_run_variant(&p.g, variants[v], pools[2]);
        check_against_double(&p, old);
        free(old);
        free_product(&p);
    }
}

static void test_products_match_reference(void **state)
{
    (void)state;
    for_all_products(check_reference);
}

static void check_same_bits(const enum dtype *type, const uint32_t *shape, uint32_t form)
{
    static const struct {
        uint32_t threads;
        size_t shift;
    } ways[] = {{1, 1}, {2, 0}, {3, 3}, {3, 9}};
    static const enum gemm_variant variants[] = {GEMM_DEFAULT, GEMM_WIDENED};

    for (size_t v = 0; v < COUNT(variants); v++) {
        struct product first = make_product(type, shape, form, 0);
        gemm_run_variant(&first.g, variants[v], pools[1]);
        for (size_t i = 0; i < COUNT(ways); i++) {
            struct product p = make_product(type, shape, form, ways[i].shift);
            gemm_run_variant(&p.g, variants[v], pools[ways[i].threads]);
            assert_same_array(&p.c, &first.c);
            free_product(&p);
        }
        free_product(&first);
    }
}

static void test_products_have_same_bits(void **state)
{
    (void)state;
    for_all_products(check_same_bits);
}

/* The product of widened operands has the bits of the product of floats, rounded once. With AVX512 and in
 * small products, the copies that widening makes do not change the bits of the sums. */
static void check_widened(const enum dtype *type, const uint32_t *shape, uint32_t form)
{
    if (strncmp(cpu_numerics(), "avx512", 6) != 0 && shape[0] >= GEMM_SMALL && shape[1] >= GEMM_SMALL)
        return;
    struct product p = make_product(type, shape, form, 0);
    float *a = floats_of(&p.a), *b = floats_of(&p.b), *c = floats_of(&p.c);
    struct array want = make_array(type[2], p.c.n, 0);
    struct gemm floats = p.g;

    floats.a = a;
    floats.b = b;
    floats.c = c;
    floats.a_type = floats.b_type = floats.c_type = DTYPE_F32;
    gemm_run(&floats, pools[2]);
    half_round(type[2], c, want.at, want.n);
    gemm_run_variant(&p.g, GEMM_WIDENED, pools[2]);
    assert_same_array(&p.c, &want);
    free_array(&want);
    free(a);
    free(b);
    free(c);
    free_product(&p);
}

static void test_widened_products_have_bits_of_floats(void **state)
{
    (void)state;
    for_all_products(check_widened);
}

/* A thread that computes products, and the products that it computed. */
struct worker {
    pthread_t thread;
    uint32_t first; /* index of its first shape */
    struct product products[COUNT(shapes)];
};

static void *worker_main(void *arg)
{
    struct worker *w = arg;

    cpu_thread_init();
    for (size_t i = 0; i < COUNT(shapes); i++) {
        size_t s = (w->first + i) % COUNT(shapes);
        gemm_run(&w->products[s].g, pools[3]);
    }
    return NULL;
}

static void test_concurrent_products_have_same_bits(void **state)
{
    static struct worker workers[3];
    (void)state;

    for (uint32_t i = 0; i < COUNT(workers); i++) {
        workers[i].first = 5 * i;
        for (size_t s = 0; s < COUNT(shapes); s++)
            workers[i].products[s] = make_product(types[0], shapes[s], 0, i);
        assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < COUNT(workers); i++)
        pthread_join(workers[i].thread, NULL);
    for (size_t s = 0; s < COUNT(shapes); s++) {
        struct product alone = make_product(types[0], shapes[s], 0, 0);
        gemm_run(&alone.g, pools[1]);
        for (uint32_t i = 0; i < COUNT(workers); i++) {
            assert_same_array(&workers[i].products[s].c, &alone.c);
            free_product(&workers[i].products[s]);
        }
        free_product(&alone);
    }
}

/* A thread keeps only some of the primitives that it made. Products of many shapes have the same bits when
 * their primitives are made again. */
static void test_many_shapes_have_same_bits(void **state)
{
    enum { SHAPES = 300 };
    struct array first[SHAPES];
    (void)state;

    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t i = 0; i < SHAPES; i++) {
            const uint32_t shape[] = {16 + i % 75, 16 + i / 75, 5 + i % 7};
            struct product p = make_product(types[1], shape, i % COUNT(forms), 0);
            gemm_run(&p.g, pools[1]);
            if (round == 0) {
                first[i] = make_array(DTYPE_F32, p.c.n, 0);
                memcpy(first[i].at, p.c.at, p.c.n * sizeof(float));
            } else {
                assert_same_array(&p.c, &first[i]);
                free_array(&first[i]);
            }
            free_product(&p);
        }
}

/* A NaN or an infinite number in one row of a reaches this row of c and no other. */
static void check_special(enum gemm_variant variant, const enum dtype *type, const uint32_t *shape)
{
    struct product p = make_product(type, shape, 0, 0), plain = make_product(type, shape, 0, 0);
    uint32_t m = shape[0], n = shape[1], k = shape[2];

    gemm_run_variant(&plain.g, variant, pools[2]);
    set_element(&p.a, 0, NAN);
    set_element(&p.a, (size_t)(m - 1) * k + k - 1, -INFINITY);
    gemm_run_variant(&p.g, variant, pools[2]);
    for (uint32_t j = 0; j < n; j++) {
        double b = element(&p.b, (size_t)j * k + k - 1), last = element(&p.c, (size_t)(m - 1) * n + j);
        assert_true(isnan(element(&p.c, j)));
        assert_true(b == 0 ? isnan(last) : isinf(last) && (last > 0) == (b < 0));
    }
    assert_memory_equal(p.c.at + n * dtype_size(type[2]), plain.c.at + n * dtype_size(type[2]),
                        (size_t)(m - 2) * n * dtype_size(type[2]));
    free_product(&p);
    free_product(&plain);
}

static void test_products_pass_nan_and_infinity(void **state)
{
    static const uint32_t sizes[][3] = {{7, 130, 400}, {200, 9, 33}, {129, 140, 390}, {20, 17, 1}};
    (void)state;

    for (size_t t = 0; t < COUNT(types); t++)
        for (size_t s = 0; s < COUNT(sizes); s++) {
            check_special(GEMM_DEFAULT, types[t], sizes[s]);
            check_special(GEMM_WIDENED, types[t], sizes[s]);
        }
}

/* A sum that is a float but too large for F16 becomes infinite. */
static void test_large_f16_results_become_infinite(void **state)
{
    static const uint32_t shape[] = {20, 20, 2};
    struct product p = make_product(types[2], shape, 0, 0);
    (void)state;

    set_element(&p.a, 0, 40000), set_element(&p.a, 1, 40000);
    set_element(&p.b, 0, 1), set_element(&p.b, 1, -1);
    set_element(&p.b, 2, -1), set_element(&p.b, 3, -1);
    gemm_run(&p.g, pools[1]);
    assert_true(element(&p.c, 0) == 0);
    assert_true(element(&p.c, 1) == -(double)INFINITY);
    free_product(&p);
}

/* ---- the ops ---- */

/* The types of an op: dtype, w_dtype and y_dtype. */
static const enum dtype op_types[][3] = {
    {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16}, {DTYPE_BF16, DTYPE_BF16, DTYPE_F32},
    {DTYPE_BF16, DTYPE_F32, DTYPE_BF16},  {DTYPE_BF16, DTYPE_F32, DTYPE_F32},
    {DTYPE_F16, DTYPE_F16, DTYPE_F16},    {DTYPE_F16, DTYPE_F16, DTYPE_F32},
    {DTYPE_F16, DTYPE_F32, DTYPE_F16}};

/* {rows, in, out} */
static const uint32_t layers[][3] = {{1, 65, 10},   {9, 385, 300}, {17, 3, 16},
                                     {300, 10, 10}, {70, 65, 600}, {530, 130, 33}};

static void run_op(const struct op_call *call, uint32_t threads)
{
    cpu_ops[call->op](call, pools[threads]);
}

/* Runs linear_fwd with random operands of the given types and writes y to *ret_y. If `z` is not NULL, the op
 * also writes z. */
static void run_linear_fwd(const enum dtype *t, const uint32_t *l, enum act act, uint32_t threads,
                           size_t shift, struct array *z, struct array *ret_y)
{
    struct array x = random_array(t[0], (size_t)l[0] * l[1], shift, 1);
    struct array w = random_array(t[1], (size_t)l[2] * l[1], shift, 2),
                 b = random_array(t[1], l[2], shift, 3);

    *ret_y = make_array(t[2], (size_t)l[0] * l[2], shift);
    run_op(&(struct op_call){.op = OP_linear_fwd,
                             .linear_fwd = {.x = x.at,
                                            .w = w.at,
                                            .b = b.at,
                                            .z = z ? z->at : NULL,
                                            .y = ret_y->at,
                                            .rows = l[0],
                                            .in = l[1],
                                            .out = l[2],
                                            .act = act,
                                            .dtype = t[0],
                                            .w_dtype = t[1],
                                            .y_dtype = t[2]}},
           threads);
    free_array(&x);
    free_array(&w);
    free_array(&b);
}

/* Compares the sums plus bias `z` that linear_fwd wrote with double precision. */
static void check_linear_z(const enum dtype *t, const uint32_t *l, const struct array *z)
{
    struct array x = random_array(t[0], (size_t)l[0] * l[1], 0, 1);
    struct array w = random_array(t[1], (size_t)l[2] * l[1], 0, 2), b = random_array(t[1], l[2], 0, 3);

    for (size_t i = 0; i < z->n; i++) {
        double want = element(&b, i % l[2]), size = fabs(want);
        for (size_t k = 0; k < l[1]; k++) {
            double term = element(&x, i / l[2] * l[1] + k) * element(&w, i % l[2] * l[1] + k);
            want += term;
            size += fabs(term);
        }
        assert_rounded(z->type, element(z, i), want, (l[1] + 3.0) * EPS * size);
    }
    free_array(&x);
    free_array(&w);
    free_array(&b);
}

static void check_linear_fwd(const enum dtype *t, const uint32_t *l)
{
    struct array none, y, y2, z = make_array(t[2], (size_t)l[0] * l[2], 0);

    run_linear_fwd(t, l, ACT_NONE, 2, 0, NULL, &none);
    run_linear_fwd(t, l, ACT_GELU, 1, 0, &z, &y);
    run_linear_fwd(t, l, ACT_GELU, 3, 5, NULL, &y2);
    check_linear_z(t, l, &z);
    assert_same_array(&none, &z); /* without activation, y is what z is with one */
    assert_same_array(&y, &y2);   /* z or not, threads and alignment */
    for (size_t i = 0; i < y.n; i++) {
        double want = ref_act(ACT_GELU, element(&z, i));
        assert_rounded(y.type, element(&y, i), want, 8 * EPS * (fabs(want) + fabs(element(&z, i))));
    }
    free_array(&none);
    free_array(&y);
    free_array(&y2);
    free_array(&z);
}

static void test_linear_fwd_matches_reference(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT(op_types); t++)
        for (size_t l = 0; l < COUNT(layers); l++)
            check_linear_fwd(op_types[t], layers[l]);
}

static void check_linear_bwd_data(const enum dtype *t, const uint32_t *l, bool with_z)
{
    uint32_t rows = l[0], in = l[1], out = l[2];
    struct array dy = random_array(t[0], (size_t)rows * out, 0, 1),
                 w = random_array(t[1], (size_t)out * in, 0, 2);
    struct array z = random_array(t[0], (size_t)rows * in, 0, 3), dx = make_array(t[0], (size_t)rows * in, 0);

    run_op(&(struct op_call){.op = OP_linear_bwd_data,
                             .linear_bwd_data = {.dy = dy.at,
                                                 .w = w.at,
                                                 .z = with_z ? z.at : NULL,
                                                 .dx = dx.at,
                                                 .rows = rows,
                                                 .in = in,
                                                 .out = out,
                                                 .act = with_z ? ACT_GELU : ACT_NONE,
                                                 .dtype = t[0],
                                                 .w_dtype = t[1]}},
           2);
    for (size_t i = 0; i < dx.n; i++) {
        double sum = 0, size = 0, slope = with_z ? ref_act_slope(ACT_GELU, element(&z, i)) : 1;
        for (size_t k = 0; k < out; k++) {
            double term = element(&dy, i / in * out + k) * element(&w, k * in + i % in);
            sum += term;
            size += fabs(term);
        }
        assert_rounded(t[0], element(&dx, i), sum * slope,
                       (out + 2.0) * EPS * size * fabs(slope) + 8 * EPS * fabs(sum));
    }
    free_array(&dy);
    free_array(&w);
    free_array(&z);
    free_array(&dx);
}

static void test_linear_bwd_data_matches_reference(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT(op_types); t++)
        for (size_t l = 0; l < COUNT(layers); l++) {
            check_linear_bwd_data(op_types[t], layers[l], false);
            check_linear_bwd_data(op_types[t], layers[l], true);
        }
}

/* Two micro-batches: the second one is added to the first one, in float. */
static void check_linear_bwd_weight(enum dtype type, const uint32_t *l)
{
    uint32_t rows = l[0], in = l[1], out = l[2];
    struct array dy = random_array(type, (size_t)rows * out, 0, 1),
                 x = random_array(type, (size_t)rows * in, 0, 2);
    struct array dw = make_array(DTYPE_F32, (size_t)out * in, 0);
    struct op_call call = {.op = OP_linear_bwd_weight,
                           .linear_bwd_weight = {.dy = dy.at,
                                                 .x = x.at,
                                                 .dw = (float *)(void *)dw.at,
                                                 .rows = rows,
                                                 .in = in,
                                                 .out = out,
                                                 .dtype = type}};

    run_op(&call, 2);
    call.linear_bwd_weight.accumulate = true;
    run_op(&call, 3);
    for (size_t i = 0; i < dw.n; i++) {
        double sum = 0, size = 0;
        for (size_t k = 0; k < rows; k++) {
            double term = element(&dy, k * out + i / in) * element(&x, k * in + i % in);
            sum += term;
            size += fabs(term);
        }
        assert_rounded(DTYPE_F32, element(&dw, i), 2 * sum, (rows + 2.0) * EPS * 2 * size);
    }
    free_array(&dy);
    free_array(&x);
    free_array(&dw);
}

static void test_linear_bwd_weight_matches_reference(void **state)
{
    (void)state;
    for (size_t l = 0; l < COUNT(layers); l++) {
        check_linear_bwd_weight(DTYPE_BF16, layers[l]);
        check_linear_bwd_weight(DTYPE_F16, layers[l]);
    }
}

static const uint32_t matrices[][2] = {{1, 1}, {3, 16}, {65, 63}, {31, 529}, {5, 1300}, {70, 3300}};

/* The sum of two floats is rounded once, so the result is the rounded exact sum, unless the exact sum is not
 * a float. The op adds in float, too. */
static void check_bias_fwd(const enum dtype *t, uint32_t rows, uint32_t n, bool in_place)
{
    struct array x = random_array(t[0], (size_t)rows * n, 1, 1), b = random_array(t[1], n, 3, 2);
    struct array y = make_array(t[0], x.n, 5), want = make_array(t[0], x.n, 0);

    for (size_t i = 0; i < x.n; i++)
        set_element(&want, i, (float)element(&x, i) + (float)element(&b, i % n));
    run_op(&(struct op_call){.op = OP_bias_fwd,
                             .bias_fwd = {.x = x.at,
                                          .b = b.at,
                                          .y = in_place ? x.at : y.at,
                                          .rows = rows,
                                          .n = n,
                                          .dtype = t[0],
                                          .w_dtype = t[1]}},
           2);
    assert_same_array(in_place ? &x : &y, &want);
    free_array(&x);
    free_array(&b);
    free_array(&y);
    free_array(&want);
}

static void test_bias_fwd_rounds_the_sum(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT(op_types); t++)
        for (size_t i = 0; i < COUNT(matrices); i++) {
            check_bias_fwd(op_types[t], matrices[i][0], matrices[i][1], false);
            check_bias_fwd(op_types[t], matrices[i][0], matrices[i][1], true);
        }
}

static void run_bias_bwd(const void *dy, enum dtype type, float *db, uint32_t rows, uint32_t n,
                         uint32_t threads)
{
    struct op_call call = {
        .op = OP_bias_bwd,
        .bias_bwd = {.dy = dy, .db = db, .rows = rows, .n = n, .accumulate = true, .dtype = type}};
    run_op(&call, threads);
}

/* The op on 16-bit numbers gives the bits that it gives on the same numbers as floats. */
static void test_bias_bwd_has_bits_of_floats(void **state)
{
    static const enum dtype halves[] = {DTYPE_BF16, DTYPE_F16};
    (void)state;

    for (size_t t = 0; t < COUNT(halves); t++)
        for (size_t i = 0; i < COUNT(matrices); i++) {
            uint32_t rows = matrices[i][0], n = matrices[i][1];
            struct array dy = random_array(halves[t], (size_t)rows * n, 3, 1);
            struct array db = random_array(DTYPE_F32, n, 0, 2), want = random_array(DTYPE_F32, n, 0, 2);
            float *floats = floats_of(&dy);
            run_bias_bwd(dy.at, halves[t], (float *)(void *)db.at, rows, n, 3);
            run_bias_bwd(floats, DTYPE_F32, (float *)(void *)want.at, rows, n, 1);
            assert_same_array(&db, &want);
            free(floats);
            free_array(&dy);
            free_array(&db);
            free_array(&want);
        }
}

/* The numerics of BF16 jobs name the instruction set if and only if the products depend on it. */
static void test_numerics_name_bf16_products(void **state)
{
    (void)state;
    print_message("# %s\n", cpu_numerics_bf16());
    assert_int_equal(strcmp(cpu_numerics(), cpu_numerics_bf16()) != 0, gemm_bf16_in_hardware());
    assert_null(strstr(cpu_numerics(), "bf16"));
    assert_int_equal(strstr(cpu_numerics_bf16(), "bf16 oneDNN ") != NULL, gemm_bf16_in_hardware());
}

static int begin(void **state)
{
    (void)state;
    cpu_thread_init();
    for (uint32_t key = 0; key < KEYS; key++) {
        random_numbers[key] = malloc(RANDOM_NUMBERS * sizeof(float));
        if (!random_numbers[key])
            return -1;
        ref_fill(random_numbers[key], RANDOM_NUMBERS, key, 1);
    }
    for (uint32_t n = 1; n <= 3; n++)
        if (pool_create(n, &pools[n]) < 0)
            return -1;
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (uint32_t key = 0; key < KEYS; key++)
        free(random_numbers[key]);
    for (uint32_t n = 1; n <= 3; n++)
        pool_destroy(pools[n]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_match_reference),
        cmocka_unit_test(test_products_have_same_bits),
        cmocka_unit_test(test_widened_products_have_bits_of_floats),
        cmocka_unit_test(test_concurrent_products_have_same_bits),
        cmocka_unit_test(test_many_shapes_have_same_bits),
        cmocka_unit_test(test_products_pass_nan_and_infinity),
        cmocka_unit_test(test_large_f16_results_become_infinite),
        cmocka_unit_test(test_linear_fwd_matches_reference),
        cmocka_unit_test(test_linear_bwd_data_matches_reference),
        cmocka_unit_test(test_linear_bwd_weight_matches_reference),
        cmocka_unit_test(test_bias_fwd_rounds_the_sum),
        cmocka_unit_test(test_bias_bwd_has_bits_of_floats),
        cmocka_unit_test(test_numerics_name_bf16_products),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
