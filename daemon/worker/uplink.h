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
#include "base/json.h"
#include "daemon/worker/labels.h"
#include "kernels/device.h"

/* The connection and its mailbox. */
struct uplink;

/* How long the uplink waits for various events. 0 means the default, which the comment of each member gives
 * in parentheses. */
struct uplink_times {
    /* Pause before the first attempt to reconnect. The pause doubles after each failed attempt (100 ms). */
    uint64_t first_retry_ns;
    uint64_t last_retry_ns; /* longest pause before a reconnect (2 s) */
    /* If the daemon does not answer hello for this long, the uplink closes the connection and reconnects (30
     * s). */
    uint64_t answer_ns;
    /* The uplink gives up after this time if no daemon has given a job to the worker, or if no daemon has
     * accepted the outcome (60 s). */
    uint64_t give_up_ns;
    /* Shortest time between two progress messages to the daemon (200 ms). */
    uint64_t progress_ns;
    uint64_t curve_ns; /* shortest time between two curves (1 s) */
    /* After this long without any other message, the uplink sends the message `alive` (2 s). */
    uint64_t alive_ns;
};

struct uplink_config {
    const char *socket, *secret; /* copied by uplink_open */
    uint64_t job, attempt;
    /* The uplink calls this function when the daemon asks the worker to stop or refuses the worker. `reason`
     * says why. The function runs on the uplink's thread and may be called more than once. */
    void (*stop)(void *ctx, const char *reason);
    void *ctx;
    struct uplink_times times;
};

/* The job that the daemon gave to this worker, with its lease: the devices and the memory that the job may
 * use. uplink_wait_job fills it in, and uplink_job_finish frees it. */
struct uplink_job {
    struct json *answer;     /* the daemon's answer, which contains `spec` and `dir` */
    const struct json *spec; /* a JSON object */
    const char *dir;         /* where relative paths of the spec begin */
    /* Number of leased devices. 0 means the number in the spec. */
    uint32_t devices;
    /* Number of leased bytes on each device. 0 means the number in the spec. */
    uint64_t device_bytes;
    /* Number of leased bytes of host memory. 0 means the number in the spec. */
    uint64_t host_bytes;
    /* Number of devices that jobs of the daemon can get, leased or not. 0 if there is no limit. */
    uint32_t all_devices;
    /* Bytes of host memory that the job gets for each device. 0 if they do not depend on the devices. */
    uint64_t host_bytes_each;
    char backend[16];                  /* empty if the daemon named none */
    bool has_index;                    /* device_index is valid */
    uint32_t device_index[DEVICE_MAX]; /* the backend's numbers of the leased devices */
    /* The topology of the machine as JSON text. NULL if the worker must look for devices itself. */
    char *machine;
};

#define UPLINK_BLOCKS 64 /* most blocks whose results a message has */

/* loss[i] and accuracy[i] are the results of block i, for the first `n` blocks of a phase with several
 * losses. */
struct uplink_blocks {
    uint32_t n;
    double loss[UPLINK_BLOCKS], accuracy[UPLINK_BLOCKS];
};

/* The newest state of training. */
struct uplink_progress {
    uint64_t step, total_steps; /* steps done, and the job's total */
    double loss, lr, samples_per_s, eta_s;
    /* Numbers of bytes that this run has moved so far: to devices, to the host, and between devices. */
    uint64_t in_bytes, out_bytes, peer_bytes;
    /* Fraction of time in which the compute streams waited in this run so far. NaN if it is not known. */
    double stall_share;
    double loss_scale; /* 0 if losses are not scaled */
    /* The losses and accuracies of the first blocks, if the phase has several losses. */
    struct uplink_blocks blocks;
};

/* Creates the uplink and its thread. The thread connects to the daemon in the background. Returns
 * -ENAMETOOLONG if the path of the socket is too long. */
int uplink_open(const struct uplink_config *c, struct uplink **ret, struct err *err);

/* Ends the uplink thread and frees the uplink. Messages that were not sent yet are lost. `l` may be NULL. */
void uplink_close(struct uplink *l);

/* Waits for the daemon's first answer and stores the job in *ret. The caller frees the job with
 * uplink_job_finish. Returns the daemon's error if the daemon refuses this worker, and -ETIMEDOUT if no
 * daemon answers. */
int uplink_wait_job(struct uplink *l, struct uplink_job *ret, struct err *err);

/* Frees everything in *j. A zero-initialized struct is also allowed. */
void uplink_job_finish(struct uplink_job *j);

/* ---- posting messages without waiting ---- */

/* Adds the loss of a training step to the curve, for a step that an earlier run of the job did. */
void uplink_history_step(struct uplink *l, uint64_t step, double loss);
/* Adds an evaluation to the curve, for an evaluation that an earlier run of the job made. */
void uplink_history_eval(struct uplink *l, uint64_t step, double loss, double accuracy);
/* Tells the daemon that planning begins. A training step has `tasks` tasks, and planning needs at most
 * `bytes` bytes of memory. */
void uplink_planning(struct uplink *l, uint32_t micro_batch, uint64_t tasks, uint64_t bytes);
/* Describes the plan to the daemon. `params` is a JSON object, which is sent again after each reconnect. */
void uplink_planned(struct uplink *l, const char *params);
/* Tells the daemon that phase `phase` of `n_phases` begins. Every later message about training gets the key
 * "phase" with this number. `name` has only letters, digits and spaces. A job with one phase does not call
 * this function, and its messages have no such key. */
void uplink_phase(struct uplink *l, uint32_t phase, uint32_t n_phases, const char *name);
/* Tells the daemon that the current phase has kept the outputs of `samples` of `total` samples. Call this
 * function a few times a minute, because the daemon ends a worker that reports nothing for long. */
void uplink_outputs(struct uplink *l, uint64_t samples, uint64_t total);
/* Tells the daemon that the run resumes from the checkpoint of training step `step`. */
void uplink_resumed(struct uplink *l, uint64_t step, bool numerics_changed);
/* Posts the progress `p`, which replaces a progress message that was not sent yet, and adds the loss to the
 * curve. Call this function after every training step. */
void uplink_progress(struct uplink *l, const struct uplink_progress *p);
/* Tells the daemon that the update of training step `step` was skipped. */
void uplink_skipped(struct uplink *l, uint64_t step);
/* Reports an evaluation of the model to the daemon, and adds the evaluation to the curve. `blocks` has the
 * results of all losses, or none if only the last loss was evaluated. */
void uplink_eval(struct uplink *l, uint64_t step, double loss, double accuracy,
                 const struct uplink_blocks *blocks);
/* Tells the daemon how well a part of the model learns the label vectors that are its targets. */
void uplink_labels(struct uplink *l, const struct labels *labels, uint32_t n_labels);
/* Tells the daemon that the checkpoint of training step `step` was written. */
void uplink_checkpoint(struct uplink *l, uint64_t step);

/* Passed as `step` to uplink_outcome if this worker has done no training step. The step count of the job then
 * stays as it was. */
#define UPLINK_SAME_STEP UINT64_MAX

/* Sends the outcome of the run and waits until the daemon confirms it. `members` is the JSON text of all
 * params except curve, evals and step. Returns -ETIMEDOUT if no daemon confirms in time, or the daemon's
 * error if it refuses this worker. */
int uplink_outcome(struct uplink *l, const char *members, uint64_t step, struct err *err);

#endif
