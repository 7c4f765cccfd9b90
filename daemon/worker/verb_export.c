/* --export: the weights of a job's output directory as one safetensors file: of the finished job, or of a checkpoint.
 *
 * The bytes are copied as they are and checked on the way: those of a checkpoint against the CRC-32C in its state.json,
 * those of the finished job against the hash of the weights in result.json. The file appears whole, checked and synced,
 * or not at all. Nothing is locked: the job may go on meanwhile, for what is read here is never changed, only removed,
 * and stays readable while it is open.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/json.h"
#include "daemon/worker/checkpoint_private.h"
#include "daemon/worker/report.h"
#include "daemon/worker/train.h"
#include "daemon/worker/verbs.h"

#define MODEL_FILE "model.safetensors"
#define RESULT_MAX (1u << 20)

/* Where the weights come from. */
struct source {
    int fd;
    char path[FS_PATH_BYTES];
    uint64_t step;
    bool final; /* the model of a finished job, to be checked by hash, else by sum */
    struct file_sum sum;
    char hash[17];
};

struct sums {
    uint64_t bytes;
    uint32_t crc;
    uint64_t hash; /* of the weights, as train.c computes it */
};

struct contents {
    size_t tensors;
    uint64_t bytes, parameters, data_begin;
};

/* ---- choosing ---- */

/* Reads result.json: true when the job is done; then its steps and the hash of its weights. */
static bool job_is_done(const struct outdir *out, struct source *s)
{
    char *text = NULL;
    const char *hash = NULL;
    size_t bytes;
    struct json *doc = NULL;
    bool ok = false, stopped = true;
    if (fs_read_text(out->fd, TRAIN_RESULT, RESULT_MAX, &text, &bytes) < 0)
        return false;
    bool good =
        json_parse(text, bytes, TRAIN_RESULT, false, &doc, NULL) == 0 && json_type(doc) == JSON_OBJECT;
    const struct json *node[] = {good ? json_get(doc, "ok") : NULL, good ? json_get(doc, "stopped") : NULL,
                                 good ? json_get(doc, "steps") : NULL,
                                 good ? json_get(doc, "weights_hash") : NULL};
    for (int i = 0; i < 4; i++)
        good = good && node[i] != NULL;
    good = good && json_bool(node[0], "ok", &ok, NULL) == 0 &&
           json_bool(node[1], "stopped", &stopped, NULL) == 0 &&
           json_u64(node[2], "steps", &s->step, NULL) == 0 &&
           json_string(node[3], "weights_hash", &hash, NULL) == 0 && ok && !stopped;
    if (good)
        snprintf(s->hash, sizeof s->hash, "%s", hash);
    json_free(doc);
    free(text);
    return good;
}

/* -ENOENT, without a message: there is no finished model. */
static int open_final(const struct outdir *out, struct source *s, struct err *err)
{
    uint64_t bytes;
    if (!job_is_done(out, s))
        return -ENOENT;
    fs_path(s->path, sizeof s->path, out->name, MODEL_FILE);
    s->fd = fs_open_read(out->fd, MODEL_FILE, &bytes);
    s->final = true;
    if (s->fd >= 0)
        return 0;
    return s->fd == -ENOENT ? -ENOENT : fs_fail(err, s->fd, NULL, s->path, "open");
}

static int open_step(const struct outdir *out, uint64_t step, struct state *ret, int *ret_fd, char *path,
                     size_t size, struct err *err)
{
    char name[STEP_NAME_BYTES];
    step_name(name, step, "");
    snprintf(path, size, "%s/%s/%s", out->name, CHECKPOINTS, name);
    int parent = fs_open_dir(out->fd, CHECKPOINTS), dir = parent < 0 ? parent : fs_open_dir(parent, name);
    if (parent >= 0)
        close(parent);
    if (dir == -ENOENT)
        return err_set_at(err, -ENOENT, out->name, "there is no checkpoint of step %" PRIu64, step);
    if (dir < 0)
        return fs_fail(err, dir, NULL, path, "open the directory");
    int r = checkpoint_state_load(dir, path, ret, err);
    if (r < 0)
        close(dir);
    else
        *ret_fd = dir;
    return r;
}

static int open_checkpoint(const struct outdir *out, uint64_t step, struct source *s, struct err *err)
{
    char dir[FS_PATH_BYTES - 64];
    struct state state = {0};
    uint64_t bytes;
    int fd = -1, r = open_step(out, step, &state, &fd, dir, sizeof dir, err);
    if (r < 0)
        return r;
    s->step = state.info.step;
    s->sum = state.files[FILE_MODEL];
    s->final = false;
    fs_path(s->path, sizeof s->path, dir, checkpoint_files[FILE_MODEL]);
    s->fd = fs_open_read(fd, checkpoint_files[FILE_MODEL], &bytes);
    close(fd);
    checkpoint_state_finish(&state);
    return s->fd < 0 ? fs_fail(err, s->fd == -ENOENT ? -EBADMSG : s->fd, NULL, s->path, "open") : 0;
}

