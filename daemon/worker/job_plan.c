/* Plans the phases of a job: decides whether they may be planned, chooses the micro-batch sizes, and makes
 * and verifies the plans.
 *
 * micro_batch "auto" usually becomes the largest divisor of a replica's part of the global batch, up to
 * AUTO_ROWS, for which a plan fits. A smaller size is taken when it is faster, because less is computed
 * twice, or when it is as fast and moves far fewer bytes. replicas "auto" becomes 1.
 *
 * Both time and memory of planning grow with the number of tasks. Planning is refused when its estimated
 * memory (scheduler/policy/planning_size.h) is more than the host memory of the job. It runs in a scope of
 * bounded work (base/bounded.h) that enforces this limit and that ends when the job is stopped. Code
 * inside the scope opens and locks nothing. Only the graphs and plans of a phase get memory of the scope.
 * Each phase is planned in a scope of its own.
 *
 * A phase is first planned with one training step in a cycle. This plan chooses the micro-batch size, which
 * changes the bits of the result and must not depend on memory.cycle_steps. If a cycle has more steps, the
 * phase is then planned again with that size and all steps of the cycle.
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
#include "daemon/worker/job.h"
#include "scheduler/policy/planning_size.h"
#include "scheduler/predict/bound.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/verify/verify.h"

/* More rows than this do not make a matrix product (GEMM) on a cpu device faster. */
#define AUTO_ROWS       128
#define AUTO_LEAST_ROWS 16 /* a GEMM with fewer rows is slow */
/* Micro-batch sizes below AUTO_LEAST_ROWS are tried only if a training step then has at most this many
 * tasks. */
#define AUTO_TASKS (1u << 16)
#define AUTO_TRIES 4 /* number of sizes that are compared */
/* A smaller micro-batch size is chosen only if it makes a training step faster by at least 1/50, which is 2
 * percent. */
#define AUTO_WORTH 50
/* Two micro-batch sizes count as equally fast if one is slower by at most 1/200, which is half a percent. */
#define AUTO_AS_FAST 200
/* With fewer tokens than this in a micro-batch, matrix products are so slow that moving fewer bytes does not
 * make up for it. */
#define AUTO_FEW_TOKENS 512
#define MAX_DIVISORS    JOB_MAX_DIVISORS
/* job_compare plans a job only if a training step has at most this many tasks. It would take longer than a
 * second to plan a larger job. */
#define COMPARE_TASKS  (1u << 14)
#define COMPARE_LAYERS (1u << 10) /* most layers that job_compare plans */

/* ---- graphs ---- */

/* How the work of a phase is divided in a graph: the micro-batch size, and the number of training steps in a
 * cycle. */
struct division {
    uint32_t rows, steps;
};

/* Returns the configuration for building a graph of a phase. The number of replicas of the phase must be
 * known. */
static struct graph_config config_of(const struct phase *p, struct division d, bool training)
{
    return (struct graph_config){
        .model = &p->model,
        .optimizer = &p->optimizer,
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
    plain.optimizer.clip = 0;
    plain.skip_nonfinite = false;
    return build_graph(&plain, (struct division){p->sizes.micro_batch, p->cycle_steps}, true, ret, err);
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
        .objective = o->objective,
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

static int compare_u32(const void *pa, const void *pb)
{
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    return a < b ? -1 : a > b;
}

/* Stores all divisors of `of` in ascending order and returns their number. */
static uint32_t find_divisors(uint32_t of, uint32_t ret[MAX_DIVISORS])
{
    uint32_t n = 0;
    for (uint64_t k = 1; k * k <= of; k++) {
        if (of % k != 0)
            continue;
        ret[n++] = (uint32_t)k;
        if (k * k != of)
            ret[n++] = (uint32_t)(of / k);
    }
    qsort(ret, n, sizeof *ret, compare_u32);
    return n;
}

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
        measure_planning(o, j, p, (struct division){p->sizes.micro_batch, 1}, &size, NULL) < 0)
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
    uint32_t divisors[MAX_DIVISORS];
    uint32_t n = find_divisors(p->batch / p->sizes.replicas, divisors);
    for (uint32_t i = 0; i < n; i++)
        if (divisors[i] > rows && may_plan(o, j, p, (struct division){divisors[i], 1}))
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
    while (fits > 1 && !may_plan(o, j, p, (struct division){d.rows, fits}))
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
                uint64_t *ret_held, struct err *err)
{
    uint64_t limit = o->planning_bytes > 0 ? o->planning_bytes : left_for_planning(j);
    struct bounded b = {
        .limit_bytes = limit > j->held_bytes ? limit - j->held_bytes : 1, .stop = o->stop, .ctx = o->ctx};
    int r = bounded_run(&b, work, arg);
    if (b.ended_early)
        return report_early_end(&b, r, err);
    if (ret_held != NULL)
        *ret_held = b.held_bytes;
    return r;
}

