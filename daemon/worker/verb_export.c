/* --export: writes the weights of a finished job or of a checkpoint as one safetensors file or as a Hugging
 * Face folder.
 *
 * The files of a run have floats, the master weights. An export has the type in which the job computed, or
 * the type that --dtype names. Each weight is rounded once, from its float.
 *
 * The file: as floats, the bytes are copied unchanged and verified on the way (weights.h). The file appears
 * complete, verified and synced, or not at all. If the type is another one, or with --heads, which adds the
 * weights of the heads of local updates, the weights are verified first, and their tensors are then written
 * into a new file.
 *
 * The folder: the weights are verified first, then mapped into memory and written by hf_save. The folder,
 * too, appears complete or not at all.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/model/hf.h"
#include "daemon/worker/model/weights.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"

#define META_KEYS 3 /* keys in the metadata of a file of weights */

/* The values of --dtype, and their types. */
static const char *const dtype_words[] = {"f32", "bf16", "f16", NULL};
static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* Figures about the exported weights. */
struct exported {
    size_t tensors, files;
    uint64_t parameters, bytes, hash;
    enum dtype dtype; /* of the elements in the exported files */
};

/* ---- the file ---- */

static int open_parent(const char *path, struct err *err)
{
    char buf[PATH_MAX];
    if ((size_t)snprintf(buf, sizeof buf, "%s", path) >= sizeof buf)
        return err_set_at(err, -ENAMETOOLONG, path, "the path is too long");
    int fd = open(dirname(buf), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? err_set_at(err, errno == ENOENT ? -EINVAL : -errno, path, "cannot open its directory: %s",
                               strerror(errno))
                  : fd;
}

static int refuse_existing(const char *path, struct err *err)
{
    return err_set_at(err, -EEXIST, path, "exists already; choose another file, or give --force");
}

/* Renames the temporary file to its final name. An existing file with that name is replaced only if --force
 * was given. */
static int publish_file(int dir, const char *tmp, const char *name, const char *path, bool force,
                        struct err *err)
{
    int r = renameat2(dir, tmp, dir, name, force ? 0 : RENAME_NOREPLACE);
    if (r < 0 && errno == EINVAL) /* the file system does not support RENAME_NOREPLACE */
        r = linkat(dir, tmp, dir, name, 0);
    if (r < 0 && errno == EEXIST)
        return refuse_existing(path, err);
    if (r < 0)
        return fs_fail(err, -errno, NULL, path, "make");
    r = fs_sync(dir);
    return r < 0 ? fs_fail(err, r, NULL, path, "sync the directory of") : 0;
}

/* Copies the metadata of the weights `w` to `ret`. Returns the number of entries. */
static size_t copy_meta(const struct weights *w, struct st_meta ret[META_KEYS])
{
    static const char *const keys[META_KEYS] = {"format", "step", "spec_hash"};
    size_t n = 0;
    for (size_t i = 0; i < META_KEYS; i++) {
        const char *value = safetensors_meta(w->file, keys[i]);
        if (value != NULL)
            ret[n++] = (struct st_meta){keys[i], value};
    }
    return n;
}

/* Writes the tensors of the model `w` and of the heads to `fd` as one safetensors file, with the metadata of
 * the model. Some programs refuse a file without the key "format". */
static int write_joined(const struct weights *w, const struct st_map *model, const struct st_map *heads,
                        int fd, const char *path, struct exported *ret, struct err *err)
{
    struct st_meta meta[META_KEYS];
    size_t n_meta = copy_meta(w, meta);
    size_t n = model->n + heads->n;
    uint32_t crc;
    struct st_tensor *all = xcalloc(n + 1, sizeof *all);
    memcpy(all, model->tensors, model->n * sizeof *all);
    if (heads->n > 0)
        memcpy(all + model->n, heads->tensors, heads->n * sizeof *all);
    for (size_t i = 0; i < n; i++) {
        all[i].rounded = ret->dtype != DTYPE_F32;
        all[i].dtype = ret->dtype;
    }
    int r = safetensors_write(fd, path, all, n, meta, n_meta, &ret->bytes, &crc, err);
    xfree(all);
    return r;
}

/* Adds the tensors of the file `map` to the hash `h` of weights, and returns the new hash. */
static uint64_t add_hash(uint64_t h, const struct weights *w, const struct st_map *map)
{
    for (size_t i = 0; i < map->n; i++) {
        const struct st_entry *e = safetensors_at(w->file, i);
        h = weights_hash(h, map->tensors[i].data, e->dtype, dtype_elements(e->dtype, e->end - e->begin));
    }
    return h;
}

/* Verifies the weights of the model and of the heads, and writes them to `fd` as one safetensors file.
 * `heads` is NULL if the heads are left out. */
static int write_anew(const struct weights *w, const struct weights *heads, int fd, const char *path,
                      struct exported *ret, struct err *err)
{
    struct st_map model = {0}, added = {0};
    uint64_t hash;
    int r = weights_copy(w, -1, NULL, &ret->hash, err);
    if (r == 0 && heads != NULL)
        r = weights_copy(heads, -1, NULL, &hash, err);
    if (r == 0)
        r = safetensors_map(w->file, &model, err);
    if (r == 0 && heads != NULL)
        r = safetensors_map(heads->file, &added, err);
    if (r == 0)
        r = write_joined(w, &model, &added, fd, path, ret, err);
    if (r == 0 && heads != NULL) {
        ret->hash = add_hash(add_hash(WEIGHTS_HASH_START, w, &model), heads, &added);
        ret->tensors += heads->tensors;
        ret->parameters += heads->parameters;
    }
    st_map_finish(&model);
    st_map_finish(&added);
    return r;
}

/* Writes the weights to the file `tmp` in the directory `dir`. `heads` is NULL if the heads are left out. */
static int write_tmp(const struct weights *w, const struct weights *heads, int dir, const char *tmp,
                     const char *path, struct exported *ret, struct err *err)
{
    int fd = fs_create(dir, tmp);
    if (fd < 0)
        return fs_fail(err, fd, NULL, path, "write");
    int r = heads != NULL || ret->dtype != DTYPE_F32 ? write_anew(w, heads, fd, path, ret, err)
                                                     : weights_copy(w, fd, path, &ret->hash, err);
    int e = fs_sync_close(fd);
    return r == 0 && e < 0 ? fs_fail(err, e, NULL, path, "sync") : r;
}

static int export_file(const struct verb_options *o, const struct weights *w, const struct weights *heads,
                       struct exported *ret, struct err *err)
{
    char buf[PATH_MAX], tmp[NAME_MAX + 1];
    int dir = open_parent(o->export.file_path, err);
    if (dir < 0)
        return dir;
    snprintf(buf, sizeof buf, "%s", o->export.file_path);
    const char *name = basename(buf);
    snprintf(tmp, sizeof tmp, ".tutti-export-%d.tmp", (int)getpid());
    ret->tensors = w->tensors;
    ret->files = 1;
    ret->parameters = w->parameters;
    ret->bytes = w->bytes;
    int r = 0;
    if (!o->export.force && faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        r = refuse_existing(o->export.file_path, err);
    if (r == 0)
        r = write_tmp(w, heads, dir, tmp, o->export.file_path, ret, err);
    if (r == 0)
        r = publish_file(dir, tmp, name, o->export.file_path, o->export.force, err);
    unlinkat(dir, tmp, 0);
    close(dir);
    return r;
}

/* ---- the folder ---- */

static int save_folder(const struct verb_options *o, const struct weights *w, const struct transformer *t,
                       struct exported *ret, struct err *err)
{
    struct hf_save_options options = {
        .shard_bytes = o->export.shard_bytes, .replace = o->export.force, .dtype = ret->dtype};
    struct safetensors *file;
    struct st_map map = {0};
    struct hf_saved saved = {0};
    int r = safetensors_open(w->fd, w->path, &file, err);
    if (r < 0)
        return r;
    r = safetensors_map(file, &map, err);
    if (r == 0)
        r = hf_save(o->export.hf_dir, t, map.tensors, map.n, w->path, &options, &saved, err);
    st_map_finish(&map);
    safetensors_close(file);
    ret->tensors = saved.tensors;
    ret->files = saved.files;
    ret->parameters = saved.parameters;
    ret->bytes = saved.bytes;
    return r;
}

static int export_folder(const struct verb_options *o, const struct outdir *out, const struct weights *w,
                         struct exported *ret, struct err *err)
{
    struct transformer t;
    int r = weights_transformer(out, &t, err);
    if (r == -ENOENT)
        return err_set_at(err, -EINVAL, out->name,
                          "the job has no gpt2 or llama model, and only those can be written as a Hugging "
                          "Face folder; give --out FILE for its weights as they are");
    if (r == 0)
        r = weights_copy(w, -1, NULL, &ret->hash, err);
    return r < 0 ? r : save_folder(o, w, &t, ret, err);
}

/* ---- the verb ---- */

static void add_export_json(struct strbuf *b, const struct verb_options *o, const struct weights *w,
                            const struct exported *e)
{
    strbuf_addf(b, "{\"ok\":true,\"%s\":", o->export.hf_dir != NULL ? "folder" : "file");
    strbuf_add_json(b, o->export.hf_dir != NULL ? o->export.hf_dir : o->export.file_path);
    strbuf_addf(b, ",\"step\":%" PRIu64, w->step);
    if (w->best_by != NULL)
        strbuf_addf(b, ",\"best_by\":\"%s\"", w->best_by);
    strbuf_addf(b, ",\"tensors\":%zu", e->tensors);
    if (o->export.hf_dir != NULL)
        strbuf_addf(b, ",\"files\":%zu", e->files);
    if (e->dtype != DTYPE_F32)
        strbuf_addf(b, ",\"dtype\":\"%s\"", dtype_names[e->dtype]);
    strbuf_addf(b, ",\"parameters\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"weights_hash\":\"%016" PRIx64 "\"}\n",
                e->parameters, e->bytes, e->hash);
}

static int print_export(const struct verb_options *o, const struct weights *w, const struct exported *e)
{
    struct strbuf b = {0};
    if (o->json) {
        add_export_json(&b, o, w, e);
        return print_buffer(&b);
    }
    strbuf_add_text(&b, o->export.hf_dir != NULL ? o->export.hf_dir : o->export.file_path);
    strbuf_addf(&b, ": the weights after step %" PRIu64, w->step);
    if (w->best_by != NULL)
        strbuf_addf(&b, " (best by %s)", w->best_by);
    strbuf_addf(&b, ", %zu tensors, %" PRIu64 " parameters, ", e->tensors, e->parameters);
    strbuf_add_bytes(&b, e->bytes);
    if (o->export.hf_dir != NULL)
        strbuf_addf(&b, " in %zu file%s", e->files, e->files == 1 ? "" : "s");
    if (e->dtype != DTYPE_F32)
        strbuf_addf(&b, ", rounded to %s", dtype_names[e->dtype]);
    strbuf_addf(&b, "\n  weights   %016" PRIx64 "\n", e->hash);
    return print_buffer(&b);
}

/* Opens the weights of the heads of local updates, which belong to the weights `w`. */
static int open_heads(const struct outdir *out, const struct weights *w, struct weights *ret, struct err *err)
{
    static const char prefix[] = "heads.";
    int r = weights_open_added(out, w->step, ret, err);
    bool has = r == 0 && ret->tensors > 0 &&
               strncmp(safetensors_at(ret->file, 0)->name, prefix, sizeof prefix - 1) == 0;
    if (r == -ENOENT || (r == 0 && !has))
        return err_set_at(err, -EINVAL, "--heads",
                          "there are no heads at step %" PRIu64
                          ": only checkpoints of the method \"local\" with several blocks have them; leave "
                          "--heads out, or choose another --step",
                          w->step);
    return r;
}

static int export_exit(int code)
{
    if (code == -ENOENT)
        return EXIT_NOT_FOUND;
    return code == -EINVAL || code == -EEXIST || code == -ERANGE ? EXIT_INVALID : EXIT_FAILED;
}

static int run_export(const struct verb_options *o)
{
    struct err err = {0};
    struct weights w = {.fd = -1}, heads = {.fd = -1};
    struct exported e = {0};
    struct outdir out = {open(o->export.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), o->export.dir};
    int r = out.fd < 0 ? fs_fail(&err, -errno, NULL, out.name, "open the output directory of a job") : 0;
    if (r == 0)
        r = weights_open(&out, o->export.step, &w, &err);
    e.dtype = o->export.dtype >= 0 ? dtypes[o->export.dtype] : spec_dtype(weights_precision(&out));
    if (r == 0 && o->export.heads)
        r = open_heads(&out, &w, &heads, &err);
    if (r == 0)
        r = o->export.hf_dir != NULL ? export_folder(o, &out, &w, &e, &err)
                                     : export_file(o, &w, o->export.heads ? &heads : NULL, &e, &err);
    int code = r < 0 ? report_failure(o, export_exit(r), r, &err, 0) : print_export(o, &w, &e);
    weights_close(&w);
    weights_close(&heads);
    if (out.fd >= 0)
        close(out.fd);
    return code;
}

static void set_export_defaults(struct verb_options *o)
{
    o->export.dtype = -1;
}

static int check_export(const struct verb_options *o, struct err *err)
{
    const struct export_options *e = &o->export;
    if (e->file_path == NULL && e->hf_dir == NULL)
        return err_set(err, -EINVAL, "--export needs --out FILE, or --hf FOLDER");
    if (e->file_path != NULL && e->hf_dir != NULL)
        return err_set(err, -EINVAL, "--out writes a file and --hf a folder; give one of them");
    if (e->shard_bytes > 0 && e->hf_dir == NULL)
        return err_set(err, -EINVAL, "--shard goes with --hf; a single file is not split");
    if (e->heads && e->hf_dir != NULL)
        return err_set(err, -EINVAL, "--heads goes with --out; a Hugging Face folder has no place for heads");
    return 0;
}

static const struct worker_option rows[] = {
    {"out", "FILE", "write the weights as one safetensors file", OPTION_TEXT, OPTION_AT(export.file_path)},
    {"hf", "FOLDER", "write a gpt2 or llama model as a Hugging Face folder", OPTION_TEXT,
     OPTION_AT(export.hf_dir)},
    {"shard", "SIZE", "with --hf: at most SIZE of tensors in each file (default: 5GB)", OPTION_SIZE,
     OPTION_AT(export.shard_bytes)},
    {"heads", NULL, "with --out: keep the heads of local updates, as early exits", OPTION_FLAG,
     OPTION_AT(export.heads)},
    {"dtype", "TYPE", ": type of the exported weights (default: that of the job's precision)", OPTION_NAME,
     OPTION_AT(export.dtype), .names = dtype_words},
    {"step", "N|best|last",
     "the weights of a checkpoint; `best` goes by the job's checkpoint.best (default: of the finished job, "
     "else of the newest checkpoint)",
     OPTION_TEXT, OPTION_AT(export.step)},
    {"force", NULL, "replace FILE, or FOLDER if it is an earlier export", OPTION_FLAG,
     OPTION_AT(export.force)},
    {0},
};

static const struct option_table options = {"what to export", rows};

const struct worker_verb verb_export = {
    .word = {"export", "DIR", .kind = OPTION_TEXT, .at = OPTION_AT(export.dir)},
    .forms = {{"DIR --out FILE", "write the weights of a job's output as safetensors"},
              {"DIR --hf FOLDER", "write a gpt2 or llama model as a Hugging Face folder"}},
    .tables = {&options},
    .set_defaults = set_export_defaults,
    .check = check_export,
    .run = run_export,
};
