/* Tests trace.json: which steps are measured, what the file contains, and what happens when it cannot be
 * written.
 *
 * This program replaces the executor: it defines the two executor functions that run_trace.c calls, so that a
 * test can choose the measured times.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "daemon/worker/run_trace.h"
#include "scheduler/predict/simulate.h"
#include "tests/unit/tiny_plan.h"

struct exec { /* what it was asked for, and how much of that is complete */
    uint64_t first_step;
    uint32_t runs, traced;
    struct plan_span *spans;
    int result;
};

int exec_trace(struct exec *e, uint64_t first_step, uint32_t runs, struct plan_span *spans)
{
    e->first_step = first_step;
    e->runs = runs;
    e->spans = spans;
    return e->result;
}

uint32_t exec_traced(const struct exec *e)
{
    return e->traced;
}

/* ---- which steps ---- */

struct window_case {
    uint64_t done, total;
    uint32_t cycle; /* training steps of a cycle; 0: one */
    uint32_t max_steps;
    uint64_t eval_every, checkpoint_every; /* steps */
    bool no_val;
    uint32_t n_instrs; /* of the cycle; 0: a few */
    uint64_t first;    /* expected, as all below */
    uint32_t runs, warm_up;
};

static const struct window_case window_cases[] = {
    {.total = 100, .max_steps = 3, .first = 2, .runs = 3, .warm_up = 2},
    {.total = 5, .max_steps = 3, .first = 2, .runs = 3, .warm_up = 2},
    {.total = 4, .max_steps = 3, .first = 1, .runs = 3, .warm_up = 1},
    {.total = 3, .max_steps = 3, .first = 0, .runs = 3},
    {.total = 1, .max_steps = 3, .first = 0, .runs = 1},
    {.total = 100, .max_steps = 0},
    {.total = 7, .max_steps = 1000, .first = 0, .runs = 7},
    /* a resumed run counts from where it starts; a finished one has nothing to measure */
    {.done = 50, .total = 100, .max_steps = 3, .first = 52, .runs = 3, .warm_up = 2},
    {.done = 98, .total = 100, .max_steps = 3, .first = 98, .runs = 2},
    {.done = 100, .total = 100, .max_steps = 3},
    /* no break inside: between steps 3 and 4 there is an evaluation */
    {.total = 100, .max_steps = 3, .eval_every = 4, .first = 4, .runs = 3},
    {.total = 100, .max_steps = 3, .eval_every = 4, .no_val = true, .first = 2, .runs = 3, .warm_up = 2},
    {.total = 100, .max_steps = 3, .checkpoint_every = 4, .first = 4, .runs = 3},
    {.total = 100, .max_steps = 4, .eval_every = 20, .checkpoint_every = 5, .first = 5, .runs = 4},
    {.total = 100, .max_steps = 3, .eval_every = 5, .first = 2, .runs = 3, .warm_up = 2},
    {.done = 4, .total = 100, .max_steps = 3, .eval_every = 5, .first = 6, .runs = 3, .warm_up = 1},
    {.total = 6, .max_steps = 3, .eval_every = 4, .first = 2, .runs = 2, .warm_up = 2},
    {.total = 100, .max_steps = 3, .checkpoint_every = 2, .first = 2, .runs = 2},
    {.total = 100, .max_steps = 3, .checkpoint_every = 1, .first = 2, .runs = 1},
    /* large plans */
    {.total = 100, .max_steps = 3, .n_instrs = 20000, .first = 2, .runs = 3, .warm_up = 2},
    {.total = 100, .max_steps = 3, .n_instrs = 20001, .first = 2, .runs = 2, .warm_up = 2},
    {.total = 100, .max_steps = 3, .n_instrs = 60000, .first = 2, .runs = 1, .warm_up = 2},
    {.total = 100, .max_steps = 3, .n_instrs = 60001},
    /* several steps in a cycle: whole runs only, and at least one */
    {.total = 100, .cycle = 2, .max_steps = 3, .first = 4, .runs = 2, .warm_up = 2},
    {.total = 100, .cycle = 4, .max_steps = 3, .first = 8, .runs = 1, .warm_up = 2},
    {.total = 5, .cycle = 4, .max_steps = 3, .first = 0, .runs = 1},
    {.total = 3, .cycle = 4, .max_steps = 3},
    {.total = 100, .cycle = 4, .max_steps = 3, .eval_every = 5, .first = 10, .runs = 1},
    {.total = 100, .cycle = 2, .max_steps = 4, .checkpoint_every = 7, .first = 7, .runs = 2},
    {.total = 100, .cycle = 7, .max_steps = 3, .checkpoint_every = 5},
    /* the only whole runs come early: steps 0 to 3 and 4 to 7, or steps 0 to 6 */
    {.total = 12, .cycle = 4, .max_steps = 3, .checkpoint_every = 9, .first = 4, .runs = 1, .warm_up = 1},
    {.total = 12, .cycle = 4, .max_steps = 99, .checkpoint_every = 9, .first = 4, .runs = 1, .warm_up = 1},
    {.total = 14, .cycle = 7, .max_steps = 3, .checkpoint_every = 8, .first = 0, .runs = 1},
};

