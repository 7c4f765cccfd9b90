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

#include "scheduler/build/build.h"
#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/policy/policy.h"
#include "scheduler/profile.h"
#include "scheduler/table.h"

/* The times and sizes of all layers of a network, from which outlines are estimated. The caller frees the
 * model with outline_model_destroy. */
struct outline_model;
/* Makes a model from a profile table. Outlines of the model can use the n_sizes micro-batch sizes in
 * `sizes`. */
struct outline_model *outline_model_table(const struct table *t, const struct machine *m,
                                          const uint32_t *sizes, uint32_t n_sizes);
/* Makes a model from a graph. Outlines of the model can use only the micro-batch size of the graph. */
struct outline_model *outline_model_graph(const struct graph *g, const struct profile *prof);
void outline_model_destroy(struct outline_model *m);

/* Returns a time that no training step of a chain can beat, whatever the plan. This is the longer of two
 * times: the compute of all rows divided evenly among the devices, and the compute of one micro-batch through
 * the whole chain and back. Uses the first micro-batch size of the model. */
uint64_t outline_floor_ns(const struct outline_model *m, const struct machine *machine, uint32_t batch);

/* One outline. The fields from n_devices to save_last_packs describe a plan. From these, outline_measure
 * computes the remaining fields, which are estimates. */
struct outline {
    /* Number of devices. Each device processes an equal part of the batch (data parallelism). */
    uint32_t n_devices;
    /* Micro-batch sizes of the three parts of the chain: packs, fused layers and head. */
    uint32_t rows, fused_rows, head_rows;
    /* First layer of the fused part, and first layer of the head. Without a head, `head` equals n_layers. */
    uint32_t fused, head;
    /* Number of layers in a pack. Layer 0 always has a pack of its own. */
    uint32_t pack;
    uint32_t pins; /* layers [0, pins) are pinned */
    uint32_t waves;
    /* How many micro-batches save their values for the backward pass (S) on the host, in the layers before
     * `fused`. All others recompute them. */
    struct save_rate save;
    /* Whether waves overlap (candidate.h). Only on one device. */
    bool overlap;
    uint32_t lead; /* used only with `overlap`: knobs.lead_items */
    /* Whether `save` also applies to the last packs, just before layer `fused`. The estimates ignore this
     * field. */
    bool save_last_packs;
    uint64_t ns; /* estimated time of a step */
    /* How long a device computes in one training step. */
    uint64_t compute_ns;
    /* Number of bytes that all devices together move from and to the host in one training step. */
    uint64_t host_bytes;
    uint64_t host_memory; /* bytes of host memory */
    /* Number of bytes of memory that each device needs if no copies are retained. */
    uint64_t device_bytes;
};

/* Whether the listed outlines save values for the backward pass (S) on the host. */
enum outline_saving {
    SAVING_NONE,  /* they recompute these values */
    SAVING_WAVES, /* some micro-batches save them */
    /* Some micro-batches save them, and waves overlap. Only for one device: with several, each has a part of
     * the links, and the moves of S hold up those of the state. */
    SAVING_OVERLAP,
};

/* The input of outline_list: the model, the machine, and which outlines to list. */
struct outline_request {
    const struct outline_model *model;
    const struct machine *machine;
    uint32_t batch; /* rows of a step */
    /* Number of devices in an outline. It uses the machine's devices 0 to n_devices - 1. */
    uint32_t n_devices;
    enum plan_objective objective;
    enum update_place update;
    enum outline_saving saving;
};

/* Lists the best outlines that should fit into memory, the best first. Returns the number of listed outlines,
 * at most `most`. */
uint32_t outline_list(const struct outline_request *q, struct outline *ret, uint32_t most);

/* Computes the estimates of an outline. Must be called again after a field that describes the plan has
 * changed. */
void outline_measure(const struct outline_request *q, struct outline *o);

/* Makes an outline smaller after its plan needed `excess` bytes more than a device has. Returns false if
 * nothing is left that could be reduced. */
bool outline_shrink(const struct outline_request *q, struct outline *o, uint64_t excess);

/* Lets more micro-batches of an outline with overlapping waves save S, or fewer. Returns false if all of them
 * already do, or almost none. */
bool outline_save(const struct outline_request *q, struct outline *o, bool more);

/* Returns by how many micro-batches activations are fetched before their use. Activations that are spilled
 * stay on the device for the same number of micro-batches. */
uint32_t outline_lead(const struct outline *o);
/* Sets ret[l] to the number of rows in a micro-batch of layer l, for every layer. */
void outline_rows(const struct outline *o, uint32_t n_layers, uint32_t *ret);
/* Sets starts[k] to the first layer of pack k. After the n packs, sets starts[n] to the end of the last pack.
 * Returns n. `starts` must have space for n_layers + 1 entries. */
uint32_t outline_packs(const struct outline *o, uint32_t *starts);

#endif
