/* Maps the tensors of a Hugging Face folder to the parameters of the chain. docs/huggingface.md has the
 * table. Only hf*.c includes this header. This is plain data; any thread may read it.
 *
 * In this file, a *tensor* is a tensor of the folder, with a name such as "transformer.wte.weight". A
 * *parameter* is a tensor of the chain, with a name such as "layers.0.weight".
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

/* The connection between one tensor and one parameter. The tensor holds either the whole parameter or some of
 * its rows. For example, the q_proj, k_proj and v_proj of Llama are the rows of one parameter,
 * "attn.qkv.weight". */
struct hf_link {
    const char *name;  /* name of the tensor, such as "transformer.wte.weight" */
    const char *plain; /* the tensor's name without its prefix, as in folders of models without a head */
    const char *param; /* name of the parameter, such as "layers.0.weight" */
    uint32_t rank;     /* dimensions of tensor and parameter, 1 or 2 */
    uint64_t shape[2]; /* of the tensor */
    bool transposed;   /* the tensor is [in][out], the parameter [out][in] */
    uint64_t row;      /* first row of the parameter that the tensor holds */
    uint64_t rows;     /* rows of the whole parameter */
};

/* All links of a model. */
struct hf_names {
    struct hf_link *links; /* links in the order of the chain; all links of a parameter are adjacent */
    size_t n;              /* number of links */
    size_t n_params;       /* number of parameters */
    struct arena *arena;
};

/* Makes the links of a model, which must have passed transformer_check. A tied output matrix has no link. */
void hf_names_init(struct hf_names *names, const struct transformer *t);

/* Frees the links. A struct of zeros is accepted, too. */
void hf_names_finish(struct hf_names *names);

#define HF_HEAD "lm_head.weight" /* tensor of the output matrix */

/* Returns the elements in a row of the link's parameter; 1 for rank 1. */
uint64_t hf_link_columns(const struct hf_link *l);

/* Returns whether a tensor is one of the constants that old folders contain, such as masks and rotary
 * frequencies. */
bool hf_is_constant(const struct transformer *t, const char *name);

/* Finds the parameter of every link. On success (*ret)[i] is the element of `params` for link i, and the
 * caller frees *ret. `params` must be exactly the parameters of the model, by name and shape, in any order.
 * `from` names their source in messages. Returns -EINVAL if a parameter is missing, unknown, or has another
 * shape. */
int hf_names_bind(const struct hf_names *names, const struct st_tensor *params, size_t n, const char *from,
                  const struct st_tensor ***ret, struct err *err);

#endif
