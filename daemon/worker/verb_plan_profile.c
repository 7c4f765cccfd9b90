/* --plan-profile: plans a model from its profile alone (docs/profile.md). The command line describes the
 * machine. It needs no job and looks at no device. The plan is only printed; nothing can run
 * it.
 *
 * Policy `auto` searches over micro-batch sizes and forms (scheduler/policy/profile_search.h). The other
 * policies try every divisor of the batch within the measured sizes and take the plan that is best by the
 * objective. `auto` does the same when its own search finds no plan, or a plan that waits more than it
 * should. --micro-batch fixes one size for all layers.
 *
 * When no plan fits, the message names the layer that needs most and the least capacity that would be
 * enough.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/vec.h"
#include "daemon/worker/plan_print.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"
#include "scheduler/policy/profile_search.h"
#include "scheduler/table.h"
#include "scheduler/verify/verify.h"

/* Bytes of host memory that are assumed if --host-memory is not given. This is more than any plan needs. */
#define HOST_ENOUGH  (1ull << 50)
#define MAX_DIVISORS 1536 /* no number below 2^32 has more divisors */

/* The profile, the machine and the options to plan with. They are the same for every policy. */
struct setting {
    const struct verb_options *o;
    struct table *table;
    struct machine machine;
};

/* A plan that was tried for one micro-batch size, with its graph and its predicted figures. */
struct attempt {
    uint32_t micro_batch;
    struct graph *graph;
    struct plan *plan;
    /* Nanoseconds that one training step takes, and bytes that the step moves to and from the host. */
    uint64_t ns, bytes;
    bool moves_data_only; /* neither state nor stash moves */
};

static void attempt_finish(struct attempt *a)
{
    plan_destroy(a->plan);
    graph_destroy(a->graph);
    *a = (struct attempt){0};
}

/* ---- the machine ---- */

static int set_up(const struct verb_options *o, struct setting *ret, struct err *err)
{
    const struct job_options *j = &o->job;
    struct machine *m = &ret->machine;
    ret->o = o;
    if (j->device_bytes < PLAN_ALIGN)
        return err_set_at(err, -EINVAL, "--device-memory", "%" PRIu64 " bytes: must be at least %d",
                          j->device_bytes, PLAN_ALIGN);
    int r = job_read_profile(o->profile_plan.profile_path, &ret->table, err);
    if (r < 0)
        return r;
    const struct table *t = ret->table;
    machine_init_cuda(m);
    m->n_devices = j->devices > 0 ? j->devices : 1;
    for (uint32_t i = 0; i < m->n_devices; i++)
        m->capacity_bytes[i] = j->device_bytes & ~(uint64_t)(PLAN_ALIGN - 1);
    m->host_bytes = j->host_bytes > 0 ? j->host_bytes : HOST_ENOUGH;
    if (t->link_bytes_per_s > 0 || j->link_bytes_per_s > 0)
        m->link_bytes_per_s = j->link_bytes_per_s > 0 ? j->link_bytes_per_s : t->link_bytes_per_s;
    if (t->peer_bytes_per_s > 0 || j->peer_bytes_per_s > 0)
        m->peer_bytes_per_s = j->peer_bytes_per_s > 0 ? j->peer_bytes_per_s : t->peer_bytes_per_s;
    m->all_links_bytes_per_s = m->link_bytes_per_s; /* all devices together share one link */
    return 0;
}

/* ---- the message when nothing fits ---- */

static int refuse(const struct setting *s, const char *policy, const struct graph *g, uint64_t least,
                  struct err *err)
{
    const struct graph_task *task = NULL;
    struct strbuf b = {0};
    uint64_t most = plan_largest_task(g, &task);
    strbuf_addf(&b, "policy %s does not fit: with micro-batch %u it needs at least %" PRIu64 " bytes (",
                policy, g->rows, least);
    strbuf_add_bytes(&b, least);
    strbuf_addf(&b, ") on each of %u device%s, but has %" PRIu64 " (", s->machine.n_devices,
                s->machine.n_devices == 1 ? "" : "s", s->machine.capacity_bytes[0]);
    strbuf_add_bytes(&b, s->machine.capacity_bytes[0]);
    strbuf_addf(&b, "); layer %u needs most, %" PRIu64 " bytes (", task != NULL ? task->layer : 0, most);
    strbuf_add_bytes(&b, most);
    strbuf_addf(&b, ") in its %s pass", task != NULL && task->kind == INSTR_BWD ? "backward" : "forward");
    err_set_at(err, -ENOSPC, "--device-memory", "%s", b.at);
    strbuf_finish(&b);
    return -ENOSPC;
}

