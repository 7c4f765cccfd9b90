/* Writes and reads state.json of a checkpoint: everything about the run that is not a tensor, and the
 * checksums of all files.
 *
 * The document is one line, and its last member is its own checksum, computed while eight zeros stand in its
 * place. The end of the file has a fixed form, so a change of any byte is found, even of the case of a hex
 * digit.
 *
 * Only checkpoint_state_load reads a file; the other functions work on the caller's memory.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/json.h"
#include "daemon/worker/model/checkpoint_private.h"

const char *const checkpoint_files[FILE_COUNT] = {"model.safetensors", "optimizer.safetensors",
                                                  "method.safetensors"};

static const char tail_before[] = ",\"self_crc32c\":\"", tail_after[] = "\"}\n";
enum { CRC_CHARS = 8, TAIL_BYTES = sizeof tail_before - 1 + CRC_CHARS + sizeof tail_after - 1 };

/* ------------------------------------------------------------------------------------------ writing */

static void add_metric(struct strbuf *b, const char *name, double v)
{
    if (isfinite(v))
        strbuf_addf(b, "\"%s\":%.17g", name, v);
    else
        strbuf_addf(b, "\"%s\":null", name);
}

static void add_files(struct strbuf *b, const struct file_sum files[FILE_COUNT])
{
    strbuf_add(b, ",\"files\":[");
    for (int i = 0; i < FILE_COUNT; i++) {
        if (i >= FILE_METHOD && files[i].bytes == 0)
            continue; /* the method has no tensors of its own */
        strbuf_addf(b, "%s{\"name\":\"%s\",\"bytes\":%" PRIu64 ",\"crc32c\":\"%08" PRIx32 "\"}",
                    i > 0 ? "," : "", checkpoint_files[i], files[i].bytes, files[i].crc);
    }
    strbuf_add(b, "]");
}

static void add_part(struct strbuf *b, const struct group_part *part, const struct group_state *group)
{
    const char *at = (const char *)group + part->offset;
    uint64_t u64;
    uint32_t u32;
    float f32;

    strbuf_addf(b, "\"%s\":", part->name);
    switch (part->dtype) {
    case DTYPE_U64:
        memcpy(&u64, at, sizeof u64);
        strbuf_addf(b, "%" PRIu64, u64);
        break;
    case DTYPE_U32:
        memcpy(&u32, at, sizeof u32);
        strbuf_addf(b, "%" PRIu32, u32);
        break;
    case DTYPE_F32:
        memcpy(&f32, at, sizeof f32);
        strbuf_addf(b, "%.9g", (double)f32);
        break;
    default:
        assert(!"the group state has no part of this type");
    }
}

/* Appends the saved values of one decision group as an object, such as {"t":5} after 5 updates. */
static void add_group(struct strbuf *b, const struct group_part *parts, uint32_t n,
                      const struct group_state *group)
{
    uint32_t saved = 0;

    strbuf_add(b, "{");
    for (uint32_t i = 0; i < n; i++) {
        if (!parts[i].saved)
            continue;
        if (saved++ > 0)
            strbuf_add(b, ",");
        add_part(b, &parts[i], group);
    }
    strbuf_add(b, "}");
}

/* Appends the saved values of each decision group (layers whose updates are applied or skipped together),
 * such as "groups":[{"t":5},{"t":4}]. Backpropagation has one such group. */
static void add_groups(struct strbuf *b, const struct checkpoint_data *data)
{
    const struct group_part *parts;
    uint32_t n = optimizer_group_parts(data->optimizer, false, &parts);

    if (n == 0 || data->groups == NULL)
        return;
    strbuf_add(b, ",\"groups\":[");
    for (uint32_t g = 0; g < data->n_groups; g++) {
        strbuf_add(b, g > 0 ? "," : "");
        add_group(b, parts, n, &data->groups[g]);
    }
    strbuf_add(b, "]");
}

