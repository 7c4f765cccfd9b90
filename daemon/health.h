/* Decides which devices can be trusted. Pure: the caller reports errors and successes, and asks how a device
 * may be used. Loop thread only.
 *
 * docs/machine.md ("Devices that fail") explains the rule to administrators. The outcome of a worker names
 * the devices that broke while the worker used them. An error makes a device suspect. The device then rests
 * as long as the restart of a failed worker is delayed (1 s, then 2 s). Afterwards it is given to a job only
 * if there are not enough devices without errors. The third error in a row makes the device failed, and no
 * job gets it. A failed device rests for HEALTH_RETRY_RESTS restart delays. If a later probe finds it
 * working, it becomes suspect again, and one more error makes it failed. A job that is done clears the errors
 * of all its devices. The daemon forgets all errors when it ends.
 */
#ifndef DAEMON_HEALTH_H
#define DAEMON_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/strbuf.h"

/* A device counts as failed after this many errors in a row. */
#define HEALTH_MOST_ERRORS 3
/* The time that a failed device rests before it is tried again, as a number of restart delays. With the
 * default restart delay of 1 s, a failed device rests for 10 min. */
#define HEALTH_RETRY_RESTS 600

enum health_state { HEALTH_OK, HEALTH_SUSPECT, HEALTH_FAILED, HEALTH_STATE_COUNT };
extern const char *const health_state_names[HEALTH_STATE_COUNT];

/* The errors of one device. All fields are zero for a device without errors. */
struct health {
    /* The number of errors since a job last completed on this device. Each job that completes on the device
     * resets the number to 0. */
    uint32_t errors;
    /* The wall-clock time of the first of the errors that `errors` counts. */
    uint64_t since_ms;
    /* Jobs must not use the device until the loop's clock reaches this time. */
    uint64_t rest_until_ms;
    /* The id of the job whose worker reported the device's last error. */
    uint64_t job;
    char reason[128]; /* the last error, for people */
};

enum health_state health_state(const struct health *h);

/* Returns true while no job may use the device, because the device must rest after its last error. */
bool health_rests(const struct health *h, uint64_t now_ms);

/* Counts an error of the device, which the worker of job `job` reported. After its first error, a device
 * rests for `rest_ms` milliseconds. */
void health_error(struct health *h, uint64_t job, const char *reason, uint64_t now_ms, uint64_t wall_ms,
                  uint64_t rest_ms);

/* Clears the errors of the device, because a job has completed on it. */
void health_success(struct health *h);

/* Returns true if the device has failed and its rest is over. A successful probe may then bring the device
 * back into service. */
bool health_may_return(const struct health *h, uint64_t now_ms);

/* Changes a failed device to "suspect", because a probe has found that the device works. */
void health_return(struct health *h);

/* Adds the JSON members state, errors, since_ms, error_job and reason to `b`. A comma is written before each
 * member. */
void health_add_json(const struct health *h, struct strbuf *b);

#endif
