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

/* Index of a tensor in plan.tensors. The graph of the same model uses the same index. */
typedef uint32_t tensor_id;

/* Stands for no layer, no micro-batch, no replica or no tensor. */
#define PLAN_NONE UINT32_MAX
/* Location of host memory, in fields that otherwise contain a device number. */
#define PLAN_HOST UINT32_MAX
/* Value of `host_offset` for a tensor that is never in host memory. */
#define PLAN_NO_HOST UINT64_MAX
/* Number of host slots of a tensor that the loader fills or the trainer reads. */
#define PLAN_RING 2
/* Alignment of copies, on devices and in host memory. */
#define PLAN_ALIGN DEVICE_ALIGN
/* Largest distance of a wait. The executor always has fewer runs in flight. */
#define PLAN_MAX_DISTANCE 16

/* The purpose of a tensor. In reports, "dW3" is the dW of layer 3, and "X3.1" is the X of layer 3 and
 * micro-batch 1. */
enum tensor_kind {
    TENSOR_W, /* weights: one per layer */
    /* Sum of weight gradients: one per layer and replica. */
    TENSOR_DW,
    TENSOR_K, /* optimizer state: one per layer */
    /* Buffers: one per layer. No task of a step writes them. */
    TENSOR_B,
    /* Input of a layer: one per layer and micro-batch. The loader fills the input of layer 0. */
    TENSOR_X,
    /* Gradient of X: one per layer and micro-batch. */
    TENSOR_DX,
    /* Values that a FWD saves for its BWD: one per layer and micro-batch. */
    TENSOR_S,
    /* Workspace of a FWD that does not save S: one per layer and micro-batch. */
    TENSOR_WORK,
    /* Workspace of a FWD that saves S: one per layer and micro-batch. */
    TENSOR_ROOM,
    /* Workspace of a BWD: one per layer and micro-batch. */
    TENSOR_SCRATCH,
    /* Targets of the loss: one per micro-batch. The loader fills them. */
    TENSOR_TARGET,
    /* A struct step_result: one per micro-batch. The trainer reads it. */
    TENSOR_RESULT,
    /* Squared norm of dW, as a double: one per layer. */
    TENSOR_SUMSQ,
    /* A struct step_decision: one per step. The trainer reads it. */
    TENSOR_DECISION,
    /* A struct group_state: one per decision group. DECIDE writes it, and UPD reads it. */
    TENSOR_GROUP,
    TENSOR_KIND_COUNT
};

/* One tensor of a step, and its place in host memory. A ring tensor has PLAN_RING host slots, so that the
 * loader can fill one while a step reads another. */
struct plan_tensor {
    enum tensor_kind kind;
    uint32_t layer, micro, replica; /* PLAN_NONE where the kind has none */
    uint64_t bytes;
    /* Offset of slot 0 in the host pool, or PLAN_NO_HOST. */
    uint64_t host_offset;
    /* Number of host slots. Step `s` uses slot s % host_slots. The size of a slot is `bytes`, rounded up to
     * PLAN_ALIGN. */
    uint32_t host_slots;
};

/* The kind of an instruction. Kinds up to UPD compute. The others move or drop copies. */
enum instr_kind {
    /* Forward pass of one micro-batch through one layer. */
    INSTR_FWD,
    /* Backward pass of one micro-batch through one layer. Adds the gradient to dW. */
    INSTR_BWD,
    /* Recomputation: repeats a FWD to get its S or its output again. */
    INSTR_REC,
    /* Adds the dW of another replica to the dW of replica 0. */
    INSTR_RED,
    /* Computes SUMSQ of a layer from its complete dW. */
    INSTR_NORM,
    /* Computes the step's GROUP on the host, and its DECISION if the graph has one. */
    INSTR_DECIDE,
    /* Updates W and K from dW. If there is a GROUP, uses its scale and bias corrections. */
    INSTR_UPD,
    INSTR_FETCH, /* copies from host to device */
    INSTR_SPILL, /* copies from device to host */
    INSTR_SEND,  /* copies from one device to another */
    /* Copies bytes within a device, from one copy of a tensor to another. */
    INSTR_COPY,
    /* Ends a copy on a device, so that its addresses can be reused. Moves no bytes. */
    INSTR_DROP,
    INSTR_KIND_COUNT
};

