/* Implements the estimates declared in outline.h.
 *
 * A model holds prefix sums over its layers for every micro-batch size. So the sum over any run of layers is
 * one subtraction, and the memory and time of an outline are a few additions. Only two quantities need a loop
 * over single layers: the workspace of layers, and the chain of dependences at the end of a step, where the
 * last gradients are exchanged and updated while the first layers of the next step wait for their weights.
 */
#include "scheduler/policy/outline.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/vec.h"
#include "scheduler/rate.h"

/* Saving S (the values for the backward pass) on the host, instead of recomputing S, must shorten the
 * training step by more than 1/64. A smaller gain may be an error of the estimate. */
#define SAVE_WORTH 64

/* Times and sizes of all layers at one micro-batch size. Some arrays hold prefix sums: entry l is the total
 * of layers 0 to l - 1. */
struct size_sums {
    uint32_t rows;
    uint64_t *fwd, *bwd; /* sums, in ns */
    uint64_t *s, *x;     /* sums, in bytes */
    /* work[l] is the working memory of the forward pass of layer l alone, in bytes. */
    uint64_t *work;
    /* scratch[l] is the working memory of the backward pass of layer l alone, in bytes. */
    uint64_t *scratch;
};

struct outline_model {
    uint32_t n_layers, n_sizes;
    struct size_sums *sizes;
    uint64_t *w, *dw, *b, *k;        /* sums, in bytes */
    uint64_t *upd_host, *upd_device; /* per layer: ns of its update */
    struct arena *arena;
};

/* ---- models ---- */

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t *new_sums(struct arena *a, uint32_t n)
{
    return arena_alloc_array(a, (size_t)n + 1, sizeof(uint64_t));
}

static struct outline_model *new_model(uint32_t n_layers, uint32_t n_sizes)
{
    struct arena *a = arena_create();
    struct outline_model *m = arena_alloc(a, sizeof *m);
    *m = (struct outline_model){.n_layers = n_layers,
                                .n_sizes = n_sizes,
                                .sizes = arena_alloc_array(a, n_sizes, sizeof *m->sizes),
                                .w = new_sums(a, n_layers),
                                .dw = new_sums(a, n_layers),
                                .b = new_sums(a, n_layers),
                                .k = new_sums(a, n_layers),
                                .upd_host = new_sums(a, n_layers),
                                .upd_device = new_sums(a, n_layers),
                                .arena = a};
    for (uint32_t i = 0; i < n_sizes; i++)
        m->sizes[i] = (struct size_sums){.fwd = new_sums(a, n_layers),
                                         .bwd = new_sums(a, n_layers),
                                         .s = new_sums(a, n_layers),
                                         .x = new_sums(a, n_layers),
                                         .work = new_sums(a, n_layers),
                                         .scratch = new_sums(a, n_layers)};
    return m;
}

static void put_state(struct outline_model *m, uint32_t l, uint64_t w, uint64_t dw, uint64_t b, uint64_t k)
{
    m->w[l + 1] = m->w[l] + w;
    m->dw[l + 1] = m->dw[l] + dw;
    m->b[l + 1] = m->b[l] + b;
    m->k[l + 1] = m->k[l] + k;
}

static void put_layer(struct size_sums *s, uint32_t l, uint64_t fwd, uint64_t bwd, uint64_t x, uint64_t saved,
                      uint64_t work, uint64_t scratch)
{
    s->fwd[l + 1] = s->fwd[l] + fwd;
    s->bwd[l + 1] = s->bwd[l] + bwd;
    s->x[l + 1] = s->x[l] + x;
    s->s[l + 1] = s->s[l] + saved;
    s->work[l] = work;
    s->scratch[l] = scratch;
}

struct outline_model *outline_model_table(const struct table *t, const struct machine *machine,
                                          const uint32_t *sizes, uint32_t n_sizes)
{
    struct outline_model *m = new_model(t->n_layers, n_sizes);
    for (uint32_t l = 0; l < t->n_layers; l++) {
        const struct table_layer *tl = &t->layers[l];
        struct table_point at = {0};
        put_state(m, l, tl->tied ? 0 : tl->w, tl->tied ? 0 : table_dw(t, l), tl->b, tl->k);
        for (uint32_t i = 0; i < n_sizes; i++) {
            table_at(t, l, sizes[i], &at);
            m->sizes[i].rows = sizes[i];
            put_layer(&m->sizes[i], l, at.fwd_ns, at.bwd_ns, at.x, at.s, at.fwd_work, 0);
        }
        uint64_t traffic = 2 * tl->w + table_dw(t, l) + 2 * tl->k;
        m->upd_host[l] = at.upd_host_ns > 0 ? at.upd_host_ns : rate_ns(traffic, machine->host_bytes_per_s);
        m->upd_device[l] =
            at.upd_device_ns > 0 ? at.upd_device_ns : rate_ns(traffic, machine->device_bytes_per_s);
    }
    return m;
}

