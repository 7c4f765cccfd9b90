/* Appends lines to metrics.jsonl, and removes lines from its end when a run resumes.
 *
 * A resumed run repeats the steps that an earlier run made after its last checkpoint. Their lines would be in
 * the file twice, so metrics_open first writes a new file without them, which replaces the old file. It also
 * drops lines that are incomplete or not JSON, such as a line that a crash interrupted.
 *
 * Each line is one write(2) to a descriptor opened with O_APPEND, so a reader that follows the file sees
 * complete lines.
 */
#include "daemon/worker/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/strbuf.h"
#include "daemon/worker/labels.h"

static const char file_name[] = "metrics.jsonl", tmp_name[] = "metrics.jsonl.tmp";
static const char line_begin[] = "{\"step\":";

struct metrics {
    int fd;
    char *dir;          /* name of the output directory, for messages */
    struct strbuf line; /* reused, to avoid allocations in every step */
    bool has_phase;     /* lines have the key "phase" */
    uint32_t phase;
};

/* ------------------------------------------------------------------------------------------ cutting back */

/* Returns whether a line of metrics.jsonl must be kept. It must be complete JSON, and its step must not be
 * after the checkpoint from which the job resumes. */
static bool line_stays(const char *line, size_t n, uint64_t resume_step)
{
    struct json *doc;
    uint64_t step = 0;
    int r;

    if (line[n - 1] != '\n' || json_parse(line, n, file_name, false, &doc, NULL) < 0)
        return false;
    r = json_u64(json_get(doc, "step"), "step", &step, NULL);
    json_free(doc);
    return r == 0 && step <= resume_step;
}

/* Copies those lines of `from` that must be kept to `to`. *ret_dropped receives the number of all other
 * lines. If `to` is NULL, the function only counts. */
static int filter(FILE *from, FILE *to, uint64_t resume_step, uint64_t *ret_dropped)
{
    uint64_t dropped = 0;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int r = 0;

    errno = 0;
    while (r == 0 && (n = getline(&line, &cap, from)) >= 0) {
        if (!line_stays(line, (size_t)n, resume_step))
            dropped++;
        else if (to && fwrite(line, 1, (size_t)n, to) != (size_t)n)
            r = -(errno ? errno : EIO);
    }
    if (r == 0 && !feof(from))
        r = -(errno ? errno : EIO);
    free(line);
    *ret_dropped = dropped;
    return r;
}

/* Writes those lines of metrics.jsonl that must be kept to a new temporary file, and syncs that file. */
static int write_rest(int dirfd, FILE *from, uint64_t resume_step)
{
    uint64_t dropped;
    int r = unlinkat(dirfd, tmp_name, 0) < 0 && errno != ENOENT ? -errno : 0;
    int fd = r < 0 ? r : fs_create(dirfd, tmp_name);
    FILE *to;

    if (fd < 0)
        return fd;
    to = fdopen(fd, "w");
    if (!to) {
        close(fd);
        return -ENOMEM;
    }
    rewind(from);
    r = filter(from, to, resume_step, &dropped);
    if (r == 0 && (fflush(to) != 0 || fsync(fd) < 0))
        r = -errno;
    if (fclose(to) != 0 && r == 0)
        r = -errno;
    return r;
}

static int replace(int dirfd, FILE *from, uint64_t resume_step)
{
    int r = write_rest(dirfd, from, resume_step);

    if (r == 0 && renameat(dirfd, tmp_name, dirfd, file_name) < 0)
        r = -errno;
    if (r < 0) {
        (void)unlinkat(dirfd, tmp_name, 0);
        return r;
    }
    return fs_sync(dirfd);
}

static int cut_back(int dirfd, uint64_t resume_step)
{
    uint64_t bytes, dropped = 0;
    int fd = fs_open_read(dirfd, file_name, &bytes), r;
    FILE *from;

    if (fd < 0)
        return fd == -ENOENT ? 0 : fd;
    from = fdopen(fd, "r");
    if (!from) {
        close(fd);
        return -ENOMEM;
    }
    r = filter(from, NULL, resume_step, &dropped);
    if (r == 0 && dropped > 0)
        r = replace(dirfd, from, resume_step);
    fclose(from);
    return r;
}

/* ------------------------------------------------------------------------------------------ open, close */

int metrics_open(const struct outdir *out, uint64_t resume_step, struct metrics **ret, struct err *err)
{
    struct metrics *m;
    int r = cut_back(out->fd, resume_step), fd;

    if (r < 0)
        return fs_fail(err, r, out->name, file_name, "cut back to the checkpoint");
    fd =
        openat(out->fd, file_name, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
    if (fd < 0)
        return fs_fail(err, -errno, out->name, file_name, "open");
    m = calloc(1, sizeof *m);
    if (m)
        m->dir = strdup(out->name);
    if (!m || !m->dir) {
        close(fd);
        free(m);
        return err_set_at(err, -ENOMEM, out->name, "no memory");
    }
    m->fd = fd;
    *ret = m;
    return 0;
}

void metrics_close(struct metrics *m)
{
    if (!m)
        return;
    close(m->fd);
    free(m->dir);
    strbuf_finish(&m->line);
    free(m);
}

int metrics_sync(struct metrics *m, struct err *err)
{
    return fdatasync(m->fd) < 0 ? fs_fail(err, -errno, m->dir, file_name, "sync") : 0;
}

/* ------------------------------------------------------------------------------------------ lines */

/* Appends the whole line or nothing. If write(2) writes only a part of the line, the function removes that
 * part again. */
static int append(struct metrics *m, const struct strbuf *b, struct err *err)
{
    struct stat st;
    ssize_t n;
    int r;

    if (fstat(m->fd, &st) < 0)
        return fs_fail(err, -errno, m->dir, file_name, "write");
    do
        n = write(m->fd, b->at, b->n);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)b->n)
        return 0;
    r = n < 0 ? -errno : -ENOSPC;
    if (n > 0 && ftruncate(m->fd, st.st_size) < 0)
        r = -errno;
    return fs_fail(err, r, m->dir, file_name, "write");
}

