/* The verb --check. It checks everything that can be known before a job runs: the spec, the output directory,
 * the data, and whether the job fits the devices. */
#include <errno.h>

#include "base/err.h"
#include "base/log.h"
#include "daemon/worker/output.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"

/* Checks the output directory. A directory that another worker has locked only causes a warning, because the
 * lock may be free when the job runs. The other worker may even run the same job, if it was submitted
 * twice. */
static int check_output(const struct verb_options *o, const struct prepared_job *j, struct err *err)
{
    char text[sizeof err->path + sizeof err->msg];
    int r = output_check(j->output, err);

    if (r != -EBUSY)
        return r;
    if (!o->json)
        log_warning("%s", err_text(err, text, sizeof text));
    *err = (struct err){0};
    return 0;
}

static int run_check(const struct verb_options *o)
{
    struct prepared_job j;
    struct err err = {0};
    uint64_t least = 0;
    int r = job_load_spec(&o->job, &j, &err), code = EXIT_DONE;
    if (r == 0)
        r = check_output(o, &j, &err);
    if (r == 0)
        r = job_prepare(&o->job, &j, &err);
    if (r == 0)
        r = job_least_capacity(&o->job, &j, &least, &err);
    if (r == -ENOMEM && j.phases.n > 0 && j.phases.at[j.phases.n - 1].plan != NULL) {
        /* The job has a plan, but memory ran out while job_least_capacity tried other micro-batch sizes. So
         * the least memory is unknown, which is no error. */
        least = 0;
        r = 0;
    }
    if (r < 0)
        code = report_error(o, r, &err, j.least_bytes, true);
    else
        code = report_check(&j, least, o->json);
    job_finish(&j);
    return code;
}

const struct worker_verb verb_check = {
    .word = {"check", "JOB.json", .kind = OPTION_TEXT, .at = OPTION_AT(job.spec_path)},
    .forms = {{"JOB.json [options]", "check that a job is valid and fits"}},
    .where = where_all,
    .run = run_check,
};
