/* Implements sockets.h: listening sockets that come back when somebody removes their files.
 *
 * A timer is used rather than inotify. The timer costs three calls of lstat every few seconds. It also
 * notices a directory that was replaced, and it works on file systems without notification and for users who
 * have used up their inotify watches.
 *
 * The sockets are created here and then passed to libuv. If libuv bound a socket itself, it would remove the
 * file when the pipe is closed, even if another process had put a new file there.
 */
#include "daemon/sockets.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/crc32c.h"
#include "base/dirs.h"
#include "base/log.h"
#include "daemon/lock.h"

#define BACKLOG 512
/* The daemon checks regularly whether the files of its sockets are still in place. The time between two
 * checks is this number of restart delays. With the default restart delay of 1 s, there are
 * 5 s between two checks. */
#define CHECK_DELAYS 5
#define CHECK_MOST   5000 /* ms: longest time between two checks */
#define CHECK_LEAST  20   /* ms: shortest time between two checks */

/* One listening socket. `file` describes the file that the daemon created at `path`. Later checks use `file`
 * to find out whether `path` still names the same file. */
struct door {
    const char *path;
    uv_connection_cb on_connection;
    void *data;
    uv_pipe_t *pipe;
    /* The previous socket of this path, whose file somebody removed. The socket stays open until all clients
     * that are already connected to it have been accepted. */
    uv_pipe_t *old;
    struct stat file;
};

struct sockets {
    struct daemon *daemon;
    uv_timer_t timer;
    struct lock lock;
    struct door doors[2];
    size_t n;
    /* The checksum of the failure that the last check found. 0 if that check found no failure. A failure with
     * the same checksum is not logged again. */
    uint32_t told;
};

/* ---- the lock ---- */

/* Takes the lock of the sockets' directory. One lock is enough for both sockets, because they are in the same
 * directory. */
static int take_lock(struct sockets *s, struct err *err)
{
    const struct config *c = &s->daemon->config;
    char dir[PATH_MAX], path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s.lock", c->worker_socket);
    if (lock_is_at(&s->lock, path))
        return 0;
    snprintf(dir, sizeof dir, "%s", c->socket);
    *strrchr(dir, '/') = '\0';
    int r = dir[0] != '\0' ? dirs_make(dir, 0700, "the directory", err) : 0;
    return r == 0 ? lock_take(path, "directory of sockets", &s->lock, err) : r;
}

/* ---- listening ---- */

static void on_pipe_closed(uv_handle_t *h)
{
    free(h);
}

