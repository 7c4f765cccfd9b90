/* The daemon's record of one job: struct job, and the functions that need nothing but the record.
 *
 * jobs.h keeps the records of live jobs in a table. job_json.h turns a record into JSON and back. A record
 * that was read from the state for one request belongs to the thread that reads it; all other records belong
 * to the loop thread.
 */
#ifndef DAEMON_JOB_RECORD_H
#define DAEMON_JOB_RECORD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/sha256.h"
#include "kernels/device.h"

enum job_state {
    JOB_QUEUED,
    JOB_RUNNING,
    JOB_STOPPING,
    JOB_DONE,
    JOB_FAILED,
    JOB_CANCELLED,
    JOB_STATE_COUNT
};
extern const char *const job_state_names[JOB_STATE_COUNT + 1]; /* NULL-terminated */

#define JOB_NO_EXIT    (-1) /* job->exit before the job has ended */
#define EXIT_CANCELLED 130  /* job->exit of a cancelled job */

/* The resources that a job's spec asks for. Filled in when the job is submitted, and constant afterwards. */
struct job_ask {
    uint32_t devices_min, devices_max; /* 1 <= devices_min <= devices_max */
    /* Bytes on each device; 0: all that the device has. */
    uint64_t device_bytes;
    uint64_t host_bytes; /* host memory; 0: the job's share */
    /* Running time over all attempts; 0: no limit. */
    uint64_t time_limit_s;
};

/* The devices and memory that the daemon lets a job's worker use. */
struct job_lease {
    uint32_t n_devices;
    /* Numbers of the leased devices in the inventory. The first n_devices are set. */
    uint32_t devices[DEVICE_MAX];
    /* Bytes that the job may use on each device, and of host memory. */
    uint64_t device_bytes, host_bytes;
};

/* Identifies one process for all time. A pid alone does not, because the kernel reuses pids. */
struct job_process {
    pid_t pid; /* 0: no process */
    /* Start time of the process, in clock ticks since boot. */
    uint64_t start;
    /* The kernel's random id of the boot in which the process started. */
    char boot[40];
};

/* The latest messages of the job's worker, as JSON texts. A message that never came is NULL. */
struct job_said {
    char *planned, *progress, *curve, *evals, *report;
    /* Text for people while the worker is planning; otherwise NULL. */
    char *planning;
};

struct jobs;
struct worker; /* launch.h */

/* Everything the daemon knows about one job. The first part is written to the state when the job is
 * submitted, and the status at every change. The last part is never written: a worker sends it again to a new
 * daemon. */
struct job {
    /* The table that the job is in. NULL when the record was read from the state for one request. */
    struct jobs *table;
    uint64_t id;
    char *key, *name, *user, *dir, *output; /* key may be NULL */
    uid_t uid;
    /* Hash of spec and dir (job_spec_hash). Tells a repeated submit from a new job with the same key. */
    uint64_t spec_hash;
    /* Bytes charged to the user's quota for spec and body; 0 once the job has ended. */
    uint64_t charged_bytes;
    struct job_ask ask;
    uint64_t submitted_ms; /* wall clock */
    /* Bytes on disk of the texts that never change: spec and body. */
    uint64_t fixed_bytes;

    /* status: on disk */
    enum job_state state;
    /* Why the job waits, for people; "" when there is nothing to say. */
    char *reason;
    uint64_t started_ms, ended_ms; /* wall clock; 0: not yet */
    uint64_t used_ms;              /* running time of the earlier attempts */
    /* Number of the current attempt. Each worker that is started for the job is one attempt. */
    uint32_t attempt;
    /* Failed attempts in a row without a new checkpoint in between. */
    uint32_t failures;
    uint64_t checkpoint_step; /* step of the newest checkpoint */
    /* The value of checkpoint_step when the last attempt failed. */
    uint64_t failed_step;
    bool cancel;                /* the user cancelled the job */
    struct job_lease lease;     /* lease of the current or last worker */
    struct job_process process; /* the current or last worker */
    /* SHA-256 of the worker's secret; "" if the job never had a worker. */
    char secret_hash[SHA256_HEX_CHARS + 1];
    int exit;
    char *error; /* JSON object; NULL: no error */
    uint64_t step, total_steps;
    double loss, samples_per_s, eta_s; /* NaN: not known */

    /* memory only */
    bool on_disk; /* the submit is on disk and acknowledged */
    /* The state still holds the worker's secret itself, as tuttid 0.1.0 wrote it. */
    bool secret_in_clear;
    /* Writes of this job to the state that are under way. */
    uint32_t saves;
    /* Loop clock: earliest time of the next start after a failure; 0 means at once. */
    uint64_t not_before_ms;
    /* Names the withheld devices, for people, if the job could not start even if every running job ended.
     * Otherwise NULL. */
    char *stuck;
    struct job_said said;
    /* The end of the job is on disk, together with the last messages of its worker. */
    bool archived;
    /* State before the job ended. Clients see this state until the end is on disk. */
    enum job_state before;
    struct worker *worker; /* NULL: no worker process */
};

/* Returns whether the job is done, failed or cancelled. */
bool job_ended(const struct job *j);

/* Returns the state that clients may see. A job that has ended still shows its earlier state until the end is
 * on disk. */
enum job_state job_visible_state(const struct job *j);

/* Replaces *text by a copy of `to`, and frees the old text. `to` may be NULL. Aborts when memory runs out. */
void job_set_text(char **text, const char *to);

/* Frees the texts in j->said. */
void job_forget_said(struct job *j);

/* Frees the record. Takes NULL. The record must not be in a table. */
void job_destroy(struct job *j);

/* Returns a 64-bit hash of the spec's text and the directory that its paths are relative to. */
uint64_t job_spec_hash(const char *spec, const char *dir);

#endif
