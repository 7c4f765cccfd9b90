/* The table of all policies. plan_make is in search.c. */
#include "scheduler/policy/candidate.h"

static const struct policy *const policies[POLICY_COUNT] = {
#define POLICY(id, name) &policy_##id,
#include "scheduler/policies.def"
#undef POLICY
};

const struct policy *policy_of(enum policy_id id)
{
    return policies[id];
}
