/* The verb --plan. It prints the plan that --run would execute, as a page of text or as JSON. --dump adds
 * every instruction. --out, --trace and --svg write files. --policy all compares all policies.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "daemon/worker/plan_print.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"
#include "scheduler/policy/what_if.h"

/* The arguments of ask_about_job. They are in one struct, because job_bounded passes a single pointer. */
struct asking {
    const struct job_options *o;
    const struct prepared_job *j;
    struct printed_plan *p;
};

static int simulate_job(void *arg)
{
    const struct asking *a = arg;
    job_needs(a->j, &a->p->needs);
    struct profile *times = job_times(a->j, job_largest_phase(a->j));
    plan_print_simulate(a->p, times, &a->j->machine);
    profile_destroy(times);
    return 0;
}

/* Plans the job and simulates the plan of its largest phase. On success, *ret owns that plan, and `j` still
 * owns everything else. */
static int plan_job(const struct job_options *o, struct prepared_job *j, struct printed_plan *ret)
{
    int r = job_load_spec(o, j, &ret->err);
    if (r == 0)
        r = job_prepare(o, j, &ret->err);
    ret->code = r;
    ret->least_bytes = j->least_bytes;
    if (r < 0)
        return r;
    struct asking a = {o, j, ret};
    struct phase *p = job_largest_phase(j);
    ret->plan = p->plan;
    ret->graph = p->graph;
    ret->plan_s = j->plan_s;
    ret->code = r = job_bounded(o, j, simulate_job, &a, NULL, &ret->err);
    p->plan = NULL;
    if (r < 0) { /* the scope has freed the simulation */
        ret->sim = NULL;
        plan_print_finish(ret);
    }
    return r;
}

/* Appends a duration in seconds with four digits. */
static void add_plan_seconds(struct strbuf *b, uint64_t ns)
{
    strbuf_addf(b, "%.4g s", (double)ns * 1e-9);
}

/* Appends one choice of micro-batch size and number of replicas, and the time of a training step with these
 * sizes. */
static void say_pair(const struct sizes_trial *t, bool chosen, struct strbuf *head, struct strbuf *members)
{
    bool misfit = t->planned && !t->fits;
    uint64_t ns = t->planned ? t->score.ns : t->estimate_ns;
    strbuf_addf(members,
                "{\"micro_batch\":%u,\"replicas\":%u,\"planned\":%s,\"fits\":%s,\"seconds\":", t->sizes.rows,
                t->sizes.replicas, t->planned ? "true" : "false",
                !t->planned ? "null"
                : misfit    ? "false"
                            : "true");
    strbuf_addf(head, "\n        micro-batch %u, %u replica%s: ", t->sizes.rows, t->sizes.replicas,
                t->sizes.replicas == 1 ? "" : "s");
    if (misfit || ns == UINT64_MAX) {
        strbuf_add(members, "null}");
        strbuf_add(head, "does not fit");
        return;
    }
    strbuf_addf(members, "%.9g}", (double)ns * 1e-9);
    add_plan_seconds(head, ns);
    strbuf_add(head, chosen ? ", chosen" : t->planned ? "" : ", estimated");
}

/* Appends the micro-batch sizes and numbers of replicas that were considered, if one of them is "auto" and
 * was chosen now. */
static void say_sizes(const struct phase *p, struct strbuf *head, struct strbuf *members)
{
    const struct sizes_choice *c = &p->choice;
    if (!p->resolved_now || c->n_shown == 0)
        return;
    strbuf_addf(head, "sizes   chosen among %u; products with few rows count as slower", c->n_considered);
    strbuf_add(members, ",\"sizes_considered\":[");
    for (uint32_t i = 0; i < c->n_shown; i++) {
        const struct sizes_trial *t = &c->shown[i];
        strbuf_add(members, i > 0 ? "," : "");
        say_pair(t, t->sizes.rows == c->sizes.rows && t->sizes.replicas == c->sizes.replicas, head, members);
    }
    strbuf_add(head, "\n");
    strbuf_add(members, "]");
}

/* Appends the time and the bytes of each plan that no other plan of the search beats in both. The text lists
 * such plans only if there are several. */
static void say_front(const struct phase *p, struct strbuf *head, struct strbuf *members)
{
    const struct plan_report *r = &p->report;
    strbuf_add(members, ",\"front\":[");
    for (uint32_t i = 0; i < r->n_front; i++) {
        const struct score *s = &r->front[i];
        strbuf_addf(members, "%s{\"seconds\":%.9g,\"host_bytes\":%llu}", i > 0 ? "," : "",
                    (double)s->ns * 1e-9, (unsigned long long)s->bytes);
        if (r->n_front < 2)
            continue;
        strbuf_add(head, i > 0 ? "        " : "choices ");
        add_plan_seconds(head, s->ns);
        strbuf_add(head, " with ");
        strbuf_add_bytes(head, s->bytes);
        strbuf_add(head, " to and from the host");
        strbuf_add(head, s->ns == r->score.ns && s->bytes == r->score.bytes ? ", chosen\n" : "\n");
    }
    strbuf_add(members, "]");
}

