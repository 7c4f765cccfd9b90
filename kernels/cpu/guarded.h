/* Blocks of memory whose size is enforced. They serve as the arenas of virtual devices. An access behind
 * the end of a block faults at once. An access in front of it either faults or is found later by
 * guarded_intact. */
#ifndef KERNELS_CPU_GUARDED_H
#define KERNELS_CPU_GUARDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A block of memory between two guard pages. guarded.c has a picture of it. */
struct guarded {
    /* Start of the block. Its alignment is that of `bytes`, up to a page. */
    uint8_t *base;
    uint64_t bytes;
    /* Start of the mapping, which begins with a guard page: base - slack - one page. */
    uint8_t *map;
    size_t map_bytes;
};

/* Maps a block of `bytes` bytes, bytes > 0. The block reads as zero, and its pages are allocated when they
 * are first touched. Returns -ENOMEM if the memory is not available. */
int guarded_init(struct guarded *g, uint64_t bytes);
/* Unmaps the block and clears *g. Does nothing if *g is all zero. */
void guarded_finish(struct guarded *g);

/* Returns false if something was written between the front guard page and the block. */
bool guarded_intact(const struct guarded *g);

#endif
