/* Names of users. getpwuid may ask a server on the network and block for a long time. So names are looked up
 * in libuv's pool, one at a time, and remembered.
 *
 * A known name is given at once, even if it is old. An old name is then looked up again in the background. So
 * only the first request for a user ever waits. If a user has no name, the user's number is given instead.
 * Loop thread only.
 */
#ifndef DAEMON_USERS_H
#define DAEMON_USERS_H

#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#define USERS_NAME_BYTES 64 /* longest name, with its terminating zero */
/* When a name is older than this many milliseconds, it is looked up again. */
#define USERS_KEEP_MS 300000

struct users;

/* A request for the name of a user. The memory must stay valid until `done` is called. */
struct users_ask {
    uid_t uid;
    void (*done)(struct users_ask *ask, const char *name); /* `name` is valid during the call */
    struct users_ask *next;                                /* users.c */
};

/* Creates an empty table of user names. `look_up` is called on a pool thread and must write the name of the
 * user `uid` to `buf`. If `look_up` is NULL, getpwuid_r is used instead. */
struct users *users_create(uv_loop_t *loop, void (*look_up)(uid_t uid, char *buf, size_t size));

/* Frees the table of user names. `u` may be NULL. There must be no unanswered request. Only tests call this
 * function. */
void users_destroy(struct users *u);

/* Asks for the name of a user. ask->done is called on the loop thread, now or later. Requests for the same
 * user are answered in the order of their arrival. */
void users_ask(struct users *u, struct users_ask *ask);

#endif