struct outline_model *outline_model_graph(const struct graph *g, const struct profile *prof)
{
    struct outline_model *m = new_model(g->n_layers, 1);
    m->sizes[0].rows = g->rows;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct graph_layer *gl = &g->layers[l];
        const struct profile_layer *p = &prof->layers[l];
        put_state(m, l, gl->tied ? 0 : gl->size.w, gl->tied ? 0 : gl->dw_bytes, gl->b_bytes, gl->k_bytes);
        put_layer(&m->sizes[0], l, p->fwd_ns, p->bwd_ns, gl->size.x, gl->size.s,
                  most(gl->size.scratch_fwd, gl->size.room), gl->size.scratch_bwd);
        m->upd_host[l] = p->upd_host_ns;
        m->upd_device[l] = p->upd_device_ns;
    }
    return m;
}

void outline_model_destroy(struct outline_model *m)
{
    if (m != NULL)
        arena_destroy(m->arena);
}

uint64_t outline_floor_ns(const struct outline_model *m, const struct machine *machine, uint32_t batch)
{
    const struct size_sums *s = &m->sizes[0];
    uint64_t chain = s->fwd[m->n_layers] + s->bwd[m->n_layers];
    return most(chain, chain * (batch / s->rows) / machine->n_devices);
}

/* ---- one outline ---- */

/* An outline, with the prefix sums for the micro-batch sizes of its three parts. An outline is an estimate of
 * a plan that is not built. */
struct sketch {
    const struct outline_request *q;
    const struct outline_model *m;
    struct outline *o;
    /* Prefix sums for the three parts of the chain: the layers before the fused layers (`at`), the fused
     * layers, and the last layers (`head`). Each part has its own micro-batch size. */
    const struct size_sums *at, *fused, *head;
    /* Number of rows of the batch that each device processes in a training step. */
    uint64_t local;
};

static const struct size_sums *sums_of(const struct outline_model *m, uint32_t rows)
{
    for (uint32_t i = 0; i < m->n_sizes; i++)
        if (m->sizes[i].rows == rows)
            return &m->sizes[i];
    return &m->sizes[0];
}

static struct sketch sketch_of(const struct outline_request *q, struct outline *o)
{
    const struct outline_model *m = q->model;
    return (struct sketch){q,
                           m,
                           o,
                           sums_of(m, o->rows),
                           sums_of(m, o->fused_rows),
                           sums_of(m, o->head_rows),
                           q->batch / o->n_devices};
}

/* Returns the total over layers [first, last), as the difference of two prefix sums. Returns 0 if the range
 * is empty. */
static uint64_t sum(const uint64_t *sums, uint32_t first, uint32_t last)
{
    return last > first ? sums[last] - sums[first] : 0;
}

/* Returns the first layer of the pack that ends just before layer `end`. */
static uint32_t pack_first(const struct outline *o, uint32_t end)
{
    return end <= 1 ? 0 : end > o->pack + 1 ? end - o->pack : 1;
}

static uint64_t x_at(const struct size_sums *s, uint32_t l)
{
    return s->x[l + 1] - s->x[l];
}

/* ---- memory ---- */

/* Returns the part of `all` that falls to the micro-batches that save S at rate `r`. */
static uint64_t at_save_rate(struct save_rate r, uint64_t all)
{
    return r.of > 0 ? all / r.of * r.count : 0;
}

static uint64_t pinned_bytes(const struct sketch *k)
{
    uint32_t pins = k->o->pins;
    return (k->m->w[pins] + k->m->k[pins] + k->m->b[pins]) / k->o->n_devices;
}

uint32_t outline_lead(const struct outline *o)
{
    if (o->overlap)
        return o->lead;
    return o->save.of > 2 ? o->save.of - 1 : 1;
}

/* Returns the device memory, in bytes, for the gradients of layers [first, last) until they have left the
 * device. This includes the memory for their exchange between devices and for the updates with them. */
