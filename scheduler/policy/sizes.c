/* Implements sizes.h. */
#include "scheduler/policy/sizes.h"

#include <errno.h>
#include <stdlib.h>

#include "base/bounded.h"
#include "base/vec.h"
#include "scheduler/build/build.h"

/* A matrix product with this number of rows takes twice as long for each row as a product with very many
 * rows. */
#define HALF_SPEED_ROWS 32
/* Matrix products do not become faster with more rows than this. */
#define FULL_SPEED_ROWS 512
/* Micro-batch sizes that give more tasks in a step are considered only if nothing else fits, because planning
 * them is slow. */
#define MANY_TASKS (1u << 16)
/* If the pair with the best estimate gives more tasks than this, pairs with fewer tasks are planned first. */
#define SOME_TASKS 8192
/* The search stops when it has planned this number of pairs that fit. A pair is a micro-batch size and a
 * number of replicas. */
#define TRIES 4
/* A pair of sizes is worth planning only if its estimated time exceeds the best time by at most
 * 1/ESTIMATE_SLACK. */
#define ESTIMATE_SLACK 20
/* Maximum number of instructions to build for all pairs of sizes together. When they are used up, only the
 * lean candidates of each remaining pair are tried. */
#define MOST_WORK (2ull * PLAN_WORK)

/* Returns the time of a step, made longer if its matrix products have few rows. The estimate `ns` ignores
 * that such products are slow. */
static uint64_t adjust_ns(uint64_t ns, uint64_t product_rows)
{
    if (product_rows == 0 || ns > UINT64_MAX / (FULL_SPEED_ROWS + HALF_SPEED_ROWS))
        return ns;
    uint64_t rows = product_rows < FULL_SPEED_ROWS ? product_rows : FULL_SPEED_ROWS;
    return ns * (rows + HALF_SPEED_ROWS) / rows;
}

static int compare_numbers(const void *pa, const void *pb)
{
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    return a < b ? -1 : a > b;
}

uint32_t sizes_divisors(uint32_t of, uint32_t ret[SIZES_MAX_DIVISORS])
{
    uint32_t n = 0;
    for (uint64_t k = 1; k * k <= of; k++) {
        if (of % k != 0)
            continue;
        ret[n++] = (uint32_t)k;
        if (k * k != of)
            ret[n++] = (uint32_t)(of / k);
    }
    qsort(ret, n, sizeof *ret, compare_numbers);
    return n;
}

/* ---- the list of pairs ---- */

/* The state of one search. */
struct sizes_search {
    const struct sizes_request *q;
    VEC(struct sizes_trial) list;
    uint64_t work; /* instructions built so far */
    struct err *err;
};

static uint64_t tasks_of(const struct sizes_search *s, uint32_t rows)
{
    return 2ull * s->q->n_layers * (s->q->batch / rows);
}

static uint64_t product_rows(const struct sizes_request *q, uint32_t rows)
{
    return (uint64_t)q->product_rows * rows;
}

/* Returns whether a number of replicas is worth considering. More replicas than devices only cost memory. The
 * replicas should divide evenly among the devices, or else be as many as the batch allows. */
static bool is_useful(const struct sizes_request *q, uint32_t replicas, uint32_t largest)
{
    uint32_t n = q->machine->n_devices;
    if (q->asked.replicas > 0)
        return replicas == q->asked.replicas;
    return replicas <= n && (n % replicas == 0 || replicas == largest);
}

/* Returns the largest number of replicas that is at most the number of devices and divides the batch. If the
 * number of rows is given, every replica must have whole micro-batches of that size. */
static uint32_t largest_replicas(const struct sizes_request *q, const uint32_t *divisors, uint32_t n)
{
    uint32_t largest = 1, rows = q->asked.rows > 0 ? q->asked.rows : 1;
    for (uint32_t i = 0; i < n && divisors[i] <= q->machine->n_devices; i++)
        if (q->batch / divisors[i] % rows == 0)
            largest = divisors[i];
    return largest;
}

static bool is_allowed(const struct sizes_request *q, uint32_t rows)
{
    if (q->asked.rows > 0)
        return rows == q->asked.rows;
    for (uint32_t i = 0; i < q->n_allowed; i++)
        if (q->allowed[i] == rows)
            return true;
    return q->allowed == NULL;
}

static void list_rows(struct sizes_search *s, uint32_t replicas)
{
    const struct sizes_request *q = s->q;
    uint32_t divisors[SIZES_MAX_DIVISORS], n = sizes_divisors(q->batch / replicas, divisors);
    for (uint32_t i = 0; i < n; i++)
        if (is_allowed(q, divisors[i]) && tasks_of(s, divisors[i]) <= GRAPH_MAX_TASKS)
            vec_push(&s->list, ((struct sizes_trial){.sizes = {divisors[i], replicas}}));
}

