/* Task orders: the functions with which policies write an order, and the merge of all locations into one
 * issue order.
 *
 * The merge is list scheduling. Each step looks at the next task of every location and, of the tasks whose
 * inputs exist, takes the task that could start earliest. The issue order only decides what the planner
 * assumes to happen at the same time, and so the lifetimes and addresses of copies. Correctness never depends
 * on it: that comes from the waits.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "scheduler/build/build.h"
#include "scheduler/rate.h"

void order_init(struct order *o, const struct graph *g, uint32_t n_devices)
{
    *o = (struct order){.graph = g, .n_devices = n_devices, .n_shares = 1};
}

uint32_t order_replica_devices(uint32_t n_replicas, uint32_t n_devices)
{
    uint32_t n = n_devices < n_replicas ? n_devices : n_replicas;
    while (n_replicas % n != 0)
        n--;
    return n;
}

void order_own(struct order *o, uint32_t n_shares)
{
    o->n_shares = n_shares;
    o->owners = xcalloc((size_t)o->graph->n_layers * n_shares, sizeof *o->owners);
}

void order_finish(struct order *o)
{
    xfree(o->owners);
    vec_free(&o->todos);
}

static void add_todo(struct order *o, struct todo t)
{
    t.step = o->all_steps ? o->step : t.step;
    t.task = graph_task_find(o->graph, t.kind, t.kind == INSTR_DECIDE ? t.group : t.layer,
                             t.kind == INSTR_RED ? t.replica : t.micro, t.step);
    assert(t.task != PLAN_NONE);
    bounded_poll();
    vec_push(&o->todos, t);
}

void order_add(struct order *o, struct todo t)
{
    t.share = SHARE_ALL;
    add_todo(o, t);
}

/* Appends task `t` for share t.share of its layer. Does nothing if this share has no bytes. */
static void order_share(struct order *o, struct todo t)
{
    tensor_id w = graph_tensor_find(o->graph, TENSOR_W, t.layer, PLAN_NONE, 0);
    struct extent e = extent_piece(o->graph, o->n_shares, w, t.share);
    if (e.begin < e.end)
        add_todo(o, t);
}

void order_repeat(struct order *o)
{
    const size_t n = o->todos.n;
    uint32_t spans = 0, items = 0;
    for (size_t i = 0; i < n; i++) {
        const struct todo *t = &o->todos.at[i];
        spans = t->span >= spans ? t->span + 1 : spans;
        items = t->item >= items ? t->item + 1 : items;
    }
    for (uint32_t step = 1; o->graph->training && !o->all_steps && step < o->graph->steps; step++)
        for (size_t i = 0; i < n; i++) {
            struct todo t = o->todos.at[i];
            t.step = step;
            t.span += step * spans;
            t.item += step * items;
            add_todo(o, t);
        }
}

void order_forward_only(const struct order *o, const struct graph *eval, struct order *ret)
{
    order_init(ret, eval, o->n_devices);
    ret->n_shares = o->n_shares;
    ret->alone = o->alone;
    if (o->owners != NULL) {
        size_t n = (size_t)eval->n_layers * o->n_shares;
        ret->owners = xcalloc(n, sizeof *ret->owners);
        memcpy(ret->owners, o->owners, n * sizeof *ret->owners);
    }
    ret->pinned = o->pinned;
    for (size_t i = 0; i < o->todos.n; i++) {
        struct todo t = o->todos.at[i];
        if (t.kind != INSTR_FWD || t.step > 0)
            continue;
        t.save = false;
        order_add(ret, t);
    }
}

/* ---- updates ---- */

bool updates_on_device(const struct plan_request *r, const bool *pinned, uint32_t layer)
{
    return r->update == UPDATE_DEVICE || (r->update == UPDATE_AUTO && pinned != NULL && pinned[layer]);
}

static struct todo update_todo(enum instr_kind kind, uint32_t layer, uint32_t loc, uint32_t span,
                               uint32_t item)
{
    return (struct todo){
        .kind = kind, .layer = layer, .micro = PLAN_NONE, .loc = loc, .span = span, .item = item};
}

