/* --serve: trains a job for the daemon. The worker gets the job from worker.sock, reports its progress there,
 * stops when the daemon asks for it, sends the outcome, and ends. docs/protocol.md, section "Workers",
 * describes the messages.
 *
 * The worker first drops all privileges (confine.h). The main thread does what --run does, while the uplink's
 * thread talks to the daemon (uplink.h). What the worker prints goes to the job's log: a line now and then,
 * and the final report.
 *
 * The outcome is in the output directory before the daemon gets it. A daemon that dies in between finds it
 * there.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/worker/confine.h"
#include "daemon/worker/report.h"
#include "daemon/worker/run.h"
#include "daemon/worker/run_trace.h"
#include "daemon/worker/uplink.h"
#include "daemon/worker/verbs.h"

#define SECRET_NAME "TUTTI_SECRET"
/* Shortest time between two progress lines in the job's log, in nanoseconds. */
#define LOG_EVERY_NS 10000000000ull
/* The length of a time window in nanoseconds. The training speed is an average over a period as long as one
 * to two windows. */
#define WINDOW_NS 1000000000ull
/* How long to wait for the lock of the output directory, in nanoseconds. An earlier attempt of the same job
 * may still hold the lock. */
#define LOCK_WAIT_NS 10000000000ull

/* A point in time, and the number of training steps that were done at that time. */
struct step_mark {
    uint64_t ns, step;
};

/* Measures the speed of training in steps per second, as an average over the last one to two time windows.
 * The time of evaluations and checkpoints does not count. */
struct meter {
    /* The point from which the current average is computed. The point is one to two time windows (WINDOW_NS)
     * in the past, or at the start of the run. */
    struct step_mark old;
    /* The point from which the next average will be computed. The point is at most one time window in the
     * past. */
    struct step_mark mid;
    uint64_t last_ns; /* time of the last event */
};

/* The state of the verb --serve. Only the main thread uses it. */
struct serve {
    struct uplink *uplink;
    struct progress log;
    const struct outdir *out; /* NULL until the job is planned */
    struct meter meter;
    /* The time of the last message about the outputs of a forward-only phase. */
    uint64_t outputs_ns;
    /* The point at which the training of this run started. first.ns is 0 before the first training step. */
    struct step_mark first;
};

/* ---- speed ---- */

/* Records that `step` training steps are done at the time `now`, and returns the steps per second. The last
 * run of the cycle had `run_steps` steps and took `run_s` seconds. */
static double meter_run(struct meter *m, uint64_t now, uint64_t step, uint32_t run_steps, double run_s)
{
    struct step_mark here = {now, step};
    if (m->old.ns == 0)
        m->old = m->mid = (struct step_mark){now - (uint64_t)(run_s * 1e9), step - run_steps};
    if (now - m->mid.ns >= WINDOW_NS) {
        m->old = m->mid;
        m->mid = here;
    }
    m->last_ns = now;
    return (double)(step - m->old.step) / ((double)(now - m->old.ns + 1) * 1e-9);
}

/* Excludes the time since the last event from the average, because an evaluation or a checkpoint took that
 * time. */
static void meter_pause(struct meter *m, uint64_t now)
{
    if (m->old.ns != 0) {
        m->old.ns += now - m->last_ns;
        m->mid.ns += now - m->last_ns;
    }
    m->last_ns = now;
}

/* ---- events of the training loop ---- */

static void take_blocks(const struct train_progress *e, struct uplink_blocks *ret)
{
    ret->n = e->n_blocks < UPLINK_BLOCKS ? e->n_blocks : UPLINK_BLOCKS;
    for (uint32_t i = 0; i < ret->n; i++) {
        ret->loss[i] = e->blocks[i].loss;
        ret->accuracy[i] = e->blocks[i].accuracy;
    }
}

static void tell_eval(struct serve *s, const struct train_progress *e)
{
    struct uplink_blocks blocks;
    take_blocks(e, &blocks);
    uplink_eval(s->uplink, e->step, e->val_loss, e->val_accuracy, &blocks);
}

