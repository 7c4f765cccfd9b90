/* Samples that are computed: a prototype per class plus noise. Private to data.c. */
#ifndef WORKER_SYNTHETIC_H
#define WORKER_SYNTHETIC_H

#include "daemon/worker/data.h"

uint32_t synthetic_label(const struct dataset *d, uint64_t index);
void synthetic_row(const struct dataset *d, uint64_t index, float *x); /* features elements */

#endif
