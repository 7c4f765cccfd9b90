/* Searches exhaustively for the least time of a step of a tiny chain.
 *
 * A state says which tasks are done and where every block is. An edge is one task, with the blocks that
 * leave the device for it and those that it fetches. A label is a state with the busy time of every resource
 * so far. Labels are expanded in ascending order of the least time of a step that they allow, which never
 * decreases along an edge, so the first complete step is the best. A label is dropped if another label of
 * its state is nowhere busier.
 *
 * Three kinds of choices are left out, because they change no busy time for the better: a block is fetched
 * only for the task that reads it, is spilled only when it leaves the device or when the host reads it, and
 * leaves only when its room is needed. */
#include "tests/unit/brute_time.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/vec.h"

#define MOST_BLOCKS 21
#define NONE        UINT32_MAX

enum { ON_HOST = 1, ON_DEVICE = 2 };
/* SERIAL is the time of all forward and backward tasks and of the update of layer 0, which follow one
 * another. */
enum busy { COMPUTE, IN, OUT, HOST, SERIAL, BUSY_COUNT };

/* The places of all blocks, two bits each, and the tasks that are done, a bit each. */
struct state {
    uint64_t blocks;
    uint32_t done;
};

struct label {
    struct state s;
    uint32_t busy[BUSY_COUNT];
    uint32_t next; /* label with the same hash, or NONE */
    bool dropped;
};

struct search {
    struct brute_time_case c;
    uint32_t n_blocks, size[MOST_BLOCKS];
    uint32_t all_done;
    VEC(struct label) labels;
    VEC(VEC(uint32_t)) queue; /* labels, by at_least */
    uint32_t *hash, n_hash;
};

/* One task, with sets of blocks. */
struct task {
    uint32_t reads, writes, dies;
    uint32_t done, ns;
};

/* ---- blocks and tasks ---- */

static uint32_t w_of(uint32_t l)
{
    return 3 * l;
}

static uint32_t dw_of(uint32_t l)
{
    return 3 * l + 1;
}

static uint32_t k_of(uint32_t l)
{
    return 3 * l + 2;
}

static uint32_t of_micro(const struct search *x, uint32_t kind, uint32_t l, uint32_t j)
{
    return 3 * x->c.n_layers + (kind * x->c.n_layers + l) * x->c.n_micros + j;
}

static uint32_t s_of(const struct search *x, uint32_t l, uint32_t j)
{
    return of_micro(x, 0, l, j);
}

static uint32_t y_of(const struct search *x, uint32_t l, uint32_t j)
{
    return of_micro(x, 1, l, j);
}

/* The gradient of Y. */
static uint32_t dy_of(const struct search *x, uint32_t l, uint32_t j)
{
    return of_micro(x, 2, l, j);
}

static uint32_t fwd_bit(const struct search *x, uint32_t l, uint32_t j)
{
    return 1u << (l * x->c.n_micros + j);
}

/* `l` may be n_layers, the loss. */
static uint32_t bwd_bit(const struct search *x, uint32_t l, uint32_t j)
{
    return fwd_bit(x, x->c.n_layers + l, j);
}

static uint32_t upd_bit(const struct search *x, uint32_t l)
{
    return fwd_bit(x, 2 * x->c.n_layers + 1, 0) << l;
}

static void init(struct search *x)
{
    const uint32_t n = x->c.n_layers, m = x->c.n_micros;
    x->n_blocks = 3 * n + 3 * n * m;
    assert(x->n_blocks <= MOST_BLOCKS);
    for (uint32_t l = 0; l < n; l++) {
        const struct brute_time_layer *layer = &x->c.layers[l];
        x->size[w_of(l)] = x->size[dw_of(l)] = layer->w;
        x->size[k_of(l)] = layer->k;
        for (uint32_t j = 0; j < m; j++) {
            x->size[s_of(x, l, j)] = layer->s;
            x->size[y_of(x, l, j)] = x->size[dy_of(x, l, j)] = layer->y;
        }
    }
    x->all_done = upd_bit(x, n) - 1;
}

/* A forward task, which writes the blocks of `writes` out of Y and S. */
static struct task forward(const struct search *x, uint32_t l, uint32_t j, uint32_t writes)
{
    return (struct task){.reads = 1u << w_of(l) | (l > 0 ? 1u << y_of(x, l - 1, j) : 0),
                         .writes = writes,
                         .done = fwd_bit(x, l, j),
                         .ns = x->c.layers[l].fwd_ns};
}

