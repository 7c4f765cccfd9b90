/* The inside of the cuda backend: a devset and its parts.
 *
 *     device_cuda.c     open, close, arenas, names         host_queue.c   the host's compute stream
 *     enqueue.c         launches, copies, marks, events    host_memory.c  pinned memory
 *     cuda_ops.c, *.cu  the ops                            peer_copy.c    copies between devices
 *     probe.c           lists the devices                  check.c        failed calls
 *     nvml.c            facts from the driver              watch.c        reports to a race detector
 *
 * A device is an arena, four CUDA streams and a cuBLAS handle. CUDA alone keeps the order, through its
 * streams and the events between them. The host's ops are host functions on one more stream. So no
 * function here blocks except event_sync, drain, and a launch while the host's queue is full.
 *
 * Threads: everything belongs to the enqueueing thread unless a comment says otherwise.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include <stdatomic.h>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_ops.h"

/* The memory that a device needs beside its arena. cuda_open allocates the workspace, the partial sums and
 * the sums of products. The spare bytes stay free for cuBLAS, which may load more kernels when a shape is
 * used for the first time. */
#define CUDA_WORKSPACE_BYTES (UINT64_C(32) << 20) /* as cuBLAS itself uses on large devices */
#define CUDA_PARTIALS_BYTES  (CUDA_PARTIALS * sizeof(double))
#define CUDA_SUMS_BYTES      (CUDA_SUMS * sizeof(float))
#define CUDA_SPARE_BYTES     (UINT64_C(128) << 20)

/* One stream of a devset, which belongs to a device or to the host. */
struct cuda_stream {
    cudaStream_t stream;
    cudaEvent_t drained; /* recorded by cuda_drain */
    /* The number of bytes in all copies over links that have been enqueued so far. Any thread may read this
     * number. */
    _Atomic uint64_t copied_bytes;
};

/* ---- host_queue.c: the host's compute stream ---- */

/* The number of calls that the host's queue can hold. The queue is a ring of two halves, so this number must
 * be even. */
#define HOST_QUEUE 256

/* A slot for one op that is enqueued for the host. The enqueueing thread owns the slot until it launches the
 * op. After the launch, the CUDA driver owns the slot until the op has run. */
struct host_slot {
    struct op_call call;
    struct step_args step;
    struct pool *pool;
};

/* The host's compute stream. The enqueued ops are stored in a ring, and the CUDA driver runs them on the cpu
 * one after another. */
struct host_queue {
    struct pool *pool;
    struct host_slot slots[HOST_QUEUE];
    /* The event half_done[h] is recorded after the last call in half h of the ring. When this event has
     * happened, half h may be used again. */
    cudaEvent_t half_done[2];
    uint64_t pushed;
};

/* Starts a pool of `threads` threads for the host's ops. On failure, returns a negative errno, and `err`
 * gives the reason. */
int host_queue_init(struct host_queue *q, uint32_t threads, struct cuda_fault *f, struct err *err);
/* Stops the pool's threads. The host's stream must be drained. This function may also be called after
 * host_queue_init has failed. */
void host_queue_finish(struct host_queue *q);
/* Enqueues an op on the host's stream. Blocks the calling thread while the queue is full. */
int host_queue_launch(struct host_queue *q, cudaStream_t stream, const struct op_call *call,
                      struct cuda_fault *f);

/* ---- peer_copy.c: copies between devices ---- */

#define RELAY_BYTES (UINT64_C(4) << 20) /* size of one buffer */

/* What a device needs for copies to and from devices that it cannot access directly. Such a copy has two
 * steps. The sender's peer stream copies the data to pinned host memory, and the receiver's stream `in`
 * copies the data from there. */
