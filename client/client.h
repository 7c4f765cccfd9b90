/* What the commands share: the state of this run of the program, output, and failures. */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"
#include "client/opts.h"
#include "client/tutti.h"

enum client_exit {
    CLIENT_DONE = 0,
    CLIENT_FAILED = 1,
    CLIENT_USAGE = 2,
    CLIENT_UNREACHABLE = 3,
    CLIENT_DENIED = 4,
    CLIENT_MISFIT = 5,
    CLIENT_MISSING = 6,
};

struct client {
    const char *socket; /* --socket, or NULL */
    bool json, quiet;
};

struct client_command {
    const char *name;
    const char *args;    /* for the usage line */
    const char *summary; /* one line */
    const char *details; /* more for the help; NULL: nothing */
    const struct opt *opts;
    int least, most; /* words it takes; most < 0: any number */
    int (*run)(struct client *c, const struct args *a);
};

/* The table, alphabetized; ends with NULL. */
extern const struct client_command *const commands[];

extern const struct client_command cmd_backup, cmd_cancel, cmd_check, cmd_devices, cmd_export, cmd_help,
    cmd_logs, cmd_ls, cmd_plan, cmd_profile, cmd_run, cmd_sample, cmd_show, cmd_submit, cmd_version, cmd_wait,
    cmd_watch;

/* Help of one command, and the overview. Each returns an exit code. */
int help_command(const struct client_command *command);
int help_overview(void);
/* An unknown name: suggests, or says "not yet". */
int command_unknown(const struct client *c, const char *name);

/* Rows that every command takes. */
extern const struct opt common_opts[];

/* Reports a failure (one line on stderr, or one object on stdout with --json); returns the exit code for
 * it. */
int client_fail(const struct client *c, const struct err *err);
int client_fail_as(const struct client *c, int exit, const struct err *err);
int client_exit_of(int code); /* of a negative errno */

/* Writes and empties b. 0, or -errno once standard output does not take it: reported at the end, by main. */
int client_print(struct strbuf *b);
int client_print_end(struct strbuf *b); /* the same at a command's end: CLIENT_DONE or CLIENT_FAILED */
bool client_print_failed(void);
/* The program's exit code: CLIENT_FAILED, with a message, when output was lost. */
int client_end(int exit);

/* Connects where --socket says. 0 or an exit code; the failure was reported. */
int client_connect(const struct client *c, struct tutti **ret);
/* Connects, calls once, closes. The same. */
int client_ask(const struct client *c, const char *method, const char *params, struct wire_msg *ret);
/* A job id. -EINVAL with a message. */
int client_job_id(const char *text, uint64_t *ret, struct err *err);
/* {"id":N}, in memory of the callee until the next call. */
const char *client_id_params(uint64_t id);
/* A job's output directory by its id, or a directory as it is: what consists of digits is an id, and the daemon is asked.
 * malloc'ed. 0 or an exit code; the failure was reported. */
int client_find_output(const struct client *c, const char *id_or_dir, char **ret);

#endif
