/* Reads values and objects. Messages say where the mistake is, what was found, and what to write instead.
 *
 * A reader of an object names the keys that may occur. A key that the reader did not name is an error at the
 * end. So the reader is the schema, and no second description has to be kept in step with it. The object
 * records the first failure and ignores later ones. A reader is therefore a plain list of json_take calls
 * with one check at the end.
 *
 * When a required key is missing, the object may contain a misspelling of it. Then "unknown key, did you mean
 * ..." helps more than "missing". Which keys are unknown is clear only after the reader has named all keys.
 * So json_take collects names after a failure too, and json_obj_end chooses the message.
 *
 * The functions change only the caller's structs.
 */
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/json_private.h"
#include "base/utf8.h"

/* ---------------------------------------------------------------------------------------------- values */

/* Writes a description of the node to `buf`, for a message. For example: a string "abc", or: the number
 * 3.5. */
static void describe(const struct json *node, char *buf, size_t size)
{
    char text[64];

    if (!node) {
        utf8_copy(buf, size, "nothing");
        return;
    }
    switch (json_type(node)) {
    case JSON_STRING:
        utf8_copy(text, sizeof text, json_node_text(node));
        snprintf(buf, size, "a string \"%s\"", text);
        break;
    case JSON_NUMBER:
        json_format_number(json_node_number(node), text, sizeof text);
        snprintf(buf, size, "the number %s", text);
        break;
    case JSON_BOOL:
        utf8_copy(buf, size, json_node_true(node) ? "true" : "false");
        break;
    default:
        utf8_copy(buf, size, json_type_name(json_type(node)));
    }
}

/* Returns true if `text` looks like a number or a boolean that was put in quotes by mistake, such as "12" or
 * "true". `wanted` is the type that the value should have. */
static bool quoted_by_mistake(const char *text, enum json_type wanted)
{
    if (wanted == JSON_BOOL)
        return strcmp(text, "true") == 0 || strcmp(text, "false") == 0;
    return wanted == JSON_NUMBER && text[0] && text[strspn(text, "0123456789.eE+-")] == '\0';
}

static int fail_type(const struct json *node, const char *path, enum json_type wanted, struct err *err)
{
    char found[96];

    describe(node, found, sizeof found);
    if (node && json_type(node) == JSON_STRING && quoted_by_mistake(json_node_text(node), wanted))
        return err_set_at(err, -EINVAL, path, "expected %s, found %s; remove the quotes",
                          json_type_name(wanted), found);
    return err_set_at(err, -EINVAL, path, "expected %s, found %s", json_type_name(wanted), found);
}

static bool is_type(const struct json *node, enum json_type t)
{
    return node && json_type(node) == t;
}

int json_string(const struct json *node, const char *path, const char **ret, struct err *err)
{
    if (!is_type(node, JSON_STRING))
        return fail_type(node, path, JSON_STRING, err);
    *ret = json_node_text(node);
    return 0;
}

int json_double(const struct json *node, const char *path, double *ret, struct err *err)
{
    if (!is_type(node, JSON_NUMBER))
        return fail_type(node, path, JSON_NUMBER, err);
    *ret = json_node_number(node);
    return 0;
}

/* Returns true if `v` is a whole number that cannot have been rounded when it was read. 2^53 is refused,
 * because 2^53 + 1 would be read as the same double. */
static bool is_exact(double v)
{
    return v >= 0 && v <= (double)JSON_MAX_INTEGER && v == floor(v);
}

static int fail_inexact(double v, const char *path, const char *advice, struct err *err)
{
    char text[40];

    /* The parser may have rounded a number of this size, so the message shows only four digits. */
    if (v > (double)JSON_MAX_INTEGER)
        snprintf(text, sizeof text, "about %.4g", v);
    else
        json_format_number(v, text, sizeof text);
    return err_set_at(err, -EINVAL, path,
                      "must be a whole number from 0 to 2^53 - 1 (9007199254740991), found %s%s", text,
                      advice);
}

int json_u64(const struct json *node, const char *path, uint64_t *ret, struct err *err)
{
    double v = 0;
    int r = json_double(node, path, &v, err);

    if (r < 0)
        return r;
    if (!is_exact(v))
        return fail_inexact(v, path, "", err);
    *ret = (uint64_t)v;
    return 0;
}

int json_bool(const struct json *node, const char *path, bool *ret, struct err *err)
{
    if (!is_type(node, JSON_BOOL))
        return fail_type(node, path, JSON_BOOL, err);
    *ret = json_node_true(node);
    return 0;
}

int json_bytes(const struct json *node, const char *path, uint64_t *ret, struct err *err)
{
    static const char advice[] = "; write bytes as 1000000 or a size such as \"9GB\"";
    char found[96];

    if (is_type(node, JSON_STRING))
        return json_parse_bytes(json_node_text(node), path, ret, err);
    if (!is_type(node, JSON_NUMBER)) {
        describe(node, found, sizeof found);
        return err_set_at(err, -EINVAL, path, "expected a size, found %s%s", found, advice);
    }
    if (!is_exact(json_node_number(node)))
        return fail_inexact(json_node_number(node), path, advice, err);
    *ret = (uint64_t)json_node_number(node);
    return 0;
}

