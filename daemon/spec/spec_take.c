/* Implements the spec_take_* functions of spec_private.h. They extend the json_take_* functions by limits and
 * error messages. Every message says what was found and what to write instead. */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "daemon/spec/spec_private.h"

bool spec_take_u64(struct json_obj *o, const char *key, enum json_need need, uint64_t min, uint64_t max,
                   uint64_t *ret)
{
    uint64_t v;

    if (!json_take_u64(o, key, need, &v))
        return false;
    if (v < min || v > max) {
        json_fail(o, key, -EINVAL, "must be from %" PRIu64 " to %" PRIu64 ", found %" PRIu64, min, max, v);
        return false;
    }
    *ret = v;
    return true;
}

bool spec_take_u32(struct json_obj *o, const char *key, enum json_need need, uint32_t min, uint32_t max,
                   uint32_t *ret)
{
    uint64_t v;

    if (!spec_take_u64(o, key, need, min, max, &v))
        return false;
    *ret = (uint32_t)v;
    return true;
}

static bool is_string(const struct json *node, const char *text)
{
    const char *s;

    return json_type(node) == JSON_STRING && json_string(node, "", &s, NULL) == 0 && strcmp(s, text) == 0;
}

/* Returns true if the object `o` has the key `key` with a value other than "auto". */
static bool is_not_auto(struct json_obj *o, const char *key)
{
    const struct json *node;

    return json_take(o, key, JSON_OPTIONAL, &node) && !is_string(node, "auto");
}

bool spec_take_auto_u32(struct json_obj *o, const char *key, uint32_t min, uint32_t max, uint32_t *ret)
{
    const struct json *node;

    if (!is_not_auto(o, key))
        return false;
    json_take(o, key, JSON_OPTIONAL, &node);
    if (json_type(node) == JSON_STRING) {
        json_fail(o, key, -EINVAL, "must be \"auto\" or a whole number");
        return false;
    }
    return spec_take_u32(o, key, JSON_REQUIRED, min, max, ret);
}

bool spec_take_auto_bytes(struct json_obj *o, const char *key, uint64_t *ret)
{
    uint64_t v;

    if (!is_not_auto(o, key) || !json_take_bytes(o, key, JSON_REQUIRED, &v))
        return false;
    if (v == 0) {
        json_fail(o, key, -EINVAL,
                  "must be more than 0 bytes; write \"auto\" to use all that the machine has");
        return false;
    }
    *ret = v;
    return true;
}

/* The limits of each value of enum spec_range: a description for messages, and the smallest and the largest
 * float32 that is allowed. */
static const struct range {
    const char *words;
    double low, high;
} ranges[] = {
    [SPEC_POSITIVE] = {"above 0", 0x1p-149, FLT_MAX},
    [SPEC_POSITIVE_OR_NULL] = {"null or above 0", 0x1p-149, FLT_MAX},
    [SPEC_NOT_NEGATIVE] = {"0 or above", 0, FLT_MAX},
    [SPEC_FRACTION] = {"at least 0 and below 1", 0, 0x1.fffffep-1},
    [SPEC_RATIO] = {"from 0 to 1", 0, 1},
};

/* Returns true if `v` lies in `range`. `v` is the number as the user wrote it, before it is rounded to
 * float32. */
static bool is_in_words(double v, enum spec_range range)
{
    switch (range) {
    case SPEC_POSITIVE:
    case SPEC_POSITIVE_OR_NULL:
        return v > 0;
    case SPEC_NOT_NEGATIVE:
        return v >= 0;
    case SPEC_FRACTION:
        return v >= 0 && v < 1;
    default:
        return v >= 0 && v <= 1;
    }
}

int spec_check_float(double v, enum spec_range range, const char *path, struct err *err)
{
    const struct range *g = &ranges[range];
    char found[32], limit[32];

    json_format_number(v, found, sizeof found);
    if (!is_in_words(v, range))
        return err_set_at(err, -EINVAL, path, "must be %s, found %s", g->words, found);
    if (v > FLT_MAX)
        return err_set_at(err, -EINVAL, path, "must be %s and at most %.8g, the largest float32; found %s",
                          g->words, (double)FLT_MAX, found);
    if ((double)(float)v >= g->low && (double)(float)v <= g->high)
        return 0;
    snprintf(limit, sizeof limit, "%.8g", (float)v < (float)g->low ? g->low : g->high);
    return err_set_at(err, -EINVAL, path, "must be %s, and %s becomes %.8g as a float32; write at %s %s",
                      g->words, found, (double)(float)v, (float)v < (float)g->low ? "least" : "most", limit);
}

