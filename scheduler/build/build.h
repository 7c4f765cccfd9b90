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

/* ---- the task order, decided by a policy ---- */

/* Returns whether the update of `layer` runs on a device. With UPDATE_AUTO, only pinned layers are updated
 * there. `pinned` may be NULL. */
bool updates_on_device(const struct plan_request *r, const bool *pinned, uint32_t layer);

/* Value of todo.share for a task that is not divided into shares. */
#define SHARE_ALL UINT32_MAX

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
    bool save;   /* FWD, REC: the task writes S */
    bool output; /* FWD, REC: the task writes its output */
    /* RED only: the replica whose gradient is added to the gradient of replica 0. */
    uint32_t replica;
    /* RED and UPD only: the share number, or SHARE_ALL. */
    uint32_t share;
    /* Index of the task in graph.tasks. order_add and order_share set it. */
    uint32_t task;
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
    /* Number of shares that each layer's state is divided into. 1 if the state is not divided. */
    uint32_t n_shares;
    /* The device that owns each share, indexed by [layer][share]. NULL if n_shares is 1. */
    uint32_t *owners;
    /* If set, each device fetches all of W from the host. Only dW and K are shared. */
    bool alone;
    /* Per layer: whether its state never leaves its device. NULL if no layer is pinned. */
    const bool *pinned;
    /* The tasks to run. Before order_merge, only the tasks of the same location are in order. */
    VEC(struct todo) todos;
};

/* Initialises an empty order without shares. The caller frees it with order_finish. */
void order_init(struct order *o, const struct graph *g, uint32_t n_devices);
void order_finish(struct order *o);
/* Returns the largest number of devices that divides the replicas evenly. It is at most n_devices. */
uint32_t order_replica_devices(const struct graph *g, uint32_t n_devices);
/* Divides the state of every layer into n_shares shares. The caller fills in o->owners afterwards. */
void order_own(struct order *o, uint32_t n_shares);
/* Appends a task that is not divided into shares. Sets t.share to SHARE_ALL. */
void order_add(struct order *o, struct todo t);
/* Sets *ret to the order of the eval program. It has only forward tasks, and none of them saves S. */
void order_forward_only(const struct order *o, const struct graph *eval, struct order *ret);
/* Merges the todos of all locations into one issue order, using the durations in the profile. Returns -EINVAL
 * if the locations contradict each other. */
int order_merge(struct order *o, const struct profile *prof, struct err *err);

/* Decides how long a copy stays on a device after a task has used it. */
enum keep_rule {
    /* State stays until its span ends. Activations stay until the device's next item ends. */
    KEEP_UNIT,
    /* Every copy stays until its last use. W, K and B also stay across cycles. */
    KEEP_ALL,
    /* A copy stays until an LRU cache would evict it. The cache is empty between cycles. */
    KEEP_LRU,
};

/* The parameters of a candidate that concern memory. A larger lead hides more moves behind compute, but needs
 * more memory. */
