/* Lists the work of a training step for the bound on time: what every plan has to compute and to move, and
 * what it may choose to keep, move or compute again. Goes through the layers of the graph once, and never
 * looks at single tasks.
 *
 * Where the simulator rounds a duration down, by less than a nanosecond for each task, this file subtracts
 * that much, so that the bound holds for the simulator's nanoseconds too.
 */
#include <stdlib.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/predict/time_bound_private.h"
#include "scheduler/rate.h"

#define GIGA 1e9
/* At most 1/32 of all layers are joined into one struct. The struct has the shortest waiting time of its
 * layers, so the bound becomes a little lower. */
#define JOINED 32

/* The graph and the machine whose work is listed, and what is known about the layers visited so far. */
struct listing {
    const struct graph *g;
    const struct machine *m;
    const struct profile *prof;
    uint32_t first; /* first layer with a backward pass */
    uint32_t last;  /* last layer: the loss */
    /* Duration of the forward and backward passes of all layers after the current layer: with one micro-batch
     * in each layer, and for each row. */
    double later_ns, later_row_ns;
    double y_wait_ns; /* wait_ns of the next layer */
};

/* ---- the machine ---- */

/* Returns the rate of a resource in bytes per nanosecond, or 0 for no limit. Adds what the simulator may
 * round up: 1/1024 byte per second for each stream. */
static double rate(const struct machine *m, double per_s)
{
    return per_s > 0 ? (per_s + (m->n_devices * LANE_COUNT + 1) / 1024.0) / GIGA : 0;
}

/* Returns the rate of all links in one direction together, in bytes per nanosecond. */
static double links_rate(const struct machine *m, uint64_t each_per_s, uint64_t all_per_s)
{
    double each = (double)m->n_devices * (double)each_per_s, all = (double)all_per_s;
    return rate(m, all_per_s == 0 ? each : each_per_s == 0 ? all : work_least(each, all));
}

static double total_memory(const struct machine *m)
{
    double bytes = 0;
    for (uint32_t d = 0; d < m->n_devices; d++)
        bytes += (double)m->capacity_bytes[d];
    return bytes;
}

static void list_machine(const struct machine *m, struct step_work *w)
{
    uint64_t out = m->link_out_bytes_per_s > 0 ? m->link_out_bytes_per_s : m->link_bytes_per_s,
             all_out =
                 m->all_links_out_bytes_per_s > 0 ? m->all_links_out_bytes_per_s : m->all_links_bytes_per_s;
    w->per_ns[TIME_BOUND_COMPUTE] = m->n_devices;
    w->per_ns[TIME_BOUND_LINK_IN] = links_rate(m, m->link_bytes_per_s, m->all_links_bytes_per_s);
    w->per_ns[TIME_BOUND_LINK_OUT] = links_rate(m, out, all_out);
    w->per_ns[TIME_BOUND_HOST] = 1;
    w->per_ns[TIME_BOUND_HOST_MEMORY] = rate(m, (double)m->host_shared_bytes_per_s);
    w->per_ns[TIME_BOUND_CORES] = m->cores;
    if (m->cores == 0)
        return;
    w->device_cores = m->device_cores < m->cores ? m->device_cores : m->cores;
    /* If the bandwidth of host memory is limited, the simulator rounds the number of cores that a host task
     * uses. The cores of host tasks are then not counted. */
    if (m->host_shared_bytes_per_s == 0)
        w->host_cores = m->host_cores < m->cores ? m->host_cores : m->cores;
    w->copy_cores = sim_copy_cores(m) * GIGA;
    w->per_ns[TIME_BOUND_CORES] += rate(m, 1) * w->copy_cores - w->copy_cores / GIGA;
}

/* ---- durations ---- */

/* Returns the least duration of `n` tasks of `ns` nanoseconds each. The simulator rounds down the durations
 * of tasks that share cores, so 1 ns is subtracted from each. */
static double tasks_ns(const struct listing *x, double n, uint64_t ns)
{
    return n * (double)(x->m->cores > 0 && ns > 0 ? ns - 1 : ns);
}

/* Returns the least duration of a task that works on the weights or gradients of a layer. Subtracts what the
 * simulator may round down. */
