/* Plans of policy `auto` that its search would not come to for a chain as small as a test's, or not any more: any form, cut
 * and set of pins that the policy has words for, drawn from a seed, and built as the search builds. Main thread only. */
#ifndef TESTS_ENGINE_RANDOM_PLAN_H
#define TESTS_ENGINE_RANDOM_PLAN_H

#include "base/rng.h"
#include "tests/engine/engine.h"

/* m->capacity_bytes becomes what the plan may use: enough, and now and then not much more. The caller destroys the plan. */
struct plan *random_plan(const struct engine_case *c, struct rng *r, struct engine_machine *m);

#endif
