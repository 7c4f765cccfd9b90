/* The interface to devices. It hides the differences between backends behind arenas, streams, events,
 * copies and launches. A backend is one folder and one row in the table of device.c. The caller chooses a
 * backend by name at run time.
 *
 * A `devset` holds the devices of one job together with the host's compute stream. Streams have the same
 * numbers as in plans: device d has the four streams 4*d + lane (compute, in, out, peer), and the host's
 * compute stream is number 4*n_devices.
 *
 * Order of calls: devset_open; event_create as needed; then ONE thread enqueues work with devset_launch,
 * devset_copy, devset_discard, devset_mark, event_record and event_wait; devset_drain or event_sync waits
 * until work is done; devset_close ends it.
 *
 * An enqueueing call returns at once if the stream's queue has a free slot. Otherwise it sleeps until a
 * slot is free. A stream runs its commands in order. Only events order commands of different streams. No
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

/* Each device has four streams, one for each lane. For device d and a lane, the number of the stream is
 * LANE_COUNT * d + lane. */
enum lane { LANE_COMPUTE, LANE_IN, LANE_OUT, LANE_PEER, LANE_COUNT };
extern const char *const lane_names[LANE_COUNT]; /* "compute", "in", "out", "peer" */

#define DEVICE_MAX   64
#define DEVICE_ALIGN 256 /* alignment of arenas and plan addresses */

/* Describes one device of this machine. devset_probe fills in one of these structs for each device that it
 * finds. */
struct device_info {
    /* The index of the device in its backend. To open the device, put this index into
     * devset_config.device_index. */
    uint32_t index;
    /* The device's name, PCI bus id and UUID. Each is "" if it is not known. The bus id is written as in
     * /sys, for example "0000:3b:00.0". */
    char name[80], bus_id[24], uuid[48];
    uint64_t total_bytes;
    /* The number of bytes of device memory that no process uses at the moment, or 0 if the caller did not ask
     * devset_probe for this number. */
    uint64_t free_bytes;
    /* The NUMA node of the host that is nearest to this device, or -1 if it is not known. */
    int32_t numa_node;
    /* The PCIe link between the device and the host: its generation and its number of lanes. Both are 0 if
     * they are not known. */
    uint32_t pcie_generation, pcie_width;
    /* peer[i] is true if this device can copy directly to the i-th device in the list that the probe
     * returns. */
    bool peer[DEVICE_MAX];
};

/* Pass this value as the argument `asked` of devset_probe to ask for the free memory of every device. */
#define DEVICES_ALL UINT64_MAX

/* Lists the devices that the backend finds on this machine. Writes up to `max` of them to ret and their
 * number to *ret_n. Returns 0 with *ret_n == 0 if the backend makes virtual devices. There can be any number
 * of virtual devices. Fails if the backend cannot be used on this machine, and err says why.
 *
 * Bit i of `asked` requests device_info.free_bytes of the device with index i. Finding this number takes
 * some memory of that device for a moment, so do not ask about a device that another process depends on.
 *
 * The call keeps nothing open, but it may start the backend's runtime in this process. Do not call it
 * while a devset is open, because a backend may shut down and restart its devices. */
int devset_probe(const char *backend, uint64_t asked, struct device_info *ret, uint32_t max, uint32_t *ret_n,
                 struct err *err);

/* The open devices of one job and their streams. Only code in kernels/ sees the fields of this struct. */
struct devset;
/* A point in a stream. Other streams and the host can wait for this point. Each backend defines its own
 * struct event. */
struct event;

/* The devices of a devset that no longer work: the machine has lost the device, or this process cannot
 * recover from the device's errors. `why` is the backend's message for the first error. */
struct device_blame {
    uint64_t devices; /* bit d: device d is broken */
    char why[96];
};

/* The arguments of devset_open. The caller owns this struct and may free it after the call, because the
 * devset keeps no pointers to it. */
