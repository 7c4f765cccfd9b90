/* Shared parts of all commands: options, output, failures, and calls to the daemon.
 *
 * Most functions here return an exit code. If the code is not CLIENT_DONE, the function has already reported
 * the failure, and the command only returns the code.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/opts.h"
#include "base/strbuf.h"
#include "client/tutti.h"

/* The exit codes of the program `tutti`. docs/protocol.md lists them too. */
enum client_exit {
    CLIENT_DONE = 0,
    CLIENT_FAILED = 1,      /* the job or the command failed */
    CLIENT_USAGE = 2,       /* wrong arguments, or an invalid job */
    CLIENT_UNREACHABLE = 3, /* no daemon answers */
    CLIENT_DENIED = 4,      /* this user may not do that */
    CLIENT_MISFIT = 5,      /* the job cannot fit the machine */
    CLIENT_MISSING = 6,     /* there is no such job */
};

/* The global options that this call of `tutti` was given. */
struct client {
    const char *socket; /* --socket, or NULL */
    bool json, quiet;
};

/* A command, such as `tutti ls`. Each file cmd_*.c defines one command. */
struct client_command {
    const char *name;
    const char *args;    /* its arguments in the usage line */
    const char *summary; /* what it does, in one line */
    const char *details; /* more help; NULL: none */
    const struct opt *opts;
    /* Least and largest number of words that the command takes besides its options. A negative `most` means
     * any number. */
    int least, most;
    /* Runs the command and returns its exit code. `a` has the arguments, which have already been checked. */
    int (*run)(struct client *c, const struct args *a);
};

/* All commands in alphabetical order. The list ends with NULL. */
extern const struct client_command *const commands[];

extern const struct client_command cmd_backup, cmd_cancel, cmd_check, cmd_devices, cmd_export, cmd_help,
    cmd_logs, cmd_ls, cmd_plan, cmd_profile, cmd_run, cmd_sample, cmd_show, cmd_submit, cmd_version, cmd_wait,
    cmd_watch;

/* help_command prints the help of one command, and help_overview the list of all commands. Both return an
 * exit code. */
int help_command(const struct client_command *command);
int help_overview(void);
/* Reports that there is no command called `name`, and suggests the most similar name. Returns
 * CLIENT_USAGE. */
int command_unknown(const struct client *c, const char *name);

/* The options that every command accepts. */
extern const struct opt common_opts[];

/* Reports a failure to the user and returns the exit code for it. With --json, prints one JSON object on
 * standard output. Otherwise prints one line on standard error. */
int client_fail(const struct client *c, const struct err *err);
/* Reports a failure like client_fail, but returns the exit code `exit`. */
int client_fail_as(const struct client *c, int exit, const struct err *err);
/* Returns the exit code for a negative errno. */
int client_exit_of(int code);

/* Prints the text of `b` and frees `b`. Returns a negative errno if this or an earlier write failed. Callers
 * need not report the failure, because main does so at the end. */
int client_print(struct strbuf *b);
/* Prints the last output of a command and frees `b`. Returns CLIENT_DONE, or CLIENT_FAILED if a write has
 * failed. */
int client_print_end(struct strbuf *b);
/* Returns true if a write to standard output has failed. */
bool client_print_failed(void);
/* Returns the exit code with which the program should end. If output was lost, reports the loss and turns
 * CLIENT_DONE into CLIENT_FAILED. */
int client_end(int exit);

/* Connects to the daemon at the socket that --socket names, or at the default socket. Returns an exit
 * code. */
int client_connect(const struct client *c, struct tutti **ret);
/* Opens a connection to the daemon, makes one call, and closes the connection. Returns an exit code. The
 * caller frees *ret with wire_msg_finish. */
int client_ask(const struct client *c, const char *method, const char *params, struct wire_msg *ret);
/* Parses the argument `text` as a job id. Returns -EINVAL and sets `err` if `text` is not a job id. */
int client_job_id(const char *text, uint64_t *ret, struct err *err);
/* Returns the parameters {"id":N} for a call about one job. The text is valid until this function is called
 * again. */
const char *client_id_params(uint64_t id);
/* Finds the output directory of a job. `id_or_dir` is a job id, for which the daemon is asked, or the path
 * itself. The caller frees *ret. Returns an exit code. */
int client_find_output(const struct client *c, const char *id_or_dir, char **ret);

#endif
