/* The uplink's thread, which owns the socket, and the functions that wait for the daemon's answers. The
 * mailbox is in uplink_mail.c.
 *
 * The caller's thread posts messages into the mailbox, and the uplink's thread sends them. The mutex guards
 * the mailbox and is never held during a system call that could block. Writing to wake_fd wakes the thread
 * from poll when a new message is due earlier than the thread would wake by itself. The members of the
 * connection belong to the thread alone.
 *
 * The thread composes new messages only when all earlier bytes were sent (`out` is empty), so a daemon
 * that does not read costs one buffer. After the connection was lost, the thread sends hello again. When
 * the daemon answers, the thread repeats what the daemon must know: the plan, the curve, the newest
 * progress, and the outcome if there is one.
 */
#include "daemon/worker/uplink.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"
#include "daemon/worker/uplink_private.h"

static char *copy_text(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(xmalloc(n), s, n);
}

/* ---- the connection; uplink thread ---- */

static bool is_over(struct uplink *l)
{
    pthread_mutex_lock(&l->mutex);
    bool over = l->over;
    pthread_mutex_unlock(&l->mutex);
    return over;
}

/* Makes uplink_wait_job and uplink_outcome return the error `failure` to their callers. The uplink thread
 * ends soon after that. */
static void end_waiting(struct uplink *l, int failure, const struct err *err)
{
    pthread_mutex_lock(&l->mutex);
    l->over = true;
    l->failure = failure;
    l->err = *err;
    pthread_cond_broadcast(&l->answered);
    pthread_mutex_unlock(&l->mutex);
}

static void disconnect(struct uplink *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
    l->greeted = false;
    wire_in_finish(&l->in);
    l->out.n = l->out_at = 0;
}

/* Closes the connection to the daemon after a failure, and schedules the next attempt to connect. */
static void lose(struct uplink *l, const char *why)
{
    uint64_t now = clock_now_ns();
    pthread_mutex_lock(&l->mutex);
    bool running = l->has_job;
    pthread_mutex_unlock(&l->mutex);
    if (running && !l->lost)
        log_warning("the daemon is gone (%s); the job goes on", why);
    l->lost = running;
    disconnect(l);
    l->retry_ns = now + l->backoff_ns;
    l->backoff_ns = uplink_earlier(2 * l->backoff_ns, l->config.times.last_retry_ns);
}

/* Connects to the daemon and composes the message hello. connect(2) does not block here, because a Unix
 * socket connects or fails at once. */
static void connect_now(struct uplink *l, uint64_t now)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, l->config.socket, strlen(l->config.socket) + 1);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0 || connect(l->fd, (struct sockaddr *)&a, sizeof a) < 0) {
        lose(l, strerror(errno));
        return;
    }
    l->hello_ns = now;
    pthread_mutex_lock(&l->mutex);
    uplink_add_hello(l);
    pthread_mutex_unlock(&l->mutex);
}

