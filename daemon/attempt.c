/* Implements attempt.h: decides what happens to a job after its worker process has ended. */
#include "daemon/attempt.h"

#include <errno.h>
#include <inttypes.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/wire.h"
#include "daemon/launch.h"

#define MOST_DELAY_MS 60000 /* longest delay before a restart */
/* A job whose disk was full restarts after this many restart delays. With the default delay of 1 s, the job
 * waits 30 s. */
#define PAUSE_DELAYS 30

bool attempt_over_limit(const struct job *j)
{
    return j->ask.time_limit_s > 0 && j->used_ms + launch_age_ms(&j->process) > 1000 * j->ask.time_limit_s;
}

void attempt_end_job(struct daemon *d, struct job *j, enum job_state state, int exit, const char *error,
                     void (*done)(void *ctx, int status), void *ctx)
{
    struct strbuf b = {0};
    j->exit = exit;
    j->ended_ms = clock_wall_ns() / 1000000;
    job_set_text(&j->error, error);
    job_set_state(j, state, "");
    strbuf_addf(&b, "\"state\":\"%s\",\"exit\":%d,\"error\":%s", job_state_names[state], exit,
                error != NULL ? error : "null");
    jobs_save(d->jobs, j, "ended", b.at, done, ctx);
    log_info("job %" PRIu64 ": %s", j->id, job_state_names[state]);
    strbuf_finish(&b);
}

void attempt_requeue(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                     void *ctx)
{
    struct strbuf b = {0};
    job_set_state(j, JOB_QUEUED, why);
    strbuf_add(&b, "\"why\":");
    strbuf_add_json(&b, why);
    jobs_save(d->jobs, j, "queued", b.at, done, ctx);
    strbuf_finish(&b);
}

void attempt_pause(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                   void *ctx)
{
    struct strbuf b = {0};
    j->not_before_ms = daemon_now_ms(d) + PAUSE_DELAYS * d->config.restart_delay_ms;
    strbuf_addf(&b, "paused: %s", why);
    log_warning("job %" PRIu64 ": %s", j->id, b.at);
    attempt_requeue(d, j, b.at, done, ctx);
    strbuf_finish(&b);
}

static void give_up(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                    void *ctx)
{
    struct strbuf b = {0};
    struct err err = {0};
    err_set(&err, -EIO,
            "the worker %s; it failed %u times without a new checkpoint; see `tutti logs %" PRIu64 "`", why,
            j->failures, j->id);
    wire_add_err_object(&b, &err);
    attempt_end_job(d, j, JOB_FAILED, 1, b.at, done, ctx);
    strbuf_finish(&b);
}

void attempt_failed(struct daemon *d, struct job *j, const char *why, void (*done)(void *ctx, int status),
                    void *ctx)
{
    struct strbuf reason = {0}, members = {0};
    if (j->checkpoint_step > j->failed_step)
        /* The job has written a new checkpoint since its previous failure, so it makes progress. The earlier
         * failures no longer count. */
        j->failures = 0;
    j->failed_step = j->checkpoint_step;
    j->failures++;
    if (j->failures > ATTEMPT_MOST_FAILURES) {
        give_up(d, j, why, done, ctx);
        return;
    }
    uint64_t delay = d->config.restart_delay_ms << (j->failures - 1);
    if (delay > MOST_DELAY_MS)
        delay = MOST_DELAY_MS;
    j->not_before_ms = daemon_now_ms(d) + delay;
    strbuf_addf(&reason, "the worker %s; restart %u of %d follows", why, j->failures, ATTEMPT_MOST_FAILURES);
    job_set_state(j, JOB_QUEUED, reason.at);
    strbuf_add(&members, "\"why\":");
    strbuf_add_json(&members, why);
    strbuf_addf(&members, ",\"failures\":%u,\"in_s\":%.3f", j->failures, (double)delay / 1000);
    jobs_save(d->jobs, j, "restarting", members.at, done, ctx);
    log_warning("job %" PRIu64 ": %s", j->id, reason.at);
    strbuf_finish(&reason);
    strbuf_finish(&members);
}

static void end_over_limit(struct daemon *d, struct job *j, void (*done)(void *ctx, int status), void *ctx)
{
    struct strbuf b = {0};
    struct err err = {0};
    err_set_at(&err, -ETIME, "queue.time_limit",
               "the time limit of %" PRIu64 " s is over; the checkpoint of step %" PRIu64
               " is kept; submit the job again with a longer limit to continue",
               j->ask.time_limit_s, j->checkpoint_step);
    wire_add_err_object(&b, &err);
    attempt_end_job(d, j, JOB_FAILED, 1, b.at, done, ctx);
    strbuf_finish(&b);
}

/* The job may be in the state JOB_STOPPING because an earlier daemon was shut down and told the worker to
 * stop. No user cancelled such a job, so the job goes back into the queue. */
bool attempt_stopped(struct daemon *d, struct job *j, void (*done)(void *ctx, int status), void *ctx)
{
    if (j->cancel)
        attempt_end_job(d, j, JOB_CANCELLED, EXIT_CANCELLED, NULL, done, ctx);
    else if (attempt_over_limit(j))
        end_over_limit(d, j, done, ctx);
    else if (d->stopping || j->state == JOB_STOPPING)
        attempt_requeue(d, j, "the daemon was stopped", done, ctx);
    else
        return false;
    return true;
}

void attempt_count_time(struct job *j)
{
    j->used_ms += launch_age_ms(&j->process);
    j->process.start = 0; /* The time must be counted only once. */
}
