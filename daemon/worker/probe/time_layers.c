/* Implements time_layers.h: times layers and updates.
 *
 * All repetitions of a task are enqueued before the program waits for any of them. The stream never runs dry,
 * so the time between two marks is the task alone, without the time to enqueue it. The number of repetitions
 * is odd, at least three, and as large as a time budget allows. A few runs before them load code and warm up
 * the caches; they are not counted.
 *
 * The times must be those of a training step. There, all other layers pass through the caches before a layer
 * runs again. Its weights, gradients and saved values come from memory, but the values that the neighbouring
 * layer has just written are still in the caches. Therefore the repetitions cycle through several copies of
 * the former, TIMER_COLD_BYTES in all if there is enough memory, and share one copy of the latter.
 */
#include "daemon/worker/probe/time_layers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/device.h"
#include "kernels/half.h"

#define BUDGET_NS 300000000ull /* time budget of one measurement */

/* The number of repetitions that run first and do not count. They warm up the caches, and on the cpu they
 * also try several algorithms. */
#define WARM_UP 4

#define LEAST 3  /* fewest repetitions */
#define MOST  25 /* most repetitions */

struct timer {
    struct devset *devices;
    enum dtype dtype; /* of the numbers with which memory is filled */
    void *host;
    uint64_t bytes;        /* size of `host` */
    uint64_t device_bytes; /* memory on the device */
    struct step_args step; /* arguments of every measured task */
    /* For each repetition, the time of its begin and of its end. run_repetitions replaces them by the
     * durations. */
    uint64_t marks[2 * MOST];
};

/* ---- memory ---- */

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + DEVICE_ALIGN - 1) & ~(uint64_t)(DEVICE_ALIGN - 1);
}

/* Returns how many bytes of scratch memory are enough for both the forward pass and the backward pass of a
 * layer. */
static uint64_t scratch_bytes(const struct layer_sizes *s)
{
    uint64_t fwd = s->scratch_fwd > s->room ? s->scratch_fwd : s->room;
    return fwd > s->scratch_bwd ? fwd : s->scratch_bwd;
}

uint64_t timer_layer_bytes(const struct layer *l, uint32_t rows)
{
    struct layer_sizes s;
    layer_type(l)->sizes(l, rows, &s);
    return aligned(s.w) + aligned(layer_dw_bytes(&s)) + 2 * aligned(s.x) + 2 * aligned(s.y) + aligned(s.s) +
           aligned(s.b) + aligned(scratch_bytes(&s)) + aligned(s.target) + aligned(s.result);
}

/* Returns the size in bytes of the gradient of `w_bytes` bytes of weights. */
static uint64_t dw_bytes(enum dtype w_dtype, uint64_t w_bytes)
{
    return dtype_elements(w_dtype, w_bytes) * dtype_size(LAYER_DW_DTYPE);
}

static uint64_t k_bytes(const struct optimizer *o, enum dtype w_dtype, uint64_t w_bytes)
{
    return optimizer_k_bytes(o, dtype_elements(w_dtype, w_bytes));
}

uint64_t timer_update_bytes(const struct optimizer *o, enum dtype w_dtype, uint64_t w_bytes)
{
    return aligned(w_bytes) + aligned(dw_bytes(w_dtype, w_bytes)) + aligned(k_bytes(o, w_dtype, w_bytes));
}

/* Returns how many bytes of a layer's operands are outside the processor's caches in training. In a
 * measurement, these operands must be outside the caches too. Therefore the repetitions of a measurement use
 * several copies of the operands in turn. */
static uint64_t layer_cold_bytes(const struct layer_sizes *s)
{
    return aligned(s->w) + aligned(layer_dw_bytes(s)) + aligned(s->x) + aligned(s->s);
}

/* Returns how many copies of an operand of `bytes` bytes a measurement uses in turn. All copies together must
 * fit into `available` bytes. The copies take at most TIMER_COLD_BYTES together, because more copies would
 * not make the measurement better. */
static uint32_t count_copies(uint64_t bytes, uint64_t available)
{
    uint64_t n = bytes > 0 ? (available < TIMER_COLD_BYTES ? available : TIMER_COLD_BYTES) / bytes : 1;
    return n < 1 ? 1 : n > MOST ? MOST : (uint32_t)n;
}

