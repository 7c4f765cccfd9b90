/* Computes synthetic samples. For models of numbers, a sample is the prototype of its class plus noise. For
 * models of tokens, each token follows the token before by a rule. Only data.c includes this header. */
#ifndef DAEMON_WORKER_DATA_SYNTHETIC_H
#define DAEMON_WORKER_DATA_SYNTHETIC_H

#include "daemon/worker/data/data.h"

/* Returns the class of sample `index`. */
uint32_t synthetic_label(const struct dataset *d, uint64_t index);

/* Writes the features of sample `index` to `x`, which must have space for d->features floats. */
void synthetic_row(const struct dataset *d, uint64_t index, float *x);

/* Writes the d->seq token ids of sample `index` to `ids`. Writes the token that follows each of these tokens
 * to `targets`. */
void synthetic_tokens(const struct dataset *d, uint64_t index, int32_t *ids, int32_t *targets);

#endif
