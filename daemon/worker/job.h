/* Prepares a job for planning and training: reads its spec, opens its data, chooses devices, and makes a
 * verified plan for each of its phases (phase.h).
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
#include "daemon/spec/needs.h"
#include "daemon/spec/spec.h"
#include "daemon/worker/data/data.h"
#include "daemon/worker/phase.h"
#include "daemon/worker/probe/discover.h"
#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/plan.h"
#include "scheduler/policy/policy.h"

struct job_planning;
struct time_place;

/* Which job to prepare and where the job may run. The command line or the daemon's lease sets these options.
 * They override the spec, but never change the results of training. */
struct job_options {
    const char *spec_path; /* the job file, or "-" for stdin */
    /* A spec that the daemon has accepted, as it arrived with the lease. If it is not NULL, it is used
     * instead of the file spec_path. */
    const struct json *spec_json;
    /* The directory in which relative paths of the spec start. NULL means the current directory. */
    const char *dir;
    /* True if the job is planned as if its method were backpropagation, for a comparison. Such a job must
     * not be run. */
    bool as_backprop;
    /* The name of the precision with which the job is planned, for a comparison. NULL means the precision in
     * the spec. A job with another precision than its own must not be run. */
    const char *precision;
    /* The path of the output directory. NULL means the output directory that the spec names. */
    const char *output;
    enum backend_choice backend;
    /* The path of a topology file, or its text. NULL means that the worker looks for devices on this
     * machine. */
    const char *machine;
    uint32_t devices; /* number of devices; 0 means the spec's */
    /* Bytes that the job may use on each device. 0 means the number in the spec. */
    uint64_t device_bytes;
    /* Bytes of host memory that the job may use. 0 means the number in the spec. */
    uint64_t host_bytes;
    int policy;    /* enum policy_id; -1 means the spec's */
    int update;    /* enum update_place; -1 means the spec's */
    int objective; /* enum plan_objective; -1 means the spec's */
    /* The path of a profile with task durations, or "none" for computed durations. NULL means the value of
     * $TUTTI_PROFILE. If that variable is not set, NULL means the cache of measured times. */
    const char *profile;
    /* Number of threads that share the work of one operation. 0 means one thread per processor core. */
    uint32_t threads;
    /* Speed limit in bytes per second for copies between the host and virtual devices. 0 means as fast as
     * possible. */
    uint64_t link_bytes_per_s;
    /* Speed limit in bytes per second for copies between two virtual devices. 0 means as fast as possible. */
    uint64_t peer_bytes_per_s;
    /* Tests set this seed to add random delays to every stream of device commands. 0 means no delays. */
    uint64_t delay_seed;
    /* Number of devices that jobs of the daemon can get, leased or not. 0 if there is no limit. */
    uint32_t all_devices;
    /* Bytes of host memory that the daemon gives the job for each leased device. 0 if the host memory does
     * not depend on the number of devices. */
    uint64_t host_bytes_each;
    /* True if the daemon has leased devices to this job. device_bytes is then the most that the job may use
     * on each of them. */
    bool leased;
    /* The leased devices, as device numbers of the backend, such as {0, 2}. NULL if the job may use any
     * device. */
    const uint32_t *device_index;
    /* The most bytes of memory that planning may use. 0 means all host memory that the data sets do not
     * need. */
    uint64_t planning_bytes;

    /* Two functions that the planning thread calls. Both may be NULL. `planning` is called once, before
     * planning begins. `stop` is called regularly, and if it returns true, planning ends with -ECANCELED. */
    bool (*stop)(void *ctx);
    void (*planning)(void *ctx, const struct job_planning *p);
    void *ctx;
};

/* The size of the planning work that is about to start, for the phase with the most work. The daemon shows
 * these numbers to users, because planning may take long. */
struct job_planning {
    /* The number of samples in a micro-batch. If the spec says "auto", this is the largest number that is
     * possible. */
    uint32_t micro_batch;
    uint64_t tasks; /* number of tasks in a step */
    /* Estimate of the most bytes of memory that planning takes at any time. */
    uint64_t bytes;
};

/* Two numbers of bytes for the final report. The report compares them with the bytes that a training step
 * really moves. job_compare fills the struct in. */
struct job_comparison {
    /* A lower bound for every plan: a training step must move at least this many bytes between host and
     * devices. Data that every step moves anew, such as inputs and results, do not count. */
    uint64_t bound_bytes;
    /* True if `lru` is valid. Otherwise lru_err says why it is not. */
    bool has_lru;
    /* The bytes that a training step would move with demand paging (policy `lru`), for the same job on the
     * same machine. */
    struct plan_bytes lru;
    struct err lru_err;
};

/* The devices that made a job fail, as device numbers of the backend. The daemon does not give these devices
 * to other jobs. */
struct job_blame {
    uint32_t n, index[DEVICE_MAX];
    char why[96]; /* the reason in the backend's words */
};

/* A job with everything that planning and training need. job_load_spec and job_prepare fill it in, and
 * job_finish frees it. */
