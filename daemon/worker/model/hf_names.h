/* Which tensor of a Hugging Face folder is which parameter of the chain (docs/huggingface.md has the table). Private to
 * hf*.c. Plain data; any thread.
 */
#ifndef DAEMON_WORKER_MODEL_HF_NAMES_H
#define DAEMON_WORKER_MODEL_HF_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "daemon/spec/transformer.h"
#include "daemon/worker/model/safetensors.h"

/* One tensor of theirs: all of one of ours, or some rows of it. */
struct hf_link {
    const char *name;  /* "transformer.wte.weight" */
    const char *plain; /* within it: the name without the prefix, which folders of the bare model have */
    const char *ours;  /* "layers.0.weight" */
    uint32_t rank;     /* of both */
    uint64_t shape[2]; /* of theirs */
    bool transposed;   /* theirs is [in][out], ours [out][in] */
    uint64_t row;      /* of ours at which it begins */
    uint64_t rows;     /* of ours in all */
};

struct hf_names {
    struct hf_link *links; /* in the order of the chain; those of one of ours stand together */
    size_t n;
    size_t n_ours;
    struct arena *arena;
};

/* For a model that was checked. A tied output matrix is not among the links. */
void hf_names_init(struct hf_names *names, const struct transformer *t);
void hf_names_finish(struct hf_names *names); /* takes a zeroed one */

#define HF_HEAD "lm_head.weight"

/* Elements of a row of ours; 1 for rank 1. */
uint64_t hf_link_columns(const struct hf_link *l);

/* Is it one of the constants that old folders carry along (masks, rotary frequencies)? */
bool hf_is_constant(const struct transformer *t, const char *name);

/* For every link the tensor of ours that it is about, malloc'ed. `tensors` must be exactly ours, by name and shape, in
 * any order; `place` is where they come from, for messages. */
int hf_names_bind(const struct hf_names *names, const struct st_tensor *tensors, size_t n, const char *place,
                  const struct st_tensor ***ret, struct err *err);

#endif