/* ---- planning ---- */

static struct plan_request request_of(const struct setting *s, const struct graph *g, int policy)
{
    const struct job_options *j = &s->o->job;
    return (struct plan_request){
        .train = g,
        .machine = &s->machine,
        .policy = (enum policy_id)policy,
        .update = j->update >= 0 ? (enum update_place)j->update : UPDATE_AUTO,
        .table = s->table,
        .objective = j->objective,
    };
}

static int build_table_graph(const struct setting *s, uint32_t replicas, uint32_t micro_batch,
                             struct graph **ret, struct err *err)
{
    uint32_t n = s->table->n_layers, *rows = xcalloc(n, sizeof *rows);
    for (uint32_t l = 0; l < n; l++)
        rows[l] = micro_batch;
    const struct graph_sizes sizes = {s->o->profile_plan.batch, replicas, rows};
    int r = graph_build_sizes(s->table, &sizes, true, ret, err);
    free(rows);
    return r;
}

/* Plans with the given micro-batch size and simulates the plan. On -ENOSPC, *ret_least is the number of bytes
 * per device that would be enough, or 0 if the host memory is too small. */
static int try_size(const struct setting *s, int policy, uint32_t replicas, uint32_t micro_batch,
                    struct attempt *ret, uint64_t *ret_least, struct err *err)
{
    *ret = (struct attempt){.micro_batch = micro_batch};
    *ret_least = 0;
    int r = build_table_graph(s, replicas, micro_batch, &ret->graph, err);
    if (r < 0)
        return r;
    struct plan_request request = request_of(s, ret->graph, policy);
    r = plan_make(&request, &ret->plan, ret_least, err);
    if (r == -ENOSPC && *ret_least > 0)
        refuse(s, policy_names[policy], ret->graph, *ret_least, err);
    else if (r == -ENOSPC)
        err_set_at(err, r, "--host-memory", "%s", err->msg);
    if (r < 0)
        return r;
    struct profile *times = plan_profile(&request);
    struct sim_result *sim = plan_simulate(ret->plan, PROGRAM_CYCLE, SIM_RUNS, times, &s->machine);
    ret->ns = sim->cycle_ns;
    ret->bytes = sim->bytes.in + sim->bytes.out;
    ret->moves_data_only = ret->bytes == sim->bytes.data_in + sim->bytes.data_out;
    sim_destroy(sim);
    profile_destroy(times);
    return 0;
}

/* Returns whether plan `a` is better than plan `than` for the objective that the user chose, such as time. */
static bool is_better_attempt(const struct setting *s, const struct attempt *a, const struct attempt *than)
{
    if (than->plan == NULL)
        return true;
    if (s->o->job.objective == OBJECTIVE_BYTES)
        return a->bytes < than->bytes || (a->bytes == than->bytes && a->ns < than->ns);
    return a->ns < than->ns || (a->ns == than->ns && a->bytes < than->bytes);
}

/* Returns whether the search may end with plan `a`, because the user wants the fewest bytes and no other
 * micro-batch size can give a plan that moves fewer. */
static bool is_best(const struct setting *s, const struct attempt *a)
{
    return a->plan != NULL && s->o->job.objective == OBJECTIVE_BYTES && a->moves_data_only;
}

/* Returns a lower bound on the time of a training step, in nanoseconds. The bound assumes that every task is
 * computed once and that the devices share the work evenly. */
static uint64_t compute_ns(const struct setting *s, uint32_t micro_batch)
{
    uint64_t sum = 0;
    for (uint32_t l = 0; l < s->table->n_layers; l++) {
        struct table_point at;
        table_at(s->table, l, micro_batch, &at);
        sum += at.fwd_ns + at.bwd_ns;
    }
    return sum * (s->o->profile_plan.batch / micro_batch) / s->machine.n_devices;
}

