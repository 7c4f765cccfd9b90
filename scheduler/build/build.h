/* How a plan is built: the stages inside scheduler/, and the structs that one stage hands to the next.
 *
 *   policy     makes a struct order: which location computes which task, in which sequence
 *   merge      interleaves the locations of an order into one issue order
 *   residency  makes a struct draft: device copies (segments), with moves and drops between the tasks
 *   place      gives every segment of a draft an address
 *   paging     replaces residency and place for the policy `lru`: it replays a cache
 *   waits      adds waits to a draft, from data dependences and from the reuse of addresses
 *   build      makes a struct plan from the drafts of cycle and eval; the programs entry, flush and exit
 *              follow from the copies that live across cycles
 *
 * One idea keeps the stages simple: every event is a position in ONE issue order. A copy lives from the
 * position that creates it to the position that drops it. Two copies may share an address if and only if
 * these ranges are disjoint. An instruction waits only for earlier positions, or for the previous cycle.
 *
 * Moves overlap with compute only because of where they stand in the issue order: a fetch stands `lead` units
 * before its first use, and a drop `lead` units after its last.
 */
#ifndef SCHEDULER_BUILD_BUILD_H
#define SCHEDULER_BUILD_BUILD_H

#include "base/vec.h"
#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/policy/policy.h"
#include "scheduler/profile.h"

/* ---- the order of tasks, which a policy decides ---- */

/* Returns whether the update of `layer` runs on a device. UPDATE_DEVICE and UPDATE_HOST decide this for all
 * layers. Under UPDATE_AUTO, pinned layers are updated on their device and all other layers on the host.
 * `pinned` has one entry per layer; NULL means that no layer is pinned. */
bool updates_on_device(const struct plan_request *r, const bool *pinned, uint32_t layer);

#define SHARE_ALL UINT32_MAX /* value of todo.share for a task that is not divided into shares */

/* One entry of an order: a task, or one share of a task, that one location executes.
 *
 * Todos of a device are grouped into units, which decide how long copies stay. A span is a pack's task: W and
 * dW of the pack stay on the device until the span ends. An item is one micro-batch's pass through the pack:
 * its activations stay until the item ends. Both are numbered per location, in ascending order of execution.
 * Example: a forward pass of layers 4..5 over three micro-batches is one span with three items, of two FWD
 * todos each. */
struct todo {
    enum instr_kind kind;
    uint32_t layer, micro;
    uint32_t loc; /* device or PLAN_HOST */
    uint32_t span, item;
    bool save;        /* FWD, REC: the task writes S */
    bool output;      /* FWD, REC: the task writes its output */
    uint32_t replica; /* RED: the replica whose gradient is added to replica 0's */
    uint32_t share;   /* RED, UPD: number of the share, or SHARE_ALL */
    uint32_t task;    /* index in the graph; order_add and order_share fill it in */
};

/* The sequence of tasks for every location: the result of a policy, and the input of all later stages.
 *
 * In a data-parallel order, n_shares devices compute the same layer, each for its own replicas, and each
 * owns one share of the layer's state: a contiguous range of bytes. The owner fetches its share from the
 * host and sends it to the other devices. It also adds up its share of the gradients, and then updates the
 * share or spills it to the host. Example: with two devices, a W of 1 MB has two shares of 512 KB, and each
 * device fetches 512 KB from the host and the other 512 KB from its peer. */
struct order {
    const struct graph *graph;
    uint32_t n_devices;
    uint32_t n_shares;  /* number of shares of each layer; 1 if every layer is computed by one device only */
    uint32_t *owners;   /* [layer][share]: the device that owns the share; NULL when n_shares is 1 */
    bool alone;         /* each device fetches all of W from the host, as in Harmony; dW and K are shared */
    const bool *pinned; /* per layer: its state never leaves its device; NULL: no layer is pinned */
    VEC(struct todo) todos; /* in issue order after order_merge; until then only each location is in order */
};