static void tell_step(struct serve *s, const struct train_progress *e)
{
    uint64_t now = clock_now_ns(), end = e->step + e->run_left; /* all steps up to `end` are done */
    uint32_t batch = e->phase->batch;
    double step_s = e->samples_per_s > 0 ? batch / e->samples_per_s : 0;
    double steps_per_s = meter_run(&s->meter, now, end, e->run_steps, step_s * e->run_steps);
    if (s->first.ns == 0)
        s->first = s->meter.old;
    uint64_t made = end - s->first.step;
    struct uplink_progress p = {
        .step = e->step,
        .total_steps = e->total_steps,
        .loss = e->loss,
        .lr = e->lr,
        .samples_per_s = steps_per_s * batch,
        .eta_s = (double)(now - s->first.ns) * 1e-9 / (double)made * (double)(e->total_steps - end),
        .in_bytes = e->in_bytes,
        .out_bytes = e->out_bytes,
        .peer_bytes = e->peer_bytes,
        .stall_share = e->stall_share,
        .loss_scale = e->loss_scale,
    };
    take_blocks(e, &p.blocks);
    uplink_progress(s->uplink, &p);
    if (e->skipped)
        uplink_skipped(s->uplink, e->step);
}

/* Adds the training steps of the job's earlier runs, which are in metrics.jsonl, to the curve. Lines that
 * cannot be read are ignored, because the curve is only for display. */
static void tell_history(struct serve *s, uint64_t last_step)
{
    int fd = openat(s->out->fd, "metrics.jsonl", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    char line[1024];
    if (f == NULL && fd >= 0)
        close(fd);
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        uint64_t step;
        double loss, accuracy;
        if (sscanf(line, "{\"step\":%" SCNu64 ",\"val/loss\":%lf,\"val/accuracy\":%lf", &step, &loss,
                   &accuracy) == 3 &&
            step <= last_step)
            uplink_history_eval(s->uplink, step, loss, accuracy);
        else if (sscanf(line, "{\"step\":%" SCNu64 ",\"loss\":%lf", &step, &loss) == 2 && step <= last_step)
            uplink_history_step(s->uplink, step, loss);
    }
    if (f != NULL)
        fclose(f);
}

/* Reports the progress of a forward-only phase, at most once per time window, and at its end. */
static void tell_outputs(struct serve *s, const struct train_progress *e)
{
    uint64_t now = clock_now_ns();
    if (now - s->outputs_ns < WINDOW_NS && e->samples < e->total_samples)
        return;
    s->outputs_ns = now;
    uplink_outputs(s->uplink, e->samples, e->total_samples);
}

static void on_planning(void *ctx, const struct job_planning *p)
{
    struct serve *s = ctx;
    uplink_planning(s->uplink, p->micro_batch, p->tasks, p->bytes);
}

static void on_planned(void *ctx, const struct prepared_job *j, const struct outdir *out)
{
    struct serve *s = ctx;
    struct strbuf b = {0};
    s->out = out;
    report_planned(j, &b);
    uplink_planned(s->uplink, b.at);
    strbuf_finish(&b);
}

static void on_progress(void *ctx, const struct train_progress *e)
{
    struct serve *s = ctx;
    progress_event(&s->log, e);
    if (e->event != PROGRESS_STEP)
        meter_pause(&s->meter, clock_now_ns());
    switch (e->event) {
    case PROGRESS_RESUME:
        tell_history(s, e->step);
        uplink_resumed(s->uplink, e->step, e->numerics_changed);
        break;
    case PROGRESS_PHASE:
        s->meter = (struct meter){0}; /* steps of another phase take another time */
        uplink_phase(s->uplink, e->phase->number, e->n_phases, e->phase->name);
        break;
    case PROGRESS_OUTPUTS:
        tell_outputs(s, e);
        break;
    case PROGRESS_STEP:
        tell_step(s, e);
        break;
    case PROGRESS_EVAL:
        tell_eval(s, e);
        break;
    case PROGRESS_LABELS:
        uplink_labels(s->uplink, e->labels, e->n_labels);
        break;
    case PROGRESS_CHECKPOINT:
        uplink_checkpoint(s->uplink, e->step);
        break;
    }
}

