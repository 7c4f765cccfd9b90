/* How a plan is built, inside scheduler/: the stages and what they hand to each other.
 *
 *   policy    -> struct order      which location computes which task, in which order, in which units
 *   merge     -> the same, in one issue order over all locations
 *   residency -> struct draft      segments (lifetimes of device copies), moves and drops between the tasks
 *   place     -> segment.addr      offline placement of the lifetimes
 *   paging    -> both at once      in place of residency and place (`lru`): a cache, replayed
 *   waits     -> draft waits       from data dependence and address reuse, transitively reduced
 *   build     -> struct plan       cycle and eval drafts, entry, flush, exit from the boundary, host offsets
 *
 * The idea that keeps the stages simple: everything is a position in ONE issue order. A copy lives from the
 * position that creates it to the position that drops it; two copies may share an address iff these ranges
 * are disjoint; and an instruction waits only for earlier positions (or for the cycle before). Overlap of
 * copies with compute is a matter of where a fetch or drop stands in that order: `lead` units before its
 * first use, `lead` after its last.
 */
#ifndef SCHEDULER_BUILD_BUILD_H
#define SCHEDULER_BUILD_BUILD_H

#include "base/vec.h"
#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/policy/policy.h"
#include "scheduler/profile.h"

/* ---- what a policy decides ---- */

/* What stays of the layers' state on the devices, and where updates are: on the device for layers that are pinned, on
 * the host for the others, unless the request says. */
bool updates_on_device(const struct plan_request *r, const bool *pinned, uint32_t layer);

#define SHARE_ALL UINT32_MAX

/* One task, or a share of it, to be done by one location. Units are numbered per location, ascending in its order: a span is a
 * pack's task (its W and dW stay while it lasts), an item one micro-batch's pass through it (its activations
 * stay). */
struct todo {
    enum instr_kind kind;
    uint32_t layer, micro;
    uint32_t loc; /* device or PLAN_HOST */
    uint32_t span, item;
    bool save;        /* FWD, REC: S is wanted */
    bool output;      /* FWD, REC: the output is wanted */
    uint32_t replica; /* RED */
    uint32_t share; /* RED, UPD: which; SHARE_ALL: all of it. order_share adds those, order_add whole tasks */
    uint32_t task;  /* in the graph; filled by order_add */
};

/* Data parallel: n_shares devices (of different groups) compute the same layer, each for its own replicas. Each owns a
 * share of the layer's state, a run of bytes: it fetches that from the host and sends it to the others, adds up its
 * share of the gradients, and updates it or brings it home. */
struct order {
    const struct graph *graph;
    uint32_t n_devices;
    uint32_t n_shares;      /* 1: every layer is computed by one device only */
    uint32_t *owners;       /* [layer][share]: device; NULL for one share */
    bool alone;             /* each device fetches all of W by itself, as Harmony does; the rest is shared */
    const bool *pinned;     /* per layer, or NULL: none */
    VEC(struct todo) todos; /* each location's in its own order; after order_merge in one issue order */
};

void order_init(struct order *o, const struct graph *g, uint32_t n_devices);
void order_finish(struct order *o);
/* How many devices can have the same number of replicas each. */
uint32_t order_replica_devices(const struct graph *g, uint32_t n_devices);
void order_own(struct order *o, uint32_t n_shares); /* shares, whose owners are to be filled in */
void order_add(struct order *o, struct todo t);
void order_share(struct order *o, struct todo t); /* nothing where the share is empty */
/* The forward tasks alone, for the eval program: nothing is saved. */
void order_forward_only(const struct order *o, const struct graph *eval, struct order *ret);
/* Interleaves the locations by list scheduling against the profile. -EINVAL if their orders contradict each
 * other. */
int order_merge(struct order *o, const struct profile *prof, struct err *err);

enum keep_rule {
    KEEP_UNIT, /* state within a span, activations within an item and into the next item of the device */
    KEEP_ALL,  /* everything until its last use; persistent state across cycles */
    KEEP_LRU,  /* what a cache with LRU eviction keeps; nothing across cycles */
};

struct knobs {
    enum keep_rule keep;
    const bool *pinned; /* KEEP_UNIT, per layer: W, K and B stay on their device for good; NULL: none does */
    bool retain;        /* KEEP_UNIT: what is left of the capacity keeps copies that would be fetched again */
    uint32_t lead_state; /* spans that W is fetched ahead and dW held behind */
    uint32_t lead_items; /* items that activations and K are fetched ahead and spilled outputs held behind */
    bool least_cache;    /* KEEP_LRU: the smallest cache that will do, not one of the device's size */
};

