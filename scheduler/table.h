/* The profile table: measured times and sizes of each layer of a model, at several micro-batch sizes.
 *
 * `tutti profile` makes a table, and files of schema profile/v1 hold it (docs/profile.md). The published
 * profiles of Harmony have the same fields. A profile (profile.h) is derived from a table for one graph.
 *
 * The functions convert text to a struct and back, and have no other effects. Between two measured sizes the
 * values are interpolated linearly. Below the first and above the last size they are extrapolated along the
 * nearest line, but never below 0.
 */
#ifndef SCHEDULER_TABLE_H
#define SCHEDULER_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"

#define TABLE_MAX_LAYERS  100000
#define TABLE_MAX_SAMPLES 4096 /* most micro-batch sizes of an axis */

/* The micro-batch sizes at which a quantity was measured, ascending. An array of measurements has one element
 * for each size of its axis. */
struct table_axis {
    uint32_t n;
    uint32_t *sizes;
};

/* The measurements of one layer. Each array has as many elements as its axis in struct table. */
struct table_layer {
    bool tied;           /* the layer uses the weights of layer `owner` and has no optimizer state */
    uint32_t owner;      /* for tied layers: the earlier layer that has the weights */
    uint64_t w, b, k;    /* bytes of weights, buffers and optimizer state */
    double *input_bytes; /* axis: input */
    double *fwd_s;       /* seconds of the forward pass; axis: fwd */
    double *bwd_s;       /* seconds of the backward pass, including a repeated forward pass; axis: bwd */
    double *fwd_bytes;   /* peak device memory of the forward pass, with W and X; axis: fwd_bytes */
    double *bwd_bytes;   /* peak device memory of the backward pass, with W, dW, X, dX; axis: bwd_bytes */
    double update_cpu_s; /* seconds of an update on the host; 0: not measured */
    double update_gpu_s; /* seconds of an update on the device; 0: not measured */
};

struct table {
    char model[64], device[80]; /* names for people; "": not known */
    struct table_axis fwd, bwd, fwd_bytes, bwd_bytes, input;
    uint64_t link_bytes_per_s;      /* rate between host and all devices, in each direction; 0: not known */
    uint64_t peer_bytes_per_s;      /* between two devices; 0: not known */
    uint64_t host_copy_bytes_per_s; /* within host memory; 0: not known */
    uint32_t n_layers;
    struct table_layer *layers; /* layers in the order of the chain; the last is the loss */
    struct arena *arena;        /* owns all arrays, and this struct */
};

/* Reads a table from JSON of schema profile/v1. Accepts // comments. `name` stands for the text in
 * messages, for example a file name. Returns -EINVAL for text that is not a valid table. The caller
 * frees *ret with table_destroy. */
int table_parse(const char *text, size_t bytes, const char *name, struct table **ret, struct err *err);

/* Appends a table to `out` as one line of JSON, without a newline. */
void table_to_json(const struct table *t, struct strbuf *out);

/* Frees a table. Does nothing when `t` is NULL. */
void table_destroy(struct table *t);

/* The times and sizes of one layer at one micro-batch size, with the totals of the table
 * split into single tensors. */
struct table_point {
    uint64_t fwd_ns;        /* forward pass */
    uint64_t bwd_ns;        /* backward pass alone, without the repeated forward pass */
    uint64_t x;             /* bytes of the input */
    uint64_t fwd_work;      /* forward workspace: peak bytes less W, B, input and output */
    uint64_t s;             /* bytes that the forward pass saves: backward peak less W, dW, B, X and dX */
    uint64_t upd_host_ns;   /* update on the host; 0: not measured */
    uint64_t upd_device_ns; /* update on the device; 0: not measured */
};

/* Computes the values of a layer at a micro-batch size, by interpolation between the measured sizes. */
void table_at(const struct table *t, uint32_t layer, uint32_t micro_batch, struct table_point *ret);

/* Returns the largest micro-batch size at which both the forward and the backward pass were measured. */
uint32_t table_largest(const struct table *t);

#endif
