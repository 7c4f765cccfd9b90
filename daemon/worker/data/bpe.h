/* GPT-2's tokenizer, byte-level BPE: text to token ids and back, from the vocab.json and merges.txt of a Hugging Face
 * folder.
 *
 * Text is cut into words by GPT-2's pattern ('s 't 're 've 'm 'll 'd, letters, digits, others, each with a space before it,
 * spaces), and the bytes of a word are joined by the merges, first ones first. The classes are exact in ASCII; every byte
 * beyond counts as a letter. (GPT-2 asks Unicode, so a text with digits, signs or spaces of other scripts may be cut
 * differently; the ids still mean the same text.)
 *
 * Order of calls: bpe_open, the others, bpe_close. Only read once it is open; any thread.
 */
#ifndef DAEMON_WORKER_DATA_BPE_H
#define DAEMON_WORKER_DATA_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/vec.h"

struct bpe;
struct bpe_ids {
    VEC(int32_t) list;
};

bool bpe_is_there(const char *dir); /* both files are */
/* Ids are below `vocab`. -EINVAL: files that are no such tokenizer, or one of another model. */
int bpe_open(const char *dir, uint32_t vocab, struct bpe **ret, struct err *err);
void bpe_close(struct bpe *b); /* takes NULL */

/* Adds the ids of a text. -EINVAL: the vocabulary has no token for one of its bytes. */
int bpe_encode(const struct bpe *b, const char *text, size_t bytes, struct bpe_ids *ret, struct err *err);
/* The bytes of a token, which may be a part of a character; NULL: the vocabulary has none of that id. */
const char *bpe_bytes(const struct bpe *b, uint32_t id, size_t *ret_bytes);
/* The id of the token of exactly these bytes, e.g. "<|endoftext|>"; -1: there is none. */
int64_t bpe_find(const struct bpe *b, const char *text, size_t bytes);

#endif
