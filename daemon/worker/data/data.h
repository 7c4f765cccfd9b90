/* The samples of a job. They come from IDX files (plain or gzipped), which are kept in memory as bytes, from
 * files of tokens or text, which are mapped, or from a generator of synthetic samples, which computes each
 * one when it is needed.
 *
 * Order of calls: dataset_open for each split, dataset_fill and dataset_prefetch as often as needed,
 * dataset_close. An open dataset is const, so any thread may use it.
 *
 * Training reads an endless stream of samples. The sample at position p of the stream has the index
 * data_index(p).
 */
#ifndef DAEMON_WORKER_DATA_DATA_H
#define DAEMON_WORKER_DATA_DATA_H

#include "base/err.h"
#include "daemon/spec/spec.h"

enum data_split { DATA_TRAIN, DATA_VAL, DATA_SPLIT_COUNT };
extern const char *const data_split_names[DATA_SPLIT_COUNT]; /* "train", "val" */

/* The samples of one split: the training data or the validation data. dataset_open creates the dataset. After
 * that, nothing changes the dataset until dataset_close frees it. */
struct dataset {
    uint64_t n_samples;
    uint32_t features, classes;
    /* True if the targets of a sample are one float for each class, for the loss "mean squared error". A copy
     * of spec.mse. */
    bool mse;
    /* True if the samples are sequences of token ids. A copy of spec.tokens. */
    bool tokens;
    enum dtype dtype; /* type of the inputs, if the samples are numbers */
    uint32_t seq;     /* number of tokens in a sample */
    uint32_t vocab;   /* number of tokens in the vocabulary */
    /* Number of tokens in all files of this split together. 0 if the data are not tokens. */
    uint64_t n_tokens;
    /* Number of files with tokens or text. 0 if the data are not tokens. */
    uint32_t n_files;
    /* Checksum of the data, which spec_resolve needs. The checksum of a large token file covers only a part
     * of the content (see tokens.c). */
    uint32_t crc;
    /* Bytes of host memory that the samples take. Files that are mapped into memory do not count. */
    uint64_t bytes;
    /* Private members. */
    enum data_format format;
    enum data_split split;
    uint8_t *images; /* idx: [n_samples][features] */
    uint8_t *labels; /* idx: [n_samples] */
    /* For IDX images: value[b] is the float for an image byte with the value b. */
    float value[256];
    struct token_set *files; /* tokens, bytes: the mapped files */
    uint64_t seed;           /* for synthetic data */
    float noise;             /* for synthetic data */
};

/* Opens and checks the data of one split of the spec `s`. Call this function with DATA_VAL only if
 * spec_has_val returns true. The error message names the file, the mistake and what to do. Returns -ENOMEM if
 * the data do not fit into memory. */
int dataset_open(const struct spec *s, enum data_split split, struct dataset **ret, struct err *err);

/* Closes the dataset and frees its memory. `d` may be NULL. */
void dataset_close(struct dataset *d);

/* Fills a batch of `rows` rows. `x` or `target` is NULL if the caller needs only the other. Rows 0 to n-1 get
 * the samples `indices`, which are below n_samples; the other rows are padding. Stores the number of
 * targets that count in the loss in *ret_targets.
 *
 *     numbers   x is [rows][features] of the type d->dtype: float, or a 16-bit type to which the floats are
 *               rounded. target is int32_t [rows], or one-hot float [rows][classes] if d->mse. Padding is 0
 *               with target 0. Every sample has one target, which counts.
 *     tokens    x is int32_t [rows][seq]. target is int32_t [rows][seq], the token after each token of x.
 *               Targets that do not count are -1. Padding is 0 with targets -1.
 *
 * Token files can fail: returns -ERANGE for an id outside the vocabulary, with the file, position and id in
 * the message, or -ESTALE if a file has become shorter. Inputs of 16 bits can fail with -ENOMEM. */
int dataset_fill(const struct dataset *d, const uint64_t *indices, uint32_t n, uint32_t rows, void *x,
                 void *target, uint64_t *ret_targets, struct err *err);

/* Tells the kernel that the `n` samples in `indices` will be needed soon. Returns before the samples are
 * read. */
void dataset_prefetch(const struct dataset *d, const uint64_t *indices, uint32_t n);

/* Returns the index of the training sample at `position` of an endless stream of samples. The stream repeats
 * the data set epoch after epoch. With shuffling, every epoch has its own order. Call spec_resolve first. */
uint64_t data_index(const struct spec *s, uint64_t position);

#endif
