/* Tests the order of commands that the executor enqueues, against a fake devset. This program defines the
 * functions of device.h itself, so the linker does not use the real ones. The fake logs each command and
 * keeps one vector clock for each stream. The test computes the meaning of a plan's waits a second time, from
 * the plan alone, and the clocks must be equal. This finds missing waits and superfluous waits, and does not
 * depend on luck or threads. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "swap/exec.h"
#include "tests/unit/handmade_plan.h"

enum { DEVICES = 3, STREAMS = DEVICES * LANE_COUNT + 1, LEASE = 1 << 20, MAX_LOG = 20000 };

/* How many commands of each stream are known to be done. */
struct clock {
    uint32_t of[STREAMS];
};

static void clock_merge(struct clock *into, const struct clock *c)
{
    for (int s = 0; s < STREAMS; s++)
        if (into->of[s] < c->of[s])
            into->of[s] = c->of[s];
}

/* ---- the devset of paper ---- */

struct event {
    struct clock at; /* of the last record; zero: never recorded */
};

struct command { /* a copy, a discard or a launch */
    uint32_t stream;
    uint64_t bytes;
    const void *dst, *src;
    struct clock start; /* what is done before it starts */
};

struct mark {
    uint32_t stream;
    const uint64_t *slot;
    size_t n_log, n_records, n_waits; /* commands before it */
    struct clock at;                  /* what is done when the stream gets there */
};

static struct devset {
    char arena[DEVICES][LEASE];
    struct clock streams[STREAMS], host; /* host: what the enqueueing thread knows to be done */
    struct command log[MAX_LOG];
    size_t n_log;
    size_t n_records, n_waits;
    struct mark marks[MAX_LOG];
    size_t n_marks;
    int events;         /* alive */
    long fail_in;       /* commands until one fails; negative: never */
    int fail_drain;     /* what drain returns */
    long fail_event_in; /* creations until one fails; negative: never */
    bool fail_sync;
    uint64_t host_bytes;
} paper;

static void paper_reset(void)
{
    memset(&paper, 0, sizeof paper);
    paper.fail_in = paper.fail_event_in = -1;
}

static int paper_command(uint32_t stream)
{
    assert_in_range(stream, 0, STREAMS - 1);
    if (paper.fail_in >= 0 && paper.fail_in-- == 0)
        return -EIO;
    clock_merge(&paper.streams[stream], &paper.host);
    return 0;
}

void *devset_address(const struct devset *ds, uint32_t device, uint64_t offset)
{
    assert_in_range(offset, 0, LEASE);
    return (char *)(uintptr_t)ds->arena[device] + offset;
}

static int paper_work(uint32_t stream, uint64_t bytes, const void *dst, const void *src)
{
    const int r = paper_command(stream);
    if (r < 0)
        return r;
    assert_true(paper.n_log < MAX_LOG);
    paper.log[paper.n_log++] = (struct command){stream, bytes, dst, src, paper.streams[stream]};
    paper.streams[stream].of[stream]++;
    return 0;
}

int devset_launch(struct devset *ds, uint32_t stream, const struct op_call *call)
{
    (void)ds;
    return paper_work(stream, 0, call, NULL);
}

int devset_copy(struct devset *ds, uint32_t stream, void *dst, const void *src, uint64_t bytes)
{
    (void)ds;
    return paper_work(stream, bytes, dst, src);
}

int devset_discard(struct devset *ds, uint32_t stream, void *at, uint64_t bytes)
{
    (void)ds;
    return paper_work(stream, bytes, at, NULL);
}

int devset_mark(struct devset *ds, uint32_t stream, uint64_t *at)
{
    const int r = paper_command(stream);
    if (r < 0)
        return r;
    assert_true(ds->n_marks < MAX_LOG);
    ds->marks[ds->n_marks++] =
        (struct mark){stream, at, ds->n_log, ds->n_records, ds->n_waits, ds->streams[stream]};
    return 0;
}

int event_create(struct devset *ds, struct event **ret)
{
    if (ds->fail_event_in >= 0 && ds->fail_event_in-- == 0)
        return -ENOMEM;
    *ret = xcalloc(1, sizeof **ret);
    ds->events++;
    return 0;
}

