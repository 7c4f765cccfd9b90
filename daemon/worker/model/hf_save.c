/* Writes a Hugging Face folder.
 *
 * hf_save lists the folder's tensors and distributes them over shards. Each tensor in the list points to the
 * memory of a parameter. hf_save then writes config.json, weights and index to a temporary folder beside the
 * final one, syncs everything, and renames the folder. After a crash there is the old folder or the new one,
 * and perhaps an unused ".tutti-export-*.tmp".
 *
 * An earlier export is exchanged for the new folder and then removed. A folder counts as an earlier export
 * if it only has files that hf_save writes, and its weights carry the mark of this program. A folder to
 * which somebody has added a tokenizer is therefore never removed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "daemon/spec/hf_config.h"
#include "daemon/worker/model/hf.h"
#include "daemon/worker/model/hf_names.h"

#define CONFIG   "config.json"
#define SINGLE   "model.safetensors"
#define INDEX    "model.safetensors.index.json"
#define PRODUCER "tutti"

/* The place in the file system to which a Hugging Face folder is exported. */
struct export_target {
    const char *dir;         /* path of the folder */
    int parent;              /* parent directory of the folder, open */
    char name[NAME_MAX + 1]; /* name of the folder in its parent */
    /* Name of the temporary folder in the parent directory. The export is written there and renamed at the
     * end. */
    char tmp[64];
    bool old; /* whether there is an earlier export */
};

/* The content of the folder. */
struct hf_export {
    const struct transformer *t;
    enum dtype dtype;          /* of the tensors in the files */
    struct st_tensor *tensors; /* with the names that Hugging Face uses */
    size_t n;
    /* shards[i] is the number of the shard that tensor number i belongs to. */
    size_t *shards;
    size_t n_shards;
    uint64_t bytes;      /* number of bytes in all tensors */
    uint64_t parameters; /* number of elements in all tensors */
};

/* ------------------------------------------------------------------------------------------ tensors */

static uint64_t tensor_bytes(const struct st_tensor *t)
{
    uint64_t n = dtype_size(t->dtype);

    for (uint32_t i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

static void fill_tensors(struct hf_export *x, const struct hf_names *names,
                         const struct st_tensor *const *bound)
{
    for (size_t i = 0; i < names->n; i++) {
        const struct hf_link *l = &names->links[i];
        struct st_tensor *t = &x->tensors[i];
        *t = (struct st_tensor){
            .name = l->name, .dtype = x->dtype, .rank = l->rank, .transposed = l->transposed};
        t->rounded = x->dtype != DTYPE_F32;
        memcpy(t->shape, l->shape, sizeof l->shape);
        t->data = (char *)bound[i]->data + l->row * hf_link_columns(l) * dtype_size(bound[i]->dtype);
        x->bytes += tensor_bytes(t);
        x->parameters += dtype_elements(t->dtype, tensor_bytes(t));
    }
    x->n = names->n;
}

/* Assigns the tensors to shards (weight files) in the order of the tensors. A new shard begins when the
 * current shard would have more than `most` bytes. */
static void assign_shards(struct hf_export *x, uint64_t most)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < x->n; i++) {
        uint64_t more = tensor_bytes(&x->tensors[i]);
        if (i == 0 || more > most || bytes > most - more) {
            bytes = 0;
            x->n_shards++;
        }
        bytes += more;
        x->shards[i] = x->n_shards - 1;
    }
}

static int export_init(struct hf_export *x, const struct hf_names *names,
                       const struct st_tensor *const *bound, uint64_t shard_bytes, struct err *err)
{
    x->tensors = calloc(names->n, sizeof *x->tensors);
    x->shards = calloc(names->n, sizeof *x->shards);
    if (!x->tensors || !x->shards)
        return err_set(err, -ENOMEM, "no memory for a list of %zu tensors", names->n);
    fill_tensors(x, names, bound);
    assign_shards(x, shard_bytes ? shard_bytes : HF_SHARD_BYTES);
    return 0;
}

static void export_finish(struct hf_export *x)
{
    free(x->tensors);
    free(x->shards);
}

/* ------------------------------------------------------------------------------------------ files */

