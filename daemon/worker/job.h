/* Prepares a job for planning and training: reads its spec, opens its data, chooses devices, and makes a
 * verified plan.
 *
 * --check, --plan, --run, --serve and --time share this code, so all of them refuse the same job with the
 * same message.
 *
 * Order of calls: job_load_spec, then job_prepare, then read the members of struct prepared_job, and at
 * last job_finish. All calls come from one thread.
 */
#ifndef WORKER_JOB_H
#define WORKER_JOB_H

#include "base/err.h"
#include "base/fs.h"
#include "daemon/spec/spec.h"
#include "daemon/worker/data/data.h"
#include "daemon/worker/probe/discover.h"
#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/plan.h"
#include "scheduler/policy/policy.h"

struct job_planning;

/* Which job to prepare and where it may run. The command line or the daemon's lease sets these values.
 * They override the spec, but never change the results. */
struct job_options {
    const char *spec_path; /* the job file, or "-" for stdin */
    /* An accepted spec that is used in place of spec_path. NULL to read spec_path. */
    const char *spec_text;
    /* Directory in which relative paths of the spec start. NULL means the current directory. */
    const char *dir;
    /* The output directory. NULL means the output that the spec names. */
    const char *output;
    enum backend_choice backend;
    /* The path or the text of a topology file. NULL to examine this machine. */
    const char *machine;
    uint32_t devices;      /* number of devices; 0 means the spec's */
    uint64_t device_bytes; /* bytes of each device; 0 means the spec's */
    /* Bytes of host memory that the job may use. 0 means the value of the spec. */
    uint64_t host_bytes;
    int policy; /* enum policy_id; -1 means the spec's */
    int update; /* enum update_place; -1 means the spec's */
    enum plan_objective objective;
    /* A profile, or "none". NULL means $TUTTI_PROFILE, or the cache of measured times without that
     * variable. */
    const char *profile;
    /* Number of threads that share one operation. 0 means one thread per core. */
    uint32_t threads;
    /* Rate of copies between the host and virtual devices. 0 means as fast as possible. */
    uint64_t link_bytes_per_s;
    /* Rate of copies between virtual devices. 0 means as fast as possible. */
    uint64_t peer_bytes_per_s;
    /* Seed of the random delays on every stream. 0 means that there are no delays. */
    uint64_t delay_seed;
    /* The daemon has leased the devices to this job, so device_bytes is an upper limit. */
    bool leased;
    /* The backend's numbers of the leased devices. NULL if the job may use any devices. */
    const uint32_t *device_index;
    /* Bytes that planning may use. 0 means the host memory that the data sets do not need. */
    uint64_t planning_bytes;

    /* `stop` is called regularly during planning. If it returns true, planning ends with -ECANCELED.
     * `planning` is called once before planning begins. The planning thread makes these calls. Both may be
     * NULL. */
    bool (*stop)(void *ctx);
    void (*planning)(void *ctx, const struct job_planning *p);
    void *ctx;
};

/* The size of the planning work that is about to start. */
struct job_planning {
    /* The micro-batch size. For "auto", the size that is tried first. */
    uint32_t micro_batch;
    uint64_t tasks; /* number of tasks in a step */
    /* Estimate of the most memory that planning takes. */
    uint64_t bytes;
};

/* Two figures that the report compares with the bytes that a step moves. job_compare fills them in. */
struct job_comparison {
    /* The least bytes of state and stash that any plan must move between host and devices. */
    uint64_t bound_bytes;
    /* Whether `lru` is valid. If not, lru_err says why. */
    bool has_lru;
    /* The bytes that demand paging (policy `lru`) would move for the same job on the same machine. */
    struct plan_bytes lru;
    struct err lru_err;
};

/* The devices that made a job fail, by the backend's numbers. The daemon gives them to no other job. */
struct job_blame {
    uint32_t n, index[DEVICE_MAX];
    char why[96]; /* the reason in the backend's words */
};

/* Where the task durations come from. They help to choose a plan, but never change the results. */
enum job_profile {
    JOB_ANALYTIC, /* computed by formulas */
    JOB_FILE,     /* read from the profile that was given */
    JOB_MEASURED, /* measured here by --time */
    JOB_PROFILE_COUNT
};
extern const char *const job_profile_names[JOB_PROFILE_COUNT]; /* "analytic", "file", "measured" */

/* A job with everything that planning and training need. job_load_spec and job_prepare fill it in.
 * job_finish frees it. */
struct prepared_job {
    struct spec *spec;
    /* The output directory. Points into the spec or the options. */
    const char *output;
    /* `val` is NULL if the spec has no validation data. */
    struct dataset *train, *val;
    struct graph *graph, *eval_graph; /* one training step; one evaluation batch */
    /* The devices and the host memory that the plan may use. */
    struct machine machine;
    const char *backend;      /* "cpu" or "cuda" */
    char backend_reason[832]; /* why this backend was chosen, for messages */
    /* A topology file describes the machine, so it may be another computer. */
    bool elsewhere;
    /* False if the devices are virtual. Virtual devices have no index. */
    bool real_devices;
    uint32_t device_index[DEVICE_MAX]; /* real devices: the backend's number of each */
    /* Measured times of these devices are cached under this name. Empty if the name is not known. */
    char device_kind[96];
    /* Measured times of the layers. NULL means that times are computed by formulas. */
    struct table *table;
    enum job_profile profile;
    /* Why this profile was chosen, as a sentence without a full stop. */
    char profile_reason[832];
    struct plan *plan;   /* verified */
    double plan_s;       /* seconds that planning and verifying took */
    uint64_t data_bytes; /* host memory of the data sets */
    uint64_t held_bytes; /* memory of the graphs and the plan */
    uint32_t threads;    /* number of threads per operation */
    /* This run is the first one that resolves micro_batch "auto". */
    bool resolved_now;
    struct job_comparison comparison; /* set by job_compare */
    /* The devices at fault after a failure. n is 0 if no device is known to be at fault. */
    struct job_blame blame;
    /* Set if job_prepare returns -ENOSPC: the number of bytes per device that would be enough. */
    uint64_t least_bytes;
};

