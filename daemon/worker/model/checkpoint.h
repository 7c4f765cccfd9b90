/* Checkpoints of a job. A checkpoint is the directory <output>/checkpoints/step-N with the files
 * model.safetensors, optimizer.safetensors and state.json. A checkpoint is either complete or absent: it is
 * written as step-N.tmp, its files and the directory are synced, then it is renamed and the parent directory
 * is synced. Tensors are stored by name, independent of the devices of the run.
 *
 * Order of calls: checkpoint_clean once at the start, after the caller has locked the output directory. To
 * resume: checkpoint_latest, checkpoint_open, checkpoint_read, checkpoint_close. Then checkpoint_save and
 * checkpoint_prune as often as needed. Only one thread may call at a time.
 *
 * Every call takes a struct outdir (base/fs.h), the open output directory, and no call follows a symbolic
 * link.
 */
#ifndef DAEMON_WORKER_MODEL_CHECKPOINT_H
#define DAEMON_WORKER_MODEL_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/fs.h"
#include "daemon/spec/spec.h"
#include "daemon/worker/model/safetensors.h"

/* The tensors of a model by name: weights such as "layers.3.weight", and optimizer state such as
 * "layers.3.weight.exp_avg" and "...exp_avg_sq" for AdamW, or "...momentum_buffer" for SGD. The data pointers
 * lead into memory of the caller. */
struct checkpoint_tensors {
    struct st_tensor *model, *optimizer;
    size_t n_model, n_optimizer;
    struct arena *arena;
};

/* Returns the address of a layer's optimizer state if `optimizer_state` is true, else of its weights. Never
 * called for a layer that has none. */
typedef void *(*checkpoint_block_fn)(void *ctx, uint32_t layer, bool optimizer_state);

/* Makes the list of all tensors of a model. `block` is called with `ctx` to find the memory of each layer. */
void checkpoint_tensors_init(struct checkpoint_tensors *t, const struct model *model,
                             const struct optimizer *optimizer, checkpoint_block_fn block, void *ctx);

/* Frees the list. A struct of zeros is accepted, too. */
void checkpoint_tensors_finish(struct checkpoint_tensors *t);

/* The result of an evaluation that a checkpoint records. */
struct checkpoint_eval {
    bool valid; /* the model was evaluated after exactly this step */
    double loss, accuracy;
};

/* What checkpoint_save writes. The caller fills it in, and it only needs to live during the call. */
struct checkpoint_data {
    uint64_t step;                   /* steps done */
    uint64_t data_position;          /* samples of the stream that training has consumed */
    const struct spec *spec;         /* the resolved spec */
    const char *numerics;            /* from devset_numerics */
    double loss;                     /* loss of the last step */
    uint64_t skipped_steps;          /* steps without an update because their gradient was not finite */
    const struct group_state *group; /* state of the decision group; NULL: the job has none */
    struct checkpoint_eval eval;
    const struct checkpoint_tensors *tensors;
};

/* Removes everything that a crash left behind (step-*.tmp), and makes the directory `checkpoints` if it does
 * not exist. */
int checkpoint_clean(const struct outdir *out, struct err *err);

/* Writes the checkpoint step-N, N being data->step. On success it is complete and durable. On failure there
 * is no new step-N, with one exception: if only the last sync failed, step-N is complete. If there already is
 * a sound step-N of the same spec, nothing is written. A damaged one is replaced. Returns -EEXIST if step-N
 * belongs to another spec. */
int checkpoint_save(const struct outdir *out, const struct checkpoint_data *data, struct err *err);

/* Reads the resolved spec of the newest checkpoint whose state.json is sound: its text, which the caller
 * frees, and its hash. Returns -ENOENT if there is no such checkpoint. */
int checkpoint_resolved(const struct outdir *out, char **ret_text, uint64_t *ret_hash);

/* Stores the newest step that has a checkpoint directory in *ret_step. The checkpoint may be damaged. Returns
 * -ENOENT if there is none. */
int checkpoint_latest(const struct outdir *out, uint64_t *ret_step, struct err *err);

/* An open checkpoint, from checkpoint_open to checkpoint_close. */
struct checkpoint;

/* What the state.json of a checkpoint says. */
struct checkpoint_info {
    uint64_t step, data_position;
    uint64_t seed, data_seed;
    uint64_t spec_hash;
    const char *resolved; /* JSON text from spec_resolved_json */
    const char *numerics;
    double loss; /* NaN when it was not finite */
    uint64_t skipped_steps;
    /* The saved parts of the group state; the other parts are 0. Checkpoints of versions that had no group
     * state do not store it; then t is the number of steps that were not skipped. */
    struct group_state group;
    struct checkpoint_eval eval;
    enum spec_best best; /* metric checkpoint.best of the job at that time; BEST_NONE in older checkpoints */
};

/* Returns whether evaluation `a` is better than `b` by the metric `best`. For BEST_NONE the higher accuracy
 * is better, and between equal accuracies the lower loss. Every number is better than NaN. Returns false if
 * they are equal. */
bool checkpoint_is_better(const struct checkpoint_eval *a, const struct checkpoint_eval *b,
                          enum spec_best best);

/* Opens the checkpoint of `step` and verifies every byte of it. Returns -EBADMSG if it is damaged; the
 * message names the file, what was expected and found, and what to do. */
int checkpoint_open(const struct outdir *out, uint64_t step, struct checkpoint **ret, struct err *err);

/* Returns the content of state.json, which lives as long as the open checkpoint. */
const struct checkpoint_info *checkpoint_info(const struct checkpoint *c);

/* Reads all tensors of the checkpoint into the memory that `t` points to. Returns -EINVAL unless `t` has
 * exactly the names and shapes of the checkpoint. */
int checkpoint_read(const struct checkpoint *c, const struct checkpoint_tensors *t, struct err *err);

/* Closes the checkpoint and frees it. `c` may be NULL. */
void checkpoint_close(struct checkpoint *c);

/* Removes all checkpoints except the newest `keep` (at least 1) and the best one by the metric `best`. A
 * checkpoint with a damaged state.json is not removed and not counted. A crash leaves no half-removed
 * checkpoint, because each one is renamed before its files are deleted. */
int checkpoint_prune(const struct outdir *out, uint32_t keep, enum spec_best best, struct err *err);

/* Writes the weights alone to the file `file` in the output directory; `file` is a plain name such as
 * "model.safetensors". The file appears complete or not at all. */
int checkpoint_export_weights(const struct outdir *out, const char *file, const struct checkpoint_data *data,
                              struct err *err);

#endif
