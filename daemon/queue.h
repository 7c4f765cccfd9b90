/* Which job runs next, and on which devices. Pure: a view of the queue and the machine goes in, a decision
 * comes out.
 *
 * First come, first served. The first job in the queue that may start gets the next devices. While that job
 * does not fit, no job behind it is served. The exception is a job that could not start even if every running
 * job ended (queue_stuck): other jobs overtake it. The order of the queue is one comparison, queue_before;
 * fair share and priorities would go there.
 */
#ifndef DAEMON_QUEUE_H
#define DAEMON_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/job_record.h"

/* How readily a device is given to a job. */
enum queue_use {
    QUEUE_USE_GLADLY, /* to any job */
    /* Only to a job that cannot get enough other devices. */
    QUEUE_USE_LAST,
    QUEUE_USE_LATER, /* not now: it rests after an error */
    QUEUE_USE_NEVER, /* out of service */
};

/* The machine as the queue sees it. devices.c makes it anew for every decision. */
struct queue_machine {
    /* Number of devices. 0 means that each job gets as many virtual devices as it asks for. */
    uint32_t n_devices;
    /* Bytes of each device, unless each_bytes is set. */
    uint64_t device_bytes;
    uint64_t host_bytes; /* bytes of host memory for all jobs */
    /* Per device: id of the job that has it; 0: free. */
    const uint64_t *device_job;
    /* Bytes of each device if the devices differ; 0 for a device that is not handed out. NULL if all devices
     * have device_bytes. */
    const uint64_t *each_bytes;
    /* The daemon runs one job at a time, which gets all host memory. */
    bool one_job;
    enum queue_use use[DEVICE_MAX];
};

/* Returns whether job `a` comes before job `b` in the queue. */
bool queue_before(const struct job *a, const struct job *b);

/* Returns the job to start now, with its lease in *ret, or NULL when no job can start. A job whose
 * not_before_ms is later than now_ms does not hold up other jobs. */
struct job *queue_next(struct job *const *jobs, size_t n, const struct queue_machine *m, uint64_t now_ms,
                       struct job_lease *ret);

/* Returns whether the job could not start even if every running job ended: too many devices are out of
 * service, or other programs use too much of their memory. */
bool queue_stuck(const struct job_ask *ask, const struct queue_machine *m);

/* Returns whether this device cannot be given to the job even when it is free: it is out of service or too
 * small. */
bool queue_withheld(const struct job_ask *ask, const struct queue_machine *m, uint32_t device);

/* Returns 0 if the job could ever run on this machine. Otherwise returns -ENOSPC with a message that says
 * what the machine lacks. */
int queue_admits(const struct job_ask *ask, const struct queue_machine *m, struct err *err);

#endif
