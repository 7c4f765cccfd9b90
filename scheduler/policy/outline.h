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

/* Times and sizes of all layers, from which outlines are estimated. The caller frees the model with
 * outline_model_destroy. */
struct outline_model;
/* Makes a model from a profile table. `sizes` lists the n_sizes micro-batch sizes of the model. */
struct outline_model *outline_model_table(const struct table *t, const struct machine *m,
                                          const uint32_t *sizes, uint32_t n_sizes);
/* Makes a model that has only one micro-batch size, that of the graph. */
struct outline_model *outline_model_graph(const struct graph *g, const struct profile *prof);
void outline_model_destroy(struct outline_model *m);

/* One outline. The fields up to save_last_packs describe the plan. outline_measure computes the other
 * fields from them. */
struct outline {
    /* Number of data-parallel devices. They divide the batch among them. */
    uint32_t n_devices;
    /* Micro-batch sizes of the three parts of the chain. */
    uint32_t rows, fused_rows, head_rows;
    /* First layers of the second and the third part. Without a third part, `head` is n_layers. */
    uint32_t fused, head;
    /* Number of layers in a pack. Layer 0 is always a pack by itself. */
    uint32_t pack;
    uint32_t pins; /* layers [0, pins) are pinned */
    uint32_t waves;
    /* Before layer `fused`, every save_every-th micro-batch saves S on the host. If 0, no micro-batch
     * does. */
    uint32_t save_every;
    /* Whether save_every includes the packs next to `fused`. The estimates ignore this field. */
    bool save_last_packs;
    uint64_t ns; /* estimated time of a step */
    /* Compute time of a device in one step. */
    uint64_t compute_ns;
    /* Number of bytes that all devices together move to and from the host in one step. */
    uint64_t host_bytes;
    uint64_t host_memory; /* bytes of host memory */
    /* Number of bytes that each device needs if nothing is retained. */
    uint64_t device_bytes;
};

/* The input of outline_list: the model, the machine, and the kind of outlines to list. */
struct outline_request {
    const struct outline_model *model;
    const struct machine *machine;
    uint32_t batch; /* rows of a step */
    /* The outlines use the first n_devices devices of the machine. */
    uint32_t n_devices;
    enum plan_objective objective;
    enum update_place update;
    /* If true, all outlines save S on the host. If false, none of them does. */
    bool save_on_host;
};

/* Lists the best outlines that should fit, best first. Returns the number of outlines, which is at most
 * `most`. */
uint32_t outline_list(const struct outline_request *q, struct outline *ret, uint32_t most);

/* Computes the estimates of an outline again. Called after other fields of the outline have changed. */
void outline_measure(const struct outline_request *q, struct outline *o);

/* Makes an outline smaller, because its plan exceeds a device by `excess` bytes. Returns false if nothing is
 * left to reduce. */
bool outline_shrink(const struct outline_request *q, struct outline *o, uint64_t excess);

/* Returns the number of micro-batches by which activations are fetched before their use. Spilled ones stay
 * longer by the same number. */
uint32_t outline_lead(const struct outline *o);
/* Sets ret[l] to the micro-batch size of layer l, for every layer. */
void outline_rows(const struct outline *o, uint32_t n_layers, uint32_t *ret);
/* Sets `starts` to the first layer of each pack, then to the end of the last. Returns the number of packs.
 * `starts` needs n_layers + 1 entries. */
uint32_t outline_packs(const struct outline *o, uint32_t *starts);

#endif
