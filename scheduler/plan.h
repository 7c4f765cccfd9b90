/* The plan: a program per device stream, compiled before training starts, verified, then only interpreted.
 *
 * This is the one header of scheduler/ that swap/ may include, so everything here is plain data with no
 * pointers into the planner. Ids, not pointers, inside: a plan can be dumped, diffed, stored, loaded and
 * replayed. docs/plan.md explains the format and the ten invariants with a worked example.
 *
 * A plan has five programs. A program is one list of instructions in ISSUE ORDER; the stream of each
 * instruction is a field of it, and a stream is the subsequence of its instructions. An instruction starts
 * when the one before it in its stream is done and all its waits are done. A wait names an instruction of the
 * same program and a distance: 0 is this run of the program, d >= 1 the d-th run before (cycle only; runs
 * before the first count as done). Waits of distance 0 point backwards in issue order, which is what makes a
 * deadlock impossible (invariant 8) and lets one thread enqueue a whole program without ever looking ahead.
 *
 * Runs of the cycle follow each other without draining. Entry, flush, exit and eval drain all streams before
 * and after. The order of programs is: entry (cycle | flush)* exit eval*, then entry again.
 */
#ifndef SCHEDULER_PLAN_H
#define SCHEDULER_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/device.h"

typedef uint32_t tensor_id;

#define PLAN_NONE         UINT32_MAX   /* no layer, no micro-batch, no tensor */
#define PLAN_HOST         UINT32_MAX   /* as a location: host memory */
#define PLAN_NO_HOST      UINT64_MAX   /* host_offset of a tensor that never has a host copy */
#define PLAN_RING         2            /* slots of tensors that loader or trainer share with the executor */
#define PLAN_ALIGN        DEVICE_ALIGN /* of every address, on devices and in host memory */
#define PLAN_MAX_DISTANCE 16           /* of a wait: more than an executor ever has in flight */

enum tensor_kind {
    TENSOR_W,        /* per layer: weights */
    TENSOR_DW,       /* per layer (and replica): gradient sum */
    TENSOR_K,        /* per layer: optimizer state */
    TENSOR_B,        /* per layer: buffers, which no task of backpropagation writes */
    TENSOR_X,        /* per layer and micro-batch: input; of layer 0: filled by the loader */
    TENSOR_DX,       /* per layer and micro-batch: gradient of X */
    TENSOR_S,        /* per layer and micro-batch: what the forward saves for the backward */
    TENSOR_WORK,     /* per layer and micro-batch: workspace of a forward that saves no S */
    TENSOR_ROOM,     /* per layer and micro-batch: workspace of a forward that saves S */
    TENSOR_SCRATCH,  /* per layer and micro-batch: workspace of the backward */
    TENSOR_TARGET,   /* per micro-batch: filled by the loader */
    TENSOR_RESULT,   /* per micro-batch: struct step_result, read by the trainer */
    TENSOR_SUMSQ,    /* per layer: squared norm of dW, one double */
    TENSOR_DECISION, /* one: struct step_decision, read by the trainer */
    TENSOR_GROUP,    /* one for each decision group: struct group_state, made by DECIDE and read by UPD */
    TENSOR_KIND_COUNT
};

struct plan_tensor {
    enum tensor_kind kind;
    uint32_t layer, micro, replica; /* PLAN_NONE where it does not apply */
    uint64_t bytes;
    uint64_t host_offset; /* in the host pool, or PLAN_NO_HOST */
    uint32_t host_slots;  /* slot of step s: s % host_slots, each round_up(bytes, PLAN_ALIGN) long; 0: none */
};

enum instr_kind {
    INSTR_FWD,  /* layer forward of one micro-batch */
    INSTR_BWD,  /* layer backward of one micro-batch; adds to dW */
    INSTR_REC,  /* a forward again, for its S or its output */
    INSTR_RED,  /* dW of replica 0 += dW of another replica */
    INSTR_NORM, /* SUMSQ of a layer from its finished dW */
    INSTR_DECIDE, /* host: GROUP of this step from the last step's and, where gradients decide, DECISION from all SUMSQ */
    INSTR_UPD,   /* W, K from dW; as GROUP says where there is one */
    INSTR_FETCH, /* host to device */
    INSTR_SPILL, /* device to host */
    INSTR_SEND,  /* device to device */
    INSTR_COPY,  /* within a device, from one copy of a tensor to another */
    INSTR_DROP,  /* end of a device copy; moves nothing */
    INSTR_KIND_COUNT
};

enum access { ACCESS_READ = 1, ACCESS_WRITE = 2, ACCESS_RW = 3, ACCESS_DROP = 4 };

/* One tensor, or a byte range of it, at one place. */
struct plan_operand {
    tensor_id tensor;
    uint32_t loc;        /* device, or PLAN_HOST */
    uint64_t begin, end; /* byte range of the tensor; 0..bytes for the whole */
    uint64_t addr; /* where byte `begin` is: offset in the device's arena; on the host: host_offset + begin
                    * (of slot 0; the interpreter adds the step's slot) */
    enum access access;
};

struct plan_wait {
    uint32_t instr;    /* index in the same program */
    uint32_t distance; /* runs of the program back */
};

