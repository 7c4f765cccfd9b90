/* Tests the ops of the cuda backend with arrays of 16 bits.
 *
 * Every op runs on the cases of tests/unit/op_cases.h, in BF16 and F16 and in every allowed combination of
 * types. Its inputs are first rounded to the 16-bit type. The reference is the same op on the same device,
 * with the same inputs as floats, followed by one rounding: that is what op.h demands. test_cuda_ops compares
 * the F32 ops with double precision and with the cpu backend.
 *
 * The arrays of a 16-bit call have the same addresses as those of the F32 call. A 16-bit array therefore uses
 * the first half of its place. The test fails if an op writes to the second half, or anywhere else outside
 * the arrays that it may write.
 *
 *     test_cuda_half [--small] [PATTERN]      PATTERN selects tests by name, for example test_rope_*
 *
 * --small leaves out the large matrices, for runs with the race detector.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "tests/cuda/rig.h"
#include "tests/unit/op_cases.h"

#define REGION_BYTES (UINT64_C(80) << 20)
#define CASE_BYTES   (UINT64_C(1) << 17) /* largest case that runs in every combination of types */

static struct devset *ds;
static bool is_simulated; /* then cuBLAS adds in the same order whatever the types are */
static bool is_small;
static unsigned char *host, *other; /* regions of host memory */
static const enum dtype halves[] = {DTYPE_BF16, DTYPE_F16};

/* ---- one number ---- */

static float widened(enum dtype dtype, uint16_t v)
{
    return dtype == DTYPE_BF16 ? bf16_to_float(v) : f16_to_float(v);
}

static uint16_t rounded(enum dtype dtype, float x)
{
    return dtype == DTYPE_BF16 ? bf16_from_float(x) : f16_from_float(x);
}

/* Returns the relative distance of two neighbouring numbers of this type. */
static double spacing(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? 0x1p-7 : 0x1p-10;
}

static bool same_half(enum dtype dtype, uint16_t a, uint16_t b)
{
    return a == b || (isnan(widened(dtype, a)) && isnan(widened(dtype, b)));
}

static float random_float(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f;
}

/* ---- running ---- */

/* Copies `bytes` bytes to the device, runs the calls, and copies the bytes back. */
static void launch_around(const struct op_call *calls, uint32_t n, void *at, uint64_t bytes)
{
    struct event *e = rig_event(ds);

    rig_copy(ds, STREAM(0, LANE_IN), devset_address(ds, 0, 0), at, bytes);
    rig_order(ds, STREAM(0, LANE_IN), STREAM(0, LANE_COMPUTE), e);
    for (uint32_t i = 0; i < n; i++)
        rig_launch(ds, STREAM(0, LANE_COMPUTE), &calls[i]);
    rig_order(ds, STREAM(0, LANE_COMPUTE), STREAM(0, LANE_OUT), e);
    rig_copy(ds, STREAM(0, LANE_OUT), at, devset_address(ds, 0, 0), bytes);
    rig_drain(ds);
    event_destroy(ds, e);
}

/* ---- every op in every combination of types ---- */

static void set_type(struct op_call *call, uint32_t field, enum dtype dtype)
{
    memcpy((char *)call + op_dtypes[call->op].at[field], &dtype, sizeof dtype);
}

static enum dtype type_of(const struct op_call *call, uint32_t field)
{
    enum dtype dtype;

    memcpy(&dtype, (const char *)call + op_dtypes[call->op].at[field], sizeof dtype);
    return dtype;
}

/* Sets the types of a call: field f is `half` if bit f of `mask` is set, and F32 otherwise. Returns false
 * if op.h does not allow this combination. */
static bool set_types(struct op_call *call, uint32_t mask, enum dtype half)
{
    for (uint32_t f = 0; f < op_dtypes[call->op].n; f++)
        set_type(call, f, mask >> f & 1 ? half : DTYPE_F32);
    if (call->op == OP_softmax_xent && mask != 3 && call->softmax_xent.x == call->softmax_xent.dx)
        return false; /* in place, which needs one type */
    return mask & 1 || call->op == OP_softmax_xent;
}

