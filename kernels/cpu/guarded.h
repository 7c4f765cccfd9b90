/* Blocks of memory whose size is enforced. They serve as the arenas of virtual devices. An access behind
 * the end of a block faults at once. An access in front of a block either faults or is found later by
 * guarded_intact. */
#ifndef KERNELS_CPU_GUARDED_H
#define KERNELS_CPU_GUARDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A block of memory between two guard pages. See the picture in guarded.c. */
struct guarded {
    /* Start of the block. If `bytes` is a multiple of a power of two up to the page size, so is this
     * address. */
    uint8_t *base;
    uint64_t bytes;
    /* Start of the mapping, which is the front guard page. Equal to base - slack - one page. */
    uint8_t *map;
    size_t map_bytes;
};

/* Maps a block of `bytes` bytes, which must be more than 0. The block is zeroed, and each page is
 * allocated when it is first touched. Returns -ENOMEM if there is too little memory. */
int guarded_init(struct guarded *g, uint64_t bytes);
/* Unmaps the block and clears *g. Does nothing if *g is already zero. */
void guarded_finish(struct guarded *g);

/* Returns false if the memory between the front guard page and the block was overwritten. */
bool guarded_intact(const struct guarded *g);

#endif
