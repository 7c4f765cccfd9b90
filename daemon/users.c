/* Implements users.h. A list keeps one entry for each user whose name was ever asked for. */
#include "daemon/users.h"

#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"

/* One user, with the requests that wait for this user's name. */
struct known_user {
    uid_t uid;
    char name[USERS_NAME_BYTES]; /* "": not known yet */
    /* Time of the last lookup of this user's name, on the loop's clock. */
    uint64_t since_ms;
    bool wanted; /* the name is to be looked up */
    struct users_ask *first, **end;
    struct known_user *next;
};

struct users {
    uv_loop_t *loop;
    void (*look_up)(uid_t uid, char *buf, size_t size);
    struct known_user *all;
    uv_work_t work;
    struct known_user *looking; /* the user being looked up; NULL: none */
    /* The name that the current lookup found. A thread of the pool writes this text. */
    char found[USERS_NAME_BYTES];
};

static void look_up_passwd(uid_t uid, char *buf, size_t size)
{
    struct passwd pw, *found = NULL;
    char text[4096];
    if (getpwuid_r(uid, &pw, text, sizeof text, &found) == 0 && found != NULL && found->pw_name[0] != '\0')
        snprintf(buf, size, "%s", found->pw_name);
    else
        snprintf(buf, size, "%u", (unsigned)uid);
}

struct users *users_create(uv_loop_t *loop, void (*look_up)(uid_t uid, char *buf, size_t size))
{
    struct users *u = xcalloc(1, sizeof *u);
    u->loop = loop;
    u->look_up = look_up != NULL ? look_up : look_up_passwd;
    u->work.data = u;
    return u;
}

void users_destroy(struct users *u)
{
    if (u == NULL)
        return;
    for (struct known_user *at = u->all, *next; at != NULL; at = next) {
        next = at->next;
        free(at);
    }
    free(u);
}

static struct known_user *find_or_add_name(struct users *u, uid_t uid)
{
    for (struct known_user *at = u->all; at != NULL; at = at->next)
        if (at->uid == uid)
            return at;
    struct known_user *new = xcalloc(1, sizeof *new);
    new->uid = uid;
    new->end = &new->first;
    new->next = u->all;
    u->all = new;
    return new;
}

static void look_next(struct users *u);

static void run(uv_work_t *work)
{
    struct users *u = work->data;
    u->look_up(u->looking->uid, u->found, sizeof u->found);
}

static void looked(uv_work_t *work, int status)
{
    struct users *u = work->data;
    struct known_user *user = u->looking;
    struct users_ask *asks = user->first;
    (void)status; /* never cancelled */
    snprintf(user->name, sizeof user->name, "%s", u->found);
    user->since_ms = uv_now(u->loop);
    user->first = NULL;
    user->end = &user->first;
    u->looking = NULL;
    look_next(u);
    for (struct users_ask *ask = asks, *next; ask != NULL; ask = next) {
        next = ask->next;
        ask->done(ask, user->name);
    }
}

static void look_next(struct users *u)
{
    struct known_user *user = u->all;
    while (user != NULL && !user->wanted)
        user = user->next;
    if (u->looking != NULL || user == NULL)
        return;
    user->wanted = false;
    u->looking = user;
    uv_queue_work(u->loop, &u->work, run, looked);
}

void users_ask(struct users *u, struct users_ask *ask)
{
    struct known_user *user = find_or_add_name(u, ask->uid);
    bool known = user->name[0] != '\0';
    if (u->looking != user && (!known || uv_now(u->loop) - user->since_ms >= USERS_KEEP_MS))
        user->wanted = true;
    look_next(u);
    if (known) {
        ask->done(ask, user->name);
        return;
    }
    ask->next = NULL;
    *user->end = ask;
    user->end = &ask->next;
}