static void add_decide(struct order *o, uint32_t group)
{
    struct todo t = update_todo(INSTR_DECIDE, PLAN_NONE, PLAN_HOST, 0, 0);
    t.group = group;
    order_add(o, t);
}

void order_begin_group(struct order *o, uint32_t group)
{
    const struct graph_group *g = &o->graph->groups[group];
    if (o->graph->training && g->state_bytes > 0 && !g->decision)
        add_decide(o, group);
}

void order_begin(struct order *o)
{
    for (uint32_t i = 0; i < o->graph->n_groups; i++)
        order_begin_group(o, i);
}

/* Adds the RED tasks of a replica, which add its gradients to those of replica 0. Does nothing unless `micro`
 * is the last micro-batch of the replica. */
static void reduce(struct order *o, uint32_t first, uint32_t last, uint32_t micro, uint32_t device,
                   uint32_t span, uint32_t item)
{
    const struct graph *g = o->graph;
    uint32_t replica = graph_replica(g, first, micro), each = graph_micros(g, first) / g->n_replicas;
    if (replica == 0 || (micro + 1) % each != 0)
        return;
    for (uint32_t l = last; l-- > first;) {
        struct todo t = update_todo(INSTR_RED, l, device, span, item);
        t.replica = replica;
        if (g->layers[l].backward && g->layers[l].size.w > 0)
            order_add(o, t);
    }
}

void order_gradients_done(struct order *o, const struct plan_request *r, uint32_t first, uint32_t last,
                          uint32_t micro, uint32_t device, uint32_t span, uint32_t *item)
{
    reduce(o, first, last, micro, device, span, *item);
    if (micro + 1 < graph_micros(o->graph, first))
        return;
    for (uint32_t l = last; l-- > first;) {
        if (!graph_updates(o->graph, l))
            continue;
        bool on_device = updates_on_device(r, o->pinned, l);
        if (graph_decides(o->graph, l)) {
            if (graph_trains(o->graph, l))
                order_add(o, update_todo(INSTR_NORM, l, on_device ? device : PLAN_HOST, span, *item));
        } else if (on_device)
            order_add(o, update_todo(INSTR_UPD, l, device, span, ++*item));
        else
            order_add(o, update_todo(INSTR_UPD, l, PLAN_HOST, 0, 0));
    }
}

/* Adds one update for each share of a layer. Each update runs on the device that owns the share. */
static void update_shares(struct order *o, uint32_t layer, uint32_t *next_span, uint32_t *next_item)
{
    for (uint32_t s = 0; s < o->n_shares; s++) {
        uint32_t d = o->owners[layer * o->n_shares + s];
        struct todo t = update_todo(INSTR_UPD, layer, d, next_span[d]++, next_item[d]++);
        t.share = s;
        order_share(o, t);
    }
}

/* Adds the update of layer `l`. The DECIDE of the layer's group must already be in the order. */
static void add_decided_update(struct order *o, const struct plan_request *r, uint32_t l, uint32_t device,
                               uint32_t *next_span, uint32_t *next_item)
{
    /* A layer with statistics is updated as a whole, on the host, even if its state has several shares. */
    if (!updates_on_device(r, o->pinned, l) || (o->n_shares > 1 && o->graph->layers[l].folds))
        order_add(o, update_todo(INSTR_UPD, l, PLAN_HOST, 0, 0));
    else if (o->n_shares > 1)
        update_shares(o, l, next_span, next_item);
    else
        order_add(o, update_todo(INSTR_UPD, l, device, next_span[device]++, next_item[device]++));
}

void order_update_group(struct order *o, const struct plan_request *r, uint32_t group,
                        const uint32_t *bwd_device, uint32_t *next_span, uint32_t *next_item)
{
    const struct graph *g = o->graph;
    if (!g->training || !g->groups[group].decision)
        return;
    add_decide(o, group);
    for (uint32_t l = 0; l < g->n_layers; l++)
        if (graph_updates(g, l) && g->layers[l].group == group)
            add_decided_update(o, r, l, bwd_device[l], next_span, next_item);
}

