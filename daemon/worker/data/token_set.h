/* The files of a split as one row of samples: sample i is `seq` tokens and, as targets, the same shifted by one. Each file
 * gives (tokens - 1) / seq samples; none crosses from one file into the next. Private to data.c.
 *
 * Order of calls: token_set_open; the others, from any thread; token_set_close.
 */
#ifndef DAEMON_WORKER_DATA_TOKEN_SET_H
#define DAEMON_WORKER_DATA_TOKEN_SET_H

#include "daemon/spec/spec.h"
#include "daemon/worker/data/tokens.h"

struct token_set {
    uint64_t n_samples, n_tokens;
    uint32_t crc;
    uint32_t n_files;
    /* private */
    struct tokens *files;
    uint64_t *first; /* [n_files + 1]: the number of the first sample of each; then n_samples */
    uint32_t seq, vocab;
    int64_t ignore; /* targets of this id do not count; -1: all do */
};

/* `split` is its name, "train" or "val". Every file is checked, also for one whole sample, and of each the first and the last
 * sample are looked at: numbers that are no tokens of this vocabulary are mostly found here already. */
int token_set_open(const struct spec *s, const struct spec_paths *paths, const char *split,
                   struct token_set **ret, struct err *err);
void token_set_close(struct token_set *t); /* takes NULL */

/* ids and targets: seq each; ignored targets are -1. *ret_targets: those that are not. -ERANGE for an id beyond the
 * vocabulary, -ESTALE for a file that has become shorter: with the file. */
int token_set_read(const struct token_set *t, uint64_t index, int32_t *ids, int32_t *targets,
                   uint64_t *ret_targets, struct err *err);
/* That sample will soon be read. */
void token_set_advise(const struct token_set *t, uint64_t index);

#endif
