/* Inside the stand-in libcudart: the state of the simulated machine and what its parts offer each other.
 *
 * The machine is a set of streams, each a queue of operations. Nothing runs by itself: operations run when
 * the program synchronizes, when a queue is long, or when the seed says so, one at a time, in an order
 * drawn from the seed (order.c) among the heads of streams that are ready. One thread and one seed give
 * one history.
 *
 * Lock: `sim.lock` guards everything here. It is held while operations run, except host functions, during
 * which `sim.busy` is set instead. Functions without a word about it expect the lock to be held. Names
 * that CUDA defines (cuda*) take it themselves, by sim_enter and sim_leave. */
#ifndef CUDASIM_SIM_H
#define CUDASIM_SIM_H

#include <driver_types.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <vector_types.h>

#include "simt.h"

enum {
    SIM_DEVICES = 16,
    SIM_STREAMS = 128,         /* at the same time, all devices */
    SIM_HOST = SIM_STREAMS - 1 /* the clock of the host thread; no stream has this number */
};

/* ---- time --------------------------------------------------------------- */

/* What has happened before: per stream the number of its operations, for the host the number of its
 * enqueues. */
struct vclock {
    uint32_t at[SIM_STREAMS];
};

void vclock_join(struct vclock *into, const struct vclock *from);

enum engine { ENGINE_COMPUTE, ENGINE_IN, ENGINE_OUT, ENGINE_PEER, ENGINE_COUNT };
extern const char *const engine_names[ENGINE_COUNT];

/* What the virtual clock assumes, CUDASIM_CLOCK. */
struct rates {
    double in_per_s, out_per_s, peer_per_s; /* bytes */
    double memory_per_s;                    /* bytes, of device memory */
    double host_per_s;                      /* bytes that a host function says it touches */
    double instructions_per_s;              /* of all threads of a kernel */
    double flops_per_s;                     /* of GEMM */
    double latency_ns;                      /* before every copy and kernel */
    double call_ns;                         /* of the host, for every enqueue */
};

struct op;
uint64_t clock_ready_ns(const struct op *op); /* when it could begin */
void clock_advance(const struct op *op);      /* it has run: `op->bytes`, `flops`, `instructions` are known */
int clock_parse(const char *text, struct rates *rates, char *error, size_t size);

/* ---- operations --------------------------------------------------------- */

enum op_kind { OP_COPY, OP_GEMM, OP_HOST, OP_KERNEL, OP_RECORD, OP_SET, OP_WAIT, OP_KIND_COUNT };

/* One call of cudaEventRecord. The event, the operation that records it, and the operations that wait for it
 * share the mark. */
struct mark {
    uint32_t refs;
    struct CUstream_st *stream; /* done when this stream has done `seq` */
    uint32_t seq;
    uint64_t at_ns;      /* when done */
    struct vclock after; /* what has happened then */
};

struct op {
    struct op *next;
    struct CUstream_st *stream;
    enum op_kind kind;
    uint32_t seq;          /* in its stream, from 1 */
    uint64_t number;       /* over all streams, in the order of enqueueing */
    struct vclock clock;   /* what has happened before it, and itself */
    uint64_t enqueued_ns;  /* virtual */
    cudaError_t fails;     /* injected: the device has this error when it runs */
    const char *name;      /* for people; lives as long as the program */
    enum engine engine;    /* that it occupies; ENGINE_COUNT: none */
    uint64_t bytes;        /* moved or touched */
    uint64_t instructions; /* of a kernel */
    double flops;

    /* copy and set */
    uint64_t dst, src;
    void *staged; /* bytes of a pageable source, as they were at the call */
    int dst_device, src_device;
    int value;
    /* kernel */
    struct launch *launch;
    /* host function; GEMM: `data` is the operation's own copy */
    void (*run)(void *data);
    void *data;
    /* record and wait */
    struct mark *mark;
};

struct CUstream_st {
    int id, device;
    bool used;
    bool blocking; /* synchronizes with the default stream */
    /* Operations ever enqueued, ever done. They survive destruction, so that epochs are unique. */
    uint32_t seq, done;
    struct vclock clock; /* of the last one enqueued */
    struct op *head, *tail;
    uint64_t free_ns; /* virtual: its last operation has ended */
    int32_t priority; /* order pct */
};

struct CUevent_st {
    uint32_t magic; /* EVENT_ALIVE, or it is destroyed */
    int device;
    bool timing;
    struct mark *last; /* NULL: never recorded */
};

/* ---- the machine -------------------------------------------------------- */

