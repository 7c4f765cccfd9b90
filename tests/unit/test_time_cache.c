/* Tests the cache of measured times: which layers count as the same shape, what is saved and found again, and
 * the table that is made from the times. Also tests that the timer measures every kind of layer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/probe/time_cache.h"
#include "daemon/worker/probe/time_layers.h"
#include "scheduler/table.h"

static const struct time_place place = {.backend = "cpu", .device = "some cpu \"x\"", .threads = 3};

static struct layer layers[] = {
    {.type = &layer_activation, .id = 0, .in = {1, {8}}, .out = {1, {8}}, .activation = {.act = ACT_RELU}},
    {.type = &layer_dense,
     .id = 1,
     .in = {1, {8}},
     .out = {1, {4}},
     .dense = {.bias = true, .act = ACT_GELU}},
    {.type = &layer_dense, .id = 2, .in = {1, {4}}, .out = {1, {4}}},
    {.type = &layer_dense, .id = 3, .in = {1, {4}}, .out = {1, {4}}},
    {.type = &layer_softmax_xent, .id = 4, .in = {1, {4}}},
};
static const struct model model = {layers, 5};
static const struct optimizer adamw = {.kind = OPTIMIZER_ADAMW};

static char dir[] = "/tmp/tutti-times-XXXXXX";

static int make_home(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL || setenv("XDG_CACHE_HOME", dir, 1) != 0;
}

static int remove_home(void **state)
{
    char path[PATH_MAX], sub[64];
    (void)state;
    if (time_cache_path(&place, path, sizeof path, NULL) == 0)
        unlink(path);
    snprintf(sub, sizeof sub, "%s/tutti", dir);
    rmdir(sub);
    return rmdir(dir);
}

static void put(struct time_cache *c, const char *shape, uint32_t rows, double first, double second,
                uint64_t at)
{
    struct time_entry e = {.rows = rows, .first_s = first, .second_s = second, .at_s = at};
    strcpy(e.shape, shape);
    time_cache_put(c, &e);
}

/* Everything at 2 and 8, all but the loss at 4. */
static struct time_cache filled(void)
{
    static const char *const shapes[] = {"activation 8x8 relu", "dense 8x4 bias gelu", "dense 4x4 dx",
                                         "softmax_xent 4x0 dx"};
    static const uint32_t sizes[] = {8, 2, 4};
    struct time_cache c = {.place = place, .link_bytes_per_s = 5, .peer_bytes_per_s = 6};
    for (uint32_t s = 0; s < 4; s++)
        for (uint32_t u = 0; u < 3; u++)
            if (s < 3 || sizes[u] != 4)
                put(&c, shapes[s], sizes[u], (s + 1) * sizes[u], (s + 1) * sizes[u] * 10, 1000 + 10 * s + u);
    put(&c, "adamw 144", 0, 0.5, 0.25, 900);
    return c;
}

static void test_shapes_differ_where_times_do(void **state)
{
    static const struct layer base = {.type = &layer_dense, .in = {1, {8}}, .out = {1, {4}}};
    struct layer other[7];
    char a[TIME_SHAPE_MAX], b[TIME_SHAPE_MAX];
    (void)state;
    for (int i = 0; i < 7; i++)
        other[i] = base;
    other[0].in = shape_vector(9);
    other[1].out = shape_vector(5);
    other[2].dense.bias = true;
    other[3].dense.act = ACT_RELU;
    other[4].dense.act = ACT_TANH;
    other[5].dense.dropout = 0.1f;
    other[6].type = &layer_activation;
    time_shape_layer(&base, false, a);
    for (int i = 0; i < 7; i++) {
        time_shape_layer(&other[i], false, b);
        assert_string_not_equal(a, b);
    }
    time_shape_layer(&other[3], false, a);
    time_shape_layer(&other[4], false, b);
    assert_string_not_equal(a, b);
    time_shape_layer(&base, true, b);
    assert_string_equal(b, "dense 8x4 dx");
    struct layer same = base;
    same.id = 7;
    time_shape_layer(&same, true, a);
    assert_string_equal(a, b);

    const struct optimizer plain = {.kind = OPTIMIZER_SGD}, heavy = {.kind = OPTIMIZER_SGD, .momentum = 0.9f};
    time_shape_update(&plain, DTYPE_F32, 16, a);
    time_shape_update(&heavy, DTYPE_F32, 16, b);
    assert_string_not_equal(a, b);
    time_shape_update(&adamw, DTYPE_F32, 16, b);
    assert_string_equal(b, "adamw 16");
    time_shape_update(&adamw, DTYPE_BF16, 16, b);
    assert_string_equal(b, "adamw 16 bf16");
    layer_set_types(&same, DTYPE_F16);
    time_shape_layer(&same, true, a);
    assert_string_equal(a, "dense 8x4 dx fp16");
}

