/* CRC-32C (Castagnoli), the checksum that protects checkpoints and the rows of the daemon's database. */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Adds `bytes` bytes of data to the checksum `crc` and returns the new checksum. Pass 0 in the first call.
 * To checksum data in pieces, pass the result of each call as `crc` to the next call. */
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);

/* Computes the same checksum as crc32c, but without special processor instructions. crc32c calls this
 * function on processors that lack these instructions. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t bytes);

#endif
