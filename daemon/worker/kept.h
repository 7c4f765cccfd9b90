/* Kept outputs: what a forward-only phase computed for every training sample, one row per sample.
 *
 * Order of calls: kept_create, kept_put for every sample, kept_seal, then kept_fill as often as needed, and
 * kept_destroy. All calls come from one thread.
 *
 * The rows are in host memory if the host memory of the job is large enough. Otherwise they are in a file in
 * the output directory, which is mapped into memory: the kernel keeps as many rows in memory as fit. The file
 * has no name and vanishes with the process, unless the job asks for it (method.keep_outputs). A resumed run
 * computes the rows again (docs/decisions.md says why), and compares their checksum with the one in the
 * checkpoint.
 */
#ifndef WORKER_KEPT_H
#define WORKER_KEPT_H

#include <stdbool.h>

#include "base/err.h"
#include "base/fs.h"

struct kept;

/* The place in which kept_create stores the rows. */
struct kept_place {
    /* The output directory. It must outlive the rows. */
    const struct outdir *out;
    /* The name of the file that stays, such as "outputs-1-train.f32". NULL means that no file stays. The text
     * must live until kept_seal or kept_destroy is called. */
    const char *name;
    /* True if the rows are in host memory. `name` is then NULL. */
    bool in_memory;
};

/* Reserves space for `samples` rows of `row_bytes` bytes each. Returns -ENOSPC if the disk of the output
 * directory is too small, or another negative errno. */
int kept_create(const struct kept_place *place, uint64_t samples, uint64_t row_bytes, struct kept **ret,
                struct err *err);
/* Frees the rows and their space on the disk. `k` may be NULL. */
void kept_destroy(struct kept *k);

/* Copies `n` rows from `rows` into `k`, as the rows of the samples `first` to `first` + `n` - 1. */
void kept_put(struct kept *k, uint64_t first, uint32_t n, const void *rows);

/* Computes the checksum of all rows. A file that stays gets its final name here, when all of it is on disk.
 * Call this function after the last kept_put. */
int kept_seal(struct kept *k, struct err *err);
/* Returns the CRC-32C of all rows. Call kept_seal first. */
uint32_t kept_crc(const struct kept *k);

/* Fills `ret` with a batch of `rows` rows. The first `n` rows are those of the samples `indices`, and the
 * other rows are 0. */
void kept_fill(const struct kept *k, const uint64_t *indices, uint32_t n, uint32_t rows, void *ret);

#endif
