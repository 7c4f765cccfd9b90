/* Turns the tasks of a Harmony schedule into operations on the timeline and runs them. docs/simulator.md
 * states the rules in words.
 *
 * There are two passes over the tasks. The first makes the operations, task by task. A stream runs its
 * operations in the order in which they are made. The second pass adds the waits. By then all operations have
 * numbers, including those on other devices.
 *
 * A transfer between devices occupies a stream on both. The receiver's operation takes no time and waits for
 * the sender's. The sender's operation waits for everything that the receiver's would wait for, including its
 * predecessor in the stream.
 */
#include <errno.h>

#include "base/arena.h"
#include "base/vec.h"
#include "scheduler/predict/harmony_private.h"
#include "scheduler/predict/timeline.h"
#include "scheduler/rate.h"

enum rules_lane { AT_COMPUTE, AT_CPU, AT_IN, AT_OUT, AT_PEER_IN, AT_PEER_OUT, AT_COUNT };
enum rules_resource { ALL_IN, ALL_OUT, HOST_COPY, RESOURCES };

/* A wait: operation `op` may start only when operation `after` is done. */
struct edge {
    uint32_t op, after;
};

/* The state of one rules_simulate. */
struct rules {
    struct rules_tasks g;
    enum rules_sharing sharing;
    struct arena *arena;
    /* The times and sizes of the layers: points[0][l] is for layer l with a forward micro-batch, and
     * points[1][l] with a backward micro-batch. */
    struct table_point *points[2];
    VEC(struct timeline_op) ops;
    /* before.at[i] is the operation before operation i in the same stream, or NO_OP. */
    VEC(uint32_t) before;
    VEC(struct edge) edges;
    uint32_t *last_op; /* per stream: its last operation, or NO_OP */
    uint64_t compute_ns;
    uint64_t in_bytes, out_bytes, peer_bytes;
};

/* ---- sizes and durations ---- */

static const struct table_point *point(const struct rules *r, uint32_t layer, uint32_t micro)
{
    return &r->points[micro == r->g.schedule->micro_fwd ? 0 : 1][layer];
}

/* Returns the size in bytes of a layer's input, for `micro` samples. Returns 0 if `layer` is the number after
 * the last layer. */
static uint64_t x_bytes(const struct rules *r, uint32_t layer, uint32_t micro)
{
    return layer < r->g.table->n_layers ? point(r, layer, micro)->x : 0;
}

static uint64_t w_bytes(const struct rules *r, const struct rules_task *t)
{
    uint64_t bytes = 0;
    for (uint32_t l = t->first; l <= t->last; l++)
        bytes += r->g.table->layers[l].w + r->g.table->layers[l].b;
    return bytes;
}

/* Returns the bytes that leave a device after a backward pass: gradients and buffers. */
static uint64_t dw_bytes(const struct rules *r, const struct rules_task *t)
{
    uint64_t bytes = 0;
    for (uint32_t l = t->first; l <= t->last; l++)
        bytes += table_dw(r->g.table, l) + r->g.table->layers[l].b;
    return bytes;
}

static uint64_t fwd_ns(const struct rules *r, uint32_t first, uint32_t last, uint32_t micro)
{
    uint64_t ns = 0;
    for (uint32_t l = first; l <= last; l++)
        ns = ns_add(ns, point(r, l, micro)->fwd_ns);
    return ns;
}

static uint64_t bwd_ns(const struct rules *r, const struct rules_task *t)
{
    uint64_t ns = 0;
    for (uint32_t l = t->first; l <= t->last; l++)
        ns = ns_add(ns, point(r, l, t->micro)->bwd_ns);
    return ns;
}

static uint64_t update_ns(const struct rules *r, const struct rules_task *t)
{
    uint64_t ns = 0;
    for (uint32_t l = t->first; l <= t->last; l++)
        ns = ns_add(ns, point(r, l, t->micro)->upd_host_ns);
    return ns;
}

/* ---- making operations ---- */

static uint32_t add_op(struct rules *r, const struct rules_task *t, enum rules_lane lane, uint64_t ns)
{
    uint32_t id = (uint32_t)r->ops.n, stream = t->device * AT_COUNT + lane;
    vec_push(&r->ops, (struct timeline_op){.stream = stream, .fixed_ns = ns});
    vec_push(&r->before, r->last_op[stream]);
    r->last_op[stream] = id;
    return id;
}

/* Adds an operation that moves bytes over a resource with `per_s` bytes per second, which all busy devices
 * share. */