void event_destroy(struct devset *ds, struct event *e)
{
    if (e)
        ds->events--;
    free(e);
}

int event_record(struct devset *ds, uint32_t stream, struct event *e)
{
    const int r = paper_command(stream);
    if (r < 0)
        return r;
    ds->n_records++;
    e->at = ds->streams[stream];
    return 0;
}

int event_wait(struct devset *ds, uint32_t stream, struct event *e)
{
    const int r = paper_command(stream);
    if (r < 0)
        return r;
    ds->n_waits++;
    clock_merge(&ds->streams[stream], &e->at);
    return 0;
}

int event_sync(struct devset *ds, struct event *e)
{
    if (ds->fail_sync)
        return -EIO;
    clock_merge(&ds->host, &e->at);
    return 0;
}

int devset_drain(struct devset *ds)
{
    for (int s = 0; s < STREAMS; s++)
        clock_merge(&ds->host, &ds->streams[s]);
    return ds->fail_drain;
}

int devset_host_alloc(struct devset *ds, uint64_t bytes, void **ret, struct err *err)
{
    (void)err;
    *ret = calloc(1, bytes);
    ds->host_bytes += bytes;
    return *ret ? 0 : -ENOMEM;
}

void devset_host_free(struct devset *ds, void *p, uint64_t bytes)
{
    ds->host_bytes -= bytes;
    free(p);
}

/* ---- plans of moves ---- */

static const struct model no_model; /* moves need neither layers ... */
static const struct optimizer no_optimizer;

struct rig {
    struct handmade h;
    struct store *store;
    struct exec *exec;
};

static void rig_open(struct rig *rig)
{
    struct err err = {0};
    struct exec_config config = {
        .plan = hm_finish(&rig->h), .model = &no_model, .optimizer = &no_optimizer, .devices = &paper};
    assert_int_equal(store_create(&paper, config.plan, &rig->store, &err), 0);
    config.store = rig->store;
    if (exec_create(&config, &rig->exec, &err) != 0)
        fail_msg("%s: %s", err.path, err.msg);
}

static void rig_close(struct rig *rig)
{
    exec_destroy(rig->exec);
    store_destroy(rig->store);
    hm_free(&rig->h);
    assert_int_equal(paper.events, 0);
    assert_int_equal(paper.host_bytes, 0);
}

/* Adds a move of a tensor of its own and returns the move's number. The tensor has 8 * (number + 1) bytes, so
 * that its size identifies the move in the log. push_drop below does the same for a drop. */
static uint32_t push_move(struct handmade *h, enum instr_kind kind, uint32_t device, uint32_t slots)
{
    const uint32_t number = (uint32_t)h->programs[h->now].instrs.n;
    const tensor_id t = hm_tensor(h, TENSOR_X, 0, number, 8 * (number + 1), slots);
    const uint32_t lane = kind == INSTR_FETCH ? LANE_IN : kind == INSTR_SPILL ? LANE_OUT : LANE_PEER;
    const uint32_t src = kind == INSTR_FETCH ? PLAN_HOST : device;
    const uint32_t dst = kind == INSTR_FETCH || kind == INSTR_COPY ? device
                         : kind == INSTR_SPILL                     ? PLAN_HOST
                                                                   : (device + 1) % DEVICES;

    hm_instr(h, kind, plan_stream(device, lane), PLAN_NONE, PLAN_NONE, 0);
    hm_operand(h, t, src, 0, ACCESS_READ);
    hm_operand(h, t, dst, kind == INSTR_COPY ? LEASE / 2 : 0, ACCESS_WRITE);
    return number;
}

static void push_drop(struct handmade *h, uint32_t device, uint32_t lane)
{
    const uint32_t number = (uint32_t)h->programs[h->now].instrs.n;
    const tensor_id t = hm_tensor(h, TENSOR_X, 0, number, 8 * (number + 1), 1);
    hm_instr(h, INSTR_DROP, plan_stream(device, lane), PLAN_NONE, PLAN_NONE, 0);
    hm_operand(h, t, device, 0, ACCESS_DROP);
}

