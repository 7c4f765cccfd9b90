/* What one user may take of the daemon: bytes of state, and submits a second. Pure: the caller brings the time.
 *
 * State bytes are those that the user's live jobs take in the state: spec and body. A job is charged when it is added and
 * released when it ends. The rate is a token bucket: a user may submit `burst` jobs at once, and `per_s` a second after
 * that. A limit of 0 means that there is none.
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
void quota_destroy(struct quota *q); /* takes NULL */

/* Takes a token for one submit. -EAGAIN: there is none; the message names the limit and says when to try again. `now_ms` is
 * a monotonic clock. */
int quota_take_submit(struct quota *q, uid_t uid, uint64_t now_ms, struct err *err);
/* Whether `bytes` more fit. -EAGAIN: they do not; the message names the limit, what is taken, and what to do. */
int quota_check_bytes(const struct quota *q, uid_t uid, uint64_t bytes, struct err *err);
void quota_charge(struct quota *q, uid_t uid,
                  uint64_t bytes); /* without a check: a restart must load what is there */
void quota_release(struct quota *q, uid_t uid, uint64_t bytes); /* of what was charged */
uint64_t quota_bytes(const struct quota *q, uid_t uid);

#endif