static uint32_t add_shared(struct rules *r, const struct rules_task *t, enum rules_lane lane, uint64_t bytes,
                           enum rules_resource resource, uint64_t per_s)
{
    /* With a fixed rate, each of the busy devices gets an equal part of the bandwidth. */
    if (r->sharing == RULES_STATIC || !r->g.pipeline) {
        uint64_t part = per_s / r->g.n_busy;
        return add_op(r, t, lane, rate_ns(bytes, part > 0 ? part : 1));
    }
    uint32_t id = add_op(r, t, lane, 0);
    r->ops.at[id].bytes = bytes;
    r->ops.at[id].uses[0] = resource;
    r->ops.at[id].n_uses = 1;
    return id;
}

static uint32_t add_in(struct rules *r, const struct rules_task *t, uint64_t bytes)
{
    r->in_bytes += bytes;
    return add_shared(r, t, AT_IN, bytes, ALL_IN, r->g.table->link_bytes_per_s);
}

static uint32_t add_out(struct rules *r, const struct rules_task *t, uint64_t bytes)
{
    r->out_bytes += bytes;
    return add_shared(r, t, AT_OUT, bytes, ALL_OUT, r->g.table->link_bytes_per_s);
}

static uint32_t add_send(struct rules *r, const struct rules_task *t, uint64_t bytes)
{
    r->peer_bytes += bytes;
    return add_op(r, t, AT_PEER_OUT, rate_ns(bytes, r->g.table->peer_bytes_per_s));
}

static uint32_t add_compute(struct rules *r, const struct rules_task *t, uint64_t ns)
{
    r->compute_ns = ns_add(r->compute_ns, ns);
    return add_op(r, t, AT_COMPUTE, ns);
}

/* Adds a transfer through host memory, from the process of task `from` to the process of task `to`. Within
 * one device, it takes no time. */
static uint32_t add_handing(struct rules *r, const struct rules_task *from, const struct rules_task *to,
                            uint64_t bytes)
{
    if (from->device == to->device)
        return add_op(r, from, AT_CPU, 0);
    return add_shared(r, from, AT_CPU, 2 * bytes, HOST_COPY, r->g.table->host_copy_bytes_per_s);
}

static uint32_t *new_ids(struct rules *r, uint64_t n)
{
    uint32_t *ids = arena_alloc_array(r->arena, n, sizeof *ids);
    for (uint64_t i = 0; i < n; i++)
        ids[i] = NO_OP;
    return ids;
}

static void make_ids(struct rules *r, struct rules_task *t)
{
    uint64_t micros = t->n_micro, parts = t->kind == TASK_FWD ? t->n_parts : 1;
    uint64_t taken = r->g.at[r->g.n - 1].n_micro; /* number of backward micro-batches */
    t->x = new_ids(r, micros);
    t->dy = new_ids(r, micros);
    t->fwd = new_ids(r, micros * parts);
    t->bwd = new_ids(r, micros);
    t->stash = new_ids(r, micros * parts);
    t->handed = new_ids(r, taken * parts);
    t->y = new_ids(r, micros);
    t->y_handed = new_ids(r, taken);
    t->w = t->reduce = t->dw = t->end = t->update = NO_OP;
}

static bool is_first(const struct rules *r, const struct rules_task *t)
{
    return t == r->g.at;
}

static bool is_last_forward(const struct rules_task *t)
{
    /* t[1] exists: the backward tasks follow the forward tasks in the array, so a forward task is never the
     * last. */
    return t->kind == TASK_FWD && t[1].kind == TASK_LOSS;
}

/* Returns whether the previous device sends the task its input directly. The input of a backward task is the
 * gradient of its output. */
static bool comes_by_peer(const struct rules *r, const struct rules_task *t)
{
    return r->g.pipeline && !is_first(r, t) && !(t->kind == TASK_LOSS && r->g.last_by_host);
}

static uint32_t add_input(struct rules *r, const struct rules_task *t)
{
    if (t->kind != TASK_BWD && comes_by_peer(r, t))
        return add_op(r, t, AT_PEER_IN, 0);
    return add_in(r, t, x_bytes(r, t->first, t->micro));
}

/* Returns the number of backward micro-batches that lie completely before forward micro-batch `i`: 6 for i =
 * 3, if forward micro-batches have 4 samples and backward ones 2. */
static uint32_t taken_before(const struct rules *r, uint32_t i)
{
    return (uint32_t)((uint64_t)i * r->g.schedule->micro_fwd / r->g.schedule->micro_bwd);
}

