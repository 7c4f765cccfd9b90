/* Devices: arenas, streams, events, copies and launches behind one interface. A backend is one folder and one
 * row in the table of device.c; it is chosen at run time by name.
 *
 * A `devset` is the devices of one job together with the host's compute stream. Streams are numbered as in
 * plans: device d has four (compute, in, out, peer) at 4*d + lane, the host's is 4*n_devices.
 *
 * Order of calls: devset_open; event_create as needed; enqueue (launch, copy, discard, mark, event_record,
 * event_wait) from ONE thread; devset_drain or event_sync to learn that work is done; devset_close. Enqueueing
 * returns at once unless the stream's queue is full; then it sleeps until there is room. A stream runs its
 * commands in order; across streams order comes from events alone. Nothing is allocated after devset_open and
 * event_create.
 *
 * Events are as in CUDA: event_wait makes the stream wait for the most recent event_record of that event
 * enqueued before the wait; an event never recorded does not block.
 */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/op.h"

enum lane { LANE_COMPUTE, LANE_IN, LANE_OUT, LANE_PEER, LANE_COUNT };
extern const char *const lane_names[LANE_COUNT]; /* "compute", "in", "out", "peer" */

#define DEVICE_MAX   64
#define DEVICE_ALIGN 256 /* of arenas and of every address in a plan */

/* A device as a backend finds it on this machine. */
struct device_info {
    uint32_t index;                      /* the backend's number, for devset_config.device_index */
    char name[80], bus_id[24], uuid[48]; /* "" where not known; the bus id as in /sys: "0000:3b:00.0" */
    uint64_t total_bytes;
    uint64_t free_bytes;                  /* of these, what no process uses now; 0 also where nobody asked */
    int32_t numa_node;                    /* of the host memory nearest to it; -1: not known */
    uint32_t pcie_generation, pcie_width; /* of its link to the host; 0: not known */
    bool peer[DEVICE_MAX];                /* [i]: copies go directly to the i-th device of the list */
};

#define DEVICES_ALL UINT64_MAX

/* What the backend finds here. 0 with *ret_n == 0: virtual devices, as many as one likes. A backend that cannot be
 * used on this machine fails, and the message says why. `asked`: bit i: also how much of device i (device_info.index) is
 * free, which takes some of its memory for a moment; so whoever uses a device should not be disturbed by asking. Holds
 * nothing afterwards, but may start the backend's runtime in this process. Not while a devset is open: a backend may shut
 * down and start its devices. */
int devset_probe(const char *backend, uint64_t asked, struct device_info *ret, uint32_t max, uint32_t *ret_n,
                 struct err *err);

struct devset;
struct event;

/* Which devices of a devset no longer work: after an error that a process cannot recover from, or because they have
 * gone. `why`: of the first, in the backend's words. */
struct device_blame {
    uint64_t devices; /* bit d: device d of the devset */
    char why[96];
};

struct devset_config {
    const char *backend;                 /* "cpu", "cuda" */
    uint32_t n_devices;                  /* 1..DEVICE_MAX */
    uint64_t capacity_bytes[DEVICE_MAX]; /* arena of each device; multiples of DEVICE_ALIGN */
    uint32_t threads; /* that work on one op of the cpu or the host, at least 1; never changes the bits */
    uint64_t link_bytes_per_s;    /* cpu: pace of in and out copies, per device and direction; 0: unpaced */
    uint64_t peer_bytes_per_s;    /* cpu: pace of peer copies; 0: unpaced */
    uint64_t delay_seed;          /* cpu: non-zero: sleep at random before commands, to shake out races */
    uint64_t host_chunk_bytes;    /* cuda: host memory is pinned in pieces of this size; 0: 256 MiB */
    const uint32_t *device_index; /* device_info.index of each device; NULL: 0, 1, ...; cpu: no meaning */
    struct device_blame *blame;   /* written when opening fails; NULL: nobody asks */
};

/* Bytes that copies have really moved over links, counted at the copy, per device; and where streams spent time. */
struct device_counters {
    uint64_t in_bytes, out_bytes, peer_bytes; /* peer: counted at the sender */
    uint64_t compute_busy_ns;                 /* compute stream: running ops; cuda: 0, not measured */
    uint64_t compute_wait_ns;                 /* compute stream: blocked in an event wait; cuda: 0 */
};

