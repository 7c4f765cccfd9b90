/* Implements the connection of tutti.h: finding the socket, the greeting, calls and events.
 *
 * recv and send never block. Only poll waits, with a deadline. While a request is written, arriving data is
 * read too; otherwise client and daemon could both wait for the other to read.
 *
 * After a transport error, or a line that is not valid protocol, the connection is lost, because there is no
 * way to find the beginning of the next message. A caller that wants to continue connects again.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/vec.h"
#include "client/tutti.h"

#define GREETING_MS 10000
#define CALL_MS     60000
/* The largest number of events that are queued while a call waits for its answer. A longer queue is treated
 * as an error, because the daemon itself keeps only 4096 events in memory. */
#define EVENTS_MAX 16384
#define NS_PER_MS  1000000ull

#define DAEMON_LEFT                                                                                          \
    "the daemon closed the connection; if it is not running, start it with `tuttid --user` and try again"

struct tutti {
    int fd;
    bool lost;
    uint64_t last_id; /* id of the last request */
    struct wire_in in;
    /* The queue of events. tutti_next has already returned the events before index `first`. */
    VEC(struct wire_msg) events;
    size_t first;
};

/* ---- bytes ---- */

/* Marks the connection as lost. Stores the reason `why` in `err` and returns `code`. */
static int lose(struct tutti *t, struct err *err, int code, const char *why)
{
    t->lost = true;
    return err_set(err, code, "%s", why);
}

static int wait_ms(uint64_t deadline_ns)
{
    if (deadline_ns == UINT64_MAX)
        return -1;
    uint64_t now = clock_now_ns();
    return now >= deadline_ns ? 0 : (int)((deadline_ns - now + NS_PER_MS - 1) / NS_PER_MS);
}

static uint64_t deadline_after(int timeout_ms)
{
    return timeout_ms < 0 ? UINT64_MAX : clock_now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
}

/* Waits until the socket is ready for reading or writing. `events` says which, as for poll. Returns the
 * events that poll reports, 0 if the deadline has passed, or -EINTR if a signal arrived. */
static int wait_for(struct tutti *t, short events, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = t->fd, .events = events};
    int n = poll(&p, 1, wait_ms(deadline_ns));
    return n < 0 ? -errno : n == 0 ? 0 : p.revents;
}

/* Moves the bytes that have arrived from the socket to the line buffer. Returns 0, even if no bytes have
 * arrived or the buffer is full. Returns a negative errno if the connection is lost. */
static int read_some(struct tutti *t, struct err *err)
{
    char *at;
    size_t space;
    wire_in_space(&t->in, &at, &space);
    if (space == 0)
        return t->in.cap < t->in.max ? lose(t, err, -ENOMEM, "out of memory for the daemon's answer") : 0;
    ssize_t n = recv(t->fd, at, space, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n < 0)
        return lose(t, err, -ECONNRESET, DAEMON_LEFT);
    if (n == 0)
        return lose(t, err, -ECONNRESET, DAEMON_LEFT);
    wire_in_added(&t->in, (size_t)n);
    return 0;
}

