/* CRC-32C (Castagnoli), the checksum of checkpoints and of rows in the daemon's state. */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Returns the checksum `crc` extended by `bytes` bytes at `data`. Begin with crc = 0. Data that comes in
 * pieces gives the same checksum as the whole: pass the result of one piece as `crc` of the next. */
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);

/* Computes crc32c without special processor instructions. crc32c falls back to it; tests call it directly. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t bytes);

#endif
