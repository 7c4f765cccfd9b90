/* CRC-32C (Castagnoli). It is the checksum of checkpoints and of the rows in the daemon's state. */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Extends the checksum `crc` by the `bytes` bytes at `data` and returns the new checksum. Start with crc =
 * 0. To checksum data in pieces, pass the result of one piece as the `crc` of the next. */
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);

/* The same as crc32c, but without special processor instructions. crc32c calls it on processors that lack
 * them, and tests call it directly. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t bytes);

#endif
