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
    /* If has_since is true, all past events with a number greater than `since` are shown too. */
    uint64_t since;
    /* The private daemon of `tutti run`, or NULL. If there is a private daemon, Ctrl-C also stops the job,
     * and follow() returns when this daemon has died. */
    struct private_daemon *daemon;
};

/* Shows the job until it ends: as a live display on a terminal, and as lines elsewhere. If the connection is
 * lost, follow() connects again and replaces *t. When the job has ended, returns CLIENT_DONE and stores the
 * daemon's answer to `show` in *ret_job. Otherwise reports the reason and returns another exit code.
 */
int follow(const struct client *c, struct tutti **t, const struct follow_options *o,
           struct wire_msg *ret_job);

/* Prints the outcome of a job that has ended. The outcome is a curve and a report, or one JSON object with
 * --json. Returns the exit code of the job. */
int follow_finish(const struct client *c, struct tutti *t, const struct json *job);

/* Returns true if the job has ended: it is done, failed or cancelled. */
bool follow_ended(const struct json *job);
/* Returns the exit code of a job that has ended. */
int follow_exit(const struct json *job);

/* Closes *t and tries to connect again for up to a minute. Gives up earlier if a signal arrives or if the
 * private daemon has died. `daemon` may be NULL. */
int follow_reconnect(const struct client *c, struct private_daemon *daemon, struct tutti **t,
                     struct err *err);

#endif
