/* Computes synthetic samples, so that a job can run without data files. A sample of numbers is the prototype
 * of its class plus noise. In a sample of tokens, most tokens are determined by the token before them, and
 * the others are random. Only data.c includes this header. */
#ifndef DAEMON_WORKER_DATA_SYNTHETIC_H
#define DAEMON_WORKER_DATA_SYNTHETIC_H

#include "daemon/worker/data/data.h"

/* Returns the class of sample `index`. */
uint32_t synthetic_label(const struct dataset *d, uint64_t index);

/* Computes the features of the sample with the number `index` and writes them to `x`, which must have space
 * for d->features floats. */
void synthetic_row(const struct dataset *d, uint64_t index, float *x);

/* Writes the d->seq token ids of the sample with the number `index` to `ids`. Writes the token that follows
 * each of these tokens to `targets`. Either pointer may be NULL. */
void synthetic_tokens(const struct dataset *d, uint64_t index, int32_t *ids, int32_t *targets);

#endif
