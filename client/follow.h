/* Following a job to its end: what `watch`, `submit --watch` and `run` do between its submission and their
 * exit code. */
#ifndef CLIENT_FOLLOW_H
#define CLIENT_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "client/client.h"
#include "client/spawn.h"

struct follow_options {
    uint64_t id;
    bool has_since;
    uint64_t since; /* events after this number are shown too */
    struct private_daemon
        *daemon; /* of `run`: Ctrl-C stops the job, and a daemon that died is not waited for; else NULL */
};

/* Shows the job on the terminal (live), in a pipe (lines) or as JSON lines, until it ends; reconnects when
 * the connection is lost. 0: *ret_job is the answer of `show` then. Else an exit code, and the reason has
 * been reported. *t is replaced when it was lost. */
int follow(const struct client *c, struct tutti **t, const struct follow_options *o,
           struct wire_msg *ret_job);

/* What is printed in the end: the curve and the report, or the outcome as JSON. Returns the job's exit
 * code. */
int follow_finish(const struct client *c, struct tutti *t, const struct json *job);

/* Whether the job has ended. */
bool follow_ended(const struct json *job);
/* The exit code of a job that has. */
int follow_exit(const struct json *job);

/* Connects again, for up to a minute. Ends early on a signal, or when the daemon (where it is ours) has died. */
int follow_reconnect(const struct client *c, struct private_daemon *daemon, struct tutti **t,
                     struct err *err);

#endif