struct device {
    uint64_t capacity_bytes, used_bytes, peak_bytes;
    uint64_t others_bytes; /* of the capacity, what other processes use */
    cudaError_t error;     /* sticky */
    bool gone;             /* survives cudaDeviceReset */
    bool peer[SIM_DEVICES];
    uint64_t next_address;
    uint64_t free_ns[ENGINE_COUNT], busy_ns[ENGINE_COUNT];
    uint64_t operations; /* run on it: what "gone@n" counts */
    uint64_t in_bytes, in_copies, out_bytes, out_copies, local_bytes, set_bytes, kernels, gemms;
    uint64_t peer_bytes[SIM_DEVICES], peer_copies;
};

enum order { ORDER_FIFO, ORDER_LIFO, ORDER_PCT, ORDER_RANDOM, ORDER_TIMED, ORDER_COUNT };
extern const char *const order_names[ORDER_COUNT];

struct sim {
    pthread_mutex_t lock;
    pthread_cond_t idle; /* `busy` is over */
    bool busy;           /* a host function runs, without the lock */

    int n_devices;
    struct device devices[SIM_DEVICES];
    struct CUstream_st streams[SIM_STREAMS];
    uint32_t n_events; /* alive */

    uint64_t seed, random;
    enum order order;
    int eager; /* how much runs behind the program's back; from the seed */
    bool races, abort;
    bool peer_possible;
    struct rates rates;
    const char *report_path;

    struct vclock host; /* what the host thread knows to have happened */
    uint64_t host_ns;   /* its virtual time */
    uint64_t n_ops;     /* ever enqueued */
    uint64_t n_host_functions;
    struct op *running; /* or NULL */
};
extern struct sim sim;

uint64_t sim_random(void);
const char *sim_name(enum op_kind kind);

void sim_enter(void);                     /* locks; the first call starts the machine */
cudaError_t sim_leave(cudaError_t error); /* unlocks, remembers the error for cudaGetLastError, returns it */

int sim_device(void); /* current, of this thread */
/* The error that a call about this device returns now: none, its sticky error, or that it is gone. */
cudaError_t sim_device_error(int device);
void sim_poison(int device, cudaError_t error);

/* Runs operations until all of the stream's are done, or the mark is; the host thread then knows it.
 * Returns the device's error. */
cudaError_t sim_await(struct CUstream_st *stream);
cudaError_t sim_await_mark(const struct mark *mark);
cudaError_t sim_await_device(int device);
void sim_drain(struct CUstream_st *stream); /* without the host thread's knowing */
void sim_peek(void);                        /* a query: something may run */
/* The host thread learns that this has happened. */
void sim_learn(const struct vclock *clock, uint64_t at_ns);

/* ---- streams and events (runtime_stream.c, runtime_event.c) ------------- */

/* The stream of a handle, the current device's default stream for NULL; NULL if there is none. */
struct CUstream_st *stream_of(cudaStream_t handle);
/* An operation for the end of the stream; fill it in, then push. */
struct op *stream_new_op(struct CUstream_st *stream, enum op_kind kind, const char *name);
void stream_push(struct op *op);
void stream_create_default(int device);
void op_free(struct op *op);

struct mark *mark_push(struct CUstream_st *stream); /* enqueues a record; the caller owns a reference */
void mark_wait_push(struct CUstream_st *stream, struct mark *mark);
bool mark_done(const struct mark *mark);
void mark_unref(struct mark *mark); /* takes NULL */

/* ---- memory (memory.c, copy.c) ------------------------------------------ */

struct cell;

struct allocation {
    uint64_t address, bytes; /* as the program sees it */
    uint8_t *data; /* where the bytes are. Device memory: elsewhere, its addresses are never mapped */
    void *map;     /* what to unmap, or NULL */
    uint64_t map_bytes;
    int device;          /* or -1: host */
    bool registered;     /* by cudaHostRegister */
    struct cell *shadow; /* one per 4 bytes; NULL: races are not looked for */
};

enum access { ACCESS_READ = SIMT_READ, ACCESS_WRITE = SIMT_WRITE, ACCESS_ATOMIC = SIMT_ATOMIC };

void memory_start(void);
struct allocation *memory_find(uint64_t address);       /* that contains it, or NULL */
bool memory_overlaps(uint64_t address, uint64_t bytes); /* whether an allocation has any of these bytes */
bool memory_is_device_address(uint64_t address);        /* allocated or not */
/* For an operation of `device` that is running: checks bounds, reach and races of an access and returns
 * where the bytes are; NULL: the address is wrong, *ret_why says how. */
