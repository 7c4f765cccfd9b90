/* The worker's connection to the daemon (worker.sock; docs/protocol.md, section "Workers").
 *
 * A thread of its own owns the socket, so that training never waits for the daemon: the caller puts messages
 * into a small mailbox and continues. The daemon shows only the newest state, so the mailbox holds one
 * progress, one curve, and a bounded number of events; when it is full, the oldest event is dropped. When the
 * daemon is gone, the thread tries to reconnect again and again, and tells the daemon that answers where the
 * job stands.
 *
 * Order of calls, all from one thread:
 *     uplink_open, uplink_wait_job
 *     uplink_history_step, uplink_history_eval    for the steps that earlier runs of a resumed job made
 *     uplink_planning, uplink_planned, uplink_resumed, uplink_progress, uplink_skipped, uplink_eval and
 *     uplink_checkpoint    any number of times
 *     uplink_outcome, uplink_close
 */
#ifndef DAEMON_WORKER_UPLINK_H
#define DAEMON_WORKER_UPLINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/device.h"

/* The connection and its mailbox. */
struct uplink;

/* How long the uplink waits for things. 0 stands for the default, which is given in parentheses. */
struct uplink_times {
    uint64_t first_retry_ns; /* pause before the first reconnect; doubled after each failure (100 ms) */
    uint64_t last_retry_ns;  /* longest pause before a reconnect (2 s) */
    uint64_t answer_ns;      /* reconnect when hello is not answered for this long (30 s) */
    uint64_t give_up_ns; /* give up after this long without a job, or with an outcome nobody accepts (60 s) */
    uint64_t progress_ns; /* least time between two progress messages (200 ms) */
    uint64_t curve_ns;    /* least time between two curves (1 s) */
    uint64_t alive_ns;    /* send `alive` after this long without any message (2 s) */
};

struct uplink_config {
    const char *socket, *secret; /* copied by uplink_open */
    uint64_t job, attempt;
    /* Called by the uplink's thread when the daemon asks to stop (`reason` says why) or refuses this
     * worker. May be called more than once. */
    void (*stop)(void *ctx, const char *reason);
    void *ctx;
    struct uplink_times times;
};

/* The job that the daemon gave to this worker, and the lease for it. */
struct uplink_job {
    char *spec;                        /* JSON */
    char *dir;                         /* where relative paths of the spec begin */
    uint32_t devices;                  /* leased devices; 0: what the spec asks for */
    uint64_t device_bytes;             /* leased bytes of each device; 0: what the spec asks for */
    uint64_t host_bytes;               /* leased bytes of host memory; 0: what the spec asks for */
    char backend[16];                  /* "": the daemon did not say */
    bool has_index;                    /* device_index is valid */
    uint32_t device_index[DEVICE_MAX]; /* the backend's numbers of the leased devices */
    char *machine;                     /* a topology as JSON; NULL: the worker looks for itself */
};

/* The newest state of training. */
struct uplink_progress {
    uint64_t step, total_steps; /* steps done; steps of the whole job */
    double loss, lr, samples_per_s, eta_s;
    uint64_t in_bytes, out_bytes, peer_bytes; /* bytes that this run has moved so far */
    double stall_share;                       /* stall share of this run so far; NaN: not known */
};

/* Creates the uplink and starts its thread, which connects in the background. Returns -ENAMETOOLONG when
 * the socket's path is too long. */
int uplink_open(const struct uplink_config *c, struct uplink **ret, struct err *err);

/* Ends the thread and frees the uplink. Messages that were not sent yet are lost. Accepts NULL. */
void uplink_close(struct uplink *l);

/* Waits for the daemon's first answer and gives its job to the caller, who frees it with
 * uplink_job_finish. Returns the daemon's error when it refuses this worker, and -ETIMEDOUT when no daemon
 * answers. */
int uplink_wait_job(struct uplink *l, struct uplink_job *ret, struct err *err);

/* Frees everything in *j. Accepts a zeroed job. */
void uplink_job_finish(struct uplink_job *j);

/* ---- posting; none of these functions waits for the network ---- */

/* Adds the loss of a step that an earlier run made to the curve. */
void uplink_history_step(struct uplink *l, uint64_t step, double loss);
/* Adds an evaluation that an earlier run made to the curve. */
void uplink_history_eval(struct uplink *l, uint64_t step, double loss, double accuracy);
/* Says that planning begins, for a step of `tasks` tasks, and takes at most `bytes` bytes of memory. */
void uplink_planning(struct uplink *l, uint32_t micro_batch, uint64_t tasks, uint64_t bytes);
/* Describes the plan. `params` is a JSON object, which is sent again after each reconnect. */
void uplink_planned(struct uplink *l, const char *params);
/* Says that the run continues from the checkpoint of `step`. */
void uplink_resumed(struct uplink *l, uint64_t step, bool numerics_changed);
/* Replaces the progress, and adds its loss to the curve. Call it after every step. */
void uplink_progress(struct uplink *l, const struct uplink_progress *p);
/* Says that the update of `step` was skipped. */
void uplink_skipped(struct uplink *l, uint64_t step);
/* Reports an evaluation, and adds it to the curve. */
void uplink_eval(struct uplink *l, uint64_t step, double loss, double accuracy);
/* Says that a checkpoint of `step` was written. */
void uplink_checkpoint(struct uplink *l, uint64_t step);

#define UPLINK_SAME_STEP UINT64_MAX /* the job is at the step where it was when this worker got it */

/* Sends the outcome and waits until the daemon has confirmed it. `members` are the members of the params
 * object except curve, evals and step, as JSON text. Returns -ETIMEDOUT when no daemon confirmed it in
 * time, and the daemon's error when it refuses this worker. */
int uplink_outcome(struct uplink *l, const char *members, uint64_t step, struct err *err);

#endif
