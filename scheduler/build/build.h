/* How a plan is built: the stages inside scheduler/, and the structs that one stage hands to the next.
 *
 *   policy     makes a struct order: which location computes which task, in which sequence. The policies are
 *              in scheduler/policy/, which uses this header. Nothing here uses theirs
 *   merge      interleaves the locations of an order into one issue order
 *   residency  makes a struct draft: device copies (segments), with moves and drops between the tasks
 *   place      gives every segment of a draft an address
 *   host       makes segments of the copies that tensors have in host memory for a while, and places them
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

#include "base/arena.h"
#include "base/vec.h"
#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/plan_request.h"
#include "scheduler/profile.h"

/* ---- the task order, decided by a policy ---- */

/* Returns whether the weights of `layer` are updated on a device. `pinned` may be NULL if no layer is
 * pinned. */
bool updates_on_device(const struct plan_request *r, const bool *pinned, uint32_t layer);

/* Value of todo.share for a task that handles the whole layer and not just one share of it. */
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
    /* Used only for UPD. Whether the optimizer state K stays on the device until the span ends. All updates
     * of a span have the same value. */
    bool keep_k;
    /* Used only for RED. The replica whose gradient the task adds to the gradient of replica 0. */
    uint32_t replica;
    /* Used only for RED and UPD. The share of the layer's state that the task handles, or SHARE_ALL. */
    uint32_t share;
    uint32_t group; /* DECIDE only: the decision group */
    uint32_t step;  /* training step within the cycle */
    /* Index of the task in graph.tasks. Callers leave this field unset: order_add and order_share set it. */
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
    /* Each layer's state is divided into this number of shares. 1 means that it is not divided. */
    uint32_t n_shares;
    /* owners[layer * n_shares + share] is the device that owns this share of the layer's state. NULL if
     * n_shares is 1. */
    uint32_t *owners;
    /* Whether each device fetches all of the weights W from the host itself. Gradients and optimizer state
     * are still divided into shares. */
    bool alone;
    /* pinned[l] is true if the state of layer l never leaves its device. NULL if no layer is pinned. */
    const bool *pinned;
    /* Whether the policy writes the tasks of all training steps. If false, it writes only step 0, and
     * order_repeat adds the other steps. */
    bool all_steps;
    uint32_t step;
    /* All tasks. Until order_merge brings them into one sequence, only tasks of the same location are in the
     * order in which they run. */
    VEC(struct todo) todos;
};

/* Initialises an empty order in which the state is not divided into shares. The caller frees the order with
 * order_finish. */
void order_init(struct order *o, const struct graph *g, uint32_t n_devices);
void order_finish(struct order *o);
/* Returns the largest number of devices, at most n_devices, that divides the number of replicas evenly. For
 * example, 6 replicas on 4 devices give 3. */
uint32_t order_replica_devices(uint32_t n_replicas, uint32_t n_devices);
/* Divides the state of every layer into n_shares shares. After this call, the caller sets the owner of each
 * share in o->owners. */
void order_own(struct order *o, uint32_t n_shares);
/* Appends task `t` to the order. The task handles its whole layer, so t.share is set to SHARE_ALL. */
void order_add(struct order *o, struct todo t);
/* Copies the tasks of step 0 for all further training steps of the cycle, unless the policy has written all
 * steps. */
void order_repeat(struct order *o);
/* Sets *ret to the order of the eval program: the forward tasks of `o`. They save nothing, because the eval
 * program has no backward pass. */
void order_forward_only(const struct order *o, const struct graph *eval, struct order *ret);
/* Brings the tasks of all locations into one issue order. Returns -EINVAL if some locations would wait for
 * each other forever. */
int order_merge(struct order *o, const struct profile *prof, struct err *err);

