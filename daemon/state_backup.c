/* Copies the database while the daemon runs. VACUUM INTO reads one snapshot on its own connection. Commits go
 * on meanwhile. The copy has all transactions that were committed when it began. It is a complete database in
 * one file, without a log.
 *
 * The copy is made under a name in the state directory, and the name is removed as soon as the copy is open.
 * So a daemon that dies leaves at most one unfinished copy, which the next backup removes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "daemon/state_internal.h"

struct backup {
    uv_work_t work;
    struct state *state;
    int status, fd;
    uint64_t bytes;
    struct err err;
    void (*done)(void *ctx, int status, int fd, uint64_t bytes);
    void *ctx;
};

static int make_copy(struct backup *b, const char *to)
{
    sqlite3 *db = NULL;
    char *sql = sqlite3_mprintf("VACUUM INTO %Q", to);
    unlink(to);
    int r = db_open(b->state->path, false, &db, &b->err);
    if (r == 0)
        r = db_exec(b->state->path, db, sql, "copy the state", &b->err);
    sqlite3_free(sql);
    sqlite3_close(db);
    return r;
}

static void backup_work(uv_work_t *work)
{
    struct backup *b = work->data;
    char *to = state_join_path(b->state->config.dir, "backup.new");
    struct stat st;
    b->status = make_copy(b, to);
    b->fd = b->status == 0 ? open(to, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (b->status == 0 && (b->fd < 0 || fstat(b->fd, &st) < 0))
        b->status = err_set_at(&b->err, -errno, to, "cannot open the copy");
    b->bytes = b->status == 0 ? (uint64_t)st.st_size : 0;
    unlink(to);
    free(to);
}

static void backup_done(uv_work_t *work, int status)
{
    struct backup *b = work->data;
    char text[sizeof b->err];
    (void)status; /* never cancelled */
    b->state->reads--;
    b->state->backing_up = false;
    if (b->status < 0)
        log_error("no backup was made: %s", err_text(&b->err, text, sizeof text));
    b->done(b->ctx, b->status, b->fd, b->bytes);
    free(b);
}

int state_backup(struct state *s, void (*done)(void *ctx, int status, int fd, uint64_t bytes), void *ctx)
{
    if (s->backing_up)
        return -EBUSY;
    struct backup *b = xcalloc(1, sizeof *b);
    *b = (struct backup){.state = s, .fd = -1, .done = done, .ctx = ctx};
    b->work.data = b;
    s->backing_up = true;
    s->reads++;
    uv_queue_work(s->config.loop, &b->work, backup_work, backup_done);
    return 0;
}
