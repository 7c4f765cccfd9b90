/* metrics.jsonl in the output directory: one JSON object per line, the source of truth on how a run went.
 * "step" is the number of steps done, so the line of 0-based step s says s + 1, and a checkpoint of step N
 * stands behind the lines with step <= N.
 *
 * Order of calls: metrics_open, then metrics_train and metrics_eval in order of steps, metrics_sync before
 * each checkpoint, metrics_close. One thread.
 */
#ifndef WORKER_METRICS_H
#define WORKER_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/fs.h"

struct metrics;

struct metrics_step {
    uint64_t step; /* steps done */
    double loss, lr;
    double grad_norm; /* NaN: not known, the key is left out */
    double samples_per_s;
    uint64_t in_bytes, out_bytes, peer_bytes; /* of this step */
    double stall_s;                           /* NaN: not known */
    bool skipped;                             /* the update was skipped: a gradient was not finite */
};

/* Drops what comes after `resume_step` (0: a fresh run), and a last line that a crash tore: into a new file
 * that replaces the old one. */
int metrics_open(const struct outdir *out, uint64_t resume_step, struct metrics **ret, struct err *err);
void metrics_close(struct metrics *m); /* takes NULL */

/* One write(2) per line; a line that could not be written whole is taken back. Numbers that decide on
 * equality of runs (loss, lr, grad_norm) are printed with %.17g; those that are not finite become null. */
int metrics_train(struct metrics *m, const struct metrics_step *s, struct err *err);
/* perplexity: NaN where there is none. */
int metrics_eval(struct metrics *m, uint64_t step, double loss, double accuracy, double perplexity,
                 struct err *err);

int metrics_sync(struct metrics *m, struct err *err); /* fdatasync */

#endif
