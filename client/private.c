/* Implements the private daemon of `tutti run`, declared in spawn.h.
 *
 * The daemon has a directory of its own, and reads from a pipe whose write end only this process holds.
 * However this process ends, the daemon then sees the end of the pipe, asks its job to write a checkpoint,
 * and exits.
 *
 * The daemon runs in a session of its own, so that Ctrl-C reaches only this process, which decides what to
 * do.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/print.h"
#include "client/spawn.h"

#define DIR_NAME     "tutti-run-XXXXXX"
#define LOG_SHOWN    600 /* bytes of the log in a message */
#define REMOVE_DEPTH 8   /* how deep directories are removed */
/* The time in nanoseconds that the private daemon has to exit. This is 90 s, because its job may need 60 s to
 * write a checkpoint. */
#define END_NS  90000000000ull
#define POLL_NS 20000000ull

/* ---- the directory ---- */

/* Creates a directory for the private daemon and its sockets. The path of a socket must fit into a socket
 * address, so a parent directory with a long path is not used. Returns the path of the directory, which the
 * caller frees, or NULL on failure. */
static char *make_dir(struct err *err)
{
    const char *const parents[] = {getenv("XDG_RUNTIME_DIR"), getenv("TMPDIR"), "/tmp"};
    struct sockaddr_un address;
    int code = ENOENT;
    for (size_t i = 0; i < sizeof parents / sizeof parents[0]; i++) {
        struct strbuf b = {0};
        if (parents[i] == NULL || parents[i][0] != '/')
            continue;
        strbuf_addf(&b, "%s/" DIR_NAME, parents[i]);
        if (b.n + sizeof "/worker.sock" > sizeof address.sun_path)
            code = ENAMETOOLONG;
        else if (mkdtemp(b.at) != NULL)
            return b.at;
        else
            code = errno;
        strbuf_finish(&b);
    }
    err_set(err, -code, "cannot create a directory for the daemon in $XDG_RUNTIME_DIR, $TMPDIR or /tmp: %s",
            strerror(code));
    return NULL;
}

static void remove_tree(int parent, const char *name, int depth)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *e;
    if (d == NULL && fd >= 0)
        close(fd);
    while (d != NULL && (e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (unlinkat(fd, e->d_name, 0) < 0 && depth > 0)
            remove_tree(fd, e->d_name, depth - 1);
    }
    if (d != NULL)
        closedir(d);
    unlinkat(parent, name, AT_REMOVEDIR);
}

static char *below(const char *dir, const char *name)
{
    struct strbuf b = {0};
    strbuf_addf(&b, "%s/%s", dir, name);
    return b.at;
}

/* ---- the process ---- */

/* Runs in the forked child and replaces the child by the daemon. The daemon's output goes to the file `log`.
 * The descriptor `pipe_end` is the read end of a pipe. It must stay open, because one of the daemon's
 * arguments names it. */
static void become_daemon(const char *path, char **argv, const char *log, int pipe_end)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    setsid();
    signal(SIGPIPE, SIG_DFL);
    if (null >= 0 && out >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 &&
        dup2(out, STDERR_FILENO) >= 0 && fcntl(pipe_end, F_SETFD, 0) == 0)
        execv(path, argv);
    print_error("cannot run %s: %s\n", path, strerror(errno));
    _exit(127);
}

static int launch(struct private_daemon *d, const char *path, const char *backend, const char *machine,
                  int pipe_end, struct err *err)
{
    char number[16];
    const char *env = getenv("TUTTI_BACKEND");
    if (backend == NULL)
        backend = machine == NULL && env != NULL && env[0] != '\0' ? env : "auto";
    snprintf(number, sizeof number, "%d", pipe_end);
    char *argv[] = {(char *)path, "--user",   "--private", number,      "--state",
                    d->dir,       "--socket", d->socket,   "--backend", (char *)backend,
                    "--devices",  "auto",     NULL,        NULL,        NULL};
    if (machine != NULL) {
        argv[12] = "--machine";
        argv[13] = (char *)machine;
    }
    d->pid = fork();
    if (d->pid == 0)
        become_daemon(path, argv, d->log, pipe_end);
    return d->pid < 0 ? err_set_at(err, -errno, path, "cannot be started: %s", strerror(errno)) : 0;
}

int private_start(const char *backend, const char *machine, struct private_daemon *ret, struct err *err)
{
    char *path = NULL;
    int ends[2] = {-1, -1};
    *ret = (struct private_daemon){.pipe_fd = -1, .pid = -1};
    int r = spawn_find(PROGRAM_DAEMON, &path, err);
    if (r < 0)
        return r;
    ret->dir = make_dir(err);
    if (ret->dir == NULL)
        r = err->code;
    if (r == 0 && pipe2(ends, O_CLOEXEC) < 0)
        r = err_set(err, -errno, "cannot create a pipe: %s", strerror(errno));
    if (r == 0) {
        ret->socket = below(ret->dir, "tutti.sock");
        ret->log = below(ret->dir, "tuttid.log");
        ret->pipe_fd = ends[1];
        r = launch(ret, path, backend, machine, ends[0], err);
        close(ends[0]);
    }
    free(path);
    if (r < 0)
        private_end(ret);
    return r;
}

/* Copies the end of the log to `ret`. Replaces line breaks by blanks, so that the text fits into a message of
 * one line. */
static void log_tail(const char *log, char *ret, size_t size)
{
    int fd = open(log, O_RDONLY | O_CLOEXEC);
    struct stat st;
    ssize_t n = 0;
    if (fd >= 0 && fstat(fd, &st) == 0)
        n = pread(fd, ret, size - 1, st.st_size > (off_t)size - 1 ? st.st_size - (off_t)size + 1 : 0);
    if (fd >= 0)
        close(fd);
    while (n > 0 && ret[n - 1] == '\n')
        n--;
    ret[n > 0 ? n : 0] = '\0';
    for (char *newline = ret; (newline = strchr(newline, '\n')) != NULL;)
        *newline = ' ';
}

bool private_alive(struct private_daemon *d, struct err *err)
{
    char tail[LOG_SHOWN];
    int status = 0;
    if (d->pid > 0 && waitpid(d->pid, &status, WNOHANG) == 0)
        return true;
    if (d->pid > 0) {
        log_tail(d->log, tail, sizeof tail);
        err_set(err, -ECONNREFUSED, "the private daemon has exited%s%s",
                tail[0] != '\0' ? ": " : " without a message", tail);
    } else {
        err_set(err, -ECONNREFUSED, "the private daemon has exited");
    }
    d->pid = -1;
    return false;
}

void private_end(struct private_daemon *d)
{
    if (d->pipe_fd >= 0)
        close(d->pipe_fd);
    d->pipe_fd = -1;
    for (uint64_t waited = 0; d->pid > 0 && waitpid(d->pid, NULL, WNOHANG) == 0; waited += POLL_NS) {
        if (waited >= END_NS)
            kill(d->pid, SIGKILL);
        clock_sleep_ns(POLL_NS);
    }
    d->pid = -1;
    if (d->dir != NULL)
        remove_tree(AT_FDCWD, d->dir, REMOVE_DEPTH);
    free(d->dir);
    free(d->socket);
    free(d->log);
    d->dir = d->socket = d->log = NULL;
}
