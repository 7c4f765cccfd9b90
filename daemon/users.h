/* Names of users. getpwuid may ask a server on the network and block for long, so names are looked up in
 * libuv's pool, one at a time, and remembered.
 *
 * A known name is given at once, even when it is old; an old name is looked up again meanwhile. So only the
 * first request of a user ever waits. A user without a name is called by their number. Loop thread only.
 */
#ifndef DAEMON_USERS_H
#define DAEMON_USERS_H

#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#define USERS_NAME_BYTES 64 /* longest name, with its terminating zero */
/* Age at which a name is looked up again. */
#define USERS_KEEP_MS 300000

struct users;

/* A request for a user's name. The caller embeds it in its own structure, which must live until `done` is
 * called. */
struct users_ask {
    uid_t uid;
    void (*done)(struct users_ask *ask, const char *name); /* `name` is valid during the call */
    struct users_ask *next;                                /* users.c */
};

/* Creates an empty table of names. `look_up` writes the name of `uid` to `buf` and is called in the pool.
 * NULL means getpwuid_r; tests pass their own function. */
struct users *users_create(uv_loop_t *loop, void (*look_up)(uid_t uid, char *buf, size_t size));

/* Frees the names. Takes NULL. No request may be under way. For tests: the daemon keeps the names until the
 * process exits. */
void users_destroy(struct users *u);

/* Asks for a name. `done` is called now or later, always on the loop thread. Requests for one user are
 * answered in their order. */
void users_ask(struct users *u, struct users_ask *ask);

#endif
