/* Implements data.h: opens datasets and checks them, fills batches, and decides the order of samples.
 *
 * IDX images stay in memory as bytes, a quarter of the size that floats would take. Each row is converted
 * when a batch is filled. The conversion looks every byte up in a table of 256 floats, so that the result has
 * the same bits no matter how the compiler translates the loop.
 */
#include "daemon/worker/data/data.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/rng.h"
#include "daemon/worker/data/idx.h"
#include "daemon/worker/data/synthetic.h"
#include "daemon/worker/data/token_set.h"
#include "kernels/half.h"

const char *const data_split_names[DATA_SPLIT_COUNT] = {"train", "val"};

/* ------------------------------------------------------------------------------------------ opening IDX */

/* The image file and the label file, in the IDX format, of the training data or of the validation data. The
 * struct exists only while the two files are loaded and checked. */
struct idx_pair {
    struct idx images, labels;
    const struct spec_files *files;
    char images_key[32], labels_key[32]; /* their keys in the spec, for messages */
};

static int check_shape(const struct spec *s, const struct idx_pair *p, struct err *err)
{
    const struct idx *x = &p->images;
    uint64_t features = x->dims[0] ? x->bytes / x->dims[0] : 0;
    char advice[40];

    if (x->dims[0] == 0)
        return err_set_at(err, -EINVAL, p->files->images, "%s has no samples; give a file with some",
                          p->images_key);
    if (features != s->features) {
        if (x->rank == 3)
            snprintf(advice, sizeof advice, "[%" PRIu32 ",%" PRIu32 "]", x->dims[1], x->dims[2]);
        else
            snprintf(advice, sizeof advice, "%" PRIu64, features);
        return err_set_at(err, -EINVAL, p->files->images,
                          "an image of %s has %" PRIu64 " elements, but model.input has %" PRIu32
                          "; set model.input to %s or give other images",
                          p->images_key, features, s->features, advice);
    }
    if (s->data.transpose && x->rank != 3)
        return err_set_at(err, -EINVAL, p->files->images,
                          "%s has %" PRIu32
                          " dimensions, not 3, and cannot be transposed; remove data.transpose",
                          p->images_key, x->rank);
    return 0;
}

static int check_labels(const struct spec *s, const struct idx_pair *p, struct err *err)
{
    const struct idx *x = &p->labels;
    uint32_t max = 0;

    if (x->rank != 1)
        return err_set_at(err, -EINVAL, p->files->labels,
                          "%s has %" PRIu32 " dimensions, labels have one; are images and labels exchanged?",
                          p->labels_key, x->rank);
    if (x->dims[0] != p->images.dims[0])
        return err_set_at(err, -EINVAL, p->files->labels,
                          "%s has %" PRIu32 " labels, but %s has %" PRIu32
                          " images (%s); give files that belong together",
                          p->labels_key, x->dims[0], p->images_key, p->images.dims[0], p->files->images);
    for (uint64_t i = 0; i < x->bytes; i++)
        max = x->data[i] > max ? x->data[i] : max;
    for (uint64_t i = 0; max >= s->classes && i < x->bytes; i++)
        if (x->data[i] >= s->classes)
            return err_set_at(
                err, -EINVAL, p->files->labels,
                "label %d of sample %" PRIu64 " in %s, but the model has %" PRIu32 " classes (0 to %" PRIu32
                "); set model.classes (the width of the last layer) to %" PRIu32 " or give other labels",
                x->data[i], i, p->labels_key, s->classes, s->classes - 1, max + 1);
    return 0;
}

/* Swaps rows and columns of every image in place, from [dims[1]][dims[2]] to [dims[2]][dims[1]]. The function
 * allocates scratch memory for one image. */
static int transpose(struct idx *x, const char *path, struct err *err)
{
    uint32_t h = x->dims[1], w = x->dims[2];
    size_t bytes = (size_t)h * w;
    uint8_t *copy = malloc(bytes);

    if (!copy)
        return err_set_at(err, -ENOMEM, path, "no memory to transpose images of %zu bytes", bytes);
    for (uint8_t *image = x->data; image < x->data + x->bytes; image += bytes) {
        memcpy(copy, image, bytes);
        for (uint32_t i = 0; i < h; i++)
            for (uint32_t j = 0; j < w; j++)
                image[(size_t)j * h + i] = copy[(size_t)i * w + j];
    }
    free(copy);
    return 0;
}

