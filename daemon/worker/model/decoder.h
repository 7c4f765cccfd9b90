/* Runs a trained transformer on the host: it takes tokens and computes the logits of the next token.
 *
 * Order of calls: decoder_create, fill the tensors of decoder_tensors, then decoder_push for new tokens and
 * decoder_logits after each push, decoder_reset to begin another text, decoder_destroy. All calls come from
 * one thread, which sleeps while the host's compute stream works.
 *
 * The bits of the logits depend on the weights, the tokens, and how many tokens each push had. They do not
 * depend on the number of threads.
 */
#ifndef DAEMON_WORKER_MODEL_DECODER_H
#define DAEMON_WORKER_MODEL_DECODER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/spec/transformer.h"
#include "daemon/worker/model/checkpoint.h"

struct decoder;

/* Makes a decoder for texts of up to `tokens` tokens, or of fewer tokens if a gpt2 model has fewer
 * positions. `dtype` is the type of its weights and activations: F32, BF16 or F16. Returns -ENOMEM if the
 * weights or the text do not fit into memory. */
int decoder_create(const struct transformer *t, enum dtype dtype, uint32_t tokens, uint32_t threads,
                   struct decoder **ret, struct err *err);

/* Frees the decoder. `d` may be NULL. */
void decoder_destroy(struct decoder *d);

/* Returns all weights of the decoder, with the names that a checkpoint uses and the type of the decoder. The
 * weights are zero until the caller fills them in. */
const struct checkpoint_tensors *decoder_tensors(const struct decoder *d);

/* Returns the number of tokens that the text has so far. */
uint32_t decoder_length(const struct decoder *d);

/* Returns the greatest number of tokens that a text may have. */
uint32_t decoder_capacity(const struct decoder *d);

/* Appends `n` tokens to the text, at least 1, and computes the logits of the next token. The text must not
 * become longer than decoder_capacity. Every id must be below the vocabulary size. Returns -EDOM if the
 * logits are not finite. */
int decoder_push(struct decoder *d, const int32_t *ids, uint32_t n, struct err *err);

/* Returns the logits of the next token: one number for each token of the vocabulary. They are valid until the
 * next decoder_push. */
const float *decoder_logits(const struct decoder *d);

/* Begins an empty text. */
void decoder_reset(struct decoder *d);

#endif
