/* What a daemon offers to jobs, and the lease that a job would get of it on an idle machine.
 *
 * `tutti submit` asks the daemon for its devices and gives the answer to `tutti-worker --check --offer`. The
 * check then plans the job as the worker of the daemon will: with the same limits, and by the same rules for
 * what "auto" means. Only what is busy at the moment differs.
 *
 * Example: a daemon has 4 devices of 16 GB and 200 GB of host memory for jobs, 50 GB for each device. A job
 * that asks for 1 to 2 devices is checked with 2 devices of 16 GB and 100 GB of host memory.
 */
#ifndef WORKER_OFFER_H
#define WORKER_OFFER_H

#include "base/err.h"
#include "daemon/worker/job.h"

/* What a daemon offers to jobs. offer_read fills the struct in, and offer_finish frees it. */
struct offer {
    enum backend_choice backend;
    /* The topology of the machine as JSON text. NULL if the devices are virtual. */
    char *machine;
    /* Number of devices that jobs can get. 0 if a job gets as many virtual devices as it asks for. */
    uint32_t n_devices;
    /* device_bytes[i] is the most bytes that a job could ever get on device i. 0 if no job gets the
     * device. */
    uint64_t device_bytes[DEVICE_MAX];
    uint64_t host_bytes; /* host memory for all jobs together */
    /* Host memory for each device of a job that does not ask for a number of bytes. 0 if such a job gets all
     * host memory. */
    uint64_t host_bytes_each;
};

/* Reads an offer from `text`, the daemon's answer to the request `devices` (docs/protocol.md). Returns
 * -EINVAL if `text` is no such answer. Call offer_finish even after a failure. */
int offer_read(const char *text, struct offer *ret, struct err *err);

/* Frees everything in *f. A zero-initialized struct is also allowed. */
void offer_finish(struct offer *f);

/* Sets in *o all options that come from a lease, as if the daemon had leased devices to a job with the demand
 * `d`. The offer must live as long as *o. Returns -ENOSPC if the daemon could never start the job. */
int offer_lease(const struct offer *f, const struct spec_demand *d, struct job_options *o, struct err *err);

#endif
