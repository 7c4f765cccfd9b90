/* Implements the copies of tensors.
 *
 * A tensor that moves is cold and large. By the time it is used, other tensors have passed through the
 * caches. Non-temporal stores do not read the destination first, and they leave the caches to the ops that
 * run at the same time. The copy walks through four pages side by side, one cache line of each in turn.
 * This is faster than a single sequence, because it keeps four hardware prefetchers busy. Wider vectors
 * add little, so plain SSE2 is enough, which every x86-64 has.
 *
 * Small blocks are likely to be used soon and should stay in the caches, so memcpy copies them.
 *
 * Under the sanitizers, memcpy copies everything. The sanitizers check the reads and writes of memcpy, and
 * so find a missing wait or a range that is too long. They do not check the intrinsics.
 *
 * This file has no state. Any thread may call its functions.
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
#define PAGE         ((size_t)4096)
#define PAGES        4
#define STREAM_BYTES (256u << 10) /* smallest copy that bypasses the caches */
#define PIECE_BYTES  STREAM_BYTES /* about ten microseconds of work */

/* Copies one cache line of 64 bytes. `dst` must be the start of a cache line, because the special stores used
 * here require alignment. */
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

/* Copies a block of at least LINE bytes. The stores bypass the caches, so the copy does not evict the data of
 * running ops. */
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
    /* Stores that bypass the caches may still be under way when a lock is released. This fence makes them
     * visible to other threads before the copy counts as done. */
    _mm_sfence();
}

void cpu_copy(void *dst, const void *src, uint64_t bytes)
{
    if (bytes >= STREAM_BYTES)
        copy_streaming(dst, src, bytes);
    else
        memcpy(dst, src, bytes);
}

/* A large copy. The threads of the pool share its `n` pieces. */
struct pieces {
    uint8_t *dst;
    const uint8_t *src;
    uint64_t bytes;
    uint32_t n; /* the last piece also has the remainder */
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

/* In builds with sanitizers, the calling thread makes the whole copy. If threads shared the copy, the pool's
 * lock would order their memory accesses. The thread sanitizer could then overlook a missing wait between two
 * streams. */
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
