/* The weights in a job's output directory: those of the finished job (model.safetensors) or those of a
 * checkpoint. For gpt2 and llama models, transformer.json beside them describes the model.
 *
 * Order of calls: weights_open chooses the file and reads its header. weights_copy reads and checks every
 * byte: the weights of a checkpoint against the CRC-32C in its state.json, those of a finished job against
 * the hash in its result.json. Then the caller may read the file through its descriptor. weights_close ends
 * it.
 *
 * Nothing is locked, and the job may continue meanwhile: these files are never changed, only removed, and an
 * open file stays readable after its removal. All calls come from one thread.
 */
#ifndef DAEMON_WORKER_MODEL_WEIGHTS_H
#define DAEMON_WORKER_MODEL_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/fs.h"
#include "daemon/spec/spec.h"
#include "daemon/spec/transformer.h"
#include "daemon/worker/model/safetensors.h"

/* Names of files in a job's output directory. */
#define WEIGHTS_TRANSFORMER "transformer.json" /* describes the model like a config.json */
/* resolved.json has the resolved spec of the job. */
#define RUN_RESOLVED_FILE "resolved.json"
/* result.json is written last, when the job is done or has failed. */
#define RUN_RESULT_FILE "result.json"

/* A weight file that is open for reading. weights_open fills the struct in, and weights_close closes the
 * file. */
struct weights {
    int fd;
    char path[FS_PATH_BYTES]; /* path of the file, for messages */
    uint64_t step;            /* number of training steps done */
    /* The metric, such as "val/loss", by which "best" selected these weights. NULL if the weights were
     * selected in another way. */
    const char *best_by;
    size_t tensors;      /* number of tensors in the file */
    uint64_t bytes;      /* size of the file */
    uint64_t parameters; /* number of elements in all tensors */
    /* Private members. */
    struct safetensors *file; /* the header of the file */
    /* Offset in the file at which the data of the first tensor start. */
    uint64_t data_begin;
    /* True for the weights of a finished job, which are checked by a hash. False for the weights of a
     * checkpoint, which are checked by their size and a CRC. */
    bool final;
    uint64_t want_bytes;
    uint32_t want_crc;
    char want_hash[17];
};

/* Opens the weights that `step` selects. A number selects the checkpoint of that step, and "last" selects the
 * newest checkpoint. "best" selects the checkpoint with the best evaluation. The newest checkpoint stores the
 * metric for this, checkpoint.best.
 *
 * NULL selects the model of the finished job, or the newest checkpoint if the job has not finished. Returns
 * -ENOENT if there is no such checkpoint, or -EINVAL for any other text. */
int weights_open(const struct outdir *out, const char *step, struct weights *ret, struct err *err);

/* Opens the weights of the layers that the training method has added to the model, such as the heads of local
 * updates. Only checkpoints store these weights, and `step` is the training step of the checkpoint. Returns
 * -ENOENT if this checkpoint does not exist or has no such layers. */
int weights_open_added(const struct outdir *out, uint64_t step, struct weights *ret, struct err *err);

/* Closes the weight file. May also be called after weights_open has failed. */
void weights_close(struct weights *w);

/* The hash of a model's weights before the first tensor is added. */
#define WEIGHTS_HASH_START 0xcbf29ce484222325ull
/* Adds `elements` elements of a tensor to the hash `h` of a model's weights, and returns the new hash. The
 * caller adds the tensors in the order of the layers, and may add a tensor in several parts. The hash is like
 * FNV-1a, but each step of the hash takes a whole element instead of one byte. */
uint64_t weights_hash(uint64_t h, const void *at, enum dtype dtype, uint64_t elements);

/* Reads and checks the whole weight file. Copies it to the descriptor `to`, unless `to` is -1; error messages
 * call the copy `to_path`. *ret_hash receives the same hash that train.c computes. Returns -EBADMSG if the
 * file is damaged. The caller must then discard the copy. */
int weights_copy(const struct weights *w, int to, const char *to_path, uint64_t *ret_hash, struct err *err);

/* Reads the precision with which the job was trained, from resolved.json or from the newest checkpoint. The
 * result is fp32 if neither says it. */
enum spec_precision weights_precision(const struct outdir *out);

/* Writes transformer.json, which describes the model of the job. Does nothing if the file already has this
 * content. */
int weights_describe(const struct outdir *out, const struct transformer *t, struct err *err);

/* Reads transformer.json, which only jobs with gpt2 and llama models have. Returns -ENOENT without a message
 * if the file is missing. */
int weights_transformer(const struct outdir *out, struct transformer *ret, struct err *err);

#endif