static uint64_t leaving_bytes(const struct sketch *k, uint32_t first, uint32_t last)
{
    uint64_t dw = sum(k->m->dw, first, last), devices = k->o->n_devices, updated = 0;
    uint32_t moved = first > k->o->pins ? first : k->o->pins;
    if (k->q->update == UPDATE_DEVICE)
        updated = sum(k->m->k, moved, last) + (devices > 1 ? sum(k->m->w, moved, last) : 0);
    return dw + dw / devices * (devices - 1) + updated / devices;
}

/* Returns the largest number of bytes that saved values (S) and working memory occupy during a backward pass.
 * The pass frees the S of each layer after using it. */
static uint64_t saved_bytes(const struct size_sums *s, uint32_t first, uint32_t last)
{
    uint64_t bytes = 0;
    for (uint32_t l = first; l < last; l++)
        bytes = most(bytes, sum(s->s, first, l + 1) + s->scratch[l]);
    return bytes;
}

/* Returns the memory in bytes that a device needs for the fused layers. At the peak, the state of these
 * layers and all values they save are in memory. */
static uint64_t fused_bytes(const struct sketch *k)
{
    const struct outline *o = k->o;
    uint32_t n = k->m->n_layers, f = o->fused, h = o->head;
    const struct size_sums *input = o->rows > o->fused_rows && f > 0 ? k->at : f < h ? k->fused : k->head;
    uint64_t bytes = sum(k->m->w, f, n) + sum(k->m->dw, f, n) + sum(k->m->b, f, n);
    bytes += saved_bytes(k->fused, f, h) + sum(k->fused->x, f + 1, h);
    if (h < n) {
        bytes += saved_bytes(k->head, h, n) + sum(k->head->x, h + 1, n);
        /* Add the tensor between the fused layers and the head, and the gradient of this tensor. */
        bytes += f < h ? 2 * x_at(k->fused, h) : 0;
    }
    bytes += x_at(h < n ? k->head : k->fused, n - 1); /* the first gradient of the backward pass */
    bool pieces = o->rows > o->fused_rows;
    bytes += x_at(input, f) * (f > 0 ? (pieces ? 4 : 3) : 2);
    bytes += f > 0 ? x_at(k->at, f) * (outline_lead(o) - 1) * (pieces ? 1 : 3) : 0;
    if (f > 0)
        bytes += sum(k->m->w, pack_first(o, f), f) + sum(k->m->b, pack_first(o, f), f);
    return bytes;
}

/* Returns the memory in bytes that a device needs for the backward pass of the pack [first, last), while the
 * gradients of layers [last, after) are still leaving the device. */
static uint64_t backward_bytes(const struct sketch *k, uint32_t first, uint32_t last, uint32_t after)
{
    uint32_t before = pack_first(k->o, first);
    const struct size_sums *s = k->at;
    uint64_t state = sum(k->m->w, before, last) + sum(k->m->b, before, last) + sum(k->m->dw, first, last);
    uint64_t inside = saved_bytes(s, first, last) + sum(s->x, first + 1, last);
    /* While one micro-batch runs backward, the saved values (S) of the next micro-batch are already being
     * fetched. */
    if (k->o->save.of > 0 && !k->o->overlap)
        inside += most(sum(s->s, before, first), sum(s->s, first, last));
    uint64_t lead = outline_lead(k->o);
    return state + leaving_bytes(k, last, after) + inside + (2 + 2 * lead) * x_at(s, first) +
           (1 + lead) * x_at(s, last);
}

/* Returns the memory in bytes that a device needs for the forward pass of the pack [first, last). */
static uint64_t forward_bytes(const struct sketch *k, uint32_t first, uint32_t last)
{
    const struct size_sums *s = k->at;
    uint64_t activations = 0;
    for (uint32_t l = first; l < last; l++)
        activations =
            most(activations, s->work[l] + (2 + outline_lead(k->o)) * (x_at(s, l) + x_at(s, l + 1)));
    if (k->o->save.of > 0 && !k->o->overlap)
        activations += 2 * sum(s->s, first, last);
    uint32_t after = last + k->o->pack < k->o->fused ? last + k->o->pack : k->o->fused;
    return sum(k->m->w, first, after) + sum(k->m->b, first, after) + activations;
}

/* Returns the memory in bytes that a device needs while a wave passes forward through pack [first, last) and
 * the wave before passes backward through the opposite pack. */
