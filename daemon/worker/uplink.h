/* The worker's line to the daemon (worker.sock; docs/protocol.md, section "Workers").
 *
 * A thread of its own has the socket, so that training never waits for the daemon: the caller posts into a small
 * mailbox and goes on. What the daemon shows is the newest state, so the mailbox keeps only that: one progress,
 * one curve, a bounded number of events, of which the oldest give way. When the daemon is gone the thread looks for
 * it again and again, and tells whoever answers where the job stands.
 *
 * Order of calls, all from one thread:
 *     link_open, link_wait_job
 *     link_history_step, link_history_eval    what earlier runs of a resumed job made
 *     link_planning, link_planned, link_resumed, link_progress, link_skipped, link_eval, link_checkpoint    in any number
 *     link_outcome, link_close
 */
#ifndef DAEMON_WORKER_UPLINK_H
#define DAEMON_WORKER_UPLINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/device.h"

struct link;

struct link_times {          /* 0: the default */
    uint64_t first_retry_ns; /* after a loss, doubled after each; 100 ms */
    uint64_t last_retry_ns;  /* at most; 2 s */
    uint64_t answer_ns;      /* a hello unanswered so long: connect again; 30 s */
    uint64_t give_up_ns;     /* without a job, or with an outcome that nobody takes; 60 s */
    uint64_t progress_ns;    /* between two progress messages; 200 ms */
    uint64_t curve_ns;       /* between two curves; 1 s */
    uint64_t alive_ns;       /* of silence, then `alive`; 2 s */
};

struct link_config {
    const char *socket, *secret; /* copied */
    uint64_t job, attempt;
    /* Called by the link's thread: the daemon asks to stop (`reason`), or does not want this worker any more. May be
     * called more than once. */
    void (*stop)(void *ctx, const char *reason);
    void *ctx;
    struct link_times times;
};

struct link_job {
    char *spec; /* JSON */
    char *dir;
    uint32_t devices;                  /* the lease; 0: what the spec asks for */
    uint64_t device_bytes, host_bytes; /* the same */
    char backend[16];                  /* "": not said */
    bool has_index;
    uint32_t device_index[DEVICE_MAX]; /* the backend's numbers of the devices */
    char *machine;                     /* a topology, JSON; NULL: look */
};

struct link_progress {
    uint64_t step, total_steps; /* steps done */
    double loss, lr, samples_per_s, eta_s;
    uint64_t in_bytes, out_bytes, peer_bytes; /* of this run so far */
    double stall_share;                       /* the same */
};

/* Starts the thread; the first connection is its business. */
int link_open(const struct link_config *c, struct link **ret, struct err *err);
void link_close(struct link *l); /* takes NULL; what was not sent is lost */

/* Waits for the answer to the first hello. What the daemon answered when it refuses; -ETIMEDOUT when there is none. */
int link_wait_job(struct link *l, struct link_job *ret, struct err *err);
void link_job_finish(struct link_job *j); /* takes a zeroed one */

/* These never wait for the network. */
void link_history_step(struct link *l, uint64_t step, double loss);
void link_history_eval(struct link *l, uint64_t step, double loss, double accuracy);
void link_planning(struct link *l, uint32_t micro_batch, uint64_t tasks, uint64_t bytes);
void link_planned(struct link *l, const char *params); /* a JSON object; sent again after a reconnect */
void link_resumed(struct link *l, uint64_t step, bool numerics_changed);
void link_progress(struct link *l, const struct link_progress *p); /* after every step */
void link_skipped(struct link *l, uint64_t step);
void link_eval(struct link *l, uint64_t step, double loss, double accuracy);
void link_checkpoint(struct link *l, uint64_t step);

#define LINK_SAME_STEP UINT64_MAX /* the job is where it was when this worker got it */

/* Sends the outcome and waits until the daemon has it. `members` are those of the params object but for curve, evals and
 * step, as JSON text. 0; -ETIMEDOUT: nobody took it; else what the daemon answered: it does not want this worker. */
int link_outcome(struct link *l, const char *members, uint64_t step, struct err *err);

#endif
