/* The plan: everything that training a job does on one machine, decided before the first step.
 *
 * A plan is a set of programs. A program lists instructions: compute tasks, moves of tensors between
 * memories, and drops of copies that are no longer needed. The planner (scheduler/) builds a plan,
 * plan_verify checks it, and the executor (swap/) only interprets it: every address and every order of
 * execution is already in the plan.
 *
 * Issue order and streams. The instructions of a program stand in one array, in the order in which the
 * executor issues them. Each instruction names its stream. A stream runs its own instructions one after
 * another, and different streams run concurrently. An instruction starts when its predecessor in its stream
 * and all its waits are done.
 *
 * Waits. A wait names an instruction of the same program and a distance. Distance 0 means the current run of
 * the program. Distance d >= 1 means d runs earlier, which only the cycle may use; runs before the first
 * count as done. Waits of distance 0 always point backwards in issue order. Therefore a deadlock is
 * impossible, and one thread can enqueue a whole program without looking ahead.
 *
 * Programs. A job runs: entry (cycle | flush)* exit eval*, and may then start again with entry. Runs of the
 * cycle overlap: the next run starts before the streams are empty. Entry, flush, exit and eval wait until all
 * streams are empty, before and after.
 *
 * A plan is plain data. It refers to tensors, layers and instructions by number, never by pointer, so that it
 * can be printed, compared, stored and loaded. This is the only header of scheduler/ that swap/ includes.
 * docs/plan.md explains the format and the ten invariants, with a worked example.
 */
#ifndef SCHEDULER_PLAN_H
#define SCHEDULER_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/device.h"
#include "kernels/dtype.h"

/* Index of a tensor in plan.tensors. The same tensor has the same index in the task graph. */
typedef uint32_t tensor_id;

/* Value that stands for "none" where a layer, micro-batch, replica or tensor number is expected. */
#define PLAN_NONE UINT32_MAX
/* Stands for host memory, in fields that otherwise have the number of a device. */
#define PLAN_HOST UINT32_MAX
/* Value of plan_tensor.host_offset if the tensor has no home, that is, no place in host memory that only this
 * tensor uses. */
#define PLAN_NO_HOST UINT64_MAX
/* Number of places (slots) in host memory for a tensor that the loader fills or the trainer reads. The
 * devices use another slot at the same time. */
#define PLAN_RING 2
/* Every copy of a tensor starts at a multiple of this number of bytes, on devices and in host memory. */
#define PLAN_ALIGN DEVICE_ALIGN
/* Returns the unit in which the weights W are divided into shares, in elements. A unit has PLAN_ALIGN bytes,
 * for example 64 elements of type F32. */
static inline uint64_t plan_share_unit(enum dtype w_dtype)
{
    return PLAN_ALIGN / dtype_size(w_dtype);
}
/* Maximum distance of a wait, which is the number of runs of the program that the wait reaches back. The
 * executor never has more runs than this in progress. */
#define PLAN_MAX_DISTANCE 16

/* The purpose of a tensor. In reports, numbers follow the kind: "X3.1" is the X of layer 3 and micro-batch
 * 1. */
