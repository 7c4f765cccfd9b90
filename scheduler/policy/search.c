/* Implements plan_make: the search for the best plan of one graph on one machine.
 *
 *   1. The lean candidates (lean.h) are tried first. They need little memory, and what they need is known
 *      exactly. If nothing fits in the end, their needs say how much memory would do.
 *   2. The policy's search proposes candidates. Each is built with addresses and compared with the
 *      capacities, so that "it fits" is exact, and then simulated. Policy `auto` asks several policies.
 *   3. The front (front.h) keeps the plans that no other plan beats in both time and bytes. The objective
 *      chooses one of them.
 *
 * A search ends early when no further plan can be better, or when it has built enough instructions. Both
 * rules depend only on the request, so the same request gives the same plan on every computer.
 */
#include <errno.h>
#include <string.h>

#include "scheduler/policy/candidate.h"
#include "scheduler/policy/lean.h"
#include "scheduler/policy/policy.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/predict/time_bound.h"

/* The policies that `auto` asks for plans, in this order. The second list is for graphs with several decision
 * groups. */
static const enum policy_id auto_tries[] = {POLICY_resident, POLICY_auto, POLICY_stream, POLICY_harmony_dp};
static const enum policy_id auto_tries_blocks[] = {POLICY_resident, POLICY_blocks, POLICY_auto, POLICY_stream,
                                                   POLICY_harmony_dp};

/* A search ends when its plan takes at most 1/FLOOR_SLACK longer than the time that no plan can beat. */
#define FLOOR_SLACK 100
/* For graphs with at most this number of tasks, lean candidates are tried with every number of devices. */
#define FEW_TASKS 1024
/* Searches that use fewer devices may build 1/FEWER_PART of the search's limit in addition, so that a search
 * that has reached the limit with all devices still tries some plans with fewer. */
#define FEWER_PART 8

/* The state of one call of plan_make. */
struct plan_search {
    /* Must be the first field, because try_candidate casts the pointer to a trial into a pointer to
     * plan_search. */
    struct trial trial;
    /* The caller's request, in which UPDATE_AUTO has been replaced by the default of the policy, and whose
     * machine is `fewer`. */
    struct plan_request request;
    /* The machine that the plan is for, and its first devices, which the policy uses. The other devices stay
     * idle. A policy uses all devices, unless the machine has many devices for little work. */
    const struct machine *machine;
    struct machine fewer;
    const struct policy *policy;
    struct front front;
    /* The plan of a lean candidate, used only if the search of the policy finds no plan. */
    struct front fallback;
    uint64_t floor_ns;
    struct lean_needs needs; /* of the lean candidates so far */
    /* The least host memory with which a candidate that fits the devices gives a plan. Counts all candidates,
     * lean or not, except those of outlines. UINT64_MAX if none fits the devices. */
    uint64_t least_host_bytes;
    struct err *err;
};

struct profile *plan_profile(const struct plan_request *r)
{
    return r->table != NULL ? profile_from_table(r->table, r->train, r->machine)
                            : profile_analytic(r->train, r->machine);
}

/* ---- one candidate ---- */

/* Returns the time that a plan has to beat, or 0 if there is none: the time that the caller wants to beat or,
 * while some devices stay idle, the time of the fastest plan. With OBJECTIVE_BYTES a slower plan may be
 * better. */
static uint64_t to_beat_ns(const struct plan_search *s)
{
    uint64_t ns = s->request.to_beat_ns;
    bool fewer = s->fewer.n_devices < s->machine->n_devices;
    if (fewer && s->front.n > 0 && s->request.objective != OBJECTIVE_BYTES &&
        (ns == 0 || s->front.at[0].score.ns < ns))
        ns = s->front.at[0].score.ns;
    return ns;
}

/* Returns whether some device computes so long that no plan of this order can take less than the time to
 * beat. Sets s->trial.score to this time and no bytes. */
static bool is_too_slow(struct plan_search *s, const struct order *o)
{
    uint64_t ns[DEVICE_MAX] = {0}, most = 0, beat = to_beat_ns(s);
    if (beat == 0)
        return false;
    for (size_t i = 0; i < o->todos.n; i++) {
        const struct todo *t = &o->todos.at[i];
        if (t->loc == PLAN_HOST)
            continue;
        uint64_t task = profile_task_ns(s->trial.profile, t->kind, t->layer, false);
        ns[t->loc] += t->share == SHARE_ALL ? task : task / o->n_shares;
        most = ns[t->loc] > most ? ns[t->loc] : most;
    }
    most *= o->all_steps ? 1 : o->graph->steps;
    s->trial.score = (struct score){most, 0};
    return most >= beat;
}

