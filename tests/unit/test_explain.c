/* Tests the outputs that describe a plan: the dump (golden text), the summary (packs and totals), JSON in
 * both directions (round trip, every kind of refusal, hostile input) and the trace. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "scheduler/build/build.h"
#include "scheduler/explain/explain.h"
#include "scheduler/policy/candidate.h"
#include "scheduler/policy/outline.h"
#include "scheduler/policy/policy.h"
#include "scheduler/predict/bound.h"
#include "scheduler/verify/verify.h"
#include "tests/unit/random_table.h"
#include "tests/unit/spans.h"
#include "tests/unit/tiny_plan.h"

/* ---------------------------------------------------------------------------------------- dump */

static const char golden_dump[] =
    "plan by-hand: devices 2, layers 2, micro-batches 1, rows 4, replicas 1, steps 1\n"
    "d0: peak 10240 of 16384 bytes\n"
    "d1: peak 5888 of 8192 bytes\n"
    "host: 13312 of 1048576 bytes\n"
    "\n"
    "tensors: 10\n"
    "     0  W0                  4096  host@0\n"
    "     1  W1                  2048  host@4096\n"
    "     2  dW0                 4096  host@6144\n"
    "     3  dW1                 2048\n"
    "     4  X0.0                1024  host@10240 x2\n"
    "     5  Y0.0                 512\n"
    "     6  dX1.0                512\n"
    "     7  S1.0                 256\n"
    "     8  T.0                   64  host@12288 x2\n"
    "     9  R.0                   16  host@12800 x2\n"
    "\n"
    "boundary: 1 copies\n"
    "        d1  W1@0..2048\n"
    "\n"
    "program entry: 1 instructions\n"
    "     0  d1.in       FETCH           W1@host:4096..6144 -> W1@0..2048\n"
    "\n"
    "program cycle: 14 instructions\n"
    "     0  d0.in       FETCH           W0@host:0..4096 -> W0@0..4096   wait host#11-1\n"
    "     1  d0.in       FETCH           X0.0@host:10240..11264 -> X0.0@4096..5120\n"
    "     2  d0.compute  FWD     l0 m0   W0@0..4096 X0.0@4096..5120 -> Y0.0@5120..5632   wait d0.in#1\n"
    "     3  d0.peer     SEND            Y0.0@5120..5632 -> Y0.0@d1:2048..2560   wait d0.compute#2\n"
    "     4  d1.in       FETCH           T.0@host:12288..12352 -> T.0@2560..2624   wait d1.compute#6-1\n"
    "     5  d1.compute  FWD     l1 m0   W1@0..2048 Y0.0@2048..2560 T.0@2560..2624 -> S1.0@2816..3072 "
    "R.0@3072..3088   wait d0.peer#3 d1.in#4\n"
    "     6  d1.compute  BWD     l1 m0   W1@0..2048 S1.0@2816..3072 -> dX1.0@3328..3840 dW1@3840..5888\n"
    "     7  d1.out      SPILL           R.0@3072..3088 -> R.0@host:12800..12816   wait d1.compute#5\n"
    "     8  d1.peer     SEND            dX1.0@3328..3840 -> dX1.0@d0:5632..6144   wait d1.compute#6\n"
    "     9  d0.compute  BWD     l0 m0   X0.0@4096..5120 dX1.0@5632..6144 -> dW0@6144..10240   wait "
    "d1.peer#8\n"
    "    10  d0.out      SPILL           dW0@6144..10240 -> dW0@host:6144..10240   wait d0.compute#9\n"
    "    11  host        UPD     l0      dW0@6144..10240 -> +W0@0..4096   wait d0.out#10\n"
    "    12  d1.compute  UPD     l1      dW1@3840..5888 -> +W1@0..2048\n"
    "    13  d0.compute  DROP            W0@0..4096\n"
    "\n"
    "program flush: 2 instructions\n"
    "     0  d1.out      SPILL           W1[0..1024]@0..1024 -> W1[0..1024]@host:4096..5120\n"
    "     1  d1.out      SPILL           W1[1024..2048]@1024..2048 -> W1[1024..2048]@host:5120..6144\n"
    "\n"
    "program exit: 3 instructions\n"
    "     0  d1.out      SPILL           W1[0..1024]@0..1024 -> W1[0..1024]@host:4096..5120\n"
    "     1  d1.out      SPILL           W1[1024..2048]@1024..2048 -> W1[1024..2048]@host:5120..6144\n"
    "     2  d1.compute  DROP            W1@0..2048   wait d1.out#1\n"
    "\n"
    "program eval: 0 instructions\n";

static void test_dump_golden(void **state)
{
    struct plan *p = tiny_plan();
    struct strbuf out = {0};

    (void)state;
    plan_dump(p, &out);
    assert_string_equal(out.at, golden_dump);
    strbuf_finish(&out);
    plan_destroy(p);
}

static void assert_contains(const struct strbuf *out, const char *text)
{
    if (!out->at || !strstr(out->at, text))
        fail_msg("expected \"%s\" in:\n%s", text, out->at ? out->at : "");
}

static void assert_lacks(const struct strbuf *out, const char *text)
{
    if (strstr(out->at, text))
        fail_msg("did not expect \"%s\" in:\n%s", text, out->at);
}

