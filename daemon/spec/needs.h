/* What a job needs of a machine: how long a training step takes, how many bytes of each device, and how much
 * host memory.
 *
 * A worker makes a struct job_needs out of the plan of a job: `tutti-worker --check`, --plan and --serve
 * print it as the member "needs". The client passes what the check printed with the submit request. The
 * daemon stores it with the job, shows it, and predicts by it when the job will be done. When a worker has
 * planned the job on its lease, it sends what the job needs with that plan, and the daemon replaces its copy.
 * The needs are a prediction: what a job may use is limited by its lease alone.
 *
 * Example: a job trains 300 steps on two devices. A step takes 12 ms by the simulator, 50 MB of each device
 * are used, and the tensors and the data set take 900 MB of host memory:
 *
 *     {"steps":300,"step_ns":12000000,"times":"analytic","device_bytes":[50000000,50000000],
 *      "host_bytes":{"planning":120000000,"loading":901000000,"running":900000000,"saving":901500000}}
 */
#ifndef DAEMON_SPEC_NEEDS_H
#define DAEMON_SPEC_NEEDS_H

#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "kernels/device.h"

/* Where the task durations for planning come from. The durations help to choose a plan, but never change the
 * results of training. */
enum job_profile {
    JOB_ANALYTIC, /* computed by formulas */
    JOB_FILE,     /* read from the profile that was given */
    JOB_MEASURED, /* measured here by --time */
    JOB_PROFILE_COUNT
};
extern const char *const job_profile_names[JOB_PROFILE_COUNT + 1]; /* "analytic", "file", "measured", NULL */

/* Host memory of a job in bytes. Each field is the total of everything that the job has in host memory at one
 * time: data sets, plans, tensors and so on. */
struct needs_host {
    uint64_t planning; /* an upper bound, known before planning begins */
    uint64_t loading;  /* while the weights are read from a checkpoint or from a folder */
    uint64_t running;
    uint64_t saving; /* while a checkpoint is written */
};

struct job_needs {
    uint64_t steps;                    /* number of training steps of the whole job */
    uint64_t step_ns;                  /* predicted time of a training step: the mean over all steps */
    enum job_profile times;            /* where this prediction comes from */
    uint32_t n_devices;                /* 1 or more */
    uint64_t device_bytes[DEVICE_MAX]; /* bytes that the plan uses of each device */
    struct needs_host host;
};

/* Appends the needs to `b` as a JSON object. */
void needs_to_json(const struct job_needs *n, struct strbuf *b);

/* Reads the needs from a JSON object. `path` is the path of the object for messages, such as "needs". Returns
 * -EINVAL if the object does not have the form that needs_to_json writes. *ret is then undefined. */
int needs_read(const struct json *node, const char *path, struct job_needs *ret, struct err *err);

/* Returns the most host memory that the job has at any time, in bytes. */
uint64_t needs_host_bytes(const struct job_needs *n);

/* Returns the predicted time in seconds of the training steps after `steps_done`. */
double needs_left_s(const struct job_needs *n, uint64_t steps_done);

#endif
