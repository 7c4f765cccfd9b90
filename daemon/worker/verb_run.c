/* The verb --run. It trains the job in the foreground, from the newest checkpoint if the job has one. */
#include "base/log.h"
#include "daemon/worker/report.h"
#include "daemon/worker/run.h"
#include "daemon/worker/verbs.h"

/* How long --run waits for the lock of the output directory. A --check of the same job holds that lock only
 * for a moment. */
#define LOCK_WAIT_NS 200000000ull

static int print_result(const struct verb_options *o, const struct run_result *res)
{
    const struct train_report *rep = &res->report;
    struct strbuf b = {0};
    if (res->untrained) {
        log_info("stopped before a step was trained; run the same command again to go on");
        return res->exit;
    }
    if (o->json)
        report_json(&res->job, rep, &b);
    else
        report_text(&res->job, rep, &b);
    int code = print_buffer(&b);
    if (rep->numerics_changed)
        log_warning(
            "the checkpoint was written with other numerics than this machine's (%s): the bits may differ",
            rep->numerics);
    if (rep->stopped)
        log_info("stopped after a checkpoint at step %llu; run the same command again to go on",
                 (unsigned long long)rep->steps_done);
    return rep->stopped ? res->exit : code;
}

static int run_in_foreground(const struct verb_options *o)
{
    struct progress progress;
    struct run_result res;
    progress_init(&progress);
    struct run_options run = {
        .job = &o->job,
        .trace_steps = o->trace_steps,
        .lock_wait_ns = LOCK_WAIT_NS,
        .check_output = true,
        .progress = o->quiet ? NULL : progress_event,
        .ctx = &progress,
    };
    int r = run_job(&run, &res);
    progress_end();
    int code = r < 0 ? report_error(o, r, &res.err, res.job.least_bytes, res.early) : print_result(o, &res);
    run_finish(&res);
    return code;
}

static void set_run_defaults(struct verb_options *o)
{
    o->trace_steps = RUN_TRACE_STEPS;
}

static const struct worker_option rows[] = {
    {"trace-steps", "N", "measure N steps for trace.json (default: 3; 0: no trace)", OPTION_U32,
     OPTION_AT(trace_steps), 0, 1000},
    {0},
};

static const struct option_table options = {"what to measure with --run", rows};

const struct worker_verb verb_run = {
    .word = {"run", "JOB.json", .kind = OPTION_TEXT, .at = OPTION_AT(job.spec_path)},
    .forms = {{"JOB.json [options]", "train a job, from its newest checkpoint if it has one"}},
    .tables = {&options},
    .where = where_all,
    .set_defaults = set_run_defaults,
    .run = run_in_foreground,
};
