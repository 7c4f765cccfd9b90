/* Tests the waits alone: drafts with addresses go in, and every instruction must get exactly the waits that
 * it needs.
 *
 * Hand-made drafts show one reason for a wait at a time. Their waits are compared as a text: `3<1` means that
 * instruction 3 waits for instruction 1, and `0<5'` means that instruction 0 waits for instruction 5 of the
 * previous cycle.
 *
 * Random drafts are checked against the definition. Three cycles are unrolled. Two accesses conflict if
 * they touch the same bytes of a device or of the host and at least one of them writes; a drop counts as a
 * write. Tensors without a home get addresses of their own in host memory, or share them. Every two
 * conflicting accesses must be ordered by streams and waits, and must no longer all be ordered when any
 * single wait is removed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bounded.h"
#include "base/rng.h"
#include "base/strbuf.h"
#include "scheduler/build/build.h"
#include "tests/unit/even_table.h"

#define N_DEVICES 2

/* A draft on two devices, over a graph that only provides tensors and their sizes. */
struct scene {
    struct graph *graph;
    struct table *table;
    struct draft draft;
    struct strbuf text;
};

/* Each W has 1 KiB, and each K has 2 KiB. dX of layer 2 has two pieces. */
static void begin(struct scene *s, bool cyclic, uint32_t n_shares)
{
    static const uint32_t rows[] = {2, 2, 1, 1};
    const struct graph_sizes sizes = {2, 1, rows};
    *s = (struct scene){.table = even_table(4, KIB, 2 * KIB, KIB, KIB)};
    assert_int_equal(graph_build_sizes(s->table, &sizes, true, &s->graph, NULL), 0);
    s->draft =
        (struct draft){.graph = s->graph, .n_devices = N_DEVICES, .n_shares = n_shares, .cyclic = cyclic};
}

static void finish(struct scene *s)
{
    draft_finish(&s->draft);
    strbuf_finish(&s->text);
    graph_destroy(s->graph);
    table_destroy(s->table);
}

static tensor_id weights(const struct scene *s, uint32_t layer)
{
    return graph_tensor_find(s->graph, TENSOR_W, layer, PLAN_NONE, 0);
}

/* Adds a segment that an instruction of the draft creates, at this address. */
static uint32_t segment(struct scene *s, tensor_id tensor, uint32_t device, uint64_t addr)
{
    struct extent whole = extent_whole(s->graph, s->draft.n_shares, tensor);
    vec_push(&s->draft.segments, (struct segment){.tensor = tensor,
                                                  .device = device,
                                                  .of = whole,
                                                  .start = SEGMENT_UNBORN,
                                                  .end = UINT32_MAX,
                                                  .addr = addr});
    return (uint32_t)s->draft.segments.n - 1;
}

/* Adds a segment that is on its device all the time. */
static uint32_t resident(struct scene *s, tensor_id tensor, uint32_t device, uint64_t addr)
{
    uint32_t seg = segment(s, tensor, device, addr);
    s->draft.segments.at[seg].boundary = true;
    s->draft.segments.at[seg].start = 0;
    return seg;
}

static struct extent whole_of(const struct scene *s, uint32_t seg)
{
    return s->draft.segments.at[seg].of;
}

static struct extent piece_of(const struct scene *s, uint32_t seg, uint32_t piece)
{
    return extent_piece(s->graph, s->draft.n_shares, s->draft.segments.at[seg].tensor, piece);
}

static void fetch(struct scene *s, uint32_t seg)
{
    draft_put_fetch(&s->draft, seg, whole_of(s, seg));
}

static void spill(struct scene *s, uint32_t seg)
{
    draft_put_spill(&s->draft, seg, whole_of(s, seg));
}

static void put_on(struct scene *s, uint32_t seg, enum access access, struct extent of)
{
    const struct graph_operand op = {.tensor = s->draft.segments.at[seg].tensor, .access = access};
    draft_put_use(&s->draft, &op, seg, of);
}