/* Rule that decides how long a copy stays on a device after a task has used the copy. */
enum keep_rule {
    /* Weights, gradients and buffers stay until their span (a pass of a pack) ends. All other copies stay
     * until the end of the next item (one micro-batch's pass). */
    KEEP_UNIT,
    /* Every copy stays until its last use. W, K and B (weights, optimizer state and buffers) also stay from
     * one cycle to the next. */
    KEEP_ALL,
    /* A copy stays until an LRU (least recently used) cache would evict it. The cache is empty when a cycle
     * starts. */
    KEEP_LRU,
};

/* Settings of a candidate plan that decide how long copies stay in memory. */
struct knobs {
    enum keep_rule keep;
    /* Used only with KEEP_UNIT. pinned[l] is true if W, K and B of layer l never leave their device. NULL if
     * no layer is pinned. */
    const bool *pinned;
    /* Used only with KEEP_UNIT. Whether to keep copies in free memory that would otherwise be dropped and
     * fetched again. */
    bool retain;
    /* Weights are fetched this number of spans before their use, and gradients are dropped this number of
     * spans late. The moves then overlap with compute. */
    uint32_t lead_state;
    /* Activations and optimizer state are fetched this number of items before their use, and outputs are
     * dropped this number of items late. The moves then overlap with compute. */
    uint32_t lead_items;
    /* Used only with KEEP_LRU. If true, the cache is just large enough for any one task. If false, the cache
     * uses all memory of the device. */
    bool least_cache;
};

/* ---- pieces ---- */

/* Returns the number of pieces that tensor `t` is cut into. Tensors are used, moved and placed whole or
 * piece by piece. W, dW and B have one piece per share; the pieces of a small tensor may be empty. K has
 * one piece per part and share, the shares of the first part first. X and dX have the pieces that the
 * graph gives them. */
uint32_t tensor_pieces(const struct graph *g, uint32_t n_shares, tensor_id t);
/* Sets *ret_begin and *ret_end to the byte range of piece number `piece` within tensor `t`. */
void tensor_piece(const struct graph *g, uint32_t n_shares, tensor_id t, uint32_t piece, uint64_t *ret_begin,
                  uint64_t *ret_end);

/* A byte range of a tensor: either the whole tensor or one piece of the tensor. */
struct extent {
    uint32_t piece, n_pieces; /* first piece, and number of pieces */
    uint64_t begin, end;      /* bytes of the tensor */
};
struct extent extent_whole(const struct graph *g, uint32_t n_shares, tensor_id t);
struct extent extent_piece(const struct graph *g, uint32_t n_shares, tensor_id t, uint32_t piece);

/* ---- drafts ---- */

/* Value that stands for "no segment". After draft_host, an operand without a segment is at its tensor's own
 * place in host memory. */
#define SEGMENT_NONE UINT32_MAX
/* Value of segment.start as long as no instruction creates the segment. */
#define SEGMENT_UNBORN UINT32_MAX

/* One copy of a tensor, or of a piece of a tensor, on one device or in host memory, from the instruction that
 * creates the copy to its drop. */
struct segment {
    tensor_id tensor;
    uint32_t device; /* PLAN_HOST: in host memory */
    struct extent of;
    /* Positions of the instructions that create and drop the copy. If start > end, the drop is in the next
     * cycle. In host memory, `end` is the last read. */
    uint32_t start, end;
    /* Whether the copy stays on the device from one cycle to the next. */
    bool boundary;
    /* Used only if `boundary` is true. Whether the cycle changes the copy, so that the flush program must
     * spill the copy. */
    bool dirty;
    /* Offset in the memory of the device or of the host. */
    uint64_t addr;
};

/* One operand of an instruction in a draft. The operand names a segment, because addresses are not known
 * yet. */
struct draft_operand {
    tensor_id tensor;
    uint32_t segment; /* SEGMENT_NONE: the host copy */
    enum access access;
    enum role role; /* ROLE_NONE in moves and drops */
    /* The bytes of the tensor that the instruction uses. They lie within the segment's extent. */
    struct extent of;
};