/* Appends the evaluations against label vectors, if there are any. */
static void add_labels(struct strbuf *b, const struct checkpoint_data *data)
{
    for (uint32_t i = 0; i < data->n_labels; i++) {
        const struct checkpoint_labels *l = &data->labels[i];
        strbuf_addf(b, "%s{\"phase\":%" PRIu32 ",\"step\":%" PRIu64 ",", i > 0 ? "," : ",\"labels\":[",
                    l->phase, l->step);
        add_metric(b, "error", l->error);
        strbuf_add(b, ",");
        add_metric(b, "nearest", l->nearest);
        strbuf_add(b, i + 1 < data->n_labels ? "}" : "}]");
    }
}

/* Appends the current phase and the number of steps done in that phase if the job has several phases. Appends
 * nothing for a job with one phase, because state.json had no such members in older versions. */
static void add_position(struct strbuf *b, const struct checkpoint_data *data)
{
    if (data->n_phases <= 1)
        return;
    strbuf_addf(b, ",\"phase\":%" PRIu32 ",\"phase_step\":%" PRIu64, data->phase, data->phase_step);
    if (data->has_inputs)
        strbuf_addf(b, ",\"inputs_crc32c\":\"%08" PRIx32 "\"", data->inputs_crc);
}

void checkpoint_state_print(struct strbuf *b, const struct checkpoint_data *data,
                            const struct file_sum files[FILE_COUNT])
{
    const struct spec *s = data->spec;
    char crc[CRC_CHARS + 1];

    strbuf_addf(b, "{\"schema\":\"checkpoint/v1\",\"step\":%" PRIu64 ",\"data_position\":%" PRIu64,
                data->step, data->data_position);
    add_position(b, data);
    strbuf_addf(b, ",\"seeds\":{\"init\":%" PRIu64 ",\"data\":%" PRIu64 "}", s->seed, s->data.seed);
    strbuf_addf(b, ",\"spec_hash\":\"%016" PRIx64 "\",\"resolved\":", spec_hash(s));
    spec_resolved_json(s, b);
    strbuf_add(b, ",\"numerics\":");
    strbuf_add_json(b, data->numerics);
    strbuf_add(b, ",");
    add_metric(b, "loss", data->loss);
    strbuf_addf(b, ",\"skipped_steps\":%" PRIu64, data->skipped_steps);
    if (s->checkpoint.best != BEST_NONE)
        strbuf_addf(b, ",\"best\":\"%s\"", spec_best_names[s->checkpoint.best]);
    add_groups(b, data);
    if (data->eval.valid) {
        strbuf_add(b, ",\"metrics\":{");
        add_metric(b, spec_best_names[BEST_VAL_LOSS], data->eval.loss);
        strbuf_add(b, ",");
        add_metric(b, spec_best_names[BEST_VAL_ACCURACY], data->eval.accuracy);
        strbuf_add(b, "}");
    }
    add_labels(b, data);
    add_files(b, files);
    strbuf_addf(b, "%s00000000%s", tail_before, tail_after);
    snprintf(crc, sizeof crc, "%08" PRIx32, crc32c(0, b->at, b->n));
    memcpy(b->at + b->n - (sizeof tail_after - 1) - CRC_CHARS, crc, CRC_CHARS);
}

/* ------------------------------------------------------------------------------------------ reading */

/* Verifies the checksum at the end of state.json, which covers the whole file. When the checksum was
 * computed, its characters were zeros, so this function overwrites the checksum in `text` with zeros. */
static int check_self(char *text, size_t bytes, const char *file, struct err *err)
{
    char *tail = text + bytes - TAIL_BYTES, *crc = tail + sizeof tail_before - 1;
    char found[CRC_CHARS + 1], expected[CRC_CHARS + 1];

    if (bytes < TAIL_BYTES || memcmp(tail, tail_before, sizeof tail_before - 1) != 0 ||
        memcmp(crc + CRC_CHARS, tail_after, sizeof tail_after - 1) != 0)
        return err_set_at(err, -EBADMSG, file, "damaged: its %zu bytes do not end with its checksum", bytes);
    memcpy(expected, crc, CRC_CHARS);
    expected[CRC_CHARS] = '\0';
    memset(crc, '0', CRC_CHARS);
    snprintf(found, sizeof found, "%08" PRIx32, crc32c(0, text, bytes));
    if (strcmp(found, expected) != 0)
        return err_set_at(err, -EBADMSG, file, "damaged: it should have the CRC-32C %s, but has %s", expected,
                          found);
    return 0;
}

