/* Choosing the next token from the logits. A pure function of them, the options and the token's number; any thread. */
#ifndef DAEMON_WORKER_MODEL_SAMPLER_H
#define DAEMON_WORKER_MODEL_SAMPLER_H

#include <stdint.h>

struct sampler {
    double temperature; /* logits are divided by it; 0: the largest is taken */
    uint32_t top_k;     /* only the k largest come into question; 0: all */
    uint64_t seed;
};

/* The n-th token of a text, from finite logits [vocab]. Of equal ones the lower id counts as larger. `order` is room for
 * vocab ids, without meaning before and after. */
uint32_t sampler_choose(const struct sampler *s, const float *logits, uint32_t vocab, uint64_t n,
                        uint32_t *order);

#endif
