/* Computes the waits of a draft, from data dependences and from the reuse of addresses.
 *
 * The program is walked in issue order. For every piece of a segment or host copy, the walk remembers the
 * last writer and the readers since then. An instruction depends on the last writer of each piece that it
 * touches, and a write also on the readers. A cyclic program is walked twice: the second walk starts in the
 * state that the first one left, so it also finds the dependences on the previous run.
 *
 * Many dependences need no wait, because the stream order or another wait implies them. Vector clocks find
 * these: clock[i][s] says how far stream s is known to be done when instruction i is done. Dependences are
 * taken newest first. An older one can never imply a newer one, so the result has no redundant wait.
 *
 * Address reuse: when a segment is dropped, its bytes become free for later segments. The first write to a
 * piece at the same addresses depends on the drops of all segments that were there before. Host memory has no
 * drops: there, the first write depends on the last accesses to the bytes. Many places in host memory may be
 * free at the same time, so the free ranges are listed by blocks of addresses.
 *
 * Ring copies on the host use another slot in every step, so they cause no dependences between cycles.
 */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/checked.h"
#include "base/sort.h"
#include "scheduler/build/build.h"

#define NEVER UINT32_MAX

/* The last instructions that used a piece of a tensor. In a second walk over the program, instruction `index`
 * has the number n + index. */
struct piece_state {
    uint32_t writer;
    /* Index in walker.reads of a list: the instructions that have read the piece since its last write. NEVER
     * if the list is empty. */
    uint32_t readers;
};

/* A list element: an instruction that reads a piece. `at` is the number of the instruction, as explained at
 * struct piece_state. `next` is the index of the next element. */
struct piece_read {
    uint32_t at, next;
};

/* An address range that is free because the segment there has ended. A write to the range must wait for the
 * instructions in the list that begins with element `after` of walker.reads. On a device, this is the drop of
 * the segment. On the host, these are the last accesses to its bytes. */
struct vacancy {
    uint64_t from, to;
    uint32_t after;
};

typedef VEC(struct vacancy) vacancy_list;

/* The vacancies of a device, or of the host. They do not overlap. Block i has those from address
 * base + i * width to base + (i + 1) * width, in no particular order. A vacancy that is in several blocks is
 * cut. A block is as large as an average segment, so most segments are in one or two blocks. */
struct vacant_space {
    uint64_t base, width;
    vacancy_list *blocks;
    size_t n_blocks;
};

struct walker {
    struct draft *d;
    uint32_t n, n_streams;
    /* The state of each piece: first the pieces of all segments, then the pieces of all tensors that have a
     * home in host memory. */
    struct piece_state *pieces;
    /* of_segment[s] is the index in `pieces` of the first piece of segment s. of_home[t] is the same for
     * tensor t at its home. */
    uint32_t *of_segment, *of_home;
    VEC(struct piece_read) reads;
    /* The free address ranges of each device. The last element is for the host. */
    struct vacant_space vacant[DEVICE_MAX + 1];
    /* seen[i] is the value of `occupied` when instruction number i was last added to the readers of a new
     * piece. `occupied` counts the new pieces. */
    uint32_t *seen, occupied;
    uint32_t *clock; /* [unrolled position][stream] */
    uint32_t *last_of_stream;
    VEC(uint32_t) deps; /* dependences of the current instruction */
};

static void depend(struct walker *w, uint32_t at)
{
    if (at != NEVER)
        vec_push(&w->deps, at);
}

/* Adds an instruction to the list of readers that begins with *list. */
static void add_read(struct walker *w, uint32_t *list, uint32_t at)
{
    vec_push(&w->reads, (struct piece_read){at, *list});
    *list = (uint32_t)w->reads.n - 1;
}

static void touch_piece(struct walker *w, struct piece_state *p, enum access access, uint32_t now)
{
    depend(w, p->writer);
    if (access == ACCESS_READ) {
        add_read(w, &p->readers, now);
        return;
    }
    for (uint32_t i = p->readers; i != NEVER; i = w->reads.at[i].next)
        depend(w, w->reads.at[i].at);
    p->readers = NEVER;
    p->writer = now;
}