enum tensor_kind {
    TENSOR_W, /* weights: one per layer */
    /* dW, the sum of a layer's weight gradients. There is one per layer and replica. */
    TENSOR_DW,
    TENSOR_K, /* optimizer state: one per layer */
    /* Buffers, such as running means, which training changes without gradients. There is one tensor of
     * buffers per layer. */
    TENSOR_B,
    /* X, the input of the model. The loader fills it. There is one X for each micro-batch, named after the
     * first layer that reads it. */
    TENSOR_X,
    /* Y, the output of a layer. There is one per layer and micro-batch. Any number of layers read it. */
    TENSOR_Y,
    /* dX, the gradient of a layer's input, for each layer and micro-batch. Each layer that reads an output
     * has its own dX. */
    TENSOR_DX,
    /* S, the values that a forward task saves for its backward task. There is one S for each layer and
     * micro-batch. */
    TENSOR_S,
    /* Working memory of a forward task that does not save S, for each layer and micro-batch. */
    TENSOR_WORK,
    /* Working memory of a forward task that saves S, for each layer and micro-batch. */
    TENSOR_ROOM,
    /* Working memory of a backward task, for each layer and micro-batch. */
    TENSOR_SCRATCH,
    /* Statistics: the contribution of one micro-batch to the buffers B. A forward task writes STAT, and the
     * layer's UPD updates B with it. */
    TENSOR_STAT,
    /* Targets: the values with which a loss compares its input. The loader fills them. There is one tensor
     * for each loss and micro-batch. */
    TENSOR_TARGET,
    /* A struct step_result with the loss of one micro-batch. The trainer reads it. There is one for each
     * micro-batch of a loss. */
    TENSOR_RESULT,
    /* Squared norm of a layer's gradient dW, as one double. There is one for each layer. */
    TENSOR_SUMSQ,
    /* A struct step_decision, which says whether the updates of a training step are applied. The trainer
     * reads it. There is one for each step. */
    TENSOR_DECISION,
    /* A struct group_state: values that all updates of a decision group need, such as the scale of the
     * gradients. DECIDE writes it, and UPD reads it. */
    TENSOR_GROUP,
    TENSOR_KIND_COUNT
};

/* One tensor, and its home: the place in host memory that belongs to this tensor alone. Tensors that keep
 * their value from step to step have a home, such as W and K. Tensors that the loader or the trainer uses
 * have one with PLAN_RING slots. The loader can then fill one slot while a run of the cycle reads the
 * other.
 *
 * All other tensors have no home, but may be in host memory for a while, for example from a spill to the last
 * fetch. Their addresses there are in the operands, as on devices, and several tensors may use one address
 * after another. */
struct plan_tensor {
    enum tensor_kind kind;
    uint32_t layer, micro, replica; /* PLAN_NONE where the kind has none */
    /* Number of the training step within the cycle. PLAN_NONE for a tensor that keeps its value from step to
     * step. */
    uint32_t step;
    /* The decision group, if the kind is GROUP or DECISION. Otherwise PLAN_NONE. */
    uint32_t group;
    /* The type of the elements. DTYPE_U8 if the tensor is a C struct, or a block of several arrays such as S
     * or K. */
    enum dtype dtype;
    uint64_t bytes;
    /* Offset of slot 0 of the tensor's home in the host pool, which is the host memory of the plan.
     * PLAN_NO_HOST if the tensor has no home. */
    uint64_t host_offset;
    /* Number of slots of the home, or 0. Run r of the cycle uses slot r % host_slots. A slot has `bytes`
     * bytes, rounded up to a multiple of PLAN_ALIGN. */
    uint32_t host_slots;
};

/* The kind of an instruction. The kinds from FWD to UPD are tasks, which compute. The kinds after UPD move or
 * drop copies. */
enum instr_kind {
    /* Runs one micro-batch forward through one layer. */
    INSTR_FWD,
    /* Runs one micro-batch backward through one layer, and adds the weight gradient to dW. */
    INSTR_BWD,
    /* Recomputation: runs a FWD again. This is necessary if the saved values S or the output of the FWD were
     * not kept. */
    INSTR_REC,
    /* Reduction: adds the gradient dW of one replica to the dW of replica 0. */
    INSTR_RED,
    /* Computes the squared norm (SUMSQ) of a layer's gradient dW, when dW is complete. */
    INSTR_NORM,
    /* Computes the GROUP tensor of a decision group and, if the group has one, its DECISION tensor. */
    INSTR_DECIDE,
    /* Updates the weights W and the optimizer state K with the gradient dW, and the buffers B with the
     * statistics of all micro-batches. */
    INSTR_UPD,
    INSTR_FETCH, /* copies from host to device */
    INSTR_SPILL, /* copies from device to host */
    INSTR_SEND,  /* copies from one device to another */
    /* Copies bytes within one device, from one copy of a tensor to another copy of the same tensor. */
    INSTR_COPY,
    /* Ends a copy on a device, so that the memory of the copy can be used again. A drop moves no bytes. */
    INSTR_DROP,
    INSTR_KIND_COUNT
};

