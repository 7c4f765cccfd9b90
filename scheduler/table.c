/* Reads and writes profile tables as JSON (schema profile/v1), and interpolates between their values.
 *
 * The reader is strict, so that a mistake in a file is not taken for a measurement. Wrong types, wrong array
 * lengths, sizes that do not ascend, negative numbers and unknown keys are errors.
 */
#include "scheduler/table.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/json.h"

#define MAX_NUMBER 9007199254740992.0 /* 2^53 */

/* ---- reading ---- */

static int read_numbers(struct arena *a, const struct json *node, const char *path, uint32_t n, double **ret,
                        struct err *err)
{
    if (json_type(node) != JSON_ARRAY)
        return err_set_at(err, -EINVAL, path, "expected an array, found %s", json_type_name(json_type(node)));
    if (json_array_size(node) != n)
        return err_set_at(err, -EINVAL, path, "has %zu numbers, but its list of micro-batch sizes has %u",
                          json_array_size(node), n);
    *ret = arena_alloc_array(a, n, sizeof **ret);
    uint32_t i = 0;
    for (const struct json *v = json_array_first(node); v != NULL; v = json_array_next(v), i++) {
        char at[300];
        json_path_index(at, sizeof at, path, i);
        int r = json_double(v, at, &(*ret)[i], err);
        if (r < 0)
            return r;
        if (!((*ret)[i] >= 0 && (*ret)[i] <= MAX_NUMBER))
            return err_set_at(err, -EINVAL, at, "is %g; it must be between 0 and 2^53", (*ret)[i]);
    }
    return 0;
}

static int read_axis(struct arena *a, const struct json *node, const char *path, struct table_axis *ret,
                     struct err *err)
{
    if (json_type(node) != JSON_ARRAY || json_array_size(node) == 0 ||
        json_array_size(node) > TABLE_MAX_SAMPLES)
        return err_set_at(err, -EINVAL, path, "must be an array of 1 to %d micro-batch sizes",
                          TABLE_MAX_SAMPLES);
    ret->sizes = arena_alloc_array(a, json_array_size(node), sizeof *ret->sizes);
    for (const struct json *v = json_array_first(node); v != NULL; v = json_array_next(v)) {
        char at[300];
        uint64_t size;
        json_path_index(at, sizeof at, path, ret->n);
        int r = json_u64(v, at, &size, err);
        if (r < 0)
            return r;
        if (size == 0 || size > INT32_MAX || (ret->n > 0 && size <= ret->sizes[ret->n - 1]))
            return err_set_at(err, -EINVAL, at,
                              "is %" PRIu64
                              "; micro-batch sizes must be between 1 and %d, in ascending order",
                              size, INT32_MAX);
        ret->sizes[ret->n++] = (uint32_t)size;
    }
    return 0;
}

/* Reads the array at `key`. The array must have one number for each micro-batch size of `axis`. */
static void take_numbers(struct json_obj *o, struct arena *a, const char *key, const struct table_axis *axis,
                         double **ret)
{
    const struct json *node;
    char path[300];
    if (!json_take(o, key, JSON_REQUIRED, &node))
        return;
    json_path_key(path, sizeof path, o->path, key);
    int r = read_numbers(a, node, path, axis->n, ret, o->err);
    if (r < 0)
        o->status = r;
}

static void take_axis(struct json_obj *o, struct arena *a, const char *key, struct table_axis *ret)
{
    const struct json *node;
    if (!json_take(o, key, JSON_REQUIRED, &node))
        return;
    int r = read_axis(a, node, key, ret, o->err);
    if (r < 0)
        o->status = r;
}

static void take_seconds(struct json_obj *o, const char *key, double *ret)
{
    if (json_take_double(o, key, JSON_OPTIONAL, ret) && !(*ret >= 0 && *ret <= MAX_NUMBER))
        json_fail(o, key, -EINVAL, "is %g; it must be between 0 and 2^53", *ret);
}

