/* Tests the simulator against a timeline that was computed by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scheduler/predict/simulate.h"
#include "tests/unit/tiny_plan.h"

/* One nanosecond a byte on the host link, a third between devices, 100 ns a launch of a move. Tasks last what
 * the profile says, launch included. */
static const struct machine machine = {
    .n_devices = 2,
    .link_bytes_per_s = 1000000000,
    .peer_bytes_per_s = 3000000000,
    .launch_ns = 100,
};

static struct profile_layer layers[2] = {
    {.fwd_ns = 1000, .bwd_ns = 2000, .upd_device_ns = 999999, .upd_host_ns = 700},
    {.fwd_ns = 300, .bwd_ns = 600, .upd_device_ns = 150, .upd_host_ns = 999999},
};
static const struct profile profile = {.n_layers = 2, .layers = layers};

/* The cycle of tiny_plan.h. A move of n bytes lasts n + 100 by the link, ceil(n / 3) + 100 by a peer copy:
 * 171 + 100 for 512 bytes. `by` is what decides the start.
 *
 *      stream      what         lasts  run 0           by      run 1           by
 *   0  d0.in       fetch W0      4196      0 ..  4196          14658 .. 18854  11 of run 0 (distance 1)
 *   1  d0.in       fetch X0.0    1124   4196 ..  5320  stream  18854 .. 19978  stream
 *   2  d0.compute  FWD l0        1000   5320 ..  6320  1       19978 .. 20978  1
 *   3  d0.peer     send X1.0      271   6320 ..  6591  2       20978 .. 21249  2
 *   4  d1.in       fetch T.0      164      0 ..   164           7491 ..  7655  6 of run 0 (distance 1)
 *   5  d1.compute  FWD l1         300   6591 ..  6891  3       21249 .. 21549  3
 *   6  d1.compute  BWD l1         600   6891 ..  7491  stream  21549 .. 22149  stream
 *   7  d1.out      spill R.0      116   6891 ..  7007  5       21549 .. 21665  5
 *   8  d1.peer     send dX1.0     271   7491 ..  7762  6       22149 .. 22420  6
 *   9  d0.compute  BWD l0        2000   7762 ..  9762  8       22420 .. 24420  8
 *  10  d0.out      spill dW0     4196   9762 .. 13958  9       24420 .. 28616  9
 *  11  host        UPD l0         700  13958 .. 14658  10      28616 .. 29316  10
 *  12  d1.compute  UPD l1         150   7491 ..  7641  stream  22149 .. 22299  stream
 *  13  d0.compute  drop W0          0   9762 ..  9762  stream  24420 .. 24420  stream
 *
 * Each run after the first is 14658 later than the one before, except that instruction 4 need not wait for
 * the host: it runs ahead of its run, which is the point of not draining between runs.
 */
enum { N = 14, PERIOD = 14658 };
static const uint64_t timeline[2][N][2] = {
    {{0, 4196},
     {4196, 5320},
     {5320, 6320},
     {6320, 6591},
     {0, 164},
     {6591, 6891},
     {6891, 7491},
     {6891, 7007},
     {7491, 7762},
     {7762, 9762},
     {9762, 13958},
     {13958, 14658},
     {7491, 7641},
     {9762, 9762}},
    {{14658, 18854},
     {18854, 19978},
     {19978, 20978},
     {20978, 21249},
     {7491, 7655},
     {21249, 21549},
     {21549, 22149},
     {21549, 21665},
     {22149, 22420},
     {22420, 24420},
     {24420, 28616},
     {28616, 29316},
     {22149, 22299},
     {24420, 24420}},
};

