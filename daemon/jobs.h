/* The table of live jobs: what the daemon knows of each, and every change of state. Loop thread only.
 *
 * A change goes: alter the job, then jobs_save with the event that tells of it; watchers hear of it when it is on disk.
 * What only concerns this moment (progress, the plan, the curve) is in memory; the worker tells it again to a new daemon.
 *
 * When a job has ended, that is on disk, and its worker is gone, the job leaves the table. From then on it is found in the
 * state: request_find (server.h) looks in both places. So memory and every loop over the table cost by live jobs, not by
 * all that ever were.
 */
#ifndef DAEMON_JOBS_H
#define DAEMON_JOBS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/json.h"
#include "base/sha256.h"
#include "base/strbuf.h"
#include "base/vec.h"
#include "daemon/daemon.h"
#include "daemon/state.h"

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

#define JOB_NO_EXIT    (-1)
#define EXIT_CANCELLED 130

/* What a spec asks of the machine. */
struct job_ask {
    uint32_t devices_min, devices_max; /* max at least min, min at least 1 */
    uint64_t device_bytes;             /* 0: whatever a device has */
    uint64_t host_bytes;               /* 0: its share */
    uint64_t time_limit_s;             /* 0: none */
};

struct job_lease {
    uint32_t n_devices;
    uint32_t devices[DEVICE_MAX];
    uint64_t device_bytes, host_bytes;
};

/* A process, so that a pid that was given to another one is not taken for it. */
struct job_process {
    pid_t pid;      /* 0: none */
    uint64_t start; /* of the process, in clock ticks since boot */
    char boot[40];  /* which boot */
};

/* What a worker said last; JSON texts, NULL when it said nothing. */
struct job_said {
    char *planned, *progress, *curve, *evals, *report;
    char *planning; /* plain text, for people; NULL unless the worker is planning */
};

struct worker; /* launch.h */

struct job {
    struct jobs *table; /* whose counters it is in; NULL: it was read from the state */
    uint64_t id;
    char *key, *name, *user, *dir, *output; /* key may be NULL */
    uid_t uid;
    uint64_t spec_hash;     /* of spec and dir: tells a retry of submit from another job with its key */
    uint64_t charged_bytes; /* of its user's quota: spec and body; 0 once it has ended */
    struct job_ask ask;
    uint64_t submitted_ms; /* wall clock */
    uint64_t fixed_bytes;  /* of its spec and of what else of it never changes, on disk */

    /* status: durable */
    enum job_state state;
    char *reason;                          /* why it waits; "" when there is nothing to say */
    uint64_t started_ms, ended_ms;         /* wall clock; 0: not yet */
    uint64_t used_ms;                      /* running time of earlier attempts */
    uint32_t attempt;                      /* workers that took this job so far, and the one being started */
    uint32_t failures;                     /* in a row, without a new checkpoint in between */
    uint64_t checkpoint_step, failed_step; /* of the newest checkpoint; of the one at the last failure */
    bool cancel;                           /* its user wants it gone */
    struct job_lease lease;                /* of the worker that runs, or ran last */
    struct job_process process;
    char secret_hash[SHA256_HEX_CHARS + 1]; /* SHA-256 of the worker's secret; "": it never had a worker */
    int exit;
    char *error; /* JSON, NULL: none */
    uint64_t step, total_steps;
    double loss, samples_per_s, eta_s; /* NaN: not known */

    /* memory only */
    bool on_disk;           /* the submit is acknowledged */
    bool secret_in_clear;   /* the state still has the secret itself, written by an older tuttid */
    uint32_t saves;         /* under way */
    uint64_t not_before_ms; /* restart after a failure: loop clock; 0: at once */
    char *
        stuck; /* why the job could not start even if every running job ended: which devices are withheld; NULL: it could */
    struct job_said said;
    bool archived;         /* it has ended, and that is on disk, with what was `live` */
    enum job_state before; /* its state before it ended; clients are told this one until the end is on disk */
    struct worker *worker; /* NULL: none */
};

