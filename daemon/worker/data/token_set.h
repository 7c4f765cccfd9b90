/* All token files of a split as one sequence of samples. A sample is `seq` consecutive tokens of a file, and
 * its targets are the same tokens shifted by one. A file has (tokens - 1) / seq samples; no sample crosses
 * from one file into the next. Only data.c and the tests include this header.
 *
 * Order of calls: token_set_open, then token_set_read and token_set_advise from any thread, then
 * token_set_close.
 */
#ifndef DAEMON_WORKER_DATA_TOKEN_SET_H
#define DAEMON_WORKER_DATA_TOKEN_SET_H

#include "daemon/spec/spec.h"
#include "daemon/worker/data/tokens.h"

/* The open files of a split. */
struct token_set {
    uint64_t n_samples, n_tokens; /* totals over all files */
    uint32_t crc;                 /* checksum of the files' checksums */
    uint32_t n_files;
    /* Private members. */
    struct token_file *files;
    /* first[i] is the number of the first sample in file i. The array has n_files + 1 elements, and its last
     * element is n_samples. */
    uint64_t *first;
    uint32_t seq, vocab;
    /* A target with this token id does not count for the loss. With -1, all targets count. */
    int64_t ignore;
};

/* Opens and checks the files of a split. `split` is "train" or "val". Every file must have at least one
 * sample. The first and last sample of each file are read, to find tokens outside the vocabulary early. */
int token_set_open(const struct spec *s, const struct spec_paths *paths, const char *split,
                   struct token_set **ret, struct err *err);

/* Closes all files of the set and frees its memory. `t` may be NULL. */
void token_set_close(struct token_set *t);

/* Reads sample number `index`: its `seq` tokens into `ids`, and the token that follows each of them into
 * `targets`. Either pointer may be NULL. Targets that do not count for the loss become -1. *ret_targets
 * receives the number of targets that count. Returns -ERANGE for an id outside the vocabulary, and -ESTALE if
 * the file became shorter. */
int token_set_read(const struct token_set *t, uint64_t index, int32_t *ids, int32_t *targets,
                   uint64_t *ret_targets, struct err *err);

/* Tells the kernel that sample number `index` will be read soon. Returns before the sample is read. */
void token_set_advise(const struct token_set *t, uint64_t index);

#endif
