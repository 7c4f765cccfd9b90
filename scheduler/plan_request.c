/* The names of the policies, of the places where weights are updated, and of the objectives. */
#include "scheduler/plan_request.h"

const char *const policy_names[POLICY_COUNT + 1] = {
#define POLICY(id, name) name,
#include "scheduler/policies.def"
#undef POLICY
    NULL};

const char *const update_place_names[UPDATE_PLACE_COUNT + 1] = {"auto", "host", "device", NULL};

const char *const plan_objective_names[OBJECTIVE_COUNT + 1] = {"balanced", "time", "bytes", NULL};
