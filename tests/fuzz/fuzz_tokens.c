/* Reads the input as a token file. The first three bytes choose how the file is opened: the number format,
 * the context and the vocabulary. The rest is the file. An accepted file must have the number of tokens that
 * follows from its size. Each of its samples must be readable, unless the sample has an id beyond the
 * vocabulary. */
#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

#include "daemon/worker/data/data.h"
#include "daemon/worker/data/tokens.h"

enum { MOST_SEQ = 64 };

static const uint32_t widths[] = {0, 1, 2, 4};

static void check_tokens(const char *path, uint32_t width, size_t bytes)
{
    struct token_file f = {0};
    struct err err = {0};
    int r = tokens_open(path, "data.train", width, &f, &err);
    if (r < 0) {
        HOLDS(f.map == NULL);
        check_failure(r, &err);
        return;
    }
    size_t header = (size_t)(f.data - f.map);
    HOLDS(width == 0 || f.width == width);
    HOLDS(header == 0 || header == TOKENS_HEADER_BYTES);
    HOLDS(f.count >= 1 && header + f.count * f.width == bytes);
    uint64_t most = f.width == 4 ? UINT32_MAX : (1ull << (8 * f.width)) - 1;
    for (uint64_t i = 0; i < f.count; i++)
        HOLDS(tokens_at(&f, i) <= most);
    tokens_advise(&f, f.count / 2, f.count);
    tokens_close(&f);
}

static void check_sample(const struct dataset *d, uint64_t index)
{
    int32_t ids[2 * MOST_SEQ], targets[2 * MOST_SEQ];
    uint64_t counted = 0, expected = 0;
    struct err err = {0};
    int r = dataset_fill(d, &index, 1, 2, ids, targets, &counted, &err);
    if (r < 0) {
        HOLDS(r == -ERANGE);
        check_failure(r, &err);
        return;
    }
    for (uint32_t k = 0; k < 2 * d->seq; k++) {
        HOLDS(ids[k] >= 0 && (uint32_t)ids[k] < d->vocab);
        HOLDS(targets[k] >= -1 && targets[k] < (int64_t)d->vocab);
        HOLDS(k < d->seq || targets[k] == -1);
        HOLDS(k + 1 >= d->seq || targets[k] == ids[k + 1] || targets[k] == -1);
        expected += targets[k] >= 0;
    }
    HOLDS(counted == expected);
}

static void check_set(const char *path, uint32_t width, uint32_t seq, uint32_t vocab)
{
    const char *paths[] = {path, path};
    struct spec s = {.features = seq, .classes = vocab, .tokens = true, .seq = seq, .vocab = vocab};
    struct dataset *d = NULL;
    struct err err = {0};
    s.data.format = width == 1 ? DATA_BYTES : DATA_TOKENS;
    s.data.token_bytes = width == 1 ? 0 : width;
    s.data.has_ignore = width != 1;
    s.data.train_files = (struct spec_paths){paths, 2};
    int r = dataset_open(&s, DATA_TRAIN, &d, &err);
    if (r < 0) {
        HOLDS(d == NULL);
        check_failure(r, &err);
        return;
    }
    HOLDS(d->n_files == 2 && d->n_samples % 2 == 0 && d->n_samples >= 2);
    HOLDS(d->n_samples / 2 == (d->n_tokens / 2 - 1) / seq);
    for (uint64_t i = 0; i < d->n_samples; i++)
        check_sample(d, i);
    dataset_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    if (bytes < 3)
        return 0;
    uint32_t width = widths[data[0] % 4], seq = 1 + data[1] % MOST_SEQ, vocab = 1u << data[2] % 18;
    int fd = memfd_create("tokens", MFD_CLOEXEC);
    HOLDS(fd >= 0);
    HOLDS(write(fd, data + 3, bytes - 3) == (ssize_t)(bytes - 3));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    check_tokens(path, width, bytes - 3);
    check_set(path, width, seq, vocab);
    close(fd);
    return 0;
}
