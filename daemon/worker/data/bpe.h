/* GPT-2's tokenizer, a byte-level BPE. It turns text into token ids and back, with the vocab.json and
 * merges.txt of a Hugging Face folder.
 *
 * Text is first cut into words by GPT-2's pattern: contractions ('s 't 're 've 'm 'll 'd), runs of letters,
 * of digits or of other characters, each run with at most one space before it, and runs of spaces. Then pairs
 * of neighbouring tokens in a word are merged, in the order of merges.txt.
 *
 * The pattern is exact for ASCII text. Every other byte counts as a letter, while GPT-2 uses the Unicode
 * classes, so text with digits, signs or spaces of other scripts may be cut into other tokens. Those tokens
 * still stand for the same text.
 *
 * Order of calls: bpe_open, any of the other functions, bpe_close. An open tokenizer is only read, so any
 * thread may use it.
 */
#ifndef DAEMON_WORKER_DATA_BPE_H
#define DAEMON_WORKER_DATA_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/vec.h"

struct bpe;

/* A growing list of token ids. The caller frees `list` with vec_free. */
struct bpe_ids {
    VEC(int32_t) list;
};

/* Returns whether the folder `dir` has both tokenizer files, vocab.json and merges.txt. */
bool bpe_is_there(const char *dir);

/* Opens the tokenizer in the folder `dir`. All its token ids must be below `vocab`. Returns -EINVAL if an id
 * is too large or if the files are not those of a GPT-2 tokenizer. */
int bpe_open(const char *dir, uint32_t vocab, struct bpe **ret, struct err *err);

/* Frees the tokenizer. `b` may be NULL. */
void bpe_close(struct bpe *b);

/* Appends the token ids of `text` to `ret`. Returns -EINVAL if `text` has a byte for which the vocabulary has
 * no token. */
int bpe_encode(const struct bpe *b, const char *text, size_t bytes, struct bpe_ids *ret, struct err *err);

/* Returns the bytes of the token `id`, or NULL if there is no such token. The bytes may be only a part of a
 * UTF-8 character. */
const char *bpe_bytes(const struct bpe *b, uint32_t id, size_t *ret_bytes);

/* Returns the id of the token that consists of exactly these bytes, such as "<|endoftext|>". Returns -1 if
 * there is no such token. */
int64_t bpe_find(const struct bpe *b, const char *text, size_t bytes);

#endif