static void take_owner(struct json_obj *o, struct table *t, uint32_t id)
{
    struct table_layer *l = &t->layers[id];
    uint64_t owner;
    if (!json_take_u64(o, "tied_to", JSON_OPTIONAL, &owner))
        return;
    if (owner >= id || t->layers[owner].tied || t->layers[owner].w != l->w || l->w == 0)
        json_fail(o, "tied_to", -EINVAL,
                  "is %" PRIu64
                  "; it must name an earlier layer that has weights of its own, of the same size",
                  owner);
    else if (l->k > 0)
        json_fail(o, "optimizer_bytes", -EINVAL,
                  "is %" PRIu64 "; it must be 0, because this layer is tied to layer %" PRIu64
                  ", which has the optimizer state",
                  l->k, owner);
    l->tied = true;
    l->owner = (uint32_t)owner;
}

/* Reads the sizes of the parts of the optimizer state. A list with only one part is not stored, because this
 * part is the whole state. */
static void take_parts(struct json_obj *o, struct arena *a, struct table_layer *l)
{
    static const char key[] = "optimizer_part_bytes";
    const struct json *node;
    char path[300];
    uint64_t sum = 0;
    uint32_t n = 0;
    if (!json_take(o, key, JSON_OPTIONAL, &node))
        return;
    if (json_type(node) != JSON_ARRAY || json_array_size(node) == 0 ||
        json_array_size(node) > TABLE_MAX_PARTS) {
        json_fail(o, key, -EINVAL, "must be an array of 1 to %d sizes in bytes", TABLE_MAX_PARTS);
        return;
    }
    uint64_t *parts = arena_alloc_array(a, json_array_size(node), sizeof *parts);
    json_path_key(path, sizeof path, o->path, key);
    for (const struct json *v = json_array_first(node); v != NULL; v = json_array_next(v), n++) {
        char at[320];
        json_path_index(at, sizeof at, path, n);
        int r = json_u64(v, at, &parts[n], o->err);
        if (r < 0) {
            o->status = r;
            return;
        }
        sum += parts[n]; /* cannot overflow: every number is below 2^53 */
    }
    if (sum != l->k) {
        json_fail(o, key, -EINVAL, "adds up to %" PRIu64 ", but optimizer_bytes is %" PRIu64, sum, l->k);
        return;
    }
    l->k_parts = n > 1 ? parts : NULL;
    l->n_k_parts = n > 1 ? n : 0;
}

static int read_layer(struct table *t, const struct json *node, uint32_t id, struct err *err)
{
    struct table_layer *l = &t->layers[id];
    struct json_obj o;
    char path[64];
    uint64_t said = id;
    json_path_index(path, sizeof path, "layers", id);
    json_obj_begin(&o, node, path, err);
    if (json_take_u64(&o, "id", JSON_OPTIONAL, &said) && said != id)
        json_fail(&o, "id", -EINVAL, "is %" PRIu64 ", but this is layer %u", said, id);
    if (json_take_bytes(&o, "weight_bytes", JSON_REQUIRED, &l->w) && t->dtype != DTYPE_F32 &&
        l->w % dtype_size(t->dtype) != 0)
        json_fail(&o, "weight_bytes", -EINVAL,
                  "is %" PRIu64 "; weights of 16 bits have an even number of bytes", l->w);
    json_take_bytes(&o, "buffer_bytes", JSON_OPTIONAL, &l->b);
    json_take_bytes(&o, "optimizer_bytes", JSON_OPTIONAL, &l->k);
    take_parts(&o, t->arena, l);
    take_owner(&o, t, id);
    take_numbers(&o, t->arena, "input_bytes", &t->input, &l->input_bytes);
    take_numbers(&o, t->arena, "fwd_s", &t->fwd, &l->fwd_s);
    take_numbers(&o, t->arena, "bwd_s", &t->bwd, &l->bwd_s);
    take_numbers(&o, t->arena, "fwd_bytes", &t->fwd_bytes, &l->fwd_bytes);
    take_numbers(&o, t->arena, "bwd_bytes", &t->bwd_bytes, &l->bwd_bytes);
    take_seconds(&o, "update_cpu_s", &l->update_cpu_s);
    take_seconds(&o, "update_gpu_s", &l->update_gpu_s);
    return json_obj_end(&o);
}

