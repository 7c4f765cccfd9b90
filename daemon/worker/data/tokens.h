/* Files of tokens, which are mapped into memory rather than read. Three formats are known, all little-endian:
 * the files of llm.c (a header of 256 int32, then uint16 or uint32 tokens), bare uint16 or uint32 tokens, and
 * any file at all with each byte as a token. Only data.c, token_set.c and the tests include this header.
 *
 * Order of calls: tokens_open, then the other functions from any thread, then tokens_close.
 */
#ifndef DAEMON_WORKER_DATA_TOKENS_H
#define DAEMON_WORKER_DATA_TOKENS_H

#include <stdint.h>

#include "base/err.h"

#define TOKENS_HEADER_BYTES 1024 /* header of an llm.c file */
/* How many blocks of a large token file go into its checksum. Small files are included completely. */
#define TOKENS_CRC_BLOCKS 64
#define TOKENS_CRC_BYTES  4096 /* bytes in each of these blocks */

/* An open file of tokens. tokens_open fills the struct in, and nothing changes it until tokens_close. */
struct token_file {
    const char *path; /* belongs to the caller of tokens_open */
    /* The key of the spec that names this file, such as "data.train[2]". Error messages show this key. */
    char key[64];
    uint64_t count; /* number of tokens, at least 1 */
    /* Number of bytes that each token takes in the file: 1, 2 or 4. */
    uint32_t width;
    /* CRC-32C of the file's size, number of tokens, bytes per token, and content. The checksum of a large
     * file covers only a part of the content. */
    uint32_t crc;
    uint64_t bytes;      /* size of the file */
    const uint8_t *map;  /* the mapped file */
    const uint8_t *data; /* the first token, inside map */
    int fd;
};

/* Opens and maps the file at `path`. The string `path` must stay valid until tokens_close. Error messages
 * name the file by `key`.
 *
 * `width` is the number of bytes per token. With 1, every byte of the file is a token. With 2 or 4, a header
 * of the file must have the same width. With 0, the header determines the width, and a file without a header
 * has tokens of 2 bytes.
 *
 * Returns -EBADMSG for a file that is damaged, cut short or too long, -EOPNOTSUPP for a file that must be
 * converted first, -EINVAL if the file contradicts the job, or the error of open(2), read(2) or mmap(2). */
int tokens_open(const char *path, const char *key, uint32_t width, struct token_file *ret, struct err *err);

/* Unmaps and closes the file. A zero-initialized struct is also allowed. */
void tokens_close(struct token_file *f);

/* Returns -ESTALE if the file became shorter since it was opened. Call this function before you read tokens,
 * because reading a mapped file beyond its end kills the process. */
int tokens_check(const struct token_file *f, struct err *err);

/* Tells the kernel that `n` tokens, starting at token `from`, will be read soon. Returns before the tokens
 * are read. */
void tokens_advise(const struct token_file *f, uint64_t from, uint64_t n);

/* Returns token number `i` of the file, which must be below f->count. The token's address need not be
 * aligned. */
static inline uint32_t tokens_at(const struct token_file *f, uint64_t i)
{
    const uint8_t *p = f->data + i * f->width;

    if (f->width == 2)
        return (uint32_t)p[0] | (uint32_t)p[1] << 8;
    if (f->width == 1)
        return p[0];
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

#endif
