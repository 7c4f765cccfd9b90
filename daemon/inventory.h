/* What this daemon hands out: virtual cpu devices, or those that `tutti-worker --probe` found, or that a topology file
 * names. The daemon itself never touches a device: it believes the probe, a child that ends before the loop starts, and
 * others later (reprobe.h). Loop thread only; const after start, but for inventory_count_own and inventory_refresh.
 */
#ifndef DAEMON_INVENTORY_H
#define DAEMON_INVENTORY_H

#include "base/err.h"
#include "base/strbuf.h"
#include "daemon/config.h"
#include "scheduler/topology.h"

struct inventory {
    char backend[16];   /* "cpu" */
    char reason[832];   /* why this one */
    uint32_t n_devices; /* real: that are handed out, the first of the topology */
    bool real;          /* devices with names and numbers, in `topology`; else virtual ones */
    bool from_file;     /* the topology is from a file, and workers get it instead of looking themselves */
    struct topology topology;
    uint64_t each_bytes[DEVICE_MAX]; /* real: what is handed out of each now; 0: too little is free */
    uint64_t most_bytes[DEVICE_MAX]; /* the most that was ever free: what a job may hope for */
    uint64_t limit_bytes;            /* --device-memory; 0: none */
};

/* Decides, and settles the numbers that the command line left open: n_devices, device_bytes, host_bytes. Blocks. */
int inventory_make(struct config *c, struct inventory *ret, struct err *err);

#define INVENTORY_PROBE_WORDS 10
/* The words of a probe, NULL at the end. `only`: as the option; NULL: all devices. They point into both. */
void inventory_probe_command(const struct config *c, const char *only,
                             const char *ret[INVENTORY_PROBE_WORDS]);
/* What a probe printed and how it ended: backend, reason and topology. */
int inventory_parse_probe(const char *text, size_t bytes, int exit, struct inventory *ret, struct err *err);
/* These devices (bit i: device i) were looked at again. One that is not there any more has nothing; one that has another
 * number now, because the driver counts anew, gets that. */
void inventory_refresh(struct inventory *o, uint64_t devices, const struct topology *now);

/* A worker of an earlier daemon has the device: what the probe saw in use there was, or may have been, ours. */
void inventory_count_own(struct inventory *o, uint32_t device);

/* "backend":...,"backend_reason":...,["machine":...]: members of a JSON object, without a comma around. The machine: what
 * is handed out, as a topology. */
void inventory_add_json(const struct inventory *o, struct strbuf *b);
/* The same for the lease of a worker: backend, the devices' numbers, the topology where workers shall not look. */
void inventory_add_lease(const struct inventory *o, const uint32_t *devices, uint32_t n, struct strbuf *b);

#endif