static void check_window(const struct window_case *c, struct plan *plan)
{
    struct spec spec = {
        .train.global_batch = 4, .eval.steps = c->eval_every, .checkpoint.every.steps = c->checkpoint_every};
    struct phase p = {.batch = 4,
                      .steps = c->total,
                      .cycle_steps = c->cycle > 0 ? c->cycle : 1,
                      .eval = PHASE_EVAL_MODEL,
                      .plan = plan};
    struct prepared_job j = {.spec = &spec, .val = c->no_val ? NULL : (struct dataset *)&spec};
    struct run_trace t = {.max_steps = c->max_steps};
    struct exec e = {0};

    run_trace_start(&t, &j, &p, &e, c->done);
    assert_int_equal(t.runs, c->runs);
    assert_int_equal(e.runs, c->runs);
    assert_ptr_equal(e.spans, t.spans);
    assert_true((t.spans != NULL) == (c->runs > 0));
    if (c->runs > 0) {
        assert_int_equal(t.first_step, c->first);
        assert_int_equal(e.first_step, c->first);
        assert_int_equal(t.warm_up, c->warm_up);
    }
    e.traced = c->runs;
    run_trace_end(&t, &e);
    assert_int_equal(t.complete, c->runs > 0);
    e.traced--;
    run_trace_end(&t, &e);
    assert_false(t.complete);
    run_trace_finish(&t);
    run_trace_finish(&t);
}

static void test_window_is_early_warm_and_whole(void **state)
{
    struct plan *plan = tiny_plan();
    const uint32_t few = plan->programs[PROGRAM_CYCLE].n_instrs;

    (void)state;
    for (size_t i = 0; i < sizeof window_cases / sizeof *window_cases; i++) {
        print_message("# case %zu\n", i);
        plan->programs[PROGRAM_CYCLE].n_instrs = window_cases[i].n_instrs ? window_cases[i].n_instrs : few;
        check_window(&window_cases[i], plan);
    }
    plan_destroy(plan);
}

static void test_refused_window_is_no_trace(void **state)
{
    struct plan *plan = tiny_plan();
    struct spec spec = {0};
    struct phase p = {.batch = 4, .steps = 9, .cycle_steps = 1, .plan = plan};
    struct prepared_job j = {.spec = &spec};
    struct run_trace t = {.max_steps = 3};
    struct exec e = {.result = -EBUSY, .traced = 3};

    (void)state;
    run_trace_start(&t, &j, &p, &e, 0);
    run_trace_end(&t, &e);
    assert_false(t.complete);
    assert_null(t.spans);
    run_trace_finish(&t);
    plan_destroy(plan);
}

/* ---- stalls ---- */

/* There are two runs of four instructions. Device 0 computes at 10..14 and 20..26, which is 10 of 16 ns.
 * Device 1 computes at 12..13 and 30..32, which is 3 of 20 ns. Copies and the host do not count, and neither
 * does the third device, which computes nothing. */