static uint64_t both_bytes(const struct sketch *k, uint32_t first, uint32_t last)
{
    uint32_t end = k->o->fused - first, begin = k->o->fused - last;
    const struct size_sums *s = k->at;
    uint64_t w = sum(k->m->w, first, last) + sum(k->m->b, first, last) + sum(k->m->w, begin, end) +
                 sum(k->m->b, begin, end);
    /* One S is computed again, and others are on their way in or out. */
    uint64_t saved = most(sum(s->s, first, last), sum(s->s, begin, end)), lead = k->o->lead;
    saved += at_save_rate(k->o->save, saved * lead);
    return 2 * w + 3 * sum(k->m->dw, begin, end) + saved + most(s->work[first], s->scratch[begin]) +
           (1 + lead) * (x_at(s, first) + x_at(s, begin) + x_at(s, last) + x_at(s, end));
}

/* Returns the memory in bytes that each device needs: the memory of the pass that needs most, plus the pinned
 * state. */
static uint64_t device_bytes(const struct sketch *k)
{
    const struct outline *o = k->o;
    uint64_t bytes = fused_bytes(k);
    uint32_t after = k->m->n_layers;
    for (uint32_t last = o->fused; last > 0;) {
        uint32_t first = pack_first(o, last);
        bytes = most(bytes, backward_bytes(k, first, last, after));
        bytes = most(bytes, forward_bytes(k, first, last));
        if (o->overlap)
            bytes = most(bytes, both_bytes(k, first, last));
        after = last;
        last = first;
    }
    return bytes + pinned_bytes(k);
}

/* ---- time ---- */

static uint64_t micros(const struct sketch *k, const struct size_sums *s)
{
    return k->local / s->rows;
}

/* Returns the part of `all`, which belongs to all micro-batches of a step, that falls to those that save
 * S. */
static uint64_t saved_part(const struct outline *o, uint64_t all)
{
    return at_save_rate(o->save, o->overlap ? all - all / o->waves : all);
}

/* Returns the time that all backward passes through layers [first, fused) take. This includes repeating the
 * forward pass for micro-batches that did not save S. */
static uint64_t backward_ns(const struct sketch *k, uint32_t first)
{
    uint64_t again = sum(k->at->fwd, first, k->o->fused), bwd = sum(k->at->bwd, first, k->o->fused);
    again -= saved_part(k->o, again);
    return (again + bwd) * micros(k, k->at);
}

/* Returns how long a device computes in one training step. Sets *ret_forward and *ret_turned to the times at
 * which the fused layers start and end, counted from the start of the step. */
static uint64_t compute(const struct sketch *k, uint64_t *ret_forward, uint64_t *ret_turned)
{
    uint32_t n = k->m->n_layers, f = k->o->fused, h = k->o->head;
    uint64_t forward = sum(k->at->fwd, 0, f) * micros(k, k->at);
    uint64_t fused = (sum(k->fused->fwd, f, h) + sum(k->fused->bwd, f, h)) * micros(k, k->fused) +
                     (sum(k->head->fwd, h, n) + sum(k->head->bwd, h, n)) * (h < n ? micros(k, k->head) : 0);
    *ret_forward = forward;
    *ret_turned = forward + fused;
    return forward + fused + backward_ns(k, 0);
}

static uint64_t at_rate(uint64_t bytes, uint64_t per_s)
{
    return per_s > 0 ? rate_ns(bytes, per_s) : 0;
}

/* Returns the total bandwidth between the host and all devices together, in bytes per second. */
static uint64_t links_per_s(const struct machine *m, uint32_t devices)
{
    uint64_t all = m->all_links_bytes_per_s, each = m->link_bytes_per_s * devices;
    return all > 0 && all < each ? all : each;
}

/* Returns a lower bound on the time of a training step. It follows from the fact that no layer can run in the
 * next step before its updated weights are back on the devices. */
static uint64_t chain_ns(const struct sketch *k, uint64_t turned)
{
    const struct outline *o = k->o;
    const struct machine *m = k->q->machine;
    uint64_t devices = o->n_devices, links = links_per_s(m, o->n_devices), host = 0, longest = 0,
             n = micros(k, k->at);
    bool all_on_device = k->q->update == UPDATE_DEVICE;
    /* The first layer of the pack that contains layer l of the loop below. */
    uint32_t first = pack_first(o, o->fused);
    for (uint32_t l = k->m->n_layers; l-- > 0;) {
        uint64_t w = k->m->w[l + 1] - k->m->w[l], dw = k->m->dw[l + 1] - k->m->dw[l], done = turned,
                 starts = k->at->fwd[l] * n;
        if (w == 0)
            continue;
        if (l < o->fused) {
            while (l < first)
                first = pack_first(o, first);
            done += backward_ns(k, first);
        } else {
            starts = k->at->fwd[o->fused] * n;
        }
        done += at_rate(dw / devices * (devices - 1), m->peer_bytes_per_s);
        uint64_t gather = at_rate(w / devices * (devices - 1), m->peer_bytes_per_s);
        if (l < o->pins || all_on_device) {
            done += k->m->upd_device[l] / devices + gather;
        } else {
            done += at_rate(dw, links);
            host = most(host, done) + k->m->upd_host[l];
            done = host + at_rate(w, links) + gather;
        }
        if (done > starts)
            longest = most(longest, done - starts);
    }
    return longest;
}

