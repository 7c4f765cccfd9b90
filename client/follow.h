/* Follows a job until it ends. follow() shows the progress of the job, and follow_finish() prints its
 * outcome. */
#ifndef CLIENT_FOLLOW_H
#define CLIENT_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "client/client.h"
#include "client/spawn.h"

struct follow_options {
    uint64_t id;    /* the job */
    bool has_since; /* `since` is given */
    /* The number of an event. Past events with higher numbers are shown too. */
    uint64_t since;
    /* The private daemon of `tutti run`, or NULL. With a private daemon, Ctrl-C stops the job too, and
     * follow() gives up when this daemon has died. */
    struct private_daemon *daemon;
};

/* Shows the job until it ends. A terminal gets a live display, and a pipe gets lines. If the connection is
 * lost, follow() connects again and replaces *t.
 *
 * Returns CLIENT_DONE when the job has ended, with the daemon's answer to `show` in *ret_job. Otherwise
 * returns another exit code and has reported the reason.
 */
int follow(const struct client *c, struct tutti **t, const struct follow_options *o,
           struct wire_msg *ret_job);

/* Prints the outcome of a job that has ended: a curve and a report, or one JSON object with --json. Returns
 * the job's exit code. */
int follow_finish(const struct client *c, struct tutti *t, const struct json *job);

/* Returns true if the job has ended, that is, if it is done, failed or cancelled. */
bool follow_ended(const struct json *job);
/* Returns the exit code of a job that has ended. */
int follow_exit(const struct json *job);

/* Closes *t and tries for up to a minute to connect again. Gives up after a signal, or when the private
 * daemon has died. `daemon` may be NULL. */
int follow_reconnect(const struct client *c, struct private_daemon *daemon, struct tutti **t,
                     struct err *err);

#endif