static int load_pair(const struct spec *s, struct idx_pair *p, struct err *err)
{
    int r = idx_load(p->files->images, p->images_key, &p->images, err);

    if (r == 0)
        r = check_shape(s, p, err);
    if (r == 0)
        r = idx_load(p->files->labels, p->labels_key, &p->labels, err);
    if (r == 0)
        r = check_labels(s, p, err);
    if (r == 0 && s->data.transpose)
        r = transpose(&p->images, p->files->images, err);
    return r;
}

static int open_idx(const struct spec *s, struct dataset *d, struct err *err)
{
    struct idx_pair p = {.files = d->split == DATA_TRAIN ? &s->data.train : &s->data.val};
    int r;

    assert(p.files->images && p.files->labels);
    snprintf(p.images_key, sizeof p.images_key, "data.%s.images", data_split_names[d->split]);
    snprintf(p.labels_key, sizeof p.labels_key, "data.%s.labels", data_split_names[d->split]);
    r = load_pair(s, &p, err);
    if (r < 0) {
        idx_finish(&p.images);
        idx_finish(&p.labels);
        return r;
    }
    d->n_samples = p.images.dims[0];
    d->images = p.images.data;
    d->labels = p.labels.data;
    d->bytes = p.images.bytes + p.labels.bytes;
    d->crc = crc32c(crc32c(0, &p.images.crc, sizeof p.images.crc), &p.labels.crc, sizeof p.labels.crc);
    for (int i = 0; i < 256; i++)
        d->value[i] = (float)(s->data.scale_lo + (s->data.scale_hi - s->data.scale_lo) * i / 255);
    return 0;
}

/* ------------------------------------------------------------------------------------------ opening */

static int open_tokens(const struct spec *s, struct dataset *d, struct err *err)
{
    const struct spec_paths *paths = d->split == DATA_TRAIN ? &s->data.train_files : &s->data.val_files;
    int r = token_set_open(s, paths, data_split_names[d->split], &d->files, err);

    if (r < 0)
        return r;
    d->n_samples = d->files->n_samples;
    d->n_tokens = d->files->n_tokens;
    d->n_files = d->files->n_files;
    d->crc = d->files->crc;
    return 0;
}

static int open_by_format(const struct spec *s, struct dataset *d, struct err *err)
{
    switch (d->format) {
    case DATA_IDX:
        return open_idx(s, d, err);
    case DATA_SYNTHETIC:
        d->n_samples = d->split == DATA_TRAIN ? s->data.samples : s->data.val_samples;
        d->seed = s->data.seed;
        d->noise = (float)s->data.noise;
        return 0;
    default:
        return open_tokens(s, d, err);
    }
}

int dataset_open(const struct spec *s, enum data_split split, struct dataset **ret, struct err *err)
{
    struct dataset *d = calloc(1, sizeof *d);
    int r;

    assert(split == DATA_TRAIN || spec_has_val(s));
    if (!d)
        return err_set(err, -ENOMEM, "no memory for a dataset");
    d->features = s->features;
    d->classes = s->classes;
    d->mse = s->mse;
    d->tokens = s->tokens;
    d->dtype = spec_dtype(s->precision);
    d->seq = s->seq;
    d->vocab = s->vocab;
    d->format = s->data.format;
    d->split = split;
    r = open_by_format(s, d, err);
    if (!d->tokens && d->dtype != DTYPE_F32)
        d->bytes += d->features * sizeof(float); /* the row that fill_rounded allocates */
    if (r < 0) {
        dataset_close(d);
        return r;
    }
    *ret = d;
    return 0;
}

void dataset_close(struct dataset *d)
{
    if (!d)
        return;
    free(d->images);
    free(d->labels);
    token_set_close(d->files);
    free(d);
}

/* ------------------------------------------------------------------------------------------ filling */

static void fill_row(const struct dataset *d, uint64_t index, float *x)
{
    const uint8_t *image;

    if (d->format == DATA_SYNTHETIC) {
        synthetic_row(d, index, x);
        return;
    }
    image = d->images + index * d->features;
    for (uint32_t f = 0; f < d->features; f++)
        x[f] = d->value[image[f]];
}

