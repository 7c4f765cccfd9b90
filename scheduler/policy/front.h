/* The front: the plans of a search that are worth comparing, because no other plan of the search is both at
 * least as fast and moves at most as many bytes.
 *
 * Example: a search finds plans that take 10.0 s and move 8 GB, 10.1 s and 3 GB, 10.3 s and 5 GB, 14 s and
 * 1 GB. The front has the first, the second and the fourth. With OBJECTIVE_TIME the first is chosen, with
 * OBJECTIVE_BALANCED the second, because it is at most 2 percent slower than the first, and with
 * OBJECTIVE_BYTES the fourth.
 *
 * The search owns a front and adds every plan that it has simulated. front_take gives the chosen plan to the
 * caller; front_finish frees the others. To save memory, a front holds two plans at most: the one that the
 * objective chooses so far, and the fastest. Of all others it keeps the score.
 */
#ifndef SCHEDULER_POLICY_FRONT_H
#define SCHEDULER_POLICY_FRONT_H

#include "scheduler/plan.h"
#include "scheduler/policy/score.h"

#define FRONT_MAX 12

struct front_entry {
    struct score score;
    struct plan *plan; /* NULL if only the score was kept */
};

/* The entries are sorted by ascending time. They are therefore also sorted by descending bytes, because no
 * entry beats another in both time and bytes. */
struct front {
    enum plan_objective objective;
    uint32_t n;
    struct front_entry at[FRONT_MAX];
};

/* Adds a simulated plan, which then belongs to the front. If a plan of the front is at least as good in both
 * time and bytes, frees the new plan instead. */
void front_add(struct front *f, const struct score *score, struct plan *plan);

/* Returns the entry that the objective chooses. The front must not be empty. */
const struct front_entry *front_chosen(const struct front *f);

/* Returns the chosen plan, which then belongs to the caller. Returns NULL if the front is empty. */
struct plan *front_take(struct front *f);

/* Frees all plans of the front. */
void front_finish(struct front *f);

#endif
