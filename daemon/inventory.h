/* The devices that this daemon hands out. They are virtual, found by `tutti-worker --probe`, or listed in a
 * topology file.
 *
 * The daemon never touches a device itself. It relies on a probe at the start and on later probes
 * (reprobe.h). After the start only inventory_count_own and inventory_refresh change the inventory. Loop
 * thread only.
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
    /* Number of real devices that are handed out. They are the first devices in `topology`. */
    uint32_t n_devices;
    /* True if the devices are real and listed in `topology`. False for virtual devices. */
    bool real;
    /* The topology was read from a file. Workers get it from the daemon and do not probe. */
    bool from_file;
    struct topology topology; /* devices, links and memory of the machine */
    /* For each real device, the number of bytes that a job can get now. 0 if too little memory is free. */
    uint64_t each_bytes[DEVICE_MAX];
    /* The largest value that each_bytes ever had. Admission assumes that this much memory can become free
     * again. */
    uint64_t most_bytes[DEVICE_MAX];
    uint64_t limit_bytes; /* --device-memory for real devices; 0: no limit */
};

/* Chooses the devices to hand out. Also sets n_devices, device_bytes and host_bytes in *c if no option
 * did. Blocks. */
int inventory_make(struct config *c, struct inventory *ret, struct err *err);

#define INVENTORY_PROBE_WORDS 10 /* size of the array for inventory_probe_command */

/* Writes the command that probes the devices to `ret`, ending with NULL. `only` is the value of --only, or
 * NULL for all devices. The words point into *c and `only`. */
void inventory_probe_command(const struct config *c, const char *only,
                             const char *ret[INVENTORY_PROBE_WORDS]);

/* Reads the output and the exit code of a probe. Fills in backend, reason and topology. Returns -ENODEV
 * with the probe's own message if the probe failed. */
int inventory_parse_probe(const char *text, size_t bytes, int exit, struct inventory *ret, struct err *err);

/* Updates the devices that were probed again with the result `now`. Bit i of `devices` stands for device
 * i. A device that is missing in `now` has no memory for jobs. A renumbered device gets its new number. */
void inventory_refresh(struct inventory *o, uint64_t devices, const struct topology *now);

/* Counts the memory in use on this device as available. It belongs to a worker of an earlier daemon, which
 * still has the device. */
void inventory_count_own(struct inventory *o, uint32_t device);

/* Adds the members backend and backend_reason to `b`. Real devices also get `machine`, their topology.
 * There is no comma at either end. */
void inventory_add_json(const struct inventory *o, struct strbuf *b);

/* Adds the members of a worker's lease to `b`: the backend and the numbers of the devices. A topology from
 * a file is added too. */
void inventory_add_lease(const struct inventory *o, const uint32_t *devices, uint32_t n, struct strbuf *b);

#endif
