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

#define JOB_NO_EXIT    (-1) /* job->exit of a job that has not ended */
#define EXIT_CANCELLED 130  /* job->exit of a job that its user cancelled */

/* The resources that a job's spec asks for. Filled in when the job is submitted, and constant afterwards. */
struct job_ask {
    uint32_t devices_min, devices_max; /* 1 <= devices_min <= devices_max */
    uint64_t device_bytes;             /* bytes on each device; 0: all that the device has */
    uint64_t host_bytes;               /* bytes of host memory; 0: the job's share */
    uint64_t time_limit_s;             /* running time over all attempts; 0: no limit */
};

/* The devices and memory that the daemon lets a job's worker use. */
struct job_lease {
    uint32_t n_devices;
    uint32_t devices[DEVICE_MAX];      /* numbers of the inventory's devices; n_devices are set */
    uint64_t device_bytes, host_bytes; /* bytes on each device; bytes of host memory */
};

/* Identifies one process for all time. A pid alone does not: the kernel gives a freed pid to another process.
 */
struct job_process {
    pid_t pid;      /* 0: no process */
    uint64_t start; /* start time of the process, in clock ticks since boot */
    char boot[40];  /* the kernel's random id of the boot in which the process started */
};

/* The latest messages of the job's worker, as JSON texts. A message that never came is NULL. */
struct job_said {
    char *planned, *progress, *curve, *evals, *report;
    char *planning; /* plain text for people; NULL unless the worker is planning */
};

struct jobs;
struct worker; /* launch.h */

/* Everything the daemon knows about one job. The first part is written to the state when the job is
 * submitted, the status at every change, and the last part never. A worker tells the last part again when a
 * new daemon adopts it. */
struct job {
    struct jobs *table; /* the table that counts this job; NULL: the record was read from the state */
    uint64_t id;
    char *key, *name, *user, *dir, *output; /* key is NULL when the submit had none */
    uid_t uid;
    uint64_t
        /* job_spec_hash of spec and dir: tells a repeated submit from a new job with the same key */
        spec_hash;
    uint64_t charged_bytes; /* bytes charged to the user's quota: spec and body; 0 once the job has ended */
    struct job_ask ask;
    uint64_t submitted_ms; /* wall clock */
    uint64_t fixed_bytes;  /* bytes on disk of the texts that never change: spec and body */

    /* status: on disk */
    enum job_state state;
    char *reason;                  /* why the job waits, for people; "" when there is nothing to say */
    uint64_t started_ms, ended_ms; /* wall clock; 0: not yet */
    uint64_t used_ms;              /* running time of the earlier attempts */
    uint32_t attempt;              /* number of the current attempt; counts the workers that took this job */
    uint32_t failures;             /* failed attempts in a row without a new checkpoint in between */
    uint64_t checkpoint_step;      /* step of the newest checkpoint */
    uint64_t failed_step;          /* checkpoint_step at the time of the last failure */
    bool cancel;                   /* the user cancelled the job */
    struct job_lease lease;        /* lease of the current worker, or of the last one */
    struct job_process process;    /* the current worker, or the last one */
    char secret_hash[SHA256_HEX_CHARS +
                     1]; /* SHA-256 of the worker's secret; "": the job never had a worker */
    int exit;
    char *error; /* JSON object; NULL: no error */
    uint64_t step, total_steps;
    double loss, samples_per_s, eta_s; /* NaN: not known */

    /* memory only */
    bool on_disk;           /* the submit is on disk and acknowledged */
    bool secret_in_clear;   /* the state still holds the secret itself, as tuttid 0.1.0 wrote it */
    uint32_t saves;         /* writes to the state that are under way */
    uint64_t not_before_ms; /* loop clock: earliest time of the next start after a failure; 0: at once */
    /* Which devices are withheld, for people, while the job could not start even if every running job ended;
     * NULL when the job could start then. */
    char *stuck;
    struct job_said said;
    bool archived;         /* the end of the job is on disk, together with the final `said` */
    enum job_state before; /* state before the job ended; clients see this state until the end is on disk */
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
