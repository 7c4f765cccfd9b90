/* Tests the uplink, a worker's connection to the daemon, against a small fake daemon in the same process. No
 * test depends on how long something takes: intervals are an hour where no periodic message may come, and a
 * millisecond where one must. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/wire.h"
#include "daemon/worker/uplink.h"

#define MS      1000000ull
#define HOUR    (3600 * 1000 * MS)
#define PATIENT 60000 /* ms; only ends a test that hangs */

/* ------------------------------------------------------------------------------------------ the daemon */

static char dir[32], path[64];
static int listener;

static void start_daemon(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    strcpy(a.sun_path, path);
    unlink(path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(listener, 8), 0);
}

static void stop_daemon(void)
{
    close(listener);
    unlink(path);
}

struct conn { /* and the last message that came */
    int fd;
    struct wire_in in;
    struct wire_msg m;
};

static void wait_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    assert_int_equal(poll(&p, 1, PATIENT), 1);
}

static void conn_open(struct conn *c)
{
    *c = (struct conn){0};
    wait_readable(listener);
    c->fd = accept(listener, NULL, NULL);
    assert_true(c->fd >= 0);
    wire_in_init(&c->in, WIRE_WORKER_LINE_MAX);
}

static void conn_close(struct conn *c)
{
    close(c->fd);
    wire_in_finish(&c->in);
    wire_msg_finish(&c->m);
}

/* False when the worker hung up. */
static bool next(struct conn *c)
{
    char *at, *line;
    size_t n;
    enum wire_code code;

    wire_msg_finish(&c->m);
    while (wire_in_line(&c->in, &line, &n) == 0) {
        wait_readable(c->fd);
        wire_in_space(&c->in, &at, &n);
        ssize_t got = recv(c->fd, at, n, 0);
        if (got <= 0)
            return false;
        wire_in_added(&c->in, (size_t)got);
    }
    assert_int_equal(wire_parse(line, n, 0, &c->m, &code, NULL), 0);
    return true;
}

static uint64_t field(const struct conn *c, const char *key)
{
    uint64_t v = 0;

    assert_int_equal(json_u64(json_get(c->m.params, key), key, &v, NULL), 0);
    return v;
}

static void expect(struct conn *c, const char *method)
{
    assert_true(next(c));
    assert_string_equal(c->m.method, method);
}

/* Passes over what comes before. */
static void expect_later(struct conn *c, const char *method)
{
    do
        assert_true(next(c));
    while (strcmp(c->m.method, method) != 0);
}

static void expect_hello(struct conn *c, const char *phase)
{
    const char *found;

    expect(c, "hello");
    assert_int_equal(json_string(json_get(c->m.params, "phase"), "phase", &found, NULL), 0);
    assert_string_equal(found, phase);
}

static void expect_text(const struct conn *c, const char *key, const char *text)
{
    char *found = json_print(key ? json_get(c->m.params, key) : c->m.params);

    assert_string_equal(found, text);
    free(found);
}

static void say(struct conn *c, const char *line)
{
    assert_int_equal(fs_write_all(c->fd, line, strlen(line)), 0);
}

#define JOB_ANSWER                                                                                           \
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"spec\":{\"schema\":\"job/v1\"},\"dir\":\"/home\","          \
    "\"lease\":{\"devices\":2,\"device_bytes\":65536,\"host_bytes\":1048576}}}\n"
#define ANSWER(id) "{\"jsonrpc\":\"2.0\",\"id\":" #id ",\"result\":{}}\n"
#define REFUSAL(id, errno)                                                                                   \
    "{\"jsonrpc\":\"2.0\",\"id\":" #id ",\"error\":{\"code\":-32000,\"message\":\"go away\","                \
    "\"data\":{\"errno\":\"" errno "\"}}}\n"
#define STOP "{\"jsonrpc\":\"2.0\",\"method\":\"stop\",\"params\":{\"reason\":\"cancel\"}}\n"

/* ------------------------------------------------------------------------------------------ the worker */

static atomic_int stops;
static _Atomic uint64_t ahead_ns; /* of the system's clock */

static uint64_t now_ns(void *ctx)
{
    struct timespec t;

    (void)ctx;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 * MS + (uint64_t)t.tv_nsec + atomic_load(&ahead_ns);
}

