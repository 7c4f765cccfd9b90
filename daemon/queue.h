/* Who runs next, and on which devices. Pure: a view of queue and machine in, a decision out.
 *
 * First come, first served: the first job in the queue that may start gets the next devices; while it does not fit, nobody
 * behind it is served. Only jobs that no other job's end can help (queue_stuck) are passed over. The order is one
 * comparison, queue_before: fair share and priorities go there.
 */
#ifndef DAEMON_QUEUE_H
#define DAEMON_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/jobs.h"

/* How gladly a device is given away. */
enum queue_use {
    QUEUE_USE_GLADLY,
    QUEUE_USE_LAST,  /* only to jobs that do not get enough devices otherwise */
    QUEUE_USE_LATER, /* not now, but soon */
    QUEUE_USE_NEVER, /* out of service */
};

struct queue_machine {
    uint32_t n_devices; /* 0: auto, as many as a job asks for */
    uint64_t device_bytes, host_bytes;
    const uint64_t *device_job; /* per device: the job that has it, 0: free */
    const uint64_t
        *each_bytes; /* per device, where they differ: in place of device_bytes; 0: not handed out */
    bool one_job;    /* at a time: it gets all of the host's memory */
    enum queue_use use[DEVICE_MAX];
};

bool queue_before(const struct job *a, const struct job *b);

/* The job to start now and what it gets; NULL: none. Jobs whose not_before_ms is later than now do not hold up others. */
struct job *queue_next(struct job *const *jobs, size_t n, const struct queue_machine *m, uint64_t now_ms,
                       struct job_lease *ret);

/* Whether the job could not start even if nobody else had a device: too many are out of service, or others use too much of
 * their memory. */
bool queue_stuck(const struct job_ask *ask, const struct queue_machine *m);
/* Whether this device is one of those that keep it from starting. */
bool queue_withheld(const struct job_ask *ask, const struct queue_machine *m, uint32_t device);

/* Whether the job could ever run here; the message says what it lacks. */
int queue_admits(const struct job_ask *ask, const struct queue_machine *m, struct err *err);

#endif
