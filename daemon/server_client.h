/* One client's connection to the socket tutti.sock: sending, counting unanswered requests, and watching
 * events. Loop thread only.
 *
 * The struct stays in memory until the client's last request is answered, even if the client has
 * disconnected. An answer to a client that has disconnected is dropped.
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

/* When a client has this many unanswered requests, the daemon stops reading more lines from the client. */
#define SERVER_CLIENT_MOST_REQUESTS 16

struct server_client {
    struct daemon *daemon;
    struct connection *connection; /* NULL once closed */
    uid_t uid;                     /* the user at the other end */
    /* The number of unanswered requests, plus the number of server_client_keep calls that have not been
     * undone. The struct stays in memory while this number is above 0. */
    uint32_t under_way;
    struct watcher *watcher; /* NULL: the client watches nothing */
    /* Set while a large line of this client is being parsed in the pool or waits for the pool. */
    bool large;
    /* Set if the daemon is closing this connection to make room for a new client. */
    bool evicted;
    /* Set when the client will send no more requests. The connection is closed as soon as all requests of the
     * client are answered. */
    bool leaving;

    /* The server, and the links of the server's ring list of clients. The list is in the order of the
     * clients' last activity. Only server.c uses these three fields. */
    struct server *server;
    struct server_client *prev, *next;
};

/* Sends bytes to the client. Does nothing if the connection is closed. */
void server_client_send(struct server_client *c, const char *text, size_t bytes);

/* Sends an error answer to the client. `id` is the id of the request, or NULL if there is none. Sending needs
 * no memory, because the answer is built on the stack. */
void server_client_send_error(struct server_client *c, const char *id, enum wire_code code,
                              const struct err *err);

/* Tells the client that the daemon has run out of memory. Sending this answer needs no memory. */
void server_client_send_out_of_memory(struct server_client *c, const char *id);

/* Counts a new request that must be answered. If the client now has too many unanswered requests, stops
 * reading its lines. Each call must be followed by one call of server_client_let_go. */
void server_client_begin_request(struct server_client *c);

/* Keeps the struct in memory, even after its last request has been answered. Each call must be followed later
 * by one call of server_client_let_go. */
void server_client_keep(struct server_client *c);

/* Undoes one call of server_client_begin_request or server_client_keep. Frees the struct if the connection is
 * closed and no other call keeps the struct. */
void server_client_let_go(struct server_client *c);

/* Records whether a large line of the client is being parsed. While `large` is true, no further lines of this
 * client are read. */
void server_client_set_large(struct server_client *c, bool large);

/* Makes the client watch the events of one job, or of all jobs if `job` is 0. An earlier watch of this client
 * ends. `next` is the number of the first event to send. Nothing is sent before the call of
 * server_client_start_watching. Returns -ENOMEM when memory runs out. */
int server_client_watch(struct server_client *c, uint64_t job, uint64_t next);

/* Starts sending the events that server_client_watch has asked for. */
void server_client_start_watching(struct server_client *c);

/* Stops sending events to the client. Does nothing if the client is not watching. */
void server_client_stop_watching(struct server_client *c);

#endif
