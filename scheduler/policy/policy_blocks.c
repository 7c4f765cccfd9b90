/* Policy `blocks`: for models whose training does not send gradients through the whole model, as in local
 * updates. The model is cut into blocks that no gradient leaves. A block stays on its device for all training
 * steps of the cycle, and then the next block of the device takes over. So the state of a block crosses the
 * link once in a cycle, however many steps the cycle has.
 *
 * With the blocks A and B on one device, and a cycle of three steps:
 *
 *     A step 0, A step 1, A step 2, B step 0, B step 1, B step 2
 *
 * In each step, each micro-batch runs forward through the block and at once backward. The outputs of A for
 * all three steps wait for B, in host memory if the device has no space. Consecutive blocks are dealt out
 * to the devices so that each device has about as much work. A device begins with its first block as soon
 * as the outputs of the block before exist.
 *
 * A model that cannot be cut is one block, which must fit one device.
 *
 * If the job leaves open where weights are updated, both places are tried. With updates on the host, the
 * optimizer state never moves, but in every step the weights come in and the gradients go out. This moves
 * less if the cycle has one or two steps, and it needs less device memory.
 */
#include <stdlib.h>

#include "scheduler/policy/candidate.h"

/* The settings to try. The first lets the most moves overlap with compute, and the last needs the least
 * memory. */
static const struct knobs variants[] = {
    {.keep = KEEP_UNIT, .lead_state = 1, .lead_items = 1, .retain = true},
    {.keep = KEEP_UNIT, .lead_state = 1, .lead_items = 1},
    {.keep = KEEP_UNIT, .lead_state = 0, .lead_items = 1, .retain = true},
    {.keep = KEEP_UNIT, .lead_state = 0, .lead_items = 1},
    {.keep = KEEP_UNIT, .lead_state = 0, .lead_items = 0},
};
#define N_VARIANTS (sizeof variants / sizeof variants[0])

/* Tries all settings with one place of the updates. */
static int search_place(struct trial *t, bool on_device)
{
    for (size_t i = 0; i < N_VARIANTS; i++) {
        struct candidate c = {.update_on_device = on_device, .knobs = variants[i]};
        int e = t->run(t, &c);
        if (e < 0)
            return e;
    }
    return 0;
}

static int blocks_search(const struct plan_request *r, struct trial *t)
{
    int e = 0;
    if (r->update != UPDATE_HOST)
        e = search_place(t, true);
    return e == 0 && r->update != UPDATE_DEVICE ? search_place(t, false) : e;
}

static void blocks_leanest(const struct plan_request *r, struct candidate *ret)
{
    *ret =
        (struct candidate){.update_on_device = r->update == UPDATE_DEVICE, .knobs = variants[N_VARIANTS - 1]};
}

/* ---- cutting the model ---- */

/* The blocks of a graph. Block i has the layers from first[i] to first[i + 1] - 1. */
struct block_cut {
    uint32_t *first; /* [n + 1] */
    uint32_t n;
    /* group_end[i] is the block that has the last layer of decision group i. */
    uint32_t *group_end;
    uint32_t *device; /* [n] */
};

static uint32_t later(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* For each layer l, sets ends[l] to the last layer that must be in the same block as l. Such a layer returns
 * a gradient to l, uses the weights of l, is a twin of l, or is in the same decision group. */
static void find_ends(const struct graph *g, uint32_t *ends)
{
    uint32_t *group_first = xcalloc(g->n_groups, sizeof *group_first);
    for (uint32_t i = 0; i < g->n_groups; i++)
        group_first[i] = PLAN_NONE;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct graph_layer *gl = &g->layers[l];
        uint32_t *first = &group_first[gl->group];
        ends[l] = l;
        if (*first == PLAN_NONE)
            *first = l;
        ends[*first] = l;
        ends[gl->owner] = later(ends[gl->owner], l);
        ends[gl->original] = later(ends[gl->original], l);
        if (gl->returns)
            ends[gl->input] = later(ends[gl->input], l);
    }
    xfree(group_first);
}

static struct block_cut cut_blocks(const struct graph *g)
{
    struct block_cut b = {.first = xcalloc(g->n_layers + 1, sizeof *b.first),
                          .group_end = xcalloc(g->n_groups, sizeof *b.group_end),
                          .device = xcalloc(g->n_layers, sizeof *b.device)};
    uint32_t *ends = xcalloc(g->n_layers, sizeof *ends), end = 0;
    find_ends(g, ends);
    for (uint32_t l = 0; l < g->n_layers; l++) {
        if (l == 0 || l > end)
            b.first[b.n++] = l;
        end = later(end, ends[l]);
        b.group_end[g->layers[l].group] = b.n - 1;
    }
    b.first[b.n] = g->n_layers;
    xfree(ends);
    return b;
}

/* Divides the blocks among the devices. Each device gets consecutive blocks, with about the same amount of
 * work. */
