/* Tests the client's connection library. The test itself plays the server: it writes the server's lines into
 * a socket pair before the call that reads them, or from a thread when the library must wait for a line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/get.h"
#include "client/follow.h"
#include "client/tutti.h"

#define HELLO "{\"jsonrpc\":\"2.0\",\"method\":\"hello\",\"params\":{\"server\":\"tuttid\",\"protocol\":1}}\n"
#define EVENT(seq)                                                                                           \
    "{\"jsonrpc\":\"2.0\",\"method\":\"event\",\"params\":{\"seq\":" seq ",\"event\":\"progress\"}}\n"

static void put(int fd, const char *text)
{
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

/* A connection whose server is *ret_server, after `greeting`. */
static struct tutti *open_pair(int *ret_server, const char *greeting)
{
    struct tutti *t = NULL;
    struct err err = {0};
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    put(fds[1], greeting);
    if (tutti_open(fds[0], &t, &err) < 0)
        fail_msg("%s", err.msg);
    *ret_server = fds[1];
    return t;
}

static void refuse(const char *greeting, int code, const char *word)
{
    struct tutti *t = NULL;
    struct err err = {0};
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    put(fds[1], greeting);
    shutdown(fds[1], SHUT_WR);
    assert_int_equal(tutti_open(fds[0], &t, &err), code);
    assert_null(t);
    if (strstr(err.msg, word) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", word, err.msg);
    close(fds[1]);
}

static void test_greeting_is_checked(void **state)
{
    (void)state;
    refuse("{\"jsonrpc\":\"2.0\",\"method\":\"hello\",\"params\":{\"protocol\":2}}\n", -EPROTO, "newer");
    refuse("{\"jsonrpc\":\"2.0\",\"method\":\"hello\",\"params\":{}}\n", -EPROTO, "not tuttid");
    refuse("HTTP/1.1 400 Bad Request\n", -EPROTO, "does not follow the protocol");
    refuse("", -ECONNRESET, "closed");
    refuse("{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32000,\"message\":\"not your daemon\","
           "\"data\":{\"errno\":\"EACCES\",\"path\":\"\"}}}\n",
           -EACCES, "not your daemon");
}

static void test_call_sends_a_request_and_gives_the_result(void **state)
{
    struct wire_msg m = {0};
    struct err err = {0};
    char sent[200] = "";
    int server;
    struct tutti *t = open_pair(&server, HELLO "\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"seq\":7}}\n");
    (void)state;
    assert_int_equal(tutti_call(t, "watch", "{\"id\":3}", &m, &err), 0);
    assert_int_equal(get_count_or(m.result, "seq", 0), 7);
    wire_msg_finish(&m);
    assert_true(read(server, sent, sizeof sent - 1) > 0);
    assert_string_equal(sent, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"watch\",\"params\":{\"id\":3}}\n");
    tutti_close(t);
    close(server);
}

static void test_events_between_answers_are_kept_in_order(void **state)
{
    struct wire_msg m = {0};
    struct err err = {0};
    int server;
    struct tutti *t =
        open_pair(&server, HELLO EVENT("1") "{\"jsonrpc\":\"2.0\",\"method\":\"news\",\"params\":{}}\n" EVENT(
                               "2") "{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n"
                                    "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n" EVENT("3"));
    (void)state;
    assert_int_equal(tutti_call(t, "ping", NULL, &m, &err), 0);
    wire_msg_finish(&m);
    for (uint64_t seq = 1; seq <= 3; seq++) {
        assert_int_equal(tutti_next(t, 1000, &m, &err), 1);
        assert_int_equal(get_count_or(m.params, "seq", 0), seq);
        wire_msg_finish(&m);
    }
    assert_int_equal(tutti_next(t, 0, &m, &err), 0);
    put(server, EVENT("4"));
    assert_int_equal(tutti_next(t, 1000, &m, &err), 1);
    wire_msg_finish(&m);
    put(server, EVENT("5")); /* never taken: freed with the connection */
    tutti_close(t);
    close(server);
}

static void test_errors_are_the_servers(void **state)
{
    static const struct {
        const char *name;
        int code, exit;
    } cases[] = {{"EINVAL", -EINVAL, 2},       {"EEXIST", -EEXIST, 2},         {"EACCES", -EACCES, 4},
                 {"ENOSPC", -ENOSPC, 5},       {"ENOENT", -ENOENT, 6},         {"EAGAIN", -EAGAIN, 1},
                 {"ESHUTDOWN", -ESHUTDOWN, 3}, {"EOPNOTSUPP", -EOPNOTSUPP, 2}, {"EWHAT", -EIO, 1}};
    int server;
    struct tutti *t = open_pair(&server, HELLO);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct wire_msg m = {0};
        struct err err = {0};
        char text[300];
        snprintf(
            text, sizeof text,
            "{\"jsonrpc\":\"2.0\",\"id\":%zu,\"error\":{\"code\":-32000,\"message\":\"no\\u001b\",\"data\":"
            "{\"errno\":\"%s\",\"path\":\"train.x\",\"hint\":\"do y\",\"exit\":9}}}\n",
            i + 1, cases[i].name);
        put(server, text);
        assert_int_equal(tutti_call(t, "submit", "{}", &m, &err), cases[i].code);
        assert_int_equal(client_exit_of(err.code), cases[i].exit);
        assert_string_equal(err.path, "train.x");
        assert_string_equal(err.msg, "no\\u001b; do y");
        assert_false(tutti_lost(t));
    }
    tutti_close(t);
    close(server);
}