/* ---- pieces ---- */

/* Tensors are used, moved and placed as a whole or by pieces, which are runs of their bytes: of W, dW and B one for each
 * share (aligned; those of small tensors may be empty), of K one for each part and share (plan.h; part by part), of X and
 * dX those of the graph. */
uint32_t tensor_pieces(const struct graph *g, uint32_t n_shares, tensor_id t);
void tensor_piece(const struct graph *g, uint32_t n_shares, tensor_id t, uint32_t piece, uint64_t *ret_begin,
                  uint64_t *ret_end);

/* The n-th piece, or all of them. */
struct extent {
    uint32_t piece, n_pieces;
    uint64_t begin, end;
};
struct extent extent_whole(const struct graph *g, uint32_t n_shares, tensor_id t);
struct extent extent_piece(const struct graph *g, uint32_t n_shares, tensor_id t, uint32_t piece);

/* ---- drafts: a program before it has a plan around it ---- */

#define SEGMENT_NONE   UINT32_MAX
#define SEGMENT_UNBORN UINT32_MAX /* start of one that no instruction has created yet */

/* The life of one copy of a tensor, or of a piece of it, on one device. */
struct segment {
    tensor_id tensor;
    uint32_t device;
    struct extent of;
    uint32_t start,
        end;       /* positions in the program: created, dropped. One that never ends: 0, n-1; one that lives
                          * across cycles and not all the time: start > end */
    bool boundary; /* lives across cycles */
    bool dirty;    /* boundary only: the cycle writes it */
    uint64_t addr;
};

struct draft_operand {
    tensor_id tensor;
    uint32_t segment; /* SEGMENT_NONE: the host copy */
    enum access access;
    struct extent of; /* of the tensor, within the segment's */
};

struct draft {
    const struct graph *graph;
    uint32_t n_devices, n_shares;
    bool cyclic;
    VEC(struct plan_instr) instrs; /* operand ranges index `operands`, wait ranges `waits` */
    VEC(struct draft_operand) operands;
    VEC(struct plan_wait) waits;
    VEC(struct segment) segments;
    uint64_t peak[DEVICE_MAX];
};

void draft_finish(struct draft *d);
uint64_t segment_bytes(const struct segment *s); /* rounded up to PLAN_ALIGN */

/* A place where a copy was given up and fetched again, with the same value: what the memory between would save. */
struct gap {
    uint32_t use; /* of the task operands in issue order, the one that fetched: the name of the gap */
    uint32_t device;
    uint32_t from, to; /* positions: dropped, fetched; from > to: across the boundary of the cycle */
    uint64_t bytes;    /* of the copy */
    uint64_t gain;     /* bytes that would not move */
    bool retain;
};
typedef VEC(struct gap) gap_list;

/* Tasks in, tasks with moves and drops out. `o` is merged. `kept` (may be NULL, sorted by use): gaps of an earlier draft
 * of the same order and knobs; those marked are closed. ret_gaps (may be NULL) gets the gaps that are left. */
void draft_residency(struct draft *d, const struct order *o, const struct knobs *knobs, bool cyclic,
                     const gap_list *retained, gap_list *ret_gaps);
/* Marks gaps to keep so that the bytes saved are as many as possible, within what the draft leaves of `capacity`
 * (per device). */
void draft_retain(const struct draft *d, const uint64_t *capacity, gap_list *gaps);
/* The same for one device: room per position. Gaps that fit anywhere are marked. */
void retain_pack(struct gap *gaps, uint32_t n_gaps, const uint64_t *room, uint32_t n_positions);
/* Most bytes that are alive at once on a device. */
uint64_t draft_live_peak(const struct draft *d, uint32_t device);
/* Gives every segment an address; peak[] becomes the highest used. Never fails: whether it fits is the
 * caller's. Large drafts take less time with limits (per device; NULL: none): what lies within is good enough, and a peak
 * above its limit says only that less should be alive. */
void draft_place(struct draft *d, const uint64_t *limits);
/* Residency and addresses together, by replaying a cache. `o` is merged and has no REC. Where the capacity is
 * below what the largest task needs, the cache is as large as that: this never fails either. */
