/* Defines struct uplink for its two source files: uplink.c, which has the connection and the thread, and
 * uplink_mail.c, which has the mailbox. */
#ifndef DAEMON_WORKER_UPLINK_PRIVATE_H
#define DAEMON_WORKER_UPLINK_PRIVATE_H

#include <pthread.h>

#include "base/curve.h"
#include "base/strbuf.h"
#include "base/wire.h"
#include "daemon/worker/uplink.h"

#define MAX_EVENTS 64
/* Space for the params of one event, in bytes. The longest params are those of a progress message, about 450
 * bytes. */
#define EVENT_BYTES 2048
#define MAX_EVALS   64
#define NEVER       UINT64_MAX

/* JSON-RPC ids of the two requests that the worker sends to the daemon. */
enum { ID_HELLO = 1, ID_OUTCOME };

/* A notification that waits to be sent. */
struct uplink_event {
    const char *method;
    char params[EVENT_BYTES];
};

/* An evaluation in the curve. */
struct uplink_eval {
    uint64_t step;
    double loss, accuracy;
};

struct uplink {
    /* The configuration of the uplink, with its own copies of the strings. It does not change after
     * uplink_open. */
    struct uplink_config config;
    pthread_t thread;
    /* An eventfd. Writing to it wakes the uplink thread from poll(2). */
    int wake_fd;

    /* ---- the mailbox, guarded by mutex ---- */
    pthread_mutex_t mutex;
    /* Signalled when one of has_job, acknowledged and over becomes true. */
    pthread_cond_t answered;
    bool has_job;      /* the daemon gave a job */
    bool acknowledged; /* the daemon confirmed the outcome */
    /* True if no answer will come any more, because the daemon refused the worker, or the worker gave up or
     * closed the uplink. */
    bool over;
    int failure;           /* if `over`: a negative errno */
    struct err err;        /* if `over`: the error message */
    struct uplink_job job; /* owned until uplink_wait_job returns it */
    /* Time at which the uplink gives up if no daemon answers. It is NEVER while the job trains. */
    uint64_t give_up_ns;
    struct strbuf planned, outcome;         /* params of these two messages */
    struct uplink_event events[MAX_EVENTS]; /* a ring that begins at first_event */
    uint32_t first_event, n_events;
    struct uplink_progress progress; /* the newest progress */
    bool has_phase;                  /* messages about training have the key "phase" */
    uint32_t phase;
    struct curve curve;
    struct uplink_eval evals[MAX_EVALS]; /* a ring */
    /* Number of evaluations that were ever added. The ring `evals` has the last MAX_EVALS of them. */
    uint64_t n_evals;
    bool has_planned, has_progress, has_outcome; /* the message was posted at least once */
    char planning[EVENT_BYTES];                  /* params of `planning`; empty before that */
    bool planning_due, planned_due, progress_due, curve_due, outcome_due; /* must be sent to this daemon */

    /* ---- the connection (uplink thread only) ---- */
    int fd;       /* -1 if not connected */
    bool greeted; /* the daemon answered hello on this connection */
    /* True if the connection is lost and the log already says so, so that the log does not repeat it. */
    bool lost;
    uint64_t retry_ns;   /* time of the next reconnect */
    uint64_t backoff_ns; /* pause before the next reconnect */
    uint64_t hello_ns;   /* time at which hello was sent */
    uint64_t sent_ns;    /* time of the last sent bytes */
    /* Time of the last progress message on this connection. 0 if no such message was sent. */
    uint64_t progress_ns;
    /* Time of the last curve message on this connection. 0 if no such message was sent. */
    uint64_t curve_ns;
    struct wire_in in;
    struct strbuf out; /* bytes to send */
    size_t out_at;     /* number of bytes already sent */
};

static inline uint64_t uplink_earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Wakes the uplink thread from poll(2). May be called from any thread. */
void uplink_wake(struct uplink *l);

/* ---- the mailbox, called with the mutex ---- */

/* Appends the hello request to l->out. */
void uplink_add_hello(struct uplink *l);
/* Appends all messages that are due at the time `now` to l->out, the bytes to send. */
void uplink_add_due(struct uplink *l, uint64_t now);
/* Returns the time at which uplink_add_due will next have a message to add. */
uint64_t uplink_next_due(const struct uplink *l);
/* Composes the message with the outcome of the run and marks it as due. */
void uplink_set_outcome(struct uplink *l, const char *members, uint64_t step);
/* Marks all messages except events as due again. Call this function on a new connection, because messages on
 * the old connection may have been lost. */
void uplink_begin_again(struct uplink *l);

#endif
