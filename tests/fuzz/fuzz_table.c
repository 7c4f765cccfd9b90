/* Reads the input as a profile table. An accepted table must read back as it was written, and must give
 * values, graphs and times for any micro-batch size. */
#include "tests/fuzz/fuzz.h"

#include "base/strbuf.h"
#include "scheduler/graph.h"
#include "scheduler/profile.h"
#include "scheduler/table.h"

#define MOST (1ull << 53)

static void check_values(const struct table *t, uint32_t size)
{
    for (uint32_t l = 0; l < t->n_layers; l++) {
        struct table_point p;
        table_at(t, l, size, &p);
        HOLDS(p.fwd_ns <= MOST && p.bwd_ns <= MOST && p.upd_host_ns <= MOST && p.upd_device_ns <= MOST);
        HOLDS(p.x <= MOST && p.s <= MOST && p.fwd_work <= MOST);
    }
}

static void check_graph(const struct table *t, uint32_t size, uint32_t n_micro, bool training)
{
    struct graph *g = NULL;
    struct machine m;
    struct err err = {0};
    int r = graph_build_table(t, size, n_micro, training, &g, &err);
    if (r < 0) {
        HOLDS(g == NULL);
        check_failure(r, &err);
        return;
    }
    HOLDS(g->n_layers == t->n_layers && g->rows == size && g->n_micro == n_micro);
    machine_init_cpu(&m, 1, 1ull << 30, 1ull << 30);
    profile_destroy(profile_from_table(t, g, &m));
    graph_destroy(g);
}

static void check_round_trip(const struct table *t)
{
    struct strbuf a = {0}, b = {0};
    struct table *again = NULL;
    table_to_json(t, &a);
    HOLDS(table_parse(a.at, a.n, "written", &again, NULL) == 0);
    table_to_json(again, &b);
    HOLDS(a.n == b.n && memcmp(a.at, b.at, a.n) == 0);
    table_destroy(again);
    strbuf_finish(&a);
    strbuf_finish(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const uint32_t sizes[] = {1, 2, 3, 64, 1000003, INT32_MAX};
    struct table *t = NULL;
    struct err err = {0};
    int r = table_parse((const char *)data, bytes, "fuzz", &t, &err);
    if (r < 0) {
        HOLDS(t == NULL);
        check_failure(r, &err);
        return 0;
    }
    HOLDS(t->n_layers >= 2 && t->n_layers <= TABLE_MAX_LAYERS);
    HOLDS(table_largest(t) >= 1 && table_largest(t) <= INT32_MAX);
    check_round_trip(t);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_values(t, sizes[i]);
    check_graph(t, table_largest(t), 2, true);
    check_graph(t, 1, 1, false);
    check_graph(t, INT32_MAX, 3, true);
    table_destroy(t);
    return 0;
}
