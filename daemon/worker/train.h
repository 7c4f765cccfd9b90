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

/* How a run of the training loop went. After a failure only steps_done is valid: the steps whose result is
 * known. */
struct train_report {
    uint64_t steps_done, total_steps;
    uint64_t resumed_from;         /* steps that were done when this run started */
    bool stopped;                  /* train_request_stop ended the run before the last step */
    double loss;                   /* loss of the last step; that of the checkpoint when this run made none */
    uint64_t skipped_steps;        /* steps of the whole job that were skipped for a non-finite gradient */
    bool evaluated;                /* the val_ members are valid */
    double val_loss, val_accuracy; /* of the last evaluation */
    double val_perplexity;         /* e^val_loss for language models, otherwise NaN */
    double seconds;                /* wall time of this run's training, with evaluations and checkpoints */
    double samples_per_s;
    double stall_share;   /* share of time that the compute streams waited; NaN: not known */
    uint32_t stall_steps; /* traced steps that stall_share was measured in; 0: measured over the whole run */
    struct plan_bytes cycle; /* bytes that one step moves, as planned and as counted by the devices */
    uint64_t counted_in, counted_out, counted_peer; /* bytes that the devices counted in this run */
    uint64_t weights_hash;                          /* FNV-1a over the trained weights */
    char numerics[96];                              /* what the bits depend on besides the spec */
    bool numerics_changed; /* the checkpoint has other numerics than this machine, so the bits may differ */
};

/* An event of the training loop, for display. The comments name the events for which a member is valid. */
struct train_progress {
    enum { PROGRESS_RESUME, PROGRESS_STEP, PROGRESS_EVAL, PROGRESS_CHECKPOINT } event;
    uint64_t step, total_steps;     /* steps done; steps of the whole job */
    double loss, lr, samples_per_s; /* STEP */
    double stall_share;    /* STEP: stall share of this run so far; NaN: the devices do not count it */
    bool skipped;          /* STEP: the update was skipped */
    bool numerics_changed; /* RESUME: the checkpoint has other numerics, so the bits may differ */
    double val_loss, val_accuracy; /* EVAL */
    double val_perplexity;         /* EVAL: perplexity of a language model; NaN for other models */
};

struct train_options {
    uint64_t delay_seed;       /* seed of random delays on every stream; 0: no delays */
    uint64_t link_bytes_per_s; /* pace of host copies on virtual devices; 0: as fast as possible */
    uint64_t peer_bytes_per_s; /* pace of copies between virtual devices; 0: as fast as possible */
    /* Called when the job was resumed, and after every step whose result is known, every evaluation and
     * every checkpoint. May be NULL. */
    void (*progress)(void *ctx, const struct train_progress *p);
    void *ctx;
    struct run_trace *trace; /* measures some steps; the caller writes the file; NULL: nothing is measured */
};

/* Trains the prepared job from its newest checkpoint, or from fresh weights, to its last step or until it
 * is asked to stop. Writes metrics.jsonl, the checkpoints and, after the last step, model.safetensors to
 * `out`, which the caller has locked. Returns -EDOM when training diverged, -EEXIST when the output
 * belongs to another spec, or another errno. */
int train_run(struct prepared_job *j, const struct outdir *out, const struct train_options *o,
              struct train_report *ret, struct err *err);

/* Asks the loop to stop after a checkpoint. Safe in signal handlers and in any thread. */
void train_request_stop(void);
/* Returns whether train_request_stop was called. Safe in any thread. */
bool train_stop_requested(void);

#endif
