/* Strict JSON on top of cJSON, which no other folder uses.
 *
 * Parsing. json_parse accepts only valid JSON. It also refuses duplicate keys, nesting deeper than
 * JSON_MAX_DEPTH, documents larger than JSON_MAX_BYTES, and what cJSON or a C string cannot represent: \u0000
 * in a string, numbers that overflow a double, and numbers of more than 63 characters. Errors give the line
 * and column.
 *
 * Reading an object. A reader names each key that may occur with a json_take function. At the end,
 * json_obj_end reports a key that the reader did not name, and suggests the nearest known key ("did you
 * mean"). Errors give the JSON path, for example "model.layers[2].out".
 *
 *     struct json_obj o;
 *     json_obj_begin(&o, node, "train", err);
 *     json_take_u64(&o, "global_batch", JSON_REQUIRED, &batch); // `o` records the first failure;
 *     json_take_string(&o, "type", JSON_OPTIONAL, &type);       // after it, json_take does nothing
 *     r = json_obj_end(&o);
 *
 * An optional key that is absent leaves *ret unchanged, so set the default before the call.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"

#define JSON_MAX_DEPTH 32
#define JSON_MAX_BYTES (64u << 20)
/* The largest integer that is accepted. Above it, two different integers can round to the same double. */
#define JSON_MAX_INTEGER ((UINT64_C(1) << 53) - 1)

struct json; /* a document, or one value in it */

/* Parses `text` and stores the document in *ret. Free the document with json_free; its nodes belong to it.
 *
 * Messages call the document `name`, for example "job.json". With `comments`, comments from // to the end of
 * the line are accepted: for files that people write, not for messages between programs. */
int json_parse(const char *text, size_t bytes, const char *name, bool comments, struct json **ret,
               struct err *err);

/* The bytes [begin, end) of a text. `end` is 0 when the span is empty. */
struct json_span {
    size_t begin, end;
};

/* Options of json_parse_with. A zeroed struct allows no comments, any number of values, and finds no key. */
struct json_options {
    bool comments; /* accept // comments */
    /* The most values that the document may have; 0: no limit. An object, an array, a string, a number, true,
     * false and null each count as one value. The scanner counts before the tree is built, because a tree
     * takes 64 bytes per value while the text "0," of a value takes two. */
    size_t max_nodes;
    /* A key of the outermost object to look for, or NULL. *found becomes the span of the key's value in
     * `text`. When parsing fails after that value, *found is still set, so that an answer can name the
     * request that was refused. */
    const char *find;
    struct json_span *found;
};
/* Parses `text` and stores the document in *ret, as json_parse does, with more options. */
int json_parse_with(const char *text, size_t bytes, const char *name, const struct json_options *options,
                    struct json **ret, struct err *err);
void json_free(struct json *doc);

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };
enum json_type json_type(const struct json *node);
const char *json_type_name(enum json_type t); /* for messages: "a number", "an object" */

/* Each function stores the value of `node` in *ret. Returns -EINVAL when the node has another type. `path`
 * says in the message where the node is. json_u64 refuses integers above JSON_MAX_INTEGER, because a double
 * may have rounded them. */
int json_string(const struct json *node, const char *path, const char **ret, struct err *err);
int json_u64(const struct json *node, const char *path, uint64_t *ret, struct err *err);
int json_double(const struct json *node, const char *path, double *ret, struct err *err);
int json_bool(const struct json *node, const char *path, bool *ret, struct err *err);
/* Stores a size in bytes in *ret. The node is a whole number, or a string such as
 * "9GB", "512MiB", "1.5GiB", "9e9". */
int json_bytes(const struct json *node, const char *path, uint64_t *ret, struct err *err);
/* Stores the size that `text` gives, such as "9GB", in *ret. Used for sizes on the command line. */
int json_parse_bytes(const char *text, const char *path, uint64_t *ret, struct err *err);

size_t json_array_size(const struct json *node);
/* Returns element `i` of an array, or NULL. This takes O(i) time: a loop should use json_array_first and
 * json_array_next. */
