/* Implements time_cache.h: reads and writes the cache of measured times. An example of the file:
 *     {"schema":"times/v1","backend":"cpu","device":"...","threads":2,"link":{...},
 *      "layers":[["dense 784x1024 bias relu dx",64,0.0011,0.0023,1700000000], ...],
 *      "updates":[["adamw 3215360",0.0009,0.0008,1700000000], ...]}
 */
#include "daemon/worker/probe/time_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/crc32c.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "base/strbuf.h"
#include "daemon/spec/spec.h"
#include "daemon/worker/probe/discover.h"
#include "scheduler/table.h"

#define CACHE_MAX   (16u << 20)
#define MAX_ENTRIES 100000
#define MAX_SECONDS 1e6

/* ---- names ---- */

static const char *instruction_set(void)
{
    if (__builtin_cpu_supports("avx512f"))
        return "avx512";
    if (__builtin_cpu_supports("avx2"))
        return "avx2";
    return __builtin_cpu_supports("avx") ? "avx" : "sse2";
}

void time_cache_cpu(char *ret, size_t size)
{
    char line[512], model[64] = "cpu";
    const char *most = getenv("ONEDNN_MAX_CPU_ISA"); /* limits the instruction set that oneDNN uses */
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *colon = strchr(line, ':');
        if (colon == NULL || strncmp(line, "model name", 10) != 0)
            continue;
        snprintf(model, sizeof model, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f != NULL)
        fclose(f);
    snprintf(ret, size, "%s %s%s%.16s", model, instruction_set(), most != NULL ? " at most " : "",
             most != NULL ? most : "");
}

/* Writes a hash of all settings of a layer to `ret`, or "" for a simple layer. A layer with a sequence or
 * with inner layers has more settings than its description in the cache shows, so the hash is added to the
 * description. */
static void describe_rest(const struct layer *l, char ret[16])
{
    struct strbuf b = {0};

    ret[0] = '\0';
    if (layer_seq(l) <= 1 && l->n_inner == 0)
        return;
    spec_layer_json(l, &b);
    snprintf(ret, 16, " #%08" PRIx32, crc32c(0, b.at, b.n));
    strbuf_finish(&b);
}

/* Settings of a layer that change how long the layer takes, but not the sizes of its input and output.
 * time_shape_layer includes these settings in the text that describes the layer. */
struct time_words {
    bool bias;
    enum act act;
    float dropout;
};

static struct time_words words_of(const struct layer *l)
{
    if (l->type == &layer_activation)
        return (struct time_words){.act = l->activation.act};
    if (l->type == &layer_attention)
        return (struct time_words){.bias = l->attention.bias, .dropout = l->attention.dropout};
    if (l->type == &layer_dense)
        return (struct time_words){l->dense.bias, l->dense.act, l->dense.dropout};
    if (l->type == &layer_dropout)
        return (struct time_words){.dropout = l->dropout.p};
    if (l->type == &layer_mlp)
        return (struct time_words){l->mlp.bias, l->mlp.act, l->mlp.dropout};
    if (l->type == &layer_norm)
        return (struct time_words){.bias = l->norm.bias};
    if (l->type == &layer_positions)
        return (struct time_words){.dropout = l->positions.dropout};
    return (struct time_words){0};
}

/* Returns the word for a type in a description. Floats have no word, because they were once the only type. */
static const char *type_word(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? " bf16" : dtype == DTYPE_F16 ? " fp16" : "";
}

void time_shape_layer(const struct layer *l, bool dx, char ret[TIME_SHAPE_MAX])
{
    const struct time_words w = words_of(l);
    char rest[16];

    describe_rest(l, rest);
    snprintf(ret, TIME_SHAPE_MAX, "%s %ux%u%s%s%s%s%s%s%s", layer_type(l)->name, layer_in(l), layer_out(l),
             w.bias ? " bias" : "", w.act != ACT_NONE ? " " : "", w.act != ACT_NONE ? act_names[w.act] : "",
             w.dropout > 0 ? " dropout" : "", rest, dx ? " dx" : "", type_word(l->dtype));
}

void time_shape_update(const struct optimizer *o, enum dtype w_dtype, uint64_t w_bytes,
                       char ret[TIME_SHAPE_MAX])
{
    snprintf(ret, TIME_SHAPE_MAX, "%s%s %" PRIu64 "%s", optimizer_names[o->kind],
             o->kind == OPTIMIZER_SGD && o->momentum > 0 ? " momentum" : "", w_bytes, type_word(w_dtype));
}

static uint64_t hash_text(uint64_t h, const char *s)
{
    do
        h = (h ^ (unsigned char)*s) * 0x100000001b3ull;
    while (*s++ != '\0');
    return h;
}