static void shard_name(char *buf, size_t size, size_t i, size_t n)
{
    if (n == 1)
        snprintf(buf, size, SINGLE);
    else
        snprintf(buf, size, "model-%05zu-of-%05zu.safetensors", i + 1, n);
}

static int write_text(int fd, const char *dir, const char *name, const struct strbuf *b, struct err *err)
{
    int file = fs_create(fd, name), r = file < 0 ? file : fs_write_all(file, b->at, b->n), e;

    if (file >= 0) {
        e = fs_sync_close(file);
        r = r < 0 ? r : e;
    }
    return r < 0 ? fs_fail(err, r, dir, name, "write") : 0;
}

static int write_config(const struct hf_export *x, int fd, const char *dir, struct err *err)
{
    struct strbuf b = {0};
    int r;

    hf_config_write(x->t, x->dtype, &b);
    r = write_text(fd, dir, CONFIG, &b, err);
    strbuf_finish(&b);
    return r;
}

static int write_index(const struct hf_export *x, int fd, const char *dir, struct err *err)
{
    struct strbuf b = {0};
    char name[64];
    int r;

    strbuf_addf(&b, "{\n  \"metadata\": {\"total_size\": %" PRIu64 "},\n  \"weight_map\": {", x->bytes);
    for (size_t i = 0; i < x->n; i++) {
        shard_name(name, sizeof name, x->shards[i], x->n_shards);
        strbuf_add(&b, i > 0 ? ",\n    " : "\n    ");
        strbuf_add_json(&b, x->tensors[i].name);
        strbuf_addf(&b, ": \"%s\"", name);
    }
    strbuf_add(&b, "\n  }\n}\n");
    r = write_text(fd, dir, INDEX, &b, err);
    strbuf_finish(&b);
    return r;
}

static int write_shard(const struct hf_export *x, size_t shard, int fd, const char *dir, uint64_t *bytes,
                       struct err *err)
{
    static const struct st_meta meta[] = {{"format", "pt"}, {"producer", PRODUCER}};
    char name[64], path[FS_PATH_BYTES];
    size_t first = 0, n = 0;
    uint64_t written = 0;
    int file, r, e;

    while (x->shards[first] < shard)
        first++;
    while (first + n < x->n && x->shards[first + n] == shard)
        n++;
    shard_name(name, sizeof name, shard, x->n_shards);
    fs_path(path, sizeof path, dir, name);
    file = fs_create(fd, name);
    if (file < 0)
        return fs_fail(err, file, NULL, path, "create");
    r = safetensors_write(file, path, x->tensors + first, n, meta, 2, &written, NULL, err);
    e = fs_sync_close(file);
    *bytes += written;
    return r == 0 && e < 0 ? fs_fail(err, e, NULL, path, "sync") : r;
}

/* Writes all files of the export to the temporary folder `fd`. Error messages use `dir`, the final name of
 * the folder. */
static int write_files(const struct hf_export *x, int fd, const char *dir, uint64_t *bytes, struct err *err)
{
    int r = write_config(x, fd, dir, err);

    for (size_t i = 0; r == 0 && i < x->n_shards; i++)
        r = write_shard(x, i, fd, dir, bytes, err);
    if (r == 0 && x->n_shards > 1)
        r = write_index(x, fd, dir, err);
    if (r < 0)
        return r;
    r = fs_sync(fd);
    return r < 0 ? fs_fail(err, r, NULL, dir, "sync") : 0;
}

/* ------------------------------------------------------------------------------------ existing folder */

/* Returns whether `name` is the name of a weight file, such as "model-00001-of-00002.safetensors". */
static bool is_weights(const char *name)
{
    char want[64];
    unsigned long i = 0, n = 0;

    if (strcmp(name, SINGLE) == 0)
        return true;
    if (sscanf(name, "model-%lu-of-%lu.", &i, &n) != 2 || i == 0 || n < 2)
        return false;
    shard_name(want, sizeof want, i - 1, n);
    return strcmp(name, want) == 0;
}

/* Returns whether this program wrote the weight file `name`. The metadata in the file say which program wrote
 * it. */
