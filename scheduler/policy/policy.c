/* The names and the table of all policies. plan_make is in search.c. */
#include "scheduler/policy/policy.h"

#include "scheduler/build/build.h"

const char *const policy_names[POLICY_COUNT + 1] = {
#define POLICY(id, name) name,
#include "scheduler/policy/policies.def"
#undef POLICY
    NULL};

const char *const update_place_names[UPDATE_PLACE_COUNT + 1] = {"auto", "host", "device", NULL};

static const struct policy *const policies[POLICY_COUNT] = {
#define POLICY(id, name) &policy_##id,
#include "scheduler/policy/policies.def"
#undef POLICY
};

const struct policy *policy_of(enum policy_id id)
{
    return policies[id];
}
