/* tutti logs: prints the log of a job. The daemon sends the log in chunks of up to 64 KiB. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/get.h"
#include "client/client.h"
#include "client/follow.h"
#include "client/show.h"

#define CHUNK_BYTES 65536
#define FOLLOW_NS   300000000ull

static const struct opt opts[] = {
    {"follow", 'f', NULL, "continue until the job ends"},
    {0},
};

/* The state of reading one log. */
struct log_reader {
    const struct client *c;
    uint64_t id;     /* the job */
    uint64_t offset; /* bytes of the log read so far */
    bool follow;     /* --follow */
    bool end;        /* the log is complete and was read */
};

/* Reads the next chunk of the log and prints it. Sets *ret_bytes to the size of the chunk. */
static int read_chunk(struct log_reader *r, struct tutti *t, uint64_t *ret_bytes, struct err *err)
{
    struct strbuf params = {0}, b = {0};
    struct wire_msg m = {0};
    strbuf_addf(&params, "{\"id\":%" PRIu64 ",\"offset\":%" PRIu64 ",\"limit\":%d}", r->id, r->offset,
                CHUNK_BYTES);
    int code = tutti_call(t, "logs", params.at, &m, err);
    strbuf_finish(&params);
    if (code < 0)
        return code;
    uint64_t next = get_count_or(m.result, "offset", r->offset);
    *ret_bytes = next > r->offset ? next - r->offset : 0;
    r->offset += *ret_bytes;
    r->end = get_flag(m.result, "end");
    if (!r->c->json) {
        strbuf_add(&b, "");
        show_log_text(&b, get_text(m.result, "text"));
    } else if (*ret_bytes > 0 || r->end) {
        char *text = json_print(m.result);
        strbuf_addf(&b, "%s\n", text);
        free(text);
    }
    wire_msg_finish(&m);
    client_print(&b);
    return 0;
}

/* Prints the log, chunk by chunk, up to its end. With --follow, the function does not stop at the end of the
 * log. An empty chunk means that the end is reached. */
static int read_all(struct log_reader *r, struct tutti **t, struct err *err)
{
    while (!r->end && !client_print_failed()) {
        uint64_t bytes = 0;
        int code = read_chunk(r, *t, &bytes, err);
        if (code < 0 && r->follow && tutti_lost(*t))
            code = follow_reconnect(r->c, NULL, t, err);
        if (code < 0)
            return code;
        if (bytes == 0 && !r->follow)
            break;
        if (bytes == 0 && !r->end)
            clock_sleep_ns(FOLLOW_NS);
    }
    return 0;
}

static int run_logs(struct client *c, const struct args *a)
{
    struct err err = {0};
    struct tutti *t = NULL;
    struct log_reader r = {.c = c, .follow = opts_has(a, "follow")};
    if (client_job_id(a->rest[0], &r.id, &err) < 0)
        return client_fail(c, &err);
    int exit = client_connect(c, &t);
    if (exit == CLIENT_DONE && read_all(&r, &t, &err) < 0)
        exit = client_fail(c, &err);
    tutti_close(t);
    return exit;
}

const struct client_command cmd_logs = {
    .name = "logs",
    .args = "ID [-f]",
    .summary = "print the log of a job",
    .opts = opts,
    .least = 1,
    .most = 1,
    .run = run_logs,
};