static void test_simulate_timeline_by_hand(void **state)
{
    struct plan *p = tiny_plan();
    struct sim_result *r = plan_simulate(p, PROGRAM_CYCLE, 2, &profile, &machine);

    (void)state;
    assert_int_equal(r->runs, 2);
    assert_int_equal(r->n_instrs, N);
    for (uint32_t run = 0; run < 2; run++) {
        for (uint32_t i = 0; i < N; i++) {
            const struct plan_span *s = &r->spans[run * N + i];
            assert_int_equal(s->start_ns, timeline[run][i][0]);
            assert_int_equal(s->end_ns, timeline[run][i][1]);
        }
    }
    assert_int_equal(r->total_ns, 29316);
    assert_int_equal(r->cycle_ns, PERIOD);
    assert_int_equal(r->compute_ns[0], 2 * (1000 + 2000));
    assert_int_equal(r->compute_ns[1], 2 * (300 + 600 + 150));
    assert_int_equal(r->stall_ns[0], 29316 - 6000);
    assert_int_equal(r->stall_ns[1], 29316 - 2100);
    sim_destroy(r);
    plan_destroy(p);
}

static void test_simulate_bytes_of_one_run(void **state)
{
    struct plan *p = tiny_plan();
    struct sim_result *r = plan_simulate(p, PROGRAM_CYCLE, 5, &profile, &machine);

    (void)state;
    assert_int_equal(r->bytes.in, 5184);
    assert_int_equal(r->bytes.out, 4112);
    assert_int_equal(r->bytes.peer, 1024);
    assert_int_equal(r->bytes.state_in, 4096);
    assert_int_equal(r->bytes.data_in, 1088);
    sim_destroy(r);
    plan_destroy(p);
}

static void test_simulate_steady_state(void **state)
{
    struct plan *p = tiny_plan();
    struct sim_result *one = plan_simulate(p, PROGRAM_CYCLE, 1, &profile, &machine);
    struct sim_result *ten = plan_simulate(p, PROGRAM_CYCLE, 10, &profile, &machine);

    (void)state;
    assert_int_equal(one->total_ns, PERIOD);
    assert_int_equal(one->cycle_ns, PERIOD);
    assert_int_equal(ten->total_ns, 10 * PERIOD);
    assert_int_equal(ten->cycle_ns, PERIOD);
    /* Run 9 of the target's fetch waits for run 8 of instruction 6. */
    assert_int_equal(ten->spans[9 * N + 4].start_ns, 7491 + 8 * PERIOD);
    sim_destroy(one);
    sim_destroy(ten);
    plan_destroy(p);
}

/* A wait of distance d has no effect in runs 0 to d - 1. From run d on the instruction waits. */
static void test_simulate_longer_distance_waits_later(void **state)
{
    struct plan *p = tiny_plan();
    struct plan_program *cycle = &p->programs[PROGRAM_CYCLE];

    (void)state;
    cycle->waits[cycle->instrs[0].wait].distance = 2;
    struct sim_result *r = plan_simulate(p, PROGRAM_CYCLE, 3, &profile, &machine);
    assert_int_equal(r->spans[1 * N + 0].start_ns, 5320);  /* right after run 0 on its stream */
    assert_int_equal(r->spans[2 * N + 0].start_ns, 14658); /* the end of instruction 11 in run 0 */
    sim_destroy(r);
    plan_destroy(p);
}

/* Without any wait between runs, a stream still begins a run only when the run two before is complete,
 * because the executor has no more than two runs in progress. */
static void test_simulate_two_runs_are_in_progress(void **state)
{
    struct plan *p = tiny_plan();
    struct plan_program *cycle = &p->programs[PROGRAM_CYCLE];

    (void)state;
    for (uint32_t i = 0; i < cycle->n_waits; i++)
        cycle->waits[i].distance += cycle->waits[i].distance > 0 ? 9 : 0;
    struct sim_result *r = plan_simulate(p, PROGRAM_CYCLE, 4, &profile, &machine);
    assert_int_equal(r->spans[0 * N + 11].end_ns, PERIOD);
    assert_int_equal(r->spans[1 * N + 4].start_ns, 164); /* at once after run 0 */
    assert_int_equal(r->spans[2 * N + 4].start_ns, PERIOD);
    assert_int_equal(r->spans[3 * N + 4].start_ns, r->spans[1 * N + 11].end_ns);
    sim_destroy(r);
    plan_destroy(p);
}

