/* The devices that this daemon gives to jobs. They are virtual devices, real devices that `tutti-worker
 * --probe` found, or devices that a topology file lists.
 *
 * The daemon never uses a device itself. What it knows about the devices comes from a probe at its start and
 * from later probes (reprobe.h).
 * After the start, only inventory_count_own and inventory_refresh change the inventory. Loop thread only.
 */
#ifndef DAEMON_INVENTORY_H
#define DAEMON_INVENTORY_H

#include "base/err.h"
#include "base/strbuf.h"
#include "daemon/config.h"
#include "scheduler/topology.h"

struct inventory {
    char backend[16]; /* "cpu" or "cuda" */
    char reason[832]; /* why this backend was chosen, for people */
    /* The number of real devices that jobs can get. They are the first n_devices entries of
     * topology.devices. */
    uint32_t n_devices;
    /* True if the devices are real and listed in `topology`, false if they are virtual. */
    bool real;
    /* Set if the topology was read from a file. The daemon then sends this topology to its workers, so that
     * the workers need not probe the devices. */
    bool from_file;
    struct topology topology; /* devices, links and memory of the machine */
    /* For each real device, the number of bytes that a job can get now. 0 if the device has too little free
     * memory. */
    uint64_t each_bytes[DEVICE_MAX];
    /* For each real device, the largest value that each_bytes has had since the daemon started. When a new
     * job is checked, the daemon assumes that this much memory can become free again. */
    uint64_t most_bytes[DEVICE_MAX];
    uint64_t limit_bytes; /* --device-memory for real devices; 0: no limit */
};

/* Decides which devices jobs can get, and fills in *ret. Also sets n_devices, device_bytes and host_bytes in
 * *c, unless an option has set them. Blocks while a probe runs. */
int inventory_make(struct config *c, struct inventory *ret, struct err *err);

#define INVENTORY_PROBE_WORDS 10 /* size of the array for inventory_probe_command */

/* Fills `ret` with the command that probes the devices, one word per element, ending with NULL. `only` is the
 * value for the option --only, or NULL to probe all devices. The words point into *c and `only`, so both must
 * stay valid. */
void inventory_probe_command(const struct config *c, const char *only,
                             const char *ret[INVENTORY_PROBE_WORDS]);

/* Interprets the output `text` and the exit code of a probe, and fills in backend, reason and topology of
 * *ret. If the probe failed, returns -ENODEV with the probe's own error message. */
int inventory_parse_probe(const char *text, size_t bytes, int exit, struct inventory *ret, struct err *err);

/* Updates the devices from `now`, the result of a probe. Bit i of `devices` is set if device i was probed. A
 * probed device that is missing in `now` gets no memory for jobs. A device that the driver has renumbered
 * gets its new number. */
void inventory_refresh(struct inventory *o, uint64_t devices, const struct topology *now);

/* Counts the used memory of this device as memory for jobs. Called for a device that a worker of an earlier
 * daemon still leases, because the used memory belongs to that worker. */
void inventory_count_own(struct inventory *o, uint32_t device);

/* Adds the JSON members backend and backend_reason to `b`. If the devices are real, also adds their topology
 * as the member `machine`. The added text neither starts nor ends with a comma. */
void inventory_add_json(const struct inventory *o, struct strbuf *b);

/* Adds the JSON members that describe a worker's lease to `b`: the backend and the numbers of the leased
 * devices. If the topology was read from a file, adds the topology too. */
void inventory_add_lease(const struct inventory *o, const uint32_t *devices, uint32_t n, struct strbuf *b);

#endif