void order_updates(struct order *o, const struct plan_request *r, const uint32_t *bwd_device,
                   uint32_t *next_span, uint32_t *next_item)
{
    for (uint32_t i = 0; i < o->graph->n_groups; i++)
        order_update_group(o, r, i, bwd_device, next_span, next_item);
}

/* ---- shares ---- */

/* Adds the tasks for a layer whose gradients have arrived on `device`. For each share that the device owns,
 * adds the RED tasks. Also adds the update of the share if it runs on devices and need not wait for a
 * decision. A task for the host must be added only once, so only the owner of share 0 adds it. */
static void settle_layer(struct passes *p, uint32_t l, uint32_t device)
{
    struct order *o = p->o;
    const struct graph *g = o->graph;
    /* A layer with statistics is updated as a whole, on the host, because its update also changes the buffers
     * of the layer. */
    bool on_device = updates_on_device(p->r, o->pinned, l) && !g->layers[l].folds;
    for (uint32_t s = 0; s < o->n_shares; s++) {
        if (o->owners[l * o->n_shares + s] != device)
            continue;
        struct todo t = update_todo(INSTR_RED, l, device, p->last_span[device], p->next_item[device] - 1);
        t.share = s;
        for (t.replica = 1; t.replica < g->n_replicas && g->layers[l].backward && g->layers[l].size.w > 0;
             t.replica++)
            order_share(o, t);
        t.kind = INSTR_UPD;
        if (graph_updates(g, l) && !graph_decides(g, l) && on_device)
            order_share(o, t);
        if (s > 0 || !graph_updates(g, l))
            continue;
        if (graph_decides(g, l)) {
            if (graph_trains(g, l))
                order_add(o, update_todo(INSTR_NORM, l, PLAN_HOST, 0, 0));
        } else if (!on_device)
            order_add(o, update_todo(INSTR_UPD, l, PLAN_HOST, 0, 0));
    }
}

/* Returns the time that a device needs to exchange a layer's gradient with the other devices. Each device
 * receives its own share of the gradient from all others. */
static uint64_t exchange_ns(const struct passes *p, uint32_t layer)
{
    uint64_t share = p->o->graph->layers[layer].dw_bytes / p->o->n_shares,
             per_s = p->r->machine->peer_bytes_per_s;
    return per_s > 0 ? rate_ns(share * (p->o->n_shares - 1), per_s) : 0;
}

/* Adds the tasks of each layer whose gradients have arrived or, if `all` is true, of every waiting layer.
 * `pass_ns` is the duration of the last pass on `device`. */
static void settle(struct passes *p, uint32_t device, uint64_t pass_ns, bool all)
{
    struct pass_open *open = &p->open[device];
    open->ns += pass_ns;
    for (; open->first < open->n; open->first++) {
        uint32_t l = open->layers[open->first];
        uint64_t ns = exchange_ns(p, l);
        if (!all && ns > open->ns)
            return;
        open->ns -= ns < open->ns ? ns : open->ns;
        settle_layer(p, l, device);
    }
    open->ns = 0;
}

/* The gradients of layers [first, last) are complete on `device`. Adds the layers to the device's list of
 * layers whose gradients travel between the devices. */
static void open_exchange(struct passes *p, uint32_t first, uint32_t last, uint32_t device)
{
    const struct graph *g = p->o->graph;
    struct pass_open *open = &p->open[device];
    if (open->layers == NULL)
        open->layers = xcalloc(g->n_layers, sizeof *open->layers);
    for (uint32_t l = last; l-- > first;)
        if ((g->layers[l].backward && g->layers[l].size.w > 0) || graph_updates(g, l))
            open->layers[open->n++] = l;
}

/* Starts to exchange the gradients of layers [first, last) between the devices, if the device has now
 * processed all its rows of the batch. */