static void push_random_program(struct handmade *h, enum program_kind k, struct rng *rng, uint32_t n)
{
    static const enum instr_kind moves[] = {INSTR_FETCH, INSTR_SPILL, INSTR_SEND, INSTR_COPY};

    h->now = k;
    for (uint32_t i = 0; i < n; i++) {
        if (rng_below(rng, 6) == 0)
            push_drop(h, rng_below(rng, DEVICES), rng_below(rng, LANE_COUNT));
        else
            push_move(h, moves[rng_below(rng, 4)], rng_below(rng, DEVICES), 1);
        for (uint32_t w = rng_below(rng, 4); w > 0; w--) {
            const uint32_t distance = k == PROGRAM_CYCLE ? rng_below(rng, 5) : 0;
            if (distance > 0)
                hm_wait(h, rng_below(rng, n), distance);
            else if (i > 0)
                hm_wait(h, rng_below(rng, i), 0);
        }
    }
}

/* ---- what the plan means ---- */

struct meaning {
    const struct plan *plan;
    struct clock streams[STREAMS], host;
    struct clock *after;  /* of [run][instr]: what is done when it is done */
    struct clock *starts; /* of the expected commands, in issue order */
    uint32_t *what;       /* their instructions */
    size_t n, n_waits;
    size_t runs;
};

static struct clock *meaning_after(struct meaning *m, size_t run, uint32_t instr)
{
    return &m->after[run * m->plan->programs[PROGRAM_CYCLE].n_instrs + instr];
}

static void mean_instr(struct meaning *m, const struct plan_program *p, uint32_t i, size_t run)
{
    const struct plan_instr *in = &p->instrs[i];
    struct clock *c = &m->streams[in->stream];

    clock_merge(c, &m->host);
    for (uint32_t w = 0; w < in->n_waits; w++) {
        const struct plan_wait *wait = &p->waits[in->wait + w];
        if (wait->distance <= run)
            clock_merge(c, meaning_after(m, run - wait->distance, wait->instr));
        m->n_waits += wait->distance <= run && wait->distance < PLAN_RING &&
                      p->instrs[wait->instr].stream != in->stream;
    }
    m->what[m->n] = i;
    m->starts[m->n++] = *c;
    c->of[in->stream]++;
    *meaning_after(m, run, i) = *c;
}

/* The next run of the cycle: it starts when the run PLAN_RING before it is complete. */
static void mean_run(struct meaning *m)
{
    const struct plan_program *p = &m->plan->programs[PROGRAM_CYCLE];
    const size_t run = m->runs++;

    for (uint32_t i = 0; run >= PLAN_RING && i < p->n_instrs; i++)
        clock_merge(&m->host, meaning_after(m, run - PLAN_RING, i));
    for (uint32_t i = 0; i < p->n_instrs; i++)
        mean_instr(m, p, i, run);
}

static void mean_drain(struct meaning *m)
{
    for (int s = 0; s < STREAMS; s++)
        clock_merge(&m->host, &m->streams[s]);
}

static void check_log(const struct meaning *m)
{
    assert_int_equal(paper.n_log, m->n);
    assert_int_equal(paper.n_waits, m->n_waits);
    for (size_t i = 0; i < m->n; i++) {
        assert_int_equal(paper.log[i].bytes, 8 * (m->what[i] + 1));
        assert_memory_equal(&paper.log[i].start, &m->starts[i], sizeof(struct clock));
    }
}

static struct step_args step_args(uint64_t step)
{
    return (struct step_args){.step = step, .training = 1};
}

static void test_waits_order_exactly_what_the_plan_says(void **state)
{
    enum { RUNS = 9, FLUSH_AT = 5, CASES = 300, MAX_INSTRS = 24 };
    (void)state;

    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct rng rng = {.seed = seed};
        struct rig rig;
        struct meaning m = {.plan = &rig.h.plan};

        paper_reset();
        hm_init(&rig.h, DEVICES, LEASE);
        push_random_program(&rig.h, PROGRAM_CYCLE, &rng, 1 + rng_below(&rng, MAX_INSTRS));
        rig_open(&rig);
        m.after = xcalloc(RUNS * MAX_INSTRS, sizeof *m.after);
        m.starts = xcalloc(RUNS * MAX_INSTRS, sizeof *m.starts);
        m.what = xcalloc(RUNS * MAX_INSTRS, sizeof *m.what);

        assert_int_equal(exec_run(rig.exec, PROGRAM_ENTRY, NULL), 0);
        for (uint64_t s = 0; s < RUNS; s++) {
            const struct step_args args = step_args(100 + s);
            if (s == FLUSH_AT) { /* drains, and goes on counting */
                assert_int_equal(exec_run(rig.exec, PROGRAM_FLUSH, NULL), 0);
                mean_drain(&m);
            }
            assert_int_equal(exec_cycle(rig.exec, &args), 0);
            mean_run(&m);
        }
        check_log(&m);
        assert_int_equal(paper.n_marks, 0);

        rig_close(&rig);
        free(m.after);
        free(m.starts);
        free(m.what);
    }
}

