/* The daemon's record of one job: struct job, and the functions that need only the record.
 *
 * jobs.h keeps the records of live jobs in a table. job_json.h converts a record to JSON and back. A record
 * that was read from the state for one request belongs to the thread that reads it. All other records belong
 * to the loop thread.
 */
#ifndef DAEMON_JOB_RECORD_H
#define DAEMON_JOB_RECORD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/sha256.h"
#include "daemon/spec/needs.h"
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

/* The resources that a job's spec asks for. All fields are set when the job is submitted, and they never
 * change afterwards. */
struct job_ask {
    uint32_t devices_min, devices_max; /* 1 <= devices_min <= devices_max */
    /* Number of bytes that the job needs on each device. 0 means all memory of the device. */
    uint64_t device_bytes;
    uint64_t host_bytes; /* host memory; 0: the job's share */
    /* Limit in seconds of the running time, added up over all attempts. 0 means no limit. */
    uint64_t time_limit_s;
};

/* The devices and memory that the daemon lets a job's worker use. */
struct job_lease {
    uint32_t n_devices;
    /* The numbers that the leased devices have in the inventory. Only the first n_devices entries are
     * used. */
    uint32_t devices[DEVICE_MAX];
    /* The number of bytes that the job may use on each of its devices, and the number of bytes that it may
     * use in host memory. */
    uint64_t device_bytes, host_bytes;
};

/* Identifies a process uniquely. A pid alone is not enough, because the kernel may give the pid of an ended
 * process to a new process. */
struct job_process {
    pid_t pid; /* 0: no process */
    /* Start time of the process, in the kernel's clock ticks since boot. */
    uint64_t start;
    /* The kernel's random id of the boot in which the process started. The id changes at every reboot. */
    char boot[40];
};

/* The latest messages of the job's worker, as JSON texts. A field is NULL if the worker has sent no such
 * message. */
struct job_said {
    char *planned, *progress, *curve, *evals, *report;
    /* A text for people about the progress of planning. NULL unless the worker is planning. */
    char *planning;
};

struct jobs;
struct worker; /* launch.h */

/* Everything that the daemon knows about one job. The struct has three parts. The fields of the first part
 * are written to disk once, when the job is submitted. The fields of the second part, the status, are written
 * at every change. The fields of the third part are only in memory, because workers send them again. */
struct job {
    /* The table of live jobs that contains this job. NULL if the record was read from the database for a
     * single request. */
    struct jobs *table;
    uint64_t id;
    char *key, *name, *user, *dir, *output; /* key may be NULL */
    uid_t uid;
    /* A hash of the spec and of `dir`. When a later submit uses the same key, the hash tells whether that
     * submit asks for the same job. */
    uint64_t spec_hash;
    /* The number of bytes that the spec and the body of this job take from the user's quota. The number
     * becomes 0 when the job has ended. */
    uint64_t charged_bytes;
    struct job_ask ask;
    uint64_t submitted_ms; /* wall clock */
    /* Number of bytes that spec and body take on disk. They never change after the submit. */
    uint64_t fixed_bytes;

    /* status: on disk */
    enum job_state state;
    /* The reason why the job waits, as a text for people. "" if there is no reason. */
    char *reason;
    uint64_t started_ms, ended_ms; /* wall clock; 0: not yet */
    uint64_t used_ms;              /* running time of the earlier attempts */
    /* The number of the current attempt, counted from 1. Every start of a worker for the job is one
     * attempt. */
    uint32_t attempt;
    /* The number of attempts in a row that have failed. A new checkpoint makes the count start again. */
    uint32_t failures;
    uint64_t checkpoint_step; /* step of the newest checkpoint */
    /* The value of checkpoint_step when the last attempt failed. A larger checkpoint_step means progress
     * since that failure. */
    uint64_t failed_step;
    bool cancel;                /* the user cancelled the job */
    struct job_lease lease;     /* lease of the current or last worker */
    struct job_process process; /* the current or last worker */
    /* SHA-256 of the secret that the worker must send. "" if the job never had a worker. */
    char secret_hash[SHA256_HEX_CHARS + 1];
    /* What the job needs of a machine, as predicted with the newest plan: at the submit by the client's check
     * of the job, later by the worker. Anybody who submits jobs can send any numbers, so only predictions
     * may depend on them. needs.n_devices is 0 if no needs are known. */
    struct job_needs needs;
    int exit;
    char *error; /* JSON object; NULL: no error */
    uint64_t step, total_steps;
    double loss, samples_per_s, eta_s; /* NaN: not known */

    /* memory only */
    bool on_disk; /* the submit is on disk and acknowledged */
    /* True if the worker's secret is on disk in plain text, and not as a hash. The old version tuttid 0.1.0
     * stored plain secrets. */
    bool secret_in_clear;
    /* The number of writes of this job to the database that have not finished yet. */
    uint32_t saves;
    /* The job must not start before the loop's clock reaches this time. 0 if the job may start at once. */
    uint64_t not_before_ms;
    /* A text that names the devices that the job cannot get, if the job could not start even on an idle
     * machine. NULL for any other job. */
    char *stuck;
    struct job_said said;
    /* Set once the end of the job and the last messages of its worker are on disk. */
    bool archived;
    /* The state of the job before it ended. Clients see this state until the end of the job is on disk. */
    enum job_state before;
    struct worker *worker; /* NULL: no worker process */
};

/* Returns true if the job has ended, that is, if it is done, failed or cancelled. */
bool job_ended(const struct job *j);

/* Returns the state that clients may see. For a job whose end is not on disk yet, this is the state before
 * the end. */
enum job_state job_visible_state(const struct job *j);

/* Frees the text *text and replaces it by a copy of `to`, which may be NULL. Aborts the process when memory
 * runs out. */
void job_set_text(char **text, const char *to);

/* Frees the texts in j->said. */
void job_forget_said(struct job *j);

/* Frees a job record, which must not be in the table of jobs. `j` may be NULL. */
void job_destroy(struct job *j);

/* Returns a 64-bit hash of a spec's text and of the directory `dir`. The directory matters, because paths in
 * the spec are relative to it. */
uint64_t job_spec_hash(const char *spec, const char *dir);

#endif
