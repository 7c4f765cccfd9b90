/* Implements launch.h: starts the worker processes, identifies them, takes over those of an earlier daemon,
 * sends them signals, and notices when they end. */
#include "daemon/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"

/* ---- identity of a process ---- */

static int read_small(const char *path, char *buf, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = read(fd, buf, size - 1);
    int r = n < 0 ? -errno : 0;
    close(fd);
    buf[n > 0 ? n : 0] = '\0';
    return r;
}

/* Reads the start time of a process, which is field 22 of /proc/PID/stat. Field 2, the program's name, may
 * contain spaces and parentheses. So this function counts the fields from the last closing parenthesis. */
static int start_time(pid_t pid, uint64_t *ret)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    int r = read_small(path, text, sizeof text);
    char *p = r == 0 ? strrchr(text, ')') : NULL;
    if (p == NULL)
        return r < 0 ? r : -EINVAL;
    for (int field = 2; field < 22; field++) {
        p = strchr(p + 1, ' ');
        if (p == NULL)
            return -EINVAL;
    }
    *ret = strtoull(p, NULL, 10);
    return 0;
}

int launch_identify(pid_t pid, struct job_process *ret)
{
    struct job_process p = {.pid = pid};
    int r = read_small("/proc/sys/kernel/random/boot_id", p.boot, sizeof p.boot);
    p.boot[strcspn(p.boot, "\n")] = '\0';
    if (r == 0)
        r = start_time(pid, &p.start);
    if (r == 0)
        *ret = p;
    return r;
}

uint64_t launch_age_ms(const struct job_process *p)
{
    struct timespec now;
    long ticks = sysconf(_SC_CLK_TCK);
    if (p->start == 0 || ticks <= 0 || clock_gettime(CLOCK_BOOTTIME, &now) < 0)
        return 0;
    uint64_t now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    uint64_t start_ms = p->start * 1000 / (uint64_t)ticks;
    return now_ms > start_ms ? now_ms - start_ms : 0;
}

void launch_log_path(const struct config *c, uint64_t job, char *buf, size_t size)
{
    snprintf(buf, size, "%s/logs/%" PRIu64 ".log", c->state_dir, job);
}

/* ---- the end of a process ---- */

static void describe_exit(int64_t status, int sig, char *buf, size_t size)
{
    if (sig != 0)
        snprintf(buf, size, "was killed by signal %d (%s)", sig, strsignal(sig));
    else
        snprintf(buf, size, "ended with code %d and no outcome", (int)status);
}

/* Describes how a worker's process ended. The description is kept here until libuv has closed the handle of
 * the process. */
struct ending {
    struct worker *worker;
    /* A text for people that says how the process ended, such as "was killed by signal 9 (Killed)". */
    char how[128];
};

static void on_worker_handle_closed(uv_handle_t *h)
{
    struct ending *e = h->data;
    struct worker *w = e->worker;
    if (w->pidfd >= 0)
        close(w->pidfd);
    w->ops->gone(w, e->how);
    free(e);
    free(w);
}

static void end_worker(struct worker *w, const char *how)
{
    struct ending *e = xcalloc(1, sizeof *e);
    e->worker = w;
    snprintf(e->how, sizeof e->how, "%s", how);
    uv_handle_t *h = w->adopted ? (uv_handle_t *)&w->handle.poll : (uv_handle_t *)&w->handle.process;
    h->data = e;
    uv_close(h, on_worker_handle_closed);
}

static void on_child_exit(uv_process_t *p, int64_t status, int sig)
{
    char how[128];
    describe_exit(status, sig, how, sizeof how);
    end_worker(p->data, how);
}

/* Called when a worker that an earlier daemon started has ended. The exit code of such a worker is unknown,
 * because the kernel reports it only to the parent process. */
static void on_adopted_exit(uv_poll_t *p, int status, int events)
{
    (void)status;
    (void)events;
    end_worker(p->data, "ended without an outcome");
}

/* ---- starting ---- */

/* The environment variables that a worker inherits. The CUDA variables decide how devices are numbered, so
 * the worker must see the same values as the probe did. */
static const char *const pass[] = {
    "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "HOME", "LANG",          "LD_LIBRARY_PATH", "PATH", "TMPDIR",
    "TUTTI_CUDA_MODULE", "TUTTI_PROFILE",        "USER", "XDG_CACHE_HOME"};
#define N_PASS (sizeof pass / sizeof pass[0])

#define SECRET_VARIABLE "TUTTI_SECRET="

/* Builds the environment of a worker: the variable with the secret, and the variables in `pass` that are set
 * in this process. */
static void make_env(char *secret_variable, char *ret[N_PASS + 2])
{
    int n = 0;
    ret[n++] = secret_variable;
    for (size_t i = 0; i < N_PASS; i++) {
        const char *v = getenv(pass[i]);
        if (v != NULL)
            ret[n++] = (char *)v - strlen(pass[i]) - 1; /* getenv returns a pointer into "NAME=value" */
    }
    ret[n] = NULL;
}