static void on_stop(void *ctx, const char *reason)
{
    assert_ptr_equal(ctx, &stops);
    assert_true(strcmp(reason, "cancel") == 0 || strcmp(reason, "refused") == 0);
    atomic_fetch_add(&stops, 1);
}

/* Says nothing of itself, and comes back at once. */
static const struct uplink_times quiet = {MS, MS, HOUR, HOUR, HOUR, HOUR, HOUR};

static struct uplink *open_link(const struct uplink_times *times)
{
    struct uplink_config c = {.socket = path,
                              .secret = "9f\"",
                              .job = 3,
                              .attempt = 2,
                              .stop = on_stop,
                              .ctx = &stops,
                              .times = *times};
    struct uplink *l = NULL;

    assert_int_equal(uplink_open(&c, &l, NULL), 0);
    return l;
}

/* A link that has its job. */
static struct uplink *open_running(const struct uplink_times *times, struct conn *c)
{
    struct uplink *l = open_link(times);
    struct uplink_job job;
    struct err err;

    conn_open(c);
    expect_hello(c, "new");
    say(c, JOB_ANSWER);
    assert_int_equal(uplink_wait_job(l, &job, &err), 0);
    uplink_job_finish(&job);
    return l;
}

static void post_progress(struct uplink *l, uint64_t step)
{
    uplink_progress(l,
                    &(struct uplink_progress){.step = step, .total_steps = 5000, .loss = 1.0 / (double)step});
}

/* uplink_outcome waits, so the daemon's side of it needs another thread. */
struct handover {
    pthread_t thread;
    struct uplink *link;
    int r;
    struct err err;
};

static void *run_handover(void *arg)
{
    struct handover *h = arg;

    h->r = uplink_outcome(h->link, "\"state\":\"done\",\"exit\":0", 7, &h->err);
    return NULL;
}

static void start_handover(struct handover *h, struct uplink *l)
{
    *h = (struct handover){.link = l};
    assert_int_equal(pthread_create(&h->thread, NULL, run_handover, h), 0);
}

static int end_handover(struct handover *h)
{
    pthread_join(h->thread, NULL);
    return h->r;
}

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/test_link_XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/worker.sock", dir);
    atomic_store(&stops, 0);
    start_daemon();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    stop_daemon();
    return rmdir(dir);
}

/* ------------------------------------------------------------------------------------------ hello */

static void test_hello_gets_the_job(void **state)
{
    struct uplink *l = open_link(&quiet);
    struct uplink_job job = {0};
    struct err err;
    struct conn c;

    (void)state;
    conn_open(&c);
    expect_hello(&c, "new");
    assert_int_equal(c.m.kind, WIRE_REQUEST);
    assert_int_equal(field(&c, "protocol"), WIRE_PROTOCOL);
    assert_int_equal(field(&c, "job"), 3);
    assert_int_equal(field(&c, "attempt"), 2);
    assert_int_equal(field(&c, "pid"), getpid());
    expect_text(&c, "secret", "\"9f\\\"\"");
    say(&c, JOB_ANSWER);
    assert_int_equal(uplink_wait_job(l, &job, &err), 0);
    char *spec = json_print(job.spec);
    assert_string_equal(spec, "{\"schema\":\"job/v1\"}");
    free(spec);
    assert_string_equal(job.dir, "/home");
    assert_int_equal(job.devices, 2);
    assert_int_equal(job.device_bytes, 65536);
    assert_int_equal(job.host_bytes, 1048576);
    uplink_job_finish(&job);
    uplink_close(l);
    assert_false(next(&c));
    conn_close(&c);
}

static void test_lease_without_numbers_leaves_it_to_the_spec(void **state)
{
    struct uplink *l = open_link(&quiet);
    struct uplink_job job = {.devices = 7};
    struct err err;
    struct conn c;

    (void)state;
    conn_open(&c);
    expect_hello(&c, "new");
    say(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"spec\":{},\"dir\":\"/"
            "\",\"lease\":{\"devices\":null}}}\n");
    assert_int_equal(uplink_wait_job(l, &job, &err), 0);
    assert_int_equal(job.devices, 0);
    assert_int_equal(job.device_bytes, 0);
    uplink_job_finish(&job);
    uplink_close(l);
    conn_close(&c);
}

