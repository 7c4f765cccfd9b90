/* The training loop: feeds the executor, reads results a step late, evaluates, checkpoints, and accounts for
 * every byte that moved. Everything that decides (plan, spec) is done before; everything that computes is
 * below.
 *
 * Order of calls: train_run does all of it, in the caller's thread. train_request_stop may be called from a
 * signal handler and from any thread: the loop then ends after the step under way, with a checkpoint.
 */
#ifndef WORKER_TRAIN_H
#define WORKER_TRAIN_H

#include "base/err.h"
#include "base/fs.h"
#include "daemon/worker/job.h"
#include "daemon/worker/run_trace.h"

struct train_report { /* after a failure: only steps_done, those whose result is known */
    uint64_t steps_done, total_steps;
    uint64_t resumed_from;  /* steps done when this run started */
    bool stopped;           /* by train_request_stop, before the end */
    double loss;            /* of the last step, this run's or the checkpoint's */
    uint64_t skipped_steps; /* of the job so far, because their gradient was not finite */
    bool evaluated;
    double val_loss, val_accuracy; /* of the last evaluation */
    double val_perplexity;         /* of language models: e^val_loss; else NaN */
    double seconds;                /* of training in this run, evaluation and checkpoints included */
    double samples_per_s;
    double stall_share; /* of the devices' compute streams: waiting / (waiting + computing); NaN: not known */
    uint32_t stall_steps;    /* 0: of the whole run; else of so many traced steps: devices do not count */
    struct plan_bytes cycle; /* per step: planned; the counters were compared */
    uint64_t counted_in, counted_out, counted_peer; /* by the devices, all programs of this run */
    uint64_t weights_hash;
    char numerics[96];     /* what the bits depend on besides the spec */
    bool numerics_changed; /* the checkpoint came from other numerics: the bits may differ */
};

struct train_progress {
    enum { PROGRESS_RESUME, PROGRESS_STEP, PROGRESS_EVAL, PROGRESS_CHECKPOINT } event;
    uint64_t step, total_steps;     /* steps done */
    double loss, lr, samples_per_s; /* STEP */
    double stall_share;             /* STEP: of this run so far, as counted; NaN: the devices do not count */
    bool skipped;                   /* STEP: the update was skipped */
    bool numerics_changed;          /* RESUME: the checkpoint came from other numerics, the bits may differ */
    double val_loss, val_accuracy;  /* EVAL */
    double val_perplexity;          /* EVAL: NaN where there is none */
};

struct train_options {
    uint64_t delay_seed;
    uint64_t link_bytes_per_s, peer_bytes_per_s; /* pace of the virtual devices; 0: unpaced */
    /* Called after every step whose result is known, every evaluation and every checkpoint; may be NULL. */
    void (*progress)(void *ctx, const struct train_progress *p);
    void *ctx;
    struct run_trace *trace; /* times of some steps, for the caller to write; NULL: none */
};

int train_run(struct prepared_job *j, const struct outdir *out, const struct train_options *o,
              struct train_report *ret, struct err *err);

void train_request_stop(void);
bool train_stop_requested(void); /* any thread */

#endif