int launch_open_log(const struct daemon *d, const struct job *j, struct err *err)
{
    char path[PATH_MAX + 64];
    launch_log_path(&d->config, j->id, path, sizeof path);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? err_set_at(err, -errno, path, "cannot open the job's log: %s", strerror(errno)) : fd;
}

/* Returns advice for the administrator when fork or exec has failed with the errno value `code`. Returns ""
 * if there is no advice. */
static const char *remedy(int code)
{
    switch (code) {
    case -EMFILE:
    case -ENFILE:
        return "; raise the limit of open files (ulimit -n, LimitNOFILE=)";
    case -EAGAIN:
        return "; raise the limit of processes (ulimit -u, TasksMax=)";
    case -EACCES:
    case -ENOENT:
    case -ENOEXEC:
    case -ENOTDIR:
        return "; install the program again, or correct --worker";
    }
    return "";
}

static void on_unused_closed(uv_handle_t *h)
{
    free(h->data);
}

int launch_start(struct daemon *d, struct job *j, const struct worker_ops *ops, const char *secret, int log,
                 struct err *err)
{
    char id[24], attempt[16], variable[sizeof SECRET_VARIABLE + LAUNCH_SECRET_CHARS], *env[N_PASS + 2];
    struct worker *w = xcalloc(1, sizeof *w);
    snprintf(id, sizeof id, "%" PRIu64, j->id);
    snprintf(attempt, sizeof attempt, "%u", j->attempt);
    snprintf(variable, sizeof variable, SECRET_VARIABLE "%s", secret);
    make_env(variable, env);
    char *args[] = {(char *)d->config.worker_program,
                    (char *)"--serve",
                    (char *)d->config.worker_socket,
                    (char *)"--job",
                    id,
                    (char *)"--attempt",
                    attempt,
                    NULL};
    uv_stdio_container_t stdio[3] = {
        {.flags = UV_IGNORE},
        {.flags = UV_INHERIT_FD, .data.fd = log},
        {.flags = UV_INHERIT_FD, .data.fd = log},
    };
    uv_process_options_t o = {
        .exit_cb = on_child_exit,
        .file = args[0],
        .args = args,
        .env = env,
        .cwd = "/",
        /* Detach the worker, so that a Ctrl-C in the daemon's terminal does not reach the worker. */
        .flags = UV_PROCESS_DETACHED,
        .stdio_count = 3,
        .stdio = stdio,
    };
    *w = (struct worker){.daemon = d,
                         .job = j,
                         .ops = ops,
                         .pidfd = -1,
                         .heard_ms = daemon_now_ms(d),
                         .moved_ms = daemon_now_ms(d)};
    w->handle.process.data = w;
    int r = uv_spawn(d->loop, &w->handle.process, &o);
    explicit_bzero(variable, sizeof variable);
    if (r < 0) {
        uv_close((uv_handle_t *)&w->handle.process, on_unused_closed);
        return err_set_at(err, r, args[0], "cannot be started: %s%s", strerror(-r), remedy(r));
    }
    w->pid = w->handle.process.pid;
    j->worker = w;
    return 0;
}

bool launch_adopt(struct daemon *d, struct job *j, const struct worker_ops *ops)
{
    struct job_process now;
    if (j->process.pid <= 0)
        return false;
    int pidfd = (int)syscall(SYS_pidfd_open, j->process.pid, 0);
    if (pidfd < 0)
        return false;
    /* A pid may be given to a new process, but a pidfd always means the same process. The pidfd was opened
     * before the identity of the pid is read. So if the process of the pidfd is still alive afterwards, the
     * identity belongs to this process. */
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    if (launch_identify(j->process.pid, &now) < 0 || now.start != j->process.start ||
        strcmp(now.boot, j->process.boot) != 0 || poll(&ended, 1, 0) != 0) {
        close(pidfd);
        return false;
    }
    struct worker *w = xcalloc(1, sizeof *w);
    *w = (struct worker){
        .daemon = d,
        .job = j,
        .ops = ops,
        .phase = WORKER_RUNNING,
        .pid = j->process.pid,
        .adopted = true,
        .pidfd = pidfd,
        .heard_ms = daemon_now_ms(d),
        .moved_ms = daemon_now_ms(d),
    };
    w->handle.poll.data = w;
    uv_poll_init(d->loop, &w->handle.poll, pidfd);
    uv_poll_start(&w->handle.poll, UV_READABLE, on_adopted_exit);
    j->worker = w;
    return true;
}

/* Sends no signal to a child process that libuv has already reaped, because its pid may belong to another
 * process by now. */
void launch_signal(struct worker *w, int sig)
{
    if (w->adopted)
        syscall(SYS_pidfd_send_signal, w->pidfd, sig, NULL, 0);
    else if (!uv_is_closing((uv_handle_t *)&w->handle.process))
        uv_process_kill(&w->handle.process, sig);
}
