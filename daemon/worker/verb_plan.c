/* --plan: the plan that --run would execute: a page for people (--dump: every instruction) or its figures as
 * JSON; the program itself goes to --out, the simulated timeline to --trace. With --policy all: the plans of
 * every policy, side by side. */
#include <errno.h>
#include <stdio.h>

#include "base/strbuf.h"
#include "daemon/worker/planned.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"

/* Plans the job; `j` owns the plan until it is handed over. */
static int plan_job(const struct job_options *o, struct job *j, struct planned *ret)
{
    int r = job_load_spec(o, j, &ret->err);
    if (r == 0)
        r = job_prepare(o, j, &ret->err);
    ret->code = r;
    ret->least_bytes = j->least_bytes;
    if (r < 0)
        return r;
    struct profile *times = job_times(j);
    ret->plan = j->plan;
    ret->graph = j->graph;
    ret->plan_s = j->plan_s;
    planned_simulate(ret, times, &j->machine);
    profile_destroy(times);
    j->plan = NULL;
    return 0;
}

static void say_where(const struct job *j, struct strbuf *head, struct strbuf *members)
{
    strbuf_addf(head, "backend %s: %s\n", j->backend, j->backend_reason);
    strbuf_addf(head, "profile %s: %s\n", job_profile_names[j->profile], j->profile_reason);
    report_backend_members(j, members);
    report_profile_members(j, members);
}

/* By what the time is predicted; NULL: the analytic profile. */
static const char *describe_times(const struct job *j, char *buf, size_t size)
{
    if (j->table == NULL)
        return NULL;
    snprintf(buf, size, j->profile == JOB_MEASURED ? "times measured %s" : "the times of %s",
             j->profile_reason);
    return buf;
}

static int plan_one(const struct verb_options *o)
{
    char times[900];
    struct job j;
    struct planned p = {0};
    struct strbuf head = {0}, members = {0};
    int code;
    if (plan_job(&o->job, &j, &p) < 0) {
        code = report_error(o, p.code, &p.err, p.least_bytes, true);
    } else {
        say_where(&j, &head, &members);
        code = planned_print(o, &p, head.at, describe_times(&j, times, sizeof times), members.at);
    }
    strbuf_finish(&head);
    strbuf_finish(&members);
    planned_finish(&p);
    job_finish(&j);
    return code;
}

/* What is wrong with the job itself ends it at the first policy; that one does not fit is part of the answer. */
static int plan_all(const struct verb_options *o)
{
    struct job jobs[POLICY_COUNT] = {0};
    struct planned list[POLICY_COUNT] = {0};
    struct job_options one = o->job;
    struct strbuf head = {0}, members = {0};
    int code = -1;
    for (int i = 0; i < POLICY_COUNT && code < 0; i++) {
        one.policy = i;
        list[i].policy = policy_names[i];
        int r = plan_job(&one, &jobs[i], &list[i]);
        if (r < 0 && r != -ENOSPC && r != -EBADMSG)
            code = report_error(o, r, &list[i].err, 0, true);
        if (code < 0 && head.at == NULL)
            say_where(&jobs[i], &head, &members);
    }
    if (code < 0)
        code = planned_compare(o, list, POLICY_COUNT, head.at, members.at);
    strbuf_finish(&head);
    strbuf_finish(&members);
    for (int i = 0; i < POLICY_COUNT; i++) {
        planned_finish(&list[i]);
        job_finish(&jobs[i]);
    }
    return code;
}

int verb_plan(const struct verb_options *o)
{
    return o->all_policies ? plan_all(o) : plan_one(o);
}
