/* Implements plan_make, which tries the candidates of a policy and returns the best plan that fits. If
 * no candidate fits, plan_make reports how much memory would be enough.
 *
 * The check whether a candidate fits is exact: the candidate is built with addresses, and its peaks are
 * compared with the capacities. The time of a candidate comes from the simulator.
 *  */
#include "scheduler/policy/policy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/strbuf.h"
#include "scheduler/build/build.h"
#include "scheduler/predict/simulate.h"

const char *const policy_names[POLICY_COUNT + 1] = {
#define POLICY(id, name) name,
#include "scheduler/policy/policies.def"
#undef POLICY
    NULL};

const char *const update_place_names[UPDATE_PLACE_COUNT + 1] = {"auto", "host", "device", NULL};
const char *const plan_objective_names[OBJECTIVE_COUNT + 1] = {"time", "bytes", NULL};

static const struct policy *const policies[POLICY_COUNT] = {
#define POLICY(id, name) &policy_##id,
#include "scheduler/policy/policies.def"
#undef POLICY
};

/* The policies that `auto` tries, in the order of this array. If the model fits with `resident`, the
 * remaining policies are tried only if the job has several replicas. */
static const enum policy_id auto_tries[] = {POLICY_resident, POLICY_auto, POLICY_stream, POLICY_harmony_dp};

/* After its candidates had this many tasks in total, plan_make tries no further policy, provided that it has
 * a plan. */
#define ENOUGH 100000

/* The working state of one call of plan_make, which owns it. */
struct plan_search {
    /* Must be the first field, because try_candidate casts the pointer to a trial into a pointer to
     * plan_search. */
    struct trial trial;
    /* The caller's request, in which UPDATE_AUTO has been replaced by the default of the policy. */
    struct plan_request request;
    const struct policy *policy;
    struct err *err;
    struct plan *best;
    uint64_t best_ns, best_bytes;
    /* The least host memory, in bytes, among all candidates that fit the devices. UINT64_MAX if no candidate
     * fits the devices. */
    uint64_t least_host_bytes;
};

/* Builds a candidate, and adds its tasks and its work to the totals. `ret` may be NULL if the caller only
 * wants to know the memory needed. */
static int build_candidate(struct plan_search *s, const struct candidate *c, struct plan **ret,
                           struct plan_need *ret_need)
{
    struct order order;
    s->policy->order(&s->request, s->trial.profile, c, &order);
    s->trial.spent += order.todos.n;
    int r =
        plan_build(&s->request, s->policy->name, &order, &c->knobs, s->trial.profile, ret, ret_need, s->err);
    order_finish(&order);
    if (r == 0)
        s->trial.work += ret_need->work;
    return r;
}

/* Returns whether the search must stop because it has done too much work. Without any plan so far, the limit
 * is higher. */
static bool is_over(const struct plan_search *s)
{
    uint64_t most = s->request.most_work > 0 ? s->request.most_work : PLAN_WORK;
    return s->trial.work > (s->best != NULL ? most : PLAN_WORK_IN_VAIN * most);
}

/* Times that differ by at most 1/200 count as equal, because the simulator is not more accurate than that. */
#define SAME_TIME 200

static bool plan_is_better(const struct plan_search *s, uint64_t ns, uint64_t bytes)
{
    uint64_t apart = ns > s->best_ns ? ns - s->best_ns : s->best_ns - ns;
    uint64_t equal = s->request.policy == POLICY_auto ? s->best_ns / SAME_TIME : 0;
    if (s->request.objective == OBJECTIVE_TIME && apart > equal)
        return ns < s->best_ns;
    return bytes != s->best_bytes ? bytes < s->best_bytes : ns < s->best_ns;
}

/* Builds and simulates a candidate, and keeps its plan if the plan is the best so far. Returns the same
 * values as trial.run. */
static int run_candidate(struct plan_search *s, const struct candidate *c)
{
    struct trial *t = &s->trial;
    struct plan *p;
    t->cost = UINT64_MAX;
    t->best = t->moves_data_only = false;
    int r = build_candidate(s, c, &p, &t->need);
    if (r < 0)
        return r;
    uint64_t host = t->need.host_bytes + s->request.machine->host_taken_bytes;
    if (t->need.devices_fit && host < s->least_host_bytes)
        s->least_host_bytes = host;
    if (p == NULL)
        return t->need.devices_fit;
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, SIM_RUNS, s->trial.profile, s->request.machine);
    /* Do not count the group state. It has only a few bytes per device, which must not make plans with fewer
     * devices look better. */
    uint64_t ns = sim->cycle_ns, bytes = sim->bytes.in + sim->bytes.out - sim->bytes.group_in;
    t->moves_data_only =
        sim->bytes.state_in + sim->bytes.state_out + sim->bytes.stash_in + sim->bytes.stash_out == 0;
    sim_destroy(sim);
    t->cost = s->request.objective == OBJECTIVE_BYTES ? bytes : ns;
    if (s->best == NULL || plan_is_better(s, ns, bytes)) {
        plan_destroy(s->best);
        t->best = true;
        s->best = p;
        s->best_ns = ns;
        s->best_bytes = bytes;
    } else {
        plan_destroy(p);
    }
    return 1;
}