/* ---- planning with one size ---- */

/* Plans a phase with the division `d`: resolves the spec, builds the graphs and makes a plan. `most_work`
 * limits the work of the planner, and *used_work counts this work (struct plan_request). */
static int plan_with(const struct job_options *o, struct prepared_job *j, struct phase *p, struct division d,
                     uint64_t most_work, uint64_t *used_work, struct err *err)
{
    phase_drop_graphs(p);
    int r = job_resolve_phase(j, p, (struct spec_sizes){d.rows, p->sizes.replicas}, err);
    if (r == 0)
        r = admit_planning(o, j, p, d, err);
    if (r == 0)
        r = build_graphs(p, d, err);
    if (r < 0)
        return r;
    struct plan_request request = job_request(o, j, p);
    request.most_work = most_work;
    request.used_work = used_work;
    return plan_make(&request, &p->plan, &j->least_bytes, err);
}

/* Plans a phase with the given micro-batch size and one training step in a cycle. */
static int plan_step(const struct job_options *o, struct prepared_job *j, struct phase *p, uint32_t rows,
                     uint64_t most_work, uint64_t *used_work, struct err *err)
{
    return plan_with(o, j, p, (struct division){rows, 1}, most_work, used_work, err);
}

/* ---- micro_batch "auto" ---- */

static uint64_t tasks_of(const struct phase *p, uint32_t rows)
{
    return 2ull * p->model.n_layers * (p->batch / rows);
}

/* Stores the micro-batch sizes that "auto" may choose, the most promising first, and returns their number.
 * The divisors from AUTO_ROWS down to AUTO_LEAST_ROWS come first, and then the larger divisors. Smaller
 * divisors come last, because they are slow, and only if a step then has at most AUTO_TASKS tasks. */
static uint32_t auto_rows(const struct phase *p, uint32_t ret[MAX_DIVISORS])
{
    uint32_t divisors[MAX_DIVISORS], n_ret = 0;
    uint32_t n = find_divisors(p->batch / p->sizes.replicas, divisors), low = 0, high = n;
    while (low < n && divisors[low] < AUTO_LEAST_ROWS)
        low++;
    while (high > low && divisors[high - 1] > AUTO_ROWS)
        high--;
    for (uint32_t i = high; i-- > low;)
        ret[n_ret++] = divisors[i];
    for (uint32_t i = high; i < n; i++)
        ret[n_ret++] = divisors[i];
    for (uint32_t i = low; i-- > 0;)
        if (tasks_of(p, divisors[i]) <= AUTO_TASKS)
            ret[n_ret++] = divisors[i];
    return n_ret;
}

/* AUTO_MOST_TASKS and AUTO_MOST_WORK limit the work of trying micro-batch sizes for "auto". They are counts
 * and not times, because the chosen size changes the bits of the result and must not depend on the speed of
 * the computer.
 *
 * AUTO_MOST_TASKS is the most tasks that all tried sizes may have together. The smallest size is always tried
 * and does not count. */
#define AUTO_MOST_TASKS (1u << 18)
/* The most instructions that may be built for all tried micro-batch sizes together. After that, each
 * remaining size gets only one quick planning attempt. */
#define AUTO_MOST_WORK (2ull * PLAN_WORK)

static bool contains(const uint32_t *list, uint32_t n, uint32_t value)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == value)
            return true;
    return false;
}

uint32_t job_auto_sizes(const struct phase *p, uint32_t ret[MAX_DIVISORS])
{
    uint32_t rows[MAX_DIVISORS], n = auto_rows(p, rows), n_ret = 0, smallest = 0;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t tasks = tasks_of(p, rows[i]);
        if (tasks > GRAPH_MAX_TASKS)
            continue;
        if (smallest == 0 || rows[i] < smallest)
            smallest = rows[i];
        if (sum + tasks > AUTO_MOST_TASKS)
            continue;
        sum += tasks;
        ret[n_ret++] = rows[i];
    }
    if (smallest > 0 && !contains(ret, n_ret, smallest))
        ret[n_ret++] = smallest;
    if (n_ret == 0 && n > 0)
        ret[n_ret++] = rows[n - 1]; /* planning fails with too many tasks */
    return n_ret;
}

