/* Writes metrics.jsonl in the output directory: one JSON object per line, the complete record of how a run
 * went.
 *
 * "step" in a line is the number of steps done. The line for the first step therefore says 1, and a
 * checkpoint of step N covers the lines whose step is at most N.
 *
 * Order of calls: metrics_open, then metrics_train and metrics_eval in the order of steps, metrics_sync
 * before each checkpoint, and metrics_close. All calls come from one thread.
 */
#ifndef WORKER_METRICS_H
#define WORKER_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/fs.h"

struct metrics;

/* The figures of one training step. */
struct metrics_step {
    uint64_t step; /* steps done, with this one */
    double loss, lr;
    double grad_norm; /* norm of the gradient; NaN: not known, and the key is left out */
    double samples_per_s;
    uint64_t in_bytes, out_bytes, peer_bytes; /* bytes that the step moved */
    double stall_s;                           /* seconds that a device waited, on average; NaN: not known */
    bool skipped;                             /* the update was skipped because a gradient was not finite */
};

/* Opens metrics.jsonl for appending. First removes the lines after `resume_step` (0 for a fresh run) and a
 * last line that a crash left incomplete, by writing a new file that replaces the old one. */
int metrics_open(const struct outdir *out, uint64_t resume_step, struct metrics **ret, struct err *err);
/* Closes the file. Accepts NULL. */
void metrics_close(struct metrics *m);

/* Appends the line of one step with a single write(2). A line that could not be written completely is
 * removed again. The figures that decide whether two runs are equal (loss, lr, grad_norm) are printed with
 * %.17g. Figures that are not finite become null. */
int metrics_train(struct metrics *m, const struct metrics_step *s, struct err *err);
/* Appends the line of one evaluation. A perplexity of NaN is left out. */
int metrics_eval(struct metrics *m, uint64_t step, double loss, double accuracy, double perplexity,
                 struct err *err);

/* Makes the lines written so far durable with fdatasync(2). */
int metrics_sync(struct metrics *m, struct err *err);

#endif
