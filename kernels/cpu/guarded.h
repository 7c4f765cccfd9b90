/* Blocks of memory that catch accesses outside their bounds. The cpu backend uses them as arenas. An access
 * behind the end of the block crashes immediately. An access in front of the block either crashes or leaves
 * damage that guarded_intact finds later. */
#ifndef KERNELS_CPU_GUARDED_H
#define KERNELS_CPU_GUARDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A block of memory between two guard pages. An access to a guard page crashes the program. guarded.c has a
 * picture of the layout. */
struct guarded {
    /* The start of the block. This address is aligned to the largest power of two that divides `bytes`, up to
     * the size of a page. */
    uint8_t *base;
    uint64_t bytes;
    /* The start of the whole mapping: first the front guard page, then less than a page of slack, then the
     * block at `base`. */
    uint8_t *map;
    size_t map_bytes;
};

/* Maps a zeroed block of `bytes` bytes, where `bytes` is at least 1. The system provides each page of memory
 * when the page is first touched. Returns -ENOMEM if there is too little memory. */
int guarded_init(struct guarded *g, uint64_t bytes);
/* Unmaps the block and sets *g to zero. Does nothing if *g is already zero. */
void guarded_finish(struct guarded *g);

/* Returns false if something has overwritten the bytes between the front guard page and the start of the
 * block. */
bool guarded_intact(const struct guarded *g);

#endif
