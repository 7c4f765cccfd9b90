/* The cpu backend: virtual devices in the memory of the host. It is the default if there is no GPU, and
 * the tests run on it.
 *
 * A device consists of an arena (guarded.c, where guard pages enforce the capacity) and four streams
 * (stream.c, with one thread each). The host has one more stream. All streams share one pool of threads
 * for the work inside an op. Copies and the host's computations are background runs, so that no op loses
 * a core to them in the middle of a piece (pool.c). Copies really move bytes, and each copy counts its
 * bytes when it runs. To imitate a link speed, each copy lasts as long as it would on that link. Copies
 * inside a device use no link.
 *
 * For tests, `delay_seed` makes every stream sleep at random before commands. Commands that no wait puts
 * in order then run in different orders. It also fills the first 256 MiB (FILL_MAX) of each arena, and all
 * discarded memory, with 0xFF bytes, which are NaN in float and double. A read of memory that was never
 * written, or that was discarded, then shows in the numbers.
 *
 * device.h states the order of calls and the threads. Ops and copies run in the streams' threads,
 * everything else in the caller's thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "kernels/backend.h"
#include "kernels/cpu/copy.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/guarded.h"
#include "kernels/cpu/stream.h"

#define DELAY_ONE_IN 4       /* one in this many commands is delayed */
#define DELAY_MAX_NS 200000u /* longest delay: 200 us */
/* If the config has a delay_seed, at most this number of bytes (256 MiB) of each arena are filled with NaN. A
 * test then notices when a task reads memory that was never written. Filling the whole of a large arena would
 * take long. */
#define FILL_MAX (UINT64_C(256) << 20)

/* One stream of a device or of the host, with its counters. The stream's thread gets a pointer to this
 * struct as `ctx`. */
struct cpu_stream {
    struct stream *stream;
    /* The threads of this pool share the work of the stream's commands. Compute streams of devices use the
     * pool of the devset. All other streams use its background handle (pool_background), so that they do not
     * slow down ops. */
    struct pool *pool;
    uint64_t bytes_per_s; /* speed limit of copies, or 0 */
    bool delayed;         /* delay_seed was given */
    struct rng rng;       /* stream's thread only */
    /* Only the stream's thread changes the counters copied_bytes, busy_ns and wait_ns. Any thread may read
     * them. */
    _Atomic uint64_t copied_bytes;
    _Atomic uint64_t busy_ns;
    _Atomic uint64_t wait_ns;
};

/* A devset of the cpu backend. cpu_open creates it and cpu_close frees it. */
struct cpu_devset {
    struct devset base; /* must be first */
    struct pool *pool;
    struct guarded arenas[DEVICE_MAX];
    /* True if the config has a delay_seed. New arenas and discarded memory are then filled with NaN. If a
     * task reads memory that was never written, its results become NaN. */
    bool fill;
    char numerics[128];
    uint32_t n_streams;
    struct cpu_stream streams[LANE_COUNT * DEVICE_MAX + 1]; /* numbered as in plans */
};

/* An event of the cpu backend: a position in a stream. Both fields are zero until the event is recorded for
 * the first time. Only the thread that enqueues commands uses this struct. */
struct cpu_event {
    struct stream *on;
    uint64_t position;
};

static struct cpu_devset *cpu(struct devset *ds)
{
    return (struct cpu_devset *)ds;
}

static struct cpu_event *cpu_event(struct event *e)
{
    return (struct cpu_event *)e;
}

static const struct cpu_devset *cpu_const(const struct devset *ds)
{
    return (const struct cpu_devset *)ds;
}

/* ---- in the streams' threads ---- */

static void add_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Sleeps in about one of DELAY_ONE_IN calls, for a random time of up to DELAY_MAX_NS. */
static void delay(struct rng *rng)
{
    if (rng_below(rng, DELAY_ONE_IN) == 0)
        clock_sleep_ns(rng_below(rng, DELAY_MAX_NS));
}

/* Returns the time in nanoseconds that a link of speed `bytes_per_s` needs for `bytes` bytes, rounded up.
 * Returns UINT64_MAX if the time does not fit into 64 bits. */
