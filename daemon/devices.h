/* The devices that the daemon gives to jobs. These functions decide which devices jobs may use and when
 * devices are probed again. They also count the errors of devices, and explain why jobs wait. Loop thread
 * only. */
#ifndef DAEMON_DEVICES_H
#define DAEMON_DEVICES_H

#include "daemon/jobs.h"
#include "daemon/queue.h"

/* Returns the machine as the queue may use it now: the devices, and the memory that is free on them. */
struct queue_machine devices_machine(const struct daemon *d);

/* Returns the machine as if each device had the most free memory that it ever had. The check of a new job
 * uses this view, because other programs may free their memory later. */
struct queue_machine devices_at_best(const struct daemon *d);

/* Returns true if the free memory of the devices can change. It can change only for real devices that a probe
 * found. The memory of virtual devices and of devices from a topology file is fixed. */
bool devices_change(const struct daemon *d);

/* Starts a probe of the idle devices if one is due: before the job `next` (may be NULL) starts, or while jobs
 * wait for memory or for a failed device. Returns 0 if no probe is needed, or a negative errno if the probe
 * could not start. Returns 1 while a probe runs, and no job may start until reprobed(d) is called. */
int devices_reprobe_first(struct daemon *d, const struct job *next, void (*reprobed)(struct daemon *d),
                          struct err *err);

/* Takes failed devices back into service after a probe. A failed device returns if the probe found it and if
 * enough time has passed since its last error. */
void devices_reprobed(struct daemon *d);

/* Counts an error that a device had while this job's worker used the device. `index` is the number of the
 * device in the backend. If the device is not leased to the job, the error is ignored. */
void devices_blame(struct daemon *d, const struct job *j, uint64_t index, const char *reason);

/* Clears the error counts of the job's devices. Called when the job has completed, which shows that its
 * devices work. */
void devices_praise(struct daemon *d, const struct job *j);

/* Returns true if at least one device is resting after an error. Such a device will be usable again later. */
bool devices_rest(const struct daemon *d);

/* Finds the queued jobs that could not start even if no other job ran. For these jobs, sets job->stuck to a
 * text that names the devices they cannot get. For all other jobs, clears job->stuck. */
void devices_find_stuck(struct daemon *d, const struct queue_machine *m);

#endif