/* The name of backend i, NULL when there are no more. That it can be opened here is another matter. */
const char *devset_backend_name(uint32_t i);

/* Fails with what a person can do about it in err. cuda: -ENOENT no module, -ELIBACC the module cannot be
 * loaded (no CUDA runtime), -ENODEV no driver or not as many devices, -ENOMEM less memory than asked for. */
int devset_open(const struct devset_config *config, struct devset **ret, struct err *err);
void devset_close(struct devset *ds); /* drains first; takes NULL */

const char *devset_backend(const struct devset *ds);
/* What the bits depend on besides the spec: "cpu avx512 oneDNN 2.6.3". */
const char *devset_numerics(const struct devset *ds);

/* The device's address `offset`, for passing to launches and copies. offset <= capacity. */
void *devset_address(const struct devset *ds, uint32_t device, uint64_t offset);

/* On a compute stream, a device's or the host's. The addresses in the call are of that device's arena, or of
 * host memory. */
int devset_launch(struct devset *ds, uint32_t stream, const struct op_call *call);

/* A copy on any copy stream. Both ends are addresses: host memory or devset_address. The lane of the stream
 * says how it is counted and paced. On a peer lane the destination may be the same device: no link carries such a copy, so it
 * is neither counted nor paced; its ends do not overlap (-EINVAL). Host memory is devset_host_alloc's: cuda refuses any
 * other (-EFAULT), which it would read when the copy is enqueued and not when it runs. */
int devset_copy(struct devset *ds, uint32_t stream, void *dst, const void *src, uint64_t bytes);

/* On any stream of a device: when it gets there, the contents of these bytes of the device's arena are of no more use,
 * until they are written again. Does nothing and costs nothing, except where mistakes are looked for (cpu with a
 * delay_seed, cuda under the simulator): there it writes NaN over them, so that who still reads or writes them
 * shows, by its numbers or as a race. */
int devset_discard(struct devset *ds, uint32_t stream, void *at, uint64_t bytes);

/* Writes the time (clock_now_ns) to *at when the stream gets there: when all its commands before are done and
 * none after has begun. *at is host memory; it belongs to the devset until devset_drain, or event_sync of an
 * event recorded behind the mark, has returned, and may be read from then on. Of two marks that streams and
 * events put in order the first is never the later one, whatever clock a backend reads and converts. */
int devset_mark(struct devset *ds, uint32_t stream, uint64_t *at);

int event_create(struct devset *ds, struct event **ret);
void event_destroy(struct devset *ds, struct event *e); /* takes NULL; the devset must be drained */
int event_record(struct devset *ds, uint32_t stream, struct event *e);
int event_wait(struct devset *ds, uint32_t stream, struct event *e);
int event_sync(struct devset *ds, struct event *e); /* blocks the caller until the last record has run */

/* Blocks until every stream is empty. Returns the first error any command had. */
int devset_drain(struct devset *ds);

/* To be asked after a failure: asks every device. Nobody is blamed for an error that devices survive (a call that was
 * refused, memory that was not there). The cpu's never break. */
void devset_blame(struct devset *ds, struct device_blame *ret);

/* Exact after devset_drain; while streams run, at least what was counted at the last drain. Any thread. */
void devset_counters(const struct devset *ds, uint32_t device, struct device_counters *ret);

/* Gives the devices' memory back and keeps the rest: streams, events and host memory. Drains first, and returns
 * what devset_drain does. From then on copies and launches are refused (-EPROTO) until devset_acquire, which
 * takes memory again: capacity_bytes[n_devices], as in devset_config. Contents are lost, and addresses may be
 * others: ask devset_address again. When acquiring fails the devset stays released. Releasing twice is nothing;
 * acquiring what was not released is -EPROTO. */
int devset_release(struct devset *ds);
int devset_acquire(struct devset *ds, const uint64_t *capacity_bytes, struct err *err);

/* Host memory for tensors: pinned where the backend copies from it. Zeroed, page-aligned. -ENOMEM when it cannot be had, and
 * what to do about it in err; nothing of it stays pinned. */
int devset_host_alloc(struct devset *ds, uint64_t bytes, void **ret, struct err *err);
void devset_host_free(struct devset *ds, void *p, uint64_t bytes);

#endif