/* Returns the limit on the planner's work for the next micro-batch size (plan_request.most_work), after
 * `used` work for earlier sizes. Until `used` exceeds AUTO_MOST_WORK, the result is 0, which means the
 * default limit. After that, the result is 1, which means as little work as possible. */
static uint64_t work_left(uint64_t used)
{
    return used > AUTO_MOST_WORK ? 1 : 0;
}

/* Predicts how long one training step with p->plan takes, in nanoseconds. */
static uint64_t predict_ns(const struct job_options *o, const struct prepared_job *j, const struct phase *p)
{
    struct plan_request request = job_request(o, j, p);
    struct profile *times = plan_profile(&request);
    struct sim_result *sim = plan_simulate(p->plan, PROGRAM_CYCLE, SIM_RUNS, times, &j->machine);
    uint64_t ns = sim->cycle_ns;
    sim_destroy(sim);
    profile_destroy(times);
    return ns;
}

static uint64_t rows_of_products(const struct spec *s, uint32_t rows)
{
    return (uint64_t)rows * (s->seq > 0 ? s->seq : 1);
}

/* A micro-batch size with which the job fits the devices, and the predicted time and bytes of its plan. */
struct choice {
    uint32_t rows;
    /* Nanoseconds that one training step takes, and bytes that the step moves to and from the host. */
    uint64_t ns, bytes;
};

static struct choice choice_of(const struct job_options *o, const struct prepared_job *j,
                               const struct phase *p, uint32_t rows)
{
    struct plan_bytes b;
    plan_count_bytes(p->plan, PROGRAM_CYCLE, &b);
    return (struct choice){rows, predict_ns(o, j, p), b.in + b.out};
}

/* Returns whether the choice `a` is better than the choice `than`. The choice `a` must be clearly faster, or
 * equally fast while it moves a third fewer bytes. */
static bool is_better(const struct spec *s, const struct choice *a, const struct choice *than)
{
    if (a->ns < than->ns - than->ns / AUTO_WORTH)
        return true;
    return rows_of_products(s, a->rows) >= AUTO_FEW_TOKENS && a->ns <= than->ns + than->ns / AUTO_AS_FAST &&
           a->bytes < than->bytes / 3 * 2;
}

/* Chooses the micro-batch size: the first size with which the job fits, unless a later size is better. After
 * the first fit, sizes with fewer than AUTO_ROWS rows per matrix product are not tried, because they are
 * slow. If no size fits, returns -ENOSPC and stores the size that needs the least memory. */
static int choose_rows(const struct job_options *o, struct prepared_job *j, struct phase *p, uint32_t *ret,
                       uint64_t *ret_work, struct err *err)
{
    uint32_t rows[MAX_DIVISORS], n = job_auto_sizes(p, rows), fit = 0;
    uint64_t least = UINT64_MAX;
    struct choice best = {0};
    bool resident = false;
    *ret_work = 0;
    *ret = p->sizes.micro_batch;
    for (uint32_t i = 0; i < n && fit < AUTO_TRIES && !resident; i++) {
        if (fit > 0 && rows_of_products(j->spec, rows[i]) < AUTO_ROWS)
            break;
        /* plan_step sets least_bytes if too little device memory is the problem. If only the host memory is
         * too small, least_bytes stays 0. */
        j->least_bytes = 0;
        int r = plan_step(o, j, p, rows[i], work_left(*ret_work), ret_work, err);
        if (r == 0) {
            struct choice c = choice_of(o, j, p, rows[i]);
            resident = strcmp(p->plan->policy, policy_names[POLICY_resident]) == 0;
            if (fit++ == 0 || is_better(j->spec, &c, &best)) {
                best = c;
                *ret = rows[i];
            }
            plan_destroy(p->plan);
            p->plan = NULL;
            continue;
        }
        if (r != -ENOSPC)
            return r;
        uint64_t needs = j->least_bytes > 0 ? j->least_bytes : UINT64_MAX;
        if (fit == 0 && (needs < least || (needs == least && rows[i] < *ret))) {
            least = needs;
            *ret = rows[i];
        }
    }
    return fit > 0 ? 0 : -ENOSPC;
}

/* Chooses the micro-batch size and plans with it. The choice ignores measured times, because they differ
 * between computers, and the micro-batch size changes the bits of the result. */