/* Implements trial.run. Once the search has reached its work limit, returns 0 without building the
 * candidate. */
static int try_candidate(struct trial *t, const struct candidate *c)
{
    struct plan_search *s = (struct plan_search *)t;
    if (!is_over(s))
        return run_candidate(s, c);
    t->cut_short = true;
    t->cost = UINT64_MAX;
    t->best = t->moves_data_only = false;
    t->need = (struct plan_need){0};
    return 0;
}

static void use_policy(struct plan_search *s, const struct plan_request *request, enum policy_id id)
{
    s->policy = policies[id];
    s->request = *request;
    if (s->request.update == UPDATE_AUTO)
        s->request.update = s->policy->default_update;
}

/* Sets *ret to the memory that the policy's smallest candidate needs. For this, assumes a machine with
 * unlimited memory. */
static int policy_need(struct plan_search *s, struct plan_need *ret)
{
    struct machine endless = *s->request.machine;
    for (uint32_t i = 0; i < endless.n_devices; i++)
        endless.capacity_bytes[i] = UINT64_MAX;
    endless.host_bytes = UINT64_MAX;
    const struct machine *m = s->request.machine;
    s->request.machine = &endless;
    struct candidate c = {0};
    s->policy->leanest(&s->request, &c);
    int r = build_candidate(s, &c, NULL, ret);
    s->request.machine = m;
    return r;
}

/* Sets *ret to the list of policies that a request allows, and returns their number. The list has more than
 * one policy only for `auto`. */
static uint32_t requested(const struct plan_request *request, const enum policy_id **ret)
{
    uint32_t all = sizeof auto_tries / sizeof auto_tries[0];
    *ret = request->policy == POLICY_auto ? auto_tries : &request->policy;
    if (request->policy != POLICY_auto)
        return 1;
    return request->train->n_replicas > 1 ? all : all - 1; /* harmony-dp, the last one, needs replicas */
}

/* Finds the candidate that needs the least device memory, among all policies that the request allows. Sets
 * *ret to the memory that this candidate needs. */
static int least_need(struct plan_search *s, const struct plan_request *request, struct plan_need *ret)
{
    const enum policy_id *ids;
    uint32_t n = requested(request, &ids);
    *ret = (struct plan_need){.device_bytes = UINT64_MAX, .host_bytes = UINT64_MAX};
    for (uint32_t i = 0; i < n; i++) {
        struct plan_need need;
        use_policy(s, request, ids[i]);
        int r = policy_need(s, &need);
        if (r < 0)
            return r;
        if (need.device_bytes < ret->device_bytes)
            *ret = need;
    }
    return 0;
}

/* Tries the smallest candidate of each policy until one fits. Called if the search reached its work limit
 * before it could try these candidates. */
static int try_leanest(struct plan_search *s, const struct plan_request *request)
{
    const enum policy_id *ids;
    uint32_t n = requested(request, &ids);
    int r = 0;
    for (uint32_t i = 0; i < n && r >= 0 && s->best == NULL; i++) {
        struct candidate c = {0};
        use_policy(s, request, ids[i]);
        s->policy->leanest(&s->request, &c);
        r = run_candidate(s, &c);
    }
    return r < 0 ? r : 0;
}

static void size_text(char *buf, size_t size, uint64_t bytes)
{
    struct strbuf b = {0};
    strbuf_add_bytes(&b, bytes);
    snprintf(buf, size, "%s", b.at);
    strbuf_finish(&b);
}

static int report_host_misfit(const struct plan_request *request, uint64_t need, struct err *err)
{
    const struct machine *m = request->machine;
    char have[32], want[32];
    size_text(have, sizeof have, m->host_bytes);
    size_text(want, sizeof want, need);
    return err_set_at(err, -ENOSPC, "resources.host_memory",
                      "policy %s needs %llu bytes (%s) of host memory, but the job may use %llu (%s); raise "
                      "resources.host_memory or use a smaller model or batch",
                      policy_names[request->policy], (unsigned long long)need, want,
                      (unsigned long long)m->host_bytes, have);
}

