/* Writes metrics.jsonl in the output directory: one JSON object per line, the complete record of how a run
 * went.
 *
 * "step" in a line is the number of steps done. The line for the first step therefore says 1, and a
 * checkpoint of step N covers the lines whose step is at most N.
 *
 * Order of calls: metrics_open, metrics_set_phase at the start of each phase if the job has several, then
 * metrics_train and metrics_eval in the order of steps, metrics_sync before each checkpoint, and
 * metrics_close. All calls come from one thread.
 */
#ifndef WORKER_METRICS_H
#define WORKER_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/fs.h"
#include "daemon/worker/labels.h"

struct metrics;

/* The results of one loss, for phases with several losses. The struct is named after the blocks of local
 * updates, because there every block of layers has a loss and a decision group of its own. */
struct metrics_block {
    double loss;
    double accuracy;   /* NaN if the loss has none, as a loss against label vectors in training */
    double lr;         /* learning rate of the decision group to which the loss belongs */
    double sumsq;      /* squared norm of the gradient of this group; NaN if the norm is not known */
    double loss_scale; /* factor of the losses of this group in this step; 0 if they are not scaled */
    bool skipped;      /* the update of this group was skipped */
};

/* The result of an evaluation of the whole model. */
struct metrics_eval {
    double loss, accuracy;
    double perplexity; /* NaN if the model is not a language model */
    /* The loss and the accuracy of each loss of the phase. n_blocks is 0 if the phase has only one loss. Only
     * the members `loss` and `accuracy` of the blocks are used. */
    const struct metrics_block *blocks;
    uint32_t n_blocks;
};

/* The figures of one training step. */
struct metrics_step {
    uint64_t step; /* number of steps done, including this */
    double loss, lr;
    /* The norm of the gradient. If the norm is NaN, the line gets no key "grad_norm". */
    double grad_norm;
    double samples_per_s;
    uint64_t in_bytes, out_bytes, peer_bytes; /* number of bytes that the step moved */
    /* Average number of seconds that a device waited in this training step. NaN if the time is not known. */
    double stall_s;
    /* The factor by which the losses were multiplied for the backward pass. 0 if losses are not scaled. In a
     * phase with several losses, this is the factor of the last one. */
    double loss_scale;
    /* True if an update of this training step was skipped because a gradient was not finite. */
    bool skipped;
    /* blocks[i] has the results of loss i. n_blocks is 0 if the phase has only one loss. */
    const struct metrics_block *blocks;
    uint32_t n_blocks;
};

/* Opens metrics.jsonl for appending. `resume_step` is the step of the checkpoint, or 0 for a fresh run. Lines
 * of later steps and an incomplete last line are removed first. */
int metrics_open(const struct outdir *out, uint64_t resume_step, struct metrics **ret, struct err *err);
/* Every line from now on gets the key "phase" with the value `phase`. A job with one phase does not call this
 * function, and its lines have no such key. */
void metrics_set_phase(struct metrics *m, uint32_t phase);
/* Closes the file. `m` may be NULL. */
void metrics_close(struct metrics *m);

/* Appends the line of one training step with a single write(2). If only a part of the line is written, that
 * part is removed again. Loss, lr and grad_norm are printed exactly, so that two runs can be compared.
 * Figures that are not finite become null. */
int metrics_train(struct metrics *m, const struct metrics_step *s, struct err *err);
/* Appends the line of one evaluation. */
int metrics_eval(struct metrics *m, uint64_t step, const struct metrics_eval *e, struct err *err);
/* Appends the line of one evaluation against label vectors. The line has other keys than that of an
 * evaluation, because it says nothing about the accuracy of the whole model. */
int metrics_labels(struct metrics *m, const struct labels *l, uint32_t n_labels, struct err *err);

/* Makes all lines written so far durable on disk, with fdatasync(2). */
int metrics_sync(struct metrics *m, struct err *err);

#endif
