/* Reads and writes models as Hugging Face folders: config.json with model.safetensors, or with several weight
 * files (shards) and model.safetensors.index.json. GPT-2 and Llama models are supported. docs/huggingface.md
 * says what is read, written and refused.
 *
 * In memory, a model is a list of struct st_tensor with the names of a checkpoint, such as
 * "layers.2.attn.qkv.weight", by the position in the chain (transformer.h). checkpoint_tensors_init makes
 * such a list, and safetensors_map makes it from a file.
 *
 * To read a folder, call hf_open, which checks the config, the index, the headers of the files, and that the
 * files have exactly the tensors of the model. It loads nothing yet, so it is also a cheap way to inspect a
 * folder. Then call hf_transformer to learn the architecture, hf_load to fill the weights, and hf_close. To
 * write a folder, call hf_save. Neither needs memory for a copy of the weights.
 *
 * An open folder belongs to one thread.
 */
#ifndef DAEMON_WORKER_MODEL_HF_H
#define DAEMON_WORKER_MODEL_HF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/spec/transformer.h"
#include "daemon/worker/model/safetensors.h"

/* An open Hugging Face folder. */
struct hf;

/* Opens and checks the Hugging Face folder `dir`. Symbolic links are followed, because the files in the
 * Hugging Face cache are symbolic links. Returns -ENOENT if a file is missing, -EBADMSG if a file is damaged,
 * and -EINVAL or -EOPNOTSUPP if this program cannot use the model. */
int hf_open(const char *dir, struct hf **ret, struct err *err);

/* Closes the folder and frees its memory. `f` may be NULL. */
void hf_close(struct hf *f);

/* Returns the architecture of the model in the folder. The pointer is valid until hf_close. */
const struct transformer *hf_transformer(const struct hf *f);

/* Reads the architecture of the model in the folder `dir`, and a checksum of its weights. The parser of job
 * specs calls this function through spec_options.read_folder. */
int hf_read_folder(const char *dir, struct transformer *ret, uint32_t *ret_crc, struct err *err);

/* Loads all weights of the folder into `tensors`. These must be exactly the tensors of the model, but they
 * may be in any order. F16 and BF16 numbers become F32 without loss. After a failure, some tensors may be
 * overwritten. */
int hf_load(const struct hf *f, const struct st_tensor *tensors, size_t n, struct err *err);

#define HF_SHARD_BYTES 5000000000ull /* the default of the transformers package */

/* How hf_save writes a folder. */
struct hf_save_options {
    /* The largest number of bytes that the tensors in one weight file may take. 0 means HF_SHARD_BYTES. */
    uint64_t shard_bytes;
    bool replace; /* replace an earlier export */
    /* The type of the tensors in the files: F32, BF16 or F16. The tensors in memory are F32. They are rounded
     * when they are written. */
    enum dtype dtype;
};

/* What hf_save has written. */
struct hf_saved {
    size_t tensors, files; /* number of tensors and of weight files */
    uint64_t parameters;   /* number of elements in all tensors */
    uint64_t bytes;        /* size of all weight files */
};

/* Writes a model to the folder `dir`. Stores a summary in *ret if `ret` is not NULL. Error messages name the
 * source of the tensors by `from`.
 *
 * The folder appears complete and synced, or not at all. Its parent must exist. If `dir` exists, it must be
 * empty. With options->replace, it may also contain an earlier export of this program. Otherwise hf_save
 * returns -EEXIST and names the file that is in the way.
 *
 * Returns -EINVAL if the transformers package has no such model, or if `tensors` are not the tensors of the
 * model. */
int hf_save(const char *dir, const struct transformer *t, const struct st_tensor *tensors, size_t n,
            const char *from, const struct hf_save_options *options, struct hf_saved *ret, struct err *err);

#endif