static void use(struct scene *s, uint32_t seg, enum access access)
{
    put_on(s, seg, access, whole_of(s, seg));
}

/* Adds a task without operands, on a device or on the host. */
static void task(struct scene *s, uint32_t loc)
{
    draft_put_task(&s->draft, &(struct todo){.kind = INSTR_FWD, .loc = loc});
}

static void task_on(struct scene *s, uint32_t seg, enum access access)
{
    task(s, s->draft.segments.at[seg].device);
    use(s, seg, access);
}

static void host_task(struct scene *s, tensor_id tensor, enum access access)
{
    const struct graph_operand op = {.tensor = tensor, .access = access};
    task(s, PLAN_HOST);
    draft_put_use(&s->draft, &op, SEGMENT_NONE, extent_whole(s->graph, s->draft.n_shares, tensor));
}

static void drop(struct scene *s, uint32_t seg)
{
    draft_put_drop(&s->draft, seg, LANE_COMPUTE);
}

static void make_waits(struct draft *d)
{
    for (size_t i = 0; i < d->segments.n; i++)
        if (d->segments.at[i].boundary && d->segments.at[i].end == UINT32_MAX)
            d->segments.at[i].end = (uint32_t)d->instrs.n - 1;
    draft_waits(d);
}

static void expect(struct scene *s, const char *want)
{
    make_waits(&s->draft);
    for (uint32_t i = 0; i < s->draft.instrs.n; i++) {
        const struct plan_instr *in = &s->draft.instrs.at[i];
        for (uint32_t k = in->wait; k < in->wait + in->n_waits; k++)
            strbuf_addf(&s->text, "%s%u<%u%s", s->text.n > 0 ? " " : "", i, s->draft.waits.at[k].instr,
                        s->draft.waits.at[k].distance == 0   ? ""
                        : s->draft.waits.at[k].distance == 1 ? "'"
                                                             : "?");
    }
    assert_string_equal(s->text.n > 0 ? s->text.at : "", want);
    finish(s);
}

/* ---- data ---- */

static void test_waits_follow_the_data(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    uint32_t w = segment(&s, weights(&s, 0), 0, 0);
    fetch(&s, w);              /* 0, in */
    task_on(&s, w, ACCESS_RW); /* 1, compute */
    spill(&s, w);              /* 2, out */
    drop(&s, w);               /* 3, compute: not before the spill has read the copy */
    expect(&s, "1<0 2<1 3<2");
}

static void test_waits_order_a_write_after_all_reads(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    uint32_t w = segment(&s, weights(&s, 0), 0, 0), other = segment(&s, weights(&s, 0), 1, 0);
    fetch(&s, w);                                        /* 0, in */
    spill(&s, w);                                        /* 1, out: reads */
    draft_put_send(&s.draft, w, other, whole_of(&s, w)); /* 2, peer: reads */
    task_on(&s, w, ACCESS_READ);                         /* 3, compute: reads, needs only the fetch */
    task_on(&s, w, ACCESS_RW);                           /* 4, compute: writes */
    expect(&s, "1<0 2<0 3<0 4<2 4<1");
}

/* The host copy is data too: device 1 fetches after device 0 has spilled, and the host writes after that. */
static void test_waits_follow_the_host_copy(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    uint32_t a = segment(&s, weights(&s, 0), 0, 0), b = segment(&s, weights(&s, 0), 1, 0);
    task_on(&s, a, ACCESS_WRITE);               /* 0 */
    spill(&s, a);                               /* 1 */
    fetch(&s, b);                               /* 2, device 1 */
    host_task(&s, weights(&s, 0), ACCESS_READ); /* 3 */
    host_task(&s, weights(&s, 0), ACCESS_RW);   /* 4: not before device 1 has read the host copy */
    host_task(&s, weights(&s, 1), ACCESS_RW);   /* 5: other data */
    expect(&s, "1<0 2<1 3<1 4<2");
}

