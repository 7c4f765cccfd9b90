/* Makes a job ready: from a file name to a verified plan. See job.h for the order of calls.
 *
 * micro_batch "auto" is resolved here: the largest divisor of a replica's part of the global batch, up to AUTO_ROWS, with which
 * a plan fits, or a smaller one that is faster because less is computed twice, or as fast with far less to move; replicas
 * "auto" is one. Both change bits, so --run stores them in the output (resolved.json), and from then on these values count.
 */
#include "daemon/worker/job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/worker/checkpoint.h"
#include "scheduler/bound.h"
#include "scheduler/simulate.h"
#include "scheduler/verify.h"

#define RESOLVED_MAX    (64u << 20)
#define AUTO_ROWS       128 /* more rows bring no more speed to a GEMM of a cpu device */
#define AUTO_LEAST_ROWS 16  /* fewer are slow */
#define AUTO_TASKS      (1u << 16)
#define AUTO_TRIES      4  /* that fit */
#define AUTO_WORTH      50 /* one part in: less is no reason for smaller ones */
#define AUTO_AS_FAST    200 /* one part in: no slower than that */
#define AUTO_FEW_TOKENS 512 /* products of fewer are slower by more than moving less would bring */
#define AUTO_RUNS       3  /* enough for the steady state to show */
#define MAX_DIVISORS    1536
#define COMPARE_TASKS   (1u << 14) /* of a step: with these `lru` is planned in about a second */
#define COMPARE_LAYERS  (1u << 10)

int job_load_spec(const struct job_options *o, struct job *ret, struct err *err)
{
    *ret = (struct job){0};
    int r = o->spec_text != NULL
                ? spec_parse_accepted(o->spec_text, strlen(o->spec_text), "spec", o->dir, &ret->spec, err)
                : spec_load_in(o->spec_path, o->dir, &ret->spec, err);
    if (r < 0)
        return r;
    ret->output = o->output != NULL ? o->output : ret->spec->output;
    return 0;
}

static int open_data(struct job *j, struct err *err)
{
    int r = dataset_open(j->spec, DATA_TRAIN, &j->train, err);
    if (r == 0 && spec_has_val(j->spec))
        r = dataset_open(j->spec, DATA_VAL, &j->val, err);
    return r;
}

/* The replicas are resolved. */
static int build_graph(const struct spec *s, uint32_t micro_batch, bool training, struct graph **ret,
                       struct err *err)
{
    const struct graph_config c = {
        .model = &s->model,
        .optimizer = &s->optimizer,
        .rows = micro_batch,
        .n_micro = s->train.global_batch / micro_batch,
        .n_replicas = s->resolved.replicas,
        .training = training,
        .skip_nonfinite = s->train.skip_nonfinite,
    };
    return graph_build(&c, ret, err);
}

int job_plain_graph(const struct job *j, struct graph **ret, struct err *err)
{
    struct spec plain = *j->spec;
    plain.optimizer.clip = 0;
    plain.train.skip_nonfinite = false;
    return build_graph(&plain, j->spec->resolved.micro_batch, true, ret, err);
}

static void drop_graphs(struct job *j)
{
    graph_destroy(j->graph);
    graph_destroy(j->eval_graph);
    j->graph = j->eval_graph = NULL;
}

struct plan_request job_request(const struct job_options *o, const struct job *j)
{
    return (struct plan_request){
        .train = j->graph,
        .eval = j->eval_graph,
        .machine = &j->machine,
        .policy = o->policy >= 0 ? (enum policy_id)o->policy : j->spec->memory.policy,
        .update = o->update >= 0 ? (enum update_place)o->update : j->spec->memory.update,
        .table = j->table,
        .objective = o->objective,
    };
}

static int resolve(struct job *j, struct spec_sizes sizes, struct err *err)
{
    return spec_resolve(j->spec, sizes, j->train->n_samples, j->train->crc, err);
}

/* Resolves with this micro-batch and plans. */
static int plan_with(const struct job_options *o, struct job *j, uint32_t micro_batch, struct err *err)
{
    drop_graphs(j);
    int r = resolve(j, (struct spec_sizes){micro_batch, j->spec->resolved.replicas}, err);
    if (r == 0)
        r = build_graph(j->spec, micro_batch, true, &j->graph, err);
    if (r == 0)
        r = build_graph(j->spec, micro_batch, false, &j->eval_graph, err);
    if (r < 0)
        return r;
    struct plan_request request = job_request(o, j);
    return plan_make(&request, &j->plan, &j->least_bytes, err);
}

static int compare_u32(const void *pa, const void *pb)
{
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    return a < b ? -1 : a > b;
}

/* Ascending; a number below 2^32 has at most MAX_DIVISORS. */
static uint32_t find_divisors(uint32_t of, uint32_t ret[MAX_DIVISORS])
{
    uint32_t n = 0;
    for (uint64_t k = 1; k * k <= of; k++) {
        if (of % k != 0)
            continue;
        ret[n++] = (uint32_t)k;
        if (k * k != of)
            ret[n++] = (uint32_t)(of / k);
    }
    qsort(ret, n, sizeof *ret, compare_u32);
    return n;
}

