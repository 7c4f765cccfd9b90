/* Checkpoints of a job. A checkpoint is the directory <output>/checkpoints/step-N with the files
 * model.safetensors, optimizer.safetensors and state.json. If the training method adds layers to the model,
 * such as the heads of local updates, the directory also has method.safetensors with their weights. A
 * checkpoint is either complete or absent: it is written as step-N.tmp, its files and the directory are
 * synced, then it is renamed and the parent directory is synced. Tensors are stored by name, independent of
 * the devices of the run.
 *
 * Order of calls: checkpoint_clean once at the start, after the caller has locked the output directory. To
 * resume: checkpoint_latest, checkpoint_open, checkpoint_read_weights and checkpoint_read_optimizer,
 * checkpoint_close. Then checkpoint_save and
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
#include "scheduler/plan.h"

/* The tensors of a job by name. A weight has a name like "layers.3.weight", and a buffer has a name like
 * "layers.3.running_mean". For a layer that the training method has added, the name of the layer replaces
 * "layers.3", as in "heads.0.out.weight". The names of optimizer state end in ".exp_avg" and ".exp_avg_sq"
 * for AdamW, or in ".momentum_buffer" for SGD. If the optimizer keeps master weights, the weights are those:
 * floats, which are not listed again among the optimizer state. The data pointers point into the caller's
 * memory. */
struct checkpoint_tensors {
    /* The weights and buffers of the model, those of the added layers, and the optimizer state of both. */
    struct st_tensor *model, *method, *optimizer;
    size_t n_model, n_method, n_optimizer;
    struct arena *arena;
};

/* A function that returns the address of a layer's weights (TENSOR_W), optimizer state (TENSOR_K) or buffers
 * (TENSOR_B). If the optimizer keeps master weights, these are the layer's weights, as floats. The function
 * is called only for tensors that the layer has. It returns NULL for the optimizer state of a layer that the
 * current phase does not train. */
typedef void *(*checkpoint_block_fn)(void *ctx, uint32_t layer, enum tensor_kind kind);

/* Makes the list of all tensors of a job. The first `n_model` layers of `all` are the model, and the training
 * method has added the others. Calls the function `block` with `ctx` to find the memory of each layer. */
void checkpoint_tensors_init(struct checkpoint_tensors *t, const struct model *all, uint32_t n_model,
                             const struct optimizer *optimizer, checkpoint_block_fn block, void *ctx);

/* Frees the list of tensors. A zero-initialized struct is also allowed. */
void checkpoint_tensors_finish(struct checkpoint_tensors *t);

/* The result of an evaluation, in the form that a checkpoint stores. */
struct checkpoint_eval {
    /* True if the model was evaluated after exactly the training step of the checkpoint. */
    bool valid;
    double loss, accuracy;
};

/* The last evaluation of a phase against its label vectors (daemon/worker/labels.h), in the form that a
 * checkpoint stores. */
struct checkpoint_labels {
    uint32_t phase;
    uint64_t step; /* number of steps of the job that were done */
    double error, nearest;
};

/* The content of a new checkpoint, as the argument of checkpoint_save. The caller fills the struct in and may
 * free it after the call. */
struct checkpoint_data {
    uint64_t step; /* number of steps done, counting all phases */
    /* The position of the job: the phase, and the number of steps done in it. state.json has them only if
     * n_phases, the number of phases of the job, is more than 1. */
    uint32_t n_phases, phase;
    uint64_t phase_step;
    /* True if the phase trains on outputs that an earlier phase has kept. inputs_crc is then the checksum of
     * these outputs. */
    bool has_inputs;
    uint32_t inputs_crc;
    /* The number of training samples that the phase has consumed. In every epoch, each sample counts
     * again. */
    uint64_t data_position;
    const struct spec *spec; /* the resolved spec */
    /* The optimizer of the phase. If the phase has several decision groups, all their optimizers have state
     * of the same parts, and this is the first of them. */
    const struct optimizer *optimizer;
    const char *numerics; /* from devset_numerics */
    double loss;          /* loss of the last step */
    /* Number of training steps whose update was skipped because a gradient was not finite. */
    uint64_t skipped_steps;
    /* The group states of the `n_groups` decision groups of the phase: the values that the weight updates of
     * a step read, such as the number of updates so far. NULL if the job has no such values. */
    const struct group_state *groups;
    uint32_t n_groups;
    struct checkpoint_eval eval;
    /* The evaluations against label vectors of all phases that have made one. */
    const struct checkpoint_labels *labels;
    uint32_t n_labels;
    const struct checkpoint_tensors *tensors;
};