static void add_stash(struct rules *r, struct rules_task *t, uint32_t i)
{
    uint32_t micro_bwd = r->g.schedule->micro_bwd;
    for (uint32_t k = 0; k < t->n_parts; k++) {
        const struct rules_part *p = &t->parts[k];
        if (p->taker == NO_OP)
            continue;
        t->stash[i * t->n_parts + k] = add_out(r, t, x_bytes(r, p->first, t->micro));
        for (uint32_t j = taken_before(r, i); j < taken_before(r, i + 1); j++)
            t->handed[j * t->n_parts + k] =
                add_handing(r, t, &r->g.at[p->taker], x_bytes(r, p->first, micro_bwd));
    }
}

static void add_output(struct rules *r, struct rules_task *t, uint32_t i)
{
    uint64_t bytes = x_bytes(r, t->last + 1, t->micro);
    if (!r->g.pipeline) {
        t->y[i] = add_out(r, t, bytes);
        return;
    }
    if (!is_last_forward(t) || !r->g.last_by_host) {
        t->y[i] = add_send(r, t, bytes);
        return;
    }
    t->y[i] = add_out(r, t, bytes);
    for (uint32_t j = taken_before(r, i); j < taken_before(r, i + 1); j++)
        t->y_handed[j] = add_handing(r, t, t + 1, x_bytes(r, t->last + 1, r->g.schedule->micro_bwd));
}

static void add_forward(struct rules *r, struct rules_task *t)
{
    bool w_first = r->g.pipeline || t->left == NULL;
    if (w_first)
        t->w = add_in(r, t, w_bytes(r, t));
    for (uint32_t i = 0; i < t->n_micro; i++) {
        t->x[i] = add_input(r, t);
        if (i == 0 && !w_first)
            t->w = add_in(r, t, w_bytes(r, t));
        for (uint32_t k = 0; k < t->n_parts; k++)
            t->fwd[i * t->n_parts + k] =
                add_compute(r, t, fwd_ns(r, t->parts[k].first, t->parts[k].last, t->micro));
        add_stash(r, t, i);
        add_output(r, t, i);
    }
    t->end = add_op(r, t, AT_COMPUTE, r->g.schedule->task_ns);
}

static void add_gradient(struct rules *r, struct rules_task *t, uint32_t i)
{
    if (t->first == 0)
        return;
    uint64_t bytes = x_bytes(r, t->first, t->micro);
    t->y[i] = r->g.pipeline ? add_send(r, t, bytes) : add_out(r, t, bytes);
}

static uint32_t add_gradient_in(struct rules *r, const struct rules_task *t)
{
    if (r->g.pipeline)
        return add_op(r, t, AT_PEER_IN, 0);
    return add_in(r, t, x_bytes(r, t->last + 1, t->micro));
}

/* Adds the operation that sums the gradients of all n busy devices. In a ring, each device sends 2 (n - 1) /
 * n times their size. */
static void add_reduction(struct rules *r, struct rules_task *t)
{
    uint64_t n = r->g.n_busy, bytes = dw_bytes(r, t);
    if (r->g.pipeline || n == 1)
        return;
    unsigned __int128 moved = (unsigned __int128)bytes * 2 * (n - 1) / n;
    t->reduce = add_op(r, t, AT_COMPUTE, rate_ns((uint64_t)moved, r->g.table->peer_bytes_per_s));
}

static void add_backward(struct rules *r, struct rules_task *t)
{
    bool w_first = t->left == NULL || (r->g.pipeline && t->kind == TASK_LOSS);
    if (w_first)
        t->w = add_in(r, t, w_bytes(r, t));
    for (uint32_t i = 0; i < t->n_micro; i++) {
        t->x[i] = add_input(r, t);
        if (t->kind == TASK_BWD)
            t->dy[i] = add_gradient_in(r, t);
        if (i == 0 && !w_first)
            t->w = add_in(r, t, w_bytes(r, t));
        t->fwd[i] = add_compute(r, t, fwd_ns(r, t->first, t->last, t->micro));
        t->bwd[i] = add_compute(r, t, bwd_ns(r, t));
        add_gradient(r, t, i);
    }
    add_reduction(r, t);
    t->dw = add_out(r, t, dw_bytes(r, t));
    t->end = add_op(r, t, AT_COMPUTE, r->g.schedule->task_ns);
    t->update = add_op(r, t, AT_CPU, update_ns(r, t));
}

static void add_ops(struct rules *r)
{
    for (uint32_t i = 0; i < r->g.n; i++) {
        make_ids(r, &r->g.at[i]);
        if (r->g.at[i].kind == TASK_FWD)
            add_forward(r, &r->g.at[i]);
        else
            add_backward(r, &r->g.at[i]);
    }
}

