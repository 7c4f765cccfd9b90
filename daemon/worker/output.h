/* Checks, creates and locks the output directory of a job. output_check only looks and changes nothing.
 * --check and --run call it before planning, so that a job does not fail after hours of waiting because of
 * its output. output_open creates and locks the directory. The directory may change between the two calls, so
 * only the result of output_open is final.
 */
#ifndef WORKER_OUTPUT_H
#define WORKER_OUTPUT_H

#include <stdint.h>

#include "base/err.h"
#include "base/fs.h"

/* Returns 0 if `path` is a directory that this process may write to, or if it can be created. Otherwise
 * returns a negative errno with a message. Returns -EBUSY if another worker has locked the directory. To find
 * this out, the function takes the lock briefly if the lock file exists. */
int output_check(const char *path, struct err *err);

/* Creates the directory and its parents, opens it and locks it. Waits up to `wait_ns` for another worker to
 * release the lock, and returns -EBUSY if that takes longer. The lock is held until *ret_lock is closed.
 * ret->name points to `path`, which is not copied. */
int output_open(const char *path, uint64_t wait_ns, struct outdir *ret, int *ret_lock, struct err *err);

#endif