/* Reads the value of `key`, which must be a string of exactly `digits` lower-case hex digits. */
static bool take_hex(struct json_obj *o, const char *key, enum json_need need, int digits, uint64_t *ret)
{
    const char *text;
    char again[17];
    uint64_t v;

    if (!json_take_string(o, key, need, &text))
        return false;
    v = strtoull(text, NULL, 16);
    snprintf(again, sizeof again, "%0*" PRIx64, digits, v);
    if (strcmp(again, text) != 0) {
        json_fail(o, key, -EINVAL, "must be %d hex digits", digits);
        return false;
    }
    *ret = v;
    return true;
}

static int read_seeds(const struct json *node, struct checkpoint_state *s, struct err *err)
{
    struct json_obj o;

    json_obj_begin(&o, node, "seeds", err);
    json_take_u64(&o, "init", JSON_REQUIRED, &s->info.seed);
    json_take_u64(&o, "data", JSON_REQUIRED, &s->info.data_seed);
    return json_obj_end(&o);
}

/* Reads the value of `key`, which is a number or null. null stands for NaN. */
static void take_metric(struct json_obj *o, const char *key, double *ret)
{
    const struct json *node;

    *ret = NAN;
    if (json_take(o, key, JSON_REQUIRED, &node) && json_type(node) != JSON_NULL)
        json_take_double(o, key, JSON_REQUIRED, ret);
}

static int read_metrics(const struct json *node, struct checkpoint_state *s, struct err *err)
{
    struct json_obj o;

    json_obj_begin(&o, node, "metrics", err);
    take_metric(&o, spec_best_names[BEST_VAL_LOSS], &s->info.eval.loss);
    take_metric(&o, spec_best_names[BEST_VAL_ACCURACY], &s->info.eval.accuracy);
    s->info.eval.valid = true;
    return json_obj_end(&o);
}

static void take_part(struct json_obj *o, const struct group_part *part, enum json_need need,
                      struct group_state *ret)
{
    char *at = (char *)ret + part->offset;
    uint64_t u64 = 0;
    uint32_t u32;
    double f64 = 0;
    float f32;

    switch (part->dtype) {
    case DTYPE_U64:
        json_take_u64(o, part->name, need, &u64);
        memcpy(at, &u64, sizeof u64);
        break;
    case DTYPE_U32:
        json_take_u64(o, part->name, need, &u64);
        u32 = (uint32_t)u64;
        memcpy(at, &u32, sizeof u32);
        break;
    case DTYPE_F32:
        json_take_double(o, part->name, need, &f64);
        f32 = (float)f64;
        memcpy(at, &f32, sizeof f32);
        break;
    default:
        assert(!"the group state has no part of this type");
    }
}

/* Reads the group state of one decision group from `node`, which is element number `i` of the array. A job
 * that scales losses has the parts of the loss scale, and if its optimizer is SGD, it has no others. */
static int read_group(const struct json *node, uint32_t i, struct group_state *ret, struct err *err)
{
    const bool scales = json_type(node) == JSON_OBJECT && json_get(node, "loss_scale") != NULL;
    /* The group state of AdamW has all parts. */
    const struct optimizer adamw = {.kind = OPTIMIZER_ADAMW, .scaling.growth_steps = scales};
    const struct group_part *parts;
    uint32_t n = optimizer_group_parts(&adamw, false, &parts);
    struct json_obj o;
    char path[32];

    json_path_index(path, sizeof path, "groups", i);
    json_obj_begin(&o, node, path, err);
    for (uint32_t p = 0; p < n; p++)
        if (parts[p].saved)
            take_part(&o, &parts[p],
                      scales && parts[p].offset == offsetof(struct group_state, t) ? JSON_OPTIONAL
                                                                                   : JSON_REQUIRED,
                      ret);
    return json_obj_end(&o);
}

/* Reads the group states: the values that every weight update of a step reads, such as the number of updates,
 * `t`. `node` is NULL if the job has no group state or if the checkpoint is old. If `node` is NULL, there is
 * one group, and its `t` becomes the number of training steps that were not skipped. */
