/* Implements weights.h: chooses the weights of a job, checks them, and copies them to another file. */
#include "daemon/worker/model/weights.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/crc32c.h"
#include "base/get.h"
#include "daemon/spec/hf_config.h"
#include "daemon/worker/model/checkpoint_private.h"

#define MODEL_FILE "model.safetensors"
#define TEXT_MAX   (1u << 20)

#define RESOLVED_MAX (64u << 20) /* largest resolved.json */

/* ---- choosing ---- */

/* Reads result.json and returns whether the job is done. If the job is done, stores the number of training
 * steps and the hash of the weights in *w. */
static bool job_is_done(const struct outdir *out, struct weights *w)
{
    char *text = NULL;
    size_t bytes;
    struct json *doc = NULL;
    if (fs_read_text(out->fd, RUN_RESULT_FILE, TEXT_MAX, &text, &bytes) < 0)
        return false;
    bool done = json_parse(text, bytes, RUN_RESULT_FILE, false, &doc, NULL) == 0 && get_flag(doc, "ok") &&
                get_node(doc, "stopped") != NULL && !get_flag(doc, "stopped") &&
                get_count(doc, "steps", &w->step) && get_text(doc, "weights_hash")[0] != '\0';
    if (done)
        snprintf(w->want_hash, sizeof w->want_hash, "%s", get_text(doc, "weights_hash"));
    json_free(doc);
    free(text);
    return done;
}

/* Opens the weights of a finished job. Returns -ENOENT without a message if the job has not finished. */
static int open_final(const struct outdir *out, struct weights *w, struct err *err)
{
    uint64_t bytes;
    if (!job_is_done(out, w))
        return -ENOENT;
    fs_path(w->path, sizeof w->path, out->name, MODEL_FILE);
    w->fd = fs_open_read(out->fd, MODEL_FILE, &bytes);
    w->final = true;
    if (w->fd >= 0)
        return 0;
    return w->fd == -ENOENT ? -ENOENT : fs_fail(err, w->fd, NULL, w->path, "open");
}

/* Opens the directory of the checkpoint of training step `step` and reads its state.json. *ret_fd receives
 * the open directory, and `path` receives its name. */
static int open_step(const struct outdir *out, uint64_t step, struct checkpoint_state *ret, int *ret_fd,
                     char *path, size_t size, struct err *err)
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

/* Opens one of the files with tensors of the checkpoint of training step `step`. `file` is FILE_MODEL or
 * FILE_METHOD. */
static int open_checkpoint(const struct outdir *out, uint64_t step, int file, struct weights *w,
                           struct err *err)
{
    char dir[FS_PATH_BYTES - 64];
    struct checkpoint_state state = {0};
    uint64_t bytes;
    int fd = -1, r = open_step(out, step, &state, &fd, dir, sizeof dir, err);
    if (r < 0)
        return r;
    bool there = (uint32_t)file < state.n_files;
    w->step = state.info.step;
    w->want_bytes = state.files[file].bytes;
    w->want_crc = state.files[file].crc;
    w->final = false;
    fs_path(w->path, sizeof w->path, dir, checkpoint_files[file]);
    if (there)
        w->fd = fs_open_read(fd, checkpoint_files[file], &bytes);
    close(fd);
    checkpoint_state_finish(&state);
    if (!there)
        return err_set_at(err, -ENOENT, out->name, "the training method of this job adds no layers");
    return w->fd < 0 ? fs_fail(err, w->fd == -ENOENT ? -EBADMSG : w->fd, NULL, w->path, "open") : 0;
}

/* The evaluations of a run's checkpoints. */
struct evaluated {
    uint64_t *steps;               /* in ascending order; freed by the caller */
    struct checkpoint_eval *evals; /* evaluation of each step */
    size_t n;
    enum spec_best best; /* metric that the newest checkpoint names */
};

/* Reads the evaluations that all checkpoints have stored. Checkpoints that are damaged or have just been
 * removed are skipped. */
static int read_evaluations(const struct outdir *out, struct evaluated *ret, struct err *err)
{
    char path[FS_PATH_BYTES];
    size_t n = 0;
    int fd, r = list_steps(out, &ret->steps, &n, err);
    if (r < 0)
        return r;
    ret->evals = xcalloc(n + 1, sizeof *ret->evals);
    for (size_t i = 0; i < n; i++) {
        struct checkpoint_state state = {0};
        if (open_step(out, ret->steps[i], &state, &fd, path, sizeof path, NULL) < 0)
            continue;
        ret->steps[ret->n] = ret->steps[i];
        ret->evals[ret->n++] = state.info.eval;
        ret->best = state.info.best;
        close(fd);
        checkpoint_state_finish(&state);
    }
    return 0;
}

