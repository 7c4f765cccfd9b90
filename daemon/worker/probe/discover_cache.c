/* The cache of measured transfer rates, $XDG_CACHE_HOME/tutti/machine-HASH.json. HASH depends on the devices,
 * so that rates are never used for other devices. The file is a topology file, but only the rates in it are
 * used. A file that cannot be read is ignored. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dirs.h"
#include "base/fs.h"
#include "base/log.h"
#include "daemon/worker/probe/discover.h"

#define CACHE_MAX (4u << 20)

static int cache_dir(char *ret, size_t size, struct err *err)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;
    if (xdg != NULL && xdg[0] == '/')
        n = snprintf(ret, size, "%s/tutti", xdg);
    else if (home != NULL && home[0] == '/')
        n = snprintf(ret, size, "%s/.cache/tutti", home);
    else
        return err_set(err, -ENOENT,
                       "there is no directory for the cache; set HOME or XDG_CACHE_HOME to an absolute path");
    return n < 0 || (size_t)n >= size ? err_set(err, -ENAMETOOLONG, "the path of the cache is too long") : 0;
}

int cache_file(const char *name, char *ret, size_t size, struct err *err)
{
    char dir[PATH_MAX];
    int r = cache_dir(dir, sizeof dir, err);
    if (r < 0)
        return r;
    int n = snprintf(ret, size, "%s/%s", dir, name);
    return n < 0 || (size_t)n >= size ? err_set(err, -ENAMETOOLONG, "the path of the cache is too long") : 0;
}

int cache_path(const struct topology *t, char *ret, size_t size, struct err *err)
{
    char name[64];
    snprintf(name, sizeof name, "machine-%016" PRIx64 ".json", topology_hash(t));
    return cache_file(name, ret, size, err);
}

bool cache_load(struct topology *t)
{
    char path[PATH_MAX], *text = NULL, why[sizeof(struct err)];
    struct topology *kept = malloc(sizeof *kept); /* 40 KiB */
    struct err err = {0};
    size_t bytes;
    int r = kept == NULL ? -ENOMEM : cache_path(t, path, sizeof path, &err);
    if (r == 0)
        r = fs_read_text(AT_FDCWD, path, CACHE_MAX, &text, &bytes);
    if (r == 0) {
        r = topology_parse(text, bytes, path, kept, &err);
        if (r == 0 && (topology_hash(kept) != topology_hash(t) || kept->link_in_bytes_per_s == 0))
            r = err_set_at(&err, -EINVAL, path, "is about another machine");
        if (r < 0)
            log_warning("%s: the cache of measured rates is not used (%s); `tutti-worker --probe --measure` "
                        "makes it anew",
                        path, err_text(&err, why, sizeof why));
    }
    if (r == 0) {
        t->link_in_bytes_per_s = kept->link_in_bytes_per_s;
        t->link_out_bytes_per_s = kept->link_out_bytes_per_s;
        t->peer_bytes_per_s = kept->peer_bytes_per_s;
        t->has_peers = kept->has_peers;
        memcpy(t->peers, kept->peers, sizeof t->peers);
    }
    free(text);
    free(kept);
    return r == 0;
}

/* ---- writing ---- */

int discover_write_file(const char *path, const char *text, size_t bytes, struct err *err)
{
    char dir_copy[PATH_MAX], name_copy[PATH_MAX], tmp[64];
    if (strlen(path) >= sizeof dir_copy)
        return err_set(err, -ENAMETOOLONG, "the path of the file is too long");
    strcpy(dir_copy, path);
    strcpy(name_copy, path);
    snprintf(tmp, sizeof tmp, ".tutti-machine-%d.tmp", (int)getpid());
    int dir = open(dirname(dir_copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = dir < 0 ? -errno : fs_create(dir, tmp);
    int r = fd < 0 ? fd : fs_write_all(fd, text, bytes), e = fd < 0 ? 0 : fs_sync_close(fd);
    if (r == 0)
        r = e;
    if (r == 0 && renameat(dir, tmp, dir, basename(name_copy)) < 0)
        r = -errno;
    if (fd >= 0)
        unlinkat(dir, tmp, 0);
    if (dir >= 0)
        close(dir);
    return r < 0 ? err_set_at(err, r, path, "cannot be written: %s", strerror(-r)) : 0;
}

int cache_write(const char *path, const char *text, size_t bytes, struct err *err)
{
    char dir[PATH_MAX];
    int r = cache_dir(dir, sizeof dir, err);
    if (r == 0)
        r = dirs_make(dir, 0700, "the directory", err);
    return r < 0 ? r : discover_write_file(path, text, bytes, err);
}

int cache_store(const struct topology *t, struct err *err)
{
    char path[PATH_MAX];
    struct strbuf b = {0};
    int r = cache_path(t, path, sizeof path, err);
    if (r == 0) {
        topology_to_json(t, &b);
        strbuf_add(&b, "\n");
        r = cache_write(path, b.at, b.n, err);
    }
    strbuf_finish(&b);
    return r;
}
