/* Tests every op of the cpu backend on the cases of op_cases.h. Results are compared with double precision.
 * Then the op runs again with 1, 2 and 3 threads, with every array shifted from its alignment, and on two
 * threads at once. The bits must be the same every time. Each op runs with all its types. op_ranges must name
 * every byte that an op touches, and nothing else.
 *
 * The bits of some ops are defined by their source alone. A hash over all their cases with floats pins these
 * bits, and another hash those of the cases with 16-bit types. So all compilers, instruction sets and
 * sanitizers must agree. The bits of the other ops (golden 0) depend on oneDNN or on the C library's log.
 */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/vmath.h"
#include "op_cases.h"
#include "reference.h"
#include "tests/skip.h"

/* ---- running them ---- */

static struct pool *pools[4]; /* pools[n]: of n threads */

static void run(enum op op, uint32_t number, size_t shift, struct pool *pool, struct tape *t,
                struct op_call *call)
{
    op_build(op, number, shift, t, call);
    cpu_ops[op](call, pool);
}

static void test_op_matches_reference(void **state)
{
    enum op op = (enum op)(uintptr_t)*state;

    for (uint32_t v = 0; v < op_case_count(op); v++) {
        struct tape before, after;
        struct op_call in, out;
        op_build(op, v, 0, &before, &in);
        run(op, v, 0, pools[2], &after, &out);
        tape_check_guards(&after);
        op_tests[op]->check(&in, &out);
        tape_finish(&before);
        tape_finish(&after);
    }
}

static uint64_t hash_outputs(const struct tape *t, uint64_t hash)
{
    for (uint32_t i = 0; i < t->n_out; i++)
        for (size_t b = 0; !t->out[i].scratch && b < t->out[i].bytes; b++)
            hash = (hash ^ ((const unsigned char *)t->out[i].at)[b]) * UINT64_C(0x100000001b3); /* FNV-1a */
    return hash;
}

/* Runs the cases begin, ..., end - 1 and returns a hash of their results, or 0 if there are none. */
static uint64_t hash_cases(enum op op, uint32_t begin, uint32_t end)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (uint32_t c = begin; c < end; c++) {
        struct tape t;
        struct op_call call;
        run(op, c, 0, pools[2], &t, &call);
        hash = hash_outputs(&t, hash);
        tape_finish(&t);
    }
    return begin < end ? hash : 0;
}

static void test_op_has_golden_bits(void **state)
{
    enum op op = (enum op)(uintptr_t)*state;
    const struct op_test *test = op_tests[op];

    if (test->golden == 0)
        SKIP_TEST("its bits depend on a library");
    const uint64_t hash = hash_cases(op, 0, test->variants),
                   hash_16 = hash_cases(op, test->variants, op_case_count(op));
    if (hash != test->golden)
        fail_msg("%s: the hash of all cases with floats is 0x%016llx", op_names[op],
                 (unsigned long long)hash);
    if (hash_16 != test->golden_16)
        fail_msg("%s: the hash of all other cases is 0x%016llx", op_names[op], (unsigned long long)hash_16);
}

static void test_op_has_same_bits(void **state)
{
    static const struct {
        uint32_t threads;
        size_t shift;
    } ways[] = {{1, 2}, {2, 0}, {3, 12}, {3, 34}}; /* arrays of floats are shifted by 4, 0, 12 and 36 */
    enum op op = (enum op)(uintptr_t)*state;

    for (uint32_t v = 0; v < op_case_count(op); v++) {
        struct tape first;
        struct op_call call;
        run(op, v, 0, pools[1], &first, &call);
        for (size_t i = 0; i < COUNT(ways); i++) {
            struct tape t;
            run(op, v, ways[i].shift, pools[ways[i].threads], &t, &call);
            assert_same_outputs(&first, &t);
            tape_finish(&t);
        }
        tape_finish(&first);
    }
}

static bool is_output(const struct tape *t, const struct op_range *r)
{
    for (uint32_t i = 0; i < t->n_out; i++)
        if (t->out[i].at == r->at && t->out[i].bytes == r->bytes)
            return true;
    return false;
}

static bool is_end_of_range(const unsigned char *end, const struct op_range *ranges, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if ((const unsigned char *)ranges[i].at + ranges[i].bytes == end)
            return true;
    return false;
}

/* op_ranges must return one range for each array, with the same end as the array, and mark exactly the
 * outputs as written. Then the op runs on a copy of the ranges alone. It must give the same bits and must
 * write nothing outside the ranges. */
