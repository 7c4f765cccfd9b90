/* Plans the phases of a job: decides whether they may be planned, chooses the sizes that are "auto", and
 * makes and verifies the plans.
 *
 * micro_batch and replicas "auto" are chosen by the search of scheduler/policy/sizes.h. They change the bits
 * of the result, so they are chosen for the machine as the job describes it (prepared_job.described), with
 * durations from formulas. Neither what is free at the moment nor measured durations have any influence. The
 * phase is then planned with these sizes on the devices that the job really has.
 *
 * Both time and memory of planning grow with the number of tasks. Planning is refused when its estimated
 * memory (scheduler/policy/planning_size.h) is more than the host memory of the job. It runs in a scope of
 * bounded work (base/bounded.h) that enforces this limit and that ends when the job is stopped. Code
 * inside the scope opens and locks nothing. Only the graphs and plans of a phase get memory of the scope.
 * Each phase is planned in a scope of its own.
 *
 * A phase is first planned with one training step in a cycle. The sizes are chosen with such plans, because
 * they change the bits of the result and must not depend on memory.cycle_steps. If a cycle has more steps,
 * the phase is then planned again with these sizes and all steps of the cycle.
 *
 * Device memory holds one phase at a time, so each phase may use all of it. Host memory also holds the
 * graphs and plans of all phases, and the weights of the layers that are not in the current phase.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bounded.h"
#include "base/strbuf.h"
#include "daemon/worker/job_plan_private.h"
#include "scheduler/policy/planning_size.h"
#include "scheduler/policy/sizes.h"
#include "scheduler/predict/bound.h"
#include "scheduler/verify/verify.h"

/* job_compare skips jobs with more tasks per training step than this, because planning them again would take
 * longer than a second. */
#define COMPARE_TASKS  (1u << 14)
#define COMPARE_LAYERS (1u << 10) /* most layers that job_compare plans */

/* ---- graphs ---- */

/* Returns the configuration for building a graph of a phase. The number of replicas of the phase must be
 * known. */
static struct graph_config config_of(const struct phase *p, struct division d, bool training)
{
    return (struct graph_config){
        .model = &p->model,
        .links = training || p->eval_links == NULL ? p->links : p->eval_links,
        .optimizer = p->optimizer,
        .n_groups = p->n_groups,
        .rows = d.rows,
        .n_micro = p->batch / d.rows,
        .n_replicas = p->sizes.replicas,
        .steps = d.steps,
        .training = training,
        .skip_nonfinite = p->skip_nonfinite,
    };
}

static int build_graph(const struct phase *p, struct division d, bool training, struct graph **ret,
                       struct err *err)
{
    const struct graph_config c = config_of(p, d, training);
    return graph_build(&c, ret, err);
}

/* Builds the graphs of a phase: one for its steps and, if the phase trains, one for evaluations. */
static int build_graphs(struct phase *p, struct division d, struct err *err)
{
    int r = build_graph(p, d, p->training, &p->graph, err);
    if (r == 0 && p->training)
        r = build_graph(p, d, false, &p->eval_graph, err);
    return r;
}

int job_plain_graph(const struct phase *p, struct graph **ret, struct err *err)
{
    struct phase plain = *p;
    struct optimizer *optimizers = xcalloc(p->n_groups, sizeof *optimizers);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        optimizers[g] = p->optimizer[g];
        optimizers[g].clip = 0;
    }
    plain.optimizer = optimizers;
    plain.skip_nonfinite = false;
    int r = build_graph(&plain, (struct division){.rows = p->sizes.micro_batch, .steps = p->cycle_steps},
                        true, ret, err);
    xfree(optimizers);
    return r;
}

static enum policy_id policy_of(const struct job_options *o, const struct prepared_job *j)
{
    return o->policy >= 0 ? (enum policy_id)o->policy : j->spec->memory.policy;
}