static void test_refused_hello_ends_the_waiting(void **state)
{
    struct uplink *l = open_link(&quiet);
    struct uplink_job job;
    struct err err = {0};
    struct conn c;

    (void)state;
    conn_open(&c);
    expect_hello(&c, "new");
    say(&c, REFUSAL(1, "EACCES"));
    assert_int_equal(uplink_wait_job(l, &job, &err), -EACCES);
    assert_string_equal(err.msg, "go away");
    assert_false(next(&c));
    uplink_close(l);
    conn_close(&c);
}

static void test_answer_without_a_job_ends_the_waiting(void **state)
{
    struct uplink *l = open_link(&quiet);
    struct uplink_job job;
    struct err err = {0};
    struct conn c;

    (void)state;
    conn_open(&c);
    expect_hello(&c, "new");
    say(&c, ANSWER(1));
    assert_int_equal(uplink_wait_job(l, &job, &err), -EPROTO);
    uplink_close(l);
    conn_close(&c);
}

/* What a daemon says or does that tells nothing about the job: the worker asks again. */
static void check_asks_again(const char *line)
{
    struct uplink *l = open_link(&quiet);
    struct uplink_job job;
    struct err err;
    struct conn c;

    conn_open(&c);
    expect_hello(&c, "new");
    if (line)
        say(&c, line);
    else
        shutdown(c.fd, SHUT_WR);
    assert_false(next(&c));
    conn_close(&c);
    conn_open(&c);
    expect_hello(&c, "new");
    say(&c, JOB_ANSWER);
    assert_int_equal(uplink_wait_job(l, &job, &err), 0);
    uplink_job_finish(&job);
    uplink_close(l);
    conn_close(&c);
}

static void test_busy_or_confused_daemon_is_asked_again(void **state)
{
    (void)state;
    check_asks_again(NULL);
    check_asks_again(REFUSAL(1, "EAGAIN"));
    check_asks_again(REFUSAL(1, "ESHUTDOWN"));
    check_asks_again(REFUSAL(null, "EINVAL"));
    check_asks_again("what?\n");
    check_asks_again("[]\n");
    assert_int_equal(atomic_load(&stops), 0);
}

static void test_oversized_line_is_hung_up_on(void **state)
{
    struct uplink *l = open_link(&quiet);
    char *junk = malloc(4096);
    struct conn c;
    ssize_t n;
    size_t sent = 0;

    (void)state;
    signal(SIGPIPE, SIG_IGN);
    memset(junk, ' ', 4096);
    conn_open(&c);
    expect_hello(&c, "new");
    while ((n = send(c.fd, junk, 4096, 0)) > 0) {
        sent += (size_t)n;
        assert_true(sent < 2 * WIRE_WORKER_LINE_MAX + (1u << 20)); /* what lies in the socket included */
    }
    conn_close(&c);
    conn_open(&c);
    expect_hello(&c, "new");
    conn_close(&c);
    uplink_close(l);
    free(junk);
}

static void test_daemon_that_never_answers_is_given_up(void **state)
{
    struct uplink_times times = quiet;
    struct uplink_job job;
    struct err err = {0};
    struct uplink *l;

    (void)state;
    times.give_up_ns = 20 * MS;
    l = open_link(&times); /* it listens, and that is all */
    assert_int_equal(uplink_wait_job(l, &job, &err), -ETIMEDOUT);
    assert_string_equal(err.path, path);
    uplink_close(l);
    stop_daemon();
    l = open_link(&times); /* nobody is there */
    assert_int_equal(uplink_wait_job(l, &job, &err), -ETIMEDOUT);
    uplink_close(l);
    start_daemon();
}

static void test_hello_without_an_answer_is_said_again(void **state)
{
    struct uplink_times times = quiet;
    struct conn first, second;
    struct uplink *l;

    (void)state;
    times.answer_ns = MS;
    l = open_link(&times);
    conn_open(&first);
    conn_open(&second);
    expect_hello(&second, "new");
    uplink_close(l);
    conn_close(&first);
    conn_close(&second);
}

static void test_path_that_is_too_long_is_refused(void **state)
{
    struct uplink_config c = {.secret = "", .stop = on_stop};
    char long_path[200];
    struct err err = {0};
    struct uplink *l;

    (void)state;
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    c.socket = long_path;
    assert_int_equal(uplink_open(&c, &l, &err), -ENAMETOOLONG);
    uplink_close(NULL);
}

/* ------------------------------------------------------------------------------------------ posting */

