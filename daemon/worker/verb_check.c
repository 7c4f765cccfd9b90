/* The verb --check. It checks everything that can be known before a job runs: the spec, the output directory,
 * the data, and whether the job fits the devices. */
#include <errno.h>

#include "base/err.h"
#include "base/log.h"
#include "daemon/worker/offer.h"
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

/* With --offer, sets the options of the job to the lease that the daemon would give. */
static int take_offer(const struct verb_options *o, const struct spec *s, struct offer *offer,
                      struct job_options *job, struct err *err)
{
    struct spec_demand demand = spec_demand(s);
    if (o->check.offer == NULL)
        return 0;
    int r = offer_read(o->check.offer, offer, err);
    return r < 0 ? r : offer_lease(offer, &demand, job, err);
}

static int run_check(const struct verb_options *o)
{
    struct prepared_job j;
    struct job_options job = o->job;
    struct offer offer = {0};
    struct err err = {0};
    uint64_t least = 0;
    int r = job_load_spec(&job, &j, &err), code = EXIT_DONE;
    if (r == 0)
        r = take_offer(o, j.spec, &offer, &job, &err);
    if (r == 0)
        r = check_output(o, &j, &err);
    if (r == 0)
        r = job_prepare(&job, &j, &err);
    if (r == 0)
        r = job_least_capacity(&job, &j, &least, &err);
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
    offer_finish(&offer);
    return code;
}

static const struct worker_option rows[] = {
    {"offer", "JSON", "check the job for a daemon, whose answer to the request `devices` this is",
     OPTION_TEXT, OPTION_AT(check.offer)},
    {0},
};

static const struct option_table options = {"what to check for", rows};

const struct worker_verb verb_check = {
    .word = {"check", "JOB.json", .kind = OPTION_TEXT, .at = OPTION_AT(job.spec_path)},
    .forms = {{"JOB.json [options]", "check that a job is valid and fits"}},
    .tables = {&options, &precision_table},
    .where = where_all,
    .run = run_check,
};
