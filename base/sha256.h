/* SHA-256 (FIPS 180-4) of a block of memory. The daemon stores only the hash of a secret, and compares hashes
 * to check a secret. Checkpoints use CRC-32C (crc32c.h), which is faster but protects only against accidental
 * damage. Any thread may call these functions. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_BYTES     32
#define SHA256_HEX_CHARS 64

/* Computes the SHA-256 hash of `bytes` bytes and writes it to `ret`, as 64 lower-case hexadecimal digits and
 * a NUL. */
void sha256_hex(const void *data, size_t bytes, char ret[SHA256_HEX_CHARS + 1]);

#endif