struct plan_request job_request(const struct job_options *o, const struct prepared_job *j,
                                const struct phase *p)
{
    return (struct plan_request){
        .train = p->graph,
        .eval = p->eval_graph,
        .machine = &j->machine,
        .policy = policy_of(o, j),
        .update = o->update >= 0 ? (enum update_place)o->update : j->spec->memory.update,
        .table = job_phase_table(j, p),
        .objective = o->objective >= 0 ? (enum plan_objective)o->objective : j->spec->memory.objective,
    };
}

int job_resolve_phase(struct prepared_job *j, struct phase *p, struct spec_sizes sizes, struct err *err)
{
    int r = spec_resolve_phase(j->spec, p->number, p->batch, p->asked, sizes, err);
    if (r == 0)
        p->sizes = j->spec->resolved.phases[p->number];
    return r;
}

/* ---- the memory of planning ---- */

/* Returns the bytes of host memory that planning may use: the memory that the data sets do not need, but at
 * least PLANNING_FREE_BYTES. */
static uint64_t left_for_planning(const struct prepared_job *j)
{
    uint64_t has = j->machine.host_bytes, left = has > j->data_bytes ? has - j->data_bytes : 0;
    return left > PLANNING_FREE_BYTES ? left : PLANNING_FREE_BYTES;
}

static int measure_planning(const struct job_options *o, const struct prepared_job *j, const struct phase *p,
                            struct division d, struct job_planning *ret, struct err *err)
{
    const struct graph_config c = config_of(p, d, p->training);
    struct planning_size size;
    int r = planning_measure(&c, &size, err);
    if (r == 0)
        *ret = (struct job_planning){d.rows, size.tasks,
                                     planning_bytes(&size, policy_of(o, j), j->machine.n_devices)};
    return r;
}

/* A phase may be planned twice: first with one training step, and then with all steps of the cycle. Returns
 * the bytes of host memory that the first plan takes during the second planning. Returns 0 if there is no
 * first plan. */
static uint64_t single_bytes(const struct job_options *o, const struct prepared_job *j, const struct phase *p)
{
    struct job_planning size = {0};
    if (p->single.plan == NULL ||
        measure_planning(o, j, p, (struct division){.rows = p->sizes.micro_batch, .steps = 1}, &size, NULL) <
            0)
        return 0;
    return planning_kept_bytes(size.bytes);
}

/* Returns whether the estimated memory for planning the phase is within the limit. */
static bool may_plan(const struct job_options *o, const struct prepared_job *j, const struct phase *p,
                     struct division d)
{
    struct job_planning size;
    return measure_planning(o, j, p, d, &size, NULL) == 0 &&
           size.bytes + single_bytes(o, j, p) <= left_for_planning(j);
}

/* Returns the smallest micro-batch size above `rows` with which planning stays within its memory limit.
 * Returns 0 if there is no such size. */
static uint32_t larger_rows(const struct job_options *o, const struct prepared_job *j, const struct phase *p,
                            uint32_t rows)
{
    uint32_t divisors[SIZES_MAX_DIVISORS];
    uint32_t n = sizes_divisors(p->batch / p->sizes.replicas, divisors);
    for (uint32_t i = 0; i < n; i++)
        if (divisors[i] > rows && may_plan(o, j, p, (struct division){.rows = divisors[i], .steps = 1}))
            return divisors[i];
    return 0;
}

static void size_text(char *buf, size_t size, uint64_t bytes)
{
    struct strbuf b = {0};
    strbuf_add_bytes(&b, bytes);
    snprintf(buf, size, "%s", b.at);
    strbuf_finish(&b);
}

/* Reports that planning all steps of a cycle together takes too much memory, although planning one step does
 * not. */
