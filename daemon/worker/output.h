/* Checks, creates and locks the output directory of a job. output_check changes nothing and comes before
 * planning, to find problems early. output_open creates and locks the directory. The directory may change
 * between the two calls, so only output_open is final.
 */
#ifndef WORKER_OUTPUT_H
#define WORKER_OUTPUT_H

#include <stdint.h>

#include "base/err.h"
#include "base/fs.h"

/* Returns 0 if `path` is a directory that this process may write to or can create. Otherwise returns a
 * negative errno with a message. Returns -EBUSY if another worker has locked it. If there is a lock file,
 * takes its lock briefly. */
int output_check(const char *path, struct err *err);

/* Creates the directory and its parents, opens it and locks it. Waits up to `wait_ns` for the lock, then
 * returns -EBUSY. The lock is held until *ret_lock is closed. ret->name points to `path`, which is not
 * copied. */
int output_open(const char *path, uint64_t wait_ns, struct outdir *ret, int *ret_lock, struct err *err);

#endif
