/* Demand paging: replays an LRU cache to decide which copies exist when, and at which addresses.
 *
 * Each device is a cache of whole tensors (blocks). The tasks are replayed in issue order. If an operand of a
 * task is not on the device, it is admitted into the lowest hole that is large enough. If there is no such
 * hole, blocks are evicted, the least recently used first, until there is one. An evicted block that is dirty
 * is spilled, a clean one is only dropped. Then the operand's value is brought in: sent from the device whose
 * copy is dirty, which gives its copy up, or else fetched from the host.
 *
 * The cache neither prefetches nor looks ahead, with one exception that every allocator makes: a tensor is
 * freed after its last use in the step, so dead activations are never written back. At the end all dirty
 * blocks are spilled, and the caches are empty again.
 *
 * A dirty tensor has exactly one copy, on one device. A clean tensor may have copies on several devices. A
 * write makes all other copies stale, and they are dropped.
 *
 * In a data-parallel order (order.alone), several devices read the same weights. If the newest value of a
 * tensor that lives across steps is dirty on one device, and another device only reads it, the value is
 * spilled and fetched instead of sent. Both copies are then clean and stay. Sending would take the copy from
 * its device, and the devices would take it from each other in turn.
 *
 * Blocks differ in size, unlike pages. So even with all other blocks evicted, the operands that are already
 * there may leave no hole that is large enough for the missing ones. Then all operands of the task are
 * evicted and admitted again, side by side. This is why a cache of the size of the largest task's operands
 * always suffices.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/checked.h"
#include "scheduler/build/build.h"

#define NONE SEGMENT_NONE

/* What the cache knows about one block. A block is a tensor in the memory of a device. Block i is segment i
 * of the draft. */
struct cache_block {
    uint64_t bytes;        /* space it occupies, a multiple of PLAN_ALIGN */
    uint32_t below, above; /* neighbours by address */
    uint32_t older, newer; /* neighbours by last use */
    /* Next copy of the same tensor, on another device, or NONE. */
    uint32_t other;
    /* Position, in issue order, of the last task that used the block. */
    uint32_t used;
    /* Lane (stream of the device) that last used the block. The drop uses the same lane, so that no other
     * stream has to wait for it. */
    enum lane lane;
    bool dirty;
};

/* The cache of one device. */
struct cache {
    uint64_t bytes;
    uint32_t lowest, oldest, newest; /* blocks by address and by last use */
};

/* An operand of the current task. */
struct cache_use {
    const struct graph_operand *op;
    tensor_id tensor; /* op->tensor */
    enum access access;
    /* The block that holds the operand. NONE if the operand is not on the device yet, or if the task runs on
     * the host. */
    uint32_t segment;
    /* Whether the block was reserved for this task and does not have its value yet. */
    bool admitted;
};

/* The state of a replay of one program with an LRU cache on each device. */
struct paging {
    struct draft *d;
    const struct graph *g;
    bool alone;   /* order.alone */
    uint32_t pos; /* position of the current task */
    /* uses_left[t] is the number of uses of tensor t in the rest of the training step. */
    uint32_t *uses_left;
    /* copies[t] is the first block of tensor t. The blocks of t on other devices follow in a list, linked by
     * `other`. */
    uint32_t *copies;
    VEC(struct cache_block) blocks;
    VEC(struct cache_use) uses; /* operands of the current task */
    struct cache caches[DEVICE_MAX];
};

static struct cache_block *block_at(struct paging *p, uint32_t id)
{
    return &p->blocks.at[id];
}

static struct segment *segment_at(struct paging *p, uint32_t id)
{
    return &p->d->segments.at[id];
}

static struct cache *cache_of(struct paging *p, uint32_t id)
{
    return &p->caches[segment_at(p, id)->device];
}

/* Returns the extent of the whole tensor. The LRU cache does not divide tensors into shares, so the number of
 * shares is 1. */
static struct extent whole_tensor(const struct paging *p, tensor_id t)
{
    return extent_whole(p->g, 1, t);
}

static uint64_t block_bytes(const struct paging *p, tensor_id t)
{
    return round_up(p->g->tensors[t].bytes, PLAN_ALIGN);
}

/* ---- a block's lists: use, address, tensor ---- */

static void link_use(struct paging *p, struct cache *c, uint32_t id)
{
    struct cache_block *b = block_at(p, id);
    b->older = c->newest;
    b->newer = NONE;
    *(c->newest == NONE ? &c->oldest : &block_at(p, c->newest)->newer) = id;
    c->newest = id;
}

