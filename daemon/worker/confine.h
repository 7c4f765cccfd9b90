/* Gives up what a worker does not need: privileges, and descriptors that it was not meant to have. */
#ifndef DAEMON_WORKER_CONFINE_H
#define DAEMON_WORKER_CONFINE_H

#include "base/err.h"

/* Afterwards this process, and all that it starts, has no capabilities and cannot get any, and only the descriptors 0, 1
 * and 2 are open. Call it before the first thread is made: capabilities belong to threads. */
int confine(struct err *err);

#endif
