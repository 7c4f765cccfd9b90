/* Searches exhaustively for the least host traffic of a tiny chain.
 *
 * A state of the search says which tasks of the cycle are done and where every block is. An edge is one task
 * together with the blocks that leave the device and the blocks that are fetched for that task. The length of
 * an edge is its host traffic. The search leaves out three kinds of choices, because they never make a plan
 * better. A block is fetched only just before the task that reads it. A block is spilled only when it leaves
 * the device or when the host reads it. A block leaves only when the device needs space. (With two devices,
 * or with `eager`, a block may leave at any time: it may have to move to the other device, which may first
 * have to make space.) Without a stash two more kinds are left out. The micro-batches of a layer run in a
 * fixed order, since only their number matters. A task whose operands are all in place runs at once.
 *
 * The steady state is found by repeated search. Let S be the set of blocks that stay on the devices between
 * two cycles. V_n(S) is the least traffic of n cycles that end with S, from any start. One Dijkstra search
 * that starts from all S together computes V_n+1 from V_n. When V_n+p - V_n is the same number c for all S,
 * no sequence of cycles has less traffic than c / p per cycle, because V_n is a potential. Some sequence has
 * exactly this traffic: follow the predecessors back until they repeat.
 */
#include "tests/unit/brute.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

#define MAX_BLOCKS 32 /* a state has 64 bits: with two devices 21 */
#define MAX_PERIOD 12
#define MAX_CYCLES 64
#define FAR        UINT32_MAX

enum { ON_HOST = 1, ON_DEVICE = 2 }; /* bits of a block; ON_DEVICE << d */

/* Tasks in `done`, a bit each. For each micro-batch of the cycle: FWD of all layers, BWD of all layers and
 * the loss. Then for each step: UPD of all layers. */
struct state {
    uint64_t blocks;
    uint32_t done;
};

struct node {
    struct state s;
    uint32_t cost;
    bool used, settled;
};

struct brute {
    struct brute_case c;
    uint32_t n_steps, n_micros; /* micro-batches of all steps of a cycle */
    uint32_t n_blocks, size[MAX_BLOCKS];
    int k[BRUTE_MAX_LAYERS], dx[BRUTE_MAX_LAYERS + 1][BRUTE_MAX_MICROS]; /* block, or -1 */
    int x[BRUTE_MAX_LAYERS + 1][BRUTE_MAX_MICROS];
    uint32_t all_done;
    bool stashless;
    struct node *nodes;
    size_t n_nodes, cap;      /* a power of two */
    VEC(VEC(uint32_t)) queue; /* by cost: nodes */
    uint64_t looked_at;
    uint32_t limit; /* of cost: what costs so much is not looked at */
};

/* What a task does. */
struct task {
    uint32_t reads, writes; /* sets of blocks; both: read and written */
    uint32_t dies;          /* read here for the last time */
    uint32_t extra;         /* bytes besides */
    uint32_t done;          /* its bit */
};

/* ---- blocks and tasks ---- */

static int add_block(struct brute *b, uint32_t size)
{
    if (size == 0)
        return -1;
    assert((b->n_blocks + 1) * (1 + b->c.n_devices) <= 64);
    b->size[b->n_blocks] = size;
    return (int)b->n_blocks++;
}

static uint32_t w_of(uint32_t l)
{
    return l;
}

static uint32_t dw_of(const struct brute *b, uint32_t l)
{
    return b->c.n_layers + l;
}

static uint32_t set_of(int block)
{
    return block < 0 ? 0 : 1u << block;
}

/* Micro-batches are numbered through the whole cycle. */
static uint32_t fwd_bit(const struct brute *b, uint32_t l, uint32_t j)
{
    return 1u << (l * b->n_micros + j);
}

static uint32_t bwd_bit(const struct brute *b, uint32_t l, uint32_t j)
{
    return fwd_bit(b, b->c.n_layers + l, j);
}

static uint32_t upd_bit(const struct brute *b, uint32_t l, uint32_t step)
{
    return 1u << ((2 * b->c.n_layers + 1) * b->n_micros + step * b->c.n_layers + l);
}

static uint32_t step_of(const struct brute *b, uint32_t micro)
{
    return micro / b->c.n_micros;
}

/* Returns the first micro-batch of a step. */
static uint32_t first_of(const struct brute *b, uint32_t step)
{
    return step * b->c.n_micros;
}