/* ---- waits ---- */

/* Makes operation `op` wait for operation `what`. Does nothing if one of them is NO_OP. */
static void after(struct rules *r, uint32_t op, uint32_t what)
{
    if (op != NO_OP && what != NO_OP)
        vec_push(&r->edges, (struct edge){op, what});
}

/* Returns the last compute operation of a task for micro-batch `i`. */
static uint32_t computed(const struct rules_task *t, uint32_t i)
{
    return t->kind == TASK_FWD ? t->fwd[(i + 1) * t->n_parts - 1] : t->bwd[i];
}

/* Makes `op`, a fetch for the first micro-batch of task `t`, wait until the previous task on the device is
 * done with all micro-batches but the last. */
static void after_last_but_one(struct rules *r, uint32_t op, const struct rules_task *t)
{
    if (t->left == NULL)
        return;
    if (t->left->n_micro >= 2)
        after(r, op, computed(t->left, t->left->n_micro - 2));
    else if (t->left2 != NULL)
        after(r, op, t->left2->end);
}

/* Makes `op`, which fetches the input of micro-batch `i`, wait for a free buffer. There are two buffers, so
 * `op` waits until micro-batch i - 2 is done. */
static void after_buffers(struct rules *r, uint32_t op, const struct rules_task *t, uint32_t i)
{
    if (i == 0)
        after_last_but_one(r, op, t);
    else if (i >= 2)
        after(r, op, computed(t, i - 2));
    else if (t->left != NULL)
        after(r, op, t->left->end);
}

/* Makes `op`, which fetches the output gradient of micro-batch `i`, wait until the repeated forward pass of
 * micro-batch i - 1 has freed the only gradient buffer. */
static void after_gradient_buffers(struct rules *r, uint32_t op, const struct rules_task *t, uint32_t i)
{
    if (i > 0)
        after(r, op, t->fwd[i - 1]);
    else if (t->left != NULL && (!r->g.pipeline || t->left->kind == TASK_BWD))
        after(r, op, t->left->fwd[t->left->n_micro - 1]);
    else
        after_last_but_one(r, op, t);
}

/* Combines the sending and the receiving operation of one transfer. Returns the sending operation, to which
 * all further waits must be added. */
static uint32_t meet(struct rules *r, uint32_t send, uint32_t receive)
{
    after(r, receive, send);
    after(r, send, r->before.at[receive]);
    return send;
}

static void input_waits(struct rules *r, struct rules_task *t, uint32_t i)
{
    uint32_t op = t->x[i];
    const struct rules_task *from = t - 1;
    if (t->kind == TASK_BWD)
        after(r, op, t->source->handed[i * t->source->n_parts + t->source_part]);
    else if (comes_by_peer(r, t))
        op = meet(r, from->y[i], op);
    else if (!is_first(r, t) && r->g.pipeline)
        after(r, op, from->y_handed[i]);
    else if (!is_first(r, t))
        after(r, op, from->y[t->kind == TASK_LOSS ? rules_forward_micro(&r->g, i) : i]);
    after_buffers(r, op, t, i);
}

static void gradient_waits(struct rules *r, struct rules_task *t, uint32_t i)
{
    uint32_t op = t->dy[i];
    if (op == NO_OP)
        return;
    if (r->g.pipeline)
        op = meet(r, t[-1].y[i], op);
    else
        after(r, op, t[-1].y[i]);
    after_gradient_buffers(r, op, t, i);
}

static void stash_waits(struct rules *r, struct rules_task *t, uint32_t i)
{
    for (uint32_t k = 0; k < t->n_parts; k++) {
        uint32_t op = t->stash[i * t->n_parts + k];
        if (k > 0) {
            after(r, op, t->fwd[i * t->n_parts + k - 1]);
        } else {
            after(r, op, t->x[i]);
            after(r, op, i > 0 ? computed(t, i - 1) : t->left != NULL ? t->left->end : NO_OP);
        }
        for (uint32_t j = taken_before(r, i); j < taken_before(r, i + 1); j++)
            after(r, t->handed[j * t->n_parts + k], op);
    }
    for (uint32_t j = taken_before(r, i); j < taken_before(r, i + 1); j++)
        after(r, t->y_handed[j], t->y[i]);
}

