/* --run: trains the job in the foreground, from its newest checkpoint where there is one.
 *
 * The output directory: `lock` (held while a worker is at it), `resolved.json` (what "auto" meant, once and
 * for all), `metrics.jsonl`, `checkpoints/`, at the end `model.safetensors` and `result.json`.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"

static volatile sig_atomic_t caught;

static const int stop_signals[] = {SIGHUP, SIGINT, SIGTERM};

static void on_signal(int sig);

/* What was ignored when the program started (nohup, a background job of a script) stays ignored. */
static void handle_signals(bool on)
{
    for (size_t i = 0; i < sizeof stop_signals / sizeof stop_signals[0]; i++) {
        struct sigaction now, want = {.sa_handler = on ? on_signal : SIG_DFL, .sa_flags = SA_RESTART};
        if (sigaction(stop_signals[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaction(stop_signals[i], &want, NULL);
    }
}

/* The first signal asks for a checkpoint; a second one, whichever, ends the process at once. */
static void on_signal(int sig)
{
    caught = sig;
    train_request_stop();
    handle_signals(false);
}

static int sync_parent(const char *path)
{
    char buf[PATH_MAX];
    snprintf(buf, sizeof buf, "%s", path);
    int fd = open(dirname(buf), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES ? 0
                               : -errno; /* a directory that may be written but not read cannot be synced */
    return fs_sync_close(fd);
}

/* mkdir -p, durable. */
static int make_dirs(const char *path, struct err *err)
{
    char buf[PATH_MAX];
    if (path[0] == '\0')
        return err_set_at(err, -EINVAL, "output", "must not be empty");
    if ((size_t)snprintf(buf, sizeof buf, "%s", path) >= sizeof buf)
        return err_set_at(err, -ENAMETOOLONG, "output", "the path is too long");
    for (char *p = buf + 1;; p++) {
        bool end = *p == '\0';
        if (*p != '/' && !end)
            continue;
        *p = '\0';
        int r = mkdir(buf, 0777) < 0 ? -errno : sync_parent(buf);
        if (r < 0 && r != -EEXIST)
            return err_set_at(err, r, buf, "cannot make the output directory: %s", strerror(-r));
        if (end)
            return 0;
        *p = '/';
    }
}

static int open_output(const char *path, struct outdir *ret, int *ret_lock, struct err *err)
{
    int r = make_dirs(path, err);
    if (r < 0)
        return r;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_set_at(err, -errno, path, "cannot open the output directory: %s", strerror(errno));
    int lock = openat(fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) < 0) {
        r = errno == EWOULDBLOCK
                ? err_set_at(err, -EBUSY, path,
                             "another worker is writing to this output; wait for it or stop it")
                : err_set_at(err, -errno, path, "cannot lock the output directory: %s", strerror(errno));
        if (lock >= 0)
            close(lock);
        close(fd);
        return r;
    }
    *ret = (struct outdir){fd, path};
    *ret_lock = lock;
    return 0;
}

static void close_output(const struct outdir *out, int lock)
{
    if (lock >= 0)
        close(lock);
    if (out->fd >= 0)
        close(out->fd);
}

/* A file that appears whole or not at all. */
static int write_atomically(const struct outdir *out, const char *file, const struct strbuf *b,
                            struct err *err)
{
    char tmp[64];
    snprintf(tmp, sizeof tmp, "%s.tmp", file);
    unlinkat(out->fd, tmp, 0);
    int fd = fs_create(out->fd, tmp);
    int r = fd < 0 ? fd : fs_write_all(fd, b->at, b->n);
    if (fd >= 0) {
        int e = fs_sync_close(fd);
        r = r < 0 ? r : e;
    }
    if (r == 0 && renameat(out->fd, tmp, out->fd, file) < 0)
        r = -errno;
    if (r == 0)
        r = fs_sync(out->fd);
    return r < 0 ? fs_fail(err, r, out->name, file, "write") : 0;
}

/* The resolved spec is written once; a later run must resolve to the same. */
static int settle_resolved(const struct outdir *out, const struct spec *s, struct err *err)
{
    bool there;
    int r = job_compare_resolved(out, s, &there, err);
    if (r < 0 || there)
        return r;
    struct strbuf b = {0};
    spec_resolved_json(s, &b);
    strbuf_add(&b, "\n");
    r = write_atomically(out, JOB_RESOLVED, &b, err);
    strbuf_finish(&b);
    return r;
}

/* A run that found nothing left to do keeps the report of the one that did it. */
static int write_result(const struct outdir *out, const struct job *j, const struct train_report *rep,
                        struct err *err)
{
    if (rep->steps_done == rep->resumed_from && faccessat(out->fd, TRAIN_RESULT, F_OK, 0) == 0)
        return 0;
    struct strbuf b = {0};
    report_json(j, rep, &b);
    int r = write_atomically(out, TRAIN_RESULT, &b, err);
    strbuf_finish(&b);
    return r;
}

static int print_result(const struct verb_options *o, const struct job *j, const struct train_report *rep)
{
    struct strbuf b = {0};
    if (o->json)
        report_json(j, rep, &b);
    else
        report_text(j, rep, &b);
    int code = print_buffer(&b);
    if (rep->numerics_changed)
        log_warning(
            "the checkpoint was written with other numerics than this machine's (%s): the bits may differ",
            rep->numerics);
    if (rep->stopped)
        log_info("stopped after a checkpoint at step %llu; run the same command again to go on",
                 (unsigned long long)rep->steps_done);
    return rep->stopped ? 128 + caught : code;
}

static int train(const struct verb_options *o, struct job *j, const struct outdir *out,
                 struct train_report *rep, struct err *err)
{
    struct progress progress;
    progress_init(&progress);
    struct train_options t = {
        .delay_seed = o->job.delay_seed,
        .link_bytes_per_s = o->job.link_bytes_per_s,
        .peer_bytes_per_s = o->job.peer_bytes_per_s,
        .progress = o->quiet ? NULL : progress_event,
        .ctx = &progress,
    };
    handle_signals(true);
    int r = train_run(j, out, &t, rep, err);
    progress_end(&progress);
    if (r == 0)
        r = write_result(out, j, rep, err);
    return r;
}

/* Everything that needs the output directory. */
static int run_in_output(const struct verb_options *o, struct job *j, struct train_report *rep,
                         struct err *err)
{
    struct outdir out = {.fd = -1};
    int lock = -1;
    int r = open_output(j->output, &out, &lock, err);
    if (r == 0)
        r = settle_resolved(&out, j->spec, err);
    if (r == 0)
        r = train(o, j, &out, rep, err);
    close_output(&out, lock);
    return r;
}

int verb_run(const struct verb_options *o)
{
    struct job j;
    int code = EXIT_DONE;
    struct err err = {0};
    struct train_report rep;
    int r = job_load_spec(&o->job, &j, &err);
    if (r == 0)
        r = job_prepare(&o->job, &j, &err);
    bool early = r < 0; /* a job that is refused leaves no trace */
    if (r == 0)
        r = run_in_output(o, &j, &rep, &err);
    if (r < 0) {
        code = report_error(o, r, &err, j.least_bytes, early);
    } else {
        code = print_result(o, &j, &rep);
    }
    job_finish(&j);
    return code;
}
