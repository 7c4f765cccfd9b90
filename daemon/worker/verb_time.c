/* --time: measures how long each layer of a job takes on the device, at several micro-batch sizes, how long
 * its update takes on host and device, and how fast the links are. Prints the times, stores them for later
 * plans (probe/time_cache.h), and writes them as a profile when --out is given.
 *
 * Layers of the same shape are measured once. What the cache already has is measured again only with
 * --force.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/print.h"
#include "base/utf8.h"
#include "daemon/worker/probe/discover.h"
#include "daemon/worker/probe/measure.h"
#include "daemon/worker/probe/time_cache.h"
#include "daemon/worker/probe/time_layers.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"
#include "scheduler/table.h"

/* Number of micro-batch sizes to measure if --micro-batches is not given. These sizes are powers of two. */
#define SOME_SIZES 6
/* Size in bytes of the smallest copy that is measured. Smaller copies would take almost the same time. */
#define LEAST_COPY (1ull << 20)

/* A shape of a layer or of an optimizer update that occurs in the job. Layers of the same shape take the same
 * time, so each shape is measured only once. */
struct kind {
    char shape[TIME_SHAPE_MAX];
    uint32_t layer; /* the first layer with this shape */
    uint32_t count; /* number of layers with this shape */
    bool update;    /* a shape of an update */
    bool dx;        /* the backward pass computes dX, too */
};

/* The state of --time. */
struct timing {
    const struct verb_options *o;
    struct prepared_job job;
    struct time_cache cache;
    VEC(struct kind) kinds;
    uint32_t sizes[TIME_MAX_SIZES], n_sizes;
    uint32_t todo, done; /* measurements in total and so far */
    uint32_t kept;       /* measurements that the cache already has */
    /* True once measuring has begun. A failure after that is not a mistake on the command line. */
    bool began;
    /* Path of the cache file. Empty if the times could not be written to the cache. */
    char path[PATH_MAX];
    struct table *table; /* the times as a profile */
    /* Time at which the oldest of the measurements was made, in seconds since 1970. */
    uint64_t at_s;
};

/* ---- what to measure ---- */

static uint64_t weight_bytes(const struct layer *l)
{
    struct layer_sizes size;
    layer_type(l)->sizes(l, 1, &size);
    return size.w;
}

static void add_kind(struct timing *t, struct kind k)
{
    for (size_t i = 0; i < t->kinds.n; i++) {
        if (t->kinds.at[i].update != k.update || strcmp(t->kinds.at[i].shape, k.shape) != 0)
            continue;
        t->kinds.at[i].count++;
        return;
    }
    k.count = 1;
    vec_push(&t->kinds, k);
}

static void find_kinds(struct timing *t)
{
    const struct spec *s = t->job.spec;
    bool trained = false;
    for (uint32_t l = 0; l < s->model.n_layers; l++) {
        struct kind k = {.layer = l, .dx = trained};
        time_shape_layer(&s->model.layers[l], k.dx, k.shape);
        add_kind(t, k);
        trained |= weight_bytes(&s->model.layers[l]) > 0;
    }
    for (uint32_t l = 0; l < s->model.n_layers; l++) {
        struct kind k = {.layer = l, .update = true};
        time_shape_update(&s->optimizer, s->model.layers[l].w_dtype, weight_bytes(&s->model.layers[l]),
                          k.shape);
        if (weight_bytes(&s->model.layers[l]) > 0)
            add_kind(t, k);
    }
}

/* Returns how many bytes of memory are enough to measure any layer of the job with micro-batches of `rows`
 * samples. If `updates` is true, returns how many bytes are enough to measure any optimizer update of the job
 * instead. */
static uint64_t most_bytes(const struct timing *t, uint32_t rows, bool updates)
{
    const struct spec *s = t->job.spec;
    uint64_t most = 0;
    for (size_t i = 0; i < t->kinds.n; i++) {
        const struct kind *k = &t->kinds.at[i];
        const struct layer *l = &s->model.layers[k->layer];
        uint64_t bytes = k->update ? timer_update_bytes(&s->optimizer, l->w_dtype, weight_bytes(l))
                                   : timer_layer_bytes(l, rows);
        if (k->update == updates && bytes > most)
            most = bytes;
    }
    return most;
}

