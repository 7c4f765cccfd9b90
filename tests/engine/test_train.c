/* Tests the training loop in this process, where a test can observe it. The loop must not allocate memory in
 * a step, on any thread, measured or not. It must stop when the devices move other bytes than the plan
 * promised.
 *
 * oneDNN allocates memory inside its GEMM. The model here is narrow enough that all products use our own
 * kernel.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>

#include "daemon/worker/job.h"
#include "daemon/worker/train.h"
#include "tests/skip.h"

static atomic_uint_fast64_t allocations; /* of all threads */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTING 1

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n)
{
    allocations++;
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    allocations++;
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    allocations++;
    return __libc_realloc(p, n);
}
#endif

static const char spec[] =
    "{\"schema\":\"job/v1\",\"model\":{\"type\":\"mlp\",\"input\":12,\"hidden\":[15,14],"
    "\"classes\":5,\"dropout\":0.1},\"data\":{\"format\":\"synthetic\",\"samples\":100},"
    "\"train\":{\"steps\":12,\"global_batch\":16,\"micro_batch\":4,\"grad_clip\":1.0},"
    "\"optimizer\":{\"type\":\"adamw\",\"lr\":0.001},\"output\":\"out\"}";

#define WARM_UP 3
struct samples {
    uint64_t at[16];
};

static void sample(void *ctx, const struct train_progress *p)
{
    struct samples *s = ctx;
    if (p->event == PROGRESS_STEP)
        s->at[p->step] = allocations;
}

static void write_spec(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fwrite(spec, 1, sizeof spec - 1, f);
    fclose(f);
}

/* Returns what train_run does. */
static int run(enum policy_id policy, void (*progress)(void *, const struct train_progress *), void *ctx,
               struct prepared_job *j, struct err *err)
{
    char dir[] = "/tmp/tutti-train-XXXXXX", path[64], cleanup[128];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/job.json", dir);
    write_spec(path);
    struct job_options o = {.spec_path = path, .devices = 2, .policy = policy, .update = -1, .threads = 2};
    struct train_report report;
    if (job_load_spec(&o, j, err) < 0 || job_prepare(&o, j, err) < 0)
        fail_msg("%s", err->msg);
    struct outdir out = {open(dir, O_RDONLY | O_DIRECTORY), dir};
    struct run_trace trace = {.max_steps = 6};
    struct train_options t = {.progress = progress, .ctx = ctx, .trace = &trace};
    int r = train_run(j, &out, &t, &report, err);
    assert_true(r < 0 || (trace.complete && trace.runs == 6));
    run_trace_finish(&trace);
    xfree(report.blocks);
    close(out.fd);
    job_finish(j);
    snprintf(cleanup, sizeof cleanup, "rm -rf %s", dir);
    assert_int_equal(system(cleanup), 0);
    return r;
}

static void test_training_step_allocates_nothing(void **state)
{
    (void)state;
#ifndef COUNTING
    SKIP_TEST("the sanitizers bring their own allocator");
#endif
    for (int policy = 0; policy < POLICY_COUNT; policy++) {
        struct samples s = {{0}};
        struct prepared_job j;
        struct err err = {0};
        if (run(policy, sample, &s, &j, &err) < 0)
            fail_msg("%s", err.msg);
        assert_true(s.at[1] > 0); /* counting works: preparing allocated */
        for (int step = WARM_UP; step <= 12; step++)
            if (s.at[step] != s.at[WARM_UP])
                fail_msg("policy %s: %llu allocations between steps %d and %d", policy_names[policy],
                         (unsigned long long)(s.at[step] - s.at[WARM_UP]), WARM_UP, step);
    }
}

/* Changes the plan so that it promises one byte more from step 3 on. The executor is bound to the plan as
 * it was. */
static void spoil_plan(void *ctx, const struct train_progress *p)
{
    struct plan_program *cycle = &((struct prepared_job *)ctx)->phases.at[0].plan->programs[PROGRAM_CYCLE];
    if (p->event != PROGRESS_STEP || p->step != 3)
        return;
    for (uint32_t i = 0; i < cycle->n_instrs; i++) {
        if (cycle->instrs[i].kind != INSTR_FETCH)
            continue;
        cycle->operands[cycle->instrs[i].operand].end++;
        return;
    }
}

static void test_training_other_bytes_than_planned_stop(void **state)
{
    (void)state;
    struct prepared_job j;
    struct err err = {0};
    assert_int_equal(run(POLICY_stream, spoil_plan, &j, &j, &err), -EPROTO);
    assert_non_null(strstr(err.msg, "the plan says"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training_step_allocates_nothing),
        cmocka_unit_test(test_training_other_bytes_than_planned_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
