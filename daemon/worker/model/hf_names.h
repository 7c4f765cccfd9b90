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

/* Connects one tensor of Hugging Face with one parameter of our model, or with some rows of it. For example,
 * Llama's tensors q_proj, k_proj and v_proj are rows of one parameter, "attn.qkv.weight". */
struct hf_link {
    const char *name; /* name of the tensor, such as "transformer.wte.weight" */
    /* The name of the tensor without its prefix, such as "wte.weight". Folders of models without an output
     * matrix use this name. */
    const char *plain;
    const char *param; /* name of the parameter, such as "layers.0.weight" */
    /* The number of dimensions of the tensor, and also of the parameter: 1 or 2. */
    uint32_t rank;
    uint64_t shape[2]; /* shape of the tensor */
    bool transposed;   /* the tensor is [in][out], the parameter [out][in] */
    /* The tensor begins at this row of the parameter. */
    uint64_t row;
    uint64_t rows; /* number of rows in the parameter */
};

/* All links of a model. */
struct hf_names {
    /* The links in the order of the model's layers. All links of one parameter are next to each other. */
    struct hf_link *links;
    size_t n;        /* number of links */
    size_t n_params; /* number of parameters */
    struct arena *arena;
};

/* Makes the links of the model `t`, which must have passed transformer_check. The output matrix has no link
 * if it is tied to the embedding. */
void hf_names_init(struct hf_names *names, const struct transformer *t);

/* Frees the links. A zero-initialized struct is also allowed. */
void hf_names_finish(struct hf_names *names);

#define HF_HEAD "lm_head.weight" /* tensor of the output matrix */

/* Returns the number of elements in one row of the link's parameter. In a parameter with one dimension, a row
 * has 1 element. */
uint64_t hf_link_columns(const struct hf_link *l);

/* Returns whether the tensor `name` is a constant, such as an attention mask. Old folders have such
 * constants, but the model does not need them. */
bool hf_is_constant(const struct transformer *t, const char *name);

/* Finds the parameter of every link: (*ret)[i] is the element of `params` for link i. The caller frees *ret.
 * `params` may be in any order. Returns -EINVAL if a parameter is missing, unknown or of another shape.
 * `from` says in error messages where the parameters come from. */
int hf_names_bind(const struct hf_names *names, const struct st_tensor *params, size_t n, const char *from,
                  const struct st_tensor ***ret, struct err *err);

#endif
