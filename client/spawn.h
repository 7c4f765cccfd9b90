/* Finds and starts the other programs, tuttid and tutti-worker, and manages the private daemon of `tutti
 * run`. */
#ifndef CLIENT_SPAWN_H
#define CLIENT_SPAWN_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/strbuf.h"
#include "base/vec.h"

enum program { PROGRAM_DAEMON, PROGRAM_WORKER };

/* Stores the path of a program in *ret. The caller frees *ret. The environment variable $TUTTID or
 * $TUTTI_WORKER comes first, then the directory of this program, the build tree, libexec, and PATH. Returns
 * -ENOEXEC when the program is not found. */
int spawn_find(enum program which, char **ret, struct err *err);

/* The arguments of a program. Start with a zeroed struct, and free it with spawn_finish. Each word is
 * copied. */
struct spawn_args {
    VEC(char *) words;
};
void spawn_add(struct spawn_args *a, const char *word);
/* Adds an option with the value that opts_get returned. NULL adds nothing, "" adds only the name, and any
 * other value adds the name and the value. */
void spawn_add_option(struct spawn_args *a, const char *name, const char *value);
/* Adds an option and its value, which may be empty. Adds nothing when `value` is NULL. */
void spawn_add_value(struct spawn_args *a, const char *name, const char *value);
void spawn_finish(struct spawn_args *a);

/* Replaces this process by the program. Returns only on failure. */
int spawn_exec(const char *path, struct spawn_args *a, struct err *err);

/* Runs the program with `input` as its standard input and waits until the program ends. Stores up to 1 MiB of
 * its standard output in *ret_output, and its exit code in *ret_exit. */
int spawn_collect(const char *path, struct spawn_args *a, const char *input, struct strbuf *ret_output,
                  int *ret_exit, struct err *err);

/* ---- a daemon for one job ---- */

/* A daemon that serves a single `tutti run` and ends together with it. */
struct private_daemon {
    char *dir;    /* temporary directory with its files */
    char *socket; /* path of its socket */
    char *log;    /* path of its log */
    /* The write end of a pipe. The daemon exits when this end is closed. */
    int pipe_fd;
    pid_t pid; /* -1 once it has exited */
};

/* Starts a private daemon in a new directory. Its socket appears a little later.
 *
 * `backend` and `machine` become the daemon's options --backend and --machine. If `backend` is NULL,
 * $TUTTI_BACKEND is used, or "auto". If `machine` is NULL, the daemon uses the devices of this computer. */
int private_start(const char *backend, const char *machine, struct private_daemon *ret, struct err *err);
/* Returns true while the daemon runs. If the daemon has exited, `err` gets the end of its log. */
bool private_alive(struct private_daemon *d, struct err *err);
/* Closes the pipe, waits until the daemon has exited, and removes its directory. If the job still runs, it
 * writes a checkpoint first. */
void private_end(struct private_daemon *d);

#endif