/* Returns how many bytes of device memory the measurements may use. On a virtual device, the measurements may
 * use more than the job itself, because the amount of memory does not change the measured times. */
static uint64_t device_limit(const struct timing *t)
{
    const struct machine *m = &t->job.machine;
    return t->job.real_devices ? m->capacity_bytes[0] : m->host_bytes / 4;
}

static bool fits(const struct timing *t, uint32_t rows)
{
    return most_bytes(t, rows, false) <= device_limit(t);
}

static void add_micro_batch(struct timing *t, uint32_t rows)
{
    uint32_t i = t->n_sizes;
    for (uint32_t k = 0; k < t->n_sizes; k++)
        if (t->sizes[k] == rows)
            return;
    if (t->n_sizes == TIME_MAX_SIZES)
        return;
    for (; i > 0 && t->sizes[i - 1] > rows; i--)
        t->sizes[i] = t->sizes[i - 1];
    t->sizes[i] = rows;
    t->n_sizes++;
}

/* Chooses the micro-batch sizes to measure: the SOME_SIZES largest powers of two that fit the device, and the
 * job's own micro-batch size. */
static void choose_sizes(struct timing *t)
{
    uint32_t batch = t->job.spec->train.global_batch, rows = 1, own = t->job.spec->train.micro_batch;
    while (rows <= batch / 2 && fits(t, 2 * rows))
        rows *= 2;
    for (int i = 0; i < SOME_SIZES && rows > 0; i++, rows /= 2)
        if (fits(t, rows))
            add_micro_batch(t, rows);
    if (own > 0 && fits(t, own))
        add_micro_batch(t, own);
}

static int find_micro_batches(struct timing *t, struct err *err)
{
    const struct verb_options *o = t->o;
    for (uint32_t i = 0; i < o->time.n_sizes; i++)
        if (fits(t, o->time.sizes[i]))
            add_micro_batch(t, o->time.sizes[i]);
        else
            return err_set_at(err, -ENOSPC, "--micro-batches",
                              "%u needs %" PRIu64 " bytes for one layer, but the device has %" PRIu64,
                              o->time.sizes[i], most_bytes(t, o->time.sizes[i], false), device_limit(t));
    if (o->time.n_sizes == 0)
        choose_sizes(t);
    if (t->n_sizes == 0)
        return err_set_at(err, -ENOSPC, "resources.device_memory",
                          "one layer of one sample needs %" PRIu64 " bytes, but the device has %" PRIu64,
                          most_bytes(t, 1, false), device_limit(t));
    return 0;
}

static bool is_known(const struct timing *t, const struct kind *k, uint32_t rows)
{
    return !t->o->time.force && time_cache_find(&t->cache, k->shape, rows) != NULL;
}

/* ---- measuring ---- */

static void show_progress(struct timing *t, const char *what, uint32_t rows)
{
    t->done++;
    if (t->o->quiet || t->o->json)
        return;
    if (rows > 0)
        print_status("measuring %u of %u: %s, micro-batch %u", t->done, t->todo, what, rows);
    else
        print_status("measuring %u of %u: %s", t->done, t->todo, what);
}

static int measure_kind(struct timing *t, struct timer *timer, const struct kind *k, uint32_t rows,
                        struct err *err)
{
    const struct spec *s = t->job.spec;
    const struct layer *l = &s->model.layers[k->layer];
    struct time_entry e = {.rows = rows, .at_s = (uint64_t)time(NULL)};
    if (is_known(t, k, rows))
        return 0;
    show_progress(t, k->shape, rows);
    strcpy(e.shape, k->shape);
    int r = k->update ? timer_update(timer, &s->optimizer, l->w_dtype, weight_bytes(l), &e.first_s,
                                     &e.second_s, err)
                      : timer_layer(timer, l, k->dx, rows, &e.first_s, &e.second_s, err);
    if (r == 0)
        time_cache_put(&t->cache, &e);
    return r;
}

static int measure_kinds(struct timing *t, struct timer *timer, struct err *err)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < t->kinds.n; i++) {
        const struct kind *k = &t->kinds.at[i];
        for (uint32_t u = 0; r == 0 && u < (k->update ? 1 : t->n_sizes); u++)
            r = measure_kind(t, timer, k, k->update ? 0 : t->sizes[u], err);
    }
    return r;
}

