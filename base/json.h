/* Strict JSON over cJSON: the only place that knows cJSON.
 *
 * Reading: json_parse refuses what JSON does not allow, duplicate keys, nesting over JSON_MAX_DEPTH and
 * documents over JSON_MAX_BYTES, with line and column; also what cJSON or a C string cannot carry: \u0000 in
 * text, numbers beyond a double or longer than 63 characters. Then a reader walks an object with `struct
 * json_obj`: each json_take_* names a key that may occur, and json_obj_end reports any key that nobody took,
 * with the nearest name that was offered ("did you mean"). Errors carry the JSON path, e.g.
 * "model.layers[2].out".
 *
 *     struct json_obj o;
 *     json_obj_begin(&o, node, "train", err);
 *     json_take_u64(&o, "global_batch", JSON_REQUIRED, &batch);   // failures accumulate in the object:
 *     json_take_string(&o, "type", JSON_OPTIONAL, &type);         // the first one wins, the rest do nothing
 *     r = json_obj_end(&o);
 *
 * An optional key that is absent leaves *ret as it was, so defaults are set before.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"

#define JSON_MAX_DEPTH   32
#define JSON_MAX_BYTES   (64u << 20)
#define JSON_MAX_INTEGER ((UINT64_C(1) << 53) - 1)

struct json; /* a document or a node of it */

/* The document must be freed with json_free; nodes inside belong to it. `name` stands for the document in
 * messages ("job.json"). `comments`: accept // comments to the end of the line (files people write, not the
 * wire). */
int json_parse(const char *text, size_t bytes, const char *name, bool comments, struct json **ret,
               struct err *err);

/* Bytes [begin, end) of a text; end is 0 when there is nothing. */
struct json_span {
    size_t begin, end;
};

/* What json_parse_with may be told. All zero: no comments, any number of values, nothing to find. */
struct json_options {
    bool comments;
    /* The most values (objects, arrays, strings, numbers and words, each counted once); 0: any number. The scanner counts
     * them before the tree is built, because a tree takes 64 bytes a value, 32 times the two bytes of a "0,". */
    size_t max_nodes;
    /* A key of the outermost object. *found is the source text of its value, as soon as the scanner has read it: it is
     * valid after a failure too, so that an answer can name a request that was refused. */
    const char *find;
    struct json_span *found;
};
int json_parse_with(const char *text, size_t bytes, const char *name, const struct json_options *options,
                    struct json **ret, struct err *err);
void json_free(struct json *doc);

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };
enum json_type json_type(const struct json *node);
const char *json_type_name(enum json_type t); /* "a number", "an object" ... */

/* Values of one node, with the path for messages. Integers go up to JSON_MAX_INTEGER. From 2^53 on two integers may read as
 * the same double, so they are refused rather than rounded. */
int json_string(const struct json *node, const char *path, const char **ret, struct err *err);
int json_u64(const struct json *node, const char *path, uint64_t *ret, struct err *err);
int json_double(const struct json *node, const char *path, double *ret, struct err *err);
int json_bool(const struct json *node, const char *path, bool *ret, struct err *err);
/* A size: a whole number of bytes or a string such as "9GB", "512MiB", "1.5GiB", "9e9". */
int json_bytes(const struct json *node, const char *path, uint64_t *ret, struct err *err);
/* The same for a bare string (command-line flags). */
int json_parse_bytes(const char *text, const char *path, uint64_t *ret, struct err *err);

size_t json_array_size(const struct json *node);
const struct json *json_array_at(const struct json *node, size_t i); /* O(i); prefer json_array_first/next */
const struct json *json_array_first(const struct json *node);
const struct json *json_array_next(const struct json *item);
/* First and next walk the members of an object too; json_key names each. NULL for what is not a member. */
const char *json_key(const struct json *node);

/* Raw lookups, case-sensitive, NULL when absent: for code that wants no schema. */
const struct json *json_get(const struct json *object, const char *key);

enum json_need { JSON_OPTIONAL, JSON_REQUIRED };

#define JSON_MAX_KEYS 48
struct json_obj {
    const struct json *node;
    struct err *err;
    struct err scratch_err; /* where messages go when the caller passed NULL */
    int status;
    char path[256];
    const char *taken[JSON_MAX_KEYS]; /* keys that were named, present or not */
    int n_taken;
    const char *missing; /* the required key whose absence was the failure, or NULL */
};

void json_obj_begin(struct json_obj *o, const struct json *node, const char *path, struct err *err);
int json_obj_end(struct json_obj *o); /* the first failure, or -EINVAL for a key that nobody took */

/* True when the key is present (and no failure so far). */
bool json_take(struct json_obj *o, const char *key, enum json_need need, const struct json **ret);
bool json_take_string(struct json_obj *o, const char *key, enum json_need need, const char **ret);
/* A string that people will see as a name: refuses the characters of utf8_is_unsafe, naming the first. */
bool json_take_name(struct json_obj *o, const char *key, enum json_need need, const char **ret);
bool json_take_u64(struct json_obj *o, const char *key, enum json_need need, uint64_t *ret);
bool json_take_double(struct json_obj *o, const char *key, enum json_need need, double *ret);
bool json_take_bool(struct json_obj *o, const char *key, enum json_need need, bool *ret);
bool json_take_bytes(struct json_obj *o, const char *key, enum json_need need, uint64_t *ret);
/* One of `names` (NULL-terminated); *ret is its index. A miss lists them and suggests the nearest. */
bool json_take_enum(struct json_obj *o, const char *key, enum json_need need, const char *const *names,
                    int *ret);

/* Records a failure at o->path + "." + key, for checks of the caller's own; returns the code. */
int json_fail(struct json_obj *o, const char *key, int code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* "train" + "micro_batch" -> "train.micro_batch"; "" + key -> key. Index: "layers[3]". Truncates safely. */
void json_path_key(char *buf, size_t size, const char *base, const char *key);
void json_path_index(char *buf, size_t size, const char *base, size_t i);

/* The nearest of `names` to `word` by edit distance, or NULL when none is near. */
const char *json_did_you_mean(const char *word, const char *const *names, int n);

/* The shortest of the usual forms that reads back as the same bits: 0.1, 1e+300. Whole numbers have no
 * exponent where that is possible. 32 bytes are enough. */
void json_format_number(double v, char *buf, size_t size);

/* Writing back: the node as compact JSON text, keys in document order. json_add takes what a user sizes when `b` may fail;
 * json_print returns malloc'ed text, and aborts when memory runs out. */
void json_add(struct strbuf *b, const struct json *node);
char *json_print(const struct json *node);

#endif