static void micro_waits(struct rules *r, struct rules_task *t, uint32_t i)
{
    uint32_t first = t->kind == TASK_FWD ? t->fwd[(size_t)i * t->n_parts] : t->fwd[i];
    if (i == 0)
        after(r, first, t->w);
    after(r, first, t->x[i]);
    input_waits(r, t, i);
    after(r, t->y[i], computed(t, i));
    if (t->kind == TASK_FWD) {
        stash_waits(r, t, i);
        return;
    }
    after(r, t->bwd[i], t->dy[i]);
    gradient_waits(r, t, i);
}

static void add_waits(struct rules *r)
{
    for (struct rules_task *t = r->g.at; t < r->g.at + r->g.n; t++) {
        if (t->left != NULL)
            after(r, t->w, computed(t->left, t->left->n_micro - 1));
        for (uint32_t i = 0; i < t->n_micro; i++)
            micro_waits(r, t, i);
        after(r, t->dw, t->kind == TASK_FWD ? NO_OP : computed(t, t->n_micro - 1));
        after(r, t->dw, t->reduce);
        after(r, t->end, t->dw);
        after(r, t->update, t->dw);
    }
}

/* ---- the result ---- */

/* Each edge says that one operation waits for another. Returns the waits of all operations in one array,
 * where the waits of the same operation stand together. */
static struct plan_wait *sort_waits(struct rules *r)
{
    struct plan_wait *waits = arena_alloc_array(r->arena, r->edges.n, sizeof *waits);
    uint32_t first = 0;
    for (size_t i = 0; i < r->edges.n; i++)
        r->ops.at[r->edges.at[i].op].n_waits++;
    for (size_t i = 0; i < r->ops.n; i++) {
        r->ops.at[i].wait = first;
        first += r->ops.at[i].n_waits;
        r->ops.at[i].n_waits = 0;
    }
    for (size_t i = 0; i < r->edges.n; i++) {
        struct timeline_op *op = &r->ops.at[r->edges.at[i].op];
        waits[op->wait + op->n_waits++].instr = r->edges.at[i].after;
    }
    return waits;
}

static int run_rules(struct rules *r, struct rules_result *ret, struct err *err)
{
    const struct rules_schedule *s = r->g.schedule;
    const uint64_t per_s[RESOURCES] = {r->g.table->link_bytes_per_s, r->g.table->link_bytes_per_s,
                                       r->g.table->host_copy_bytes_per_s};
    const struct timeline t = {
        .ops = r->ops.at,
        .waits = sort_waits(r),
        .per_s = per_s,
        .n_ops = (uint32_t)r->ops.n,
        .n_streams = r->g.n_devices * AT_COUNT,
        .n_resources = r->g.pipeline ? RESOURCES : 0,
    };
    struct timeline_result times;
    if (timeline_run(&t, 1, r->arena, &times) < 0)
        return err_set(err, -EDEADLK, "the tasks of these packs wait for each other, so none can continue");
    uint64_t copies = s->devices / r->g.n_devices; /* devices that each simulated device stands for */
    *ret = (struct rules_result){
        .iteration_ns = times.total_ns,
        .compute_share =
            times.total_ns > 0 ? (double)r->compute_ns / ((double)times.total_ns * r->g.n_devices) : 0,
        .in_bytes = r->in_bytes * copies,
        .out_bytes = r->out_bytes * copies,
        .peer_bytes = r->peer_bytes,
        .n_tasks = r->g.n,
        .n_ops = t.n_ops,
    };
    return 0;
}

static void make_points(struct rules *r)
{
    const struct table *t = r->g.table;
    for (int k = 0; k < 2; k++) {
        r->points[k] = arena_alloc_array(r->arena, t->n_layers, sizeof *r->points[k]);
        for (uint32_t l = 0; l < t->n_layers; l++)
            table_at(t, l, k == 0 ? r->g.schedule->micro_fwd : r->g.schedule->micro_bwd, &r->points[k][l]);
    }
}

int rules_simulate(const struct rules_schedule *s, const struct table *t, enum rules_sharing sharing,
                   struct rules_result *ret, struct err *err)
{
    struct rules r = {.sharing = sharing};
    int code = rules_check(s, t, err);
    if (code < 0)
        return code;
    r.arena = arena_create();
    rules_make_tasks(s, t, r.arena, &r.g);
    r.last_op = new_ids(&r, (uint64_t)r.g.n_devices * AT_COUNT);
    make_points(&r);
    add_ops(&r);
    add_waits(&r);
    code = run_rules(&r, ret, err);
    vec_free(&r.ops);
    vec_free(&r.before);
    vec_free(&r.edges);
    arena_destroy(r.arena);
    return code;
}