/* Every kind of tensor has its name; replicas and steps show only when there is more than one. */
static void test_dump_names(void **state)
{
    struct plan *p = tiny_plan();
    struct strbuf out = {0};

    (void)state;
    p->tensors[0] = tiny_tensor(TENSOR_SUMSQ, 1, PLAN_NONE, 8, PLAN_NO_HOST, 0);
    p->tensors[1] = tiny_tensor(TENSOR_DECISION, PLAN_NONE, PLAN_NONE, 16, PLAN_NO_HOST, 0);
    p->tensors[2] = tiny_tensor(TENSOR_SCRATCH, 1, 0, 16, PLAN_NO_HOST, 0);
    p->tensors[3] = tiny_tensor(TENSOR_K, 1, PLAN_NONE, 16, PLAN_NO_HOST, 0);
    p->tensors[9].layer = 0; /* results of a loss that is not the last layer name their layer */
    p->tensors[7] = tiny_tensor(TENSOR_GROUP, PLAN_NONE, PLAN_NONE, 24, PLAN_NO_HOST, 0);
    p->tensors[7].group = 1;
    plan_dump(p, &out);
    assert_contains(&out, "  N1 ");
    assert_contains(&out, "  decision ");
    assert_contains(&out, "  scratch1.0 ");
    assert_contains(&out, "  K1 ");
    assert_contains(&out, "  T.0 ");
    assert_contains(&out, "  R0.0 ");
    assert_contains(&out, "  group1 ");
    assert_lacks(&out, "/r0");
    assert_lacks(&out, " r0");
    out.n = 0;
    p->n_replicas = 2;
    p->steps = 2;
    plan_dump(p, &out);
    assert_contains(&out, "  K1/r0 ");
    assert_contains(&out, "  X0.0/r0/s0 ");
    assert_contains(&out, "FWD     l0 m0 r0 s0 ");
    strbuf_finish(&out);
    plan_destroy(p);
}

/* ------------------------------------------------------------------------------------- summary */

static struct graph_layer tiny_layers[2] = {
    {.type = "dense", .size = {.w = 4096}, .dw_bytes = 4096, .k_bytes = 8192},
    {.type = "softmax_xent", .size = {.w = 2048}, .dw_bytes = 2048, .k_bytes = 4096},
};
static const struct graph tiny_graph = {.n_layers = 2, .layers = tiny_layers};
/* A bound on time that no test computes. */
static const struct time_bound least = {.ns = 1000, .kind = TIME_BOUND_COMPUTE, .traded = true};

static void test_summary_tells_the_essentials(void **state)
{
    struct plan *p = tiny_plan();
    struct strbuf out = {0};
    struct machine m;

    (void)state;
    machine_init_cpu(&m, 2, 1 << 20, 1 << 20);
    struct profile *prof = profile_analytic(&tiny_graph, &m);
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, 4, prof, &m);
    plan_summary(p, &tiny_graph, sim, &least, NULL, &out);
    assert_contains(&out, "policy by-hand on 2 devices");
    assert_contains(&out, "2 layers (dense, softmax_xent), weights 6.00 KiB, optimizer state 12.00 KiB");
    assert_contains(&out, "device 0    forward     0\n");
    assert_contains(&out, "device 1    forward     1\n");
    assert_contains(&out, "            update      1\n");
    assert_contains(&out, "host        update      0\n");
    assert_contains(&out, "total           5.06 KiB             5184    4.02 KiB             4112    1.00 "
                          "KiB             1024\n");
    assert_contains(&out, "stash                0 B                0         0 B                0    1.00 "
                          "KiB             1024\n");
    assert_contains(&out,
                    "device 1        5.75 KiB             5888      8.00 KiB   71.9%  W 2.00 KiB (1)\n");
    assert_contains(&out, "62.5%  nothing\n");
    assert_contains(&out, "addresses   peak by most bytes alive at once: ");
    assert_contains(&out, "predicted with the analytic profile, not measured");
    assert_contains(&out, "compute  18.5%   stall  81.5%");
    assert_contains(&out,
                    "% above what any plan could reach with these micro-batches (bound 1.000 us: compute "
                    "and others)\n");
    const struct time_bound same = {.ns = sim->cycle_ns, .kind = TIME_BOUND_CHAIN};
    out.n = 0;
    plan_summary(p, &tiny_graph, sim, &same, NULL, &out);
    assert_contains(&out, "\nbound       no plan could be faster with these micro-batches (bound ");
    assert_contains(&out, ": chain)\n");
    strbuf_finish(&out);
    sim_destroy(sim);
    profile_destroy(prof);
    plan_destroy(p);
}

static void test_summary_without_prediction(void **state)
{
    struct plan *p = tiny_plan();
    struct strbuf out = {0};

    (void)state;
    plan_summary(p, &tiny_graph, NULL, NULL, NULL, &out);
    assert_contains(&out, "MEMORY");
    assert_lacks(&out, "predicted");
    strbuf_finish(&out);
    plan_destroy(p);
}

/* A one-device plan that has only tasks, for finding packs. */
struct tasks {
    struct plan plan;
    struct plan_instr instrs[64];
    struct graph_layer layers[16];
    struct graph graph;
};

static void tasks_init(struct tasks *t, uint32_t n_layers)
{
    memset(t, 0, sizeof *t);
    t->plan = (struct plan){
        .n_devices = 1, .n_layers = n_layers, .n_micro = 4, .n_replicas = 1, .n_groups = 1, .steps = 1};
    t->plan.programs[PROGRAM_CYCLE].instrs = t->instrs;
    for (uint32_t l = 0; l < n_layers; l++)
        t->layers[l].type = "dense";
    t->graph = (struct graph){.n_layers = n_layers, .layers = t->layers};
}

static void add_task(struct tasks *t, enum instr_kind kind, uint32_t layer, uint32_t micro)
{
    uint32_t *n = &t->plan.programs[PROGRAM_CYCLE].n_instrs;

    assert_true(*n < 64);
    t->instrs[(*n)++] = (struct plan_instr){.kind = kind, .layer = layer, .micro = micro};
}

/* Layers from first to last, up or down. */
static void add_pass(struct tasks *t, enum instr_kind kind, uint32_t first, uint32_t last, uint32_t micro)
{
    int way = first <= last ? 1 : -1;

    for (uint32_t l = first; l != last + (uint32_t)way; l += (uint32_t)way)
        add_task(t, kind, l, micro);
}

static void assert_summary(const struct tasks *t, const char *text)
{
    struct strbuf out = {0};

    plan_summary(&t->plan, &t->graph, NULL, NULL, NULL, &out);
    assert_contains(&out, text);
    strbuf_finish(&out);
}