static int refuse_cycle(const struct job_options *o, const struct prepared_job *j, const struct phase *p,
                        struct division d, const struct job_planning *size, uint64_t limit, struct err *err)
{
    uint32_t fits = d.steps;
    while (fits > 1 && !may_plan(o, j, p, (struct division){.rows = d.rows, .steps = fits}))
        fits--;
    return err_set_at(err, -ENOSPC, "memory.cycle_steps",
                      "planning %u training steps, which have %llu tasks together, takes up to %llu bytes of "
                      "host memory, but the job has %llu for it; use at most %u steps in a cycle, or raise "
                      "resources.host_memory to %llu bytes",
                      d.steps, (unsigned long long)size->tasks, (unsigned long long)size->bytes,
                      (unsigned long long)limit, fits,
                      (unsigned long long)(size->bytes + single_bytes(o, j, p) + j->data_bytes));
}

static int refuse_planning(const struct job_options *o, const struct prepared_job *j, const struct phase *p,
                           struct division d, const struct job_planning *size, uint64_t limit,
                           struct err *err)
{
    if (d.steps > 1)
        return refuse_cycle(o, j, p, d, size, limit, err);
    uint32_t rows = larger_rows(o, j, p, size->micro_batch);
    char want[32], have[32], advice[96] = "use a smaller model";
    size_text(want, sizeof want, size->bytes);
    size_text(have, sizeof have, limit);
    if (rows > 0)
        snprintf(advice, sizeof advice, "use a train.micro_batch of at least %u instead of %u", rows,
                 size->micro_batch);
    return err_set_at(
        err, -ENOSPC, "resources.host_memory",
        "planning a step of %llu tasks takes up to %llu bytes (%s) of host memory, but the job has "
        "%llu (%s) for it; %s, or raise resources.host_memory to %llu bytes",
        (unsigned long long)size->tasks, (unsigned long long)size->bytes, want, (unsigned long long)limit,
        have, advice, (unsigned long long)(size->bytes + j->data_bytes));
}

/* Returns -ENOSPC if planning would need too much host memory. Otherwise reserves host memory for the graphs
 * and the plans, so that the planner does not use this memory for tensors. */
static int admit_planning(const struct job_options *o, struct prepared_job *j, const struct phase *p,
                          struct division d, struct err *err)
{
    struct job_planning size = {0};
    uint64_t single = single_bytes(o, j, p), limit = left_for_planning(j) - single;
    int r = measure_planning(o, j, p, d, &size, err);
    if (r < 0)
        return r;
    if (size.bytes > limit)
        return refuse_planning(o, j, p, d, &size, limit, err);
    j->machine.host_taken_bytes =
        j->data_bytes + job_parked_bytes(j) + j->held_bytes + single + planning_kept_bytes(size.bytes);
    return 0;
}

static int report_early_end(const struct bounded *b, int code, struct err *err)
{
    char limit[32], peak[32];
    if (code == -ECANCELED)
        return err_set(err, code, "stopped while planning; nothing was trained");
    size_text(limit, sizeof limit, b->limit_bytes);
    size_text(peak, sizeof peak, b->peak_bytes);
    return err_set_at(
        err, code, "resources.host_memory",
        "planning ran out of memory with %s in use; its limit is %llu bytes (%s), which the estimate "
        "said is enough; raise resources.host_memory or use a larger train.micro_batch",
        peak, (unsigned long long)b->limit_bytes, limit);
}

int job_bounded(const struct job_options *o, const struct prepared_job *j, int (*work)(void *arg), void *arg,
                struct job_memory *ret, struct err *err)
{
    uint64_t limit = o->planning_bytes > 0 ? o->planning_bytes : left_for_planning(j);
    struct bounded b = {
        .limit_bytes = limit > j->held_bytes ? limit - j->held_bytes : 1, .stop = o->stop, .ctx = o->ctx};
    int r = bounded_run(&b, work, arg);
    if (b.ended_early)
        return report_early_end(&b, r, err);
    if (ret != NULL)
        *ret = (struct job_memory){b.peak_bytes, b.held_bytes};
    return r;
}

/* ---- planning with one size ---- */

