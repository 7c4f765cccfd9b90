/* The method "logs": returns the output of a job's workers, starting at a given offset. The log file is read
 * in the thread pool. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/get.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "daemon/jobs.h"
#include "daemon/launch.h"
#include "daemon/request_find.h"
#include "daemon/server_verbs.h"

#define LOGS_MOST 65536 /* bytes of one answer */

struct log_read {
    uv_work_t work;
    struct request *rq;
    char path[PATH_MAX + 64];
    uint64_t offset, limit;
    bool ended; /* the job ended before the read */
    ssize_t n;  /* bytes read, or a negative errno */
    char bytes[LOGS_MOST];
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
        l->n = 0; /* no worker has written anything yet */
}

static void reply_log(uv_work_t *work, int status)
{
    struct log_read *l = work->data;
    struct strbuf b = {.mode = STRBUF_FAILS};
    struct err err = {0};
    (void)status;
    if (l->n < 0) {
        err_set(&err, (int)l->n, "the job's log cannot be read");
        request_fail(l->rq, WIRE_INTERNAL, &err);
    } else {
        bool last = (uint64_t)l->n < l->limit;
        /* If the bytes end in the middle of a UTF-8 character, leave this character for the next answer. But
         * if the job has ended and this is the end of its log, send all bytes. */
        size_t n = l->ended && last ? (size_t)l->n : utf8_whole_bytes(l->bytes, (size_t)l->n);
        if (n == 0 && l->n > 0 && !last)
            n = (size_t)l->n; /* the limit is smaller than one character */
        strbuf_add(&b, "{\"text\":");
        strbuf_add_jsonn(&b, l->bytes, n);
        strbuf_addf(&b, ",\"offset\":%" PRIu64 ",\"end\":%s}", l->offset + n,
                    l->ended && last ? "true" : "false");
        request_reply(l->rq, &b);
        strbuf_finish(&b);
    }
    free(l);
}

static void read_log_of(struct request *rq, struct job *j)
{
    struct log_read *l = mem_calloc(1, sizeof *l);
    if (l == NULL) {
        request_out_of_memory(rq);
        return;
    }
    l->rq = rq;
    l->offset = get_count_or(rq->params, "offset", 0);
    l->limit = get_count_or(rq->params, "limit", LOGS_MOST);
    l->ended = job_ended(j) && j->worker == NULL;
    l->work.data = l;
    launch_log_path(&rq->daemon->config, j->id, l->path, sizeof l->path);
    uv_queue_work(rq->daemon->loop, &l->work, read_log, reply_log);
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
    if (json_obj_end(&o) < 0)
        request_refuse(rq, &err);
    else
        request_find(rq, id, read_log_of);
}
