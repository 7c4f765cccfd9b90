/* Whether the daemon can start workers at the moment. Pure: the caller reports failures and successes, and
 * asks when the next try is due.
 *
 * Some failures to start a worker have nothing to do with its job. The worker program may be in the middle of
 * an upgrade, the daemon may have no descriptor or process left, or the disk of the state may be too full for
 * a log. The daemon then pauses all launches and counts no failure against a job. It tries again with one
 * worker at a time, after 1, 2, 4, ... restart delays, but at least every LAUNCH_PAUSE_MOST_MS. The pause
 * ends when such a worker takes its job.
 *
 * Order of calls: launch_pause_allows before a launch, launch_pause_started when the launch begins, and one
 * of launch_pause_failed, launch_pause_worked and launch_pause_dropped when its result is known. The only
 * object is in struct daemon, and workers.c uses it. Loop thread only.
 */
#ifndef DAEMON_LAUNCH_PAUSE_H
#define DAEMON_LAUNCH_PAUSE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/strbuf.h"

#define LAUNCH_PAUSE_MOST_MS 30000 /* longest delay between two tries */

struct launch_pause {
    /* The reason why no worker can be started, as a text for people. "" if launches are not paused. */
    char reason[640];
    uint32_t failures; /* failed tries in a row */
    uint64_t since_ms; /* wall clock: first failed try */
    uint64_t until_ms; /* loop clock: no worker is started before */
    /* Id of the job whose launch is the current try to end the pause. 0 if no try is under way. */
    uint64_t trying;
};

/* Returns whether launches are paused. */
bool launch_paused(const struct launch_pause *p);

/* Returns true if a worker may be started now. During a pause, a worker may be started only after the delay
 * since the last failed try, and only if no other try is under way. */
bool launch_pause_allows(const struct launch_pause *p, uint64_t now_ms);

/* Records that a worker is being started for this job. During a pause, this start is the try that may end the
 * pause. */
void launch_pause_started(struct launch_pause *p, uint64_t job);

/* Records that no worker could be started for this job. If `job` is 0, the device probe could not be started.
 * `delay_ms` is the delay after the first failure. During a pause, only a failure of the current try makes
 * the pause longer. Returns true if the pause has just begun or has a new reason, so that the caller tells
 * people. */
bool launch_pause_failed(struct launch_pause *p, uint64_t job, const char *reason, uint64_t now_ms,
                         uint64_t wall_ms, uint64_t delay_ms);

/* Records that the worker of this job has started and received its job. Returns true if this success ended a
 * pause. */
bool launch_pause_worked(struct launch_pause *p, uint64_t job);

/* Records that the start of a worker ended in a way that does not show whether workers can be started, for
 * example because the job was cancelled. */
void launch_pause_dropped(struct launch_pause *p, uint64_t job);

/* Adds a JSON value that describes the pause to `b`. The value is null if there is no pause, and otherwise an
 * object with reason, failures and since_ms. */
void launch_pause_add_json(const struct launch_pause *p, struct strbuf *b);

#endif