/* An array of a call whose elements have 16 bits in one run and are floats in the other. */
struct half_array {
    unsigned char *at; /* in the region */
    uint64_t n;
    bool write;
};

/* Lists the arrays whose size depends on the types that differ between the two calls. */
static uint32_t list_half_arrays(const struct op_call *floats, const struct op_call *call,
                                 struct half_array ret[OP_RANGES])
{
    struct op_range wide[OP_RANGES], narrow[OP_RANGES];
    const uint32_t n_wide = op_ranges(floats, wide), n_narrow = op_ranges(call, narrow);
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_narrow; i++)
        for (uint32_t k = 0; k < n_wide; k++)
            if (narrow[i].at == wide[k].at && narrow[i].bytes * 2 == wide[k].bytes && narrow[i].bytes > 0)
                ret[n++] = (struct half_array){(unsigned char *)(uintptr_t)narrow[i].at, narrow[i].bytes / 2,
                                               narrow[i].write};
    return n;
}

/* Rounds the floats of an array to the 16-bit type, and stores them as 16-bit numbers at `to`. */
static void narrow_array(const struct half_array *a, enum dtype half, unsigned char *to)
{
    for (uint64_t i = 0; i < a->n; i++) {
        float x;
        memcpy(&x, a->at + 4 * i, sizeof x);
        const uint16_t v = rounded(half, x);
        const float back = widened(half, v);
        memcpy(a->at + 4 * i, &back, sizeof back);
        memcpy(to + 2 * i, &v, sizeof v);
    }
}

/* The most by which a result may differ from the rounded reference. 0 means that the bits must be equal. */
static double tolerance_of(const struct op_call *call, enum dtype half)
{
    const bool is_product =
        call->op == OP_linear_fwd || call->op == OP_linear_bwd_data || call->op == OP_linear_bwd_weight;
    const bool is_mixed =
        call->op != OP_linear_bwd_weight && is_product && type_of(call, 0) != type_of(call, 1);

    return is_product && (is_mixed || !is_simulated) ? 2 * spacing(half) : 0;
}

static void assert_half(enum dtype half, uint16_t got, float want, double tolerance,
                        const struct op_call *call)
{
    const double x = (double)widened(half, got), y = (double)want;

    if (same_half(half, got, rounded(half, want)))
        return;
    if (!(fabs(x - y) <= tolerance * (1 + fabs(y))))
        fail_msg("%s in %s: got %.9g, want %.9g rounded", op_names[call->op], dtype_names[half], x, y);
}

static void assert_float(float got, float want, double tolerance, const struct op_call *call)
{
    if (memcmp(&got, &want, sizeof got) == 0 || (isnan(got) && isnan(want)))
        return;
    if (!(fabs((double)got - (double)want) <= tolerance * (1 + fabs((double)want))))
        fail_msg("%s: got %.9g, want %.9g in an array of floats", op_names[call->op], (double)got,
                 (double)want);
}

/* A pair of runs of one case. `floats` and `call` refer to the region `host`, which holds the floats after
 * the F32 run. The region `other` holds the result of the 16-bit run. */
struct pair {
    struct op_call floats, call;
    uint64_t bytes;
    uint32_t n;
    struct half_array arrays[OP_RANGES];
    /* The weights of an update as the 16-bit run reads them, behind the arrays of the call. */
    float *master;
    uint64_t n_master;
};

