/* Transformer models as chains of layers. A struct transformer describes a GPT-2 or Llama model, no matter
 * whether the description came from the keys of a spec or from a Hugging Face config. transformer_build makes
 * the chain of layers:
 *
 *     gpt2    embedding, positions, block x layers, norm, lm_head
 *     llama   embedding, block x layers, norm, lm_head
 *
 * The parameters of each layer have these names and shapes. A head has width / heads elements.
 *
 *     embedding, positions, lm_head    "weight"
 *     norm                             "weight", and "bias" in gpt2
 *     block                            "ln_1.*", "ln_2.*"
 *                                      "attn.qkv.*"  [(heads + 2 kv_heads) * head][width]
 *                                      "attn.proj.*" [width][heads * head]
 *                                      "mlp.fc.*"    [hidden][width]; llama: gate, then up, [2 hidden][width]
 *                                      "mlp.proj.*"  [width][hidden]
 *
 * This is plain data with pure functions; any thread may use it.
 */
#ifndef DAEMON_SPEC_TRANSFORMER_H
#define DAEMON_SPEC_TRANSFORMER_H

#include "base/arena.h"
#include "base/err.h"
#include "kernels/layer.h"

enum transformer_arch { ARCH_GPT2, ARCH_LLAMA, ARCH_COUNT };
extern const char *const transformer_arch_names[ARCH_COUNT + 1]; /* NULL-terminated */

/* The architecture of a GPT-2 or Llama model, such as the number of layers and their widths. The values come
 * from the keys of a spec or from a config.json. transformer_check checks them. */
struct transformer {
    enum transformer_arch arch;
    uint32_t layers;   /* blocks in the chain */
    uint32_t width;    /* elements per token between the blocks */
    uint32_t heads;    /* query heads */
    uint32_t kv_heads; /* heads of keys and values */
    uint32_t hidden;   /* elements per token inside the mlp */
    uint32_t vocab;    /* tokens in the vocabulary */
    /* In a gpt2 model, this is the number of learned positions, and no sequence can be longer. In a llama
     * model, this is the longest sequence for which the model is intended, and a sequence can be longer. */
    uint32_t positions;
    enum act act;     /* activation in the mlp; gpt2 only */
    bool tied;        /* lm_head uses the weights of the embedding */
    float eps;        /* added to the variance in norms */
    float rope_theta; /* base of the rotary frequencies; llama only */
    float embd_dropout, attn_dropout, resid_dropout;
    float init_std; /* standard deviation of initial weights */
    /* The standard deviation for the initial weights of attn.proj and mlp.proj. 0 means the default of the
     * architecture. */
    float proj_std;
    /* The standard deviation of the initial weights of the embedding and of the positions. 0 means that
     * init_std is used. */
    float embedding_std;
};

/* Checks that all sizes of `t` are in range and fit together. Otherwise returns -EINVAL with an error message
 * that names `path`. `path` is the place in the spec where the user described the model. */
int transformer_check(const struct transformer *t, const char *path, struct err *err);

/* Returns the standard deviation of the initial weights of attn.proj and mlp.proj. The default for GPT-2 is
 * init_std divided by the square root of the number of residual layers. Each block has two residual
 * layers. */
float transformer_proj_std(const struct transformer *t);

/* Builds the chain of layers of `t` for sequences of `context` tokens. All memory comes from `arena`. `t`
 * must have passed transformer_check. A gpt2 model must have at least `context` positions. `smoothing` is the
 * label smoothing of the loss. */
void transformer_build(const struct transformer *t, uint32_t context, float smoothing, struct arena *arena,
                       struct model *ret);

#endif
