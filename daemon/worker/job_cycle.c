/* Chooses the number of training steps in a cycle of local updates, where the job leaves it to the planner.
 *
 * A block of layers can stay on its device for several steps, because no gradient comes from the blocks
 * after it. With k steps in a cycle, the state of a block crosses the link once in k steps. The number
 * changes no bit of the result, so it may depend on the memory and on measured times.
 *
 * Between two breaks, at which the job evaluates or writes a checkpoint, the job does the same number of
 * steps again and again. What remains of them after whole cycles runs with one step in a cycle, and this
 * counts in the time of a number. So the planner tries numbers that leave no remainder, if there are any:
 * each trial has at most twice as many steps as the trial before. The trials end at the first number that
 * does not fit or takes too long, and when a number brings little more than the best one so far.
 */
#include <errno.h>
#include <string.h>

#include "base/bounded.h"
#include "daemon/worker/job_plan_private.h"

/* The search for the next evaluation or checkpoint looks at no more than this many steps. */
#define FAR 4096u

/* One number of steps in a cycle is better than another in two cases. It saves at least the fraction
 * LESS_TIME of the time, and the objective accepts the bytes that it moves. Or it saves at least the
 * fraction LESS_BYTES of the bytes, and the objective accepts the time that it takes. The balanced
 * objective accepts up to the fraction LESS_TIME more time. */
#define LESS_TIME  0.02
#define LESS_BYTES 0.1

const char *const phase_limit_names[PHASE_LIMIT_COUNT] = {
    [PHASE_LIMIT_NONE] = "none",
    [PHASE_LIMIT_GAIN] = "more steps would gain little",
    [PHASE_LIMIT_SLOWER] = "more steps would move less, but take longer",
    [PHASE_LIMIT_DEVICE] = "device memory",
    [PHASE_LIMIT_HOST] = "host memory",
    [PHASE_LIMIT_PLAN] = "size of the plan",
    [PHASE_LIMIT_TIME] = "method.max_cycle_seconds",
    [PHASE_LIMIT_BREAKS] = "steps between evaluations and checkpoints",
    [PHASE_LIMIT_MOST] = "most steps that a cycle can have",
};

/* The graphs and the plan for one number of steps in a cycle. `ns` and `bytes` are the time and the bytes
 * moved of a training step. They are averages that include the steps before a break, which run one at a
 * time. */
struct cycle_trial {
    uint32_t steps;
    struct graph *graph, *eval_graph;
    struct plan *plan;
    struct plan_report report;
    uint64_t host_taken_bytes; /* machine.host_taken_bytes of this plan */
    double ns, bytes;
};

static void take_plan(struct cycle_trial *t, const struct prepared_job *j, struct phase *p)
{
    t->host_taken_bytes = j->machine.host_taken_bytes;
    t->graph = p->graph;
    t->eval_graph = p->eval_graph;
    t->plan = p->plan;
    t->report = p->report;
    p->graph = p->eval_graph = NULL;
    p->plan = NULL;
}

static void give_plan(const struct cycle_trial *t, struct prepared_job *j, struct phase *p)
{
    j->machine.host_taken_bytes = t->host_taken_bytes;
    p->graph = t->graph;
    p->eval_graph = t->eval_graph;
    p->plan = t->plan;
    p->report = t->report;
}

static void drop_trial(struct cycle_trial *t)
{
    plan_destroy(t->plan);
    graph_destroy(t->graph);
    graph_destroy(t->eval_graph);
    *t = (struct cycle_trial){0};
}

/* Returns the number of steps between two breaks, at most FAR. A break is an evaluation or a checkpoint. */
static uint64_t steps_between_breaks(const struct prepared_job *j, const struct phase *p)
{
    uint64_t n = 1;
    while (n < FAR && n < p->steps && !job_is_break(j, p, n))
        n++;
    return n;
}

/* Computes the average time and bytes of a training step for the trial `t`. `single` is the trial with one
 * step in a cycle. `alone` is the fraction of steps that run under the plan of `single`. */
static void weigh(struct cycle_trial *t, const struct cycle_trial *single, double alone)
{
    double ns = (double)t->report.score.ns / t->steps, bytes = (double)t->report.score.bytes / t->steps;
    t->ns = (1 - alone) * ns + alone * (double)single->report.score.ns;
    t->bytes = (1 - alone) * bytes + alone * (double)single->report.score.bytes;
}

static bool is_better(enum plan_objective objective, const struct cycle_trial *a, const struct cycle_trial *b)
{
    bool faster = a->ns < b->ns * (1 - LESS_TIME), less = a->bytes < b->bytes * (1 - LESS_BYTES);
    switch (objective) {
    case OBJECTIVE_BYTES:
        return less || (faster && a->bytes <= b->bytes);
    case OBJECTIVE_TIME:
        return faster || (less && a->ns <= b->ns);
    default:
        return faster || (less && a->ns <= b->ns * (1 + LESS_TIME));
    }
}

/* Returns which limit was reached, according to the planner's error `e`. */
static enum phase_limit limit_of(const struct err *e)
{
    if (strcmp(e->path, "memory.cycle_steps") == 0)
        return PHASE_LIMIT_PLAN;
    return strcmp(e->path, "resources.host_memory") == 0 ? PHASE_LIMIT_HOST : PHASE_LIMIT_DEVICE;
}

/* The state of job_choose_cycle. */
struct choosing {
    const struct job_options *o;
    struct prepared_job *j;
    struct phase *p;
    struct cycle_trial single, best;
    enum plan_objective objective;
    uint64_t run; /* steps between two breaks */
    enum phase_limit limit;
    enum phase_limit refused; /* why the newest trial was not better than the best one before it */
};

