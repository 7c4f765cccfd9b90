/* Tests golden plans: dumps the plans of one small chain and compares them with the text in tests/golden. The
 * plans cover every policy, one and two devices, and both the least memory and twice that, where copies
 * overlap with compute. A change of the planner shows as a readable diff. TUTTI_UPDATE_GOLDEN=1 rewrites the
 * files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/strbuf.h"
#include "scheduler/explain/explain.h"
#include "scheduler/policy/policy.h"

static struct layer layers[] = {
    {.type = &layer_dense,
     .id = 0,
     .in = {1, {8}},
     .out = {1, {16}},
     .dense = {.bias = true, .act = ACT_RELU}},
    {.type = &layer_dense,
     .id = 1,
     .in = {1, {16}},
     .out = {1, {16}},
     .dense = {.bias = true, .act = ACT_RELU, .dropout = 0.1f}},
    {.type = &layer_dense, .id = 2, .in = {1, {16}}, .out = {1, {4}}, .dense = {.bias = true}},
    {.type = &layer_softmax_xent, .id = 3, .in = {1, {4}}},
};
static const struct model model = {layers, 4};

static char *read_golden(const char *path)
{
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return NULL;
    struct strbuf b = {0};
    char buf[4096];
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, f)) > 0)
        strbuf_addn(&b, buf, n);
    fclose(f);
    return b.at;
}

static void compare(const char *name, const struct strbuf *got)
{
    char path[512];
    snprintf(path, sizeof path, GOLDEN_DIR "/%s.txt", name);
    if (getenv("TUTTI_UPDATE_GOLDEN") != NULL) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fwrite(got->at, 1, got->n, f);
        fclose(f);
        return;
    }
    char *want = read_golden(path);
    if (want == NULL)
        fail_msg("%s is missing; make it with TUTTI_UPDATE_GOLDEN=1 tools/test golden", path);
    size_t line = 1, i = 0;
    for (; want[i] != '\0' && want[i] == got->at[i]; i++)
        line += want[i] == '\n';
    if (want[i] != got->at[i])
        fail_msg("%s:%zu: the plan differs; read the diff after TUTTI_UPDATE_GOLDEN=1 tools/test golden",
                 path, line);
    free(want);
}

static void dump(enum policy_id policy, uint32_t devices, bool ample, struct strbuf *out)
{
    struct optimizer o = {.kind = OPTIMIZER_ADAMW, .clip = devices == 2 ? 1 : 0};
    struct graph_config c = {.model = &model, .optimizer = &o, .rows = 4, .n_micro = 2, .training = true};
    struct graph *train, *eval;
    struct machine m;
    struct plan *p;
    uint64_t least;
    assert_int_equal(graph_build(&c, &train, NULL), 0);
    c.training = false;
    assert_int_equal(graph_build(&c, &eval, NULL), 0);
    machine_init_cpu(&m, devices, 1 << 20, 1 << 20);
    struct plan_request r = {train, eval, &m, policy, UPDATE_AUTO};
    assert_int_equal(plan_least_capacity(&r, &least, NULL), 0);
    for (uint32_t d = 0; d < devices; d++)
        m.capacity_bytes[d] = ample ? 2 * least : least;
    assert_int_equal(plan_make(&r, &p, NULL, NULL), 0);
    plan_dump(p, out);
    plan_destroy(p);
    graph_destroy(train);
    graph_destroy(eval);
}

static void test_golden_every_policy_unchanged(void **state)
{
    (void)state;
    for (int policy = 0; policy < POLICY_COUNT; policy++) {
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t devices = 1 + i % 2;
            bool ample = i >= 2;
            char name[64];
            struct strbuf b = {0};
            if (policy == POLICY_auto)
                continue;
            snprintf(name, sizeof name, "%s-%u%s", policy_names[policy], devices, ample ? "-ample" : "");
            dump(policy, devices, ample, &b);
            compare(name, &b);
            strbuf_finish(&b);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_every_policy_unchanged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