static void exchange(struct passes *p, uint32_t first, uint32_t last, uint32_t from, uint32_t to,
                     uint32_t device, bool fused)
{
    const struct graph *g = p->o->graph;
    uint32_t rows = g->rows * g->n_micro / p->o->n_shares; /* rows per device */
    uint64_t ns = 0;
    if (p->o->n_shares == 1 || to % rows != 0)
        return;
    for (uint32_t l = first; l < last; l++) {
        const struct profile_layer *t = &p->prof->layers[l];
        ns += (t->bwd_ns + t->fwd_ns) * ((to - from) / g->layers[l].rows);
    }
    if (!fused)
        settle(p, device, ns, false);
    open_exchange(p, first, last, device);
}

/* ---- passes ---- */

void passes_begin(struct passes *p, struct order *o, const struct plan_request *r, const struct profile *prof)
{
    *p = (struct passes){
        .o = o, .r = r, .prof = prof, .bwd_device = xcalloc(o->graph->n_layers, sizeof *p->bwd_device)};
    order_begin(o);
}

void passes_end(struct passes *p)
{
    for (uint32_t d = 0; p->o->n_shares > 1 && d < p->o->n_devices; d++) {
        settle(p, d, 0, true);
        xfree(p->open[d].layers);
    }
    order_updates(p->o, p->r, p->bwd_device, p->next_span, p->next_item);
    xfree(p->bwd_device);
}

/* Returns whether micro-batch `micro` saves S, the values that its backward pass needs. `first` is the first
 * layer of the pack. */
static bool saves_s(const struct passes *p, uint32_t first, uint32_t micro)
{
    uint32_t each = graph_micros(p->o->graph, first) / p->o->n_shares, nth = micro % each;
    const struct save_rate *rate = &p->save;
    return rate->of > 0 && first < p->save_end && nth * p->o->graph->layers[first].rows >= p->save_from &&
           ((uint64_t)first * (each + (p->save_from > 0)) + nth) * rate->count % rate->of < rate->count;
}

/* Adds one task, if the graph has it. For example, a layer that no gradient reaches has no BWD. */
static void add_pass(struct passes *p, enum instr_kind kind, uint32_t layer, uint32_t micro, uint32_t device,
                     bool save, bool output)
{
    if (graph_task_find(p->o->graph, kind, layer, micro, 0) == PLAN_NONE)
        return;
    order_add(p->o, (struct todo){.kind = kind,
                                  .layer = layer,
                                  .micro = micro,
                                  .loc = device,
                                  .span = p->next_span[device],
                                  .item = p->next_item[device],
                                  .save = save,
                                  .output = output});
}

static void end_span(struct passes *p, uint32_t device)
{
    p->last_span[device] = p->next_span[device]++;
}

/* Adds the item in which micro-batch `micro` passes forward through the pack [first, last). */
static void forward_item(struct passes *p, uint32_t first, uint32_t last, uint32_t micro, uint32_t device)
{
    bool saves = saves_s(p, first, micro);
    for (uint32_t l = first; l < last; l++)
        add_pass(p, INSTR_FWD, l, micro, device, saves && graph_saves(p->o->graph, l), true);
    p->next_item[device]++;
}

void pass_forward(struct passes *p, uint32_t first, uint32_t last, uint32_t from, uint32_t to,
                  uint32_t device)
{
    uint32_t rows = p->o->graph->layers[first].rows, n = (to - from) / rows;
    for (uint32_t i = 0; i < n; i++)
        forward_item(p, first, last, from / rows + (p->back[device] ? n - 1 - i : i), device);
    p->back[device] ^= p->snake;
    end_span(p, device);
}

/* A twin runs backward with the saved values S of another layer, its original. Adds a REC for each original
 * of these layers that comes before `first`. */
static void recompute_originals(struct passes *p, uint32_t first, uint32_t last, uint32_t micro,
                                uint32_t device)
{
    const struct graph *g = p->o->graph;
    for (uint32_t l = first; l < last; l++) {
        uint32_t original = g->layers[l].original;
        if (original < first && g->layers[l].backward && g->layers[original].size.s > 0)
            add_pass(p, INSTR_REC, original, micro, device, true, false);
    }
}

