/* Implements server_client.h: sends to a client, counts its requests, and watches events for it. */
#include "daemon/server_client.h"

#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"

/* ---- sending ---- */

void server_client_send(struct server_client *c, const char *text, size_t bytes)
{
    if (c->connection != NULL)
        connection_send(c->connection, text, bytes);
}

void server_client_send_error(struct server_client *c, const char *id, enum wire_code code,
                              const struct err *err)
{
    char text[WIRE_ERROR_MAX];
    struct strbuf b = strbuf_fixed(text, sizeof text);
    wire_add_error(&b, id, code, err, NULL);
    server_client_send(c, b.at, b.n);
}

void server_client_send_out_of_memory(struct server_client *c, const char *id)
{
    struct err err = {0};
    err_set(&err, -ENOMEM, "the daemon has no memory for this request; try again later, or ask for less");
    server_client_send_error(c, id, WIRE_INTERNAL, &err);
}

/* ---- requests under way ---- */

/* Stops reading lines from the client while one of its large lines is being parsed, or while too many of its
 * requests are unanswered. Otherwise resumes reading. */
static void update_reading(struct server_client *c)
{
    if (c->connection != NULL)
        connection_hold(c->connection, c->large || c->under_way >= SERVER_CLIENT_MOST_REQUESTS);
}

void server_client_begin_request(struct server_client *c)
{
    if (++c->under_way == SERVER_CLIENT_MOST_REQUESTS)
        update_reading(c);
}

void server_client_keep(struct server_client *c)
{
    c->under_way++;
}

void server_client_let_go(struct server_client *c)
{
    if (c->under_way-- == SERVER_CLIENT_MOST_REQUESTS)
        update_reading(c);
    if (c->under_way == 0 && c->leaving && c->connection != NULL)
        connection_finish(c->connection);
    if (c->under_way == 0 && c->connection == NULL)
        free(c);
}

void server_client_set_large(struct server_client *c, bool large)
{
    c->large = large;
    update_reading(c);
}

/* ---- watching ---- */

struct client_watcher {
    struct watcher w;
    struct server_client *client; /* NULL once the client has stopped watching */
};

static bool watcher_ready(struct watcher *w)
{
    struct server_client *c = ((struct client_watcher *)w)->client;
    return c != NULL && c->connection != NULL && connection_ready(c->connection);
}

static void watcher_send(struct watcher *w, const char *line, size_t bytes)
{
    struct server_client *c = ((struct client_watcher *)w)->client;
    if (c != NULL)
        server_client_send(c, line, bytes);
}

static void watcher_gone(struct watcher *w)
{
    free(w);
}

int server_client_watch(struct server_client *c, uint64_t job, uint64_t next)
{
    struct client_watcher *w = mem_calloc(1, sizeof *w);
    if (w == NULL)
        return -ENOMEM;
    server_client_stop_watching(c);
    w->client = c;
    w->w = (struct watcher){
        .next = next, .job = job, .ready = watcher_ready, .send = watcher_send, .gone = watcher_gone};
    c->watcher = &w->w;
    return 0;
}

void server_client_start_watching(struct server_client *c)
{
    events_watch(c->daemon->events, c->watcher);
}

void server_client_stop_watching(struct server_client *c)
{
    struct watcher *w = c->watcher;
    if (w == NULL)
        return;
    c->watcher = NULL;
    ((struct client_watcher *)w)->client = NULL;
    events_unwatch(c->daemon->events, w);
}