static int find_best(const struct outdir *out, uint64_t *ret, const char **ret_by, struct err *err)
{
    struct evaluated e = {0};
    const struct checkpoint_eval *best = NULL;
    int r = read_evaluations(out, &e, err);
    for (size_t i = 0; i < e.n; i++) {
        if (!e.evals[i].valid || (best && !checkpoint_is_better(&e.evals[i], best, e.best)))
            continue;
        best = &e.evals[i];
        *ret = e.steps[i];
    }
    *ret_by = spec_best_names[e.best == BEST_NONE ? BEST_VAL_ACCURACY : e.best];
    if (r == 0 && !best)
        r = err_set_at(err, -ENOENT, out->name,
                       "no checkpoint was evaluated, so none is the best; use --step last, or a number");
    free(e.evals);
    free(e.steps);
    return r;
}

static int parse_step_option(const char *text, uint64_t *ret, struct err *err)
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

/* Opens the weights that the option --step selects. `word` is the option's value, or NULL if the option was
 * not given. */
static int open_selected(const struct outdir *out, const char *word, struct weights *w, struct err *err)
{
    uint64_t step = 0;
    int r;
    if (word == NULL) {
        r = open_final(out, w, err);
        if (r != -ENOENT)
            return r;
    }
    if (word == NULL || strcmp(word, "last") == 0)
        r = checkpoint_latest(out, &step, err);
    else if (strcmp(word, "best") == 0)
        r = find_best(out, &step, &w->best_by, err);
    else
        r = parse_step_option(word, &step, err);
    return r < 0 ? r : open_checkpoint(out, step, FILE_MODEL, w, err);
}

/* Reads the header of the weight file, counts its tensors and parameters, and finds the offset at which the
 * data start. */
static int read_weights_header(struct weights *w, struct err *err)
{
    uint64_t data = 0;
    struct stat st;
    if (fstat(w->fd, &st) < 0)
        return fs_fail(err, -errno, NULL, w->path, "read");
    int r = safetensors_open(w->fd, w->path, &w->file, err);
    if (r < 0)
        return r;
    w->tensors = safetensors_count(w->file);
    w->bytes = (uint64_t)st.st_size;
    for (size_t i = 0; i < w->tensors; i++) {
        const struct st_entry *e = safetensors_at(w->file, i);
        w->parameters += dtype_elements(e->dtype, e->end - e->begin);
        data = e->end;
    }
    w->data_begin = w->bytes - data;
    return 0;
}

int weights_open(const struct outdir *out, const char *step, struct weights *ret, struct err *err)
{
    *ret = (struct weights){.fd = -1};
    int r = open_selected(out, step, ret, err);
    return r < 0 ? r : read_weights_header(ret, err);
}

int weights_open_added(const struct outdir *out, uint64_t step, struct weights *ret, struct err *err)
{
    *ret = (struct weights){.fd = -1};
    int r = open_checkpoint(out, step, FILE_METHOD, ret, err);
    return r < 0 ? r : read_weights_header(ret, err);
}

void weights_close(struct weights *w)
{
    safetensors_close(w->file);
    w->file = NULL;
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}

/* ---- reading all of it ---- */

/* Sums that weights_copy has computed so far. */
struct sums {
    uint64_t bytes; /* number of bytes read so far */
    uint32_t crc;   /* CRC-32C of all bytes read */
    size_t tensor;  /* number of tensors that are read completely */
    /* Hash of the data of all tensors. The header of the file is not included. */
    uint64_t hash;
};

uint64_t weights_hash(uint64_t h, const void *at, enum dtype dtype, uint64_t elements)
{
    const uint64_t prime = 0x100000001b3ull, size = dtype_size(dtype);
    const char *p = at;

    /* Elements usually have four bytes, so this size has a fast loop of its own. */
    if (size == sizeof(uint32_t)) {
        for (uint64_t i = 0; i < elements; i++) {
            uint32_t v;
            memcpy(&v, p + i * sizeof v, sizeof v);
            h = (h ^ v) * prime;
        }
        return h;
    }
    for (uint64_t i = 0; i < elements; i++) {
        /* The machine is little-endian, so a shorter element fills the low bytes of `v`. */
        uint64_t v = 0;
        memcpy(&v, p + i * size, size);
        h = (h ^ v) * prime;
    }
    return h;
}

/* Returns the tensor that the next byte of the data belongs to, and moves s->tensor on to it. */
static const struct st_entry *tensor_at(const struct weights *w, struct sums *s)
{
    while (w->data_begin + safetensors_at(w->file, s->tensor)->end <= s->bytes)
        s->tensor++;
    return safetensors_at(w->file, s->tensor);
}