/* Appends the backend and the profile (the source of the task durations), why they were chosen, how the
 * method cuts the model, and the host memory that the job needs. If the job has several phases, also appends
 * the phase to which the plan belongs. Appends lines of text to `head` and JSON members to `members`. `made`
 * has the plan and the needs. */
static void say_where(const struct prepared_job *j, const struct printed_plan *made, struct strbuf *head,
                      struct strbuf *members)
{
    if (j->phases.n > 1) {
        const struct phase *p = job_largest_phase(j);
        strbuf_addf(head, "phase %u (%s), the largest of %u phases", p->number, p->name, j->phases.n);
        report_phases(j, made->plan, "        ", head);
        strbuf_add(head, "\n");
        report_phase_members(j, made->plan, members);
    }
    strbuf_addf(head, "backend %s: %s\n", j->backend, j->backend_reason);
    strbuf_addf(head, "profile %s: %s\n", job_profile_names[j->profile], j->profile_reason);
    report_backend_members(j, members);
    report_profile_members(j, members);
    report_cut_members(j, members);
    report_cycle_members(j, made->plan, members);
    report_work_members(j, members);
    if (j->spec->method != METHOD_backprop) {
        strbuf_add(head, "method  ");
        report_cut(j, head);
        strbuf_add(head, "\n");
    }
    report_cycle(j, made->plan, head);
    strbuf_add(head, "host    ");
    report_host_needs(&made->needs, head);
    strbuf_add(head, "\n");
    say_sizes(job_largest_phase(j), head, members);
    say_front(job_largest_phase(j), head, members);
}

/* Returns a phrase that says where the task durations come from, such as a measurement. Returns NULL if they
 * were computed by formulas. */
static const char *describe_times(const struct prepared_job *j, char *buf, size_t size)
{
    if (j->table == NULL)
        return NULL;
    snprintf(buf, size, j->profile == JOB_MEASURED ? "times measured %s" : "the times of %s",
             j->profile_reason);
    return buf;
}

/* Plans the job again in three ways: with more memory, with one more device, and without the task DECIDE. The
 * new plans show how much faster the job would be in each case. */
static int ask_about_job(void *arg)
{
    const struct asking *a = arg;
    const struct job_options *o = a->o;
    const struct prepared_job *j = a->j;
    const struct phase *phase = job_largest_phase(j);
    struct why_report *r = &a->p->why;
    struct plan_request request = job_request(o, j, phase);
    struct machine more;
    struct graph *plain = NULL;
    const struct what_if now = {true, r->why.cycle_ns, r->host_bytes};
    r->asked = true;
    request.machine = &more;
    if (what_if_machine(&j->machine, WHY_MORE_BYTES, 0, &more) == 0)
        what_if_plan(&request, &r->memory);
    what_if_keep(&r->memory, &now, request.objective);
    if (what_if_machine(&j->machine, 0, 1, &more) == 0)
        what_if_plan(&request, &r->device);
    r->decision = phase->graph->groups[0].decision;
    if (r->decision && job_plain_graph(phase, &plain, NULL) == 0) {
        request.machine = &j->machine;
        request.train = plain;
        /* Plan without evaluations, because the evaluation graph shares no tensors with the graph `plain`. */
        request.eval = NULL;
        what_if_plan(&request, &r->plain);
    }
    graph_destroy(plain);
    why_report_settle(r);
    return 0;
}

/* Answers the what-if questions, such as what more memory would gain. If memory runs out, the plan is printed
 * without these answers. */
static int try_what_if(const struct job_options *o, struct prepared_job *j, struct printed_plan *p)
{
    struct asking a = {o, j, p};
    int r = job_bounded(o, j, ask_about_job, &a, NULL, &p->err);
    if (r != -ENOMEM)
        return r;
    p->err = (struct err){0};
    p->why.asked = false;
    return 0;
}

static int plan_job_once(const struct verb_options *o)
{
    char times[900];
    struct prepared_job j;
    struct printed_plan p = {0};
    struct strbuf head = {0}, members = {0};
    int code, r = plan_job(&o->job, &j, &p);
    if (r == 0 && !o->plan.no_what_if)
        p.code = r = try_what_if(&o->job, &j, &p);
    if (r < 0) {
        code = report_error(o, p.code, &p.err, p.least_bytes, true);
    } else {
        say_where(&j, &p, &head, &members);
        code = plan_print_one(o, &p, head.at, describe_times(&j, times, sizeof times), members.at);
    }
    strbuf_finish(&head);
    strbuf_finish(&members);
    plan_print_finish(&p);
    job_finish(&j);
    return code;
}