/* Builds a candidate and adds its work to the total. `ret` may be NULL if the caller only wants to know the
 * memory needed. */
static int build_candidate(struct plan_search *s, const struct candidate *c, struct plan **ret)
{
    struct order order;
    s->policy->order(&s->request, s->trial.profile, c, &order);
    order.n_devices = s->machine->n_devices;
    struct plan_request whole = s->request;
    whole.machine = s->machine;
    struct knobs knobs = c->knobs;
    /* A search also asks whether the candidate fits. For that, no copies need to be kept in free memory. */
    s->trial.too_slow = is_too_slow(s, &order);
    if (s->trial.too_slow) {
        knobs.retain = false;
        *ret = NULL;
    }
    int r = plan_build(&whole, s->policy->name, &order, &knobs, s->trial.profile,
                       s->trial.too_slow ? NULL : ret, &s->trial.need, s->err);
    order_finish(&order);
    if (r == 0)
        s->trial.work += s->trial.too_slow ? s->trial.need.work / 4 : s->trial.need.work;
    return r;
}

/* Returns whether no further plan can be better than the plans of the front. */
static bool is_perfect(const struct plan_search *s, bool moves_data_only)
{
    const struct score *chosen = &front_chosen(&s->front)->score;
    bool fast = chosen->ns <= s->floor_ns + s->floor_ns / FLOOR_SLACK;
    switch (s->request.objective) {
    case OBJECTIVE_TIME:
        return fast;
    case OBJECTIVE_BYTES:
        return moves_data_only;
    default:
        return fast && moves_data_only;
    }
}

/* Ends the search if it has built enough. The limit is higher as long as there is no plan. */
static void check_work(struct plan_search *s)
{
    uint64_t most = s->request.most_work > 0 ? s->request.most_work : PLAN_WORK;
    bool has_plan = s->front.n > 0 || s->request.to_beat_ns > 0;
    if (s->fewer.n_devices < s->machine->n_devices)
        most += most / FEWER_PART;
    if (s->trial.work > (has_plan ? most : PLAN_WORK_IN_VAIN * most))
        s->trial.over = s->trial.cut_short = true;
}

/* Simulates a plan, computes its score and adds the plan to the front. */
static void score_plan(struct plan_search *s, struct plan *p)
{
    struct trial *t = &s->trial;
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, SIM_RUNS, t->profile, s->machine);
    /* Do not count the group state. It has only a few bytes per device, which must not make plans with fewer
     * devices look better. */
    t->score = (struct score){sim->cycle_ns, sim->bytes.in + sim->bytes.out - sim->bytes.group_in};
    t->moves_data_only =
        sim->bytes.state_in + sim->bytes.state_out + sim->bytes.stash_in + sim->bytes.stash_out == 0;
    t->made = true;
    sim_destroy(sim);
    front_add(&s->front, &t->score, p);
    if (is_perfect(s, t->moves_data_only))
        t->over = true;
}

/* Returns how much host memory the machine must have for the last candidate to give a plan. */
static uint64_t host_bytes_needed(const struct plan_search *s)
{
    return s->trial.need.host_bytes + s->request.machine->host_taken_bytes;
}

/* The last candidate fits the devices, but the host memory is too small. Updates s->least_host_bytes with the
 * host memory that the candidate needs. */
static void note_host(struct plan_search *s)
{
    uint64_t host = host_bytes_needed(s);
    s->least_host_bytes = host < s->least_host_bytes ? host : s->least_host_bytes;
}

/* Builds and simulates a candidate. Returns the same values as trial.run. */
static int run_candidate(struct plan_search *s, const struct candidate *c)
{
    struct plan *p;
    s->trial.made = s->trial.moves_data_only = false;
    int r = build_candidate(s, c, &p);
    if (r < 0)
        return r;
    if (p != NULL)
        score_plan(s, p);
    else if (s->trial.need.devices_fit && !c->single && !s->trial.too_slow)
        /* Leave out the candidates made from outlines, which have `single` set. Which of them are made
         * depends on the host memory. On a machine with the memory that this candidate needs, it might not be
         * made. */
        note_host(s);
    check_work(s);
    return s->trial.need.devices_fit;
}