/* Pieces of a tensor are data of their own. */
static void test_waits_follow_pieces(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 2);
    uint32_t w = segment(&s, weights(&s, 0), 0, 0), other = segment(&s, weights(&s, 0), 1, 0);
    draft_put_fetch(&s.draft, w, piece_of(&s, w, 0));         /* 0, device 0 in */
    draft_put_fetch(&s.draft, other, piece_of(&s, other, 1)); /* 1, device 1 in */
    draft_put_send(&s.draft, other, w, piece_of(&s, w, 1));   /* 2, device 1 peer */
    task(&s, 0);                                              /* 3 */
    put_on(&s, w, ACCESS_READ, piece_of(&s, w, 0));
    task_on(&s, w, ACCESS_READ); /* 4: also needs the second piece */
    expect(&s, "2<1 3<0 4<2");
}

/* So are the pieces of a host copy. */
static void test_waits_follow_pieces_of_the_host_copy(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 2);
    uint32_t a = segment(&s, weights(&s, 0), 0, 0), b = segment(&s, weights(&s, 0), 1, 0);
    task_on(&s, a, ACCESS_WRITE);                     /* 0 */
    draft_put_spill(&s.draft, a, piece_of(&s, a, 0)); /* 1 */
    draft_put_fetch(&s.draft, b, piece_of(&s, b, 1)); /* 2: the spill wrote another piece */
    draft_put_fetch(&s.draft, b, piece_of(&s, b, 0)); /* 3 */
    expect(&s, "1<0 3<1");
}

/* ---- addresses ---- */

static void test_waits_for_the_drop_that_frees_an_address(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    uint32_t a = segment(&s, weights(&s, 0), 0, 0), b = segment(&s, weights(&s, 1), 0, 0),
             beside = segment(&s, weights(&s, 2), 0, KIB), elsewhere = segment(&s, weights(&s, 2), 1, 0);
    task_on(&s, a, ACCESS_WRITE); /* 0 */
    drop(&s, a);                  /* 1 */
    fetch(&s, beside);            /* 2: other addresses */
    fetch(&s, elsewhere);         /* 3: another device */
    fetch(&s, b);                 /* 4: the addresses of a */
    expect(&s, "4<1");
}

/* A new segment may cover several old ones, and only parts of them. */
static void test_waits_for_all_drops_under_a_segment(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    uint32_t a = segment(&s, weights(&s, 0), 0, 0), b = segment(&s, weights(&s, 1), 0, KIB),
             over = segment(&s, weights(&s, 2), 0, KIB / 2),
             rest = segment(&s, weights(&s, 0), 0, 3 * KIB / 2);
    fetch(&s, a);                              /* 0, in */
    task_on(&s, b, ACCESS_WRITE);              /* 1, compute */
    draft_put_drop(&s.draft, a, LANE_OUT);     /* 2, out */
    draft_put_drop(&s.draft, b, LANE_COMPUTE); /* 3, compute */
    fetch(&s, over);                           /* 4, in: half of a and half of b */
    draft_put_drop(&s.draft, over, LANE_PEER); /* 5, peer */
    task_on(&s, rest, ACCESS_WRITE);           /* 6, compute: the other half of b, and new memory */
    expect(&s, "2<0 4<3 4<2 5<4");
}

/* The last user of the bytes counts, not the first. */
static void test_waits_only_for_the_newest_drop(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    uint32_t a = segment(&s, weights(&s, 0), 0, 0), b = segment(&s, weights(&s, 1), 0, 0),
             c = segment(&s, weights(&s, 2), 0, 0);
    task_on(&s, a, ACCESS_WRITE);           /* 0 */
    draft_put_drop(&s.draft, a, LANE_PEER); /* 1 */
    fetch(&s, b);                           /* 2 */
    draft_put_drop(&s.draft, b, LANE_OUT);  /* 3 */
    task_on(&s, c, ACCESS_WRITE);           /* 4 */
    expect(&s, "1<0 2<1 3<2 4<3");
}