static void test_op_has_ranges(void **state)
{
    enum { REGION_BYTES = 48 << 20 };
    enum op op = (enum op)(uintptr_t)*state;
    unsigned char *built = malloc(REGION_BYTES), *bare = malloc(REGION_BYTES);

    assert_true(built && bare);
    for (uint32_t v = 0; v < op_case_count(op); v++) {
        struct tape t;
        struct op_call call;
        struct op_range ranges[OP_RANGES];
        uint32_t n, n_out = 0;
        op_build_in(op, v, built, REGION_BYTES, &t, &call);
        n = op_ranges(&call, ranges);
        assert_int_equal(n, t.n);
        memset(bare, 0xff, t.region_used);
        for (uint32_t i = 0; i < n; i++) {
            assert_true(is_end_of_range(t.mem[i].end, ranges, n));
            assert_int_equal(ranges[i].write, is_output(&t, &ranges[i]));
            n_out += ranges[i].write;
            memcpy(bare + ((const unsigned char *)ranges[i].at - built), ranges[i].at, ranges[i].bytes);
        }
        assert_int_equal(n_out, t.n_out);
        const struct op_call moved = op_move(&call, built, t.region_used, bare);
        cpu_ops[op](&call, pools[1]);
        cpu_ops[op](&moved, pools[1]);
        for (uint32_t i = 0; i < n; i++) {
            unsigned char *at = bare + ((const unsigned char *)ranges[i].at - built);
            assert_memory_equal(at, ranges[i].at, ranges[i].bytes);
            memset(at, 0xff, ranges[i].bytes);
        }
        for (size_t i = 0; i < t.region_used; i++)
            if (bare[i] != 0xff)
                fail_msg("%s, case %u: byte %zu is in no range and was written", op_names[op], v, i);
    }
    free(built);
    free(bare);
}

/* Sets type number `i` of a call to `dtype`. */
static void set_type(struct op_call *call, uint32_t i, enum dtype dtype)
{
    memcpy((char *)call + op_dtypes[call->op].at[i], &dtype, sizeof dtype);
}

/* Each type of an op decides about the size of at least one array, and no two types about the same array. The
 * call that is changed here has 32-bit types, so an array of a 16-bit type has half as many bytes. Only ops
 * without arrays of different types have no types. */
static void test_op_has_types(void **state)
{
    enum op op = (enum op)(uintptr_t)*state;
    struct op_range before[OP_RANGES], after[OP_RANGES];
    struct op_call call;
    struct tape t;

    assert_int_equal(op_dtypes[op].n == 0,
                     op == OP_decide || op == OP_norm_add || op == OP_sumsq || op == OP_zero);
    op_build(op, op_tests[op]->variants - 1, 0, &t, &call);
    const uint32_t n = op_ranges(&call, before);
    uint32_t halved[OP_RANGES] = {0};
    for (uint32_t i = 0; i < op_dtypes[op].n; i++) {
        struct op_call other = call;
        uint32_t changed = 0;
        set_type(&other, i, DTYPE_BF16);
        assert_int_equal(op_ranges(&other, after), n);
        for (uint32_t r = 0; r < n; r++) {
            halved[r] += after[r].bytes == before[r].bytes / 2;
            changed += after[r].bytes == before[r].bytes / 2;
            assert_true(after[r].bytes == before[r].bytes / 2 || after[r].bytes == before[r].bytes);
        }
        assert_true(changed > 0);
        assert_true(op_has_only(&call, 1u << DTYPE_F32));
        assert_false(op_has_only(&other, 1u << DTYPE_F32));
    }
    for (uint32_t r = 0; r < n; r++)
        assert_true(halved[r] <= 1);
    tape_finish(&t);
}

/* Two threads walk through all the ops at once, on one pool, in opposite directions. */
struct walk {
    pthread_t thread;
    bool backwards;
    struct tape (*tapes)[4]; /* of four cases of each op */
};

/* The last cases of each op, which are the large ones: two with floats and two with other types, if there are
 * any. */
static uint32_t walk_case(enum op op, uint32_t i)
{
    uint32_t n = i % 2 ? op_case_count(op) : op_tests[op]->variants;
    return n > 4 ? n - 1 - i : i % n;
}

static void *walk_main(void *arg)
{
    struct walk *w = arg;
    cpu_thread_init();
    for (int i = 0; i < OP_COUNT; i++) {
        enum op op = (enum op)(w->backwards ? OP_COUNT - 1 - i : i);
        for (uint32_t v = 0; v < 4; v++) {
            struct op_call call;
            run(op, walk_case(op, v), w->backwards ? 4 : 0, pools[3], &w->tapes[op][v], &call);
        }
    }
    return NULL;
}

