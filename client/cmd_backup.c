/* tutti backup: copies the daemon's database to a file while the daemon is running. The daemon sends the copy
 * in pieces, and this program writes the file with the rights of its user. The file gets its final name when
 * the copy is complete. So a file with this name is always complete.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/base64.h"
#include "base/get.h"
#include "client/client.h"

/* A backup in progress. */
struct backup_file {
    const char *path;     /* the file that the user named */
    char fresh[PATH_MAX]; /* its name until it is complete */
    int fd;
    uint64_t number; /* the daemon's number for this copy */
    uint64_t bytes;  /* bytes of the copy */
    uint64_t offset; /* bytes received so far */
};

static int write_all(struct backup_file *c, const char *data, size_t bytes, struct err *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(c->fd, data + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set_at(err, -errno, c->fresh, "cannot write: %s", strerror(errno));
        done += (size_t)n;
    }
    return 0;
}

/* Asks the daemon to make a copy of its database. */
static int begin(struct backup_file *c, struct tutti *t, struct err *err)
{
    struct wire_msg m = {0};
    int r = tutti_call(t, "backup", "{}", &m, err);
    if (r < 0)
        return r;
    c->number = get_count_or(m.result, "copy", 0);
    c->bytes = get_count_or(m.result, "bytes", 0);
    wire_msg_finish(&m);
    return 0;
}

static int fetch_piece(struct backup_file *c, struct tutti *t, struct err *err)
{
    struct strbuf params = {0};
    struct wire_msg m = {0};
    strbuf_addf(&params, "{\"copy\":%" PRIu64 ",\"offset\":%" PRIu64 "}", c->number, c->offset);
    int r = tutti_call(t, "backup", params.at, &m, err);
    strbuf_finish(&params);
    if (r < 0)
        return r;
    const char *text = get_text(m.result, "data");
    size_t chars = strlen(text);
    char *data = xmalloc(chars + 1);
    long n = base64_decode(text, chars, data);
    if (n <= 0 || c->offset + (uint64_t)n > c->bytes)
        r = err_set(err, -EPROTO,
                    "the daemon sent data that does not belong to a copy of %" PRIu64 " bytes; try again",
                    c->bytes);
    else
        r = write_all(c, data, (size_t)n, err);
    c->offset += n > 0 ? (uint64_t)n : 0;
    free(data);
    wire_msg_finish(&m);
    return r;
}

static int sync_parent(const char *path, struct err *err)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", path);
    int fd = open(dirname(dir), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 || fsync(fd) < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return r < 0
               ? err_set_at(err, r, path, "is complete, but its directory cannot be synced: %s", strerror(-r))
               : 0;
}

/* Creates the temporary file. Only the owner may read the file, because it contains the specs and paths of
 * all jobs. */
static int open_fresh(struct backup_file *c, struct err *err)
{
    if (snprintf(c->fresh, sizeof c->fresh, "%s.%ld.new", c->path, (long)getpid()) >= (int)sizeof c->fresh)
        return err_set_at(err, -ENAMETOOLONG, c->path, "the name is too long; choose a shorter one");
    c->fd = open(c->fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return c->fd < 0 ? err_set_at(err, -errno, c->fresh, "cannot create the file: %s", strerror(errno)) : 0;
}

static int fetch_all(struct backup_file *c, struct tutti *t, struct err *err)
{
    int r = open_fresh(c, err);
    if (r < 0)
        return r;
    r = begin(c, t, err);
    while (r == 0 && c->offset < c->bytes)
        r = fetch_piece(c, t, err);
    if (r == 0 && (fsync(c->fd) < 0 || rename(c->fresh, c->path) < 0))
        r = err_set_at(err, -errno, c->path, "cannot write: %s", strerror(errno));
    close(c->fd);
    if (r < 0)
        unlink(c->fresh);
    return r == 0 ? sync_parent(c->path, err) : r;
}

static int report(const struct client *c, const struct backup_file *copy)
{
    struct strbuf b = {0};
    strbuf_add(&b, "");
    if (c->json) {
        strbuf_add(&b, "{\"file\":");
        strbuf_add_json(&b, copy->path);
        strbuf_addf(&b, ",\"bytes\":%" PRIu64 "}\n", copy->bytes);
    } else if (!c->quiet) {
        strbuf_addf(&b, "%s: ", copy->path);
        strbuf_add_bytes(&b, copy->bytes);
        strbuf_add(&b, "\n");
    }
    return client_print_end(&b);
}

static int run_backup(struct client *c, const struct args *a)
{
    struct err err = {0};
    struct tutti *t = NULL;
    struct backup_file copy = {.path = a->rest[0]};
    int exit = client_connect(c, &t);
    if (exit != CLIENT_DONE)
        return exit;
    exit = fetch_all(&copy, t, &err) < 0 ? client_fail(c, &err) : report(c, &copy);
    tutti_close(t);
    return exit;
}

const struct client_command cmd_backup = {
    .name = "backup",
    .args = "FILE",
    .summary = "copy the daemon's state (jobs, events) to a file while the daemon runs",
    .details = "FILE is an SQLite database. It is written completely or not at all, and it replaces an older "
               "file of that name.\n"
               "To restore it, stop tuttid, copy FILE over state.db, remove state.db-wal, and start tuttid "
               "once with\n"
               "--accept-older-state. Logs and outputs of jobs are not included.\n",
    .least = 1,
    .most = 1,
    .run = run_backup,
};
