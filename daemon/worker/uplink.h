/* The worker's line to the daemon (worker.sock; docs/protocol.md, section "Workers").
 *
 * A thread of its own has the socket, so that training never waits for the daemon: the caller posts into a small
 * mailbox and goes on. What the daemon shows is the newest state, so the mailbox keeps only that: one progress,
 * one curve, a bounded number of events, of which the oldest give way. When the daemon is gone the thread looks for
 * it again and again, and tells whoever answers where the job stands.
 *
 * Order of calls, all from one thread:
 *     uplink_open, uplink_wait_job
 *     uplink_history_step, uplink_history_eval    what earlier runs of a resumed job made
 *     uplink_planning, uplink_planned, uplink_resumed, uplink_progress, uplink_skipped, uplink_eval, uplink_checkpoint    in any number
 *     uplink_outcome, uplink_close
 */
#ifndef DAEMON_WORKER_UPLINK_H
#define DAEMON_WORKER_UPLINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/device.h"

struct uplink;

struct uplink_times {        /* 0: the default */
    uint64_t first_retry_ns; /* after a loss, doubled after each; 100 ms */
    uint64_t last_retry_ns;  /* at most; 2 s */
    uint64_t answer_ns;      /* a hello unanswered so long: connect again; 30 s */
    uint64_t give_up_ns;     /* without a job, or with an outcome that nobody takes; 60 s */
    uint64_t progress_ns;    /* between two progress messages; 200 ms */
    uint64_t curve_ns;       /* between two curves; 1 s */
    uint64_t alive_ns;       /* of silence, then `alive`; 2 s */
};

struct uplink_config {
    const char *socket, *secret; /* copied */
    uint64_t job, attempt;
    /* Called by the link's thread: the daemon asks to stop (`reason`), or does not want this worker any more. May be
     * called more than once. */
    void (*stop)(void *ctx, const char *reason);
    void *ctx;
    struct uplink_times times;
};

struct uplink_job {
    char *spec; /* JSON */
    char *dir;
    uint32_t devices;                  /* the lease; 0: what the spec asks for */
    uint64_t device_bytes, host_bytes; /* the same */
    char backend[16];                  /* "": not said */
    bool has_index;
    uint32_t device_index[DEVICE_MAX]; /* the backend's numbers of the devices */
    char *machine;                     /* a topology, JSON; NULL: look */
};

struct uplink_progress {
    uint64_t step, total_steps; /* steps done */
    double loss, lr, samples_per_s, eta_s;
    uint64_t in_bytes, out_bytes, peer_bytes; /* of this run so far */
    double stall_share;                       /* the same */
};

/* Starts the thread; the first connection is its business. */
int uplink_open(const struct uplink_config *c, struct uplink **ret, struct err *err);
void uplink_close(struct uplink *l); /* takes NULL; what was not sent is lost */

/* Waits for the answer to the first hello. What the daemon answered when it refuses; -ETIMEDOUT when there is none. */
int uplink_wait_job(struct uplink *l, struct uplink_job *ret, struct err *err);
void uplink_job_finish(struct uplink_job *j); /* takes a zeroed one */

/* These never wait for the network. */
void uplink_history_step(struct uplink *l, uint64_t step, double loss);
void uplink_history_eval(struct uplink *l, uint64_t step, double loss, double accuracy);
void uplink_planning(struct uplink *l, uint32_t micro_batch, uint64_t tasks, uint64_t bytes);
void uplink_planned(struct uplink *l, const char *params); /* a JSON object; sent again after a reconnect */
void uplink_resumed(struct uplink *l, uint64_t step, bool numerics_changed);
void uplink_progress(struct uplink *l, const struct uplink_progress *p); /* after every step */
void uplink_skipped(struct uplink *l, uint64_t step);
void uplink_eval(struct uplink *l, uint64_t step, double loss, double accuracy);
void uplink_checkpoint(struct uplink *l, uint64_t step);

#define UPLINK_SAME_STEP UINT64_MAX /* the job is where it was when this worker got it */

/* Sends the outcome and waits until the daemon has it. `members` are those of the params object but for curve, evals and
 * step, as JSON text. 0; -ETIMEDOUT: nobody took it; else what the daemon answered: it does not want this worker. */
int uplink_outcome(struct uplink *l, const char *members, uint64_t step, struct err *err);

#endif