/* What "auto" may become, the best first: the divisors of a replica's rows that a GEMM likes, largest first; then
 * larger ones, smallest first; then smaller ones, which are slow. None that would make a plan of more tasks
 * than AUTO_TASKS. */
static uint32_t auto_rows(const struct spec *s, uint32_t ret[MAX_DIVISORS])
{
    uint32_t divisors[MAX_DIVISORS], n_ret = 0;
    uint32_t batch = s->train.global_batch, n = find_divisors(batch / s->resolved.replicas, divisors),
             low = 0, high = n;
    while (low < n && divisors[low] < AUTO_LEAST_ROWS)
        low++;
    while (high > low && divisors[high - 1] > AUTO_ROWS)
        high--;
    for (uint32_t i = high; i-- > low;)
        ret[n_ret++] = divisors[i];
    for (uint32_t i = high; i < n; i++)
        ret[n_ret++] = divisors[i];
    for (uint32_t i = low; i-- > 0;)
        if (2ull * s->model.n_layers * (batch / divisors[i]) <= AUTO_TASKS)
            ret[n_ret++] = divisors[i];
    return n_ret;
}

/* Of the plan at hand, by analytic times. */
static uint64_t predict_ns(const struct job_options *o, const struct job *j)
{
    struct plan_request request = job_request(o, j);
    struct profile *times = plan_profile(&request);
    struct sim_result *sim = plan_simulate(j->plan, PROGRAM_CYCLE, AUTO_RUNS, times, &j->machine);
    uint64_t ns = sim->cycle_ns;
    sim_destroy(sim);
    profile_destroy(times);
    return ns;
}

static uint64_t rows_of_products(const struct spec *s, uint32_t rows)
{
    return (uint64_t)rows * (s->seq > 0 ? s->seq : 1);
}

/* A size that fits, and its plan. */
struct choice {
    uint32_t rows;
    uint64_t ns, bytes; /* bytes: to and from the host in a step */
};

static struct choice choice_of(const struct job_options *o, const struct job *j, uint32_t rows)
{
    struct plan_bytes b;
    plan_count_bytes(j->plan, PROGRAM_CYCLE, &b);
    return (struct choice){rows, predict_ns(o, j), b.in + b.out};
}

/* Whether the smaller size is better: faster, or as fast with a third less to move. */
static bool is_better(const struct spec *s, const struct choice *a, const struct choice *than)
{
    if (a->ns < than->ns - than->ns / AUTO_WORTH)
        return true;
    return rows_of_products(s, a->rows) >= AUTO_FEW_TOKENS && a->ns <= than->ns + than->ns / AUTO_AS_FAST &&
           a->bytes < than->bytes / 3 * 2;
}

/* The first that fits; or a later one that is better, if its products are no slower for being smaller. When none fits, *ret is
 * the one that needs least, and the answer -ENOSPC. */
static int choose_rows(const struct job_options *o, struct job *j, uint32_t *ret, struct err *err)
{
    uint32_t rows[MAX_DIVISORS], n = auto_rows(j->spec, rows), fit = 0;
    uint64_t least = UINT64_MAX;
    struct choice best = {0};
    bool resident = false;
    *ret = j->spec->resolved.micro_batch;
    for (uint32_t i = 0; i < n && fit < AUTO_TRIES && !resident; i++) {
        if (fit > 0 && rows_of_products(j->spec, rows[i]) < AUTO_ROWS)
            break;
        j->least_bytes = 0; /* stays so when it is host memory that lacks */
        int r = plan_with(o, j, rows[i], err);
        if (r == 0) {
            struct choice c = choice_of(o, j, rows[i]);
            resident = strcmp(j->plan->policy, policy_names[POLICY_resident]) == 0;
            if (fit++ == 0 || is_better(j->spec, &c, &best)) {
                best = c;
                *ret = rows[i];
            }
            plan_destroy(j->plan);
            j->plan = NULL;
            continue;
        }
        if (r != -ENOSPC)
            return r;
        uint64_t needs = j->least_bytes > 0 ? j->least_bytes : UINT64_MAX;
        if (fit == 0 && (needs < least || (needs == least && rows[i] < *ret))) {
            least = needs;
            *ret = rows[i];
        }
    }
    return fit > 0 ? 0 : -ENOSPC;
}