static void deal_out(struct block_cut *b, const struct graph *g, const struct profile *prof,
                     uint32_t n_devices)
{
    uint64_t *ns = xcalloc(b->n, sizeof *ns), total = 0, before = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        for (uint32_t l = b->first[i]; l < b->first[i + 1]; l++)
            ns[i] += (prof->layers[l].fwd_ns + prof->layers[l].bwd_ns) * graph_micros(g, l) + 1;
        total += ns[i];
    }
    for (uint32_t i = 0; i < b->n; i++) {
        uint64_t middle = before + ns[i] / 2;
        uint64_t d = (uint64_t)((double)middle / (double)(total + 1) * n_devices);
        b->device[i] = d < n_devices ? (uint32_t)d : n_devices - 1;
        before += ns[i];
    }
    xfree(ns);
}

static void free_blocks(struct block_cut *b)
{
    xfree(b->first);
    xfree(b->group_end);
    xfree(b->device);
}

/* ---- the order ---- */

/* The order that is being written. */
struct writer {
    struct order *o;
    const struct plan_request *r;
    const struct block_cut *b;
    /* bwd_device[l] is the device of the block that contains layer l. */
    uint32_t *bwd_device;
    /* next_item[d] is the number of the next item on device d. */
    uint32_t next_item[DEVICE_MAX];
};

/* Adds the tasks of one micro-batch in a block: the forward tasks, and then at once the backward tasks. */
static void add_micro(struct writer *w, uint32_t block, uint32_t micro)
{
    const struct graph *g = w->r->train;
    uint32_t first = w->b->first[block], last = w->b->first[block + 1], d = w->b->device[block];
    struct todo t = {.micro = micro, .loc = d, .span = block, .item = w->next_item[d]};
    for (uint32_t l = first; l < last; l++) {
        t.kind = INSTR_FWD;
        t.layer = l;
        t.save = g->training;
        t.output = true;
        if (graph_has_fwd(g, l))
            order_add(w->o, t);
    }
    for (uint32_t l = last; g->training && l-- > first;) {
        t.kind = INSTR_BWD;
        t.layer = l;
        t.save = t.output = false;
        if (g->layers[l].backward)
            order_add(w->o, t);
    }
    if (g->training)
        order_gradients_done(w->o, w->r, first, last, micro, d, block, &w->next_item[d]);
    w->next_item[d]++;
}

/* Makes the block's DECIDE tasks run on the device of the block instead of the host. Only tasks whose index
 * in the order is at least `begin` are changed.
 *
 * The host runs its tasks one after another. If it decided for all blocks, every block would wait for the
 * decisions of the blocks before it, and the first block of a cycle for the last block of the cycle before.
 * */
static void decide_on_device(struct writer *w, uint32_t block, size_t begin)
{
    uint32_t item = w->next_item[w->b->device[block]];
    for (size_t i = w->o->todos.n; w->r->update == UPDATE_DEVICE && i-- > begin;) {
        struct todo *t = &w->o->todos.at[i];
        if (t->kind == INSTR_DECIDE) {
            t->loc = w->b->device[block];
            t->item = item;
        }
        item = t->item;
    }
}

/* Adds one training step of a block. */
static void add_step(struct writer *w, uint32_t block, uint32_t step)
{
    const struct graph *g = w->r->train;
    uint32_t spans[DEVICE_MAX] = {0};
    size_t begin = w->o->todos.n;
    w->o->step = step;
    for (uint32_t i = 0; i < g->n_groups; i++)
        if (w->b->group_end[i] == block)
            order_begin_group(w->o, i);
    for (uint32_t j = 0; j < g->n_micro; j++)
        add_micro(w, block, j);
    for (uint32_t i = 0; i < g->n_groups; i++)
        if (w->b->group_end[i] == block)
            order_update_group(w->o, w->r, i, w->bwd_device, spans, w->next_item);
    decide_on_device(w, block, begin);
    /* Put all these tasks into the span of the block, so that the block's state stays on the device until the
     * last step. */
    for (size_t i = begin; i < w->o->todos.n; i++) {
        struct todo *t = &w->o->todos.at[i];
        t->keep_k = t->kind == INSTR_UPD && t->loc != PLAN_HOST;
        t->span = t->loc != PLAN_HOST ? block : t->span;
    }
}

static void blocks_order(const struct plan_request *r, const struct profile *prof, const struct candidate *c,
                         struct order *ret)
{
    const struct graph *g = r->train;
    uint32_t steps = g->training ? g->steps : 1;
    struct block_cut b = cut_blocks(g);
    struct plan_request settled = *r;
    settled.update = c->update_on_device ? UPDATE_DEVICE : UPDATE_HOST;
    deal_out(&b, g, prof, r->machine->n_devices);
    order_init(ret, g, r->machine->n_devices);
    ret->all_steps = true;
    struct writer w = {
        .o = ret, .r = &settled, .b = &b, .bwd_device = xcalloc(g->n_layers, sizeof *w.bwd_device)};
    for (uint32_t i = 0; i < b.n; i++)
        for (uint32_t l = b.first[i]; l < b.first[i + 1]; l++)
            w.bwd_device[l] = b.device[i];
    for (uint32_t i = 0; i < b.n; i++)
        for (uint32_t step = 0; step < steps; step++)
            add_step(&w, i, step);
    xfree(w.bwd_device);
    free_blocks(&b);
}

const struct policy policy_blocks = {
    .name = "blocks",
    .default_update = UPDATE_AUTO,
    .search = blocks_search,
    .leanest = blocks_leanest,
    .order = blocks_order,
};