enum access { ACCESS_READ = 1, ACCESS_WRITE = 2, ACCESS_RW = 3, ACCESS_DROP = 4 };

/* The roles that an operand can have in its task: the enum constant, the name in plan files, and the words
 * for messages. For example, tensor Y2.1 is the output (Y) of the FWD of layer 2 and the input (X) of the
 * FWD of layer 3. Whoever builds the graph sets the roles, and the plan copies them, so the executor finds
 * the memory of a kernel's argument without knowing how layers are connected.
 *
 * A task has at most one operand of each role, with these exceptions. DECIDE has one SUMSQ for each layer.
 * NORM and UPD have one DW for each layer that uses the weights. A share of an UPD has one K for each part
 * of the optimizer state. UPD has one STAT for each micro-batch. */
#define PLAN_ROLES(ROLE)                                                                                     \
    ROLE(NONE, "-", "no role") /* operands of moves and drops */                                             \
    ROLE(W, "w", "weights")                                                                                  \
    ROLE(DW, "dw", "gradient sum")                                                                           \
    ROLE(DW_OTHER, "dw_other", "other replica's gradient sum") /* RED adds it to DW */                       \
    ROLE(K, "k", "optimizer state")                                                                          \
    ROLE(B, "b", "buffers")                                                                                  \
    ROLE(STAT, "stat", "statistics")                                                                         \
    ROLE(X, "x", "input")                                                                                    \
    ROLE(Y, "y", "output")                                                                                   \
    ROLE(DX, "dx", "gradient of the input")                                                                  \
    ROLE(DY, "dy", "gradient of the output")                                                                 \
    ROLE(S, "s", "saved values")                                                                             \
    ROLE(SCRATCH, "scratch", "scratch")                                                                      \
    ROLE(SAVE_WORK, "save_work", "workspace beside the saved values") /* of a FWD that saves S */            \
    ROLE(TARGET, "target", "targets")                                                                        \
    ROLE(RESULT, "result", "result")                                                                         \
    ROLE(SUMSQ, "sumsq", "squared norm")                                                                     \
    ROLE(DECISION, "decision", "decision")                                                                   \
    ROLE(GROUP, "group", "group state")

enum role {
#define ROLE(name, short_name, words) ROLE_##name,
    PLAN_ROLES(ROLE)
#undef ROLE
        ROLE_COUNT
};

/* One use of a tensor by an instruction. For example, a FWD reads bytes 0 to 4096 of W3 at address 8192 of
 * device 0. */
struct plan_operand {
    tensor_id tensor;
    uint32_t loc; /* device number, or PLAN_HOST */
    /* The bytes of the tensor that the instruction uses. For the whole tensor, these are 0 and the tensor's
     * size. */
    uint64_t begin, end;
    /* Address of byte `begin`: an offset in the device's arena or in the host pool. If the tensor has several
     * host slots, the address is in slot 0. */
    uint64_t addr;
    enum access access;
    /* ROLE_NONE in moves and drops. */
    enum role role;
};

/* A condition for the start of an instruction: another instruction of the same program must be done, in the
 * same run or in an earlier run. */
struct plan_wait {
    uint32_t instr; /* index in the same program */
    /* How many runs of the program ago the other instruction ran. 0 means the same run. */
    uint32_t distance;
};

/* One instruction of a program: a task, a move or a drop.
 *
 * A task has the operands of its graph task (scheduler/graph.h), in the same order. The other kinds have:
 *
 *     FETCH  host READ, device WRITE                  on the in lane of the device
 *     SPILL  device READ, host WRITE                  on the out lane of the device
 *     SEND   device READ, other device WRITE          on the peer lane of the sending device
 *     COPY   device READ, WRITE on the same device    on the peer lane of the device; uses no link
 *     DROP   device DROP                              on any lane of the device
 *
 * Shares. RED and UPD work element by element, so a plan may split one of these tasks into several
 * instructions, for example one per device. Each such share covers one range [b, e) of the elements of W and
 * dW, and together the shares cover every element exactly once. K consists of parts that lie one behind the
 * other (AdamW has two), so a share has one K operand for each part: the elements [b, e) of that part. If a
 * part has another number of elements than W, the share has the proportional range of the part. The graph
 * lists the parts of each layer (struct graph_layer). */
