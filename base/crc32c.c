/* Implements CRC-32C with the processor's instruction where there is one, and with tables elsewhere.
 *
 * Checkpoints have gigabytes, so speed matters. The SSE4.2 instruction processes 8 bytes at a time.
 * Without it, slicing by eight (eight table lookups per 8 bytes) is the fastest portable method. Other
 * libraries interleave three streams of the instruction; a single stream is already faster than the disks,
 * so this code stays simple.
 *
 * Any thread may call these functions. pthread_once builds the tables on first use.
 */
#include "base/crc32c.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>

#define POLYNOMIAL 0x82F63B78u /* Castagnoli, bits reversed */

/* Lookup tables of the portable code: table[k][b] is the checksum of byte b followed by k zero bytes. */
static uint32_t table[8][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void build_table(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][b] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 0xFF];
}

/* Loads 8 bytes as a little-endian number. memcpy works for any alignment of `p`. */
static uint64_t load_le64(const unsigned char *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t bytes)
{
    const unsigned char *p = data;

    pthread_once(&table_once, build_table);
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t v = load_le64(p) ^ crc;
        /* The eight lookups are written out by hand, because gcc -O2 would not unroll a loop over them. */
        crc = table[7][v & 0xFF] ^ table[6][v >> 8 & 0xFF] ^ table[5][v >> 16 & 0xFF] ^
              table[4][v >> 24 & 0xFF] ^ table[3][v >> 32 & 0xFF] ^ table[2][v >> 40 & 0xFF] ^
              table[1][v >> 48 & 0xFF] ^ table[0][v >> 56];
    }
    for (; bytes > 0; bytes--, p++)
        crc = crc >> 8 ^ table[0][(crc ^ *p) & 0xFF];
    return ~crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t wide = (uint32_t)~crc;

    for (; bytes >= 8; bytes -= 8, p += 8)
        wide = __builtin_ia32_crc32di(wide, load_le64(p));
    crc = (uint32_t)wide;
    for (; bytes > 0; bytes--, p++)
        crc = __builtin_ia32_crc32qi(crc, *p);
    return ~crc;
}
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t bytes)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2"))
        return crc32c_sse42(crc, data, bytes);
#endif
    return crc32c_portable(crc, data, bytes);
}