/* Called by the uplink's thread. */
static void on_stop(void *ctx, const char *reason)
{
    (void)ctx;
    log_info("asked to stop%s%s", reason[0] != '\0' ? ": " : "", reason);
    train_request_stop();
}

/* ---- the outcome ---- */

/* Returns whether another attempt could succeed, for example if a disk was full, if an earlier worker still
 * held the output directory, or if other programs used the memory. */
static bool may_retry(const struct run_result *res)
{
    switch (-res->code) {
    case EIO:
    case EBUSY:
        return true;
    /* If a device is missing before training begins, a retry helps only if the device was leased, because the
     * next lease may contain another device. */
    case ENODEV:
        return !res->early || res->job.blame.n > 0;
    case ENOMEM:
    case ENOSPC: /* early: does not fit the devices */
    case EDQUOT:
        return !res->early;
    }
    return false;
}

/* Appends the devices that made the job fail, so that the daemon does not give them to other jobs. */
static void add_blame(const struct job_blame *blame, struct strbuf *b)
{
    if (blame->n == 0)
        return;
    strbuf_add(b, ",\"failed_devices\":{\"indices\":[");
    for (uint32_t i = 0; i < blame->n; i++)
        strbuf_addf(b, "%s%" PRIu32, i > 0 ? "," : "", blame->index[i]);
    strbuf_add(b, "],\"reason\":");
    strbuf_add_json(b, blame->why);
    strbuf_add(b, "}");
}

/* Appends the members of the outcome message. */
static void add_outcome_members(const struct run_result *res, struct strbuf *b)
{
    const char *state = res->code < 0 ? "failed" : res->report.stopped ? "stopped" : "done";
    strbuf_addf(b, "\"state\":\"%s\",\"exit\":%d,\"error\":", state, res->exit);
    if (res->code < 0) {
        strbuf_add(b, "{");
        report_error_members(res->code, &res->err, res->exit == EXIT_MISFIT ? res->job.least_bytes : 0, b);
        strbuf_addf(b, "},\"retry\":%s,\"report\":null", may_retry(res) ? "true" : "false");
        add_blame(&res->job.blame, b);
        return;
    }
    strbuf_add(b, "null,\"report\":");
    if (res->result != NULL)
        strbuf_addn(b, res->result, strcspn(res->result, "\n"));
    else
        strbuf_add(b, "null");
}

/* Prints the error or the final report of the run to the job's log. */
static void print_outcome(const struct verb_options *o, const struct run_result *res)
{
    struct strbuf b = {0};
    if (res->code < 0) {
        report_error(o, res->code, &res->err, res->job.least_bytes, res->early);
        return;
    }
    if (res->untrained) {
        log_info("stopped before a step was trained");
        return;
    }
    report_text(&res->job, &res->report, &b);
    print_buffer(&b);
}

static int hand_over(struct uplink *uplink, const struct run_result *res)
{
    struct strbuf b = {0};
    struct err err = {0};
    char text[sizeof err];
    add_outcome_members(res, &b);
    int r = uplink_outcome(uplink, b.at, res->untrained ? UPLINK_SAME_STEP : res->report.steps_done, &err);
    strbuf_finish(&b);
    if (r == 0)
        return res->exit;
    log_warning("the outcome was not handed over: %s", err_text(&err, text, sizeof text));
    return r == -ETIMEDOUT ? res->exit : EXIT_FAILED;
}

/* ---- the verb ---- */

/* Copies the daemon's lease to the options of the job. The lease overrides the command line and the
 * environment. */