/* Each piece of a segment waits for what was under this piece. */
static void test_waits_of_pieces_look_at_their_own_addresses(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 2);
    uint32_t a = segment(&s, weights(&s, 0), 0, 0), b = segment(&s, weights(&s, 2), 0, KIB),
             w = segment(&s, weights(&s, 1), 0, KIB / 2);
    fetch(&s, b);                                     /* 0, in */
    task_on(&s, a, ACCESS_WRITE);                     /* 1, compute */
    draft_put_drop(&s.draft, a, LANE_OUT);            /* 2, out */
    draft_put_drop(&s.draft, b, LANE_PEER);           /* 3, peer */
    draft_put_fetch(&s.draft, w, piece_of(&s, w, 0)); /* 4: under it was a */
    draft_put_fetch(&s.draft, w, piece_of(&s, w, 1)); /* 5: under it was b */
    expect(&s, "2<1 3<0 4<2 5<3");
}

/* ---- cycles ---- */

static void test_waits_for_the_cycle_before(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, true, 1);
    uint32_t a = segment(&s, weights(&s, 0), 0, 0);
    fetch(&s, a);                /* 0: the addresses are free after the drop of the cycle before */
    task_on(&s, a, ACCESS_READ); /* 1 */
    drop(&s, a);                 /* 2 */
    expect(&s, "0<2' 1<0");
}

static void test_waits_follow_resident_copies_over_the_boundary(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, true, 1);
    uint32_t w = resident(&s, weights(&s, 0), 0, 0);
    task_on(&s, w, ACCESS_READ); /* 0: the write of the cycle before is on the same stream */
    task_on(&s, w, ACCESS_RW);   /* 1: the spill of the cycle before reads the copy */
    spill(&s, w);                /* 2 */
    expect(&s, "1<2' 2<1");
}

/* A copy that is created late in a cycle is dropped early in the next. */
static void test_waits_of_a_copy_that_wraps(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, true, 1);
    uint32_t w = segment(&s, weights(&s, 0), 0, 0), b = segment(&s, weights(&s, 1), 0, 0);
    s.draft.segments.at[w].boundary = true;
    task_on(&s, w, ACCESS_READ);           /* 0: the fetch of the cycle before */
    draft_put_drop(&s.draft, w, LANE_OUT); /* 1 */
    task_on(&s, b, ACCESS_WRITE);          /* 2 */
    draft_put_drop(&s.draft, b, LANE_OUT); /* 3 */
    fetch(&s, w);                          /* 4 */
    expect(&s, "0<4' 1<0 2<1 3<2 4<3");
}

/* Results have another host slot in the next step, so the cycle before is of no concern. */
static void test_waits_ignore_ring_slots_of_other_cycles(void **state)
{
    (void)state;
    for (int ring = 0; ring < 2; ring++) {
        struct scene s;
        begin(&s, true, 1);
        tensor_id t = ring ? graph_tensor_find(s.graph, TENSOR_X, 0, 0, 0) : weights(&s, 0);
        assert_int_equal(s.graph->tensors[t].external, ring);
        uint32_t a = resident(&s, t, 0, 0), b = resident(&s, t, 1, 0);
        spill(&s, a);                  /* 0, device 0 */
        spill(&s, b);                  /* 1, device 1, to the same host copy */
        host_task(&s, t, ACCESS_READ); /* 2, host */
        expect(&s, ring ? "1<0 2<1" : "0<2' 1<0 2<1");
    }
}

/* ---- no wait too many ---- */

static void test_waits_leave_out_what_others_imply(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    uint32_t a = segment(&s, weights(&s, 0), 0, 0), b = segment(&s, weights(&s, 1), 0, KIB);
    fetch(&s, a);                /* 0, in */
    fetch(&s, b);                /* 1, in, after 0 on its stream */
    task_on(&s, a, ACCESS_READ); /* 2 */
    use(&s, b, ACCESS_RW);       /* waits for 1, which implies 0 */
    task_on(&s, b, ACCESS_READ); /* 3, after 2 on its stream */
    spill(&s, b);                /* 4: waits for 2, which implies 1 */
    expect(&s, "2<1 4<2");
}

