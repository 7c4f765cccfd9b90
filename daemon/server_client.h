/* One client's connection to tutti.sock, from the daemon's side: what is sent, what is still to be answered,
 * and the watcher. server.c makes it, request.c answers on it. Loop thread only.
 *
 * The object outlives the connection itself: its memory stays until its last request is answered. Answers to
 * a client that has gone are dropped.
 */
#ifndef DAEMON_SERVER_CLIENT_H
#define DAEMON_SERVER_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/strbuf.h"
#include "base/wire.h"
#include "daemon/connection.h"
#include "daemon/daemon.h"
#include "daemon/events.h"

/* Unanswered requests of one client at which the daemon stops reading its lines. */
#define SERVER_CLIENT_MOST_REQUESTS 16

struct server_client {
    struct daemon *daemon;
    struct connection *connection; /* NULL once closed */
    uid_t uid;                     /* the user at the other end */
    /* Requests without an answer, and calls that keep the object alive. */
    uint32_t under_way;
    struct watcher *watcher; /* NULL: the client watches nothing */
    /* A large line of this client waits for the pool or is in it. */
    bool large;
    /* The connection is being closed so that a new client can be served. */
    bool evicted;
    /* The client sends no more requests. The connection closes when all are answered. */
    bool leaving;

    /* The ring of all clients, in the order of their last activity. Used by server.c only. */
    struct server *server;
    struct server_client *prev, *next;
};

/* Sends bytes to the client. Does nothing once the connection is closed. */
void server_client_send(struct server_client *c, const char *text, size_t bytes);

/* Sends an error answer. `id` is the request's id, or NULL when the line had none. Needs no memory: the
 * answer is built on the stack. */
void server_client_send_error(struct server_client *c, const char *id, enum wire_code code,
                              const struct err *err);

/* Sends the error that tells the client that the daemon has run out of memory. Needs no memory. */
void server_client_send_out_of_memory(struct server_client *c, const char *id);

/* Counts a request that has to be answered. Stops reading when the client has too many of them. Each call is
 * followed by one server_client_let_go. */
void server_client_begin_request(struct server_client *c);

/* Keeps the object alive during a call that may answer its last request. Each call is followed by one
 * server_client_let_go. */
void server_client_keep(struct server_client *c);

/* Ends what server_client_begin_request or server_client_keep began. Frees the object if its connection is
 * closed and nothing else keeps it. */
void server_client_let_go(struct server_client *c);

/* Sets whether a large line of the client is being parsed. Meanwhile no further line is read. */
void server_client_set_large(struct server_client *c, bool large);

/* Makes the client watch the events of one job, or of all jobs (0), from number `next` on. This replaces what
 * it watched before. Returns -ENOMEM when there is no memory for a watcher. No event is sent before
 * server_client_start_watching. */
int server_client_watch(struct server_client *c, uint64_t job, uint64_t next);

/* Begins to send the events that server_client_watch asked for. */
void server_client_start_watching(struct server_client *c);

/* Ends watching. Does nothing when the client watches nothing. */
void server_client_stop_watching(struct server_client *c);

#endif
