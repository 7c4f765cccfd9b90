/* Checks, creates and locks the output directory of a job. output_check changes nothing. It is called before
 * planning, to find problems early. output_open creates and locks the directory. The directory may change
 * between the two calls, so only output_open gives certainty.
 */
#ifndef WORKER_OUTPUT_H
#define WORKER_OUTPUT_H

#include <stdint.h>

#include "base/err.h"
#include "base/fs.h"

/* Returns 0 if `path` is a directory that this process may write to or can create. Returns -EBUSY if another
 * worker has locked the directory, or another negative errno with a message. If the directory has a lock
 * file, the function locks it for a moment. */
int output_check(const char *path, struct err *err);

/* Creates the output directory and its parents, opens it and locks it. Waits up to `wait_ns` nanoseconds for
 * the lock, then returns -EBUSY. The lock is held until *ret_lock is closed. ret->name points to `path`,
 * which is not copied. */
int output_open(const char *path, uint64_t wait_ns, struct outdir *ret, int *ret_lock, struct err *err);

#endif
