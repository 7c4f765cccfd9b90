/* Loads IDX files, the format of MNIST, into memory: arrays of unsigned bytes with up to four dimensions,
 * plain or gzipped. Only data.c and the tests include this header. */
#ifndef DAEMON_WORKER_DATA_IDX_H
#define DAEMON_WORKER_DATA_IDX_H

#include <stdint.h>

#include "base/err.h"

#define IDX_MAX_RANK 4

/* The content of an IDX file. idx_load fills it in, idx_finish frees it. */
struct idx {
    uint32_t rank;               /* number of dimensions */
    uint32_t dims[IDX_MAX_RANK]; /* dimensions; the first one is the number of samples */
    uint64_t bytes;              /* size of data: the product of dims */
    uint32_t crc;                /* CRC-32C of dims and data */
    uint8_t *data;
};

/* Loads the file at `path` into *ret. Messages call it `key`, the key of the spec that names it
 * ("data.train.images"). Returns -EBADMSG if it is not an IDX file, is cut short or is too long, -EOPNOTSUPP
 * for elements that are not unsigned bytes, -ENOMEM, or the error of open(2) or read(2). */
int idx_load(const char *path, const char *key, struct idx *ret, struct err *err);

/* Frees the content. A struct of zeros is accepted, too. */
void idx_finish(struct idx *x);

#endif