/* Initialises an empty order for n_devices devices, with n_shares 1. order_finish frees it. */
void order_init(struct order *o, const struct graph *g, uint32_t n_devices);
void order_finish(struct order *o);
/* Returns the largest number of devices, at most n_devices, that divides the graph's replicas evenly. */
uint32_t order_replica_devices(const struct graph *g, uint32_t n_devices);
/* Divides the state of every layer into n_shares shares. The caller fills in o->owners afterwards. */
void order_own(struct order *o, uint32_t n_shares);
/* Appends a whole task: sets share to SHARE_ALL. */
void order_add(struct order *o, struct todo t);
/* Makes *ret the order of the eval program: only the forward tasks of `o`, none of which saves S. */
void order_forward_only(const struct order *o, const struct graph *eval, struct order *ret);
/* Interleaves the todos of all locations into one issue order, by list scheduling with the profile's
 * durations. Returns -EINVAL when the orders of the locations contradict each other. */
int order_merge(struct order *o, const struct profile *prof, struct err *err);

/* The rule that says how long a copy stays on a device after a task has used it. */
enum keep_rule {
    KEEP_UNIT, /* state stays until its span ends, activations until the device's next item ends */
    KEEP_ALL,  /* every copy stays until its last use, and W, K and B across cycles */
    KEEP_LRU,  /* a copy stays until an LRU cache would evict it; the cache is empty between cycles */
};

/* The parameters of a candidate that are about memory rather than about the task order. Residency and paging
 * read them. More lead hides more moves behind compute, and needs more memory. */
struct knobs {
    enum keep_rule keep;
    const bool *pinned;  /* KEEP_UNIT: layers whose W, K and B never leave their device; NULL: none */
    bool retain;         /* KEEP_UNIT: use memory that is left over to avoid fetching copies again */
    uint32_t lead_state; /* spans by which W is fetched early and dW is dropped late */
    uint32_t lead_items; /* items by which activations and K are fetched early and outputs dropped late */
    bool least_cache;    /* KEEP_LRU: use the smallest cache that suffices instead of the whole device */
};

/* ---- pieces ---- */

/* Returns the number of pieces that tensor `t` is cut into. Tensors are used, moved and placed whole or
 * piece by piece. W, dW and B have one piece per share; the pieces of a small tensor may be empty. K has
 * one piece per part and share, the shares of the first part first. X and dX have the pieces that the
 * graph gives them. */
uint32_t tensor_pieces(const struct graph *g, uint32_t n_shares, tensor_id t);
/* Sets *ret_begin and *ret_end to the byte range of a piece of tensor `t`. */
void tensor_piece(const struct graph *g, uint32_t n_shares, tensor_id t, uint32_t piece, uint64_t *ret_begin,
                  uint64_t *ret_end);

/* A byte range of a tensor together with the pieces it consists of: either one piece or the whole tensor. */
struct extent {
    uint32_t piece, n_pieces; /* number of the first piece, number of pieces */
    uint64_t begin, end;      /* bytes of the tensor */
};
struct extent extent_whole(const struct graph *g, uint32_t n_shares, tensor_id t);
struct extent extent_piece(const struct graph *g, uint32_t n_shares, tensor_id t, uint32_t piece);

/* ---- drafts ---- */

#define SEGMENT_NONE   UINT32_MAX /* no segment; as the segment of an operand: the copy in host memory */
#define SEGMENT_UNBORN UINT32_MAX /* value of segment.start until an instruction creates the segment */

/* The life of one copy of a tensor, or of one piece of it, on one device. Residency or paging makes the
 * segments of a draft, and placement gives them addresses. */
struct segment {
    tensor_id tensor;
    uint32_t device;
    struct extent of;
    /* Positions of the instructions that create and drop the copy. A copy that is never dropped has 0 and
     * n - 1. A copy that lives across the end of the cycle, but not all the time, has start > end. */
    uint32_t start, end;
    bool boundary; /* the copy is alive at the boundary between two cycles */
    bool dirty;    /* boundary only: the cycle writes the copy, so flush must spill it */
    uint64_t addr; /* offset in the device's memory */
};