/* Returns how many bytes of saved values (S) all devices together store on the host in one training step. */
static uint64_t saved_host_bytes(const struct sketch *k)
{
    return saved_part(k->o, sum(k->at->s, 0, k->o->fused) * micros(k, k->at) * k->o->n_devices);
}

/* Sets *ret_in and *ret_out to the number of bytes that a training step moves from the host and to the host.
 * Also sets host_memory of the outline. */
static void count_bytes(const struct sketch *k, uint64_t *ret_in, uint64_t *ret_out)
{
    const struct outline *o = k->o;
    uint32_t n = k->m->n_layers, f = o->fused, p = o->pins;
    uint64_t w = sum(k->m->w, p, n), dw = sum(k->m->dw, p, n), again = sum(k->m->w, p, f), stash = 0,
             boundary = 0;
    for (uint32_t last = f; last > 0; last = pack_first(o, last)) {
        uint64_t x = x_at(k->at, last) * micros(k, k->at) * o->n_devices;
        stash += last < f ? x : 0;
        boundary += x;
    }
    uint64_t local = (stash + boundary) / o->n_devices / o->waves, spare = k->q->machine->capacity_bytes[0];
    spare = spare > o->device_bytes ? spare - o->device_bytes : 0;
    if (local <= spare) { /* the activations can stay on the devices */
        stash = boundary = 0;
    }
    uint64_t saved = saved_host_bytes(k);
    uint64_t sums = k->m->dw[n] * o->n_devices * (o->waves - 1); /* unfinished gradients between waves */
    *ret_in = (w + again) * o->waves + sums + 2 * stash + 2 * boundary + saved;
    *ret_out = (k->q->update == UPDATE_DEVICE ? w : dw) + sums + stash + boundary + saved;
    /* Between waves, each device has its own unfinished gradients. */
    uint64_t unfinished = o->waves > 1 ? k->m->dw[n] * (o->n_devices - 1) : 0;
    k->o->host_memory = k->m->w[n] + k->m->dw[n] + k->m->k[n] + k->m->b[n] + unfinished +
                        (stash + boundary + saved) / o->waves / 8 * (o->overlap ? 9 : 8);
    if (k->q->update == UPDATE_DEVICE) {
        *ret_in += w + sum(k->m->k, p, n);
        *ret_out += sum(k->m->k, p, n);
    }
}

/* Returns how long the host needs for its weight updates in one training step. */
static uint64_t host_ns(const struct sketch *k)
{
    uint64_t ns = 0;
    for (uint32_t l = k->o->pins; l < k->m->n_layers && k->q->update != UPDATE_DEVICE; l++)
        ns += k->m->upd_host[l];
    return ns;
}

void outline_measure(const struct outline_request *q, struct outline *o)
{
    struct sketch k = sketch_of(q, o);
    uint64_t forward, turned, in, out, links = links_per_s(q->machine, o->n_devices),
                                       w = k.m->w[k.m->n_layers], dw = k.m->dw[k.m->n_layers];
    o->compute_ns = compute(&k, &forward, &turned);
    o->device_bytes = device_bytes(&k);
    count_bytes(&k, &in, &out);
    /* Every wave gathers W for its forward and its backward pass, and a step exchanges the gradients once. */
    uint64_t rounds = UINT64_C(2) * o->waves * w + dw;
    uint64_t peers = at_rate(rounds / o->n_devices * (o->n_devices - 1), q->machine->peer_bytes_per_s);
    o->ns = most(most(o->compute_ns, chain_ns(&k, turned)), most(host_ns(&k), peers));
    o->ns = most(o->ns, most(at_rate(in, links), at_rate(out, links)));
    o->host_bytes = in + out;
}

/* ---- the list ---- */

/* The best outlines found so far, sorted so that the best outline comes first. */
struct shortlist {
    const struct outline_request *q;
    struct outline *at;
    uint32_t n, most;
};