struct prepared_job {
    struct spec *spec;
    /* The path of the output directory. The string belongs to the spec or to the options. */
    const char *output;
    /* The training data and the validation data. `val` is NULL if the spec has no validation data. */
    struct dataset *train, *val;
    struct phase_list phases; /* each with its graphs and its plan */
    /* The devices and the bytes of host memory that the plan may use. */
    struct machine machine;
    /* The machine for which sizes that are "auto" are chosen. It has the most devices that the job can use,
     * with all of their memory, whether that memory is free at the moment or not. */
    struct machine described;
    bool is_described;        /* `machine` equals `described` */
    uint32_t least_devices;   /* the fewest devices that the job accepts */
    const char *backend;      /* "cpu" or "cuda" */
    char backend_reason[832]; /* why this backend was chosen, for messages */
    /* True if a topology file describes the machine. The plan may then be for another computer, and this
     * computer may not have the devices. */
    bool elsewhere;
    /* True if the devices are real, false if they are virtual. Virtual devices have no entry in
     * device_index. */
    bool real_devices;
    uint32_t device_index[DEVICE_MAX]; /* real devices: the backend's number of each */
    /* The name under which measured times of these devices are stored in the cache. Empty if the name is not
     * known. */
    char device_kind[96];
    /* Measured durations of the model's layers. NULL means that durations are computed by formulas. */
    struct table *table;
    enum job_profile profile;
    /* Why this source of task durations was chosen, as a sentence without a full stop. */
    char profile_reason[832];
    double plan_s;       /* seconds that planning and verifying took */
    uint64_t data_bytes; /* host memory of the data sets */
    /* The bytes of memory that the graphs and the plans of all phases take. */
    uint64_t held_bytes;
    /* The most bytes of host memory that the job had at any time during planning: the data sets, the plans
     * made before, and the planning of one phase. The planning of a phase counts with its estimate
     * (planning_size.h), or with its real use if that was more. */
    uint64_t planning_bytes;
    uint32_t threads;                 /* number of threads per operation */
    struct job_comparison comparison; /* set by job_compare */
    /* After a failure, the devices that caused it. blame.n is 0 if no device is known to be the cause. */
    struct job_blame blame;
    /* If job_prepare returns -ENOSPC, the number of bytes of memory on each device that would be enough.
     * Otherwise 0. */
    uint64_t least_bytes;
};

/* Reads and checks the job's spec, and clears all other members of *ret. Returns -EINVAL if the spec is
 * wrong, or another negative errno if the spec cannot be read. Call job_finish even after a failure. */
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

/* Frees everything in *j. A zero-initialized struct is also allowed. */
void job_finish(struct prepared_job *j);

/* Returns the phase that needs the most memory. Checks, reports and `tutti plan` show the plan of this phase,
 * because the job fits wherever this phase fits. */
struct phase *job_largest_phase(const struct prepared_job *j);

/* Returns the number of training steps of all phases of the job. */
uint64_t job_total_steps(const struct prepared_job *j);

/* Returns whether the training loop evaluates the model or writes a checkpoint after `steps_done` steps of
 * phase `p`. The evaluation and the checkpoint at the end of the phase do not count. */
bool job_is_break(const struct prepared_job *j, const struct phase *p, uint64_t steps_done);

/* Returns the number of training steps in the next run of the plan's cycle, after `steps_done` steps of phase
 * `p`. This is the number of steps of a whole cycle, or 1 if an evaluation, a checkpoint or the end of the
 * phase comes before the end of that cycle. */
uint32_t job_run_steps(const struct prepared_job *j, const struct phase *p, uint64_t steps_done);

/* Returns the bytes of host memory that are reserved for the weights and buffers of layers outside the
 * current phase. The memory is large enough for all layers, because it holds all of them while phases change.
 * A job with one phase needs none, unless it has master weights of layers that the phase does not train. */
uint64_t job_parked_bytes(const struct prepared_job *j);

/* Returns the most bytes of kept outputs that exist at the same time. */
uint64_t job_most_outputs_bytes(const struct prepared_job *j);

/* Returns whether kept outputs are in host memory. They are in files if the job asks for files, or if the
 * host memory of the job is too small. Every phase must have a plan. */
bool job_outputs_in_memory(const struct prepared_job *j);

/* Returns the bytes of host memory that the job needs: for the tensors of the phase with the largest need,
 * and for everything else, such as the data sets. Every phase must have a plan. */
uint64_t job_host_bytes(const struct prepared_job *j);

/* Computes what the job needs of a machine, from its plans. Every phase must have a plan. Defined in
 * job_needs.c. */
void job_needs(const struct prepared_job *j, struct job_needs *ret);

/* Returns the number of bytes of the weights that layer `l` of a model owns, as floats. For weights of 16
 * bits, these are the bytes of the master weights. A layer that uses the weights of another layer owns
 * none. */
uint64_t job_master_bytes(const struct layer *l);
/* Returns how many bytes a layer keeps from phase to phase: its weights as floats, and buffers such as
 * running means. */
uint64_t job_kept_bytes(const struct layer *l);
/* Returns whether layer number `at` of phase `p` has master weights that are not in its optimizer state,
 * because the phase does not train the layer. The phase must have its graph. */
