/* The weights that a run left in its output directory: of the finished job (model.safetensors), or of a checkpoint; and
 * what model they are of, where that has a name (transformer.json).
 *
 * Order of calls: weights_open chooses and looks at the header; weights_copy reads every byte and checks them, those of a
 * checkpoint against the CRC-32C in its state.json, those of the finished job against the hash in result.json; then the
 * descriptor may be read by others; weights_close. Nothing is locked: the job may go on meanwhile, for what is read here is
 * never changed, only removed, and stays readable while it is open. One thread.
 */
#ifndef DAEMON_WORKER_MODEL_WEIGHTS_H
#define DAEMON_WORKER_MODEL_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/fs.h"
#include "daemon/spec/transformer.h"

/* Files in the output directory of a job. */
#define WEIGHTS_TRANSFORMER "transformer.json" /* the model, in the words of a Hugging Face config.json */
#define RUN_RESULT_FILE     "result.json"      /* written last, when the job is done or has failed */

struct weights {
    int fd;
    char path[FS_PATH_BYTES];
    uint64_t step;
    const char *best_by; /* "val/loss": the metric that chose the checkpoint; NULL: none did */
    size_t tensors;
    uint64_t bytes, parameters;
    /* private */
    uint64_t data_begin; /* of the tensors, in the file */
    bool final;          /* the model of a finished job, to be checked by hash, else by size and sum */
    uint64_t want_bytes;
    uint32_t want_crc;
    char want_hash[17];
};

/* Chooses weights by `step`: a number; "last", the newest checkpoint; "best", the checkpoint with the best
 * evaluation by the job's checkpoint.best (checkpoint_is_better), as its newest checkpoint has it; NULL,
 * the finished model, else the newest checkpoint. -ENOENT: there is none; -EINVAL: no such word. */
int weights_open(const struct outdir *out, const char *step, struct weights *ret, struct err *err);
void weights_close(struct weights *w); /* takes one that could not be opened */

/* Reads and checks all of the file, and writes it to `to`, whose name is `to_path`; -1: nowhere. *ret_hash: of the weights,
 * as train.c computes it. -EBADMSG for damage; then what was written is of no use. */
int weights_copy(const struct weights *w, int to, const char *to_path, uint64_t *ret_hash, struct err *err);

/* Describes the model of a run in its output, unless it is described there. */
int weights_describe(const struct outdir *out, const struct transformer *t, struct err *err);
/* Reads that. -ENOENT, without a message: the job has no gpt2 or llama model. */
int weights_transformer(const struct outdir *out, struct transformer *ret, struct err *err);

#endif
