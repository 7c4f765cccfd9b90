/* The interface to devices. It hides what differs between backends behind arenas, streams, events, copies
 * and launches. A backend is one folder and one row in the table of device.c. The caller chooses a backend
 * by name at run time.
 *
 * A `devset` holds the devices of one job together with the host's compute stream. Streams have the same
 * numbers as in plans: device d has the four streams 4*d + lane (compute, in, out, peer), and the host's
 * compute stream is number 4*n_devices.
 *
 * Order of calls: devset_open; event_create as needed; then ONE thread enqueues work with devset_launch,
 * devset_copy, devset_discard, devset_mark, event_record and event_wait; devset_drain or event_sync waits
 * until work is done; devset_close ends it.
 *
 * An enqueueing call returns at once unless the stream's queue is full; then it sleeps until the queue has
 * a free slot. A stream runs its commands in order. Only events order commands of different streams. No
 * call allocates memory after devset_open and event_create.
 *
 * Events work as in CUDA. event_wait makes a stream wait for the latest event_record of that event that
 * was enqueued before the wait. Waiting for an event that was never recorded does not block.
 */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/op.h"

/* The four streams of each device, in the order of their stream numbers. */
enum lane { LANE_COMPUTE, LANE_IN, LANE_OUT, LANE_PEER, LANE_COUNT };
extern const char *const lane_names[LANE_COUNT]; /* "compute", "in", "out", "peer" */

#define DEVICE_MAX   64
#define DEVICE_ALIGN 256 /* alignment of arenas and plan addresses */

/* One device as a backend's probe finds it on this machine. The caller of devset_probe owns the array. */
struct device_info {
    /* The backend's number of this device, as used in devset_config.device_index. */
    uint32_t index;
    /* The empty string stands for a name, bus id or UUID that is not known. The bus id is written as in
     * /sys: "0000:3b:00.0". */
    char name[80], bus_id[24], uuid[48];
    uint64_t total_bytes;
    /* Memory that no process uses now. 0 if the caller did not ask for it. */
    uint64_t free_bytes;
    /* NUMA node of the host memory nearest to this device. -1 if it is not known. */
    int32_t numa_node;
    /* Generation and width of the link to the host. 0 if they are not known. */
    uint32_t pcie_generation, pcie_width;
    /* peer[i] says whether direct copies to the i-th device of the list are possible. */
    bool peer[DEVICE_MAX];
};

/* The value of `asked` in devset_probe that asks for the free memory of every device. */
#define DEVICES_ALL UINT64_MAX

/* Lists the devices that the backend finds on this machine: writes up to `max` of them to ret and their
 * number to *ret_n. Returns 0 with *ret_n == 0 if the backend makes virtual devices, of which there can be
 * any number. Fails if the backend cannot be used on this machine, and err says why.
 *
 * Bit i of `asked` requests device_info.free_bytes of the device with index i. Answering takes some memory
 * of that device for a moment, so do not ask about a device that another process depends on.
 *
 * The call keeps nothing open, but it may start the backend's runtime in this process. Do not call it
 * while a devset is open: a backend may shut down and restart its devices. */
int devset_probe(const char *backend, uint64_t asked, struct device_info *ret, uint32_t max, uint32_t *ret_n,
                 struct err *err);

/* The open devices of one job, with their streams. Opaque outside of kernels/. */
struct devset;
/* A point in a stream that other streams and the host can wait for. Each backend has its own kind. */
struct event;

/* Names the devices of a devset that no longer work, either because they are gone or because of an error
 * that this process cannot recover from. `why` describes the first of these errors in the backend's words. */
struct device_blame {
    uint64_t devices; /* bit d: device d is broken */
    char why[96];
};

/* The arguments of devset_open. The caller owns them; the devset keeps no pointer into them. */
struct devset_config {
    const char *backend;                 /* "cpu", "cuda" */
    uint32_t n_devices;                  /* 1..DEVICE_MAX */
    uint64_t capacity_bytes[DEVICE_MAX]; /* arena sizes, multiples of DEVICE_ALIGN */
    /* Number of threads that work on one op of the cpu backend or of the host, at least 1. It never
     * changes the bits of a result. */
    uint32_t threads;
    /* cpu: speed limit of the in and out copies of each device, in each direction. 0 means no limit. */
    uint64_t link_bytes_per_s;
    /* cpu: speed limit of copies between devices. 0 means no limit. */
    uint64_t peer_bytes_per_s;
    /* cpu: if this is not 0, streams sleep at random before commands, to provoke races in tests. */
    uint64_t delay_seed;
    /* cuda: host memory is pinned in chunks of this size. 0 means 256 MiB. */
    uint64_t host_chunk_bytes;
    /* The device_info.index of each device. NULL means 0, 1, 2 and so on. The cpu backend ignores it. */
    const uint32_t *device_index;
    struct device_blame *blame; /* written when devset_open fails; may be NULL */
};

/* What one device has done so far: the bytes that its copies moved over links, counted at the copy itself,
 * and how its compute stream spent its time. devset_counters fills it in. */
struct device_counters {
    uint64_t in_bytes, out_bytes, peer_bytes; /* a peer copy counts at its sender */
    /* Time in which the compute stream ran ops. The cuda backend does not measure it and reports 0. */
    uint64_t compute_busy_ns;
    /* Time in which the compute stream waited for events. The cuda backend reports 0. */
    uint64_t compute_wait_ns;
};

/* Returns the name of backend i, or NULL if there are at most i backends. A backend in this list may still
 * be unusable on this machine. */