static struct task backward(const struct search *x, uint32_t l, uint32_t j)
{
    const uint32_t n = x->c.n_layers, input = l > 0 ? 1u << y_of(x, l - 1, j) : 0;
    struct task t = {.reads = input,
                     .writes = l > 0 ? 1u << dy_of(x, l - 1, j) : 0,
                     .dies = input,
                     .done = bwd_bit(x, l, j),
                     .ns = l < n ? x->c.layers[l].bwd_ns : x->c.loss_ns};
    if (l < n) {
        uint32_t dies = 1u << s_of(x, l, j) | 1u << dy_of(x, l, j), dw = 1u << dw_of(l);
        t.reads |= 1u << w_of(l) | dies | (j > 0 ? dw : 0);
        t.writes |= dw;
        t.dies |= dies;
    }
    return t;
}

static struct task update(const struct search *x, uint32_t l)
{
    uint32_t state = 1u << w_of(l) | 1u << k_of(l), dw = 1u << dw_of(l);
    return (struct task){.reads = state | dw,
                         .writes = state,
                         .dies = dw,
                         .done = upd_bit(x, l),
                         .ns = x->c.layers[l].upd_device_ns};
}

/* ---- labels ---- */

static uint32_t place(const struct state *s, uint32_t block)
{
    return s->blocks >> (2 * block) & 3;
}

static void put(struct state *s, uint32_t block, uint32_t places)
{
    s->blocks = (s->blocks & ~(UINT64_C(3) << (2 * block))) | (uint64_t)places << (2 * block);
}

/* Returns the time of the passes that are still to be done. */
static uint32_t rest_ns(const struct search *x, const struct state *s)
{
    uint32_t ns = 0;
    for (uint32_t l = 0; l <= x->c.n_layers; l++)
        for (uint32_t j = 0; j < x->c.n_micros; j++) {
            if (l < x->c.n_layers && !(s->done & fwd_bit(x, l, j)))
                ns += x->c.layers[l].fwd_ns;
            if (!(s->done & bwd_bit(x, l, j)))
                ns += l < x->c.n_layers ? x->c.layers[l].bwd_ns : x->c.loss_ns;
        }
    return ns;
}

/* Returns a time that the step takes at least: the largest busy time, where the passes that are still to be
 * done count too. */
static uint32_t at_least(const struct search *x, const struct state *s, const uint32_t *busy)
{
    uint32_t max = busy[busy[SERIAL] > busy[COMPUTE] ? SERIAL : COMPUTE] + rest_ns(x, s);
    for (int i = 0; i < BUSY_COUNT; i++)
        max = busy[i] > max ? busy[i] : max;
    return max;
}

static bool nowhere_busier(const uint32_t *a, const uint32_t *b)
{
    for (int i = 0; i < BUSY_COUNT; i++)
        if (a[i] > b[i])
            return false;
    return true;
}

static uint32_t *bucket(const struct search *x, const struct state *s)
{
    uint64_t h = (s->blocks ^ (uint64_t)s->done << 40) * 0x9e3779b97f4a7c15ull;
    return &x->hash[(h ^ h >> 29) & (x->n_hash - 1)];
}

/* Makes the hash table larger, so that its chains stay short. */
static void grow(struct search *x)
{
    xfree(x->hash);
    x->n_hash = x->n_hash > 0 ? 4 * x->n_hash : 1 << 10;
    x->hash = xcalloc(x->n_hash, sizeof *x->hash);
    memset(x->hash, 0xff, x->n_hash * sizeof *x->hash);
    for (uint32_t i = 0; i < x->labels.n; i++) {
        uint32_t *first = bucket(x, &x->labels.at[i].s);
        x->labels.at[i].next = *first;
        *first = i;
    }
}

/* Adds a label, unless another label of the same state is nowhere busier. */
static void reach(struct search *x, const struct state *s, const uint32_t *busy)
{
    if (x->labels.n >= x->n_hash)
        grow(x);
    uint32_t *first = bucket(x, s), time = at_least(x, s, busy), id = (uint32_t)x->labels.n;
    for (uint32_t i = *first; i != NONE; i = x->labels.at[i].next) {
        struct label *other = &x->labels.at[i];
        if (other->s.blocks != s->blocks || other->s.done != s->done || other->dropped)
            continue;
        if (nowhere_busier(other->busy, busy))
            return;
        other->dropped = nowhere_busier(busy, other->busy);
    }
    struct label new = {.s = *s, .next = *first};
    memcpy(new.busy, busy, sizeof new.busy);
    vec_push(&x->labels, new);
    *first = id;
    while (x->queue.n <= time) {
        vec_reserve(&x->queue, x->queue.n + 1);
        memset(&x->queue.at[x->queue.n++], 0, sizeof *x->queue.at);
    }
    vec_push(&x->queue.at[time], id);
}