static void unlink_use(struct paging *p, struct cache *c, uint32_t id)
{
    const struct cache_block *b = block_at(p, id);
    *(b->older == NONE ? &c->oldest : &block_at(p, b->older)->newer) = b->newer;
    *(b->newer == NONE ? &c->newest : &block_at(p, b->newer)->older) = b->older;
}

static void link_address(struct paging *p, struct cache *c, uint32_t id, uint32_t below)
{
    struct cache_block *b = block_at(p, id);
    uint32_t *up = below == NONE ? &c->lowest : &block_at(p, below)->above;
    b->below = below;
    b->above = *up;
    *up = id;
    if (b->above != NONE)
        block_at(p, b->above)->below = id;
}

static void unlink_address(struct paging *p, struct cache *c, uint32_t id)
{
    const struct cache_block *b = block_at(p, id);
    *(b->below == NONE ? &c->lowest : &block_at(p, b->below)->above) = b->above;
    if (b->above != NONE)
        block_at(p, b->above)->below = b->below;
}

static void unlink_copy(struct paging *p, uint32_t id)
{
    uint32_t *at = &p->copies[segment_at(p, id)->tensor];
    while (*at != id)
        at = &block_at(p, *at)->other;
    *at = block_at(p, id)->other;
}

static uint32_t copy_on(struct paging *p, tensor_id tensor, uint32_t device)
{
    uint32_t id = p->copies[tensor];
    while (id != NONE && segment_at(p, id)->device != device)
        id = block_at(p, id)->other;
    return id;
}

static uint32_t dirty_copy(struct paging *p, tensor_id tensor)
{
    uint32_t id = p->copies[tensor];
    while (id != NONE && !block_at(p, id)->dirty)
        id = block_at(p, id)->other;
    return id;
}

static void touch_block(struct paging *p, uint32_t id)
{
    struct cache *c = cache_of(p, id);
    unlink_use(p, c, id);
    link_use(p, c, id);
    block_at(p, id)->used = p->pos;
}

/* ---- eviction ---- */

static void forget_block(struct paging *p, uint32_t id)
{
    struct cache *c = cache_of(p, id);
    unlink_use(p, c, id);
    unlink_address(p, c, id);
    unlink_copy(p, id);
}

static void drop_block(struct paging *p, uint32_t id)
{
    draft_put_drop(p->d, id, block_at(p, id)->lane);
    forget_block(p, id);
}

static void write_back(struct paging *p, uint32_t id)
{
    struct cache_block *b = block_at(p, id);
    if (!b->dirty)
        return;
    draft_put_spill(p->d, id, p->d->segments.at[id].of);
    b->lane = LANE_OUT;
    b->dirty = false;
}

static void evict(struct paging *p, uint32_t id)
{
    write_back(p, id);
    drop_block(p, id);
}

static void drop_copies(struct paging *p, tensor_id tensor, uint32_t except)
{
    for (uint32_t id = p->copies[tensor], next; id != NONE; id = next) {
        next = block_at(p, id)->other;
        if (id != except)
            drop_block(p, id);
    }
}

/* ---- admission ---- */

static uint64_t hole_start(struct paging *p, uint32_t below)
{
    return below == NONE ? 0 : segment_at(p, below)->addr + block_at(p, below)->bytes;
}

static uint32_t next_above(struct paging *p, const struct cache *c, uint32_t below)
{
    return below == NONE ? c->lowest : block_at(p, below)->above;
}

/* Returns whether the hole just above block `below` has at least `bytes` bytes. If `below` is NONE, checks
 * the hole at the low end of the memory. */
static bool fits_above(struct paging *p, const struct cache *c, uint32_t below, uint64_t bytes)
{
    uint32_t above = next_above(p, c, below);
    uint64_t end = above == NONE ? c->bytes : segment_at(p, above)->addr;
    return end - hole_start(p, below) >= bytes;
}

/* Finds or makes a hole of at least `bytes` bytes and sets *ret_below to the block below the hole. Fails if
 * the current task's operands leave no such hole. */
static bool make_hole(struct paging *p, struct cache *c, uint64_t bytes, uint32_t *ret_below)
{
    uint32_t below = NONE;
    do {
        bounded_poll();
        *ret_below = below;
        if (fits_above(p, c, below, bytes))
            return true;
        below = next_above(p, c, below);
    } while (below != NONE);
    for (uint32_t id = c->oldest, next; id != NONE; id = next) {
        next = block_at(p, id)->newer;
        bounded_poll();
        if (block_at(p, id)->used == p->pos)
            continue;
        *ret_below = block_at(p, id)->below;
        evict(p, id);
        if (fits_above(p, c, *ret_below, bytes)) /* only this hole has grown */
            return true;
    }
    return false;
}