/* ---- random drafts against the definition ---- */

#define RUNS       3
#define MAX_INSTRS 64
#define MAX_EVENTS (RUNS * MAX_INSTRS)
#define SPACE      (6 * KIB) /* memory of a device in random drafts */

/* Which segments are on the devices while a random draft is written. */
struct random_draft {
    struct scene *s;
    struct rng *rng;
    VEC(uint32_t) alive;
    VEC(tensor_id) on_host; /* tensors without a home that have been written in host memory */
};

static bool is_free(const struct random_draft *r, uint32_t device, uint64_t from, uint64_t to)
{
    for (size_t i = 0; i < r->alive.n; i++) {
        const struct segment *s = &r->s->draft.segments.at[r->alive.at[i]];
        if (s->device == device && s->addr < to && from < s->addr + segment_bytes(s))
            return false;
    }
    return true;
}

static uint32_t random_alive(const struct random_draft *r)
{
    return r->alive.at[rng_below(r->rng, (uint32_t)r->alive.n)];
}

static void remove_alive(struct random_draft *r, uint32_t seg)
{
    for (size_t i = 0; i < r->alive.n; i++)
        if (r->alive.at[i] == seg)
            r->alive.at[i] = r->alive.at[--r->alive.n];
}

static tensor_id random_tensor(struct random_draft *r)
{
    switch (rng_below(r->rng, 6)) {
    case 0:
        return graph_tensor_find(r->s->graph, TENSOR_DX, 2, 0, 0);
    case 1:
        return graph_tensor_find(r->s->graph, TENSOR_X, 0, 0, 0);
    case 2:
        return graph_tensor_find(r->s->graph, TENSOR_DW, rng_below(r->rng, 3), 0, 0);
    default:
        return weights(r->s, rng_below(r->rng, 3));
    }
}

/* The first access to a tensor without a home in host memory must be a write: adds one, unless there is
 * one. */
static void write_on_host(struct random_draft *r, tensor_id t)
{
    if (graph_has_home(&r->s->graph->tensors[t]))
        return;
    for (size_t i = 0; i < r->on_host.n; i++)
        if (r->on_host.at[i] == t)
            return;
    vec_push(&r->on_host, t);
    host_task(r->s, t, ACCESS_WRITE);
}

/* Creates a segment by a fetch, a task or a send, if memory is free at a random address. */
static void random_create(struct random_draft *r)
{
    struct draft *d = &r->s->draft;
    uint32_t device = rng_below(r->rng, N_DEVICES);
    uint32_t from = r->alive.n > 0 ? random_alive(r) : SEGMENT_NONE, how = rng_below(r->rng, 3);
    bool sends = how == 0 && from != SEGMENT_NONE;
    tensor_id t = sends ? d->segments.at[from].tensor : random_tensor(r);
    uint64_t addr = rng_below(r->rng, SPACE / PLAN_ALIGN) * PLAN_ALIGN;
    uint64_t bytes = (r->s->graph->tensors[t].bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
    if (!is_free(r, device, addr, addr + bytes))
        return;
    if (!sends && how != 1)
        write_on_host(r, t);
    uint32_t seg = segment(r->s, t, device, addr), n = tensor_pieces(d->graph, d->n_shares, t);
    if (sends)
        draft_put_send(d, from, seg, whole_of(r->s, seg));
    else if (how == 1)
        task_on(r->s, seg, ACCESS_WRITE);
    else
        for (uint32_t i = 0; i < n; i++)
            draft_put_fetch(d, seg, piece_of(r->s, seg, i));
    vec_push(&r->alive, seg);
}

static void random_task(struct random_draft *r)
{
    uint32_t first = random_alive(r), device = r->s->draft.segments.at[first].device;
    task(r->s, device);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t seg = i == 0 ? first : random_alive(r), n = whole_of(r->s, seg).n_pieces;
        bool again = i > 0 && seg == first; /* a task has a segment only once among its operands */
        if (r->s->draft.segments.at[seg].device != device || again || (i == 2 && rng_below(r->rng, 2)))
            continue;
        enum access access = rng_below(r->rng, 3) == 0 ? ACCESS_RW : ACCESS_READ;
        put_on(r->s, seg, access,
               rng_below(r->rng, 2) ? whole_of(r->s, seg) : piece_of(r->s, seg, rng_below(r->rng, n)));
        first = seg;
    }
}

