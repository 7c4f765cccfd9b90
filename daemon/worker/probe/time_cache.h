/* What was measured of layers, kept for later plans: $XDG_CACHE_HOME/tutti/times-HASH.json, the hash being that of the
 * place (backend, kind of device, threads), so that no other device is given these times. One entry is a shape of layer
 * at a micro-batch size, or an update of so many bytes; the same shape in another job is the same entry.
 *
 * It is a cache: what cannot be read is as if it were not there. Two that write at once leave the entries of one.
 */
#ifndef DAEMON_WORKER_PROBE_TIME_CACHE_H
#define DAEMON_WORKER_PROBE_TIME_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/vec.h"
#include "kernels/layer.h"

#define TIME_SHAPE_MAX 96

struct time_place {
    char backend[16], device[96]; /* "cpu", "Some CPU @ 2 GHz avx512" */
    uint32_t threads;
};

struct time_entry {
    char shape[TIME_SHAPE_MAX];
    uint32_t rows;            /* of a micro-batch; 0: an update */
    double first_s, second_s; /* forward and backward alone; of an update: on the host and on the device */
    uint64_t at_s;            /* when, in seconds since 1970 */
};

struct time_cache {
    struct time_place place;
    uint64_t link_bytes_per_s, peer_bytes_per_s, host_copy_bytes_per_s; /* 0: not measured */
    VEC(struct time_entry) entries;
};

/* This computer's processor and the instructions that are used of it. */
void time_cache_cpu(char *ret, size_t size);

/* What makes the times of two layers the same: kind, sizes, what is fused into it, and whether the gradient of its input
 * is wanted. */
void time_shape_layer(const struct layer *l, bool dx, char ret[TIME_SHAPE_MAX]);
void time_shape_update(const struct optimizer *o, uint64_t w_bytes, char ret[TIME_SHAPE_MAX]);

/* Empty when there is none; a damaged file is a warning and counts as none. */
void time_cache_load(const struct time_place *place, struct time_cache *ret);
int time_cache_store(const struct time_cache *c, struct err *err);
void time_cache_finish(struct time_cache *c); /* takes a zeroed one */
int time_cache_path(const struct time_place *place, char *ret, size_t size, struct err *err);

const struct time_entry *time_cache_find(const struct time_cache *c, const char *shape, uint32_t rows);
void time_cache_put(struct time_cache *c, const struct time_entry *e); /* in place of what is there */

/* The table of a model, at the sizes that were measured of every layer of it; NULL when there is no such size. The last
 * layer is the loss. *ret_at: when the oldest of its times was measured. */
struct table *time_cache_table(const struct time_cache *c, const struct model *m, const struct optimizer *o,
                               uint64_t *ret_at);

#endif
