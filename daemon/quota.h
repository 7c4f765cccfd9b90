/* Limits for each user of the daemon: bytes of state, and submits per second. Pure: the caller passes the
 * time.
 *
 * The bytes of state are the bytes of spec and body of the user's live jobs. A job is charged when it is
 * added, and released when it ends. The rate of submits is a token bucket. A user may submit `submit_burst`
 * jobs at once, and `submits_per_s` jobs per second after that. A limit of 0 means that there is no limit.
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

/* Frees the quota. `q` may be NULL. Only tests call this function. */
void quota_destroy(struct quota *q);

/* Takes one of the tokens of the user, who wants to submit a job. `now_ms` is a time on a monotonic clock. If
 * the user has no token left, returns -EAGAIN with a message that says when to try again. */
int quota_take_submit(struct quota *q, uid_t uid, uint64_t now_ms, struct err *err);

/* Returns 0 if the daemon may store `bytes` more bytes for the user. Otherwise returns -EAGAIN with a message
 * that names the limit and says what to do. */
int quota_check_bytes(const struct quota *q, uid_t uid, uint64_t bytes, struct err *err);

/* Adds `bytes` to the bytes that are charged to the user. Does not check the limit, because a restarted
 * daemon must load all existing jobs. */
void quota_charge(struct quota *q, uid_t uid, uint64_t bytes);

/* Subtracts `bytes` from the bytes that are charged to the user. */
void quota_release(struct quota *q, uid_t uid, uint64_t bytes);

/* Returns the number of bytes that are charged to the user. Only tests call this function. */
uint64_t quota_bytes(const struct quota *q, uid_t uid);

#endif
