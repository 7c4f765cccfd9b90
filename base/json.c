/* The JSON tree: parsing, access to nodes, printing. This is the only file that uses cJSON.
 *
 * `struct json` is a cJSON node under another name, so no tree is copied. Parsing has four steps. Comments
 * are blanked out in a copy of the text. json_scan refuses text that is not JSON. cJSON builds the tree. A
 * walk over the tree refuses duplicate keys and numbers that overflow a double. The walk is needed because
 * cJSON accepts two equal keys and finds only the first: a second "lr" would be ignored silently.
 *
 * Numbers are printed here and not by cJSON. cJSON prints 15 digits when it considers them close enough,
 * which turns 9007199254740991 into 9007199254740990 and 0.30000000000000004 into 0.3. json_format_number
 * prints numbers that read back as the same bits. No program sets LC_NUMERIC, so the decimal separator is
 * always a point.
 *
 * The size of a tree depends on user input. So cJSON allocates through base/mem, and running out of memory
 * returns -ENOMEM. cJSON's allocation hooks are global to the process; they are set once, before the first
 * document is parsed. Any number of threads may read a parsed document.
 */
#include "base/json.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/json_private.h"
#include "base/json_scan.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "base/utf8.h"

static const cJSON *in(const struct json *node)
{
    return (const cJSON *)node;
}

static const struct json *out(const cJSON *item)
{
    return (const struct json *)item;
}

/* --------------------------------------------------------------- checks after the scan: keys, numbers */

/* The path from the root of the document to the node that check_tree visits, as a linked list on the stack.
 * format_tree_path turns the list into text such as "model.layers[2]". */
struct tree_path {
    const struct tree_path *up; /* the parent's path; NULL at the root */
    const char *key;            /* NULL when the parent is an array */
    size_t index;               /* index in the parent array */
};

static void format_tree_path(const struct tree_path *p, char *buf, size_t size)
{
    if (!p->up) {
        buf[0] = '\0';
        return;
    }
    format_tree_path(p->up, buf, size);
    if (p->key)
        json_path_key(buf, size, buf, p->key);
    else
        json_path_index(buf, size, buf, p->index);
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts the keys, and returns a key that occurs twice, or NULL if there is none. Sorting makes the search
 * fast even for an object with 100,000 keys. */
static const char *sort_and_find_twin(const char **keys, size_t n)
{
    qsort(keys, n, sizeof *keys, compare_keys);
    for (size_t i = 1; i < n; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            return keys[i];
    return NULL;
}

/* If a key occurs twice in the object, reports this in `err` and returns -EINVAL. */
static int check_keys(const cJSON *object, const struct tree_path *at, const char *name, struct err *err)
{
    size_t n = (size_t)cJSON_GetArraySize(object), i = 0;
    const char *few[32], **keys = few, *twin;
    char path[sizeof err->path], shown[64];

    if (n > 32) {
        keys = mem_calloc(n, sizeof *keys);
        if (!keys)
            return err_set_at(err, -ENOMEM, name, "out of memory for an object of %zu keys", n);
    }
    for (const cJSON *c = object->child; c; c = c->next)
        keys[i++] = c->string;
    twin = sort_and_find_twin(keys, n);
    if (keys != few)
        free(keys);
    if (!twin)
        return 0;
    format_tree_path(&(struct tree_path){.up = at, .key = twin}, path, sizeof path);
    utf8_copy(shown, sizeof shown, twin);
    return err_set_at(err, -EINVAL, path, "duplicate key \"%s\" in %s; keep one of them", shown, name);
}

/* Returns -EINVAL if the tree has duplicate keys, or a number that overflowed to infinity. json_scan refuses
 * documents deeper than JSON_MAX_DEPTH, so the recursion cannot be deeper either. */
static int check_tree(const cJSON *node, const struct tree_path *at, const char *name, struct err *err)
{
    struct tree_path below = {.up = at};
    char path[sizeof err->path];
    int r = 0;

    if (cJSON_IsNumber(node) && !isfinite(node->valuedouble)) {
        format_tree_path(at, path, sizeof path);
        return err_set_at(err, -EINVAL, path, "a number in %s is too large; at most 1.79e308 can be read",
                          name);
    }
    if (cJSON_IsObject(node))
        r = check_keys(node, at, name, err);
    for (const cJSON *c = node->child; c && r == 0; c = c->next, below.index++) {
        below.key = c->string;
        r = check_tree(c, &below, name, err);
    }
    return r;
}

/* ---------------------------------------------------------------------------------------------- parsing */

static void set_hooks(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = mem_alloc, .free_fn = free});
}

/* Builds the tree of `text` with cJSON and checks the tree. The caller has already checked the text with
 * json_scan. */
static int build_tree(const char *text, size_t bytes, const char *name, struct json **ret, struct err *err)
{
    static pthread_once_t hooks = PTHREAD_ONCE_INIT;
    struct tree_path root = {0};
    cJSON *tree;
    int r;

    pthread_once(&hooks, set_hooks);
    tree = cJSON_ParseWithLengthOpts(text, bytes, NULL, 0);
    if (!tree)
        return err_set_at(err, -ENOMEM, name, "out of memory while reading a document of %zu bytes", bytes);
    r = check_tree(tree, &root, name, err);
    if (r < 0) {
        cJSON_Delete(tree);
        return r;
    }
    *ret = (struct json *)tree;
    return 0;
}

int json_parse(const char *text, size_t bytes, const char *name, bool comments, struct json **ret,
               struct err *err)
{
    return json_parse_with(text, bytes, name, &(struct json_options){.comments = comments}, ret, err);
}

int json_parse_with(const char *text, size_t bytes, const char *name, const struct json_options *options,
                    struct json **ret, struct err *err)
{
    char *copy = NULL;
    int r;