/* Returns whether no gradient comes to layer l from the layer after it. */
static bool is_end(const struct brute *b, uint32_t l)
{
    return b->c.ends >> l & 1;
}

static void init_blocks(struct brute *b)
{
    uint32_t n = b->c.n_layers;
    for (uint32_t l = 0; l < 2 * n; l++) /* W and dW */
        add_block(b, b->c.w[l % n]);
    for (uint32_t l = 0; l < n; l++)
        b->k[l] = add_block(b, b->c.k[l]);
    b->stashless = true;
    for (uint32_t l = 0; l <= n; l++)
        for (uint32_t j = 0; j < b->n_micros; j++) {
            b->x[l][j] = l == 0 ? -1 : add_block(b, b->c.x[l]);
            b->dx[l][j] = l == 0 || is_end(b, l - 1) ? -1 : add_block(b, b->c.x[l]);
            b->stashless &= b->x[l][j] < 0;
        }
    b->all_done = (upd_bit(b, n, b->n_steps - 1) - 1);
}

static struct task forward(const struct brute *b, uint32_t l, uint32_t j)
{
    return (struct task){.reads = set_of((int)w_of(l)) | set_of(b->x[l][j]),
                         .writes = set_of(b->x[l + 1][j]),
                         .extra = l == 0 ? b->c.x[0] : 0,
                         .done = fwd_bit(b, l, j)};
}

static struct task backward(const struct brute *b, uint32_t l, uint32_t j)
{
    struct task t = {.reads = set_of(b->x[l][j]),
                     .writes = set_of(b->dx[l][j]),
                     .dies = set_of(b->x[l][j]),
                     .extra = l == 0 ? b->c.x[0] : 0,
                     .done = bwd_bit(b, l, j)};
    if (l < b->c.n_layers) {
        uint32_t dw = set_of((int)dw_of(b, l)), dy = set_of(b->dx[l + 1][j]);
        t.reads |= set_of((int)w_of(l)) | dy | (j > first_of(b, step_of(b, j)) ? dw : 0);
        t.writes |= dw;
        t.dies |= dy;
    }
    return t;
}

static struct task update(const struct brute *b, uint32_t l, uint32_t step)
{
    uint32_t state = set_of((int)w_of(l)) | set_of(b->k[l]), dw = set_of((int)dw_of(b, l));
    return (struct task){.reads = state | dw, .writes = state, .dies = dw, .done = upd_bit(b, l, step)};
}

/* ---- states ---- */

/* A block takes a bit for the host and one for each device. */
static uint32_t where(const struct brute *b, const struct state *s, uint32_t block)
{
    uint32_t width = 1 + b->c.n_devices;
    return s->blocks >> (width * block) & ((1u << width) - 1);
}

static void put(const struct brute *b, struct state *s, uint32_t block, uint32_t places)
{
    uint32_t width = 1 + b->c.n_devices;
    uint64_t mask = (1u << width) - 1;
    s->blocks = (s->blocks & ~(mask << (width * block))) | (uint64_t)places << (width * block);
}

static uint32_t used(const struct brute *b, const struct state *s, uint32_t device)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < b->n_blocks; i++)
        sum += where(b, s, i) & ON_DEVICE << device ? b->size[i] : 0;
    return sum;
}

/* Devices are alike: of a state and its mirror image one is enough. */
static void mirror(const struct brute *b, struct state *s)
{
    struct state other = *s;
    if (b->c.n_devices < 2)
        return;
    for (uint32_t i = 0; i < b->n_blocks; i++) {
        uint32_t p = where(b, s, i);
        put(b, &other, i, (p & ON_HOST) | (p & 2) << 1 | (p & 4) >> 1);
    }
    if (other.blocks < s->blocks)
        *s = other;
}

static size_t find(const struct brute *b, const struct state *s)
{
    uint64_t h = (s->blocks ^ (uint64_t)s->done << 32 ^ s->done) * 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93ull;
    size_t i = (h ^ h >> 29) & (b->cap - 1);
    while (b->nodes[i].used && (b->nodes[i].s.blocks != s->blocks || b->nodes[i].s.done != s->done))
        i = (i + 1) & (b->cap - 1);
    return i;
}