/* ---- edges ---- */

static uint32_t used(const struct search *x, const struct state *s)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < x->n_blocks; i++)
        sum += place(s, i) & ON_DEVICE ? x->size[i] : 0;
    return sum;
}

/* Returns whether a block can be computed again: S and Y, but not the gradient of Y. */
static bool may_be_lost(const struct search *x, uint32_t block)
{
    return block >= s_of(x, 0, 0) && block < dy_of(x, 0, 0);
}

/* Runs a task on the device, where there is room for it. */
static void run(struct search *x, struct state s, const struct task *t, const uint32_t *before)
{
    uint32_t busy[BUSY_COUNT];
    memcpy(busy, before, sizeof busy);
    for (uint32_t i = 0; i < x->n_blocks; i++) {
        if (t->reads >> i & 1) {
            busy[IN] += place(&s, i) == ON_HOST ? x->size[i] * x->c.in_ns : 0;
            put(&s, i, place(&s, i) | ON_DEVICE);
        }
        if (t->writes >> i & 1)
            put(&s, i, ON_DEVICE);
        if (t->dies >> i & 1)
            put(&s, i, 0);
    }
    busy[COMPUTE] += t->ns;
    busy[SERIAL] += t->done < upd_bit(x, 1) ? t->ns : 0;
    s.done |= t->done;
    reach(x, &s, busy);
}

/* Tries all ways to make room for a task, block by block from `first` on, and then runs the task. */
static void make_room(struct search *x, const struct state *s, const struct task *t, uint32_t lack,
                      uint32_t first, const uint32_t *before)
{
    if (lack == 0) {
        run(x, *s, t, before);
        return;
    }
    for (uint32_t i = first; i < x->n_blocks; i++) {
        if ((t->reads | t->writes) >> i & 1 || !(place(s, i) & ON_DEVICE) || x->size[i] == 0)
            continue;
        struct state next = *s;
        uint32_t busy[BUSY_COUNT], left = lack > x->size[i] ? lack - x->size[i] : 0;
        bool only = place(s, i) == ON_DEVICE;
        memcpy(busy, before, sizeof busy);
        busy[OUT] += only ? x->size[i] * x->c.out_ns : 0;
        put(&next, i, ON_HOST);
        make_room(x, &next, t, left, i + 1, busy);
        put(&next, i, 0);
        if (only && may_be_lost(x, i))
            make_room(x, &next, t, left, i + 1, before);
    }
}

static void try_task(struct search *x, const struct state *s, const struct task *t, const uint32_t *busy)
{
    uint32_t needed = used(x, s);
    for (uint32_t i = 0; i < x->n_blocks; i++) {
        if (t->reads >> i & 1 && place(s, i) == 0 && x->size[i] > 0)
            return; /* lost: it has to be computed again first */
        if ((t->reads | t->writes) >> i & 1 && !(place(s, i) & ON_DEVICE))
            needed += x->size[i];
    }
    make_room(x, s, t, needed > x->c.capacity ? needed - x->c.capacity : 0, 0, busy);
}

/* The host reads W, K and dW and writes W and K. Copies on the device are of no use any more. */
static void update_on_host(struct search *x, struct state s, const struct task *t, uint32_t ns,
                           const uint32_t *before)
{
    uint32_t busy[BUSY_COUNT];
    memcpy(busy, before, sizeof busy);
    for (uint32_t i = 0; i < x->n_blocks; i++)
        if (t->reads >> i & 1) {
            busy[OUT] += place(&s, i) & ON_HOST ? 0 : x->size[i] * x->c.out_ns;
            put(&s, i, t->dies >> i & 1 ? 0 : ON_HOST);
        }
    busy[HOST] += ns;
    busy[SERIAL] += t->done == upd_bit(x, 0) ? ns : 0;
    s.done |= t->done;
    reach(x, &s, busy);
}

/* Tries the forward task of a layer: the first time with Y, and again for whatever of Y and S is lost and
 * still needed. */
static void try_forward(struct search *x, const struct label *l, uint32_t layer, uint32_t j)
{
    const uint32_t s = s_of(x, layer, j), y = y_of(x, layer, j);
    const bool again = l->s.done & fwd_bit(x, layer, j);
    for (uint32_t set = 1; set < 4; set++) {
        uint32_t writes = (set & 1 ? 1u << y : 0) | (set & 2 ? 1u << s : 0);
        if ((!again && !(set & 1)) || (set & 2 && x->size[s] == 0) ||
            (again && ((set & 1 && place(&l->s, y)) || (set & 2 && place(&l->s, s)))))
            continue;
        struct task t = forward(x, layer, j, writes);
        try_task(x, &l->s, &t, l->busy);
    }
}

