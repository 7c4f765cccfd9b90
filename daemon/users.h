/* Names of users. getpwuid may ask a server on the network and block for long, so names are looked up in libuv's pool, one
 * at a time, and kept.
 *
 * A name that is known is given at once, also when it is old; an old one is looked up again meanwhile. Only the first
 * request of a user ever waits. A user without a name is called by their number. Loop thread only.
 */
#ifndef DAEMON_USERS_H
#define DAEMON_USERS_H

#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#define USERS_NAME_BYTES 64
#define USERS_KEEP_MS    300000 /* after this a name is looked up again */

struct users;

/* A question, inside of the caller's own structure. */
struct users_ask {
    uid_t uid;
    void (*done)(struct users_ask *ask, const char *name); /* `name` is valid during the call */
    struct users_ask *next;                                /* users.c */
};

/* `look_up` writes the name of `uid`, in the pool; NULL: by getpwuid_r. Tests bring their own. */
struct users *users_create(uv_loop_t *loop, void (*look_up)(uid_t uid, char *buf, size_t size));
void users_destroy(struct users *u); /* when nothing is asked any more; takes NULL */
/* `done` is called now or later, always on the loop's thread, for one user in the order of the questions. */
void users_ask(struct users *u, struct users_ask *ask);

#endif