static void random_step(struct random_draft *r)
{
    uint32_t what = r->alive.n == 0 ? 0 : rng_below(r->rng, 8);
    if (what < 2) {
        random_create(r);
    } else if (what < 4) {
        random_task(r);
    } else if (what == 4) {
        uint32_t seg = random_alive(r), n = whole_of(r->s, seg).n_pieces;
        write_on_host(r, r->s->draft.segments.at[seg].tensor);
        draft_put_spill(&r->s->draft, seg, piece_of(r->s, seg, rng_below(r->rng, n)));
    } else if (what == 5) {
        tensor_id t = random_tensor(r);
        write_on_host(r, t);
        host_task(r->s, t, rng_below(r->rng, 2) ? ACCESS_RW : ACCESS_READ);
    } else if (what == 6) {
        uint32_t seg = random_alive(r);
        if (r->s->draft.segments.at[seg].boundary && r->s->draft.segments.at[seg].start == 0)
            return; /* it stays for good */
        draft_put_drop(&r->s->draft, seg, rng_below(r->rng, 2) ? LANE_COMPUTE : LANE_OUT);
        remove_alive(r, seg);
    }
}

/* Drops everything that lies in the way of `seg`, and fetches `seg` again. */
static void fetch_for_next_cycle(struct random_draft *r, uint32_t seg)
{
    const struct segment s = r->s->draft.segments.at[seg];
    for (size_t i = r->alive.n; i-- > 0;) {
        uint32_t other = r->alive.at[i];
        const struct segment *o = &r->s->draft.segments.at[other];
        if (other == seg || o->device != s.device || o->addr >= s.addr + segment_bytes(&s) ||
            s.addr >= o->addr + segment_bytes(o))
            continue;
        drop(r->s, other);
        remove_alive(r, other);
    }
    if (is_free(r, s.device, s.addr, s.addr + segment_bytes(&s)))
        fetch(r->s, seg);
    else
        r->s->draft.segments.at[seg].start = 0; /* it was never dropped, and stays for good */
}

/* Writes a random draft. In a cyclic draft, segment 0 stays on device 0 for good, and segment 1 wraps around
 * on device 1. */
static void random_draft(struct scene *s, struct rng *rng)
{
    struct random_draft r = {.s = s, .rng = rng};
    uint32_t n = 8 + rng_below(rng, 24);
    begin(s, rng_below(rng, 4) != 0, 1 + rng_below(rng, 2));
    if (s->draft.cyclic) {
        vec_push(&r.alive, resident(s, weights(s, 0), 0, 2 * KIB));
        vec_push(&r.alive, segment(s, weights(s, 1), 1, KIB));
        s->draft.segments.at[1].boundary = true;
        task_on(s, 0, ACCESS_READ);
        task_on(s, 1, ACCESS_READ);
    }
    while (s->draft.instrs.n < n)
        random_step(&r);
    if (s->draft.cyclic)
        fetch_for_next_cycle(&r, 1);
    for (size_t i = 0; i < r.alive.n; i++)
        if (!s->draft.segments.at[r.alive.at[i]].boundary)
            drop(s, r.alive.at[i]);
    assert_true(s->draft.instrs.n <= MAX_INSTRS);
    vec_free(&r.alive);
    vec_free(&r.on_host);
}