struct devset_config {
    const char *backend;                 /* "cpu", "cuda" */
    uint32_t n_devices;                  /* 1..DEVICE_MAX */
    uint64_t capacity_bytes[DEVICE_MAX]; /* arena sizes, multiples of DEVICE_ALIGN */
    /* The number of threads that share the work of one op on the cpu. The cuda backend uses them for the ops
     * of the host. The number is at least 1. It affects only the speed, never the bits of a result. */
    uint32_t threads;
    /* Used by the cpu backend. The largest speed of copies between the host and one device, in each
     * direction. 0 means no limit. With a limit, a virtual device is as slow as a device with a real link. */
    uint64_t link_bytes_per_s;
    /* Used by the cpu backend. The largest speed of copies between two virtual devices. 0 means no limit. */
    uint64_t peer_bytes_per_s;
    /* Used by the cpu backend. If this seed is not 0, streams sleep for random times before commands. Tests
     * use these delays to find a missing wait between two streams. */
    uint64_t delay_seed;
    /* Used by the cuda backend. Host memory is pinned in chunks of this size, in bytes. 0 means 256 MiB. */
    uint64_t host_chunk_bytes;
    /* The device_info.index of each device to open. If the pointer is NULL, the devices 0, 1, 2 and so on
     * are opened. The cpu backend ignores this field. */
    const uint32_t *device_index;
    /* Used by the cuda backend; other backends refuse it with -EOPNOTSUPP. If true, products of F32
     * matrices on devices may round their factors to TF32, which has 10 fraction bits instead of 23, and so
     * use tensor cores. The sums are still floats. This changes bits, and devset_numerics then says "TF32".
     * */
    bool tf32;
    struct device_blame *blame; /* written if opening fails; may be NULL */
};

/* Counts the work that one device has done so far: the bytes that it copied over links, and the time that
 * its compute stream was busy or waiting. */
struct device_counters {
    uint64_t in_bytes, out_bytes, peer_bytes; /* a peer copy counts at its sender */
    /* The time that the compute stream spent running ops. The cuda backend does not measure this time and
     * reports 0. */
    uint64_t compute_busy_ns;
    /* The time that the compute stream spent waiting for events. The cuda backend does not measure this time
     * and reports 0. */
    uint64_t compute_wait_ns;
};

/* Returns the name of backend number `i`, or NULL if there are no more backends. A listed backend may still
 * be unusable on this machine, for example cuda without a GPU. */
const char *devset_backend_name(uint32_t i);

/* Opens the devices that `config` describes and allocates their arenas. Returns -EINVAL for a wrong config.
 * The cuda backend returns -ENOENT or -ELIBACC if its module is missing or cannot be loaded. It returns
 * -ENODEV if there are too few devices, and -ENOMEM if there is too little free memory. On failure, `err`
 * says what to do. */
int devset_open(const struct devset_config *config, struct devset **ret, struct err *err);
/* Waits until all streams are empty, then closes the devices and frees `ds`. `ds` may be NULL. */
void devset_close(struct devset *ds);

/* Returns the name of the backend that opened this devset, for example "cpu". */
const char *devset_backend(const struct devset *ds);
/* Returns a string such as "cpu avx512 oneDNN 2.6.3". If two machines return the same string, training the
 * same spec on them gives the same bits. */
const char *devset_numerics(const struct devset *ds);

/* Returns the address of the byte at `offset` in a device's arena. `offset` must not exceed the capacity of
 * the device. */
void *devset_address(const struct devset *ds, uint32_t device, uint64_t offset);

/* Enqueues an op on the compute stream of a device or of the host. The arrays in `call` must be in the
 * device's arena, or in host memory if the stream is the host's. Returns -EINVAL for a wrong stream or op. */
int devset_launch(struct devset *ds, uint32_t stream, const struct op_call *call);

