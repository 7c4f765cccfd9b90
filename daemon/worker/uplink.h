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

/* How long the uplink waits for various events. 0 stands for the default, which is given in parentheses. */
struct uplink_times {
    /* Pause before the first reconnect. It doubles after each failure (100 ms). */
    uint64_t first_retry_ns;
    uint64_t last_retry_ns; /* longest pause before a reconnect (2 s) */
    /* Reconnect if hello is not answered for this long (30 s). */
    uint64_t answer_ns;
    /* Give up after this long without a job, or with an outcome that no daemon accepts (60 s). */
    uint64_t give_up_ns;
    /* Shortest time between two progress messages (200 ms). */
    uint64_t progress_ns;
    uint64_t curve_ns; /* shortest time between two curves (1 s) */
    /* Send `alive` after this long without any other message (2 s). */
    uint64_t alive_ns;
};

struct uplink_config {
    const char *socket, *secret; /* copied by uplink_open */
    uint64_t job, attempt;
    /* Called when the daemon asks the worker to stop or refuses it. `reason` says why. Runs on the
     * uplink's thread. May be called more than once. */
    void (*stop)(void *ctx, const char *reason);
    void *ctx;
    struct uplink_times times;
};

/* The job that the daemon gave to this worker, and the lease of the job. */
struct uplink_job {
    char *spec; /* JSON */
    char *dir;  /* where relative paths of the spec begin */
    /* Number of leased devices. 0 means the value of the spec. */
    uint32_t devices;
    /* Leased bytes of each device. 0 means that the spec decides. */
    uint64_t device_bytes;
    /* Leased bytes of host memory. 0 means the value of the spec. */
    uint64_t host_bytes;
    char backend[16];                  /* empty if the daemon named none */
    bool has_index;                    /* device_index is valid */
    uint32_t device_index[DEVICE_MAX]; /* the backend's numbers of the leased devices */
    /* A topology as JSON. NULL if the worker must look for devices itself. */
    char *machine;
};

/* The newest state of training. */
struct uplink_progress {
    uint64_t step, total_steps; /* steps done, and the job's total */
    double loss, lr, samples_per_s, eta_s;
    /* Number of bytes that this run has moved so far. */
    uint64_t in_bytes, out_bytes, peer_bytes;
    /* Stall share of this run so far. NaN if it is not known. */
    double stall_share;
};

/* Creates the uplink and its thread, which connects in the background. Returns -ENAMETOOLONG if the
 * socket's path is too long. */
int uplink_open(const struct uplink_config *c, struct uplink **ret, struct err *err);

/* Ends the thread and frees the uplink. Messages that were not sent yet are lost. `l` may be NULL. */
void uplink_close(struct uplink *l);

/* Waits for the daemon's first answer and stores the job in *ret. Free it with uplink_job_finish. Returns
 * the daemon's error if it refuses this worker, and -ETIMEDOUT if no daemon answers. */
int uplink_wait_job(struct uplink *l, struct uplink_job *ret, struct err *err);

/* Frees everything in *j. Also accepts a struct of zeros. */
void uplink_job_finish(struct uplink_job *j);

/* ---- posting, without waiting for the network ---- */

/* Adds the loss of a step to the curve. The step was done by an earlier run. */
void uplink_history_step(struct uplink *l, uint64_t step, double loss);
/* Adds an evaluation to the curve. The evaluation was done by an earlier run. */
void uplink_history_eval(struct uplink *l, uint64_t step, double loss, double accuracy);
/* Tells the daemon that planning begins. A step has `tasks` tasks, and planning needs at most `bytes` bytes
 * of memory. */
void uplink_planning(struct uplink *l, uint32_t micro_batch, uint64_t tasks, uint64_t bytes);
/* Describes the plan. `params` is a JSON object, which is sent again after each reconnect. */
void uplink_planned(struct uplink *l, const char *params);
/* Tells the daemon that the run continues from the checkpoint of `step`. */
void uplink_resumed(struct uplink *l, uint64_t step, bool numerics_changed);
/* Replaces the waiting progress message, and adds the loss to the curve. Call this function after every
 * step. */
void uplink_progress(struct uplink *l, const struct uplink_progress *p);
/* Tells the daemon that the update of `step` was skipped. */
void uplink_skipped(struct uplink *l, uint64_t step);
/* Reports an evaluation to the daemon, and adds it to the curve. */
void uplink_eval(struct uplink *l, uint64_t step, double loss, double accuracy);
/* Tells the daemon that a checkpoint of `step` was written. */
void uplink_checkpoint(struct uplink *l, uint64_t step);

/* The job has made no step since this worker received it. */
#define UPLINK_SAME_STEP UINT64_MAX

/* Sends the outcome and waits until the daemon confirms it. `members` is the JSON text of all params
 * except curve, evals and step. Returns -ETIMEDOUT if no daemon confirms in time, or the daemon's error if
 * it refuses this worker. */
int uplink_outcome(struct uplink *l, const char *members, uint64_t step, struct err *err);

#endif