struct knobs {
    enum keep_rule keep;
    /* KEEP_UNIT only: layers whose W, K and B never leave their device. May be NULL. */
    const bool *pinned;
    /* KEEP_UNIT only: use free memory to keep copies that would otherwise be fetched again. */
    bool retain;
    /* Number of spans by which W is fetched early and dW is dropped late. */
    uint32_t lead_state;
    /* Number of items by which activations and K are fetched early and outputs are dropped late. */
    uint32_t lead_items;
    /* KEEP_LRU only: use the smallest cache that is large enough, instead of the whole device. */
    bool least_cache;
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

/* A byte range of a tensor: the whole tensor or one piece of it. */
struct extent {
    uint32_t piece, n_pieces; /* first piece, and number of pieces */
    uint64_t begin, end;      /* bytes of the tensor */
};
struct extent extent_whole(const struct graph *g, uint32_t n_shares, tensor_id t);
struct extent extent_piece(const struct graph *g, uint32_t n_shares, tensor_id t, uint32_t piece);

/* ---- drafts ---- */

/* Means "no segment". In an operand, it stands for the copy in host memory. */
#define SEGMENT_NONE UINT32_MAX
/* Value of segment.start until an instruction creates the segment. */
#define SEGMENT_UNBORN UINT32_MAX

/* One copy on one device, from its creation to its drop. It holds a whole tensor or one piece. Placement
 * assigns its address. */
struct segment {
    tensor_id tensor;
    uint32_t device;
    struct extent of;
    /* Positions of the instructions that create and drop the copy. If start > end, the drop is in the next
     * cycle. Without a drop, they are 0 and n - 1. */
    uint32_t start, end;
    /* Whether the copy is alive at the boundary between two cycles. */
    bool boundary;
    /* Boundary copies only: the cycle writes the copy, so flush must spill it. */
    bool dirty;
    uint64_t addr; /* offset in the device's memory */
};

/* One operand of an instruction in a draft. */
struct draft_operand {
    tensor_id tensor;
    uint32_t segment; /* SEGMENT_NONE: the host copy */
    enum access access;
    /* The part of the tensor that the instruction uses. It lies within the segment's extent. */
    struct extent of;
};

/* A program under construction. Its operands name segments instead of addresses. plan_build copies it into
 * the plan and frees it. */
struct draft {
    const struct graph *graph;
    uint32_t n_devices, n_shares;
    /* Whether the program repeats. If it does, copies may live across its end. */
    bool cyclic;
    /* The instructions. Their operand ranges refer to `operands`, and their wait ranges refer to `waits`. */
    VEC(struct plan_instr) instrs;
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
    /* Identifies the gap: the index, in issue order, of the operand use that caused the fetch. */
    uint32_t use;
    uint32_t device;
    /* Positions of the drop and the fetch. If from > to, the fetch is in the next cycle. */
    uint32_t from, to;
    uint64_t bytes; /* size of the copy */
    /* Number of bytes that would not move if the copy stayed. */
    uint64_t gain;
    bool retain; /* chosen: the copy stays */
};
typedef VEC(struct gap) gap_list;

/* Adds moves and drops to a merged order. Copies stay across the marked gaps in `retained`, which is sorted
 * by `use`. ret_gaps gets the other gaps. Both may be NULL. */
void draft_residency(struct draft *d, const struct order *o, const struct knobs *knobs, bool cyclic,
                     const gap_list *retained, gap_list *ret_gaps);
/* Marks the gaps to retain, so that the fewest bytes move. They must fit into the part of capacity[device]
 * that the draft leaves free. */
void draft_retain(const struct draft *d, const uint64_t *capacity, gap_list *gaps);
/* Marks the gaps of one device that are worth retaining. free_bytes[p] is the free memory at position p.
 * Marks every gap that needs none. */
void retain_pack(struct gap *gaps, uint32_t n_gaps, const uint64_t *free_bytes, uint32_t n_positions);
/* Returns the largest number of bytes that are alive on a device at any one position. */
uint64_t draft_live_peak(const struct draft *d, uint32_t device);
/* Assigns an address to every segment and sets d->peak. Never fails, even if a peak exceeds its capacity.
 * `limits` only saves time and may be NULL. */
void draft_place(struct draft *d, const uint64_t *limits);
/* Makes a draft with addresses by replaying one LRU cache per device. The order must be merged, without REC.
 * Never fails, even if a task exceeds the capacity. */
void draft_paging(struct draft *d, const struct order *o, const struct machine *m, bool least_cache,
                  bool cyclic);
/* Adds the waits to a draft whose segments have addresses. Leaves out redundant waits. */
void draft_waits(struct draft *d);

/* The draft_put_* functions append to a draft. After draft_put_task, the caller calls draft_put_use once for
 * each operand. */
void draft_put_task(struct draft *d, const struct todo *t);
void draft_put_use(struct draft *d, tensor_id tensor, uint32_t segment, enum access access, struct extent of);
/* Appends a move of the extent `of`, which both copies must contain. draft_put_send appends a COPY if both
 * are on one device. */
void draft_put_fetch(struct draft *d, uint32_t to, struct extent of);
void draft_put_spill(struct draft *d, uint32_t from, struct extent of);
void draft_put_send(struct draft *d, uint32_t from, uint32_t to, struct extent of);
void draft_put_drop(struct draft *d, uint32_t segment, enum lane lane);

/* Returns whether a todo uses operand `op` of its graph task. FWD and REC need not write every output. */
bool todo_uses(const struct todo *t, const struct graph_tensor *tensor, const struct graph_operand *op);
/* Returns the number of operands that a todo has for graph operand `op`. It is 1, except that K may have one
 * operand per part. */
uint32_t todo_extents(const struct order *o, const struct todo *t, const struct graph_operand *op);
/* Returns the extent of operand number `i` among those for `op`. `i` must be less than todo_extents. */
struct extent todo_extent(const struct order *o, const struct todo *t, const struct graph_operand *op,
                          uint32_t i);
/* Returns whether the trainer reads the tensor. If so, it must be on the host after the step. */
bool trainer_reads(const struct graph_tensor *t);

/* ---- plans ---- */

/* The resources that a candidate needs. plan_build sets them even if the candidate does not fit. */
struct plan_need {
    /* Highest address in use on any device, in the cycle or in eval. */
    uint64_t device_bytes;
    uint64_t peak[DEVICE_MAX]; /* highest address on each device */
    uint64_t host_bytes;
    /* Whether the devices have enough memory. If true and there is no plan, host memory is too small. */
    bool devices_fit;
    /* Cost of building the candidate, in instructions. Instructions count more if there are many devices. */
    uint64_t work;
};
/* Merges `cycle` and makes a plan from it. If the plan does not fit the machine, sets *ret to NULL and
 * returns 0. Also sets *ret_need. `ret` may be NULL. */
int plan_build(const struct plan_request *request, const char *policy, struct order *cycle,
               const struct knobs *knobs, const struct profile *prof, struct plan **ret,
               struct plan_need *ret_need, struct err *err);

struct outline;
/* Builds the plan that an outline describes. r->train must have the outline's micro-batch sizes. Returns the
 * same values as plan_build. */
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
    /* Numbers of forward and backward packs. 0 if the candidate does not use Harmony's packs. */
    uint32_t packs_fwd, packs_bwd;
    uint32_t packs; /* number of packs before the fused segment */
    /* Pack k has the layers [starts[k], starts[k + 1]). If NULL, pack k has only layer k. */
    const uint32_t *starts;
    uint32_t fused; /* first layer of the fused segment */
    /* If true, the backward packs continue round robin over the devices. If false, each pack returns to
     * the device that ran it forward. */
    bool onward;
    /* Number of waves that the batch is divided into. */
    uint32_t waves;
    /* Number of teams that work data parallel. If 0 or 1, all devices form one pipeline. */
    uint32_t teams;
    /* Whether each team is a single device, even if the machine has more devices than teams. */
    bool single;
    /* Number of rows in the largest micro-batch. Waves start at multiples of this number. */
    uint32_t unit;
    /* Whether every other forward pass of a device takes its micro-batches in descending order. */
    bool snake;
    /* Every save_every-th micro-batch saves S in its forward pass. If 0, no micro-batch does. */
    uint32_t save_every;
    /* Whether save_every also applies to the packs just before the fused segment. */
    bool save_last_packs;
    struct knobs knobs;
};