static void test_summary_packs_grouped(void **state)
{
    struct tasks t;

    (void)state;
    tasks_init(&t, 6);
    for (uint32_t m = 0; m < 2; m++)
        add_pass(&t, INSTR_FWD, 0, 2, m);
    for (uint32_t m = 0; m < 2; m++) { /* the last pack is fused */
        add_pass(&t, INSTR_FWD, 3, 5, m);
        add_pass(&t, INSTR_BWD, 5, 3, m);
    }
    for (uint32_t m = 0; m < 2; m++) {
        add_pass(&t, INSTR_REC, 0, 2, m);
        for (uint32_t l = 3; l-- > 0;) {
            add_task(&t, INSTR_BWD, l, m);
            if (m == 1) /* just-in-time updates between backward tasks do not cut a pack */
                add_task(&t, INSTR_UPD, l, PLAN_NONE);
        }
    }
    assert_summary(&t, "forward     0-2, 3-5\n");
    assert_summary(&t, "backward    5-3, 2-0\n");
    assert_summary(&t, "recompute   0-2\n");
    assert_summary(&t, "update      0-2\n");
    assert_summary(&t, "6 layers (dense x6)");
}

static void test_summary_packs_in_snake_order(void **state)
{
    struct tasks t;

    (void)state;
    tasks_init(&t, 6);
    add_pass(&t, INSTR_FWD, 0, 2, 0);
    add_pass(&t, INSTR_FWD, 0, 2, 1);
    add_pass(&t, INSTR_FWD, 3, 5, 1); /* follows layer 2 of the same micro-batch */
    add_pass(&t, INSTR_FWD, 3, 5, 0);
    assert_summary(&t, "forward     0-2, 3-5\n");
}

static void test_summary_packs_shrink(void **state)
{
    struct tasks t;

    (void)state;
    tasks_init(&t, 8); /* layer by layer */
    for (uint32_t l = 0; l < 8; l++)
        for (uint32_t m = 0; m < 2; m++)
            add_task(&t, INSTR_FWD, l, m);
    assert_summary(&t, "forward     0-7 by 1\n");

    tasks_init(&t, 13);
    for (uint32_t l = 0; l < 12; l += 3)
        for (uint32_t m = 0; m < 2; m++)
            add_pass(&t, INSTR_FWD, l, l + 2, m);
    add_task(&t, INSTR_FWD, 12, 0);
    add_task(&t, INSTR_FWD, 12, 1);
    assert_summary(&t, "forward     0-11 by 3, 12\n");

    tasks_init(&t, 16); /* wrap-around: every second pack is another device's */
    for (uint32_t l = 0; l < 16; l += 4)
        for (uint32_t m = 0; m < 2; m++)
            add_pass(&t, INSTR_FWD, l, l + 1, m);
    for (uint32_t l = 16; l >= 4; l -= 4)
        for (uint32_t m = 0; m < 2; m++)
            add_pass(&t, INSTR_BWD, l - 3, l - 4, m);
    assert_summary(&t, "forward     0-1, 4-5 .. 12-13\n");
    assert_summary(&t, "backward    13-12, 9-8 .. 1-0\n");

    tasks_init(&t, 12); /* three are short enough */
    for (uint32_t l = 0; l < 12; l += 4)
        for (uint32_t m = 0; m < 2; m++)
            add_pass(&t, INSTR_FWD, l, l + 1, m);
    assert_summary(&t, "forward     0-1, 4-5, 8-9\n");
}

/* ---------------------------------------------------------------------------------------- JSON */

static struct strbuf tiny_json(void)
{
    struct plan *p = tiny_plan();
    struct strbuf out = {0};

    plan_to_json(p, &out);
    plan_destroy(p);
    return out;
}