static uint32_t label_of(const struct dataset *d, uint64_t index)
{
    return d->format == DATA_SYNTHETIC ? synthetic_label(d, index) : d->labels[index];
}

/* Fills inputs of 16 bits. Each row is computed as floats and then rounded. */
static int fill_rounded(const struct dataset *d, const uint64_t *indices, uint32_t n, char *x,
                        struct err *err)
{
    float *row = malloc(d->features * sizeof *row);

    if (!row)
        return err_set(err, -ENOMEM, "no memory for a sample of %" PRIu32 " features", d->features);
    for (uint32_t i = 0; i < n; i++) {
        fill_row(d, indices[i], row);
        half_round(d->dtype, row, x + (size_t)i * d->features * dtype_size(d->dtype), d->features);
    }
    free(row);
    return 0;
}

static int fill_inputs(const struct dataset *d, const uint64_t *indices, uint32_t n, uint32_t rows, void *x,
                       struct err *err)
{
    const size_t row_bytes = d->features * dtype_size(d->dtype);

    memset((char *)x + n * row_bytes, 0, (rows - n) * row_bytes);
    for (uint32_t i = 0; i < n; i++)
        assert(indices[i] < d->n_samples);
    if (d->dtype != DTYPE_F32)
        return fill_rounded(d, indices, n, x, err);
    for (uint32_t i = 0; i < n; i++)
        fill_row(d, indices[i], (float *)x + (size_t)i * d->features);
    return 0;
}

static void fill_targets(const struct dataset *d, const uint64_t *indices, uint32_t n, uint32_t rows,
                         void *target)
{
    size_t target_bytes = d->mse ? d->classes * sizeof(float) : sizeof(int32_t);

    memset(target, 0, rows * target_bytes);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t label;
        assert(indices[i] < d->n_samples);
        label = label_of(d, indices[i]);
        if (d->mse)
            ((float *)target)[(size_t)i * d->classes + label] = 1;
        else
            ((int32_t *)target)[i] = (int32_t)label;
    }
}

static int fill_tokens(const struct dataset *d, const uint64_t *indices, uint32_t n, uint32_t rows,
                       int32_t *ids, int32_t *targets, uint64_t *ret_targets, struct err *err)
{
    size_t padding = (size_t)(rows - n) * d->seq;
    uint64_t sum = 0, counted = d->seq;
    int r = 0;

    for (uint32_t i = 0; i < n && r == 0; i++) {
        size_t at = (size_t)i * d->seq;
        int32_t *row_ids = ids ? ids + at : NULL, *row_targets = targets ? targets + at : NULL;
        assert(indices[i] < d->n_samples);
        if (d->format == DATA_SYNTHETIC)
            synthetic_tokens(d, indices[i], row_ids, row_targets);
        else
            r = token_set_read(d->files, indices[i], row_ids, row_targets, &counted, err);
        sum += counted;
    }
    if (r < 0)
        return r;
    if (ids)
        memset(ids + (size_t)n * d->seq, 0, padding * sizeof *ids);
    /* Set all targets of the padding rows to -1, so that these rows do not count for the loss. An int32 with
     * four bytes 0xff is -1. */
    if (targets)
        memset(targets + (size_t)n * d->seq, 0xff, padding * sizeof *targets);
    *ret_targets = sum;
    return 0;
}

int dataset_fill(const struct dataset *d, const uint64_t *indices, uint32_t n, uint32_t rows, void *x,
                 void *target, uint64_t *ret_targets, struct err *err)
{
    assert(n <= rows);
    if (d->tokens)
        return fill_tokens(d, indices, n, rows, x, target, ret_targets, err);
    int r = x ? fill_inputs(d, indices, n, rows, x, err) : 0;
    if (target)
        fill_targets(d, indices, n, rows, target);
    *ret_targets = n;
    return r;
}

void dataset_prefetch(const struct dataset *d, const uint64_t *indices, uint32_t n)
{
    if (!d->files)
        return;
    for (uint32_t i = 0; i < n; i++)
        token_set_advise(d->files, indices[i]);
}

uint64_t data_index(const struct spec *s, uint64_t position)
{
    uint64_t n = s->resolved.train_samples;

    assert(n > 0);
    if (!s->data.shuffle)
        return position % n;
    return rng_permute(s->seed, (uint32_t)(position / n), position % n, n);
}
