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
/* The largest integer that json_u64 accepts. JSON numbers are read as doubles, and two different integers
 * above this limit can become the same double. */
#define JSON_MAX_INTEGER ((UINT64_C(1) << 53) - 1)

struct json; /* a document, or one value in it */

/* Parses `text` and stores the document in *ret, which the caller frees with json_free. Messages call the
 * document `name`, for example "job.json". If `comments` is true, the text may contain // comments, as in
 * files that people write. */
int json_parse(const char *text, size_t bytes, const char *name, bool comments, struct json **ret,
               struct err *err);

/* The bytes [begin, end) of a text. If the range is empty, `end` is 0. */
struct json_span {
    size_t begin, end;
};

/* The options of json_parse_with. In a zeroed struct, comments are not allowed, the number of values has no
 * limit, and no key is searched for. */
struct json_options {
    bool comments; /* accept // comments */
    /* The largest number of values in the document, or 0 for no limit. Every object, array, string, number,
     * true, false and null counts. The limit protects memory, because a value of two bytes, such as "0,",
     * becomes a node of 64 bytes. The limit is checked before the nodes are allocated. */
    size_t max_nodes;
    /* A key to look for in the outermost object, or NULL. The position of the key's value in the text is
     * stored in *found, even if parsing fails later. So an error reply can still contain the id of the
     * request. */
    const char *find;
    struct json_span *found;
};
/* Parses `text` like json_parse, but with more options. */
int json_parse_with(const char *text, size_t bytes, const char *name, const struct json_options *options,
                    struct json **ret, struct err *err);
void json_free(struct json *doc);

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };
enum json_type json_type(const struct json *node);
const char *json_type_name(enum json_type t); /* for messages: "a number", "an object" */

/* Each of these functions stores the value of `node` in *ret. If the node has another type, it returns
 * -EINVAL, and the message names the node by `path`. json_u64 also refuses integers above JSON_MAX_INTEGER,
 * because they may have been rounded. */
int json_string(const struct json *node, const char *path, const char **ret, struct err *err);
int json_u64(const struct json *node, const char *path, uint64_t *ret, struct err *err);
int json_double(const struct json *node, const char *path, double *ret, struct err *err);
int json_bool(const struct json *node, const char *path, bool *ret, struct err *err);
/* Reads a size in bytes from `node` and stores it in *ret. The node must be a whole number, or a string such
 * as "9GB", "512MiB" or "9e9". */
int json_bytes(const struct json *node, const char *path, uint64_t *ret, struct err *err);
/* Parses a size from the command line, such as "9GB", and stores the number of bytes in *ret. Messages name
 * the size by `path`. */
int json_parse_bytes(const char *text, const char *path, uint64_t *ret, struct err *err);

size_t json_array_size(const struct json *node);
/* Returns element `i` of an array, or NULL if there is no such element. The call takes time proportional to
 * `i`, so use json_array_first and json_array_next in a loop. */
const struct json *json_array_at(const struct json *node, size_t i);
/* json_array_first and json_array_next visit the elements of an array or the members of an object. They
 * return NULL at the end. */
const struct json *json_array_first(const struct json *node);
const struct json *json_array_next(const struct json *item);
/* Returns the key of a node that is a member of an object. Returns NULL for any other node. */
const char *json_key(const struct json *node);

/* Returns the member `key` of `object`, or NULL if there is none. If unknown keys must be reported, use
 * json_take instead. */
const struct json *json_get(const struct json *object, const char *key);

enum json_need { JSON_OPTIONAL, JSON_REQUIRED };

#define JSON_MAX_KEYS 48 /* most keys of an object */

/* The state of reading one JSON object, from json_obj_begin to json_obj_end. The struct lives on the stack of
 * the function that reads the object. */
struct json_obj {
    const struct json *node;
    struct err *err;
    struct err scratch_err; /* used when the caller's `err` is NULL */
    int status;             /* code of the first failure, or 0 */
    char path[256];         /* JSON path of the object */
    /* The keys that json_take calls have asked for so far. The object need not contain them. Any other key in
     * the object is unknown. */
    const char *taken[JSON_MAX_KEYS];
    int n_taken;
    /* If the first failure of the object is a missing required key, this is the key. Otherwise NULL. */
    const char *missing;
};

/* Begins to read the object `node`. Messages name the object by `path`. If `node` is not an object, the
 * failure is recorded in `o`, and json_obj_end returns its code. */
void json_obj_begin(struct json_obj *o, const struct json *node, const char *path, struct err *err);
/* Ends the reading of an object. Returns 0, or the code of the first failure. If the object has a key that no
 * json_take call has asked for, this is a failure with the code -EINVAL. */
int json_obj_end(struct json_obj *o);

/* Stores the member `key` in *ret and returns true. Returns false and does not change *ret if the key is
 * absent, the value is wrong or an earlier call has failed. An absent key is a failure only if `need` is
 * JSON_REQUIRED. */
bool json_take(struct json_obj *o, const char *key, enum json_need need, const struct json **ret);
bool json_take_string(struct json_obj *o, const char *key, enum json_need need, const char **ret);
/* Takes a string that people will see as a name. A string with an unsafe character, which could control a
 * terminal, is refused. The message names the character. */
bool json_take_name(struct json_obj *o, const char *key, enum json_need need, const char **ret);
bool json_take_u64(struct json_obj *o, const char *key, enum json_need need, uint64_t *ret);
bool json_take_double(struct json_obj *o, const char *key, enum json_need need, double *ret);
bool json_take_bool(struct json_obj *o, const char *key, enum json_need need, bool *ret);
bool json_take_bytes(struct json_obj *o, const char *key, enum json_need need, uint64_t *ret);
/* Takes a string that must be one of `names`, and stores its index in *ret. The array `names` ends with
 * NULL. For any other string, the message suggests the most similar name. */
bool json_take_enum(struct json_obj *o, const char *key, enum json_need need, const char *const *names,
                    int *ret);

/* Records a failure that the caller found in the member `key`, or in the object itself if `key` is NULL.
 * Returns the code of the object's first failure. */
int json_fail(struct json_obj *o, const char *key, int code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* json_path_key writes the path of an object's member to `buf`, for example "train.micro_batch".
 * json_path_index writes the path of an array's element, for example "layers[3]". A text that is too long is
 * cut. `base` may be the same buffer as `buf`. */
void json_path_key(char *buf, size_t size, const char *base, const char *key);
void json_path_index(char *buf, size_t size, const char *base, size_t i);

/* Returns the name in `names` that is most similar to `word`, or NULL if no name is similar enough. Messages
 * use this name, for example: did you mean "dense"? */
const char *json_did_you_mean(const char *word, const char *const *names, int n);

/* Writes the number `v` with the fewest digits that read back as exactly the same double. Whole numbers up
 * to 2^53 are written without an exponent. A buffer of 32 bytes is enough. */
void json_format_number(double v, char *buf, size_t size);

/* Appends the node to `b` as compact JSON. The keys of objects keep the order that they have in the
 * document. */
void json_add(struct strbuf *b, const struct json *node);
/* Returns the node as compact JSON text. The caller frees the text. The program aborts if memory runs
 * out. */
char *json_print(const struct json *node);

#endif
