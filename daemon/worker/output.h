/* Checks, creates and locks the output directory of a job.
 *
 * output_check only looks and changes nothing. --check and --run call it before planning, so that a job
 * does not fail after hours of waiting because of its output. output_open creates and locks the directory.
 * Only output_open decides, because anything may happen between the two calls.
 */
#ifndef WORKER_OUTPUT_H
#define WORKER_OUTPUT_H

#include <stdint.h>

#include "base/err.h"
#include "base/fs.h"

/* Returns 0 when `path` is a directory that this process may write to, or when it can be created.
 * Otherwise returns a negative errno and says in err what is wrong. Returns -EBUSY when another worker
 * holds the directory at this moment; to find out, the function takes the lock for a moment if the lock
 * file exists. */
int output_check(const char *path, struct err *err);

/* Creates the directory with its parents, opens it and locks it. Waits at most wait_ns for another worker
 * to release the lock, and then returns -EBUSY. The lock is held until *ret_lock is closed. ret->name
 * points to `path` itself. */
int output_open(const char *path, uint64_t wait_ns, struct outdir *ret, int *ret_lock, struct err *err);

#endif
