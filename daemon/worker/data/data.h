/* Samples: IDX files (plain or gzipped) kept in memory as bytes, files of tokens or text that are mapped, or synthetic ones that
 * are computed when asked for.
 *
 * Order of calls: dataset_open per split; dataset_fill and dataset_prefetch any number of times, from any threads (a
 * dataset is const once open); dataset_close. Training reads an endless stream: position p of the stream is sample
 * data_index(p).
 */
#ifndef DAEMON_WORKER_DATA_DATA_H
#define DAEMON_WORKER_DATA_DATA_H

#include "base/err.h"
#include "daemon/spec/spec.h"

enum data_split { DATA_TRAIN, DATA_VAL, DATA_SPLIT_COUNT };
extern const char *const data_split_names[DATA_SPLIT_COUNT]; /* "train", "val" */

struct dataset {
    uint64_t n_samples;
    uint32_t features, classes;
    bool mse;            /* kind of target, as in the spec */
    bool tokens;         /* kind of row, likewise */
    uint32_t seq, vocab; /* of tokens */
    uint64_t n_tokens;   /* in its files; 0: it has none */
    uint32_t n_files;    /* of tokens */
    uint32_t crc;        /* of the content, of large files of tokens of a part (tokens.c); for spec_resolve */
    uint64_t bytes;      /* host memory it holds; what is mapped is not held */
    /* private */
    enum data_format format;
    enum data_split split;
    uint8_t *images;         /* idx: [n_samples][features] */
    uint8_t *labels;         /* idx: [n_samples] */
    float value[256];        /* idx: what a byte becomes */
    struct token_set *files; /* tokens, bytes */
    uint64_t seed;           /* synthetic */
    float noise;
};

/* Opens a split that the spec has (spec_has_val). Every check is made here: sizes, counts, labels against
 * classes, features against the model. Errors name the file, what is wrong and what to do. -ENOMEM with the
 * bytes. */
int dataset_open(const struct spec *s, enum data_split split, struct dataset **ret, struct err *err);
void dataset_close(struct dataset *d); /* takes NULL */

/* Rows 0..n-1 become the samples `indices`, each < n_samples; rows n..rows-1 are padding.
 *     numbers   x: float [rows][features]. target: int32_t [rows], or float [rows][classes] (one-hot) when d->mse.
 *               Padding: 0 and target 0. Every sample's target counts.
 *     tokens    x: int32_t [rows][seq]. target: int32_t [rows][seq], what follows each token; -1 for what is ignored.
 *               Padding: 0 and targets -1.
 * *ret_targets: how many targets count. Fails only with files of tokens: -ERANGE for an id beyond the vocabulary, with file,
 * position, id and vocabulary; -ESTALE for a file that has become shorter. */
int dataset_fill(const struct dataset *d, const uint64_t *indices, uint32_t n, uint32_t rows, void *x,
                 void *target, uint64_t *ret_targets, struct err *err);

/* These samples will soon be asked for: files begin to be read. Waits for nothing. */
void dataset_prefetch(const struct dataset *d, const uint64_t *indices, uint32_t n);

/* The training sample at a position of the endless stream: epoch p / n, permuted by it when the spec
 * shuffles. Needs spec_resolve. */
uint64_t data_index(const struct spec *s, uint64_t position);

#endif
