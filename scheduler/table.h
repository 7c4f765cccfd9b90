/* The profile table: what was measured of each layer of a model at several micro-batch sizes. It is the form in
 * which profiles are kept in files and exchanged (schema profile/v1, docs/profile.md; the published profiles of Harmony
 * have the same fields). `struct profile` (profile.h) is what a table says for one graph.
 *
 * Plain data, and pure: text in, struct out, and back. Between two measured sizes values are interpolated linearly;
 * below the first and above the last they go on along the nearest line, never below 0.
 */
#ifndef SCHEDULER_TABLE_H
#define SCHEDULER_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"

#define TABLE_MAX_LAYERS  100000
#define TABLE_MAX_SAMPLES 4096

/* Micro-batch sizes, ascending. */
struct table_axis {
    uint32_t n;
    uint32_t *sizes;
};

struct table_layer {
    bool tied; /* its weights are those of an earlier layer, `owner`; it has no optimizer state */
    uint32_t owner;
    uint64_t w, b, k;      /* bytes of weights (gradients likewise), buffers, optimizer state */
    double *input_bytes;   /* of each array as many as its axis has sizes */
    double *fwd_s, *bwd_s; /* bwd_s: with the forward that it needs again */
    double *fwd_bytes,
        *bwd_bytes; /* most that is on the device while the layer runs alone, W and X included */
    double update_cpu_s, update_gpu_s;
};

struct table {
    char model[64], device[80];
    struct table_axis fwd, bwd, fwd_bytes, bwd_bytes, input;
    uint64_t link_bytes_per_s; /* to the host, each direction, shared by all devices; 0: not known */
    uint64_t peer_bytes_per_s; /* between two devices */
    uint64_t host_copy_bytes_per_s;
    uint32_t n_layers;
    struct table_layer *layers; /* the last is the loss */
    struct arena *arena;
};

/* `name` stands for the text in messages; // comments are accepted. */
int table_parse(const char *text, size_t bytes, const char *name, struct table **ret, struct err *err);
void table_to_json(const struct table *t, struct strbuf *out); /* one line, without a newline */
void table_destroy(struct table *t);                           /* takes NULL */

/* One layer at one micro-batch size. */
struct table_point {
    uint64_t fwd_ns, bwd_ns; /* bwd: alone, without the forward that is done again */
    uint64_t x;              /* bytes of the input */
    uint64_t fwd_work;       /* what a forward needs beside W, B, input and output */
    uint64_t s;              /* what the backward needs beside W, dW, B, X and dX: saved by the forward */
    uint64_t upd_host_ns, upd_device_ns;
};
void table_at(const struct table *t, uint32_t layer, uint32_t micro_batch, struct table_point *ret);

/* The largest micro-batch size at which both directions were measured. */
uint32_t table_largest(const struct table *t);

#endif
