/* Samples that are computed: a prototype per class plus noise, or tokens that follow one another by a rule. Private to
 * data.c. */
#ifndef DAEMON_WORKER_DATA_SYNTHETIC_H
#define DAEMON_WORKER_DATA_SYNTHETIC_H

#include "daemon/worker/data/data.h"

uint32_t synthetic_label(const struct dataset *d, uint64_t index);
void synthetic_row(const struct dataset *d, uint64_t index, float *x); /* features elements */
void synthetic_tokens(const struct dataset *d, uint64_t index, int32_t *ids, int32_t *targets); /* seq each */

#endif