struct relay {
    /* The stream on which this device receives data from other devices' buffers. NULL if all devices can
     * access each other directly. */
    cudaStream_t in;
    uint8_t *buffers[2]; /* pinned buffers for sending */
    /* The sender records its event filled[b] when it has copied a piece into its buffer b. */
    cudaEvent_t filled[2];
    /* Used when this device receives. The device records emptied[b] when it has copied a piece out of the
     * sender's buffer b. */
    cudaEvent_t emptied[2];
};

/* One device of a devset. The device's arena is in struct devset. */
struct cuda_device {
    struct cuda_compute compute;
    void *workspace;
    /* Bit p is set if this device can access the memory of device p of the devset directly. */
    uint64_t direct;
    struct relay relay;
};

/* ---- host_memory.c: pinned memory ---- */

/* The default size of a chunk, in bytes. Host memory is pinned by registering it with CUDA, one chunk after
 * another. */
#define HOST_CHUNK_BYTES (UINT64_C(256) << 20)

/* A block of memory that devset_host_alloc has returned. The blocks of a devset form a linked list. */
struct host_block {
    struct host_block *next;
    uint8_t *base;
    uint64_t bytes, mapped_bytes; /* as requested; rounded up to pages */
    uint64_t chunk_bytes;         /* size of each registration except the last */
    uint64_t registered_bytes;    /* bytes registered so far, starting at base */
};

/* A devset of the cuda backend. cuda_open creates it and cuda_close frees it. */
struct cuda_devset {
    struct devset base; /* must be first */
    struct cuda_fault fault;
    struct host_queue host;
    struct host_block *host_blocks;
    uint64_t host_chunk_bytes;
    char numerics[256];
    bool tf32;              /* as in devset_config */
    int number[DEVICE_MAX]; /* CUDA's number for each device */
    uint32_t n_streams;
    struct cuda_device devices[DEVICE_MAX];
    /* All streams of the devset. The index is the stream's number, which plans use too. The last stream is
     * the host's stream, which is a CUDA stream of device 0. */
    struct cuda_stream streams[LANE_COUNT * DEVICE_MAX + 1];
};

static inline struct cuda_devset *cuda(struct devset *ds)
{
    return (struct cuda_devset *)ds;
}

/* Returns the device that a stream belongs to. The host's stream belongs to device 0. */
static inline uint32_t cuda_device_of(const struct cuda_devset *ds, uint32_t stream)
{
    return stream / LANE_COUNT < ds->base.n_devices ? stream / LANE_COUNT : 0;
}

/* Sets the size of the chunks in which host memory is registered with CUDA. If `chunk_bytes` is 0, the size
 * is HOST_CHUNK_BYTES. */
void host_memory_init(struct cuda_devset *ds, uint64_t chunk_bytes);
/* Frees all host memory that the caller has not freed with cuda_host_free. The devset must be drained. */
void host_memory_finish(struct cuda_devset *ds);
int cuda_host_alloc(struct devset *base, uint64_t bytes, void **ret, struct err *err);
void cuda_host_free(struct devset *base, void *p, uint64_t bytes);
/* Returns how many bytes the next copy may move if `bytes` bytes at `p` are to be copied. The result can be
 * less than `bytes`, because a copy must not cross the end of a registration. Returns 0 if some of the bytes
 * are not pinned. */
uint64_t host_piece(const struct cuda_devset *ds, const void *p, uint64_t bytes);

/* Prepares copies between all devices of the devset. A copy goes directly if the hardware allows this, and
 * through pinned host buffers otherwise. */
int peer_open(struct cuda_devset *ds, struct err *err);
/* Frees everything that peer_open has created. The devset must be drained. This function may also be called
 * after peer_open has failed. */
void peer_close(struct cuda_devset *ds);
/* Enqueues a copy to another device, or within the same device, on the peer stream of device `from`. `src`
 * must be on that device. */
int peer_copy(struct cuda_devset *ds, uint32_t from, void *dst, const void *src, uint64_t bytes);

/* ---- enqueue.c: launches, copies, marks, events ---- */

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
