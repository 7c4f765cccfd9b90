/* Loads the spec of a job, opens its data, makes its phases, and finds the sizes that an earlier run
 * resolved. job_machine.c, job_profile.c and job_plan.c do the other parts of job_prepare.
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

#include "base/arena.h"
#include "base/clock.h"
#include "daemon/worker/model/checkpoint.h"
#include "daemon/worker/model/hf.h"
#include "daemon/worker/model/weights.h"

#define RESOLVED_MAX (64u << 20)

/* Returns whether the job is planned in another way than its spec says. An earlier run of the job in the
 * output directory is then of no interest. */
static bool is_comparison(const struct job_options *o)
{
    return o->as_backprop || o->precision != NULL;
}

int job_load_spec(const struct job_options *o, struct prepared_job *ret, struct err *err)
{
    *ret = (struct prepared_job){0};
    struct spec_options how = {.base_dir = o->dir, .precision = o->precision, .read_folder = hf_read_folder};
    int r;
    if (o->spec_json != NULL) {
        how.accepted = true;
        r = spec_read(o->spec_json, &how, &ret->spec, err);
    } else {
        how.comments = true;
        r = spec_load(o->spec_path, &how, &ret->spec, err);
    }
    if (r < 0)
        return r;
    if (o->as_backprop)
        ret->spec->method = METHOD_backprop;
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
    fs_path(path, sizeof path, out->name, RUN_RESOLVED_FILE);
    return err_set_at(
        err, -EBADMSG, path,
        "damaged: %s; remove this file and run the job again: it is written anew, and the checkpoints know "
        "what it said",
        why);
}

/* Reads resolved.json. *ret receives its text, which the caller frees. `ret_sizes` receives the micro-batch
 * sizes and the numbers of replicas of the `n` phases. If there is no such file, *ret becomes NULL and
 * `ret_sizes` stays unchanged. */
static int read_resolved(const struct outdir *out, char **ret, uint32_t n, struct spec_sizes *ret_sizes,
                         struct err *err)
{
    struct err why = {0};
    size_t bytes;
    *ret = NULL;
    int r = fs_read_text(out->fd, RUN_RESOLVED_FILE, RESOLVED_MAX, ret, &bytes);
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return fs_fail(err, r, out->name, RUN_RESOLVED_FILE, "read");
    r = spec_resolved_sizes(*ret, bytes, n, ret_sizes, &why);
    if (r < 0) {
        char text[sizeof why.path + sizeof why.msg];
        r = fail_damaged(out, err_text(&why, text, sizeof text), err);
        free(*ret);
        *ret = NULL;
    }
    return r;
}

int job_check_precision(const struct outdir *out, const struct spec *s, const char *resolved, struct err *err)
{
    enum spec_precision old = s->precision;
    spec_resolved_precision(resolved, strlen(resolved), &old);
    if (old == s->precision)
        return 0;
    return err_set_at(err, -EEXIST, out->name,
                      "the output holds a run with the precision %s, and this job has %s; a run keeps its "
                      "precision, so choose another output, or write \"precision\": \"%s\"",
                      spec_precision_names[old], spec_precision_names[s->precision],
                      spec_precision_names[old]);
}

/* Reports that resolved.json differs from this spec. `before` is the text of resolved.json. If the newest
 * checkpoint has the same spec as the job, resolved.json is damaged. Otherwise the output directory belongs
 * to another job. */
static int fail_other_spec(const struct outdir *out, const struct spec *s, const char *before,
                           struct err *err)
{
    char *text = NULL;
    uint64_t hash = 0;
    bool ours = checkpoint_resolved(out, &text, &hash) == 0 && hash == spec_hash(s);
    free(text);
    if (ours)
        return fail_damaged(out, "it differs from what the newest checkpoint has", err);
    int r = job_check_precision(out, s, before, err);
    if (r < 0)
        return r;
    return err_set_at(
        err, -EEXIST, out->name,
        "the output belongs to a job with another spec (see %s there); choose another output, or remove "
        "that directory to start afresh",
        RUN_RESOLVED_FILE);
}

