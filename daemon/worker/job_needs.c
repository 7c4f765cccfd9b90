/* Computes what a job needs of a machine, from its plans (job_needs in job.h).
 *
 * The time of a step comes from the simulator. The bytes of devices and of tensors come from the plans, which
 * place every byte. The rest of the host memory is what the worker allocates beside the plans:
 *
 *     always     data sets, graphs and plans, parked weights, the program itself
 *     loading    the same as running, the headers of weight files, and a block for converting weights
 *     running    tensors and executors
 *     saving     the same as running, the header of a file, and a block for transposing weights
 *
 * tests/cli/cases_needs.py compares the numbers with the memory that a worker really takes. The memory of
 * virtual devices counts as device memory here, although it is host memory too.
 */
#include "base/fs.h"
#include "base/strbuf.h"
#include "daemon/worker/job.h"
#include "daemon/worker/model/checkpoint.h"
#include "scheduler/predict/simulate.h"
#include "swap/exec.h"

/* Host memory of a worker with a tiny job: code, libraries, threads and the allocator's own memory. */
#define PROGRAM_BYTES (32ull << 20)
/* Host memory for each tensor of a checkpoint: its entry in the list of all tensors, and its text and its
 * entry in the header of a file. */
#define TENSOR_BYTES 640
/* A checkpoint has the resolved spec as text. While a checkpoint is read or written, memory holds the text
 * and the JSON tree of the text, which takes several times as much. */
#define SPEC_COPIES 8
/* single_share looks at no more than this many steps of a phase. */
#define LOOK_AHEAD 4096u

/* ---- time ---- */

/* Returns the predicted time of a training step in nanoseconds. `plan` is a plan of phase `p`, made for
 * `graph`. */
static double step_ns(const struct prepared_job *j, const struct phase *p, const struct plan *plan,
                      struct graph *graph)
{
    struct phase as = *p; /* borrows everything */
    as.graph = graph;
    struct profile *times = job_times(j, &as);
    struct sim_result *sim = plan_simulate(plan, PROGRAM_CYCLE, SIM_RUNS, times, &j->machine);
    double ns = (double)sim->cycle_ns / plan->steps;
    sim_destroy(sim);
    profile_destroy(times);
    return ns;
}

/* Returns the fraction of the steps of phase `p` that run under the plan of a single step. */
static double single_share(const struct prepared_job *j, const struct phase *p)
{
    uint64_t most = p->steps < LOOK_AHEAD ? p->steps : LOOK_AHEAD, alone = 0, step = 0;
    while (step < most) {
        uint32_t run = job_run_steps(j, p, step);
        alone += run == 1;
        step += run;
    }
    return (double)alone / (double)step;
}

/* Returns the predicted time of all training steps of phase `p`, in nanoseconds. */
static double phase_ns(const struct prepared_job *j, const struct phase *p)
{
    double ns = step_ns(j, p, p->plan, p->graph);
    if (p->single.plan != NULL) {
        double alone = single_share(j, p);
        ns = (1 - alone) * ns + alone * step_ns(j, p, p->single.plan, p->single.graph);
    }
    return ns * (double)p->steps;
}

/* ---- bytes ---- */

static uint64_t larger_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void count_devices(const struct plan *p, struct job_needs *n)
{
    for (uint32_t i = 0; p != NULL && i < p->n_devices; i++)
        n->device_bytes[i] = larger_of(n->device_bytes[i], p->devices[i].peak_bytes);
}

/* Returns the host memory for the executors of a phase. */
static uint64_t run_bytes(const struct phase *p)
{
    return exec_bytes(p->plan) + (p->single.plan != NULL ? exec_bytes(p->single.plan) : 0);
}

/* The tensors that checkpoints have. */
struct saved_tensors {
    uint64_t n;
    uint64_t longest; /* the largest dimension of any tensor with 2 or more dimensions */
};

static struct saved_tensors count_tensors(const struct model *m)
{
    struct saved_tensors t = {0};
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct layer *l = &m->layers[i];
        uint32_t n = layer_type(l)->params(l, NULL);
        struct layer_param *params = xcalloc(n + 1, sizeof *params);
        layer_type(l)->params(l, params);
        /* The parameter and the parts of its optimizer state. The master weights are the parameter. */
        t.n += (uint64_t)n * OPTIMIZER_PARTS;
        for (uint32_t k = 0; k < n; k++)
            for (uint32_t r = 0; r < params[k].rank && params[k].rank > 1; r++)
                t.longest = larger_of(t.longest, params[k].shape[r]);
        xfree(params);
    }
    return t;
}

/* Returns the bytes of host memory that reading or writing a checkpoint takes in addition to the tensors. */
static uint64_t file_bytes(const struct prepared_job *j)
{
    struct saved_tensors t = count_tensors(&j->phases.all);
    struct strbuf spec = {0};
    spec_resolved_json(j->spec, &spec);
    uint64_t bytes = t.n * TENSOR_BYTES + SPEC_COPIES * spec.n;
    strbuf_finish(&spec);
    return bytes + larger_of(FS_BLOCK_BYTES, t.longest * sizeof(float));
}

void job_needs(const struct prepared_job *j, struct job_needs *ret)
{
    double ns = 0;
    uint64_t held = PROGRAM_BYTES + j->data_bytes + job_parked_bytes(j) + j->held_bytes;
    uint64_t tensors = 0, running = 0, files = file_bytes(j);
    *ret = (struct job_needs){.steps = job_total_steps(j), .times = j->profile};
    for (uint32_t i = 0; i < j->phases.n; i++) {
        const struct phase *p = &j->phases.at[i];
        ns += p->steps > 0 ? phase_ns(j, p) : 0;
        ret->n_devices = p->plan->n_devices; /* all phases use the same devices */
        count_devices(p->plan, ret);
        count_devices(p->single.plan, ret);
        tensors = larger_of(tensors, phase_host_bytes(p));
        running = larger_of(running, phase_host_bytes(p) + run_bytes(p));
    }
    if (job_outputs_in_memory(j))
        running += job_most_outputs_bytes(j);
    ns = ret->steps > 0 ? ns / (double)ret->steps + 0.5 : 0;
    ret->step_ns = ns < JSON_MAX_INTEGER ? (uint64_t)ns : JSON_MAX_INTEGER;
    ret->host = (struct needs_host){
        .planning = PROGRAM_BYTES + j->planning_bytes,
        .loading = held + running + files,
        .running = held + running,
        .saving = held + running + files,
    };
}