static void assert_round_trip(const struct plan *p)
{
    struct plan *again = NULL;
    struct strbuf text = {0}, text_again = {0};
    struct err err = {0};

    plan_to_json(p, &text);
    if (plan_from_json(text.at, text.n, &again, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
    assert_true(plan_equal(p, again));
    plan_to_json(again, &text_again);
    assert_string_equal(text.at, text_again.at);
    plan_destroy(again);
    strbuf_finish(&text);
    strbuf_finish(&text_again);
}

static void test_json_round_trip(void **state)
{
    struct plan *p = tiny_plan();

    (void)state;
    assert_round_trip(p);
    strcpy(p->policy, "quote\" \\ and 31 bytes of policy");
    assert_int_equal(strlen(p->policy), 31);
    p->host_bytes = (1ull << 53) - 1;
    p->n_boundary = 0;
    for (int k = 0; k < PROGRAM_COUNT; k++)
        p->programs[k].n_instrs = 0;
    assert_round_trip(p);
    plan_destroy(p);
}

/* Large enough that anything quadratic in the number of instructions would be felt. */
static void test_json_round_trip_large(void **state)
{
    enum { COPIES = 1500 };
    struct plan *p = tiny_plan();
    struct plan_program small = p->programs[PROGRAM_CYCLE], *big = &p->programs[PROGRAM_CYCLE];

    (void)state;
    big->n_instrs = COPIES * small.n_instrs;
    big->instrs = arena_alloc_array(p->arena, big->n_instrs, sizeof *big->instrs);
    for (uint32_t i = 0; i < big->n_instrs; i++)
        big->instrs[i] = small.instrs[i % small.n_instrs];
    assert_round_trip(p);
    plan_destroy(p);
}

/* `from` occurs in the tiny plan's JSON; with `to` instead, loading fails at `path` and says `message`. */
static const struct refusal {
    const char *from, *to, *path, *message;
} refusals[] = {
    {"plan/v1", "plan/v2", "schema", "plan/v1"},
    {"by-hand", "a policy name of thirty-two bytes", "policy", "31"},
    {"\"by-hand\"", "7", "policy", "a string"},
    {"\"n_devices\":2", "\"n_devices\":65", "n_devices", "64"},
    {"\"n_devices\":2", "\"n_devices\":0", "n_devices", "from 1"},
    {"\"n_devices\":2", "\"n_devices\":3", "devices", "2 rows for 3 devices"},
    {"\"n_layers\":2", "\"n_layers\":4294967297", "n_layers", "1048576"},
    {"\"n_layers\":2", "\"n_layers\":1", "tensors[1][1]", "layer"},
    {"\"n_micro\"", "\"n_micor\"", "n_micor", "n_micro"},
    {"\"steps\":1", "\"steps\":1,\"extra\":1", "extra", "unknown"},
    {"\"steps\":1", "\"steps\":1.5", "steps", "whole number"},
    {"\"peak_bytes\"", "\"peak\"", "columns", "columns"},
    {"[16384,10240]", "[16384]", "devices[0][1]", "peak_bytes: missing"},
    {"[16384,10240]", "[16384,10240,1]", "devices[0][2]", "too many"},
    {"[16384,10240]", "16384", "devices[0]", "an array"},
    {"[16384,10240]", "[16384,-1]", "devices[0][1]", "whole number"},
    {"[16384,10240]", "[16384,9007199254740994]", "devices[0][1]", "2^53"},
    {"[\"W\",0,", "[\"V\",0,", "tensors[0][0]", "\"V\""},
    {"[\"W\",0,", "[3,0,", "tensors[0][0]", "a string"},
    {"\"F32\",4096,", "\"f32\",4096,", "tensors[0][6]", "\"f32\""},
    {"\"F32\",4096,", "4096,", "tensors[0][6]", "a string"},
    {"4096,0,1]", "4096,0,5000]", "tensors[0][9]", "1024"},
    {"[1,1,0,2048,0]", "[10,1,0,2048,0]", "boundary[0][0]", "tensor"},
    {"[1,1,0,2048,0]", "[1,2,0,2048,0]", "boundary[0][1]", "device"},
    {"[1,1,0,2048,0]", "[1,null,0,2048,0]", "boundary[0][1]", "device"},
    {"[1,1,0,2048,0]", "[1,1,0,2049,0]", "boundary[0][3]", "2048"},
    {"[1,1,0,2048,0]", "[1,1,9,8,0]", "boundary[0]", "begin"},
    {"\"flush\"", "\"flash\"", "programs.flash", "flush"},
    {"\"eval\":[]", "\"eval\":{}", "programs.eval", "an array"},
    {"[\"FWD\",0,", "[\"FWX\",0,", "programs.cycle[2][0]", "FWX"},
    {"[\"FWD\",4,", "[\"FWD\",9,", "programs.cycle[5][1]", "stream"},
    {"[\"BWD\",0,0,0,0,0", "[\"BWD\",0,0,1,0,0", "programs.cycle[9][3]", "micro"},
    {"[\"BWD\",0,0,0,0,0", "[\"BWD\",0,0,0,1,0", "programs.cycle[9][4]", "replica"},
    {"[\"BWD\",0,0,0,0,0", "[\"BWD\",0,0,0,0,1", "programs.cycle[9][5]", "step"},
    {"[\"BWD\",0,0,0,0,0,0", "[\"BWD\",0,0,0,0,0,1", "programs.cycle[9][6]", "group"},
    {"[[11,1]]", "[[14,1]]", "programs.cycle[0][8][0][0]", "13"},
    {"[[11,1]]", "[[11,17]]", "programs.cycle[0][8][0][1]", "16"},
    {"[[11,1]]", "[[11]]", "programs.cycle[0][8][0][1]", "missing"},
    {"[[11,1]]", "[11,1]", "programs.cycle[0][8][0]", "an array"},
    {",[[11,1]]", "", "programs.cycle[0][8]", "missing"},
    {"[9,1,\"r\",\"-\",3072]", "[10,1,\"r\",\"-\",3072]", "programs.cycle[7][7][0][0]", "tensor"},
    {"[9,1,\"r\",\"-\",3072]", "[9,2,\"r\",\"-\",3072]", "programs.cycle[7][7][0][1]", "device"},
    {"[9,1,\"r\",\"-\",3072]", "[9,1,\"x\",\"-\",3072]", "programs.cycle[7][7][0][2]", "\"x\""},
    {"[9,1,\"r\",\"-\",3072]", "[9,1,\"r\",\"-\",-256]", "programs.cycle[7][7][0][4]", "addr"},
    {"[9,1,\"r\",\"-\",3072]", "[9,1,\"r\",\"-\",3072,0]", "programs.cycle[7][7][0][6]", "missing"},
    {"[9,1,\"r\",\"-\",3072]", "[9,1,\"r\",\"-\",3072,0,17]", "programs.cycle[7][7][0][6]", "16"},
    {"[9,1,\"r\",\"-\",3072]", "[9,1,\"r\",\"-\",3072,9,8]", "programs.cycle[7][7][0]", "begin"},
    {"[9,1,\"r\",\"-\",3072]", "[9,1,\"r\",\"-\",3072,0,16,0]", "programs.cycle[7][7][0][7]", "too many"},
    {"[9,1,\"r\",\"-\",3072]", "[9,1,\"r\",\"q\",3072]", "programs.cycle[7][7][0][3]", "\"q\""},
};

static void check_refusal(const char *text, const struct refusal *r)
{
    const char *at = strstr(text, r->from);
    struct plan *p = NULL;
    struct strbuf changed = {0};
    struct err err = {0};

    assert_non_null(at);
    strbuf_addn(&changed, text, (size_t)(at - text));
    strbuf_add(&changed, r->to);
    strbuf_add(&changed, at + strlen(r->from));
    int code = plan_from_json(changed.at, changed.n, &p, &err);
    if (code >= 0)
        fail_msg("accepted %s for %s", r->to, r->from);
    assert_null(p);
    if (strncmp(err.path, r->path, strlen(r->path)) != 0 || !strstr(err.msg, r->message))
        fail_msg("%s for %s: expected %s: ...%s..., got %s: %s", r->to, r->from, r->path, r->message,
                 err.path, err.msg);
    assert_true(plan_from_json(changed.at, changed.n, &p, NULL) < 0); /* err may be NULL */
    strbuf_finish(&changed);
}

static void test_json_refuses_with_path(void **state)
{
    struct strbuf text = tiny_json();

    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        check_refusal(text.at, &refusals[i]);
    strbuf_finish(&text);
}

static void test_json_refuses_other_documents(void **state)
{
    static const char *const texts[] = {
        "", "null", "[]", "7", "\"plan/v1\"", "{}", "{\"schema\":\"plan/v1\"}"};
    struct plan *p = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_true(plan_from_json(texts[i], strlen(texts[i]), &p, NULL) < 0);
    assert_null(p);
}

/* The trace of the prediction alone. */
static void trace_plan(const struct plan *p, enum program_kind k, const struct sim_result *sim,
                       struct strbuf *out)
{
    const struct trace_part part = {"plan", sim->spans, sim->runs};
    plan_trace(p, k, &part, 1, out);
}

/* Whatever loads must be safe to use, verified or not. */
static void use_everything(const struct plan *p)
{
    struct machine m;
    struct strbuf out = {0};

    machine_init_cpu(&m, p->n_devices, 1 << 20, 1 << 20);
    struct profile *prof = profile_analytic(&tiny_graph, &m);
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, 2, prof, &m);
    plan_dump(p, &out);
    plan_summary(p, &tiny_graph, sim, NULL, NULL, &out);
    plan_summary_json(p, sim, &least, 0, &out);
    trace_plan(p, PROGRAM_CYCLE, sim, &out);
    plan_svg(p, sim, &out);
    assert_round_trip(p);
    strbuf_finish(&out);
    sim_destroy(sim);
    profile_destroy(prof);
}

/* From a copy of exactly n bytes, so that the sanitizer sees a read beyond. True when it loaded. */
static bool load_and_use(const char *text, size_t n)
{
    char *exact = malloc(n ? n : 1);
    struct plan *p = NULL;
    struct err err = {0};

    assert_non_null(exact);
    memcpy(exact, text, n);
    int r = plan_from_json(exact, n, &p, &err);
    assert_int_equal(r, err.code);
    assert_true((r == 0) == (p != NULL));
    if (p)
        use_everything(p);
    plan_destroy(p);
    free(exact);
    return r == 0;
}

static void test_json_truncated_is_refused(void **state)
{
    struct strbuf text = tiny_json();

    (void)state;
    assert_true(load_and_use(text.at, text.n));
    assert_true(load_and_use(text.at, text.n - 1)); /* the newline at the end */
    for (size_t n = 0; n < text.n - 1; n++)
        assert_false(load_and_use(text.at, n));
    strbuf_finish(&text);
}

/* Each byte replaced by others that keep much of the text valid: digits, brackets, quotes, a flipped bit. */
static void test_json_byte_flips_never_crash(void **state)
{
    static const char others[] = "09[],\"n";
    struct strbuf text = tiny_json();
    size_t loaded = 0;

    (void)state;
    for (size_t i = 0; i < text.n; i++) {
        char was = text.at[i];
        for (size_t j = 0; j < sizeof others - 1; j++) {
            text.at[i] = others[j];
            loaded += load_and_use(text.at, text.n);
        }
        text.at[i] = (char)(was ^ 1 << i % 8);
        loaded += load_and_use(text.at, text.n);
        text.at[i] = was;
    }
    assert_true(loaded > 100); /* else the changes were too coarse to test anything behind the parser */
    strbuf_finish(&text);
}

/* Changes several digits at once, because a change that is refused alone may pass together with another. */
static void test_json_random_digits_never_crash(void **state)
{
    struct strbuf text = tiny_json();
    struct rng rng = {.seed = 7};
    char *changed = malloc(text.n);

    (void)state;
    assert_non_null(changed);
    for (int round = 0; round < 2000; round++) {
        memcpy(changed, text.at, text.n);
        for (uint32_t k = 1 + rng_below(&rng, 6); k > 0;) {
            char *c = &changed[rng_below(&rng, (uint32_t)text.n)];
            if (*c < '0' || *c > '9')
                continue;
            *c = (char)('0' + rng_below(&rng, 10));
            k--;
        }
        load_and_use(changed, text.n);
    }
    free(changed);
    strbuf_finish(&text);
}

/* --------------------------------------------------------------------------------------- trace */

static const struct machine slow = {
    .n_devices = 2, .link_bytes_per_s = 1000000000, .peer_bytes_per_s = 3000000000, .launch_ns = 100};
static struct profile_layer times[2] = {
    {.fwd_ns = 1000, .bwd_ns = 2000, .upd_host_ns = 700},
    {.fwd_ns = 300, .bwd_ns = 600, .upd_device_ns = 150},
};
static const struct profile profile = {.n_layers = 2, .layers = times};

static uint32_t count_events(const struct json *doc, const char *phase)
{
    const struct json *events = json_get(doc, "traceEvents");
    uint32_t n = 0;

    assert_non_null(events);
    for (const struct json *e = json_array_first(events); e; e = json_array_next(e)) {
        const char *ph = NULL;
        assert_int_equal(json_string(json_get(e, "ph"), "ph", &ph, NULL), 0);
        n += strcmp(ph, phase) == 0;
        assert_non_null(json_get(e, "pid"));
        assert_non_null(json_get(e, "tid"));
        assert_non_null(json_get(e, "name"));
        assert_non_null(json_get(e, "args"));
    }
    return n;
}

static void test_trace_is_json_with_names_and_spans(void **state)
{
    struct plan *p = tiny_plan();
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, 2, &profile, &slow);
    struct strbuf out = {0};
    struct json *doc = NULL;

    (void)state;
    trace_plan(p, PROGRAM_CYCLE, sim, &out);
    assert_int_equal(json_parse(out.at, out.n, "trace", false, &doc, NULL), 0);
    assert_int_equal(count_events(doc, "X"), 2 * 13); /* the drop is none */
    assert_int_equal(count_events(doc, "M"),
                     2 * (3 + 9)); /* name and place of three processes, nine threads */
    json_free(doc);
    assert_contains(&out, "\"name\":\"process_name\",\"args\":{\"name\":\"device 0 (plan)\"}");
    assert_contains(&out,
                    "\"pid\":3,\"tid\":9,\"name\":\"process_name\",\"args\":{\"name\":\"host (plan)\"}");
    assert_contains(&out, "\"pid\":2,\"tid\":8,\"name\":\"thread_name\",\"args\":{\"name\":\"peer\"}");
    assert_contains(&out,
                    "{\"ph\":\"X\",\"name\":\"FWD l0 m0\",\"cat\":\"task\",\"pid\":1,\"tid\":1,\"ts\":5.320,"
                    "\"dur\":1.000,\"args\":{\"run\":0,\"instr\":2,\"layer\":0,\"micro\":0}}");
    assert_contains(
        &out, "{\"ph\":\"X\",\"name\":\"send Y0.0\",\"cat\":\"move\",\"pid\":1,\"tid\":4,\"ts\":20.978,"
              "\"dur\":0.271,\"args\":{\"run\":1,\"instr\":3,\"layer\":0,\"micro\":0,\"tensor\":\"Y0.0\","
              "\"bytes\":512}}");
    assert_contains(&out, "\"name\":\"fetch W0\"");
    assert_contains(&out, "\"name\":\"spill dW0\"");
    assert_contains(&out, "\"name\":\"UPD l0\",\"cat\":\"task\",\"pid\":3,\"tid\":9");
    assert_lacks(&out, "DROP");
    strbuf_finish(&out);
    sim_destroy(sim);
    plan_destroy(p);
}