struct plan_instr {
    enum instr_kind kind;
    uint32_t stream; /* plan_stream(device, lane), or plan_host_stream */
    /* The numbers of the task. PLAN_NONE where this kind of instruction has no such number. */
    uint32_t layer, micro, replica;
    /* Number of the training step within a run of the cycle, from 0 to plan.steps - 1. Always 0 in moves and
     * drops. */
    uint32_t step;
    /* Decision group of the task's layer. For DECIDE, the group of the DECIDE itself. Always 0 in moves and
     * drops. */
    uint32_t group;
    uint32_t operand, n_operands; /* first operand and count, in plan_program.operands */
    uint32_t wait, n_waits;       /* first wait and count, in plan_program.waits */
};

/* The five programs of a plan. A boundary copy stays on its device between two runs of the cycle. A dirty
 * copy has a newer value than the host.
 *
 *     entry  fetches the boundary copies from the host
 *     cycle  trains plan.steps steps; starts and ends with the boundary copies on the devices
 *     flush  spills every dirty copy and drops nothing, for a checkpoint
 *     exit   spills every dirty copy and drops all copies
 *     eval   runs the forward pass, from empty devices to empty devices */
enum program_kind { PROGRAM_ENTRY, PROGRAM_CYCLE, PROGRAM_FLUSH, PROGRAM_EXIT, PROGRAM_EVAL, PROGRAM_COUNT };

/* One program. Its instructions are stored in the order in which they are issued. Each instruction refers to
 * its own range of `operands` and of `waits`. */
struct plan_program {
    struct plan_instr *instrs;
    struct plan_operand *operands;
    struct plan_wait *waits;
    uint32_t n_instrs, n_operands, n_waits;
};

/* Start and end time of one instruction. The simulator predicts them, and the executor measures them. An
 * instruction starts when all its waits are done. */
struct plan_span {
    uint64_t start_ns, end_ns;
};

/* A boundary copy: bytes of a tensor that stay on a device from one run of the cycle to the next. They are
 * then the newest value. */
struct plan_copy {
    tensor_id tensor;
    uint32_t device;
    uint64_t begin, end; /* byte range of the tensor */
    /* Address of byte `begin`, counted from the start of the device's arena. */
    uint64_t addr;
};

/* The memory of one device: what the job may use, and what the plan uses. */
struct plan_device {
    uint64_t lease_bytes; /* bytes that the job may use */
    uint64_t peak_bytes;  /* highest address in use, plus 1 */
};

/* A complete plan for one job on one machine. It does not change once it is built. plan_destroy frees the
 * plan and everything that it points to. */
struct plan {
    /* Name of the policy that made the plan, such as "harmony-pp". */
    char policy[32];
    uint32_t n_devices, n_layers;
    uint32_t n_micro; /* micro-batches of a step, over all replicas */
    /* Number of replicas. Each replica computes n_micro / n_replicas consecutive micro-batches of a training
     * step. */
    uint32_t n_replicas;
    uint32_t n_groups; /* decision groups */
    uint32_t rows;     /* rows of a micro-batch */
    /* Number of training steps in one run of the cycle. */
    uint32_t steps;
    /* Number of bytes of host memory that the job may use. */
    uint64_t host_lease_bytes;
    uint64_t host_bytes; /* size of the host pool */
    struct plan_device devices[DEVICE_MAX];
    struct plan_tensor *tensors;
    uint32_t n_tensors;
    /* The copies that stay on a device from one run of the cycle to the next. They are sorted by device, and
     * then by address. */
    struct plan_copy *boundary;
    uint32_t n_boundary;
    struct plan_program programs[PROGRAM_COUNT];
    struct arena *arena; /* owns all arrays, and this struct */
};