/* ---------------------------------------------------------------------------------------- did you mean */

enum { MAX_WORD = 64 };

static int min3(int a, int b, int c)
{
    int m = a < b ? a : b;

    return m < c ? m : c;
}

static bool same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Returns the number of edits that turn word `a` into word `b`. An edit inserts, deletes or replaces one
 * letter, or swaps two neighbouring letters. Upper and lower case count as equal. */
static int edit_distance(const char *a, int na, const char *b, int nb)
{
    /* Row i of the table of distances is stored in rows[i % 3]. Three rows are enough, because row i is
     * computed only from row i - 1 and, for a swap of two letters, row i - 2. */
    int rows[3][MAX_WORD + 1];

    for (int j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= nb; j++) {
            int differs = !same_letter(a[i - 1], b[j - 1]);
            now[j] = min3(last[j] + 1, now[j - 1] + 1, last[j - 1] + differs);
            if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1]) &&
                before[j - 2] + 1 < now[j])
                now[j] = before[j - 2] + 1;
        }
    }
    return rows[na % 3][nb];
}

/* Returns true if two words are similar: at most a third of the longer word's letters are wrong. In a short
 * word, one letter may be wrong. */
static bool is_near(int distance, int longer)
{
    int limit = longer / 3 > 1 ? longer / 3 : 1;

    return distance <= limit && distance < longer;
}

const char *json_did_you_mean(const char *word, const char *const *names, int n)
{
    const char *best = NULL;
    int best_distance = MAX_WORD + 1, word_length = (int)strnlen(word, MAX_WORD + 1);

    if (word_length > MAX_WORD)
        return NULL;
    for (int i = 0; i < n; i++) {
        int length = (int)strnlen(names[i], MAX_WORD + 1), distance;
        if (length > MAX_WORD)
            continue;
        distance = edit_distance(word, word_length, names[i], length);
        if (distance < best_distance && is_near(distance, length > word_length ? length : word_length)) {
            best = names[i];
            best_distance = distance;
        }
    }
    return best;
}

/* Writes the names to `buf` as a list for a message, for example: "adamw", "sgd". */
static void list_names(char *buf, size_t size, const char *const *names, int n)
{
    size_t at = 0;

    buf[0] = '\0';
    for (int i = 0; i < n && at + 1 < size; i++) {
        snprintf(buf + at, size - at, "%s\"%s\"", i ? ", " : "", names[i]);
        at += strlen(buf + at);
    }
}

/* --------------------------------------------------------------------------------------------- objects */

void json_obj_begin(struct json_obj *o, const struct json *node, const char *path, struct err *err)
{
    o->node = node;
    o->err = err ? err : &o->scratch_err;
    o->status = 0;
    o->missing = NULL;
    o->n_taken = 0;
    utf8_copy(o->path, sizeof o->path, path ? path : "");
    if (!is_type(node, JSON_OBJECT))
        o->status = fail_type(node, o->path, JSON_OBJECT, o->err);
}

static int failv(struct json_obj *o, const char *key, int code, const char *fmt, va_list ap)
{
    char path[sizeof o->path];

    if (o->status < 0)
        return o->status;
    if (key)
        json_path_key(path, sizeof path, o->path, key);
    else
        utf8_copy(path, sizeof path, o->path);
    o->status = err_setv(o->err, code, path, fmt, ap);
    return o->status;
}

int json_fail(struct json_obj *o, const char *key, int code, const char *fmt, ...)
{
    va_list ap;
    int r;

    va_start(ap, fmt);
    r = failv(o, key, code, fmt, ap);
    va_end(ap);
    return r;
}

static bool was_offered(const struct json_obj *o, const char *key)
{
    for (int i = 0; i < o->n_taken; i++)
        if (strcmp(o->taken[i], key) == 0)
            return true;
    return false;
}

bool json_take(struct json_obj *o, const char *key, enum json_need need, const struct json **ret)
{
    const struct json *item;

    if (!was_offered(o, key)) {
        assert(o->n_taken < JSON_MAX_KEYS);
        o->taken[o->n_taken++] = key;
    }
    if (o->status < 0)
        return false;
    item = json_get(o->node, key);
    if (item) {
        *ret = item;
        return true;
    }
    if (need == JSON_REQUIRED) {
        json_fail(o, key, -EINVAL, "the required key \"%s\" is missing; add it", key);
        o->missing = key;
    }
    return false;
}

/* Calls json_take for the member `key`, and writes the member's JSON path to `path` for later messages. */
static bool take_at(struct json_obj *o, const char *key, enum json_need need, const struct json **ret,
                    char *path)
{
    json_path_key(path, sizeof o->path, o->path, key);
    return json_take(o, key, need, ret);
}

