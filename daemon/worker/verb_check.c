/* --check: everything that can be known before running: the spec, its files, shapes, labels, and whether it
 * fits. */
#include "base/err.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"

int verb_check(const struct verb_options *o)
{
    struct job j;
    struct err err = {0};
    uint64_t least = 0;
    int r = job_load_spec(&o->job, &j, &err), code = EXIT_DONE;
    if (r == 0)
        r = job_prepare(&o->job, &j, &err);
    if (r == 0)
        r = job_least_capacity(&o->job, &j, &least, &err);
    if (r < 0)
        code = report_error(o, r, &err, j.least_bytes, true);
    else
        code = report_check(&j, least, o->json);
    job_finish(&j);
    return code;
}