static uint32_t count_but_drops(const struct plan_program *prog)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < prog->n_instrs; i++)
        n += prog->instrs[i].kind != INSTR_DROP;
    return n;
}

/* Removes the part `"key":number` of an event's text. */
static void cut_number(char *event, const char *key)
{
    char *at = strstr(event, key);

    assert_non_null(at);
    at += strlen(key);
    size_t n = strspn(at, "0123456789.");
    assert_true(n > 0);
    memmove(at, at + n, strlen(at + n) + 1);
}

/* The trace shows the run and the plan as two parts of one document. The parts have different clocks and
 * times, and otherwise the same events in the same order. */
static void test_trace_lays_run_beside_plan(void **state)
{
    struct plan *p = tiny_plan();
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, 2, &profile, &slow);
    const uint32_t n = 2 * sim->n_instrs, events = 2 * count_but_drops(&p->programs[PROGRAM_CYCLE]);
    struct plan_span *measured = calloc(n, sizeof *measured);
    struct strbuf out = {0};
    struct json *doc = NULL;

    (void)state;
    assert_non_null(measured);
    for (uint32_t i = 0; i < n; i++) /* twice as slow, and the machine has been up for a year */
        measured[i] = (struct plan_span){31557600000000123u + 2 * sim->spans[i].start_ns,
                                         31557600000000123u + 2 * sim->spans[i].end_ns};
    const struct trace_part parts[] = {{"run", measured, 2}, {"plan", sim->spans, 2}};
    plan_trace(p, PROGRAM_CYCLE, parts, 2, &out);
    assert_int_equal(json_parse(out.at, out.n, "trace", false, &doc, NULL), 0);
    assert_int_equal(count_events(doc, "X"), 2 * events);
    assert_int_equal(count_events(doc, "M"), 2 * 2 * (3 + 9));
    json_free(doc);
    assert_contains(&out,
                    "\"pid\":1,\"tid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"device 0 (run)\"}");
    assert_contains(&out, "\"pid\":3,\"tid\":9,\"name\":\"process_name\",\"args\":{\"name\":\"host (run)\"}");
    assert_contains(&out,
                    "\"pid\":4,\"tid\":10,\"name\":\"process_name\",\"args\":{\"name\":\"device 0 (plan)\"}");
    assert_contains(&out,
                    "\"pid\":6,\"tid\":18,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":18}");
    assert_contains(&out, "\"pid\":1,\"tid\":1,\"ts\":10.640,\"dur\":2.000,\"args\":{\"run\":0,\"instr\":2,");
    assert_contains(&out, "\"pid\":4,\"tid\":10,\"ts\":5.320,\"dur\":1.000,\"args\":{\"run\":0,\"instr\":2,");

    char *lines[2 * 2 * 13], *save = NULL;
    uint32_t found = 0;
    for (char *line = strtok_r(out.at, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (!strstr(line, "\"ph\":\"X\""))
            continue;
        static const char *const own[] = {"\"pid\":", "\"tid\":", "\"ts\":", "\"dur\":"};
        for (size_t i = 0; i < sizeof own / sizeof *own; i++)
            cut_number(line, own[i]);
        if (line[strlen(line) - 1] == ',')
            line[strlen(line) - 1] = '\0';
        lines[found++] = line;
    }
    assert_int_equal(found, 2 * events);
    for (uint32_t i = 0; i < events; i++)
        assert_string_equal(lines[i], lines[events + i]);
    free(measured);
    strbuf_finish(&out);
    sim_destroy(sim);
    plan_destroy(p);
}

