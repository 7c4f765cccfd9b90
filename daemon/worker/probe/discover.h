/* Finds out which machine a job runs on: looks for devices, or reads a topology file that describes a
 * machine. It also keeps a cache of measured transfer rates on disk. docs/machine.md has the rules.
 *
 * Call these functions from one thread. discover may load a backend's runtime into this process, but leaves
 * nothing open.
 */
#ifndef DAEMON_WORKER_PROBE_DISCOVER_H
#define DAEMON_WORKER_PROBE_DISCOVER_H

#include "base/err.h"
#include "scheduler/topology.h"

enum backend_choice { CHOICE_AUTO, CHOICE_CPU, CHOICE_CUDA, CHOICE_COUNT };
extern const char *const backend_choice_names[CHOICE_COUNT + 1]; /* NULL-terminated */

/* Stores the default of --backend in *ret: the value of $TUTTI_BACKEND, or auto if it is not set. Returns
 * -EINVAL if the variable has another value. */
int discover_default(enum backend_choice *ret, struct err *err);

/* The machine that discover found. */
struct discovery {
    struct topology topology;
    bool from_file;   /* the topology comes from a file, and this machine was not examined */
    bool measured;    /* the link rates come from the cache of measured rates */
    char reason[832]; /* why this backend was chosen: a sentence without a full stop */
    struct {
        bool looked;   /* discover looked for this backend */
        char why[768]; /* why the backend cannot be used or was not looked for; "": it can be used */
    } found[BACKEND_COUNT];
};

/* Fills *ret with the machine to use. `machine` is the path of a topology file, or its text if it begins with
 * '{', or NULL to examine this computer. `asked` is the set of devices whose free memory is wanted, as in
 * devset_probe. Returns -ENODEV if the backend `choice` cannot be used here, or -EINVAL if it contradicts the
 * topology file. */
int discover(enum backend_choice choice, const char *machine, uint64_t asked, struct discovery *ret,
             struct err *err);

/* ---- the cache (discover_cache.c) ---- */

/* Stores the path of the file with the measured rates of these devices in `ret`. The file is in
 * $XDG_CACHE_HOME/tutti or in ~/.cache/tutti. Returns -ENOENT if neither XDG_CACHE_HOME nor HOME is set. */
int cache_path(const struct topology *t, char *ret, size_t size, struct err *err);

/* Copies the rates of links and peers from the cache to `t`. Returns false if the cache has none for these
 * devices. A damaged file counts as none; a warning is logged. */
bool cache_load(struct topology *t);

/* Writes the rates of `t` to the cache. */
int cache_store(const struct topology *t, struct err *err);

/* Stores the path of the file `name` in the cache directory in `ret`. */
int cache_file(const char *name, char *ret, size_t size, struct err *err);

/* Writes a file of the cache, and makes the cache directory if it does not exist. After a failure the old
 * file, if there was one, is unchanged. */
int cache_write(const char *path, const char *text, size_t bytes, struct err *err);

/* Writes the file at `path`. A reader sees the whole new file or the old one, never a part. */
int discover_write_file(const char *path, const char *text, size_t bytes, struct err *err);

#endif
