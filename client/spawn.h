/* Finds and starts the programs tuttid and tutti-worker, and manages the private daemon of `tutti run`. */
#ifndef CLIENT_SPAWN_H
#define CLIENT_SPAWN_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/strbuf.h"
#include "base/vec.h"

enum program { PROGRAM_DAEMON, PROGRAM_WORKER };

/* Finds a program and stores its path in *ret, which the caller frees. Tries the environment variable TUTTID
 * or TUTTI_WORKER first, and PATH last. Returns -ENOEXEC if the program is not found. */
int spawn_find(enum program which, char **ret, struct err *err);

/* The arguments of a program. Begin with a zeroed struct. spawn_add copies each word into the struct, and
 * spawn_finish frees the copies. */
struct spawn_args {
    VEC(char *) words;
};
void spawn_add(struct spawn_args *a, const char *word);
/* Adds the option `name` with the value `value`, as opts_get returned it. If `value` is NULL, adds nothing.
 * If `value` is "", adds only the name. */
void spawn_add_option(struct spawn_args *a, const char *name, const char *value);
/* Adds the option `name` and its value, even if the value is "". If `value` is NULL, adds nothing. */
void spawn_add_value(struct spawn_args *a, const char *name, const char *value);
void spawn_finish(struct spawn_args *a);

/* Replaces this process by the program at `path`. Returns only if the replacement fails. */
int spawn_exec(const char *path, struct spawn_args *a, struct err *err);

/* Runs the program with `input` as its standard input and waits until the program ends. Appends up to 1 MiB
 * of the program's standard output to *ret_output, and sets *ret_exit to its exit code. */
int spawn_collect(const char *path, struct spawn_args *a, const char *input, struct strbuf *ret_output,
                  int *ret_exit, struct err *err);

/* ---- a daemon for one job ---- */

/* A daemon that serves a single `tutti run` command and ends together with the command. */
struct private_daemon {
    char *dir;    /* temporary directory with its files */
    char *socket; /* path of its socket */
    char *log;    /* path of its log */
    /* The write end of a pipe to the daemon. The daemon exits when this end is closed, even if this process
     * is killed. */
    int pipe_fd;
    pid_t pid; /* -1 once it has exited */
};

/* Starts a private daemon in a new directory. The daemon's socket appears a little later. If `backend` is
 * NULL, the daemon uses the backend in the variable TUTTI_BACKEND, or "auto". If `machine` is NULL, the
 * daemon uses the devices of this computer.
 */
int private_start(const char *backend, const char *machine, struct private_daemon *ret, struct err *err);
/* Returns true while the private daemon is running. If the daemon has exited, `err` gets the end of the
 * daemon's log. */
bool private_alive(struct private_daemon *d, struct err *err);
/* Ends the private daemon, waits until it has exited, and removes its directory. A running job first writes a
 * checkpoint. */
void private_end(struct private_daemon *d);

#endif
