/* Checkpoints: <output>/checkpoints/step-N/ with model.safetensors, optimizer.safetensors and state.json. One
 * is complete or absent: it is written as step-N.tmp, files and directory are synced, then it is renamed and
 * the parent is synced. State is by tensor name, never by device.
 *
 * Order of calls: checkpoint_clean once at start (the output directory is locked by the caller); then
 * checkpoint_latest, checkpoint_open, checkpoint_read, checkpoint_close to resume; then checkpoint_save and
 * checkpoint_prune any number of times. One thread at a time.
 *
 * All calls are relative to struct outdir (fsutil.h): the output directory, open for reading. Nothing
 * follows a symbolic link.
 */
#ifndef DAEMON_WORKER_MODEL_CHECKPOINT_H
#define DAEMON_WORKER_MODEL_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/fs.h"
#include "daemon/spec/spec.h"
#include "daemon/worker/model/safetensors.h"

/* The tensors of a model: weights by name ("layers.3.weight") and optimizer state ("layers.3.weight.exp_avg",
 * ".exp_avg_sq" for adamw, ".momentum_buffer" for sgd). Pointers lead into the host store. */
struct checkpoint_tensors {
    struct st_tensor *model, *optimizer;
    size_t n_model, n_optimizer;
    struct arena *arena;
};

/* Where the W or K block of a layer is; never called for a block of no bytes. */
typedef void *(*checkpoint_block_fn)(void *ctx, uint32_t layer, bool optimizer_state);

void checkpoint_tensors_init(struct checkpoint_tensors *t, const struct model *model,
                             const struct optimizer *optimizer, checkpoint_block_fn block, void *ctx);
void checkpoint_tensors_finish(struct checkpoint_tensors *t); /* takes a zeroed one */

struct checkpoint_eval {
    bool valid; /* an evaluation of exactly this step */
    double loss, accuracy;
};

struct checkpoint_data {
    uint64_t step;                   /* steps done */
    uint64_t data_position;          /* samples of the stream consumed */
    const struct spec *spec;         /* resolved */
    const char *numerics;            /* devset_numerics */
    double loss;                     /* of the last step */
    uint64_t skipped_steps;          /* so far, because their gradient was not finite */
    const struct group_state *group; /* of the decision group; NULL: the job has none */
    struct checkpoint_eval eval;
    const struct checkpoint_tensors *tensors;
};

/* Removes what a crash left behind (step-*.tmp). Makes the directory `checkpoints` when there is none. */
int checkpoint_clean(const struct outdir *out, struct err *err);

/* On success step-N is complete and durable. On failure there is no step-N that was not there before (except
 * when only the very last sync failed: then it is complete), and no .tmp unless even its removal failed. When
 * a sound step-N of the same spec is there already, nothing is written; one of another spec is -EEXIST; a
 * damaged one is replaced. */
int checkpoint_save(const struct outdir *out, const struct checkpoint_data *data, struct err *err);

/* What the newest sound checkpoint says the job was resolved to: the text of spec_resolved_json,
 * malloc'ed, and its hash. -ENOENT: there is none. */
int checkpoint_resolved(const struct outdir *out, char **ret_text, uint64_t *ret_hash);

/* The newest step that has a directory; -ENOENT when there is none. Says nothing about its soundness. */
int checkpoint_latest(const struct outdir *out, uint64_t *ret_step, struct err *err);

struct checkpoint; /* an open one */

struct checkpoint_info {
    uint64_t step, data_position;
    uint64_t seed, data_seed;
    uint64_t spec_hash;
    const char *resolved; /* JSON, as written by spec_resolved_json */
    const char *numerics;
    double loss; /* NaN when it was not finite */
    uint64_t skipped_steps;
    struct group_state
        group; /* the saved parts, 0 elsewhere. A checkpoint without them was written before there was a
                               * group state: then t is the number of steps that were not skipped. */
    struct checkpoint_eval eval;
    enum spec_best
        best; /* the job's checkpoint.best at that time; BEST_NONE in checkpoints of older versions */
};

/* Whether evaluation `a` is better than `b` by the job's checkpoint.best. BEST_NONE, a job that names no
 * metric: the greater accuracy is better, and of equal accuracies the smaller loss. Any number is better
 * than NaN. False for equals. */
bool checkpoint_is_better(const struct checkpoint_eval *a, const struct checkpoint_eval *b,
                          enum spec_best best);

/* Verifies all of it, every byte, before it returns. -EBADMSG for damage: the message says which file, what
 * was expected and found, and what to do. */
int checkpoint_open(const struct outdir *out, uint64_t step, struct checkpoint **ret, struct err *err);
const struct checkpoint_info *checkpoint_info(const struct checkpoint *c);
/* Fills every tensor; -EINVAL when names or shapes are not exactly those of the checkpoint. */
int checkpoint_read(const struct checkpoint *c, const struct checkpoint_tensors *t, struct err *err);
void checkpoint_close(struct checkpoint *c); /* takes NULL */

/* Removes all but the newest `keep` (at least 1) and the best one by `best`. A checkpoint whose state.json is
 * damaged neither counts nor is removed. Crash-safe: one is renamed before it is deleted. */
int checkpoint_prune(const struct outdir *out, uint32_t keep, enum spec_best best, struct err *err);

/* The weights alone, as file `file` of the output directory (a plain name, e.g. "model.safetensors"),
 * atomically. */
int checkpoint_export_weights(const struct outdir *out, const char *file, const struct checkpoint_data *data,
                              struct err *err);

#endif