bool spec_take_float(struct json_obj *o, const char *key, enum json_need need, enum spec_range range,
                     double *ret)
{
    char path[sizeof o->path];
    double v;
    int r;

    if (!json_take_double(o, key, need, &v))
        return false;
    json_path_key(path, sizeof path, o->path, key);
    r = spec_check_float(v, range, path, o->err);
    if (r < 0) {
        o->status = r;
        return false;
    }
    *ret = v;
    return true;
}

/* Writes all names to `buf`, for example as `"a", "b" or "c"`. Text that does not fit is cut off. */
static void list_names(char *buf, size_t size, const char *const *names)
{
    size_t at = 0;

    buf[0] = '\0';
    for (int i = 0; names[i] && at + 1 < size; i++) {
        snprintf(buf + at, size - at, "%s\"%s\"", i == 0 ? "" : names[i + 1] ? ", " : " or ", names[i]);
        at += strlen(buf + at);
    }
}

bool spec_take_choice(struct json_obj *o, const char *key, enum json_need need, const char *const *names,
                      const char *const *later, int *ret)
{
    const struct json *node;
    char known[256];

    if (!json_take(o, key, need, &node))
        return false;
    for (int i = 0; later[i]; i++) {
        if (is_string(node, later[i])) {
            list_names(known, sizeof known, names);
            json_fail(o, key, -EOPNOTSUPP, "\"%s\" is not supported yet; write %s", later[i], known);
            return false;
        }
    }
    return json_take_enum(o, key, need, names, ret);
}

void spec_refuse_key(struct json_obj *o, const char *key, const char *words)
{
    const struct json *node;

    if (json_take(o, key, JSON_OPTIONAL, &node))
        json_fail(o, key, -EOPNOTSUPP, "not supported yet; %s", words);
}

/* Resolves `path` against base_dir if it is relative, and returns the result, which is in the spec's arena.
 * If `path` is empty or too long, reports the mistake at `key` and returns NULL. */
static const char *resolve_path(const struct spec_reader *r, struct json_obj *o, const char *key,
                                const char *path)
{
    char *joined;
    size_t n;

    if (!path[0] || strlen(path) >= 4096) {
        json_fail(o, key, -EINVAL,
                  path[0] ? "is a path of more than 4095 bytes; use a shorter one"
                          : "a path must not be empty");
        return NULL;
    }
    if (path[0] == '/' || !r->options->base_dir)
        return arena_strdup(r->s->arena, path);
    n = strlen(r->options->base_dir) + 1 + strlen(path) + 1;
    joined = arena_alloc(r->s->arena, n);
    snprintf(joined, n, "%s/%s", r->options->base_dir, path);
    return joined;
}

bool spec_take_path(const struct spec_reader *r, struct json_obj *o, const char *key, enum json_need need,
                    const char **ret)
{
    const char *path;

    if (!json_take_string(o, key, need, &path))
        return false;
    path = resolve_path(r, o, key, path);
    if (!path)
        return false;
    *ret = path;
    return true;
}

bool spec_take_paths(const struct spec_reader *r, struct json_obj *o, const char *key, enum json_need need,
                     struct spec_paths *ret)
{
    const struct json *node, *item;
    const char **at, *path;
    char place[64];
    uint32_t n = 0;

    if (!json_take(o, key, need, &node))
        return false;
    if (json_type(node) == JSON_STRING) {
        at = arena_alloc_array(r->s->arena, 1, sizeof *at);
        if (!spec_take_path(r, o, key, need, &at[0]))
            return false;
        *ret = (struct spec_paths){at, 1};
        return true;
    }
    if (json_type(node) != JSON_ARRAY || json_array_size(node) < 1 ||
        json_array_size(node) > SPEC_MAX_FILES) {
        json_fail(o, key, -EINVAL, "must be the path of a file, or an array of 1 to %u of them",
                  SPEC_MAX_FILES);
        return false;
    }
    at = arena_alloc_array(r->s->arena, json_array_size(node), sizeof *at);
    for (item = json_array_first(node); item; item = json_array_next(item), n++) {
        json_path_index(place, sizeof place, key, n);
        if (json_string(item, "", &path, NULL) < 0) {
            json_fail(o, place, -EINVAL, "must be the path of a file, found %s",
                      json_type_name(json_type(item)));
            return false;
        }
        at[n] = resolve_path(r, o, place, path);
        if (!at[n])
            return false;
    }
    *ret = (struct spec_paths){at, n};
    return true;
}