enum access { ACCESS_READ = 1, ACCESS_WRITE = 2, ACCESS_RW = 3, ACCESS_DROP = 4 };

/* One use of a tensor by an instruction. For example, a FWD of layer 3 has an operand {W3, device 0, bytes
 * 0..4096, address 8192, READ}. */
struct plan_operand {
    tensor_id tensor;
    uint32_t loc; /* device number, or PLAN_HOST */
    /* Byte range of the tensor. The whole tensor is 0..bytes. */
    uint64_t begin, end;
    /* Address of byte `begin`. On a device, it is the offset in the device's arena. On the host, it is the
     * offset in slot 0, and the executor adds the offset of the step's slot. */
    uint64_t addr;
    enum access access;
};

/* A condition for the start of an instruction: another instruction must be done. It may belong to an earlier
 * run. */
struct plan_wait {
    uint32_t instr; /* index in the same program */
    /* Number of runs back. 0 means the same run. */
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
 * instructions, for example one per device. Each such share covers one byte range [b, e) of W and dW, and
 * together the shares cover every byte exactly once. K consists of parts that are as long as W and lie one
 * behind the other (AdamW has two), so a share has one K operand for each part p: the bytes from p*W + b to
 * p*W + e, where W is the size of the weights. */
struct plan_instr {
    enum instr_kind kind;
    uint32_t stream; /* plan_stream(device, lane), or plan_host_stream */
    /* PLAN_NONE for numbers that this kind of instruction does not have. */
    uint32_t layer, micro, replica;
    /* Step within the cycle, from 0 to plan.steps - 1. */
    uint32_t step;
    uint32_t operand, n_operands; /* first operand and count, in plan_program.operands */
    uint32_t wait, n_waits;       /* first wait and count, in plan_program.waits */
};

/* The five programs of a plan.
 *
 *     entry  fetches the boundary copies from the host
 *     cycle  trains plan.steps steps; starts and ends with the boundary copies on the devices
 *     flush  spills every dirty copy and drops nothing, for a checkpoint
 *     exit   spills every dirty copy and drops all copies
 *     eval   runs the forward pass, from empty devices to empty devices */
enum program_kind { PROGRAM_ENTRY, PROGRAM_CYCLE, PROGRAM_FLUSH, PROGRAM_EXIT, PROGRAM_EVAL, PROGRAM_COUNT };

/* One program, with its instructions in issue order. Each instruction has its own range of `operands` and of
 * `waits`. */
struct plan_program {
    struct plan_instr *instrs;
    struct plan_operand *operands;
    struct plan_wait *waits;
    uint32_t n_instrs, n_operands, n_waits;
};

/* The start and end time of one instruction. An instruction starts when its waits are done. The simulator
 * predicts spans, and the executor measures them. */
struct plan_span {
    uint64_t start_ns, end_ns;
};

/* A boundary copy: bytes that stay on a device between two runs of the cycle. They are then the newest value
 * of their tensor. */
struct plan_copy {
    tensor_id tensor;
    uint32_t device;
    uint64_t begin, end; /* byte range of the tensor */
    /* Address of byte `begin` in the device's arena. */
    uint64_t addr;
};

/* The memory that a plan uses on one device. */
struct plan_device {
    uint64_t lease_bytes; /* bytes that the job may use */
    uint64_t peak_bytes;  /* highest address in use, plus 1 */
};

/* A complete plan for one job on one machine. It does not change once built. plan_destroy frees it and
 * everything that it points to. */
struct plan {
    /* Name of the policy that made the plan, such as "harmony-pp". */
    char policy[32];
    uint32_t n_devices, n_layers;
    uint32_t n_micro; /* micro-batches of a step, over all replicas */
    /* Number of replicas. Each has n_micro / n_replicas consecutive micro-batches. */
    uint32_t n_replicas;
    uint32_t rows; /* rows of a micro-batch */
    /* Number of training steps per run of the cycle, from 1 to PLAN_RING. */
    uint32_t steps;
    /* Number of bytes of host memory that the job may use. */
    uint64_t host_lease_bytes;
    uint64_t host_bytes; /* size of the host pool */
    struct plan_device devices[DEVICE_MAX];
    struct plan_tensor *tensors;
    uint32_t n_tensors;
    /* Copies that stay on devices between cycles, sorted by (device, addr). */
    struct plan_copy *boundary;
    uint32_t n_boundary;
    struct plan_program programs[PROGRAM_COUNT];
    struct arena *arena; /* owns all arrays, and this struct */
};

extern const char *const tensor_kind_names[TENSOR_KIND_COUNT]; /* "W", "dW", "K", ... */
extern const char *const instr_kind_names[INSTR_KIND_COUNT];   /* "FWD", "BWD", ... */
extern const char *const program_kind_names[PROGRAM_COUNT];    /* "entry", "cycle", ... */

/* Frees a plan and everything in it. Does nothing when `p` is NULL. */
void plan_destroy(struct plan *p);

/* Returns the number of a device's stream. Device 0 has streams 0 to 3, device 1 has streams 4 to 7, and so
 * on. */
static inline uint32_t plan_stream(uint32_t device, enum lane lane)
{
    return device * LANE_COUNT + lane;
}
/* Returns the number of the host's only stream. It comes after the streams of all devices. */
static inline uint32_t plan_host_stream(const struct plan *p)
{
    return p->n_devices * LANE_COUNT;
}
static inline uint32_t plan_n_streams(const struct plan *p)
{
    return p->n_devices * LANE_COUNT + 1;
}
/* Returns whether instructions of kind `k` move bytes. Tasks and drops do not. */
static inline bool instr_is_move(enum instr_kind k)
{
    return k == INSTR_FETCH || k == INSTR_SPILL || k == INSTR_SEND || k == INSTR_COPY;
}
static inline uint64_t operand_bytes(const struct plan_operand *o)
{
    return o->end - o->begin;
}

/* Returns whether two plans are equal. The order of operands and waits in their arrays does not matter. */
bool plan_equal(const struct plan *a, const struct plan *b);

/* The three classes of bytes in traffic reports. Each class can be reduced in a different way. */
enum byte_class {
    /* Weights, gradients and optimizer state. Pinning layers reduces these bytes. */
    BYTES_STATE,
    /* Activations and their gradients. Recomputing reduces these bytes. */
    BYTES_STASH,
    /* Inputs, targets and results. Every step has to move these bytes. */
    BYTES_DATA,
    BYTES_CLASS_COUNT
};

/* Returns the class of a tensor's bytes. The X of layer 0 is data, because the loader fills it. */
enum byte_class tensor_byte_class(const struct plan_tensor *t);

/* The number of bytes that one run of a program moves over links. `in` is the sum of `state_in`, `stash_in`
 * and `data_in`. `out` is the sum of `state_out`, `stash_out` and `data_out`. */
struct plan_bytes {
    /* Totals: host to device, device to host, and between devices. */
    uint64_t in, out, peer;
    uint64_t state_in, state_out; /* W, dW, K, B, SUMSQ */
    /* X, dX and S of layers after the first. */
    uint64_t stash_in, stash_out;
    uint64_t data_in, data_out; /* inputs, targets, results, decision, group state */
    /* The part of data_in for the group state, which is fetched once per device that updates. */
    uint64_t group_in;
};

/* Counts the bytes that one run of program `k` moves on all devices. */
void plan_count_bytes(const struct plan *p, enum program_kind k, struct plan_bytes *ret);

/* Counts the bytes that one run of program `k` moves for one device. A transfer between devices counts for
 * the sender. */
void plan_count_device_bytes(const struct plan *p, enum program_kind k, uint32_t device,
                             struct plan_bytes *ret);

/* Computes the largest number of bytes that are alive at once on each device, during the cycle or eval. Each
 * copy is rounded up to PLAN_ALIGN. `peak_bytes` is larger if there are gaps between copies. */
void plan_live_peak(const struct plan *p, uint64_t ret[DEVICE_MAX]);

#endif
