/* CRC-32C (Castagnoli), the checksum of checkpoints and durable rows. Start with 0; feed in pieces. */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);

/* The form without special instructions, which crc32c falls back to: here so that tests reach it anywhere. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t bytes);

#endif