/* Through this interface, a search tries candidates. Tests replace `run` to see every candidate. The fields
 * up to moves_data_only describe the last candidate. */
struct trial {
    /* Tries a candidate and keeps its plan if it is the best so far. Returns 1 if it fits the devices, even
     * if the host is too small. Returns 0 if not, or a negative errno. */
    int (*run)(struct trial *t, const struct candidate *c);
    const struct profile *profile;
    struct plan_need need;
    /* Time or bytes, depending on the request's objective. UINT64_MAX if there was no plan. */
    uint64_t cost;
    bool best;            /* it is the best candidate so far */
    bool moves_data_only; /* it moves neither state nor stash */
    /* Total number of tasks in the orders of all candidates so far. */
    uint64_t spent;
    /* Sum of plan_need.work over all candidates so far. */
    uint64_t work;
    /* Whether candidates were skipped because `work` reached its limit. */
    bool cut_short;
};

/* A policy turns a graph and a machine into candidates and their task orders. Each row of policies.def has
 * one object of this type. */
struct policy {
    const char *name;
    enum update_place default_update; /* the meaning of UPDATE_AUTO under this policy */
    /* Tries every candidate that is worth trying, including the leanest one. Returns 0, or the error
     * that t->run returned. */
    int (*search)(const struct plan_request *r, struct trial *t);
    /* Sets *ret to the candidate that needs the least device memory. */
    void (*leanest)(const struct plan_request *r, struct candidate *ret);
    /* Makes the task order of a candidate. The caller frees it with order_finish. r->update must not be
     * UPDATE_AUTO. */
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

/* The layers of one device whose gradients are complete but not yet reduced. They wait until the exchange
 * with other devices has had enough time. */
struct pass_open {
    uint32_t *layers, first, n; /* layers[first .. n - 1] still wait */
    /* Time that the first waiting layer has had for its exchange so far. */
    uint64_t ns;
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
    /* Every save_every-th micro-batch of a forward pass saves S. If 0, no micro-batch does. */
    uint32_t save_every;
    /* save_every applies only to packs whose first layer is below this layer. */
    uint32_t save_end;
    /* Whether every other forward pass of a device takes its micro-batches in descending order. */
    bool snake;
    uint32_t next_span[DEVICE_MAX], next_item[DEVICE_MAX];
    uint32_t last_span[DEVICE_MAX];
    /* Per device: whether its next forward pass takes the micro-batches in descending order. */
    bool back[DEVICE_MAX];
    struct pass_open open[DEVICE_MAX];
    /* Per layer: the device that runs its backward pass. */
    uint32_t *bwd_device;
};

/* Initialises *p. After this call, the caller may set save_every, save_end and snake. */
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
/* Adds the remaining reductions and updates. Frees the memory that passes_begin allocated. */
void passes_end(struct passes *p);

/* Tries Harmony's candidates to find the fewest packs that fit. All have knobs.retain set to `retain`.
 * Returns 0, or the error that t->run returned. */
int harmony_search(const struct plan_request *r, struct trial *t, bool retain);
/* Adds Harmony's passes of rows [from, to). `n` devices take the packs in turn, starting with `device`. */
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
/* Adds the tasks that a backward pass through layers [first, last) makes possible: reductions, norms or
 * updates. Each update on the device increments *item. */
void order_gradients_done(struct order *o, const struct plan_request *r, uint32_t first, uint32_t last,
                          uint32_t micro, uint32_t device, uint32_t span, uint32_t *item);
/* Adds DECIDE and all updates if the graph has a decision. Advances next_span and next_item, which have one
 * entry per device. */
void order_updates(struct order *o, const struct plan_request *r, const uint32_t *bwd_device,
                   uint32_t *next_span, uint32_t *next_item);

#endif