/* Enqueues a copy on one of a device's three copy streams. dst and src are host memory or addresses from
 * devset_address. The lane of the stream decides how the copy is counted and at what speed it runs.
 *
 * On a peer lane, dst may lie on the same device as src. No link carries such a copy, so it is not counted
 * and has no speed limit. The two ranges must not overlap (-EINVAL).
 *
 * Host memory must come from devset_host_alloc. The cuda backend refuses any other memory with -EFAULT,
 * because CUDA would read it when the copy is enqueued and not when the copy runs. */
int devset_copy(struct devset *ds, uint32_t stream, void *dst, const void *src, uint64_t bytes);

/* Declares that the contents of these bytes are not needed any more. The bytes must lie in the arena of
 * the stream's device. The declaration takes effect when the stream reaches it. Normally the call does
 * nothing. In the debugging modes (cpu with a delay_seed, cuda under the simulator) it fills the bytes
 * with NaN, so that a task that still uses them computes wrong numbers or shows up as a race. */
int devset_discard(struct devset *ds, uint32_t stream, void *at, uint64_t bytes);

/* Enqueues a time stamp. When the stream reaches it, the time (as clock_now_ns returns it) is written to
 * *at. All earlier commands of the stream are then done, and no later command has begun.
 *
 * *at is host memory. It belongs to the devset until devset_drain has returned, or event_sync of an event
 * that was recorded after the mark. Then the caller may read it. If streams and events order two marks,
 * the time of the first is never later than the time of the second. This holds for every clock that a
 * backend reads. */
int devset_mark(struct devset *ds, uint32_t stream, uint64_t *at);

/* Creates an event that no stream has recorded yet. The caller must destroy the event before it closes the
 * devset. */
int event_create(struct devset *ds, struct event **ret);
/* Frees an event. Drain the devset before this call. `e` may be NULL. */
void event_destroy(struct devset *ds, struct event *e);
/* Enqueues a command that records event `e`. The command runs when all earlier commands of the stream are
 * done. Later calls of event_wait and event_sync wait until it has run. */
int event_record(struct devset *ds, uint32_t stream, struct event *e);
/* Makes all later commands of the stream wait for the latest record of event `e` that was enqueued before
 * this call. */
int event_wait(struct devset *ds, uint32_t stream, struct event *e);
/* Blocks the calling thread until the latest record of event `e` has run. */
int event_sync(struct devset *ds, struct event *e);

/* Blocks the calling thread until every stream is empty. Returns 0, or the first error of any command. */
int devset_drain(struct devset *ds);

/* Asks every device whether it still works, and lists the broken devices in `ret`. Call this function after
 * an error. Some errors, such as a refused call or missing memory, do not break a device. */
void devset_blame(struct devset *ds, struct device_blame *ret);

/* Copies the counters of a device to `ret`. The counters are exact after devset_drain, but may lag behind
 * while streams run. Any thread may call this function. */
void devset_counters(const struct devset *ds, uint32_t device, struct device_counters *ret);

/* devset_release drains the devset, frees the arenas of its devices and returns the result of
 * devset_drain. Streams, events and host memory stay. Copies and launches are refused with -EPROTO until
 * devset_acquire. Releasing a second time does nothing.
 *
 * devset_acquire allocates new arenas of capacity_bytes[n_devices], as in devset_config. The old contents
 * are lost and addresses may have changed, so call devset_address again. If it fails, the devset stays
 * released. It returns -EPROTO if the devset was not released. */
int devset_release(struct devset *ds);
int devset_acquire(struct devset *ds, const uint64_t *capacity_bytes, struct err *err);

/* Allocates zeroed, page-aligned host memory for tensors. The memory is pinned if the backend's copies need
 * pinned memory. Returns -ENOMEM if there is too little memory; `err` then says what to do. Free the memory
 * with devset_host_free and the same number of bytes. devset_host_free ignores NULL. */
int devset_host_alloc(struct devset *ds, uint64_t bytes, void **ret, struct err *err);
void devset_host_free(struct devset *ds, void *p, uint64_t bytes);

#endif
