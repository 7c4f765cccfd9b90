/* The devices that the daemon hands out: how the queue sees them, which devices have failed (health.h), why
 * jobs wait for devices, and when devices are probed again. Loop thread only. */
#ifndef DAEMON_DEVICES_H
#define DAEMON_DEVICES_H

#include "daemon/jobs.h"
#include "daemon/queue.h"

/* Returns the machine as the queue sees it now. */
struct queue_machine devices_machine(const struct daemon *d);

/* Returns the machine as admission sees it. Each device has the largest amount of memory that was ever free
 * on it, because other programs may free the memory that they use now. */
struct queue_machine devices_at_best(const struct daemon *d);

/* Returns whether the free memory of the devices can change while the daemon runs. True for real devices, and
 * false for virtual devices and devices from a topology file. */
bool devices_change(const struct daemon *d);

/* Starts a probe of the idle devices if a probe is due. A probe is due before the job `next` (may be NULL)
 * starts, or while jobs wait for memory or for a failed device. Returns 1 while a probe is running, and no
 * job may start until reprobed(d) is called. Returns 0 when no probe is needed, and a negative errno when the
 * probe could not be started. */
int devices_reprobe_first(struct daemon *d, const struct job *next, void (*reprobed)(struct daemon *d),
                          struct err *err);

/* Takes failed devices back into service after a probe. A device returns if the probe found it working and
 * its rest is over. */
void devices_reprobed(struct daemon *d);

/* Counts an error that a device had while it was used by this job's worker. `index` is the backend's number
 * of the device. A number that is not in the job's lease is ignored. */
void devices_blame(struct daemon *d, const struct job *j, uint64_t index, const char *reason);

/* Clears the errors of the job's devices, because the job has completed. */
void devices_praise(struct daemon *d, const struct job *j);

/* Returns whether some device is resting after an error and can be used again later. */
bool devices_rest(const struct daemon *d);

/* Finds the queued jobs that could not start even if every running job ended. Sets job->stuck of these jobs
 * to a text that names the withheld devices, and clears job->stuck of all other jobs. */
void devices_find_stuck(struct daemon *d, const struct queue_machine *m);

#endif