/* Compares the results. The bytes of `was` are those of the region `other` before the 16-bit run. */
static void compare(const struct pair *p, enum dtype half, const unsigned char *was)
{
    const double tolerance = tolerance_of(&p->call, half);
    struct op_range ranges[OP_RANGES];
    const uint32_t n = op_ranges(&p->call, ranges);
    unsigned char *checked = calloc(p->bytes, 1);

    assert_non_null(checked);
    for (uint32_t i = 0; i < p->n; i++) {
        const uint64_t at = (uint64_t)(p->arrays[i].at - host);
        for (uint64_t k = 0; p->arrays[i].write && k < p->arrays[i].n; k++) {
            float want;
            uint16_t got;
            memcpy(&want, host + at + 4 * k, sizeof want);
            memcpy(&got, other + at + 2 * k, sizeof got);
            assert_half(half, got, want, tolerance, &p->call);
        }
        if (p->arrays[i].write)
            memset(checked + at, 1, 2 * p->arrays[i].n);
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t at = (uint64_t)((const unsigned char *)ranges[i].at - host);
        if (!ranges[i].write || checked[at])
            continue;
        memset(checked + at, 1, ranges[i].bytes);
        if (p->call.op == OP_decide || p->call.op == OP_zero || p->call.op == OP_norm_add ||
            ranges[i].bytes % sizeof(float) != 0 || ranges[i].at == p->master) {
            continue;
        }
        if ((p->call.op == OP_softmax_xent && ranges[i].at == p->call.softmax_xent.result) ||
            (p->call.op == OP_mse_fwd && ranges[i].at == p->call.mse_fwd.result)) {
            assert_memory_equal(host + at, other + at, ranges[i].bytes);
            continue;
        }
        for (uint64_t k = 0; k < ranges[i].bytes / 4; k++) {
            float want, got;
            memcpy(&want, host + at + 4 * k, sizeof want);
            memcpy(&got, other + at + 4 * k, sizeof got);
            assert_float(got, want, tolerance, &p->call);
        }
    }
    for (uint64_t k = 0; k < p->bytes; k++)
        if (!checked[k] && other[k] != was[k])
            fail_msg("%s in %s wrote outside its arrays", op_names[p->call.op], dtype_names[half]);
    free(checked);
}

/* Gives the 16-bit run of an update its master weights: the same numbers as the F32 run has as weights. */
static void add_master(struct pair *p)
{
    const bool is_sgd = p->call.op == OP_sgd;
    const uint64_t begin = (p->bytes + 15) / 16 * 16;
    const void *w = is_sgd ? p->call.sgd.w : p->call.adamw.w;

    p->master = (float *)(void *)(host + begin);
    p->n_master = is_sgd ? p->call.sgd.n : p->call.adamw.n;
    memcpy(p->master, w, p->n_master * sizeof(float));
    p->bytes = begin + p->n_master * sizeof(float);
    *(is_sgd ? &p->call.sgd.master : &p->call.adamw.master) = p->master;
}

/* The F32 run of linear_fwd applies the activation to a number that was not rounded. So the reference runs
 * without the activation, rounds, and applies the activation to the result. */
static bool needs_separate_activation(const struct pair *p)
{
    return p->call.op == OP_linear_fwd && p->call.linear_fwd.act != ACT_NONE;
}

static void run_reference(const struct pair *p, enum dtype half)
{
    const struct op_linear_fwd *o = &p->floats.linear_fwd;
    struct op_call call = p->floats, moved;

    if (needs_separate_activation(p)) {
        call.linear_fwd.act = ACT_NONE;
        call.linear_fwd.z = NULL;
    }
    moved = op_move(&call, host, p->bytes, devset_address(ds, 0, 0));
    launch_around(&moved, 1, host, p->bytes);
    if (!needs_separate_activation(p))
        return;
    const uint64_t elements = (uint64_t)o->rows * o->out;
    for (uint64_t i = 0; i < elements && p->call.linear_fwd.y_dtype != DTYPE_F32; i++)
        ((float *)o->y)[i] = widened(half, rounded(half, ((float *)o->y)[i]));
    if (o->z)
        memcpy(o->z, o->y, elements * sizeof(float));
    const struct op_call act = {.op = OP_act_fwd,
                                .act_fwd = {.x = o->y, .y = o->y, .n = elements, .act = o->act}};
    moved = op_move(&act, host, p->bytes, devset_address(ds, 0, 0));
    launch_around(&moved, 1, host, p->bytes);
}

