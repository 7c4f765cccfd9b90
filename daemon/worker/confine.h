/* Removes the privileges and the open descriptors that a worker does not need. */
#ifndef DAEMON_WORKER_CONFINE_H
#define DAEMON_WORKER_CONFINE_H

#include "base/err.h"

/* Drops all capabilities of this process and closes every descriptor above 2. They cannot be gained again.
 * Call this before the first thread is created, because each thread has its own capabilities. */
int confine(struct err *err);

#endif
