/* CRC-32C (Castagnoli). It is the checksum of checkpoints and of the rows in the daemon's state. */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Adds `bytes` bytes to the checksum `crc` and returns the new checksum. The first call gets 0. To
 * checksum data in pieces, pass each result on to the next call. */
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);

/* Does the same as crc32c, without special processor instructions. crc32c calls it on processors that lack
 * them. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t bytes);

#endif
