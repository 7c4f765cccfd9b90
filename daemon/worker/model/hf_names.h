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

/* Connects one tensor with one parameter, or with some rows of it. For example, Llama's q_proj, k_proj and
 * v_proj are rows of one parameter, "attn.qkv.weight". */
struct hf_link {
    const char *name; /* name of the tensor, such as "transformer.wte.weight" */
    /* The tensor's name without its prefix. Folders of models without a head use this name. */
    const char *plain;
    const char *param; /* name of the parameter, such as "layers.0.weight" */
    /* Number of dimensions of the tensor and of the parameter: 1 or 2. */
    uint32_t rank;
    uint64_t shape[2]; /* shape of the tensor */
    bool transposed;   /* the tensor is [in][out], the parameter [out][in] */
    /* The first row of the parameter that is in this tensor. */
    uint64_t row;
    uint64_t rows; /* number of rows in the parameter */
};

/* All links of a model. */
struct hf_names {
    /* The links, in the order of the chain. All links of a parameter are adjacent. */
    struct hf_link *links;
    size_t n;        /* number of links */
    size_t n_params; /* number of parameters */
    struct arena *arena;
};

/* Makes the links of a model. The model must have passed transformer_check. A tied output matrix has no
 * link. */
void hf_names_init(struct hf_names *names, const struct transformer *t);

/* Frees the links. Also accepts a struct of zeros. */
void hf_names_finish(struct hf_names *names);

#define HF_HEAD "lm_head.weight" /* tensor of the output matrix */

/* Returns the number of elements in a row of the link's parameter. With rank 1, a row has 1 element. */
uint64_t hf_link_columns(const struct hf_link *l);

/* Returns whether a tensor is a constant, such as a mask. Old folders have constants that the model does
 * not need. */
bool hf_is_constant(const struct transformer *t, const char *name);

/* Finds the parameter of every link. (*ret)[i] is the element of `params` for link i. The caller frees
 * *ret. `params` may be in any order. Returns -EINVAL if a parameter is missing, unknown or of another
 * shape. Messages name the source by `from`. */
int hf_names_bind(const struct hf_names *names, const struct st_tensor *params, size_t n, const char *from,
                  const struct st_tensor ***ret, struct err *err);

#endif