bool job_parks_master(const struct phase *p, uint32_t at);

/* Computes the fewest bytes per device with which every phase of the job can be planned. If "auto" may still
 * choose the micro-batch size of a phase, this phase counts with the size that needs the fewest bytes. The
 * result is 0 if the number is not known, because it depends on the host memory. */
int job_least_capacity(const struct job_options *o, const struct prepared_job *j, uint64_t *ret_bytes,
                       struct err *err);

/* ---- parts of job_prepare ---- */

/* Opens the data sets and chooses the backend, the devices and the machine. The verb --time calls this
 * function instead of job_prepare, because it needs no plan. */
int job_open(const struct job_options *o, struct prepared_job *j, struct err *err);

/* Chooses the backend, the devices and the machine. The data sets must be open before this call. Defined in
 * job_machine.c. */
int job_choose_machine(const struct job_options *o, struct prepared_job *j, struct err *err);

/* Returns the number of processor cores that this process is allowed to use, at least 1. */
uint32_t job_allowed_cores(void);

/* Adds the devices in `blame` to j->blame and to the message in `err`. `blame` lists devices by their
 * positions in the job's machine, while j->blame lists them by the backend's numbers. */
void job_blame_devices(struct prepared_job *j, const struct device_blame *blame, struct err *err);

/* Checks that this computer has the job's backend. Returns -ENODEV if it does not, which can happen if a
 * topology file describes another computer. */
int job_check_backend(const struct prepared_job *j, struct err *err);

/* Sets the micro-batch size and the number of replicas of a phase, in the phase and in j->spec. In `sizes`, 0
 * stands for a number that "auto" has not chosen yet. Defined in job_plan.c. */
int job_resolve_phase(struct prepared_job *j, struct phase *p, struct spec_sizes sizes, struct err *err);

/* Builds the graphs and the plan of every phase. Also chooses the sizes that are "auto" of each phase whose
 * `resolved_now` is true. Defined in job_plan.c. */
int job_plan(const struct job_options *o, struct prepared_job *j, struct err *err);

/* Chooses where task durations come from, and sets j->table. For virtual devices, also takes the measured
 * rates of links from the table. Call this function after the machine was chosen. Defined in
 * job_profile.c. */
int job_choose_profile(const struct job_options *o, struct prepared_job *j, struct err *err);

/* Returns the task durations that were used to choose the plan of phase `p`. The caller must destroy the
 * returned profile. */
struct profile *job_times(const struct prepared_job *j, const struct phase *p);

/* Describes where measured times of the job's devices are cached. */
void job_time_place(const struct prepared_job *j, struct time_place *ret);

/* Returns the table of measured durations for phase `p`, or NULL if durations are computed by formulas. The
 * table of a job covers the whole model, so a phase with only some of the layers has no table. */
const struct table *job_phase_table(const struct prepared_job *j, const struct phase *p);

/* Reads a profile table (schema profile/v1) from the file at `path`. The caller destroys *ret. */
int job_read_profile(const char *path, struct table **ret, struct err *err);

/* The memory use of a function that job_bounded has called. */
struct job_memory {
    uint64_t peak_bytes; /* most bytes at one time */
    uint64_t held_bytes; /* bytes that the function left allocated */
};

/* Calls work(arg), which plans, simulates or verifies, in a scope of bounded work (base/bounded.h). The scope
 * enforces the memory limit of planning, and it ends early if o->stop returns true.
 *
 * Returns the result of `work`, which must not be -ENOMEM or -ECANCELED. If the scope ends early, everything
 * that `work` has allocated is freed, and the function returns -ENOMEM or -ECANCELED with a message. If
 * `ret` is not NULL, it receives how much memory `work` has used. */
int job_bounded(const struct job_options *o, const struct prepared_job *j, int (*work)(void *arg), void *arg,
                struct job_memory *ret, struct err *err);

/* Returns the arguments for the planner (struct plan_request) that job_prepare uses for phase `p`. */
struct plan_request job_request(const struct job_options *o, const struct prepared_job *j,
                                const struct phase *p);

/* Builds the training graph of phase `p` without the task DECIDE, which clips gradients and skips updates
 * with non-finite gradients. A comparison with the usual graph shows what DECIDE costs. */
int job_plain_graph(const struct phase *p, struct graph **ret, struct err *err);

/* ---- after training ---- */

/* Fills in j->comparison by planning the largest phase with policy `lru`. This takes at most about a second,
 * because large jobs are left out. The optimizer update runs where the spec says. With "auto", the update
 * runs on the device, or on the host if the device is too small. */
void job_compare(const struct job_options *o, struct prepared_job *j);

/* Checks that an earlier run had the precision of this job. `resolved` is the resolved spec of that run.
 * Returns -EEXIST with a message that names both precisions if they differ. */
int job_check_precision(const struct outdir *out, const struct spec *s, const char *resolved,
                        struct err *err);

/* Sets *ret_there to true if the output directory has a resolved.json. Returns -EEXIST if that file belongs
 * to another spec, and -EBADMSG if it is damaged. */
int job_compare_resolved(const struct outdir *out, const struct spec *s, bool *ret_there, struct err *err);

#endif
