/* The score of a plan: the time of a training step, and the bytes that the step moves. Everywhere in the
 * planner, scores decide which of two plans is better. A score comes from a simulation, or from an outline
 * (outline.h), which is an estimate.
 *
 * All functions are pure.
 */
#ifndef SCHEDULER_POLICY_SCORE_H
#define SCHEDULER_POLICY_SCORE_H

#include <stdbool.h>
#include <stdint.h>

#include "scheduler/plan_request.h"

struct score {
    uint64_t ns; /* time of a training step */
    /* Number of bytes that the step moves from and to the host. The group state does not count. */
    uint64_t bytes;
};

/* With OBJECTIVE_BALANCED, a plan may be slower than the fastest plan by 1 / SCORE_SLACK of its time. */
#define SCORE_SLACK 50
/* Two times that differ by at most 1 / SCORE_SAME_TIME count as equal in score_is_better with
 * OBJECTIVE_BALANCED, because the simulator is not more accurate than that. */
#define SCORE_SAME_TIME 200

/* Returns whether score `a` is better than score `than`. A search that improves one plan step by step asks
 * this after every step. The final choice among all plans is made by struct front (front.h). */
bool score_is_better(enum plan_objective objective, const struct score *a, const struct score *than);

/* Returns whether a plan that takes `ns` is at most 1 / SCORE_SLACK slower than the fastest plan, which takes
 * `fastest_ns`. */
bool score_is_close(uint64_t ns, uint64_t fastest_ns);

#endif
