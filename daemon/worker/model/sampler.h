/* Chooses the next token of a text from the logits of a model. The choice is a pure function of the logits,
 * the options and the number of the token, so any thread may call it. */
#ifndef DAEMON_WORKER_MODEL_SAMPLER_H
#define DAEMON_WORKER_MODEL_SAMPLER_H

#include <stdint.h>

/* How tokens are chosen. */
struct sampler {
    double temperature; /* number that the logits are divided by; 0: always choose the largest logit */
    uint32_t top_k;     /* number of largest logits to choose from; 0: all of them */
    uint64_t seed;
};

/* Returns the id of the n-th token of a text, chosen by `logits`, an array of `vocab` finite numbers. Between
 * equal logits the one with the lower id counts as larger. `order` is scratch memory for `vocab` ids. */
uint32_t sampler_choose(const struct sampler *s, const float *logits, uint32_t vocab, uint64_t n,
                        uint32_t *order);

#endif