static int send_all(struct tutti *t, const struct strbuf *b, uint64_t deadline_ns, struct err *err)
{
    size_t sent = 0;
    while (sent < b->n) {
        int got = wait_for(t, POLLIN | POLLOUT, deadline_ns);
        if (got == 0)
            return lose(t, err, -ETIMEDOUT, "the daemon did not read the request within 60 s");
        if (got < 0)
            continue;
        int r = got & POLLIN ? read_some(t, err) : 0;
        if (r < 0 && sent == 0)
            return r;
        ssize_t n = send(t->fd, b->at + sent, b->n - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return lose(t, err, -ECONNRESET, DAEMON_LEFT);
        if (n > 0)
            sent += (size_t)n;
        else
            wait_for(t, POLLOUT, deadline_ns);
    }
    return 0;
}

/* ---- messages ---- */

/* Parses the next complete line. Returns 1 for a message, 0 if no complete line has arrived, or a negative
 * errno. */
static int take_line(struct tutti *t, struct wire_msg *ret, struct err *err)
{
    char *line;
    size_t bytes;
    enum wire_code code;
    struct err why = {0};
    int r;
    do {
        r = wire_in_line(&t->in, &line, &bytes);
    } while (r > 0 && bytes == 0);
    if (r < 0)
        return lose(t, err, -EPROTO, "the daemon sent a line of more than 1 MiB");
    if (r == 0)
        return 0;
    if (wire_parse(line, bytes, 0, ret, &code, &why) == 0)
        return 1;
    wire_msg_finish(ret);
    t->lost = true;
    return err_set(err, -EPROTO, "the daemon sent a line that does not follow the protocol: %s", why.msg);
}

/* Waits for the next message. Returns 1 if there is a message, 0 if the deadline has passed, or -EINTR if a
 * signal arrived. Any other negative errno means that the connection is lost. */
static int receive(struct tutti *t, uint64_t deadline_ns, struct wire_msg *ret, struct err *err)
{
    for (;;) {
        int r = take_line(t, ret, err);
        if (r != 0)
            return r;
        if (t->lost)
            return err_set(err, -ECONNRESET, "%s", DAEMON_LEFT);
        r = wait_for(t, POLLIN, deadline_ns);
        if (r <= 0)
            return r;
        r = read_some(t, err);
        if (r < 0)
            return r;
    }
}

/* Handles an error message that answers no request, such as "too many connections". Such an error concerns
 * the whole connection, and the daemon closes the connection after sending it. */
static int connection_error(struct tutti *t, struct wire_msg *m, struct err *err)
{
    int r = wire_msg_error(m, err);
    wire_msg_finish(m);
    t->lost = true;
    return r;
}

static bool is_event(const struct wire_msg *m)
{
    return m->kind == WIRE_NOTIFICATION && strcmp(m->method, "event") == 0 && m->params != NULL;
}

/* Queues the message for tutti_next if it is an event. Any other kind of notification is dropped. */
static int queue_event(struct tutti *t, struct wire_msg *m, struct err *err)
{
    /* A newer daemon may send notifications that this client does not know. The protocol tells clients to
     * ignore them. */
    if (!is_event(m)) {
        wire_msg_finish(m);
        return 0;
    }
    if (t->events.n - t->first >= EVENTS_MAX) {
        wire_msg_finish(m);
        return lose(t, err, -EPROTO, "the daemon sent too many events and no answer");
    }
    vec_push(&t->events, *m);
    return 0;
}

/* ---- opening ---- */

static int read_greeting(struct tutti *t, struct err *err)
{
    struct wire_msg m = {0};
    uint64_t deadline = deadline_after(GREETING_MS), protocol = 0;
    int r;
    do {
        r = receive(t, deadline, &m, err);
    } while (r == -EINTR);
    if (r < 0)
        return r;
    if (r == 0)
        return lose(t, err, -EPROTO, "the daemon sent no greeting within 10 s; check whether it hangs");
    if (m.kind == WIRE_ERROR)
        return connection_error(t, &m, err);
    const struct json *number = m.params != NULL ? json_get(m.params, "protocol") : NULL;
    bool hello = m.kind == WIRE_NOTIFICATION && strcmp(m.method, "hello") == 0 && number != NULL &&
                 json_u64(number, "protocol", &protocol, NULL) == 0;
    wire_msg_finish(&m);
    if (!hello)
        return lose(t, err, -EPROTO, "the program that listens there is not tuttid; check --socket");
    if (protocol > WIRE_PROTOCOL) {
        t->lost = true;
        return err_set(err, -EPROTO,
                       "the daemon speaks protocol %" PRIu64 ", but this client only %d; use a newer tutti",
                       protocol, WIRE_PROTOCOL);
    }
    return 0;
}

int tutti_open(int fd, struct tutti **ret, struct err *err)
{
    struct tutti *t = xcalloc(1, sizeof *t);
    t->fd = fd;
    wire_in_init(&t->in, WIRE_LINE_MAX);
    int r = read_greeting(t, err);
    if (r < 0) {
        tutti_close(t);
        return r;
    }
    *ret = t;
    return 0;
}

/* Connects to the socket at `path`. Returns a file descriptor or a negative errno. If `path` is too long for
 * a socket address, reaches the socket through a descriptor of its directory. */
static int dial(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char *copy = strdup(path), *slash = copy != NULL ? strrchr(copy, '/') : NULL;
    int dir = -1, r = 0, fd = -1;
    if (strlen(path) < sizeof a.sun_path) {
        strcpy(a.sun_path, path);
    } else if (slash == NULL) {
        r = -ENAMETOOLONG;
    } else {
        *slash = '\0';
        dir = open(copy, O_PATH | O_DIRECTORY | O_CLOEXEC);
        r = dir < 0 ? -errno : 0;
        if (snprintf(a.sun_path, sizeof a.sun_path, "/proc/self/fd/%d/%s", dir, slash + 1) >=
            (int)sizeof a.sun_path)
            r = -ENAMETOOLONG;
    }
    free(copy);
    if (r == 0)
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (r == 0 && (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0))
        r = -errno;
    if (dir >= 0)
        close(dir);
    if (r < 0 && fd >= 0)
        close(fd);
    return r < 0 ? r : fd;
}

static int connect_to(const char *path, struct tutti **ret, struct err *err)
{
    int fd = dial(path);
    if (fd >= 0)
        return tutti_open(fd, ret, err);
    if (fd == -EACCES || fd == -EPERM)
        return err_set_at(err, -EACCES, path,
                          "this user may not use the daemon; ask its owner, or use `tutti run`");
    return err_set_at(err, -ECONNREFUSED, path,
                      "no daemon listens there (%s); start one with `tuttid --user`, or use `tutti run`",
                      strerror(-fd));
}

/* Appends the default path of the daemon's socket. The section "Where the socket is" in docs/protocol.md
 * describes this path. */
static void usual_path(struct strbuf *b)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR"), *state = getenv("XDG_STATE_HOME"),
               *home = getenv("HOME");
    if (runtime != NULL && runtime[0] != '\0')
        strbuf_addf(b, "%s/tutti/tutti.sock", runtime);
    else if (state != NULL && state[0] != '\0')
        strbuf_addf(b, "%s/tutti/run/tutti.sock", state);
    else
        strbuf_addf(b, "%s/.local/state/tutti/run/tutti.sock", home != NULL ? home : "");
}