static void test_progress_is_coalesced_and_the_last_comes_before_a_checkpoint(void **state)
{
    struct conn c;
    struct uplink *l = open_running(&quiet, &c);
    int n = 0;

    (void)state;
    for (uint64_t step = 1; step <= 1000; step++)
        post_progress(l, step);
    uplink_checkpoint(l, 1000);
    uint64_t last = 0;
    for (;;) {
        assert_true(next(&c));
        if (strcmp(c.m.method, "progress") == 0) {
            n++;
            last = field(&c, "step");
        } else if (strcmp(c.m.method, "checkpoint") == 0) {
            break;
        }
    }
    assert_int_equal(last, 1000);
    assert_in_range(n, 1, 2); /* one at once, one for the checkpoint */
    assert_int_equal(field(&c, "step"), 1000);
    uplink_close(l);
    conn_close(&c);
}

static void test_progress_comes_without_a_checkpoint_too(void **state)
{
    struct uplink_times times = quiet;
    struct conn c;

    (void)state;
    times.progress_ns = times.curve_ns = MS;
    struct uplink *l = open_running(&times, &c);
    post_progress(l, 1);
    expect_later(&c, "progress");
    post_progress(l, 2);
    for (bool progress = false, curve = false; !progress || !curve;) {
        assert_true(next(&c));
        if (strcmp(c.m.method, "progress") == 0)
            progress = field(&c, "step") == 2;
        else
            curve = json_array_size(json_get(c.m.params, "points")) == 2;
    }
    uplink_close(l);
    conn_close(&c);
}

static void test_events_carry_their_fields(void **state)
{
    struct conn c;
    struct uplink *l = open_running(&quiet, &c);
    const struct uplink_progress p = {.step = 2,
                                      .total_steps = 9,
                                      .loss = NAN,
                                      .lr = 0.5,
                                      .samples_per_s = 1.5,
                                      .eta_s = INFINITY,
                                      .in_bytes = UINT64_C(1) << 50,
                                      .out_bytes = 4,
                                      .peer_bytes = 5,
                                      .stall_share = 0.25};

    (void)state;
    uplink_planned(l, "{\"parameters\":1}");
    uplink_resumed(l, 1, true);
    expect(&c, "planned");
    expect_text(&c, NULL, "{\"parameters\":1}");
    expect(&c, "resumed");
    expect_text(&c, NULL, "{\"step\":1,\"numerics_changed\":true}");
    uplink_progress(l, &p);
    expect(&c, "curve");
    expect_text(&c, NULL, "{\"points\":[],\"evals\":[]}");
    expect(&c, "progress");
    expect_text(&c, NULL,
                "{\"step\":2,\"total_steps\":9,\"loss\":null,\"lr\":0.5,\"samples_per_s\":1.5,\"eta_s\":null,"
                "\"in_bytes\":1125899906842624,\"out_bytes\":4,\"peer_bytes\":5,\"stall_share\":0.25}");
    uplink_skipped(l, 2);
    expect(&c, "skipped");
    uplink_eval(l, 2, 0.75, NAN, &(struct uplink_blocks){0});
    expect(&c, "eval");
    expect_text(&c, NULL, "{\"step\":2,\"loss\":0.75,\"accuracy\":null}");
    uplink_phase(l, 3, 5, "second half"); /* only jobs with several phases do this */
    expect(&c, "phase");
    expect_text(&c, NULL, "{\"phases\":5,\"name\":\"second half\",\"phase\":3}");
    uplink_outputs(l, 40, 100);
    expect(&c, "outputs");
    expect_text(&c, NULL, "{\"samples\":40,\"total_samples\":100,\"phase\":3}");
    uplink_eval(l, 2, 0.75, NAN, &(struct uplink_blocks){0});
    expect(&c, "eval");
    expect_text(&c, NULL, "{\"step\":2,\"loss\":0.75,\"accuracy\":null,\"phase\":3}");
    uplink_close(l);
    conn_close(&c);
}

static void test_silence_is_broken_by_alive(void **state)
{
    struct uplink_times times = quiet;
    struct conn c;

    (void)state;
    times.alive_ns = MS;
    struct uplink *l = open_running(&times, &c);
    expect(&c, "alive");
    expect(&c, "alive");
    uplink_close(l);
    conn_close(&c);
}

