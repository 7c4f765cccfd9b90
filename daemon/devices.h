/* The devices that are handed out: how the queue sees them, which ones failed (health.h), and why jobs wait for
 * them. Loop thread only.
 */
#ifndef DAEMON_DEVICES_H
#define DAEMON_DEVICES_H

#include "daemon/jobs.h"
#include "daemon/queue.h"

/* The machine as the queue sees it now. */
struct queue_machine devices_machine(const struct daemon *d);
/* The same for admission: with the most memory that its devices ever had, since what others use they may give back. */
struct queue_machine devices_at_best(const struct daemon *d);

/* Whether what is free of the devices may change: they are real, and looked at. */
bool devices_change(const struct daemon *d);
/* Looks at the devices when it is time to: before `next` (may be NULL) is started, or because jobs wait for memory or
 * for a device that failed. Returns 1 when a look is under way: no job may be started until `looked` is called. Returns
 * 0 when no look is needed, or a negative errno when the look could not be started. */
int devices_reprobe_first(struct daemon *d, const struct job *next, void (*reprobed)(struct daemon *d),
                          struct err *err);

/* The job's worker says that the device with this number of the backend's broke under it. Numbers that are not of
 * the job's lease are ignored. */
void devices_blame(struct daemon *d, const struct job *j, uint64_t index, const char *reason);
/* The job was done: nothing is wrong with its devices. */
void devices_praise(struct daemon *d, const struct job *j);
/* Whether there is a device that is to be used later, by the clock. */
bool devices_rest(const struct daemon *d);

/* Writes into every queued job that no other job's end can help which devices are withheld from it (job->stuck), and
 * clears that of the others. */
void devices_find_stuck(struct daemon *d, const struct queue_machine *m);

/* A look has ended: failed devices that it found in order, and that have rested, come back. */
void devices_reprobed(struct daemon *d);

#endif