static void test_stall_is_what_lies_between_tasks(void **state)
{
    struct plan_instr instrs[] = {{.stream = plan_stream(0, LANE_COMPUTE)},
                                  {.stream = plan_stream(0, LANE_IN)},
                                  {.stream = plan_stream(1, LANE_COMPUTE)},
                                  {.stream = plan_stream(3, LANE_COMPUTE)}}; /* the host's */
    struct plan_span spans[] = {{10, 14}, {1, 100}, {12, 13}, {0, 900}, {20, 26}, {2, 3}, {30, 32}, {5, 6}};
    const struct plan plan = {.n_devices = 3, .programs[PROGRAM_CYCLE] = {.instrs = instrs, .n_instrs = 4}};
    struct run_trace t = {.runs = 2, .spans = spans, .complete = true};

    (void)state;
    assert_true(run_trace_stall(&t, &plan) == (6.0 + 17.0) / 36.0);
    t.complete = false; /* the run was stopped before */
    assert_true(isnan(run_trace_stall(&t, &plan)));
    assert_true(isnan(run_trace_stall(&(struct run_trace){0}, &plan)));
    memset(spans, 0, sizeof spans); /* a clock that stands still */
    t.complete = true;
    assert_true(isnan(run_trace_stall(&t, &plan)));
}

/* ---- the file ---- */

static struct graph_layer tiny_layers[2] = {{.type = "dense"}, {.type = "dense"}};
static struct graph tiny_graph = {.n_layers = 2, .layers = tiny_layers};

struct rig {
    char dir[32];
    struct outdir out;
    struct spec spec;
    struct phase phase;
    struct prepared_job job;
    struct run_trace trace;
};