int time_cache_path(const struct time_place *place, char *ret, size_t size, struct err *err)
{
    char name[64], threads[16];
    uint64_t h = hash_text(hash_text(0xcbf29ce484222325ull, place->backend), place->device);
    snprintf(threads, sizeof threads, "%u", place->threads);
    snprintf(name, sizeof name, "times-%016" PRIx64 ".json", hash_text(h, threads));
    return cache_file(name, ret, size, err);
}

/* ---- entries ---- */

const struct time_entry *time_cache_find(const struct time_cache *c, const char *shape, uint32_t rows)
{
    for (size_t i = 0; i < c->entries.n; i++)
        if (c->entries.at[i].rows == rows && strcmp(c->entries.at[i].shape, shape) == 0)
            return &c->entries.at[i];
    return NULL;
}

void time_cache_put(struct time_cache *c, const struct time_entry *e)
{
    struct time_entry *there = (struct time_entry *)time_cache_find(c, e->shape, e->rows);
    if (there != NULL)
        *there = *e;
    else
        vec_push(&c->entries, *e);
}

void time_cache_finish(struct time_cache *c)
{
    vec_free(&c->entries);
    *c = (struct time_cache){0};
}

/* ---- reading ---- */

/* Reads one entry of the file, ["shape", rows, first_s, second_s, at_s], into the cache. The entry of an
 * optimizer update has no rows. */
static int read_entry(struct time_cache *c, const struct json *row, bool layer, const char *path,
                      struct err *err)
{
    struct time_entry e = {0};
    const struct json *v = json_array_first(row);
    const char *shape;
    uint64_t rows = 0;
    if (json_type(row) != JSON_ARRAY || json_array_size(row) != (layer ? 5 : 4))
        return err_set_at(err, -EINVAL, path, "is not an entry");
    int r = json_string(v, path, &shape, err);
    if (r == 0 && layer)
        r = json_u64(v = json_array_next(v), path, &rows, err);
    if (r == 0)
        r = json_double(v = json_array_next(v), path, &e.first_s, err);
    if (r == 0)
        r = json_double(v = json_array_next(v), path, &e.second_s, err);
    if (r == 0)
        r = json_u64(json_array_next(v), path, &e.at_s, err);
    if (r < 0)
        return r;
    if (strlen(shape) >= sizeof e.shape || rows > INT32_MAX || (layer && rows == 0) || !(e.first_s >= 0) ||
        !(e.second_s >= 0) || e.first_s > MAX_SECONDS || e.second_s > MAX_SECONDS)
        return err_set_at(err, -EINVAL, path, "has a value that is out of range");
    strcpy(e.shape, shape);
    e.rows = (uint32_t)rows;
    time_cache_put(c, &e);
    return 0;
}