/* A program under construction. Its operands name segments, because addresses are not known yet. */
struct draft {
    const struct graph *graph;
    uint32_t n_devices, n_shares;
    /* Whether the program runs again and again, as the cycle does. Copies may then stay on a device from one
     * run to the next. */
    bool cyclic;
    /* The instructions in issue order. Each instruction refers to its own range of `operands` and of
     * `waits`. */
    VEC(struct plan_instr) instrs;
    VEC(struct draft_operand) operands;
    VEC(struct plan_wait) waits;
    VEC(struct segment) segments;
    uint64_t peak[DEVICE_MAX]; /* highest address used on each device */
    uint64_t host_peak;        /* highest address used in host memory */
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
    /* The operand that needs the fetch at the end of the gap, as a number counted in issue order. This number
     * identifies the gap. */
    uint32_t use;
    uint32_t device;
    /* Positions of the drop and of the fetch that follows it. If from > to, the fetch is in the next
     * cycle. */
    uint32_t from, to;
    uint64_t bytes; /* size of the copy */
    /* Number of bytes that need not be moved if the copy stays on the device. */
    uint64_t gain;
    bool retain; /* chosen: the copy stays */
};
typedef VEC(struct gap) gap_list;

/* Turns a merged order into a draft by adding moves and drops. A gap is the time from the drop of a value to
 * the next fetch of this value. `retained` is a list of gaps, sorted by `use`. Where a gap has `retain` set,
 * the copy stays on the device. Sets *ret_gaps to the remaining gaps. Both lists may be NULL. */
void draft_residency(struct draft *d, const struct order *o, const struct knobs *knobs, bool cyclic,
                     const gap_list *retained, gap_list *ret_gaps);
/* Decides which copies stay on their device instead of being fetched again, and sets gap.retain for them.
 * Fills each device at most up to capacity[device]. */
void draft_retain(const struct draft *d, const uint64_t *capacity, gap_list *gaps);
/* Does the work of draft_retain for one device. free_bytes[p] is the number of free bytes at position p. */
void retain_pack(struct gap *gaps, uint32_t n_gaps, const uint64_t *free_bytes, uint32_t n_positions);
/* Returns the largest number of bytes that are in use on a device at any one position. */
uint64_t draft_live_peak(const struct draft *d, uint32_t device);
/* Gives every segment on a device an address and sets d->peak, even if a peak exceeds the device's capacity.
 * `limits` (the capacities, or NULL) makes hopeless searches end sooner. */
void draft_place(struct draft *d, const uint64_t *limits);
/* Gives every segment in host memory an address and sets d->host_peak. */
void draft_place_host(struct draft *d);
/* Makes a draft with addresses by replaying a merged order, without REC tasks, with an LRU cache on each
 * device. The peak may exceed the device's memory. */
void draft_paging(struct draft *d, const struct order *o, const struct machine *m, bool least_cache,
                  bool cyclic);
/* Adds the waits to a draft whose segments have addresses. Leaves out waits that other waits imply. */
void draft_waits(struct draft *d);

/* The draft_put_* functions append instructions to a draft. After draft_put_task, the caller calls
 * draft_put_use once for each operand of the task. */
void draft_put_task(struct draft *d, const struct todo *t);
void draft_put_use(struct draft *d, const struct graph_operand *op, uint32_t segment, struct extent of);
/* The next three functions append a move of the bytes `of`, which the segments must contain. Within one
 * device, draft_put_send appends a COPY instead of a SEND. */
void draft_put_fetch(struct draft *d, uint32_t to, struct extent of);
void draft_put_spill(struct draft *d, uint32_t from, struct extent of);
void draft_put_send(struct draft *d, uint32_t from, uint32_t to, struct extent of);
void draft_put_drop(struct draft *d, uint32_t segment, enum lane lane);