/* Three steps of the tiny plan, each instruction 7 us long and 10 us after the one before it. */
static void rig_open(struct rig *r)
{
    struct exec e = {.traced = 3};

    memset(r, 0, sizeof *r);
    strcpy(r->dir, "/tmp/test_run_trace_XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    r->out = (struct outdir){open(r->dir, O_RDONLY | O_DIRECTORY), r->dir};
    assert_true(r->out.fd >= 0);
    r->phase =
        (struct phase){.batch = 4, .steps = 9, .cycle_steps = 1, .plan = tiny_plan(), .graph = &tiny_graph};
    r->job = (struct prepared_job){.spec = &r->spec, .phases = {.at = &r->phase, .n = 1}};
    machine_init_cpu(&r->job.machine, 2, 1 << 20, 1 << 20);
    r->trace.max_steps = 3;
    run_trace_start(&r->trace, &r->job, &r->phase, &e, 0);
    for (uint32_t i = 0; i < 3 * r->phase.plan->programs[PROGRAM_CYCLE].n_instrs; i++)
        r->trace.spans[i] = (struct plan_span){5000000 + 10000 * i, 5007000 + 10000 * i};
    run_trace_end(&r->trace, &e);
    assert_true(r->trace.complete);
}

static void rig_close(struct rig *r)
{
    run_trace_finish(&r->trace);
    plan_destroy(r->phase.plan);
    assert_int_equal(fs_remove_tree(AT_FDCWD, r->dir), 0);
    close(r->out.fd);
}

static bool there(const struct rig *r, const char *name)
{
    return faccessat(r->out.fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void put(const struct rig *r, const char *name)
{
    int fd = openat(r->out.fd, name, O_WRONLY | O_CREAT, 0666);

    assert_true(fd >= 0);
    assert_int_equal(fs_write_all(fd, "before", 6), 0);
    close(fd);
}

/* The number of an event in one line of the file. */
static double number_of(const char *line, const char *key)
{
    const char *at = strstr(line, key);

    assert_non_null(at);
    return strtod(at + strlen(key), NULL);
}

/* How long the last three of five runs take by the simulator: two are warm-up. */
static double predicted_us(const struct rig *r)
{
    struct profile *prof = profile_analytic(r->phase.graph, &r->job.machine);
    struct sim_result *sim = plan_simulate(r->phase.plan, PROGRAM_CYCLE, 5, prof, &r->job.machine);
    uint64_t begin = UINT64_MAX, end = 0;

    for (uint32_t i = 2 * sim->n_instrs; i < 5 * sim->n_instrs; i++) {
        if (r->phase.plan->programs[PROGRAM_CYCLE].instrs[i % sim->n_instrs].kind == INSTR_DROP)
            continue;
        begin = sim->spans[i].start_ns < begin ? sim->spans[i].start_ns : begin;
        end = sim->spans[i].end_ns > end ? sim->spans[i].end_ns : end;
    }
    sim_destroy(sim);
    profile_destroy(prof);
    return (double)(end - begin) / 1000;
}

static void test_file_has_what_was_measured_and_what_was_predicted(void **state)
{
    struct rig r;
    struct json *doc = NULL;
    char *text, *save = NULL;
    size_t bytes;
    uint32_t run_events = 0, plan_events = 0;
    double plan_begin = 1e9, plan_end = 0;

    (void)state;
    rig_open(&r);
    assert_int_equal(run_trace_write(&r.trace, &r.job, &r.out, NULL), 0);
    assert_false(there(&r, "trace.json.tmp"));
    assert_int_equal(fs_read_text(r.out.fd, "trace.json", 1 << 20, &text, &bytes), 0);
    assert_int_equal(json_parse(text, bytes, "trace", false, &doc, NULL), 0);
    json_free(doc);
    assert_non_null(strstr(text, "\"host (run)\""));
    assert_non_null(strstr(text, "\"device 1 (plan)\""));
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (!strstr(line, "\"ph\":\"X\""))
            continue;
        const double ts = number_of(line, "\"ts\":"), dur = number_of(line, "\"dur\":");
        if (number_of(line, "\"pid\":") <= 3) {
            const double i = 14 * number_of(line, "\"run\":") + number_of(line, "\"instr\":");
            assert_true(ts == 10 * i && dur == 7);
            run_events++;
        } else {
            plan_begin = ts < plan_begin ? ts : plan_begin;
            plan_end = ts + dur > plan_end ? ts + dur : plan_end;
            plan_events++;
        }
    }
    assert_int_equal(run_events, 3 * 13);
    assert_int_equal(plan_events, 3 * 13);
    assert_true(plan_begin == 0 && plan_end > predicted_us(&r) - 0.01 && plan_end < predicted_us(&r) + 0.01);
    free(text);
    rig_close(&r);
}

static void test_file_replaces_what_was_there_or_leaves_it(void **state)
{
    struct rig r;
    char *text;
    size_t bytes;

    (void)state;
    rig_open(&r);
    put(&r, "trace.json");
    put(&r, "trace.json.tmp"); /* of a run that was killed */
    r.trace.complete = false;
    assert_int_equal(run_trace_write(&r.trace, &r.job, &r.out, NULL), 0);
    assert_int_equal(fs_read_text(r.out.fd, "trace.json", 1 << 20, &text, &bytes), 0);
    assert_string_equal(text, "before");
    free(text);
    assert_false(there(&r, "trace.json.tmp"));

    put(&r, "trace.json.tmp");
    r.trace.complete = true;
    assert_int_equal(run_trace_write(&r.trace, &r.job, &r.out, NULL), 0);
    assert_int_equal(fs_read_text(r.out.fd, "trace.json", 1 << 20, &text, &bytes), 0);
    assert_true(bytes > 1000);
    free(text);
    assert_false(there(&r, "trace.json.tmp"));
    rig_close(&r);
}

static void test_file_that_cannot_be_written_is_named_and_leaves_nothing(void **state)
{
    struct rig r;
    struct err err = {0};

    (void)state;
    rig_open(&r);
    assert_int_equal(mkdirat(r.out.fd, "trace.json", 0777), 0);
    assert_true(run_trace_write(&r.trace, &r.job, &r.out, &err) < 0);
    assert_non_null(strstr(err.path, "/trace.json"));
    assert_non_null(strstr(err.msg, "cannot write"));
    assert_false(there(&r, "trace.json.tmp"));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window_is_early_warm_and_whole),
        cmocka_unit_test(test_refused_window_is_no_trace),
        cmocka_unit_test(test_stall_is_what_lies_between_tasks),
        cmocka_unit_test(test_file_has_what_was_measured_and_what_was_predicted),
        cmocka_unit_test(test_file_replaces_what_was_there_or_leaves_it),
        cmocka_unit_test(test_file_that_cannot_be_written_is_named_and_leaves_nothing),
    };
    return cmocka_run_group_tests_name("run_trace", tests, NULL, NULL);
}