/* ---- times ---- */

/* Checks the two marks of one instruction. Only the instruction's work may be between them. Everything that
 * the instruction waits for, according to the plan, must come before the first mark, and the record of its
 * event must come after the second. */
static void check_marks(struct meaning *m, const struct mark *pair, size_t run, uint32_t instr,
                        const struct plan_span *span)
{
    const struct plan_instr *in = &m->plan->programs[PROGRAM_CYCLE].instrs[instr];
    struct clock start = *meaning_after(m, run, instr);

    start.of[in->stream]--;
    assert_ptr_equal(pair[0].slot, &span->start_ns);
    assert_ptr_equal(pair[1].slot, &span->end_ns);
    assert_int_equal(pair[0].stream, in->stream);
    assert_int_equal(pair[1].stream, in->stream);
    assert_int_equal(pair[1].n_log, pair[0].n_log + 1);
    assert_int_equal(pair[1].n_records, pair[0].n_records);
    assert_int_equal(pair[1].n_waits, pair[0].n_waits);
    assert_memory_equal(&pair[0].at, &start, sizeof start);
    assert_memory_equal(&pair[1].at, meaning_after(m, run, instr), sizeof start);
}

static void test_marks_stand_around_the_work_of_the_window(void **state)
{
    enum { RUNS = 9, FLUSH_AT = 5, FIRST = 3, TRACED = 4, CASES = 100, MAX_INSTRS = 24 };
    (void)state;

    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct rng rng = {.seed = seed};
        struct rig rig;
        struct meaning m = {.plan = &rig.h.plan};
        struct plan_span spans[TRACED * MAX_INSTRS];

        paper_reset();
        hm_init(&rig.h, DEVICES, LEASE);
        push_random_program(&rig.h, PROGRAM_CYCLE, &rng, 1 + rng_below(&rng, MAX_INSTRS));
        rig_open(&rig);
        const uint32_t n = m.plan->programs[PROGRAM_CYCLE].n_instrs;
        m.after = xcalloc(RUNS * MAX_INSTRS, sizeof *m.after);
        m.starts = xcalloc(RUNS * MAX_INSTRS, sizeof *m.starts);
        m.what = xcalloc(RUNS * MAX_INSTRS, sizeof *m.what);

        assert_int_equal(exec_trace(rig.exec, 100 + FIRST, TRACED, spans), 0);
        assert_int_equal(exec_run(rig.exec, PROGRAM_ENTRY, NULL), 0);
        for (uint32_t s = 0; s < RUNS; s++) {
            const struct step_args args = step_args(100 + s);
            if (s == FLUSH_AT) {
                assert_int_equal(exec_run(rig.exec, PROGRAM_FLUSH, NULL), 0);
                mean_drain(&m);
            }
            assert_int_equal(exec_cycle(rig.exec, &args), 0);
            mean_run(&m);
            const uint32_t traced = s < FIRST ? 0 : s - FIRST + 1;
            assert_int_equal(paper.n_marks, 2 * n * (traced < TRACED ? traced : TRACED));
        }
        check_log(&m); /* the rest is as it is without marks */
        for (uint32_t i = 0; i < TRACED * n; i++)
            check_marks(&m, &paper.marks[2 * i], FIRST + i / n, i % n, &spans[i]);

        rig_close(&rig);
        free(m.after);
        free(m.starts);
        free(m.what);
    }
}