/* Operands of tasks stand in the order of the graph's task (scheduler/graph.h). Moves:
 * FETCH {host READ, device WRITE}; SPILL {device READ, host WRITE}; SEND {source READ, destination WRITE};
 * COPY the same, on the peer lane of the one device, and no link carries it; DROP {device DROP}.
 *
 * RED and UPD work element by element, so a plan may do one of them in shares: several instructions of the same task,
 * each with the same byte range [b, e) of its W and dW operands, that together cover them once. Of K, which is one or
 * more parts as long as W one behind another, a share has one operand for each part: [p*W + b, p*W + e). */
struct plan_instr {
    enum instr_kind kind;
    uint32_t stream;                /* plan_stream(device, lane), or plan_host_stream */
    uint32_t layer, micro, replica; /* of tasks; PLAN_NONE where it does not apply, and for moves */
    uint32_t step;                  /* within the cycle, 0 .. steps-1 */
    uint32_t operand, n_operands;   /* range in program->operands */
    uint32_t wait, n_waits;         /* range in program->waits */
};

enum program_kind { PROGRAM_ENTRY, PROGRAM_CYCLE, PROGRAM_FLUSH, PROGRAM_EXIT, PROGRAM_EVAL, PROGRAM_COUNT };

struct plan_program {
    struct plan_instr *instrs;
    struct plan_operand *operands;
    struct plan_wait *waits;
    uint32_t n_instrs, n_operands, n_waits;
};

/* When one instruction of one run of a program began (its waits were done) and ended, on any one clock:
 * predicted by the simulator or measured by the executor. Those of several runs stand in one array, run after
 * run, in issue order. */
struct plan_span {
    uint64_t start_ns, end_ns;
};

/* A device copy that lives across the boundary between two cycles; its version there is the newest. */
struct plan_copy {
    tensor_id tensor;
    uint32_t device;
    uint64_t begin, end, addr;
};

struct plan_device {
    uint64_t lease_bytes; /* what the job may use */
    uint64_t peak_bytes;  /* highest address + 1 that any program uses */
};

struct plan {
    char policy[32];
    uint32_t n_devices, n_layers;
    uint32_t
        n_micro; /* micro-batches of a step, of all replicas; replica r has the r-th n_micro / n_replicas */
    uint32_t n_replicas;
    uint32_t rows;                         /* of a micro-batch */
    uint32_t steps;                        /* training steps per cycle */
    uint64_t host_lease_bytes, host_bytes; /* allowed, used by the host pool */
    struct plan_device devices[DEVICE_MAX];
    struct plan_tensor *tensors;
    uint32_t n_tensors;
    struct plan_copy *boundary; /* sorted by (device, addr) */
    uint32_t n_boundary;
    struct plan_program programs[PROGRAM_COUNT];
    struct arena *arena; /* owns all arrays, and this struct */
};

extern const char *const tensor_kind_names[TENSOR_KIND_COUNT]; /* "W", "dW", "K", ... */
extern const char *const instr_kind_names[INSTR_KIND_COUNT];   /* "FWD", "BWD", ... */
extern const char *const program_kind_names[PROGRAM_COUNT];    /* "entry", "cycle", ... */

void plan_destroy(struct plan *p); /* takes NULL */

static inline uint32_t plan_stream(uint32_t device, enum lane lane)
{
    return device * LANE_COUNT + lane;
}
static inline uint32_t plan_host_stream(const struct plan *p)
{
    return p->n_devices * LANE_COUNT;
}
static inline uint32_t plan_n_streams(const struct plan *p)
{
    return p->n_devices * LANE_COUNT + 1;
}
static inline bool instr_is_move(enum instr_kind k)
{
    return k == INSTR_FETCH || k == INSTR_SPILL || k == INSTR_SEND || k == INSTR_COPY;
}
static inline uint64_t operand_bytes(const struct plan_operand *o)
{
    return o->end - o->begin;
}

/* Whether two plans are equal, field by field. */
bool plan_equal(const struct plan *a, const struct plan *b);

/* The three classes of bytes that reports on traffic tell apart. Each class is reduced by different means. */
enum byte_class {
    BYTES_STATE, /* weights, gradients and optimizer state: pin them on a device */
    BYTES_STASH, /* activations and their gradients between layers: recompute them */
    BYTES_DATA,  /* inputs, targets, results: every step moves them anew */
    BYTES_CLASS_COUNT
};
enum byte_class tensor_byte_class(const struct plan_tensor *t);

/* Bytes that one run of a program moves over links: exactly what the devices' counters will show. */
struct plan_bytes {
    uint64_t in, out, peer;       /* totals */
    uint64_t state_in, state_out; /* of in and out: W, dW, K, B, SUMSQ */
    uint64_t stash_in, stash_out; /* X, dX, S of layers after the first */
    uint64_t data_in, data_out;   /* inputs, targets, results, group state: what every step moves anew */
    uint64_t group_in;            /* of data_in: the group state, once for each device that updates */
};
void plan_count_bytes(const struct plan *p, enum program_kind k, struct plan_bytes *ret);
/* The same for one device (the sender's, for peer copies). */
void plan_count_device_bytes(const struct plan *p, enum program_kind k, uint32_t device,
                             struct plan_bytes *ret);

/* Most bytes alive at once on each device, in issue order, over cycle and eval, each copy rounded up to PLAN_ALIGN: what
 * the device's peak_bytes would be without gaps between addresses. */
void plan_live_peak(const struct plan *p, uint64_t ret[DEVICE_MAX]);

#endif