static uint64_t link_ns(uint64_t bytes, uint64_t bytes_per_s)
{
    unsigned __int128 ns = ((unsigned __int128)bytes * 1000000000u + (bytes_per_s - 1)) / bytes_per_s;

    return ns > UINT64_MAX ? UINT64_MAX : (uint64_t)ns;
}

static void run_link_copy(struct cpu_stream *s, void *dst, const void *src, uint64_t bytes)
{
    uint64_t start = s->bytes_per_s ? clock_now_ns() : 0;

    cpu_copy_pieces(dst, src, bytes, s->pool);
    add_count(&s->copied_bytes, bytes);
    if (s->bytes_per_s) {
        uint64_t least = link_ns(bytes, s->bytes_per_s), took = clock_now_ns() - start;
        if (took < least)
            clock_sleep_ns(least - took);
    }
}

static void run_launch(struct cpu_stream *s, const struct op_call *call)
{
    uint64_t start = clock_now_ns();

    cpu_ops[call->op](call, s->pool);
    add_count(&s->busy_ns, clock_now_ns() - start);
}

static void run_wait(struct cpu_stream *s, struct stream *on, uint64_t position)
{
    uint64_t start = clock_now_ns();

    stream_await(on, position);
    add_count(&s->wait_ns, clock_now_ns() - start);
}

/* Runs one command of a stream. The stream's own thread calls this function. */
static void run(void *ctx, const struct stream_command *c)
{
    struct cpu_stream *s = ctx;

    if (s->delayed)
        delay(&s->rng);
    switch (c->kind) {
    case COMMAND_COPY:
        if (c->copy.stays)
            cpu_copy_pieces(c->copy.dst, c->copy.src, c->copy.bytes, s->pool);
        else
            run_link_copy(s, c->copy.dst, c->copy.src, c->copy.bytes);
        break;
    case COMMAND_DISCARD:
        memset(c->discard.at, 0xFF, c->discard.bytes);
        break;
    case COMMAND_LAUNCH:
        run_launch(s, &c->launch);
        break;
    case COMMAND_MARK:
        *c->mark = clock_now_ns();
        break;
    case COMMAND_WAIT:
        run_wait(s, c->wait.on, c->wait.position);
        break;
    case COMMAND_COUNT:
        break;
    }
}

/* ---- open and close ---- */

static int open_arena(struct cpu_devset *ds, uint32_t device, uint64_t bytes, struct err *err)
{
    int r = guarded_init(&ds->arenas[device], bytes);

    if (r < 0)
        return err_set(err, r,
                       "device %" PRIu32 ": the host cannot provide %" PRIu64 " bytes for its arena; "
                       "lower the device's capacity or the number of devices, or free memory",
                       device, bytes);
    ds->base.arena[device] = ds->arenas[device].base;
    ds->base.capacity_bytes[device] = bytes;
    if (ds->fill)
        memset(ds->base.arena[device], 0xFF, bytes < FILL_MAX ? bytes : FILL_MAX);
    return 0;
}

static int open_stream(struct cpu_devset *ds, uint32_t stream, const struct devset_config *config,
                       struct err *err)
{
    struct cpu_stream *s = &ds->streams[stream];
    enum lane lane = backend_lane(&ds->base, stream);
    bool host = stream == LANE_COUNT * ds->base.n_devices;
    char name[16] = "host"; /* thread names have at most 15 characters */
    int r;

    if (!host)
        snprintf(name, sizeof name, "d%u.%s", stream / LANE_COUNT % 100, lane_names[lane]);
    s->pool = lane == LANE_COMPUTE && !host ? ds->pool : pool_background(ds->pool);
    s->bytes_per_s = lane == LANE_PEER ? config->peer_bytes_per_s : config->link_bytes_per_s;
    s->delayed = config->delay_seed != 0;
    s->rng = (struct rng){.seed = config->delay_seed + stream * UINT64_C(0x9E3779B97F4A7C15)};
    r = stream_create(name, run, s, &s->stream);
    if (r < 0)
        return err_set(
            err, r,
            "cannot start the thread of stream %s: %s; raise the limit of processes (ulimit -u) or lower "
            "the number of devices",
            name, strerror(-r));
    return 0;
}

