/* A probe as a child of the loop. See look.h.
 *
 * A look has three handles: the process, its output, and the deadline for both to end. The look is over when all three
 * are closed. Only then `looked` is called, so that it can start a new look. A probe that fails changes nothing: the
 * daemon keeps what it knew, and logs the failure once until a probe succeeds or fails for another reason.
 */
#include "daemon/reprobe.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/crc32c.h"
#include "base/log.h"

#define LOOK_MS    30000
#define OUTPUT_MAX (1u << 20)

struct look {
    struct daemon *daemon;
    uint64_t devices; /* of the offer, that were asked */
    void (*looked)(struct daemon *d);
    uv_process_t process;
    uv_pipe_t output;
    uv_timer_t deadline;
    uint32_t open; /* handles */
    struct strbuf text;
    bool late;
    int exit, signal;
    char chunk[4096];
};

bool look_under_way(const struct daemon *d)
{
    return d->look != NULL;
}

/* ---- its end ---- */

static int take(struct look *l, struct err *err)
{
    struct offer *now = xcalloc(1, sizeof *now); /* 45 KiB */
    int r = l->late ? err_set(err, -ETIMEDOUT, "the probe did not end within %d s", LOOK_MS / 1000)
            : l->signal != 0
                ? err_set(err, -EIO, "the probe was ended by signal %d", l->signal)
                : offer_parse_probe(l->text.at != NULL ? l->text.at : "", l->text.n, l->exit, now, err);
    if (r == 0)
        offer_refresh(&l->daemon->offer, l->devices, &now->topology);
    free(now);
    return r;
}

/* "" when the look succeeded. */
static void tell_failure(struct daemon *d, const char *why)
{
    uint32_t hash = crc32c(0, why, strlen(why));
    if (why[0] != '\0' && hash != d->look_failure)
        log_warning("the devices could not be looked at: %s", why);
    d->look_failure = hash;
}

static void on_closed(uv_handle_t *h)
{
    struct look *l = h->data;
    struct daemon *d = l->daemon;
    void (*looked)(struct daemon * d) = l->looked;
    struct err err = {0};
    char text[sizeof err];
    if (--l->open > 0)
        return;
    if (looked != NULL) {
        take(l, &err);
        tell_failure(d, err.code < 0 ? err_text(&err, text, sizeof text) : "");
    }
    if (d->look == l)
        d->look = NULL;
    strbuf_finish(&l->text);
    free(l);
    if (looked != NULL)
        looked(d);
}

static bool is_closing(const void *handle)
{
    return uv_is_closing(handle) != 0;
}

static void close_handle(struct look *l, void *handle)
{
    if (!is_closing(handle))
        uv_close(handle, on_closed);
    if (is_closing(&l->process) && is_closing(&l->output) && !is_closing(&l->deadline))
        uv_close((uv_handle_t *)&l->deadline, on_closed);
}

/* The output may come to its end before or after this. */
static void on_ended(uv_process_t *p, int64_t status, int sig)
{
    struct look *l = p->data;
    l->exit = (int)status;
    l->signal = sig;
    close_handle(l, p);
}

static void on_alloc(uv_handle_t *h, size_t n, uv_buf_t *ret)
{
    struct look *l = h->data;
    (void)n;
    *ret = uv_buf_init(l->chunk, sizeof l->chunk);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct look *l = s->data;
    if (n < 0)
        close_handle(l, s);
    else if (l->text.n < OUTPUT_MAX)
        strbuf_addn(&l->text, buf->base, (size_t)n);
}

/* What it started itself is killed with it. */
static void kill_probe(struct look *l)
{
    if (!is_closing(&l->process))
        kill(-l->process.pid, SIGKILL);
}

static void on_deadline(uv_timer_t *t)
{
    struct look *l = t->data;
    l->late = true;
    kill_probe(l);
    close_handle(l, &l->output); /* whoever may hold it yet */
}

/* ---- its beginning ---- */

static void add_only(const struct offer *o, uint64_t devices, struct strbuf *b)
{
    for (uint32_t i = 0; i < o->n_devices; i++)
        if (devices >> i & 1)
            strbuf_addf(b, "%s%" PRIu32, b->n > 0 ? "," : "", o->topology.devices[i].index);
}

static int spawn(struct look *l, const char *only)
{
    const char *argv[OFFER_PROBE_WORDS];
    uv_stdio_container_t stdio[] = {
        {.flags = UV_IGNORE},
        {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&l->output},
        {.flags = UV_INHERIT_FD, .data.fd = 2},
    };
    offer_probe_command(&l->daemon->config, only, argv);
    const uv_process_options_t o = {
        .exit_cb = on_ended,
        .file = argv[0],
        .args = (char **)argv,
        .flags = UV_PROCESS_DETACHED,
        .stdio = stdio,
        .stdio_count = 3,
    };
    return uv_spawn(l->daemon->loop, &l->process, &o);
}

int look_start(struct daemon *d, uint64_t devices, void (*looked)(struct daemon *d), struct err *err)
{
    struct strbuf only = {0};
    if (d->look != NULL)
        return err_set(err, -EBUSY, "a look at the devices is under way");
    struct look *l = xcalloc(1, sizeof *l);
    *l = (struct look){.daemon = d, .devices = devices, .looked = looked, .open = 3};
    l->process.data = l->output.data = l->deadline.data = l;
    d->look = l;
    uv_timer_init(d->loop, &l->deadline);
    uv_pipe_init(d->loop, &l->output, 0);
    add_only(&d->offer, devices, &only);
    int r = spawn(l, only.at);
    strbuf_finish(&only);
    if (r < 0) {
        l->looked = NULL;
        d->look = NULL;
        close_handle(l, &l->process);
        close_handle(l, &l->output);
        return err_set_at(err, r, d->config.worker_program, "cannot be started to look at the devices: %s",
                          strerror(-r));
    }
    uv_timer_start(&l->deadline, on_deadline, LOOK_MS, 0);
    uv_read_start((uv_stream_t *)&l->output, on_alloc, on_read);
    return 0;
}

void look_abandon(struct daemon *d)
{
    if (d->look != NULL)
        kill_probe(d->look);
}