static int read_layers(struct table *t, const struct json *list, struct err *err)
{
    if (json_type(list) != JSON_ARRAY || json_array_size(list) < 2 ||
        json_array_size(list) > TABLE_MAX_LAYERS)
        return err_set_at(err, -EINVAL, "layers", "must be an array of 2 to %d layers, the loss last",
                          TABLE_MAX_LAYERS);
    t->layers = arena_alloc_array(t->arena, json_array_size(list), sizeof *t->layers);
    for (const struct json *n = json_array_first(list); n != NULL; n = json_array_next(n)) {
        int r = read_layer(t, n, t->n_layers, err);
        if (r < 0)
            return r;
        t->n_layers++;
    }
    return 0;
}

static void take_rate(struct json_obj *o, const char *key, uint64_t *ret)
{
    double v = 0;
    if (!json_take_double(o, key, JSON_OPTIONAL, &v))
        return;
    if (!(v >= 1 && v <= MAX_NUMBER))
        json_fail(o, key, -EINVAL,
                  "is %g; it must be at least 1 and at most 2^53; omit the key if it is not known", v);
    else
        *ret = (uint64_t)v;
}

static int read_link(struct table *t, const struct json *node, struct err *err)
{
    struct json_obj o;
    json_obj_begin(&o, node, "link", err);
    take_rate(&o, "swap_bytes_per_s", &t->link_bytes_per_s);
    take_rate(&o, "p2p_bytes_per_s", &t->peer_bytes_per_s);
    take_rate(&o, "host_copy_bytes_per_s", &t->host_copy_bytes_per_s);
    return json_obj_end(&o);
}

static void take_label(struct json_obj *o, const char *key, char *ret, size_t size)
{
    const char *text;
    if (!json_take_name(o, key, JSON_OPTIONAL, &text))
        return;
    if (strlen(text) >= size)
        json_fail(o, key, -EINVAL, "is %zu bytes long; at most %zu bytes are allowed", strlen(text),
                  size - 1);
    else
        strcpy(ret, text);
}

/* The names of the precisions in job files and profiles, with the type of weights and activations. */
static const struct {
    const char *name;
    enum dtype dtype;
} precisions[] = {{"bf16", DTYPE_BF16}, {"fp16", DTYPE_F16}, {"fp32", DTYPE_F32}};
#define N_PRECISIONS (sizeof precisions / sizeof *precisions)

static void take_precision(struct json_obj *o, enum dtype *ret)
{
    const char *text;
    *ret = DTYPE_F32;
    if (!json_take_string(o, "precision", JSON_OPTIONAL, &text))
        return;
    for (size_t i = 0; i < N_PRECISIONS; i++)
        if (strcmp(text, precisions[i].name) == 0) {
            *ret = precisions[i].dtype;
            return;
        }
    json_fail(o, "precision", -EINVAL, "is \"%s\"; it must be bf16, fp16 or fp32", text);
}

static int read_table(struct table *t, const struct json *doc, struct err *err)
{
    struct json_obj o;
    const struct json *link = NULL, *layers = NULL;
    const char *schema = "profile/v1", *source;
    json_obj_begin(&o, doc, "", err);
    if (json_take_string(&o, "schema", JSON_OPTIONAL, &schema) && strcmp(schema, "profile/v1") != 0)
        json_fail(&o, "schema", -EINVAL, "is \"%s\"; this version reads profile/v1 only", schema);
    take_label(&o, "model", t->model, sizeof t->model);
    take_label(&o, "device", t->device, sizeof t->device);
    json_take_string(&o, "source", JSON_OPTIONAL, &source); /* a note for people; not stored */
    take_precision(&o, &t->dtype);
    take_axis(&o, t->arena, "micro_batch_fwd", &t->fwd);
    take_axis(&o, t->arena, "micro_batch_bwd", &t->bwd);
    take_axis(&o, t->arena, "micro_batch_fwd_bytes", &t->fwd_bytes);
    take_axis(&o, t->arena, "micro_batch_bwd_bytes", &t->bwd_bytes);
    take_axis(&o, t->arena, "micro_batch_input", &t->input);
    json_take(&o, "link", JSON_OPTIONAL, &link);
    json_take(&o, "layers", JSON_REQUIRED, &layers);
    int r = json_obj_end(&o);
    if (r == 0 && link != NULL)
        r = read_link(t, link, err);
    return r == 0 ? read_layers(t, layers, err) : r;
}

