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

/* Starts a probe of the devices whose bits are set in `devices`; bit i stands for device i. Calls reprobed(d)
 * when the probe ends, even if the probe failed. Returns -EBUSY while another probe runs. If an error is
 * returned, `reprobed` is never called. */
int reprobe_start(struct daemon *d, uint64_t devices, void (*reprobed)(struct daemon *d), struct err *err);

/* Returns whether a probe is running. */
bool reprobe_under_way(const struct daemon *d);

/* Kills the probe that is running, if there is one. Called when the daemon ends. */
void reprobe_abandon(struct daemon *d);

#endif
