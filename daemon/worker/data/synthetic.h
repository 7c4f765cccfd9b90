/* Computes synthetic samples: a prototype for each class plus noise, or tokens that follow each other by a
 * rule. Only data.c includes this header. */
#ifndef DAEMON_WORKER_DATA_SYNTHETIC_H
#define DAEMON_WORKER_DATA_SYNTHETIC_H

#include "daemon/worker/data/data.h"

/* Returns the class of sample `index`. */
uint32_t synthetic_label(const struct dataset *d, uint64_t index);

/* Writes the d->features elements of sample `index` to `x`. */
void synthetic_row(const struct dataset *d, uint64_t index, float *x);

/* Writes the d->seq token ids of sample `index` to `ids`, and the token after each of them to `targets`. */
void synthetic_tokens(const struct dataset *d, uint64_t index, int32_t *ids, int32_t *targets);

#endif