static int read_entries(struct time_cache *c, const struct json *list, const char *name, bool layer,
                        struct err *err)
{
    char path[64];
    size_t i = 0;
    if (json_type(list) != JSON_ARRAY || json_array_size(list) > MAX_ENTRIES)
        return err_set_at(err, -EINVAL, name, "must be an array of at most %d entries", MAX_ENTRIES);
    for (const struct json *row = json_array_first(list); row != NULL; row = json_array_next(row)) {
        json_path_index(path, sizeof path, name, i++);
        int r = read_entry(c, row, layer, path, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_cache(struct time_cache *c, const struct json *doc, struct err *err)
{
    struct json_obj o, link;
    const struct json *links = NULL, *layers = NULL, *updates = NULL;
    const char *schema = "", *backend = "", *device = "";
    uint64_t threads = 0;
    json_obj_begin(&o, doc, "", err);
    if (json_take_string(&o, "schema", JSON_REQUIRED, &schema) && strcmp(schema, "times/v1") != 0)
        json_fail(&o, "schema", -EINVAL, "is not times/v1");
    json_take_string(&o, "backend", JSON_REQUIRED, &backend);
    json_take_string(&o, "device", JSON_REQUIRED, &device);
    json_take_u64(&o, "threads", JSON_REQUIRED, &threads);
    json_take(&o, "link", JSON_REQUIRED, &links);
    json_take(&o, "layers", JSON_REQUIRED, &layers);
    json_take(&o, "updates", JSON_REQUIRED, &updates);
    int r = json_obj_end(&o);
    if (r < 0)
        return r;
    if (strcmp(backend, c->place.backend) != 0 || strcmp(device, c->place.device) != 0 ||
        threads != c->place.threads)
        return err_set(err, -EINVAL, "is about another device");
    json_obj_begin(&link, links, "link", err);
    json_take_u64(&link, "swap_bytes_per_s", JSON_OPTIONAL, &c->link_bytes_per_s);
    json_take_u64(&link, "p2p_bytes_per_s", JSON_OPTIONAL, &c->peer_bytes_per_s);
    json_take_u64(&link, "host_copy_bytes_per_s", JSON_OPTIONAL, &c->host_copy_bytes_per_s);
    r = json_obj_end(&link);
    if (r == 0)
        r = read_entries(c, layers, "layers", true, err);
    return r < 0 ? r : read_entries(c, updates, "updates", false, err);
}

void time_cache_load(const struct time_place *place, struct time_cache *ret)
{
    char path[PATH_MAX], *text = NULL, why[sizeof(struct err)];
    struct json *doc = NULL;
    struct err err = {0};
    size_t bytes;
    *ret = (struct time_cache){.place = *place};
    if (time_cache_path(place, path, sizeof path, &err) < 0 ||
        fs_read_text(AT_FDCWD, path, CACHE_MAX, &text, &bytes) < 0)
        return;
    int r = json_parse(text, bytes, path, false, &doc, &err);
    if (r == 0)
        r = read_cache(ret, doc, &err);
    if (r < 0) {
        log_warning("%s: the cache of measured times is not used (%s); `tutti profile` makes it anew", path,
                    err_text(&err, why, sizeof why));
        time_cache_finish(ret);
        ret->place = *place;
    }
    json_free(doc);
    free(text);
}

/* ---- writing ---- */

static void add_rate(struct strbuf *b, const char *key, uint64_t v)
{
    if (v > 0)
        strbuf_addf(b, "%s\"%s\":%" PRIu64, b->at[b->n - 1] == '{' ? "" : ",", key, v);
}

static void add_entries(struct strbuf *b, const struct time_cache *c, bool layers)
{
    bool first = true;
    for (size_t i = 0; i < c->entries.n; i++) {
        const struct time_entry *e = &c->entries.at[i];
        if ((e->rows > 0) != layers)
            continue;
        strbuf_addf(b, "%s\n[", first ? "" : ",");
        strbuf_add_json(b, e->shape);
        if (layers)
            strbuf_addf(b, ",%u", e->rows);
        strbuf_addf(b, ",%.17g,%.17g,%" PRIu64 "]", e->first_s, e->second_s, e->at_s);
        first = false;
    }
}

int time_cache_store(const struct time_cache *c, struct err *err)
{
    char path[PATH_MAX];
    struct strbuf b = {0};
    int r = time_cache_path(&c->place, path, sizeof path, err);
    if (r < 0)
        return r;
    strbuf_addf(&b, "{\"schema\":\"times/v1\",\"backend\":");
    strbuf_add_json(&b, c->place.backend);
    strbuf_add(&b, ",\"device\":");
    strbuf_add_json(&b, c->place.device);
    strbuf_addf(&b, ",\"threads\":%u,\"link\":{", c->place.threads);
    add_rate(&b, "swap_bytes_per_s", c->link_bytes_per_s);
    add_rate(&b, "p2p_bytes_per_s", c->peer_bytes_per_s);
    add_rate(&b, "host_copy_bytes_per_s", c->host_copy_bytes_per_s);
    strbuf_add(&b, "},\n\"layers\":[");
    add_entries(&b, c, true);
    strbuf_add(&b, "],\n\"updates\":[");
    add_entries(&b, c, false);
    strbuf_add(&b, "]}\n");
    r = cache_write(path, b.at, b.n, err);
    strbuf_finish(&b);
    return r;
}

/* ---- the table of a model ---- */

/* Returns the measured times of layer `l` for micro-batches of `rows` samples. Returns NULL if they were not
 * measured. */
static const struct time_entry *find_layer(const struct time_cache *c, const struct model *m, uint32_t l,
                                           uint32_t first_trained, uint32_t rows)
{
    char shape[TIME_SHAPE_MAX];
    time_shape_layer(&m->layers[l], l > first_trained, shape);
    return time_cache_find(c, shape, rows);
}

/* Returns the index of the first layer with weights. The backward passes of this layer and of earlier layers
 * do not compute the gradient of their input, because nothing would use the gradient. */
static uint32_t first_trained(const struct model *m)
{
    for (uint32_t l = 0; l < m->n_layers; l++) {
        struct layer_sizes size;
        layer_type(&m->layers[l])->sizes(&m->layers[l], 1, &size);
        if (size.w > 0)
            return l;
    }
    return m->n_layers;
}

/* Returns whether every layer of the model was measured for micro-batches of `rows` samples. */
static bool measured_at(const struct time_cache *c, const struct model *m, uint32_t trained, uint32_t rows)
{
    for (uint32_t l = 0; l < m->n_layers; l++)
        if (find_layer(c, m, l, trained, rows) == NULL)
            return false;
    return true;
}

/* Inserts the micro-batch size `rows` into the sizes of the axis, which are in ascending order. Does nothing
 * if the axis already has this size. */
static void add_size(struct table_axis *axis, uint32_t rows)
{
    uint32_t i = axis->n;
    for (uint32_t k = 0; k < axis->n; k++)
        if (axis->sizes[k] == rows)
            return;
    for (; i > 0 && axis->sizes[i - 1] > rows; i--)
        axis->sizes[i] = axis->sizes[i - 1];
    axis->sizes[i] = rows;
    axis->n++;
}

static void find_sizes(const struct time_cache *c, const struct model *m, uint32_t trained, struct table *t)
{
    t->fwd.sizes = arena_alloc_array(t->arena, c->entries.n + 1, sizeof *t->fwd.sizes);
    for (size_t i = 0; i < c->entries.n; i++) {
        const struct time_entry *e = &c->entries.at[i];
        if (e->rows > 0 && t->fwd.n < TABLE_MAX_SAMPLES && find_layer(c, m, 0, trained, e->rows) == e &&
            measured_at(c, m, trained, e->rows))
            add_size(&t->fwd, e->rows);
    }
    t->bwd = t->fwd_bytes = t->bwd_bytes = t->input = t->fwd;
}

static void keep_oldest(uint64_t *at, const struct time_entry *e)
{
    if (e->at_s < *at)
        *at = e->at_s;
}

/* Sets the size of a layer's optimizer state and lists its parts. */
static void fill_state(struct table *t, struct table_layer *to, const struct optimizer *o,
                       const struct layer_sizes *size)
{
    struct state_part parts[OPTIMIZER_PARTS];
    const uint32_t n = optimizer_parts(o, layer_w_elements(size), parts);
    to->k = n > 0 ? parts[n - 1].end : 0;
    if (n < 2 || to->k == 0)
        return;
    to->n_k_parts = n;
    to->k_parts = arena_alloc_array(t->arena, n, sizeof *to->k_parts);
    for (uint32_t p = 0; p < n; p++)
        to->k_parts[p] = parts[p].end - parts[p].begin;
}

static void fill_layer(const struct time_cache *c, const struct model *m, const struct optimizer *o,
                       uint32_t trained, uint32_t l, struct table *t, uint64_t *at)
{
    struct table_layer *to = &t->layers[l];
    struct layer_sizes size;
    char shape[TIME_SHAPE_MAX];
    double **arrays[] = {&to->input_bytes, &to->fwd_s, &to->bwd_s, &to->fwd_bytes, &to->bwd_bytes};
    for (int i = 0; i < 5; i++)
        *arrays[i] = arena_alloc_array(t->arena, t->fwd.n, sizeof(double));
    for (uint32_t i = 0; i < t->fwd.n; i++) {
        const struct time_entry *e = find_layer(c, m, l, trained, t->fwd.sizes[i]);
        layer_type(&m->layers[l])->sizes(&m->layers[l], t->fwd.sizes[i], &size);
        to->input_bytes[i] = (double)size.x;
        to->fwd_s[i] = e->first_s;
        to->bwd_s[i] = e->first_s + (l >= trained ? e->second_s : 0);
        to->fwd_bytes[i] = (double)(size.w + size.x + size.y + size.scratch_fwd);
        to->bwd_bytes[i] = (double)(size.w + layer_dw_bytes(&size) + 2 * size.x + size.s + size.scratch_bwd);
        keep_oldest(at, e);
    }
    to->w = size.w;
    if (!m->layers[l].tied)
        fill_state(t, to, o, &size);
    time_shape_update(o, size.w_dtype, size.w, shape);
    const struct time_entry *update = size.w > 0 ? time_cache_find(c, shape, 0) : NULL;
    if (update != NULL) {
        to->update_cpu_s = update->first_s;
        to->update_gpu_s = update->second_s;
        keep_oldest(at, update);
    }
}

struct table *time_cache_table(const struct time_cache *c, const struct model *m, const struct optimizer *o,
                               uint64_t *ret_at)
{
    struct arena *arena = arena_create();
    struct table *t = arena_alloc(arena, sizeof *t);
    uint32_t trained = first_trained(m);
    t->arena = arena;
    find_sizes(c, m, trained, t);
    if (t->fwd.n == 0) {
        arena_destroy(arena);
        return NULL;
    }
    snprintf(t->device, sizeof t->device, "%.79s", c->place.device);
    t->dtype = m->layers[0].dtype; /* all layers have the same */
    t->link_bytes_per_s = c->link_bytes_per_s;
    t->peer_bytes_per_s = c->peer_bytes_per_s;
    t->host_copy_bytes_per_s = c->host_copy_bytes_per_s;
    t->n_layers = m->n_layers;
    t->dtype = m->layers[0].dtype;
    t->layers = arena_alloc_array(arena, m->n_layers, sizeof *t->layers);
    *ret_at = UINT64_MAX;
    for (uint32_t l = 0; l < m->n_layers; l++)
        fill_layer(c, m, o, trained, l, t, ret_at);
    return t;
}
