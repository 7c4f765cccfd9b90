/* Adds up the bytes that the devices have moved, and compares the sums with the bytes that the plans promise.
 * Also measures how long the compute streams wait. The devices do not reset their counters between the phases
 * of a run, so the sums cover all phases. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "base/clock.h"
#include "daemon/worker/train_private.h"

void train_promise(struct trainer *t, enum program_kind k)
{
    struct plan_bytes b;
    plan_count_bytes(t->plan, k, &b);
    t->planned_in += b.in;
    t->planned_out += b.out;
    t->planned_peer += b.peer;
}

void train_count(const struct trainer *t, struct device_counters *sum)
{
    *sum = (struct device_counters){0};
    for (uint32_t i = 0; i < t->job->machine.n_devices; i++) {
        struct device_counters c;
        devset_counters(t->devices, i, &c);
        sum->in_bytes += c.in_bytes;
        sum->out_bytes += c.out_bytes;
        sum->peer_bytes += c.peer_bytes;
        sum->compute_busy_ns += c.compute_busy_ns;
        sum->compute_wait_ns += c.compute_wait_ns;
    }
}

double train_stall_share(const struct device_counters *c)
{
    uint64_t both = c->compute_busy_ns + c->compute_wait_ns;
    return both > 0 ? (double)c->compute_wait_ns / (double)both : NAN;
}

double train_stall_s(const struct trainer *t, const struct device_counters *c)
{
    if (c->compute_busy_ns + c->compute_wait_ns == 0)
        return NAN;
    return (double)(c->compute_wait_ns - t->last_wait_ns) * 1e-9 / t->plan->n_devices;
}

int train_check_counters(struct trainer *t, struct err *err)
{
    struct device_counters c;
    train_count(t, &c);
    if (c.in_bytes == t->planned_in && c.out_bytes == t->planned_out && c.peer_bytes == t->planned_peer)
        return 0;
    return err_set(err, -EPROTO,
                   "internal: the devices moved in %" PRIu64 ", out %" PRIu64 ", peer %" PRIu64
                   " bytes, but the plan says %" PRIu64 ", %" PRIu64 ", %" PRIu64,
                   c.in_bytes, c.out_bytes, c.peer_bytes, t->planned_in, t->planned_out, t->planned_peer);
}

void train_restart_clock(struct trainer *t)
{
    struct device_counters c;
    train_count(t, &c);
    t->last_ns = clock_now_ns();
    t->last_wait_ns = c.compute_wait_ns;
}