/* A part of the trace may begin in the middle of a simulation; its times still begin at 0. An instruction of
 * zero duration appears in the trace. */
static void test_trace_begins_at_zero(void **state)
{
    struct plan *p = tiny_plan();
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, 4, &profile, &slow);
    const struct trace_part late = {"plan", sim->spans + 2 * sim->n_instrs, 2};
    struct strbuf out = {0};
    struct json *doc = NULL;

    (void)state;
    sim->spans[2 * sim->n_instrs + 5].end_ns = sim->spans[2 * sim->n_instrs + 5].start_ns;
    plan_trace(p, PROGRAM_CYCLE, &late, 1, &out);
    assert_int_equal(json_parse(out.at, out.n, "trace", false, &doc, NULL), 0);
    assert_int_equal(count_events(doc, "X"), 2 * 13);
    json_free(doc);
    assert_contains(&out, "\"ts\":0.000,");
    assert_contains(&out, "\"dur\":0.000,\"args\":{\"run\":0,\"instr\":5,");
    assert_lacks(&out, "\"run\":2");
    strbuf_finish(&out);
    sim_destroy(sim);
    plan_destroy(p);
}

static void test_trace_of_empty_program(void **state)
{
    struct plan *p = tiny_plan();
    struct sim_result *sim = plan_simulate(p, PROGRAM_EVAL, 1, &profile, &slow);
    struct strbuf out = {0};
    struct json *doc = NULL;

    (void)state;
    trace_plan(p, PROGRAM_EVAL, sim, &out);
    assert_int_equal(json_parse(out.at, out.n, "trace", false, &doc, NULL), 0);
    assert_int_equal(count_events(doc, "X"), 0);
    json_free(doc);
    strbuf_finish(&out);
    sim_destroy(sim);
    plan_destroy(p);
}

/* ----------------------------------------------------------------------------- every policy */