static void test_simulate_other_programs(void **state)
{
    struct plan *p = tiny_plan();
    struct sim_result *entry = plan_simulate(p, PROGRAM_ENTRY, 1, &profile, &machine);
    struct sim_result *leave = plan_simulate(p, PROGRAM_EXIT, 1, &profile, &machine);
    struct sim_result *eval = plan_simulate(p, PROGRAM_EVAL, 1, &profile, &machine);

    (void)state;
    assert_int_equal(entry->total_ns, 2048 + 100);
    assert_int_equal(leave->total_ns, 2 * (1024 + 100)); /* two halves, one stream */
    assert_int_equal(leave->bytes.out, 2048);
    assert_int_equal(leave->spans[2].start_ns, leave->spans[2].end_ns);
    assert_int_equal(eval->total_ns, 0);
    assert_int_equal(eval->cycle_ns, 0);
    sim_destroy(entry);
    sim_destroy(leave);
    sim_destroy(eval);
    plan_destroy(p);
}

static void test_simulate_unlimited_links_cost_launches(void **state)
{
    struct machine fast = machine;
    struct plan *p = tiny_plan();

    (void)state;
    fast.link_bytes_per_s = fast.peer_bytes_per_s = 0;
    struct sim_result *r = plan_simulate(p, PROGRAM_CYCLE, 1, &profile, &fast);
    /* fetch, fetch, FWD, send, FWD, BWD, send, BWD, spill, UPD */
    assert_int_equal(r->total_ns, 5 * 100 + 1000 + 300 + 600 + 2000 + 700);
    sim_destroy(r);
    plan_destroy(p);
}

static void test_simulate_the_way_out_may_be_slower(void **state)
{
    struct machine slow = machine;
    struct plan *p = tiny_plan();

    (void)state;
    slow.link_out_bytes_per_s = machine.link_bytes_per_s / 2;
    struct sim_result *r = plan_simulate(p, PROGRAM_CYCLE, 1, &profile, &slow);
    assert_int_equal(r->spans[0].end_ns - r->spans[0].start_ns, 4096 + 100);       /* fetch W0 */
    assert_int_equal(r->spans[10].end_ns - r->spans[10].start_ns, 2 * 4096 + 100); /* spill dW0 */
    assert_int_equal(r->total_ns, PERIOD + 4096);
    sim_destroy(r);
    plan_destroy(p);
}

/* ---- what devices share ---- */

/* The first fetches of both devices run at the same time from 100 ns on, each at half speed. At 228 ns the 64
 * bytes of instruction 4 have arrived. */
static void test_simulate_all_links_share_a_limit(void **state)
{
    struct machine narrow = machine;
    struct plan *p = tiny_plan();

    (void)state;
    narrow.all_links_bytes_per_s = machine.link_bytes_per_s;
    struct sim_result *r = plan_simulate(p, PROGRAM_CYCLE, 1, &profile, &narrow);
    assert_int_equal(r->spans[4].end_ns, 228);
    assert_int_equal(r->spans[0].end_ns, 4196 + 64);
    assert_int_equal(r->total_ns, PERIOD + 64);
    /* Alone, a link is limited by itself. */
    assert_int_equal(r->bound_ns[SHARED_LINKS_IN], 128);
    assert_int_equal(r->bound_ns[SHARED_LINKS_OUT], 0);
    assert_int_equal(r->lane_ns[0][LANE_IN], 4260 + 1124);
    assert_int_equal(r->lane_ns[1][LANE_IN], 228);
    assert_int_equal(r->lane_ns[0][LANE_COMPUTE], r->compute_ns[0]);
    assert_int_equal(r->host_ns, 700);
    sim_destroy(r);
    plan_destroy(p);
}

