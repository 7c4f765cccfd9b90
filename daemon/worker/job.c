/* Loads the spec of a job, opens its data, and finds the sizes that an earlier run resolved. job_machine.c,
 * job_profile.c and job_plan.c do the other parts of job_prepare.
 *
 * The values that "auto" takes for micro_batch and replicas change the bits of the result. The first run
 * therefore stores them in the output (resolved.json), and every later run uses the stored values.
 */
#include "daemon/worker/job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/worker/model/checkpoint.h"
#include "daemon/worker/model/hf.h"

#define RESOLVED_MAX (64u << 20)

int job_load_spec(const struct job_options *o, struct prepared_job *ret, struct err *err)
{
    *ret = (struct prepared_job){0};
    struct spec_options how = {.base_dir = o->dir, .read_folder = hf_read_folder};
    int r;
    if (o->spec_text != NULL) {
        how.accepted = true;
        r = spec_parse(o->spec_text, strlen(o->spec_text), "spec", &how, &ret->spec, err);
    } else {
        how.comments = true;
        r = spec_load(o->spec_path, &how, &ret->spec, err);
    }
    if (r < 0)
        return r;
    ret->output = o->output != NULL ? o->output : ret->spec->output;
    return 0;
}

static int open_data(struct prepared_job *j, struct err *err)
{
    int r = dataset_open(j->spec, DATA_TRAIN, &j->train, err);
    if (r == 0 && spec_has_val(j->spec))
        r = dataset_open(j->spec, DATA_VAL, &j->val, err);
    return r;
}

static int fail_damaged(const struct outdir *out, const char *why, struct err *err)
{
    char path[FS_PATH_BYTES];
    fs_path(path, sizeof path, out->name, JOB_RESOLVED);
    return err_set_at(
        err, -EBADMSG, path,
        "damaged: %s; remove this file and run the job again: it is written anew, and the checkpoints know "
        "what it said",
        why);
}

/* Reads the text of resolved.json, and the micro-batch size and number of replicas in it. The caller frees
 * *ret. If there is no such file, *ret is NULL and both numbers are 0. */
static int read_resolved(const struct outdir *out, char **ret, struct spec_sizes *ret_sizes, struct err *err)
{
    struct err why = {0};
    size_t bytes;
    *ret = NULL;
    *ret_sizes = (struct spec_sizes){0};
    int r = fs_read_text(out->fd, JOB_RESOLVED, RESOLVED_MAX, ret, &bytes);
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return fs_fail(err, r, out->name, JOB_RESOLVED, "read");
    r = spec_resolved_sizes(*ret, bytes, ret_sizes, &why);
    if (r < 0) {
        char text[sizeof why.path + sizeof why.msg];
        r = fail_damaged(out, err_text(&why, text, sizeof text), err);
        free(*ret);
        *ret = NULL;
    }
    return r;
}

/* Reports that resolved.json differs from this spec. If the newest checkpoint has the same spec as the job,
 * resolved.json is damaged. Otherwise the output directory belongs to another job. */
static int fail_other_spec(const struct outdir *out, const struct spec *s, struct err *err)
{
    char *text = NULL;
    uint64_t hash = 0;
    bool ours = checkpoint_resolved(out, &text, &hash) == 0 && hash == spec_hash(s);
    free(text);
    if (ours)
        return fail_damaged(out, "it differs from what the newest checkpoint has", err);
    return err_set_at(
        err, -EEXIST, out->name,
        "the output belongs to a job with another spec (see %s there); choose another output, or remove "
        "that directory to start afresh",
        JOB_RESOLVED);
}

int job_compare_resolved(const struct outdir *out, const struct spec *s, bool *ret_there, struct err *err)
{
    struct strbuf b = {0};
    struct spec_sizes sizes;
    char *before;
    int r = read_resolved(out, &before, &sizes, err);
    if (r < 0)
        return r;
    spec_resolved_json(s, &b);
    strbuf_add(&b, "\n");
    *ret_there = before != NULL;
    if (before != NULL && strcmp(before, b.at) != 0)
        r = fail_other_spec(out, s, err);
    strbuf_finish(&b);
    free(before);
    return r;
}

/* Opens the output directory if it exists. Never creates the directory, because --check and --plan must not
 * write anything. */
static int open_existing(const struct prepared_job *j, struct outdir *ret)
{
    *ret = (struct outdir){open(j->output, O_RDONLY | O_DIRECTORY | O_CLOEXEC), j->output};
    return ret->fd;
}

/* Finds the micro-batch size and the number of replicas that "auto" chose in the job's first run. They are in
 * resolved.json, or else in the newest checkpoint. Both are 0 if the job never ran. */
static int earlier_sizes(const struct prepared_job *j, struct spec_sizes *ret, struct err *err)
{
    struct outdir out;
    char *text;
    uint64_t hash;
    *ret = (struct spec_sizes){0};
    if (open_existing(j, &out) < 0)
        return 0;
    int r = read_resolved(&out, &text, ret, err);
    if (r == 0 && text == NULL && checkpoint_resolved(&out, &text, &hash) == 0)
        r = spec_resolved_sizes(text, strlen(text), ret, err);
    free(text);
    close(out.fd);
    return r;
}

/* Stores the micro-batch size and the number of replicas of the spec in *ret. If one is "auto", takes the
 * number from an earlier run of the job, or 0 if there was none. */
static int known_sizes(const struct prepared_job *j, struct spec_sizes *ret, struct err *err)
{
    struct spec_sizes earlier = {0};
    *ret = (struct spec_sizes){j->spec->train.micro_batch, j->spec->train.replicas};
    int r = ret->micro_batch == 0 || ret->replicas == 0 ? earlier_sizes(j, &earlier, err) : 0;
    if (ret->micro_batch == 0)
        ret->micro_batch = earlier.micro_batch;
    if (ret->replicas == 0)
        ret->replicas = earlier.replicas;
    return r;
}

static int check_resolved(const struct prepared_job *j, struct err *err)
{
    struct outdir out;
    bool there;
    if (open_existing(j, &out) < 0)
        return 0;
    int r = job_compare_resolved(&out, j->spec, &there, err);
    close(out.fd);
    return r;
}

int job_open(const struct job_options *o, struct prepared_job *j, struct err *err)
{
    int r = open_data(j, err);
    return r < 0 ? r : job_choose_machine(o, j, err);
}

int job_prepare(const struct job_options *o, struct prepared_job *j, struct err *err)
{
    struct spec_sizes sizes;
    int r = job_open(o, j, err);
    if (r == 0)
        r = job_choose_profile(o, j, err);
    if (r == 0)
        r = known_sizes(j, &sizes, err);
    if (r == 0)
        r = job_resolve(j, sizes, err);
    if (r < 0)
        return r;
    uint64_t begin = clock_now_ns();
    j->resolved_now = sizes.micro_batch == 0;
    r = job_plan(o, j, sizes.micro_batch, err);
    j->plan_s = (double)(clock_now_ns() - begin) * 1e-9;
    return r < 0 ? r : check_resolved(j, err);
}

void job_finish(struct prepared_job *j)
{
    plan_destroy(j->plan);
    job_drop_graphs(j);
    table_destroy(j->table);
    dataset_close(j->train);
    dataset_close(j->val);
    spec_destroy(j->spec);
    *j = (struct prepared_job){0};
}
