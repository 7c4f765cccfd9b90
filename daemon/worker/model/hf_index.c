/* Implements hf_index.h: parses the index of a folder with several weight files. The index must be a map from
 * tensor names to file names. A file name with a slash is refused, because it could lead out of the
 * folder. */
#include "daemon/worker/model/hf_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/get.h"
#include "base/utf8.h"

#define SUFFIX ".safetensors"

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const struct hf_index_entry *)a)->tensor, ((const struct hf_index_entry *)b)->tensor);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool is_plain(const char *name)
{
    size_t n = strlen(name), suffix = strlen(SUFFIX);

    return n > suffix && n < 256 && name[0] != '.' && !strchr(name, '/') &&
           strcmp(name + n - suffix, SUFFIX) == 0;
}

/* Reads one member of weight_map, which maps a tensor to a file. Stores the name of the file in *ret. */
static int read_file_name(const struct json *node, const char *file, const char **ret, struct err *err)
{
    char shown[96], found[UTF8_NAME_BYTES];

    utf8_copy(shown, sizeof shown, json_key(node));
    if (utf8_find_unsafe(json_key(node), found))
        return err_set_at(err, -EINVAL, file,
                          "weight_map: the name of a tensor contains %s, a control or invisible character: "
                          "\"%s\"",
                          found, shown);
    if (json_type(node) != JSON_STRING)
        return err_set_at(err, -EINVAL, file, "weight_map: the file of \"%s\" is %s, not a name", shown,
                          json_type_name(json_type(node)));
    json_string(node, file, ret, NULL);
    if (is_plain(*ret))
        return 0;
    char name[96];
    utf8_copy(name, sizeof name, *ret);
    return err_set_at(err, -EINVAL, file,
                      "weight_map: the file of \"%s\" is \"%s\"; expected the plain name of a " SUFFIX
                      " file of this folder",
                      shown, name);
}

/* Sorts the names of the weight files and removes duplicates, because many tensors are in the same file. */
static void list_files(struct hf_index *x)
{
    size_t n = 0;

    qsort(x->files, x->n, sizeof *x->files, compare_texts);
    for (size_t i = 0; i < x->n; i++)
        if (n == 0 || strcmp(x->files[n - 1], x->files[i]) != 0)
            x->files[n++] = x->files[i];
    x->n_files = n;
}

static int read_map(struct hf_index *x, const struct json *map, const char *file, struct err *err)
{
    const char **names;
    size_t n = json_array_size(map), i = 0;

    x->entries = calloc(n, sizeof *x->entries);
    x->files = calloc(n, sizeof *x->files);
    if (!x->entries || !x->files)
        return err_set_at(err, -ENOMEM, file, "no memory for a list of %zu tensors", n);
    x->n = n;
    for (const struct json *m = json_array_first(map); m; m = json_array_next(m), i++) {
        int r = read_file_name(m, file, &x->files[i], err);
        if (r < 0)
            return r;
    }
    list_files(x);
    i = 0;
    for (const struct json *m = json_array_first(map); m; m = json_array_next(m), i++) {
        const char *name = NULL;
        json_string(m, file, &name, NULL);
        names = bsearch(&name, x->files, x->n_files, sizeof *x->files, compare_texts);
        x->entries[i] = (struct hf_index_entry){json_key(m), (size_t)(names - x->files)};
    }
    qsort(x->entries, n, sizeof *x->entries, compare_tensors);
    return 0;
}

static int read_index(struct hf_index *x, const char *file, struct err *err)
{
    const struct json *map = get_object(x->doc, "weight_map"), *total;
    struct err e = {0};

    if (!map || !json_array_first(map))
        return err_set_at(err, -EINVAL, file,
                          "weight_map is missing, is not an object, or is empty; expected {\"weight_map\": "
                          "{tensor: file}}");
    total = get_node(get_object(x->doc, "metadata"), "total_size");
    if (total && json_u64(total, "metadata.total_size", &x->bytes, &e) < 0)
        return err_set_at(err, -EINVAL, file, "%s: %s", e.path, e.msg);
    x->has_bytes = total != NULL;
    return read_map(x, map, file, err);
}

int hf_index_parse(const char *text, size_t bytes, const char *file, struct hf_index *ret, struct err *err)
{
    struct hf_index x = {0};
    int r = json_parse(text, bytes, file, false, &x.doc, err);

    if (r == 0)
        r = read_index(&x, file, err);
    if (r < 0)
        hf_index_finish(&x);
    else
        *ret = x;
    return r;
}

void hf_index_finish(struct hf_index *x)
{
    free(x->entries);
    free(x->files);
    json_free(x->doc);
    *x = (struct hf_index){0};
}

const struct hf_index_entry *hf_index_find(const struct hf_index *x, const char *tensor)
{
    const struct hf_index_entry key = {.tensor = tensor};

    return x->n > 0 ? bsearch(&key, x->entries, x->n, sizeof key, compare_tensors) : NULL;
}
