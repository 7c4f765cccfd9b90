/* The devices that the daemon hands out to jobs. Decides how the queue sees the devices and when they are
 * probed again, counts their errors, and says why jobs wait. Loop thread only. */
#ifndef DAEMON_DEVICES_H
#define DAEMON_DEVICES_H

#include "daemon/jobs.h"
#include "daemon/queue.h"

/* Returns the devices and the free memory as the queue may use them now. */
struct queue_machine devices_machine(const struct daemon *d);

/* Returns the machine as if every device had as much free memory as it ever had. Admission uses this view,
 * because other programs may free their memory later. */
struct queue_machine devices_at_best(const struct daemon *d);

/* Returns whether the free memory of the devices can change. That is so only for real devices that a probe
 * found, not for virtual devices or those of a topology file. */
bool devices_change(const struct daemon *d);

/* Starts a probe of the idle devices if one is due: before the job `next` (may be NULL) starts, or while jobs
 * wait for memory or for a failed device. Returns 0 if no probe is needed, or a negative errno if the probe
 * could not start. Returns 1 while a probe runs, and no job may start until reprobed(d) is called. */
int devices_reprobe_first(struct daemon *d, const struct job *next, void (*reprobed)(struct daemon *d),
                          struct err *err);

/* Takes failed devices back into service after a probe. A failed device returns if the probe found it and if
 * it has rested long enough since its last error. */
void devices_reprobed(struct daemon *d);

/* Counts an error that a device had while this job's worker used it. `index` is the backend's number of the
 * device. A device that the job does not lease is ignored. */
void devices_blame(struct daemon *d, const struct job *j, uint64_t index, const char *reason);

/* Clears the error counts of the job's devices, because a completed job shows that they work. */
void devices_praise(struct daemon *d, const struct job *j);

/* Returns whether some device is resting after an error, so that jobs can use it again later. */
bool devices_rest(const struct daemon *d);

/* Finds the queued jobs that could not start even on an idle machine. Sets job->stuck of these jobs to a text
 * that names the withheld devices, and clears job->stuck of all other jobs. */
void devices_find_stuck(struct daemon *d, const struct queue_machine *m);

#endif
