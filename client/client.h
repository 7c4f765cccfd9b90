/* The parts that all commands share: options, output, reports of failures, and calls to the daemon. Most
 * functions here return an exit code. If the code is not CLIENT_DONE, the function has already reported the
 * failure, and the command only has to return the code.
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

/* The values of the global options of this call of `tutti`. */
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
    /* The smallest and the largest number of arguments that the command takes, not counting options. If
     * `most` is negative, there is no largest number. */
    int least, most;
    /* Runs the command and returns its exit code. `a` has the arguments, which main has parsed and
     * checked. */
    int (*run)(struct client *c, const struct args *a);
};

/* All commands in alphabetical order. The list ends with NULL. */
extern const struct client_command *const commands[];

extern const struct client_command cmd_backup, cmd_cancel, cmd_check, cmd_devices, cmd_export, cmd_help,
    cmd_logs, cmd_ls, cmd_plan, cmd_profile, cmd_run, cmd_sample, cmd_show, cmd_submit, cmd_version, cmd_wait,
    cmd_watch;

/* help_command prints the help of one command. help_overview prints the list of all commands. Both return an
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
/* Does the same as client_fail, but returns the exit code `exit`. */
int client_fail_as(const struct client *c, int exit, const struct err *err);
/* Returns the exit code for a negative errno. */
int client_exit_of(int code);

/* Prints the text of `b` and frees `b`. Returns a negative errno if this write or an earlier one failed. The
 * caller need not report the failure, because main reports it at the end. */
int client_print(struct strbuf *b);
/* Prints the last output of a command and frees `b`. Returns CLIENT_DONE, or CLIENT_FAILED if this write or
 * an earlier one has failed. */
int client_print_end(struct strbuf *b);
/* Returns true if any write to standard output has failed. */
bool client_print_failed(void);
/* Returns the exit code with which the program should end. `exit` is the exit code of the command. If output
 * was lost, reports the loss, and returns CLIENT_FAILED instead of CLIENT_DONE. */
int client_end(int exit);

/* Connects to the daemon at the socket that the option --socket names, or at the default socket. Returns an
 * exit code. */
int client_connect(const struct client *c, struct tutti **ret);
/* Opens a connection to the daemon, makes one call, and closes the connection. Returns an exit code. The
 * caller frees *ret with wire_msg_finish. */
int client_ask(const struct client *c, const char *method, const char *params, struct wire_msg *ret);
/* Parses the argument `text` as a job id. If `text` is not a job id, returns -EINVAL with a message in
 * `err`. */
int client_job_id(const char *text, uint64_t *ret, struct err *err);
/* Returns the text {"id":N}, the parameters for a call about the job with this id. The text is valid until
 * this function is called again. */
const char *client_id_params(uint64_t id);
/* Finds the output directory of a job. If `id_or_dir` is a job id, asks the daemon for the path. Otherwise
 * `id_or_dir` is the path itself. The caller frees *ret. Returns an exit code. */
int client_find_output(const struct client *c, const char *id_or_dir, char **ret);

#endif