static void test_concurrent_ops_have_same_bits(void **state)
{
    struct walk walks[2] = {{.backwards = false}, {.backwards = true}};
    (void)state;

    for (int i = 0; i < 2; i++) {
        walks[i].tapes = calloc(OP_COUNT, sizeof *walks[i].tapes);
        assert_non_null(walks[i].tapes);
        assert_int_equal(pthread_create(&walks[i].thread, NULL, walk_main, &walks[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(walks[i].thread, NULL);
    for (int op = 0; op < OP_COUNT; op++)
        for (uint32_t v = 0; v < 4; v++) {
            struct tape alone;
            struct op_call call;
            run((enum op)op, walk_case((enum op)op, v), 0, pools[1], &alone, &call);
            for (int i = 0; i < 2; i++) {
                tape_check_guards(&walks[i].tapes[op][v]);
                assert_same_outputs(&alone, &walks[i].tapes[op][v]);
                tape_finish(&walks[i].tapes[op][v]);
            }
            tape_finish(&alone);
        }
    for (int i = 0; i < 2; i++)
        free(walks[i].tapes);
}

/* ---- matrix products: the definition of gemm.h ---- */

static float chain_element(const struct gemm *g, uint32_t i, uint32_t j, float old)
{
    const float *a = g->a, *b = g->b;
    float sum = g->accumulate ? old : 0.0f;
    for (uint32_t k0 = 0; k0 < g->k; k0 += GEMM_K_BLOCK) {
        uint32_t k1 = g->k - k0 < GEMM_K_BLOCK ? g->k : k0 + GEMM_K_BLOCK;
        float block = 0;
        for (uint32_t k = k0; k < k1; k++)
            block = fmaf(a[g->a_trans ? (size_t)k * g->m + i : (size_t)i * g->k + k],
                         b[g->b_trans ? (size_t)j * g->k + k : (size_t)k * g->n + j], block);
        sum = k0 == 0 && !g->accumulate ? block : sum + block;
    }
    return sum;
}

static void run_default(const struct gemm *g)
{
    gemm_run_variant(g, GEMM_DEFAULT, pools[2]);
}

static void run_other(const struct gemm *g)
{
    gemm_run_variant(g, GEMM_OTHER_COPIES, pools[2]);
}

static void run_small_plain(const struct gemm *g)
{
    gemm_small_run(g, GEMM_PLAIN, pools[2]);
}

static void run_small_avx2(const struct gemm *g)
{
    gemm_small_run(g, GEMM_AVX2, pools[2]);
}

/* c must hold the definition's bits. Of large products a sample: every row and column takes part. */
static void check_chain(void (*run_gemm)(const struct gemm *g), struct gemm g)
{
    size_t n = (size_t)g.m * g.n;
    float *a = malloc((size_t)g.m * g.k * sizeof *a), *b = malloc((size_t)g.k * g.n * sizeof *b);
    float *c = malloc(n * sizeof *c), *old = malloc(n * sizeof *old);

    ref_fill(a, (uint64_t)g.m * g.k, 1, 1);
    ref_fill(b, (uint64_t)g.k * g.n, 2, 1);
    ref_fill(old, n, 3, 1);
    memcpy(c, old, n * sizeof *c);
    g.a = a;
    g.b = b;
    g.c = c;
    run_gemm(&g);

    size_t samples = 64 + 150000 / g.k;
    for (size_t i = 0; i < n && i < samples; i++) {
        size_t at = samples >= n ? i : rng_philox(3, (uint32_t)i, 0, rng_word2(RNG_TEST, 2), 0).v[0] % n;
        float want = chain_element(&g, (uint32_t)(at / g.n), (uint32_t)(at % g.n), old[at]);
        if (memcmp(&c[at], &want, sizeof want) != 0)
            fail_msg("m %u n %u k %u a_trans %d b_trans %d: element %zu is not the chain", g.m, g.n, g.k,
                     g.a_trans, g.b_trans, at);
    }
    free(a);
    free(b);
    free(c);
    free(old);
}

static void check_chain_all_forms(void (*run_gemm)(const struct gemm *g), uint32_t m, uint32_t n, uint32_t k)
{
    check_chain(run_gemm, (struct gemm){.m = m, .n = n, .k = k, .b_trans = true});
    check_chain(run_gemm, (struct gemm){.m = m, .n = n, .k = k});
    check_chain(run_gemm, (struct gemm){.m = m, .n = n, .k = k, .a_trans = true});
    check_chain(run_gemm, (struct gemm){.m = m, .n = n, .k = k, .a_trans = true, .accumulate = true});
}

static void check_small_shapes(void (*run_gemm)(const struct gemm *g))
{
    for (uint32_t i = 0; i < N_PRODUCTS; i++) {
        const uint32_t *p = products[i];
        if (p[0] < GEMM_SMALL || p[2] < GEMM_SMALL)
            check_chain_all_forms(run_gemm, p[0], p[2], p[1]);
    }
    for (uint32_t n = 1; n < GEMM_SMALL; n++) {
        check_chain_all_forms(run_gemm, 129 + n, n, 385);
        check_chain_all_forms(run_gemm, n, 129 + n, 3 * n);
    }
}

static void test_small_gemm_is_fma_chain_on_every_isa(void **state)
{
    (void)state;
    check_small_shapes(run_default);
    check_small_shapes(run_small_plain);
    if (gemm_small_best() >= GEMM_AVX2)
        check_small_shapes(run_small_avx2);
}

/* Operands with gaps between rows, a either way round, and the rest of c's rows untouched. */
static void check_gemm_rows(enum gemm_isa isa, uint32_t n, uint32_t k, bool a_trans, bool accumulate)
{
    size_t lda = a_trans ? GEMM_ROWS + 3 : k + 3, ldb = n + 5, ldc = n + 7;
    size_t n_a = (a_trans ? k : GEMM_ROWS) * lda, n_b = k * ldb, n_c = GEMM_ROWS * ldc;
    float *a = malloc(n_a * sizeof *a), *b = malloc(n_b * sizeof *b), *c = malloc(n_c * sizeof *c),
          *old = malloc(n_c * sizeof *c);

    ref_fill(a, n_a, 1, 1);
    ref_fill(b, n_b, 2, 1);
    ref_fill(old, n_c, 3, 1);
    memcpy(c, old, n_c * sizeof *c);
    struct gemm_rows g = {.a = a,
                          .b = b,
                          .c = c,
                          .a_i = a_trans ? 1 : lda,
                          .a_k = a_trans ? lda : 1,
                          .ldb = ldb,
                          .ldc = ldc,
                          .n = n,
                          .k = k,
                          .accumulate = accumulate};
    gemm_rows_run(&g, isa);
    for (size_t i = 0; i < GEMM_ROWS; i++)
        for (size_t j = 0; j < ldc; j++) {
            float sum = 0;
            for (size_t l = 0; l < k && j < n; l++)
                sum = fmaf(a[i * g.a_i + l * g.a_k], b[l * ldb + j], sum);
            assert_bits(c[i * ldc + j], j >= n       ? old[i * ldc + j]
                                        : accumulate ? old[i * ldc + j] + sum
                                                     : sum);
        }
    free(a);
    free(b);
    free(c);
    free(old);
}

static void test_gemm_rows_is_fma_chain_on_every_isa(void **state)
{
    static const uint32_t shapes[][2] = {{16, 1},   {32, 64},  {48, 20},
                                         {128, 64}, {64, 128}, {16, 385}}; /* n, k */
    (void)state;
    for (int isa = GEMM_PLAIN; isa <= (int)gemm_small_best(); isa++)
        for (uint32_t i = 0; i < COUNT(shapes); i++)
            for (int form = 0; form < 4; form++)
                check_gemm_rows((enum gemm_isa)isa, shapes[i][0], shapes[i][1], form & 1, form & 2);
}

static void check_large_shapes(void (*run_gemm)(const struct gemm *g))
{
    for (uint32_t i = 0; i < N_PRODUCTS; i++)
        check_chain_all_forms(run_gemm, products[i][0], products[i][2], products[i][1]);
    check_chain_all_forms(run_gemm, 16, 1023, 40); /* a tile of 527 columns, the widest there is */
    check_chain_all_forms(run_gemm, 300, 1535, 390);
    check_chain_all_forms(run_gemm, 1024, 2048,
                          900); /* rows far apart: both operands are copied, in three blocks of k, */
    check_chain_all_forms(run_gemm, 3072, 144, 128); /* one of them, */
    check_chain_all_forms(run_gemm, 130, 3072, 385);
    check_chain_all_forms(run_gemm, 1024, 1024, 127); /* none */
    for (uint32_t i = 0; i < 60; i++) {
        struct rng_block r = rng_philox(7, i, 0, rng_word2(RNG_TEST, 1), 0);
        check_chain_all_forms(run_gemm, 16 + r.v[0] % 500, 16 + r.v[1] % 900,
                              1 + r.v[2] % (i % 2 ? 1200 : 64));
    }
}

static void test_gemm_on_avx512_is_fma_chain_in_both_ways(void **state)
{
    (void)state;
    if (strncmp(cpu_numerics(), "avx512", 6) != 0)
        SKIP_TEST("no AVX512 here: the library's order of summation is its own");
    check_large_shapes(run_default);
    check_large_shapes(run_other);
}

/* ---- exp and tanh, and values that are not finite ---- */

static void test_exp_is_within_1_5_ulp(void **state)
{
    double worst = 0;
    (void)state;
    for (float x = -80; x <= 80; x += 2.3e-4f) {
        double e = ref_ulps(vmath_exp(x), exp((double)x));
        worst = e > worst ? e : worst;
    }
    print_message("# exp: %.2f ulp\n", worst);
    assert_true(worst <= 1.5);
    assert_true(vmath_exp(0) == 1);
    assert_true(vmath_exp(-1000) == vmath_exp(-80) && vmath_exp(-INFINITY) > FLT_MIN);
    assert_true(vmath_exp(1000) == vmath_exp(80));
    assert_true(isnan(vmath_exp(NAN)));
}

static void test_tanh_is_within_3_ulp(void **state)
{
    double worst = 0;
    (void)state;
    for (float x = 1e-30f; x < 100; x *= 1.00003f) {
        double e = ref_ulps(vmath_tanh(x), tanh((double)x));
        worst = e > worst ? e : worst;
        assert_true(vmath_tanh(-x) == -vmath_tanh(x));
    }
    print_message("# tanh: %.2f ulp\n", worst);
    assert_true(worst <= 3);
    assert_true(vmath_tanh(INFINITY) == 1 && vmath_tanh(-INFINITY) == -1);
    assert_true(isnan(vmath_tanh(NAN)));
}

static double worst_act_ulps(enum act act, float (*function)(float x), float most)
{
    double worst = 0;
    for (float x = -most; x <= most; x += most * 1e-6f) {
        double e = ref_ulps(function(x), ref_act(act, (double)x));
        worst = e > worst ? e : worst;
    }
    print_message("# %s: %.2f ulp\n", act_names[act], worst);
    return worst;
}

static float gelu_erf(float x)
{
    return vmath_gelu_erf(x);
}

static float silu(float x)
{
    return vmath_silu(x);
}

/* Where they are not 0 or x: negative results are small, and as good as any. */
static void test_gelu_erf_and_silu_are_within_6_ulp(void **state)
{
    (void)state;
    assert_true(worst_act_ulps(ACT_GELU_ERF, gelu_erf, 12.59f) <= 6);
    assert_true(worst_act_ulps(ACT_GELU_ERF, gelu_erf, 0.01f) <= 6);
    assert_true(worst_act_ulps(ACT_SILU, silu, 80) <= 4);
}

static void test_activations_pass_extreme_values(void **state)
{
    (void)state;
    for (int act = 0; act < ACT_COUNT; act++) {
        float x[] = {NAN, INFINITY, 1e30f, -1e30f, 3e38f, -3e38f, -100, 100, -0.0f, 1e-40f};
        float y[COUNT(x)], dx[COUNT(x)], dy[COUNT(x)];
        for (uint32_t i = 0; i < COUNT(x); i++)
            dy[i] = 2;
        struct op_call fwd = {.op = OP_act_fwd, .act_fwd = {x, y, COUNT(x), (enum act)act}};
        struct op_call bwd = {.op = OP_act_bwd, .act_bwd = {x, dy, dx, COUNT(x), (enum act)act}};
        cpu_ops[OP_act_fwd](&fwd, pools[1]);
        cpu_ops[OP_act_bwd](&bwd, pools[1]);
        assert_true(isnan(y[0]));
        for (uint32_t i = 1; i < COUNT(x); i++) {
            double want = ref_act((enum act)act, (double)x[i]);
            assert_true(y[i] == (float)want || fabs((double)y[i] - want) < 1e-38);
            assert_true(fabs((double)dx[i] -
                             2 * ref_act_slope((enum act)act, fmax(-99, fmin(99, (double)x[i])))) < 1e-6);
        }
    }
}

static void run_xent(const float *x, uint32_t n, int32_t target, struct step_result *result, float *dx)
{
    struct step_args step = {.grad_scale = 1, .valid_rows = 1};
    struct op_call fwd = {
        .op = OP_softmax_xent,
        .step = &step,
        .softmax_xent = {.x = x, .target = &target, .result = result, .rows = 1, .n = n, .seq = 1}};
    struct op_call bwd = {.op = OP_softmax_xent,
                          .step = &step,
                          .softmax_xent = {.x = x, .target = &target, .dx = dx, .rows = 1, .n = n, .seq = 1}};
    cpu_ops[OP_softmax_xent](&fwd, pools[1]);
    cpu_ops[OP_softmax_xent](&bwd, pools[1]);
}

static void test_nan_logits_give_nan_loss(void **state)
{
    static const float bad[] = {NAN, INFINITY};
    (void)state;
    for (uint32_t n = 1; n < 40; n++)
        for (uint32_t at = 0; at < n; at++)
            for (uint32_t b = 0; b < COUNT(bad); b++) {
                float x[40] = {0}, dx[40];
                struct step_result result;
                x[at] = bad[b];
                run_xent(x, n, (int32_t)(n / 2), &result, dx);
                assert_true(isnan(result.loss));
                assert_true(result.correct == 0);
                assert_true(isnan(dx[at]));
            }
}

static void test_extreme_logits_give_finite_loss(void **state)
{
    float x[3] = {3e38f, -3e38f, -INFINITY}, dx[3];
    struct step_result result;
    (void)state;

    run_xent(x, 3, 0, &result, dx);
    assert_true(result.loss == 0 && result.correct == 1);
    assert_true(dx[0] == 0);
    run_xent(x, 3, 1, &result, dx);
    assert_true(isfinite(result.loss) && result.loss > 1e38 && result.correct == 0);
}

static void test_equal_logits_count_the_first(void **state)
{
    float x[4] = {1, 2, 2, 0}, dx[4];
    struct step_result result;
    (void)state;

    run_xent(x, 4, 1, &result, dx);
    assert_true(result.correct == 1);
    run_xent(x, 4, 2, &result, dx);
    assert_true(result.correct == 0);
}

static void test_nan_gradient_leaves_weights(void **state)
{
    float w[3] = {1, 2, 3}, dw[3] = {0, NAN, 0}, m[3] = {0}, v[3] = {0};
    struct step_args step = {.lr = 1};
    struct step_decision decision;
    struct group_state group = {.t = 3};
    double sum;
    (void)state;

    struct op_call calls[] = {
        {.op = OP_sumsq, .sumsq = {.g = {.dw = {dw}, .n = 1}, .sum = &sum, .n = 3}},
        {.op = OP_norm_add, .norm_add = {&sum, &decision, true}},
        {.op = OP_decide, .decide = {&decision, &group, 1, 0.9f, 0.999f}},
        {.op = OP_adamw,
         .step = &step,
         .adamw = {w, NULL, {.dw = {dw}, .n = 1}, m, v, &group, 3, 0.9f, 0.999f, 1e-8f, 0.1f}},
    };
    for (uint32_t i = 0; i < COUNT(calls); i++)
        cpu_ops[calls[i].op](&calls[i], pools[2]);
    assert_int_equal(decision.apply, 0);
    assert_int_equal(group.t, 3);
    assert_true(w[0] == 1 && w[1] == 2 && w[2] == 3);
    assert_true(m[0] == 0 && v[1] == 0);
}

/* Trains the weight of a norm, which begins at 1, with gradient 1 at the learning rate 1e-5. A single step is
 * too small for BF16: 1 - 1e-5 rounds to 1. So a BF16 weight that is updated in place never moves. */
static void test_small_updates_reach_bf16_weights(void **state)
{
    struct step_args step = {.lr = 1e-5f};
    uint16_t w = bf16_from_float(1), in_place = w;
    float master = 1, dw = 1;
    struct op_call call = {
        .op = OP_sgd,
        .step = &step,
        .sgd = {.w = &w, .master = &master, .g = {.dw = {&dw}, .n = 1}, .n = 1, .dtype = DTYPE_BF16}};
    (void)state;

    for (int i = 0; i < 300; i++) {
        cpu_ops[OP_sgd](&call, pools[1]);
        in_place = bf16_from_float(bf16_to_float(in_place) - step.lr * dw);
        assert_true(w == bf16_from_float(master));
        if (i == 0)
            assert_true(master < 1 && bf16_to_float(w) == 1);
    }
    assert_near(master, 1 - 300e-5, 1e-5);
    assert_true(bf16_to_float(w) == 1 - 0x1p-8f); /* the BF16 number nearest to 0.997 */
    assert_true(bf16_to_float(in_place) == 1);
}

/* A norm reads BF16 weights, and its gradient in float updates the master weights by AdamW. */
static void test_norm_weights_move_with_master(void **state)
{
    enum { N = 8 };
    struct step_args step = {.lr = 1e-5f};
    uint16_t x[N], w[N], dy[N], y[N], dx[N];
    float master[N], stats[2], dw[N], m[N] = {0}, v[N] = {0};
    const struct op_call calls[] = {
        {.op = OP_rownorm_fwd,
         .rownorm_fwd = {.x = x,
                         .w = w,
                         .y = y,
                         .stats = stats,
                         .rows = 1,
                         .n = N,
                         .eps = 1e-5f,
                         .rms = true,
                         .dtype = DTYPE_BF16,
                         .w_dtype = DTYPE_BF16}},
        {.op = OP_rownorm_bwd,
         .rownorm_bwd = {.x = x,
                         .w = w,
                         .dy = dy,
                         .stats = stats,
                         .dx = dx,
                         .dw = dw,
                         .rows = 1,
                         .n = N,
                         .rms = true,
                         .dtype = DTYPE_BF16,
                         .w_dtype = DTYPE_BF16}},
        {.op = OP_adamw,
         .step = &step,
         .adamw = {.w = w,
                   .master = master,
                   .g = {.dw = {dw}, .n = 1},
                   .m = m,
                   .v = v,
                   .n = N,
                   .beta1 = 0.9f,
                   .beta2 = 0.999f,
                   .eps = 1e-8f,
                   .dtype = DTYPE_BF16}},
    };
    (void)state;

    for (int i = 0; i < N; i++) {
        x[i] = bf16_from_float((float)(i + 1));
        dy[i] = w[i] = bf16_from_float(1);
        master[i] = 1;
    }
    for (uint32_t c = 0; c < COUNT(calls); c++)
        cpu_ops[calls[c].op](&calls[c], pools[1]);
    for (int i = 0; i < N; i++) {
        assert_true(master[i] < 1);
        assert_true(bf16_to_float(w[i]) == 1);
    }
}

/* Decides about one step with loss scaling. `norm` is the norm of its gradient without the loss scale. */
static void decide_scaled(struct group_state *group, double norm, double clip)
{
    const double scaled = norm * (double)group->loss_scale;
    struct step_decision decision = {.sumsq = scaled * scaled};
    const struct op_call call = {.op = OP_decide,
                                 .decide = {.decision = &decision,
                                            .group = group,
                                            .clip = clip,
                                            .beta1 = 0.9f,
                                            .beta2 = 0.999f,
                                            .growth_steps = 3}};
    cpu_ops[OP_decide](&call, pools[1]);
    assert_int_equal(decision.apply, group->apply);
}

static void test_loss_scale_follows_overflows(void **state)
{
    static const struct {
        double norm;
        float used, next; /* the loss scale of this step and of the next one */
        uint32_t good_steps;
    } steps[] = {{(double)INFINITY, 64, 32, 0},
                 {(double)NAN, 32, 16, 0},
                 {5, 16, 16, 1},
                 {5, 16, 16, 2},
                 {5, 16, 32, 0},
                 {5, 32, 32, 1},
                 {5, 32, 32, 2},
                 {(double)INFINITY, 32, 16, 0},
                 {5, 16, 16, 1},
                 {5, 16, 16, 2},
                 {5, 16, 32, 0}};
    struct group_state group = {.loss_scale = 64};
    uint64_t t = 0;
    (void)state;

    for (uint32_t i = 0; i < COUNT(steps); i++) {
        const bool clean = isfinite(steps[i].norm);
        assert_true(group.loss_scale == steps[i].used);
        decide_scaled(&group, steps[i].norm, 0);
        t += clean;
        assert_int_equal(group.apply, clean);
        assert_int_equal(group.t, t);
        assert_true(group.loss_scale == steps[i].next);
        assert_int_equal(group.good_steps, steps[i].good_steps);
        if (clean)
            assert_true(group.scale == 1 / steps[i].used);
    }
}

/* Without overflows, the loss scale grows up to LOSS_SCALE_MOST and stays there. */
static void test_loss_scale_has_an_end(void **state)
{
    static const float starts[] = {1, 100.1f, LOSS_SCALE_MOST / 2, 0x1.8p31f, LOSS_SCALE_MOST};
    (void)state;

    for (uint32_t i = 0; i < COUNT(starts); i++) {
        struct group_state group = {.loss_scale = starts[i]};
        for (uint32_t step = 0; step < 3 * 140; step++) {
            const float before = group.loss_scale, doubled = before * 2;
            decide_scaled(&group, 0, 0);
            assert_true(group.apply == 1 && group.scale > 0);
            if (step % 3 == 2)
                assert_true(group.loss_scale == (doubled < LOSS_SCALE_MOST ? doubled : LOSS_SCALE_MOST));
            else
                assert_true(group.loss_scale == before);
        }
        assert_true(group.loss_scale == LOSS_SCALE_MOST);
    }
}

static void test_clipping_sees_unscaled_norm(void **state)
{
    struct group_state group = {.loss_scale = 64};
    (void)state;

    decide_scaled(&group, 5, 6);
    assert_true(group.scale == 1.0f / 64);
    decide_scaled(&group, 5, 2);
    assert_bits(group.scale, (float)(2 / (5 + 1e-6) / 64));
}

static void test_add_passes_what_is_no_number(void **state)
{
    static const float pairs[][2] = {{NAN, 1},         {1, NAN},      {NAN, NAN},    {INFINITY, -INFINITY},
                                     {-INFINITY, NAN}, {INFINITY, 1}, {1, -INFINITY}};
    (void)state;

    for (uint32_t i = 0; i < COUNT(pairs); i++) {
        float y = pairs[i][0];
        const struct op_call call = {.op = OP_add, .add = {&y, &pairs[i][1], 1}};
        cpu_ops[OP_add](&call, pools[1]);
        if (i < 5)
            assert_true(isnan(y));
        else
            assert_true(y == (i == 5 ? INFINITY : -INFINITY));
    }
}

static void test_dropout_keeps_number_equal_to_p(void **state)
{
    struct step_args step = {.step = 1, .seed = 2, .training = 1};
    struct rng_block b = rng_philox(2, 0, 3, rng_word2(RNG_DROPOUT, 4), 1);
    float x = 1, y = 0, p = rng_unit(b.v[0]);
    struct op_call call = {
        .op = OP_dropout,
        .step = &step,
        .dropout = {.x = &x, .y = &y, .rows = 1, .n = 1, .layer = 4, .first_row = 3, .p = p}};
    (void)state;

    cpu_ops[OP_dropout](&call, pools[1]);
    assert_bits(y, 1.0f / (1.0f - p));
}

static void test_numerics_names_isa_and_library(void **state)
{
    (void)state;
    print_message("# %s\n", cpu_numerics());
    assert_non_null(strstr(cpu_numerics(), " oneDNN "));
    assert_ptr_equal(cpu_numerics(), cpu_numerics());
}

static int open_pools(void **state)
{
    (void)state;
    cpu_thread_init();
    for (uint32_t n = 1; n <= 3; n++)
        if (pool_create(n, &pools[n]) < 0)
            return -1;
    return 0;
}

static int close_pools(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++)
        pool_destroy(pools[n]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define OP(name)                                                                                             \
    {"test_" #name "_matches_reference", test_op_matches_reference, NULL, NULL,                              \
     (void *)(uintptr_t)OP_##name},                                                                          \
        {"test_" #name "_has_same_bits", test_op_has_same_bits, NULL, NULL, (void *)(uintptr_t)OP_##name},   \
        {"test_" #name "_has_golden_bits", test_op_has_golden_bits, NULL, NULL,                              \
         (void *)(uintptr_t)OP_##name},                                                                      \
        {"test_" #name "_has_ranges", test_op_has_ranges, NULL, NULL, (void *)(uintptr_t)OP_##name},         \
        {"test_" #name "_has_types", test_op_has_types, NULL, NULL, (void *)(uintptr_t)OP_##name},
#include "kernels/ops.def"
#undef OP
        cmocka_unit_test(test_concurrent_ops_have_same_bits),
        cmocka_unit_test(test_small_gemm_is_fma_chain_on_every_isa),
        cmocka_unit_test(test_gemm_rows_is_fma_chain_on_every_isa),
        cmocka_unit_test(test_gemm_on_avx512_is_fma_chain_in_both_ways),
        cmocka_unit_test(test_exp_is_within_1_5_ulp),
        cmocka_unit_test(test_tanh_is_within_3_ulp),
        cmocka_unit_test(test_gelu_erf_and_silu_are_within_6_ulp),
        cmocka_unit_test(test_activations_pass_extreme_values),
        cmocka_unit_test(test_nan_logits_give_nan_loss),
        cmocka_unit_test(test_extreme_logits_give_finite_loss),
        cmocka_unit_test(test_equal_logits_count_the_first),
        cmocka_unit_test(test_nan_gradient_leaves_weights),
        cmocka_unit_test(test_small_updates_reach_bf16_weights),
        cmocka_unit_test(test_norm_weights_move_with_master),
        cmocka_unit_test(test_loss_scale_follows_overflows),
        cmocka_unit_test(test_loss_scale_has_an_end),
        cmocka_unit_test(test_clipping_sees_unscaled_norm),
        cmocka_unit_test(test_add_passes_what_is_no_number),
        cmocka_unit_test(test_dropout_keeps_number_equal_to_p),
        cmocka_unit_test(test_numerics_names_isa_and_library),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