static void grow(struct brute *b)
{
    struct node *old = b->nodes;
    size_t n = b->cap;
    b->cap = n ? 4 * n : 1 << 12;
    b->nodes = xcalloc(b->cap, sizeof *b->nodes);
    for (size_t i = 0; i < n; i++)
        if (old[i].used)
            b->nodes[find(b, &old[i].s)] = old[i];
    free(old);
    /* The queue names nodes by their place. */
    for (size_t q = 0; q < b->queue.n; q++)
        b->queue.at[q].n = 0;
    for (size_t i = 0; i < b->cap; i++)
        if (b->nodes[i].used && !b->nodes[i].settled)
            vec_push(&b->queue.at[b->nodes[i].cost], (uint32_t)i);
}

static void reach(struct brute *b, struct state s, uint32_t cost)
{
    if (cost >= b->limit)
        return;
    mirror(b, &s);
    if (2 * (b->n_nodes + 1) > b->cap)
        grow(b);
    struct node *n = &b->nodes[find(b, &s)];
    if (n->used && n->cost <= cost)
        return;
    b->n_nodes += !n->used;
    *n = (struct node){.s = s, .cost = cost, .used = true};
    while (b->queue.n <= cost) {
        vec_reserve(&b->queue, b->queue.n + 1);
        memset(&b->queue.at[b->queue.n++], 0, sizeof *b->queue.at);
    }
    vec_push(&b->queue.at[cost], (uint32_t)(n - b->nodes));
}

/* ---- edges ---- */

static bool may_be_lost(const struct brute *b, uint32_t block)
{
    for (uint32_t l = 1; b->c.recompute && l <= b->c.n_layers; l++)
        for (uint32_t j = 0; j < b->n_micros; j++)
            if (b->x[l][j] == (int)block)
                return true;
    return false;
}

/* Removes a block from the device. If this was its only copy, the block is spilled to the host. Returns the
 * spilled bytes. */
static uint32_t evict(const struct brute *b, struct state *s, uint32_t block, uint32_t device)
{
    uint32_t rest = where(b, s, block) & ~(ON_DEVICE << device);
    put(b, s, block, rest ? rest : ON_HOST);
    return rest ? 0 : b->size[block];
}

/* Returns the bytes that the device still needs for the task: its extra bytes, and its blocks that are not on
 * the device. */
static uint32_t lacking(const struct brute *b, const struct state *s, const struct task *t, uint32_t device)
{
    uint32_t sum = t->extra;
    for (uint32_t i = 0; i < b->n_blocks; i++)
        if ((t->reads | t->writes) >> i & 1 && !(where(b, s, i) & ON_DEVICE << device))
            sum += b->size[i];
    return sum;
}

static void run(struct brute *b, struct state s, const struct task *t, uint32_t device, uint32_t cost)
{
    for (uint32_t i = 0; i < b->n_blocks; i++) {
        uint32_t here = ON_DEVICE << device;
        if (t->reads >> i & 1) {
            cost += where(b, &s, i) == ON_HOST ? b->size[i] : 0;
            put(b, &s, i, where(b, &s, i) | here);
        }
        if (t->writes >> i & 1)
            put(b, &s, i, here);
        if (t->dies >> i & 1)
            put(b, &s, i, 0);
    }
    s.done |= t->done;
    reach(b, s, cost);
}

/* All ways to make room, block by block from `first` on, and then the task. */
static void make_room(struct brute *b, const struct state *s, const struct task *t, uint32_t room,
                      uint32_t need, uint32_t first, uint32_t cost)
{
    if (need <= room) {
        run(b, *s, t, 0, cost);
        return;
    }
    for (uint32_t i = first; i < b->n_blocks; i++) {
        if ((t->reads | t->writes) >> i & 1 || !(where(b, s, i) & ON_DEVICE))
            continue;
        struct state next = *s;
        uint32_t spilled = evict(b, &next, i, 0);
        make_room(b, &next, t, room + b->size[i], need, i + 1, cost + spilled);
        if (may_be_lost(b, i) && spilled > 0) {
            put(b, &next, i, 0);
            make_room(b, &next, t, room + b->size[i], need, i + 1, cost);
        }
    }
}

static void try_task(struct brute *b, const struct state *s, const struct task *t, uint32_t cost)
{
    for (uint32_t i = 0; i < b->n_blocks; i++)
        if (t->reads >> i & 1 && where(b, s, i) == 0)
            return; /* lost, to be made again first */
    for (uint32_t d = 0; d < b->c.n_devices; d++) {
        uint32_t need = lacking(b, s, t, d), taken = used(b, s, d);
        if (taken + need <= b->c.capacity)
            run(b, *s, t, d, cost);
        else if (b->c.n_devices == 1)
            make_room(b, s, t, b->c.capacity - taken, need, 0, cost);
    }
}