    if (!name)
        name = "JSON";
    if (options->found)
        *options->found = (struct json_span){0};
    if (bytes > JSON_MAX_BYTES)
        return err_set_at(err, -E2BIG, name, "the document has %zu bytes; at most %u are accepted", bytes,
                          JSON_MAX_BYTES);
    if (options->comments && bytes > 0) {
        copy = mem_alloc(bytes);
        if (!copy)
            return err_set_at(err, -ENOMEM, name, "out of memory for a document of %zu bytes", bytes);
        memcpy(copy, text, bytes);
        json_blank_comments(copy, bytes);
        text = copy;
    }
    r = json_scan(text, bytes, name, options, err);
    if (r == 0)
        r = build_tree(text, bytes, name, ret, err);
    free(copy);
    return r;
}

void json_free(struct json *doc)
{
    cJSON_Delete((cJSON *)doc);
}

/* ------------------------------------------------------------------------------------------------ nodes */

enum json_type json_type(const struct json *node)
{
    const cJSON *c = in(node);

    if (cJSON_IsBool(c))
        return JSON_BOOL;
    if (cJSON_IsNumber(c))
        return JSON_NUMBER;
    if (cJSON_IsString(c))
        return JSON_STRING;
    if (cJSON_IsArray(c))
        return JSON_ARRAY;
    if (cJSON_IsObject(c))
        return JSON_OBJECT;
    return JSON_NULL;
}

const char *json_type_name(enum json_type t)
{
    switch (t) {
    case JSON_NULL:
        return "null";
    case JSON_BOOL:
        return "true or false";
    case JSON_NUMBER:
        return "a number";
    case JSON_STRING:
        return "a string";
    case JSON_ARRAY:
        return "an array";
    case JSON_OBJECT:
        return "an object";
    }
    return "nothing";
}

const char *json_node_text(const struct json *node)
{
    return in(node)->valuestring;
}

double json_node_number(const struct json *node)
{
    return in(node)->valuedouble;
}

bool json_node_true(const struct json *node)
{
    return cJSON_IsTrue(in(node));
}

const char *json_key(const struct json *node)
{
    return in(node)->string;
}

size_t json_array_size(const struct json *node)
{
    return (size_t)cJSON_GetArraySize(in(node));
}

const struct json *json_array_first(const struct json *node)
{
    return out(in(node)->child);
}

const struct json *json_array_next(const struct json *item)
{
    return out(in(item)->next);
}

const struct json *json_array_at(const struct json *node, size_t i)
{
    const struct json *item = json_array_first(node);

    while (item && i-- > 0)
        item = json_array_next(item);
    return item;
}

const struct json *json_get(const struct json *object, const char *key)
{
    if (!object || !cJSON_IsObject(in(object)))
        return NULL;
    for (const cJSON *c = in(object)->child; c; c = c->next)
        if (strcmp(c->string, key) == 0)
            return out(c);
    return NULL;
}

/* -------------------------------------------------------------------------------------------- printing */

void json_format_number(double v, char *buf, size_t size)
{
    if (v == floor(v) && fabs(v) <= 0x1p53) {
        snprintf(buf, size, "%.0f", v);
        return;
    }
    /* Try 15, 16 and 17 digits. With 17 digits, every double reads back as the same number. */
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buf, size, "%.*g", digits, v);
        if (strtod(buf, NULL) == v)
            return;
    }
}

static void print_node(struct strbuf *b, const cJSON *node);

static void print_children(struct strbuf *b, const cJSON *node)
{
    for (const cJSON *c = node->child; c; c = c->next) {
        if (cJSON_IsObject(node)) {
            strbuf_add_json(b, c->string);
            strbuf_add(b, ":");
        }
        print_node(b, c);
        if (c->next)
            strbuf_add(b, ",");
    }
}

static void print_node(struct strbuf *b, const cJSON *node)
{
    char number[40];

    switch (json_type(out(node))) {
    case JSON_NULL:
        strbuf_add(b, "null");
        break;
    case JSON_BOOL:
        strbuf_add(b, cJSON_IsTrue(node) ? "true" : "false");
        break;
    case JSON_NUMBER:
        json_format_number(node->valuedouble, number, sizeof number);
        strbuf_add(b, number);
        break;
    case JSON_STRING:
        strbuf_add_json(b, node->valuestring);
        break;
    case JSON_ARRAY:
        strbuf_add(b, "[");
        print_children(b, node);
        strbuf_add(b, "]");
        break;
    case JSON_OBJECT:
        strbuf_add(b, "{");
        print_children(b, node);
        strbuf_add(b, "}");
        break;
    }
}

void json_add(struct strbuf *b, const struct json *node)
{
    print_node(b, in(node));
}

char *json_print(const struct json *node)
{
    struct strbuf b = {0};

    json_add(&b, node);
    return b.at;
}

/* ----------------------------------------------------------------------------------------------- paths */

/* Copies `base` to `buf`. If both are the same buffer, copies nothing. Returns the length of the text in
 * `buf`. */
static size_t begin_path(char *buf, size_t size, const char *base)
{
    if (buf != base)
        utf8_copy(buf, size, base);
    return strlen(buf);
}

void json_path_key(char *buf, size_t size, const char *base, const char *key)
{
    size_t n;

    assert(size > 0);
    n = begin_path(buf, size, base);
    if (n > 0 && n + 1 < size)
        buf[n++] = '.';
    utf8_copy(buf + n, size - n, key);
}

void json_path_index(char *buf, size_t size, const char *base, size_t i)
{
    char index[32];
    size_t n;

    assert(size > 0);
    n = begin_path(buf, size, base);
    snprintf(index, sizeof index, "[%zu]", i);
    utf8_copy(buf + n, size - n, index);
}
