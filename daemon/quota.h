/* Limits of what one user may take of the daemon: bytes of state, and submits a second. Pure: the caller
 * passes the time.
 *
 * State bytes are the bytes of spec and body of the user's live jobs. A job is charged when it is added, and
 * released when it ends. The rate of submits is a token bucket: a user may submit `submit_burst` jobs at
 * once, and `submits_per_s` jobs a second after that. A limit of 0 means that there is no limit.
 */
#ifndef DAEMON_QUOTA_H
#define DAEMON_QUOTA_H

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

struct quota_limits {
    uint64_t state_bytes;
    uint64_t submits_per_s, submit_burst;
};

struct quota;

struct quota *quota_create(const struct quota_limits *limits);

/* Frees the quota. Takes NULL. For tests: the daemon keeps its quota until the process exits. */
void quota_destroy(struct quota *q);

/* Takes a token for one submit. Returns -EAGAIN when the user has none left; the message names the limit and
 * says when to try again. `now_ms` is a monotonic clock. */
int quota_take_submit(struct quota *q, uid_t uid, uint64_t now_ms, struct err *err);

/* Checks whether `bytes` more fit the user's limit. Returns -EAGAIN when they do not; the message names the
 * limit, the bytes in use, and what to do. */
int quota_check_bytes(const struct quota *q, uid_t uid, uint64_t bytes, struct err *err);

/* Charges `bytes` to the user without checking the limit, because a restart must load all jobs that exist. */
void quota_charge(struct quota *q, uid_t uid, uint64_t bytes);

/* Releases `bytes` that were charged to the user. */
void quota_release(struct quota *q, uid_t uid, uint64_t bytes);

/* Returns the bytes that are charged to the user. For tests. */
uint64_t quota_bytes(const struct quota *q, uid_t uid);

#endif