/* Returns the size of the copies to measure, in bytes. For real devices, the size is MEASURE_BYTES. For
 * virtual devices, the copies are as large as the job's largest block of weights, because plans move such
 * blocks. */
static uint64_t copy_bytes(const struct timing *t)
{
    const struct model *m = &t->job.spec->model;
    uint64_t bytes = LEAST_COPY;
    for (uint32_t l = 0; l < m->n_layers; l++)
        if (weight_bytes(&m->layers[l]) > bytes)
            bytes = weight_bytes(&m->layers[l]) & ~(uint64_t)(PLAN_ALIGN - 1);
    return t->job.real_devices || bytes > MEASURE_BYTES ? MEASURE_BYTES : bytes;
}

static int measure_links(struct timing *t, struct err *err)
{
    struct discovery *d = malloc(sizeof *d); /* 50 KiB */
    if (d == NULL)
        return err_set(err, -ENOMEM, "no memory to look at the machine");
    show_progress(t, "copies between host and devices", 0);
    int r = discover(t->o->job.backend, NULL, DEVICES_ALL, d, err);
    if (r == 0)
        r = measure_copies(&d->topology, 2, copy_bytes(t), err);
    if (r == 0) {
        uint64_t in = d->topology.link_in_bytes_per_s, out = d->topology.link_out_bytes_per_s;
        t->cache.link_bytes_per_s = in < out ? in : out;
        t->cache.peer_bytes_per_s = d->topology.peer_bytes_per_s;
    }
    free(d);
    return r;
}

/* Counts how many measurements must be made, and how many the cache already has. */
static void count_work(struct timing *t)
{
    for (size_t i = 0; i < t->kinds.n; i++) {
        const struct kind *k = &t->kinds.at[i];
        for (uint32_t u = 0; u < (k->update ? 1 : t->n_sizes); u++) {
            bool known = is_known(t, k, k->update ? 0 : t->sizes[u]);
            t->kept += known;
            t->todo += !known;
        }
    }
}

static int open_timer(const struct timing *t, struct timer **ret, struct err *err)
{
    uint64_t layers = most_bytes(t, t->sizes[t->n_sizes - 1], false), updates = most_bytes(t, 1, true);
    uint64_t most = layers > updates ? layers : updates, limit = device_limit(t);
    uint64_t device = most <= limit ? most : layers;
    uint64_t spare = limit - device < TIMER_COLD_BYTES ? limit - device : TIMER_COLD_BYTES;
    struct timer_config c = {.backend = t->job.backend,
                             .dtype = spec_dtype(t->job.spec->precision),
                             .tf32 = t->job.spec->precision == PRECISION_TF32,
                             .device_index = t->job.real_devices ? t->job.device_index : NULL,
                             .threads = t->job.threads,
                             .bytes = most,
                             .device_bytes = (device + spare) & ~(uint64_t)(PLAN_ALIGN - 1)};
    return timer_open(&c, ret, err);
}

static int measure_all(struct timing *t, struct err *err)
{
    bool links = t->o->time.force || t->cache.link_bytes_per_s == 0;
    struct timer *timer = NULL;
    count_work(t);
    t->todo += links;
    if (t->todo == 0)
        return 0;
    t->began = true;
    int r = links ? measure_links(t, err) : 0;
    if (r == 0)
        r = open_timer(t, &timer, err);
    if (r == 0 && links)
        t->cache.host_copy_bytes_per_s = timer_host_copy(timer);
    if (r == 0)
        r = measure_kinds(t, timer, err);
    timer_close(timer);
    print_status_end(PRINT_CLEAR);
    return r;
}

/* Stores the measured times in the cache. If this fails, the function only prints a warning, because the
 * times themselves are printed anyway. */
static void save_times(struct timing *t)
{
    struct err err = {0};
    char text[sizeof err];
    int r = t->done > 0 ? time_cache_store(&t->cache, &err) : 0;
    if (r == 0)
        r = time_cache_path(&t->cache.place, t->path, sizeof t->path, &err);
    if (r == 0)
        return;
    t->path[0] = '\0';
    log_warning("the measurements could not be saved: %s", err_text(&err, text, sizeof text));
}

/* ---- printing ---- */