/* A program of two spills: by way of the other limit, or as the way in where that is not said. */
static void test_simulate_all_links_out(void **state)
{
    struct machine narrow = machine;
    struct plan *p = tiny_plan();

    (void)state;
    tiny_move(p, PROGRAM_EVAL, INSTR_SPILL, plan_stream(0, LANE_OUT), TINY_W0, 0, 0, PLAN_HOST, 0);
    tiny_move(p, PROGRAM_EVAL, INSTR_SPILL, plan_stream(1, LANE_OUT), TINY_W0, 1, 0, PLAN_HOST, 0);
    tiny_move(p, PROGRAM_EVAL, INSTR_FETCH, plan_stream(1, LANE_IN), TINY_W0, PLAN_HOST, 0, 1, 0);
    narrow.all_links_bytes_per_s = 1000000000;
    struct sim_result *same = plan_simulate(p, PROGRAM_EVAL, 1, &profile, &narrow);
    narrow.all_links_out_bytes_per_s = 500000000;
    struct sim_result *slower = plan_simulate(p, PROGRAM_EVAL, 1, &profile, &narrow);
    assert_int_equal(same->spans[1].end_ns, 100 + 2 * 4096);
    assert_int_equal(same->spans[2].end_ns, 100 + 4096); /* the other direction is free */
    assert_int_equal(slower->spans[1].end_ns, 100 + 4 * 4096);
    assert_int_equal(slower->spans[2].end_ns, 100 + 4096);
    assert_int_equal(slower->bound_ns[SHARED_LINKS_OUT], 4 * 4096);
    sim_destroy(same);
    sim_destroy(slower);
    plan_destroy(p);
}

/* An update of 4096 bytes reads dW, and reads and writes W. It moves 12288 bytes in 700 ns when nothing else
 * uses the memory. With a fetch of 1 byte/ns beside it and a total of 5 bytes/ns, the fetch gets 1 byte/ns
 * and the update gets 4. */
static void test_simulate_host_tasks_and_copies_share_memory(void **state)
{
    struct machine narrow = machine;
    struct plan *p = tiny_plan();

    (void)state;
    tiny_instr(p, PROGRAM_EVAL, INSTR_UPD, plan_host_stream(p), 0, PLAN_NONE);
    tiny_operand(p, PROGRAM_EVAL, TINY_DW0, PLAN_HOST, 0, ACCESS_READ);
    tiny_operand(p, PROGRAM_EVAL, TINY_W0, PLAN_HOST, 0, ACCESS_RW);
    tiny_move(p, PROGRAM_EVAL, INSTR_FETCH, plan_stream(0, LANE_IN), TINY_W0, PLAN_HOST, 0, 0, 0);
    struct sim_result *r = plan_simulate(p, PROGRAM_EVAL, 1, &profile, &narrow);
    assert_int_equal(r->spans[0].end_ns, 700); /* no limit is known */
    assert_int_equal(r->spans[1].end_ns, 4196);
    sim_destroy(r);

    narrow.host_shared_bytes_per_s = 100000000000;
    r = plan_simulate(p, PROGRAM_EVAL, 1, &profile, &narrow);
    assert_int_equal(r->spans[0].end_ns, 700); /* there is enough */
    assert_int_equal(r->bound_ns[SHARED_HOST_MEMORY], 0);
    sim_destroy(r);

    narrow.host_shared_bytes_per_s = 5000000000;
    r = plan_simulate(p, PROGRAM_EVAL, 1, &profile, &narrow);
    assert_int_equal(r->spans[0].end_ns, 100 + (12288 - 500) / 4); /* alone until the fetch is launched */
    assert_int_equal(r->spans[1].end_ns, 4196);
    assert_int_equal(r->bound_ns[SHARED_HOST_MEMORY], r->spans[0].end_ns);
    sim_destroy(r);
    plan_destroy(p);
}

