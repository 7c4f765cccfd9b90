/* Whether the daemon can start workers at the moment. Pure: failures and successes in, the next moment to try out.
 *
 * Some failures to start a worker say nothing about its job: the worker program is being replaced, the daemon has
 * no descriptor or process left, the state's disk has no room for a log. The daemon then pauses all launching and
 * charges no job. It tries again with one worker at a time, after 1, 2, 4, ... restart delays, at most
 * LAUNCH_PAUSE_MOST_MS apart. The pause ends when such a worker takes its job.
 *
 * Order of calls: launch_pause_allows before a launch, launch_pause_started when the launch begins, and then one of
 * launch_pause_failed, launch_pause_worked or launch_pause_dropped when its result is known. workers.c owns the one
 * object, in struct daemon. Loop thread only.
 */
#ifndef DAEMON_LAUNCH_PAUSE_H
#define DAEMON_LAUNCH_PAUSE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/strbuf.h"

#define LAUNCH_PAUSE_MOST_MS 30000

struct launch_pause {
    char reason[640];  /* why no worker can be started, for people; "" when there is no pause */
    uint32_t failures; /* failed tries in a row */
    uint64_t since_ms; /* wall clock: the first of them */
    uint64_t until_ms; /* loop clock: no worker is started before */
    uint64_t trying;   /* the job whose worker is the try under way; 0: none */
};

bool launch_paused(const struct launch_pause *p);
/* Whether a worker may be started now: there is no pause, or it is time for a try and none is under way. */
bool launch_pause_allows(const struct launch_pause *p, uint64_t now_ms);

/* The launch of this job's worker begins. During a pause it is the try. */
void launch_pause_started(struct launch_pause *p, uint64_t job);
/* The daemon could not start this job's worker (job 0: it could not start the probe of the devices). `delay_ms` is
 * the first delay. Workers that were started before the pause and fail during it do not lengthen it. Returns
 * whether people should be told: the pause began, or its reason changed. */
bool launch_pause_failed(struct launch_pause *p, uint64_t job, const char *reason, uint64_t now_ms,
                         uint64_t wall_ms, uint64_t delay_ms);
/* This job's worker took its job. Returns whether that ended a pause. */
bool launch_pause_worked(struct launch_pause *p, uint64_t job);
/* The launch of this job's worker ended without telling anything: the job was cancelled. */
void launch_pause_dropped(struct launch_pause *p, uint64_t job);

/* null, or {"reason":...,"failures":...,"since_ms":...}. */
void launch_pause_add_json(const struct launch_pause *p, struct strbuf *b);

#endif