/* An operand of an instruction of a draft. */
struct draft_operand {
    tensor_id tensor;
    uint32_t segment; /* SEGMENT_NONE: the host copy */
    enum access access;
    struct extent of; /* a part of the tensor; it lies within the segment's extent */
};

/* A program under construction: its instructions use segments where those of a plan use addresses. Residency
 * or paging fills it, placement and waits complete it, plan_build copies it into the plan and frees it. */
struct draft {
    const struct graph *graph;
    uint32_t n_devices, n_shares;
    bool cyclic;                   /* the program repeats: copies may live across its end */
    VEC(struct plan_instr) instrs; /* their operand ranges index `operands`, their wait ranges `waits` */
    VEC(struct draft_operand) operands;
    VEC(struct plan_wait) waits;
    VEC(struct segment) segments;
    uint64_t peak[DEVICE_MAX]; /* highest address used on each device */
};

void draft_finish(struct draft *d);
uint64_t segment_bytes(const struct segment *s); /* rounded up to PLAN_ALIGN */

/* A stretch of the program between the drop of a copy and the fetch of the same value again. Residency lists
 * the gaps of a draft; draft_retain chooses the gaps to close. Closing a gap means that the copy stays: this
 * takes `bytes` of memory from position `from` to position `to`, and saves `gain` bytes of moves.
 *
 * Example: W of layer 3 (4 MB) is dropped at position 40 and fetched again at position 90. The gap is
 * {from 40, to 90, bytes 4 MB, gain 4 MB}. If the copy had also been spilled just for that fetch, the gain
 * would be 8 MB. */
struct gap {
    uint32_t use; /* identifies the gap: index of the operand use that caused the fetch, in issue order */
    uint32_t device;
    uint32_t from, to; /* positions of drop and fetch; from > to: across the boundary of the cycle */
    uint64_t bytes;    /* size of the copy */
    uint64_t gain;     /* bytes that would not move if the copy stayed */
    bool retain;       /* chosen: the copy stays */
};
typedef VEC(struct gap) gap_list;

/* Makes a draft from a merged order: adds moves and drops between its tasks. `retained` (may be NULL, sorted
 * by use) holds gaps of an earlier draft of the same order and knobs; the gaps marked `retain` are closed.
 * ret_gaps (may be NULL) gets the gaps that remain. */
void draft_residency(struct draft *d, const struct order *o, const struct knobs *knobs, bool cyclic,
                     const gap_list *retained, gap_list *ret_gaps);
/* Marks the gaps to retain, so that as many bytes as possible are saved. The gaps of a device have to fit
 * into the part of capacity[device] that the draft leaves free. */
void draft_retain(const struct draft *d, const uint64_t *capacity, gap_list *gaps);
/* Marks the gaps of one device that are worth retaining. free_bytes[p] is the free memory at position p. A
 * gap that takes no memory at any position is always retained. */
void retain_pack(struct gap *gaps, uint32_t n_gaps, const uint64_t *free_bytes, uint32_t n_positions);
/* Returns the largest number of bytes that are alive at the same position on a device. */
uint64_t draft_live_peak(const struct draft *d, uint32_t device);
/* Gives every segment an address and sets d->peak. It never fails: the caller compares the peaks with the
 * capacities. `limits` (per device, may be NULL) makes large drafts quicker to place. Any placement within
 * the limit is then accepted, and a peak above the limit only tells the caller to keep fewer bytes alive. */
void draft_place(struct draft *d, const uint64_t *limits);
/* Makes a draft with addresses from a merged order that has no REC, by replaying an LRU cache per device. It
 * never fails: a cache is at least as large as the largest task of its device, even beyond the capacity. */
void draft_paging(struct draft *d, const struct order *o, const struct machine *m, bool least_cache,
                  bool cyclic);
/* Adds the waits to a draft whose segments have addresses. The result has no redundant waits. */
void draft_waits(struct draft *d);

/* The functions draft_put_* append to a draft (draft.c). draft_put_task is followed by one draft_put_use for
 * each operand. A segment gets its start from the first instruction that writes it, and its end from its
 * drop. */
