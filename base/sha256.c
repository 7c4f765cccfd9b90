/* Implements SHA-256. The names K, W and a to h are those of the standard, FIPS 180-4. The code need not be
 * fast, because the daemon hashes little data. */
#include "base/sha256.h"

#include <stdio.h>
#include <string.h>

#define BLOCK_BYTES 64

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static uint32_t load(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Updates the hash with one block of BLOCK_BYTES (64) bytes. */
static void add_block(uint32_t hash[8], const uint8_t block[BLOCK_BYTES])
{
    uint32_t W[64], s[8];
    for (size_t t = 0; t < 16; t++)
        W[t] = load(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = rotr(W[t - 15], 7) ^ rotr(W[t - 15], 18) ^ W[t - 15] >> 3;
        uint32_t s1 = rotr(W[t - 2], 17) ^ rotr(W[t - 2], 19) ^ W[t - 2] >> 10;
        W[t] = W[t - 16] + s0 + W[t - 7] + s1;
    }
    /* The array s holds the eight working variables that the standard calls a to h. */
    memcpy(s, hash, sizeof s);
    for (int t = 0; t < 64; t++) {
        uint32_t sum1 = rotr(s[4], 6) ^ rotr(s[4], 11) ^ rotr(s[4], 25);
        uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t sum0 = rotr(s[0], 2) ^ rotr(s[0], 13) ^ rotr(s[0], 22);
        uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        uint32_t t1 = s[7] + sum1 + choice + K[t] + W[t], t2 = sum0 + majority;
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        hash[i] += s[i];
}

/* Adds the end of the data to the hash, as one or two blocks. These blocks contain the rest of the data, a
 * one bit, zeros, and the length of all data in bits. */
static void add_end(uint32_t hash[8], const uint8_t *rest, size_t bytes, uint64_t total_bytes)
{
    uint8_t last[2 * BLOCK_BYTES] = {0};
    size_t blocks = bytes + 9 <= BLOCK_BYTES ? 1 : 2;
    memcpy(last, rest, bytes);
    last[bytes] = 0x80;
    for (int i = 0; i < 8; i++)
        last[blocks * BLOCK_BYTES - 1 - (size_t)i] = (uint8_t)(total_bytes * 8 >> 8 * i);
    for (size_t i = 0; i < blocks; i++)
        add_block(hash, last + i * BLOCK_BYTES);
    explicit_bzero(last, sizeof last);
}

static void sha256(const void *data, size_t bytes, uint8_t ret[SHA256_BYTES])
{
    uint32_t hash[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t *p = bytes > 0 ? data : (const uint8_t *)"";
    size_t whole = bytes / BLOCK_BYTES * BLOCK_BYTES;
    for (size_t at = 0; at < whole; at += BLOCK_BYTES)
        add_block(hash, p + at);
    add_end(hash, p + whole, bytes - whole, bytes);
    for (int i = 0; i < SHA256_BYTES; i++)
        ret[i] = (uint8_t)(hash[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256_hex(const void *data, size_t bytes, char ret[SHA256_HEX_CHARS + 1])
{
    uint8_t hash[SHA256_BYTES];
    sha256(data, bytes, hash);
    for (size_t i = 0; i < SHA256_BYTES; i++)
        snprintf(ret + 2 * i, 3, "%02x", hash[i]);
}
