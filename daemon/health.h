/* Which devices can be trusted. Pure: the caller reports errors and successes, and asks how a device may be
 * used. Loop thread only.
 *
 * The rule, which administrators find in docs/machine.md ("Devices that fail"): the outcome of a worker names
 * the devices that broke under it. An error makes a device suspect. It rests for as long as the restart of a
 * failed worker is delayed (1 s, then 2 s). Afterwards it is given to a job only if the devices without
 * errors do not suffice. The third error in a row makes the device failed, and no job gets it. After
 * HEALTH_RETRY_RESTS rests, a probe that finds the device working makes it suspect again, one error away from
 * failed. A job that is done clears the errors of all its devices. The daemon forgets all errors when it
 * ends.
 */
#ifndef DAEMON_HEALTH_H
#define DAEMON_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/strbuf.h"

/* Errors in a row after which a device counts as failed. */
#define HEALTH_MOST_ERRORS 3
/* Rest of a failed device before it may be tried again, in restart delays: 10 min by default. */
#define HEALTH_RETRY_RESTS 600

enum health_state { HEALTH_OK, HEALTH_SUSPECT, HEALTH_FAILED, HEALTH_STATE_COUNT };
extern const char *const health_state_names[HEALTH_STATE_COUNT];

/* The errors of one device. All zeros for a device without errors. */
struct health {
    /* Errors since a job last completed on the device. */
    uint32_t errors;
    /* Wall clock: time of the first of these errors. */
    uint64_t since_ms;
    /* Loop clock: the device is not used before this time. */
    uint64_t rest_until_ms;
    /* Id of the job whose worker reported the last error. */
    uint64_t job;
    char reason[128]; /* the last error, for people */
};

enum health_state health_state(const struct health *h);

/* Returns whether the device still rests after its last error. */
bool health_rests(const struct health *h, uint64_t now_ms);

/* Counts an error that the worker of this job reported. `rest_ms` is the rest after a first error. */
void health_error(struct health *h, uint64_t job, const char *reason, uint64_t now_ms, uint64_t wall_ms,
                  uint64_t rest_ms);

/* Clears the errors, because a job has completed on the device. */
void health_success(struct health *h);

/* Returns whether the device is failed and has rested long enough, so that a successful probe may bring it
 * back. */
bool health_may_return(const struct health *h, uint64_t now_ms);

/* Makes a failed device suspect again, after a successful probe. */
void health_return(struct health *h);

/* Adds JSON members to `b`, with a comma before each: state, errors, since_ms, error_job, reason. */
void health_add_json(const struct health *h, struct strbuf *b);

#endif