static int plan_auto(const struct job_options *o, struct prepared_job *j, struct phase *p, struct err *err)
{
    struct table *measured = j->table;
    uint32_t rows;
    uint64_t work;
    j->table = NULL;
    int r = choose_rows(o, j, p, &rows, &work, err);
    j->table = measured;
    /* No size fits. Plan once more with the size that comes closest, to get its error message. */
    if (r == -ENOSPC)
        return plan_step(o, j, p, rows, work_left(work), NULL, err);
    return r == 0 ? plan_step(o, j, p, rows, 0, NULL, err) : r;
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
    int r =
        plan_with(a->o, a->j, p, (struct division){p->sizes.micro_batch, p->cycle_steps}, 0, NULL, a->err);
    if (r == 0)
        return verify_phase(a);
    struct err *err = a->err;
    if (r == -ENOSPC && err != NULL && strcmp(err->path, "memory.cycle_steps") != 0)
        err_set_at(err, r, err->path, "memory.cycle_steps is %u, and one step in a cycle would fit: %s",
                   p->cycle_steps, err->msg);
    return r;
}

static int plan_and_verify(void *arg)
{
    const struct planning *a = arg;
    struct prepared_job *j = a->j;
    struct phase *p = a->phase;
    int r = p->resolved_now ? plan_auto(a->o, j, p, a->err)
                            : plan_step(a->o, j, p, p->sizes.micro_batch, 0, NULL, a->err);
    if (r == 0)
        r = verify_phase(a);
    return r == 0 && p->cycle_steps > 1 ? plan_cycle(a) : r;
}

/* Calls o->planning with the size of the planning work, for the phase with the most tasks. */
static void announce(const struct job_options *o, const struct prepared_job *j)
{
    struct job_planning most = {0};
    for (uint32_t i = 0; o->planning != NULL && i < j->phases.n; i++) {
        const struct phase *p = &j->phases.at[i];
        uint32_t rows[MAX_DIVISORS], micro_batch = p->sizes.micro_batch;
        struct job_planning size;
        if (p->resolved_now && job_auto_sizes(p, rows) > 0)
            micro_batch = rows[0];
        if (measure_planning(o, j, p, (struct division){micro_batch, p->cycle_steps}, &size, NULL) == 0 &&
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

static int plan_phase(const struct job_options *o, struct prepared_job *j, struct phase *p, struct err *err)
{
    struct planning a = {.o = o, .j = j, .phase = p, .err = err};
    if (p->sizes_as != p->number) {
        int e = job_resolve_phase(j, p, j->phases.at[p->sizes_as].sizes, err);
        if (e < 0)
            return fail_phase(j, p, e, err);
        p->resolved_now = false;
    }
    /* Remember the table, because plan_auto sets j->table to NULL for a while and may be stopped before it
     * restores the table. */
    struct table *table = j->table;
    int r = job_bounded(o, j, plan_and_verify, &a, &p->held_bytes, err);
    if (r == -ECANCELED || r == -ENOMEM) { /* the scope has freed what was built */
        p->graph = p->eval_graph = p->single.graph = p->single.eval_graph = NULL;
        p->plan = p->single.plan = NULL;
        j->table = table;
    }
    j->held_bytes += p->held_bytes;
    return r < 0 ? fail_phase(j, p, r, err) : 0;
}

/* Checks that every phase fits the host memory together with the plans of all phases. When the first plans
 * were made, the memory of the later plans was not known yet. */
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

static int find_least_capacity(void *arg)
{
    struct planning *a = arg;
    const struct prepared_job *j = a->j;
    const struct phase *p = a->phase;
    uint32_t rows[MAX_DIVISORS], n = p->resolved_now ? job_auto_sizes(p, rows) : 1;
    uint64_t least = UINT64_MAX;
    if (!p->resolved_now)
        rows[0] = p->sizes.micro_batch;
    /* Try every micro-batch size, because fewer samples do not always need less memory. For example, a whole
     * batch at once needs no space for the next micro-batch. */
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes, cycle_bytes = 0;
        struct division d = {rows[i], p->cycle_steps};
        if (p->resolved_now && !may_plan(a->o, j, p, d))
            continue;
        int r = least_capacity_with(a->o, j, p, (struct division){rows[i], 1}, &bytes, a->err);
        if (r == 0 && d.steps > 1)
            r = least_capacity_with(a->o, j, p, d, &cycle_bytes, a->err);
        if (r < 0)
            return r;
        bytes = cycle_bytes > bytes ? cycle_bytes : bytes;
        least = bytes < least ? bytes : least;
    }
    a->least_bytes = least;
    return 0;
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
    *ret_bytes = most;
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
    j->comparison.bound_bytes = bound_bytes(a->phase->plan);
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
