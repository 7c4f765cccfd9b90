/* Trains a job in its output directory: prepares the job, takes the output, runs the training loop, writes
 * the result.
 *
 * Files of the output directory:
 *     lock                held while a worker uses the directory
 *     resolved.json       the spec with the values that "auto" stands for, written once
 *     transformer.json    the configuration of a gpt2 or llama model
 *     metrics.jsonl       one line per step and per evaluation
 *     checkpoints/
 *     model.safetensors   the weights after the last step
 *     result.json         how the job ended
 *     trace.json          a few measured steps
 * A run that is refused because the directory belongs to another job writes nothing there.
 */
#include "daemon/worker/run.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/get.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/worker/model/weights.h"
#include "daemon/worker/output.h"
#include "daemon/worker/report.h"
#include "daemon/worker/run_trace.h"

#define RESULT_MAX (1u << 20)

/* ---- signals ---- */

static volatile sig_atomic_t caught;

static const int stop_signals[] = {SIGHUP, SIGINT, SIGTERM};

static void on_signal(int sig);

/* Installs the handlers of the stop signals, or removes them again. A signal that was ignored when the
 * process started stays ignored, because a job under nohup must survive SIGHUP. */
static void handle_signals(bool on)
{
    for (size_t i = 0; i < sizeof stop_signals / sizeof stop_signals[0]; i++) {
        struct sigaction now, want = {.sa_handler = on ? on_signal : SIG_DFL, .sa_flags = SA_RESTART};
        if (sigaction(stop_signals[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaction(stop_signals[i], &want, NULL);
    }
}

/* The first signal asks the training loop for a checkpoint. A second signal, even of another kind, ends the
 * process at once. */
static void on_signal(int sig)
{
    caught = sig;
    train_request_stop();
    handle_signals(false);
}

/* ---- the output directory ---- */

/* Writes resolved.json in a job's first run. In a later run, checks that the spec still resolves to the same
 * values. */
static int settle_resolved(const struct outdir *out, const struct spec *s, struct err *err)
{
    bool there;
    int r = job_compare_resolved(out, s, &there, err);
    if (r < 0 || there)
        return r;
    struct strbuf b = {0};
    spec_resolved_json(s, &b);
    strbuf_add(&b, "\n");
    r = fs_replace(out, RUN_RESOLVED_FILE, b.at, b.n, err);
    strbuf_finish(&b);
    return r;
}

/* ---- result.json ---- */

/* Returns the text of result.json if it says that the job was done after `steps` training steps, otherwise
 * NULL. The caller frees the text. */
static char *read_done(const struct outdir *out, uint64_t steps)
{
    char *text = NULL;
    size_t bytes;
    struct json *doc = NULL;
    uint64_t found = 0;
    if (fs_read_text(out->fd, RUN_RESULT_FILE, RESULT_MAX, &text, &bytes) < 0)
        return NULL;
    bool good = json_parse(text, bytes, RUN_RESULT_FILE, false, &doc, NULL) == 0 &&
                json_type(doc) == JSON_OBJECT && get_flag(doc, "ok") && !get_flag(doc, "stopped") &&
                get_count(doc, "steps", &found) && found == steps;
    json_free(doc);
    if (good)
        return text;
    free(text);
    return NULL;
}

/* Writes result.json. If this run had no training step left to do, the function keeps the result of the run
 * that did the last step. */
static int write_result(const struct outdir *out, struct run_result *res)
{
    const struct train_report *rep = &res->report;
    if (rep->steps_done == rep->resumed_from && !rep->stopped)
        res->result = read_done(out, rep->steps_done);
    if (res->result != NULL)
        return 0;
    struct strbuf b = {0};
    report_json(&res->job, rep, &b);
    int r = fs_replace(out, RUN_RESULT_FILE, b.at, b.n, &res->err);
    if (r < 0)
        strbuf_finish(&b);
    res->result = b.at;
    return r;
}

/* Writes the failure to result.json. If the job was already done, its result is kept, because a later failure
 * does not undo it. Errors here are ignored, because the failure itself is reported anyway. */
static void write_failure(const struct outdir *out, const struct run_result *res)
{
    char *done = read_done(out, job_total_steps(&res->job));
    struct strbuf b = {0};
    if (done == NULL) {
        strbuf_addf(&b, "{\"ok\":false,\"exit\":%d,", res->exit);
        report_error_members(res->code, &res->err, 0, &b);
        strbuf_addf(&b, ",\"steps\":%" PRIu64 "}\n", res->report.steps_done);
        (void)fs_replace(out, RUN_RESULT_FILE, b.at, b.n, NULL);
    }
    strbuf_finish(&b);
    free(done);
}

/* ---- the run ---- */

/* Writes trace.json. If this fails, the function only prints a warning, because the training itself has
 * succeeded. */
static void write_trace(const struct run_trace *trace, const struct prepared_job *j, const struct outdir *out)
{
    struct err err = {0};
    char text[sizeof err.path + sizeof err.msg];
    if (run_trace_write(trace, j, out, &err) < 0)
        log_warning("%s; the results are not affected", err_text(&err, text, sizeof text));
}

static int train(const struct run_options *o, const struct outdir *out, struct run_result *res)
{
    struct run_trace trace = {.max_steps = o->trace_steps};
    struct train_options t = {
        .delay_seed = o->job->delay_seed,
        .link_bytes_per_s = o->job->link_bytes_per_s,
        .peer_bytes_per_s = o->job->peer_bytes_per_s,
        .progress = o->progress,
        .ctx = o->ctx,
        .trace = &trace,
    };
    if (o->planned != NULL)
        o->planned(o->ctx, &res->job, out);
    handle_signals(true);
    int r = train_run(&res->job, out, &t, &res->report, &res->err);
    if (r == 0) {
        job_compare(o->job, &res->job);
        r = write_result(out, res);
    }
    if (r == 0)
        write_trace(&trace, &res->job, out);
    run_trace_finish(&trace);
    return r;
}

static void explain(struct run_result *res)
{
    if (!res->early && (res->code == -ENOSPC || res->code == -EDQUOT))
        err_set_at(&res->err, res->code, res->err.path,
                   "%s; the disk is full: make room, then the job can go on", res->err.msg);
}

/* Does the part of the run that needs the output directory: opens and locks the directory, trains, and writes
 * the result. */
static void run_in_output(const struct run_options *o, struct run_result *res)
{
    struct outdir out;
    int lock = -1;
    int r = output_open(res->job.output, o->lock_wait_ns, &out, &lock, &res->err);
    bool ours = r == 0;
    if (r == 0)
        r = settle_resolved(&out, res->job.spec, &res->err);
    if (r == 0 && res->job.spec->transformer != NULL)
        r = weights_describe(&out, res->job.spec->transformer, &res->err);
    if (r == 0)
        r = train(o, &out, res);
    res->code = r;
    res->exit = r < 0 ? report_exit_code(r, false) : EXIT_DONE;
    explain(res);
    if (r < 0 && ours && r != -EEXIST)
        write_failure(&out, res);
    if (ours) {
        close(lock);
        close(out.fd);
    }
}

static bool is_stopped(void *ctx)
{
    (void)ctx;
    return train_stop_requested();
}

/* Ends a run that was stopped before its first training step. The job stays at the step that its earlier runs
 * had reached. */
static void end_untrained(struct run_result *res)
{
    res->code = 0;
    res->err = (struct err){0};
    res->early = false;
    res->untrained = res->report.stopped = true;
    res->exit = 128 + (caught != 0 ? caught : SIGINT);
}

int run_job(const struct run_options *o, struct run_result *ret)
{
    struct job_options job = *o->job;
    *ret = (struct run_result){.early = true};
    job.stop = is_stopped;
    job.planning = o->planning;
    job.ctx = o->ctx;
    int r = job_load_spec(&job, &ret->job, &ret->err);
    if (r == 0 && o->check_output)
        r = output_check(ret->job.output, &ret->err);
    if (r == 0)
        r = job_prepare(&job, &ret->job, &ret->err);
    if (r == 0)
        r = job_check_backend(&ret->job, &ret->err);
    ret->code = r;
    if (r == -ECANCELED || (r == 0 && train_stop_requested())) {
        end_untrained(ret);
        return 0;
    }
    if (r < 0) {
        ret->exit = report_exit_code(r, true);
        return r;
    }
    ret->early = false;
    run_in_output(o, ret);
    if (ret->code == 0 && ret->report.stopped)
        ret->exit = 128 + (caught != 0 ? caught : SIGINT);
    return ret->code;
}

void run_finish(struct run_result *r)
{
    free(r->result);
    xfree(r->report.blocks);
    job_finish(&r->job);
    *r = (struct run_result){0};
}