static void test_lost_connection_is_told_apart(void **state)
{
    struct wire_msg m = {0};
    struct err err = {0};
    int server;
    struct tutti *t = open_pair(&server, HELLO EVENT("1"));
    (void)state;
    close(server);
    assert_int_equal(tutti_next(t, 1000, &m, &err), 1); /* what had arrived is still given out */
    wire_msg_finish(&m);
    assert_int_equal(tutti_next(t, 1000, &m, &err), -ECONNRESET);
    assert_true(tutti_lost(t));
    assert_int_equal(client_exit_of(err.code), CLIENT_UNREACHABLE);
    assert_int_equal(tutti_call(t, "ping", NULL, &m, &err), -ECONNRESET);
    tutti_close(t);
}

static void test_last_words_explain_the_end(void **state)
{
    struct wire_msg m = {0};
    struct err err = {0};
    int server;
    struct tutti *t =
        open_pair(&server, HELLO "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32000,\"message\":"
                                 "\"too many connections\",\"data\":{\"errno\":\"EAGAIN\"}}}\n");
    (void)state;
    close(server);
    assert_int_equal(tutti_call(t, "ping", NULL, &m, &err), -EAGAIN);
    assert_string_equal(err.msg, "too many connections");
    assert_true(tutti_lost(t));
    tutti_close(t);
}

static void test_too_large_a_request_is_not_sent(void **state)
{
    struct wire_msg m = {0};
    struct err err = {0};
    int server;
    struct tutti *t = open_pair(&server, HELLO);
    size_t n = WIRE_LINE_MAX;
    char *params = malloc(n + 1);
    (void)state;
    memset(params, ' ', n);
    params[0] = '{';
    params[n - 1] = '}';
    params[n] = '\0';
    assert_int_equal(tutti_call(t, "submit", params, &m, &err), -EINVAL);
    assert_false(tutti_lost(t));
    free(params);
    tutti_close(t);
    close(server);
}

/* ---- servers that run beside the test ---- */

static void *write_endless_line(void *arg)
{
    int fd = *(int *)arg;
    char chunk[4096];
    memset(chunk, 'x', sizeof chunk);
    while (send(fd, chunk, sizeof chunk, MSG_NOSIGNAL) > 0)
        ;
    return NULL;
}

static void test_oversized_line_ends_the_connection(void **state)
{
    struct wire_msg m = {0};
    struct err err = {0};
    pthread_t thread;
    int server;
    struct tutti *t = open_pair(&server, HELLO);
    (void)state;
    pthread_create(&thread, NULL, write_endless_line, &server);
    assert_int_equal(tutti_next(t, -1, &m, &err), -EPROTO);
    assert_true(tutti_lost(t));
    tutti_close(t);
    pthread_join(thread, NULL);
    close(server);
}

struct listener {
    char dir[32], path[64];
    int fd;
};