int job_plan_with(const struct job_options *o, struct prepared_job *j, struct phase *p, struct division d,
                  uint64_t most_work, struct plan_report *report, struct err *err)
{
    phase_drop_graphs(p);
    /* plan_make sets least_bytes only if more device memory helps. */
    j->least_bytes = 0;
    int r = job_resolve_phase(j, p, (struct spec_sizes){d.rows, p->sizes.replicas}, err);
    if (r == 0)
        r = admit_planning(o, j, p, d, err);
    if (r == 0)
        r = build_graphs(p, d, err);
    if (r < 0)
        return r;
    struct plan_request request = job_request(o, j, p);
    if (d.by_blocks && request.policy == POLICY_auto)
        request.policy = POLICY_blocks;
    request.most_work = most_work;
    request.report = report;
    return plan_make(&request, &p->plan, &j->least_bytes, err);
}

/* Plans a phase with its resolved sizes and one training step in a cycle. */
static int plan_step(const struct job_options *o, struct prepared_job *j, struct phase *p, struct err *err)
{
    return job_plan_with(o, j, p, (struct division){.rows = p->sizes.micro_batch, .steps = 1}, 0, &p->report,
                         err);
}

/* ---- sizes that are "auto" ---- */

/* The context of the functions that sizes_choose calls. */
struct job_choosing {
    const struct job_options *o;
    struct prepared_job *j;
    struct phase *p;
    /* The best plan so far, with its graphs. */
    struct graph *graph, *eval_graph;
    struct plan *plan;
    uint64_t host_taken_bytes;       /* machine.host_taken_bytes of the best plan */
    struct plan_report report, made; /* of the best plan, and of the plan that was made last */
};

static void drop_made(struct phase *p)
{
    phase_drop_graphs(p);
    plan_destroy(p->plan);
    p->plan = NULL;
}

static int make_job_model(void *ctx, struct plan_sizes sizes, struct outline_model **ret)
{
    const struct job_choosing *c = ctx;
    struct phase p = *c->p;
    struct graph *g;
    p.sizes = (struct spec_sizes){sizes.rows, sizes.replicas};
    const struct division d = {.rows = sizes.rows, .steps = 1};
    if (!may_plan(c->o, c->j, &p, d))
        return -ENOSPC;
    const struct graph_config config = config_of(&p, d, p.training);
    int r = graph_describe(&config, &g, NULL);
    if (r < 0)
        return r;
    struct profile *times = profile_analytic(g, &c->j->machine);
    *ret = outline_model_graph(g, times);
    profile_destroy(times);
    graph_destroy(g);
    return 0;
}

/* Checks that the phase also fits the fewest devices that the job accepts. Returns -ENOSPC if it does not. */
static int check_fewest(const struct job_choosing *c, struct err *err)
{
    struct machine fewest = c->j->machine;
    if (c->j->least_devices >= fewest.n_devices)
        return 0;
    fewest.n_devices = c->j->least_devices;
    struct plan_request request = job_request(c->o, c->j, c->p);
    request.machine = &fewest;
    return plan_fits(&request, err);
}

static int plan_job_sizes(void *ctx, struct plan_sizes sizes, uint64_t most_work, struct plan_report *ret,
                          uint64_t *ret_least, struct err *err)
{
    struct job_choosing *c = ctx;
    drop_made(c->p);
    c->p->sizes = (struct spec_sizes){sizes.rows, sizes.replicas};
    int r = job_plan_with(c->o, c->j, c->p, (struct division){.rows = sizes.rows, .steps = 1}, most_work, ret,
                          err);
    if (r == 0)
        r = check_fewest(c, err);
    if (r == -ENOSPC && c->j->least_bytes > 0)
        *ret_least = c->j->least_bytes;
    c->made = *ret;
    return r;
}

static void drop_best(struct job_choosing *c)
{
    graph_destroy(c->graph);
    graph_destroy(c->eval_graph);
    plan_destroy(c->plan);
    c->graph = c->eval_graph = NULL;
    c->plan = NULL;
}

