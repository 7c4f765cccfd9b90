/* Implements the search declared in profile_search.h.
 *
 * The search lists the best outlines, builds and simulates the first few that differ, and shrinks those
 * that do not fit. If the devices of the best plan wait, the search tries small variations of the plan.
 * The number of built plans is limited by counts, because a time limit would make the result depend on
 * the computer.
 */
#include "scheduler/policy/profile_search.h"

#include <stdlib.h>

#include "base/arena.h"
#include "scheduler/policy/candidate.h"
#include "scheduler/policy/outline.h"
#include "scheduler/predict/simulate.h"

#define LISTED 24 /* outlines in the list */
/* The search stops after it built this many plans that fit. */
#define BUILDS 3
/* When outlines save values on the host instead of recomputing them, the search stops after it built this
 * many plans that fit. */
#define SAVE_BUILDS 3
/* Maximum number of times that an outline is made smaller because its plan does not fit. */
#define SHRINKS   4
#define MAX_SIZES 256
/* When all built plans together have this many instructions, the search stops and uses the best plan so
 * far. */
#define ENOUGH 100000ull
/* The devices of a plan count as waiting if a training step takes more than 1/32 longer than the compute
 * time. */
#define WAITS_BEYOND 32
/* Number of different variations that are tried on a plan whose devices wait. */
#define VARIATIONS 5
#define REFINES    8 /* most variations tried in all */

/* The state of one search. */
struct profile_search {
    const struct profile_search_request *q;
    struct outline_request outlines;
    struct profile_search_result best;
    struct outline best_outline;
    uint64_t spent; /* instructions built so far */
    struct err *err;
};

void profile_search_result_finish(struct profile_search_result *r)
{
    plan_destroy(r->plan);
    graph_destroy(r->graph);
    *r = (struct profile_search_result){0};
}

/* ---- one outline ---- */

/* Builds a graph in which every layer has the micro-batch size that the outline gives it. */
static int outline_graph(const struct profile_search *s, const struct outline *o, struct graph **ret)
{
    uint32_t n = s->q->table->n_layers, *rows = xcalloc(n, sizeof *rows);
    const struct graph_sizes sizes = {s->q->batch, o->n_devices, rows};
    outline_rows(o, n, rows);
    int r = graph_build_sizes(s->q->table, &sizes, true, ret, s->err);
    xfree(rows);
    return r;
}

static bool result_is_better(const struct profile_search *s, const struct profile_search_result *a)
{
    return s->best.plan == NULL || score_is_better(s->q->objective, &a->score, &s->best.score);
}

/* Simulates a plan and keeps it if it is the best so far. Takes ownership of the plan and graph in *made. */
static void consider_plan(struct profile_search *s, const struct plan_request *r, const struct profile *prof,
                          const struct outline *o, struct profile_search_result *made)
{
    s->spent += made->plan->programs[PROGRAM_CYCLE].n_instrs;
    struct sim_result *sim = plan_simulate(made->plan, PROGRAM_CYCLE, SIM_RUNS, prof, r->machine);
    made->score = (struct score){sim->cycle_ns, sim->bytes.in + sim->bytes.out};
    made->moves_data_only = made->score.bytes == sim->bytes.data_in + sim->bytes.data_out;
    made->waits =
        o->n_devices < r->machine->n_devices || made->score.ns > o->compute_ns + o->compute_ns / WAITS_BEYOND;
    sim_destroy(sim);
    if (result_is_better(s, made)) {
        profile_search_result_finish(&s->best);
        s->best = *made;
        s->best_outline = *o;
    } else {
        profile_search_result_finish(made);
    }
}

/* Builds the plan of an outline. Returns 1 if the plan fits, 0 if it does not, or a negative errno. Sets
 * *ret_excess to the number of bytes by which the plan exceeds the memory of a device. If several devices are
 * too small, the largest excess counts. */
static int build(struct profile_search *s, const struct outline *o, uint64_t *ret_excess)
{
    struct profile_search_result made = {0};
    int e = outline_graph(s, o, &made.graph);
    if (e < 0)
        return e;
    struct plan_request r = {.train = made.graph,
                             .machine = s->q->machine,
                             .update = s->q->update,
                             .table = s->q->table,
                             .objective = s->q->objective};
    struct plan_need need;
    struct profile *prof = plan_profile(&r);
    e = plan_outline(&r, o, prof, &made.plan, &need, s->err);
    *ret_excess = 0;
    for (uint32_t d = 0; e == 0 && d < r.machine->n_devices; d++)
        if (need.peak[d] > r.machine->capacity_bytes[d] &&
            need.peak[d] - r.machine->capacity_bytes[d] > *ret_excess)
            *ret_excess = need.peak[d] - r.machine->capacity_bytes[d];
    bool fits = e == 0 && made.plan != NULL;
    if (fits)
        consider_plan(s, &r, prof, o, &made);
    else
        profile_search_result_finish(&made);
    profile_destroy(prof);
    return e < 0 ? e : fits;
}

/* Builds the plan of an outline, and makes the outline smaller until the plan fits. Returns 1 if it fits in
 * the end. */
static int build_fitting(struct profile_search *s, struct outline *o)
{
    uint64_t excess = 0;
    int e = build(s, o, &excess);
    for (int i = 0; e == 0 && i < SHRINKS && excess > 0 && outline_shrink(&s->outlines, o, excess); i++)
        e = build(s, o, &excess);
    return e;
}

/* ---- the list ---- */

/* Lists the possible micro-batch sizes and returns their number. Each size divides the rows of a device and
 * was measured or lies between measured sizes. If the request fixes a size, it is the only one. */