/* Returns whether `t` uses operand `op` of its task. A FWD or REC may leave out an output or a workspace. */
bool todo_uses(const struct todo *t, const struct graph_tensor *tensor, const struct graph_operand *op);
/* Returns how many byte ranges of the tensor of `op` task `t` uses. The number is 1, except for a share of
 * the optimizer state K. */
uint32_t todo_extents(const struct order *o, const struct todo *t, const struct graph_operand *op);
/* Task `t` may use several byte ranges of the tensor of `op`. Returns byte range number `i`, which must be
 * less than the number that todo_extents returns. */
struct extent todo_extent(const struct order *o, const struct todo *t, const struct graph_operand *op,
                          uint32_t i);
/* Returns whether the trainer reads the tensor after each training step. Such a tensor must be on the host
 * when the step ends. */
bool trainer_reads(const struct graph_tensor *t);

/* ---- host memory ---- */

/* Gives each tensor that needs a home an offset in host memory, and returns the total size of the homes. W, K
 * and B have the same homes in every plan of a model. */
uint64_t host_homes(struct plan_tensor *tensors, const struct graph *g);
/* Makes a segment, with an address from `homes` on, for every tensor that is in host memory only for a while.
 * Different tensors share addresses only if `bytes` bytes are too few. */
void draft_host(struct draft *d, uint64_t homes, uint64_t bytes);

/* ---- plans ---- */

/* The memory and planning work that a candidate needs. plan_build sets all fields even if the candidate does
 * not fit the machine. */
struct plan_need {
    /* Number of bytes of device memory that the cycle and the eval program need, including the holes between
     * copies. This is the maximum over all devices. */
    uint64_t device_bytes;
    uint64_t peak[DEVICE_MAX]; /* highest address on each device */
    /* Number of bytes of host memory with which the candidate fits. If the machine has less, this is the
     * least such number. */
    uint64_t host_bytes;
    /* Whether the memory of the devices is large enough. If this is true and there is still no plan, the host
     * memory is too small. */
    bool devices_fit;
    /* Estimated time to build the candidate. The unit is the time for one instruction in a plan for a single
     * device. */
    uint64_t work;
};
/* Merges `cycle` and makes a plan from it. Returns 0 and sets *ret to NULL if the plan does not fit the
 * machine. `ret` may be NULL. */
int plan_build(const struct plan_request *request, const char *policy, struct order *cycle,
               const struct knobs *knobs, const struct profile *prof, struct plan **ret,
               struct plan_need *ret_need, struct err *err);

/* ---- passes: how a policy writes an order ---- */

/* Divides layers [first, last) into `count` consecutive runs so that the longest run is as short as possible,
 * and returns the duration of that run. Run k is layers [starts[k], starts[k + 1]), so `starts` must have
 * space for count + 1 entries. The time of a layer is one backward pass and `forwards` forward passes: 2 when
 * the forward pass is computed again. `count` must be between 1 and last - first. */
uint64_t partition_layers(const struct profile *prof, uint32_t forwards, uint32_t first, uint32_t last,
                          uint32_t count, uint32_t *starts);

/* The layers of one device whose gradients are complete on this device, but not yet added up with the
 * gradients of the other devices. */
struct pass_open {
    uint32_t *layers, first, n; /* layers[first .. n - 1] still wait */
    /* Time that has passed, so far, for the first layer of the list to exchange its gradient with the other
     * devices. */
    uint64_t ns;
};

/* Of `of` micro-batches in a row, `count` save S, at even distances. {1, 4} is every fourth micro-batch, and
 * {3, 4} all except every fourth. If `of` is 0, none saves S. */
struct save_rate {
    uint32_t count, of;
};

