/* A job made ready: spec, data, graphs, machine and a verified plan. What --check, --plan and --run share, so
 * that whatever one of them refuses the others refuse with the same words.
 *
 * Order of calls: job_load_spec, job_prepare, then read the fields, then job_finish. One thread.
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

/* What the command line may set over the spec: where to run, never what to compute. */
struct job_options {
    const char *spec_path; /* "-": standard input */
    const char *spec_text; /* in place of spec_path: a spec that the daemon accepted; NULL: none */
    const char *dir;       /* where its relative paths begin; NULL: the current directory */
    const char *output;    /* NULL: the spec's */
    enum backend_choice backend;
    const char *machine;   /* a topology file, or its text, in place of looking; NULL: none */
    uint32_t devices;      /* 0: the spec's */
    uint64_t device_bytes; /* 0: the spec's */
    uint64_t host_bytes;   /* 0: the spec's */
    int policy;            /* enum policy_id, -1: the spec's */
    int update;            /* enum update_place, -1: the spec's */
    enum plan_objective objective;
    const char *profile; /* a file, or "none"; NULL: $TUTTI_PROFILE, else what was measured here */
    uint32_t threads;    /* 0: one per core */
    uint64_t link_bytes_per_s, peer_bytes_per_s; /* 0: unpaced */
    uint64_t delay_seed;                         /* 0: none */
    bool leased;                                 /* by the daemon: device_bytes is a limit, not a wish */
    const uint32_t *device_index;                /* leased: which devices, `devices` of them; NULL: any */
    uint64_t planning_bytes; /* most memory for planning; 0: what the data leave of the host memory */
    /* Both may be NULL, and are called by the thread that plans. `stop` is asked again and again while it plans; true ends
     * planning with -ECANCELED. `planning` is called once, before planning begins. */
    bool (*stop)(void *ctx);
    void (*planning)(void *ctx, const struct job_planning *p);
    void *ctx;
};

/* What is about to be planned. With micro_batch "auto", the size that is tried first. */
struct job_planning {
    uint32_t micro_batch;
    uint64_t tasks, bytes; /* of a step; of memory for planning, at most */
};

/* What the plan's bytes per step are measured by: see job_compare. */
struct job_comparison {
    uint64_t bound_bytes;  /* no plan moves less state and stash in and out */
    bool has_lru;          /* else lru_err says why not */
    struct plan_bytes lru; /* what demand paging would move: the same job on the same machine, policy `lru` */
    struct err lru_err;
};

/* Devices that the job was to have and that do not work, by the backend's numbers. */
struct job_blame {
    uint32_t n, index[DEVICE_MAX];
    char why[96]; /* in the backend's words */
};
/* Where the times come from that plans are chosen by; they never change results. */
enum job_profile { JOB_ANALYTIC, JOB_FILE, JOB_MEASURED, JOB_PROFILE_COUNT };
extern const char *const job_profile_names[JOB_PROFILE_COUNT]; /* "analytic", "file", "measured" */

struct prepared_job {
    struct spec *spec;
    const char *output;
    struct dataset *train, *val; /* val NULL without one */
    struct graph *graph, *eval_graph;
    struct machine machine;
    const char *backend; /* "cpu"; and why */
    char backend_reason[832];
    bool elsewhere;    /* the machine is from a file: nobody looked whether it is this one */
    bool real_devices; /* else virtual ones, without an index */
    uint32_t device_index[DEVICE_MAX];
    char device_kind[96]; /* what times of one such device say of another: its name; "": not known */
    struct table *table;  /* times of the layers; NULL: analytic */
    enum job_profile profile;
    char profile_reason[832]; /* a sentence without its end */
    struct plan *plan;        /* verified */
    double plan_s;            /* how long planning and verifying took */
    uint64_t data_bytes;      /* host memory that the data sets take */
    uint64_t held_bytes;      /* memory of graphs and plan */
    uint32_t threads;
    bool resolved_now; /* micro_batch was "auto", and this is the first time that it is resolved */
    struct job_comparison comparison; /* by job_compare */
    struct job_blame blame;           /* after a failure; n 0: no device's fault, or nobody knows whose */
    uint64_t least_bytes; /* capacity per device that would do; set when job_prepare fails with -ENOSPC */
};