/* The host reads W, K and dW and writes W and K: copies on devices are of no use any more. */
static void update_on_host(struct brute *b, struct state s, const struct task *t, uint32_t cost)
{
    for (uint32_t i = 0; i < b->n_blocks; i++)
        if (t->reads >> i & 1) {
            cost += where(b, &s, i) & ON_HOST ? 0 : b->size[i];
            put(b, &s, i, t->dies >> i & 1 ? 0 : ON_HOST);
        }
    s.done |= t->done;
    reach(b, s, cost);
}

/* What is there at the turn and read after it: X of every layer whose backward is to come, but for the task's
 * own. */
static uint32_t stash_at(const struct brute *b, const struct state *s, uint32_t turn)
{
    uint32_t sum = 0;
    for (uint32_t l = 1; l <= b->c.n_layers; l++)
        for (uint32_t j = 0; j < b->n_micros; j++)
            if (s->done & fwd_bit(b, l - 1, j) && !(s->done & bwd_bit(b, l, j)) &&
                !(l == b->c.n_layers && j == turn))
                sum += b->c.x[l];
    return sum;
}

static bool is_first_loss(const struct brute *b, const struct state *s)
{
    for (uint32_t j = 0; j < b->n_micros; j++)
        if (s->done & bwd_bit(b, b->c.n_layers, j))
            return false;
    return true;
}

/* Returns the first layer of the part that has layer l. */
static uint32_t part_begin(const struct brute *b, uint32_t l)
{
    while (l > 0 && !is_end(b, l - 1))
        l--;
    return l;
}

static bool may_update(const struct brute *b, const struct state *s, uint32_t layer, uint32_t step)
{
    uint32_t last = first_of(b, step + 1) - 1;
    return !(s->done & upd_bit(b, layer, step)) && s->done & bwd_bit(b, layer, last) &&
           (!b->c.decision || s->done & bwd_bit(b, part_begin(b, layer), last));
}

/* A task is due when its operands exist or can be made again, and its sum is in order. */
static bool may_forward(const struct brute *b, const struct state *s, uint32_t l, uint32_t j)
{
    bool again = (s->done & fwd_bit(b, l, j)) != 0;
    uint32_t step = step_of(b, j);
    if (l > 0 && !(s->done & fwd_bit(b, l - 1, j)))
        return false;
    if (step > 0 && !(s->done & upd_bit(b, l, step - 1)))
        return false;
    if (again) /* to make X again that was lost, while W is the old one and someone still reads X */
        return b->c.recompute && b->x[l + 1][j] >= 0 && where(b, s, (uint32_t)b->x[l + 1][j]) == 0 &&
               !(s->done & (bwd_bit(b, l + 1, j) | upd_bit(b, l, step)));
    return !b->stashless || j == 0 || s->done & fwd_bit(b, l, j - 1);
}

static bool may_backward(const struct brute *b, const struct state *s, uint32_t l, uint32_t j)
{
    if (s->done & bwd_bit(b, l, j))
        return false;
    if (l == b->c.n_layers)
        return s->done & fwd_bit(b, l - 1, j) &&
               (b->c.stash == BRUTE_ANY || !is_first_loss(b, s) || stash_at(b, s, j) == b->c.stash);
    return s->done & (is_end(b, l) ? fwd_bit(b, l, j) : bwd_bit(b, l + 1, j)) &&
           (j == 0 || s->done & bwd_bit(b, l, j - 1));
}

/* Everything is in place, and nothing that the host has becomes out of date. */
static bool is_free(const struct brute *b, const struct state *s, const struct task *t, uint32_t *ret_device)
{
    for (uint32_t d = 0; d < b->c.n_devices; d++) {
        bool ok = b->stashless && t->extra == 0;
        for (uint32_t i = 0; i < b->n_blocks; i++) {
            ok &= !(t->reads >> i & 1) || where(b, s, i) & ON_DEVICE << d;
            ok &= !(t->writes >> i & 1) || where(b, s, i) == (uint32_t)ON_DEVICE << d;
        }
        *ret_device = d;
        if (ok)
            return true;
    }
    return false;
}

typedef bool may_fn(const struct brute *b, const struct state *s, uint32_t l, uint32_t j);
typedef struct task task_fn(const struct brute *b, uint32_t l, uint32_t j);