void draft_paging(struct draft *d, const struct order *o, const struct machine *m, bool least_cache,
                  bool cyclic);
void draft_waits(struct draft *d);

/* Writing a draft (draft.c), at its end. A task is followed by its uses; segments get their start from what
 * creates them and their end from their drop. */
void draft_put_task(struct draft *d, const struct todo *t);
void draft_put_use(struct draft *d, tensor_id tensor, uint32_t segment, enum access access, struct extent of);
/* Of what both ends have. A send within a device is a COPY. */
void draft_put_fetch(struct draft *d, uint32_t to, struct extent of);
void draft_put_spill(struct draft *d, uint32_t from, struct extent of);
void draft_put_send(struct draft *d, uint32_t from, uint32_t to, struct extent of);
void draft_put_drop(struct draft *d, uint32_t segment, enum lane lane);

/* Whether a task has this operand of its graph task: optional outputs may be left out. */
bool todo_uses(const struct todo *t, const struct graph_tensor *tensor, const struct graph_operand *op);
/* How many operands of the todo come of one of its graph task: that of K becomes one for each part of a share. */
uint32_t todo_extents(const struct order *o, const struct todo *t, const struct graph_operand *op);
struct extent todo_extent(const struct order *o, const struct todo *t, const struct graph_operand *op,
                          uint32_t i);
/* Results: they have to be on the host at the end of the step. */
bool trainer_reads(const struct graph_tensor *t);

/* ---- plans ---- */

/* What a plan takes of the machine, and of whoever plans. */
struct plan_need {
    uint64_t device_bytes;     /* highest address over devices and programs */
    uint64_t peak[DEVICE_MAX]; /* the same by device */
    uint64_t host_bytes;
    bool devices_fit; /* if there is no plan, then for lack of host memory */
    uint64_t
        work; /* time that building took, in instructions of one device; one of many devices counts for more */
};
/* Everything after the policy: merges, drafts both programs, places, and makes the plan when it fits the machine. When it
 * does not fit, *ret is NULL and ret_need has what it would take. `ret` may be NULL: only the need is wanted. */
int plan_build(const struct plan_request *request, const char *policy, struct order *cycle,
               const struct knobs *knobs, const struct profile *prof, struct plan **ret,
               struct plan_need *ret_need, struct err *err);

struct outline;
/* The plan of an outline (outline.h), whose graph is the request's. */
int plan_outline(const struct plan_request *r, const struct outline *o, const struct profile *prof,
                 struct plan **ret, struct plan_need *ret_need, struct err *err);

/* ---- policies ---- */

/* One way a policy can try. */
struct candidate {
    uint32_t packs_fwd, packs_bwd; /* Harmony's; 0: not its packs */
    uint32_t packs;                /* auto: of the layers before the fused segment */
    const uint32_t *starts;        /* auto: pack k is layers [starts[k], starts[k + 1]); NULL: layer k */
    uint32_t fused;                /* auto: first layer of the fused segment */
    bool onward;    /* auto: the backward packs go on around the devices as the forward ones did */
    uint32_t waves; /* auto: parts of the batch that go through the chain one after another */
    uint32_t teams; /* auto: groups of devices, data parallel; 0 or 1: all are one pipeline */
    bool single;    /* auto: each group is one device, even if there are more */
    uint32_t unit;  /* auto: rows of the largest micro-batch */
    bool snake;     /* auto: struct passes, as the next */
    uint32_t save_every;
    bool save_last_packs; /* auto: in all packs */
    struct knobs knobs;
};

/* Tries a candidate and remembers it if it fits and is the best so far. 1: it fits the devices (whether it
 * fits the host says nothing about candidates with fewer packs), 0: it does not, negative: error. */
struct trial {
    int (*run)(struct trial *t, const struct candidate *c);
    const struct profile *profile;
    struct plan_need need; /* of the last candidate */
    uint64_t cost;         /* of the last candidate that fitted: less is better; UINT64_MAX when it did not */
    bool best;             /* the last candidate is the best so far */
    bool moves_data_only;  /* the last candidate: neither state nor stash */
    uint64_t spent;        /* tasks of all candidates so far: what the search has taken */
    uint64_t work;         /* the same as plan_need.work: what the search has taken in time */
    bool cut_short;        /* candidates were passed over because of that */
};