/* Hands out blocks of the memory that a measurement uses. `at` is the address of the next free byte. */
struct blocks {
    char *at;
};

/* Takes an aligned block of `bytes` bytes from `b` and returns its address. Returns NULL if `bytes` is 0. */
static void *take(struct blocks *b, uint64_t bytes)
{
    void *p = b->at;
    b->at += aligned(bytes);
    return bytes > 0 ? p : NULL;
}

/* Fills host memory with numbers between 0.25 and 0.5. Such numbers cause no infinities and no slow
 * denormals, and they are valid as AdamW's second moments, which must not be negative. If the numbers have 16
 * bits, each pair of them is also a float that is small, but neither negative nor denormal. */
static void fill(struct timer *t, uint64_t bytes)
{
    const uint64_t size = dtype_size(t->dtype);
    for (uint64_t i = 0; i < bytes / size; i++) {
        const float v = 0.25f + (float)(i * 2654435761u >> 8 & 1023) / 4096;
        half_round(t->dtype, &v, (char *)t->host + i * size, 1);
    }
}

static int copy_in(struct timer *t, void *to, const void *from, uint64_t bytes)
{
    int r = devset_copy(t->devices, LANE_IN, to, from, bytes), d = devset_drain(t->devices);
    return r < 0 ? r : d;
}

static int open_devices(const struct timer_config *c, struct timer *t, struct err *err)
{
    t->bytes = aligned(c->bytes > TIMER_COLD_BYTES ? c->bytes : TIMER_COLD_BYTES);
    t->device_bytes = aligned(c->device_bytes);
    struct devset_config d = {.backend = c->backend,
                              .n_devices = 1,
                              .capacity_bytes = {t->device_bytes},
                              .threads = c->threads,
                              .tf32 = c->tf32,
                              .device_index = c->device_index};
    int r = devset_open(&d, &t->devices, err);
    if (r < 0)
        return r;
    r = devset_host_alloc(t->devices, t->bytes, &t->host, err);
    if (r < 0)
        return r;
    fill(t, t->bytes);
    return 0;
}

int timer_open(const struct timer_config *c, struct timer **ret, struct err *err)
{
    struct timer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return err_set(err, -ENOMEM, "no memory to measure with");
    t->dtype = c->dtype;
    t->step = (struct step_args){.lr = 1e-6f, .grad_scale = 1e-3f, .valid_rows = UINT32_MAX, .training = 1};
    int r = open_devices(c, t, err);
    if (r < 0) {
        timer_close(t);
        return r;
    }
    *ret = t;
    return 0;
}

void timer_close(struct timer *t)
{
    if (t == NULL)
        return;
    if (t->devices != NULL && t->host != NULL)
        devset_host_free(t->devices, t->host, t->bytes);
    devset_close(t->devices);
    free(t);
}

/* ---- timing ---- */

/* A task whose duration is measured: one pass of a layer, or an optimizer update. */
struct timed_task {
    struct timer *timer;
    uint32_t stream;
    const struct layer *layer; /* NULL if the task is an update */
    bool backward;
    const struct optimizer *optimizer;
    uint32_t turn;   /* number of the next repetition */
    uint32_t copies; /* repetition i uses copy i % copies */
    struct layer_io io[MOST];
    struct optimizer_io update[MOST];
};

static int launch(void *ctx, const struct op_call *call)
{
    const struct timed_task *w = ctx;
    return devset_launch(w->timer->devices, w->stream, call);
}

/* Enqueues the forward pass of a layer in the same way as training does. Some loss layers compute their
 * result only in the backward pass. The forward pass of such a layer gets no memory for a result. */
static int run_forward(const struct timed_task *w, const struct layer_io *io, const struct op_sink *sink)
{
    struct layer_io in = *io;
    if (layer_type(w->layer)->loss_in_bwd)
        in.result = NULL;
    return layer_type(w->layer)->fwd(w->layer, &in, sink);
}

static int enqueue(struct timed_task *w)
{
    const struct op_sink sink = {launch, w};
    uint32_t i = w->turn++ % w->copies;
    if (w->layer == NULL)
        return optimizer_update(w->optimizer, &w->timer->step, &w->update[i], &sink);
    return w->backward ? layer_type(w->layer)->bwd(w->layer, &w->io[i], &sink)
                       : run_forward(w, &w->io[i], &sink);
}

