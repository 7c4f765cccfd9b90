/* Defines struct uplink for uplink.c, the connection and its thread, and uplink_mail.c, the mailbox. */
#ifndef DAEMON_WORKER_UPLINK_PRIVATE_H
#define DAEMON_WORKER_UPLINK_PRIVATE_H

#include <pthread.h>

#include "base/curve.h"
#include "base/strbuf.h"
#include "base/wire.h"
#include "daemon/worker/uplink.h"

#define MAX_EVENTS 64
/* Space for the params of an event. A progress message is the longest and takes about 450 bytes. */
#define EVENT_BYTES 512
#define MAX_EVALS   64
#define NEVER       UINT64_MAX

/* Ids of the two requests that the worker sends. */
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
    /* The configuration, with copies of its strings. It does not change after uplink_open. */
    struct uplink_config config;
    pthread_t thread;
    /* An eventfd. Writing to it wakes the thread from poll. */
    int wake_fd;

    /* ---- the mailbox, guarded by mutex ---- */
    pthread_mutex_t mutex;
    /* Signalled when has_job, acknowledged or over becomes true. */
    pthread_cond_t answered;
    bool has_job;      /* the daemon gave a job */
    bool acknowledged; /* the daemon confirmed the outcome */
    /* No answer will come, because the worker was refused, has given up, or has closed the uplink. */
    bool over;
    int failure;           /* if `over`: a negative errno */
    struct err err;        /* if `over`: the error message */
    struct uplink_job job; /* owned until uplink_wait_job returns it */
    /* Time at which to give up. NEVER while the job trains. */
    uint64_t give_up_ns;
    struct strbuf planned, outcome;         /* params of these two messages */
    struct uplink_event events[MAX_EVENTS]; /* a ring that begins at first_event */
    uint32_t first_event, n_events;
    struct uplink_progress progress; /* the newest progress */
    struct curve curve;
    struct uplink_eval evals[MAX_EVALS]; /* a ring */
    /* Number of evaluations ever added. The ring has the last MAX_EVALS of them. */
    uint64_t n_evals;
    bool has_planned, has_progress, has_outcome; /* the message was posted at least once */
    char planning[EVENT_BYTES];                  /* params of `planning`; empty before that */
    bool planning_due, planned_due, progress_due, curve_due, outcome_due; /* must be sent to this daemon */

    /* ---- the connection, used by the thread alone ---- */
    int fd;       /* -1 if not connected */
    bool greeted; /* the daemon answered hello on this connection */
    /* The connection is lost, and the log already says so. */
    bool lost;
    uint64_t retry_ns;   /* time of the next reconnect */
    uint64_t backoff_ns; /* pause before the next reconnect */
    uint64_t hello_ns;   /* time at which hello was sent */
    uint64_t sent_ns;    /* time of the last sent bytes */
    /* Time of the last progress message on this connection. 0 if there was none. */
    uint64_t progress_ns;
    /* Time of the last curve on this connection. 0 if there was none. */
    uint64_t curve_ns;
    struct wire_in in;
    struct strbuf out; /* bytes to send */
    size_t out_at;     /* number of bytes already sent */
};

static inline uint64_t uplink_earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Wakes the thread from poll. May be called from any thread. */
void uplink_wake(struct uplink *l);

/* ---- mailbox (uplink_mail.c); the caller holds the mutex ---- */

/* Appends the hello request to l->out. */
void uplink_add_hello(struct uplink *l);
/* Adds all messages that are due at the time `now` to l->out. */
void uplink_add_due(struct uplink *l, uint64_t now);
/* Returns the time at which the next message will be due for uplink_add_due. */
uint64_t uplink_next_due(const struct uplink *l);
/* Composes the outcome message and marks it as due. */
void uplink_set_outcome(struct uplink *l, const char *members, uint64_t step);
/* Marks all messages except events as due again. Call this on a new connection, because the old one may
 * have lost them. */
void uplink_begin_again(struct uplink *l);

#endif