static void add_seconds(struct strbuf *b, double s)
{
    if (s >= 1)
        strbuf_addf(b, " %9.3f s ", s);
    else if (s >= 1e-3)
        strbuf_addf(b, " %9.3f ms", s * 1e3);
    else
        strbuf_addf(b, " %9.1f us", s * 1e6);
}

static void add_layers(struct strbuf *b, const struct timing *t)
{
    strbuf_addf(b, "%-40s %6s %11s %12s %12s %10s\n", "layer", "layers", "micro-batch", "forward", "backward",
                "us/row");
    for (size_t i = 0; i < t->kinds.n; i++) {
        const struct kind *k = &t->kinds.at[i];
        for (uint32_t u = 0; !k->update && u < t->n_sizes; u++) {
            const struct time_entry *e = time_cache_find(&t->cache, k->shape, t->sizes[u]);
            if (u == 0)
                strbuf_addf(b, "%-40s %6u", k->shape, k->count);
            else
                strbuf_addf(b, "%-40s %6s", "", "");
            strbuf_addf(b, " %11u", t->sizes[u]);
            add_seconds(b, e->first_s);
            add_seconds(b, e->second_s);
            strbuf_addf(b, " %10.2f\n", (e->first_s + e->second_s) * 1e6 / t->sizes[u]);
        }
    }
}

static void add_updates(struct strbuf *b, const struct timing *t)
{
    strbuf_addf(b, "%-40s %6s %11s %12s %12s\n", "update (bytes of weights)", "layers", "", "on the host",
                "on device");
    for (size_t i = 0; i < t->kinds.n; i++) {
        const struct kind *k = &t->kinds.at[i];
        if (!k->update)
            continue;
        const struct time_entry *e = time_cache_find(&t->cache, k->shape, 0);
        strbuf_addf(b, "%-40s %6u %11s", k->shape, k->count, "");
        add_seconds(b, e->first_s);
        add_seconds(b, e->second_s);
        strbuf_add(b, "\n");
    }
}

static void add_times_text(struct strbuf *b, const struct timing *t)
{
    strbuf_addf(b, "%s on %s: %s, %u thread%s; %u measured, %u from before\n", t->job.spec->name,
                t->job.backend, t->job.device_kind, t->job.threads, t->job.threads == 1 ? "" : "s", t->done,
                t->kept);
    add_layers(b, t);
    add_updates(b, t);
    strbuf_add(b, "links: host and device ");
    strbuf_add_bytes(b, t->cache.link_bytes_per_s);
    strbuf_add(b, "/s each way, between devices ");
    strbuf_add_bytes(b, t->cache.peer_bytes_per_s);
    strbuf_add(b, "/s, within the host ");
    strbuf_add_bytes(b, t->cache.host_copy_bytes_per_s);
    strbuf_add(b, "/s\n");
    if (t->path[0] != '\0') {
        strbuf_add(b, "plans of jobs with such layers use these times (");
        strbuf_add_text(b, t->path);
        strbuf_add(b, ")\n");
    }
}

static void add_times_json(struct strbuf *b, const struct timing *t)
{
    strbuf_add(b, "{\"ok\":true,\"name\":");
    strbuf_add_json(b, t->job.spec->name);
    report_backend_members(&t->job, b);
    strbuf_add(b, ",\"device\":");
    strbuf_add_json(b, t->job.device_kind);
    strbuf_addf(b, ",\"threads\":%u,\"measured\":%u,\"kept\":%u,\"cache\":", t->job.threads, t->done,
                t->kept);
    if (t->path[0] != '\0')
        strbuf_add_json(b, t->path);
    else
        strbuf_add(b, "null");
    strbuf_add(b, ",\"profile\":");
    table_to_json(t->table, b);
    strbuf_add(b, "}\n");
}

static int write_profile(const struct timing *t, struct err *err)
{
    struct strbuf b = {0};
    if (t->o->time.profile_path == NULL)
        return 0;
    table_to_json(t->table, &b);
    strbuf_add(&b, "\n");
    int r = discover_write_file(t->o->time.profile_path, b.at, b.n, err);
    strbuf_finish(&b);
    return r;
}

/* ---- the verb ---- */