static int read_groups(const struct json *node, struct checkpoint_state *s, struct err *err)
{
    size_t n = node != NULL && json_type(node) == JSON_ARRAY ? json_array_size(node) : 1;
    struct group_state *groups;
    int r = 0;

    if (s->info.skipped_steps > s->info.step)
        return err_set_at(err, -EINVAL, "skipped_steps",
                          "is %" PRIu64 ", but must be at most \"step\", which is %" PRIu64,
                          s->info.skipped_steps, s->info.step);
    if (node != NULL && (json_type(node) != JSON_ARRAY || n == 0 || n > LAYER_MAX_ID))
        return err_set_at(err, -EINVAL, "groups", "must be an array with one object for each decision group");
    groups = arena_alloc_array(s->arena, n, sizeof *groups);
    memset(groups, 0, n * sizeof *groups);
    s->info.groups = groups;
    s->info.n_groups = (uint32_t)n;
    if (node == NULL)
        groups[0].t = s->info.step - s->info.skipped_steps;
    for (size_t i = 0; node != NULL && r == 0 && i < n; i++)
        r = read_group(json_array_at(node, i), (uint32_t)i, &groups[i], err);
    return r;
}

/* Reads the evaluations against label vectors. `node` is NULL if there are none. */
static int read_labels(const struct json *node, struct checkpoint_state *s, struct err *err)
{
    size_t n = node != NULL && json_type(node) == JSON_ARRAY ? json_array_size(node) : 0;
    struct checkpoint_labels *labels = arena_alloc_array(s->arena, n, sizeof *labels);
    int r = 0;

    if (node != NULL && (n == 0 || n > LAYER_MAX_ID))
        return err_set_at(err, -EINVAL, "labels", "must be an array with one object for each phase");
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct json_obj o;
        uint64_t phase = 0;
        char path[32];

        json_path_index(path, sizeof path, "labels", i);
        json_obj_begin(&o, json_array_at(node, i), path, err);
        json_take_u64(&o, "phase", JSON_REQUIRED, &phase);
        json_take_u64(&o, "step", JSON_REQUIRED, &labels[i].step);
        take_metric(&o, "error", &labels[i].error);
        take_metric(&o, "nearest", &labels[i].nearest);
        labels[i].phase = phase < UINT32_MAX ? (uint32_t)phase : UINT32_MAX;
        r = json_obj_end(&o);
    }
    s->info.labels = labels;
    s->info.n_labels = (uint32_t)n;
    return r;
}

static int read_files(const struct json *node, struct checkpoint_state *s, struct err *err)
{
    struct json_obj o;
    const char *name = "";
    uint64_t crc = 0;
    char path[32];

    s->n_files = json_type(node) == JSON_ARRAY ? (uint32_t)json_array_size(node) : 0;
    if (s->n_files < FILE_METHOD || s->n_files > FILE_COUNT)
        return err_set_at(err, -EINVAL, "files", "must be an array of %d or %d files", FILE_METHOD,
                          FILE_COUNT);
    for (size_t i = 0; i < s->n_files; i++) {
        json_path_index(path, sizeof path, "files", i);
        json_obj_begin(&o, json_array_at(node, i), path, err);
        if (json_take_string(&o, "name", JSON_REQUIRED, &name) && strcmp(name, checkpoint_files[i]) != 0)
            json_fail(&o, "name", -EINVAL, "must be \"%s\"", checkpoint_files[i]);
        json_take_u64(&o, "bytes", JSON_REQUIRED, &s->files[i].bytes);
        take_hex(&o, "crc32c", JSON_REQUIRED, CRC_CHARS, &crc);
        s->files[i].crc = (uint32_t)crc;
        if (json_obj_end(&o) < 0)
            return o.status;
    }
    return 0;
}

/* Reads the phase in which the checkpoint was written, and the number of steps done in that phase. If the
 * member "phase" is missing, the job has only one phase. */
static void take_position(struct json_obj *o, struct checkpoint_info *info)
{
    uint64_t phase = 0, crc = 0;

    info->phase_step = info->step;
    if (json_take_u64(o, "phase", JSON_OPTIONAL, &phase))
        json_take_u64(o, "phase_step", JSON_REQUIRED, &info->phase_step);
    if (phase > UINT32_MAX)
        json_fail(o, "phase", -EINVAL, "must be at most %" PRIu32, UINT32_MAX);
    info->phase = (uint32_t)phase;
    info->has_inputs = take_hex(o, "inputs_crc32c", JSON_OPTIONAL, CRC_CHARS, &crc);
    info->inputs_crc = (uint32_t)crc;
}

