/* Samples: IDX files (plain or gzipped) kept in memory as bytes, or synthetic ones that are computed when
 * asked for.
 *
 * Order of calls: dataset_open per split; dataset_fill any number of times, from any threads (a dataset is
 * const once open); dataset_close. Training reads an endless stream: position p of the stream is sample
 * data_index(p).
 */
#ifndef WORKER_DATA_H
#define WORKER_DATA_H

#include "base/err.h"
#include "daemon/worker/spec.h"

enum data_split { DATA_TRAIN, DATA_VAL, DATA_SPLIT_COUNT };
extern const char *const data_split_names[DATA_SPLIT_COUNT]; /* "train", "val" */

struct dataset {
    uint64_t n_samples;
    uint32_t features, classes;
    bool mse;       /* kind of target, as in the spec */
    uint32_t crc;   /* of the content; for spec_resolve */
    uint64_t bytes; /* host memory it holds */
    /* private */
    enum data_format format;
    enum data_split split;
    uint8_t *images;  /* idx: [n_samples][features] */
    uint8_t *labels;  /* idx: [n_samples] */
    float value[256]; /* idx: what a byte becomes */
    uint64_t seed;    /* synthetic */
    float noise;
};

/* Opens a split that the spec has (spec_has_val). Every check is made here: sizes, counts, labels against
 * classes, features against the model. Errors name the file, what is wrong and what to do. -ENOMEM with the
 * bytes. */
int dataset_open(const struct spec *s, enum data_split split, struct dataset **ret, struct err *err);
void dataset_close(struct dataset *d); /* takes NULL */

/* Rows 0..n-1 become the samples `indices`, each < n_samples; rows n..rows-1 are zero, with target 0
 * (padding). x: [rows][features]. target: int32_t [rows], or float [rows][classes] (one-hot) when d->mse. */
void dataset_fill(const struct dataset *d, const uint64_t *indices, uint32_t n, uint32_t rows, float *x,
                  void *target);

/* The training sample at a position of the endless stream: epoch p / n, permuted by it when the spec
 * shuffles. Needs spec_resolve. */
uint64_t data_index(const struct spec *s, uint64_t position);

#endif