static void add_metric(struct strbuf *b, const char *key, double v, const char *format)
{
    char text[40] = "null";

    if (isfinite(v))
        snprintf(text, sizeof text, format, v);
    strbuf_addf(b, ",\"%s\":%s", key, text);
}

static struct strbuf *begin_line(struct metrics *m, uint64_t step)
{
    m->line.n = 0;
    strbuf_addf(&m->line, "%s%" PRIu64, line_begin, step);
    return &m->line;
}

void metrics_set_phase(struct metrics *m, uint32_t phase)
{
    m->has_phase = true;
    m->phase = phase;
}

static int finish_line(struct metrics *m, struct err *err)
{
    if (m->has_phase)
        strbuf_addf(&m->line, ",\"phase\":%" PRIu32, m->phase);
    strbuf_add(&m->line, "}\n");
    return append(m, &m->line, err);
}

/* Appends the losses and accuracies of all blocks as the key "blocks". If `training` is true, each block also
 * gets its learning rate and what is known about its update. */
static void add_block_losses(struct strbuf *b, const struct metrics_block *blocks, uint32_t n, bool training)
{
    strbuf_add(b, ",\"blocks\":[");
    for (uint32_t i = 0; i < n; i++) {
        const struct metrics_block *k = &blocks[i];
        strbuf_addf(b, "%s{\"block\":%" PRIu32, i > 0 ? "," : "", i);
        add_metric(b, "loss", k->loss, "%.17g");
        add_metric(b, "accuracy", k->accuracy, "%.17g");
        if (training)
            add_metric(b, "lr", k->lr, "%.17g");
        if (training && !isnan(k->sumsq))
            add_metric(b, "grad_norm", sqrt(k->sumsq), "%.17g");
        if (training && k->loss_scale > 0)
            add_metric(b, "loss_scale", k->loss_scale, "%.17g");
        if (training && k->skipped)
            strbuf_add(b, ",\"skipped\":true");
        strbuf_add(b, "}");
    }
    strbuf_add(b, "]");
}

int metrics_train(struct metrics *m, const struct metrics_step *s, struct err *err)
{
    struct strbuf *b = begin_line(m, s->step);

    add_metric(b, "loss", s->loss, "%.17g");
    add_metric(b, "lr", s->lr, "%.17g");
    if (!isnan(s->grad_norm))
        add_metric(b, "grad_norm", s->grad_norm, "%.17g");
    add_metric(b, "samples_per_s", s->samples_per_s, "%.6g");
    strbuf_addf(b, ",\"in_bytes\":%" PRIu64 ",\"out_bytes\":%" PRIu64 ",\"peer_bytes\":%" PRIu64, s->in_bytes,
                s->out_bytes, s->peer_bytes);
    if (!isnan(s->stall_s))
        add_metric(b, "stall_s", s->stall_s, "%.6g");
    if (s->loss_scale > 0)
        add_metric(b, "loss_scale", s->loss_scale, "%.17g");
    if (s->skipped)
        strbuf_add(b, ",\"skipped\":true");
    if (s->n_blocks > 0)
        add_block_losses(b, s->blocks, s->n_blocks, true);
    return finish_line(m, err);
}

int metrics_eval(struct metrics *m, uint64_t step, const struct metrics_eval *e, struct err *err)
{
    struct strbuf *b = begin_line(m, step);

    add_metric(b, "val/loss", e->loss, "%.17g");
    add_metric(b, "val/accuracy", e->accuracy, "%.17g");
    if (!isnan(e->perplexity))
        add_metric(b, "val/perplexity", e->perplexity, "%.17g");
    if (e->n_blocks > 0)
        add_block_losses(b, e->blocks, e->n_blocks, false);
    return finish_line(m, err);
}

int metrics_labels(struct metrics *m, const struct labels *l, uint32_t n_labels, struct err *err)
{
    struct strbuf *b = begin_line(m, l->step);

    if (n_labels > 1)
        strbuf_addf(b, ",\"part\":%" PRIu32, l->part);
    add_metric(b, "val/label_error", l->error, "%.17g");
    add_metric(b, "val/nearest_label_accuracy", l->nearest, "%.17g");
    strbuf_addf(b, ",\"labels\":\"%s\"", labels_verdict_names[labels_judge(l)]);
    return finish_line(m, err);
}
