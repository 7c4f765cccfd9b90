/* Probes the devices again while the daemon runs, to learn how much memory is free on the devices that no job
 * has. Runs `tutti-worker --probe --only ...` as a child process of the loop and never blocks. Loop thread
 * only.
 *
 * Devices that jobs have are not probed. Their memory belongs to the jobs, and a probe needs some hundred MiB
 * of a device for a moment. Only one probe runs at a time.
 */
#ifndef DAEMON_REPROBE_H
#define DAEMON_REPROBE_H

#include "daemon/daemon.h"

/* Starts a probe of some devices. Bit i of `devices` is set if device i should be probed. When the probe ends
 * or fails, reprobed(d) is called. Returns -EBUSY while another probe is running. If an error is returned,
 * `reprobed` is never called. */
int reprobe_start(struct daemon *d, uint64_t devices, void (*reprobed)(struct daemon *d), struct err *err);

/* Returns whether a probe is running. */
bool reprobe_under_way(const struct daemon *d);

/* Kills the probe that is running. Does nothing if no probe is running. Called when the daemon ends. */
void reprobe_abandon(struct daemon *d);

#endif