static void test_only_awaited_instructions_record_events(void **state)
{
    struct rig rig;
    (void)state;

    paper_reset();
    hm_init(&rig.h, DEVICES, LEASE);
    rig.h.now = PROGRAM_CYCLE;
    push_move(&rig.h, INSTR_FETCH, 0, 1); /* 0: awaited by 2, in this run and the one before */
    push_move(&rig.h, INSTR_FETCH, 0, 1); /* 1: awaited by 3 on its own stream only */
    push_move(&rig.h, INSTR_SPILL, 0, 1);
    hm_wait(&rig.h, 0, 0);
    hm_wait(&rig.h, 0, 1);
    push_move(&rig.h, INSTR_FETCH, 0, 1);
    hm_wait(&rig.h, 1, 0);
    hm_wait(&rig.h, 1, 1);
    hm_wait(&rig.h, 2, PLAN_RING); /* complete before the run is enqueued */
    rig_open(&rig);
    assert_int_equal(paper.events, 2 + PLAN_RING * 2); /* of 0, and ends of two streams */

    assert_int_equal(exec_run(rig.exec, PROGRAM_ENTRY, NULL), 0);
    for (uint64_t s = 0; s < 5; s++) {
        const struct step_args args = step_args(s);
        assert_int_equal(exec_cycle(rig.exec, &args), 0);
    }
    assert_int_equal(paper.n_records, 5 * (1 + 2));
    assert_int_equal(paper.n_waits, 5 + 4);
    rig_close(&rig);
}

/* ---- rings ---- */

static void test_ring_tensors_use_the_slot_of_the_run(void **state)
{
    struct rig rig;
    (void)state;

    paper_reset();
    hm_init(&rig.h, DEVICES, LEASE);
    rig.h.now = PROGRAM_CYCLE;
    rig.h.plan.steps = 2;
    for (uint32_t i = 0; i < 4; i++) /* a ring of 3 and a single copy, for both steps of the cycle */
        push_move(&rig.h, i % 2 ? INSTR_SPILL : INSTR_FETCH, i % 2, i % 2 ? 1 : 3);
    rig_open(&rig);
    assert_int_equal(exec_run(rig.exec, PROGRAM_ENTRY, NULL), 0);
    for (uint64_t s = 7; s < 7 + 12; s += 2) {
        const struct step_args args[2] = {step_args(s), step_args(s + 1)};
        paper.n_log = 0;
        assert_int_equal(exec_cycle(rig.exec, args), 0);
        assert_int_equal(exec_slot(&rig.h.plan, s), 3 + (s - 7) / 2); /* one more in each run */
        assert_ptr_equal(paper.log[0].src, store_ptr(rig.store, 0, exec_slot(&rig.h.plan, s)));
        assert_ptr_equal(paper.log[1].dst, store_ptr(rig.store, 1, 0));
        assert_ptr_equal(paper.log[2].src, store_ptr(rig.store, 2, exec_slot(&rig.h.plan, s)));
        assert_ptr_equal(paper.log[3].dst, store_ptr(rig.store, 3, 0));
    }
    rig_close(&rig);
}

static void test_a_part_of_a_ring_tensor_begins_inside_the_slot(void **state)
{
    struct rig rig;
    (void)state;

    paper_reset();
    hm_init(&rig.h, DEVICES, LEASE);
    rig.h.now = PROGRAM_CYCLE;
    push_move(&rig.h, INSTR_FETCH, 0, 2);
    rig.h.tensors.at[0].bytes = 128; /* within its slot */
    for (int i = 0; i < 2; i++) {
        struct plan_operand *o = &rig.h.programs[PROGRAM_CYCLE].operands.at[i];
        o->begin = 64;
        o->end = 96;
        o->addr += 64;
    }
    rig_open(&rig);
    assert_int_equal(exec_run(rig.exec, PROGRAM_ENTRY, NULL), 0);
    const struct step_args args = step_args(3);
    assert_int_equal(exec_cycle(rig.exec, &args), 0);
    assert_ptr_equal(paper.log[0].src, (char *)store_ptr(rig.store, 0, 1) + 64);
    assert_ptr_equal(paper.log[0].dst, paper.arena[0] + 64);
    assert_int_equal(paper.log[0].bytes, 32);
    rig_close(&rig);
}

