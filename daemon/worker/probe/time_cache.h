/* The cache of measured layer times, $XDG_CACHE_HOME/tutti/times-HASH.json. HASH is a hash of backend, kind
 * of device and number of threads, so that the times are never used for another device.
 *
 * An entry holds the times of one layer shape at one micro-batch size, or of an optimizer update of some
 * size. Jobs with equal layers share entries.
 *
 * A file that cannot be read is treated as if it did not exist. If two processes write at the same time, the
 * entries of one of them are lost.
 */
#ifndef DAEMON_WORKER_PROBE_TIME_CACHE_H
#define DAEMON_WORKER_PROBE_TIME_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/vec.h"
#include "kernels/layer.h"

#define TIME_SHAPE_MAX 96

/* The kind of device on which times were measured. */
struct time_place {
    char backend[16], device[96]; /* names, for example "cpu" and "Some CPU @ 2 GHz avx512" */
    uint32_t threads;
};

/* The measured times of one layer or of one update. */
struct time_entry {
    char shape[TIME_SHAPE_MAX]; /* from time_shape_layer or time_shape_update */
    uint32_t rows;              /* samples in the micro-batch; 0: the entry is an update */
    double first_s;             /* seconds of the forward pass, or of an update on the host */
    double second_s;            /* seconds of the backward pass, or of an update on the device */
    uint64_t at_s;              /* time of the measurement, in seconds since 1970 */
};

/* The content of the cache for one kind of device. time_cache_load fills it in, time_cache_finish frees
 * it. */
struct time_cache {
    struct time_place place;
    uint64_t link_bytes_per_s, peer_bytes_per_s, host_copy_bytes_per_s; /* 0: not measured */
    VEC(struct time_entry) entries;
};

/* Writes the name of this computer's processor and the instruction set in use to `ret`. */
void time_cache_cpu(char *ret, size_t size);

/* Writes the shape of a layer to `ret`: kind, sizes, activation and so on, and whether the gradient of its
 * input is computed (`dx`). Layers of the same shape take the same time. */
void time_shape_layer(const struct layer *l, bool dx, char ret[TIME_SHAPE_MAX]);

/* Writes the shape of an update of `w_bytes` bytes of weights to `ret`: the optimizer and the size. */
void time_shape_update(const struct optimizer *o, uint64_t w_bytes, char ret[TIME_SHAPE_MAX]);

/* Loads the times for `place`. The result is empty if there is no file. A damaged file counts as none; a
 * warning is logged. */
void time_cache_load(const struct time_place *place, struct time_cache *ret);

/* Writes all entries to the file for c->place, in place of what it contained. */
int time_cache_store(const struct time_cache *c, struct err *err);

/* Frees the entries. A struct of zeros is accepted, too. */
void time_cache_finish(struct time_cache *c);

/* Stores the path of the cache file for `place` in `ret`. */
int time_cache_path(const struct time_place *place, char *ret, size_t size, struct err *err);

/* Returns the entry for a shape and a number of rows (0 for an update), or NULL if there is none. */
const struct time_entry *time_cache_find(const struct time_cache *c, const char *shape, uint32_t rows);

/* Adds an entry. It replaces an entry of the same shape and rows. */
void time_cache_put(struct time_cache *c, const struct time_entry *e);

/* Makes the profile table of a model from the micro-batch sizes at which every layer was measured. Returns
 * NULL if there is no such size. The last layer of the model is the loss. Stores the time of the oldest
 * measurement used in *ret_at. The caller destroys the table's arena. */
struct table *time_cache_table(const struct time_cache *c, const struct model *m, const struct optimizer *o,
                               uint64_t *ret_at);

#endif
