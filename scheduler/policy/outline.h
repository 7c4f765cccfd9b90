/* Outlines: estimates of the time and memory of data-parallel plans, made without building them.
 *
 * An outline describes a plan for one device, or for several devices that each process their part of the
 * batch. Its estimates are arithmetic on sums over layers and take microseconds, where building a plan takes
 * milliseconds. So a search can list thousands of outlines and build only the best few (profile_search.h,
 * policy_auto.c).
 *
 * An outline divides the chain into three parts, each with its own micro-batch size:
 *
 *     layers [0, fused)      in packs, with micro-batches of `rows`; backward passes recompute S
 *     layers [fused, head)   fused, with micro-batches of `fused_rows`: forward and at once backward
 *     layers [head, n)       fused as well, with micro-batches of `head_rows`
 *
 * Each size divides the previous one. The state of the layers below `pins` never leaves the devices that
 * share it. The rows of a device may go through the whole chain in several waves.
 *
 * Accuracy: compute time is exact, except where S is saved on the host. The time of a step is optimistic, as
 * it is the longest of several activities that are assumed to overlap. Device memory is within a few percent
 * for one device. For several devices it is on average a tenth too low, and at worst three tenths, because a
 * device holds gradients longer than assumed. So an outline that seems to fit may not fit once it is built;
 * outline_shrink then makes it smaller. tests/unit/test_outline.c compares the estimates with built plans.
 *
 * All functions are pure.
 */
#ifndef SCHEDULER_POLICY_OUTLINE_H
#define SCHEDULER_POLICY_OUTLINE_H

#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/policy/policy.h"
#include "scheduler/profile.h"
#include "scheduler/table.h"

/* Times and sizes of all layers of a model at several micro-batch sizes, as sums that outlines are computed
 * from. The caller destroys it with outline_model_destroy. */
struct outline_model;
/* Makes a model from a profile table, at the n_sizes given micro-batch sizes. */
struct outline_model *outline_model_table(const struct table *t, const struct machine *m,
                                          const uint32_t *sizes, uint32_t n_sizes);
/* Makes a model that has only the micro-batch size of the graph. */
struct outline_model *outline_model_graph(const struct graph *g, const struct profile *prof);
void outline_model_destroy(struct outline_model *m);

/* One outline. The fields up to save_last_packs describe the plan. outline_measure computes the other fields
 * from them. */
struct outline {
    uint32_t n_devices;                   /* data-parallel devices that divide the batch among them */
    uint32_t rows, fused_rows, head_rows; /* micro-batch sizes of the three parts of the chain */
    uint32_t fused, head; /* first layers of the second and third part; head = n_layers: no third part */
    uint32_t pack;        /* layers in a pack; but layer 0 is a pack by itself */
    uint32_t pins;        /* layers [0, pins) are pinned */
    uint32_t waves;
    uint32_t save_every;   /* before `fused`, every save_every-th micro-batch saves S on the host; 0: none */
    bool save_last_packs;  /* save_every includes the packs next to `fused`; the estimates ignore this */
    uint64_t ns;           /* estimated time of a step */
    uint64_t compute_ns;   /* time in which a device computes during a step */
    uint64_t host_bytes;   /* moved to and from the host in a step, by all devices together */
    uint64_t host_memory;  /* bytes of host memory */
    uint64_t device_bytes; /* memory that each device needs, when nothing is retained */
};

/* The input of outline_list: the model, the machine, and which outlines are wanted. */
struct outline_request {
    const struct outline_model *model;
    const struct machine *machine;
    uint32_t batch;     /* rows of a step */
    uint32_t n_devices; /* uses the first n_devices devices of the machine */
    enum plan_objective objective;
    enum update_place update;
    bool save_on_host; /* true: list only outlines that save S on the host; false: only those that do not */
};

/* Fills `ret` with the best outlines that fit by their estimates, best first. Returns their number, at most
 * `most`. */
uint32_t outline_list(const struct outline_request *q, struct outline *ret, uint32_t most);

/* Computes the estimates of one outline again, after its other fields have changed. */
void outline_measure(const struct outline_request *q, struct outline *o);

/* Shrinks an outline whose plan exceeds the capacity of a device by `excess` bytes: it gets smaller packs,
 * fewer pins or fewer fused layers. Returns false if nothing is left to reduce. */
bool outline_shrink(const struct outline_request *q, struct outline *o, uint64_t excess);

/* Returns the lead of activations: the number of micro-batches by which they are fetched early, and by which
 * they are dropped late while they are spilled. */
uint32_t outline_lead(const struct outline *o);
/* Sets ret[l] to the micro-batch size of layer l, for every layer. */
void outline_rows(const struct outline *o, uint32_t n_layers, uint32_t *ret);
/* Returns the number of packs and fills `starts`, which needs n_layers + 1 entries: pack k is layers
 * [starts[k], starts[k + 1]). */
uint32_t outline_packs(const struct outline *o, uint32_t *starts);

#endif