static int read_top(const struct json *doc, struct checkpoint_state *s, struct err *err)
{
    static const char *const schemas[] = {"checkpoint/v1", NULL};
    const struct json *seeds = NULL, *resolved = NULL, *metrics = NULL, *groups = NULL, *labels = NULL,
                      *files = NULL, *crc;
    const char *numerics = "";
    struct json_obj o;
    char *text;
    int schema, best = BEST_NONE, r;

    json_obj_begin(&o, doc, "", err);
    json_take_enum(&o, "schema", JSON_REQUIRED, schemas, &schema);
    json_take_u64(&o, "step", JSON_REQUIRED, &s->info.step);
    json_take_u64(&o, "data_position", JSON_REQUIRED, &s->info.data_position);
    take_position(&o, &s->info);
    json_take(&o, "seeds", JSON_REQUIRED, &seeds);
    take_hex(&o, "spec_hash", JSON_REQUIRED, 16, &s->info.spec_hash);
    json_take(&o, "resolved", JSON_REQUIRED, &resolved);
    json_take_string(&o, "numerics", JSON_REQUIRED, &numerics);
    take_metric(&o, "loss", &s->info.loss);
    json_take_u64(&o, "skipped_steps", JSON_REQUIRED, &s->info.skipped_steps);
    json_take_enum(&o, "best", JSON_OPTIONAL, spec_best_names, &best);
    s->info.best = (enum spec_best)best;
    json_take(&o, "groups", JSON_OPTIONAL, &groups);
    json_take(&o, "metrics", JSON_OPTIONAL, &metrics);
    json_take(&o, "labels", JSON_OPTIONAL, &labels);
    json_take(&o, "files", JSON_REQUIRED, &files);
    json_take(&o, "self_crc32c", JSON_REQUIRED, &crc);
    r = json_obj_end(&o);
    if (r < 0)
        return r;
    s->info.numerics = arena_strdup(s->arena, numerics);
    text = json_print(resolved);
    s->info.resolved = arena_strdup(s->arena, text);
    free(text);
    r = read_seeds(seeds, s, err);
    if (r == 0)
        r = read_groups(groups, s, err);
    if (r == 0)
        r = read_labels(labels, s, err);
    if (r == 0 && metrics)
        r = read_metrics(metrics, s, err);
    return r < 0 ? r : read_files(files, s, err);
}

/* Parses the text of state.json. The checksum of the text is already known to be correct, so if parsing
 * fails, another version of this program wrote the file. */
static int parse_state(const char *text, size_t bytes, const char *file, struct checkpoint_state *ret,
                       struct err *err)
{
    struct json *doc = NULL;
    struct err inner = {0};
    int r = json_parse(text, bytes, STATE_FILE, false, &doc, &inner);

    ret->arena = arena_create();
    if (r == 0)
        r = read_top(doc, ret, &inner);
    json_free(doc);
    if (r == 0 || r == -ENOMEM)
        return r;
    return err_set_at(err, -EBADMSG, file, "not understood: %s: %s", inner.path, inner.msg);
}

int checkpoint_state_load(int dirfd, const char *dir, struct checkpoint_state *ret, struct err *err)
{
    char file[FS_PATH_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    int r = fs_read_text(dirfd, STATE_FILE, JSON_MAX_BYTES, &text, &bytes);

    *ret = (struct checkpoint_state){0};
    fs_path(file, sizeof file, dir, STATE_FILE);
    if (r == -ENOENT)
        return err_set_at(err, -EBADMSG, file, "the file is missing");
    if (r < 0)
        return fs_fail(err, r, NULL, file, "read");
    r = check_self(text, bytes, file, err);
    if (r == 0)
        r = parse_state(text, bytes, file, ret, err);
    free(text);
    if (r < 0)
        checkpoint_state_finish(ret);
    return r;
}

void checkpoint_state_finish(struct checkpoint_state *s)
{
    arena_destroy(s->arena);
    *s = (struct checkpoint_state){0};
}