static bool do_free_task(struct brute *b, const struct state *s, uint32_t cost, uint32_t n, may_fn *may,
                         task_fn *make)
{
    for (uint32_t l = 0; l < n; l++)
        for (uint32_t j = 0; j < b->n_micros; j++) {
            struct task t = make(b, l, j);
            uint32_t d;
            if (may(b, s, l, j) && is_free(b, s, &t, &d)) {
                run(b, *s, &t, d, cost);
                return true;
            }
        }
    return false;
}

static void try_tasks(struct brute *b, const struct state *s, uint32_t cost, uint32_t n, may_fn *may,
                      task_fn *make)
{
    for (uint32_t l = 0; l < n; l++)
        for (uint32_t j = 0; j < b->n_micros; j++)
            if (may(b, s, l, j)) {
                struct task t = make(b, l, j);
                try_task(b, s, &t, cost);
            }
}

/* Tries each block on a device: evicts it, or copies it to the other device. */
static void move_blocks(struct brute *b, const struct state *s, uint32_t cost)
{
    for (uint32_t i = 0; i < b->n_blocks; i++)
        for (uint32_t d = 0; d < b->c.n_devices; d++) {
            struct state next = *s;
            if (!(where(b, s, i) & ON_DEVICE << d))
                continue;
            uint32_t spilled = evict(b, &next, i, d);
            reach(b, next, cost + spilled);
            if (may_be_lost(b, i) && spilled > 0) {
                put(b, &next, i, 0);
                reach(b, next, cost);
            }
            uint32_t other = 1 - d;
            if (b->c.n_devices == 2 && !(where(b, s, i) & ON_DEVICE << other) &&
                used(b, s, other) + b->size[i] <= b->c.capacity) {
                next = *s;
                put(b, &next, i, where(b, s, i) | ON_DEVICE << other);
                reach(b, next, cost);
            }
        }
}

static void expand(struct brute *b, struct state s, uint32_t cost)
{
    uint32_t n = b->c.n_layers;
    if (s.done == b->all_done || b->c.n_devices > 1 || b->c.eager)
        move_blocks(b, &s, cost);
    if (do_free_task(b, &s, cost, n, may_forward, forward) ||
        do_free_task(b, &s, cost, n + 1, may_backward, backward))
        return;
    try_tasks(b, &s, cost, n, may_forward, forward);
    try_tasks(b, &s, cost, n + 1, may_backward, backward);
    for (uint32_t l = 0; l < n; l++)
        for (uint32_t step = 0; step < b->n_steps; step++) {
            struct task t = update(b, l, step);
            if (!may_update(b, &s, l, step))
                continue;
            if (b->c.update_on_device)
                try_task(b, &s, &t, cost);
            if (b->c.update_on_host)
                update_on_host(b, s, &t, cost);
        }
}

/* ---- cycles ---- */

/* The sets of blocks that may stay between two cycles, each with the least traffic found so far. Sorted by
 * blocks. */
struct ends {
    struct end {
        uint64_t blocks;
        uint32_t cost;
    } * at;
    size_t n, cap;
};

static int compare_ends(const void *pa, const void *pb)
{
    const struct end *a = pa, *b = pb;
    return a->blocks < b->blocks ? -1 : a->blocks > b->blocks;
}

static void one_cycle(struct brute *b, const struct ends *from, struct ends *ret)
{
    uint32_t least = FAR;
    for (size_t i = 0; i < from->n; i++)
        least = from->at[i].cost < least ? from->at[i].cost : least;
    b->n_nodes = 0;
    memset(b->nodes, 0, b->cap * sizeof *b->nodes);
    for (size_t i = 0; i < from->n; i++)
        reach(b, (struct state){.blocks = from->at[i].blocks}, from->at[i].cost - least);
    for (uint32_t cost = 0; cost < b->queue.n; cost++) {
        while (b->queue.at[cost].n > 0) {
            struct node *n = &b->nodes[b->queue.at[cost].at[--b->queue.at[cost].n]];
            if (n->settled || n->cost != cost)
                continue;
            n->settled = true;
            b->looked_at++;
            struct state s = n->s;
            if (s.done == b->all_done)
                vec_push(ret, (struct end){s.blocks, cost + least});
            expand(b, s, cost); /* may move the nodes */
        }
    }
    if (ret->n > 0) /* qsort may not be given the null pointer of an empty list */
        qsort(ret->at, ret->n, sizeof *ret->at, compare_ends);
}