/* Implements trial.run. */
static int try_candidate(struct trial *t, const struct candidate *c)
{
    struct plan_search *s = (struct plan_search *)t;
    if (!t->over)
        return run_candidate(s, c);
    t->made = t->moves_data_only = false;
    t->need = (struct plan_need){0};
    return 0;
}

static void use_policy(struct plan_search *s, const struct plan_request *request, enum policy_id id)
{
    s->policy = policy_of(id);
    s->request = *request;
    s->request.machine = &s->fewer;
    if (s->request.update == UPDATE_AUTO)
        s->request.update = s->policy->default_update;
}

/* Sets *ret to the list of policies that a request allows, and returns their number. The list has more than
 * one policy only for `auto`. */
static uint32_t requested(const struct plan_request *request, const enum policy_id **ret)
{
    const bool blocks = request->train->n_groups > 1;
    uint32_t all = blocks ? sizeof auto_tries_blocks / sizeof auto_tries_blocks[0]
                          : sizeof auto_tries / sizeof auto_tries[0];
    *ret = request->policy != POLICY_auto ? &request->policy : blocks ? auto_tries_blocks : auto_tries;
    if (request->policy != POLICY_auto)
        return 1;
    return request->train->n_replicas > 1 ? all : all - 1; /* harmony-dp, the last one, needs replicas */
}

/* ---- the lean candidates ---- */

/* The argument `ctx` of the functions that visit lean candidates. */
struct lean_walk {
    struct plan_search *s;
    const struct plan_request *request;
    enum policy_id policy; /* of the last visit */
    /* The least host memory that a candidate of this policy needs, of the candidates visited so far. */
    uint64_t least_host_bytes;
};

static struct lean_walk start_walk(struct plan_search *s, const struct plan_request *request)
{
    return (struct lean_walk){s, request, POLICY_COUNT, UINT64_MAX};
}

/* Notes what a lean candidate of policy `id` needs, and returns true. Returns false if an earlier candidate
 * of the policy needs no more host memory. A machine with that much host memory uses the earlier candidate
 * (after_misfit), so the needs of the later one do not count. */
static bool note_need(struct lean_walk *w, enum policy_id id)
{
    struct plan_search *s = w->s;
    uint64_t host = host_bytes_needed(s);
    if (id == w->policy && host >= w->least_host_bytes)
        return false;
    w->policy = id;
    w->least_host_bytes = host;
    if (s->needs.n < LEAN_MAX)
        s->needs.at[s->needs.n++] = (struct lean_need){s->trial.need.device_bytes, host};
    return true;
}

/* Returns how to go on after a lean candidate. The later candidates of its policy need less host memory, but
 * more device memory. So they are worth a visit only if the host memory is not enough for this candidate. */
static int after_misfit(const struct lean_walk *w)
{
    return host_bytes_needed(w->s) <= w->request->machine->host_bytes ? LEAN_NEXT_POLICY : LEAN_ON;
}

/* Builds a lean candidate and notes what it needs. Ends the walk if it fits. */
static int try_lean(void *ctx, enum policy_id id, const struct candidate *c)
{
    struct lean_walk *w = ctx;
    struct plan *p;
    use_policy(w->s, w->request, id);
    int r = build_candidate(w->s, c, &p);
    if (r < 0)
        return r;
    bool noted = note_need(w, id);
    if (p == NULL && noted && w->s->trial.need.devices_fit)
        note_host(w->s);
    if (p == NULL)
        return after_misfit(w);
    score_plan(w->s, p);
    return LEAN_END;
}

/* Notes what a lean candidate would need on devices with unlimited memory. With no host memory at all,
 * tensors share host memory wherever they can, so that the need is the least. */
static int measure_lean(void *ctx, enum policy_id id, const struct candidate *c)
{
    struct lean_walk *w = ctx;
    struct machine endless = *w->request->machine;
    for (uint32_t i = 0; i < endless.n_devices; i++)
        endless.capacity_bytes[i] = UINT64_MAX;
    endless.host_bytes = 0;
    use_policy(w->s, w->request, id);
    w->s->machine = &endless;
    int r = build_candidate(w->s, c, NULL);
    w->s->machine = w->request->machine;
    if (r < 0)
        return r;
    note_need(w, id);
    return after_misfit(w);
}