static bool outline_is_better(const struct outline_request *q, const struct outline *a,
                              const struct outline *b)
{
    if (q->objective == OBJECTIVE_BYTES && a->host_bytes != b->host_bytes)
        return a->host_bytes < b->host_bytes;
    if (a->ns != b->ns)
        return a->ns < b->ns;
    return a->host_bytes < b->host_bytes;
}

/* Inserts an outline at its rank in the list. If the list is full, removes the worst outline. */
static void insert(struct shortlist *list, const struct outline *o)
{
    uint32_t i = list->n;
    if (i == list->most && !outline_is_better(list->q, o, &list->at[i - 1]))
        return;
    if (i < list->most)
        list->n++;
    else
        i--;
    for (; i > 0 && outline_is_better(list->q, o, &list->at[i - 1]); i--)
        list->at[i] = list->at[i - 1];
    list->at[i] = *o;
}

/* Returns the largest allowed value of o->fused, the first fused layer. At least the loss layer must be
 * fused. */
static uint32_t last_fused(const struct outline_request *q, const struct outline *o)
{
    return o->head < q->model->n_layers ? o->head : q->model->n_layers - 1;
}

static bool fits(const struct outline_request *q, const struct outline *o)
{
    struct outline copy = *o;
    struct sketch k = sketch_of(q, &copy);
    bounded_poll();
    for (uint32_t d = 0; d < o->n_devices; d++)
        if (device_bytes(&k) > q->machine->capacity_bytes[d])
            return false;
    return true;
}

/* Finds the largest number of fused layers that fits into memory. Returns false if even the smallest number
 * does not fit. */
static bool fuse(const struct outline_request *q, struct outline *o)
{
    uint32_t low = 0, high = last_fused(q, o);
    o->fused = high;
    if (!fits(q, o))
        return false;
    while (low < high) {
        o->fused = low + (high - low) / 2;
        if (fits(q, o))
            high = o->fused;
        else
            low = o->fused + 1;
    }
    o->fused = high;
    return true;
}

/* Makes the packs as large as memory allows. Does not change the number of fused layers. */
static void enlarge_packs(const struct outline_request *q, struct outline *o)
{
    for (uint32_t pack = 2; pack <= 32 && pack < o->fused; pack += 1 + pack / 4) {
        struct outline larger = *o;
        larger.pack = pack;
        if (!fits(q, &larger))
            break;
        *o = larger;
    }
}

static uint64_t free_host_bytes(const struct outline_request *q)
{
    const struct machine *m = q->machine;
    return m->host_bytes > m->host_taken_bytes ? m->host_bytes - m->host_taken_bytes : 0;
}

/* Fuses fewer and fewer layers until the outline fits into memory. Returns whether it fits in the end. */
static bool fit_by_fused(const struct outline_request *q, struct outline *o)
{
    while (o->fused < last_fused(q, o) && !fits(q, o))
        o->fused++;
    return fits(q, o);
}

/* Fits an outline into memory: fuses fewer layers and, if that is not enough, pins none. Measures it. Returns
 * whether it fits the devices and the host. */
static bool fit_saving(const struct outline_request *q, struct outline *o)
{
    uint32_t fused = o->fused;
    if (!fit_by_fused(q, o)) {
        o->pins = 0;
        o->fused = fused;
        fit_by_fused(q, o);
    }
    outline_measure(q, o);
    return o->host_memory <= free_host_bytes(q) && fits(q, o);
}

/* Adds a variant of an outline that saves the values for the backward pass (S) on the host instead of
 * recomputing them. The variant saves as many micro-batches as the links and the host memory allow. */
static void try_saving(struct shortlist *list, const struct outline *without)
{
    const struct outline_request *q = list->q;
    for (uint32_t every = 1; every <= 64; every += 1 + every / 8) {
        struct outline o = *without;
        struct sketch k = sketch_of(q, &o);
        o.pack = 1;
        o.save = (struct save_rate){1, every};
        uint64_t forward, turned, all = compute(&k, &forward, &turned),
                                  links = links_per_s(q->machine, o.n_devices);
        uint64_t x = sum(k.at->x, 0, o.fused) * micros(&k, k.at) * o.n_devices, w = sum(k.m->w, 0, o.fused);
        uint64_t saved = saved_host_bytes(&k);
        if (at_rate(saved + x, links) > forward || at_rate(saved + 2 * x + w, links) > all - turned)
            continue;
        if (!fit_saving(q, &o))
            continue;
        if (o.ns < without->ns - without->ns / SAVE_WORTH)
            insert(list, &o);
        return;
    }
}

