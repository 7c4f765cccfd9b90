/* --check: everything that can be known before running: the spec, its files, shapes, labels, and whether it
 * fits. */
#include "base/err.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"

static int least_capacity(const struct verb_options *o, const struct job *j, uint64_t *ret, struct err *err)
{
    struct plan_request request = {
        .train = j->graph,
        .eval = j->eval_graph,
        .machine = &j->machine,
        .policy = o->job.policy >= 0 ? (enum policy_id)o->job.policy : j->spec->memory.policy,
        .update = o->job.update >= 0 ? (enum update_place)o->job.update : j->spec->memory.update,
    };
    return plan_least_capacity(&request, ret, err);
}

int verb_check(const struct verb_options *o)
{
    struct job j;
    struct err err = {0};
    uint64_t least = 0;
    int r = job_load_spec(&o->job, &j, &err), code = EXIT_DONE;
    if (r == 0)
        r = job_prepare(&o->job, &j, &err);
    if (r == 0)
        r = least_capacity(o, &j, &least, &err);
    if (r < 0)
        code = report_error(o, r, &err, j.least_bytes, true);
    else
        report_check(&j, least, o->json);
    job_finish(&j);
    return code;
}