/* Lets the policies use the first `n` devices of the machine. */
static void use_devices(struct plan_search *s, uint32_t n)
{
    s->fewer = *s->machine;
    s->fewer.n_devices = n;
}

/* Returns how many devices to use after lean candidates that use `n` devices: one less, or only one if
 * building the candidates takes long. Returns 0 if none are left. */
static uint32_t fewer_devices(const struct plan_request *r, uint32_t n)
{
    if (r->policy != POLICY_auto || n == 1)
        return 0;
    return r->train->n_tasks <= FEW_TASKS ? n - 1 : 1;
}

/* Visits the lean candidates of the policies in `ids`, first those that use all devices, and then those that
 * use fewer. Returns the same values as lean_each. */
static int walk_lean(struct lean_walk *w, const enum policy_id *ids, uint32_t n_ids, lean_visit *visit)
{
    struct plan_search *s = w->s;
    struct plan_request r = *w->request;
    int e = LEAN_ON;
    for (uint32_t n = s->machine->n_devices; n > 0 && e == LEAN_ON; n = fewer_devices(w->request, n)) {
        use_devices(s, n);
        r.machine = &s->fewer;
        w->policy = POLICY_COUNT;
        e = lean_each(&r, ids, n_ids, visit, w);
    }
    use_devices(s, s->machine->n_devices);
    return e;
}

/* Returns whether the devices together can hold all weights and optimizer state, so that a plan in which
 * nothing moves is worth trying first. */
static bool may_be_resident(const struct plan_request *r)
{
    uint64_t state = 0, has = 0;
    for (uint32_t t = 0; t < r->train->n_tensors; t++)
        state += r->train->tensors[t].persistent ? r->train->tensors[t].bytes : 0;
    for (uint32_t d = 0; d < r->machine->n_devices; d++)
        has = r->machine->capacity_bytes[d] > UINT64_MAX - has ? UINT64_MAX
                                                               : has + r->machine->capacity_bytes[d];
    return state <= has;
}

/* Tries the lean candidates until one fits. Returns a negative errno if there is an error, and otherwise 0,
 * even if none fits. */
static int try_leanest(struct plan_search *s, const struct plan_request *request)
{
    const enum policy_id *ids;
    enum policy_id order[POLICY_COUNT];
    uint32_t n = requested(request, &ids);
    /* If there are several policies, the first of them is `resident`. Visit it last, unless all state may fit
     * the devices. */
    bool first = n == 1 || may_be_resident(request);
    for (uint32_t i = 0; i < n; i++)
        order[i] = first ? ids[i] : ids[(i + 1) % n];
    struct lean_walk walk = start_walk(s, request);
    int r = walk_lean(&walk, order, n, try_lean);
    s->trial.over = false;
    if (r < 0 || request->policy == POLICY_auto)
        return r < 0 ? r : 0;
    /* The request names one policy, whose own search should find the plan. The plan of a lean candidate is
     * used only if that search finds none. */
    s->fallback = s->front;
    s->front.n = 0;
    return 0;
}

/* Runs the searches of all policies that the request allows, on the devices that are in use. */
static int search_policies(struct plan_search *s, const struct plan_request *request)
{
    const enum policy_id *ids;
    uint32_t n = requested(request, &ids);
    int r = 0;
    for (uint32_t i = 0; i < n && r == 0 && !s->trial.over; i++) {
        use_policy(s, request, ids[i]);
        r = s->policy->search(&s->request, &s->trial);
    }
    return r;
}

/* Returns whether a plan that uses only the devices in use could be better than the chosen one. */
static bool may_be_better(const struct plan_search *s)
{
    uint64_t beat = to_beat_ns(s);
    return beat == 0 ||
           time_bound_ns(s->request.train, &s->fewer, s->trial.profile) * s->request.train->steps < beat;
}

/* Searches for plans that use all devices. Policy `auto` then also searches for plans that use fewer: with
 * little work for each device, the copies between devices may take longer than the work. So a job is not
 * slower on a machine with more devices. */
