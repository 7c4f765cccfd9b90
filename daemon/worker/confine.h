/* Removes the privileges and the open file descriptors that a worker does not need. */
#ifndef DAEMON_WORKER_CONFINE_H
#define DAEMON_WORKER_CONFINE_H

#include "base/err.h"

/* Drops all capabilities of this process and closes every file descriptor above 2. The process cannot gain
 * capabilities again. Call this function before the first thread is created, because each thread has its own
 * capabilities. */
int confine(struct err *err);

#endif
