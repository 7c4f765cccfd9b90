/* Probes the devices again while the daemon runs, to learn how much memory is free on the devices that no job
 * has. Runs `tutti-worker --probe --only ...` as a child process of the loop and never blocks. Loop thread
 * only.
 *
 * Devices that jobs have are left out: their memory belongs to the jobs, and a probe needs some hundred MiB
 * of a device for a moment. One probe runs at a time.
 */
#ifndef DAEMON_REPROBE_H
#define DAEMON_REPROBE_H

#include "daemon/daemon.h"

/* Starts a probe of these devices (bit i: device i of the inventory). Calls reprobed(d) when the probe has
 * ended, whether it succeeded or not. On failure `reprobed` is never called. Returns -EBUSY while another
 * probe is running. */
int reprobe_start(struct daemon *d, uint64_t devices, void (*reprobed)(struct daemon *d), struct err *err);

/* Returns whether a probe is running. */
bool reprobe_under_way(const struct daemon *d);

/* Kills the running probe, if there is one, because the daemon ends. */
void reprobe_abandon(struct daemon *d);

#endif