static struct either_ns state_ns(const struct listing *x, uint64_t device, uint64_t host, uint64_t bytes)
{
    struct either_ns ns = {(double)device, (double)host};
    if (x->m->cores > 0) {
        ns.device = work_most(ns.device - DEVICE_MAX, 0);
        ns.host = work_most(ns.host - DEVICE_MAX, 0);
    }
    if (x->m->host_shared_bytes_per_s > 0 && host > 0) {
        double per_s = (double)bytes * GIGA / (double)host / 2;
        ns.host *= per_s / (per_s + 1);
    }
    return ns;
}

/* ---- sizes ---- */

/* Returns the total size in bytes of a layer's inputs, for all micro-batches of a step. */
static double input_bytes(const struct graph *g, uint32_t l)
{
    uint32_t fewest, rows = graph_input_rows(g, l, &fewest);
    return (double)g->layers[l].size.x * (double)((uint64_t)g->rows * g->n_micro / rows);
}

/* Returns the total size in bytes of a layer's outputs, for all micro-batches of a step. The layers must form
 * a chain. */
static double output_bytes(const struct listing *x, uint32_t l)
{
    return l < x->last ? input_bytes(x->g, l + 1) : 0;
}

/* Returns whether the layers form a chain that ends in the only loss. All layers after the first layer with a
 * backward pass must have a backward pass, too. */
static bool is_chain(const struct graph *g)
{
    if (!g->training || g->n_layers < 2 || !g->layers[g->n_layers - 1].is_loss)
        return false;
    bool backward = false;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct graph_layer *gl = &g->layers[l];
        if (gl->input != (l > 0 ? l - 1 : PLAN_NONE) || gl->original != l ||
            gl->is_loss != (l == g->n_layers - 1) || (backward && !gl->backward))
            return false;
        backward |= gl->backward;
    }
    return backward;
}

/* Returns the size in bytes of the operands of one backward task, without the weights W. */
static double backward_bytes(const struct listing *x, uint32_t l)
{
    const struct graph_layer *gl = &x->g->layers[l];
    double dx = (gl->returns ? 2 : 1) * input_bytes(x->g, l) + output_bytes(x, l);
    return dx / graph_micros(x->g, l) + (double)(gl->size.s + gl->dw_bytes + gl->size.scratch_bwd) +
           (double)(gl->is_loss ? gl->size.target : 0);
}

/* Returns the size in bytes of the operands of one forward task, without the weights W. */
static double forward_bytes(const struct listing *x, uint32_t l)
{
    const struct layer_sizes *s = &x->g->layers[l].size;
    double io = (input_bytes(x->g, l) + output_bytes(x, l)) / graph_micros(x->g, l),
           saving = (double)s->s + (double)s->room, work = (double)s->scratch_fwd;
    return l == x->last ? io : io + (s->s > 0 ? work_least(saving, work) : work);
}

/* ---- layers ---- */

/* Returns the shortest time between a forward task of layer `l` and its backward task for the same rows, in
 * which all later layers must run. */
static double wait_ns(const struct listing *x, uint32_t l)
{
    return work_most(x->later_ns, x->later_row_ns * x->g->layers[l].rows / x->m->n_devices);
}

/* Adds the time of both passes of layer `l` to the time of later layers. */
static void add_later(struct listing *x, uint32_t l)
{
    const struct profile_layer *p = &x->prof->layers[l];
    double ns = tasks_ns(x, 1, p->bwd_ns);
    /* A loss that saves nothing does not need its forward pass for the backward pass. */
    if (l < x->last || x->g->layers[l].size.s > 0)
        ns += tasks_ns(x, 1, p->fwd_ns);
    x->y_wait_ns = wait_ns(x, l);
    x->later_ns += ns;
    x->later_row_ns += ns / x->g->layers[l].rows;
}

/* Sets the fields of *w that are sizes in bytes, and how long these bytes wait, for layer `l` of a chain.
 * They are the sizes of the values that a plan has a choice about: the state of the layer (W, dW, K), the S
 * that its forward pass saves, and its output Y. A plan may keep such a value on a device, move it to the
 * host and back, or, for S and Y, compute it again.
 *
 * Y is left out if only the loss reads it. The loss reads it while its own tasks run, so it counts as memory
 * of a running task and not as a value that waits. */