void draft_put_task(struct draft *d, const struct todo *t);
void draft_put_use(struct draft *d, tensor_id tensor, uint32_t segment, enum access access, struct extent of);
/* A move carries the extent `of`, which must lie within both its source and its destination. If both segments
 * are on the same device, draft_put_send appends a COPY. */
void draft_put_fetch(struct draft *d, uint32_t to, struct extent of);
void draft_put_spill(struct draft *d, uint32_t from, struct extent of);
void draft_put_send(struct draft *d, uint32_t from, uint32_t to, struct extent of);
void draft_put_drop(struct draft *d, uint32_t segment, enum lane lane);

/* Returns whether a todo uses operand `op` of its graph task: FWD and REC may leave out optional outputs. */
bool todo_uses(const struct todo *t, const struct graph_tensor *tensor, const struct graph_operand *op);
/* Returns the number of operands that a todo has for operand `op` of its graph task. It is 1, except that a
 * share of an update has one operand for each part of K. */
uint32_t todo_extents(const struct order *o, const struct todo *t, const struct graph_operand *op);
/* Returns the extent of the i-th operand that a todo has for operand `op`; see todo_extents. */
struct extent todo_extent(const struct order *o, const struct todo *t, const struct graph_operand *op,
                          uint32_t i);
/* Returns whether the trainer reads the tensor (RESULT, DECISION): it must be on the host after the step. */
bool trainer_reads(const struct graph_tensor *t);

/* ---- plans ---- */

/* The resources that a candidate needs. plan_build reports them whether or not the candidate fits. */
struct plan_need {
    uint64_t device_bytes;     /* highest address on any device, in the cycle or in eval */
    uint64_t peak[DEVICE_MAX]; /* highest address on each device */
    uint64_t host_bytes;
    bool devices_fit; /* device memory suffices; if there is no plan, host memory is too small */
    uint64_t work;    /* time spent building: instructions, weighted up when there are many devices */
};
/* Runs every stage after the policy: merges `cycle`, drafts and places both programs, and makes a plan if
 * they fit the machine. If they do not fit, *ret is NULL, ret_need says what they need, and 0 is returned.
 * `ret` may be NULL when only the need is wanted. */
int plan_build(const struct plan_request *request, const char *policy, struct order *cycle,
               const struct knobs *knobs, const struct profile *prof, struct plan **ret,
               struct plan_need *ret_need, struct err *err);

struct outline;
/* Builds the plan that an outline (outline.h) describes. r->train must have the outline's micro-batch sizes.
 * The result is that of plan_build. */
int plan_outline(const struct plan_request *r, const struct outline *o, const struct profile *prof,
                 struct plan **ret, struct plan_need *ret_need, struct err *err);

/* ---- policies ---- */

/* A candidate is one choice of all parameters of a policy: how the chain is cut into packs, how the packs are
 * dealt out to devices, how the batch is divided, and what stays in memory. The search of a policy fills it
 * in and hands it to trial.run. That function turns it into an order (policy.order), builds the plan,
 * simulates it, and remembers the plan if it fits and is the best so far. A candidate lives as long as the
 * search tries it; `starts` and knobs.pinned are arrays of the search.
 *
 * Every policy reads `knobs`. Only `auto` and the Harmony policies read other fields. A candidate of `auto`
 * has either Harmony's packs (packs_bwd > 0; the fields from `packs` to `unit` are then unused) or its own.
 *
 * Example: a chain of 10 layers on 2 devices, with packs = 4, starts = {0, 2, 4, 6, 8}, fused = 8, waves = 1,
 * teams = 1. Pack k runs on device k mod 2. All micro-batches pass forward through layers 0..1 on device 0,
 * through 2..3 on device 1, and so on. Layers 8..9 are the fused segment, on device 0: each micro-batch
 * passes forward and at once backward through them. Then the packs run backward: 6..7 on device 1, 4..5 on
 * device 0, and so on. Before the backward pass of a pack, its inside is computed again from its stored
 * input, unless save_every says that this micro-batch saved S. With waves = 2, the first half of the
 * micro-batches goes through all of this before the second half starts. With teams = 2, each device runs all
 * layers for its half of the batch, and the two devices share the state of every layer. */