/* The spec alone. */
int job_load_spec(const struct job_options *o, struct prepared_job *ret, struct err *err);

/* Does the rest: data, machine and plan. Planning may take long and need much memory. Returns -ENOSPC when planning would need
 * more than the job's host memory by the estimate, -ENOMEM when the estimate was too low, -ECANCELED when o->stop ended it. Where micro_batch
 * or replicas is "auto" and an earlier run left a resolved.json in the output, its value
 * counts: what changes bits is resolved once. Writes nothing. -ENOSPC: no plan fits (j->least_bytes). After a
 * failure job_finish is still due. */
int job_prepare(const struct job_options *o, struct prepared_job *j, struct err *err);
/* The sizes that micro_batch "auto" tries, in order. All have at most GRAPH_MAX_TASKS tasks, and all but the last have at most
 * as many tasks together; the last one is the smallest, which usually needs least device memory. Needs resolved.replicas. */
#define JOB_MAX_DIVISORS 1536 /* no number below 2^32 has more */
uint32_t job_auto_sizes(const struct spec *s, uint32_t ret[JOB_MAX_DIVISORS]);
/* The least memory per device with which the prepared job could be planned; with micro_batch "auto" not yet
 * resolved by a run that is the least over all it could be. */
int job_least_capacity(const struct job_options *o, const struct prepared_job *j, uint64_t *ret_bytes,
                       struct err *err);
void job_finish(struct prepared_job *j); /* takes a zeroed one */

/* A part of job_prepare: the data sets, machine, backend and devices. */
int job_open(const struct job_options *o, struct prepared_job *j, struct err *err);
/* A part of that (job_machine.c). The data set is open. */
int job_choose_machine(const struct job_options *o, struct prepared_job *j, struct err *err);
/* Of this computer's processors, how many the process may use: at least 1. */
uint32_t job_allowed_cores(void);
/* These devices of the job (positions in its machine) do not work; adds that to a message. */
void job_blame_devices(struct prepared_job *j, const struct device_blame *blame, struct err *err);
/* Whether the job's backend is here: a machine from a file may be elsewhere. -ENODEV when it is not. */
int job_check_backend(const struct prepared_job *j, struct err *err);

/* Parts of job_prepare (job_plan.c). job_resolve says what the sizes are; job_plan fills graph, eval_graph and plan, for
 * micro_batch 0 of the size that it chooses. */
int job_resolve(struct prepared_job *j, struct spec_sizes sizes, struct err *err);
int job_plan(const struct job_options *o, struct prepared_job *j, uint32_t micro_batch, struct err *err);
void job_drop_graphs(struct prepared_job *j);

/* A part of job_prepare (job_profile.c): the table, and links from it that nobody said otherwise. The machine is there. */
int job_choose_profile(const struct job_options *o, struct prepared_job *j, struct err *err);
/* What the plan was chosen by; the caller destroys it. */
struct profile *job_times(const struct prepared_job *j);
/* A profile/v1 file. */
int job_read_profile(const char *path, struct table **ret, struct err *err);

/* Calls work(arg), which plans, simulates or verifies, in a scope of bounded work (base/bounded.h): with the memory that the
 * job may use for planning, and so that o->stop ends it. Returns what `work` returns; -ENOMEM or -ECANCELED, with err, when
 * the scope ended early. `work` itself returns neither. */
int job_bounded(const struct job_options *o, const struct prepared_job *j, int (*work)(void *arg), void *arg,
                uint64_t *ret_held, struct err *err);

/* What job_prepare asks the planner for. */
struct plan_request job_request(const struct job_options *o, const struct prepared_job *j);
/* The training graph as it would be without a decision: no clipping, no skipping of non-finite steps. */
int job_plain_graph(const struct prepared_job *j, struct graph **ret, struct err *err);

/* Fills j->comparison. Takes about a second at most: a job of too many tasks is not planned again. The update is where the job
 * wants it; with "auto" on the device and, where that does not fit, on the host. */
void job_compare(const struct job_options *o, struct prepared_job *j);

#define JOB_RESOLVED "resolved.json"

/* Whether the output has a resolved.json; -EEXIST when it is that of another spec. */
int job_compare_resolved(const struct outdir *out, const struct spec *s, bool *ret_there, struct err *err);

#endif