const struct json *json_array_at(const struct json *node, size_t i);
/* These visit the elements of an array, or the members of an object. They return NULL at the end. */
const struct json *json_array_first(const struct json *node);
const struct json *json_array_next(const struct json *item);
/* Returns the key of an object's member, or NULL for a node that is not a member of an object. */
const char *json_key(const struct json *node);

/* Returns the member `key` of `object`, or NULL when it is absent or `object` is not an object. The
 * comparison is case-sensitive. Code that must report unknown keys uses json_take instead. */
const struct json *json_get(const struct json *object, const char *key);

enum json_need { JSON_OPTIONAL, JSON_REQUIRED };

#define JSON_MAX_KEYS 48 /* most keys of an object */

/* The state of reading one object, between json_obj_begin and json_obj_end. It lives on the reader's
 * stack. */
struct json_obj {
    const struct json *node;
    struct err *err;
    struct err scratch_err; /* used when the caller's `err` is NULL */
    int status;             /* code of the first failure, or 0 */
    char path[256];         /* JSON path of the object */
    /* The keys that json_take calls have named so far, whether the object has them or not. */
    const char *taken[JSON_MAX_KEYS];
    int n_taken;
    /* The required key whose absence was the first failure, or NULL. */
    const char *missing;
};

/* Begins to read `node`, whose JSON path is `path`. Records a failure in `o` when `node` is not an object. */
void json_obj_begin(struct json_obj *o, const struct json *node, const char *path, struct err *err);
/* Returns the code of the first failure, or -EINVAL when the object has a key that no json_take call
 * named. */
int json_obj_end(struct json_obj *o);

/* Each json_take function stores the member `key` in *ret and returns true. It returns false, and leaves *ret
 * alone, when the key is absent, the value is wrong, or an earlier call on `o` failed. An absent key is a
 * failure only with JSON_REQUIRED. */
bool json_take(struct json_obj *o, const char *key, enum json_need need, const struct json **ret);
bool json_take_string(struct json_obj *o, const char *key, enum json_need need, const char **ret);
/* Takes a string that people will see as a name. A character for which utf8_is_unsafe is true is a failure,
 * and the message names the character. */
bool json_take_name(struct json_obj *o, const char *key, enum json_need need, const char **ret);
bool json_take_u64(struct json_obj *o, const char *key, enum json_need need, uint64_t *ret);
bool json_take_double(struct json_obj *o, const char *key, enum json_need need, double *ret);
bool json_take_bool(struct json_obj *o, const char *key, enum json_need need, bool *ret);
bool json_take_bytes(struct json_obj *o, const char *key, enum json_need need, uint64_t *ret);
/* Takes a string that must be one of `names`, a list that ends with NULL, and stores its index in *ret. For
 * another string the message lists the names and suggests the nearest. */
bool json_take_enum(struct json_obj *o, const char *key, enum json_need need, const char *const *names,
                    int *ret);

/* Records a failure that the caller itself found in the member `key`; NULL stands for the object itself.
 * Returns the code of the object's first failure, which is `code` if there was none before. */
int json_fail(struct json_obj *o, const char *key, int code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* These write the path of a member or of an element to `buf`, cut to fit. `base` is the path of the object or
 * array, and may be `buf` itself. json_path_key makes "train.micro_batch" from "train" and "micro_batch", and
 * json_path_index makes "layers[3]" from "layers" and 3. */
void json_path_key(char *buf, size_t size, const char *base, const char *key);
void json_path_index(char *buf, size_t size, const char *base, size_t i);

/* Returns the one of the `n` names that has the smallest edit distance to `word`, or NULL when none is
 * close. */
const char *json_did_you_mean(const char *word, const char *const *names, int n);

/* Writes the number `v` with 15 to 17 digits, the fewest that read back as the same bits: 0.1, 1e+300. Whole
 * numbers up to 2^53 are written without an exponent. 32 bytes are enough. */
void json_format_number(double v, char *buf, size_t size);

/* Appends the node to `b` as compact JSON, with the keys in the order of the document. */
void json_add(struct strbuf *b, const struct json *node);
/* Returns the node as compact JSON, which the caller frees. Aborts when memory runs out. */
char *json_print(const struct json *node);

#endif