static void take_lease(const struct uplink_job *lease, struct job_options *job)
{
    job->devices = lease->devices;
    job->device_bytes = lease->device_bytes;
    job->host_bytes = lease->host_bytes;
    job->all_devices = lease->all_devices;
    job->host_bytes_each = lease->host_bytes_each;
    job->leased = true;
    job->machine = lease->machine;
    if (lease->has_index)
        job->device_index = lease->device_index;
    for (int i = 0; lease->backend[0] != '\0' && i < CHOICE_COUNT; i++)
        if (strcmp(backend_choice_names[i], lease->backend) == 0)
            job->backend = (enum backend_choice)i;
}

static int serve(const struct verb_options *o, struct uplink *uplink, const struct uplink_job *lease)
{
    struct serve s = {.uplink = uplink};
    struct verb_options plain = {.job = o->job};
    struct job_options *job = &plain.job;
    struct run_options run = {.job = job,
                              .trace_steps = RUN_TRACE_STEPS,
                              .lock_wait_ns = LOCK_WAIT_NS,
                              .planning = on_planning,
                              .planned = on_planned,
                              .progress = on_progress,
                              .ctx = &s};
    struct run_result res;
    job->spec_json = lease->spec;
    job->dir = lease->dir;
    take_lease(lease, job);
    progress_init(&s.log);
    s.log.every_ns = LOG_EVERY_NS;
    run_job(&run, &res);
    progress_end();
    print_outcome(&plain, &res);
    int code = hand_over(uplink, &res);
    run_finish(&res);
    return code;
}

/* Reads the secret for the daemon from the environment and erases it there, so that child processes and
 * readers of /proc cannot see it. */
static int take_secret(char *buf, size_t size, struct err *err)
{
    char *secret = getenv(SECRET_NAME);
    if (secret == NULL || secret[0] == '\0' || strlen(secret) >= size)
        return err_set(err, -EINVAL, "--serve needs a secret in the environment (%s); tuttid starts it so",
                       SECRET_NAME);
    strcpy(buf, secret);
    explicit_bzero(secret, strlen(secret));
    unsetenv(SECRET_NAME);
    return 0;
}

static int run_serve(const struct verb_options *o)
{
    struct uplink *uplink = NULL;
    struct uplink_job job = {0};
    struct err err = {0};
    char secret[256], text[sizeof err];
    if (confine(&err) < 0 || take_secret(secret, sizeof secret, &err) < 0)
        return report_error(o, err.code, &err, 0, true);
    const struct uplink_config c = {.socket = o->serve.socket,
                                    .secret = secret,
                                    .job = o->serve.job,
                                    .attempt = o->serve.attempt,
                                    .stop = on_stop};
    signal(SIGPIPE, SIG_IGN);
    int code = EXIT_FAILED, r = uplink_open(&c, &uplink, &err);
    explicit_bzero(secret, sizeof secret);
    if (r == 0)
        r = uplink_wait_job(uplink, &job, &err);
    if (r < 0)
        log_error("no job: %s", err_text(&err, text, sizeof text));
    else
        code = serve(o, uplink, &job);
    uplink_job_finish(&job);
    uplink_close(uplink);
    return code;
}

static const struct worker_option rows[] = {
    {"job", "ID", "the job's id", OPTION_U64, OPTION_AT(serve.job), 1, 1ull << 53},
    {"attempt", "N", "number of times that the job was started, including this time", OPTION_U64,
     OPTION_AT(serve.attempt), 1, 1ull << 53},
    {0},
};

static const struct option_table options = {"what to serve", rows};

static const char *const needs[] = {"job", "attempt", NULL};

const struct worker_verb verb_serve = {
    .word = {"serve", "SOCKET", .kind = OPTION_TEXT, .at = OPTION_AT(serve.socket)},
    .forms = {{"SOCKET --job ID --attempt N", "train a job of tuttid; only tuttid uses this verb"}},
    .tables = {&options},
    .where = where_all,
    .needs = needs,
    .run = run_serve,
};