static void keep_job_plan(void *ctx)
{
    struct job_choosing *c = ctx;
    drop_best(c);
    c->graph = c->p->graph;
    c->eval_graph = c->p->eval_graph;
    c->plan = c->p->plan;
    c->host_taken_bytes = c->j->machine.host_taken_bytes;
    c->report = c->made;
    c->p->graph = c->p->eval_graph = NULL;
    c->p->plan = NULL;
}

static struct sizes_request sizes_request(struct job_choosing *c)
{
    const struct prepared_job *j = c->j;
    const struct plan_request r = job_request(c->o, j, c->p);
    return (struct sizes_request){
        .batch = c->p->batch,
        .n_layers = c->p->model.n_layers,
        .asked = {c->p->asked.micro_batch, c->p->asked.replicas},
        .product_rows = j->spec->seq > 0 ? (uint32_t)j->spec->seq : 1,
        .machine = &j->machine,
        .policy = r.policy,
        .update = r.update,
        .objective = r.objective,
        .ctx = c,
        .model = make_job_model,
        .plan = plan_job_sizes,
        .keep = keep_job_plan,
    };
}

/* Chooses the sizes of a phase for j->machine. On success, the phase has a plan for that machine. If no sizes
 * fit, returns -ENOSPC with the message for the sizes that came closest. */
static int choose_job_sizes(const struct job_options *o, struct prepared_job *j, struct phase *p,
                            struct err *err)
{
    struct job_choosing c = {.o = o, .j = j, .p = p};
    const struct sizes_request q = sizes_request(&c);
    int r = sizes_choose(&q, &p->choice, err);
    drop_made(p);
    if (r < 0 && r != -ENOSPC) {
        drop_best(&c);
        return r;
    }
    p->sizes = (struct spec_sizes){p->choice.sizes.rows, p->choice.sizes.replicas};
    if (r == -ENOSPC) {
        r = plan_step(o, j, p, err);
        return r < 0 ? r : check_fewest(&c, err);
    }
    p->graph = c.graph;
    p->eval_graph = c.eval_graph;
    p->plan = c.plan;
    p->report = c.report;
    j->machine.host_taken_bytes = c.host_taken_bytes;
    return job_resolve_phase(j, p, p->sizes, err);
}

/* Chooses the sizes of a phase for j->described, and plans the phase with these sizes for j->machine. */
static int plan_auto(const struct job_options *o, struct prepared_job *j, struct phase *p, struct err *err)
{
    struct table *measured = j->table;
    const struct machine real = j->machine;
    bool same = measured == NULL && j->is_described;
    j->table = NULL;
    j->machine = j->described;
    j->machine.host_taken_bytes = real.host_taken_bytes;
    int r = choose_job_sizes(o, j, p, err);
    j->table = measured;
    if (!same)
        j->machine = real;
    if (r < 0 || same)
        return r;
    plan_destroy(p->plan);
    p->plan = NULL;
    return plan_step(o, j, p, err);
}

/* ---- planning and verifying ---- */

/* The arguments of plan_and_verify and similar functions. They are in one struct, because a function that
 * runs as bounded work (base/bounded.h) has a single pointer argument. */
struct planning {
    const struct job_options *o;
    struct prepared_job *j;
    struct phase *phase;
    uint64_t least_bytes; /* result of find_least_capacity */
    struct err *err;
};

static int verify_phase(const struct planning *a)
{
    const struct phase *p = a->phase;
    return plan_verify(p->plan, p->graph, p->eval_graph, &a->j->machine, NULL, a->err);
}

/* Adds to a planner's message which key of the job file sets the number of steps in a cycle. */
static void name_cycle_key(const struct prepared_job *j, uint32_t steps, int r, struct err *err)
{
    const char *key = j->spec->method == METHOD_local ? "method.resident_steps" : "memory.cycle_steps";
    if (strcmp(err->path, "memory.cycle_steps") == 0)
        err_set_at(err, r, key, "%s", err->msg);
    else if (r == -ENOSPC)
        err_set_at(err, r, err->path, "%s is %u, and one step in a cycle would fit: %s", key, steps,
                   err->msg);
}