/* ---- free address ranges ---- */

/* Returns the free address ranges of a device or, if `device` is PLAN_HOST, of the host. */
static struct vacant_space *vacancies_of(struct walker *w, uint32_t device)
{
    return &w->vacant[device == PLAN_HOST ? DEVICE_MAX : device];
}

/* Divides the addresses of the segments at one location into blocks. */
static void divide_addresses(struct walker *w, struct arena *a, uint32_t device)
{
    struct vacant_space *space = vacancies_of(w, device);
    uint64_t base = UINT64_MAX, top = 0, bytes = 0, n = 0;
    for (size_t i = 0; i < w->d->segments.n; i++) {
        const struct segment *s = &w->d->segments.at[i];
        if (s->device != device)
            continue;
        base = s->addr < base ? s->addr : base;
        top = s->addr + segment_bytes(s) > top ? s->addr + segment_bytes(s) : top;
        bytes += segment_bytes(s);
        n++;
    }
    if (n == 0)
        return;
    space->base = base;
    space->width = bytes / n + 1;
    space->n_blocks = (top - base) / space->width + 1;
    space->blocks = arena_alloc_array(a, space->n_blocks, sizeof *space->blocks);
}

static void free_vacancies(struct vacant_space *space)
{
    for (size_t i = 0; i < space->n_blocks; i++)
        vec_free(&space->blocks[i]);
}

/* Adds the addresses [v.from, v.to) to the free ranges. */
static void vacate(struct vacant_space *space, struct vacancy v)
{
    for (uint64_t from = v.from; from < v.to;) {
        uint64_t i = (from - space->base) / space->width, end = space->base + (i + 1) * space->width;
        vec_push(&space->blocks[i], (struct vacancy){from, v.to < end ? v.to : end, v.after});
        from = end;
    }
}

/* Adds to *readers the instructions after which a range was free. Leaves out those that were added for the
 * same piece before. */
static void add_freers(struct walker *w, uint32_t *readers, uint32_t after)
{
    for (uint32_t k = after; k != NEVER; k = w->reads.at[k].next) {
        uint32_t at = w->reads.at[k].at;
        if (w->seen[at] == w->occupied)
            continue;
        w->seen[at] = w->occupied;
        add_read(w, readers, at);
    }
}

/* Removes the addresses [from, to) from the vacancies of one block. */
static void occupy_in_block(struct walker *w, vacancy_list *list, uint64_t from, uint64_t to,
                            uint32_t *readers)
{
    bounded_poll_steps(list->n);
    for (size_t i = 0; i < list->n;) {
        struct vacancy v = list->at[i];
        if (v.to <= from || v.from >= to) {
            i++;
            continue;
        }
        add_freers(w, readers, v.after);
        list->at[i] = list->at[--list->n];
        if (v.from < from)
            vec_push(list, (struct vacancy){v.from, from, v.after});
        if (v.to > to)
            vec_push(list, (struct vacancy){to, v.to, v.after});
    }
}

/* Puts a new piece at the addresses [from, to). Its first write must wait for the instructions that freed
 * them, so *ret lists these as readers. */
static void occupy(struct walker *w, uint32_t device, uint64_t from, uint64_t to, struct piece_state *ret)
{
    struct vacant_space *space = vacancies_of(w, device);
    *ret = (struct piece_state){NEVER, NEVER};
    if (from == to)
        return;
    w->occupied++;
    for (uint64_t i = (from - space->base) / space->width; i <= (to - 1 - space->base) / space->width; i++)
        occupy_in_block(w, &space->blocks[i], from, to, &ret->readers);
}

/* ---- one instruction ---- */

/* Computes the addresses of piece number `i` of a segment. The last piece also includes the padding at the
 * end of the segment. */
