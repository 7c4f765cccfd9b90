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

/* The kind of device on which times were measured, such as one model of processor. */
struct time_place {
    /* The names of the backend and of the device, for example "cpu" and "Some CPU @ 2 GHz avx512". */
    char backend[16], device[96];
    uint32_t threads;
};

/* The measured times of one layer or of one optimizer update. */
struct time_entry {
    char shape[TIME_SHAPE_MAX]; /* from time_shape_layer or time_shape_update */
    /* Number of samples in the micro-batch of a layer. 0 if the entry is for an optimizer update. */
    uint32_t rows;
    /* The duration in seconds of a layer's forward pass, or of an optimizer update on the host. */
    double first_s;
    /* The duration in seconds of a layer's backward pass, or of an optimizer update on the device. */
    double second_s;
    /* Time at which the entry was measured, in seconds since 1970. */
    uint64_t at_s;
};

/* The content of the cache of measured times for one kind of device. time_cache_load fills the struct in, and
 * time_cache_finish frees it. */
struct time_cache {
    struct time_place place;
    uint64_t link_bytes_per_s, peer_bytes_per_s, host_copy_bytes_per_s; /* 0 if not measured */
    VEC(struct time_entry) entries;
};

/* Writes the name of this computer's processor to `ret`, followed by the instruction set in use, such as
 * "Some CPU @ 2 GHz avx512". */
void time_cache_cpu(char *ret, size_t size);

/* Writes a text that describes a layer to `ret`, such as its kind, sizes and activation. Layers with the same
 * text take the same time. `dx` tells whether the backward pass computes the gradient of the input. */
void time_shape_layer(const struct layer *l, bool dx, char ret[TIME_SHAPE_MAX]);

/* Writes a text that describes an optimizer update to `ret`: the optimizer's name, `w_bytes`, the number of
 * bytes of weights, and the type of the weights if it has 16 bits. */
void time_shape_update(const struct optimizer *o, enum dtype w_dtype, uint64_t w_bytes,
                       char ret[TIME_SHAPE_MAX]);

/* Loads the measured times for `place`. If there is no cache file, *ret is empty. A damaged cache file is
 * ignored with a warning. */
void time_cache_load(const struct time_place *place, struct time_cache *ret);

/* Writes all entries of `c` to the cache file for c->place. The old content of the file is replaced. */
int time_cache_store(const struct time_cache *c, struct err *err);

/* Frees the entries of the cache. A zero-initialized struct is also allowed. */
void time_cache_finish(struct time_cache *c);

/* Stores the path of the cache file for `place` in `ret`. */
int time_cache_path(const struct time_place *place, char *ret, size_t size, struct err *err);

/* Returns the entry for the layer or update with the description `shape`, measured with `rows` samples.
 * Returns NULL if there is no such entry. `rows` is 0 for an optimizer update. */
const struct time_entry *time_cache_find(const struct time_cache *c, const char *shape, uint32_t rows);

/* Adds the entry `e` to the cache. Replaces an old entry with the same description and the same number of
 * rows. */
void time_cache_put(struct time_cache *c, const struct time_entry *e);

/* Makes the profile table of a model, with the micro-batch sizes at which every layer was measured. Returns
 * NULL if there are no such sizes. The last layer must be the loss. *ret_at is the time of the oldest
 * measurement. The caller destroys the table's arena. */
struct table *time_cache_table(const struct time_cache *c, const struct model *m, const struct optimizer *o,
                               uint64_t *ret_at);

#endif