/* Rates at which micro-batches may save S if waves overlap, the highest first. */
static const struct save_rate rates[] = {{1, 1}, {4, 5}, {3, 4}, {2, 3}, {3, 5}, {1, 2},
                                         {2, 5}, {1, 3}, {1, 4}, {1, 5}, {1, 6}, {1, 8}};
#define N_RATES (sizeof rates / sizeof rates[0])
/* The moves of waves that overlap may keep the links busy for this part of the time. Beyond, tasks wait. */
#define BUSY_NUM 7
#define BUSY_DEN 8

/* Estimates how long the links need for the moves of one training step in one direction. The waves save S at
 * rate `r`. The estimate counts S, W and dW, and leaves out other activations, because they are small. */
static uint64_t overlap_links_ns(const struct sketch *k, struct save_rate r, uint64_t links)
{
    uint64_t s = sum(k->at->s, 0, k->o->fused) * micros(k, k->at), w = sum(k->m->w, 0, k->o->fused),
             dw = sum(k->m->dw, 0, k->o->fused);
    return at_rate(at_save_rate(r, s - s / k->o->waves) + (2 * w + dw) * k->o->waves, links);
}

/* Chooses how many micro-batches save S if the waves of an outline overlap: as many as the links can carry.
 * Returns false if that is none. */
static bool choose_rate(const struct sketch *k, struct outline *o)
{
    uint64_t forward, turned, links = links_per_s(k->q->machine, 1);
    o->save = (struct save_rate){0};
    uint64_t both = compute(k, &forward, &turned) - (turned - forward);
    for (size_t i = 0; i < N_RATES; i++) {
        uint64_t ns = both - at_save_rate(rates[i], forward);
        ns -= ns / o->waves; /* the first forward pass and the last backward pass run alone */
        if (overlap_links_ns(k, rates[i], links) > ns / BUSY_DEN * BUSY_NUM)
            continue;
        o->save = rates[i];
        return true;
    }
    return false;
}

/* Returns by how many items S must move ahead so that its move ends in time. Items alternate between the two
 * directions. */
static uint32_t overlap_lead(const struct sketch *k)
{
    uint64_t s = 0, pair = 0, links = links_per_s(k->q->machine, 1);
    for (uint32_t l = 0; l < k->o->fused; l++) {
        s = most(s, sum(k->at->s, l, l + 1));
        pair = most(pair, sum(k->at->fwd, l, l + 1) + sum(k->at->bwd, l, l + 1));
    }
    uint64_t pairs = pair > 0 ? at_rate(s, links) / pair + 1 : 1;
    return 2 * (uint32_t)(pairs < 4 ? pairs : 4);
}

/* Adds a variant of an outline with waves that overlap and save S on the host. The links then carry S all the
 * time, and the host holds the S of one wave. */
static void try_overlap(struct shortlist *list, const struct outline *without)
{
    const struct outline_request *q = list->q;
    struct outline best = *without;
    for (uint32_t waves = 2; waves <= q->batch / without->rows / 2; waves *= 2) {
        struct outline o = *without;
        struct sketch k = sketch_of(q, &o);
        o.pack = 1;
        o.waves = waves;
        o.overlap = true;
        o.lead = overlap_lead(&k);
        if (choose_rate(&k, &o) && fit_saving(q, &o) && o.ns < best.ns)
            best = o;
    }
    if (best.overlap && best.ns < without->ns - without->ns / SAVE_WORTH)
        insert(list, &best);
}

/* Makes the packs larger until the stored activations fit into host memory, because larger packs store fewer
 * of them. Fuses fewer layers if larger packs need the device memory. */
static void spare_host(const struct outline_request *q, struct outline *o)
{
    outline_measure(q, o);
    for (uint32_t pack = o->pack + 1; o->host_memory > free_host_bytes(q) && pack < q->model->n_layers;
         pack += 1 + pack / 2) {
        struct outline larger = *o;
        larger.pack = pack;
        if (!fuse(q, &larger))
            return;
        *o = larger;
        outline_measure(q, o);
    }
}

/* Finds the best outline for the given micro-batch sizes and adds it to the list. Tries several numbers of
 * pinned layers, pack sizes and numbers of waves. */