static void send_due(struct uplink *l, uint64_t now)
{
    if (l->out_at == l->out.n && l->greeted) {
        l->out.n = l->out_at = 0;
        pthread_mutex_lock(&l->mutex);
        uplink_add_due(l, now);
        pthread_mutex_unlock(&l->mutex);
    }
    while (l->out_at < l->out.n) {
        ssize_t n = send(l->fd, l->out.at + l->out_at, l->out.n - l->out_at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            lose(l, strerror(errno));
        if (n < 0)
            return;
        l->out_at += (size_t)n;
        l->sent_ns = now;
    }
}

/* ---- messages from the daemon (uplink thread) ---- */

static const struct json *lease_at(const struct json *lease, const char *key)
{
    return lease != NULL && json_type(lease) == JSON_OBJECT ? json_get(lease, key) : NULL;
}

static uint64_t lease_number(const struct json *lease, const char *key)
{
    uint64_t v = 0;
    const struct json *node = lease_at(lease, key);
    if (node != NULL && json_type(node) == JSON_NUMBER)
        json_u64(node, key, &v, NULL);
    return v;
}

/* Reads the backend's device numbers of the leased devices. A lease of virtual devices has no such
 * numbers. */
static void take_devices(const struct json *lease, struct uplink_job *ret)
{
    const struct json *list = lease_at(lease, "indices");
    uint32_t n = 0;
    uint64_t v;
    if (list == NULL || json_type(list) != JSON_ARRAY || ret->devices > DEVICE_MAX ||
        json_array_size(list) != ret->devices)
        return;
    for (const struct json *at = json_array_first(list); at != NULL; at = json_array_next(at)) {
        if (json_u64(at, "indices", &v, NULL) < 0 || v > UINT32_MAX)
            return;
        ret->device_index[n++] = (uint32_t)v;
    }
    ret->has_index = true;
}

/* Reads the backend and the topology of the leased devices from the daemon's lease. */
static void take_machine(const struct json *lease, struct uplink_job *ret)
{
    const struct json *node = lease_at(lease, "backend");
    const char *name;
    if (node != NULL && json_type(node) == JSON_STRING && json_string(node, "backend", &name, NULL) == 0)
        snprintf(ret->backend, sizeof ret->backend, "%s", name);
    node = lease_at(lease, "machine");
    if (node != NULL && json_type(node) == JSON_OBJECT)
        ret->machine = json_print(node);
}

/* Reads the job from the daemon's answer to hello. The answer then belongs to *ret, because the spec is part
 * of it. */
static int take_job(struct wire_msg *m, struct uplink_job *ret)
{
    const struct json *spec = NULL, *dir = NULL, *lease;
    const char *dir_text;
    if (json_type(m->result) == JSON_OBJECT) {
        spec = json_get(m->result, "spec");
        dir = json_get(m->result, "dir");
    }
    if (spec == NULL || dir == NULL || json_type(dir) != JSON_STRING)
        return -EPROTO;
    json_string(dir, "dir", &dir_text, NULL);
    lease = json_get(m->result, "lease");
    *ret = (struct uplink_job){
        .answer = m->doc,
        .spec = spec,
        .dir = dir_text,
        .devices = (uint32_t)uplink_earlier(lease_number(lease, "devices"), UINT32_MAX),
        .device_bytes = lease_number(lease, "device_bytes"),
        .host_bytes = lease_number(lease, "host_bytes"),
        .all_devices = (uint32_t)uplink_earlier(lease_number(lease, "all_devices"), DEVICE_MAX),
        .host_bytes_each = lease_number(lease, "host_bytes_each"),
    };
    take_devices(lease, ret);
    take_machine(lease, ret);
    *m = (struct wire_msg){0};
    return 0;
}

static int take_greeting(struct uplink *l, struct wire_msg *m)
{
    struct err err = {0};
    int r = 0;
    pthread_mutex_lock(&l->mutex);
    if (!l->has_job) {
        r = take_job(m, &l->job);
        l->has_job = r == 0;
        l->give_up_ns = r == 0 ? NEVER : l->give_up_ns;
        pthread_cond_broadcast(&l->answered);
    }
    uplink_begin_again(l);
    pthread_mutex_unlock(&l->mutex);
    if (r < 0) {
        end_waiting(l, err_set(&err, r, "the daemon's answer has no spec or no dir"), &err);
        return r;
    }
    if (l->lost)
        log_info("the daemon is back");
    l->lost = false;
    l->greeted = true;
    l->backoff_ns = l->config.times.first_retry_ns;
    return 0;
}

/* Handles an error reply of the daemon. After -EAGAIN or -ESHUTDOWN, a daemon may accept this worker later,
 * so the uplink tries again. Any other error means that the daemon refuses the worker, so the job stops. */
static int take_refusal(struct uplink *l, const struct wire_msg *m)
{
    struct err err = {0};
    int r = wire_msg_error(m, &err);
    if (r == -EAGAIN || r == -ESHUTDOWN)
        return r;
    end_waiting(l, r, &err);
    l->config.stop(l->config.ctx, "refused");
    return r;
}

static void take_acknowledgement(struct uplink *l)
{
    pthread_mutex_lock(&l->mutex);
    l->acknowledged = true;
    pthread_cond_broadcast(&l->answered);
    pthread_mutex_unlock(&l->mutex);
}

static int take_notification(struct uplink *l, const struct wire_msg *m)
{
    const char *reason = "";
    const struct json *node = m->params != NULL ? json_get(m->params, "reason") : NULL;
    if (strcmp(m->method, "stop") != 0)
        return 0; /* newer daemons may send unknown notifications */
    if (node != NULL && json_type(node) == JSON_STRING)
        json_string(node, "reason", &reason, NULL);
    l->config.stop(l->config.ctx, reason);
    return 0;
}

/* Handles one line from the daemon. Returns 0, or a negative errno if the connection must be closed. */
static int take_line(struct uplink *l, const char *line, size_t bytes)
{
    struct wire_msg m = {0};
    enum wire_code code;
    uint64_t id = 0;
    if (bytes == 0)
        return 0;
    int r = wire_parse(line, bytes, 0, &m, &code, NULL);
    if (r == 0 && m.kind == WIRE_NOTIFICATION) {
        r = take_notification(l, &m);
    } else if (r == 0 && m.kind != WIRE_REQUEST) {
        wire_msg_id(&m, &id);
        if (m.kind == WIRE_ERROR)
            r = id == ID_HELLO || id == ID_OUTCOME ? take_refusal(l, &m) : -EPROTO;
        else if (id == ID_HELLO)
            r = take_greeting(l, &m);
        else if (id == ID_OUTCOME)
            take_acknowledgement(l);
    }
    wire_msg_finish(&m);
    return r;
}

static void receive(struct uplink *l)
{
    char *at, *line;
    size_t room, bytes;
    wire_in_space(&l->in, &at, &room);
    ssize_t n = room > 0 ? recv(l->fd, at, room, 0) : 0;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        lose(l, n < 0 ? strerror(errno) : "it hung up");
        return;
    }
    wire_in_added(&l->in, (size_t)n);
    int r;
    while ((r = wire_in_line(&l->in, &line, &bytes)) > 0) {
        r = take_line(l, line, bytes);
        if (r < 0)
            break;
    }
    if (r < 0 && !is_over(l))
        lose(l, strerror(-r));
}

