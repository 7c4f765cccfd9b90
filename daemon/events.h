/* Numbered events for watchers. Loop thread only.
 *
 * The newest EVENTS_KEPT events are in memory. Changes of a job's state are also on disk until the job is
 * pruned. For each watcher the daemon keeps only the number of the next event to send, and queues no more
 * output than the watcher's connection can take. A watcher that fell behind is served from disk. It gets a
 * `gap` event in place of the events that were only in memory.
 *
 * Events become visible in the order of their numbers. An event becomes visible only when the change that it
 * reports is on disk.
 */
#ifndef DAEMON_EVENTS_H
#define DAEMON_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/daemon.h"
#include "daemon/state.h"

#define EVENTS_KEPT 4096 /* events in memory */

struct events;

/* Creates the object that keeps the events, and reserves the first event numbers on disk. Blocks until the
 * reservation is on disk. */
int events_create(struct daemon *d, struct events **ret, struct err *err);

/* Frees the events. `e` may be NULL. Only tests call this. */
void events_destroy(struct events *e);

/* Adds an event that is kept only in memory. If `job` is 0, every watcher gets the event. `members` is the
 * JSON text of the event's fields, such as "\"step\":3", or NULL. If there is no memory for the event,
 * watchers get a `gap` event instead. */
void events_add(struct events *e, uint64_t job, const char *event, const char *members);

/* Adds an event to the unit `u` and commits the unit. When the unit is on disk, the event becomes visible and
 * `done` (may be NULL) is called. `optional` is passed on to state_commit. If the state gives up the unit,
 * watchers never see the event.
 *
 * Returns -ENOMEM when memory runs out or the unit has already failed. In that case nothing is written, the
 * unit is discarded, and `done` is never called.
 */
int events_add_kept(struct events *e, struct state_unit *u, uint64_t job, const char *event,
                    const char *members, bool optional, void (*done)(void *ctx, int status), void *ctx);

/* Returns the number of the newest event that watchers may see. */
uint64_t events_newest(const struct events *e);

/* A connection that wants to receive events. The caller owns the memory of the struct and fills in all fields
 * down to `gone`. */
struct watcher {
    uint64_t next; /* number of the first event to send */
    /* Id of the job whose events are wanted, or 0 for the events of all jobs. */
    uint64_t job;
    bool (*ready)(struct watcher *w); /* whether the connection can take more */
    void (*send)(struct watcher *w, const char *line, size_t bytes); /* sends one whole line */
    void (*gone)(struct watcher *w); /* after events_unwatch: may free the watcher */

    /* events.c */
    bool reading;                     /* a read from disk is under way */
    bool ended;                       /* events_unwatch was called */
    struct watcher *prev, *following; /* ring of all watchers */
};

/* Starts to send events to the watcher. Events that watchers may already see are sent now. Later events are
 * sent as soon as they become visible. */
void events_watch(struct events *e, struct watcher *w);

/* Sends more events to a watcher whose connection can take output again. */
void events_pump(struct events *e, struct watcher *w);

/* Stops sending events to the watcher, and calls w->gone. If a read from disk for this watcher is under way,
 * w->gone is called when that read ends. Otherwise it is called at once. */
void events_unwatch(struct events *e, struct watcher *w);

#endif
