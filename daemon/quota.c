/* Implements quota.h. Each submit costs one token of the user. Tokens are counted in thousandths, so that the
 * gain of one millisecond is not rounded to zero. Loop thread only. */
#include "daemon/quota.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/strbuf.h"
#include "base/vec.h"

#define TOKEN 1000u /* one token in the unit of quota_user.tokens */

/* What one user has taken. */
struct quota_user {
    uid_t uid;
    uint64_t bytes;    /* bytes of state that are charged */
    uint64_t tokens;   /* in thousandths; at most submit_burst * TOKEN */
    uint64_t since_ms; /* monotonic clock: when `tokens` was computed */
};

struct quota {
    struct quota_limits limits;
    VEC(struct quota_user) users;
};

struct quota *quota_create(const struct quota_limits *limits)
{
    struct quota *q = xcalloc(1, sizeof *q);
    q->limits = *limits;
    return q;
}

void quota_destroy(struct quota *q)
{
    if (q == NULL)
        return;
    vec_free(&q->users);
    free(q);
}

static struct quota_user *find_charged(const struct quota *q, uid_t uid)
{
    for (size_t i = 0; i < q->users.n; i++)
        if (q->users.at[i].uid == uid)
            return &q->users.at[i];
    return NULL;
}

static struct quota_user *find_or_add(struct quota *q, uid_t uid)
{
    struct quota_user *u = find_charged(q, uid);
    if (u != NULL)
        return u;
    vec_push(&q->users, (struct quota_user){.uid = uid, .tokens = q->limits.submit_burst * TOKEN});
    return &q->users.at[q->users.n - 1];
}

/* Adds the tokens that the user has gained since the last call. Each millisecond brings `submits_per_s`
 * thousandths of a token. A user can have at most `submit_burst` tokens. */
static void refill(const struct quota_limits *l, struct quota_user *u, uint64_t now_ms)
{
    uint64_t full = l->submit_burst * TOKEN, missing = full - u->tokens, passed = now_ms - u->since_ms;
    u->tokens = passed >= missing / l->submits_per_s + 1 ? full : u->tokens + passed * l->submits_per_s;
    u->since_ms = now_ms;
}

int quota_take_submit(struct quota *q, uid_t uid, uint64_t now_ms, struct err *err)
{
    const struct quota_limits *l = &q->limits;
    if (l->submits_per_s == 0 || l->submit_burst == 0)
        return 0;
    struct quota_user *u = find_or_add(q, uid);
    refill(l, u, now_ms);
    if (u->tokens >= TOKEN) {
        u->tokens -= TOKEN;
        return 0;
    }
    uint64_t wait_ms = (TOKEN - u->tokens + l->submits_per_s - 1) / l->submits_per_s;
    return err_set(err, -EAGAIN,
                   "user %u submits faster than %" PRIu64 " jobs a second after a burst of %" PRIu64
                   "; try again in %" PRIu64 " ms, or start tuttid with a greater --user-submit-rate",
                   (unsigned)uid, l->submits_per_s, l->submit_burst, wait_ms);
}

int quota_check_bytes(const struct quota *q, uid_t uid, uint64_t bytes, struct err *err)
{
    const struct quota_user *u = find_charged(q, uid);
    uint64_t taken = u != NULL ? u->bytes : 0, most = q->limits.state_bytes;
    char text[64];
    struct strbuf b = strbuf_fixed(text, sizeof text);
    if (most == 0 || (taken <= most && bytes <= most - taken))
        return 0;
    strbuf_add_bytes(&b, taken);
    strbuf_add(&b, " of ");
    strbuf_add_bytes(&b, most);
    return err_set(
        err, -EAGAIN,
        "the unfinished jobs of user %u take %s of state, and this job takes %" PRIu64
        " bytes more; try again when some have ended, or start tuttid with a greater --user-state-bytes",
        (unsigned)uid, text, bytes);
}

void quota_charge(struct quota *q, uid_t uid, uint64_t bytes)
{
    find_or_add(q, uid)->bytes += bytes;
}

void quota_release(struct quota *q, uid_t uid, uint64_t bytes)
{
    struct quota_user *u = find_or_add(q, uid);
    assert(u->bytes >= bytes);
    u->bytes -= bytes;
}

uint64_t quota_bytes(const struct quota *q, uid_t uid)
{
    const struct quota_user *u = find_charged(q, uid);
    return u != NULL ? u->bytes : 0;
}