static uint32_t find_sizes(const struct profile_search_request *q, uint32_t devices, uint32_t *ret)
{
    const struct table *t = q->table;
    uint32_t local = q->batch / devices, n = 0;
    uint32_t least = t->fwd.sizes[0] > t->bwd.sizes[0] ? t->fwd.sizes[0] : t->bwd.sizes[0];
    if (q->micro_batch > 0) {
        ret[0] = q->micro_batch;
        return local % q->micro_batch == 0 ? 1 : 0;
    }
    for (uint32_t u = least; u <= local && u <= table_largest(t) && n < MAX_SIZES; u++)
        if (local % u == 0)
            ret[n++] = u;
    return n;
}

/* Returns the largest number of devices among which the batch can be divided into equal parts of whole
 * micro-batches. */
static uint32_t find_devices(const struct profile_search_request *q)
{
    uint32_t n = q->machine->n_devices, unit = q->micro_batch > 0 ? q->micro_batch : 1;
    while (n > 1 && (q->batch % n != 0 || q->batch / n % unit != 0))
        n--;
    return n;
}

/* Returns whether the micro-batch sizes of an outline differ from those of each of the `n` outlines in
 * `built`. */
static bool is_new(const struct outline *o, const struct outline *built, int n)
{
    for (int i = 0; i < n; i++)
        if (o->rows == built[i].rows && o->fused_rows == built[i].fused_rows)
            return false;
    return true;
}

/* Lists the best outlines and builds their plans, the best outline first, until `builds` plans fit. */
static int build_best(struct profile_search *s, int builds)
{
    struct outline list[LISTED], built[LISTED];
    uint32_t n = outline_list(&s->outlines, list, LISTED);
    int n_built = 0, n_tried = 0;
    for (uint32_t i = 0; i < n && n_built < builds; i++) {
        struct outline o = list[i];
        const struct score *best = s->best.plan != NULL ? &s->best.score : s->q->to_beat;
        bool hopeless = s->q->objective != OBJECTIVE_BYTES && best != NULL && o.ns >= best->ns;
        if (hopeless || !is_new(&o, built, n_tried))
            continue;
        if (s->best.plan != NULL && s->spent > ENOUGH)
            break;
        built[n_tried] = o;
        int e = build_fitting(s, &o);
        if (e < 0)
            return e;
        n_built += e;
        /* Outlines that save S and differ only in their head all fit or none does. */
        n_tried += e > 0 || s->outlines.saving != SAVING_NONE;
        if (e > 0 && s->q->objective == OBJECTIVE_BYTES && s->best.moves_data_only)
            break;
    }
    return 0;
}

/* ---- variations ---- */

/* Makes variation number `way` of the best outline, for example with more pinned layers. Returns false if the
 * variation changes nothing or is not allowed. */
static bool vary(const struct profile_search *s, int way, struct outline *ret)
{
    uint32_t n = s->q->table->n_layers;
    *ret = s->best_outline;
    if (ret->overlap)
        return way < 2 && outline_save(&s->outlines, ret, way == 0);
    switch (way) {
    case 0:
        ret->pins = ret->pins * 2 + 4 < n ? ret->pins * 2 + 4 : n;
        break;
    case 1:
        ret->pins = n;
        break;
    case 2:
        ret->pack = ret->pack * 2;
        break;
    case 3:
        ret->pack = ret->pack > 2 ? ret->pack / 2 : 1;
        break;
    default:
        ret->fused += ret->fused + 2 < ret->head ? 2 : 0;
        break;
    }
    if (ret->pins > 0 && s->q->update == UPDATE_HOST)
        return false;
    const struct outline *o = &s->best_outline;
    return ret->pins != o->pins || ret->pack != o->pack || ret->fused != o->fused;
}

/* Tries variations of the best plan as long as its devices wait. Stops when every kind of variation has
 * failed since the last improvement. */
static int refine(struct profile_search *s)
{
    int failed = 0;
    for (int i = 0; i < REFINES && failed < VARIATIONS && s->best.plan != NULL; i++) {
        if (!s->best.waits && !s->best_outline.overlap)
            break;
        if (s->spent > 2 * ENOUGH)
            break;
        struct outline o;
        uint64_t before = s->best.score.ns, excess;
        int e = vary(s, i % VARIATIONS, &o) ? build(s, &o, &excess) : 0;
        if (e < 0)
            return e;
        failed = s->best.score.ns < before ? 0 : failed + 1;
    }
    return 0;
}

int profile_search_outlines(const struct profile_search_request *q, struct profile_search_result *ret,
                            struct err *err)
{
    uint32_t sizes[MAX_SIZES], devices = find_devices(q), n_sizes = find_sizes(q, devices, sizes);
    struct profile_search s = {.q = q, .err = err};
    *ret = (struct profile_search_result){0};
    if (n_sizes == 0)
        return 0;
    struct outline_model *model = outline_model_table(q->table, q->machine, sizes, n_sizes);
    s.outlines =
        (struct outline_request){model, q->machine, q->batch, devices, q->objective, q->update, SAVING_NONE};
    int e = build_best(&s, q->brief ? 1 : BUILDS);
    s.outlines.saving = SAVING_OVERLAP;
    if (e == 0 && q->objective != OBJECTIVE_BYTES && devices == 1)
        e = build_best(&s, q->brief ? 1 : SAVE_BUILDS);
    s.outlines.saving = SAVING_WAVES;
    if (e == 0 && q->objective != OBJECTIVE_BYTES)
        e = build_best(&s, q->brief ? 1 : SAVE_BUILDS);
    if (e == 0 && q->objective != OBJECTIVE_BYTES && !q->brief)
        e = refine(&s);
    outline_model_destroy(model);
    if (e < 0)
        profile_search_result_finish(&s.best);
    *ret = s.best;
    return e;
}
