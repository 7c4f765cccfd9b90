/* Loads IDX files, the format of MNIST, into memory. The elements are unsigned bytes in up to four
 * dimensions. A file may be gzipped. Only data.c and the tests include this header. */
#ifndef DAEMON_WORKER_DATA_IDX_H
#define DAEMON_WORKER_DATA_IDX_H

#include <stdint.h>

#include "base/err.h"

#define IDX_MAX_RANK 4

/* The content of an IDX file in memory. idx_load fills the struct in, and idx_finish frees it. */
struct idx {
    uint32_t rank; /* number of dimensions */
    /* The dimensions of the data. The first dimension is the number of samples, for example 60000, 28, 28 for
     * images. */
    uint32_t dims[IDX_MAX_RANK];
    uint64_t bytes; /* size of data: the product of dims */
    uint32_t crc;   /* CRC-32C of `dims` and `data` */
    uint8_t *data;
};

/* Loads the file at `path` into *ret. Error messages call the file `key`, such as "data.train.images".
 * Returns -EBADMSG if the file is not an IDX file or has a wrong size, and -EOPNOTSUPP if its elements are
 * not unsigned bytes. Returns another negative errno if opening, reading or allocating memory fails. */
int idx_load(const char *path, const char *key, struct idx *ret, struct err *err);

/* Frees the content of the IDX file. A zero-initialized struct is also allowed. */
void idx_finish(struct idx *x);

#endif
