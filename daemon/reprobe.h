/* Looks at the devices again while the daemon runs: how much memory is free on the devices that no job has. It runs
 * `tutti-worker --probe --only ...` as a child of the loop and never waits for it. Loop thread only.
 *
 * Devices that jobs have are not looked at: their memory is the jobs', and a probe takes some hundred MiB of it for a
 * moment. There is one look at a time.
 */
#ifndef DAEMON_REPROBE_H
#define DAEMON_REPROBE_H

#include "daemon/daemon.h"

/* Starts a look at these devices (bit i: device i of the offer). reprobed(d) is called when the look has ended, well or
 * not. It is not called when this function fails. -EBUSY: a look is under way. */
int reprobe_start(struct daemon *d, uint64_t devices, void (*reprobed)(struct daemon *d), struct err *err);
bool reprobe_under_way(const struct daemon *d);
void reprobe_abandon(struct daemon *d); /* the daemon ends: kills the probe, if there is one */

#endif
