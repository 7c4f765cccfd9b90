/* Outlines: what a data parallel plan (of one device or of several) would take and need, by arithmetic on sums of layers,
 * without building it. The search lists thousands of them, and builds the first few (search.h).
 *
 * An outline runs layers before `fused` pack by pack over all rows of a device, with micro-batches of `rows`, forward and,
 * after forwarding again, backward; layers from `fused` on are fused, with micro-batches of `fused_rows`, those from `head`
 * on of `head_rows`. Each size divides the one before. Layers below `pins` keep their state on the devices that share it.
 * The rows of a device may go through all that in `groups`, one after another.
 *
 * Estimates are a little pessimistic about memory and optimistic about time; whether a plan fits is known when it is
 * built. Pure.
 */
#ifndef SCHEDULER_POLICY_OUTLINE_H
#define SCHEDULER_POLICY_OUTLINE_H

#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/policy/policy.h"
#include "scheduler/profile.h"
#include "scheduler/table.h"

/* A model at several micro-batch sizes. */
struct outline_model;
struct outline_model *outline_model_table(const struct table *t, const struct machine *m,
                                          const uint32_t *sizes, uint32_t n_sizes);
struct outline_model *outline_model_graph(const struct graph *g,
                                          const struct profile *prof); /* its one size */
void outline_model_destroy(struct outline_model *m);

struct outline {
    uint32_t n_devices;                   /* devices, each with its part of the batch */
    uint32_t rows, fused_rows, head_rows; /* of micro-batches */
    uint32_t fused, head;                 /* layers; head is n_layers where all of the fused have one size */
    uint32_t pack;                        /* layers of a pack; the first is a pack of its own */
    uint32_t pins;
    uint32_t waves;
    uint32_t
        save_every; /* of the micro-batches before the fused layers, each keep-th saves S on the host; 0: none */
    bool save_last_packs; /* also in the packs next to the fused layers; the estimates do not know */
    uint64_t ns;          /* of an iteration */
    uint64_t compute_ns;  /* of these, what a device computes */
    uint64_t host_bytes;  /* to and from the host */
    uint64_t host_memory;
    uint64_t device_bytes; /* of each device */
};

struct outline_request {
    const struct outline_model *model;
    const struct machine *machine; /* as many devices as there are shares are used */
    uint32_t batch;                /* rows of a step */
    uint32_t n_devices;
    enum plan_objective objective;
    enum update_place update;
    bool save_on_host; /* list those that save S on the host, and only those */
};

/* The best outlines that fit, best first: at most `most`. Returns how many. */
uint32_t outline_list(const struct outline_request *q, struct outline *ret, uint32_t most);

/* Of one outline, again: time, bytes and need. */
void outline_measure(const struct outline_request *q, struct outline *o);

/* For a plan that turned out `excess` bytes too large: the same with smaller packs, fewer pins or fewer layers fused. False
 * when nothing is left to give. */
bool outline_shrink(const struct outline_request *q, struct outline *o, uint64_t excess);

/* Micro-batches that activations are fetched ahead, and held behind while they are spilled. */
uint32_t outline_lead(const struct outline *o);
/* Micro-batch size of every layer. */
void outline_rows(const struct outline *o, uint32_t n_layers, uint32_t *ret);
/* Pack k is layers [starts[k], starts[k + 1]); returns how many there are. */
uint32_t outline_packs(const struct outline *o, uint32_t *starts);

#endif