static bool has_our_mark(int fd, const char *name)
{
    uint64_t bytes;
    struct safetensors *st = NULL;
    int file = fs_open_read(fd, name, &bytes);
    const char *producer;
    bool ours;

    if (file < 0)
        return false;
    producer = safetensors_open(file, name, &st, NULL) == 0 ? safetensors_meta(st, "producer") : NULL;
    ours = producer && strcmp(producer, PRODUCER) == 0;
    safetensors_close(st);
    close(file);
    return ours;
}

/* Counts the entries of the folder `fd` in *ret_n and closes `fd`. `other` receives the name of an entry that
 * does not come from an export, or "" if there is no such entry. */
static int list_folder(int fd, char *other, size_t size, size_t *ret_n)
{
    DIR *dir = fdopendir(fd);
    struct dirent *e;
    int r;

    if (!dir) {
        r = -errno;
        close(fd);
        return r;
    }
    other[0] = '\0';
    *ret_n = 0;
    while ((errno = 0, e = readdir(dir))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        ++*ret_n;
        if (other[0] == '\0' && strcmp(e->d_name, CONFIG) != 0 && strcmp(e->d_name, INDEX) != 0 &&
            !(is_weights(e->d_name) && has_our_mark(fd, e->d_name)))
            snprintf(other, size, "%s", e->d_name);
    }
    r = -errno;
    closedir(dir); /* also closes fd */
    return r;
}

static int fail_exists(const struct export_target *to, const char *why, struct err *err)
{
    return err_set_at(err, -EEXIST, to->dir, "exists already%s; choose another folder", why);
}

/* Checks that the export may be written to the folder. The folder must be absent, empty, or an earlier export
 * that may be replaced. */
static int check_target(struct export_target *to, bool replace, struct err *err)
{
    int fd = fs_open_dir(to->parent, to->name), r;
    char other[NAME_MAX + 1], why[NAME_MAX + 100];
    size_t n = 0;

    if (fd == -ENOENT)
        return 0;
    if (fd == -ENOTDIR || fd == -ELOOP)
        return fail_exists(to, " and is not a folder", err);
    r = fd < 0 ? fd : list_folder(fd, other, sizeof other, &n);
    if (r < 0)
        return fs_fail(err, r, NULL, to->dir, "look into");
    if (n == 0)
        return 0;
    if (other[0] != '\0') {
        snprintf(why, sizeof why, " and contains %s, which is not part of an export of this program", other);
        return fail_exists(to, why, err);
    }
    to->old = true;
    return replace ? 0
                   : err_set_at(err, -EEXIST, to->dir,
                                "exists already and is an export; choose another folder, or give --force");
}

static int target_init(struct export_target *to, const char *dir, bool replace, struct err *err)
{
    char copy[PATH_MAX], *name;

    *to = (struct export_target){.dir = dir, .parent = -1};
    if ((size_t)snprintf(copy, sizeof copy, "%s", dir) >= sizeof copy)
        return err_set_at(err, -ENAMETOOLONG, dir, "the path is too long");
    name = basename(copy);
    if (strlen(name) >= sizeof to->name)
        return err_set_at(err, -ENAMETOOLONG, dir, "the name is too long");
    memcpy(to->name, name, strlen(name) + 1);
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, "/") == 0)
        return err_set_at(err, -EINVAL, dir, "is not the name of a folder that can be made");
    snprintf(to->tmp, sizeof to->tmp, ".tutti-export-%d.tmp", (int)getpid());
    snprintf(copy, sizeof copy, "%s", dir);
    to->parent = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (to->parent < 0)
        return err_set_at(err, errno == ENOENT ? -EINVAL : -errno, dir, "cannot open the parent folder: %s",
                          strerror(errno));
    return check_target(to, replace, err);
}

/* ------------------------------------------------------------------------------------------ publishing */

static int write_tmp_folder(const struct hf_export *x, const struct export_target *to, uint64_t *bytes,
                            struct err *err)
{
    int r = fs_remove_tree(to->parent, to->tmp), fd;