int tutti_connect(const char *path, struct tutti **ret, struct err *err)
{
    const char *from_env = getenv("TUTTI_SOCKET");
    if (path == NULL && from_env != NULL && from_env[0] != '\0')
        path = from_env;
    if (path != NULL)
        return connect_to(path, ret, err);
    struct strbuf b = {0};
    usual_path(&b);
    int r = connect_to(b.at, ret, err);
    strbuf_finish(&b);
    if (r == -ECONNREFUSED && connect_to("/run/tutti/tutti.sock", ret, NULL) == 0)
        r = 0;
    return r;
}

void tutti_close(struct tutti *t)
{
    if (t == NULL)
        return;
    while (t->first < t->events.n)
        wire_msg_finish(&t->events.at[t->first++]);
    vec_free(&t->events);
    wire_in_finish(&t->in);
    close(t->fd);
    free(t);
}

bool tutti_lost(const struct tutti *t)
{
    return t->lost;
}

/* ---- calls and events ---- */

static int send_request(struct tutti *t, const char *method, const char *params, uint64_t deadline_ns,
                        struct err *err)
{
    struct strbuf b = {0};
    wire_begin_request(&b, ++t->last_id, method);
    strbuf_add(&b, params != NULL ? params : "{}");
    wire_end(&b);
    int r = b.n > WIRE_LINE_MAX ? err_set(err, -EINVAL, "the request has %zu bytes; at most %u can be sent",
                                          b.n, WIRE_LINE_MAX)
                                : send_all(t, &b, deadline_ns, err);
    strbuf_finish(&b);
    return r;
}

