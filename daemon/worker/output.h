/* The output directory of a job: whether it can be used, and taking hold of it.
 *
 * output_check looks and changes nothing: --check and --run call it before anything is planned, so that a
 * job does not find out after hours of waiting. output_open makes the directory and locks it, and is what
 * decides: between the two calls anything may happen.
 */
#ifndef WORKER_OUTPUT_H
#define WORKER_OUTPUT_H

#include <stdint.h>

#include "base/err.h"
#include "base/fs.h"

/* 0 when `path` is a directory that this process may write to, or when it can be made. Else a negative
 * errno, and what is in the way; -EBUSY when all is well but another worker holds it at this moment. To
 * see that, the lock is taken and given back where there is one. */
int output_check(const char *path, struct err *err);

/* Makes the directory with its parents, opens it and locks it, waiting at most wait_ns for another worker
 * to let go. The lock is held until *ret_lock is closed; ret->name is `path` itself. -EBUSY: another
 * worker holds it. */
int output_open(const char *path, uint64_t wait_ns, struct outdir *ret, int *ret_lock, struct err *err);

#endif