extern const char *const tensor_kind_names[TENSOR_KIND_COUNT]; /* "W", "dW", "K", ... */
extern const char *const instr_kind_names[INSTR_KIND_COUNT];   /* "FWD", "BWD", ... */
extern const char *const program_kind_names[PROGRAM_COUNT];    /* "entry", "cycle", ... */
extern const char *const role_names[ROLE_COUNT];               /* "w", "dw", ... */

/* Frees a plan and everything that it points to. Does nothing if `p` is NULL. */
void plan_destroy(struct plan *p);

/* Returns the number of a stream of `device`. Each device has four: device 0 has streams 0 to 3, device 1 has
 * streams 4 to 7, and so on. */
static inline uint32_t plan_stream(uint32_t device, enum lane lane)
{
    return device * LANE_COUNT + lane;
}
/* Returns the number of the host's only stream. The host's stream comes after the streams of all devices. */
static inline uint32_t plan_host_stream(const struct plan *p)
{
    return p->n_devices * LANE_COUNT;
}
static inline uint32_t plan_n_streams(const struct plan *p)
{
    return p->n_devices * LANE_COUNT + 1;
}
/* Returns whether instructions of kind `k` move bytes. Tasks and drops move no bytes. */
static inline bool instr_is_move(enum instr_kind k)
{
    return k == INSTR_FETCH || k == INSTR_SPILL || k == INSTR_SEND || k == INSTR_COPY;
}
static inline uint64_t operand_bytes(const struct plan_operand *o)
{
    return o->end - o->begin;
}

/* Returns whether two plans are equal. The indices at which the arrays store operands and waits may
 * differ. */
bool plan_equal(const struct plan *a, const struct plan *b);

/* The classes of tensors in reports about moved bytes. A different method reduces the moved bytes of each
 * class. */
enum byte_class {
    /* Weights, gradients and optimizer state. Pinning layers to a device reduces these bytes. */
    BYTES_STATE,
    /* Activations and their gradients. Recomputing activations reduces these bytes. */
    BYTES_STASH,
    /* Inputs, targets and results. Every training step has to move all of these bytes. The outputs that a
     * forward-only phase keeps are results. */
    BYTES_DATA,
    BYTES_CLASS_COUNT
};

/* Returns the class for which the bytes of a tensor are counted. What the loader fills or the trainer reads
 * counts as data. */
enum byte_class tensor_byte_class(const struct plan_tensor *t);

/* The bytes that one run of a program moves over links. `in` is the sum of `state_in`, `stash_in` and
 * `data_in`. `out` is the sum of `state_out`, `stash_out` and `data_out`. */
struct plan_bytes {
    /* `in` is the number of bytes moved from host to devices, `out` from devices to host, and `peer` between
     * devices. */
    uint64_t in, out, peer;
    uint64_t state_in, state_out; /* W, dW, K, B, SUMSQ */
    /* Bytes of activations: outputs of layers (Y), gradients of inputs (dX), and values saved for the
     * backward pass (S). Statistics (STAT) are counted here too. */
    uint64_t stash_in, stash_out;
    uint64_t data_in, data_out; /* inputs, targets, results, decision, group state */
    /* The part of data_in that belongs to the group state. Every device that updates weights fetches the
     * group state once. */
    uint64_t group_in;
};

/* Counts the bytes that all devices together move in one run of program `k`. */
void plan_count_bytes(const struct plan *p, enum program_kind k, struct plan_bytes *ret);

/* Counts the bytes that all devices together move in one training step. If the cycle has several steps, this
 * is the average over its steps, rounded down. */
void plan_step_bytes(const struct plan *p, struct plan_bytes *ret);

/* Counts the bytes that one device moves in one run of program `k`. A transfer between two devices counts
 * only for the sender. */
void plan_count_device_bytes(const struct plan *p, enum program_kind k, uint32_t device,
                             struct plan_bytes *ret);

/* Computes the largest number of bytes in use at once on each device. plan_device.peak_bytes may be larger,
 * because of gaps between copies. */
void plan_live_peak(const struct plan *p, uint64_t ret[DEVICE_MAX]);

#endif
