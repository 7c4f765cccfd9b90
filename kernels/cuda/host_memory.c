/* Host memory that devices copy from and to: ordinary memory, zeroed and page-aligned, which is registered
 * with CUDA in chunks.
 *
 * Drivers refuse a single registration beyond some size, and registering hundreds of gigabytes in one call
 * takes minutes without any sign of progress. With many chunks, a failure shows how much memory the
 * machine's limits allow, and all earlier chunks are unregistered. Registrations are portable, that is,
 * pinned for all devices.
 *
 * A copy must lie in one registration. CUDA refuses a copy across two registrations with "invalid
 * argument", even if they are neighbours. So cuda_copy asks host_piece for the length of each copy, and
 * makes one copy for each piece.
 *
 * Only the enqueueing thread runs this code.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/checked.h"
#include "kernels/cuda/cuda.h"

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Unregisters those chunks of block `b` that have been registered. Then frees the memory and the block. */
static void release_block(struct host_block *b)
{
    for (uint64_t at = 0; at < b->registered_bytes; at += b->chunk_bytes)
        cuda_errno(cudaHostUnregister(b->base + at));
    munmap(b->base, b->mapped_bytes);
    free(b);
}

static int register_block(struct host_block *b, struct err *err)
{
    while (b->registered_bytes < b->mapped_bytes) {
        const uint64_t bytes = least(b->chunk_bytes, b->mapped_bytes - b->registered_bytes);
        const cudaError_t e =
            cudaHostRegister(b->base + b->registered_bytes, bytes, cudaHostRegisterPortable);
        if (e != cudaSuccess)
            return err_set(err, cuda_errno(e),
                           "only %" PRIu64 " of %" PRIu64
                           " bytes of host memory could be pinned; CUDA says: %s. Lower "
                           "resources.host_memory, or raise the limit of locked memory (ulimit -l, or "
                           "LimitMEMLOCK= of the service)",
                           b->registered_bytes, b->bytes, cudaGetErrorString(e));
        b->registered_bytes += bytes;
    }
    return 0;
}

int cuda_host_alloc(struct devset *base, uint64_t bytes, void **ret, struct err *err)
{
    struct cuda_devset *ds = cuda(base);
    uint64_t mapped;

    if (!checked_add(bytes, page_bytes() - 1, &mapped))
        return err_set(err, -ENOMEM, "%" PRIu64 " bytes of host memory are more than any machine has", bytes);
    mapped = mapped / page_bytes() * page_bytes();
    void *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return err_set(err, -ENOMEM, "this machine cannot provide %" PRIu64 " bytes of host memory", bytes);
    madvise(p, mapped, MADV_HUGEPAGE); /* fewer pages to pin */
    struct host_block *b = xcalloc(1, sizeof *b);
    *b = (struct host_block){.next = ds->host_blocks,
                             .base = p,
                             .bytes = bytes,
                             .mapped_bytes = mapped,
                             .chunk_bytes = ds->host_chunk_bytes};
    const int r = register_block(b, err);
    if (r < 0) {
        release_block(b);
        return r;
    }
    ds->host_blocks = b;
    *ret = p;
    return 0;
}

void cuda_host_free(struct devset *base, void *p, uint64_t bytes)
{
    struct host_block **at = &cuda(base)->host_blocks;

    (void)bytes;
    while (*at && (*at)->base != p)
        at = &(*at)->next;
    if (!*at)
        return;
    struct host_block *b = *at;
    *at = b->next;
    release_block(b);
}

void host_memory_init(struct cuda_devset *ds, uint64_t chunk_bytes)
{
    const uint64_t wanted = chunk_bytes > 0 ? chunk_bytes : HOST_CHUNK_BYTES;

    ds->host_chunk_bytes = (wanted + page_bytes() - 1) / page_bytes() * page_bytes();
}

void host_memory_finish(struct cuda_devset *ds)
{
    while (ds->host_blocks)
        cuda_host_free(&ds->base, ds->host_blocks->base, 0);
}

uint64_t host_piece(const struct cuda_devset *ds, const void *p, uint64_t bytes)
{
    for (const struct host_block *b = ds->host_blocks; b; b = b->next) {
        const uint64_t offset = (uintptr_t)p - (uintptr_t)b->base;
        if (offset < b->bytes && bytes <= b->bytes - offset)
            return least(bytes, b->chunk_bytes - offset % b->chunk_bytes);
    }
    return 0;
}