/* Returns whether all costs have grown by the same number. */
static bool grown_evenly(const struct ends *from, const struct ends *to, uint32_t *ret)
{
    if (from->n != to->n || from->n == 0)
        return false;
    for (size_t i = 0; i < from->n; i++)
        if (from->at[i].blocks != to->at[i].blocks ||
            to->at[i].cost - from->at[i].cost != to->at[0].cost - from->at[0].cost)
            return false;
    *ret = to->at[0].cost - from->at[0].cost;
    return true;
}

/* Everything that may be on devices when a cycle begins: any W and K that fit. */
static void all_ends(const struct brute *b, struct ends *ret)
{
    uint32_t kept = 0, n = 0, places = 1 + b->c.n_devices, ways = 1;
    for (uint32_t l = 0; l < b->c.n_layers; l++)
        kept |= set_of((int)w_of(l)) | set_of(b->k[l]);
    for (uint32_t i = 0; i < b->n_blocks; i++)
        ways *= kept >> i & 1 ? places : 1;
    for (uint32_t way = 0; way < ways; way++) {
        struct state s = {0};
        uint32_t rest = way;
        for (uint32_t i = 0; i < b->n_blocks; i++)
            if (kept >> i & 1) {
                put(b, &s, i, 1u << rest % places);
                rest /= places;
            }
        mirror(b, &s);
        for (n = 0; n < ret->n && ret->at[n].blocks != s.blocks; n++)
            ;
        if (n == ret->n && used(b, &s, 0) <= b->c.capacity &&
            (b->c.n_devices == 1 || used(b, &s, 1) <= b->c.capacity))
            vec_push(ret, (struct end){s.blocks, 0});
    }
}

static bool find_period(struct brute *b, struct ends *ends, struct brute_result *ret)
{
    all_ends(b, &ends[0]);
    for (uint32_t n = 1; n <= MAX_CYCLES; n++) {
        one_cycle(b, &ends[n - 1], &ends[n]);
        if (ends[n].n == 0)
            return true; /* does not fit */
        for (uint32_t p = 1; p <= MAX_PERIOD && p < n; p++)
            if (grown_evenly(&ends[n - p], &ends[n], &ret->bytes)) {
                ret->cycles = p;
                return true;
            }
    }
    return false;
}

/* ---- */

static void init(struct brute *b, const struct brute_case *c)
{
    uint32_t steps = c->steps > 0 ? c->steps : 1;
    assert(c->n_layers >= 1 && c->n_layers <= BRUTE_MAX_LAYERS && c->n_micros >= 1 &&
           steps * c->n_micros <= BRUTE_MAX_MICROS && (c->n_devices == 1 || c->n_devices == 2));
    assert((2 * c->n_layers + 1) * steps * c->n_micros + steps * c->n_layers < 32); /* bits of `done` */
    *b = (struct brute){.c = *c, .n_steps = steps, .n_micros = steps * c->n_micros, .limit = FAR};
    init_blocks(b);
    grow(b);
}

static void finish(struct brute *b)
{
    for (size_t q = 0; q < b->queue.n; q++)
        vec_free(&b->queue.at[q]);
    vec_free(&b->queue);
    free(b->nodes);
}

bool brute_solve(const struct brute_case *c, struct brute_result *ret)
{
    struct brute b;
    struct ends ends[MAX_CYCLES + 1] = {0};
    init(&b, c);
    *ret = (struct brute_result){0};
    bool done = find_period(&b, ends, ret);
    ret->n_states = (uint32_t)b.looked_at;
    for (uint32_t n = 0; n <= MAX_CYCLES; n++)
        vec_free(&ends[n]);
    finish(&b);
    return done;
}

bool brute_one_cycle_below(const struct brute_case *c, uint32_t limit)
{
    struct brute b;
    struct ends all = {0};
    bool found = false;
    init(&b, c);
    b.limit = limit;
    all_ends(&b, &all);
    for (size_t i = 0; i < all.n && !found; i++) {
        struct ends back = {0};
        one_cycle(&b, &(struct ends){&all.at[i], 1, 1}, &back);
        for (size_t k = 0; k < back.n; k++)
            found |= back.at[k].blocks == all.at[i].blocks;
        vec_free(&back);
    }
    vec_free(&all);
    finish(&b);
    return found;
}