/* Adds the REC tasks that a pack needs before its backward pass. These tasks compute again what the forward
 * pass did not save. */
static void recompute(struct passes *p, uint32_t first, uint32_t last, uint32_t micro, uint32_t device)
{
    const struct graph *g = p->o->graph;
    for (uint32_t l = first; l < last; l++) {
        bool save = graph_saves(g, l) && g->layers[l].size.s > 0, output = graph_read_before(g, l, last);
        if (save || output)
            add_pass(p, INSTR_REC, l, micro, device, save, output);
    }
}

static void backward(struct passes *p, uint32_t first, uint32_t last, uint32_t micro, uint32_t device)
{
    for (uint32_t l = last; l-- > first;) {
        p->bwd_device[l] = device;
        add_pass(p, INSTR_BWD, l, micro, device, false, false);
    }
    if (p->o->n_shares == 1)
        order_gradients_done(p->o, p->r, first, last, micro, device, p->next_span[device],
                             &p->next_item[device]);
}

/* Returns whether any of the layers [first, last) has a backward pass or an update. A layer may have an
 * update alone if it shares its weights. */
static bool runs_backward(const struct graph *g, uint32_t first, uint32_t last)
{
    for (uint32_t l = first; g->training && l < last; l++)
        if (g->layers[l].backward || graph_updates(g, l))
            return true;
    return false;
}

/* Adds the item in which micro-batch `micro` passes backward through the pack [first, last). */
static void backward_item(struct passes *p, uint32_t first, uint32_t last, uint32_t micro, uint32_t device)
{
    recompute_originals(p, first, last, micro, device);
    if (!saves_s(p, first, micro))
        recompute(p, first, last, micro, device);
    backward(p, first, last, micro, device);
    p->next_item[device]++;
}

void pass_backward(struct passes *p, uint32_t first, uint32_t last, uint32_t from, uint32_t to,
                   uint32_t device)
{
    uint32_t rows = p->o->graph->layers[first].rows;
    if (!runs_backward(p->o->graph, first, last))
        return;
    for (uint32_t j = from / rows; j < to / rows; j++)
        backward_item(p, first, last, j, device);
    end_span(p, device);
    exchange(p, first, last, from, to, device, false);
}

void pass_both(struct passes *p, const struct pass_part *forward, const struct pass_part *back,
               uint32_t device)
{
    const struct graph *g = p->o->graph;
    uint32_t rows = g->layers[forward->first].rows, back_rows = g->layers[back->first].rows;
    uint32_t n = (forward->to - forward->from) / rows, n_back = (back->to - back->from) / back_rows;
    bool runs = runs_backward(g, back->first, back->last);
    for (uint32_t i = 0, k = 0; i < n || (runs && k < n_back);) {
        bool lags = (uint64_t)i * n_back <= (uint64_t)k * n; /* the forward pass is not ahead */
        if (i < n && (lags || !runs))
            forward_item(p, forward->first, forward->last, forward->from / rows + i++, device);
        else
            backward_item(p, back->first, back->last, back->from / back_rows + k++, device);
    }
    end_span(p, device);
}

/* Adds the tasks that run one micro-batch forward and then backward through layers [first, last). The
 * micro-batch may be divided into smaller ones on the way. */
static void fuse(struct passes *p, uint32_t first, uint32_t last, uint32_t micro, uint32_t device)
{
    const struct graph *g = p->o->graph;
    uint32_t rows = g->layers[first].rows, end = first;
    while (end < last && g->layers[end].rows == rows)
        end++;
    for (uint32_t l = first; l < end; l++)
        add_pass(p, INSTR_FWD, l, micro, device, graph_saves(g, l), true);
    uint32_t inner = end < last ? rows / g->layers[end].rows : 0;
    for (uint32_t j = micro * inner; j < (micro + 1) * inner; j++)
        fuse(p, end, last, j, device);
    recompute_originals(p, first, end, micro, device);
    backward(p, first, end, micro, device);
}