static void test_stop_is_passed_on(void **state)
{
    struct conn c;
    struct uplink *l = open_running(&quiet, &c);

    (void)state;
    say(&c, "{\"jsonrpc\":\"2.0\",\"method\":\"news\"}\n\n" STOP); /* what it does not know it passes over */
    while (atomic_load(&stops) == 0)
        clock_sleep_ns(MS);
    uplink_skipped(l, 1);
    expect(&c, "skipped");
    uplink_close(l);
    conn_close(&c);
}

static void test_daemon_that_does_not_read_costs_nothing(void **state)
{
    enum { MANY = 50000 };
    struct conn c;
    struct uplink *l = open_running(&quiet, &c);
    uint64_t last = 0;
    int n = 0;

    (void)state;
    for (uint64_t step = 1; step <= MANY; step++)
        uplink_skipped(l, step); /* would hang here if it waited */
    while (last < MANY) {
        expect(&c, "skipped");
        assert_true(field(&c, "step") > last);
        last = field(&c, "step");
        n++;
    }
    assert_true(n < MANY);
    uplink_close(l);
    conn_close(&c);
}

/* It stands between as many others as are never all kept. */
static void test_resumed_is_said_to_a_daemon_that_reads_late(void **state)
{
    enum { MANY = 20000 };
    struct conn c;
    struct uplink *l = open_running(&quiet, &c);

    (void)state;
    for (uint64_t step = 1; step <= 2 * MANY; step++) {
        if (step == MANY)
            uplink_resumed(l, 7, false);
        uplink_skipped(l, step);
    }
    expect_later(&c, "resumed");
    assert_int_equal(field(&c, "step"), 7);
    do
        expect(&c, "skipped");
    while (field(&c, "step") < 2 * MANY);
    uplink_close(l);
    conn_close(&c);
}

static void test_only_the_last_evaluations_are_kept(void **state)
{
    struct conn c;
    struct uplink *l = open_running(&quiet, &c);
    struct handover h;

    (void)state;
    for (uint64_t step = 1; step <= 70; step++)
        uplink_history_eval(l, step, 1, 0.5);
    for (uint64_t step = 1; step <= 1000; step++)
        uplink_history_step(l, step, 1);
    start_handover(&h, l);
    expect_later(&c, "outcome");
    const struct json *evals = json_get(c.m.params, "evals"), *points = json_get(c.m.params, "curve");
    uint64_t first = 0;
    assert_int_equal(json_array_size(evals), 64);
    assert_int_equal(json_u64(json_array_at(json_array_at(evals, 0), 0), "", &first, NULL), 0);
    assert_int_equal(first, 7);
    assert_in_range(json_array_size(points), 128, 256);
    say(&c, ANSWER(2));
    assert_int_equal(end_handover(&h), 0);
    uplink_close(l);
    conn_close(&c);
}

/* ------------------------------------------------------------------------------------------ reconnecting */

static void test_reconnect_tells_where_the_job_stands(void **state)
{
    struct conn c;
    struct uplink *l = open_running(&quiet, &c);

    (void)state;
    uplink_planned(l, "{\"parameters\":1}");
    post_progress(l, 1);
    uplink_eval(l, 1, 0.5, 1, &(struct uplink_blocks){0});
    expect_later(&c, "eval");
    stop_daemon();
    conn_close(&c);
    for (uint64_t step = 2; step <= 300; step++)
        post_progress(l, step); /* goes on meanwhile */
    start_daemon();             /* another inode */
    conn_open(&c);
    expect_hello(&c, "running");
    uplink_checkpoint(l, 300);
    say(&c, ANSWER(1));
    expect(&c, "planned");
    expect_text(&c, NULL, "{\"parameters\":1}");
    expect(&c, "curve");
    expect_text(&c, "evals", "[[1,0.5,1]]");
    assert_int_equal(json_array_size(json_get(c.m.params, "points")), 150);
    expect(&c, "progress");
    assert_int_equal(field(&c, "step"), 300);
    expect(&c, "checkpoint");
    uplink_close(l);
    conn_close(&c);
}