/* ---- the loop of the thread ---- */

/* Returns the time at which the uplink thread must wake up, even if no message comes. */
static uint64_t next_ns(struct uplink *l)
{
    pthread_mutex_lock(&l->mutex);
    uint64_t at = l->give_up_ns;
    if (l->fd < 0) {
        at = uplink_earlier(at, l->retry_ns);
    } else if (!l->greeted) {
        at = uplink_earlier(at, l->hello_ns + l->config.times.answer_ns);
    } else if (l->out_at == l->out.n) {
        at = uplink_earlier(at, uplink_next_due(l));
    }
    pthread_mutex_unlock(&l->mutex);
    return at;
}

/* Waits until a message from the daemon arrives or bytes can be sent. Then receives the messages that have
 * arrived. */
static void wait_and_receive(struct uplink *l)
{
    struct pollfd p[2] = {{.fd = l->wake_fd, .events = POLLIN},
                          {.fd = l->fd, .events = POLLIN | (l->out_at < l->out.n ? POLLOUT : 0)}};
    uint64_t now = clock_now_ns(), at = next_ns(l), ignored;
    uint64_t ms = at <= now ? 0 : (at - now + 999999) / 1000000;
    if (poll(p, 2, at == NEVER ? -1 : (int)uplink_earlier(ms, 60000)) < 0)
        return; /* EINTR: the loop tries again */
    if (p[0].revents != 0) {
        ssize_t n = read(l->wake_fd, &ignored, sizeof ignored);
        (void)n;
    }
    if (l->fd >= 0 && (p[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
        receive(l);
}

static void check_times(struct uplink *l)
{
    struct err err = {0};
    uint64_t now = clock_now_ns();
    pthread_mutex_lock(&l->mutex);
    bool late = now >= l->give_up_ns && !l->acknowledged;
    pthread_mutex_unlock(&l->mutex);
    if (late)
        end_waiting(l, err_set_at(&err, -ETIMEDOUT, l->config.socket, "no daemon answers here"), &err);
    else if (l->fd >= 0 && !l->greeted && now >= l->hello_ns + l->config.times.answer_ns)
        lose(l, "it does not answer");
}

static void *run(void *arg)
{
    struct uplink *l = arg;
    while (!is_over(l)) {
        uint64_t now = clock_now_ns();
        if (l->fd < 0 && now >= l->retry_ns)
            connect_now(l, now);
        if (l->fd >= 0)
            send_due(l, now);
        wait_and_receive(l);
        check_times(l);
    }
    disconnect(l);
    return NULL;
}

/* ---- open, wait, close (caller's thread) ---- */

static void set_default(uint64_t *ns, uint64_t ms)
{
    if (*ns == 0)
        *ns = ms * 1000000;
}

static void set_defaults(struct uplink_times *t)
{
    set_default(&t->first_retry_ns, 100);
    set_default(&t->last_retry_ns, 2000);
    set_default(&t->answer_ns, 30000);
    set_default(&t->give_up_ns, 60000);
    set_default(&t->progress_ns, 200);
    set_default(&t->curve_ns, 1000);
    set_default(&t->alive_ns, 2000);
}

/* Starts the uplink thread with all signals blocked, so that signals are delivered to the training thread. */
static int start_thread(struct uplink *l)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&l->thread, NULL, run, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}

static void free_uplink(struct uplink *l)
{
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    pthread_mutex_destroy(&l->mutex);
    pthread_cond_destroy(&l->answered);
    uplink_job_finish(&l->job);
    strbuf_finish(&l->out);
    free((char *)l->config.socket);
    free((char *)l->config.secret);
    strbuf_finish(&l->planned);
    strbuf_finish(&l->outcome);
    free(l);
}

int uplink_open(const struct uplink_config *c, struct uplink **ret, struct err *err)
{
    if (strlen(c->socket) >= sizeof((struct sockaddr_un *)NULL)->sun_path)
        return err_set_at(err, -ENAMETOOLONG, c->socket, "the path of a socket has at most %zu bytes",
                          sizeof((struct sockaddr_un *)NULL)->sun_path - 1);
    struct uplink *l = xcalloc(1, sizeof *l);
    l->config = *c;
    l->config.socket = copy_text(c->socket);
    l->config.secret = copy_text(c->secret);
    set_defaults(&l->config.times);
    l->fd = -1;
    l->backoff_ns = l->config.times.first_retry_ns;
    l->give_up_ns = clock_now_ns() + l->config.times.give_up_ns;
    wire_in_init(&l->in, WIRE_WORKER_LINE_MAX);
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->answered, NULL);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = l->wake_fd < 0 ? -errno : start_thread(l);
    if (r < 0) {
        free_uplink(l);
        return err_set(err, r, "cannot start a thread for the daemon: %s", strerror(-r));
    }
    *ret = l;
    return 0;
}

int uplink_wait_job(struct uplink *l, struct uplink_job *ret, struct err *err)
{
    pthread_mutex_lock(&l->mutex);
    while (!l->has_job && !l->over)
        pthread_cond_wait(&l->answered, &l->mutex);
    int r = l->has_job ? 0 : l->failure;
    if (r == 0) {
        *ret = l->job;
        l->job = (struct uplink_job){0};
    } else {
        *err = l->err;
    }
    pthread_mutex_unlock(&l->mutex);
    return r;
}

void uplink_job_finish(struct uplink_job *j)
{
    json_free(j->answer);
    free(j->machine);
    *j = (struct uplink_job){0};
}

int uplink_outcome(struct uplink *l, const char *members, uint64_t step, struct err *err)
{
    pthread_mutex_lock(&l->mutex);
    uplink_set_outcome(l, members, step);
    l->give_up_ns = clock_now_ns() + l->config.times.give_up_ns;
    uplink_wake(l);
    while (!l->acknowledged && !l->over)
        pthread_cond_wait(&l->answered, &l->mutex);
    int r = l->acknowledged ? 0 : l->failure;
    if (r < 0)
        *err = l->err;
    pthread_mutex_unlock(&l->mutex);
    return r;
}

void uplink_close(struct uplink *l)
{
    struct err err = {0};
    if (l == NULL)
        return;
    end_waiting(l, err_set(&err, -ECANCELED, "closed"), &err);
    uplink_wake(l);
    pthread_join(l->thread, NULL);
    free_uplink(l);
}