static void test_what_is_stored_is_found_again(void **state)
{
    struct time_cache c = filled(), again, none;
    struct time_place other = place;
    struct err err = {0};
    (void)state;
    time_cache_load(&place, &none); /* nothing there yet */
    assert_int_equal(none.entries.n, 0);
    put(&c, "dense 4x4 dx", 8, 0.1, 1.0 / 3, 77); /* in place of what was there */
    if (time_cache_store(&c, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    time_cache_load(&place, &again);
    assert_int_equal(again.entries.n, c.entries.n);
    for (size_t i = 0; i < c.entries.n; i++) {
        const struct time_entry *e = &c.entries.at[i];
        const struct time_entry *f = time_cache_find(&again, e->shape, e->rows);
        assert_non_null(f);
        assert_memory_equal(e, f, sizeof *e);
    }
    assert_int_equal(again.link_bytes_per_s, 5);
    assert_int_equal(again.peer_bytes_per_s, 6);
    assert_int_equal(again.host_copy_bytes_per_s, 0);
    assert_string_equal(again.place.device, place.device);
    other.threads = 4;
    time_cache_load(&other, &none);
    assert_int_equal(none.entries.n, 0);
    other = place;
    strcpy(other.device, "another cpu");
    time_cache_load(&other, &none);
    assert_int_equal(none.entries.n, 0);
    time_cache_finish(&c);
    time_cache_finish(&again);
}

static void test_a_table_has_the_sizes_that_all_layers_have(void **state)
{
    struct time_cache c = filled();
    uint64_t at = 0;
    struct table_point p;
    (void)state;
    struct table *t = time_cache_table(&c, &model, &adamw, &at);
    assert_non_null(t);
    assert_int_equal(t->n_layers, 5);
    assert_int_equal(t->fwd.n, 2);
    assert_int_equal(t->fwd.sizes[0], 2);
    assert_int_equal(t->fwd.sizes[1], 8);
    assert_int_equal(at, 900); /* the update's */
    assert_int_equal(t->link_bytes_per_s, 5);
    assert_string_equal(t->device, place.device);
    assert_int_equal(t->layers[1].w, 4 * (8 * 4 + 4));
    assert_int_equal(t->layers[1].k, 8 * (8 * 4 + 4));
    assert_int_equal(t->layers[1].n_k_parts, 2);
    assert_int_equal(t->layers[1].k_parts[1], 4 * (8 * 4 + 4));
    assert_true(t->layers[1].update_cpu_s == 0.5 && t->layers[1].update_gpu_s == 0.25);
    assert_true(t->layers[2].update_cpu_s == 0); /* of that size none was measured */
    table_at(t, 0, 2, &p);                       /* before the first layer with weights nothing goes back */
    assert_int_equal(p.fwd_ns, 2000000000ull);
    assert_int_equal(p.bwd_ns, 0);
    table_at(t, 1, 8, &p);
    assert_int_equal(p.fwd_ns, 16000000000ull);
    assert_int_equal(p.bwd_ns, 160000000000ull);
    assert_int_equal(p.x, 8 * 8 * 4);
    assert_int_equal(p.s, 2 * 8 * 4 * 4); /* z, and the gradient of it */
    table_at(t, 3, 5, &p);                /* between; the same shape as layer 2 */
    assert_int_equal(p.fwd_ns, 15000000000ull);
    assert_int_equal(p.s, 0);
    table_destroy(t);

    layers[2].dense.act = ACT_TANH; /* nobody measured that */
    assert_null(time_cache_table(&c, &model, &adamw, &at));
    layers[2].dense.act = ACT_NONE;
    time_cache_finish(&c);
}

/* One layer of every kind, with all that the kind can have. */
#define OVER(type_) .type = &(type_), .in = {2, {3, 2}}, .out = {2, {3, 2}}
static const struct layer inner = {OVER(layer_norm), .norm = {.eps = 1}};
static const struct layer activation_layer = {OVER(layer_activation), .activation = {.act = ACT_RELU}};
static const struct layer attention_layer = {
    OVER(layer_attention), .attention = {.heads = 2, .kv_heads = 1, .bias = true, .dropout = 0.5f}};
static const struct layer block_layer = {OVER(layer_block), .inner = &inner, .n_inner = 1};
static const struct layer dense_layer = {OVER(layer_dense),
                                         .dense = {.bias = true, .act = ACT_RELU, .dropout = 0.5f}};
static const struct layer dropout_layer = {OVER(layer_dropout), .dropout = {.p = 0.5f}};
static const struct layer embedding_layer = {
    .type = &layer_embedding, .in = {2, {3, 1}}, .out = {2, {3, 2}}, .embedding = {.vocab = 7}};
static const struct layer label_vectors_layer = {
    .type = &layer_label_vectors, .in = {1, {6}}, .label_vectors = {.classes = 4, .scale = 1}};
static const struct layer lm_head_layer = {
    .type = &layer_lm_head, .in = {2, {3, 2}}, .lm_head = {.vocab = 7}};
static const struct layer mlp_layer = {OVER(layer_mlp),
                                       .mlp = {.hidden = 5, .bias = true, .act = ACT_RELU, .dropout = 0.5f}};
static const struct layer mse_layer = {.type = &layer_mse, .in = {2, {3, 2}}};
static const struct layer norm_layer = {OVER(layer_norm), .norm = {.bias = true, .eps = 1}};
static const struct layer positions_layer = {OVER(layer_positions),
                                             .positions = {.count = 4, .dropout = 0.5f}};
static const struct layer residual_layer = {OVER(layer_residual), .inner = &inner, .n_inner = 1};
static const struct layer softmax_xent_layer = {.type = &layer_softmax_xent, .in = {2, {3, 2}}};

static const struct layer *const every_kind[] = {
#define LAYER(name) &name##_layer,
#include "kernels/layers.def"
#undef LAYER
};

/* Whatever a kind of layer needs is there, and some time goes by. */
static void test_every_kind_of_layer_is_measured(void **state)
{
    struct timer *timer = NULL;
    struct err err = {0};
    uint64_t most = timer_update_bytes(&adamw, DTYPE_F32, 4096);
    (void)state;
    struct timer_config c = {.backend = "cpu", .threads = 2, .bytes = most, .device_bytes = most};
    for (size_t k = 0; k < sizeof every_kind / sizeof every_kind[0]; k++) {
        uint64_t bytes = timer_layer_bytes(every_kind[k], 3);
        if (bytes > c.bytes)
            c.bytes = c.device_bytes = bytes;
    }
    if (timer_open(&c, &timer, &err) < 0)
        fail_msg("%s", err.msg);
    for (size_t k = 0; k < sizeof every_kind / sizeof every_kind[0]; k++) {
        const struct layer *l = every_kind[k];
        for (int dx = 0; dx < 2; dx++) {
            double fwd = 0, bwd = 0;
            if (timer_layer(timer, l, dx, 3, &fwd, &bwd, &err) < 0)
                fail_msg("%s: %s", layer_type(l)->name, err.msg);
            assert_true((fwd > 0 || layer_type(l)->loss_in_bwd) && bwd > 0);
        }
        assert_int_equal(timer_layer(timer, l, true, 1000000, &(double){0}, &(double){0}, &err), -ENOSPC);
    }
    double host = 0, device = 0;
    assert_int_equal(timer_update(timer, &adamw, DTYPE_F32, 4096, &host, &device, &err), 0);
    assert_true(host > 0 && device > 0);
    assert_int_equal(timer_update(timer, &adamw, DTYPE_F32, (c.device_bytes / 4 + 4096) & ~UINT64_C(255),
                                  &host, &device, &err),
                     0);
    assert_true(host > 0 && device == 0); /* on the host only: the device is too small */
    assert_true(timer_host_copy(timer) > 0);
    timer_close(timer);
    timer_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes_differ_where_times_do),
        cmocka_unit_test(test_what_is_stored_is_found_again),
        cmocka_unit_test(test_a_table_has_the_sizes_that_all_layers_have),
        cmocka_unit_test(test_every_kind_of_layer_is_measured),
    };

    return cmocka_run_group_tests(tests, make_home, remove_home);
}