struct candidate {
    uint32_t packs_fwd, packs_bwd; /* Harmony's forward and backward packs; 0: not Harmony's packs */
    uint32_t packs;                /* number of packs before the fused segment */
    const uint32_t *starts;        /* pack k is layers [starts[k], starts[k + 1]); NULL: pack k is layer k */
    uint32_t fused;                /* first layer of the fused segment */
    /* The backward packs continue around the devices, as the forward packs did, instead of returning to the
     * device that ran the pack forward. */
    bool onward;
    uint32_t waves; /* number of waves that the batch is divided into */
    uint32_t teams; /* number of teams that work data parallel; 0 or 1: all devices form one pipeline */
    bool single;    /* each team is one device, even if the machine has more devices than teams */
    uint32_t unit;  /* rows of the largest micro-batch: waves are cut at multiples of it */
    bool snake;     /* every other forward pass of a device takes the micro-batches in descending order */
    uint32_t save_every;  /* every save_every-th micro-batch saves S in its forward pass; 0: none does */
    bool save_last_packs; /* save_every also applies to the packs just before the fused segment */
    struct knobs knobs;
};

/* The interface by which the search of a policy tries candidates. plan_make provides it; tests replace `run`
 * to see every candidate. The fields up to moves_data_only describe the last candidate that was tried. */
struct trial {
    /* Builds and simulates a candidate, and remembers it if it fits and is the best so far. Returns 1 if it
     * fits the devices, even when host memory is too small: that says nothing about candidates with fewer
     * packs. Returns 0 if it does not fit, and a negative errno on failure. */
    int (*run)(struct trial *t, const struct candidate *c);
    const struct profile *profile;
    struct plan_need need;
    uint64_t cost;        /* time or bytes, by the request's objective; UINT64_MAX: there was no plan */
    bool best;            /* it is the best candidate so far */
    bool moves_data_only; /* it moves neither state nor stash */
    uint64_t spent;       /* tasks in the orders of all candidates so far */
    uint64_t work;        /* sum of plan_need.work of all candidates so far */
    bool cut_short;       /* candidates were skipped because `work` reached its limit */
};

/* A policy: a rule that turns a graph and a machine into candidates and their orders. There is one constant
 * object per row of policies.def, in the policy's own file. */
struct policy {
    const char *name;
    enum update_place default_update; /* the meaning of UPDATE_AUTO under this policy */
    /* Tries every candidate that is worth trying, the leanest one included. Returns 0, or the error that
     * t->run returned. */
    int (*search)(const struct plan_request *r, struct trial *t);
    /* Fills in the candidate that needs the least device memory. */
    void (*leanest)(const struct plan_request *r, struct candidate *ret);
    /* Makes the task order of a candidate; the caller frees it with order_finish. In r->update, UPDATE_AUTO
     * has been replaced by default_update. */
    void (*order)(const struct plan_request *r, const struct profile *prof, const struct candidate *c,
                  struct order *ret);
};

#define POLICY(id, name) extern const struct policy policy_##id;
#include "scheduler/policy/policies.def"
#undef POLICY

/* Divides layers [first, last) into `count` consecutive runs so that the longest run is as short as possible,
 * and returns the duration of that run. Run k is layers [starts[k], starts[k + 1]), so `starts` must have
 * space for count + 1 entries. The time of a layer is one backward pass and `forwards` forward passes: 2 when
 * the forward pass is computed again. `count` must be between 1 and last - first. */
uint64_t partition_layers(const struct profile *prof, uint32_t forwards, uint32_t first, uint32_t last,
                          uint32_t count, uint32_t *starts);

/* The layers of one device whose gradients are complete but have not been reduced yet. They wait until the
 * exchange between the devices has had enough time. `layers` is in the order of completion. */
struct pass_open {
    uint32_t *layers, first, n; /* layers[first .. n - 1] still wait */
    uint64_t ns;                /* time that the exchange of the first waiting layer has had so far */
};

