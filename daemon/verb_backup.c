/* Method backup: makes a consistent copy of the daemon's state, for `tutti backup`.
 *
 * The daemon never writes a file that a client names. It makes the copy in its own directory, as a file
 * without a name, and the client fetches the bytes. `backup {}` makes the copy and returns its length.
 * `backup {copy, offset}` returns a piece of the copy. There is only one copy at a time. It is dropped when
 * its end was fetched, or when nobody has fetched a piece for a minute.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/base64.h"
#include "daemon/server_verbs.h"
#include "daemon/state.h"

/* The number of bytes in one piece of a backup. The number is a multiple of 3, so that base64 needs no
 * padding. The base64 text of a piece fits into one line. */
#define PIECE_BYTES 524286
/* The copy of the database is deleted if no client fetches a piece of it for this many milliseconds. */
#define FORGET_MS 60000

/* The copy of the database that clients fetch. The struct is created for the first backup and lives as long
 * as the daemon. Loop thread only. */
struct backup_copy {
    uint64_t number; /* number of the newest copy */
    int fd;          /* -1: no copy */
    uint64_t bytes;
    uv_timer_t forget;
};

static void drop_copy(struct backup_copy *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    uv_timer_stop(&c->forget);
}

static void on_forget(uv_timer_t *timer)
{
    drop_copy(timer->data);
}

static struct backup_copy *copy_of(struct daemon *d)
{
    if (d->backup == NULL) {
        d->backup = xcalloc(1, sizeof *d->backup);
        d->backup->fd = -1;
        uv_timer_init(d->loop, &d->backup->forget);
        uv_unref((uv_handle_t *)&d->backup->forget);
        d->backup->forget.data = d->backup;
    }
    return d->backup;
}

static void fail(struct request *rq, int code, const char *why)
{
    struct err err = {0};
    err_set(&err, code, "%s", why);
    request_fail(rq, WIRE_FAILED, &err);
}

/* ---- making the copy ---- */

static void made(void *ctx, int status, int fd, uint64_t bytes)
{
    struct request *rq = ctx;
    struct backup_copy *c = copy_of(rq->daemon);
    struct strbuf b = {0};
    if (status < 0) {
        fail(rq, status, "the copy could not be made; see the daemon's log");
        return;
    }
    drop_copy(c);
    c->number++;
    c->fd = fd;
    c->bytes = bytes;
    uv_timer_start(&c->forget, on_forget, FORGET_MS, 0);
    strbuf_addf(&b, "{\"copy\":%" PRIu64 ",\"bytes\":%" PRIu64 "}", c->number, bytes);
    request_reply(rq, &b);
    strbuf_finish(&b);
}

static void make(struct request *rq)
{
    if (copy_of(rq->daemon)->fd >= 0 || state_backup(rq->daemon->state, made, rq) < 0)
        fail(rq, -EAGAIN, "another backup is being made; try again when it is done");
}

/* ---- fetching the copy ---- */

/* A read of one piece of the backup copy. The read runs in the thread pool, because the disk may be slow. */
struct piece {
    uv_work_t work;
    struct request *rq;
    /* A duplicate of the copy's file descriptor, so that the copy can be closed while this piece is still
     * being read. */
    int fd;
    uint64_t number; /* number of the copy */
    uint64_t offset, end;
    ssize_t n; /* bytes read, or a negative errno */
    struct strbuf answer;
};

static void read_piece(uv_work_t *work)
{
    struct piece *p = work->data;
    char *bytes = xmalloc(PIECE_BYTES);
    p->n = pread(p->fd, bytes, PIECE_BYTES, (off_t)p->offset);
    if (p->n < 0)
        p->n = -errno;
    strbuf_add(&p->answer, "{\"data\":\"");
    if (p->n > 0)
        base64_add(&p->answer, bytes, (size_t)p->n);
    uint64_t next = p->offset + (p->n > 0 ? (uint64_t)p->n : 0);
    strbuf_addf(&p->answer, "\",\"offset\":%" PRIu64 ",\"end\":%s}", next, next >= p->end ? "true" : "false");
    close(p->fd);
    free(bytes);
}

static void reply_piece(uv_work_t *work, int status)
{
    struct piece *p = work->data;
    struct backup_copy *c = copy_of(p->rq->daemon);
    (void)status; /* never cancelled */
    if (p->n >= 0 && p->offset + (uint64_t)p->n >= p->end && c->number == p->number)
        drop_copy(c);
    if (p->n < 0)
        fail(p->rq, (int)p->n, "the copy cannot be read");
    else
        request_reply(p->rq, &p->answer);
    strbuf_finish(&p->answer);
    free(p);
}

static void fetch(struct request *rq, uint64_t number, uint64_t offset)
{
    struct backup_copy *c = copy_of(rq->daemon);
    int fd = c->fd >= 0 && c->number == number ? fcntl(c->fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (fd < 0) {
        fail(rq, -ESTALE, "that copy was dropped; ask for a new one");
        return;
    }
    struct piece *p = xcalloc(1, sizeof *p);
    *p = (struct piece){.rq = rq, .fd = fd, .number = number, .offset = offset, .end = c->bytes};
    p->work.data = p;
    uv_timer_start(&c->forget, on_forget, FORGET_MS, 0);
    uv_queue_work(rq->daemon->loop, &p->work, read_piece, reply_piece);
}

void verb_backup(struct request *rq)
{
    struct json_obj o;
    struct err err = {0};
    uint64_t number = 0, offset = 0;
    json_obj_begin(&o, rq->params, "", &err);
    bool piece = json_take_u64(&o, "copy", JSON_OPTIONAL, &number);
    if (json_take_u64(&o, "offset", piece ? JSON_REQUIRED : JSON_OPTIONAL, &offset) && !piece)
        json_fail(&o, "offset", -EINVAL, "needs \"copy\"");
    if (json_obj_end(&o) < 0)
        request_refuse(rq, &err);
    else if (piece)
        fetch(rq, number, offset);
    else
        make(rq);
}
