/* --plan-profile: plans a model from its profile alone (docs/profile.md). The command line describes the
 * machine. It needs no job and looks at no device. The plan is only printed; nothing can run it.
 *
 * Jobs and profiles share the search over micro-batch sizes and replicas (scheduler/policy/sizes.h). Here the
 * search takes the measured sizes and times. Policy `auto` first looks for plans whose layers have different
 * micro-batch sizes (profile_search.h). --micro-batch fixes one size for all layers, and --replicas the
 * number of replicas.
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
#include "scheduler/policy/sizes.h"
#include "scheduler/policy/what_if.h"
#include "scheduler/table.h"
#include "scheduler/verify/verify.h"

/* Bytes of host memory that are assumed if --host-memory is not given. This is more than any plan needs. */
#define HOST_ENOUGH (1ull << 50)

/* Limit on the work of the search for one pair of sizes (plan_request.most_work) if there is already a
 * plan with mixed sizes, and the same for a what-if question. */
#define PAIR_WORK      (PLAN_WORK / 8)
#define PAIR_WORK_LESS (PLAN_WORK / 32)

/* The profile, the machine and the options with which every policy is planned. */
struct setting {
    const struct verb_options *o;
    struct table *table;
    struct machine machine;
};

/* A plan with its graph and its score. */
struct attempt {
    struct graph *graph;
    struct plan *plan;
    struct score score;
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

static enum plan_objective objective_of(const struct setting *s)
{
    int objective = s->o->job.objective;
    return objective >= 0 ? (enum plan_objective)objective : OBJECTIVE_BALANCED;
}

static struct plan_request request_of(const struct setting *s, const struct graph *g, int policy)
{
    const struct job_options *j = &s->o->job;
    return (struct plan_request){
        .train = g,
        .machine = &s->machine,
        .policy = (enum policy_id)policy,
        .update = j->update >= 0 ? (enum update_place)j->update : UPDATE_AUTO,
        .table = s->table,
        .objective = objective_of(s),
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

/* The context of the functions that sizes_choose calls, for one policy. */
struct profile_choosing {
    const struct setting *s;
    int policy;
    struct attempt made, best;
    /* The score of a plan that the caller already has, or that was found with mixed sizes. NULL if there
     * is none. All further searches look only for better plans, and build less. */
    const struct score *to_beat;
    struct score mixed; /* of the plan with mixed sizes */
    bool brief;         /* whether this is a what-if question: the search is then shortened */
    bool cut;           /* whether the search of some pair was cut short */
    uint64_t least;     /* bytes per device that would be enough for the sizes that were planned last, or 0 */
};

static int make_profile_model(void *ctx, struct plan_sizes sizes, struct outline_model **ret)
{
    const struct profile_choosing *c = ctx;
    *ret = outline_model_table(c->s->table, &c->s->machine, &sizes.rows, 1);
    return 0;
}

/* Plans with the given sizes. On -ENOSPC, `err` has a message in the words of the command line. */
static int plan_profile_sizes(void *ctx, struct plan_sizes sizes, uint64_t most_work, struct plan_report *ret,
                              uint64_t *ret_least, struct err *err)
{
    struct profile_choosing *c = ctx;
    uint64_t least = 0;
    attempt_finish(&c->made);
    int r = build_table_graph(c->s, sizes.replicas, sizes.rows, &c->made.graph, err);
    if (r < 0)
        return r;
    struct plan_request request = request_of(c->s, c->made.graph, c->policy);
    request.most_work = most_work;
    request.report = ret;
    if (c->to_beat != NULL && objective_of(c->s) != OBJECTIVE_BYTES) {
        uint64_t ns = c->best.plan != NULL ? c->best.score.ns : c->to_beat->ns;
        request.to_beat_ns = ns + ns / SCORE_SAME_TIME;
        if (most_work == 0)
            request.most_work = c->brief ? PAIR_WORK_LESS : PAIR_WORK;
    }
    r = plan_make(&request, &c->made.plan, &least, err);
    c->made.score = ret->score;
    c->cut |= request.most_work > 0 && ret->work > request.most_work;
    c->least = r == -ENOSPC ? least : 0;
    if (r == -ENOSPC && least > 0) {
        *ret_least = least;
        refuse(c->s, policy_names[c->policy], c->made.graph, least, err);
    } else if (r == -ENOSPC) {
        err_set_at(err, r, "--host-memory", "%s", err->msg);
    }
    return r;
}

static void keep_profile_plan(void *ctx)
{
    struct profile_choosing *c = ctx;
    enum plan_objective objective = objective_of(c->s);
    if (c->best.plan != NULL && !score_is_better(objective, &c->made.score, &c->best.score))
        return;
    attempt_finish(&c->best);
    c->best = c->made;
    c->made = (struct attempt){0};
}

static int check_sizes(const struct setting *s, const uint32_t *sizes, uint32_t n, struct err *err)
{
    uint32_t batch = s->o->profile_plan.batch, u = s->o->profile_plan.micro_batch;
    uint32_t replicas = s->o->profile_plan.replicas, part = replicas > 0 ? batch / replicas : batch;
    if (u > 0 && batch % u != 0)
        return err_set_at(err, -EINVAL, "--micro-batch", "%u does not divide --batch %u", u, batch);
    if (replicas > 0 && (batch % replicas != 0 || (u > 0 && part % u != 0)))
        return err_set_at(err, -EINVAL, "--replicas",
                          "%u does not divide --batch %u into parts of whole micro-batches", replicas, batch);
    for (uint32_t i = 0; i < n && u == 0; i++)
        if (part % sizes[i] == 0)
            return 0;
    return u > 0
               ? 0
               : err_set_at(err, -EINVAL, "--batch",
                            "%u has no divisor among the sizes that were measured, which end at %u; say one "
                            "with --micro-batch",
                            batch, table_largest(s->table));
}

/* Stores the divisors of the batch that are within the range of measured micro-batch sizes, and returns how
 * many there are. */
static uint32_t find_measured(const struct setting *s, uint32_t ret[SIZES_MAX_DIVISORS])
{
    const struct table *t = s->table;
    uint32_t least = t->fwd.sizes[0] > t->bwd.sizes[0] ? t->fwd.sizes[0] : t->bwd.sizes[0], kept = 0;
    uint32_t n = sizes_divisors(s->o->profile_plan.batch, ret);
    for (uint32_t i = 0; i < n; i++)
        if (ret[i] >= least && ret[i] <= table_largest(t))
            ret[kept++] = ret[i];
    return kept;
}

/* Searches for a plan in which layers may have different micro-batch sizes. Stores the plan in c->best, if
 * there is one. *ret_done is true if no other plan has to be tried. */
static int search_mixed(struct profile_choosing *c, bool *ret_done, struct err *err)
{
    const struct setting *s = c->s;
    const struct job_options *j = &s->o->job;
    const struct profile_search_request q = {
        .table = s->table,
        .machine = &s->machine,
        .batch = s->o->profile_plan.batch,
        .micro_batch = s->o->profile_plan.micro_batch,
        .update = j->update >= 0 ? (enum update_place)j->update : UPDATE_AUTO,
        .objective = objective_of(s),
        .to_beat = c->to_beat,
        .brief = c->brief,
    };
    struct profile_search_result found;
    int r = profile_search_outlines(&q, &found, err);
    *ret_done = false;
    if (r < 0 || found.plan == NULL)
        return r;
    c->best = (struct attempt){found.graph, found.plan, found.score};
    c->mixed = found.score;
    c->to_beat = &c->mixed;
    *ret_done = q.objective == OBJECTIVE_BYTES ? found.moves_data_only : !found.waits;
    return 0;
}

/* Searches for a plan in which all layers have the same micro-batch size. Tries the `n` sizes in `sizes` with
 * several numbers of replicas. */
static int search_pairs(struct profile_choosing *c, const uint32_t *sizes, uint32_t n, struct err *err)
{
    const struct setting *s = c->s;
    bool parallel = c->policy == POLICY_auto || c->policy == POLICY_harmony_dp;
    uint32_t replicas = s->o->profile_plan.replicas;
    struct sizes_choice choice;
    const struct sizes_request q = {
        .batch = s->o->profile_plan.batch,
        .n_layers = s->table->n_layers,
        .asked = {s->o->profile_plan.micro_batch, replicas > 0 ? replicas
                                                  : parallel   ? 0
                                                               : 1},
        .allowed = sizes,
        .n_allowed = n,
        .machine = &s->machine,
        .policy = (enum policy_id)c->policy,
        .update = request_of(s, NULL, c->policy).update,
        .objective = objective_of(s),
        .to_beat = c->best.plan != NULL ? &c->best.score : c->to_beat,
        .ctx = c,
        .model = make_profile_model,
        .plan = plan_profile_sizes,
        .keep = keep_profile_plan,
    };
    int r = sizes_choose(&q, &choice, err);
    if (r == -ENOSPC && c->best.plan == NULL && c->to_beat == NULL) {
        struct plan_report report = {0};
        uint64_t least = 0;
        r = plan_profile_sizes(c, choice.sizes, 1, &report, &least, err);
        if (r == 0)
            keep_profile_plan(c);
        return r;
    }
    return r == -ENOSPC ? 0 : r;
}

/* Finds the best plan of a policy over all sizes. If there is no plan, *ret_least is the number of bytes per
 * device that is enough, or 0 if device memory alone does not help. If c->to_beat is not NULL, looks only
 * for plans that are not slower, and may find none. */
static int find_best(struct profile_choosing *c, struct attempt *ret, uint64_t *ret_least, struct err *err)
{
    const struct setting *s = c->s;
    uint32_t sizes[SIZES_MAX_DIVISORS], n = find_measured(s, sizes);
    bool done = false;
    *ret = (struct attempt){0};
    *ret_least = 0;
    int r = check_sizes(s, sizes, n, err);
    if (r == 0 && c->policy == POLICY_auto && s->o->profile_plan.replicas == 0)
        r = search_mixed(c, &done, err);
    if (r == 0 && !done)
        r = search_pairs(c, sizes, n, err);
    if (r == -ENOSPC)
        *ret_least = c->least;
    attempt_finish(&c->made);
    if (r < 0)
        attempt_finish(&c->best);
    *ret = c->best;
    return r;
}

/* Finds the best plan of a policy, verifies the plan and simulates it for printing. */
static int plan_policy(const struct setting *s, int policy, struct attempt *ret, struct printed_plan *told)
{
    uint64_t begin = clock_now_ns();
    struct profile_choosing c = {.s = s, .policy = policy};
    int r = find_best(&c, ret, &told->least_bytes, &told->err);
    if (r == 0)
        r = plan_verify(ret->plan, ret->graph, NULL, &s->machine, NULL, &told->err);
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

/* Plans for a machine with more memory or more devices. The plan at hand, *now, would work there too. */
static void try_machine(const struct setting *s, int policy, uint64_t more_bytes, uint32_t more_devices,
                        const struct what_if *now, struct what_if *ret)
{
    const struct score to_beat = {now->cycle_ns, now->host_bytes};
    struct setting better = *s;
    struct attempt a;
    struct err err = {0};
    uint64_t least;
    *ret = (struct what_if){0};
    if (what_if_machine(&s->machine, more_bytes, more_devices, &better.machine) < 0)
        return;
    struct profile_choosing c = {.s = &better, .policy = policy, .to_beat = &to_beat, .brief = true};
    int r = find_best(&c, &a, &least, &err);
    if (r == 0 && a.plan == NULL)
        *ret = *now;
    else if (r == 0)
        *ret = (struct what_if){true, a.score.ns, a.score.bytes, c.cut};
    attempt_finish(&a);
}

static void ask_about_profile(const struct setting *s, int policy, struct why_report *r)
{
    const struct what_if now = {true, r->why.cycle_ns, r->host_bytes, true};
    r->asked = true;
    try_machine(s, policy, WHY_MORE_BYTES, 0, &now, &r->memory);
    what_if_keep(&r->memory, &now, objective_of(s));
    try_machine(s, policy, 0, 1, &now, &r->device);
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
                plan_objective_names[objective_of(s)]);
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
    {"replicas", "N", "parts of a step that sum their own gradients (default: the policy chooses)",
     OPTION_U32, OPTION_AT(profile_plan.replicas), 1, SPEC_MAX_DIM},
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