/* Plans the job with every policy and compares the plans. Local updates are also compared with
 * backpropagation of the same model on the same machine, planned by `auto`. A policy that does not fit the
 * devices is listed with the reason. Any other error is a mistake in the job and ends the verb. */
static int plan_job_with_all(const struct verb_options *o)
{
    /* jobs[POLICY_COUNT] is for backpropagation, to which local updates are compared. */
    struct prepared_job jobs[POLICY_COUNT + 1] = {0};
    struct printed_plan list[POLICY_COUNT + 1] = {0};
    struct job_options one = o->job;
    struct strbuf head = {0}, members = {0};
    int code = -1, n = POLICY_COUNT;
    for (int i = 0; i < n && code < 0; i++) {
        one.policy = i < POLICY_COUNT ? i : POLICY_auto;
        one.as_backprop = i == POLICY_COUNT;
        list[i].policy = i < POLICY_COUNT ? policy_names[i] : "backprop";
        int r = plan_job(&one, &jobs[i], &list[i]);
        if (r < 0 && r != -ENOSPC && r != -EBADMSG)
            code = report_error(o, r, &list[i].err, 0, true);
        if (code < 0 && head.at == NULL)
            say_where(&jobs[i], &list[i], &head, &members);
        if (code < 0 && jobs[i].spec->method == METHOD_local)
            n = POLICY_COUNT + 1;
    }
    if (code < 0)
        code = plan_print_all(o, list, (uint32_t)n, head.at, members.at);
    strbuf_finish(&head);
    strbuf_finish(&members);
    for (int i = 0; i < n; i++) {
        plan_print_finish(&list[i]);
        job_finish(&jobs[i]);
    }
    return code;
}

static int run_plan(const struct verb_options *o)
{
    return o->plan.all_policies ? plan_job_with_all(o) : plan_job_once(o);
}

/* ---- the options of both plan verbs ---- */

static int parse_policy_or_all(const char *text, struct verb_options *o, struct err *err)
{
    static const struct worker_option one = {"policy", "NAME", .kind = OPTION_NAME,
                                             .at = OPTION_AT(job.policy), .names = policy_names};
    o->plan.all_policies = strcmp(text, "all") == 0;
    return o->plan.all_policies ? 0 : options_store(&one, text, o, err);
}

int plan_options_check(const struct verb_options *o, struct err *err)
{
    const struct plan_options *p = &o->plan;
    if (p->all_policies && (p->dump || p->json_path != NULL || p->svg_path != NULL || p->trace_path != NULL))
        return err_set_at(err, -EINVAL, "--policy",
                          "all compares the plans of all policies, but --dump, --out, --svg and --trace are "
                          "of one plan; name one policy, or leave these options out");
    return 0;
}

static const struct worker_option rows[] = {
    {"policy", "NAME", NULL, OPTION_PARSED, .parse = parse_policy_or_all}, /* hidden: where_table lists it */
    {"dump", NULL, "print every instruction", OPTION_FLAG, OPTION_AT(plan.dump)},
    {"no-what-if", NULL, "do not compute what one more GB or device would gain", OPTION_FLAG,
     OPTION_AT(plan.no_what_if)},
    {"out", "FILE", "write the plan as JSON", OPTION_TEXT, OPTION_AT(plan.json_path)},
    {"svg", "FILE", "draw the simulated timeline of one iteration", OPTION_TEXT, OPTION_AT(plan.svg_path)},
    {"trace", "FILE", "write a Chrome trace of the simulated plan", OPTION_TEXT, OPTION_AT(plan.trace_path)},
    {0},
};

const struct option_table plan_table = {"what to print with --plan and --plan-profile", rows};

static const struct worker_option job_rows[] = {
    {"precision", "NAME", "plan with fp32, bf16 or fp16 in place of the job's precision, for a comparison",
     OPTION_TEXT, OPTION_AT(job.precision)},
    {0},
};

const struct option_table precision_table = {"what to change in the job", job_rows};

const struct worker_verb verb_plan = {
    .word = {"plan", "JOB.json", .kind = OPTION_TEXT, .at = OPTION_AT(job.spec_path)},
    .forms = {{"JOB.json [options]", "print the plan: tasks, bytes, memory, time"}},
    .tables = {&plan_table, &precision_table},
    .where = where_all,
    .check = plan_options_check,
    .run = run_plan,
};
