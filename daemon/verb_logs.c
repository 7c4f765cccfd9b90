/* logs: what a job's workers wrote, from an offset on. The file is the daemon's own; it is read in the pool. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/utf8.h"
#include "daemon/jobs.h"
#include "daemon/launch.h"
#include "daemon/server.h"

#define LOGS_MOST 65536

struct log_read {
    uv_work_t work;
    struct request *rq;
    char path[PATH_MAX + 64];
    uint64_t offset, limit;
    bool ended; /* the job, before the file was read */
    ssize_t n;  /* bytes, or a negative errno */
    char bytes[LOGS_MOST + 1];
};

static void read_log(uv_work_t *work)
{
    struct log_read *l = work->data;
    int fd = open(l->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    l->n = fd < 0 ? -errno : pread(fd, l->bytes, l->limit, (off_t)l->offset);
    if (fd >= 0 && l->n < 0)
        l->n = -errno;
    if (fd >= 0)
        close(fd);
    if (l->n == -ENOENT)
        l->n = 0; /* no worker yet */
}

/* A character that is cut at the end comes with the next piece, unless there is no next. */
static size_t whole_characters(const char *s, size_t n)
{
    size_t cut = 0;
    while (cut < 3 && cut < n && ((unsigned char)s[n - 1 - cut] & 0xc0) == 0x80)
        cut++;
    if (cut == n || n == 0)
        return n;
    unsigned char lead = (unsigned char)s[n - 1 - cut];
    size_t want = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    return want > cut + 1 ? n - 1 - cut : n;
}

/* As JSON text: what is no UTF-8, and NUL, become '?'. */
static void add_safe(struct strbuf *b, char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t c = s[i] != '\0' ? utf8_char_bytes(s + i, n - i) : 0;
        if (c == 0)
            s[i] = '?';
        i += c > 0 ? c : 1;
    }
    s[n] = '\0';
    strbuf_add_json(b, s);
}

static void reply_log(uv_work_t *work, int status)
{
    struct log_read *l = work->data;
    struct strbuf b = {0};
    struct err err = {0};
    (void)status;
    if (l->n < 0) {
        err_set(&err, (int)l->n, "the log cannot be read");
        request_fail(l->rq, WIRE_INTERNAL, &err);
    } else {
        bool last = (uint64_t)l->n < l->limit;
        size_t n = l->ended && last ? (size_t)l->n : whole_characters(l->bytes, (size_t)l->n);
        if (n == 0 && l->n > 0 && !last)
            n = (size_t)l->n; /* limit is smaller than a character */
        strbuf_add(&b, "{\"text\":");
        add_safe(&b, l->bytes, n);
        strbuf_addf(&b, ",\"offset\":%" PRIu64 ",\"end\":%s}", l->offset + n,
                    l->ended && last ? "true" : "false");
        request_reply(l->rq, &b);
        strbuf_finish(&b);
    }
    free(l);
}

void verb_logs(struct request *rq)
{
    struct json_obj o;
    struct err err = {0};
    uint64_t id = 0, offset = 0, limit = LOGS_MOST;
    json_obj_begin(&o, rq->params, "", &err);
    json_take_u64(&o, "id", JSON_REQUIRED, &id);
    json_take_u64(&o, "offset", JSON_OPTIONAL, &offset);
    if (json_take_u64(&o, "limit", JSON_OPTIONAL, &limit) && (limit == 0 || limit > LOGS_MOST))
        json_fail(&o, "limit", -EINVAL, "must be from 1 to %d", LOGS_MOST);
    if (json_obj_end(&o) < 0) {
        request_refuse(rq, &err);
        return;
    }
    const struct job *j = request_job(rq, id);
    if (j == NULL)
        return;
    struct log_read *l = xcalloc(1, sizeof *l);
    l->rq = rq;
    l->offset = offset;
    l->limit = limit;
    l->ended = job_ended(j) && j->worker == NULL;
    l->work.data = l;
    launch_log_path(&rq->daemon->config, id, l->path, sizeof l->path);
    uv_queue_work(rq->daemon->loop, &l->work, read_log, reply_log);
}