static int open_parts(struct cpu_devset *ds, const struct devset_config *config, struct err *err)
{
    int r;

    for (uint32_t d = 0; d < config->n_devices; d++) {
        r = open_arena(ds, d, config->capacity_bytes[d], err);
        if (r < 0)
            return r;
    }
    r = pool_create(config->threads, &ds->pool);
    if (r < 0)
        return err_set(err, r, "cannot start %" PRIu32 " threads: %s", config->threads, strerror(-r));
    for (uint32_t i = 0; i < ds->n_streams; i++) {
        r = open_stream(ds, i, config, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Stops the streams and frees the devset with its arenas and threads. A devset that cpu_open has built only
 * in part can be freed too. */
static void destroy(struct cpu_devset *ds)
{
    for (uint32_t i = 0; i < ds->n_streams; i++)
        stream_destroy(ds->streams[i].stream);
    pool_destroy(ds->pool);
    for (uint32_t d = 0; d < ds->base.n_devices; d++)
        guarded_finish(&ds->arenas[d]);
    free(ds);
}

static int cpu_open(const struct devset_config *config, struct devset **ret, struct err *err)
{
    struct cpu_devset *ds;
    int r;

    if (config->threads < 1)
        return err_set(err, -EINVAL, "the cpu backend needs at least 1 thread");
    ds = xcalloc(1, sizeof *ds);
    ds->base.backend = &backend_cpu;
    ds->base.n_devices = config->n_devices;
    ds->n_streams = LANE_COUNT * config->n_devices + 1;
    ds->fill = config->delay_seed != 0;
    snprintf(ds->numerics, sizeof ds->numerics, "cpu %s", cpu_numerics());
    r = open_parts(ds, config, err);
    if (r < 0) {
        destroy(ds);
        return r;
    }
    *ret = &ds->base;
    return 0;
}

static void wait_all(struct cpu_devset *ds)
{
    for (uint32_t i = 0; i < ds->n_streams; i++)
        stream_await(ds->streams[i].stream, stream_pushed(ds->streams[i].stream));
}

static void cpu_close(struct devset *base)
{
    struct cpu_devset *ds = cpu(base);

    /* Wait until all streams are empty before stopping any stream. If a stream were stopped while another
     * stream waits for it, that wait would never end. */
    wait_all(ds);
    for (uint32_t d = 0; d < base->n_devices; d++)
        if (!guarded_intact(&ds->arenas[d]))
            log_error("device %" PRIu32 ": something wrote in front of its arena; do not trust the results",
                      d);
    destroy(ds);
}

static const char *numerics(const struct devset *base)
{
    return cpu_const(base)->numerics;
}

/* ---- enqueueing ---- */

static int launch(struct devset *base, uint32_t stream, const struct op_call *call)
{
    if (!op_has_only(call, 1u << DTYPE_F32 | 1u << DTYPE_BF16 | 1u << DTYPE_F16))
        return -EINVAL;
    stream_push(cpu(base)->streams[stream].stream,
                &(struct stream_command){.kind = COMMAND_LAUNCH, .launch = *call});
    return 0;
}

static int copy(struct devset *base, uint32_t stream, void *dst, const void *src, uint64_t bytes)
{
    const bool stays = backend_copy_stays(base, stream, dst);

    stream_push(cpu(base)->streams[stream].stream,
                &(struct stream_command){.kind = COMMAND_COPY,
                                         .copy = {.dst = dst, .src = src, .bytes = bytes, .stays = stays}});
    return 0;
}

static int discard(struct devset *base, uint32_t stream, void *at, uint64_t bytes)
{
    if (cpu(base)->fill)
        stream_push(cpu(base)->streams[stream].stream,
                    &(struct stream_command){.kind = COMMAND_DISCARD, .discard = {.at = at, .bytes = bytes}});
    return 0;
}

static int mark(struct devset *base, uint32_t stream, uint64_t *at)
{
    stream_push(cpu(base)->streams[stream].stream,
                &(struct stream_command){.kind = COMMAND_MARK, .mark = at});
    return 0;
}

static int create_event(struct devset *base, struct event **ret)
{
    (void)base;
    *ret = (struct event *)xcalloc(1, sizeof(struct cpu_event));
    return 0;
}

static void destroy_event(struct devset *base, struct event *e)
{
    (void)base;
    free(e);
}

static int record(struct devset *base, uint32_t stream, struct event *event)
{
    struct cpu_event *e = cpu_event(event);

    e->on = cpu(base)->streams[stream].stream;
    e->position = stream_pushed(e->on);
    return 0;
}

/* Enqueues the wait even if the event has already happened. Otherwise the timing of a run would decide which
 * waits are enqueued. An enqueued wait could then hide from the thread sanitizer that another wait is
 * missing. */
static int wait(struct devset *base, uint32_t stream, struct event *event)
{
    const struct cpu_event *e = cpu_event(event);
    struct stream *s = cpu(base)->streams[stream].stream;

    /* No wait is needed for an event that was never recorded. No wait is needed for an event of the same
     * stream either, because the commands of a stream run in order. */
    if (e->position == 0 || e->on == s)
        return 0;
    stream_push(
        s, &(struct stream_command){.kind = COMMAND_WAIT, .wait = {.on = e->on, .position = e->position}});
    return 0;
}

static int sync_event(struct devset *base, struct event *event)
{
    const struct cpu_event *e = cpu_event(event);

    (void)base;
    if (e->position != 0)
        stream_await(e->on, e->position);
    return 0;
}

/* ---- results ---- */

/* Waits until all streams are empty. The commands of the cpu backend cannot fail. The only possible error is
 * that the guard bytes in front of an arena were overwritten. */
static int drain(struct devset *base)
{
    struct cpu_devset *ds = cpu(base);

    wait_all(ds);
    for (uint32_t d = 0; d < base->n_devices; d++)
        if (!guarded_intact(&ds->arenas[d]))
            return -EFAULT;
    return 0;
}

static uint64_t read_counter(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void counters(const struct devset *base, uint32_t device, struct device_counters *ret)
{
    const struct cpu_stream *lanes = &cpu_const(base)->streams[(size_t)device * LANE_COUNT];

    *ret = (struct device_counters){
        .in_bytes = read_counter(&lanes[LANE_IN].copied_bytes),
        .out_bytes = read_counter(&lanes[LANE_OUT].copied_bytes),
        .peer_bytes = read_counter(&lanes[LANE_PEER].copied_bytes),
        .compute_busy_ns = read_counter(&lanes[LANE_COMPUTE].busy_ns),
        .compute_wait_ns = read_counter(&lanes[LANE_COMPUTE].wait_ns),
    };
}

static int host_alloc(struct devset *base, uint64_t bytes, void **ret, struct err *err)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)base;
    if (p == MAP_FAILED)
        return err_set(err, -ENOMEM, "this machine cannot provide %" PRIu64 " bytes of host memory", bytes);
    madvise(p, bytes, MADV_HUGEPAGE);
    *ret = p;
    return 0;
}

static void host_free(struct devset *base, void *p, uint64_t bytes)
{
    (void)base;
    munmap(p, bytes);
}

static void release(struct devset *base)
{
    struct cpu_devset *ds = cpu(base);

    for (uint32_t d = 0; d < base->n_devices; d++)
        guarded_finish(&ds->arenas[d]);
}

static int acquire(struct devset *base, const uint64_t *capacity_bytes, struct err *err)
{
    for (uint32_t d = 0; d < base->n_devices; d++) {
        int r = open_arena(cpu(base), d, capacity_bytes[d], err);
        if (r < 0) {
            release(base);
            return r;
        }
    }
    return 0;
}

/* Reports that the machine has no devices of this backend. Virtual devices exist only after cpu_open has made
 * them. */
static int probe(uint64_t asked, struct device_info *ret, uint32_t max, uint32_t *ret_n, struct err *err)
{
    (void)asked;
    (void)ret;
    (void)max;
    (void)err;
    *ret_n = 0;
    return 0;
}

const struct backend backend_cpu = {
    .name = "cpu",
    .probe = probe,
    .open = cpu_open,
    .close = cpu_close,
    .numerics = numerics,
    .launch = launch,
    .copy = copy,
    .discard = discard,
    .mark = mark,
    .drain = drain,
    .counters = counters,
    .event_create = create_event,
    .event_destroy = destroy_event,
    .event_record = record,
    .event_wait = wait,
    .event_sync = sync_event,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .release = release,
    .acquire = acquire,
};
