/* Chooses the next token of a text from a model's logits. The result depends only on the logits, the
 * options and the token's number. Any thread. */
#ifndef DAEMON_WORKER_MODEL_SAMPLER_H
#define DAEMON_WORKER_MODEL_SAMPLER_H

#include <stdint.h>

/* How tokens are chosen. */
struct sampler {
    /* The logits are divided by this number. 0 means that the largest logit is always chosen. */
    double temperature;
    /* Choose among this many of the largest logits. 0 means all logits. */
    uint32_t top_k;
    uint64_t seed;
};

/* Chooses the n-th token of a text and returns its id. `logits` has `vocab` finite numbers. If two are
 * equal, the lower id counts as larger. `order` is scratch memory for `vocab` ids. */
uint32_t sampler_choose(const struct sampler *s, const float *logits, uint32_t vocab, uint64_t n,
                        uint32_t *order);

#endif