static void list_bytes(const struct listing *x, uint32_t l, struct layer_work *w)
{
    const struct graph *g = x->g;
    const struct graph_layer *gl = &g->layers[l];
    if (gl->backward && graph_trains(g, l)) {
        w->trained = true;
        w->w = (double)gl->size.w;
        w->dw = (double)gl->dw_bytes;
        w->k = (double)gl->k_bytes;
        w->waiting = graph_decides(g, l) && l != x->first ? w->dw : 0;
        w->upd_traffic = x->prof->layers[l].upd_host_ns > 0 ? 2 * w->w + w->dw + 2 * w->k : 0;
    }
    if (gl->backward && l < x->last) {
        w->s = (double)gl->size.s * graph_micros(g, l);
        w->s_wait_ns = wait_ns(x, l);
    }
    if (l + 1 < x->last && g->layers[l + 1].backward) {
        w->y = output_bytes(x, l);
        w->y_wait_ns = x->y_wait_ns;
    }
}

static struct layer_work layer_work(const struct listing *x, uint32_t l, bool chain)
{
    const struct graph *g = x->g;
    const struct graph_layer *gl = &g->layers[l];
    const struct profile_layer *p = &x->prof->layers[l];
    struct layer_work w = {.count = 1};
    double n = graph_micros(g, l);
    w.fwd_ns = graph_has_fwd(g, l) ? tasks_ns(x, n, p->fwd_ns) : 0;
    w.pass_ns = w.fwd_ns + (g->training && gl->backward ? tasks_ns(x, n, p->bwd_ns) : 0);
    if (g->training && gl->backward && gl->size.w > 0) {
        struct either_ns red = state_ns(x, p->red_device_ns, p->red_host_ns, gl->dw_bytes);
        w.other.device += (g->n_replicas - 1) * red.device;
        w.other.host += (g->n_replicas - 1) * red.host;
    }
    if (g->training && graph_trains(g, l) && graph_decides(g, l)) {
        struct either_ns norm = state_ns(x, p->norm_device_ns, p->norm_host_ns, gl->dw_bytes);
        w.other.device += norm.device;
        w.other.host += norm.host;
    }
    if (g->training && graph_updates(g, l))
        w.upd = state_ns(x, p->upd_device_ns, p->upd_host_ns, gl->dw_bytes);
    if (chain && g->steps == 1)
        list_bytes(x, l, &w);
    return w;
}

static bool same_work(const struct layer_work *a, const struct layer_work *b)
{
    return a->trained == b->trained && a->w == b->w && a->k == b->k && a->waiting == b->waiting &&
           a->upd.device == b->upd.device && a->upd.host == b->upd.host &&
           a->other.device == b->other.device && a->other.host == b->other.host && a->pass_ns == b->pass_ns &&
           a->fwd_ns == b->fwd_ns && a->s == b->s && a->y == b->y;
}

/* Adds a layer to the list. A layer with the same work as the last struct of the list is counted in this
 * struct. */
static void add_layer(struct step_work *w, const struct layer_work *layer, uint32_t n_layers)
{
    struct layer_work *before = w->n_layers > 0 ? &w->layers[w->n_layers - 1] : NULL;
    if (before == NULL || !same_work(before, layer) || before->count * JOINED >= n_layers) {
        w->layers[w->n_layers++] = *layer;
        return;
    }
    before->count++;
    before->s_wait_ns = work_least(before->s_wait_ns, layer->s_wait_ns);
    before->y_wait_ns = work_least(before->y_wait_ns, layer->y_wait_ns);
}

/* ---- the step ---- */

/* Adds the bytes that the loader and the trainer exchange with the devices: inputs, targets, results, and
 * outputs that no layer reads. */
static void list_data(const struct graph *g, struct step_work *w)
{
    bool *read = xcalloc(g->n_layers, sizeof *read), loaded = false;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct graph_layer *gl = &g->layers[l];
        double n = graph_micros(g, l);
        if (gl->input != PLAN_NONE)
            read[g->layers[gl->input].original] = true;
        else if (!loaded)
            w->data_in += n * (double)gl->size.x;
        loaded |= gl->input == PLAN_NONE;
        if (gl->is_loss) {
            w->data_in += n * (double)gl->size.target;
            w->data_out += n * (double)gl->size.result;
        }
    }
    for (uint32_t l = 0; l < g->n_layers; l++)
        if (!read[l] && !g->layers[l].is_loss && graph_has_fwd(g, l))
            w->data_out += (double)graph_micros(g, l) * (double)g->layers[l].size.y;
    xfree(read);
}