/* Device 0 sends to device 1, which fetches at the same time. With peer ports of 3 bytes/ns the two copies do
 * not meet. Over the host links of 1 byte/ns, the send shares the receiver's inbound link with the fetch. */
static void test_simulate_peer_copies_may_use_the_links(void **state)
{
    struct machine pcie = machine;
    struct plan *p = tiny_plan();

    (void)state;
    tiny_move(p, PROGRAM_EVAL, INSTR_SEND, plan_stream(0, LANE_PEER), TINY_X1, 0, 0, 1, 0);
    tiny_move(p, PROGRAM_EVAL, INSTR_FETCH, plan_stream(1, LANE_IN), TINY_X0, PLAN_HOST, 0, 1, 0);
    struct sim_result *own = plan_simulate(p, PROGRAM_EVAL, 1, &profile, &pcie);
    pcie.peers_by_link = true;
    struct sim_result *shared = plan_simulate(p, PROGRAM_EVAL, 1, &profile, &pcie);
    assert_int_equal(own->spans[0].end_ns, 271);
    assert_int_equal(own->spans[1].end_ns, 1124);
    assert_int_equal(shared->spans[0].end_ns, 100 + 2 * 512);
    assert_int_equal(shared->spans[1].end_ns, 100 + 1024 + 512);
    sim_destroy(own);
    sim_destroy(shared);
    plan_destroy(p);
}

/* All devices that send to one receiver share its port. */
static void test_simulate_senders_share_the_receiver(void **state)
{
    struct machine three = machine;
    struct plan *p = tiny_plan();

    (void)state;
    three.n_devices = p->n_devices = 3;
    three.peer_bytes_per_s = 1000000000;
    tiny_move(p, PROGRAM_EVAL, INSTR_SEND, plan_stream(0, LANE_PEER), TINY_X1, 0, 0, 2, 0);
    tiny_move(p, PROGRAM_EVAL, INSTR_SEND, plan_stream(1, LANE_PEER), TINY_X1, 1, 0, 2, 0);
    tiny_move(p, PROGRAM_EVAL, INSTR_SEND, plan_stream(2, LANE_PEER), TINY_X1, 2, 0, 0, 0);
    struct sim_result *r = plan_simulate(p, PROGRAM_EVAL, 1, &profile, &three);
    assert_int_equal(r->spans[0].end_ns, 100 + 2 * 512);
    assert_int_equal(r->spans[1].end_ns, 100 + 2 * 512);
    assert_int_equal(r->spans[2].end_ns, 100 + 512);
    sim_destroy(r);
    plan_destroy(p);
}

/* A copy of 512 bytes inside a device reads and writes memory at 3 bytes/ns, and so takes ceil(1024 / 3) ns.
 * A send to the device at the same time has the port for itself. The bytes of the copy count as traffic of no
 * link. */
static void test_simulate_copy_inside_a_device_uses_no_link(void **state)
{
    struct machine m = machine;
    struct plan *p = tiny_plan();

    (void)state;
    m.device_bytes_per_s = 3000000000;
    m.peers_by_link = true;
    tiny_move(p, PROGRAM_EVAL, INSTR_COPY, plan_stream(0, LANE_PEER), TINY_X1, 0, 0, 0, 1024);
    tiny_move(p, PROGRAM_EVAL, INSTR_SEND, plan_stream(1, LANE_PEER), TINY_X1, 1, 0, 0, 0);
    tiny_move(p, PROGRAM_EVAL, INSTR_COPY, plan_stream(0, LANE_PEER), TINY_X1, 0, 1024, 0, 0);
    for (int unlimited = 0; unlimited < 2; unlimited++) {
        struct sim_result *r = plan_simulate(p, PROGRAM_EVAL, 1, &profile, &m);
        const uint64_t lasts = unlimited ? 100 : 100 + 342;
        assert_int_equal(r->spans[0].end_ns, lasts);
        assert_int_equal(r->spans[1].end_ns, 100 + 512);
        assert_int_equal(r->spans[2].start_ns, lasts);
        assert_int_equal(r->spans[2].end_ns, 2 * lasts);
        assert_int_equal(r->bytes.peer, 512);
        assert_int_equal(r->lane_ns[0][LANE_PEER], 2 * lasts);
        sim_destroy(r);
        m.device_bytes_per_s = 0; /* without a limit it is a launch */
    }
    plan_destroy(p);
}