static void piece_addresses(const struct walker *w, const struct segment *s, uint32_t i, uint64_t *ret_from,
                            uint64_t *ret_to)
{
    uint64_t begin, end;
    tensor_piece(w->d->graph, w->d->n_shares, s->tensor, s->of.piece + i, &begin, &end);
    *ret_from = s->addr + (begin - s->of.begin);
    *ret_to = i + 1 < s->of.n_pieces ? s->addr + (end - s->of.begin) : s->addr + segment_bytes(s);
}

/* Initialises the state of each piece of a new segment. */
static void create_segment(struct walker *w, uint32_t segment)
{
    const struct segment *s = &w->d->segments.at[segment];
    struct piece_state *p = &w->pieces[w->of_segment[segment]];
    for (uint32_t i = 0; i < s->of.n_pieces; i++) {
        uint64_t from, to;
        piece_addresses(w, s, i, &from, &to);
        occupy(w, s->device, from, to, &p[i]);
    }
}

/* Frees the addresses of a segment that instruction `now` drops. */
static void vacate_dropped(struct walker *w, const struct segment *s, uint32_t now)
{
    uint32_t after = NEVER;
    add_read(w, &after, now);
    vacate(vacancies_of(w, s->device), (struct vacancy){s->addr, s->addr + segment_bytes(s), after});
}

/* Frees the addresses of a segment in host memory after the last access to it. */
static void vacate_on_host(struct walker *w, uint32_t segment)
{
    const struct segment *s = &w->d->segments.at[segment];
    const struct piece_state *p = &w->pieces[w->of_segment[segment]];
    for (uint32_t i = 0; i < s->of.n_pieces; i++) {
        struct vacancy v = {.after = p[i].readers};
        piece_addresses(w, s, i, &v.from, &v.to);
        if (v.after == NEVER && p[i].writer != NEVER)
            add_read(w, &v.after, p[i].writer);
        vacate(vacancies_of(w, PLAN_HOST), v);
    }
}

static void visit_operand(struct walker *w, const struct draft_operand *o, uint32_t index, uint32_t run)
{
    uint32_t now = run * w->n + index;
    if (o->segment == SEGMENT_NONE) {
        struct piece_state *p = &w->pieces[w->of_home[o->tensor] + o->of.piece];
        bool ring = w->d->graph->tensors[o->tensor].external;
        for (uint32_t i = 0; i < o->of.n_pieces; i++, p++) {
            if (ring && p->writer != NEVER && p->writer / w->n != run)
                *p = (struct piece_state){NEVER, NEVER};
            touch_piece(w, p, o->access, now);
        }
        return;
    }
    const struct segment *s = &w->d->segments.at[o->segment];
    struct piece_state *p = &w->pieces[w->of_segment[o->segment] + (o->of.piece - s->of.piece)];
    bool created = !s->boundary || s->start > s->end; /* the program itself creates the segment */
    if (created && s->start == index)
        create_segment(w, o->segment);
    for (uint32_t i = 0; i < o->of.n_pieces; i++)
        touch_piece(w, &p[i], o->access, now);
    if (o->access == ACCESS_DROP)
        vacate_dropped(w, s, now);
}

/* Frees the host memory of the copies that no instruction after instruction `index` uses. An instruction
 * has at most one operand of each of these copies. */
static void end_on_host(struct walker *w, const struct plan_instr *in, uint32_t index)
{
    for (uint32_t k = 0; k < in->n_operands; k++) {
        uint32_t segment = w->d->operands.at[in->operand + k].segment;
        if (segment == SEGMENT_NONE)
            continue;
        const struct segment *s = &w->d->segments.at[segment];
        if (s->device == PLAN_HOST && s->end == index)
            vacate_on_host(w, segment);
    }
}

static int newest_first(const void *pa, const void *pb)
{
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    return a > b ? -1 : a < b;
}

static void join(uint32_t *clock, const uint32_t *other, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (other[i] > clock[i])
            clock[i] = other[i];
}