/* The greatest accuracy; of equals the least loss; of equals the first. */
static bool is_better(const struct checkpoint_eval *a, const struct checkpoint_eval *b)
{
    double x = isnan(a->accuracy) ? -1 : a->accuracy, y = isnan(b->accuracy) ? -1 : b->accuracy;
    return x > y || (x == y && !isnan(a->loss) && (isnan(b->loss) || a->loss < b->loss));
}

static int find_best(const struct outdir *out, uint64_t *ret, struct err *err)
{
    uint64_t *steps = NULL;
    size_t n = 0;
    bool found = false;
    struct checkpoint_eval best = {0};
    char path[FS_PATH_BYTES];
    int fd, r = list_steps(out, &steps, &n, err);
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct state state = {0};
        if (open_step(out, steps[i], &state, &fd, path, sizeof path, NULL) < 0)
            continue; /* damaged, or removed just now */
        const struct checkpoint_eval *e = &state.info.eval;
        if (e->valid && (!found || is_better(e, &best))) {
            best = *e;
            *ret = steps[i];
            found = true;
        }
        close(fd);
        checkpoint_state_finish(&state);
    }
    free(steps);
    return r < 0 || found
               ? r
               : err_set_at(err, -ENOENT, out->name, "no checkpoint was evaluated, so none is the best");
}

static int parse_step(const char *text, uint64_t *ret, struct err *err)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno != 0 || text[0] < '0' || text[0] > '9' || *end != '\0')
        return err_set_at(err, -EINVAL, "--step", "expected a number, \"best\" or \"last\", found \"%s\"",
                          text);
    *ret = v;
    return 0;
}

static int choose(const struct verb_options *o, const struct outdir *out, struct source *s, struct err *err)
{
    uint64_t step = 0;
    int r;
    if (o->export_step == NULL) {
        r = open_final(out, s, err);
        if (r != -ENOENT)
            return r;
    }
    if (o->export_step == NULL || strcmp(o->export_step, "last") == 0)
        r = checkpoint_latest(out, &step, err);
    else if (strcmp(o->export_step, "best") == 0)
        r = find_best(out, &step, err);
    else
        r = parse_step(o->export_step, &step, err);
    return r < 0 ? r : open_checkpoint(out, step, s, err);
}

/* ---- copying ---- */

static int look_inside(const struct source *s, struct contents *ret, struct err *err)
{
    struct safetensors *f;
    uint64_t data = 0;
    struct stat st;
    if (fstat(s->fd, &st) < 0)
        return fs_fail(err, -errno, NULL, s->path, "read");
    int r = safetensors_open(s->fd, s->path, &f, err);
    if (r < 0)
        return r;
    *ret = (struct contents){.tensors = safetensors_count(f), .bytes = (uint64_t)st.st_size};
    for (size_t i = 0; i < ret->tensors; i++) {
        const struct st_entry *e = safetensors_at(f, i);
        ret->parameters += (e->end - e->begin) / st_dtype_bytes[e->dtype];
        data = e->end;
    }
    ret->data_begin = ret->bytes - data;
    safetensors_close(f);
    return 0;
}

static uint64_t hash_words(uint64_t h, const char *p, size_t bytes)
{
    for (size_t i = 0; i + sizeof(uint32_t) <= bytes; i += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, p + i, sizeof word);
        h = (h ^ word) * 0x100000001b3ull;
    }
    return h;
}

/* The header first, so that blocks of data begin at whole words. */
static int copy(const struct source *s, const struct contents *c, int to, const char *to_path,
                struct sums *ret, struct err *err)
{
    char *block = malloc(FS_BLOCK_BYTES);
    int r = block == NULL ? err_set(err, -ENOMEM, "no memory to copy with") : 0;
    *ret = (struct sums){.hash = 0xcbf29ce484222325ull};
    while (r == 0 && ret->bytes < c->bytes) {
        bool header = ret->bytes < c->data_begin;
        uint64_t left = (header ? c->data_begin : c->bytes) - ret->bytes;
        size_t n = left < FS_BLOCK_BYTES ? (size_t)left : FS_BLOCK_BYTES;
        r = fs_pread_all(s->fd, block, n, ret->bytes);
        if (r < 0) {
            fs_fail(err, r, NULL, s->path, "read");
            break;
        }
        if (!header)
            ret->hash = hash_words(ret->hash, block, n);
        ret->crc = crc32c(ret->crc, block, n);
        ret->bytes += n;
        r = fs_write_all(to, block, n);
        if (r < 0)
            fs_fail(err, r, NULL, to_path, "write");
    }
    free(block);
    return r;
}