/* Runs the task `n` times, records when each repetition begins and ends, and turns these times into `n`
 * durations. */
static int run_repetitions(struct timed_task *w, uint32_t n)
{
    struct timer *t = w->timer;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < n; i++) {
        r = devset_mark(t->devices, w->stream, &t->marks[2 * (size_t)i]);
        if (r == 0)
            r = enqueue(w);
        if (r == 0)
            r = devset_mark(t->devices, w->stream, &t->marks[2 * i + 1]);
    }
    int d = devset_drain(t->devices);
    for (uint32_t i = 0; i < n; i++)
        t->marks[i] = t->marks[2 * (size_t)i + 1] - t->marks[2 * (size_t)i];
    return r < 0 ? r : d;
}

static int compare_ns(const void *pa, const void *pb)
{
    uint64_t a = *(const uint64_t *)pa, b = *(const uint64_t *)pb;
    return a < b ? -1 : a > b;
}

/* Measures the duration of the task several times and stores the median in *ret_s, in seconds. */
static int time_task(struct timed_task *w, double *ret_s, struct err *err)
{
    uint64_t *took = w->timer->marks;
    int r = run_repetitions(w, WARM_UP);
    uint64_t n = BUDGET_NS / (took[WARM_UP - 1] + 1);
    n = (n < LEAST ? LEAST : n > MOST ? MOST : n) | 1;
    if (r == 0)
        r = run_repetitions(w, (uint32_t)n);
    if (r < 0)
        return err_set(err, r, "the device failed while measuring: %s", strerror(-r));
    qsort(took, n, sizeof *took, compare_ns);
    *ret_s = (double)took[n / 2] * 1e-9;
    return 0;
}

/* Gives every operand of a layer an address on the device. The target and the result come last. The operands
 * before the target consist of floats. Returns the number of bytes of these operands. */
static uint64_t lay_out(struct timed_task *w, const struct layer_sizes *s, bool dx, uint32_t rows)
{
    struct timer *t = w->timer;
    struct blocks b = {devset_address(t->devices, 0, 0)};
    char *begin = b.at;
    struct layer_io io = {.step = &t->step, .rows = rows, .accumulate = true};
    void *input_grad = take(&b, s->x);
    io.dx = dx ? input_grad : NULL;
    io.y = take(&b, s->y);
    io.dy = take(&b, s->y);
    io.scratch = take(&b, scratch_bytes(s));
    io.b = take(&b, s->b);
    uint64_t cold = layer_cold_bytes(s), behind = aligned(s->target) + aligned(s->result);
    w->copies = count_copies(cold, t->device_bytes - (uint64_t)(b.at - begin) - behind);
    for (uint32_t i = 0; i < w->copies; i++) {
        w->io[i] = io;
        w->io[i].w = take(&b, s->w);
        w->io[i].dw = take(&b, layer_dw_bytes(s));
        w->io[i].x = take(&b, s->x);
        w->io[i].s = take(&b, s->s);
    }
    uint64_t filled = (uint64_t)(b.at - begin);
    const void *target = take(&b, s->target);
    void *result = take(&b, s->result);
    for (uint32_t i = 0; i < w->copies; i++) {
        w->io[i].target = target;
        w->io[i].result = result;
    }
    return filled;
}

/* Fills the first `bytes` bytes of device memory with floats. Fills the target, which follows these bytes,
 * with zeros, because class 0 is valid for every loss. */
static int fill_device(struct timer *t, uint64_t bytes, uint64_t target_bytes)
{
    int r = 0;
    for (uint64_t at = 0; r == 0 && at < bytes; at += t->bytes)
        r = copy_in(t, devset_address(t->devices, 0, at), t->host,
                    bytes - at < t->bytes ? bytes - at : t->bytes);
    if (r < 0 || target_bytes == 0)
        return r;
    memset(t->host, 0, target_bytes);
    r = copy_in(t, devset_address(t->devices, 0, bytes), t->host, target_bytes);
    fill(t, aligned(target_bytes));
    return r;
}