/* Plans a phase for the second time, now with all steps of its cycle. The plan of one step, which was made
 * first, becomes p->single. */
static int plan_cycle(const struct planning *a)
{
    struct phase *p = a->phase;
    p->single.graph = p->graph;
    p->single.eval_graph = p->eval_graph;
    p->single.plan = p->plan;
    p->graph = p->eval_graph = NULL;
    p->plan = NULL;
    struct division d = {p->sizes.micro_batch, p->cycle_steps, .by_blocks = p->n_groups > 1};
    struct err *err = a->err;
    int r = job_plan_with(a->o, a->j, p, d, 0, &p->report, err);
    if (r == -ENOSPC && d.by_blocks && policy_of(a->o, a->j) == POLICY_auto) {
        /* The whole state of a block does not fit on a device. Plans that move the state in every step need
         * less memory. */
        d.by_blocks = false;
        r = job_plan_with(a->o, a->j, p, d, 0, &p->report, err);
    }
    if (r == 0)
        return verify_phase(a);
    if (err != NULL)
        name_cycle_key(a->j, p->cycle_steps, r, err);
    return r;
}

static int plan_and_verify(void *arg)
{
    const struct planning *a = arg;
    struct prepared_job *j = a->j;
    struct phase *p = a->phase;
    int r = p->resolved_now ? plan_auto(a->o, j, p, a->err) : plan_step(a->o, j, p, a->err);
    if (r == 0)
        r = verify_phase(a);
    enum policy_id policy = policy_of(a->o, j);
    /* Only these policies keep a block on its device for several steps. With other policies, the planner does
     * not choose the number of steps. */
    p->cycle_auto = p->cycle_auto && (policy == POLICY_auto || policy == POLICY_blocks);
    if (r < 0 || (p->cycle_steps == 1 && !p->cycle_auto))
        return r;
    if (p->cycle_steps > 1 && !p->cycle_auto)
        return plan_cycle(a);
    r = job_choose_cycle(a->o, j, p, a->err);
    return r == 0 && p->cycle_steps > 1 ? verify_phase(a) : r;
}

/* Calls o->planning with the size of the planning work, for the phase with the most tasks. */
static void announce(const struct job_options *o, const struct prepared_job *j)
{
    struct job_planning most = {0};
    for (uint32_t i = 0; o->planning != NULL && i < j->phases.n; i++) {
        const struct phase *p = &j->phases.at[i];
        struct job_planning size;
        if (measure_planning(o, j, p,
                             (struct division){.rows = p->sizes.micro_batch, .steps = p->cycle_steps}, &size,
                             NULL) == 0 &&
            size.tasks > most.tasks)
            most = size;
    }
    if (most.tasks > 0)
        o->planning(o->ctx, &most);
}

/* Adds the name of the phase to a message, if the job has several phases. */
static int fail_phase(const struct prepared_job *j, const struct phase *p, int code, struct err *err)
{
    if (j->phases.n > 1 && err != NULL && err->code < 0)
        err_set_at(err, code, err->path, "phase %u (%s): %s", p->number, p->name, err->msg);
    return code;
}

/* Raises j->planning_bytes to the host memory that the job had while phase `p` was planned. `used` is the
 * memory that the planning itself took. */
static void note_planning(const struct job_options *o, struct prepared_job *j, const struct phase *p,
                          const struct job_memory *used)
{
    const struct division d = {.rows = p->sizes.micro_batch, .steps = p->cycle_steps};
    struct job_planning size = {0};
    measure_planning(o, j, p, d, &size, NULL);
    uint64_t bytes = size.bytes + single_bytes(o, j, p);
    bytes = j->data_bytes + j->held_bytes + (bytes > used->peak_bytes ? bytes : used->peak_bytes);
    j->planning_bytes = bytes > j->planning_bytes ? bytes : j->planning_bytes;
}