/* Turns w->deps, on which instruction `index` depends, into as few waits as possible. Adds the waits to the
 * draft only if `record` is true. */
static void order_instr(struct walker *w, uint32_t index, uint32_t run, bool record)
{
    struct plan_instr *in = &w->d->instrs.at[index];
    uint32_t now = run * w->n + index;
    uint32_t *clock = &w->clock[(size_t)now * w->n_streams];
    if (w->last_of_stream[in->stream] != NEVER)
        join(clock, &w->clock[(size_t)w->last_of_stream[in->stream] * w->n_streams], w->n_streams);
    if (w->deps.n > 1)
        sort_array(w->deps.at, w->deps.n, sizeof *w->deps.at, newest_first);
    if (record)
        in->wait = (uint32_t)w->d->waits.n;
    for (size_t i = 0; i < w->deps.n; i++) {
        uint32_t on = w->deps.at[i], stream = w->d->instrs.at[on % w->n].stream;
        if (on == now || clock[stream] > on) /* clocks hold position + 1 */
            continue;
        join(clock, &w->clock[(size_t)on * w->n_streams], w->n_streams);
        if (!record)
            continue;
        vec_push(&w->d->waits, (struct plan_wait){on % w->n, run - on / w->n});
        in->n_waits++;
    }
    clock[in->stream] = now + 1;
    w->last_of_stream[in->stream] = now;
}

static void walk(struct walker *w, uint32_t run, bool record)
{
    for (uint32_t i = 0; i < w->n; i++) {
        const struct plan_instr *in = &w->d->instrs.at[i];
        w->deps.n = 0;
        bounded_poll();
        for (uint32_t k = 0; k < in->n_operands; k++)
            visit_operand(w, &w->d->operands.at[in->operand + k], i, run);
        end_on_host(w, in, i);
        order_instr(w, i, run, record);
    }
}

static void number_pieces(struct walker *w, struct arena *a)
{
    const struct draft *d = w->d;
    uint32_t n = 0;
    w->of_segment = arena_alloc_array(a, d->segments.n, sizeof *w->of_segment);
    w->of_home = arena_alloc_array(a, d->graph->n_tensors, sizeof *w->of_home);
    for (size_t i = 0; i < d->segments.n; i++) {
        w->of_segment[i] = n;
        n += d->segments.at[i].of.n_pieces;
    }
    for (uint32_t t = 0; t < d->graph->n_tensors; t++) {
        w->of_home[t] = n;
        n += graph_has_home(&d->graph->tensors[t]) ? tensor_pieces(d->graph, d->n_shares, t) : 0;
    }
    w->pieces = arena_alloc_array(a, n, sizeof *w->pieces);
    memset(w->pieces, 0xff, n * sizeof *w->pieces);
}

void draft_waits(struct draft *d)
{
    struct arena *a = arena_create();
    uint32_t runs = d->cyclic ? 2 : 1;
    struct walker w = {.d = d, .n = (uint32_t)d->instrs.n, .n_streams = d->n_devices * LANE_COUNT + 1};
    number_pieces(&w, a);
    w.clock = xcalloc((size_t)runs * w.n * w.n_streams + 1, sizeof *w.clock);
    w.last_of_stream = arena_alloc_array(a, w.n_streams, sizeof *w.last_of_stream);
    memset(w.last_of_stream, 0xff, w.n_streams * sizeof *w.last_of_stream);
    w.seen = arena_alloc_array(a, (size_t)runs * w.n, sizeof *w.seen);
    for (uint32_t i = 0; i < d->n_devices; i++)
        divide_addresses(&w, a, i);
    divide_addresses(&w, a, PLAN_HOST);
    for (uint32_t run = 0; run < runs; run++)
        walk(&w, run, run == runs - 1);
    for (uint32_t i = 0; i <= DEVICE_MAX; i++)
        free_vacancies(&w.vacant[i]);
    vec_free(&w.reads);
    vec_free(&w.deps);
    xfree(w.clock);
    arena_destroy(a);
}