/* The reason why there is no plan. If several micro-batch sizes do not fit, the struct has the error of the
 * size that comes closest to fitting. */
struct failure {
    int code;
    uint64_t least;
    struct err err;
};

static void keep_failure(struct failure *f, int code, uint64_t least, const struct err *err)
{
    bool better = f->code == 0 || (code == -ENOSPC && f->code != -ENOSPC) ||
                  (code == -ENOSPC && least > 0 && (f->least == 0 || least < f->least));
    if (better)
        *f = (struct failure){code, least, *err};
}

/* Stores the micro-batch sizes to try and returns their number. These are the value of --micro-batch, or else
 * all divisors of the batch within the range of measured sizes. */
static uint32_t find_measured_divisors(const struct setting *s, uint32_t ret[MAX_DIVISORS])
{
    const struct table *t = s->table;
    uint32_t least = t->fwd.sizes[0] > t->bwd.sizes[0] ? t->fwd.sizes[0] : t->bwd.sizes[0], n = 0;
    uint32_t most = table_largest(t), batch = s->o->profile_plan.batch;
    if (s->o->profile_plan.micro_batch > 0) {
        ret[0] = s->o->profile_plan.micro_batch;
        return 1;
    }
    for (uint32_t u = least; u <= most && u <= batch && n < MAX_DIVISORS; u++)
        if (batch % u == 0)
            ret[n++] = u;
    return n;
}

static int check_sizes(const struct setting *s, uint32_t n, struct err *err)
{
    uint32_t batch = s->o->profile_plan.batch, u = s->o->profile_plan.micro_batch;
    if (u > 0 && batch % u != 0)
        return err_set_at(err, -EINVAL, "--micro-batch", "%u does not divide --batch %u", u, batch);
    if (n == 0)
        return err_set_at(err, -EINVAL, "--batch",
                          "%u has no divisor among the sizes that were measured, which end at %u; say one "
                          "with --micro-batch",
                          batch, table_largest(s->table));
    return 0;
}

/* Returns the number of replicas to try. harmony-dp has one replica per device if the batch allows it. `auto`
 * has fewer replicas, with several devices each, because its own search has already tried one replica per
 * device. Other policies have 1 replica. */
static uint32_t most_replicas(const struct setting *s, int policy, uint32_t micro_batch)
{
    uint32_t devices = s->machine.n_devices, n = policy == POLICY_harmony_dp ? devices : devices / 2;
    if (policy != POLICY_auto && policy != POLICY_harmony_dp)
        return 1;
    while (n > 1 &&
           (s->o->profile_plan.batch / micro_batch % n != 0 || (policy == POLICY_auto && devices % n != 0)))
        n--;
    return n > 0 ? n : 1;
}

static void try_replicas(const struct setting *s, int policy, uint32_t replicas, uint32_t micro_batch,
                         struct attempt *best, struct failure *failed)
{
    struct attempt a;
    uint64_t least;
    struct err err = {0};
    int e = try_size(s, policy, replicas, micro_batch, &a, &least, &err);
    if (e < 0)
        keep_failure(failed, e, least, &err);
    if (e == 0 && is_better_attempt(s, &a, best)) {
        attempt_finish(best);
        *best = a;
    } else {
        attempt_finish(&a);
    }
}

/* Runs the search of policy `auto`. *ret stays empty if the search finds no plan. *ret_done becomes true if
 * no other micro-batch size needs to be tried. */
static int search(const struct setting *s, struct attempt *ret, bool *ret_done, struct err *err)
{
    const struct job_options *j = &s->o->job;
    const struct profile_search_request q = {
        .table = s->table,
        .machine = &s->machine,
        .batch = s->o->profile_plan.batch,
        .micro_batch = s->o->profile_plan.micro_batch,
        .update = j->update >= 0 ? (enum update_place)j->update : UPDATE_AUTO,
        .objective = j->objective,
    };
    struct profile_search_result found;
    int r = profile_search_outlines(&q, &found, err);
    *ret_done = false;
    if (r < 0 || found.plan == NULL)
        return r;
    *ret = (struct attempt){found.graph->rows, found.graph, found.plan,
                            found.ns,          found.bytes, found.moves_data_only};
    *ret_done = j->objective == OBJECTIVE_BYTES ? found.moves_data_only : !found.waits;
    return 0;
}