/* Returns why the trial is not better than `best`. Either too many of its steps run one at a time before
 * breaks, or a step takes longer, or more steps in a cycle gain too little. */
static enum phase_limit why_not_better(const struct choosing *c, struct cycle_trial t,
                                       const struct cycle_trial *best)
{
    weigh(&t, best, 0);
    if (is_better(c->objective, &t, best))
        return PHASE_LIMIT_BREAKS;
    return t.bytes < best->bytes * (1 - LESS_BYTES) ? PHASE_LIMIT_SLOWER : PHASE_LIMIT_GAIN;
}

/* Returns whether the plan of one step fits beside the plan of the trial. Both plans stay, and the second one
 * takes host memory that was free when the first one was made. */
static bool single_fits(const struct choosing *c, const struct cycle_trial *t)
{
    return c->single.plan->host_bytes + t->host_taken_bytes <= c->j->machine.host_bytes;
}

/* Returns the options for planning several steps in a cycle. Updates on the host gain nothing from more
 * steps, so they are left out where the job leaves the place of updates to the planner. Then a block that
 * does not fit its device with its whole state is noticed. */
static struct job_options options_of_trial(const struct choosing *c)
{
    struct job_options o = *c->o;
    if (o.update < 0)
        o.update = (int)c->j->spec->memory.update;
    if (o.update == (int)UPDATE_AUTO)
        o.update = (int)UPDATE_DEVICE;
    return o;
}

/* Plans `steps` steps in a cycle, and keeps the plan if it is the best so far. Returns 1 if more steps may be
 * better, 0 if not, or a negative errno. Sets c->limit in the second case.
 *
 * Two steps are often no better than one, because the plan of one step may update weights on the host and
 * then moves less. So the trials go on until a number has been better than one step. They also go on after a
 * number that leaves many steps before a break, because a larger number may leave none. */
static int try_steps(struct choosing *c, uint32_t steps)
{
    struct err why = {0};
    struct cycle_trial t = {.steps = steps};
    const struct division d = {c->p->sizes.micro_batch, steps, true};
    const struct job_options o = options_of_trial(c);
    int r = job_plan_with(&o, c->j, c->p, d, 0, &c->p->report, &why);
    if (r < 0) {
        c->limit = limit_of(&why);
        return r == -ENOSPC || r == -EINVAL ? 0 : r;
    }
    take_plan(&t, c->j, c->p);
    if (!single_fits(c, &t)) {
        c->limit = PHASE_LIMIT_HOST;
        drop_trial(&t);
        return 0;
    }
    weigh(&t, &c->single, (double)(c->run % steps) / (double)c->run);
    bool slow = (double)t.report.score.ns * 1e-9 > c->j->spec->local.max_cycle_s,
         first = c->best.plan == NULL;
    const struct cycle_trial *best = first ? &c->single : &c->best;
    if (slow || !is_better(c->objective, &t, best)) {
        c->limit = c->refused = slow ? PHASE_LIMIT_TIME : why_not_better(c, t, best);
        drop_trial(&t);
        return !slow && (first || c->limit == PHASE_LIMIT_BREAKS);
    }
    drop_trial(&c->best);
    c->best = t;
    return 1;
}

/* Returns the number of steps to try after `steps`, or 0 to end the search. This is the largest number up to
 * twice `steps` that divides the number of steps between two breaks. If there is no such number, it is twice
 * `steps`. */
static uint32_t next_steps(struct choosing *c, uint32_t steps)
{
    if (steps >= c->run || steps >= SPEC_MAX_CYCLE_STEPS) {
        c->limit = steps >= c->run ? PHASE_LIMIT_BREAKS : PHASE_LIMIT_MOST;
        return 0;
    }
    uint32_t most = 2 * steps < SPEC_MAX_CYCLE_STEPS ? 2 * steps : SPEC_MAX_CYCLE_STEPS;
    for (uint32_t next = most; next > steps; next--)
        if (c->run % next == 0)
            return next;
    return most;
}

int job_choose_cycle(const struct job_options *o, struct prepared_job *j, struct phase *p, struct err *err)
{
    struct choosing c = {.o = o,
                         .j = j,
                         .p = p,
                         .single = {.steps = 1},
                         .objective = job_request(o, j, p).objective,
                         .run = steps_between_breaks(j, p)};
    struct plan_bytes moved;
    int r = 1;
    plan_step_bytes(p->plan, &moved);
    p->cycle_limit = PHASE_LIMIT_GAIN;
    if (moved.state_in + moved.state_out == 0)
        return 0; /* the state never leaves the devices */
    take_plan(&c.single, j, p);
    weigh(&c.single, &c.single, 0);
    p->single.graph = c.single.graph;
    p->single.eval_graph = c.single.eval_graph;
    p->single.plan = c.single.plan;
    for (uint32_t steps = next_steps(&c, 1); steps > 0; steps = r == 1 ? next_steps(&c, steps) : 0)
        r = try_steps(&c, steps);
    phase_drop_graphs(p);
    p->cycle_limit = c.limit;
    if (r < 0)
        return err_set(err, r, "cannot plan several steps in a cycle");
    if (c.best.plan == NULL) {
        if (c.limit == PHASE_LIMIT_MOST) /* all numbers were tried, and none was better than one step */
            p->cycle_limit = c.refused;
        p->single.graph = p->single.eval_graph = NULL;
        p->single.plan = NULL;
        give_plan(&c.single, j, p);
        return 0;
    }
    give_plan(&c.best, j, p);
    p->cycle_steps = c.best.steps;
    return 0;
}