struct policy {
    const char *name;
    enum update_place default_update; /* what UPDATE_AUTO means */
    /* Tries what is worth trying; the leanest candidate is among it. Returns 0 or the trial's error. */
    int (*search)(const struct plan_request *r, struct trial *t);
    void (*leanest)(const struct plan_request *r, struct candidate *ret);
    /* The task order of a candidate. r->update is resolved. */
    void (*order)(const struct plan_request *r, const struct profile *prof, const struct candidate *c,
                  struct order *ret);
};

#define POLICY(id, name) extern const struct policy policy_##id;
#include "scheduler/policy/policies.def"
#undef POLICY

/* Exact min-max partition of layers [first, last) into `count` runs by time: starts[0..count], starts[count] = last.
 * count is at most last - first. The time of a layer is one backward and `forwards` forwards: with recomputation two.
 * Returns the longest run's. */
uint64_t partition_layers(const struct profile *prof, uint32_t forwards, uint32_t first, uint32_t last,
                          uint32_t count, uint32_t *starts);

/* Layers whose gradients a device has done, and that are not settled yet; in the order in which they were done. */
struct pass_open {
    uint32_t *layers, first, n;
    uint64_t ns; /* that their exchange has had so far */
};

/* Passes through packs: what policies make their orders of. Each is a span of its device; every micro-batch is an item.
 * With shares, the gradients that a pass has finished are exchanged while the next ones run, and settled when that has had
 * the time that it takes. */
struct passes {
    struct order *o;
    const struct plan_request *r;
    const struct profile *prof;
    uint32_t
        save_every; /* of the micro-batches of forward passes, each keep-th saves S, and is not forwarded again; 0: none */
    uint32_t save_end; /* but only in packs of layers before this one */
    bool snake;        /* every other forward pass of a device takes the micro-batches in descending order */
    uint32_t next_span[DEVICE_MAX], next_item[DEVICE_MAX];
    uint32_t last_span[DEVICE_MAX];
    bool back[DEVICE_MAX]; /* the next forward pass descends */
    struct pass_open open[DEVICE_MAX];
    uint32_t *bwd_device; /* per layer */
};

void passes_begin(struct passes *p, struct order *o, const struct plan_request *r,
                  const struct profile *prof);
/* Layers [first, last) of rows [from, to) of the batch; with shares, of those of one group of devices. Forward: nothing is
 * saved, but for `keep`. Backward: forward again inside the pack, then backward. Both: layers of one micro-batch size. Fused: forward,
 * and at once backward, of one micro-batch after another; the sizes do not grow from layer to layer. */
void pass_forward(struct passes *p, uint32_t first, uint32_t last, uint32_t from, uint32_t to,
                  uint32_t device);
void pass_backward(struct passes *p, uint32_t first, uint32_t last, uint32_t from, uint32_t to,
                   uint32_t device);
void pass_fused(struct passes *p, uint32_t first, uint32_t last, uint32_t from, uint32_t to, uint32_t device);
void passes_end(struct passes *p); /* the updates that wait for a decision */

/* Tries Harmony's packs, the fewest that fit; with retention in what memory they leave, or without. */
int harmony_search(const struct plan_request *r, struct trial *t, bool retain);
/* Harmony's packs, packs_fwd and packs_bwd of a candidate, of rows [from, to) on n devices from this one on, in turn. */
void harmony_passes(struct passes *p, const struct candidate *c, uint32_t from, uint32_t to, uint32_t device,
                    uint32_t n);

/* The update part of an order, the same in every policy: without a decision updates follow their gradients at
 * once; with one, norms do, and all updates come last, in ascending layer order so that the next cycle can
 * start early. A policy calls order_begin first: it adds the DECIDE that waits for no gradient, which every update of the
 * step reads. It calls order_gradients_done after every backward pass of layers [first, last), with the
 * micro-batch and the item of that pass, which is advanced (each update on a device is an item of its own, so that K
 * comes just in time), and order_updates once at the end. What a replica has summed is added to replica 0's when it is
 * complete. */
void order_begin(struct order *o);
void order_gradients_done(struct order *o, const struct plan_request *r, uint32_t first, uint32_t last,
                          uint32_t micro, uint32_t device, uint32_t span, uint32_t *item);
void order_updates(struct order *o, const struct plan_request *r, const uint32_t *bwd_device,
                   uint32_t *next_span, uint32_t *next_item);

#endif