static int plan_phase(const struct job_options *o, struct prepared_job *j, struct phase *p, struct err *err)
{
    struct planning a = {.o = o, .j = j, .phase = p, .err = err};
    if (p->sizes_as != p->number) {
        int e = job_resolve_phase(j, p, j->phases.at[p->sizes_as].sizes, err);
        if (e < 0)
            return fail_phase(j, p, e, err);
        p->resolved_now = false;
    }
    /* Keep table and machine here, because plan_auto replaces them for a while and may be stopped before it
     * restores them. */
    struct table *table = j->table;
    const struct machine machine = j->machine;
    struct job_memory used = {0};
    int r = job_bounded(o, j, plan_and_verify, &a, &used, err);
    if (r == -ECANCELED || r == -ENOMEM) { /* the scope has freed what was built */
        p->graph = p->eval_graph = p->single.graph = p->single.eval_graph = NULL;
        p->plan = p->single.plan = NULL;
        j->table = table;
        j->machine = machine;
    }
    if (r == 0)
        note_planning(o, j, p, &used);
    p->held_bytes = used.held_bytes;
    j->held_bytes += p->held_bytes;
    return r < 0 ? fail_phase(j, p, r, err) : 0;
}

/* Checks that the host memory of the job is enough for the tensors of its largest phase and for all graphs
 * and plans, which stay in host memory until the job ends. Returns -ENOSPC if it is not. The planner has
 * checked each plan when it made the plan, but only against the memory that earlier plans had taken by then.
 *
 * Example: a job with 10 GB of host memory has two phases. The first needs 9.8 GB for its tensors, and the
 * plans of the two phases take 150 MB each. The first plan fits alone (9.95 GB), but not together with the
 * second (10.1 GB). */
static int check_host(const struct prepared_job *j, struct err *err)
{
    uint64_t needs = job_host_bytes(j), has = j->machine.host_bytes;
    if (needs <= has)
        return 0;
    return err_set_at(err, -ENOSPC, "resources.host_memory",
                      "the plans of the job need %llu bytes of host memory, but the job has %llu; raise "
                      "resources.host_memory to the first number",
                      (unsigned long long)needs, (unsigned long long)has);
}

static bool has_several_plans(const struct phase_list *list)
{
    return list->n > 1 || list->at[0].single.plan != NULL;
}

int job_plan(const struct job_options *o, struct prepared_job *j, struct err *err)
{
    int r = 0;
    announce(o, j);
    for (uint32_t i = 0; r == 0 && i < j->phases.n; i++)
        r = plan_phase(o, j, &j->phases.at[i], err);
    return r < 0 || !has_several_plans(&j->phases) ? r : check_host(j, err);
}

static int least_capacity_with(const struct job_options *o, const struct prepared_job *j,
                               const struct phase *p, struct division d, uint64_t *ret_bytes, struct err *err)
{
    struct phase other = *p; /* borrows everything but the graphs */
    other.graph = other.eval_graph = NULL;
    int r = build_graphs(&other, d, err);
    if (r == 0) {
        struct plan_request request = job_request(o, j, &other);
        r = plan_least_capacity(&request, ret_bytes, err);
    }
    phase_drop_graphs(&other);
    return r;
}

/* Computes the fewest bytes per device for which phase `p` with its resolved sizes can be planned. */
static int least_with_sizes(const struct planning *a, const struct phase *p, uint64_t *ret_bytes)
{
    uint64_t cycle_bytes = 0;
    /* If the planner chooses the number of steps in a cycle, it can always fall back to one step. */
    const struct division d = {p->sizes.micro_batch, p->cycle_auto ? 1 : p->cycle_steps, false};
    int r =
        least_capacity_with(a->o, a->j, p, (struct division){.rows = d.rows, .steps = 1}, ret_bytes, a->err);
    if (r == 0 && d.steps > 1)
        r = least_capacity_with(a->o, a->j, p, d, &cycle_bytes, a->err);
    if (r == 0 && cycle_bytes > *ret_bytes)
        *ret_bytes = cycle_bytes;
    return r;
}