/* Runs one case in one combination of types. */
static void run_pair(enum op op, uint32_t variant, uint32_t mask, enum dtype half)
{
    struct pair p = {0};
    struct tape tape;

    op_build_in(op, variant, host, REGION_BYTES / 2, &tape, &p.floats);
    p.bytes = tape.region_used;
    p.call = p.floats;
    if (p.bytes > CASE_BYTES || !set_types(&p.call, mask, half))
        return;
    p.n = list_half_arrays(&p.floats, &p.call, p.arrays);
    if (op == OP_sgd || op == OP_adamw)
        add_master(&p);
    memcpy(other, host, p.bytes);
    for (uint32_t i = 0; i < p.n; i++) {
        const struct half_array *a = &p.arrays[i];
        float *const w = (float *)(void *)a->at;
        narrow_array(a, half, other + (a->at - host));
        if (p.master && (void *)w == (op == OP_sgd ? p.call.sgd.w : p.call.adamw.w))
            memcpy(w, p.master, a->n * sizeof(float)); /* the F32 run updates the exact weights */
    }
    unsigned char *was = malloc(p.bytes);
    assert_non_null(was);
    memcpy(was, other, p.bytes);
    const struct op_call moved = op_move(&p.call, host, p.bytes, devset_address(ds, 0, 0));
    launch_around(&moved, 1, other, p.bytes);
    run_reference(&p, half);
    compare(&p, half, was);
    if (p.master) {
        const uint64_t at = (uint64_t)((unsigned char *)p.master - host);
        const void *w = op == OP_sgd ? p.call.sgd.w : p.call.adamw.w;
        assert_memory_equal(other + at, w, p.n_master * sizeof(float));
    }
    free(was);
}

static void test_op_rounds_once(void **state)
{
    enum op op = (enum op)(uintptr_t)*state;
    const uint32_t combinations = 1u << op_dtypes[op].n;

    for (uint32_t h = 0; h < COUNT(halves); h++)
        for (uint32_t mask = 1; mask < combinations; mask++)
            for (uint32_t v = 0; v < op_tests[op]->variants; v++)
                run_pair(op, v, mask, halves[h]);
}

/* ---- conversions ---- */

/* y = 0 + b rounds every float in the list, and y + 0 widens and rounds every 16-bit number. */
static void test_conversions_as_in_half_h(void **state)
{
    enum { N = 1 << 16 };
    struct {
        float b[N];
        uint16_t x[N], y[N];
    } *a = (void *)host, *dev = devset_address(ds, 0, 0);
    uint32_t random = 7;

    (void)state;
    for (uint32_t h = 0; h < COUNT(halves); h++) {
        const struct op_call round = {
            .op = OP_bias_fwd,
            .bias_fwd = {.x = dev->x, .b = dev->b, .y = dev->y, .rows = 1, .n = N, .dtype = halves[h]}};
        for (uint32_t kind = 0; kind < 3; kind++) {
            memset(a, 0, sizeof *a);
            for (uint32_t i = 0; i < N; i++) {
                /* All upper halves of a float with: a tie or next to it, any lower half, F16's ties. */
                random = random * 1664525u + 1013904223u;
                const uint32_t low = kind == 0   ? (uint32_t[]){0x7fff, 0x8000, 0x8001, 0}[i % 4]
                                     : kind == 1 ? random >> 16
                                                 : (uint32_t[]){0x1000, 0x3000, 0x0fff, 0x1001}[i % 4];
                a->b[i] = half_float_of(i << 16 | low);
            }
            launch_around(&round, 1, a, sizeof *a);
            for (uint32_t i = 0; i < N; i++)
                assert_true(same_half(halves[h], a->y[i], rounded(halves[h], 0.0f + a->b[i])));
        }
        memset(a, 0, sizeof *a);
        for (uint32_t i = 0; i < N; i++)
            a->x[i] = (uint16_t)i;
        launch_around(&round, 1, a, sizeof *a);
        for (uint32_t i = 0; i < N; i++)
            assert_true(same_half(halves[h], a->y[i], i == 0x8000 ? 0 : (uint16_t)i));
    }
}