/* Copies the next block of the weight file and adds it to the checksums. A block never crosses the end of the
 * header or of a tensor, because weights_hash needs elements of one type. */
static int copy_block(const struct weights *w, char *block, int to, const char *to_path, struct sums *s,
                      struct err *err)
{
    const struct st_entry *e = s->bytes < w->data_begin ? NULL : tensor_at(w, s);
    uint64_t left = w->data_begin + (e ? e->end : 0) - s->bytes;
    size_t n = left < FS_BLOCK_BYTES ? (size_t)left : FS_BLOCK_BYTES;
    int r = fs_pread_all(w->fd, block, n, s->bytes);
    if (r < 0)
        return fs_fail(err, r, NULL, w->path, "read");
    if (e)
        s->hash = weights_hash(s->hash, block, e->dtype, dtype_elements(e->dtype, n));
    s->crc = crc32c(s->crc, block, n);
    s->bytes += n;
    r = to < 0 ? 0 : fs_write_all(to, block, n);
    return r < 0 ? fs_fail(err, r, NULL, to_path, "write") : 0;
}

static int check_sums(const struct weights *w, const struct sums *found, struct err *err)
{
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, found->hash);
    if (w->final && strcmp(hash, w->want_hash) != 0)
        return err_set_at(
            err, -EBADMSG, w->path,
            "damaged, or not of this job: its weights have the hash %s, but %s says %s; try --step last",
            hash, RUN_RESULT_FILE, w->want_hash);
    if (!w->final && found->bytes != w->want_bytes)
        return err_set_at(err, -EBADMSG, w->path,
                          "damaged: it should have %" PRIu64 " bytes, but has %" PRIu64, w->want_bytes,
                          found->bytes);
    if (!w->final && found->crc != w->want_crc)
        return err_set_at(err, -EBADMSG, w->path,
                          "damaged: it should have the CRC-32C %08" PRIx32 ", but has %08" PRIx32,
                          w->want_crc, found->crc);
    return 0;
}

int weights_copy(const struct weights *w, int to, const char *to_path, uint64_t *ret_hash, struct err *err)
{
    struct sums s = {.hash = WEIGHTS_HASH_START};
    char *block = malloc(FS_BLOCK_BYTES);
    int r = block == NULL ? err_set(err, -ENOMEM, "no memory to copy with") : 0;
    while (r == 0 && s.bytes < w->bytes)
        r = copy_block(w, block, to, to_path, &s, err);
    free(block);
    if (r == 0)
        r = check_sums(w, &s, err);
    if (r == 0)
        *ret_hash = s.hash;
    return r;
}

/* ---- the model ---- */

enum spec_precision weights_precision(const struct outdir *out)
{
    enum spec_precision precision = PRECISION_FP32;
    char *text = NULL;
    size_t bytes = 0;
    uint64_t hash;
    bool known = fs_read_text(out->fd, RUN_RESOLVED_FILE, RESOLVED_MAX, &text, &bytes) == 0 &&
                 spec_resolved_precision(text, bytes, &precision);
    free(text);
    text = NULL;
    if (!known && checkpoint_resolved(out, &text, &hash) == 0)
        spec_resolved_precision(text, strlen(text), &precision);
    free(text);
    return precision;
}

int weights_describe(const struct outdir *out, const struct transformer *t, struct err *err)
{
    struct strbuf b = {0};
    char *before = NULL;
    size_t bytes;
    hf_config_write(t, DTYPE_F32, &b); /* files of a run hold floats */
    bool same = fs_read_text(out->fd, WEIGHTS_TRANSFORMER, TEXT_MAX, &before, &bytes) == 0 && bytes == b.n &&
                memcmp(before, b.at, bytes) == 0;
    int r = same ? 0 : fs_replace(out, WEIGHTS_TRANSFORMER, b.at, b.n, err);
    free(before);
    strbuf_finish(&b);
    return r;
}

int weights_transformer(const struct outdir *out, struct transformer *ret, struct err *err)
{
    char *text = NULL, path[FS_PATH_BYTES];
    size_t bytes;
    int r = fs_read_text(out->fd, WEIGHTS_TRANSFORMER, TEXT_MAX, &text, &bytes);
    if (r < 0)
        return r == -ENOENT ? r : fs_fail(err, r, out->name, WEIGHTS_TRANSFORMER, "read");
    fs_path(path, sizeof path, out->name, WEIGHTS_TRANSFORMER);
    r = hf_config_parse(text, bytes, path, ret, err);
    free(text);
    return r;
}