/* Builds an order out of passes: a pass sends micro-batches through one pack on one device. It is one span,
 * and every micro-batch is one item. The policies `auto` and Harmony use it: passes_begin, then the pass_*
 * functions in the sequence in which the passes run, then passes_end.
 *
 * In data-parallel orders the gradients that a pass completes are exchanged while the next passes run. The
 * reduction of a layer is added to the order when the passes since then have lasted as long as the
 * exchange. */
struct passes {
    struct order *o;
    const struct plan_request *r;
    const struct profile *prof;
    uint32_t save_every; /* every save_every-th micro-batch of a forward pass saves S; 0: none does */
    uint32_t save_end;   /* save_every applies only to packs that begin before this layer */
    bool snake; /* every other forward pass of a device takes the micro-batches in descending order */
    uint32_t next_span[DEVICE_MAX], next_item[DEVICE_MAX];
    uint32_t last_span[DEVICE_MAX];
    bool back[DEVICE_MAX]; /* the device's next forward pass takes its micro-batches in descending order */
    struct pass_open open[DEVICE_MAX];
    uint32_t *bwd_device; /* per layer: the device of its backward pass */
};

/* Initialises *p. The caller may then set save_every, save_end and snake. */
void passes_begin(struct passes *p, struct order *o, const struct plan_request *r,
                  const struct profile *prof);
/* Adds a pass of rows [from, to) of the batch through layers [first, last) on `device`. In a data-parallel
 * order, the rows must all belong to one team.
 *
 * pass_forward saves S only for every save_every-th micro-batch. pass_backward recomputes the inside of the
 * pack for all others. For these two functions, all layers of the pack must have one micro-batch size.
 *
 * pass_fused runs one micro-batch forward and at once backward before it takes the next. Micro-batch sizes
 * must not grow from layer to layer. */
void pass_forward(struct passes *p, uint32_t first, uint32_t last, uint32_t from, uint32_t to,
                  uint32_t device);
void pass_backward(struct passes *p, uint32_t first, uint32_t last, uint32_t from, uint32_t to,
                   uint32_t device);
void pass_fused(struct passes *p, uint32_t first, uint32_t last, uint32_t from, uint32_t to, uint32_t device);
/* Adds the remaining reductions, and the updates that wait for a decision. Frees what passes_begin
 * allocated. */
void passes_end(struct passes *p);

/* Tries Harmony's candidates: the fewest packs that fit, with knobs.retain set to `retain`. Returns 0 or the
 * error of t->run. */
int harmony_search(const struct plan_request *r, struct trial *t, bool retain);
/* Adds Harmony's passes of rows [from, to): the packs c->packs_fwd and c->packs_bwd go round robin over the n
 * devices from `device` on. */
void harmony_passes(struct passes *p, const struct candidate *c, uint32_t from, uint32_t to, uint32_t device,
                    uint32_t n);

/* The update part of an order, common to all policies. Without a decision, each update follows its gradient
 * at once. With a decision, each norm follows its gradient, and all updates come last, in ascending order of
 * layers so that the next cycle can start early.
 *
 * Order of calls: order_begin first, order_gradients_done after every backward pass, order_updates at the
 * end.
 *
 * order_begin adds the DECIDE that every update reads, if no gradient takes part in the decision. */
void order_begin(struct order *o);
/* Adds the tasks that can run now that layers [first, last) have finished the backward pass of micro-batch
 * `micro`: the reduction, if this completes a replica, and the norms or updates, if this completes the step.
 * *item is the item of that pass. It advances with every update on the device, so that K arrives just in
 * time. */
void order_gradients_done(struct order *o, const struct plan_request *r, uint32_t first, uint32_t last,
                          uint32_t micro, uint32_t device, uint32_t span, uint32_t *item);
/* With a decision, adds DECIDE and all updates. Without one, does nothing. bwd_device has one entry per
 * layer, next_span and next_item one per device; both counters advance. */
void order_updates(struct order *o, const struct plan_request *r, const uint32_t *bwd_device,
                   uint32_t *next_span, uint32_t *next_item);

#endif
