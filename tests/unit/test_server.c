/* Tests the server when memory runs out. The server runs in this process with a real loop, socket and state.
 * Every kind of request runs with its first allocation failing, then with its second, and so on until a run
 * has no failure. Allocations of SQLite count too. Each request must succeed, be answered with ENOMEM, or (as
 * a last resort) lose its connection. The daemon must serve the next request. An acknowledged job must exist,
 * also after a restart, and no job may exist twice.
 *
 * No worker is ever started, because this daemon has no worker program.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/get.h"
#include "base/mem.h"
#include "base/vec.h"
#include "base/wire.h"
#include "daemon/events.h"
#include "daemon/jobs.h"
#include "daemon/quota.h"
#include "daemon/request.h"
#include "daemon/server.h"
#include "daemon/sockets.h"
#include "daemon/users.h"

/* ---- in place of the one in daemon.c ---- */

void daemon_die(struct daemon *d, const char *why)
{
    (void)d;
    fail_msg("the daemon died: %s", why);
}

/* ---- SQLite's memory ---- */

static sqlite3_mem_methods plain;

/* Counts as one allocation of base/mem; false: this is the one that fails. */
static bool may_allocate(void)
{
    void *p = mem_alloc(1);
    free(p);
    return p != NULL;
}

static void *sqlite_malloc(int n)
{
    return may_allocate() ? plain.xMalloc(n) : NULL;
}

static void *sqlite_realloc(void *p, int n)
{
    return may_allocate() ? plain.xRealloc(p, n) : NULL;
}

/* ---- the daemon ---- */

static char dir[64];
static uv_loop_t loop;
static struct daemon d;

static void die(void *ctx, const char *why)
{
    daemon_die(ctx, why);
}

static void open_all(void)
{
    struct err err = {0};
    d = (struct daemon){.loop = &loop};
    d.config = (struct config){.n_devices = 1,
                               .device_bytes = 1 << 20,
                               .host_bytes = 1 << 30,
                               .max_connections = 100,
                               .max_queued = 100000,
                               .private_fd = -1};
    snprintf(d.config.state_dir, sizeof d.config.state_dir, "%s", dir);
    snprintf(d.config.socket, sizeof d.config.socket, "%s/s", dir);
    snprintf(d.config.worker_socket, sizeof d.config.worker_socket, "%s/w", dir);
    d.quota = quota_create(&d.config.quota);
    d.users = users_create(&loop, NULL);
    d.jobs = jobs_create(&d);
    if (state_open(&(struct state_config){&loop, dir, die, &d}, &d.state, &err) < 0 ||
        events_create(&d, &d.events, &err) < 0 || jobs_load(d.jobs, &err) < 0 ||
        sockets_create(&d, &d.sockets, &err) < 0 || server_open(&d, &d.server, &err) < 0)
        fail_msg("%s", err.msg);
}

static void close_all(void)
{
    server_close(d.server);
    sockets_close(d.sockets);
    while (!state_idle(d.state) || !server_idle(d.server))
        uv_run(&loop, UV_RUN_ONCE);
    state_close(d.state);
    uv_run(&loop, UV_RUN_DEFAULT); /* lets the handles go */
    server_free(d.server);
    events_destroy(d.events);
    jobs_destroy(d.jobs);
    users_destroy(d.users);
    quota_destroy(d.quota);
}

static int begin(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/tutti-server-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (mkdtemp(dir) == NULL || uv_loop_init(&loop) < 0)
        return -1;
    open_all();
    return 0;
}

static int end(void **state)
{
    static const char *const files[] = {"s", "w.lock", "state.db", "state.db-wal", "state.db-shm"};
    char path[128];
    (void)state;
    close_all();
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
    return uv_loop_close(&loop);
}

/* ---- a client ---- */

struct client {
    int fd;
    char *text; /* what came and was not yet taken */
    size_t n, cap;
    bool gone;
};

static void client_open(struct client *c)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    *c = (struct client){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    memcpy(a.sun_path, d.config.socket, strlen(d.config.socket) + 1);
    assert_int_equal(connect(c->fd, (struct sockaddr *)&a, sizeof a), 0);
}

static void client_close(struct client *c)
{
    close(c->fd);
    free(c->text);
}