static uint32_t admit(struct paging *p, tensor_id tensor, uint32_t device, uint32_t below)
{
    uint32_t id = (uint32_t)p->blocks.n;
    struct cache *c = &p->caches[device];
    vec_push(&p->d->segments, (struct segment){.tensor = tensor,
                                               .device = device,
                                               .of = whole_tensor(p, tensor),
                                               .start = SEGMENT_UNBORN,
                                               .addr = hole_start(p, below)});
    vec_push(&p->blocks, (struct cache_block){.bytes = block_bytes(p, tensor),
                                              .other = p->copies[tensor],
                                              .used = p->pos,
                                              .lane = LANE_COMPUTE});
    p->copies[tensor] = id;
    link_address(p, c, id, below);
    link_use(p, c, id);
    return id;
}

static bool admit_missing(struct paging *p, uint32_t device)
{
    for (size_t i = 0; i < p->uses.n; i++) {
        struct cache_use *u = &p->uses.at[i];
        uint32_t below;
        if (u->segment != NONE)
            continue;
        if (!make_hole(p, &p->caches[device], block_bytes(p, u->tensor), &below))
            return false;
        u->segment = admit(p, u->tensor, device, below);
        u->admitted = true;
    }
    return true;
}

/* Removes all operands of the current task from the device. This is needed if they lie so scattered that no
 * hole is large enough for a missing operand. */
static void clear_way(struct paging *p)
{
    size_t n = p->blocks.n;
    for (size_t i = 0; i < p->uses.n; i++) {
        struct cache_use *u = &p->uses.at[i];
        /* The block was only reserved for this task. No instruction refers to the block, so it needs no
         * drop. */
        if (u->admitted) {
            forget_block(p, u->segment);
            n--;
        } else if (u->segment != NONE) {
            evict(p, u->segment);
        }
        u->segment = NONE;
        u->admitted = false;
    }
    p->blocks.n = p->d->segments.n = n;
}

/* Brings the value of an operand to the device of the current task, from the host or from the device that has
 * a newer value. */
static void bring_value(struct paging *p, const struct cache_use *u)
{
    uint32_t owner = dirty_copy(p, u->tensor);
    /* Weights that several devices read in a data-parallel order go through the host. */
    if (owner != NONE && p->alone && u->access == ACCESS_READ && p->g->tensors[u->tensor].persistent) {
        write_back(p, owner);
        owner = NONE;
    }
    if (owner == NONE) {
        draft_put_fetch(p->d, u->segment, whole_tensor(p, u->tensor));
        return;
    }
    draft_put_send(p->d, owner, u->segment, whole_tensor(p, u->tensor));
    block_at(p, u->segment)->dirty = true;
    block_at(p, owner)->lane = LANE_PEER;
    drop_block(p, owner);
}

/* ---- tasks ---- */

static void collect_task_uses(struct paging *p, const struct todo *t)
{
    const struct graph_task *task = &p->g->tasks[t->task];
    p->uses.n = 0;
    for (uint32_t i = 0; i < task->n_operands; i++) {
        const struct graph_operand *op = &p->g->operands[task->operand + i];
        if (todo_uses(t, &p->g->tensors[op->tensor], op))
            vec_push(&p->uses, (struct cache_use){op, op->tensor, op->access, NONE, false});
    }
}

/* Puts all operands of the current task into the memory of `device`. */
static void make_resident(struct paging *p, uint32_t device)
{
    for (size_t i = 0; i < p->uses.n; i++) {
        struct cache_use *u = &p->uses.at[i];
        u->segment = copy_on(p, u->tensor, device);
        if (u->segment != NONE)
            touch_block(p, u->segment);
    }
    if (!admit_missing(p, device)) {
        clear_way(p);
        bool ok = admit_missing(p, device);
        /* There is space now: clear_way has removed all operands, and the cache is large enough for any one
         * task. */
        assert(ok);
        (void)ok;
    }
    for (size_t i = 0; i < p->uses.n; i++) {
        const struct cache_use *u = &p->uses.at[i];
        /* A task that does not read a value may write it only into a new block. */
        assert(u->admitted || u->access != ACCESS_WRITE);
        if (u->admitted && (u->access & ACCESS_READ))
            bring_value(p, u);
    }
}

