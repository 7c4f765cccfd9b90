/* Tests Harmony's rules: small schedules computed by hand, mistakes reported with their places, random
 * schedules, and the six published schedules with the profiles of tests/profiles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/strbuf.h"
#include "scheduler/predict/harmony_rules.h"

/* The table has two layers and the loss. For one sample, X has 100, 200 and 50 bytes, a forward pass takes
 * 1000, 2000 and 1000 ns, and a backward pass alone takes 2000, 3000 and 1000 ns. The updates take 700 and
 * 300 ns. W has 1000 and 500 bytes. With two devices, each device gets 1 byte/ns of the link, and 1 byte/ns
 * to the other device. Handing over n bytes takes 2n / (4/2) = n ns. */
static const char small[] =
    "{\"micro_batch_fwd\":[1,2],\"micro_batch_bwd\":[1,2],\"micro_batch_fwd_bytes\":[1,2],"
    "\"micro_batch_bwd_bytes\":[1,2],\"micro_batch_input\":[1,2],"
    "\"link\":{\"swap_bytes_per_s\":2e9,\"p2p_bytes_per_s\":1e9,\"host_copy_bytes_per_s\":4e9},\"layers\":["
    "{\"weight_bytes\":900,\"buffer_bytes\":100,\"input_bytes\":[100,200],\"fwd_s\":[1e-6,2e-6],"
    "\"bwd_s\":[3e-6,6e-6],\"fwd_bytes\":[0,0],\"bwd_bytes\":[0,0],\"update_cpu_s\":7e-7},"
    "{\"weight_bytes\":500,\"input_bytes\":[200,400],\"fwd_s\":[2e-6,4e-6],\"bwd_s\":[5e-6,10e-6],"
    "\"fwd_bytes\":[0,0],\"bwd_bytes\":[0,0],\"update_cpu_s\":3e-7},"
    "{\"weight_bytes\":0,\"input_bytes\":[50,100],\"fwd_s\":[1e-6,2e-6],\"bwd_s\":[2e-6,4e-6],"
    "\"fwd_bytes\":[0,0],\"bwd_bytes\":[0,0]}]}";

static const uint32_t ends_fwd[] = {0}, ends_bwd[] = {0, 2};
static const struct rules_schedule two = {
    .form = RULES_PP,
    .devices = 2,
    .batch = 1,
    .micro_fwd = 1,
    .micro_bwd = 1,
    .fwd = {ends_fwd, 1},
    .bwd = {ends_bwd, 2},
    .task_ns = 100,
};

