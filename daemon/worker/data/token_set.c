/* Implements token_set.h: reads samples from the token files of a split. A binary search finds the file that
 * contains a sample, so reading any sample takes about the same time.
 */
#include "daemon/worker/data/token_set.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/crc32c.h"

/* ------------------------------------------------------------------------------------------ reading */

/* Returns the file that contains the sample number `index`. *ret_token receives the position of the sample's
 * first token within that file. */
static const struct token_file *locate(const struct token_set *t, uint64_t index, uint64_t *ret_token)
{
    uint32_t low = 0, high = t->n_files; /* first[low] <= index < first[high] */

    assert(index < t->n_samples);
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (t->first[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    *ret_token = (index - t->first[low]) * t->seq;
    return &t->files[low];
}

static int fail_range(const struct token_set *t, const struct token_file *f, uint64_t at, uint32_t id,
                      struct err *err)
{
    return err_set_at(err, -ERANGE, f->path,
                      "token %" PRIu64 " of %s is %" PRIu32 ", but the model's vocabulary has %" PRIu32
                      " (0 to %" PRIu32
                      "); give data of the model's tokenizer and the right data.dtype, or set model.vocab "
                      "to more than %" PRIu32,
                      at, f->key, id, t->vocab, t->vocab - 1, id);
}

int token_set_read(const struct token_set *t, uint64_t index, int32_t *ids, int32_t *targets,
                   uint64_t *ret_targets, struct err *err)
{
    uint64_t begin, ignored = 0;
    const struct token_file *f = locate(t, index, &begin);
    int r = tokens_check(f, err);

    if (r < 0)
        return r;
    for (uint32_t i = 0; i <= t->seq; i++) {
        uint32_t id = tokens_at(f, begin + i);
        if (id >= t->vocab)
            return fail_range(t, f, begin + i, id, err);
        if (ids && i < t->seq)
            ids[i] = (int32_t)id;
        if (targets && i > 0)
            targets[i - 1] = id == t->ignore ? -1 : (int32_t)id;
        ignored += i > 0 && id == t->ignore;
    }
    *ret_targets = t->seq - ignored;
    return 0;
}

void token_set_advise(const struct token_set *t, uint64_t index)
{
    uint64_t begin;
    const struct token_file *f = locate(t, index, &begin);

    tokens_advise(f, begin, (uint64_t)t->seq + 1);
}

/* ------------------------------------------------------------------------------------------ opening */

/* Opens the next file of the set. Adds its samples and its checksum to the totals of the set. */
static int add_token_file(struct token_set *t, const char *path, const char *key, uint32_t width,
                          struct err *err)
{
    struct token_file *f = &t->files[t->n_files];
    uint64_t samples;
    int r = tokens_open(path, key, width, f, err);

    if (r < 0)
        return r;
    samples = (f->count - 1) / t->seq;
    t->first[++t->n_files] = t->n_samples += samples;
    t->n_tokens += f->count;
    t->crc = crc32c(t->crc, &f->crc, sizeof f->crc);
    if (samples == 0)
        return err_set_at(err, -EINVAL, path,
                          "%s has %" PRIu64 " token%s, too few for one sample: a context of %" PRIu32
                          " and the target after it need %" PRIu64
                          " tokens; give more data, or make model.context smaller",
                          key, f->count, f->count == 1 ? "" : "s", t->seq, (uint64_t)t->seq + 1);
    return 0;
}

/* Reads the first and the last sample of every file. This finds most files with wrong tokens before training
 * starts. */
static int check_ends(const struct token_set *t, struct err *err)
{
    int32_t *row = malloc(2 * (size_t)t->seq * sizeof *row);
    uint64_t counted;
    int r = 0;

    if (row == NULL)
        return err_set(err, -ENOMEM, "no memory for a sample of %" PRIu32 " tokens", t->seq);
    for (uint32_t i = 0; i < t->n_files && r == 0; i++) {
        r = token_set_read(t, t->first[i], row, row + t->seq, &counted, err);
        if (r == 0)
            r = token_set_read(t, t->first[i + 1] - 1, row, row + t->seq, &counted, err);
    }
    free(row);
    return r;
}

static int open_files(struct token_set *t, const struct spec *s, const struct spec_paths *paths,
                      const char *split, struct err *err)
{
    uint32_t width = s->data.format == DATA_BYTES ? 1 : s->data.token_bytes;
    char key[64];
    int r = 0;

    for (uint32_t i = 0; i < paths->n && r == 0; i++) {
        if (paths->n == 1)
            snprintf(key, sizeof key, "data.%s", split);
        else
            snprintf(key, sizeof key, "data.%s[%" PRIu32 "]", split, i);
        r = add_token_file(t, paths->at[i], key, width, err);
    }
    return r < 0 ? r : check_ends(t, err);
}

int token_set_open(const struct spec *s, const struct spec_paths *paths, const char *split,
                   struct token_set **ret, struct err *err)
{
    struct token_set *t = calloc(1, sizeof *t);
    int r;

    assert(s->tokens && s->seq >= 1 && paths->n >= 1);
    if (t != NULL) {
        t->files = calloc(paths->n, sizeof *t->files);
        t->first = calloc((size_t)paths->n + 1, sizeof *t->first);
    }
    if (t == NULL || t->files == NULL || t->first == NULL) {
        token_set_close(t);
        return err_set(err, -ENOMEM, "no memory for %" PRIu32 " files of tokens", paths->n);
    }
    t->seq = s->seq;
    t->vocab = s->vocab;
    t->ignore = s->data.has_ignore ? (int64_t)s->data.ignore : -1;
    r = open_files(t, s, paths, split, err);
    if (r < 0) {
        token_set_close(t);
        return r;
    }
    *ret = t;
    return 0;
}

void token_set_close(struct token_set *t)
{
    if (t == NULL)
        return;
    for (uint32_t i = 0; i < t->n_files; i++)
        tokens_close(&t->files[i]);
    free(t->files);
    free(t->first);
    free(t);
}