static int bind_at(const char *path, struct stat *ret_file, struct err *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        return err_set_at(err, -ENAMETOOLONG, path,
                          "a socket's path has at most %zu characters; choose a shorter one "
                          "with --socket",
                          sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* Set the mode before the bind, because bind gives the mode of the socket to the new file. With this
     * order, other users cannot connect even for a moment. */
    if (fd < 0 || fchmod(fd, 0600) < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 ||
        lstat(path, ret_file) < 0) {
        int r = err_set_at(err, -errno, path, "cannot listen: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return r;
    }
    return fd;
}

static int open_door(struct sockets *s, struct door *door, struct err *err)
{
    struct stat file;
    int fd = bind_at(door->path, &file, err);
    if (fd < 0)
        return fd;
    uv_pipe_t *pipe = xcalloc(1, sizeof *pipe);
    uv_pipe_init(s->daemon->loop, pipe, 0);
    pipe->data = door->data;
    int r = uv_pipe_open(pipe, fd);
    if (r < 0)
        close(fd);
    else
        r = uv_listen((uv_stream_t *)pipe, BACKLOG, door->on_connection);
    if (r < 0) {
        uv_close((uv_handle_t *)pipe, on_pipe_closed);
        /* No process listens on this socket file, so remove the file. The next check tries to listen
         * again. */
        unlink(door->path);
        return err_set_at(err, r, door->path, "cannot listen: %s", uv_strerror(r));
    }
    door->file = file;
    door->old = door->pipe;
    door->pipe = pipe;
    return 0;
}

/* ---- checking ---- */

/* Returns true if this process listens at `path`. Connects to `path` and asks the kernel which process is at
 * the other end. */
static bool we_answer(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct ucred who = {0};
    socklen_t size = sizeof who;
    memcpy(a.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool ours = fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
                getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.pid == getpid();
    if (fd >= 0)
        close(fd);
    return ours;
}

/* Returns true if `st` describes the file that this daemon created. The same device, inode number and ctime
 * mean that it is the same file. If only the ctime is different, either the attributes of the file were
 * changed, or a new file got the same inode number. In that case, the function also checks that this process
 * listens at the path. */
static bool is_ours(struct door *door, const struct stat *st)
{
    const struct stat *f = &door->file;
    if (st->st_dev != f->st_dev || st->st_ino != f->st_ino)
        return false;
    if (st->st_ctim.tv_sec == f->st_ctim.tv_sec && st->st_ctim.tv_nsec == f->st_ctim.tv_nsec)
        return true;
    if (!S_ISSOCK(st->st_mode) || !we_answer(door->path))
        return false;
    door->file = *st;
    return true;
}

static int check_door(struct sockets *s, struct door *door, struct err *err)
{
    struct stat st;
    /* By now, all waiting connections to the previous socket have been accepted, so close that socket. */
    if (door->old != NULL)
        uv_close((uv_handle_t *)door->old, on_pipe_closed);
    door->old = NULL;
    if (lstat(door->path, &st) == 0)
        return is_ours(door, &st) ? 0
                                  : err_set_at(err, -EEXIST, door->path,
                                               "another file has replaced this daemon's socket; "
                                               "remove it, and the daemon listens there again");
    if (errno != ENOENT)
        return err_set_at(err, -errno, door->path, "cannot check the socket: %s", strerror(errno));
    int r = open_door(s, door, err);
    if (r == 0)
        log_warning("%s was removed; the daemon listens there again", door->path);
    return r;
}

/* Logs a failure. A failure that repeats is logged only once, unless another failure or a success came in
 * between. */
static void tell(struct sockets *s, const struct err *err)
{
    char text[sizeof *err];
    uint32_t hash = 0;
    if (err->code < 0) {
        err_text(err, text, sizeof text);
        hash = crc32c(0, text, strlen(text));
        if (hash != s->told)
            log_error("clients or workers cannot reach this daemon: %s", text);
    }
    s->told = hash;
}

static void on_check(uv_timer_t *t)
{
    struct sockets *s = t->data;
    struct err err = {0};
    int r = take_lock(s, &err);
    for (size_t i = 0; r == 0 && i < s->n; i++) {
        struct err own = {0};
        if (check_door(s, &s->doors[i], &own) < 0)
            err = own;
    }
    tell(s, &err);
}

/* ---- beginning and end ---- */

static uint64_t check_ms(const struct config *c)
{
    uint64_t ms = c->restart_delay_ms < CHECK_MOST ? CHECK_DELAYS * c->restart_delay_ms : CHECK_MOST;
    return ms < CHECK_LEAST ? CHECK_LEAST : ms > CHECK_MOST ? CHECK_MOST : ms;
}

int sockets_create(struct daemon *d, struct sockets **ret, struct err *err)
{
    struct sockets *s = xcalloc(1, sizeof *s);
    *s = (struct sockets){.daemon = d, .lock.fd = -1};
    int r = take_lock(s, err);
    if (r < 0) {
        free(s);
        return r;
    }
    uv_timer_init(d->loop, &s->timer);
    s->timer.data = s;
    uv_unref((uv_handle_t *)&s->timer);
    uv_timer_start(&s->timer, on_check, check_ms(&d->config), check_ms(&d->config));
    *ret = s;
    return 0;
}

int sockets_listen(struct sockets *s, const char *path, uv_connection_cb on_connection, void *data,
                   struct err *err)
{
    struct door *door = &s->doors[s->n];
    *door = (struct door){.path = path, .on_connection = on_connection, .data = data};
    if (unlink(path) < 0 && errno != ENOENT)
        return err_set_at(err, -errno, path, "cannot remove the old socket: %s", strerror(errno));
    int r = open_door(s, door, err);
    if (r == 0)
        s->n++;
    return r;
}

void sockets_remove(struct sockets *s)
{
    struct stat st;
    for (size_t i = 0; i < s->n; i++)
        if (lstat(s->doors[i].path, &st) == 0 && is_ours(&s->doors[i], &st))
            unlink(s->doors[i].path);
}

static void on_timer_closed(uv_handle_t *h)
{
    free(h->data);
}

void sockets_close(struct sockets *s)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->doors[i].old != NULL)
            uv_close((uv_handle_t *)s->doors[i].old, on_pipe_closed);
        uv_close((uv_handle_t *)s->doors[i].pipe, on_pipe_closed);
    }
    if (s->lock.fd >= 0)
        close(s->lock.fd);
    uv_close((uv_handle_t *)&s->timer, on_timer_closed);
}