/* One half of pass_both: rows [from, to) of the batch in layers [first, last). */
struct pass_part {
    uint32_t first, last, from, to;
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
    /* How many micro-batches save S, the values that the backward pass needs, in their forward pass. */
    struct save_rate save;
    /* The first save_from rows of each device save nothing. */
    uint32_t save_from;
    /* Packs whose first layer is save_end or a later layer never save S. They compute S again, whatever
     * `save` says. */
    uint32_t save_end;
    /* Whether each device changes the direction of its forward passes: every second pass takes the
     * micro-batches in descending order. */
    bool snake;
    uint32_t next_span[DEVICE_MAX], next_item[DEVICE_MAX];
    uint32_t last_span[DEVICE_MAX];
    /* back[d] is true if the next forward pass on device d takes the micro-batches in descending order. */
    bool back[DEVICE_MAX];
    struct pass_open open[DEVICE_MAX];
    /* bwd_device[l] is the device that runs the backward pass of layer l. */
    uint32_t *bwd_device;
};

/* Initialises *p. Before the first pass, the caller may then set the fields from `save` to `snake`. */
void passes_begin(struct passes *p, struct order *o, const struct plan_request *r,
                  const struct profile *prof);
/* Adds a pass of rows [from, to) of the batch through layers [first, last) on `device`. In a data-parallel
 * order, the rows must all belong to one team.
 *
 * pass_forward saves S for the micro-batches that p->save selects. pass_backward recomputes the inside of the
 * pack for all others. For these two functions, all layers of the pack must have one micro-batch size.
 *
 * pass_both runs a forward pass and a backward pass of other rows in turn, micro-batch by micro-batch. The
 * links then carry S out and in all the time: with pass_forward alone, no S moves in, and with pass_backward
 * alone, none moves out. The backward pass must not be the last one of its layers.
 *
 * pass_fused runs one micro-batch forward and at once backward before it takes the next. Micro-batch sizes
 * must not grow from layer to layer. */
void pass_forward(struct passes *p, uint32_t first, uint32_t last, uint32_t from, uint32_t to,
                  uint32_t device);
void pass_backward(struct passes *p, uint32_t first, uint32_t last, uint32_t from, uint32_t to,
                   uint32_t device);
void pass_both(struct passes *p, const struct pass_part *forward, const struct pass_part *back,
               uint32_t device);
void pass_fused(struct passes *p, uint32_t first, uint32_t last, uint32_t from, uint32_t to, uint32_t device);
/* Ends the list of passes. Adds the tasks that are still missing: those that add up gradients, and those that
 * update weights. Frees the memory that passes_begin allocated. */
void passes_end(struct passes *p);

/* The update part of an order, common to all policies. In a decision group without a decision, each update
 * follows its gradient at once. With a decision, each norm follows its gradient, and all updates come last.
 * They come in ascending order of layers, so that the next cycle can start early.
 *
 * Order of calls: order_begin first, order_gradients_done after every backward pass, order_updates at the
 * end.
 *
 * order_begin adds the DECIDE of each group in whose decision no gradient takes part. */
void order_begin(struct order *o);
/* Must be called when layers [first, last) have run micro-batch `micro` backward. Adds the RED, NORM and UPD
 * tasks that are now possible, and increments *item for each update on the device. */
void order_gradients_done(struct order *o, const struct plan_request *r, uint32_t first, uint32_t last,
                          uint32_t micro, uint32_t device, uint32_t span, uint32_t *item);
/* The same for one decision group. */
void order_begin_group(struct order *o, uint32_t group);
/* For each group with a decision, adds the DECIDE task and then all updates of the group. Increments
 * next_span[d] and next_item[d] for each update on device d. */
void order_updates(struct order *o, const struct plan_request *r, const uint32_t *bwd_device,
                   uint32_t *next_span, uint32_t *next_item);
/* Does the work of order_updates for one decision group. Does nothing if the group has no decision. */
void order_update_group(struct order *o, const struct plan_request *r, uint32_t group,
                        const uint32_t *bwd_device, uint32_t *next_span, uint32_t *next_item);

#endif