void pass_fused(struct passes *p, uint32_t first, uint32_t last, uint32_t from, uint32_t to, uint32_t device)
{
    uint32_t rows = p->o->graph->layers[first].rows;
    for (uint32_t j = from / rows; j < to / rows; j++) {
        fuse(p, first, last, j, device);
        p->next_item[device]++;
    }
    end_span(p, device);
    exchange(p, first, last, from, to, device, true);
}

/* ---- partition ---- */

static uint64_t layer_time(const struct profile *p, uint32_t forwards, uint32_t l)
{
    /* Add 1, so that no layer takes 0 ns. Otherwise, a run of consecutive layers could stay empty. */
    return forwards * p->layers[l].fwd_ns + p->layers[l].bwd_ns + 1;
}

/* Cuts layers [first, last) into `count` runs of consecutive layers. Each run has at least one layer and
 * takes no longer than `limit`. Returns false if this is impossible. */
static bool partition_within(const struct profile *p, uint32_t forwards, uint32_t first, uint32_t last,
                             uint32_t count, uint64_t limit, uint32_t *starts)
{
    uint32_t l = first;
    bounded_poll_steps(last - first);
    for (uint32_t run = 0; run < count; run++) {
        uint64_t sum = 0;
        uint32_t reserve = count - run - 1;
        starts[run] = l;
        while (l < last - reserve && (sum == 0 || sum + layer_time(p, forwards, l) <= limit))
            sum += layer_time(p, forwards, l++);
        if (sum > limit)
            return false;
    }
    starts[count] = last;
    return l == last;
}

uint64_t partition_layers(const struct profile *prof, uint32_t forwards, uint32_t first, uint32_t last,
                          uint32_t count, uint32_t *starts)
{
    assert(count >= 1 && count <= last - first);
    uint64_t low = 0, high = 0;
    for (uint32_t l = first; l < last; l++)
        high += layer_time(prof, forwards, l);
    while (high - low > 1) {
        uint64_t mid = low + (high - low) / 2;
        if (partition_within(prof, forwards, first, last, count, mid, starts))
            high = mid;
        else
            low = mid;
    }
    bool ok = partition_within(prof, forwards, first, last, count, high, starts);
    assert(ok);
    (void)ok;
    return high;
}

/* ---- merge ---- */

/* State of the merge. It records which values already exist, and when each location is free again. */
struct merger {
    const struct order *o;
    const struct graph *g;
    /* first[t] is the index of the first piece of tensor t in the arrays `written` and `ready_ns`. */
    uint32_t *first;
    /* written[first[t] + k] is the number of writes so far to piece k of tensor t. NOTHING if the piece has
     * no bytes. */
    uint32_t *written;
    /* For each version of each piece of a persistent tensor: how many todos still have to read that version.
     * A task that writes the next version must wait until the count is 0. For example, the DECIDE of the
     * second step of a cycle must wait for all updates of the first step. The index is
     * first_reader[tensor] + piece * (writes per cycle + 1) + version. */
    uint32_t *readers, *first_reader;
    /* ready_ns[first[t] + k] is the time at which the newest value of piece k of tensor t is complete. */
    uint64_t *ready_ns;
    /* free_ns[k] is the time in nanoseconds at which the last task at location k ends. The last element is
     * for the host. */
    uint64_t *free_ns;
    uint32_t n_locations;
};

#define NOTHING UINT32_MAX

/* Returns whether a piece has no bytes. No task writes such a piece, so no task may wait for it. */
static bool is_empty_piece(const struct order *o, tensor_id t, uint32_t piece)
{
    uint64_t begin, end;
    tensor_piece(o->graph, o->n_shares, t, piece, &begin, &end);
    return begin == end;
}

/* Returns whether the loader writes the tensor on the host before the training step starts. */
static bool loader_writes(const struct graph_tensor *t)
{
    return t->external && (t->kind == TENSOR_X || t->kind == TENSOR_TARGET);
}