int table_parse(const char *text, size_t bytes, const char *name, struct table **ret, struct err *err)
{
    struct json *doc;
    int r = json_parse(text, bytes, name, true, &doc, err);
    if (r < 0)
        return r;
    struct arena *arena = arena_create();
    struct table *t = arena_alloc(arena, sizeof *t);
    t->arena = arena;
    r = read_table(t, doc, err);
    json_free(doc);
    if (r < 0) {
        arena_destroy(arena);
        return r;
    }
    *ret = t;
    return 0;
}

void table_destroy(struct table *t)
{
    if (t != NULL)
        arena_destroy(t->arena);
}

/* ---- writing ---- */

static void add_axis(struct strbuf *b, const char *key, const struct table_axis *axis)
{
    strbuf_addf(b, ",\"%s\":[", key);
    for (uint32_t i = 0; i < axis->n; i++)
        strbuf_addf(b, "%s%u", i ? "," : "", axis->sizes[i]);
    strbuf_addf(b, "]");
}

static void add_numbers(struct strbuf *b, const char *key, const double *v, uint32_t n)
{
    strbuf_addf(b, ",\"%s\":[", key);
    for (uint32_t i = 0; i < n; i++)
        strbuf_addf(b, "%s%.17g", i ? "," : "", v[i]);
    strbuf_addf(b, "]");
}

static void add_rate(struct strbuf *b, const char *key, uint64_t v, bool *first)
{
    if (v == 0)
        return;
    strbuf_addf(b, "%s\"%s\":%" PRIu64, *first ? "" : ",", key, v);
    *first = false;
}

static void add_layer(struct strbuf *b, const struct table *t, uint32_t id)
{
    const struct table_layer *l = &t->layers[id];
    strbuf_addf(b,
                "%s{\"id\":%u,\"weight_bytes\":%" PRIu64 ",\"buffer_bytes\":%" PRIu64
                ",\"optimizer_bytes\":%" PRIu64,
                id ? "," : "", id, l->w, l->b, l->k);
    for (uint32_t i = 0; i < l->n_k_parts; i++)
        strbuf_addf(b, "%s%" PRIu64 "%s", i > 0 ? "," : ",\"optimizer_part_bytes\":[", l->k_parts[i],
                    i + 1 < l->n_k_parts ? "" : "]");
    if (l->tied)
        strbuf_addf(b, ",\"tied_to\":%u", l->owner);
    add_numbers(b, "input_bytes", l->input_bytes, t->input.n);
    add_numbers(b, "fwd_s", l->fwd_s, t->fwd.n);
    add_numbers(b, "bwd_s", l->bwd_s, t->bwd.n);
    add_numbers(b, "fwd_bytes", l->fwd_bytes, t->fwd_bytes.n);
    add_numbers(b, "bwd_bytes", l->bwd_bytes, t->bwd_bytes.n);
    strbuf_addf(b, ",\"update_cpu_s\":%.17g,\"update_gpu_s\":%.17g}", l->update_cpu_s, l->update_gpu_s);
}

