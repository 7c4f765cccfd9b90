/* The training loop: fills the input slots, runs the executor, reads each result one step late, evaluates,
 * writes checkpoints, and compares the bytes that moved with the plan. Plan and spec are ready before the
 * loop starts.
 *
 * train_run does all of this in the caller's thread. train_request_stop may be called from a signal
 * handler and from any thread: the loop then finishes the current step, writes a checkpoint, and ends.
 */
#ifndef WORKER_TRAIN_H
#define WORKER_TRAIN_H

#include "base/err.h"
#include "base/fs.h"
#include "daemon/worker/job.h"
#include "daemon/worker/run_trace.h"

/* How a run of the training loop went. After a failure, only steps_done is valid. It counts steps with a
 * known result. */
struct train_report {
    uint64_t steps_done, total_steps;
    /* Number of steps that were done when this run started. */
    uint64_t resumed_from;
    /* Whether train_request_stop ended the run before the last step. */
    bool stopped;
    /* Loss of the last step. If this run did no step, the loss in the checkpoint. */
    double loss;
    /* Number of steps of the whole job that were skipped because of a non-finite gradient. */
    uint64_t skipped_steps;
    bool evaluated;                /* the val_ members are valid */
    double val_loss, val_accuracy; /* of the last evaluation */
    double val_perplexity;         /* e^val_loss for language models, otherwise NaN */
    /* Wall time of this run's training. Includes evaluations and checkpoints. */
    double seconds;
    double samples_per_s;
    /* Share of time in which the compute streams waited. NaN if it is not known. */
    double stall_share;
    /* Number of traced steps in which stall_share was measured. 0 if it was measured over the whole run. */
    uint32_t stall_steps;
    /* Bytes that one step moves, according to the plan. The counters of the devices agree with them. */
    struct plan_bytes cycle;
    /* Bytes that the devices counted in this run. */
    uint64_t counted_in, counted_out, counted_peer;
    uint64_t weights_hash; /* FNV-1a over the trained weights */
    /* The processor features and libraries that the bits of the result depend on, besides the spec. */
    char numerics[96];
    /* The checkpoint was made with other numerics than those of this machine, so the bits may differ. */
    bool numerics_changed;
};

/* An event of the training loop, for display. Each member's comment names the events that set it. */
struct train_progress {
    enum { PROGRESS_RESUME, PROGRESS_STEP, PROGRESS_EVAL, PROGRESS_CHECKPOINT } event;
    uint64_t step, total_steps;     /* steps done, and the job's total */
    double loss, lr, samples_per_s; /* STEP */
    /* STEP: stall share of this run so far. NaN if the devices do not count it. */
    double stall_share;
    bool skipped; /* STEP: the update was skipped */
    /* RESUME: the checkpoint was made with other numerics, so the bits may differ. */
    bool numerics_changed;
    double val_loss, val_accuracy; /* EVAL */
    /* EVAL: perplexity of a language model. NaN for other models. */
    double val_perplexity;
};

struct train_options {
    /* Seed of the random delays on every stream. 0 means that there are no delays. */
    uint64_t delay_seed;
    /* Rate of copies between the host and virtual devices. 0 means as fast as possible. */
    uint64_t link_bytes_per_s;
    /* Rate of copies between virtual devices. 0 means as fast as possible. */
    uint64_t peer_bytes_per_s;
    /* Called after a resume, an evaluation, a checkpoint, and every step with a known result. May be NULL. */
    void (*progress)(void *ctx, const struct train_progress *p);
    void *ctx;
    /* Measures some steps. The caller writes the file. NULL to measure nothing. */
    struct run_trace *trace;
};

/* Trains the prepared job until its last step or a stop request. Starts at the newest checkpoint, or with
 * fresh weights. Writes all files to `out`, which the caller has locked. Returns -EDOM if training
 * diverged, -EEXIST if the output belongs to another spec, or another errno. */
int train_run(struct prepared_job *j, const struct outdir *out, const struct train_options *o,
              struct train_report *ret, struct err *err);

/* Asks the loop to stop after a checkpoint. May be called from signal handlers and from any thread. */
void train_request_stop(void);
/* Returns whether train_request_stop was called. May be called from any thread. */
bool train_stop_requested(void);

#endif