/* Arrays that begin at any multiple of 2 bytes, with whole packs, odd ends and less than a pack. */
static void test_arrays_at_any_address(void **state)
{
    enum { N = 45, SPACE = 80 };
    static const uint32_t lengths_here[] = {1, 7, 8, 9, 16, 45};
    uint16_t *a = (uint16_t *)(void *)host, *dev = devset_address(ds, 0, 0), was[2 * SPACE];
    uint32_t random = 3;

    (void)state;
    for (uint32_t h = 0; h < COUNT(halves); h++)
        for (uint32_t shift = 0; shift < 64; shift++) {
            const uint32_t y = shift % 8, x = SPACE + shift / 8, n = lengths_here[shift % 6];
            const struct op_call add = {.op = OP_add,
                                        .add = {.y = dev + y, .x = dev + x, .n = n, .dtype = halves[h]}};
            for (uint32_t i = 0; i < 2 * SPACE; i++)
                was[i] = a[i] = rounded(halves[h], random_float(&random));
            launch_around(&add, 1, a, sizeof was);
            for (uint32_t i = 0; i < 2 * SPACE; i++) {
                const float sum = i >= y && i < y + n
                                      ? widened(halves[h], was[i]) + widened(halves[h], was[i - y + x])
                                      : widened(halves[h], was[i]);
                assert_int_equal(a[i], rounded(halves[h], sum));
            }
        }
}

/* ---- products ---- */

/* A result that takes several tiles in both directions, which end at odd places. The F32 product has no
 * tiles, and the sums are exact. */
static void test_large_products_in_tiles(void **state)
{
    enum { ROWS = 3400, OUT = 2501, IN = 3 };
    struct {
        uint16_t x[ROWS * IN], w[OUT * IN], b[OUT], dy[ROWS * IN], z[ROWS * OUT], y[ROWS * OUT],
            dx[ROWS * OUT];
    } *a = (void *)host, *dev = devset_address(ds, 0, 0);
    static float x[ROWS * IN], w[OUT * IN], b[OUT];

    (void)state;
    if (is_small)
        return;
    for (uint32_t h = 0; h < COUNT(halves); h++) {
        const enum dtype t = halves[h];
        for (uint32_t i = 0; i < ROWS * IN; i++)
            a->x[i] = a->dy[i] = rounded(t, x[i] = (float)(i * 7 % 33) / 4 - 4);
        for (uint32_t i = 0; i < OUT * IN; i++)
            a->w[i] = rounded(t, w[i] = (float)(i * 5 % 17) / 2 - 4);
        for (uint32_t i = 0; i < OUT; i++)
            a->b[i] = rounded(t, b[i] = (float)(i % 19) / 16 - 1);
        memset(a->z, 0xff, sizeof a->z);
        memset(a->y, 0xff, sizeof a->y);
        memset(a->dx, 0xff, sizeof a->dx);
        const struct op_call calls[] = {
            {.op = OP_linear_fwd,
             .linear_fwd = {.x = dev->x,
                            .w = dev->w,
                            .b = dev->b,
                            .z = dev->z,
                            .y = dev->y,
                            .rows = ROWS,
                            .in = IN,
                            .out = OUT,
                            .act = ACT_RELU,
                            .dtype = t,
                            .w_dtype = t,
                            .y_dtype = t}},
            /* As a matrix w[IN][OUT]: the gradient of a layer from OUT to IN elements, whose input was
             * relu(z). */
            {.op = OP_linear_bwd_data,
             .linear_bwd_data = {.dy = dev->dy,
                                 .w = dev->w,
                                 .z = dev->z,
                                 .dx = dev->dx,
                                 .rows = ROWS,
                                 .in = OUT,
                                 .out = IN,
                                 .act = ACT_RELU,
                                 .dtype = t,
                                 .w_dtype = t}},
        };
        launch_around(calls, 2, a, sizeof *a);
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t o = 0; o < OUT; o++) {
                float z = 0, dx = 0;
                for (uint32_t k = 0; k < IN; k++) {
                    z = z + x[r * IN + k] * w[o * IN + k];
                    dx = dx + x[r * IN + k] * w[k * OUT + o];
                }
                const uint16_t want = rounded(t, z + b[o]);
                const float back = widened(t, want);
                if (a->z[r * OUT + o] != want || widened(t, a->y[r * OUT + o]) != (back < 0 ? 0 : back) ||
                    widened(t, a->dx[r * OUT + o]) != (back <= 0 ? 0 : widened(t, rounded(t, dx))))
                    fail_msg("%s: row %u, column %u", dtype_names[t], r, o);
            }
    }
}

