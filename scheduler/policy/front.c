/* Implements score.h and front.h. */
#include "scheduler/policy/front.h"

#include <stddef.h>

/* ---- scores ---- */

static bool fewer_bytes(const struct score *a, const struct score *than)
{
    return a->bytes != than->bytes ? a->bytes < than->bytes : a->ns < than->ns;
}

bool score_is_better(enum plan_objective objective, const struct score *a, const struct score *than)
{
    uint64_t apart = a->ns > than->ns ? a->ns - than->ns : than->ns - a->ns;
    uint64_t equal = objective == OBJECTIVE_BALANCED ? than->ns / SCORE_SAME_TIME : 0;
    if (objective != OBJECTIVE_BYTES && apart > equal)
        return a->ns < than->ns;
    return fewer_bytes(a, than);
}

bool score_is_close(uint64_t ns, uint64_t fastest_ns)
{
    return ns <= fastest_ns || ns - fastest_ns <= fastest_ns / SCORE_SLACK;
}

/* ---- the front ---- */

static bool is_dominated(const struct score *a, const struct score *by)
{
    return by->ns <= a->ns && by->bytes <= a->bytes;
}

static void remove_entry(struct front *f, uint32_t i)
{
    plan_destroy(f->at[i].plan);
    f->n--;
    for (; i < f->n; i++)
        f->at[i] = f->at[i + 1];
}

/* Returns the index of the entry that the objective chooses among the entries that still have a plan. The
 * fastest entry and the chosen entry always have one. */
static uint32_t choose_entry(const struct front *f)
{
    if (f->objective == OBJECTIVE_TIME)
        return 0;
    for (uint32_t i = f->n; i-- > 0;)
        if (f->at[i].plan != NULL &&
            (f->objective == OBJECTIVE_BYTES || score_is_close(f->at[i].score.ns, f->at[0].score.ns)))
            return i;
    return 0;
}

/* Frees the plans that cannot be chosen any more. The chosen plan stays. Unless the objective is the fewest
 * bytes, the fastest plan stays too, because it is chosen if the other plan becomes too slow in comparison.
 * The scores of all entries stay, because they are printed. */
static void free_hopeless(struct front *f)
{
    uint32_t chosen = choose_entry(f);
    for (uint32_t i = 0; i < f->n; i++) {
        bool needed = i == chosen || (i == 0 && f->objective != OBJECTIVE_BYTES);
        if (!needed) {
            plan_destroy(f->at[i].plan);
            f->at[i].plan = NULL;
        }
    }
}

void front_add(struct front *f, const struct score *score, struct plan *plan)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < f->n; i++)
        if (is_dominated(score, &f->at[i].score)) {
            plan_destroy(plan);
            return;
        }
    for (uint32_t i = f->n; i-- > 0;)
        if (is_dominated(&f->at[i].score, score))
            remove_entry(f, i);
    /* If the front is full, remove one of the slowest entries. The first entry, the last entry and the chosen
     * entry always stay. */
    if (f->n == FRONT_MAX)
        remove_entry(f, choose_entry(f) == FRONT_MAX - 2 ? FRONT_MAX - 3 : FRONT_MAX - 2);
    while (at < f->n && f->at[at].score.ns < score->ns)
        at++;
    for (uint32_t i = f->n; i > at; i--)
        f->at[i] = f->at[i - 1];
    f->at[at] = (struct front_entry){*score, plan};
    f->n++;
    free_hopeless(f);
}

const struct front_entry *front_chosen(const struct front *f)
{
    return &f->at[choose_entry(f)];
}

struct plan *front_take(struct front *f)
{
    if (f->n == 0)
        return NULL;
    struct front_entry *e = &f->at[choose_entry(f)];
    struct plan *p = e->plan;
    e->plan = NULL;
    return p;
}

void front_finish(struct front *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        plan_destroy(f->at[i].plan);
    f->n = 0;
}