/* Returns a pointer to the number of tasks that still have to read version `version` of piece `k` of tensor
 * `t`. The tensor must be persistent. */
static uint32_t *readers_of(const struct merger *m, tensor_id t, uint32_t k, uint32_t version)
{
    return &m->readers[m->first_reader[t] + k * (m->g->tensors[t].writes_per_cycle + 1) + version];
}

/* Adds `by` to the number of readers of each version that task `t` reads. */
static void count_reads(const struct merger *m, const struct todo *t, uint32_t by)
{
    const struct graph_task *task = &m->g->tasks[t->task];
    for (uint32_t i = 0; i < task->n_operands; i++) {
        const struct graph_operand *op = &m->g->operands[task->operand + i];
        if (op->access != ACCESS_READ || !m->g->tensors[op->tensor].persistent)
            continue;
        struct extent e = todo_extent(m->o, t, op, 0);
        for (uint32_t k = e.piece; k < e.piece + e.n_pieces; k++)
            *readers_of(m, op->tensor, k, op->read_version) += by;
    }
}

/* Returns whether operand `op` of task `t` overwrites bytes that another task still has to read. */
static bool is_still_read(const struct merger *m, const struct todo *t, const struct graph_operand *op)
{
    if (!(op->access & ACCESS_WRITE) || !m->g->tensors[op->tensor].persistent)
        return false;
    struct extent e = todo_extent(m->o, t, op, 0);
    for (uint32_t k = e.piece; k < e.piece + e.n_pieces; k++)
        if (*readers_of(m, op->tensor, k, op->write_version - 1) > 0)
            return true;
    return false;
}

static uint32_t location_index(const struct order *o, uint32_t loc)
{
    return loc == PLAN_HOST ? o->n_devices : loc;
}

/* Sets *ret_ns to the earliest time at which task `t` can start at `location`. Returns false if other tasks
 * must come first. */
static bool earliest_start(const struct merger *m, const struct todo *t, uint32_t location, uint64_t *ret_ns)
{
    const struct graph_task *task = &m->g->tasks[t->task];
    uint64_t at = m->free_ns[location];
    for (uint32_t i = 0; i < task->n_operands; i++) {
        const struct graph_operand *op = &m->g->operands[task->operand + i];
        if (is_still_read(m, t, op))
            return false;
        if (!(op->access & ACCESS_READ))
            continue;
        /* All parts of the optimizer state K are written together, so it is enough to look at the first
         * part. */
        struct extent e = todo_extent(m->o, t, op, 0);
        for (uint32_t k = m->first[op->tensor] + e.piece; k < m->first[op->tensor] + e.piece + e.n_pieces;
             k++) {
            if (m->written[k] == NOTHING)
                continue;
            if (m->written[k] != op->read_version)
                return false;
            if (m->ready_ns[k] > at)
                at = m->ready_ns[k];
        }
    }
    *ret_ns = at;
    return true;
}

/* Returns the duration of a task, which comes from the profile. A task that handles one of n shares takes 1/n
 * of the time of the whole task. */
static uint64_t todo_ns(const struct merger *m, const struct todo *t, const struct profile *prof)
{
    uint64_t ns = profile_task_ns(prof, t->kind, t->layer, t->loc == PLAN_HOST);
    return t->share == SHARE_ALL ? ns : ns / m->o->n_shares;
}

/* Schedules task `t` at start_ns. Its location is then busy until the task ends. The values that the task
 * writes get new versions. */
static void commit(struct merger *m, const struct todo *t, uint32_t location, uint64_t start_ns,
                   const struct profile *prof)
{
    const struct graph_task *task = &m->g->tasks[t->task];
    uint64_t end = start_ns + todo_ns(m, t, prof);
    m->free_ns[location] = end;
    count_reads(m, t, UINT32_MAX); /* subtracts 1 from each count */
    for (uint32_t i = 0; i < task->n_operands; i++) {
        const struct graph_operand *op = &m->g->operands[task->operand + i];
        if (!(op->access & ACCESS_WRITE))
            continue;
        for (uint32_t part = 0; part < todo_extents(m->o, t, op); part++) {
            struct extent e = todo_extent(m->o, t, op, part);
            for (uint32_t k = m->first[op->tensor] + e.piece; k < m->first[op->tensor] + e.piece + e.n_pieces;
                 k++) {
                if (t->kind != INSTR_REC && m->written[k] != NOTHING)
                    m->written[k] = op->write_version;
                m->ready_ns[k] = end;
            }
        }
    }
}

