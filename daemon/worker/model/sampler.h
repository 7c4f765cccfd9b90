/* Chooses the next token of a text from a model's logits. The result depends only on the logits, the options
 * and the token's number. The function may be called from any thread. */
#ifndef DAEMON_WORKER_MODEL_SAMPLER_H
#define DAEMON_WORKER_MODEL_SAMPLER_H

#include <stdint.h>

/* How tokens are chosen. */
struct sampler {
    /* The logits are divided by this number before a token is drawn. 0 means that the token with the largest
     * logit is always chosen. */
    double temperature;
    /* The next token is drawn from the `top_k` tokens with the largest logits. 0 means from all tokens. */
    uint32_t top_k;
    uint64_t seed;
};

/* Chooses token number `n` of a text and returns its id. `logits` has `vocab` finite numbers. If two tokens
 * have equal logits, the logit of the token with the lower id counts as larger. `order` is scratch memory for
 * `vocab` ids. */
uint32_t sampler_choose(const struct sampler *s, const float *logits, uint32_t vocab, uint64_t n,
                        uint32_t *order);

#endif