/* Adds the memory that tasks use while they run: for each task, its bytes times its duration. */
static void list_memory_in_use(const struct listing *x, struct step_work *w)
{
    for (uint32_t l = 0; l <= x->last; l++) {
        const struct profile_layer *p = &x->prof->layers[l];
        double n = graph_micros(x->g, l);
        w->in_use_byte_ns += tasks_ns(x, n, p->fwd_ns) * forward_bytes(x, l);
        if (x->g->layers[l].backward)
            w->in_use_byte_ns += tasks_ns(x, n, p->bwd_ns) * backward_bytes(x, l);
    }
}

/* Returns the least duration of a task on a layer's weights or gradients if all devices and the host do
 * shares of it at the same time. */
static double shared_ns(const struct listing *x, uint64_t device, uint64_t host, uint64_t bytes)
{
    if (device == 0 || host == 0)
        return 0;
    struct either_ns ns = state_ns(x, device, host, bytes);
    return ns.device > 0 && ns.host > 0 ? 1 / (x->m->n_devices / ns.device + 1 / ns.host) : 0;
}

/* Returns the duration of a chain of tasks between two updates of the first layer. It contains both passes of
 * one micro-batch and the longest sum of gradients. */
static double chain_ns(const struct listing *x)
{
    const struct graph *g = x->g;
    const struct profile_layer *p = &x->prof->layers[x->first];
    double sum = 0, longest = 0;
    for (uint32_t l = x->first; l <= x->last; l++) {
        const struct graph_layer *gl = &g->layers[l];
        uint32_t sums = gl->size.w > 0 ? graph_micros(g, l) / g->n_replicas - 1 : 0;
        sum += tasks_ns(x, 1, x->prof->layers[l].bwd_ns);
        sum += l < x->last || gl->size.s > 0 ? tasks_ns(x, 1, x->prof->layers[l].fwd_ns) : 0;
        longest = work_most(longest, tasks_ns(x, sums, x->prof->layers[l].bwd_ns));
    }
    sum += longest;
    /* If training does not change the first layer, the next step need not wait for this step. */
    if (!graph_trains(g, x->first))
        return 0;
    uint64_t bytes = g->layers[x->first].size.w;
    sum += (g->n_replicas - 1) * shared_ns(x, p->red_device_ns, p->red_host_ns, bytes);
    return sum + shared_ns(x, p->upd_device_ns, p->upd_host_ns, bytes);
}

/* Adds what can be proved only if the layers form a chain. The turns and the free memory are known only with
 * one step in a cycle. */
static void list_chain(const struct listing *x, struct step_work *w)
{
    double memory = total_memory(x->m);
    w->chain_ns = chain_ns(x);
    if (x->g->steps != 1)
        return;
    w->turns = graph_micros(x->g, x->last);
    w->turn_free_bytes = work_most(memory - backward_bytes(x, x->last), 0);
    w->end_free_bytes = work_most(memory - backward_bytes(x, x->first), 0);
    w->per_ns[TIME_BOUND_MEMORY] = memory;
    list_memory_in_use(x, w);
}

void work_list(const struct graph *g, const struct machine *m, const struct profile *prof,
               struct step_work *ret)
{
    struct listing x = {.g = g, .m = m, .prof = prof, .last = g->n_layers - 1};
    bool chain = is_chain(g);
    *ret = (struct step_work){.layers = xcalloc(g->n_layers, sizeof *ret->layers)};
    list_machine(m, ret);
    list_data(g, ret);
    while (chain && !g->layers[x.first].backward)
        x.first++;
    for (uint32_t l = g->n_layers; l-- > 0;) {
        struct layer_work w = layer_work(&x, l, chain);
        bounded_poll();
        add_layer(ret, &w, g->n_layers);
        add_later(&x, l);
    }
    for (uint32_t i = 0; g->training && i < g->n_groups; i++)
        if (g->groups[i].state_bytes > 0)
            ret->decide.device = ret->decide.host += tasks_ns(&x, 1, prof->decide_ns);
    if (chain)
        list_chain(&x, ret);
}

void work_finish(struct step_work *w)
{
    xfree(w->layers);
    w->layers = NULL;
}