/* Returns whether the backward task of a layer may run. The gradients of a layer are summed in order. */
static bool may_backward(const struct search *x, const struct state *s, uint32_t l, uint32_t j)
{
    bool loss = l == x->c.n_layers;
    uint32_t before = loss ? fwd_bit(x, l - 1, j) : bwd_bit(x, l + 1, j) | (j > 0 ? bwd_bit(x, l, j - 1) : 0);
    return !(s->done & bwd_bit(x, l, j)) && (s->done & before) == before;
}

static void expand(struct search *x, struct label l)
{
    const uint32_t n = x->c.n_layers, m = x->c.n_micros;
    for (uint32_t i = 0; i <= n; i++)
        for (uint32_t j = 0; j < m; j++) {
            bool fed = i == 0 || l.s.done & fwd_bit(x, i - 1, j), over = l.s.done & bwd_bit(x, i, j);
            if (i < n && fed && !over)
                try_forward(x, &l, i, j);
            struct task t = backward(x, i, j);
            if (may_backward(x, &l.s, i, j))
                try_task(x, &l.s, &t, l.busy);
        }
    for (uint32_t i = 0; i < n; i++) {
        struct task t = update(x, i);
        if (l.s.done & upd_bit(x, i) || !(l.s.done & bwd_bit(x, i, m - 1)))
            continue;
        try_task(x, &l.s, &t, l.busy);
        update_on_host(x, l.s, &t, x->c.layers[i].upd_host_ns, l.busy);
    }
}

/* ---- the steady state ---- */

/* Returns the state that begins a step: nothing is done, and the blocks of `kept` are on the device. */
static struct state first_state(const struct search *x, uint32_t kept)
{
    struct state s = {0};
    for (uint32_t l = 0; l < x->c.n_layers; l++) {
        put(&s, w_of(l), kept >> w_of(l) & 1 ? ON_DEVICE : ON_HOST);
        put(&s, k_of(l), kept >> k_of(l) & 1 ? ON_DEVICE : ON_HOST);
    }
    return s;
}

/* Brings a finished step into the state in which the next step begins: fetches and spills what is missing. */
static void end_step(struct search *x, const struct label *l, const struct state *first)
{
    uint32_t busy[BUSY_COUNT];
    memcpy(busy, l->busy, sizeof busy);
    struct state end = *first;
    for (uint32_t i = 0; i < 3 * x->c.n_layers; i++) {
        uint32_t now = place(&l->s, i), then = place(first, i);
        busy[IN] += then & ON_DEVICE && !(now & ON_DEVICE) ? x->size[i] * x->c.in_ns : 0;
        busy[OUT] += then & ON_HOST && !(now & ON_HOST) ? x->size[i] * x->c.out_ns : 0;
    }
    end.done = UINT32_MAX;
    reach(x, &end, busy);
}

static void clear(struct search *x)
{
    for (size_t q = 0; q < x->queue.n; q++)
        vec_free(&x->queue.at[q]);
    vec_free(&x->queue);
    vec_free(&x->labels);
    xfree(x->hash);
    x->hash = NULL;
    x->n_hash = 0;
}

/* Returns the least time of a step that keeps the blocks of `kept` from step to step, if it is below
 * `limit`, and otherwise `limit`. */
static uint32_t least_time(struct search *x, uint32_t kept, uint32_t limit)
{
    const struct state first = first_state(x, kept);
    if (used(x, &first) > x->c.capacity)
        return limit;
    reach(x, &first, (uint32_t[BUSY_COUNT]){0});
    for (uint32_t time = 0; time < x->queue.n && time < limit; time++)
        for (size_t i = 0; i < x->queue.at[time].n; i++) {
            struct label l = x->labels.at[x->queue.at[time].at[i]];
            if (l.s.done == UINT32_MAX)
                return time;
            if (l.s.done == x->all_done)
                end_step(x, &l, &first);
            else if (!l.dropped)
                expand(x, l);
        }
    return limit;
}

uint32_t brute_time(const struct brute_time_case *c, uint64_t *states)
{
    struct search x = {.c = *c};
    uint32_t best = UINT32_MAX;
    init(&x);
    for (uint32_t kept = 0; kept < 1u << (3 * c->n_layers); kept++) {
        bool twice = false;
        for (uint32_t l = 0; l < c->n_layers; l++) /* dW is never kept, and an empty K need not be */
            twice |= kept >> dw_of(l) & 1 || (kept >> k_of(l) & 1 && c->layers[l].k == 0);
        if (twice)
            continue;
        best = least_time(&x, kept, best);
        *states += x.labels.n;
        clear(&x);
    }
    return best;
}