static struct layer policy_layers[] = {
    {.type = &layer_dense, .id = 0, .in = {1, {48}}, .out = {1, {40}}, .dense = {.bias = true}},
    {.type = &layer_dense, .id = 1, .in = {1, {40}}, .out = {1, {40}}, .dense = {.bias = true}},
    {.type = &layer_dense, .id = 2, .in = {1, {40}}, .out = {1, {10}}, .dense = {.bias = true}},
    {.type = &layer_softmax_xent, .id = 3, .in = {1, {10}}},
};

static struct graph *policy_graph(bool training, uint32_t replicas)
{
    static const struct model model = {policy_layers, sizeof policy_layers / sizeof *policy_layers};
    static const struct optimizer optimizer = {.kind = OPTIMIZER_ADAMW, .clip = 1};
    struct graph *g = NULL;

    assert_int_equal(graph_build(&(struct graph_config){.model = &model,
                                                        .optimizer = &optimizer,
                                                        .rows = 8,
                                                        .n_micro = 4,
                                                        .n_replicas = replicas,
                                                        .training = training},
                                 &g, NULL),
                     0);
    return g;
}

/* Checks that a simulation obeys the plan: streams run in order, waits are respected, and the bytes of the
 * devices add up. */
static void check_simulation(const struct plan *p, const struct sim_result *sim)
{
    uint64_t in = 0, out = 0, peer = 0;

    assert_spans_follow_plan(p, sim->spans, sim->runs, NULL);
    for (uint32_t d = 0; d < p->n_devices; d++) {
        struct plan_bytes b;
        plan_count_device_bytes(p, PROGRAM_CYCLE, d, &b);
        in += b.in;
        out += b.out;
        peer += b.peer;
        assert_int_equal(sim->compute_ns[d] + sim->stall_ns[d], sim->total_ns);
    }
    assert_int_equal(in, sim->bytes.in);
    assert_int_equal(out, sim->bytes.out);
    assert_int_equal(peer, sim->bytes.peer);
}

static void check_reports(const struct plan *p, const struct graph *g, const struct machine *m)
{
    struct profile *prof = profile_analytic(g, m);
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, 3, prof, m);
    struct strbuf out = {0};
    struct json *doc = NULL;

    check_simulation(p, sim);
    assert_round_trip(p);
    plan_dump(p, &out);
    assert_contains(&out, "program eval");
    out.n = 0;
    plan_summary(p, g, sim, NULL, NULL, &out);
    assert_contains(&out, "4 layers (dense x3, softmax_xent)");
    assert_contains(&out, "  state + stash cannot be less; here ");
    out.n = 0;
    plan_summary_json(p, sim, &least, 0.5, &out);
    assert_int_equal(json_parse(out.at, out.n, "summary", false, &doc, NULL), 0);
    json_free(doc);
    char bound[128];
    snprintf(bound, sizeof bound,
             ",\"bound_bytes\":%llu,\"time_bound_s\":1e-06,\"time_bound_by\":\"compute\",\"plan_s\":0.5,",
             (unsigned long long)bound_bytes(p));
    assert_contains(&out, bound);
    out.n = 0;
    trace_plan(p, PROGRAM_CYCLE, sim, &out);
    assert_int_equal(json_parse(out.at, out.n, "trace", false, &doc, NULL), 0);
    assert_int_equal(count_events(doc, "X"), 3 * count_but_drops(&p->programs[PROGRAM_CYCLE]));
    json_free(doc);
    strbuf_finish(&out);
    sim_destroy(sim);
    profile_destroy(prof);
}

/* A plan with every kind of instruction: data parallel, with shares that stay where they are. */
static bool has_shares(const struct plan *p)
{
    const struct plan_program *cycle = &p->programs[PROGRAM_CYCLE];
    bool red = false, copy = false;
    for (uint32_t i = 0; i < cycle->n_instrs; i++) {
        red |= cycle->instrs[i].kind == INSTR_RED;
        copy |= cycle->instrs[i].kind == INSTR_COPY;
    }
    return red && copy;
}

static void test_every_policy_can_be_explained(void **state)
{
    bool shares = false;

    (void)state;
    for (uint32_t replicas = 1; replicas <= 4; replicas *= 2) {
        struct graph *train = policy_graph(true, replicas), *eval = policy_graph(false, replicas);
        for (uint32_t devices = 1; devices <= 3; devices++) {
            struct machine m;
            machine_init_cpu(&m, devices, 1 << 24, 1 << 26);
            for (int i = 0; i < 2 * POLICY_COUNT; i++) {
                struct plan_request request = {.train = train,
                                               .eval = eval,
                                               .machine = &m,
                                               .policy = (enum policy_id)(i / 2),
                                               .update = i % 2 ? UPDATE_DEVICE : UPDATE_HOST};
                struct plan *p = NULL;
                assert_int_equal(plan_make(&request, &p, NULL, NULL), 0);
                check_reports(p, train, &m);
                shares |= has_shares(p);
                plan_destroy(p);
            }
        }
        graph_destroy(train);
        graph_destroy(eval);
    }
    assert_true(shares);
}

/* Layers whose micro-batches differ in size, from a table, with replicas. */
static void check_several_sizes(uint32_t seed)
{
    uint32_t rows[RANDOM_TABLE_LAYERS + 1];
    struct rng r = {.seed = seed};
    struct strbuf text = {0};
    struct table *t = NULL;
    struct graph *g = NULL;
    struct machine m;
    struct plan *p = NULL;

    random_table_json(&text, &r);
    assert_int_equal(table_parse(text.at, text.n, "table", &t, NULL), 0);
    for (uint32_t l = 0; l < t->n_layers; l++)
        rows[l] = l + 1 == t->n_layers ? 8 : l > t->n_layers / 2 ? 16 : 32;
    machine_init_cpu(&m, 2, 1 << 28, 1 << 30);
    const struct graph_sizes sizes = {.batch = 128, .replicas = 2, .rows = rows};
    assert_int_equal(graph_build_sizes(t, &sizes, true, &g, NULL), 0);
    struct plan_request request = {.train = g, .machine = &m, .policy = POLICY_auto, .table = t};
    const struct outline o = {.n_devices = 2,
                              .rows = 32,
                              .fused_rows = 16,
                              .head_rows = 8,
                              .fused =
                                  t->n_layers / 2 + 1 < t->n_layers ? t->n_layers / 2 + 1 : t->n_layers - 1,
                              .head = t->n_layers - 1,
                              .pack = 1,
                              .pins = seed % 3,
                              .waves = 1};
    struct profile *prof = plan_profile(&request);
    struct plan_need need;
    assert_int_equal(plan_outline(&request, &o, prof, &p, &need, NULL), 0);
    assert_non_null(p);
    assert_int_equal(plan_verify(p, g, NULL, &m, NULL, NULL), 0);
    assert_round_trip(p);
    plan_destroy(p);
    profile_destroy(prof);
    graph_destroy(g);
    table_destroy(t);
    strbuf_finish(&text);
}