static void list_pairs(struct sizes_search *s)
{
    const struct sizes_request *q = s->q;
    uint32_t divisors[SIZES_MAX_DIVISORS], n = sizes_divisors(q->batch, divisors);
    uint32_t largest = largest_replicas(q, divisors, n);
    for (uint32_t i = 0; i < n; i++)
        if (is_useful(q, divisors[i], largest))
            list_rows(s, divisors[i]);
}

/* ---- estimates ---- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Estimates the time of a step in which teams of several devices form pipelines. A pipeline of d devices
 * stands idle while it fills, for d - 1 of its micro-batches. */
static uint64_t pipeline_ns(const struct sizes_request *q, const struct plan_sizes *sizes, uint32_t teams,
                            uint64_t floor_ns)
{
    uint64_t devices = q->machine->n_devices / teams;
    uint64_t micros = q->batch / sizes->rows / teams;
    return micros > 0 ? floor_ns + floor_ns / micros * (devices - 1) : UINT64_MAX;
}

/* Estimates the time of a step for one pair of sizes. The estimate is UINT64_MAX if the pair seems
 * impossible. */
static int estimate(struct sizes_search *s, struct sizes_trial *t)
{
    const struct sizes_request *q = s->q;
    struct outline_model *model;
    struct outline best;
    bounded_poll();
    t->estimate_ns = t->floor_ns = UINT64_MAX;
    int r = q->model(q->ctx, t->sizes, &model);
    if (r < 0)
        return r == -ENOMEM || r == -ECANCELED ? r : 0;
    uint32_t teams = order_replica_devices(t->sizes.replicas, q->machine->n_devices);
    const struct outline_request o = {.model = model,
                                      .machine = q->machine,
                                      .batch = q->batch,
                                      .n_devices = teams,
                                      .objective = OBJECTIVE_TIME,
                                      .update = q->update};
    uint64_t floor_ns = outline_floor_ns(model, q->machine, q->batch), ns = UINT64_MAX;
    if (outline_list(&o, &best, 1) > 0)
        ns = best.ns;
    if (teams < q->machine->n_devices)
        ns = least(ns, pipeline_ns(q, &t->sizes, teams, floor_ns));
    outline_model_destroy(model);
    t->floor_ns = adjust_ns(floor_ns, product_rows(q, t->sizes.rows));
    if (ns < UINT64_MAX)
        t->estimate_ns = adjust_ns(ns, product_rows(q, t->sizes.rows));
    return 0;
}

/* Sorts pairs of sizes by their estimated time. Of pairs with the same time, the pair with the larger
 * micro-batches comes first, and then the pair with fewer replicas. */
static int compare_trials(const void *pa, const void *pb)
{
    const struct sizes_trial *a = pa, *b = pb;
    if (a->estimate_ns != b->estimate_ns)
        return a->estimate_ns < b->estimate_ns ? -1 : 1;
    if (a->sizes.rows != b->sizes.rows)
        return a->sizes.rows > b->sizes.rows ? -1 : 1;
    return a->sizes.replicas < b->sizes.replicas ? -1 : a->sizes.replicas > b->sizes.replicas;
}

/* Sorts pairs by the size of their micro-batches, the largest first, and then by their estimated time. */
static int compare_close(const void *pa, const void *pb)
{
    const struct sizes_trial *a = pa, *b = pb;
    if (a->sizes.rows != b->sizes.rows)
        return a->sizes.rows > b->sizes.rows ? -1 : 1;
    return compare_trials(pa, pb);
}

/* Sorts the pairs in the order in which they are planned: by estimated time. But if the best pair has many
 * tasks, those of about the same estimate that have large micro-batches come first: they have fewer tasks, so
 * the search can afford to try more plans. */
static void sort_trials(struct sizes_search *s)
{
    size_t close = 0;
    qsort(s->list.at, s->list.n, sizeof *s->list.at, compare_trials);
    const uint64_t best = s->list.at[0].estimate_ns;
    if (best == UINT64_MAX || tasks_of(s, s->list.at[0].sizes.rows) <= SOME_TASKS)
        return;
    while (close < s->list.n && s->list.at[close].estimate_ns <= best + best / ESTIMATE_SLACK)
        close++;
    qsort(s->list.at, close, sizeof *s->list.at, compare_close);
}

/* ---- planning ---- */

/* Returns whether a pair of sizes that fits is fast enough to be chosen. `fastest_ns` is the shortest time of
 * all pairs that fit so far. */
static bool is_fast_enough(const struct sizes_search *s, const struct sizes_trial *t, uint64_t fastest_ns)
{
    return s->q->objective == OBJECTIVE_BYTES || score_is_close(t->score.ns, fastest_ns);
}

/* Returns whether pair `a` of sizes is better than pair `than`. Both pairs fit and are fast enough. */
static bool is_better_pair(const struct sizes_trial *a, const struct sizes_trial *than)
{
    if (a->score.bytes != than->score.bytes)
        return a->score.bytes < than->score.bytes;
    return a->sizes.rows != than->sizes.rows ? a->sizes.rows > than->sizes.rows
                                             : a->sizes.replicas < than->sizes.replicas;
}

/* Returns whether a plan with score `best` is so good that planning pair `t` is useless. `best` may be NULL
 * if there is no plan yet. */
