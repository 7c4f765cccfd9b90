/* Reads model.safetensors.index.json, which says which weight file has which tensor. Order of calls:
 * hf_index_parse, any lookups, hf_index_finish. Any thread may read a parsed index. Only hf*.c and the tests
 * include this header.
 */
#ifndef DAEMON_WORKER_MODEL_HF_INDEX_H
#define DAEMON_WORKER_MODEL_HF_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"

/* One entry of the index: the name of a tensor, and the name of the file that has the tensor. */
struct hf_index_entry {
    const char *tensor; /* name of the tensor */
    size_t file;        /* index into hf_index.files */
};

/* A parsed index. */
struct hf_index {
    struct hf_index_entry *entries; /* sorted by the name of the tensor */
    size_t n;
    const char **files; /* distinct names without directories, sorted */
    size_t n_files;
    bool has_bytes;   /* the index has metadata.total_size */
    uint64_t bytes;   /* metadata.total_size: bytes of all tensors */
    struct json *doc; /* the document that the names point into */
};

/* Parses the text of an index into *ret. Error messages call the index `file`. File names in the index must
 * not lead out of the folder. Call hf_index_finish only if this function succeeds. */
int hf_index_parse(const char *text, size_t bytes, const char *file, struct hf_index *ret, struct err *err);

/* Frees the index. A zero-initialized struct is also allowed. */
void hf_index_finish(struct hf_index *x);

/* Returns the entry of the tensor with the name `tensor`, or NULL if the index does not list this tensor. */
const struct hf_index_entry *hf_index_find(const struct hf_index *x, const char *tensor);

#endif