/* Bytes that an instruction touches. */
struct touched {
    uint32_t device; /* PLAN_HOST: the host; N_DEVICES: the home of `tensor` */
    tensor_id tensor;
    bool ring, writes;
    uint64_t from, to;
};

static struct touched touched_by(const struct draft *d, const struct draft_operand *o)
{
    struct touched t = {.device = N_DEVICES,
                        .tensor = o->tensor,
                        .ring = d->graph->tensors[o->tensor].external,
                        .writes = o->access != ACCESS_READ,
                        .from = o->of.begin,
                        .to = o->of.end};
    if (o->segment == SEGMENT_NONE)
        return t;
    const struct segment *s = &d->segments.at[o->segment];
    t.device = s->device;
    t.ring = false;
    t.tensor = PLAN_NONE;
    t.from = s->addr + (o->of.begin - s->of.begin);
    t.to = o->of.end == s->of.end ? s->addr + segment_bytes(s) : s->addr + (o->of.end - s->of.begin);
    return t;
}

static bool operands_conflict(const struct draft *d, const struct draft_operand *a,
                              const struct draft_operand *b, bool same_run)
{
    struct touched x = touched_by(d, a), y = touched_by(d, b);
    return x.device == y.device && x.tensor == y.tensor && (x.writes || y.writes) && (same_run || !x.ring) &&
           x.from < y.to && y.from < x.to;
}

static bool instrs_conflict(const struct draft *d, uint32_t i, uint32_t j, bool same_run)
{
    const struct plan_instr *a = &d->instrs.at[i], *b = &d->instrs.at[j];
    for (uint32_t k = 0; k < a->n_operands; k++)
        for (uint32_t l = 0; l < b->n_operands; l++)
            if (operands_conflict(d, &d->operands.at[a->operand + k], &d->operands.at[b->operand + l],
                                  same_run))
                return true;
    return false;
}

static bool before[MAX_EVENTS][MAX_EVENTS]; /* before[e][f]: f is done when e starts */

static void order_after(uint32_t e, uint32_t f)
{
    before[e][f] = true;
    for (uint32_t k = 0; k < f; k++)
        before[e][k] |= before[f][k];
}

/* Fills `before` for all events of all runs, without wait number `removed`. */
static void order_events(const struct draft *d, uint32_t runs, uint32_t removed)
{
    uint32_t n = (uint32_t)d->instrs.n;
    memset(before, 0, sizeof before);
    for (uint32_t e = 0; e < runs * n; e++) {
        const struct plan_instr *in = &d->instrs.at[e % n];
        for (uint32_t f = e; f-- > 0;)
            if (d->instrs.at[f % n].stream == in->stream) {
                order_after(e, f);
                break;
            }
        for (uint32_t k = in->wait; k < in->wait + in->n_waits; k++) {
            const struct plan_wait *w = &d->waits.at[k];
            if (k != removed && w->distance * n <= e - e % n)
                order_after(e, e - e % n - w->distance * n + w->instr);
        }
    }
}

/* Returns whether all conflicting events are ordered. */
static bool is_safe(const struct draft *d, const bool *conflict, uint32_t runs)
{
    uint32_t n = (uint32_t)d->instrs.n;
    for (uint32_t e = 0; e < runs * n; e++)
        for (uint32_t f = 0; f < e; f++)
            if (!before[e][f] && conflict[((e / n == f / n) * n + e % n) * n + f % n])
                return false;
    return true;
}

