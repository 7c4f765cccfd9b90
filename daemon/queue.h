/* Decides which job runs next, and on which devices. Pure: the functions get a view of the queue and of the
 * machine, and return a decision.
 *
 * First come, first served. The first job in the queue that may start gets the next devices. While that job
 * does not fit, no job behind it is served. The exception is a job that could not start even if every running
 * job ended (queue_stuck). Other jobs overtake it. The order of the queue is one comparison, queue_before.
 * Fair share and priorities would belong there.
 */
#ifndef DAEMON_QUEUE_H
#define DAEMON_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/job_record.h"

/* How willing the queue is to give a device to a job, from QUEUE_USE_GLADLY to QUEUE_USE_NEVER. */
enum queue_use {
    QUEUE_USE_GLADLY, /* to any job */
    /* The device is given to a job only if the job cannot get enough other devices. */
    QUEUE_USE_LAST,
    QUEUE_USE_LATER, /* not now: it rests after an error */
    QUEUE_USE_NEVER, /* out of service */
};

/* The machine as the queue sees it. devices.c builds a new struct queue_machine each time the queue is
 * asked. */
struct queue_machine {
    /* The number of devices of the machine. 0 means that every job gets as many virtual devices as it asks
     * for. */
    uint32_t n_devices;
    /* The number of bytes on each device. Not used if each_bytes is set. */
    uint64_t device_bytes;
    uint64_t host_bytes; /* bytes of host memory for all jobs */
    /* For each device, the id of the job that has it, or 0 if the device is free. */
    const uint64_t *device_job;
    /* For each device, the number of bytes that a job may use, or 0 if no job may use the device. If the
     * pointer is NULL, jobs may use device_bytes bytes on every device. */
    const uint64_t *each_bytes;
    /* Set if the daemon runs only one job at a time. By default, that job gets all host memory. */
    bool one_job;
    enum queue_use use[DEVICE_MAX];
};

/* Returns true if job `a` comes before job `b` in the queue. */
bool queue_before(const struct job *a, const struct job *b);

/* Returns the job that should start now and sets *ret to the job's lease. Returns NULL if no job can start. A
 * job whose not_before_ms is still in the future is skipped, and no other job waits for it. */
struct job *queue_next(struct job *const *jobs, size_t n, const struct queue_machine *m, uint64_t now_ms,
                       struct job_lease *ret);

/* Returns true if the job could not start even on an idle machine, because too many devices are out of
 * service or have too little free memory. */
bool queue_stuck(const struct job_ask *ask, const struct queue_machine *m);

/* Returns the host memory that a job gets for each of its devices. Returns 0 if the host memory of the job
 * does not depend on the number of its devices. */
uint64_t queue_host_each(const struct job_ask *ask, const struct queue_machine *m);

/* Returns true if the job could not get this device even if the device were free, because the device is out
 * of service or too small. */
bool queue_withheld(const struct job_ask *ask, const struct queue_machine *m, uint32_t device);

/* Returns 0 if the machine is large enough for the job. Otherwise returns -ENOSPC with a message that says
 * what the machine lacks. */
int queue_admits(const struct job_ask *ask, const struct queue_machine *m, struct err *err);

#endif
