/* Blocks of memory whose size is enforced, used as arenas. An access behind the end faults at once. An
 * access in front of the block faults, or guarded_intact finds it later. */
#ifndef KERNELS_CPU_GUARDED_H
#define KERNELS_CPU_GUARDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A block of memory between two guard pages. See the picture in guarded.c. */
struct guarded {
    /* The start of the block. It is as aligned as `bytes` is, up to a page. */
    uint8_t *base;
    uint64_t bytes;
    /* The start of the mapping, which is the front guard page: base - slack - one page. */
    uint8_t *map;
    size_t map_bytes;
};

/* Maps a zeroed block of `bytes` bytes, at least 1. A page takes memory only when it is first touched.
 * Returns -ENOMEM if there is too little memory. */
int guarded_init(struct guarded *g, uint64_t bytes);
/* Unmaps the block and clears *g. Does nothing if *g is already zero. */
void guarded_finish(struct guarded *g);

/* Returns false if the memory between the front guard page and the block was overwritten. */
bool guarded_intact(const struct guarded *g);

#endif
