/* Tests which micro-batch sizes "auto" tries and in which order. For large batches, the sizes that can be
 * planned must remain. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "daemon/worker/job.h"
#include "scheduler/graph.h"

/* Stores in `ret` the micro-batch sizes that are tried for an mlp with `hidden` hidden layers, and returns
 * their number. */
static uint32_t sizes_of(uint32_t hidden, uint32_t batch, uint32_t ret[JOB_MAX_DIVISORS],
                         uint32_t *ret_layers)
{
    struct strbuf b = {0};
    struct spec *s = NULL;
    struct err err = {0};
    strbuf_add(&b, "{\"schema\":\"job/v1\",\"model\":{\"type\":\"mlp\",\"input\":[4],\"hidden\":[");
    for (uint32_t i = 0; i < hidden; i++)
        strbuf_addf(&b, "%s4", i > 0 ? "," : "");
    strbuf_addf(&b,
                "],\"classes\":2},\"data\":{\"format\":\"synthetic\",\"samples\":64},\"train\":{\"steps\":1,"
                "\"global_batch\":%u},\"optimizer\":{\"type\":\"sgd\",\"lr\":1}}",
                batch);
    if (spec_parse(b.at, b.n, "job.json", &(struct spec_options){.base_dir = "/base"}, &s, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0, 1}, 64, 0, &err), 0);
    const struct phase p = {.model = s->model, .batch = batch, .sizes = s->resolved.phases[0]};
    uint32_t n = job_auto_sizes(&p, ret);
    *ret_layers = s->model.n_layers;
    spec_destroy(s);
    strbuf_finish(&b);
    return n;
}

static void test_small_batch_tries_sizes_in_order_of_speed(void **state)
{
    uint32_t rows[JOB_MAX_DIVISORS], layers;
    (void)state;
    uint32_t n = sizes_of(2, 64, rows, &layers);
    static const uint32_t want[] = {64, 32, 16, 8, 4, 2, 1};
    assert_int_equal(n, sizeof want / sizeof want[0]);
    assert_memory_equal(rows, want, sizeof want);
}

/* Checks the sizes that are tried for a batch. Every size can be planned. All sizes but the last together
 * have at most GRAPH_MAX_TASKS tasks. The smallest size that can be planned is among them, because it needs
 * the least device memory. */
static void check_large(uint32_t hidden, uint32_t batch)
{
    uint32_t rows[JOB_MAX_DIVISORS], layers, n = sizes_of(hidden, batch, rows, &layers), smallest = batch;
    uint64_t sum = 0;
    assert_true(n > 0);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t tasks = 2ull * layers * (batch / rows[i]);
        assert_true(tasks <= GRAPH_MAX_TASKS);
        sum += i < n - 1 ? tasks : 0;
        smallest = rows[i] < smallest ? rows[i] : smallest;
    }
    assert_true(sum <= GRAPH_MAX_TASKS);
    assert_true(smallest == 1 || 2ull * layers * (batch / (smallest / 2)) > GRAPH_MAX_TASKS ||
                smallest == 16);
}

static void test_large_batches_leave_the_smallest_size(void **state)
{
    (void)state;
    check_large(99, 16384);
    check_large(63, 65536);
    check_large(63, 1u << 20);
    check_large(3, 1u << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_batch_tries_sizes_in_order_of_speed),
        cmocka_unit_test(test_large_batches_leave_the_smallest_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