static void test_waits_of_random_drafts_are_enough_and_none_too_many(void **state)
{
    (void)state;
    uint32_t waits = 0, across = 0;
    for (uint32_t seed = 1; seed <= 400; seed++) {
        struct rng rng = {.seed = seed};
        struct scene s;
        random_draft(&s, &rng);
        draft_host(&s.draft, 0, rng_below(&rng, 2) ? UINT64_MAX : 0);
        make_waits(&s.draft);
        const struct draft *d = &s.draft;
        uint32_t n = (uint32_t)d->instrs.n, runs = d->cyclic ? RUNS : 1;
        bool *conflict = malloc(2 * (size_t)n * n);
        for (uint32_t i = 0; i < 2 * n * n; i++)
            conflict[i] = instrs_conflict(d, i / n % n, i % n, i / n / n == 1);
        order_events(d, runs, PLAN_NONE);
        if (!is_safe(d, conflict, runs))
            fail_msg("seed %u: two conflicting instructions are not ordered", seed);
        for (uint32_t k = 0; k < d->waits.n; k++) {
            order_events(d, runs, k);
            if (is_safe(d, conflict, runs))
                fail_msg("seed %u: wait %u is not needed", seed, k);
            across += d->waits.at[k].distance > 0;
        }
        waits += (uint32_t)d->waits.n;
        free(conflict);
        finish(&s);
    }
    assert_true(waits > 3000 && across > 500);
}

/* ---- many host copies ---- */

/* Makes a cycle in which the host writes the outputs of a layer with `n` micro-batches, and then reads them.
 * Each output has an address of its own. */
static void begin_host_copies(struct scene *s, uint32_t n)
{
    const uint32_t rows[] = {1, 1, 1, 1};
    const struct graph_sizes sizes = {n, 1, rows};
    *s = (struct scene){.table = even_table(4, KIB, 2 * KIB, KIB, KIB)};
    assert_int_equal(graph_build_sizes(s->table, &sizes, true, &s->graph, NULL), 0);
    s->draft = (struct draft){.graph = s->graph, .n_devices = N_DEVICES, .n_shares = 1, .cyclic = true};
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t j = 0; j < n; j++)
            host_task(s, graph_tensor_find(s->graph, TENSOR_Y, 1, j, 0),
                      pass == 0 ? ACCESS_WRITE : ACCESS_READ);
    draft_host(&s->draft, 0, UINT64_MAX);
}

static int compute_waits(void *draft)
{
    draft_waits(draft);
    return 0;
}

static bool go_on(void *ctx)
{
    (void)ctx;
    return false;
}

/* The stage polls at least once for every free address range that it looks at. It must not look at all of
 * them for each copy. */
static void test_work_grows_in_proportion_to_host_copies(void **state)
{
    const uint32_t n = 4000;
    struct scene s;
    struct bounded b = {.stop = go_on, .poll_every = 1u << 14};
    (void)state;
    begin_host_copies(&s, n);
    assert_int_equal(bounded_run(&b, compute_waits, &s.draft), 0);
    finish(&s);
    assert_true(b.asked * b.poll_every < 100 * (uint64_t)n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits_follow_the_data),
        cmocka_unit_test(test_waits_order_a_write_after_all_reads),
        cmocka_unit_test(test_waits_follow_the_host_copy),
        cmocka_unit_test(test_waits_follow_pieces),
        cmocka_unit_test(test_waits_follow_pieces_of_the_host_copy),
        cmocka_unit_test(test_waits_for_the_drop_that_frees_an_address),
        cmocka_unit_test(test_waits_for_all_drops_under_a_segment),
        cmocka_unit_test(test_waits_only_for_the_newest_drop),
        cmocka_unit_test(test_waits_of_pieces_look_at_their_own_addresses),
        cmocka_unit_test(test_waits_for_the_cycle_before),
        cmocka_unit_test(test_waits_follow_resident_copies_over_the_boundary),
        cmocka_unit_test(test_waits_of_a_copy_that_wraps),
        cmocka_unit_test(test_waits_ignore_ring_slots_of_other_cycles),
        cmocka_unit_test(test_waits_leave_out_what_others_imply),
        cmocka_unit_test(test_waits_of_random_drafts_are_enough_and_none_too_many),
        cmocka_unit_test(test_work_grows_in_proportion_to_host_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