/* Prepares a task that runs on the host: spills every input whose newest value is on a device. */
static void make_home(struct paging *p)
{
    for (size_t i = 0; i < p->uses.n; i++) {
        const struct cache_use *u = &p->uses.at[i];
        uint32_t owner = u->access & ACCESS_READ ? dirty_copy(p, u->tensor) : NONE;
        if (owner != NONE)
            write_back(p, owner);
    }
}

static bool outlives_step(const struct graph_tensor *t)
{
    return t->persistent || trainer_reads(t);
}

static void run_task(struct paging *p, const struct todo *t)
{
    assert(t->kind != INSTR_REC);
    bounded_poll();
    collect_task_uses(p, t);
    if (t->loc == PLAN_HOST)
        make_home(p);
    else
        make_resident(p, t->loc);
    draft_put_task(p->d, t);
    for (size_t i = 0; i < p->uses.n; i++)
        draft_put_use(p->d, p->uses.at[i].op, p->uses.at[i].segment, whole_tensor(p, p->uses.at[i].tensor));
    for (size_t i = 0; i < p->uses.n; i++) {
        const struct cache_use *u = &p->uses.at[i];
        if (u->segment != NONE)
            block_at(p, u->segment)->lane = LANE_COMPUTE;
        if (u->access & ACCESS_WRITE) {
            drop_copies(p, u->tensor, u->segment);
            if (u->segment != NONE)
                block_at(p, u->segment)->dirty = true;
        }
        if (--p->uses_left[u->tensor] == 0 && !outlives_step(&p->g->tensors[u->tensor]))
            drop_copies(p, u->tensor, NONE);
    }
}

/* ---- the whole replay ---- */

/* Counts in p->uses_left how often each tensor is used. For each device d, finds the task whose operands are
 * largest together, and sets ret_needs[d] to their size in bytes. */
static void survey(struct paging *p, const struct order *o, uint64_t *ret_needs)
{
    for (size_t i = 0; i < o->todos.n; i++) {
        const struct todo *t = &o->todos.at[i];
        uint64_t bytes = 0;
        bounded_poll();
        collect_task_uses(p, t);
        for (size_t k = 0; k < p->uses.n; k++) {
            p->uses_left[p->uses.at[k].tensor]++;
            bytes += block_bytes(p, p->uses.at[k].tensor);
        }
        if (t->loc != PLAN_HOST && bytes > ret_needs[t->loc])
            ret_needs[t->loc] = bytes;
    }
}

static void evict_all(struct paging *p)
{
    for (uint32_t i = 0; i < p->d->n_devices; i++)
        while (p->caches[i].oldest != NONE)
            evict(p, p->caches[i].oldest);
}

static void set_peaks(struct draft *d)
{
    for (size_t i = 0; i < d->segments.n; i++) {
        const struct segment *s = &d->segments.at[i];
        uint64_t end = s->addr + segment_bytes(s);
        if (end > d->peak[s->device])
            d->peak[s->device] = end;
    }
}

void draft_paging(struct draft *d, const struct order *o, const struct machine *m, bool least_cache,
                  bool cyclic)
{
    *d = (struct draft){.graph = o->graph, .n_devices = o->n_devices, .n_shares = 1, .cyclic = cyclic};
    struct arena *a = arena_create();
    struct paging p = {.d = d, .g = o->graph, .alone = o->alone};
    uint64_t needs[DEVICE_MAX] = {0};
    p.uses_left = arena_alloc_array(a, p.g->n_tensors, sizeof *p.uses_left);
    p.copies = arena_alloc_array(a, p.g->n_tensors, sizeof *p.copies);
    memset(p.copies, 0xff, p.g->n_tensors * sizeof *p.copies);
    survey(&p, o, needs);
    for (uint32_t i = 0; i < o->n_devices; i++) {
        uint64_t capacity = least_cache ? 0 : m->capacity_bytes[i] & ~(uint64_t)(PLAN_ALIGN - 1);
        p.caches[i] = (struct cache){capacity > needs[i] ? capacity : needs[i], NONE, NONE, NONE};
    }
    for (p.pos = 0; p.pos < o->todos.n; p.pos++)
        run_task(&p, &o->todos.at[p.pos]);
    evict_all(&p);
    set_peaks(d);
    vec_free(&p.blocks);
    vec_free(&p.uses);
    arena_destroy(a);
}