struct jobs {
    struct daemon *daemon;
    VEC(struct job *) live;         /* the live ones, and those that are just ending; ascending id */
    uint64_t n_in[JOB_STATE_COUNT]; /* of `all`, by state */
    uint64_t next_id;
};

struct jobs *jobs_create(struct daemon *d);
void jobs_destroy(struct jobs *jobs);
int jobs_load(struct jobs *jobs, struct err *err); /* those that have not ended, from the state; blocks */

struct job *jobs_find(const struct jobs *jobs, uint64_t id);
struct job *jobs_find_key(const struct jobs *jobs, uid_t uid, const char *key);
/* Index of the first job with an id greater than this. */
size_t jobs_after(const struct jobs *jobs, uint64_t id);

/* A job that is in the state, whether it is live or not, as an object of its own. Any thread. The caller frees it with
 * job_destroy. */
int job_read(const struct state_job *disk, struct job **ret, struct err *err);
void job_destroy(struct job *j); /* takes NULL */
/* After something that kept the job in the table is over: removes it if it has ended and nothing else needs it. */
void jobs_let_go(struct jobs *jobs, struct job *j);
/* The job's state was changed other than by job_set_state: keeps the counters right. */
void jobs_recount(const struct job *j, enum job_state before);
size_t jobs_ended(const struct jobs *jobs,
                  uint64_t **ret_ids); /* those in the table; the caller frees the ids */

/* A new job, queued; *ret_id is its id. It is in the table at once, but not visible (on_disk) until `done` is called with
 * status 0; with another status it is gone when `done` returns: -ENOSPC, -ENOMEM, or -EEXIST when a job that has ended has
 * its key. `spec` is checked. Returns -ENOMEM, or -EAGAIN when its user has no room left (quota.h): then nothing has
 * happened, and `done` is never called. */
struct job_new {
    uid_t uid;
    const char *key, *name, *user, *dir, *output;
    const char *spec;
    uint64_t spec_hash; /* jobs_spec_hash(spec, dir) */
    struct job_ask ask;
};
int jobs_add(struct jobs *jobs, const struct job_new *n, void (*done)(void *ctx, int status), void *ctx,
             uint64_t *ret_id, struct err *err);
uint64_t jobs_spec_hash(const char *spec, const char *dir);
/* How the state knows the key of a user's job. */
#define JOB_KEY_CHARS 320
void jobs_state_key(uid_t uid, const char *key, char ret[JOB_KEY_CHARS]);

bool job_ended(const struct job *j);
enum job_state job_told(const struct job *j); /* its state for others: an end only when it is on disk */
void job_set_state(struct job *j, enum job_state state, const char *reason); /* saves nothing */
uint64_t jobs_count(const struct jobs *jobs, enum job_state state);
void job_set_text(char **text, const char *to); /* frees the old one; `to` may be NULL */
/* Writes the status, and the event if there is one (its members as JSON text: "\"attempt\":1"). `done` may be NULL. Ends the
 * daemon when there is no memory for it: what is told of the job must not differ from what is on disk. */
void jobs_save(struct jobs *jobs, struct job *j, const char *event, const char *members,
               void (*done)(void *ctx, int status), void *ctx);
/* The same for a change that can be taken back. -ENOMEM: nothing is written, and `done` is never called. */
int jobs_try_save(struct jobs *jobs, struct job *j, const char *event, const char *members,
                  void (*done)(void *ctx, int status), void *ctx);

/* The short form, without the closing brace. Any thread, for a job that has ended. */
void job_short_json(const struct jobs *jobs, const struct job *j, struct strbuf *b);
/* The long form. `disk` is the job as it was read from the state; `seq` the newest event. Any thread, for a job that has
 * ended and is not in the table. */
void job_long_json(const struct jobs *jobs, const struct job *j, const struct state_job *disk, uint64_t seq,
                   struct strbuf *b);

#endif