static void test_plan_of_several_sizes_round_trips(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 20; seed++)
        check_several_sizes(seed);
}

/* ---- why ---- */

static const struct why_report some_report = {
    .why =
        {.cycle_ns = 1000000,
         .path_ns = {[PATH_COMPUTE] = 250000, [PATH_IN] = 610000, [PATH_OUT] = 100000, [PATH_HOST] = 40000},
         .memory_wait_ns = 80000,
         .busiest = 0.25,
         .binds = BINDING_LINK},
    .host_bytes = 4096,
    .asked = true,
    .memory = {true, 959000, 1024},
    .device = {true, 1100000, 5120},
};

static void test_why_tells_what_binds_and_what_would_help(void **state)
{
    struct why_report r = some_report;
    struct strbuf out = {0};

    (void)state;
    plan_why(&r, &out);
    assert_contains(&out, "binds       host link: 61% of the critical path are copies in, 10% copies out\n");
    assert_contains(&out, "path        compute 25.0%   in 61.0%   out 10.0%   peer 0.0%   host 4.0%\n");
    assert_contains(&out, "room        8.0% of the time");
    assert_contains(&out, "+1 GB each  959.000 us (-4.1%), 3.00 KiB less over the host link\n");
    assert_contains(&out, "+1 device   1.100 ms (+10.0%), 1.00 KiB more over the host link\n");
    assert_lacks(&out, "decision");
    strbuf_finish(&out);

    r.decision = true;
    r.plain = (struct what_if){true, 900000, 4096};
    r.device.fits = false;
    plan_why(&r, &out);
    assert_contains(&out, "+1 device   no plan\n");
    assert_contains(&out, "decision    900.000 us (-10.0%) if no update waited for all gradients\n");
    strbuf_finish(&out);

    r.asked = false;
    plan_why(&r, &out);
    assert_lacks(&out, "+1");
    assert_lacks(&out, "decision");
    strbuf_finish(&out);
}

/* Whatever binds is said in one line that a terminal holds. */
static void test_why_says_every_binding(void **state)
{
    (void)state;
    for (int i = 0; i < BINDING_COUNT; i++) {
        struct why_report r = some_report;
        struct strbuf out = {0};
        r.why.binds = (enum binding)i;
        plan_why(&r, &out);
        const char *line = strstr(out.at, "binds       ");
        assert_non_null(line);
        size_t n = strcspn(line, "\n");
        assert_true(n > 20 && n <= 80);
        strbuf_finish(&out);
        plan_why_json(&r, &out);
        assert_contains(&out, binding_names[i]);
        strbuf_finish(&out);
    }
}

static void test_why_is_json(void **state)
{
    struct why_report r = some_report;
    struct strbuf out = {0};

    (void)state;
    r.decision = true;
    r.plain = (struct what_if){true, 900000, 4096};
    r.device.fits = false;
    plan_why_json(&r, &out);
    assert_string_equal(
        out.at, "{\"binds\":\"link\",\"path\":{\"compute\":0.25,\"in\":0.61,\"out\":0.1,\"peer\":0,"
                "\"host\":0.04},\"waits_for_memory\":0.08,"
                "\"one_more_gb\":{\"iteration_s\":0.000959,\"host_bytes\":1024},\"one_more_device\":null,"
                "\"clipping_s\":0.0001}");
    strbuf_finish(&out);
    r.memory.estimated = true;
    plan_why_json(&r, &out);
    assert_contains(&out, "\"host_bytes\":1024,\"estimated\":true}");
    strbuf_finish(&out);
    plan_why(&r, &out);
    assert_contains(&out, "\n+1 GB each  about ");
    strbuf_finish(&out);
    r.asked = false;
    plan_why_json(&r, &out);
    assert_lacks(&out, "one_more");
    assert_lacks(&out, "clipping");
    strbuf_finish(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dump_golden),
        cmocka_unit_test(test_dump_names),
        cmocka_unit_test(test_summary_tells_the_essentials),
        cmocka_unit_test(test_summary_without_prediction),
        cmocka_unit_test(test_summary_packs_grouped),
        cmocka_unit_test(test_summary_packs_in_snake_order),
        cmocka_unit_test(test_summary_packs_shrink),
        cmocka_unit_test(test_json_round_trip),
        cmocka_unit_test(test_json_round_trip_large),
        cmocka_unit_test(test_json_refuses_with_path),
        cmocka_unit_test(test_json_refuses_other_documents),
        cmocka_unit_test(test_json_truncated_is_refused),
        cmocka_unit_test(test_json_byte_flips_never_crash),
        cmocka_unit_test(test_json_random_digits_never_crash),
        cmocka_unit_test(test_trace_is_json_with_names_and_spans),
        cmocka_unit_test(test_trace_lays_run_beside_plan),
        cmocka_unit_test(test_trace_begins_at_zero),
        cmocka_unit_test(test_trace_of_empty_program),
        cmocka_unit_test(test_every_policy_can_be_explained),
        cmocka_unit_test(test_plan_of_several_sizes_round_trips),
        cmocka_unit_test(test_why_is_json),
        cmocka_unit_test(test_why_says_every_binding),
        cmocka_unit_test(test_why_tells_what_binds_and_what_would_help),
    };
    return cmocka_run_group_tests_name("explain", tests, NULL, NULL);
}