/* Tries every micro-batch size that "auto" may choose, with the given number of replicas. Fewer samples do
 * not always need less memory: a whole batch at once needs no space for the next micro-batch. */
static int least_with_replicas(struct planning *a, uint32_t replicas)
{
    struct phase p = *a->phase; /* borrows everything */
    uint32_t rows[SIZES_MAX_DIVISORS] = {p.sizes.micro_batch}, n = 1;
    p.sizes.replicas = replicas;
    if (p.resolved_now && p.asked.micro_batch == 0)
        n = sizes_divisors(p.batch / replicas, rows);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes;
        p.sizes.micro_batch = rows[i];
        if (p.batch / replicas % rows[i] != 0 ||
            (p.resolved_now &&
             !may_plan(a->o, a->j, &p, (struct division){.rows = rows[i], .steps = p.cycle_steps})))
            continue;
        int r = least_with_sizes(a, &p, &bytes);
        if (r < 0)
            return r;
        a->least_bytes = bytes < a->least_bytes ? bytes : a->least_bytes;
    }
    return 0;
}

static int find_least_capacity(void *arg)
{
    struct planning *a = arg;
    const struct phase *p = a->phase;
    a->least_bytes = UINT64_MAX;
    int r = least_with_replicas(a, p->sizes.replicas);
    if (r == 0 && p->resolved_now && p->asked.replicas == 0 && p->sizes.replicas > 1)
        r = least_with_replicas(a, 1);
    return r;
}

int job_least_capacity(const struct job_options *o, const struct prepared_job *j, uint64_t *ret_bytes,
                       struct err *err)
{
    /* struct planning needs a job that is not const, so use a copy of the job. */
    struct prepared_job borrowed = *j;
    uint64_t most = 0;
    for (uint32_t i = 0; i < j->phases.n; i++) {
        struct planning a = {.o = o, .j = &borrowed, .phase = &j->phases.at[i], .err = err};
        int r = job_bounded(o, j, find_least_capacity, &a, NULL, err);
        if (r < 0)
            return r;
        most = a.least_bytes > most ? a.least_bytes : most;
    }
    *ret_bytes = most < UINT64_MAX ? most : 0;
    return 0;
}

/* ---- the comparison with demand paging ---- */

static int count_lru(struct plan_request *request, struct plan_bytes *ret, struct err *err)
{
    struct plan *p = NULL;
    const struct graph *g = request->train;
    if (g->n_tasks > COMPARE_TASKS || g->n_layers > COMPARE_LAYERS)
        return err_set(err, -E2BIG, "%u tasks on %u layers are many; up to %u on %u are compared", g->n_tasks,
                       g->n_layers, COMPARE_TASKS, COMPARE_LAYERS);
    int r = plan_make(request, &p, NULL, err);
    if (r == -ENOSPC && request->update == UPDATE_AUTO) {
        request->update = UPDATE_HOST;
        r = plan_make(request, &p, NULL, err);
    }
    if (r == 0)
        plan_step_bytes(p, ret);
    plan_destroy(p);
    return r;
}

static int compare(void *arg)
{
    const struct planning *a = arg;
    struct prepared_job *j = a->j;
    struct plan_request request = job_request(a->o, j, a->phase);
    j->comparison.bound_bytes = bound_bytes(a->phase->plan) / a->phase->plan->steps;
    request.policy = POLICY_lru;
    request.eval = NULL; /* evaluation is not compared */
    return count_lru(&request, &j->comparison.lru, &j->comparison.lru_err);
}

void job_compare(const struct job_options *o, struct prepared_job *j)
{
    /* Planning for the comparison ignores `stop`, because even a stopped job gets a complete report. */
    struct job_options no_stop = *o;
    struct planning a = {.o = &no_stop, .j = j, .phase = job_largest_phase(j)};
    no_stop.stop = NULL;
    j->comparison = (struct job_comparison){0};
    j->comparison.has_lru = job_bounded(&no_stop, j, compare, &a, NULL, &j->comparison.lru_err) == 0;
}