static int check_sums(const struct source *s, const struct sums *found, struct err *err)
{
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, found->hash);
    if (s->final && strcmp(hash, s->hash) != 0)
        return err_set_at(
            err, -EBADMSG, s->path,
            "damaged, or not of this job: its weights have the hash %s, but %s says %s; try --step last",
            hash, TRAIN_RESULT, s->hash);
    if (!s->final && found->bytes != s->sum.bytes)
        return err_set_at(err, -EBADMSG, s->path,
                          "damaged: it should have %" PRIu64 " bytes, but has %" PRIu64, s->sum.bytes,
                          found->bytes);
    if (!s->final && found->crc != s->sum.crc)
        return err_set_at(err, -EBADMSG, s->path,
                          "damaged: it should have the CRC-32C %08" PRIx32 ", but has %08" PRIx32, s->sum.crc,
                          found->crc);
    return 0;
}

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

/* The tmp file gets its name; without --force never in place of another. */
static int publish(int dir, const char *tmp, const char *name, const char *path, bool force, struct err *err)
{
    int r = renameat2(dir, tmp, dir, name, force ? 0 : RENAME_NOREPLACE);
    if (r < 0 && errno == EINVAL) /* a file system that does not know this flag */
        r = linkat(dir, tmp, dir, name, 0);
    if (r < 0 && errno == EEXIST)
        return refuse_existing(path, err);
    if (r < 0)
        return fs_fail(err, -errno, NULL, path, "make");
    r = fs_sync(dir);
    return r < 0 ? fs_fail(err, r, NULL, path, "sync the directory of") : 0;
}

static int write_tmp(const struct source *s, const struct contents *c, int dir, const char *tmp,
                     const char *path, struct sums *ret, struct err *err)
{
    int fd = fs_create(dir, tmp);
    if (fd < 0)
        return fs_fail(err, fd, NULL, path, "write");
    int r = copy(s, c, fd, path, ret, err), e = fs_sync_close(fd);
    if (r == 0 && e < 0)
        r = fs_fail(err, e, NULL, path, "sync");
    return r < 0 ? r : check_sums(s, ret, err);
}

static int export(const struct verb_options *o, const struct source *s, const struct contents *c,
                  struct sums *ret, struct err *err)
{
    char buf[PATH_MAX], tmp[NAME_MAX + 1];
    int dir = open_parent(o->plan_path, err);
    if (dir < 0)
        return dir;
    snprintf(buf, sizeof buf, "%s", o->plan_path);
    const char *name = basename(buf);
    snprintf(tmp, sizeof tmp, ".tutti-export-%d.tmp", (int)getpid());
    int r = 0;
    if (!o->force && faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        r = refuse_existing(o->plan_path, err);
    if (r == 0)
        r = write_tmp(s, c, dir, tmp, o->plan_path, ret, err);
    if (r == 0)
        r = publish(dir, tmp, name, o->plan_path, o->force, err);
    unlinkat(dir, tmp, 0);
    close(dir);
    return r;
}

/* ---- the verb ---- */

static int print_export(const struct verb_options *o, const struct source *s, const struct contents *c,
                        const struct sums *sums)
{
    struct strbuf b = {0};
    if (o->json) {
        strbuf_add(&b, "{\"ok\":true,\"file\":");
        strbuf_add_json(&b, o->plan_path);
        strbuf_addf(&b,
                    ",\"step\":%" PRIu64 ",\"tensors\":%zu,\"parameters\":%" PRIu64 ",\"bytes\":%" PRIu64
                    ",\"weights_hash\":\"%016" PRIx64 "\"}\n",
                    s->step, c->tensors, c->parameters, sums->bytes, sums->hash);
        return print_buffer(&b);
    }
    strbuf_addf(&b, "%s: the weights after step %" PRIu64 ", %zu tensors, %" PRIu64 " parameters, ",
                o->plan_path, s->step, c->tensors, c->parameters);
    strbuf_add_bytes(&b, sums->bytes);
    strbuf_addf(&b, "\n  weights   %016" PRIx64 "\n", sums->hash);
    return print_buffer(&b);
}

static int exit_of(int code)
{
    return code == -ENOENT ? EXIT_NOT_FOUND : code == -EINVAL || code == -EEXIST ? EXIT_INVALID : EXIT_FAILED;
}

int verb_export(const struct verb_options *o)
{
    struct err err = {0};
    struct source s = {.fd = -1};
    struct contents c = {0};
    struct sums sums = {0};
    struct outdir out = {open(o->export_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), o->export_dir};
    int r = out.fd < 0 ? fs_fail(&err, -errno, NULL, out.name, "open the output directory of a job") : 0;
    if (r == 0)
        r = choose(o, &out, &s, &err);
    if (r == 0)
        r = look_inside(&s, &c, &err);
    if (r == 0)
        r = export(o, &s, &c, &sums, &err);
    int code = r < 0 ? report_failure(o, exit_of(r), r, &err, 0) : print_export(o, &s, &c, &sums);
    if (s.fd >= 0)
        close(s.fd);
    if (out.fd >= 0)
        close(out.fd);
    return code;
}
