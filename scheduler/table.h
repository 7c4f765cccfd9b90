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
#include "kernels/dtype.h"

#define TABLE_MAX_LAYERS  100000
#define TABLE_MAX_SAMPLES 4096 /* most micro-batch sizes of an axis */
#define TABLE_MAX_PARTS   64   /* most parts of a layer's optimizer state */

/* The micro-batch sizes for which there are measurements, in ascending order. There is one measurement for
 * each size. */
struct table_axis {
    uint32_t n;
    uint32_t *sizes;
};

/* The measurements of one layer. Each array belongs to one axis (list of micro-batch sizes) of struct table,
 * and has one element for each size of this axis. */
struct table_layer {
    /* Whether the layer is tied: it uses the weights of layer `owner`. A tied layer has no optimizer
     * state. */
    bool tied;
    /* Tied layers only: the earlier layer that owns the weights. */
    uint32_t owner;
    uint64_t w, b, k; /* bytes of weights, buffers and optimizer state */
    /* Bytes of each part of the optimizer state, which together are `k`. For example, AdamW has two parts,
     * each as large as `w`. NULL means that the optimizer state is one part, or that there is none. */
    uint64_t *k_parts;
    uint32_t n_k_parts;  /* 0 if `k_parts` is NULL */
    double *input_bytes; /* axis: input */
    double *fwd_s;       /* seconds of the forward pass; axis: fwd */
    /* Duration of the backward pass in seconds, including a repeated forward pass. One element per size of
     * axis `bwd`. */
    double *bwd_s;
    /* Peak of device memory in the forward pass, in bytes, including W and X. One element for each size of
     * axis `fwd_bytes`. */
    double *fwd_bytes;
    /* Peak of device memory in the backward pass, in bytes, including W, dW, X and dX. One element for each
     * size of axis `bwd_bytes`. */
    double *bwd_bytes;
    /* Duration of a weight update on the host, in seconds. 0 if it was not measured. */
    double update_cpu_s;
    /* Duration of a weight update on the device, in seconds. 0 if it was not measured. */
    double update_gpu_s;
};

struct table {
    char model[64], device[80]; /* names for people; "": not known */
    /* The type of the weights and activations that were measured: DTYPE_F32, DTYPE_BF16 or DTYPE_F16. The
     * gradients of weights are floats in every case, so the type determines their size. */
    enum dtype dtype;
    struct table_axis fwd, bwd, fwd_bytes, bwd_bytes, input;
    /* Total rate between the host and all devices, for each direction. 0 if the rate is not known. */
    uint64_t link_bytes_per_s;
    uint64_t peer_bytes_per_s;      /* between two devices; 0: not known */
    uint64_t host_copy_bytes_per_s; /* within host memory; 0: not known */
    uint32_t n_layers;
    /* The layers of the model, in the order of the forward pass. The last layer is the loss. */
    struct table_layer *layers;
    struct arena *arena; /* owns all arrays, and this struct */
};

/* Reads a table from JSON text, which may contain // comments. `name` is the name of the text in error
 * messages. The caller frees *ret with table_destroy. */
int table_parse(const char *text, size_t bytes, const char *name, struct table **ret, struct err *err);

/* Appends a table to `out` as JSON on a single line, without a newline at the end. */
void table_to_json(const struct table *t, struct strbuf *out);

/* Returns the size in bytes of the gradient dW of a layer. dW has one float for each weight. */
uint64_t table_dw(const struct table *t, uint32_t layer);

/* Frees a table and everything in it. Does nothing if `t` is NULL. */
void table_destroy(struct table *t);

/* The times and sizes of one layer at one micro-batch size. The sizes of single tensors are derived from the
 * table's peaks of memory use. */
struct table_point {
    uint64_t fwd_ns; /* forward pass */
    /* Time of the backward pass alone. Unlike bwd_s in the table, it does not include a repeated forward
     * pass. */
    uint64_t bwd_ns;
    uint64_t x; /* bytes of the input */
    /* Working memory of the forward pass in bytes: the measured peak minus W, B, the input and the output. */
    uint64_t fwd_work;
    /* Size of the values that the forward pass saves, in bytes: the measured peak of the backward pass, minus
     * W, dW, B, X and dX. */
    uint64_t s;
    uint64_t upd_host_ns;   /* update on the host; 0: not measured */
    uint64_t upd_device_ns; /* update on the device; 0: not measured */
};

/* Computes the times and sizes of a layer at any micro-batch size, by interpolating between the measured
 * sizes. */
void table_at(const struct table *t, uint32_t layer, uint32_t micro_batch, struct table_point *ret);

/* Returns the largest micro-batch size that was measured for both the forward and the backward pass. */
uint32_t table_largest(const struct table *t);

#endif
