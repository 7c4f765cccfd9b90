/* Chooses the task durations that a job's plans are chosen by. They decide which plan runs, but never change
 * the results.
 *
 * The first of these that exists is used:
 *     1. the profile that --profile names
 *     2. the profile that $TUTTI_PROFILE names, so that plans can be compared without the cache
 *     3. the cached times of such layers on such devices, which --time measured (probe/time_cache.h)
 *     4. analytic times, computed by formulas
 * --profile none and TUTTI_PROFILE=none ask for analytic times.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/utf8.h"
#include "daemon/worker/job.h"
#include "daemon/worker/probe/time_cache.h"
#include "scheduler/table.h"

int job_read_profile(const char *path, struct table **ret, struct err *err)
{
    char *text;
    size_t bytes;
    int r = fs_read_text(AT_FDCWD, path, JSON_MAX_BYTES, &text, &bytes);
    if (r < 0)
        return err_set_at(err, r, path, "the profile cannot be read: %s", strerror(-r));
    r = table_parse(text, bytes, path, ret, err);
    free(text);
    /* err->path may be a place inside the file, such as a JSON path. Replace it by the file's name, and put
     * the place into the message. */
    if (r < 0 && strncmp(err->path, path, strlen(path)) != 0) {
        struct err inside = *err;
        err_set_at(err, r, path, "%s%s%s", inside.path, inside.path[0] != '\0' ? ": " : "", inside.msg);
    }
    return r;
}

/* Checks that the profile table was measured for this model, because the times of another model would be
 * meaningless. */
static int check_file(const struct prepared_job *j, const char *path, struct err *err)
{
    const struct model *m = &j->spec->model;
    if (j->table->n_layers != m->n_layers)
        return err_set_at(err, -EINVAL, path, "is a profile of %u layers, but the model has %u",
                          j->table->n_layers, m->n_layers);
    if (j->table->dtype != m->layers[0].dtype)
        return err_set_at(err, -EINVAL, path,
                          "is a profile of numbers of type %s, but with the precision %s the job has %s",
                          dtype_names[j->table->dtype], spec_precision_names[j->spec->precision],
                          dtype_names[m->layers[0].dtype]);
    for (uint32_t l = 0; l < m->n_layers; l++) {
        struct layer_sizes size;
        layer_type(&m->layers[l])->sizes(&m->layers[l], 1, &size);
        if (j->table->layers[l].w != size.w)
            return err_set_at(err, -EINVAL, path,
                              "is of another model: layer %u has %" PRIu64 " bytes of weights there, %" PRIu64
                              " in the job",
                              l, j->table->layers[l].w, size.w);
    }
    return 0;
}

static void say(struct prepared_job *j, enum job_profile which, const char *reason)
{
    j->profile = which;
    utf8_scrub(j->profile_reason, sizeof j->profile_reason, reason);
}

static int use_file(struct prepared_job *j, const char *path, struct err *err)
{
    int r = job_read_profile(path, &j->table, err);
    if (r == 0)
        r = check_file(j, path, err);
    say(j, JOB_FILE, path);
    return r;
}

/* A device that rounds factors to TF32 counts as another device, because all its times differ. */
void job_time_place(const struct prepared_job *j, struct time_place *ret)
{
    *ret = (struct time_place){.threads = j->threads};
    snprintf(ret->backend, sizeof ret->backend, "%s", j->backend);
    snprintf(ret->device, sizeof ret->device, "%.90s%s", j->device_kind,
             j->spec->precision == PRECISION_TF32 ? " TF32" : "");
}

static void use_cache(struct prepared_job *j)
{
    struct time_place place;
    struct time_cache c;
    uint64_t at = 0;
    time_t seconds;
    struct tm day;
    char date[32] = "";
    if (j->device_kind[0] == '\0') {
        say(j, JOB_ANALYTIC, "nothing is known of that device");
        return;
    }
    job_time_place(j, &place);
    time_cache_load(&place, &c);
    j->table = time_cache_table(&c, &j->spec->model, &j->spec->optimizer, &at);
    time_cache_finish(&c);
    if (j->table == NULL) {
        say(j, JOB_ANALYTIC, "such layers were not measured on such a device; `tutti profile` does that");
        return;
    }
    seconds = (time_t)at;
    if (gmtime_r(&seconds, &day) != NULL)
        strftime(date, sizeof date, "%Y-%m-%d", &day);
    j->profile = JOB_MEASURED;
    snprintf(j->profile_reason, sizeof j->profile_reason, "%s on %s", date, j->device_kind);
}

static uint64_t slower(uint64_t pace, uint64_t measured)
{
    return pace > 0 && pace < measured ? pace : measured;
}

/* Takes the measured rates of links between virtual devices from the profile table. A speed limit in the
 * options can only lower these rates. Real devices and topology files have their own rates. */
static void use_links(const struct job_options *o, struct prepared_job *j)
{
    const struct table *t = j->table;
    if (j->elsewhere || j->real_devices)
        return;
    if (t->link_bytes_per_s > 0) {
        j->machine.link_bytes_per_s = slower(o->link_bytes_per_s, t->link_bytes_per_s);
        j->machine.link_out_bytes_per_s = 0;
    }
    if (t->peer_bytes_per_s > 0)
        j->machine.peer_bytes_per_s = slower(o->peer_bytes_per_s, t->peer_bytes_per_s);
}

/* Tells the simulator the number of processor cores. Each task was measured alone, but virtual devices, host
 * updates and copies share the cores when a job runs. This function is not called for computed durations,
 * because they must give the same plan on every computer, with any number of cores. */
static void use_cores(struct prepared_job *j)
{
    if (j->elsewhere || j->real_devices)
        return;
    uint32_t cores = job_allowed_cores();
    j->machine.cores_by_devices = false;
    j->machine.cores = cores;
    j->machine.device_cores = j->machine.host_cores = j->threads < cores ? j->threads : cores;
    j->machine.core_copy_bytes_per_s = j->table->link_bytes_per_s; /* 0 if it was not measured */
}

int job_choose_profile(const struct job_options *o, struct prepared_job *j, struct err *err)
{
    const char *wanted = o->profile != NULL ? o->profile : getenv("TUTTI_PROFILE");
    int r = 0;
    if (wanted != NULL && strcmp(wanted, "none") == 0)
        say(j, JOB_ANALYTIC, "it was asked for");
    else if (wanted != NULL && wanted[0] != '\0')
        r = use_file(j, wanted, err);
    else
        use_cache(j);
    if (r == 0 && j->table != NULL)
        use_links(o, j);
    if (r == 0 && j->table != NULL)
        use_cores(j);
    return r;
}

const struct table *job_phase_table(const struct prepared_job *j, const struct phase *p)
{
    return p->model.layers == j->spec->model.layers ? j->table : NULL;
}

struct profile *job_times(const struct prepared_job *j, const struct phase *p)
{
    const struct table *table = job_phase_table(j, p);
    return table != NULL ? profile_from_table(table, p->graph, &j->machine)
                         : profile_analytic(p->graph, &j->machine);
}