    if (r == 0 && mkdirat(to->parent, to->tmp, 0777) < 0)
        r = -errno;
    fd = r < 0 ? r : fs_open_dir(to->parent, to->tmp);
    if (fd < 0)
        return fs_fail(err, fd, NULL, to->dir, "make the folder");
    r = write_files(x, fd, to->dir, bytes, err);
    close(fd);
    return r;
}

/* Exchanges the old and the new folder in several renames, for file systems that cannot exchange two folders
 * in one step. For a moment, no folder has the final name. */
static int exchange_slowly(const struct export_target *to)
{
    char aside[sizeof to->tmp + 4];
    int r;

    snprintf(aside, sizeof aside, "%s.old", to->tmp);
    if (renameat(to->parent, to->name, to->parent, aside) < 0)
        return -errno;
    if (renameat(to->parent, to->tmp, to->parent, to->name) == 0) {
        (void)fs_remove_tree(to->parent, aside);
        return 0;
    }
    r = -errno;
    (void)renameat(to->parent, aside, to->parent, to->name);
    return r;
}

/* Gives the new folder its final name. The old folder gets the temporary name, so that it can be removed. */
static int exchange(const struct export_target *to)
{
    if (renameat2(to->parent, to->tmp, to->parent, to->name, RENAME_EXCHANGE) == 0)
        return 0;
    return errno == EINVAL || errno == ENOSYS ? exchange_slowly(to) : -errno;
}

/* Renames the temporary folder to its final name. Fails if a file, or a folder that is not empty, has
 * appeared under that name in the meantime. */
static int publish_folder(const struct export_target *to, struct err *err)
{
    int r = to->old ? exchange(to) : renameat(to->parent, to->tmp, to->parent, to->name) < 0 ? -errno : 0;

    if (r == -ENOTEMPTY || r == -EEXIST || r == -ENOTDIR)
        return fail_exists(to, "; it appeared while the export was being written", err);
    if (r == 0)
        r = fs_sync(to->parent);
    return r < 0 ? fs_fail(err, r, NULL, to->dir, "make") : 0;
}

/* Refuses a model that the transformers package cannot load: a GPT-2 with fewer heads for keys and values
 * than for queries. */
static int check_expressible(const struct transformer *t, const char *dir, struct err *err)
{
    if (t->arch == ARCH_GPT2 && t->kv_heads != t->heads)
        return err_set_at(err, -EINVAL, dir,
                          "a gpt2 model with %" PRIu32 " key-value heads for %" PRIu32
                          " heads cannot be written, because transformers has no such model",
                          t->kv_heads, t->heads);
    return 0;
}

static int save(struct hf_export *x, const char *dir, bool replace, uint64_t *bytes, struct err *err)
{
    struct export_target to;
    int r = target_init(&to, dir, replace, err);

    if (r == 0)
        r = write_tmp_folder(x, &to, bytes, err);
    if (r == 0)
        r = publish_folder(&to, err);
    if (to.parent >= 0) {
        /* Remove the folder with the temporary name. After a success, this folder contains the old export.
         * After a failure, it contains the incomplete new export. */
        (void)fs_remove_tree(to.parent, to.tmp);
        close(to.parent);
    }
    return r;
}

int hf_save(const char *dir, const struct transformer *t, const struct st_tensor *tensors, size_t n,
            const char *from, const struct hf_save_options *options, struct hf_saved *ret, struct err *err)
{
    const struct st_tensor **bound = NULL;
    struct hf_export x = {.t = t, .dtype = options->dtype};
    struct hf_names names;
    uint64_t bytes = 0;
    int r = check_expressible(t, dir, err);

    if (r < 0)
        return r;
    hf_names_init(&names, t);
    r = hf_names_bind(&names, tensors, n, from, &bound, err);
    if (r == 0)
        r = export_init(&x, &names, bound, options->shard_bytes, err);
    if (r == 0)
        r = save(&x, dir, options->replace, &bytes, err);
    if (r == 0 && ret)
        *ret = (struct hf_saved){
            .tensors = x.n, .files = x.n_shards, .parameters = x.parameters, .bytes = bytes};
    export_finish(&x);
    free(bound);
    hf_names_finish(&names);
    return r;
}
