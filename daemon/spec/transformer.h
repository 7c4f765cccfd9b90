/* Transformers as chains of layers: the one description of a GPT-2 or Llama model, whoever asks for it (a spec's keys, a
 * Hugging Face config), and the chain made of it:
 *
 *     gpt2    embedding, positions, block x layers, norm, lm_head (tied)
 *     llama   embedding, block x layers, norm, lm_head
 *
 * Parameters, by chain position: "weight" of embedding, positions, lm_head; "weight" and, of layer norm, "bias" of norm;
 * of a block "ln_1.*", "attn.qkv.*" [(heads + 2 kv_heads) * head][width], "attn.proj.*" [width][heads * head], "ln_2.*",
 * "mlp.fc.*" [hidden][width] (gated: gate then up, [2 hidden][width]), "mlp.proj.*" [width][hidden].
 *
 * Plain data and pure functions; any thread.
 */
#ifndef DAEMON_SPEC_TRANSFORMER_H
#define DAEMON_SPEC_TRANSFORMER_H

#include "base/arena.h"
#include "base/err.h"
#include "kernels/layer.h"

enum transformer_arch { ARCH_GPT2, ARCH_LLAMA, ARCH_COUNT };
extern const char *const transformer_arch_names[ARCH_COUNT + 1]; /* NULL-terminated */

struct transformer {
    enum transformer_arch arch;
    uint32_t layers, width, heads, kv_heads; /* a head has width / heads elements */
    uint32_t hidden;                         /* of the mlp */
    uint32_t vocab;
    uint32_t positions; /* gpt2: learned ones; llama: what the model was made for, no limit on its weights */
    enum act act;       /* gpt2's mlp */
    bool tied;          /* input and output embeddings are one */
    float eps;          /* of the norms */
    float rope_theta;   /* llama */
    float embd_dropout, attn_dropout, resid_dropout;
    float init_std;      /* of initial weights */
    float proj_std;      /* of weights that write to the residual; 0: see proj_std() in transformer.c */
    float embedding_std; /* of embeddings and positions; 0: init_std */
};

/* Checks the shape; `path` is where it was described, for messages. */
int transformer_check(const struct transformer *t, const char *path, struct err *err);
/* The chain for sequences of `context` tokens, in the arena. Checked before; of gpt2, context <= positions. */
void transformer_build(const struct transformer *t, uint32_t context, float smoothing, struct arena *arena,
                       struct model *ret);

#endif