/* With TF32, 1 + 2^-11 + 2^-20 becomes 1 + 2^-10 (or 1, if a GPU drops bits), and 3 stays 3. The sum is
 * exact. */
static void test_tf32_rounds_factors(void **state)
{
    struct devset_config c = rig_config("cuda", 1);
    struct {
        float x, w, y;
    } *a = (void *)host;
    struct devset *f32 = ds;

    (void)state;
    c.capacity_bytes[0] = UINT64_C(1) << 20;
    c.tf32 = true;
    ds = rig_open(&c);
    void *p = NULL;
    assert_int_equal(devset_host_alloc(ds, 4096, &p, NULL), 0);
    a = p;
    assert_non_null(strstr(devset_numerics(ds), "TF32"));
    assert_null(strstr(devset_numerics(f32), "TF32"));
    struct {
        float x, w, y;
    } *dev = devset_address(ds, 0, 0);
    const struct op_call call = {
        .op = OP_linear_fwd,
        .linear_fwd = {.x = &dev->x, .w = &dev->w, .y = &dev->y, .rows = 1, .in = 1, .out = 1}};
    a->x = 1 + 0x1p-11f + 0x1p-20f;
    a->w = 3;
    launch_around(&call, 1, a, sizeof *a);
    assert_true(a->y == 3 * (1 + 0x1p-10f) || (!is_simulated && fabsf(a->y - 3) < 0.01f));
    devset_host_free(ds, p, 4096);
    devset_close(ds);
    ds = f32;
    c.backend = "cpu";
    rig_refused(&c, -EOPNOTSUPP, "TF32");
}

/* ---- the loss scale ---- */

/* The gradients of a loss with a group are those of the same loss with grad_scale * loss_scale. */
static void test_loss_scale_multiplies_gradients(void **state)
{
    enum { ROWS = 5, N = 11 };
    struct {
        struct group_state group;
        struct step_result result[2];
        float x[ROWS * N], target[ROWS * N];
        int32_t classes[ROWS];
        float dx[2][ROWS * N], de[2][ROWS * N];
    } *a = (void *)host, *dev = devset_address(ds, 0, 0);
    const float scale = 1024 * 1.1f, loss_scale = 65536;
    const struct step_args plain = {.grad_scale = scale * loss_scale, .valid_rows = ROWS - 1, .training = 1},
                           scaled = {.grad_scale = scale, .valid_rows = ROWS - 1, .training = 1};
    uint32_t random = 11;

    (void)state;
    memset(a, 0, sizeof *a);
    a->group.loss_scale = loss_scale;
    for (uint32_t i = 0; i < ROWS * N; i++) {
        a->x[i] = random_float(&random);
        a->target[i] = random_float(&random);
    }
    for (int32_t i = 0; i < ROWS; i++)
        a->classes[i] = i;
    struct op_call calls[4];
    for (int i = 0; i < 2; i++) {
        const struct group_state *group = i ? &dev->group : NULL;
        calls[2 * i] = (struct op_call){.op = OP_softmax_xent,
                                        .step = i ? &scaled : &plain,
                                        .softmax_xent = {.x = dev->x,
                                                         .target = dev->classes,
                                                         .result = &dev->result[i],
                                                         .dx = dev->dx[i],
                                                         .rows = ROWS,
                                                         .n = N,
                                                         .seq = 1,
                                                         .smoothing = 0.1f,
                                                         .group = group}};
        calls[2 * i + 1] = (struct op_call){
            .op = OP_mse_bwd,
            .step = i ? &scaled : &plain,
            .mse_bwd = {
                .x = dev->x, .target = dev->target, .dx = dev->de[i], .rows = ROWS, .n = N, .group = group}};
    }
    launch_around(calls, 4, a, sizeof *a);
    assert_memory_equal(a->dx[0], a->dx[1], sizeof a->dx[0]);
    assert_memory_equal(a->de[0], a->de[1], sizeof a->de[0]);
    assert_memory_equal(&a->result[0], &a->result[1], sizeof a->result[0]);
    assert_true(a->dx[1][0] != 0 && a->de[1][0] != 0 && a->result[1].loss > 0);
}