static void test_at_most_ring_runs_are_under_way(void **state)
{
    struct rig rig;
    (void)state;

    paper_reset();
    hm_init(&rig.h, DEVICES, LEASE);
    rig.h.now = PROGRAM_CYCLE;
    push_move(&rig.h, INSTR_FETCH, 0, 1);
    rig_open(&rig);
    assert_int_equal(exec_run(rig.exec, PROGRAM_ENTRY, NULL), 0);
    const uint32_t in = plan_stream(0, LANE_IN);
    for (uint32_t s = 0; s < 8; s++) {
        const struct step_args args = step_args(s);
        assert_int_equal(exec_cycle(rig.exec, &args), 0);
        assert_int_equal(paper.host.of[in], s < PLAN_RING ? 0 : s + 1 - PLAN_RING);
    }
    assert_int_equal(exec_wait(rig.exec, 3), 0); /* known already */
    assert_int_equal(paper.host.of[in], 6);
    assert_int_equal(exec_wait(rig.exec, 6), 0);
    assert_int_equal(paper.host.of[in], 7);
    assert_int_equal(exec_wait(rig.exec, 7), 0);
    assert_int_equal(paper.host.of[in], 8);
    rig_close(&rig);
}

/* ---- order of calls ---- */

static void open_small(struct rig *rig)
{
    paper_reset();
    hm_init(&rig->h, DEVICES, LEASE);
    for (uint32_t k = 0; k < PROGRAM_COUNT; k++) {
        rig->h.now = k;
        push_move(&rig->h, k == PROGRAM_FLUSH || k == PROGRAM_EXIT ? INSTR_SPILL : INSTR_FETCH, 0, 1);
    }
    rig_open(rig);
}

static void test_calls_out_of_order_are_refused(void **state)
{
    struct step_args args = step_args(5);
    struct rig rig;
    (void)state;

    open_small(&rig);
    struct exec *e = rig.exec;
    assert_int_equal(exec_cycle(e, &args), -EPROTO);
    assert_int_equal(exec_run(e, PROGRAM_FLUSH, NULL), -EPROTO);
    assert_int_equal(exec_run(e, PROGRAM_EXIT, NULL), -EPROTO);
    assert_int_equal(exec_run(e, PROGRAM_CYCLE, &args), -EINVAL);
    assert_int_equal(exec_run(e, PROGRAM_COUNT, &args), -EINVAL);
    assert_int_equal(paper.n_log, 0);

    assert_int_equal(exec_run(e, PROGRAM_ENTRY, NULL), 0);
    assert_int_equal(exec_run(e, PROGRAM_ENTRY, NULL), -EPROTO);
    assert_int_equal(exec_run(e, PROGRAM_EVAL, &args), -EPROTO);
    assert_int_equal(exec_cycle(e, NULL), -EINVAL);
    assert_int_equal(exec_wait(e, 4), 0); /* before the entry */
    assert_int_equal(exec_cycle(e, &args), 0);
    assert_int_equal(exec_cycle(e, &args), -EPROTO); /* step 5 again */
    assert_int_equal(exec_wait(e, 6), -EPROTO);      /* not enqueued */
    assert_int_equal(exec_wait(e, 4), 0);
    args.step = 7;
    assert_int_equal(exec_cycle(e, &args), -EPROTO);
    args.step = 6;
    assert_int_equal(exec_cycle(e, &args), 0);
    assert_int_equal(exec_run(e, PROGRAM_FLUSH, NULL), 0);
    args.step = 7;
    assert_int_equal(exec_cycle(e, &args), 0);
    assert_int_equal(exec_run(e, PROGRAM_EXIT, NULL), 0);

    assert_int_equal(exec_wait(e, 7), 0);
    assert_int_equal(exec_cycle(e, &args), -EPROTO);
    assert_int_equal(exec_run(e, PROGRAM_EXIT, NULL), -EPROTO);
    assert_int_equal(exec_run(e, PROGRAM_EVAL, NULL), -EINVAL);
    assert_int_equal(exec_run(e, PROGRAM_EVAL, &args), 0);
    assert_int_equal(exec_run(e, PROGRAM_EVAL, &args), 0);
    assert_int_equal(exec_run(e, PROGRAM_ENTRY, NULL), 0);
    assert_int_equal(paper.n_log, 1 + 2 + 1 + 1 + 1 + 2 + 1);
    args.step = 2; /* a restored checkpoint */
    assert_int_equal(exec_cycle(e, &args), 0);
    rig_close(&rig);
}

