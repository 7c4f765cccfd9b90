/* The devices that the daemon hands out. Decides how the queue sees them and when they are probed again.
 * Also records failures and says why jobs wait. Loop thread only. */
#ifndef DAEMON_DEVICES_H
#define DAEMON_DEVICES_H

#include "daemon/jobs.h"
#include "daemon/queue.h"

/* Returns the machine as the queue sees it now. */
struct queue_machine devices_machine(const struct daemon *d);

/* Returns the machine with as much free memory per device as there ever was. Admission uses it, because
 * other programs may free their memory later. */
struct queue_machine devices_at_best(const struct daemon *d);

/* Returns whether the free memory of the devices can change. Only real devices change. Virtual devices and
 * those of a topology file do not. */
bool devices_change(const struct daemon *d);

/* Starts a probe of the idle devices if a probe is due. A probe is due before the job `next` (may be NULL)
 * starts, or while jobs wait for memory or for a failed device. Returns 1 while a probe is running, and no
 * job may start until reprobed(d) is called. Returns 0 when no probe is needed, and a negative errno when the
 * probe could not be started. */
int devices_reprobe_first(struct daemon *d, const struct job *next, void (*reprobed)(struct daemon *d),
                          struct err *err);

/* Takes failed devices back into service after a probe. A device returns if the probe found it and its
 * rest is over. */
void devices_reprobed(struct daemon *d);

/* Counts an error that a device had under this job's worker. `index` is the backend's number of the
 * device. Devices outside the job's lease are ignored. */
void devices_blame(struct daemon *d, const struct job *j, uint64_t index, const char *reason);

/* Clears the errors of the job's devices, because the job has completed. */
void devices_praise(struct daemon *d, const struct job *j);

/* Returns whether some device is resting after an error and can be used again later. */
bool devices_rest(const struct daemon *d);

/* Finds the queued jobs that could not start even on an idle machine. Sets job->stuck to a text that names
 * the withheld devices. Clears job->stuck of all other jobs. */
void devices_find_stuck(struct daemon *d, const struct queue_machine *m);

#endif