/* Finds the best plan of a policy over all micro-batch sizes. If there is no plan, *ret_failed says why. */
static int find_best(const struct setting *s, int policy, struct attempt *ret, struct failure *ret_failed)
{
    uint32_t sizes[MAX_DIVISORS], n = find_measured_divisors(s, sizes);
    bool done = false;
    *ret = (struct attempt){0};
    *ret_failed = (struct failure){0};
    ret_failed->code = check_sizes(s, n, &ret_failed->err);
    if (ret_failed->code == 0 && policy == POLICY_auto)
        ret_failed->code = search(s, ret, &done, &ret_failed->err);
    if (ret_failed->code < 0 || done)
        return ret_failed->code;
    /* Start with the largest micro-batch size, because its plan has the fewest tasks and is found fastest. */
    for (uint32_t i = n; i-- > 0 && !is_best(s, ret);) {
        uint32_t most = most_replicas(s, policy, sizes[i]);
        if (ret->plan != NULL && s->o->job.objective == OBJECTIVE_TIME && compute_ns(s, sizes[i]) >= ret->ns)
            continue;
        try_replicas(s, policy, most, sizes[i], ret, ret_failed);
        if (policy == POLICY_auto && most > 1)
            try_replicas(s, policy, 1, sizes[i], ret, ret_failed);
    }
    return ret->plan != NULL ? 0 : ret_failed->code;
}

/* Finds the best plan of a policy, verifies the plan and simulates it for printing. */
static int plan_policy(const struct setting *s, int policy, struct attempt *ret, struct printed_plan *told)
{
    struct failure failed;
    uint64_t begin = clock_now_ns();
    int r = find_best(s, policy, ret, &failed);
    if (r < 0) {
        told->err = failed.err;
        told->least_bytes = failed.least;
    } else {
        r = plan_verify(ret->plan, ret->graph, NULL, &s->machine, NULL, &told->err);
    }
    told->policy = policy_names[policy];
    told->code = r;
    if (r < 0) {
        attempt_finish(ret);
        return r;
    }
    told->plan_s = (double)(clock_now_ns() - begin) * 1e-9;
    told->plan = ret->plan;
    told->graph = ret->graph;
    struct plan_request request = request_of(s, ret->graph, policy);
    struct profile *times = plan_profile(&request);
    plan_print_simulate(told, times, &s->machine);
    profile_destroy(times);
    ret->plan = NULL; /* *told owns it from here on */
    return 0;
}

/* ---- the gain from more resources ---- */

static void try_machine(const struct setting *s, int policy, uint64_t more_bytes, uint32_t more_devices,
                        struct what_if *ret)
{
    struct setting better = *s;
    struct attempt a;
    struct failure failed;
    *ret = (struct what_if){0};
    if (what_if_machine(&s->machine, more_bytes, more_devices, &better.machine) < 0)
        return;
    if (find_best(&better, policy, &a, &failed) == 0) {
        struct plan_bytes b;
        plan_count_bytes(a.plan, PROGRAM_CYCLE, &b);
        *ret = (struct what_if){true, a.ns, b.in + b.out};
    }
    attempt_finish(&a);
}

static void ask_about_profile(const struct setting *s, int policy, struct why_report *r)
{
    const struct what_if now = {true, r->why.cycle_ns, r->host_bytes};
    r->asked = true;
    try_machine(s, policy, WHY_MORE_BYTES, 0, &r->memory);
    what_if_keep(&r->memory, &now, s->o->job.objective);
    try_machine(s, policy, 0, 1, &r->device);
    why_report_settle(r);
}

/* ---- printing ---- */

