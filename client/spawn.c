/* Implements spawn.h: finds and runs other programs. This program ignores the signal SIGPIPE. So it restores
 * the signal's default action before another program starts. */
#include "client/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_MAX (1u << 20)

static const struct {
    const char *name, *variable, *in_build;
} programs[] = {
    [PROGRAM_DAEMON] = {"tuttid", "TUTTID", "../daemon/tuttid"},
    [PROGRAM_WORKER] = {"tutti-worker", "TUTTI_WORKER", "../daemon/worker/tutti-worker"},
};

/* ---- finding ---- */

static char *join(const char *dir, const char *name)
{
    struct strbuf b = {0};
    strbuf_addf(&b, "%s/%s", dir, name);
    return b.at;
}

/* Returns the path dir/name if there is an executable file at that path, and otherwise NULL. The caller frees
 * the path. */
static char *try_file(const char *dir, const char *name)
{
    char *path = join(dir, name);
    if (access(path, X_OK) == 0)
        return path;
    free(path);
    return NULL;
}

/* Returns the directory that contains this program's own file, or NULL. The caller frees the path. */
static char *own_dir(void)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return NULL;
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    if (slash == NULL)
        return NULL;
    *slash = '\0';
    return strdup(path[0] != '\0' ? path : "/");
}

static char *search_path(const char *name)
{
    const char *path = getenv("PATH");
    char *copy = strdup(path != NULL ? path : "/usr/local/bin:/usr/bin:/bin"), *save = NULL, *found = NULL;
    for (char *d = strtok_r(copy, ":", &save); d != NULL && found == NULL; d = strtok_r(NULL, ":", &save))
        found = try_file(d, name);
    free(copy);
    return found;
}

int spawn_find(enum program which, char **ret, struct err *err)
{
    const char *name = programs[which].name, *given = getenv(programs[which].variable);
    if (given != NULL && given[0] != '\0') {
        if (access(given, X_OK) < 0)
            return err_set_at(err, -ENOEXEC, given, "$%s does not name a program that can be run: %s",
                              programs[which].variable, strerror(errno));
        *ret = strdup(given);
        return 0;
    }
    char *own = own_dir(), *found = NULL;
    if (own != NULL) {
        found = try_file(own, name);
        if (found == NULL)
            found = try_file(own, programs[which].in_build);
        if (found == NULL) {
            char *libexec = join(own, "../libexec/tutti");
            found = try_file(libexec, name);
            free(libexec);
        }
    }
    free(own);
    if (found == NULL)
        found = search_path(name);
    if (found == NULL)
        return err_set(
            err, -ENOEXEC,
            "cannot find the program %s: it is neither beside tutti nor in PATH; set $%s to its path", name,
            programs[which].variable);
    *ret = found;
    return 0;
}

/* ---- arguments ---- */

void spawn_add(struct spawn_args *a, const char *word)
{
    char *copy = strdup(word);
    if (copy == NULL)
        abort();
    vec_push(&a->words, copy);
}

void spawn_add_option(struct spawn_args *a, const char *name, const char *value)
{
    if (value == NULL)
        return;
    spawn_add(a, name);
    if (value[0] != '\0')
        spawn_add(a, value);
}

void spawn_add_value(struct spawn_args *a, const char *name, const char *value)
{
    if (value == NULL)
        return;
    spawn_add(a, name);
    spawn_add(a, value);
}

void spawn_finish(struct spawn_args *a)
{
    for (size_t i = 0; i < a->words.n; i++)
        free(a->words.at[i]);
    vec_free(&a->words);
}

/* Returns the array of arguments for execv: the path, the words, and a NULL at the end. The caller frees the
 * array. */
static char **argv_of(const char *path, const struct spawn_args *a)
{
    char **argv = xcalloc(a->words.n + 2, sizeof *argv);
    argv[0] = (char *)path;
    for (size_t i = 0; i < a->words.n; i++)
        argv[i + 1] = a->words.at[i];
    return argv;
}

/* ---- running ---- */

int spawn_exec(const char *path, struct spawn_args *a, struct err *err)
{
    char **argv = argv_of(path, a);
    signal(SIGPIPE, SIG_DFL);
    execv(path, argv);
    int r = err_set_at(err, -ENOEXEC, path, "cannot be run: %s", strerror(errno));
    signal(SIGPIPE, SIG_IGN);
    free(argv);
    return r;
}

/* Creates a file in memory that contains `text`. Returns the file descriptor, or -1. A pipe is not used,
 * because writing a long text to it could block. */
static int memory_file(const char *text)
{
    int fd = memfd_create("spec", MFD_CLOEXEC);
    for (size_t at = 0, n = strlen(text); fd >= 0 && at < n;) {
        ssize_t w = write(fd, text + at, n - at);
        if (w < 0 && errno != EINTR) {
            int saved = errno;
            close(fd);
            errno = saved;
            return -1;
        }
        at += w > 0 ? (size_t)w : 0;
    }
    if (fd >= 0)
        lseek(fd, 0, SEEK_SET);
    return fd;
}

static pid_t start(const char *path, const struct spawn_args *a, int in, int out)
{
    char **argv = argv_of(path, a);
    pid_t self = getpid(), pid = fork();
    if (pid == 0) {
        /* Kill the child when this process ends, because nobody would read the child's result then. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != self)
            _exit(127);
        signal(SIGPIPE, SIG_DFL);
        if (dup2(in, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0)
            execv(path, argv);
        _exit(127);
    }
    free(argv);
    return pid;
}

static void collect_output(int fd, struct strbuf *b)
{
    char chunk[4096];
    ssize_t n;
    strbuf_add(b, "");
    while ((n = read(fd, chunk, sizeof chunk)) != 0) {
        if (n < 0 && errno != EINTR)
            break;
        if (n > 0 && b->n < OUTPUT_MAX)
            strbuf_addn(b, chunk, (size_t)n);
    }
}

int spawn_collect(const char *path, struct spawn_args *a, const char *input, struct strbuf *ret_output,
                  int *ret_exit, struct err *err)
{
    int out[2], status, in = memory_file(input);
    if (in < 0)
        return err_set(err, -errno, "cannot create a file in memory for the input of %s: %s", path,
                       strerror(errno));
    if (pipe2(out, O_CLOEXEC) < 0) {
        close(in);
        return err_set(err, -errno, "cannot create a pipe: %s", strerror(errno));
    }
    pid_t pid = start(path, a, in, out[1]);
    close(in);
    close(out[1]);
    if (pid < 0) {
        close(out[0]);
        return err_set_at(err, -errno, path, "cannot be started: %s", strerror(errno));
    }
    collect_output(out[0], ret_output);
    close(out[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        return err_set_at(err, -EIO, path, "was killed by signal %d", WTERMSIG(status));
    *ret_exit = WEXITSTATUS(status);
    return 0;
}