static int answer_ping(int listener)
{
    char request[200];
    int fd = accept(listener, NULL, NULL);
    put(fd, HELLO);
    if (read(fd, request, sizeof request) > 0)
        put(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n");
    return fd;
}

/* Hangs up on the first client, serves the second. */
static void *serve_twice(void *arg)
{
    struct listener *l = arg;
    int fd = accept(l->fd, NULL, NULL);
    put(fd, HELLO);
    close(fd);
    fd = answer_ping(l->fd);
    close(fd);
    return NULL;
}

static void listen_at(struct listener *l, const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(l->dir, sizeof l->dir, "/tmp/tutti-test-XXXXXX");
    assert_non_null(mkdtemp(l->dir));
    snprintf(l->path, sizeof l->path, "%s/%s", l->dir, name);
    snprintf(a.sun_path, sizeof a.sun_path, "%s/s", l->dir);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(l->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(l->fd, 5), 0);
}

static void end_listener(struct listener *l)
{
    char path[64];
    close(l->fd);
    snprintf(path, sizeof path, "%s/s", l->dir);
    unlink(path);
    assert_int_equal(rmdir(l->dir), 0);
}

static void test_reconnects_after_a_restart(void **state)
{
    struct listener l;
    struct wire_msg m = {0};
    struct err err = {0};
    struct tutti *t = NULL;
    pthread_t thread;
    (void)state;
    listen_at(&l, "s");
    struct client c = {.socket = l.path};
    pthread_create(&thread, NULL, serve_twice, &l);
    assert_int_equal(tutti_connect(l.path, &t, &err), 0);
    assert_int_equal(tutti_next(t, -1, &m, &err), -ECONNRESET);
    assert_int_equal(follow_reconnect(&c, NULL, &t, &err), 0);
    assert_int_equal(tutti_call(t, "ping", NULL, &m, &err), 0);
    wire_msg_finish(&m);
    tutti_close(t);
    pthread_join(thread, NULL);
    end_listener(&l);
}

static void test_long_paths_are_reached(void **state)
{
    struct listener l;
    struct err err = {0};
    struct tutti *t = NULL;
    char path[600];
    pthread_t thread;
    (void)state;
    listen_at(&l, "s");
    /* dir/././././...: longer than a socket address, the same file */
    size_t n = (size_t)snprintf(path, sizeof path, "%s/", l.dir);
    while (n < 300)
        n += (size_t)snprintf(path + n, sizeof path - n, "./");
    snprintf(path + n, sizeof path - n, "s");
    pthread_create(&thread, NULL, serve_twice, &l);
    assert_int_equal(tutti_connect(path, &t, &err), 0);
    tutti_close(t);
    assert_int_equal(tutti_connect(path, &t, &err), 0);
    tutti_close(t);
    pthread_join(thread, NULL);
    end_listener(&l);
}

static void test_nobody_there_is_told_with_advice(void **state)
{
    struct err err = {0};
    struct tutti *t = NULL;
    (void)state;
    assert_int_equal(tutti_connect("/nonexistent/tutti.sock", &t, &err), -ECONNREFUSED);
    assert_non_null(strstr(err.msg, "tuttid --user"));
    assert_non_null(strstr(err.msg, "tutti run"));
    assert_string_equal(err.path, "/nonexistent/tutti.sock");
    assert_int_equal(client_exit_of(err.code), CLIENT_UNREACHABLE);
}

static void test_socket_comes_from_the_environment(void **state)
{
    struct err err = {0};
    struct tutti *t = NULL;
    (void)state;
    setenv("TUTTI_SOCKET", "/nonexistent/a", 1);
    tutti_connect(NULL, &t, &err);
    assert_string_equal(err.path, "/nonexistent/a");
    unsetenv("TUTTI_SOCKET");
    setenv("XDG_RUNTIME_DIR", "/nonexistent/run", 1);
    tutti_connect(NULL, &t, &err);
    assert_string_equal(err.path, "/nonexistent/run/tutti/tutti.sock");
    unsetenv("XDG_RUNTIME_DIR");
    setenv("XDG_STATE_HOME", "/nonexistent/state", 1);
    tutti_connect(NULL, &t, &err);
    assert_string_equal(err.path, "/nonexistent/state/tutti/run/tutti.sock");
    unsetenv("XDG_STATE_HOME");
    setenv("HOME", "/nonexistent/home", 1);
    tutti_connect(NULL, &t, &err);
    assert_string_equal(err.path, "/nonexistent/home/.local/state/tutti/run/tutti.sock");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greeting_is_checked),
        cmocka_unit_test(test_call_sends_a_request_and_gives_the_result),
        cmocka_unit_test(test_events_between_answers_are_kept_in_order),
        cmocka_unit_test(test_errors_are_the_servers),
        cmocka_unit_test(test_lost_connection_is_told_apart),
        cmocka_unit_test(test_last_words_explain_the_end),
        cmocka_unit_test(test_too_large_a_request_is_not_sent),
        cmocka_unit_test(test_oversized_line_ends_the_connection),
        cmocka_unit_test(test_reconnects_after_a_restart),
        cmocka_unit_test(test_long_paths_are_reached),
        cmocka_unit_test(test_nobody_there_is_told_with_advice),
        cmocka_unit_test(test_socket_comes_from_the_environment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
