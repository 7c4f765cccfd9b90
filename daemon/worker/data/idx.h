/* IDX files, plain or gzipped: unsigned bytes of any shape, whole in memory. Private to data.c. */
#ifndef DAEMON_WORKER_DATA_IDX_H
#define DAEMON_WORKER_DATA_IDX_H

#include <stdint.h>

#include "base/err.h"

#define IDX_MAX_RANK 4

struct idx {
    uint32_t rank;
    uint32_t dims[IDX_MAX_RANK];
    uint64_t bytes; /* the product of dims */
    uint32_t crc;   /* CRC-32C of dims and data */
    uint8_t *data;
};

/* `key` says in messages where the path came from ("data.train.images"). Errors: -EBADMSG for what is no IDX
 * file, is cut short or too long; -EOPNOTSUPP for other element types; -ENOMEM; what open and read return. */
int idx_load(const char *path, const char *key, struct idx *ret, struct err *err);
void idx_finish(struct idx *x); /* takes a zeroed one */

#endif
