/* The other programs: finding them, running them, and the private daemon of `tutti run`. */
#ifndef CLIENT_SPAWN_H
#define CLIENT_SPAWN_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/strbuf.h"
#include "base/vec.h"

enum program { PROGRAM_DAEMON, PROGRAM_WORKER };

/* Where a program is: the environment ($TUTTID, $TUTTI_WORKER), beside this one, in the build tree, in
 * libexec, in PATH. malloc'ed. -ENOEXEC with a message that says where was looked. */
int spawn_find(enum program which, char **ret, struct err *err);

/* Arguments of a program; each is copied. */
struct spawn_args {
    VEC(char *) words;
};
void spawn_add(struct spawn_args *a, const char *word);
void spawn_add_option(struct spawn_args *a, const char *name,
                      const char *value); /* value NULL: nothing is added; "": the name alone */
/* The same of an option that takes a value, which may be empty. */
void spawn_add_value(struct spawn_args *a, const char *name, const char *value);
void spawn_finish(struct spawn_args *a);

/* Becomes the program. Returns only on failure. */
int spawn_exec(const char *path, struct spawn_args *a, struct err *err);

/* Runs the program to its end with `input` as its standard input, and collects what it writes (at most 1
 * MiB). */
int spawn_collect(const char *path, struct spawn_args *a, const char *input, struct strbuf *ret_output,
                  int *ret_exit, struct err *err);

/* ---- a daemon for one job ---- */

struct private_daemon {
    char *dir, *socket, *log;
    int pipe_fd; /* the write end of the pipe: closed, the daemon ends */
    pid_t pid;
};

/* Starts it in a new directory. The socket is there a little later. `backend`, `machine`: as its options; NULL: the
 * environment's or auto, and what is here. */
int private_start(const char *backend, const char *machine, struct private_daemon *ret, struct err *err);
/* False once it has exited; then err has what it said, where wanted. */
bool private_alive(struct private_daemon *d, struct err *err);
/* Lets it end (the job writes a checkpoint first, when it still runs), and removes the directory. */
void private_end(struct private_daemon *d);

#endif