/* Handles a message that arrives while a call waits for its answer. If the message is this answer, stores its
 * status in *ret_status and returns 1. Otherwise queues or drops the message and returns 0. */
static int sort_message(struct tutti *t, struct wire_msg *m, int *ret_status, struct err *err)
{
    uint64_t id;
    if (m->kind == WIRE_NOTIFICATION || m->kind == WIRE_REQUEST)
        return queue_event(t, m, err); /* drops a request */
    if (m->kind == WIRE_ERROR && m->id[0] == '\0')
        return connection_error(t, m, err);
    /* An answer with another id belongs to an earlier call, which no longer waits for it. So drop the
     * answer. */
    if (!wire_msg_id(m, &id) || id != t->last_id) {
        wire_msg_finish(m);
        return 0;
    }
    *ret_status = 0;
    if (m->kind == WIRE_ERROR) {
        *ret_status = wire_msg_error(m, err);
        wire_msg_finish(m);
    }
    return 1;
}

/* Called after the connection was lost. Reads the messages that the daemon sent before it closed the
 * connection. If one of them is an error about the whole connection, returns the code of that error.
 * Otherwise returns `code`. */
static int last_words(struct tutti *t, int code, struct err *err)
{
    struct wire_msg m = {0};
    read_some(t, NULL);
    while (take_line(t, &m, NULL) > 0) {
        if (m.kind == WIRE_ERROR && m.id[0] == '\0')
            return connection_error(t, &m, err);
        queue_event(t, &m, NULL);
    }
    return code;
}

int tutti_call(struct tutti *t, const char *method, const char *params, struct wire_msg *ret, struct err *err)
{
    uint64_t deadline = deadline_after(CALL_MS);
    struct wire_msg m = {0};
    if (t->lost)
        return err_set(err, -ECONNRESET, "%s", DAEMON_LEFT);
    int status = 0, r = send_request(t, method, params, deadline, err);
    if (r < 0)
        return t->lost ? last_words(t, r, err) : r;
    for (;;) {
        r = receive(t, deadline, &m, err);
        if (r == -EINTR)
            continue;
        if (r == 0)
            return lose(t, err, -ETIMEDOUT, "the daemon did not answer within 60 s");
        if (r > 0)
            r = sort_message(t, &m, &status, err);
        if (r < 0)
            return r;
        if (r == 0)
            continue;
        if (status == 0)
            *ret = m;
        return status;
    }
}

static bool take_event(struct tutti *t, struct wire_msg *ret)
{
    if (t->first == t->events.n)
        return false;
    *ret = t->events.at[t->first++];
    if (t->first == t->events.n)
        t->first = t->events.n = 0;
    return true;
}

int tutti_next(struct tutti *t, int timeout_ms, struct wire_msg *ret, struct err *err)
{
    uint64_t deadline = deadline_after(timeout_ms);
    for (;;) {
        struct wire_msg m = {0};
        if (take_event(t, ret))
            return 1;
        int r = receive(t, deadline, &m, err);
        if (r == -EINTR)
            return 0;
        if (r <= 0)
            return r;
        if (m.kind == WIRE_ERROR && m.id[0] == '\0')
            return connection_error(t, &m, err);
        if (m.kind == WIRE_NOTIFICATION)
            r = queue_event(t, &m, err);
        else
            wire_msg_finish(&m);
        if (r < 0)
            return r;
    }
}