uint64_t plan_largest_task(const struct graph *g, const struct graph_task **ret)
{
    uint64_t most = 0;
    *ret = NULL;
    for (uint32_t i = 0; i < g->n_tasks; i++) {
        const struct graph_task *t = &g->tasks[i];
        uint64_t bytes = 0;
        for (uint32_t k = 0; t->place == PLACE_DEVICE && k < t->n_operands; k++) {
            const struct graph_operand *op = &g->operands[t->operand + k];
            if (!op->optional)
                bytes += round_up(g->tensors[op->tensor].bytes, PLAN_ALIGN);
        }
        if (bytes > most || (bytes == most && *ret != NULL && t->layer < (*ret)->layer)) {
            most = bytes;
            *ret = t;
        }
    }
    return most;
}

/* Writes the part of a message that names the task with the largest memory, for example "; layer 2 (dense)
 * needs most, 5120 bytes (5.00 KiB) in its backward pass". */
static void largest_text(char *buf, size_t size, const struct graph *g)
{
    const struct graph_task *t;
    uint64_t most = plan_largest_task(g, &t);
    char bytes[32];
    size_text(bytes, sizeof bytes, most);
    buf[0] = '\0';
    if (t != NULL)
        snprintf(buf, size, "; layer %u (%s) needs most, %llu bytes (%s) in its %s pass", t->layer,
                 g->layers[t->layer].type, (unsigned long long)most, bytes,
                 t->kind == INSTR_BWD ? "backward" : "forward");
}

static int report_misfit(const struct plan_request *request, uint64_t need, struct err *err)
{
    const struct machine *m = request->machine;
    uint64_t smallest = m->capacity_bytes[0];
    for (uint32_t i = 1; i < m->n_devices; i++)
        if (m->capacity_bytes[i] < smallest)
            smallest = m->capacity_bytes[i];
    char have[32], want[32], largest[160];
    size_text(have, sizeof have, smallest);
    size_text(want, sizeof want, need);
    largest_text(largest, sizeof largest, request->train);
    return err_set_at(
        err, -ENOSPC, "resources.device_memory",
        "policy %s does not fit: it needs at least %llu bytes (%s) on each of %u device%s, but has %llu "
        "(%s)%s; give at least that, or use a smaller train.micro_batch%s",
        policy_names[request->policy], (unsigned long long)need, want, m->n_devices,
        m->n_devices == 1 ? "" : "s", (unsigned long long)smallest, have, largest,
        request->policy == POLICY_auto ? "" : " or memory.policy \"auto\"");
}

struct profile *plan_profile(const struct plan_request *r)
{
    return r->table != NULL ? profile_from_table(r->table, r->train, r->machine)
                            : profile_analytic(r->train, r->machine);
}

int plan_make(const struct plan_request *request, struct plan **ret, uint64_t *ret_least, struct err *err)
{
    struct profile *prof = plan_profile(request);
    struct plan_search s = {
        .trial = {.run = try_candidate, .profile = prof}, .err = err, .least_host_bytes = UINT64_MAX};
    const enum policy_id *ids;
    uint32_t n = requested(request, &ids);
    int r = 0;
    for (uint32_t i = 0; i < n && r == 0; i++) {
        if (s.best != NULL && s.trial.spent > ENOUGH)
            break;
        use_policy(&s, request, ids[i]);
        r = s.policy->search(&s.request, &s.trial);
        if (s.best != NULL && ids[i] == POLICY_resident && request->train->n_replicas == 1)
            break; /* with replicas, data-parallel devices may be faster */
    }
    if (r == 0 && s.best == NULL && s.trial.cut_short)
        r = try_leanest(&s, request);
    if (r == 0 && s.best == NULL) {
        struct plan_need need;
        r = least_need(&s, request, &need);
        if (r == 0 && s.least_host_bytes < UINT64_MAX) {
            r = report_host_misfit(request, s.least_host_bytes, err);
        } else if (r == 0) {
            if (ret_least != NULL)
                *ret_least = need.device_bytes;
            r = report_misfit(request, need.device_bytes, err);
        }
    }
    profile_destroy(prof);
    if (request->used_work != NULL)
        *request->used_work += s.trial.work;
    if (r < 0) {
        plan_destroy(s.best);
        return r;
    }
    *ret = s.best;
    return 0;
}

int plan_least_capacity(const struct plan_request *request, uint64_t *ret_bytes, struct err *err)
{
    struct profile *prof = plan_profile(request);
    struct plan_search s = {.trial = {.run = try_candidate, .profile = prof}, .err = err};
    struct plan_need need;
    int r = least_need(&s, request, &need);
    profile_destroy(prof);
    if (r == 0)
        *ret_bytes = need.device_bytes;
    return r;
}
