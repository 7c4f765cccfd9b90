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
 * They override the spec, but none of them changes the results of the job. */
struct job_options {
    const char *spec_path; /* the job file; "-": standard input */
    const char *spec_text; /* an accepted spec to use in place of spec_path; NULL: read spec_path */
    const char *dir;       /* where relative paths of the spec begin; NULL: the current directory */
    const char *output;    /* the output directory; NULL: the output of the spec */
    enum backend_choice backend;
    const char *machine; /* a topology file, or its text, to use in place of this machine; NULL: look here */
    uint32_t devices;    /* number of devices; 0: the value of the spec */
    uint64_t device_bytes; /* bytes of each device; 0: the value of the spec */
    uint64_t host_bytes;   /* host memory that the job may use; 0: the value of the spec */
    int policy;            /* enum policy_id; -1: the value of the spec */
    int update;            /* enum update_place; -1: the value of the spec */
    enum plan_objective objective;
    const char *profile; /* a profile, or "none"; NULL: $TUTTI_PROFILE, else the cache of measured times */
    uint32_t threads;    /* threads of one operation; 0: one per core */
    uint64_t link_bytes_per_s;    /* pace of host copies on virtual devices; 0: as fast as possible */
    uint64_t peer_bytes_per_s;    /* pace of copies between virtual devices; 0: as fast as possible */
    uint64_t delay_seed;          /* seed of random delays on every stream; 0: no delays */
    bool leased;                  /* the daemon leased the devices: device_bytes is an upper limit */
    const uint32_t *device_index; /* backend's numbers of the leased devices; NULL: any devices will do */
    uint64_t planning_bytes; /* memory that planning may use; 0: the host memory that the data leave free */

    /* The planning thread calls `stop` again and again while it plans. When `stop` returns true, planning
     * ends with -ECANCELED. The thread calls `planning` once, before it begins to plan. Both may be NULL. */
    bool (*stop)(void *ctx);
    void (*planning)(void *ctx, const struct job_planning *p);
    void *ctx;
};

/* The size of the planning work that is about to begin. */
struct job_planning {
    uint32_t micro_batch; /* micro-batch size; with "auto" the size that is tried first */
    uint64_t tasks;       /* tasks of one step */
    uint64_t bytes;       /* memory that planning takes at most, by the estimate */
};

/* Two figures that the report sets beside the bytes a step moves. job_compare fills them in. */
struct job_comparison {
    uint64_t bound_bytes;  /* least bytes of state and stash that any plan moves between host and devices */
    bool has_lru;          /* `lru` is valid; otherwise lru_err says why it is missing */
    struct plan_bytes lru; /* what demand paging (policy `lru`) would move: same job, same machine */
    struct err lru_err;
};

/* The devices that made a job fail, by the backend's numbers. The daemon keeps such devices from other
 * jobs. */
struct job_blame {
    uint32_t n, index[DEVICE_MAX];
    char why[96]; /* the reason in the backend's words */
};

/* Where the task durations come from that plans are chosen by. They never change the results of a job. */
enum job_profile {
    JOB_ANALYTIC, /* computed by formulas */
    JOB_FILE,     /* read from a profile that the user named */
    JOB_MEASURED, /* measured here by --time */
    JOB_PROFILE_COUNT
};
extern const char *const job_profile_names[JOB_PROFILE_COUNT]; /* "analytic", "file", "measured" */

/* A job with everything that its plan and its training need. job_load_spec and job_prepare fill it in, the
 * verbs read it, and job_finish frees it. */
struct prepared_job {
    struct spec *spec;
    const char *output;               /* the output directory; points into the spec or the options */
    struct dataset *train, *val;      /* val: NULL when the spec has no validation data */
    struct graph *graph, *eval_graph; /* one training step; one evaluation batch */
    struct machine machine;           /* the devices and host memory that the plan may use */
    const char *backend;              /* "cpu" or "cuda" */
    char backend_reason[832];         /* why this backend was chosen, for messages */
    bool elsewhere;    /* a topology file describes the machine, which may be another computer */
    bool real_devices; /* false: the devices are virtual and have no index */
    uint32_t device_index[DEVICE_MAX]; /* real devices: the backend's number of each */
    char device_kind[96];              /* name under which times of such a device are cached; "": unknown */
    struct table *table;               /* measured times of the layers; NULL: analytic times */
    enum job_profile profile;
    char profile_reason[832];         /* why this profile was chosen, as a sentence without its full stop */
    struct plan *plan;                /* verified */
    double plan_s;                    /* seconds that planning and verifying took */
    uint64_t data_bytes;              /* host memory of the data sets */
    uint64_t held_bytes;              /* memory of the graphs and the plan */
    uint32_t threads;                 /* threads of one operation */
    bool resolved_now;                /* this run is the first to resolve micro_batch "auto" */
    struct job_comparison comparison; /* set by job_compare */
    struct job_blame blame;           /* devices at fault after a failure; n is 0 when none is known */
    uint64_t least_bytes; /* after job_prepare returned -ENOSPC: bytes per device that would be enough */
};

/* Reads and checks the spec, and clears the rest of *ret. Returns -EINVAL or another errno when the spec
 * is not valid or cannot be read; job_finish must still be called. */
