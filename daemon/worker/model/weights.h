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
#include "daemon/spec/transformer.h"

/* Names of files in the output directory of a job. */
#define WEIGHTS_TRANSFORMER "transformer.json" /* describes the model like a config.json */
/* Written last, when the job is done or has failed. */
#define RUN_RESULT_FILE "result.json"

/* An open file of weights. weights_open fills it in, and weights_close closes it. */
struct weights {
    int fd;
    char path[FS_PATH_BYTES]; /* path of the file, for messages */
    uint64_t step;            /* number of training steps done */
    /* The metric that chose the "best" checkpoint, such as "val/loss". NULL if it was chosen otherwise. */
    const char *best_by;
    size_t tensors;      /* number of tensors in the file */
    uint64_t bytes;      /* size of the file */
    uint64_t parameters; /* number of elements in all tensors */
    /* Private members. */
    /* Offset in the file at which the first tensor's data start. */
    uint64_t data_begin;
    /* Whether these are the weights of a finished job, which have a hash. A checkpoint has a size and a
     * CRC instead. */
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

/* Closes the file. May also be called after weights_open has failed. */
void weights_close(struct weights *w);

/* Reads and checks the whole file. Copies it to the descriptor `to`, named `to_path`, unless `to` is -1.
 * *ret_hash is the same hash that train.c computes. Returns -EBADMSG if the file is damaged. The caller
 * must then discard the copy. */
int weights_copy(const struct weights *w, int to, const char *to_path, uint64_t *ret_hash, struct err *err);

/* Writes transformer.json, which describes the model of a run. Does nothing if the file already has this
 * content. */
int weights_describe(const struct outdir *out, const struct transformer *t, struct err *err);

/* Reads transformer.json, which only gpt2 and llama models have. Returns -ENOENT without a message if it
 * is missing. */
int weights_transformer(const struct outdir *out, struct transformer *ret, struct err *err);

#endif
