/* Makes plans of policy `auto` that its search would not choose for chains as small as those of the tests. A
 * seed determines the form, the cut into packs and the pinned layers. The plan is built in the same way as
 * the search builds one. Main thread only. */
#ifndef TESTS_ENGINE_RANDOM_PLAN_H
#define TESTS_ENGINE_RANDOM_PLAN_H

#include "base/rng.h"
#include "tests/engine/engine.h"

/* Returns a random plan for the case and sets m->capacity_bytes to the device memory that the plan may use:
 * the least that it needs, or up to half as much more. The caller destroys the plan. */
struct plan *random_plan(const struct engine_case *c, struct rng *r, struct engine_machine *m);

#endif
