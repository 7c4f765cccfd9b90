/* Copies of tensors.
 *
 * A tensor that moves is cold and large: what the copy writes is not read before other tensors have passed
 * through the caches. Non-temporal stores skip reading the destination's lines and leave the caches to the
 * ops that run meanwhile. Going through four pages side by side, a line of each in turn, is faster than going
 * straight on: the loads keep four hardware prefetchers busy. Wider vectors add little, so plain SSE2, which
 * every x86-64 has, will do.
 *
 * Small blocks are likely to be used at once and stay in the caches: memcpy.
 *
 * Under the sanitizers everything is memcpy: they see its reads and writes, and so a missing wait or a range
 * that is too long; the intrinsics they would not see.
 *
 * No state, any thread.
 */
#include "kernels/cpu/copy.h"

#include <string.h>

#include "kernels/cpu/cpu.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#endif

#if defined(__x86_64__) && !defined(SANITIZED)

#include <emmintrin.h>

#define LINE         64
#define PAGE         4096
#define PAGES        4
#define STREAM_BYTES (256u << 10) /* from here on past the caches */
#define PIECE_BYTES  STREAM_BYTES /* some ten microseconds */

/* dst on a line's boundary. */
static inline void copy_line(uint8_t *dst, const uint8_t *src)
{
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)src);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(src + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(src + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(src + 48));

    _mm_stream_si128((__m128i *)(void *)dst, a);
    _mm_stream_si128((__m128i *)(void *)(dst + 16), b);
    _mm_stream_si128((__m128i *)(void *)(dst + 32), c);
    _mm_stream_si128((__m128i *)(void *)(dst + 48), d);
}

/* LINE bytes at least. */
static void copy_streaming(uint8_t *dst, const uint8_t *src, uint64_t bytes)
{
    uint64_t head = -(uintptr_t)dst % LINE;

    memcpy(dst, src, head);
    dst += head, src += head, bytes -= head;
    for (; bytes >= PAGES * PAGE; dst += PAGES * PAGE, src += PAGES * PAGE, bytes -= PAGES * PAGE)
        for (unsigned at = 0; at < PAGE; at += LINE)
            for (unsigned p = 0; p < PAGES; p++)
                copy_line(dst + p * PAGE + at, src + p * PAGE + at);
    memcpy(dst, src, bytes);
    _mm_sfence(); /* these stores are not ordered by the release of a lock */
}

void cpu_copy(void *dst, const void *src, uint64_t bytes)
{
    if (bytes >= STREAM_BYTES)
        copy_streaming(dst, src, bytes);
    else
        memcpy(dst, src, bytes);
}

struct pieces {
    uint8_t *dst;
    const uint8_t *src;
    uint64_t bytes;
    uint32_t n; /* the last has what is left over too */
};

static void copy_piece(void *ctx, uint32_t i)
{
    const struct pieces *p = ctx;
    uint64_t at = (uint64_t)i * PIECE_BYTES;
    copy_streaming(p->dst + at, p->src + at, i + 1 == p->n ? p->bytes - at : PIECE_BYTES);
}

void cpu_copy_pieces(void *dst, const void *src, uint64_t bytes, struct pool *pool)
{
    struct pieces p = {dst, src, bytes, (uint32_t)(bytes / PIECE_BYTES)};

    if (bytes < STREAM_BYTES || bytes / PIECE_BYTES > UINT32_MAX)
        cpu_copy(dst, src, bytes);
    else
        pool_run(pool, copy_piece, &p, p.n);
}

#else

/* By the stream's own thread: whoever shares a pool is ordered by its lock, and a missing wait would not be seen. */
void cpu_copy_pieces(void *dst, const void *src, uint64_t bytes, struct pool *pool)
{
    (void)pool;
    memcpy(dst, src, bytes);
}

void cpu_copy(void *dst, const void *src, uint64_t bytes)
{
    memcpy(dst, src, bytes);
}

#endif
