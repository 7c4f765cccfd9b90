/* Implements events.h: keeps the newest events in a ring buffer in memory, reserves event numbers on disk,
 * and sends events to watchers. */
#include "daemon/events.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/strbuf.h"
#include "base/wire.h"

/* The number of event numbers that are reserved on disk at once. After a restart, the daemon skips all
 * numbers that were reserved before, so that no number is ever used twice. */
#define SEQ_BLOCK  (1u << 20)
#define READ_LIMIT 256 /* events that one read from disk returns */

/* One event in memory. */
struct ring_event {
    uint64_t seq, job;
    /* The event as a line of JSON for watchers. NULL if there was no memory for the line. In that case
     * watchers get a `gap` event instead. */
    char *line;
    size_t bytes;
    /* Set if the event could not be stored in the database. In that case no watcher gets the event. */
    bool dropped;
};

/* An event that is being written to disk. Watchers cannot see the event yet. */
struct keeping {
    struct events *events;
    uint64_t seq;
    /* True if this event is on disk, or if the database has refused to store it. Watchers can see the event
     * once this field is true for this event and for all earlier events. */
    bool settled;
    void (*done)(void *ctx, int status);
    void *ctx;
    struct keeping *next; /* the next higher number */
};

struct events {
    struct daemon *daemon;
    struct ring_event ring[EVENTS_KEPT]; /* event s is in ring[s % EVENTS_KEPT] */
    /* The ring holds the events whose numbers are at least `first` and less than `next`. */
    uint64_t first, next;
    /* Events that are still being written to disk, as a list in the order of their numbers. */
    struct keeping *oldest, *newest;
    /* Watchers may see the events whose numbers are below this number. If new events come faster than the
     * disk can store them, this number can become less than `first`, the number of the oldest event in the
     * ring. */
    uint64_t visible;
    /* All event numbers below this number are reserved on disk. Only a reserved number is given to a new
     * event. */
    uint64_t reserved;
    struct watcher watchers; /* head of the ring of watchers */
};

int events_create(struct daemon *d, struct events **ret, struct err *err)
{
    struct events *e = xcalloc(1, sizeof *e);
    uint64_t first;
    int r = state_reserve_seq(d->state, SEQ_BLOCK, &first, err);
    if (r < 0) {
        free(e);
        return r;
    }
    e->daemon = d;
    e->first = e->next = e->visible = first;
    e->reserved = first + SEQ_BLOCK;
    e->watchers.prev = e->watchers.following = &e->watchers;
    *ret = e;
    return 0;
}

void events_destroy(struct events *e)
{
    if (e == NULL)
        return;
    for (size_t i = 0; i < EVENTS_KEPT; i++)
        free(e->ring[i].line);
    free(e);
}

uint64_t events_newest(const struct events *e)
{
    return e->visible - 1;
}

static struct ring_event *at(struct events *e, uint64_t seq)
{
    return &e->ring[seq % EVENTS_KEPT];
}

/* ---- adding ---- */

static void begin_line(struct strbuf *b, uint64_t seq, uint64_t job, const char *event, const char *members)
{
    wire_begin_notification(b, "event");
    strbuf_addf(b, "{\"seq\":%" PRIu64 ",\"job\":%" PRIu64 ",\"event\":\"%s\",\"time_ms\":%" PRIu64, seq, job,
                event, clock_wall_ns() / 1000000);
    if (members != NULL && members[0] != '\0')
        strbuf_addf(b, ",%s", members);
    strbuf_add(b, "}");
    wire_end(b);
}

/* Reserves the next block of event numbers as soon as half of the current block is used. So the new
 * reservation is on disk long before its numbers are needed. */
static void reserve_more(struct events *e)
{
    if (e->next + SEQ_BLOCK / 2 < e->reserved)
        return;
    struct state_unit *u = state_begin(e->daemon->state);
    e->reserved += SEQ_BLOCK;
    state_put_seq(u, e->reserved);
    state_commit(u, false, NULL, NULL);
}

/* Builds the JSON line of the next event. Returns -ENOMEM if there is no memory for the line. */
static int make_line(struct events *e, uint64_t job, const char *event, const char *members,
                     struct strbuf *ret)
{
    *ret = (struct strbuf){.mode = STRBUF_FAILS};
    begin_line(ret, e->next, job, event, members);
    if (strbuf_status(ret) == 0)
        return 0;
    strbuf_finish(ret);
    return -ENOMEM;
}

/* Gives the next event number to a new event and stores the event in the ring. The ring then owns the memory
 * of `line`. */
