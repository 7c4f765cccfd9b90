/* What the parts of link*.c share: the mailbox and the connection, in one struct. */
#ifndef DAEMON_WORKER_UPLINK_PRIVATE_H
#define DAEMON_WORKER_UPLINK_PRIVATE_H

#include <pthread.h>

#include "base/curve.h"
#include "base/strbuf.h"
#include "base/wire.h"
#include "daemon/worker/uplink.h"

#define MAX_EVENTS  64
#define EVENT_BYTES 512 /* of params; the longest, a progress, has about 450 */
#define MAX_EVALS   64
#define NEVER       UINT64_MAX

enum { ID_HELLO = 1, ID_OUTCOME };

struct uplink_event {
    const char *method;
    char params[EVENT_BYTES];
};

struct uplink_eval {
    uint64_t step;
    double loss, accuracy;
};

struct uplink {
    struct uplink_config config; /* const once open; owns its strings */
    pthread_t thread;
    int wake_fd;

    pthread_mutex_t mutex; /* guards what follows, up to "the thread's own" */
    pthread_cond_t answered;
    bool has_job, acknowledged;
    bool over; /* nothing more will be answered: refused, given up, or closed */
    int failure;
    struct err err; /* of the failure */
    struct uplink_job job;
    uint64_t give_up_ns;                    /* NEVER while training */
    struct strbuf planned, outcome;         /* their params */
    struct uplink_event events[MAX_EVENTS]; /* a ring */
    uint32_t first_event, n_events;
    struct uplink_progress progress;
    struct curve curve;
    struct uplink_eval evals[MAX_EVALS]; /* a ring */
    uint64_t n_evals;                    /* ever */
    bool has_planned, has_progress, has_outcome;
    char planning[EVENT_BYTES]; /* params; "": nothing was planned yet */
    bool planning_due, planned_due, progress_due, curve_due, outcome_due;

    /* The thread's own. */
    int fd;              /* -1: not connected */
    bool greeted;        /* hello was answered on this connection */
    bool lost;           /* and that was said */
    uint64_t retry_ns;   /* when to connect again */
    uint64_t backoff_ns; /* what to add for the time after */
    uint64_t hello_ns;   /* when these were sent */
    uint64_t sent_ns;
    uint64_t progress_ns;
    uint64_t curve_ns;
    struct wire_in in;
    struct strbuf out;
    size_t out_at; /* of `out`, the bytes that have left */
};

/* ---- the mailbox: uplink_mail.c ---- */

void uplink_wake(struct uplink *l); /* gets the thread out of poll */

static inline uint64_t uplink_earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* These need the mutex held. */
void uplink_add_hello(struct uplink *l); /* to l->out */
void uplink_add_due(struct uplink *l, uint64_t now);
uint64_t uplink_next_due(const struct uplink *l); /* when uplink_add_due will have something */
void uplink_set_outcome(struct uplink *l, const char *members, uint64_t step);
/* On a new connection: what was sent before may not have arrived, and all but the events is due again. */
void uplink_begin_again(struct uplink *l);

#endif