void *memory_access(int device, uint64_t address, uint64_t bytes, enum access access, uint32_t loc,
                    const char **ret_why);
void memory_free_device(int device); /* all of it */

struct leaks {
    uint64_t device_allocations, device_bytes, host_allocations, host_bytes, registrations;
};
void memory_leaks(struct leaks *ret);

void copy_run(struct op *op);

/* ---- races (race.c) ----------------------------------------------------- */

struct cell *race_shadow_create(uint64_t bytes);
void race_shadow_destroy(struct cell *shadow, uint64_t bytes); /* takes NULL */
void race_begin(const struct op *op); /* accesses are this operation's; NULL: the host thread's */
void race_access(struct allocation *a, uint64_t address, uint64_t bytes, enum access access, uint32_t loc);
uint64_t race_count(void); /* distinct */
void race_forget(void);    /* those seen so far: they count again */

/* ---- faults (fault.c) --------------------------------------------------- */

enum fault_site {
    FAULT_EVENT,
    FAULT_GEMM,
    FAULT_HOSTALLOC,
    FAULT_HOSTFUNC,
    FAULT_LAUNCH,
    FAULT_MALLOC,
    FAULT_MEMCPY,
    FAULT_MEMSET,
    FAULT_RECORD,
    FAULT_STREAM,
    FAULT_SYNC,
    FAULT_WAIT,
    FAULT_SITE_COUNT
};

int fault_parse(const char *text, char *error, size_t size);
/* Counts a call. The error that it returns now, or 0; *ret_later: 0, or what its operation does to the
 * device when it runs. ret_later may be NULL for calls without an operation: the device is poisoned at
 * once. */
cudaError_t fault_call(enum fault_site site, int device, cudaError_t *ret_later);
void fault_ran(int device); /* an operation of the device is about to run: it may disappear now */

struct fault_event {
    char spec[48];
    int device;
    cudaError_t error;
};
uint32_t fault_events(const struct fault_event **ret);

/* ---- kernels (runtime_launch.c, simt_grid.c) ---------------------------- */

/* A kernel as the program registered it, with its body from CUDASIM_KERNELS. */
struct kernel {
    struct kernel *next;
    const void *host; /* address of nvcc's stub in the program */
    char *name;
    const struct simt_kernel *body; /* NULL: none was found */
    const struct simt_module *module;
    uint64_t max_dynamic_shared; /* cudaFuncSetAttribute */
};

struct launch {
    const struct kernel *kernel;
    dim3 grid, block;
    uint64_t shared_bytes; /* dynamic */
    void **args;           /* copied */
};

void kernels_load(const char *paths); /* CUDASIM_KERNELS; aborts with a message */
/* "add.cu:17" of a loc of the kernel; "" where it has none. */
const char *kernel_loc(const struct kernel *k, uint32_t loc, char *text, size_t size);
void launch_run(struct op *op);
void launch_free(struct launch *l); /* takes NULL */

/* Runs a grid. 0 or the error that poisons the device; counts what it did. */
cudaError_t simt_run(const struct launch *l, uint64_t seed, enum order order, uint64_t *ret_instructions,
                     uint64_t *ret_bytes);

/* ---- order, report ------------------------------------------------------ */

struct op *order_pick(void); /* the next to run, or NULL: none is ready */

enum problem {
    PROBLEM_BAD_CALL,
    PROBLEM_BARRIER,
    PROBLEM_DEADLOCK,
    PROBLEM_FREED,
    PROBLEM_HANG,
    PROBLEM_HOST_ACCESS,
    PROBLEM_MISALIGNED,
    PROBLEM_NO_KERNEL,
    PROBLEM_OUT_OF_BOUNDS,
    PROBLEM_RACE,
    PROBLEM_TRAP,
    PROBLEM_WARP,
    PROBLEM_COUNT
};

void report_problem(enum problem kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_write(void); /* to CUDASIM_REPORT, if set */
uint64_t report_total(void);

/* ---- for the stand-in libcublas, exported. Takes the lock. -------------- */

/* Enqueues a library call. `data` is copied; run(data) is called with the lock held when its turn comes. */
cudaError_t cudasim_enqueue(cudaStream_t stream, const char *name, void (*run)(void *data), const void *data,
                            size_t bytes, double flops);
/* From within such a call: where the bytes are, checked; NULL: the address is wrong and the device is
 * poisoned. */
void *cudasim_access(const void *p, size_t bytes, int write);

#endif
