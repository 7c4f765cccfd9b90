/* Numbered events for watchers. Loop thread only.
 *
 * The newest EVENTS_KEPT are in memory; changes of state are on disk as well, until their job is pruned. A watcher is only a number (the
 * next event it wants): nothing is queued for it beyond what its connection can take, and one that fell behind is served
 * from disk, with a `gap` for what only memory had. Events become visible in the order of their numbers, and none before
 * what it tells is on disk.
 */
#ifndef DAEMON_EVENTS_H
#define DAEMON_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/daemon.h"
#include "daemon/state.h"

#define EVENTS_KEPT 4096

struct events;

int events_create(struct daemon *d, struct events **ret, struct err *err); /* blocks */
void events_destroy(struct events *e);

/* An event in memory only. Without memory for it watchers get a `gap` in its place. `job` 0: it concerns every job, and every
 * watcher gets it. `members`: JSON text of its own fields, e.g. "\"step\":3"; "" or NULL for none. */
void events_add(struct events *e, uint64_t job, const char *event, const char *members);
/* An event that is kept: added to the unit, which is committed; visible, and `done` (may be NULL) called, when that is on
 * disk. `optional` as in state_commit: when it was given up there is no event. -ENOMEM, also when the unit had failed before:
 * nothing has happened, `done` is never called, and the unit is gone. */
int events_add_kept(struct events *e, struct state_unit *u, uint64_t job, const char *event,
                    const char *members, bool optional, void (*done)(void *ctx, int status), void *ctx);

uint64_t events_newest(const struct events *e); /* number of the newest visible event */

/* A watcher. `send` gets whole lines; `ready` says whether the connection can take more. */
struct watcher {
    uint64_t next; /* the first event it has not seen */
    uint64_t job;  /* 0: of all */
    bool (*ready)(struct watcher *w);
    void (*send)(struct watcher *w, const char *line, size_t bytes);
    void (*gone)(struct watcher *w); /* after events_unwatch: it may be freed */
    /* events.c */
    bool reading, ended;
    struct watcher *prev, *following;
};

void events_watch(struct events *e, struct watcher *w);
void events_pump(struct events *e, struct watcher *w); /* the connection can take more again */
/* No send comes after this; `gone` comes now or when a read that is under way returns. */
void events_unwatch(struct events *e, struct watcher *w);

#endif