static void add_share(struct plan *p, enum instr_kind kind, uint32_t stream, uint64_t begin, uint64_t end)
{
    const uint32_t loc = stream == plan_host_stream(p) ? PLAN_HOST : stream / LANE_COUNT;

    tiny_instr(p, PROGRAM_EVAL, kind, stream, 0, PLAN_NONE);
    if (kind == INSTR_UPD)
        tiny_part(p, PROGRAM_EVAL, TINY_W0, loc, begin, ACCESS_RW, begin, end);
    tiny_part(p, PROGRAM_EVAL, TINY_DW0, loc, 6144 + begin, ACCESS_READ, begin, end);
}

/* Of 4096 bytes. The whole lasts as the profile says, a share its part of that, rounded up. */
static void test_simulate_shares_last_their_part(void **state)
{
    struct profile_layer by_share[2] = {
        {.red_device_ns = 1001, .red_host_ns = 4096, .upd_device_ns = 400, .upd_host_ns = 700}};
    const struct profile times = {.n_layers = 2, .layers = by_share};
    struct plan *p = tiny_plan();

    (void)state;
    add_share(p, INSTR_RED, plan_stream(0, LANE_COMPUTE), 0, 4096);
    add_share(p, INSTR_RED, plan_stream(0, LANE_COMPUTE), 1024, 3072);
    add_share(p, INSTR_UPD, plan_stream(1, LANE_COMPUTE), 0, 1024);
    add_share(p, INSTR_UPD, plan_stream(1, LANE_COMPUTE), 1024, 4096);
    add_share(p, INSTR_RED, plan_host_stream(p), 0, 256);
    add_share(p, INSTR_UPD, plan_host_stream(p), 256, 512);
    struct sim_result *r = plan_simulate(p, PROGRAM_EVAL, 1, &times, &machine);
    const uint64_t ends[] = {1001, 1001 + 501, 100, 100 + 300, 256, 256 + 44};
    for (uint32_t i = 0; i < r->n_instrs; i++)
        assert_int_equal(r->spans[i].end_ns, ends[i]);
    sim_destroy(r);
    plan_destroy(p);
}

/* ---- cores ---- */

/* Of 2 cores, so many for a task of a device and one of the host; one core copies what a link carries. */
static struct machine with_cores(uint32_t device, uint32_t host)
{
    struct machine m = machine;
    m.cores = 2;
    m.device_cores = device;
    m.host_cores = host;
    m.core_copy_bytes_per_s = m.link_bytes_per_s;
    return m;
}

static void add_forward(struct plan *p, uint32_t device, uint32_t layer)
{
    tiny_instr(p, PROGRAM_EVAL, INSTR_FWD, plan_stream(device, LANE_COMPUTE), layer, PLAN_NONE);
}

static void check_ends(const struct plan *p, const struct machine *m, const uint64_t *ends, uint64_t bound_ns)
{
    struct sim_result *r = plan_simulate(p, PROGRAM_EVAL, 1, &profile, m);
    for (uint32_t i = 0; i < r->n_instrs; i++)
        assert_int_equal(r->spans[i].end_ns, ends[i]);
    assert_int_equal(r->bound_ns[SHARED_CORES], bound_ns);
    sim_destroy(r);
}

/* The forward tasks take 1000 and 300 ns alone. With one core each, the two tasks do not disturb each other.
 * When each wants both cores, each runs at half speed until the second task ends at 600. The first task then
 * runs its other 700 ns at full speed. */
