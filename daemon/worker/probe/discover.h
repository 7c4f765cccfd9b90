/* Which machine a job runs on, and why: looks for devices, or reads a topology file in their place; and the cache of
 * what was once measured. docs/machine.md has the rules.
 *
 * One thread. discover may start a backend's runtime in this process; nothing stays open.
 */
#ifndef DAEMON_WORKER_PROBE_DISCOVER_H
#define DAEMON_WORKER_PROBE_DISCOVER_H

#include "base/err.h"
#include "scheduler/topology.h"

enum backend_choice { CHOICE_AUTO, CHOICE_CPU, CHOICE_CUDA, CHOICE_COUNT };
extern const char *const backend_choice_names[CHOICE_COUNT + 1]; /* NULL-terminated */

/* The default of --backend: $TUTTI_BACKEND, else auto. */
int discover_default(enum backend_choice *ret, struct err *err);

struct discovery {
    struct topology topology;
    bool from_file;   /* nothing here was looked at */
    bool measured;    /* the rates of the links are from the cache */
    char reason[832]; /* why this backend: a sentence without its end */
    struct {
        bool looked;   /* for this backend */
        char why[768]; /* it cannot be used, or was not looked for; "": it can be used */
    } found[BACKEND_COUNT];
};

/* `machine`: the name of a topology file, or its text when it begins with '{'; NULL: look at this machine. `asked`: the
 * devices of which it is to be found out how much is free (devset_probe). -ENODEV: the backend that was asked for cannot be
 * used here. */
int discover(enum backend_choice choice, const char *machine, uint64_t asked, struct discovery *ret,
             struct err *err);

/* Half of this computer's memory: what jobs may use of it by default. */
uint64_t discover_host_bytes(void);

/* ---- the cache (discover_cache.c) ---- */

/* Where the rates of these devices are kept: $XDG_CACHE_HOME/tutti or ~/.cache/tutti. -ENOENT: neither is set. */
int cache_path(const struct topology *t, char *ret, size_t size, struct err *err);
/* Takes links and peers from the cache; false: there are none. A damaged file is a warning and counts as none. */
bool cache_load(struct topology *t);
int cache_store(const struct topology *t, struct err *err);
/* Any other file there: its path, and writing it whole or not at all. */
int cache_file(const char *name, char *ret, size_t size, struct err *err);
int cache_write(const char *path, const char *text, size_t bytes, struct err *err);

/* Writes a file whole or not at all. */
int discover_write_file(const char *path, const char *text, size_t bytes, struct err *err);

#endif
