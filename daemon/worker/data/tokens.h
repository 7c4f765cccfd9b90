/* Files of tokens, mapped, not read: llm.c's (a header of 256 int32, then uint16 or uint32), raw uint16 or uint32, or any
 * file at all, each byte a token. Little-endian. Private to data.c and token_set.c.
 *
 * Order of calls: tokens_open; then any of the others, from any thread; tokens_close.
 */
#ifndef DAEMON_WORKER_DATA_TOKENS_H
#define DAEMON_WORKER_DATA_TOKENS_H

#include <stdint.h>

#include "base/err.h"

#define TOKENS_HEADER_BYTES 1024
#define TOKENS_CRC_BLOCKS   64 /* of TOKENS_CRC_BYTES each, what the checksum of a larger file is made of */
#define TOKENS_CRC_BYTES    4096

struct tokens {
    const char *path;    /* the caller's */
    char key[64];        /* where the path came from: "data.train[2]" */
    uint64_t count;      /* of tokens, at least 1 */
    uint32_t width;      /* bytes of one: 1, 2, 4 */
    uint32_t crc;        /* CRC-32C of size, count, width and content: see tokens.c */
    uint64_t bytes;      /* of the file */
    const uint8_t *map;  /* all of it */
    const uint8_t *data; /* the first token */
    int fd;
};

/* `width`: 1 for the bytes of any file; 2 or 4 for numbers of so many bytes, which a header must not contradict; 0: what the
 * header says, without one 2. `key` says in messages where the path came from. `path` must outlive it. Errors: -EBADMSG for
 * a file that is not what it says, is cut short or too long; -EOPNOTSUPP for what could be read by another version or after
 * a conversion; -EINVAL for what the job asked wrongly; what open, read and mmap return. */
int tokens_open(const char *path, const char *key, uint32_t width, struct tokens *ret, struct err *err);
void tokens_close(struct tokens *f); /* takes a zeroed one */

/* To be called before reading: a file that has become shorter can no longer be read through its mapping. -ESTALE then. */
int tokens_check(const struct tokens *f, struct err *err);

/* The file will soon be read there: starts reading, waits for nothing. */
void tokens_advise(const struct tokens *f, uint64_t from, uint64_t n);

/* i < count. The address need not be aligned. */
static inline uint32_t tokens_at(const struct tokens *f, uint64_t i)
{
    const uint8_t *p = f->data + i * f->width;

    if (f->width == 2)
        return (uint32_t)p[0] | (uint32_t)p[1] << 8;
    if (f->width == 1)
        return p[0];
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

#endif
