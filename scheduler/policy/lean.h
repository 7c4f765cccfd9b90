/* Lean candidates: a short list of candidates that need little memory. What a lean candidate needs does not
 * depend on the memory of the machine. So if a graph does not fit a machine, the needs of its lean candidates
 * say how much memory is enough.
 *
 * The candidates differ in how they trade device memory for host memory. The first needs the least device
 * memory: every layer is a pack of its own, and each pack leaves its input on the host until the backward
 * pass. Longer packs leave less on the host and need more on the device. The last candidate leaves nothing on
 * the host but weights, gradients and optimizer state.
 */
#ifndef SCHEDULER_POLICY_LEAN_H
#define SCHEDULER_POLICY_LEAN_H

#include "base/err.h"
#include "scheduler/policy/candidate.h"

/* Maximum number of lean candidates of a request. A lean candidate is a plan that needs little memory. */
#define LEAN_MAX 64

/* What one lean candidate needs. */
struct lean_need {
    uint64_t device_bytes; /* on the device that needs most */
    uint64_t host_bytes;   /* including host_taken_bytes of the machine */
};

/* What each lean candidate of a request needs. A lean candidate is a plan that needs little memory. */
struct lean_needs {
    uint32_t n;
    struct lean_need at[LEAN_MAX];
};

/* How to go on after a visit to a lean candidate. */
enum lean_next {
    LEAN_ON,          /* visits the next candidate */
    LEAN_NEXT_POLICY, /* goes on with the next policy */
    LEAN_END,         /* ends */
};

/* Visits lean candidate `c` of policy `policy`. Returns an enum lean_next or a negative errno. */
typedef int lean_visit(void *ctx, enum policy_id policy, const struct candidate *c);

/* Calls `visit` for the lean candidates of the policies in `ids`, in this order. Returns LEAN_END or a
 * negative errno if a visit returned this value. Returns LEAN_ON after all candidates have been visited. */
int lean_each(const struct plan_request *r, const enum policy_id *ids, uint32_t n_ids, lean_visit *visit,
              void *ctx);

/* Returns the least device memory, in bytes for each device, that is enough for some candidate that fits into
 * `host_bytes` of host memory. Returns UINT64_MAX if there is no such candidate. */
uint64_t lean_least_device(const struct lean_needs *l, uint64_t host_bytes);

/* Returns -ENOSPC and sets `err` to a message that says which memory is too small and how much is enough.
 * `least_host` is the least host memory with which a candidate that fits the devices gives a plan, or
 * UINT64_MAX if none fits them. If more device memory alone helps, *ret_least (may be NULL) gets the bytes
 * per device; otherwise *ret_least stays unchanged. */
int lean_refuse(const struct lean_needs *l, uint64_t least_host, const struct plan_request *r,
                uint64_t *ret_least, struct err *err);

#endif