static void test_steps_of_a_cycle_must_be_consecutive(void **state)
{
    struct step_args args[2] = {step_args(4), step_args(6)};
    struct rig rig;
    (void)state;

    paper_reset();
    hm_init(&rig.h, DEVICES, LEASE);
    rig.h.plan.steps = 2;
    rig_open(&rig);
    assert_int_equal(exec_run(rig.exec, PROGRAM_ENTRY, NULL), 0);
    assert_int_equal(exec_cycle(rig.exec, args), -EPROTO);
    args[1].step = 5;
    assert_int_equal(exec_cycle(rig.exec, args), 0);
    assert_int_equal(exec_wait(rig.exec, 5), 0);
    assert_int_equal(exec_wait(rig.exec, 6), -EPROTO);
    args[0].step = 6;
    args[1].step = 7;
    assert_int_equal(exec_cycle(rig.exec, args), 0);
    rig_close(&rig);
}

static void test_window_tells_which_runs_are_complete(void **state)
{
    struct plan_span spans[4];
    struct rig rig;
    (void)state;

    open_small(&rig); /* one instruction per run */
    struct exec *e = rig.exec;
    assert_int_equal(exec_trace(e, 6, 0, spans), -EINVAL);
    assert_int_equal(exec_trace(e, 6, 3, NULL), -EINVAL);
    assert_int_equal(exec_traced(e), 0);
    assert_int_equal(exec_trace(e, 6, 3, spans), 0);
    assert_int_equal(exec_trace(e, 6, 3, spans), -EBUSY);
    assert_int_equal(exec_run(e, PROGRAM_ENTRY, NULL), 0);
    for (uint64_t s = 4; s <= 7; s++) {
        const struct step_args args = step_args(s);
        assert_int_equal(exec_cycle(e, &args), 0);
        assert_int_equal(exec_traced(e), 0); /* at most step 5 is known to be complete */
    }
    assert_int_equal(exec_wait(e, 5), 0);
    assert_int_equal(exec_traced(e), 0);
    assert_int_equal(exec_wait(e, 6), 0);
    assert_int_equal(exec_traced(e), 1);
    assert_int_equal(exec_run(e, PROGRAM_FLUSH, NULL), 0); /* drains */
    assert_int_equal(exec_traced(e), 2);
    assert_int_equal(exec_trace(e, 0, 1, spans), -EBUSY);

    /* The rest of the window is in another life of the devices, and at an earlier step. */
    assert_int_equal(exec_run(e, PROGRAM_EXIT, NULL), 0);
    assert_int_equal(exec_run(e, PROGRAM_ENTRY, NULL), 0);
    assert_int_equal(exec_traced(e), 2);
    assert_int_equal(paper.n_marks, 4);
    for (uint64_t s = 2; s <= 3; s++) {
        const struct step_args args = step_args(s);
        assert_int_equal(exec_cycle(e, &args), 0);
        assert_int_equal(exec_traced(e), 2);
    }
    assert_int_equal(exec_wait(e, 2), 0);
    assert_int_equal(exec_traced(e), 3);
    assert_int_equal(paper.n_marks, 6);
    for (int i = 0; i < 6; i++)
        assert_ptr_equal(paper.marks[i].slot, (const uint64_t *)&spans[i / 2] + i % 2);

    /* Complete: a new one may be opened, with a run under way that is not its own. */
    assert_int_equal(exec_trace(e, 0, 1, &spans[3]), 0);
    assert_int_equal(exec_traced(e), 0);
    const struct step_args args = step_args(4);
    assert_int_equal(exec_cycle(e, &args), 0);
    assert_int_equal(exec_traced(e), 0);
    assert_int_equal(exec_wait(e, 4), 0);
    assert_int_equal(exec_traced(e), 1);
    assert_int_equal(paper.n_marks, 8);
    rig_close(&rig);
}

/* ---- failures ---- */