static void test_simulate_two_devices_share_cores(void **state)
{
    struct plan *p = tiny_plan();
    struct machine one = with_cores(1, 1), two = with_cores(2, 1);

    (void)state;
    add_forward(p, 0, 0);
    add_forward(p, 1, 1);
    check_ends(p, &machine, (uint64_t[]){1000, 300}, 0);
    check_ends(p, &one, (uint64_t[]){1000, 300}, 0);
    check_ends(p, &two, (uint64_t[]){1300, 600}, 600);
    two.device_cores = 5; /* no more than there are */
    check_ends(p, &two, (uint64_t[]){1300, 600}, 600);
    two.device_cores = 0; /* devices with processors of their own */
    check_ends(p, &two, (uint64_t[]){1000, 300}, 0);
    plan_destroy(p);
}

/* Three tasks of one core each share two cores, so each runs at two thirds of its speed. */
static void test_simulate_three_devices_share_two_cores(void **state)
{
    struct plan *p = tiny_plan();
    struct machine m = with_cores(1, 1);

    (void)state;
    m.n_devices = p->n_devices = 3;
    for (uint32_t d = 0; d < 3; d++)
        add_forward(p, d, 0);
    check_ends(p, &m, (uint64_t[]){1500, 1500, 1500}, 1500);
    plan_destroy(p);
}

/* An update of 700 ns with two threads runs beside a forward task of 1000 ns with one thread: three threads
 * on two cores. At 1050 the update is done, and so are 700 ns of the forward task. When host memory is
 * limited to half of the update's rate of 12288 bytes in 700 ns, the update takes 1400 ns. At half speed it
 * needs only one of its two cores. */
static void test_simulate_host_tasks_share_cores(void **state)
{
    struct plan *p = tiny_plan();
    struct machine m = with_cores(1, 2);

    (void)state;
    tiny_instr(p, PROGRAM_EVAL, INSTR_UPD, plan_host_stream(p), 0, PLAN_NONE);
    tiny_operand(p, PROGRAM_EVAL, TINY_DW0, PLAN_HOST, 0, ACCESS_READ);
    tiny_operand(p, PROGRAM_EVAL, TINY_W0, PLAN_HOST, 0, ACCESS_RW);
    add_forward(p, 0, 0);
    check_ends(p, &m, (uint64_t[]){1050, 1350}, 1050);
    m.host_shared_bytes_per_s = (12288ull * 1000000000 + 1399) / 1400;
    check_ends(p, &m, (uint64_t[]){1400, 1000}, 0);
    m.host_shared_bytes_per_s = 0;
    m.host_cores = 1;
    check_ends(p, &m, (uint64_t[]){700, 1000}, 0);
    plan_destroy(p);
}

/* A fetch of 4096 bytes, which takes 100 ns to launch, runs beside a forward task on both cores. From 100 on
 * both run at two thirds of their speed, until the forward task has done its other 900 ns. If a core copies
 * twice as fast as the link, the copy needs half a core, and both run at four fifths. */
static void test_simulate_copies_take_cores(void **state)
{
    struct plan *p = tiny_plan();
    struct machine m = with_cores(2, 2);

    (void)state;
    add_forward(p, 0, 0);
    tiny_move(p, PROGRAM_EVAL, INSTR_FETCH, plan_stream(0, LANE_IN), TINY_W0, PLAN_HOST, 0, 0, 0);
    check_ends(p, &m, (uint64_t[]){1450, 1450 + 3196}, 1350);
    m.core_copy_bytes_per_s *= 2;
    check_ends(p, &m, (uint64_t[]){1225, 1225 + 3196}, 1125);
    m.core_copy_bytes_per_s = 0; /* by somebody else */
    check_ends(p, &m, (uint64_t[]){1000, 4196}, 0);
    plan_destroy(p);
}