int job_compare_resolved(const struct outdir *out, const struct spec *s, bool *ret_there, struct err *err)
{
    struct strbuf b = {0};
    struct spec_sizes *sizes = xcalloc(s->resolved.n_phases, sizeof *sizes);
    char *before;
    int r = read_resolved(out, &before, s->resolved.n_phases, sizes, err);
    xfree(sizes);
    if (r < 0)
        return r;
    spec_resolved_json(s, &b);
    strbuf_add(&b, "\n");
    *ret_there = before != NULL;
    if (before != NULL && strcmp(before, b.at) != 0)
        r = fail_other_spec(out, s, before, err);
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

/* Finds the micro-batch sizes and the numbers of replicas that "auto" chose in the job's first run. They are
 * in resolved.json, or else in the newest checkpoint. `ret` stays unchanged if the job never ran. */
static int earlier_sizes(const struct prepared_job *j, struct spec_sizes *ret, struct err *err)
{
    struct outdir out;
    char *text;
    uint64_t hash;
    if (open_existing(j, &out) < 0)
        return 0;
    int r = read_resolved(&out, &text, j->phases.n, ret, err);
    if (r == 0 && text == NULL && checkpoint_resolved(&out, &text, &hash) == 0)
        r = spec_resolved_sizes(text, strlen(text), j->phases.n, ret, err);
    free(text);
    close(out.fd);
    return r;
}

/* Returns whether the micro-batch size or the number of replicas of any phase is "auto". */
static bool has_auto(const struct phase_list *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (list->at[i].asked.micro_batch == 0 || list->at[i].asked.replicas == 0)
            return true;
    return false;
}

/* Sets the micro-batch size and the number of replicas of a phase. If the spec says "auto" for one of these
 * numbers, the number comes from `earlier`, the sizes in an earlier run of the job. If there was no earlier
 * run, the number becomes 0, and "auto" still has to choose it. */
static int resolve_phase(struct prepared_job *j, struct phase *p, struct spec_sizes earlier, struct err *err)
{
    struct spec_sizes sizes = p->asked;
    if (sizes.micro_batch == 0)
        sizes.micro_batch = earlier.micro_batch;
    if (sizes.replicas == 0)
        sizes.replicas = earlier.replicas;
    p->resolved_now = sizes.micro_batch == 0 || sizes.replicas == 0;
    return job_resolve_phase(j, p, sizes, err);
}

/* Makes the phases of the job and resolves their sizes. */
static int make_phases(const struct job_options *o, struct prepared_job *j, struct err *err)
{
    int r = spec_resolve(j->spec, (struct spec_sizes){0}, j->train->n_samples, j->train->crc, err);
    if (r == 0)
        r = phases_make(j->spec, &j->phases, err);
    if (r < 0)
        return r;
    struct spec_sizes *earlier = xcalloc(j->phases.n, sizeof *earlier);
    if (has_auto(&j->phases) && !is_comparison(o))
        r = earlier_sizes(j, earlier, err);
    for (uint32_t i = 0; r == 0 && i < j->phases.n; i++)
        r = resolve_phase(j, &j->phases.at[i], earlier[i], err);
    xfree(earlier);
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
    int r = job_open(o, j, err);
    if (r == 0)
        r = job_choose_profile(o, j, err);
    if (r == 0)
        r = make_phases(o, j, err);
    if (r < 0)
        return r;
    uint64_t begin = clock_now_ns();
    r = job_plan(o, j, err);
    j->plan_s = (double)(clock_now_ns() - begin) * 1e-9;
    return r < 0 || is_comparison(o) ? r : check_resolved(j, err);
}

struct phase *job_largest_phase(const struct prepared_job *j)
{
    return &j->phases.at[phases_largest(&j->phases)];
}

uint64_t job_total_steps(const struct prepared_job *j)
{
    return phases_steps_before(&j->phases, j->phases.n);
}

bool job_is_break(const struct prepared_job *j, const struct phase *p, uint64_t steps_done)
{
    const struct spec *s = j->spec;
    return spec_due(s, &s->checkpoint.every, p->batch, steps_done) ||
           (j->val != NULL && p->eval != PHASE_EVAL_NONE && spec_due(s, &s->eval, p->batch, steps_done));
}

uint32_t job_run_steps(const struct prepared_job *j, const struct phase *p, uint64_t steps_done)
{
    uint32_t steps = p->cycle_steps;
    if (p->steps < steps_done + steps)
        return 1;
    for (uint32_t i = 1; i < steps; i++)
        if (job_is_break(j, p, steps_done + i))
            return 1;
    return steps;
}

uint64_t job_master_bytes(const struct layer *l)
{
    struct layer_sizes size;
    layer_type(l)->sizes(l, 1, &size);
    return l->tied ? 0 : layer_w_elements(&size) * sizeof(float);
}

uint64_t job_kept_bytes(const struct layer *l)
{
    struct layer_sizes size;
    layer_type(l)->sizes(l, 1, &size);
    return job_master_bytes(l) + size.b;
}

bool job_parks_master(const struct phase *p, uint32_t at)
{
    const struct graph_layer *g = &p->graph->layers[at];
    if (g->size.w_dtype == DTYPE_F32 || job_master_bytes(&p->model.layers[at]) == 0)
        return false;
    return g->n_parts == 0 || !g->parts[0].is_master;
}

uint64_t job_parked_bytes(const struct prepared_job *j)
{
    const struct phase *only = &j->phases.at[0];
    uint64_t bytes = 0;
    for (uint32_t l = 0; j->phases.n > 1 && l < j->phases.all.n_layers; l++)
        bytes += job_kept_bytes(&j->phases.all.layers[l]);
    for (uint32_t l = 0; j->phases.n == 1 && only->graph != NULL && l < only->model.n_layers; l++)
        bytes += job_parks_master(only, l) ? job_kept_bytes(&only->model.layers[l]) : 0;
    return bytes;
}

/* Returns the bytes of the outputs that the forward-only phase `p` keeps. */
static uint64_t phase_outputs_bytes(const struct prepared_job *j, const struct phase *p)
{
    const struct layer *last = &p->model.layers[p->model.n_layers - 1];
    uint64_t samples = j->train->n_samples;
    struct layer_sizes size;
    if (p->training)
        return 0;
    if (j->val != NULL && phases_keep_val(&j->phases, p->number))
        samples += j->val->n_samples;
    layer_type(last)->sizes(last, 1, &size);
    return samples * size.y;
}

uint64_t job_most_outputs_bytes(const struct prepared_job *j)
{
    uint64_t most = 0, all = 0;
    for (uint32_t i = 0; i < j->phases.n; i++) {
        /* While a phase computes its outputs, the outputs that it reads exist, too. */
        const struct phase *p = &j->phases.at[i];
        uint64_t bytes = phase_outputs_bytes(j, p);
        all = p->keep_as != NULL ? all + bytes : all;
        if (p->inputs != PHASE_DATA)
            bytes += phase_outputs_bytes(j, &j->phases.at[p->inputs]);
        most = bytes > most ? bytes : most;
    }
    return all > most ? all : most;
}

bool job_outputs_in_memory(const struct prepared_job *j)
{
    for (uint32_t i = 0; i < j->phases.n; i++)
        if (j->phases.at[i].keep_as != NULL)
            return false;
    return job_host_bytes(j) + job_most_outputs_bytes(j) <= j->machine.host_bytes;
}

uint64_t job_host_bytes(const struct prepared_job *j)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < j->phases.n; i++)
        most = phase_host_bytes(&j->phases.at[i]) > most ? phase_host_bytes(&j->phases.at[i]) : most;
    return most + j->machine.host_taken_bytes;
}

void job_finish(struct prepared_job *j)
{
    phases_finish(&j->phases);
    table_destroy(j->table);
    dataset_close(j->train);
    dataset_close(j->val);
    spec_destroy(j->spec);
    *j = (struct prepared_job){0};
}