/* Reads and checks the spec, and clears all other members of *ret. Returns -EINVAL if the spec is wrong,
 * or another errno if it cannot be read. Call job_finish even after a failure. */
int job_load_spec(const struct job_options *o, struct prepared_job *ret, struct err *err);

/* Opens the data, chooses the machine and the profile, and makes a verified plan. Writes no file. Planning
 * may take long and need much memory.
 *
 * If micro_batch or replicas is "auto", the values in resolved.json are used if an earlier run left this file
 * in the output. The values change the bits of the result, so they must stay the same.
 *
 * Returns -ENOSPC if no plan fits (j->least_bytes is set), or if the estimate of the memory for planning is
 * more than the host memory of the job. Returns -ENOMEM if that estimate was too low, and -ECANCELED if
 * o->stop ended planning. Call job_finish even after a failure. */
int job_prepare(const struct job_options *o, struct prepared_job *j, struct err *err);

/* Frees everything in *j. Also accepts a struct of zeros. */
void job_finish(struct prepared_job *j);

#define JOB_MAX_DIVISORS 1536 /* no number below 2^32 has more divisors */

/* Stores the sizes that micro_batch "auto" tries, first to last, and returns their number.
 * s->resolved.replicas must be set. Each size has at most GRAPH_MAX_TASKS tasks. All but the last have at
 * most AUTO_MOST_TASKS together. The last is the smallest and usually needs the least memory. */
uint32_t job_auto_sizes(const struct spec *s, uint32_t ret[JOB_MAX_DIVISORS]);

/* Computes the least memory per device with which the job can be planned. If "auto" may still choose the
 * micro-batch, this is the minimum over all its sizes. */
int job_least_capacity(const struct job_options *o, const struct prepared_job *j, uint64_t *ret_bytes,
                       struct err *err);

/* ---- parts of job_prepare ---- */

/* Opens the data sets and chooses backend, devices and machine. --time calls this instead of job_prepare. */
int job_open(const struct job_options *o, struct prepared_job *j, struct err *err);

/* Chooses the backend, the devices and the machine (job_machine.c). The data sets must be open. */
int job_choose_machine(const struct job_options *o, struct prepared_job *j, struct err *err);

/* Returns the number of processor cores that this process may use. The result is at least 1. */
uint32_t job_allowed_cores(void);

/* Adds the devices in `blame` to j->blame and to the message in `err`. `blame` numbers devices by their
 * positions in the job's machine. */
void job_blame_devices(struct prepared_job *j, const struct device_blame *blame, struct err *err);

/* Checks that this computer has the job's backend. Returns -ENODEV if not, which can happen with a
 * topology file. */
int job_check_backend(const struct prepared_job *j, struct err *err);

/* Sets the micro-batch size and the number of replicas in the spec. A 0 in `sizes` stays unresolved.
 * Defined in job_plan.c. */
int job_resolve(struct prepared_job *j, struct spec_sizes sizes, struct err *err);

/* Builds graph, eval_graph and plan (job_plan.c). If `micro_batch` is 0, also chooses the micro-batch
 * size. */
int job_plan(const struct job_options *o, struct prepared_job *j, uint32_t micro_batch, struct err *err);

/* Destroys graph and eval_graph. */
void job_drop_graphs(struct prepared_job *j);

/* Chooses the profile after the machine is chosen. Sets the table, and the rates of links that no option
 * has set. Defined in job_profile.c. */
int job_choose_profile(const struct job_options *o, struct prepared_job *j, struct err *err);

/* Returns the task durations that were used to choose the plan. The caller destroys the returned profile. */
struct profile *job_times(const struct prepared_job *j);

/* Reads a profile table (profile/v1) from a file. The caller destroys the table. */
int job_read_profile(const char *path, struct table **ret, struct err *err);

/* Calls work(arg), which plans, simulates or verifies, in a scope of bounded work (base/bounded.h). The scope
 * enforces the memory limit of planning, and it ends early if o->stop returns true.
 *
 * Returns the result of `work`, which must not be -ENOMEM or -ECANCELED. If the scope ends early, everything
 * that `work` has allocated is freed, and the function returns -ENOMEM or -ECANCELED with a message. If
 * `ret_held` is not NULL, it receives the number of bytes that `work` left allocated. */
int job_bounded(const struct job_options *o, const struct prepared_job *j, int (*work)(void *arg), void *arg,
                uint64_t *ret_held, struct err *err);

/* Returns the request that job_prepare passes to the planner. */
struct plan_request job_request(const struct job_options *o, const struct prepared_job *j);

/* Builds the training graph without a decision. Gradients are not clipped, and non-finite steps are not
 * skipped. */
int job_plain_graph(const struct prepared_job *j, struct graph **ret, struct err *err);

/* ---- after training ---- */

/* Fills in j->comparison. Takes at most about a second, because large jobs are not planned again. The
 * update runs where the spec says. "auto" means the device, or the host if the device is too small. */
void job_compare(const struct job_options *o, struct prepared_job *j);

#define JOB_RESOLVED "resolved.json"

/* Sets *ret_there to true if the output has a resolved.json. Returns -EEXIST if it belongs to another
 * spec, and -EBADMSG if it is damaged. */
int job_compare_resolved(const struct outdir *out, const struct spec *s, bool *ret_there, struct err *err);

#endif
