/* Models as Hugging Face folders: config.json with model.safetensors, or with shards and model.safetensors.index.json.
 * GPT-2 and Llama. docs/huggingface.md says what is read, written and refused.
 *
 * Ours is a model by the names of a checkpoint ("layers.2.attn.qkv.weight", by position in the chain of transformer.h):
 * the same list of struct st_tensor, e.g. of checkpoint_tensors_init, or of safetensors_map for a file.
 *
 * Reading: hf_open checks the folder: config, headers, index, and that the files have every tensor of the model in its
 * shape, and no other. Nothing is loaded yet, so it serves for a look at a folder, too. Then hf_transformer, to make the
 * chain, and hf_load, to fill its weights; hf_close. Writing: hf_save. Neither needs memory for a copy of the weights.
 *
 * A folder object belongs to one thread.
 */
#ifndef DAEMON_WORKER_MODEL_HF_H
#define DAEMON_WORKER_MODEL_HF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/spec/transformer.h"
#include "daemon/worker/model/safetensors.h"

struct hf;

/* Symbolic links are followed: the hub's cache is made of them. -ENOENT: no such folder, or not all files of one;
 * -EBADMSG: a damaged file; -EINVAL, -EOPNOTSUPP: not a model that can be read, and why. */
int hf_open(const char *dir, struct hf **ret, struct err *err);
void hf_close(struct hf *f); /* takes NULL */

const struct transformer *hf_transformer(const struct hf *f);

/* A checksum by which folders with other weights are told apart: of the files' sizes and of blocks spread over them. */
int hf_fingerprint(const struct hf *f, uint32_t *ret, struct err *err);

/* Opens `dir`, reads its architecture and its fingerprint, and closes it. The job spec is read with this function
 * (struct spec_options in daemon/spec/spec.h). */
int hf_read_folder(const char *dir, struct transformer *ret, uint32_t *ret_crc, struct err *err);

/* Fills all weights. `tensors` are all of the model of hf_transformer, in any order. F16 and BF16 become the same values
 * in F32. After a failure some are filled. */
int hf_load(const struct hf *f, const struct st_tensor *tensors, size_t n, struct err *err);

#define HF_SHARD_BYTES 5000000000ull /* as transformers does by default */

struct hf_save_options {
    uint64_t shard_bytes; /* of tensors in a file; a single tensor may be larger. 0: HF_SHARD_BYTES */
    bool replace;         /* an export that is there already */
};

struct hf_saved {
    size_t tensors, files; /* files of weights */
    uint64_t parameters, bytes;
};

/* Writes the folder `dir`: it appears whole, synced, or not at all. Its parent must exist. Where `dir` is, it must be
 * empty, or, with `replace`, hold an export of this program and nothing else: -EEXIST names what is in the way. -EINVAL:
 * a model that transformers has no words for, or other tensors than those of the model. `from` is where the tensors come
 * from, in messages. */
int hf_save(const char *dir, const struct transformer *t, const struct st_tensor *tensors, size_t n,
            const char *from, const struct hf_save_options *options, struct hf_saved *ret, struct err *err);

#endif