int order_merge(struct order *o, const struct profile *prof, struct err *err)
{
    const struct graph *g = o->graph;
    uint32_t n_locations = o->n_devices + 1;
    struct arena *a = arena_create();
    struct merger m = {
        .o = o,
        .g = g,
        .first = arena_alloc_array(a, (size_t)g->n_tensors + 1, sizeof *m.first),
        .free_ns = arena_alloc_array(a, n_locations, sizeof *m.free_ns),
        .n_locations = n_locations,
    };
    for (uint32_t t = 0; t < g->n_tensors; t++)
        m.first[t + 1] = m.first[t] + tensor_pieces(g, o->n_shares, t);
    m.written = arena_alloc_array(a, m.first[g->n_tensors], sizeof *m.written);
    m.ready_ns = arena_alloc_array(a, m.first[g->n_tensors], sizeof *m.ready_ns);
    bounded_poll_steps(g->n_tensors);
    m.first_reader = arena_alloc_array(a, (size_t)g->n_tensors + 1, sizeof *m.first_reader);
    for (uint32_t t = 0; t < g->n_tensors; t++)
        m.first_reader[t + 1] =
            m.first_reader[t] + (g->tensors[t].persistent
                                     ? (m.first[t + 1] - m.first[t]) * (g->tensors[t].writes_per_cycle + 1)
                                     : 0);
    m.readers = arena_alloc_array(a, m.first_reader[g->n_tensors], sizeof *m.readers);
    for (size_t i = 0; i < o->todos.n; i++)
        count_reads(&m, &o->todos.at[i], 1);
    for (uint32_t t = 0; t < g->n_tensors; t++)
        for (uint32_t k = m.first[t]; k < m.first[t + 1]; k++)
            m.written[k] = is_empty_piece(o, t, k - m.first[t]) ? NOTHING : loader_writes(&g->tensors[t]);

    /* Link the tasks of each location into a list. head[k] is the first task of location k, and next[i] is
     * the task after task i. */
    size_t n = o->todos.n;
    uint32_t *next = arena_alloc_array(a, n, sizeof *next);
    uint32_t *head = arena_alloc_array(a, n_locations, sizeof *head);
    for (uint32_t k = 0; k < n_locations; k++)
        head[k] = PLAN_NONE;
    for (size_t i = n; i-- > 0;) {
        uint32_t k = location_index(o, o->todos.at[i].loc);
        next[i] = head[k];
        head[k] = (uint32_t)i;
    }

    struct todo *merged = xcalloc(n ? n : 1, sizeof *merged);
    int r = 0;
    for (size_t done = 0; done < n; done++) {
        uint32_t best = PLAN_NONE;
        uint64_t best_ns = UINT64_MAX, ns;
        bounded_poll();
        for (uint32_t k = 0; k < n_locations; k++) {
            if (head[k] != PLAN_NONE && earliest_start(&m, &o->todos.at[head[k]], k, &ns) && ns < best_ns) {
                best = k;
                best_ns = ns;
            }
        }
        if (best == PLAN_NONE) {
            r = err_set(err, -EINVAL,
                        "internal: the policy's task order has no schedule (%zu of %zu tasks placed)", done,
                        n);
            break;
        }
        merged[done] = o->todos.at[head[best]];
        commit(&m, &merged[done], best, best_ns, prof);
        head[best] = next[head[best]];
    }
    if (r == 0) {
        xfree(o->todos.at);
        o->todos.at = merged;
        o->todos.cap = n;
    } else {
        xfree(merged);
    }
    arena_destroy(a);
    return r;
}