/* Measured times may not choose what changes bits. */
static int plan_auto(const struct job_options *o, struct job *j, struct err *err)
{
    struct table *measured = j->table;
    uint32_t rows;
    j->table = NULL;
    int r = choose_rows(o, j, &rows, err);
    j->table = measured;
    return r == 0 || r == -ENOSPC ? plan_with(o, j, rows, err) : r;
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

/* The text of resolved.json, malloc'ed, and the sizes in it; NULL and zeros when there is none. */
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

/* resolved.json has another text than this spec. When a checkpoint of this very spec lies beside it, the
 * file is damaged. */
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

/* The output as it is, if it is: --check and --plan make none. */
static int open_existing(const struct job *j, struct outdir *ret)
{
    *ret = (struct outdir){open(j->output, O_RDONLY | O_DIRECTORY | O_CLOEXEC), j->output};
    return ret->fd;
}

/* What "auto" meant when the job was first run; zeros when it never was. Where resolved.json was removed,
 * the newest checkpoint knows. */
static int earlier_sizes(const struct job *j, struct spec_sizes *ret, struct err *err)
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

/* The spec's, and for "auto" what it meant before; 0: it is still to be resolved. */
static int known_sizes(const struct job *j, struct spec_sizes *ret, struct err *err)
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

static int check_output(const struct job *j, struct err *err)
{
    struct outdir out;
    bool there;
    if (open_existing(j, &out) < 0)
        return 0;
    int r = job_compare_resolved(&out, j->spec, &there, err);
    close(out.fd);
    return r;
}

int job_open(const struct job_options *o, struct job *j, struct err *err)
{
    int r = open_data(j, err);
    return r < 0 ? r : job_choose_machine(o, j, err);
}

int job_prepare(const struct job_options *o, struct job *j, struct err *err)
{
    struct spec_sizes sizes;
    int r = job_open(o, j, err);
    if (r == 0)
        r = job_choose_profile(o, j, err);
    if (r == 0)
        r = known_sizes(j, &sizes, err);
    if (r == 0)
        r = resolve(j, sizes, err);
    if (r < 0)
        return r;
    uint64_t begin = clock_now_ns();
    j->resolved_now = sizes.micro_batch == 0;
    r = j->resolved_now ? plan_auto(o, j, err) : plan_with(o, j, sizes.micro_batch, err);
    if (r < 0)
        return r;
    r = plan_verify(j->plan, j->graph, j->eval_graph, &j->machine, NULL, err);
    j->plan_s = (double)(clock_now_ns() - begin) * 1e-9;
    return r < 0 ? r : check_output(j, err);
}

static int least_capacity_with(const struct job_options *o, const struct job *j, uint32_t rows,
                               uint64_t *ret_bytes, struct err *err)
{
    struct job other = *j; /* borrows all but the graphs */
    other.graph = other.eval_graph = NULL;
    int r = build_graph(j->spec, rows, true, &other.graph, err);
    if (r == 0)
        r = build_graph(j->spec, rows, false, &other.eval_graph, err);
    if (r == 0) {
        struct plan_request request = job_request(o, &other);
        r = plan_least_capacity(&request, ret_bytes, err);
    }
    drop_graphs(&other);
    return r;
}

int job_least_capacity(const struct job_options *o, const struct job *j, uint64_t *ret_bytes, struct err *err)
{
    uint32_t rows[MAX_DIVISORS], n = j->resolved_now ? auto_rows(j->spec, rows) : 1;
    uint64_t least = UINT64_MAX;
    if (!j->resolved_now)
        rows[0] = j->spec->resolved.micro_batch;
    /* All of them: fewer rows do not always need less, since a batch at once has no next micro-batch. */
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes;
        int r = least_capacity_with(o, j, rows[i], &bytes, err);
        if (r < 0)
            return r;
        least = bytes < least ? bytes : least;
    }
    *ret_bytes = least;
    return 0;
}

static int count_lru(struct plan_request *request, struct plan_bytes *ret, struct err *err)
{
    struct plan *p = NULL;
    const struct graph *g = request->train;
    if (g->n_tasks > COMPARE_TASKS || g->n_layers > COMPARE_LAYERS)
        return err_set(err, -E2BIG, "%u tasks on %u layers are many; up to %u on %u are compared", g->n_tasks,
                       g->n_layers, COMPARE_TASKS, COMPARE_LAYERS);
    int r = plan_make(request, &p, NULL, err);
    if (r == -ENOSPC && request->update == UPDATE_AUTO) {
        request->update = UPDATE_HOST;
        r = plan_make(request, &p, NULL, err);
    }
    if (r == 0)
        plan_count_bytes(p, PROGRAM_CYCLE, ret);
    plan_destroy(p);
    return r;
}

void job_compare(const struct job_options *o, struct job *j)
{
    struct plan_request request = job_request(o, j);
    struct job_comparison *ret = &j->comparison;
    *ret = (struct job_comparison){.bound_bytes = bound_bytes(j->plan)};
    request.policy = POLICY_lru;
    request.eval = NULL; /* of no interest here */
    ret->has_lru = count_lru(&request, &ret->lru, &ret->lru_err) == 0;
}

void job_finish(struct job *j)
{
    plan_destroy(j->plan);
    drop_graphs(j);
    table_destroy(j->table);
    dataset_close(j->train);
    dataset_close(j->val);
    spec_destroy(j->spec);
    *j = (struct job){0};
}