static void assert_failed(struct exec *e, int r)
{
    const struct step_args args = step_args(0);

    paper.n_log = 0;
    assert_int_equal(exec_run(e, PROGRAM_ENTRY, NULL), r);
    assert_int_equal(exec_run(e, PROGRAM_FLUSH, NULL), r);
    assert_int_equal(exec_run(e, PROGRAM_EXIT, NULL), r);
    assert_int_equal(exec_cycle(e, &args), r);
    assert_int_equal(exec_wait(e, 0), r);
    assert_int_equal(paper.n_log, 0);
}

static void test_a_failed_command_fails_every_later_call(void **state)
{
    (void)state;

    for (long n = 0;; n++) { /* the n-th command of entry and two cycles, the second with marks */
        const struct step_args args[2] = {step_args(0), step_args(1)};
        struct plan_span span;
        struct rig rig;
        int r;

        open_small(&rig);
        assert_int_equal(exec_trace(rig.exec, 1, 1, &span), 0);
        paper.fail_in = n;
        r = exec_run(rig.exec, PROGRAM_ENTRY, NULL);
        for (int s = 0; r == 0 && s < 2; s++)
            r = exec_cycle(rig.exec, &args[s]);
        if (r == 0) {
            assert_true(n > 5);
            assert_int_equal(paper.n_marks, 2);
            rig_close(&rig);
            return;
        }
        assert_int_equal(exec_traced(rig.exec), 0);
        assert_int_equal(r, -EIO);
        assert_failed(rig.exec, -EIO);
        rig_close(&rig);
    }
}

static void test_a_failed_drain_or_sync_fails_every_later_call(void **state)
{
    const struct step_args args = step_args(0);
    struct rig rig;
    (void)state;

    open_small(&rig);
    paper.fail_drain = -EFAULT;
    assert_int_equal(exec_run(rig.exec, PROGRAM_ENTRY, NULL), -EFAULT);
    paper.fail_drain = 0;
    assert_failed(rig.exec, -EFAULT);
    rig_close(&rig);

    open_small(&rig);
    assert_int_equal(exec_run(rig.exec, PROGRAM_ENTRY, NULL), 0);
    assert_int_equal(exec_cycle(rig.exec, &args), 0);
    paper.fail_sync = true;
    assert_int_equal(exec_wait(rig.exec, 0), -EIO);
    paper.fail_sync = false;
    assert_failed(rig.exec, -EIO);
    rig_close(&rig);
}

static void test_create_undoes_what_it_did_when_events_run_out(void **state)
{
    (void)state;

    for (long n = 0;; n++) {
        struct rng rng = {.seed = 1};
        struct rig rig;
        struct err err = {0};

        paper_reset();
        hm_init(&rig.h, DEVICES, LEASE);
        push_random_program(&rig.h, PROGRAM_ENTRY, &rng, 10);
        push_random_program(&rig.h, PROGRAM_CYCLE, &rng, 10);
        const struct plan *plan = hm_finish(&rig.h);
        assert_int_equal(store_create(&paper, plan, &rig.store, &err), 0);
        paper.fail_event_in = n;
        const struct exec_config config = {plan, &no_model, &no_optimizer, &paper, rig.store};
        rig.exec = NULL;
        const int r = exec_create(&config, &rig.exec, &err);
        rig_close(&rig);
        if (r == 0) {
            assert_true(n > 5);
            return;
        }
        assert_int_equal(r, -ENOMEM);
        assert_int_equal(err.code, -ENOMEM);
        assert_null(rig.exec);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits_order_exactly_what_the_plan_says),
        cmocka_unit_test(test_marks_stand_around_the_work_of_the_window),
        cmocka_unit_test(test_only_awaited_instructions_record_events),
        cmocka_unit_test(test_ring_tensors_use_the_slot_of_the_run),
        cmocka_unit_test(test_a_part_of_a_ring_tensor_begins_inside_the_slot),
        cmocka_unit_test(test_at_most_ring_runs_are_under_way),
        cmocka_unit_test(test_calls_out_of_order_are_refused),
        cmocka_unit_test(test_steps_of_a_cycle_must_be_consecutive),
        cmocka_unit_test(test_window_tells_which_runs_are_complete),
        cmocka_unit_test(test_a_failed_command_fails_every_later_call),
        cmocka_unit_test(test_a_failed_drain_or_sync_fails_every_later_call),
        cmocka_unit_test(test_create_undoes_what_it_did_when_events_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