static void try_sizes(struct shortlist *list, const struct outline *sizes)
{
    const struct outline_request *q = list->q;
    uint32_t n = q->model->n_layers;
    struct outline best = {0};
    for (uint32_t pins = 0; pins <= n; pins = pins == n      ? n + 1
                                              : pins < 4     ? pins + 1
                                              : pins * 2 < n ? pins * 2
                                                             : n) {
        struct outline o = *sizes;
        o.pins = pins;
        o.pack = o.waves = 1;
        if (pins > 0 && q->update == UPDATE_HOST)
            break;
        if (!fuse(q, &o))
            break;
        enlarge_packs(q, &o);
        spare_host(q, &o);
        uint32_t most_waves = q->objective == OBJECTIVE_BYTES ? q->batch / o.n_devices / o.rows : 1;
        for (o.waves = 1; o.waves <= most_waves; o.waves *= 2) {
            outline_measure(q, &o);
            if (o.host_memory <= free_host_bytes(q) &&
                (best.n_devices == 0 || outline_is_better(q, &o, &best)))
                best = o;
        }
    }
    if (best.n_devices == 0)
        return;
    if (q->saving == SAVING_NONE)
        insert(list, &best);
    else if (best.fused > 0)
        (q->saving == SAVING_OVERLAP ? try_overlap : try_saving)(list, &best);
}

uint32_t outline_list(const struct outline_request *q, struct outline *ret, uint32_t max)
{
    const struct outline_model *m = q->model;
    struct shortlist list = {q, ret, 0, max};
    uint32_t local = q->batch / q->n_devices, n = m->n_layers;
    for (uint32_t a = 0; a < m->n_sizes; a++)
        for (uint32_t b = 0; b <= a; b++)
            for (uint32_t c = 0; c <= b; c++) {
                uint32_t u = m->sizes[a].rows, v = m->sizes[b].rows, w = m->sizes[c].rows;
                if (local % u != 0 || u % v != 0 || v % w != 0)
                    continue;
                struct outline o = {
                    .n_devices = q->n_devices, .rows = u, .fused_rows = v, .head_rows = w, .head = n};
                for (uint32_t head = c == b ? n : n - 1; head + 3 >= n && head > 0; head--) {
                    o.head = head;
                    try_sizes(&list, &o);
                    if (c == b)
                        break;
                }
            }
    return list.n;
}

bool outline_save(const struct outline_request *q, struct outline *o, bool more)
{
    size_t i = 0;
    while (i < N_RATES && (rates[i].count != o->save.count || rates[i].of != o->save.of))
        i++;
    if (i >= N_RATES || (more ? i == 0 : i + 1 == N_RATES))
        return false;
    o->save = rates[more ? i - 1 : i + 1];
    outline_measure(q, o);
    return true;
}

/* Makes an outline with overlapping waves smaller. The estimates do not say whether the fused layers or the
 * saved S need too much, so both get less. */
static bool shrink_overlap(const struct outline_request *q, struct outline *o, uint64_t excess)
{
    struct sketch k = sketch_of(q, o);
    uint64_t now = fused_bytes(&k) + pinned_bytes(&k), want = now > excess ? now - excess : 0;
    uint32_t last = last_fused(q, o), fused = o->fused;
    o->pins = 0;
    while (o->fused < last && fused_bytes(&k) > want)
        o->fused++;
    outline_measure(q, o);
    return outline_save(q, o, false) || o->fused > fused;
}

/* Makes packs smaller first, because that costs the least time. After packs, unpins layers, and then fuses
 * fewer layers. If the objective is the fewest bytes, unpins layers last. */
bool outline_shrink(const struct outline_request *q, struct outline *o, uint64_t excess)
{
    if (o->overlap)
        return shrink_overlap(q, o, excess);
    struct sketch k = sketch_of(q, o);
    uint64_t now = device_bytes(&k), want = now > excess ? now - excess : 0;
    uint32_t last = last_fused(q, o);
    if (o->pack > 1) {
        o->pack = 1;
    } else if (o->pins > 0 && (q->objective != OBJECTIVE_BYTES || o->fused == last)) {
        o->pins /= 2;
    } else if (o->fused < last) {
        do
            o->fused++;
        while (o->fused < last && device_bytes(&k) > want);
    } else {
        return false;
    }
    outline_measure(q, o);
    return true;
}

void outline_rows(const struct outline *o, uint32_t n_layers, uint32_t *ret)
{
    for (uint32_t l = 0; l < n_layers; l++)
        ret[l] = l >= o->head ? o->head_rows : l >= o->fused ? o->fused_rows : o->rows;
}

uint32_t outline_packs(const struct outline *o, uint32_t *starts)
{
    uint32_t n = 0;
    for (uint32_t last = o->fused; last > 0; last = pack_first(o, last))
        n++;
    starts[n] = o->fused;
    for (uint32_t k = n; k-- > 0;)
        starts[k] = pack_first(o, starts[k + 1]);
    return n;
}