int job_load_spec(const struct job_options *o, struct prepared_job *ret, struct err *err);

/* Opens the data, chooses the machine and the profile, and makes a verified plan. Writes no file. Planning
 * may take long and need much memory.
 *
 * Where micro_batch or replicas is "auto" and an earlier run left resolved.json in the output, the values in
 * that file are used, because these values change the bits of the result and must stay the same.
 *
 * Returns -ENOSPC when no plan fits (j->least_bytes is set), or when the estimate of the memory for
 * planning is more than the host memory of the job. Returns -ENOMEM when that estimate was too low, and
 * -ECANCELED when o->stop ended planning. After a failure job_finish must still be called. */
int job_prepare(const struct job_options *o, struct prepared_job *j, struct err *err);

/* Frees everything in *j. Accepts a zeroed job. */
void job_finish(struct prepared_job *j);

#define JOB_MAX_DIVISORS 1536 /* no number below 2^32 has more divisors */

/* Stores the sizes that micro_batch "auto" tries, in the order of trying, and returns how many there are.
 * Every size has at most GRAPH_MAX_TASKS tasks. All sizes but the last together stay within
 * AUTO_MOST_TASKS tasks (job_plan.c). The last size is the smallest, which usually needs least device
 * memory. s->resolved.replicas must be set. */
uint32_t job_auto_sizes(const struct spec *s, uint32_t ret[JOB_MAX_DIVISORS]);

/* Computes the least memory per device with which the prepared job could be planned. When this run
 * resolved micro_batch "auto" for the first time, the answer is the least over all sizes that "auto" could
 * become. */
int job_least_capacity(const struct job_options *o, const struct prepared_job *j, uint64_t *ret_bytes,
                       struct err *err);

/* ---- parts of job_prepare ---- */

/* Opens the data sets and chooses backend, devices and machine. --time calls it without the rest of
 * job_prepare. */
int job_open(const struct job_options *o, struct prepared_job *j, struct err *err);

/* Chooses backend, devices and machine (job_machine.c). The data sets must be open. */
int job_choose_machine(const struct job_options *o, struct prepared_job *j, struct err *err);

/* Returns the number of processor cores that this process may use: at least 1. */
uint32_t job_allowed_cores(void);

/* Adds the blamed devices, which are positions in the job's machine, to j->blame, and appends them to the
 * message in err. */
void job_blame_devices(struct prepared_job *j, const struct device_blame *blame, struct err *err);

/* Checks that this computer has the job's backend, which is not certain when the machine comes from a
 * topology file. Returns -ENODEV when it has not. */
int job_check_backend(const struct prepared_job *j, struct err *err);

/* Sets the micro-batch size and the number of replicas in the spec (job_plan.c). 0 in `sizes` leaves one
 * unresolved. */
int job_resolve(struct prepared_job *j, struct spec_sizes sizes, struct err *err);

/* Builds graph, eval_graph and plan (job_plan.c). With micro_batch 0 it also chooses the micro-batch size. */
int job_plan(const struct job_options *o, struct prepared_job *j, uint32_t micro_batch, struct err *err);

/* Destroys graph and eval_graph. */
void job_drop_graphs(struct prepared_job *j);

/* Chooses the profile (job_profile.c): sets the table, and the rates of links that no option set. The
 * machine must be chosen. */
int job_choose_profile(const struct job_options *o, struct prepared_job *j, struct err *err);

/* Returns the task durations that the plan was chosen by. The caller destroys them. */
struct profile *job_times(const struct prepared_job *j);

/* Reads a profile table (profile/v1) from a file. The caller destroys it. */
int job_read_profile(const char *path, struct table **ret, struct err *err);

/* Calls work(arg), which plans, simulates or verifies, in a scope of bounded work (base/bounded.h): the
 * scope enforces the memory limit of planning, and ends early when o->stop returns true. Returns the
 * result of `work`, which must not itself return -ENOMEM or -ECANCELED. Returns -ENOMEM or -ECANCELED,
 * with a message, when the scope ended early; everything that `work` allocated is then gone. *ret_held, if
 * not NULL, gets the bytes that `work` left allocated. */
int job_bounded(const struct job_options *o, const struct prepared_job *j, int (*work)(void *arg), void *arg,
                uint64_t *ret_held, struct err *err);

/* Returns the request that job_prepare makes to the planner. */
struct plan_request job_request(const struct job_options *o, const struct prepared_job *j);

/* Builds the training graph without a decision: without clipping and without skipping of non-finite steps. */
int job_plain_graph(const struct prepared_job *j, struct graph **ret, struct err *err);

/* ---- after training ---- */

/* Fills in j->comparison. Takes about a second at most, because a job of too many tasks is not planned
 * again. The update runs where the job wants it; with "auto", on the device, or on the host when the
 * device is too small. */
void job_compare(const struct job_options *o, struct prepared_job *j);

#define JOB_RESOLVED "resolved.json"

/* Sets *ret_there to whether the output has a resolved.json. Returns -EEXIST when that file belongs to
 * another spec, and -EBADMSG when it is damaged. */
int job_compare_resolved(const struct outdir *out, const struct spec *s, bool *ret_there, struct err *err);

#endif
