/* Inside the cuda backend: a devset and its parts.
 *
 * device_cuda.c  open, close, arenas, names        host_queue.c   the host's compute stream
 * enqueue.c      launches, copies, marks, events   host_memory.c  pinned memory
 * ops.c, *.cu    the ops                           peer.c         copies between devices
 * probe.c        what is there                     check.c        failed calls
 *                                                  watch.c        what a race detector is told
 *
 * A device is an arena, four CUDA streams and a cuBLAS handle. All order is CUDA's: streams, and events across
 * them; the host's ops are host functions on one more stream. So nothing in here waits but event_sync, drain
 * and a queue that is full.
 *
 * Threads: everything belongs to the enqueueing thread, except what a comment says otherwise about.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include <stdatomic.h>

#include "kernels/backend.h"
#include "kernels/cuda/ops.h"

/* Beside its arena a device needs the cuBLAS workspace and the partials, taken when it is opened, and room for
 * what the libraries load later: cuBLAS loads a kernel when a shape first calls for it. */
#define CUDA_WORKSPACE_BYTES (UINT64_C(32) << 20) /* what cuBLAS itself takes on the largest devices */
#define CUDA_PARTIALS_BYTES  (CUDA_PARTIALS * sizeof(double))
#define CUDA_SPARE_BYTES     (UINT64_C(128) << 20)

struct cuda_stream {
    cudaStream_t stream;
    cudaEvent_t drained;           /* recorded by drain */
    _Atomic uint64_t copied_bytes; /* enqueued; read by any thread */
};

/* ---- host_queue.c: the host's compute stream ---- */

#define HOST_QUEUE 256 /* calls that are enqueued and not done, at most; even */

struct host_slot { /* the enqueueing thread's until its launch, then the driver's until it has run */
    struct op_call call;
    struct step_args step;
    struct pool *pool;
};

struct host_queue {
    struct pool *pool;
    struct host_slot slots[HOST_QUEUE];
    cudaEvent_t half_done[2]; /* recorded behind the last call of either half of the slots */
    uint64_t pushed;
};

int host_queue_init(struct host_queue *q, uint32_t threads, struct cuda_fault *f, struct err *err);
void host_queue_finish(struct host_queue *q); /* drained; takes one that is half built */
int host_queue_launch(struct host_queue *q, cudaStream_t stream, const struct op_call *call,
                      struct cuda_fault *f);

/* ---- peer.c: copies between devices ---- */

#define RELAY_BYTES (UINT64_C(4) << 20) /* of one buffer */

/* The way from one device to those it has no direct access to: its peer stream copies to pinned buffers, the
 * receiver's `in` copies on. */
struct relay {
    cudaStream_t in;        /* of this device as a receiver; NULL where all access is direct */
    uint8_t *buffers[2];    /* of this device as a sender */
    cudaEvent_t filled[2];  /* this device: the buffer holds a piece */
    cudaEvent_t emptied[2]; /* this device as a receiver: the piece of a sender's buffer has arrived */
};

struct cuda_device {
    struct cuda_place place;
    void *workspace;
    uint64_t direct; /* bit p: device p's memory can be reached */
    struct relay relay;
};

/* ---- host_memory.c: pinned memory ---- */

#define HOST_CHUNK_BYTES (UINT64_C(256) << 20) /* of one registration, unless the config says otherwise */

struct host_block { /* one devset_host_alloc */
    struct host_block *next;
    uint8_t *base;
    uint64_t bytes, mapped_bytes; /* asked for; whole pages */
    uint64_t chunk_bytes;         /* of each registration but the last */
    uint64_t registered_bytes;    /* from the base on */
};

struct cuda_devset {
    struct devset base; /* first */
    struct cuda_fault fault;
    struct host_queue host;
    struct host_block *host_blocks;
    uint64_t host_chunk_bytes;
    char numerics[256];
    int number[DEVICE_MAX]; /* CUDA's number of each device */
    uint32_t n_streams;
    struct cuda_device devices[DEVICE_MAX];
    struct cuda_stream streams[LANE_COUNT * DEVICE_MAX + 1]; /* as numbered in plans; the host's on device 0 */
};

static inline struct cuda_devset *cuda(struct devset *ds)
{
    return (struct cuda_devset *)ds;
}

/* The device that a stream is of. */
static inline uint32_t cuda_device_of(const struct cuda_devset *ds, uint32_t stream)
{
    return stream / LANE_COUNT < ds->base.n_devices ? stream / LANE_COUNT : 0;
}

void host_memory_init(struct cuda_devset *ds, uint64_t chunk_bytes); /* 0: HOST_CHUNK_BYTES */
void host_memory_finish(struct cuda_devset *ds);                     /* drained; frees what nobody did */
int cuda_host_alloc(struct devset *base, uint64_t bytes, void **ret, struct err *err);
void cuda_host_free(struct devset *base, void *p, uint64_t bytes);
/* How many of the `bytes` at p one copy may move: up to the end of a registration. 0: not all of them are pinned. */
uint64_t host_piece(const struct cuda_devset *ds, const void *p, uint64_t bytes);

int peer_open(struct cuda_devset *ds, struct err *err);
void peer_close(struct cuda_devset *ds); /* drained; takes one that is half built */
/* On the peer stream of the device that src is of. */
int peer_copy(struct cuda_devset *ds, uint32_t from, void *dst, const void *src, uint64_t bytes);

/* ---- enqueue.c ---- */

int cuda_launch(struct devset *base, uint32_t stream, const struct op_call *call);
int cuda_copy(struct devset *base, uint32_t stream, void *dst, const void *src, uint64_t bytes);
int cuda_discard(struct devset *base, uint32_t stream, void *at, uint64_t bytes);
int cuda_mark(struct devset *base, uint32_t stream, uint64_t *at);
int cuda_drain(struct devset *base);
void cuda_counters(const struct devset *base, uint32_t device, struct device_counters *ret);
int cuda_event_create(struct devset *base, struct event **ret);
void cuda_event_destroy(struct devset *base, struct event *e);
int cuda_event_record(struct devset *base, uint32_t stream, struct event *e);
int cuda_event_wait(struct devset *base, uint32_t stream, struct event *e);
int cuda_event_sync(struct devset *base, struct event *e);

#endif