/* A run of steps: the third overflows, and after 2 clean steps the loss scale grows. */
static void test_decide_changes_the_loss_scale(void **state)
{
    static const struct {
        double sumsq;
        uint32_t apply;
        float loss_scale; /* after the step */
        uint32_t good_steps;
    } steps[] = {
        {1e6, 1, 1024, 1}, {4e6, 1, 2048, 0}, {INFINITY, 0, 1024, 0}, {NAN, 0, 512, 0},
        {1e4, 1, 512, 1},  {1e4, 1, 1024, 0}, {1e14, 1, 1024, 1},
    };
    struct {
        struct step_decision decision;
        struct group_state group;
    } *a = (void *)host, *dev = devset_address(ds, 0, 0);
    const double clip = 5;
    const struct op_call call = {.op = OP_decide,
                                 .decide = {.decision = &dev->decision,
                                            .group = &dev->group,
                                            .clip = clip,
                                            .beta1 = 0.9f,
                                            .beta2 = 0.999f,
                                            .growth_steps = 2}};
    uint64_t t = 0;
    float before = 1024, scale = 0;

    (void)state;
    memset(a, 0, sizeof *a);
    a->group.loss_scale = before;
    for (uint32_t i = 0; i < COUNT(steps); i++) {
        const double norm = sqrt(steps[i].sumsq) / (double)before;
        a->decision.sumsq = steps[i].sumsq;
        launch_around(&call, 1, a, sizeof *a);
        if (steps[i].apply)
            scale = (float)((norm > clip ? clip / (norm + 1e-6) : 1) / (double)before);
        t += steps[i].apply;
        assert_int_equal(a->decision.apply, steps[i].apply);
        assert_int_equal(a->group.apply, steps[i].apply);
        assert_int_equal(a->group.t, t);
        assert_true(a->group.loss_scale == steps[i].loss_scale);
        assert_int_equal(a->group.good_steps, steps[i].good_steps);
        assert_bits(a->group.scale, scale);
        before = steps[i].loss_scale;
    }
}

/* As on the cpu, doubling stops at LOSS_SCALE_MOST. */
static void test_decide_ends_the_loss_scale(void **state)
{
    static const struct {
        float before, after;
    } cases[] = {{LOSS_SCALE_MOST / 2, LOSS_SCALE_MOST},
                 {0x1.8p31f, LOSS_SCALE_MOST},
                 {LOSS_SCALE_MOST, LOSS_SCALE_MOST},
                 {LOSS_SCALE_MOST / 4, LOSS_SCALE_MOST / 2}};
    struct {
        struct step_decision decision;
        struct group_state group;
    } *a = (void *)host, *dev = devset_address(ds, 0, 0);
    const struct op_call call = {
        .op = OP_decide, .decide = {.decision = &dev->decision, .group = &dev->group, .growth_steps = 1}};

    (void)state;
    for (uint32_t i = 0; i < COUNT(cases); i++) {
        memset(a, 0, sizeof *a);
        a->group.loss_scale = cases[i].before;
        launch_around(&call, 1, a, sizeof *a);
        assert_int_equal(a->group.apply, 1);
        assert_true(a->group.loss_scale == cases[i].after);
        assert_int_equal(a->group.good_steps, 0);
        assert_true(a->group.scale == 1 / cases[i].before);
    }
}

