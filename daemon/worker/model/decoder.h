/* A transformer that answers on the host: tokens in, the logits of the next one out.
 *
 * Order of calls: decoder_create; fill the tensors of decoder_tensors; decoder_push as often as there are tokens, and
 * decoder_logits after each; decoder_reset to begin another text; decoder_destroy. One thread, which sleeps while the
 * host's compute stream works. The bits depend on the weights, the tokens, and how many were pushed at once; never on the
 * number of threads.
 */
#ifndef DAEMON_WORKER_MODEL_DECODER_H
#define DAEMON_WORKER_MODEL_DECODER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/spec/transformer.h"
#include "daemon/worker/model/checkpoint.h"

struct decoder;

/* Room for `tokens` tokens of text; of gpt2 not more than it has positions. -ENOMEM: the weights, or the text, are too
 * large for this machine. */
int decoder_create(const struct transformer *t, uint32_t tokens, uint32_t threads, struct decoder **ret,
                   struct err *err);
void decoder_destroy(struct decoder *d); /* takes NULL */

/* All weights, by the names of a checkpoint; zero until filled. */
const struct checkpoint_tensors *decoder_tensors(const struct decoder *d);

/* How many tokens there are, and how many there can be. */
uint32_t decoder_length(const struct decoder *d);
uint32_t decoder_room(const struct decoder *d);

/* Adds n tokens behind those that are there; 1 <= n, and room for them; ids below the vocabulary. -EDOM: the logits are not
 * finite. */
int decoder_push(struct decoder *d, const int32_t *ids, uint32_t n, struct err *err);
/* What follows the last token: one number for each of the vocabulary, until the next push. */
const float *decoder_logits(const struct decoder *d);
void decoder_reset(struct decoder *d);

#endif