static void client_read(struct client *c)
{
    if (c->cap - c->n < 4096) {
        c->cap = 2 * c->cap + 8192;
        c->text = realloc(c->text, c->cap);
        assert_non_null(c->text);
    }
    ssize_t n = recv(c->fd, c->text + c->n, c->cap - c->n, 0);
    if (n > 0)
        c->n += (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        c->gone = true;
}

static void client_send(struct client *c, const char *text, size_t n)
{
    for (size_t sent = 0; sent < n && !c->gone;) {
        ssize_t k = send(c->fd, text + sent, n - sent, MSG_NOSIGNAL);
        if (k > 0)
            sent += (size_t)k;
        else if (k < 0 && errno != EAGAIN && errno != EINTR)
            break; /* it hung up; what it said can still be read */
        uv_run(&loop, UV_RUN_NOWAIT);
        client_read(c);
    }
}

/* The next line, which the caller frees; NULL: the daemon hung up. */
static char *client_line(struct client *c)
{
    for (;;) {
        char *newline = c->n > 0 ? memchr(c->text, '\n', c->n) : NULL;
        if (newline != NULL) {
            size_t n = (size_t)(newline - c->text);
            char *line = strndup(c->text, n);
            c->n -= n + 1;
            memmove(c->text, newline + 1, c->n);
            return line;
        }
        if (c->gone)
            return NULL;
        uv_run(&loop, UV_RUN_NOWAIT);
        client_read(c);
        if (c->n == 0 && !c->gone)
            usleep(100);
    }
}

/* ---- requests ---- */

enum answer { ANSWER_RESULT, ANSWER_NO_MEMORY, ANSWER_REFUSED, ANSWER_NONE };

struct outcome {
    enum answer answer;
    uint64_t id; /* of the job in the result; 0: none */
};

static struct outcome outcome_of(const char *line)
{
    struct wire_msg m;
    enum wire_code code;
    struct err err = {0};
    struct outcome o = {ANSWER_RESULT, 0};
    if (wire_parse(line, strlen(line), 0, &m, &code, &err) < 0)
        fail_msg("not a message: %.200s", line);
    if (m.kind == WIRE_ERROR) {
        wire_msg_error(&m, &err);
        o.answer = err.code == -ENOMEM ? ANSWER_NO_MEMORY : ANSWER_REFUSED;
    } else {
        o.id = get_count_or(m.result, "id", 0);
    }
    wire_msg_finish(&m);
    return o;
}

static bool is_answer(const char *line)
{
    return strstr(line, "\"method\":\"hello\"") == NULL && strstr(line, "\"method\":\"event\"") == NULL;
}

/* Reads events up to the newest, whose number the answer of a watch gives: it comes as itself or as a gap. */
static void read_events(struct client *c, const char *answer)
{
    const char *at = strstr(answer, "\"result\":{\"seq\":");
    char newest[64], *line;
    bool last = at == NULL;
    if (!last)
        snprintf(newest, sizeof newest, "\"seq\":%" PRIu64 ",", (uint64_t)strtoull(at + 16, NULL, 10));
    while (!last && (line = client_line(c)) != NULL) {
        last = strstr(line, newest) != NULL;
        free(line);
    }
}

/* Sends a request on a new connection, and waits until the daemon is idle. With `events`, also reads the
 * events that follow the answer to a watch request. Afterwards no allocation is set to fail any more;
 * *ret_failed tells whether the allocation that the test chose was reached. */
static struct outcome ask_failing(const char *text, size_t n, bool events, bool *ret_failed)
{
    struct client c;
    struct outcome o = {ANSWER_NONE, 0};
    char *line, *answer = NULL;
    client_open(&c);
    client_send(&c, text, n);
    while (answer == NULL && (line = client_line(&c)) != NULL) {
        if (is_answer(line))
            answer = line;
        else
            free(line);
    }
    if (events && answer != NULL)
        read_events(&c, answer);
    client_close(&c);
    while (!state_idle(d.state) || !server_idle(d.server))
        uv_run(&loop, UV_RUN_ONCE);
    *ret_failed = mem_has_failed();
    mem_fail_nth(0);
    if (answer != NULL)
        o = outcome_of(answer);
    free(answer);
    return o;
}

static struct outcome ask(const char *text)
{
    bool ignored;
    return ask_failing(text, strlen(text), false, &ignored);
}

static void check_alive(void)
{
    assert_int_equal(ask("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").answer, ANSWER_RESULT);
}

static size_t count_jobs(void)
{
    size_t n = 0;
    for (size_t i = 0; i < d.jobs->live.n; i++)
        n += d.jobs->live.at[i]->on_disk;
    return n;
}

/* ---- the requests that are tried ---- */

#define SPEC_HEAD                                                                                            \
    "{\"jsonrpc\":\"2.0\",\"id\":\"s\",\"method\":\"submit\",\"params\":{\"dir\":\"/"                        \
    "base\",\"spec\":{\"schema\":\"job/v1\","                                                                \
    "\"data\":{\"format\":\"synthetic\",\"samples\":64},\"train\":{\"steps\":3,\"global_batch\":8},"         \
    "\"optimizer\":{\"type\":\"sgd\",\"lr\":0.1},\"model\":{\"type\":\"chain\",\"input\":6,\"layers\":["

/* A submit with so many layers, and a key when it is not NULL. */
static void make_submit(struct strbuf *b, int layers, const char *key)
{
    strbuf_add(b, SPEC_HEAD);
    for (int i = 0; i < layers; i++)
        strbuf_add(b, "{\"op\":\"linear\",\"out\":6},");
    strbuf_add(b, "{\"op\":\"linear\",\"out\":3}]}}");
    if (key != NULL)
        strbuf_addf(b, ",\"key\":\"%s\"", key);
    strbuf_add(b, "}}\n");
}

static uint64_t submit_one(int layers)
{
    struct strbuf b = {0};
    make_submit(&b, layers, NULL);
    struct outcome o = ask(b.at);
    assert_int_equal(o.answer, ANSWER_RESULT);
    strbuf_finish(&b);
    return o.id;
}

/* Runs the request with every allocation failing in turn. `each`: looks at what came of it; may be NULL. */
static uint64_t try_every(const char *what, const char *text, size_t n, bool events, enum answer in_the_end,
                          void (*each)(struct outcome o, size_t jobs_before))
{
    for (uint64_t i = 1;; i++) {
        size_t before = count_jobs();
        mem_fail_nth(i);
        bool failed;
        struct outcome o = ask_failing(text, n, events, &failed);
        if (each != NULL)
            each(o, before);
        if (!failed && o.answer != in_the_end)
            fail_msg("%s: answer %d without a failure", what, (int)o.answer);
        check_alive();
        if (!failed)
            return i - 1;
    }
}

/* ---- submits ---- */

static VEC(uint64_t) acknowledged;

static void after_submit(struct outcome o, size_t before)
{
    size_t now = count_jobs();
    assert_true(now == before || now == before + 1); /* never twice */
    if (o.answer != ANSWER_RESULT)
        return;
    assert_int_equal(now, before + 1);
    vec_push(&acknowledged, o.id);
}

static void check_acknowledged(void)
{
    for (size_t i = 0; i < acknowledged.n; i++) {
        const struct job *j = jobs_find(d.jobs, acknowledged.at[i]);
        assert_true(j != NULL && j->on_disk);
    }
}

static void test_submits(void **state)
{
    struct strbuf small = {0}, large = {0};
    uint64_t n;
    (void)state;
    make_submit(&small, 1, NULL);
    make_submit(&large, 600, NULL);
    assert_true(small.n < REQUEST_LARGE_LINE && large.n > REQUEST_LARGE_LINE);
    n = try_every("small submit", small.at, small.n, false, ANSWER_RESULT, after_submit);
    assert_true(n > 30); /* the tree, the spec, the job, the rows, SQLite */
    n = try_every("large submit", large.at, large.n, false, ANSWER_RESULT, after_submit);
    assert_true(n > 1000);
    check_acknowledged();
    size_t before = count_jobs();
    close_all();
    open_all();
    check_acknowledged();
    assert_int_equal(count_jobs(), before);
    vec_free(&acknowledged);
    strbuf_finish(&small);
    strbuf_finish(&large);
}

/* The client retries with its key until it has an answer: there is one job. */
static void test_a_submit_with_a_key_is_one_job_however_often_it_is_retried(void **state)
{
    struct strbuf b = {0};
    bool failed = true;
    (void)state;
    make_submit(&b, 1, "k");
    for (uint64_t i = 1; failed; i++) {
        mem_fail_nth(i);
        ask_failing(b.at, b.n, false, &failed);
        assert_true(count_jobs() <= 1);
    }
    assert_int_equal(count_jobs(), 1);
    strbuf_finish(&b);
}

/* ---- the others ---- */

static void test_questions(void **state)
{
    static const char *const texts[] = {
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"list\"}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"list\",\"params\":{\"active\":true,\"after\":1,\"limit\":"
        "2}}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"show\",\"params\":{\"id\":1}}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"logs\",\"params\":{\"id\":1}}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"devices\"}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n",
    };
    (void)state;
    for (int i = 0; i < 20; i++)
        submit_one(i == 0 ? 900 : 1);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        try_every(texts[i], texts[i], strlen(texts[i]), false, ANSWER_RESULT, NULL);
    close_all(); /* of an ended job `show` reads more from the disk; and events come from there */
    open_all();
    char text[96];
    for (int i = 1; i <= 8; i++) {
        snprintf(text, sizeof text,
                 "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"cancel\",\"params\":{\"id\":%d}}\n", i);
        assert_int_equal(ask(text).answer, ANSWER_RESULT);
    }
    for (int limit = 1; limit <= 8; limit++) { /* pages whose last text is cut at any place */
        snprintf(text, sizeof text,
                 "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"list\",\"params\":{\"limit\":%d}}\n", limit);
        try_every("list, ended", text, strlen(text), false, ANSWER_RESULT, NULL);
    }
    try_every("show, ended", texts[2], strlen(texts[2]), false, ANSWER_RESULT, NULL);
    static const char watch[] =
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"watch\",\"params\":{\"since\":0}}\n";
    try_every("watch", watch, sizeof watch - 1, true, ANSWER_RESULT, NULL);
}

static void test_what_is_refused(void **state)
{
    static const char *const texts[] = {
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\n",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"nothing\"}\n",
        "[1,2,3]\n",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"show\",\"params\":{\"id\":99}}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"submit\",\"params\":{\"dir\":\"/"
        "\",\"spec\":{\"schema\":\"job/v2\"}}}\n",
    };
    struct strbuf b = {0};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        try_every(texts[i], texts[i], strlen(texts[i]), false, ANSWER_REFUSED, NULL);
    strbuf_add(&b, "[");
    while (b.n < WIRE_LINE_MAX - 4)
        strbuf_add(&b, "0,");
    strbuf_add(&b, "0]\n");
    try_every("the longest line, all values", b.at, b.n, false, ANSWER_REFUSED, NULL);
    strbuf_finish(&b);
    strbuf_add(&b, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"x\":[");
    for (int i = 0; i < 3000; i++)
        strbuf_add(&b, "[],");
    strbuf_add(&b, "0]}}\n");
    uint64_t n = try_every("a large line of another method", b.at, b.n, false, ANSWER_REFUSED, NULL);
    assert_true(n > 3000);
    strbuf_finish(&b);
}

/* A cancel that was acknowledged must be on disk. A cancel that was not acknowledged must either leave the
 * job unchanged or cancel it. */
static void test_cancels(void **state)
{
    bool failed = true;
    (void)state;
    for (uint64_t i = 1; failed; i++) {
        uint64_t id = submit_one(1);
        struct strbuf b = {0};
        strbuf_addf(
            &b, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"cancel\",\"params\":{\"id\":%" PRIu64 "}}\n", id);
        mem_fail_nth(i);
        struct outcome o = ask_failing(b.at, b.n, false, &failed);
        const struct job *j = jobs_find(d.jobs, id);
        uint64_t queued = 0;
        if (j != NULL) { /* otherwise it has ended, that is on disk, and it has left the table */
            assert_true(o.answer != ANSWER_RESULT && j->state == JOB_QUEUED && !j->cancel);
            assert_true(j->charged_bytes > 0);
        }
        for (size_t k = 0; k < d.jobs->live.n; k++)
            queued += d.jobs->live.at[k]->state == JOB_QUEUED;
        assert_int_equal(jobs_count(d.jobs, JOB_QUEUED), queued);
        check_alive();
        strbuf_finish(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_submits, begin, end),
        cmocka_unit_test_setup_teardown(test_a_submit_with_a_key_is_one_job_however_often_it_is_retried,
                                        begin, end),
        cmocka_unit_test_setup_teardown(test_questions, begin, end),
        cmocka_unit_test_setup_teardown(test_what_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_cancels, begin, end),
    };
    signal(SIGPIPE, SIG_IGN); /* as main.c does */
    sqlite3_config(SQLITE_CONFIG_GETMALLOC, &plain);
    sqlite3_mem_methods counted = plain;
    counted.xMalloc = sqlite_malloc;
    counted.xRealloc = sqlite_realloc;
    sqlite3_config(SQLITE_CONFIG_MALLOC, &counted);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