static struct ring_event *append(struct events *e, uint64_t job, const struct strbuf *line)
{
    reserve_more(e);
    uint64_t seq = e->next++;
    struct ring_event *slot = at(e, seq);
    if (seq - e->first == EVENTS_KEPT)
        e->first++;
    free(slot->line);
    *slot = (struct ring_event){seq, job, line->at, line->n, false};
    return slot;
}

static void advance(struct events *e)
{
    uint64_t before = e->visible;
    e->visible = e->oldest != NULL ? e->oldest->seq : e->next;
    if (e->visible == before)
        return;
    for (struct watcher *w = e->watchers.following, *next; w != &e->watchers; w = next) {
        next = w->following;
        events_pump(e, w);
    }
}

void events_add(struct events *e, uint64_t job, const char *event, const char *members)
{
    struct strbuf line;
    make_line(e, job, event, members, &line);
    append(e, job, &line);
    advance(e);
}

/* Called when an event is on disk, or when the database has refused to store it. Events become visible to
 * watchers in the order of their numbers. So this event stays invisible while an earlier event is still being
 * written. */
static void kept(void *ctx, int status)
{
    struct keeping *k = ctx;
    struct events *e = k->events;
    struct ring_event *slot = at(e, k->seq);
    if (slot->seq == k->seq)
        slot->dropped = status < 0;
    k->settled = true;
    if (k->done != NULL)
        k->done(k->ctx, status);
    while ((k = e->oldest) != NULL && k->settled) {
        e->oldest = k->next;
        free(k);
    }
    advance(e);
}

int events_add_kept(struct events *e, struct state_unit *u, uint64_t job, const char *event,
                    const char *members, bool optional, void (*done)(void *ctx, int status), void *ctx)
{
    struct strbuf line;
    if (make_line(e, job, event, members, &line) == 0)
        state_put_event(u, &(struct state_event){e->next, job, line.at});
    else
        state_fail(u);
    if (state_failed(u)) {
        strbuf_finish(&line);
        state_discard(u);
        return -ENOMEM;
    }
    struct keeping *k = xcalloc(1, sizeof *k);
    struct ring_event *slot = append(e, job, &line);
    *k = (struct keeping){.events = e, .seq = slot->seq, .done = done, .ctx = ctx};
    if (e->oldest == NULL)
        e->oldest = k;
    else
        e->newest->next = k;
    e->newest = k;
    state_commit(u, optional, kept, k);
    return 0;
}

/* ---- watching ---- */

static void send_gap(struct events *e, struct watcher *w, uint64_t seq)
{
    char text[256];
    struct strbuf b = strbuf_fixed(text, sizeof text);
    (void)e;
    begin_line(&b, seq, w->job, "gap", NULL);
    w->send(w, b.at, b.n);
}

/* A read of old events from disk. The read serves a watcher that fell so far behind that its next event is no
 * longer in memory. */
struct catching_up {
    struct events *events;
    struct watcher *watcher;
    uint64_t end;
};

static void from_disk(void *ctx, int status, const struct state_event *list, size_t n)
{
    struct catching_up *c = ctx;
    struct watcher *w = c->watcher;
    w->reading = false;
    if (w->ended) {
        w->gone(w);
        free(c);
        return;
    }
    for (size_t i = 0; status == 0 && i < n; i++)
        w->send(w, list[i].body, strlen(list[i].body));
    if (status == 0 && n == READ_LIMIT) {
        w->next = list[n - 1].seq + 1;
    } else {
        send_gap(c->events, w, c->end - 1);
        w->next = c->end;
    }
    events_pump(c->events, w);
    free(c);
}

static void catch_up(struct events *e, struct watcher *w)
{
    struct catching_up *c = xcalloc(1, sizeof *c);
    *c = (struct catching_up){e, w, e->first < e->visible ? e->first : e->visible};
    w->reading = true;
    state_read_events(e->daemon->state, w->job, w->next, c->end, READ_LIMIT, from_disk, c);
}

void events_pump(struct events *e, struct watcher *w)
{
    while (!w->reading && w->next < e->visible && w->ready(w)) {
        if (w->next < e->first) {
            catch_up(e, w);
            return;
        }
        const struct ring_event *event = at(e, w->next++);
        if (event->dropped || (w->job != 0 && event->job != 0 && w->job != event->job))
            continue;
        if (event->line != NULL)
            w->send(w, event->line, event->bytes);
        else
            send_gap(e, w, event->seq);
    }
}

void events_watch(struct events *e, struct watcher *w)
{
    w->prev = &e->watchers;
    w->following = e->watchers.following;
    w->following->prev = w;
    e->watchers.following = w;
    events_pump(e, w);
}

void events_unwatch(struct events *e, struct watcher *w)
{
    (void)e;
    w->prev->following = w->following;
    w->following->prev = w->prev;
    w->ended = true;
    if (!w->reading)
        w->gone(w);
}
