/* The training loop: runs the phases of a job one after another. In each phase it fills the input slots, runs
 * the executor, reads each result one step late, evaluates, writes checkpoints, and compares the bytes that
 * moved with the plan. Plans and spec are ready before the loop starts.
 *
 * train_run does all of this in the caller's thread. train_request_stop may be called from a signal
 * handler and from any thread: the loop then finishes the current step, writes a checkpoint, and ends.
 */
#ifndef WORKER_TRAIN_H
#define WORKER_TRAIN_H

#include "base/err.h"
#include "base/fs.h"
#include "daemon/worker/job.h"
#include "daemon/worker/metrics.h"
#include "daemon/worker/run_trace.h"

/* How a run of the training loop went. All numbers of steps include the steps of all phases. steps_done
 * counts only the training steps whose result is known. After a failure, only steps_done is valid. */
struct train_report {
    uint64_t steps_done, total_steps;
    /* Number of training steps of the job that were already done when this run started. */
    uint64_t resumed_from;
    /* True if train_request_stop ended the run before the last training step of the job. */
    bool stopped;
    /* Loss of the last training step. If this run did no step, it is the loss that the checkpoint has
     * stored. */
    double loss;
    /* Number of training steps of the whole job whose update was skipped because a gradient was not
     * finite. */
    uint64_t skipped_steps;
    /* blocks[i] has the results of loss i in the last training step of this run. Only set if the last phase
     * has several losses. The caller of train_run frees the array with xfree. */
    struct metrics_block *blocks;
    uint32_t n_blocks;
    bool evaluated;                /* the val_ members are valid */
    double val_loss, val_accuracy; /* of the last evaluation */
    double val_perplexity;         /* e^val_loss for language models, otherwise NaN */
    /* How many seconds the training of this run took, including evaluations and checkpoints. */
    double seconds;
    /* The number of samples in all training steps of this run. */
    uint64_t samples;
    double samples_per_s;
    /* Fraction of time in which the compute streams waited, such as 0.1. NaN if it is not known. */
    double stall_share;
    /* The number of traced training steps over which stall_share was measured. 0 if stall_share was measured
     * over the whole run. */
    uint32_t stall_steps;
    /* The bytes that one step of the largest phase moves, according to its plan. The run has checked that the
     * devices moved as many bytes as all plans say. */
    struct plan_bytes step_bytes;
    /* The numbers of bytes that the devices moved in this run, according to their own counters. */
    uint64_t counted_in, counted_out, counted_peer;
    uint64_t weights_hash; /* FNV-1a over the trained weights */
    /* The processor features and libraries that the bits of the result depend on, such as "avx2 oneDNN
     * 2.6.3". */
    char numerics[96];
    /* True if the checkpoint from which the run resumed was made with other numerics, such as another
     * instruction set. The bits of the result may then differ. */
    bool numerics_changed;
};

/* An event of the training loop, for the progress display. The comment of each member names the events that
 * set it. */
struct train_progress {
    /* What happened. PROGRESS_PHASE means that a phase of a job with several phases begins. PROGRESS_OUTPUTS
     * means that a forward-only phase has kept the outputs of one more batch. PROGRESS_LABELS means that a
     * part of the model was evaluated against the label vectors that are its targets. */
    enum {
        PROGRESS_RESUME,
        PROGRESS_PHASE,
        PROGRESS_STEP,
        PROGRESS_OUTPUTS,
        PROGRESS_EVAL,
        PROGRESS_LABELS,
        PROGRESS_CHECKPOINT
    } event;
    uint64_t step, total_steps; /* steps done, and the job's total */
    const struct phase *phase;  /* the current phase */
    uint32_t n_phases;
    /* Numbers of bytes that the training steps of this run have moved so far. */
    uint64_t in_bytes, out_bytes, peer_bytes;
    /* Event OUTPUTS: the number of samples whose outputs are kept, and the number of all samples. */
    uint64_t samples, total_samples;
    double loss, lr, samples_per_s; /* STEP */
    /* Event STEP: the number of training steps in the run of the cycle, and how many of them follow this one.
     * The results of a run all become known when the run is complete. */
    uint32_t run_steps, run_left;
    /* Event STEP: fraction of time that the compute streams waited in this run so far. NaN if the devices do
     * not count it. */
    double stall_share;
    double loss_scale; /* STEP: the factor of the losses; 0 if they are not scaled */
    bool skipped;      /* STEP: the update was skipped */
    /* Event RESUME: true if the checkpoint was made with other numerics, so that the bits of the result may
     * differ. */
    bool numerics_changed;
    double val_loss, val_accuracy; /* EVAL */
    /* Event EVAL: perplexity on the validation data if the model is a language model. NaN for other
     * models. */
    double val_perplexity;
    /* Events STEP and EVAL: blocks[i] has the results of loss i. n_blocks is 0 if the phase has only one
     * loss, or if only the last loss was evaluated. */
    const struct metrics_block *blocks;
    uint32_t n_blocks;
    const struct labels *labels; /* LABELS */
    uint32_t n_labels;           /* LABELS: number of parts that the phase trains on label vectors */
};

struct train_options {
    /* Tests set this seed to add random delays to every stream of device commands. 0 means no delays. */
    uint64_t delay_seed;
    /* Speed limit in bytes per second for copies between the host and virtual devices. 0 means as fast as
     * possible. */
    uint64_t link_bytes_per_s;
    /* Speed limit in bytes per second for copies between two virtual devices. 0 means as fast as possible. */
    uint64_t peer_bytes_per_s;
    /* The training loop calls this function at each event: the start of a phase, a resume, an evaluation, a
     * checkpoint, a training step whose result is known, and a batch of a forward-only phase. May be NULL. */
    void (*progress)(void *ctx, const struct train_progress *p);
    void *ctx;
    /* The window of training steps to measure in the largest phase. The caller of train_run writes the window
     * to trace.json. NULL means that nothing is measured. */
    struct run_trace *trace;
};

/* Trains the job until its last step or a stop request, from the newest checkpoint or from initial weights.
 * Writes all files to `out`, which the caller has locked. Returns -EDOM if training diverged, -EEXIST if the
 * output belongs to another spec, or another negative errno. */
int train_run(struct prepared_job *j, const struct outdir *out, const struct train_options *o,
              struct train_report *ret, struct err *err);

/* Asks the training loop to write a checkpoint and then to stop. May be called from signal handlers and from
 * any thread. */
void train_request_stop(void);
/* Returns whether train_request_stop was called in this process. May be called from any thread. */
bool train_stop_requested(void);

#endif
