/* CRC-32C with the processor's instruction where there is one, else with tables.
 *
 * Checkpoints are gigabytes, so speed matters: the SSE4.2 instruction takes 8 bytes at a time, and slicing by
 * eight (eight table lookups for 8 bytes) is the best portable form. One chain of the instruction is
 * faster than the disks behind it, so the three-way interleaving of other libraries is left out. Any
 * thread: the tables are built once, under pthread_once.
 */
#include "base/crc32c.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>

#define POLYNOMIAL 0x82F63B78u /* Castagnoli, bits reversed */

static uint32_t table[8][256]; /* table[k][b]: the effect of byte b with k zero bytes after it */
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

/* memcpy: the data may begin at any address. */
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
        /* Written out, because gcc -O2 does not unroll it. */
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