/* A copy of 4096 bytes inside a device runs beside a forward task on both cores. One core alone makes this
 * copy in 4096 ns, as it does for a fetch, so the times equal those of a fetch. */
static void test_simulate_copies_inside_a_device_take_cores(void **state)
{
    struct plan *p = tiny_plan();
    struct machine m = with_cores(2, 2);

    (void)state;
    m.device_bytes_per_s = 2000000000;
    add_forward(p, 0, 0);
    tiny_move(p, PROGRAM_EVAL, INSTR_COPY, plan_stream(0, LANE_PEER), TINY_W0, 0, 0, 0, 4096);
    check_ends(p, &m, (uint64_t[]){1450, 1450 + 3196}, 1350);
    plan_destroy(p);
}

/* When the number of cores is unknown, or larger than all tasks want together, the times must not change. */
static void test_simulate_enough_cores_change_nothing(void **state)
{
    struct plan *p = tiny_plan();
    struct machine m = with_cores(2, 2);

    (void)state;
    for (int i = 0; i < 2; i++) {
        m.cores = i * 1000;
        struct sim_result *r = plan_simulate(p, PROGRAM_CYCLE, 2, &profile, &m);
        for (uint32_t k = 0; k < 2 * N; k++) {
            assert_int_equal(r->spans[k].start_ns, timeline[k / N][k % N][0]);
            assert_int_equal(r->spans[k].end_ns, timeline[k / N][k % N][1]);
        }
        assert_int_equal(r->bound_ns[SHARED_CORES], 0);
        sim_destroy(r);
    }
    plan_destroy(p);
}

/* A plan that plan_verify would refuse must still be simulated without a crash. */
static void test_simulate_a_circle_of_waits_ends(void **state)
{
    struct plan *p = tiny_plan();
    struct plan_program *cycle = &p->programs[PROGRAM_CYCLE];

    (void)state;
    cycle->waits[cycle->instrs[0].wait] = (struct plan_wait){.instr = 11, .distance = 0};
    struct sim_result *r = plan_simulate(p, PROGRAM_CYCLE, 2, &profile, &machine);
    assert_int_equal(r->spans[0].start_ns, r->total_ns);
    assert_int_equal(r->spans[4].end_ns, 164);
    sim_destroy(r);
    plan_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulate_timeline_by_hand),
        cmocka_unit_test(test_simulate_bytes_of_one_run),
        cmocka_unit_test(test_simulate_steady_state),
        cmocka_unit_test(test_simulate_longer_distance_waits_later),
        cmocka_unit_test(test_simulate_two_runs_are_in_progress),
        cmocka_unit_test(test_simulate_other_programs),
        cmocka_unit_test(test_simulate_unlimited_links_cost_launches),
        cmocka_unit_test(test_simulate_the_way_out_may_be_slower),
        cmocka_unit_test(test_simulate_all_links_share_a_limit),
        cmocka_unit_test(test_simulate_all_links_out),
        cmocka_unit_test(test_simulate_host_tasks_and_copies_share_memory),
        cmocka_unit_test(test_simulate_peer_copies_may_use_the_links),
        cmocka_unit_test(test_simulate_senders_share_the_receiver),
        cmocka_unit_test(test_simulate_copy_inside_a_device_uses_no_link),
        cmocka_unit_test(test_simulate_shares_last_their_part),
        cmocka_unit_test(test_simulate_two_devices_share_cores),
        cmocka_unit_test(test_simulate_three_devices_share_two_cores),
        cmocka_unit_test(test_simulate_host_tasks_share_cores),
        cmocka_unit_test(test_simulate_copies_take_cores),
        cmocka_unit_test(test_simulate_copies_inside_a_device_take_cores),
        cmocka_unit_test(test_simulate_enough_cores_change_nothing),
        cmocka_unit_test(test_simulate_a_circle_of_waits_ends),
    };
    return cmocka_run_group_tests_name("simulate", tests, NULL, NULL);
}
