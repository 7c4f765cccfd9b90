/* A block of memory whose size is enforced: an access past its end faults at once, one in front of it faults
 * or is found later. The arenas of virtual devices. */
#ifndef KERNELS_CPU_GUARDED_H
#define KERNELS_CPU_GUARDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct guarded {
    uint8_t *base; /* as aligned as `bytes` is, up to a page */
    uint64_t bytes;
    uint8_t *map; /* base - slack - one guard page */
    size_t map_bytes;
};

/* bytes > 0. The block is zero; its pages come when first touched. -ENOMEM when it cannot be had. */
int guarded_init(struct guarded *g, uint64_t bytes);
void guarded_finish(struct guarded *g); /* takes one that is all zero */

/* False when something was written between the front guard and the block. */
bool guarded_intact(const struct guarded *g);

#endif