static bool is_hopeless(const struct sizes_search *s, const struct sizes_trial *t, const struct score *best)
{
    if (best == NULL)
        return false;
    if (s->q->objective == OBJECTIVE_BYTES)
        return best->bytes == 0;
    return t->floor_ns >= best->ns || t->estimate_ns > best->ns + best->ns / ESTIMATE_SLACK ||
           tasks_of(s, t->sizes.rows) > MANY_TASKS;
}

/* Plans one pair of sizes. Returns 0 if the planning worked, even if the pair does not fit. */
static int plan_pair(struct sizes_search *s, struct sizes_trial *t)
{
    struct plan_report report = {0};
    uint64_t least = UINT64_MAX;
    int r = s->q->plan(s->q->ctx, t->sizes, s->work > MOST_WORK ? 1 : 0, &report, &least, s->err);
    if (r < 0 && r != -ENOSPC)
        return r;
    s->work += report.work;
    t->planned = true;
    t->fits = r == 0;
    t->least_bytes = least;
    t->score = report.score;
    t->score.ns = adjust_ns(report.score.ns, product_rows(s->q, t->sizes.rows));
    return 0;
}

/* Returns the pair of sizes that comes closest to fitting, which is the pair that needs the least memory on a
 * device. */
static const struct sizes_trial *closest(const struct sizes_search *s)
{
    const struct sizes_trial *best = NULL;
    for (size_t i = 0; i < s->list.n; i++) {
        const struct sizes_trial *t = &s->list.at[i];
        if (t->planned && (best == NULL || t->least_bytes < best->least_bytes ||
                           (t->least_bytes == best->least_bytes && t->sizes.rows < best->sizes.rows)))
            best = t;
    }
    return best != NULL ? best : &s->list.at[s->list.n - 1];
}

static int plan_pairs(struct sizes_search *s, const struct sizes_trial **ret)
{
    const struct sizes_trial *best = NULL;
    uint64_t fastest_ns = UINT64_MAX;
    int tries = 0;
    for (size_t i = 0; i < s->list.n && tries < TRIES; i++) {
        struct sizes_trial *t = &s->list.at[i];
        if (is_hopeless(s, t, best != NULL ? &best->score : s->q->to_beat))
            continue;
        int r = plan_pair(s, t);
        if (r < 0)
            return r;
        if (!t->fits)
            continue;
        tries++;
        fastest_ns = least(fastest_ns, t->score.ns);
        if (is_fast_enough(s, t, fastest_ns) &&
            (best == NULL || !is_fast_enough(s, best, fastest_ns) || is_better_pair(t, best))) {
            best = t;
            s->q->keep(s->q->ctx);
        }
    }
    *ret = best;
    return 0;
}

/* Copies the pairs of sizes with the best estimates into the result. The chosen pair is always among them. */
static void show_pairs(const struct sizes_search *s, const struct sizes_trial *chosen,
                       struct sizes_choice *ret)
{
    ret->n_considered = (uint32_t)s->list.n;
    for (size_t i = 0; i < s->list.n && ret->n_shown < SIZES_SHOWN; i++) {
        bool last = ret->n_shown == SIZES_SHOWN - 1 && chosen > &s->list.at[i];
        ret->shown[ret->n_shown++] = last ? *chosen : s->list.at[i];
    }
}

/* Handles a batch for which every pair of sizes has too many tasks. Returns the pair with the fewest tasks,
 * which comes closest. */
static int no_pairs(const struct sizes_request *q, struct sizes_choice *ret)
{
    uint32_t replicas = q->asked.replicas > 0 ? q->asked.replicas : 1;
    uint32_t divisors[SIZES_MAX_DIVISORS], n = sizes_divisors(q->batch / replicas, divisors);
    ret->sizes = (struct plan_sizes){q->asked.rows > 0 ? q->asked.rows : q->batch / replicas, replicas};
    for (uint32_t i = 0; i < n; i++)
        if (is_allowed(q, divisors[i]))
            ret->sizes.rows = divisors[i];
    return -ENOSPC;
}

int sizes_choose(const struct sizes_request *q, struct sizes_choice *ret, struct err *err)
{
    struct sizes_search s = {.q = q, .err = err};
    const struct sizes_trial *chosen = NULL;
    int r = 0;
    *ret = (struct sizes_choice){0};
    list_pairs(&s);
    if (s.list.n == 0)
        return no_pairs(q, ret);
    for (size_t i = 0; i < s.list.n && r == 0; i++)
        r = estimate(&s, &s.list.at[i]);
    if (r == 0) {
        sort_trials(&s);
        r = plan_pairs(&s, &chosen);
    }
    if (r == 0) {
        ret->fits = chosen != NULL;
        chosen = chosen != NULL ? chosen : closest(&s);
        ret->sizes = chosen->sizes;
        show_pairs(&s, chosen, ret);
        r = ret->fits ? 0 : -ENOSPC;
    }
    vec_free(&s.list);
    return r;
}
