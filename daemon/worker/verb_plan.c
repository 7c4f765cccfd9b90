/* --plan: the plan that --run would execute: a page for people (--dump: every instruction) or its figures as
 * JSON; the program itself goes to --out, the simulated timeline to --trace. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"
#include "scheduler/explain.h"
#include "scheduler/simulate.h"

#define TRACE_RUNS 3

static int write_file(const char *path, const struct strbuf *b, struct err *err)
{
    FILE *f = fopen(path, "we");
    if (f == NULL)
        return err_set_at(err, -errno, path, "cannot be written: %s", strerror(errno));
    size_t n = fwrite(b->at, 1, b->n, f);
    if (fclose(f) != 0 || n != b->n)
        return err_set_at(err, -EIO, path, "could not be written whole: %s", strerror(errno));
    return 0;
}

static int write_files(const struct verb_options *o, const struct job *j, const struct sim_result *sim,
                       struct err *err)
{
    struct strbuf b = {0};
    int r = 0;
    if (o->plan_path != NULL) {
        plan_to_json(j->plan, &b);
        r = write_file(o->plan_path, &b, err);
        strbuf_finish(&b);
    }
    if (r == 0 && o->trace_path != NULL) {
        const struct trace_part part = {"plan", sim->spans, sim->runs};
        plan_trace(j->plan, PROGRAM_CYCLE, &part, 1, &b);
        r = write_file(o->trace_path, &b, err);
        strbuf_finish(&b);
    }
    return r;
}

static int print_plan(const struct verb_options *o, const struct job *j, const struct sim_result *sim)
{
    struct strbuf b = {0};
    if (o->json) {
        plan_summary_json(j->plan, sim, j->plan_s, &b);
        b.at[--b.n] = '\0'; /* its brace: ours come behind */
        report_backend_members(j, &b);
        strbuf_add(&b, "}\n");
    } else {
        strbuf_addf(&b, "backend %s: %s\n", j->backend, j->backend_reason);
        plan_summary(j->plan, j->graph, sim, &b);
        if (o->dump)
            plan_dump(j->plan, &b);
    }
    return print_buffer(&b);
}

int verb_plan(const struct verb_options *o)
{
    struct job j;
    struct err err = {0};
    int r = job_load_spec(&o->job, &j, &err), code = EXIT_DONE;
    if (r == 0)
        r = job_prepare(&o->job, &j, &err);
    if (r < 0) {
        code = report_error(o, r, &err, j.least_bytes, true);
        job_finish(&j);
        return code;
    }
    struct profile *prof = profile_analytic(j.graph, &j.machine);
    struct sim_result *sim = plan_simulate(j.plan, PROGRAM_CYCLE, TRACE_RUNS, prof, &j.machine);
    r = write_files(o, &j, sim, &err);
    if (r < 0)
        code = report_error(o, r, &err, 0, false);
    else
        code = print_plan(o, &j, sim);
    sim_destroy(sim);
    profile_destroy(prof);
    job_finish(&j);
    return code;
}
