/* Implements the probe of reprobe.h as a child process of the loop.
 *
 * A probe has three handles: the process, its output, and the deadline for both. The probe is over when all
 * three are closed. Only then is `reprobed` called, so that it can start another probe. A probe that fails
 * changes nothing, and the daemon keeps its old facts. A failure is logged only once, until a probe succeeds
 * or fails for another reason.
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

#define REPROBE_MS 30000      /* time for a probe to end */
#define OUTPUT_MAX (1u << 20) /* bytes of output that are kept */

/* A probe of the devices that is running. The struct is freed when all its libuv handles are closed. */
struct reprobe {
    struct daemon *daemon;
    /* The set of devices to probe. Bit i stands for device i of the inventory. */
    uint64_t devices;
    void (*reprobed)(struct daemon *d);
    uv_process_t process;
    uv_pipe_t output;
    uv_timer_t deadline;
    uint32_t open; /* handles that are not closed yet */
    struct strbuf text;
    bool late;
    int exit, signal;
    char chunk[4096];
};

bool reprobe_under_way(const struct daemon *d)
{
    return d->reprobe != NULL;
}

/* ---- the end of a probe ---- */

static int take_result(struct reprobe *p, struct err *err)
{
    struct inventory *now = xcalloc(1, sizeof *now); /* 45 KiB: too large for the stack */
    int r = p->late ? err_set(err, -ETIMEDOUT, "the probe did not end within %d s", REPROBE_MS / 1000)
            : p->signal != 0
                ? err_set(err, -EIO, "the probe was ended by signal %d", p->signal)
                : inventory_parse_probe(p->text.at != NULL ? p->text.at : "", p->text.n, p->exit, now, err);
    if (r == 0)
        inventory_refresh(&p->daemon->inventory, p->devices, &now->topology);
    free(now);
    return r;
}

/* Logs the reason `why` for which a probe failed. Logs nothing if the previous probe failed for the same
 * reason. After a successful probe, `why` is "" and nothing is logged. */
static void tell_failure(struct daemon *d, const char *why)
{
    uint32_t hash = crc32c(0, why, strlen(why));
    if (why[0] != '\0' && hash != d->reprobe_failure)
        log_warning("the devices could not be probed: %s", why);
    d->reprobe_failure = hash;
}

static void on_probe_closed(uv_handle_t *h)
{
    struct reprobe *p = h->data;
    struct daemon *d = p->daemon;
    void (*reprobed)(struct daemon * d) = p->reprobed;
    struct err err = {0};
    char text[sizeof err];
    if (--p->open > 0)
        return;
    if (reprobed != NULL) {
        take_result(p, &err);
        tell_failure(d, err.code < 0 ? err_text(&err, text, sizeof text) : "");
    }
    if (d->reprobe == p)
        d->reprobe = NULL;
    strbuf_finish(&p->text);
    free(p);
    if (reprobed != NULL)
        reprobed(d);
}

static bool is_closing(const void *handle)
{
    return uv_is_closing(handle) != 0;
}

static void close_handle(struct reprobe *p, void *handle)
{
    if (!is_closing(handle))
        uv_close(handle, on_probe_closed);
    if (is_closing(&p->process) && is_closing(&p->output) && !is_closing(&p->deadline))
        uv_close((uv_handle_t *)&p->deadline, on_probe_closed);
}

/* Called when the probe's process has ended. The end of its output may be read before or after this call. */
static void on_probe_ended(uv_process_t *process, int64_t status, int sig)
{
    struct reprobe *p = process->data;
    p->exit = (int)status;
    p->signal = sig;
    close_handle(p, process);
}

static void on_output_alloc(uv_handle_t *h, size_t n, uv_buf_t *ret)
{
    struct reprobe *p = h->data;
    (void)n;
    *ret = uv_buf_init(p->chunk, sizeof p->chunk);
}

static void on_output_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct reprobe *p = s->data;
    if (n < 0)
        close_handle(p, s);
    else if (p->text.n < OUTPUT_MAX)
        strbuf_addn(&p->text, buf->base, (size_t)n);
}

/* Kills the probe and all processes that the probe has started. */
static void kill_probe(struct reprobe *p)
{
    if (!is_closing(&p->process))
        kill(-p->process.pid, SIGKILL);
}

static void on_probe_deadline(uv_timer_t *t)
{
    struct reprobe *p = t->data;
    p->late = true;
    kill_probe(p);
    /* Close the output pipe too. A process that the probe started may survive and hold the other end of the
     * pipe open. Then the end of the output would never come. */
    close_handle(p, &p->output);
}

/* ---- starting a probe ---- */

static void add_only(const struct inventory *o, uint64_t devices, struct strbuf *b)
{
    for (uint32_t i = 0; i < o->n_devices; i++)
        if (devices >> i & 1)
            strbuf_addf(b, "%s%" PRIu32, b->n > 0 ? "," : "", o->topology.devices[i].index);
}

static int spawn(struct reprobe *p, const char *only)
{
    const char *argv[INVENTORY_PROBE_WORDS];
    uv_stdio_container_t stdio[] = {
        {.flags = UV_IGNORE},
        {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&p->output},
        {.flags = UV_INHERIT_FD, .data.fd = 2},
    };
    inventory_probe_command(&p->daemon->config, only, argv);
    const uv_process_options_t o = {
        .exit_cb = on_probe_ended,
        .file = argv[0],
        .args = (char **)argv,
        .flags = UV_PROCESS_DETACHED,
        .stdio = stdio,
        .stdio_count = 3,
    };
    return uv_spawn(p->daemon->loop, &p->process, &o);
}

int reprobe_start(struct daemon *d, uint64_t devices, void (*reprobed)(struct daemon *d), struct err *err)
{
    struct strbuf only = {0};
    if (d->reprobe != NULL)
        return err_set(err, -EBUSY, "a probe of the devices is already running");
    struct reprobe *p = xcalloc(1, sizeof *p);
    *p = (struct reprobe){.daemon = d, .devices = devices, .reprobed = reprobed, .open = 3};
    p->process.data = p->output.data = p->deadline.data = p;
    d->reprobe = p;
    uv_timer_init(d->loop, &p->deadline);
    uv_pipe_init(d->loop, &p->output, 0);
    add_only(&d->inventory, devices, &only);
    int r = spawn(p, only.at);
    strbuf_finish(&only);
    if (r < 0) {
        p->reprobed = NULL;
        d->reprobe = NULL;
        close_handle(p, &p->process);
        close_handle(p, &p->output);
        return err_set_at(err, r, d->config.worker_program, "cannot be started to probe the devices: %s",
                          strerror(-r));
    }
    uv_timer_start(&p->deadline, on_probe_deadline, REPROBE_MS, 0);
    uv_read_start((uv_stream_t *)&p->output, on_output_alloc, on_output_read);
    return 0;
}

void reprobe_abandon(struct daemon *d)
{
    if (d->reprobe != NULL)
        kill_probe(d->reprobe);
}