/* Without loss scaling the group state ends before the loss scale, so the op must not touch it. */
static void test_decide_without_loss_scale_leaves_it(void **state)
{
    struct {
        struct step_decision decision;
        struct group_state group;
    } *a = (void *)host, *dev = devset_address(ds, 0, 0);
    const struct op_call call = {.op = OP_decide,
                                 .decide = {.decision = &dev->decision, .group = &dev->group, .clip = 1}};

    (void)state;
    for (int finite = 0; finite < 2; finite++) {
        memset(a, 0, sizeof *a);
        a->decision.sumsq = finite ? 4 : INFINITY;
        a->group.loss_scale = NAN;
        a->group.good_steps = 77;
        launch_around(&call, 1, a, sizeof *a);
        assert_int_equal(a->group.apply, finite);
        assert_true(isnan(a->group.loss_scale) && a->group.good_steps == 77);
        assert_bits(a->group.scale, finite ? (float)(1 / (2 + 1e-6)) : 0);
    }
}

/* ---- refusals ---- */

/* Combinations of types that op.h does not allow. The calls have no arrays. */
static void test_mixed_types_refused(void **state)
{
    static const enum dtype pairs[][2] = {
        {DTYPE_BF16, DTYPE_F16}, {DTYPE_F16, DTYPE_BF16}, {DTYPE_F32, DTYPE_BF16}, {DTYPE_BF16, DTYPE_I32}};
    const struct step_args step = {.training = 1};

    (void)state;
    for (int op = 0; op < OP_COUNT; op++)
        for (uint32_t i = 0; i < COUNT(pairs) && op_dtypes[op].n > 1; i++) {
            struct op_call call = {.op = (enum op)op, .step = &step};
            if (op == OP_softmax_xent && pairs[i][0] == DTYPE_F32)
                continue;
            set_type(&call, 0, pairs[i][0]);
            set_type(&call, 1, pairs[i][1]);
            assert_int_equal(devset_launch(ds, STREAM(0, LANE_COMPUTE), &call), -EINVAL);
        }
    rig_drain(ds);
}

static int set_up(void **state)
{
    struct devset_config c = rig_config("cuda", 1);
    void *p = NULL;

    (void)state;
    c.capacity_bytes[0] = REGION_BYTES;
    ds = rig_open(&c);
    printf("# %s\n", devset_numerics(ds));
    is_simulated = strstr(devset_numerics(ds), "cudasim") != NULL;
    if (devset_host_alloc(ds, 2 * REGION_BYTES, &p, NULL) < 0)
        return -1;
    host = p;
    other = host + REGION_BYTES;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    devset_host_free(ds, host, 2 * REGION_BYTES);
    devset_close(ds);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define OP(name)                                                                                             \
    {"test_" #name "_rounds_once", test_op_rounds_once, NULL, NULL, (void *)(uintptr_t)OP_##name},
#include "kernels/ops.def"
#undef OP
        cmocka_unit_test(test_arrays_at_any_address),
        cmocka_unit_test(test_conversions_as_in_half_h),
        cmocka_unit_test(test_decide_changes_the_loss_scale),
        cmocka_unit_test(test_decide_ends_the_loss_scale),
        cmocka_unit_test(test_decide_without_loss_scale_leaves_it),
        cmocka_unit_test(test_large_products_in_tiles),
        cmocka_unit_test(test_loss_scale_multiplies_gradients),
        cmocka_unit_test(test_mixed_types_refused),
        cmocka_unit_test(test_tf32_rounds_factors),
    };

    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--small") == 0)
            is_small = true;
        else
            cmocka_set_test_filter(argv[i]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
