/* Takes away from a worker the privileges and the open descriptors that it does not need. */
#ifndef DAEMON_WORKER_CONFINE_H
#define DAEMON_WORKER_CONFINE_H

#include "base/err.h"

/* Drops all capabilities of this process, so that neither the process nor a program it starts can gain
 * any, and closes every descriptor above 2. Call it before the first thread is created, because each
 * thread has capabilities of its own. */
int confine(struct err *err);

#endif
