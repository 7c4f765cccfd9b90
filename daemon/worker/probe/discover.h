/* Finds out which devices and links the machine of a job has. It looks for devices or reads a topology file,
 * and caches measured transfer rates on disk. Call these functions from one thread. discover may load a
 * backend's runtime, but leaves nothing open.
 */
#ifndef DAEMON_WORKER_PROBE_DISCOVER_H
#define DAEMON_WORKER_PROBE_DISCOVER_H

#include "base/err.h"
#include "scheduler/topology.h"

enum backend_choice { CHOICE_AUTO, CHOICE_CPU, CHOICE_CUDA, CHOICE_COUNT };
extern const char *const backend_choice_names[CHOICE_COUNT + 1]; /* NULL-terminated */

/* Stores the default backend in *ret: the value of $TUTTI_BACKEND, or auto if that variable is not set.
 * Returns -EINVAL if the variable has a wrong value. */
int discover_default(enum backend_choice *ret, struct err *err);

/* The machine that discover found. */
struct discovery {
    struct topology topology;
    /* True if the topology comes from a file, so that this machine was not examined. */
    bool from_file;
    /* True if the link rates come from the cache of measured rates. */
    bool measured;
    /* Why this backend was chosen, as a sentence without a full stop. */
    char reason[832];
    struct {
        bool looked; /* discover looked for this backend */
        /* Why the backend cannot be used, or why it was not looked for. Empty if the backend can be used. */
        char why[768];
    } found[BACKEND_COUNT];
};

/* Fills *ret with the machine to use. `machine` is the path of a topology file, or its text if it begins with
 * '{', or NULL for this computer. `asked` is a bit set of the devices whose free memory is needed. Returns
 * -ENODEV if the backend cannot be used, or -EINVAL if it contradicts the file. */
int discover(enum backend_choice choice, const char *machine, uint64_t asked, struct discovery *ret,
             struct err *err);

/* ---- the cache (discover_cache.c) ---- */

/* Stores the path of the cache file with the measured rates of the devices in `t`. The file is in
 * $XDG_CACHE_HOME/tutti or $HOME/.cache/tutti. Returns -ENOENT if neither variable is set. */
int cache_path(const struct topology *t, char *ret, size_t size, struct err *err);

/* Copies the measured rates of links and peer links from the cache to `t`. Returns false if the cache has no
 * rates for these devices. A damaged cache file is ignored with a warning. */
bool cache_load(struct topology *t);

/* Writes the rates of links and peer links in `t` to the cache. */
int cache_store(const struct topology *t, struct err *err);

/* Stores the path of the cache file with the name `name` in `ret`. */
int cache_file(const char *name, char *ret, size_t size, struct err *err);

/* Writes a file of the cache, and creates the cache directory if it does not exist. On failure, an old file
 * stays unchanged. */
int cache_write(const char *path, const char *text, size_t bytes, struct err *err);

/* Writes `text` to the file at `path`. A concurrent reader sees either the whole old file or the whole new
 * file. */
int discover_write_file(const char *path, const char *text, size_t bytes, struct err *err);

#endif