static int search_devices(struct plan_search *s, const struct plan_request *request)
{
    const uint32_t all = s->machine->n_devices, least = request->policy == POLICY_auto ? 1 : all;
    int r = 0;
    check_work(s);
    for (uint32_t n = all; n >= least && r == 0 && !s->trial.over; n--) {
        use_devices(s, n);
        if (n < all && !may_be_better(s))
            break;
        r = search_policies(s, request);
        if (n == all && s->trial.cut_short)
            s->trial.over = s->trial.cut_short = false;
    }
    return r;
}

/* Returns whether a search for a plan is useless, because no lean candidate fits the devices. Only if the
 * host memory is too small for the leanest of them does a search find plans that need less: such plans keep
 * state or activations on the devices. */
static bool is_useless(const struct plan_search *s, const struct plan_request *r)
{
    uint64_t device = lean_least_device(&s->needs, r->machine->host_bytes);
    return r->policy == POLICY_auto && r->to_beat_ns == 0 && s->front.n == 0 && device < UINT64_MAX &&
           device == lean_least_device(&s->needs, UINT64_MAX);
}

/* Finds the best plan and keeps it in the front, or in the fallback. Returns -ENOSPC with a message if there
 * is none. */
static int find_plan(struct plan_search *s, const struct plan_request *request, uint64_t *ret_least)
{
    int r = request->to_beat_ns > 0 ? 0 : try_leanest(s, request);
    if (r == 0 && s->front.n > 0)
        s->trial.over = is_perfect(s, s->trial.moves_data_only);
    if (r == 0 && !s->trial.over && !is_useless(s, request))
        r = search_devices(s, request);
    if (r == 0 && s->front.n + s->fallback.n == 0)
        r = request->to_beat_ns > 0 ? -ENOSPC
                                    : lean_refuse(&s->needs, s->least_host_bytes, request, ret_least, s->err);
    return r;
}

/* ---- the search ---- */

static void start_search(struct plan_search *s, const struct plan_request *request, struct profile *prof,
                         struct err *err)
{
    *s = (struct plan_search){.trial = {.run = try_candidate, .profile = prof},
                              .front = {.objective = request->objective},
                              .fallback = {.objective = request->objective},
                              .request = *request,
                              .machine = request->machine,
                              .fewer = *request->machine,
                              .least_host_bytes = UINT64_MAX,
                              .floor_ns = time_bound_ns(request->train, request->machine, prof) *
                                          request->train->steps,
                              .err = err};
}

static void fill_report(const struct plan_search *s, const struct front *found, struct plan_report *ret)
{
    if (ret == NULL)
        return;
    *ret = (struct plan_report){.n_front = found->n, .floor_ns = s->floor_ns, .work = s->trial.work};
    for (uint32_t i = 0; i < found->n; i++)
        ret->front[i] = found->at[i].score;
    if (found->n > 0)
        ret->score = front_chosen(found)->score;
}

int plan_make(const struct plan_request *request, struct plan **ret, uint64_t *ret_least, struct err *err)
{
    struct profile *prof = plan_profile(request);
    struct plan_search s;
    start_search(&s, request, prof, err);
    int r = find_plan(&s, request, ret_least);
    struct front *found = s.front.n > 0 ? &s.front : &s.fallback;
    fill_report(&s, found, request->report);
    if (r == 0)
        *ret = front_take(found);
    front_finish(&s.front);
    front_finish(&s.fallback);
    profile_destroy(prof);
    return r;
}

int plan_fits(const struct plan_request *request, struct err *err)
{
    struct profile *prof = plan_profile(request);
    struct plan_search s;
    start_search(&s, request, prof, err);
    int r = try_leanest(&s, request);
    if (r == 0 && s.front.n + s.fallback.n == 0)
        r = find_plan(&s, request, NULL);
    front_finish(&s.front);
    front_finish(&s.fallback);
    profile_destroy(prof);
    return r;
}

int plan_least_capacity(const struct plan_request *request, uint64_t *ret_bytes, struct err *err)
{
    struct profile *prof = plan_profile(request);
    struct plan_search s;
    const enum policy_id *ids;
    uint32_t n = requested(request, &ids);
    start_search(&s, request, prof, err);
    struct lean_walk walk = start_walk(&s, request);
    int r = walk_lean(&walk, ids, n, measure_lean);
    profile_destroy(prof);
    if (r < 0)
        return r;
    *ret_bytes = lean_least_device(&s.needs, request->machine->host_bytes);
    return 0;
}