/* Records `r`, the result of reading a value, in the object's status. Returns true if `r` is 0, which means
 * success. */
static bool settle(struct json_obj *o, int r)
{
    o->status = r;
    return r == 0;
}

bool json_take_string(struct json_obj *o, const char *key, enum json_need need, const char **ret)
{
    const struct json *item;
    char path[sizeof o->path];

    return take_at(o, key, need, &item, path) && settle(o, json_string(item, path, ret, o->err));
}

bool json_take_name(struct json_obj *o, const char *key, enum json_need need, const char **ret)
{
    char found[UTF8_NAME_BYTES];
    const char *name;

    if (!json_take_string(o, key, need, &name))
        return false;
    if (utf8_find_unsafe(name, found)) {
        json_fail(o, key, -EINVAL, "contains %s, a control or invisible character; remove it", found);
        return false;
    }
    *ret = name;
    return true;
}

bool json_take_u64(struct json_obj *o, const char *key, enum json_need need, uint64_t *ret)
{
    const struct json *item;
    char path[sizeof o->path];

    return take_at(o, key, need, &item, path) && settle(o, json_u64(item, path, ret, o->err));
}

bool json_take_double(struct json_obj *o, const char *key, enum json_need need, double *ret)
{
    const struct json *item;
    char path[sizeof o->path];

    return take_at(o, key, need, &item, path) && settle(o, json_double(item, path, ret, o->err));
}

bool json_take_bool(struct json_obj *o, const char *key, enum json_need need, bool *ret)
{
    const struct json *item;
    char path[sizeof o->path];

    return take_at(o, key, need, &item, path) && settle(o, json_bool(item, path, ret, o->err));
}

bool json_take_bytes(struct json_obj *o, const char *key, enum json_need need, uint64_t *ret)
{
    const struct json *item;
    char path[sizeof o->path];

    return take_at(o, key, need, &item, path) && settle(o, json_bytes(item, path, ret, o->err));
}

static void fail_enum(struct json_obj *o, const char *key, const struct json *item, const char *const *names,
                      int n)
{
    char known[sizeof o->err->msg / 2], found[96];
    const char *near = is_type(item, JSON_STRING) ? json_did_you_mean(json_node_text(item), names, n) : NULL;

    list_names(known, sizeof known, names, n);
    describe(item, found, sizeof found);
    if (near)
        json_fail(o, key, -EINVAL, "found %s; did you mean \"%s\"? It must be one of %s", found, near, known);
    else
        json_fail(o, key, -EINVAL, "found %s; it must be one of %s", found, known);
}

bool json_take_enum(struct json_obj *o, const char *key, enum json_need need, const char *const *names,
                    int *ret)
{
    const struct json *item;
    int n = 0;

    if (!json_take(o, key, need, &item))
        return false;
    for (; names[n]; n++) {
        if (is_type(item, JSON_STRING) && strcmp(json_node_text(item), names[n]) == 0) {
            *ret = n;
            return true;
        }
    }
    fail_enum(o, key, item, names, n);
    return false;
}

/* Returns the first key of the object that the reader has not asked for, or NULL. If `names` is not NULL,
 * only keys that look like a misspelled element of `names` count. */
static const char *find_unknown(const struct json_obj *o, const char *const *names, int n)
{
    for (const struct json *c = json_array_first(o->node); c; c = json_array_next(c))
        if (!was_offered(o, json_key(c)) && (!names || json_did_you_mean(json_key(c), names, n)))
            return json_key(c);
    return NULL;
}

static int fail_unknown(struct json_obj *o, const char *key, const char *near)
{
    char known[sizeof o->err->msg / 2], shown[64];

    utf8_copy(shown, sizeof shown, key);
    list_names(known, sizeof known, o->taken, o->n_taken);
    if (near)
        return json_fail(o, key, -EINVAL, "unknown key \"%s\"; did you mean \"%s\"?", shown, near);
    if (o->n_taken == 0)
        return json_fail(o, key, -EINVAL, "unknown key \"%s\"; no keys are expected here, remove it", shown);
    return json_fail(o, key, -EINVAL, "unknown key \"%s\"; remove it, known keys are %s", shown, known);
}

int json_obj_end(struct json_obj *o)
{
    const char *key;

    if (o->status < 0) {
        key = o->missing ? find_unknown(o, &o->missing, 1) : NULL;
        if (!key)
            return o->status;
        /* A required key is missing, and a similar key is present. Replace the first failure, because
         * "unknown key, did you mean" is a better message than "missing". */
        o->status = 0;
        return fail_unknown(o, key, o->missing);
    }
    key = find_unknown(o, NULL, 0);
    if (!key)
        return 0;
    return fail_unknown(o, key, json_did_you_mean(key, o->taken, o->n_taken));
}
