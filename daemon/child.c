/* Implements child_collect of child.h: runs a program to its end and kills the program if it takes too
 * long. */
#include "daemon/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define OUTPUT_MAX (1u << 20)

/* Runs in the forked child and replaces the child by the program argv[0]. If exec fails, the child writes
 * errno to the pipe `failed`, which the parent reads. If exec succeeds, the kernel closes the pipe. */
static void become(char *const argv[], int out, int failed)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    signal(SIGPIPE, SIG_DFL);
    /* Make a new process group, so that a kill also reaches the processes that the program starts. */
    setpgid(0, 0);
    if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0)
        execv(argv[0], argv);
    int code = errno;
    ssize_t n = write(failed, &code, sizeof code);
    (void)n;
    _exit(CHILD_NOT_RUN);
}

/* Starts the program argv[0] with `out` as its standard output. Returns 0, or a negative errno if fork failed
 * or the program could not be executed. */
static int start_child(char *const argv[], int out, pid_t *ret)
{
    int failed[2], code = 0;
    if (pipe2(failed, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0)
        become(argv, out, failed[1]);
    if (pid < 0)
        code = errno;
    close(failed[1]);
    while (pid > 0 && read(failed[0], &code, sizeof code) < 0 && errno == EINTR)
        ;
    close(failed[0]);
    if (pid > 0 && code != 0)
        waitpid(pid, NULL, 0);
    *ret = pid;
    return -code;
}

/* Reads the program's output into `b` until the end of the output. Returns 0, or -ETIMEDOUT if the output has
 * not ended at the time `until_ns`, or another negative errno if a read fails. */
static int read_output(int fd, uint64_t until_ns, struct strbuf *b)
{
    char chunk[4096];
    strbuf_add(b, "");
    for (;;) {
        uint64_t now = clock_now_ns();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (now >= until_ns)
            return -ETIMEDOUT;
        int r = poll(&p, 1, (int)((until_ns - now) / 1000000 + 1));
        ssize_t n = r > 0 ? read(fd, chunk, sizeof chunk) : -1;
        if (r > 0 && n == 0)
            return 0;
        if (n < 0 && r != 0 && errno != EINTR)
            return -errno;
        if (n > 0 && b->n < OUTPUT_MAX)
            strbuf_addn(b, chunk, (size_t)n);
    }
}

int child_collect(char *const argv[], uint64_t timeout_ms, struct strbuf *ret_output, int *ret_exit,
                  struct err *err)
{
    int out[2], status = 0;
    pid_t pid = -1;
    *ret_exit = CHILD_NOT_RUN;
    if (pipe2(out, O_CLOEXEC) < 0)
        return err_set(err, -errno, "cannot create a pipe: %s", strerror(errno));
    int r = start_child(argv, out[1], &pid);
    close(out[1]);
    if (r < 0) {
        close(out[0]);
        return err_set_at(err, r, argv[0], "cannot be started: %s", strerror(-r));
    }
    *ret_exit = 0;
    r = read_output(out[0], clock_now_ns() + timeout_ms * 1000000, ret_output);
    close(out[0]);
    if (r < 0) {
        kill(-pid, SIGKILL);
        /* The signal to the process group misses a child that has not yet created its group. So signal the
         * child directly too. */
        kill(pid, SIGKILL);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (r < 0)
        return err_set_at(err, r, argv[0],
                          r == -ETIMEDOUT ? "did not end within %llu s" : "failed after %llu s",
                          (unsigned long long)(timeout_ms / 1000));
    if (WIFSIGNALED(status))
        return err_set_at(err, -EIO, argv[0], "was ended by signal %d", WTERMSIG(status));
    *ret_exit = WEXITSTATUS(status);
    return 0;
}