void table_to_json(const struct table *t, struct strbuf *out)
{
    bool first = true;
    strbuf_addf(out, "{\"schema\":\"profile/v1\",\"model\":");
    strbuf_add_json(out, t->model);
    strbuf_addf(out, ",\"device\":");
    strbuf_add_json(out, t->device);
    for (size_t i = 0; i < N_PRECISIONS && t->dtype != DTYPE_F32; i++)
        if (precisions[i].dtype == t->dtype)
            strbuf_addf(out, ",\"precision\":\"%s\"", precisions[i].name);
    add_axis(out, "micro_batch_fwd", &t->fwd);
    add_axis(out, "micro_batch_bwd", &t->bwd);
    add_axis(out, "micro_batch_fwd_bytes", &t->fwd_bytes);
    add_axis(out, "micro_batch_bwd_bytes", &t->bwd_bytes);
    add_axis(out, "micro_batch_input", &t->input);
    strbuf_addf(out, ",\"link\":{");
    add_rate(out, "swap_bytes_per_s", t->link_bytes_per_s, &first);
    add_rate(out, "p2p_bytes_per_s", t->peer_bytes_per_s, &first);
    add_rate(out, "host_copy_bytes_per_s", t->host_copy_bytes_per_s, &first);
    strbuf_addf(out, "},\"layers\":[");
    for (uint32_t l = 0; l < t->n_layers; l++)
        add_layer(out, t, l);
    strbuf_addf(out, "]}");
}

/* ---- values ---- */

/* Limits an extrapolated value to the range from 0 to 2^53, so that it can be converted to an integer. */
static double within(double v)
{
    return fmin(fmax(v, 0), MAX_NUMBER);
}

static double value_at(const struct table_axis *axis, const double *v, double size)
{
    /* With only one measured size, assume that the value is proportional to the size. */
    if (axis->n == 1)
        return within(v[0] * size / axis->sizes[0]);
    uint32_t i = 1;
    while (i < axis->n - 1 && axis->sizes[i] < size)
        i++;
    double a = axis->sizes[i - 1], b = axis->sizes[i];
    return within(v[i - 1] + (v[i] - v[i - 1]) * (size - a) / (b - a));
}

static uint64_t ns(double seconds)
{
    return (uint64_t)llround(within(seconds * 1e9));
}

/* Returns whole - parts, or 0 if `parts` is larger than `whole`. */
static uint64_t rest(double whole, double parts)
{
    return whole > parts ? (uint64_t)(whole - parts) : 0;
}

void table_at(const struct table *t, uint32_t layer, uint32_t micro_batch, struct table_point *ret)
{
    const struct table_layer *l = &t->layers[layer];
    double fwd = value_at(&t->fwd, l->fwd_s, micro_batch), bwd = value_at(&t->bwd, l->bwd_s, micro_batch);
    double x = value_at(&t->input, l->input_bytes, micro_batch);
    double y =
        layer + 1 < t->n_layers ? value_at(&t->input, t->layers[layer + 1].input_bytes, micro_batch) : 0;
    double state = (double)l->w + (double)l->b;
    *ret = (struct table_point){
        .fwd_ns = ns(fwd),
        .bwd_ns = ns(bwd > fwd ? bwd - fwd : 0),
        .x = (uint64_t)llround(x),
        .fwd_work = rest(value_at(&t->fwd_bytes, l->fwd_bytes, micro_batch), state + x + y),
        .s = rest(value_at(&t->bwd_bytes, l->bwd_bytes, micro_batch),
                  state + (double)table_dw(t, layer) + 2 * x),
        .upd_host_ns = ns(l->update_cpu_s),
        .upd_device_ns = ns(l->update_gpu_s),
    };
}

uint64_t table_dw(const struct table *t, uint32_t layer)
{
    const uint64_t w = t->layers[layer].w;
    /* In fp32, dW is as large as W, even in a table whose sizes are no multiples of 4. */
    return t->dtype == DTYPE_F32 ? w : dtype_elements(t->dtype, w) * dtype_size(DTYPE_F32);
}

uint32_t table_largest(const struct table *t)
{
    uint32_t f = t->fwd.sizes[t->fwd.n - 1], b = t->bwd.sizes[t->bwd.n - 1];
    return f < b ? f : b;
}