/* Fills every copy of an embedding's input with token ids that are spread over the whole vocabulary. */
static int fill_ids(struct timed_task *w, const struct layer *l, uint64_t bytes)
{
    int32_t *ids = w->timer->host;
    int r = 0;
    for (uint64_t i = 0; i < bytes / sizeof *ids; i++)
        ids[i] = (int32_t)(i * 2654435761u % l->embedding.vocab);
    for (uint32_t i = 0; r == 0 && i < w->copies; i++)
        r = copy_in(w->timer, (void *)(uintptr_t)w->io[i].x, ids, bytes);
    fill(w->timer, aligned(bytes));
    return r;
}

int timer_layer(struct timer *t, const struct layer *l, bool dx, uint32_t rows, double *ret_fwd_s,
                double *ret_bwd_s, struct err *err)
{
    struct layer_sizes s;
    struct timed_task w = {.timer = t, .stream = LANE_COMPUTE, .layer = l};
    layer_type(l)->sizes(l, rows, &s);
    if (timer_layer_bytes(l, rows) > t->device_bytes)
        return err_set(err, -ENOSPC, "the layer is larger than the memory for measuring");
    int r = fill_device(t, lay_out(&w, &s, dx, rows), s.target);
    if (r == 0 && s.x_dtype == DTYPE_I32)
        r = fill_ids(&w, l, s.x);
    if (r < 0)
        return err_set(err, r, "a copy failed while measuring: %s", strerror(-r));
    r = time_task(&w, ret_fwd_s, err);
    w.backward = true;
    return r < 0 ? r : time_task(&w, ret_bwd_s, err);
}

static int time_update_at(struct timer *t, const struct optimizer *o, enum dtype w_dtype, uint64_t w_bytes,
                          uint32_t stream, void *at, uint64_t available, double *ret_s, struct err *err)
{
    struct blocks b = {at};
    struct timed_task w = {.timer = t, .stream = stream, .optimizer = o};
    w.copies = count_copies(timer_update_bytes(o, w_dtype, w_bytes), available);
    for (uint32_t i = 0; i < w.copies; i++) {
        struct optimizer_io *io = &w.update[i];
        io->n = dtype_elements(w_dtype, w_bytes);
        io->dtype = w_dtype;
        io->w = take(&b, w_bytes);
        io->g = (struct op_gradients){.dw = {take(&b, dw_bytes(w_dtype, w_bytes))}, .n = 1};
        optimizer_split(o, take(&b, k_bytes(o, w_dtype, w_bytes)), io);
    }
    return time_task(&w, ret_s, err);
}

int timer_update(struct timer *t, const struct optimizer *o, enum dtype w_dtype, uint64_t w_bytes,
                 double *ret_host_s, double *ret_device_s, struct err *err)
{
    uint64_t bytes = timer_update_bytes(o, w_dtype, w_bytes);
    void *device = devset_address(t->devices, 0, 0);
    int r = 0;
    if (bytes > t->bytes)
        return err_set(err, -ENOSPC, "the update is larger than the memory for measuring");
    *ret_device_s = 0;
    if (bytes <= t->device_bytes) {
        r = fill_device(t, count_copies(bytes, t->device_bytes) * bytes, 0);
        r = r < 0 ? err_set(err, r, "a copy failed while measuring: %s", strerror(-r))
                  : time_update_at(t, o, w_dtype, w_bytes, LANE_COMPUTE, device, t->device_bytes,
                                   ret_device_s, err);
    }
    /* The first LANE_COUNT streams belong to the only device, so the host's stream has the number
     * LANE_COUNT. */
    if (r == 0)
        r = time_update_at(t, o, w_dtype, w_bytes, LANE_COUNT, t->host, t->bytes, ret_host_s, err);
    fill(t, count_copies(bytes, t->bytes) * bytes);
    return r;
}

uint64_t timer_host_copy(struct timer *t)
{
    uint64_t best = UINT64_MAX, half = t->bytes / 2;
    for (int i = 0; i < LEAST + 1; i++) {
        uint64_t begin = clock_now_ns();
        memcpy((char *)t->host + half, t->host, half);
        uint64_t took = clock_now_ns() - begin;
        if (i > 0 && took < best)
            best = took;
    }
    fill(t, t->bytes);
    return (uint64_t)((double)half * 1e9 / (double)(best + 1)) + 1;
}
