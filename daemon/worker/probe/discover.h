/* Finds out which machine a job runs on. It looks for devices or reads a topology file. It also caches
 * measured transfer rates on disk. Call these functions from one thread. discover may load a backend's
 * runtime, but leaves nothing open.
 */
#ifndef DAEMON_WORKER_PROBE_DISCOVER_H
#define DAEMON_WORKER_PROBE_DISCOVER_H

#include "base/err.h"
#include "scheduler/topology.h"

enum backend_choice { CHOICE_AUTO, CHOICE_CPU, CHOICE_CUDA, CHOICE_COUNT };
extern const char *const backend_choice_names[CHOICE_COUNT + 1]; /* NULL-terminated */

/* Stores the default of --backend in *ret: $TUTTI_BACKEND, or auto without that variable. Returns -EINVAL
 * if the variable is wrong. */
int discover_default(enum backend_choice *ret, struct err *err);

/* The machine that discover found. */
struct discovery {
    struct topology topology;
    /* The topology comes from a file, so this machine was not examined. */
    bool from_file;
    /* The link rates come from the cache of measured rates. */
    bool measured;
    /* Why this backend was chosen, as a sentence without a full stop. */
    char reason[832];
    struct {
        bool looked; /* discover looked for this backend */
        /* Why the backend cannot be used, or why nobody looked for it. Empty if the backend can be used. */
        char why[768];
    } found[BACKEND_COUNT];
};

/* Fills *ret with the machine to use. `machine` is a topology file's path, or its text if it begins with
 * '{'. NULL means this computer. `asked` selects the devices whose free memory is needed. Returns -ENODEV
 * if the backend cannot be used, or -EINVAL if it contradicts the file. */
int discover(enum backend_choice choice, const char *machine, uint64_t asked, struct discovery *ret,
             struct err *err);

/* ---- the cache (discover_cache.c) ---- */

/* Stores the path of the file with these devices' measured rates in `ret`. It is in $XDG_CACHE_HOME/tutti
 * or ~/.cache/tutti. Returns -ENOENT if neither variable is set. */
int cache_path(const struct topology *t, char *ret, size_t size, struct err *err);

/* Copies the rates of links and peers from the cache to `t`. Returns false if there are none. A damaged
 * file is ignored with a warning. */
bool cache_load(struct topology *t);

/* Writes the link and peer rates of `t` to the cache. */
int cache_store(const struct topology *t, struct err *err);

/* Builds the path of the file `name` in the cache directory and stores it in `ret`. */
int cache_file(const char *name, char *ret, size_t size, struct err *err);

/* Writes a file of the cache. Creates the directory if needed. On failure, an old file stays unchanged. */
int cache_write(const char *path, const char *text, size_t bytes, struct err *err);

/* Writes the file at `path`. A reader sees either the whole old file or the whole new file. */
int discover_write_file(const char *path, const char *text, size_t bytes, struct err *err);

#endif
