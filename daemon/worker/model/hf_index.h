/* model.safetensors.index.json: which file of a folder has which tensor. Private to hf*.c and its tests.
 *
 * hf_index_parse, any number of lookups, hf_index_finish. Plain data; any thread.
 */
#ifndef DAEMON_WORKER_MODEL_HF_INDEX_H
#define DAEMON_WORKER_MODEL_HF_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"

struct hf_index_entry {
    const char *tensor;
    size_t file;
};

struct hf_index {
    struct hf_index_entry *entries; /* by name of tensor */
    size_t n;
    const char **files; /* plain names, distinct, sorted */
    size_t n_files;
    bool has_bytes;
    uint64_t bytes; /* metadata.total_size: of all tensors */
    struct json *doc;
};

/* `file` is its name in messages. Files are plain names: nothing leads out of the folder. Finish only on success. */
int hf_index_parse(const char *text, size_t bytes, const char *file, struct hf_index *ret, struct err *err);
void hf_index_finish(struct hf_index *x); /* takes a zeroed one */

const struct hf_index_entry *hf_index_find(const struct hf_index *x,
                                           const char *tensor); /* NULL when absent */

#endif