static struct table *parse(const char *text)
{
    struct err err = {0};
    struct table *t = NULL;
    if (table_parse(text, strlen(text), "profile", &t, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    return t;
}

static struct rules_result simulate(const struct rules_schedule *s, const struct table *t,
                                    enum rules_sharing sharing)
{
    struct err err = {0};
    struct rules_result r = {0};
    if (rules_simulate(s, t, sharing, &r, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    return r;
}

/* Device 0 computes the forward and backward pass of layer 0. Device 1 computes layer 1 and the loss. Times
 * are in ns:
 *
 *   d0.in       W 0..1000, X ..1100; stash 1200..1300 (after it was written out), W 2100..3100 (after FWD)
 *   d0.compute  FWD 1100..2100, end ..2200; REC 3100..4100, BWD 9500..11500, end 12500..12600 (dW is out)
 *   d0.out      stash 1100..1200; dW 11500..12500
 *   d0 -> d1    Y 2100..2300;     d1 -> d0  dX 9300..9500
 *   d1          W 0..500; REC 2300..5300, BWD ..9300; dW 9300..9800, end ..9900; update 9800..10100
 *   d0.cpu      update 12500..13200
 */
static void test_pipeline_by_hand(void **state)
{
    struct table *t = parse(small);
    struct rules_result r = simulate(&two, t, RULES_STATIC);
    (void)state;
    assert_int_equal(r.iteration_ns, 13200);
    assert_true(fabs(r.compute_share - 11000.0 / (2 * 13200)) < 1e-9);
    assert_int_equal(r.in_bytes, 1000 + 100 + 100 + 1000 + 500);
    assert_int_equal(r.out_bytes, 100 + 1000 + 500);
    assert_int_equal(r.peer_bytes, 200 + 200);
    assert_int_equal(r.n_tasks, 3);
    table_destroy(t);
}

/* The schedule of test_pipeline_by_hand, where a device that uses the link alone gets 2 bytes/ns. Both W run
 * at 1 byte/ns until 500. The rest of the larger W runs at 2 bytes/ns until 750. X ends at 800, FWD 1800, Y
 * 2000, REC 5000, BWD 9000, dX 9200, BWD 11200, dW 11700, and the update at 12400. */
static void test_pipeline_with_fair_shares_by_hand(void **state)
{
    struct table *t = parse(small);
    (void)state;
    assert_int_equal(simulate(&two, t, RULES_FAIR).iteration_ns, 12400);
    table_destroy(t);
}

/* One of two data-parallel devices, which has one sample of its own. Times are in ns:
 *
 *   in       W 0..1000, X ..1100; X1 2300..2500 (after Y is out), W1 ..3000; stash ..3100, dY 10200..10400,
 *            W ..11400
 *   compute  FWD 1100..2100, end ..2200; REC 3000..6000, BWD ..10000, reduction ..10500, end 11000..11100;
 *            REC 11400..12400, BWD ..14400, reduction ..15400, end 16400..16500
 *   out      stash 1100..1200, Y 2100..2300, dX 10000..10200, dW 10500..11000, dW 15400..16400
 *   cpu      update 11000..11300, 16400..17100
 */
static void test_data_parallel_by_hand(void **state)
{
    struct table *t = parse(small);
    struct rules_schedule s = two;
    (void)state;
    s.form = RULES_DP;
    s.batch = 2;
    struct rules_result r = simulate(&s, t, RULES_STATIC);
    assert_int_equal(r.iteration_ns, 17100);
    assert_true(fabs(r.compute_share - 11000.0 / 17100) < 1e-9);
    assert_int_equal(r.in_bytes, 2 * (1000 + 100 + 200 + 500 + 100 + 200 + 1000));
    assert_int_equal(r.out_bytes, 2 * (100 + 200 + 200 + 500 + 1000));
    assert_int_equal(r.peer_bytes, 0);
    assert_int_equal(simulate(&s, t, RULES_FAIR).iteration_ns, 17100); /* all do the same at the same time */
    table_destroy(t);
}

/* The last forward's output then goes through the host, and one forward micro-batch becomes two. */
static void test_pipeline_with_different_micro_batches(void **state)
{
    struct table *t = parse(small);
    struct rules_schedule s = two;
    (void)state;
    s.batch = s.micro_fwd = 2;
    struct rules_result r = simulate(&s, t, RULES_STATIC);
    assert_int_equal(r.in_bytes, 1000 + 200 + 2 * 100 + 1000 + 500 + 2 * 200);
    assert_int_equal(r.out_bytes, 200 + 400 + 500 + 1000);
    assert_int_equal(r.peer_bytes, 2 * 200);
    s.micro_fwd = 1;
    s.micro_bwd = 2;
    r = simulate(&s, t, RULES_STATIC);
    assert_int_equal(r.in_bytes, 1000 + 2 * 100 + 200 + 1000 + 500 + 400);
    assert_int_equal(r.peer_bytes, 400);
    table_destroy(t);
}

/* All layers are in one pack, so there is no forward task and no stash. W, X, REC, BWD, dW and the update
 * follow each other. */
static void test_one_pack_on_one_device(void **state)
{
    static const uint32_t all[] = {2};
    struct table *t = parse(small);
    struct rules_schedule s = {.form = RULES_PP,
                               .devices = 1,
                               .batch = 1,
                               .micro_fwd = 1,
                               .micro_bwd = 1,
                               .bwd = {all, 1},
                               .task_ns = 100};
    (void)state;
    assert_int_equal(simulate(&s, t, RULES_STATIC).iteration_ns, 750 + 50 + 4000 + 6000 + 750 + 1000);
    s.form = RULES_DP; /* of one device: the same */
    assert_int_equal(simulate(&s, t, RULES_FAIR).iteration_ns, 750 + 50 + 4000 + 6000 + 750 + 1000);
    table_destroy(t);
}

/* A device without work takes no part of the link: of 64 devices 3 have tasks. */
static void test_links_are_shared_by_those_who_work(void **state)
{
    struct table *t = parse(small);
    struct rules_schedule s = two;
    (void)state;
    t->link_bytes_per_s = 3000000000; /* 1 byte/ns for each of 3 */
    t->host_copy_bytes_per_s = 6000000000;
    s.devices = 64;
    /* The times are as in test_pipeline_by_hand, but the backward pass of layer 0 runs on a third device. Its
     * W arrives there at 1000, and handing over the stash takes 100 ns. */
    assert_int_equal(simulate(&s, t, RULES_STATIC).iteration_ns, 13200);
    table_destroy(t);
}

/* ---- mistakes ---- */

static void check_refused(const struct rules_schedule *s, const char *text, const char *path,
                          const char *says)
{
    struct table *t = parse(text);
    struct err err = {0};
    struct rules_result r;
    assert_int_equal(rules_simulate(s, t, RULES_STATIC, &r, &err), -EINVAL);
    assert_string_equal(err.path, path);
    if (strstr(err.msg, says) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", err.msg, says);
    table_destroy(t);
}

static void check_packs_refused(struct rules_packs fwd, struct rules_packs bwd, const char *path,
                                const char *says)
{
    struct rules_schedule s = two;
    s.fwd = fwd;
    s.bwd = bwd;
    check_refused(&s, small, path, says);
}

#define PACKS(...)                                                                                           \
    ((struct rules_packs){(const uint32_t[]){__VA_ARGS__},                                                   \
                          sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)})

static void test_wrong_packs_are_named(void **state)
{
    const struct rules_packs none = {0};
    (void)state;
    check_packs_refused(PACKS(0), PACKS(0, 1), "packs_bwd", "must end with layer 2");
    check_packs_refused(PACKS(0), none, "packs_bwd", "must end with layer 2");
    check_packs_refused(PACKS(0), PACKS(0, 3), "packs_bwd[1]", "layer 3, which comes after layer 2");
    check_packs_refused(PACKS(0), PACKS(1, 0, 2), "packs_bwd[1]", "ascend");
    check_packs_refused(PACKS(0), PACKS(0, 0, 2), "packs_bwd[1]", "ascend");
    check_packs_refused(PACKS(0), PACKS(1, 2), "packs_fwd", "must end with layer 1");
    check_packs_refused(none, PACKS(1, 2), "packs_fwd", "must end with layer 1");
    check_packs_refused(PACKS(1), PACKS(0, 2), "packs_fwd[0]", "layer 1, which comes after layer 0");
    check_packs_refused(PACKS(0), PACKS(2), "packs_fwd", "must be empty");
}

static void test_wrong_batches_are_named(void **state)
{
    struct rules_schedule s = two;
    (void)state;
    s.batch = 6;
    s.micro_fwd = 4;
    check_refused(&s, small, "micro_batch_fwd", "4 does not divide the 6 samples");
    s.micro_fwd = 3;
    s.micro_bwd = 5;
    check_refused(&s, small, "micro_batch_bwd", "5 does not divide");
    s.micro_bwd = 0;
    check_refused(&s, small, "micro_batch_bwd", "0 does not divide");
    s.form = RULES_DP;
    s.devices = 4;
    check_refused(&s, small, "batch", "4 devices do not divide");
    s.batch = 0;
    check_refused(&s, small, "batch", "at least 1");
    s.devices = 65;
    check_refused(&s, small, "devices", "1 to 64");
    s = two;
    s.batch = INT32_MAX;
    check_refused(&s, small, "batch", "larger micro-batches");
}

static void test_a_profile_without_links_is_refused(void **state)
{
    struct strbuf b = {0};
    struct rules_schedule s = two;
    (void)state;
    const char *link = strstr(small, "\"link\""), *layers = strstr(small, "\"layers\"");
    strbuf_addn(&b, small, (size_t)(link - small));
    strbuf_add(&b, "\"link\":{\"swap_bytes_per_s\":1},");
    strbuf_add(&b, layers);
    check_refused(&s, b.at, "link.p2p_bytes_per_s", "missing in the profile");
    strbuf_finish(&b);
}

/* ---- random schedules ---- */

static uint32_t random_ends(struct rng *r, uint32_t n_layers, uint32_t *ends)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < n_layers; l++)
        if (l + 1 == n_layers || rng_below(r, 3) == 0)
            ends[n++] = l;
    return n;
}

/* Random schedules must end under both rules for sharing links. The compute share must be above 0 and at most
 * 1, and both rules must fetch the same bytes with the same number of operations. */
static void test_random_schedules_end(void **state)
{
    struct strbuf b = {0};
    struct rng rng = {.seed = 3};
    (void)state;
    const char *layers = strstr(small, "\"layers\":[") + strlen("\"layers\":[");
    const char *loss = strstr(small, "{\"weight_bytes\":0");
    strbuf_addn(&b, small, (size_t)(layers - small));
    for (int i = 0; i < 8; i++)
        strbuf_addn(&b, layers, (size_t)(loss - layers));
    strbuf_add(&b, loss);
    struct table *t = parse(b.at);
    for (int i = 0; i < 500; i++) {
        uint32_t fwd[16], bwd[17];
        struct rules_schedule s = {.form = (enum rules_form)rng_below(&rng, 2),
                                   .task_ns = rng_below(&rng, 500)};
        s.devices = 1 + rng_below(&rng, 6);
        s.micro_fwd = 1 + rng_below(&rng, 4);
        s.micro_bwd = rng_below(&rng, 2) ? s.micro_fwd : 1 + rng_below(&rng, 4);
        s.batch = s.micro_fwd * s.micro_bwd * (1 + rng_below(&rng, 4)) * (s.form == RULES_DP ? s.devices : 1);
        s.bwd = (struct rules_packs){bwd, random_ends(&rng, t->n_layers, bwd)};
        uint32_t before = s.bwd.n > 1 ? bwd[s.bwd.n - 2] + 1 : 0;
        s.fwd = (struct rules_packs){fwd, random_ends(&rng, before, fwd)};
        struct rules_result a = simulate(&s, t, RULES_STATIC), f = simulate(&s, t, RULES_FAIR);
        assert_true(a.compute_share > 0 && a.compute_share <= 1);
        assert_true(f.compute_share > 0 && f.compute_share <= 1);
        assert_true(a.in_bytes == f.in_bytes && a.n_ops == f.n_ops);
    }
    table_destroy(t);
    strbuf_finish(&b);
}

/* ---- the published schedules ---- */

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    struct strbuf b = {0};
    char chunk[8192];
    size_t n;
    if (f == NULL)
        return NULL;
    strbuf_add(&b, "");
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        strbuf_addn(&b, chunk, n);
    fclose(f);
    return b.at;
}

static struct table *read_profile(const char *model)
{
    char path[1024];
    snprintf(path, sizeof path, GOLDEN_DIR "/../profiles/%s.json", model);
    char *text = read_file(path);
    struct table *t = text != NULL ? parse(text) : NULL;
    free(text);
    return t;
}

static struct rules_packs read_packs(char *text, uint32_t *ends)
{
    uint32_t n = 0;
    for (char *word = strtok(text, ","); word != NULL; word = strtok(NULL, ","))
        ends[n++] = (uint32_t)strtoul(word, NULL, 10);
    return (struct rules_packs){ends, n};
}

/* One line of harmony-schedules.txt. */
static void check_row(const char *line)
{
    char model[32], form[8], fwd[256], bwd[256];
    uint32_t ends[2][128];
    double want_s, want_percent;
    struct rules_schedule s = {.devices = 4, .batch = 64, .task_ns = 40000000};
    assert_int_equal(sscanf(line, "%31s %7s %u %u %255s %255s %lf %lf", model, form, &s.micro_fwd,
                            &s.micro_bwd, fwd, bwd, &want_s, &want_percent),
                     8);
    struct table *t = read_profile(model);
    assert_non_null(t);
    s.form = strcmp(form, "pp") == 0 ? RULES_PP : RULES_DP;
    s.fwd = read_packs(fwd, ends[0]);
    s.bwd = read_packs(bwd, ends[1]);
    struct rules_result r = simulate(&s, t, RULES_STATIC), fair = simulate(&s, t, RULES_FAIR);
    double got_s = (double)r.iteration_ns * 1e-9, fair_s = (double)fair.iteration_ns * 1e-9;
    printf("# %-11s %s  %.3f s, Harmony %.3f s, ratio %.4f; shared fairly %.3f s\n", model, form, got_s,
           want_s, got_s / want_s, fair_s);
    assert_true(fabs(got_s / want_s - 1) < 0.05);
    assert_true(fabs(100 * r.compute_share - want_percent) < 1);
    assert_true(fair_s <= got_s); /* whoever is alone on the link has all of it */
    table_destroy(t);
}

static void test_published_schedules_within_five_percent(void **state)
{
    char *text = read_file(GOLDEN_DIR "/harmony-schedules.txt"), *at = NULL;
    int rows = 0;
    (void)state;
    assert_non_null(text);
    for (char *line = strtok_r(text, "\n", &at); line != NULL; line = strtok_r(NULL, "\n", &at))
        if (line[0] != '#') {
            check_row(line);
            rows++;
        }
    free(text);
    assert_int_equal(rows, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline_by_hand),
        cmocka_unit_test(test_pipeline_with_fair_shares_by_hand),
        cmocka_unit_test(test_data_parallel_by_hand),
        cmocka_unit_test(test_pipeline_with_different_micro_batches),
        cmocka_unit_test(test_one_pack_on_one_device),
        cmocka_unit_test(test_links_are_shared_by_those_who_work),
        cmocka_unit_test(test_wrong_packs_are_named),
        cmocka_unit_test(test_wrong_batches_are_named),
        cmocka_unit_test(test_a_profile_without_links_is_refused),
        cmocka_unit_test(test_random_schedules_end),
        cmocka_unit_test(test_published_schedules_within_five_percent),
    };
    return cmocka_run_group_tests_name("harmony_rules", tests, NULL, NULL);
}