static void test_daemon_that_does_not_want_the_running_worker_stops_it(void **state)
{
    struct conn c;
    struct uplink *l = open_running(&quiet, &c);
    struct err err = {0};

    (void)state;
    conn_close(&c);
    conn_open(&c);
    expect_hello(&c, "running");
    say(&c, REFUSAL(1, "ENOENT"));
    while (atomic_load(&stops) == 0)
        clock_sleep_ns(MS);
    post_progress(l, 1); /* still harmless */
    uplink_checkpoint(l, 1);
    assert_int_equal(uplink_outcome(l, "\"state\":\"stopped\"", 1, &err), -ENOENT);
    assert_string_equal(err.msg, "go away");
    assert_false(next(&c));
    uplink_close(l);
    conn_close(&c);
}

/* ------------------------------------------------------------------------------------------ outcome */

static void test_outcome_comes_last_and_waits_for_its_answer(void **state)
{
    struct conn c;
    struct uplink *l = open_running(&quiet, &c);
    struct handover h;

    (void)state;
    post_progress(l, 6);
    expect_later(&c, "progress");
    post_progress(l, 7);
    start_handover(&h, l);
    expect_later(&c, "progress");
    assert_int_equal(field(&c, "step"), 7);
    expect(&c, "outcome");
    assert_int_equal(c.m.kind, WIRE_REQUEST);
    expect_text(
        &c, NULL,
        "{\"state\":\"done\",\"exit\":0,\"curve\":[[6,0.166667],[7,0.142857]],\"evals\":[],\"step\":7}");
    say(&c, STOP ANSWER(2));
    assert_int_equal(end_handover(&h), 0);
    uplink_close(l);
    conn_close(&c);
}

static void test_outcome_is_said_again_to_a_new_daemon(void **state)
{
    struct conn c;
    struct uplink *l = open_running(&quiet, &c);
    struct handover h;

    (void)state;
    start_handover(&h, l);
    expect_later(&c, "outcome");
    conn_close(&c); /* died before it answered */
    conn_open(&c);
    expect_hello(&c, "running");
    say(&c, ANSWER(1));
    expect_later(&c, "outcome");
    say(&c, REFUSAL(2, "EAGAIN"));
    conn_close(&c);
    conn_open(&c);
    expect_hello(&c, "running");
    say(&c, ANSWER(1));
    expect_later(&c, "outcome");
    say(&c, ANSWER(2));
    assert_int_equal(end_handover(&h), 0);
    uplink_close(l);
    conn_close(&c);
}

static void test_outcome_that_nobody_takes_is_given_up(void **state)
{
    struct conn c;
    struct uplink *l = open_running(&quiet, &c);
    struct handover h;

    (void)state;
    start_handover(&h, l);
    expect_later(&c, "outcome");
    atomic_fetch_add(&ahead_ns, 2 * HOUR);
    uplink_skipped(l, 1); /* so that it looks at the clock */
    assert_int_equal(end_handover(&h), -ETIMEDOUT);
    uplink_close(l);
    conn_close(&c);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_hello_gets_the_job),
        TEST(test_lease_without_numbers_leaves_it_to_the_spec),
        TEST(test_refused_hello_ends_the_waiting),
        TEST(test_answer_without_a_job_ends_the_waiting),
        TEST(test_busy_or_confused_daemon_is_asked_again),
        TEST(test_oversized_line_is_hung_up_on),
        TEST(test_daemon_that_never_answers_is_given_up),
        TEST(test_hello_without_an_answer_is_said_again),
        TEST(test_path_that_is_too_long_is_refused),
        TEST(test_progress_is_coalesced_and_the_last_comes_before_a_checkpoint),
        TEST(test_progress_comes_without_a_checkpoint_too),
        TEST(test_events_carry_their_fields),
        TEST(test_silence_is_broken_by_alive),
        TEST(test_stop_is_passed_on),
        TEST(test_daemon_that_does_not_read_costs_nothing),
        TEST(test_resumed_is_said_to_a_daemon_that_reads_late),
        TEST(test_only_the_last_evaluations_are_kept),
        TEST(test_reconnect_tells_where_the_job_stands),
        TEST(test_daemon_that_does_not_want_the_running_worker_stops_it),
        TEST(test_outcome_comes_last_and_waits_for_its_answer),
        TEST(test_outcome_is_said_again_to_a_new_daemon),
        TEST(test_outcome_that_nobody_takes_is_given_up),
    };

    clock_set_hooks(&(struct clock_hooks){.monotonic_ns = now_ns});
    return cmocka_run_group_tests(tests, NULL, NULL);
}