/* Removes the directories step-*.tmp that a crash left behind. Also creates the directory `checkpoints` if it
 * does not exist. */
int checkpoint_clean(const struct outdir *out, struct err *err);

/* Writes the checkpoint step-N, where N is data->step. On success, step-N is complete and durable. On
 * failure, there is no new step-N. The only exception is a failure of the last sync: in this case step-N is
 * complete.
 *
 * If a sound step-N of the same spec already exists, nothing is written. A damaged step-N is replaced.
 * Returns -EEXIST if step-N belongs to another spec. */
int checkpoint_save(const struct outdir *out, const struct checkpoint_data *data, struct err *err);

/* Reads the resolved spec and its hash from the newest sound checkpoint. The caller frees *ret_text. Returns
 * -ENOENT if there is no sound checkpoint. */
int checkpoint_resolved(const struct outdir *out, char **ret_text, uint64_t *ret_hash);

/* Finds the newest training step that has a checkpoint directory. The checkpoint itself may be damaged.
 * Returns -ENOENT if there is no such directory. */
int checkpoint_latest(const struct outdir *out, uint64_t *ret_step, struct err *err);

/* An open checkpoint, from checkpoint_open to checkpoint_close. */
struct checkpoint;

/* What the state.json of a checkpoint says. */
struct checkpoint_info {
    uint64_t step, data_position;
    /* The phase in which the checkpoint was written, and the number of steps done in that phase. If the job
     * has only one phase, `phase` is 0 and `phase_step` equals `step`. */
    uint32_t phase;
    uint64_t phase_step;
    bool has_inputs;     /* inputs_crc is valid */
    uint32_t inputs_crc; /* as in struct checkpoint_data */
    uint64_t seed, data_seed;
    uint64_t spec_hash;
    const char *resolved; /* JSON text from spec_resolved_json */
    const char *numerics;
    double loss; /* NaN if it was not finite */
    uint64_t skipped_steps;
    /* The group state of each decision group: the values that every weight update of a step reads. Values
     * that checkpoints do not save are 0 here. Older checkpoints do not save the group state. In this case
     * there is one group, and its `t` is the number of training steps that were not skipped. */
    const struct group_state *groups;
    uint32_t n_groups;
    struct checkpoint_eval eval;
    const struct checkpoint_labels *labels; /* as in struct checkpoint_data */
    uint32_t n_labels;
    /* The value of the job's key checkpoint.best when the checkpoint was written. BEST_NONE for older
     * checkpoints. */
    enum spec_best best;
};

/* Returns whether evaluation `a` is better than `b` by the metric `best`. BEST_NONE compares the accuracy
 * first, and then the loss. Any number is better than NaN. Returns false if both evaluations are equal. */
bool checkpoint_is_better(const struct checkpoint_eval *a, const struct checkpoint_eval *b,
                          enum spec_best best);

/* Opens the checkpoint of training step `step` and verifies every byte of its files. Returns -EBADMSG if it
 * is damaged. The error message names the file and says what to do. */
int checkpoint_open(const struct outdir *out, uint64_t step, struct checkpoint **ret, struct err *err);

/* Returns the content of the checkpoint's state.json. The pointer is valid until checkpoint_close. */
const struct checkpoint_info *checkpoint_info(const struct checkpoint *c);

/* Reads the weights of the checkpoint into the memory that `t` points to. Returns -EINVAL if a name or a
 * shape in `t` differs from the checkpoint. */
int checkpoint_read_weights(const struct checkpoint *c, const struct checkpoint_tensors *t, struct err *err);
/* Reads the optimizer state of the checkpoint into the memory that `t` points to, like
 * checkpoint_read_weights. The state belongs to the phase in which the checkpoint was written. */
int checkpoint_read_optimizer(const struct checkpoint *c, const struct checkpoint_tensors *t,
                              struct err *err);

/* Closes the checkpoint and frees its memory. `c` may be NULL. */
void checkpoint_close(struct checkpoint *c);

/* Removes all checkpoints except the best one and the newest `keep`, which is at least 1. Checkpoints with a
 * damaged state.json are neither removed nor counted. Even a crash during this function leaves no incomplete
 * checkpoint. */
int checkpoint_prune(const struct outdir *out, uint32_t keep, enum spec_best best, struct err *err);

/* Writes only the weights, to the file `file` in the output directory. `file` is a plain name such as
 * "model.safetensors". A reader never sees an incomplete file. */
int checkpoint_export_weights(const struct outdir *out, const char *file, const struct checkpoint_data *data,
                              struct err *err);

#endif