const char *devset_backend_name(uint32_t i);

/* Opens the devices that config describes and takes their arenas. On failure err says what a person can do
 * about it. Every backend returns -EINVAL for a wrong config. The cuda backend also returns -ENOENT if its
 * module is missing, -ELIBACC if the module cannot be loaded (for example without a CUDA runtime), -ENODEV
 * without a driver or with too few devices, and -ENOMEM if a device has less free memory than requested. */
int devset_open(const struct devset_config *config, struct devset **ret, struct err *err);
/* Waits until all streams are empty, then closes the devices and frees ds. Takes NULL. */
void devset_close(struct devset *ds);

/* Returns the name of the backend that ds was opened with. */
const char *devset_backend(const struct devset *ds);
/* Returns a string that names everything besides the spec that the bits of results depend on, such as "cpu
 * avx512 oneDNN 2.6.3". */
const char *devset_numerics(const struct devset *ds);

/* Returns the address of byte `offset` of a device's arena, for launches and copies. offset <= capacity. */
void *devset_address(const struct devset *ds, uint32_t device, uint64_t offset);

/* Enqueues an op on a compute stream, of a device or of the host. The addresses in `call` lie in that
 * device's arena, or in host memory for the host's stream. Returns -EINVAL for a wrong stream or op. */
int devset_launch(struct devset *ds, uint32_t stream, const struct op_call *call);

/* Enqueues a copy on one of a device's three copy streams. dst and src are host memory or addresses from
 * devset_address. The lane of the stream decides how the copy is counted and at what speed it runs.
 *
 * On a peer lane, dst may lie on the same device as src. No link carries such a copy, so it is neither
 * counted nor slowed down. Its two ranges must not overlap (-EINVAL).
 *
 * Host memory must come from devset_host_alloc. The cuda backend refuses any other memory with -EFAULT,
 * because CUDA would read it when the copy is enqueued and not when the copy runs. */
int devset_copy(struct devset *ds, uint32_t stream, void *dst, const void *src, uint64_t bytes);

/* Declares that nobody needs the contents of these bytes any more, until they are written again. The bytes
 * lie in the arena of the stream's device, and the declaration takes effect when the stream reaches it.
 * Normally this does nothing and costs nothing. The debugging modes (cpu with a delay_seed, cuda under the
 * simulator) then fill the bytes with NaN. A task that still uses them shows up through wrong numbers or
 * as a race. */
int devset_discard(struct devset *ds, uint32_t stream, void *at, uint64_t bytes);

/* Enqueues a time stamp. When the stream reaches it, the time (as clock_now_ns returns it) is written to
 * *at. All earlier commands of the stream are then done, and no later command has begun.
 *
 * *at is host memory. It belongs to the devset until devset_drain, or event_sync of an event recorded
 * after the mark, has returned; then the caller may read it. If streams and events order two marks, the
 * time of the first is never later than the time of the second, whichever clock the backend reads and
 * converts. */
int devset_mark(struct devset *ds, uint32_t stream, uint64_t *at);

/* Creates an event that has not been recorded yet. The caller destroys it before it closes the devset. */
int event_create(struct devset *ds, struct event **ret);
/* Frees an event. The devset must be drained. Takes NULL. */
void event_destroy(struct devset *ds, struct event *e);
/* Enqueues a record of e on the stream. The record has run when all commands that the stream got before it
 * are done. Later calls of event_wait and event_sync wait for that. */
int event_record(struct devset *ds, uint32_t stream, struct event *e);
/* Enqueues a wait on the stream. The stream's later commands start only when the latest record of e that
 * was enqueued before this call has run. */
int event_wait(struct devset *ds, uint32_t stream, struct event *e);
/* Blocks the caller until the latest record of e has run. */
int event_sync(struct devset *ds, struct event *e);

/* Blocks until every stream is empty. Returns the first error that any command had. */
int devset_drain(struct devset *ds);

/* Asks every device whether it still works and writes the broken ones to ret. Call it after a failure. An
 * error that devices survive, such as a refused call or missing memory, blames no device. Devices of the
 * cpu backend never break. */
void devset_blame(struct devset *ds, struct device_blame *ret);

/* Reads the counters of a device. They are exact after devset_drain. While streams run, they are at least
 * what they were at the last drain. Any thread may call it. */
void devset_counters(const struct devset *ds, uint32_t device, struct device_counters *ret);

/* devset_release drains the devset, frees the arenas of its devices and returns what devset_drain returns.
 * Streams, events and host memory stay. Copies and launches are refused with -EPROTO until devset_acquire.
 * Releasing a second time does nothing.
 *
 * devset_acquire takes new arenas of capacity_bytes[n_devices], as in devset_config. The old contents are
 * lost and addresses may have changed, so ask devset_address again. If it fails, the devset stays
 * released. It returns -EPROTO if the devset was not released. */
int devset_release(struct devset *ds);
int devset_acquire(struct devset *ds, const uint64_t *capacity_bytes, struct err *err);

/* Allocates host memory for tensors: zeroed, page-aligned, and pinned if the backend's copies need that.
 * Returns -ENOMEM if the memory is not available, with advice in err; then none of it stays pinned.
 * devset_host_free frees it and takes the same number of bytes; p may be NULL. */
int devset_host_alloc(struct devset *ds, uint64_t bytes, void **ret, struct err *err);
void devset_host_free(struct devset *ds, void *p, uint64_t bytes);

#endif
