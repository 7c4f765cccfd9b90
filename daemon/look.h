/* Looking at the devices again while the daemon runs: how much of those that no job has is free now. Asks
 * `tutti-worker --probe --only ...` as a child of the loop, which never waits for it. Loop thread only.
 *
 * Devices that jobs have are not asked: what is in use there is theirs, and a probe takes some hundred MiB for a
 * moment. One look at a time.
 */
#ifndef DAEMON_LOOK_H
#define DAEMON_LOOK_H

#include "daemon/daemon.h"

/* Starts a look at these devices (bit i: device i of the offer). When it has ended, well or not, looked(d) is
 * called; not when starting fails, which is logged. -EBUSY: one is under way. */
int look_start(struct daemon *d, uint64_t devices, void (*looked)(struct daemon *d));
bool look_under_way(const struct daemon *d);
void look_abandon(struct daemon *d); /* the daemon ends: kills the probe, if there is one */

#endif