static void describe(const struct setting *s, struct strbuf *head, struct strbuf *members)
{
    const struct table *t = s->table;
    const struct machine *m = &s->machine;
    strbuf_add(head, "profile file: ");
    strbuf_add_text(head, s->o->profile_plan.profile_path);
    if (t->model[0] != '\0' || t->device[0] != '\0')
        strbuf_addf(head, " (%s%s%s)", t->model, t->model[0] != '\0' && t->device[0] != '\0' ? ", " : "",
                    t->device);
    strbuf_addf(head, "\nmachine %u device%s of ", m->n_devices, m->n_devices == 1 ? "" : "s");
    strbuf_add_bytes(head, m->capacity_bytes[0]);
    strbuf_add(head, ", link ");
    strbuf_add_bytes(head, m->link_bytes_per_s);
    strbuf_add(head, "/s each way, peers ");
    strbuf_add_bytes(head, m->peer_bytes_per_s);
    strbuf_addf(head, "/s\nbatch   %u, objective %s\n", s->o->profile_plan.batch,
                plan_objective_names[s->o->job.objective]);
    strbuf_add(members, ",\"profile\":\"file\",\"profile_reason\":");
    strbuf_add_json(members, s->o->profile_plan.profile_path);
}

static int plan_with_one(const struct setting *s, const char *head, const char *members)
{
    struct attempt a;
    struct printed_plan p = {0};
    int policy = s->o->job.policy >= 0 ? s->o->job.policy : POLICY_auto, code;
    if (plan_policy(s, policy, &a, &p) < 0) {
        code = report_error(s->o, p.code, &p.err, p.least_bytes, true);
    } else {
        if (!s->o->plan.no_what_if)
            ask_about_profile(s, policy, &p.why);
        code = plan_print_one(s->o, &p, head, "the times of the profile", members);
    }
    plan_print_finish(&p);
    attempt_finish(&a);
    return code;
}

static int plan_with_all(const struct setting *s, const char *head, const char *members)
{
    struct attempt a[POLICY_COUNT] = {0};
    struct printed_plan list[POLICY_COUNT] = {0};
    int code = -1;
    for (int i = 0; i < POLICY_COUNT && code < 0; i++) {
        int r = plan_policy(s, i, &a[i], &list[i]);
        if (r < 0 && r != -ENOSPC && r != -EBADMSG)
            code = report_error(s->o, r, &list[i].err, 0, true);
    }
    if (code < 0)
        code = plan_print_all(s->o, list, POLICY_COUNT, head, members);
    for (int i = 0; i < POLICY_COUNT; i++) {
        plan_print_finish(&list[i]);
        attempt_finish(&a[i]);
    }
    return code;
}

static int run_plan_profile(const struct verb_options *o)
{
    struct setting s = {0};
    struct err err = {0};
    struct strbuf head = {0}, members = {0};
    int r = set_up(o, &s, &err), code;
    if (r < 0) {
        code = report_error(o, r, &err, 0, true);
    } else {
        describe(&s, &head, &members);
        code = (o->plan.all_policies ? plan_with_all : plan_with_one)(&s, head.at, members.at);
    }
    strbuf_finish(&head);
    strbuf_finish(&members);
    table_destroy(s.table);
    return code;
}

static int parse_micro_batch(const char *text, struct verb_options *o, struct err *err)
{
    static const struct worker_option size = {"micro-batch",      "N",
                                              .kind = OPTION_U32, .at = OPTION_AT(profile_plan.micro_batch),
                                              .least = 1,         .most = SPEC_MAX_DIM};
    o->profile_plan.micro_batch = 0;
    return strcmp(text, "auto") == 0 ? 0 : options_store(&size, text, o, err);
}

static const struct worker_option rows[] = {
    {"batch", "N", "samples per step", OPTION_U32, OPTION_AT(profile_plan.batch), 1, SPEC_MAX_DIM},
    {"micro-batch", "N|auto",
     "samples per micro-batch; auto: the best of the measured sizes that divide the batch", OPTION_PARSED,
     .parse = parse_micro_batch},
    {0},
};

static const struct option_table options = {"what to plan from a profile", rows};

static const char *const where[] = {"device-memory", "devices", "host-memory", "link", "objective",
                                    "optimizer-on",  "peer",    "update",      NULL};
static const char *const needs[] = {"device-memory", "batch", NULL};

const struct worker_verb verb_plan_profile = {
    .word = {"plan-profile", "FILE", .kind = OPTION_TEXT, .at = OPTION_AT(profile_plan.profile_path)},
    .forms = {{"FILE --device-memory SIZE --batch N [options]", "plan from a profile"}},
    .tables = {&options, &plan_table},
    .where = where,
    .needs = needs,
    .check = plan_options_check,
    .run = run_plan_profile,
};
