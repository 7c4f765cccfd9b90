/* SHA-256 (FIPS 180-4) of a block of memory. For secrets that are to be recognised and not stored; checkpoints and the
 * state use crc32c.h, which is faster and finds accidents. Any thread. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_BYTES     32
#define SHA256_HEX_CHARS 64

void sha256(const void *data, size_t bytes, uint8_t ret[SHA256_BYTES]);
/* The same as lower-case hexadecimal digits, NUL-terminated. */
void sha256_hex(const void *data, size_t bytes, char ret[SHA256_HEX_CHARS + 1]);

#endif