static int look_at_job(struct timing *t, struct err *err)
{
    const struct job_options *o = &t->o->job;
    struct time_place place = {0};
    int r = job_load_spec(o, &t->job, err);
    if (r == 0 && o->machine != NULL)
        r = err_set(err, -EINVAL, "--time looks at this machine: it does not go with --machine");
    if (r == 0)
        r = job_open(o, &t->job, err);
    if (r < 0)
        return r;
    if (t->job.device_kind[0] == '\0')
        return err_set(err, -ENODEV, "the device has no name that its times could be kept under");
    job_time_place(&t->job, &place);
    time_cache_load(&place, &t->cache);
    find_kinds(t);
    return find_micro_batches(t, err);
}

/* Makes a profile table of the micro-batch sizes that were asked for. Other sizes in the cache are left
 * out. */
static void make_table(struct timing *t)
{
    struct time_cache asked = {.place = t->cache.place,
                               .link_bytes_per_s = t->cache.link_bytes_per_s,
                               .peer_bytes_per_s = t->cache.peer_bytes_per_s,
                               .host_copy_bytes_per_s = t->cache.host_copy_bytes_per_s};
    for (size_t i = 0; i < t->cache.entries.n; i++) {
        const struct time_entry *e = &t->cache.entries.at[i];
        bool wanted = e->rows == 0;
        for (uint32_t u = 0; u < t->n_sizes; u++)
            wanted |= e->rows == t->sizes[u];
        if (wanted)
            time_cache_put(&asked, e);
    }
    t->table = time_cache_table(&asked, &t->job.spec->model, &t->job.spec->optimizer, &t->at_s);
    utf8_copy(t->table->model, sizeof t->table->model, t->job.spec->name);
    time_cache_finish(&asked);
}

static int print_times(const struct timing *t)
{
    struct strbuf b = {0};
    if (t->o->json)
        add_times_json(&b, t);
    else
        add_times_text(&b, t);
    return print_buffer(&b);
}

static int run_time(const struct verb_options *o)
{
    struct timing t = {.o = o};
    struct err err = {0};
    int r = look_at_job(&t, &err), code;
    if (r == 0)
        r = measure_all(&t, &err);
    if (r == 0) {
        save_times(&t);
        make_table(&t);
        t.began = true;
        r = write_profile(&t, &err);
    }
    code = r < 0 ? report_error(o, r, &err, 0, !t.began) : print_times(&t);
    table_destroy(t.table);
    vec_free(&t.kinds);
    time_cache_finish(&t.cache);
    job_finish(&t.job);
    return code;
}

/* Reads a list of micro-batch sizes such as "1,2,4,8". The sizes must be in ascending order. */
static int parse_sizes(const char *text, struct verb_options *o, struct err *err)
{
    struct time_options *t = &o->time;
    const char *at = text;
    t->n_sizes = 0;
    for (;;) {
        char *end;
        errno = 0;
        unsigned long v = strtoul(at, &end, 10);
        bool ascends = t->n_sizes == 0 || v > t->sizes[t->n_sizes - 1];
        if (errno != 0 || at[0] < '0' || at[0] > '9' || v < 1 || v > SPEC_MAX_DIM || !ascends ||
            (*end != ',' && *end != '\0'))
            return err_set_at(err, -EINVAL, "--micro-batches",
                              "expected sizes that ascend, such as 1,2,4,8; found \"%s\"", text);
        if (t->n_sizes == TIME_MAX_SIZES)
            return err_set_at(err, -EINVAL, "--micro-batches", "at most %d sizes", TIME_MAX_SIZES);
        t->sizes[t->n_sizes++] = (uint32_t)v;
        if (*end == '\0')
            return 0;
        at = end + 1;
    }
}

static const struct worker_option rows[] = {
    {"micro-batches", "LIST",
     "micro-batch sizes, e.g. 1,2,4,8 (default: the powers of two that fit, up to the batch)", OPTION_PARSED,
     .parse = parse_sizes},
    {"force", NULL, "measure layers again that were measured before", OPTION_FLAG, OPTION_AT(time.force)},
    {"out", "FILE", "write a profile", OPTION_TEXT, OPTION_AT(time.profile_path)},
    {0},
};

static const struct option_table options = {"what to time", rows};

const struct worker_verb verb_time = {
    .word = {"time", "JOB.json", .kind = OPTION_TEXT, .at = OPTION_AT(job.spec_path)},
    .forms = {{"JOB.json [options]", "measure the layers of a job, for later plans"}},
    .tables = {&options},
    .where = where_all,
    .run = run_time,
};
