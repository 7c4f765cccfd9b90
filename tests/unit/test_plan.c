/* Tests the plan as a data structure (names, counted bytes, equality), the machine, and the analytic
 * profile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scheduler/explain/explain.h"
#include "scheduler/machine.h"
#include "scheduler/profile.h"
#include "scheduler/rate.h"
#include "tests/unit/tiny_plan.h"

static void test_names_complete(void **state)
{
    (void)state;
    for (int i = 0; i < TENSOR_KIND_COUNT; i++)
        assert_non_null(tensor_kind_names[i]);
    for (int i = 0; i < INSTR_KIND_COUNT; i++)
        assert_non_null(instr_kind_names[i]);
    for (int i = 0; i < PROGRAM_COUNT; i++)
        assert_non_null(program_kind_names[i]);
    assert_string_equal(tensor_kind_names[TENSOR_DW], "dW");
    assert_string_equal(tensor_kind_names[TENSOR_DECISION], "decision");
    assert_string_equal(instr_kind_names[INSTR_DROP], "DROP");
    assert_string_equal(program_kind_names[PROGRAM_EVAL], "eval");
}

static void test_destroy_takes_null(void **state)
{
    (void)state;
    plan_destroy(NULL);
    profile_destroy(NULL);
    sim_destroy(NULL);
}

static void assert_bytes(const struct plan_bytes *b, const struct plan_bytes *want)
{
    assert_int_equal(b->in, want->in);
    assert_int_equal(b->out, want->out);
    assert_int_equal(b->peer, want->peer);
    assert_int_equal(b->state_in, want->state_in);
    assert_int_equal(b->state_out, want->state_out);
    assert_int_equal(b->stash_in, want->stash_in);
    assert_int_equal(b->stash_out, want->stash_out);
    assert_int_equal(b->data_in, want->data_in);
    assert_int_equal(b->data_out, want->data_out);
}

static void test_count_bytes_exact(void **state)
{
    struct plan *p = tiny_plan();
    struct plan_bytes b;

    (void)state;
    plan_count_bytes(p, PROGRAM_CYCLE, &b);
    assert_bytes(&b, &(struct plan_bytes){
                         .in = 4096 + 1024 + 64,
                         .out = 16 + 4096,
                         .peer = 512 + 512,
                         .state_in = 4096,
                         .state_out = 4096,
                         .data_in = 1024 + 64,
                         .data_out = 16,
                     });
    plan_count_bytes(p, PROGRAM_FLUSH, &b);
    assert_bytes(&b, &(struct plan_bytes){.out = 2048, .state_out = 2048});
    plan_count_bytes(p, PROGRAM_EVAL, &b);
    assert_bytes(&b, &(struct plan_bytes){0});
    plan_destroy(p);
}

static void test_count_device_bytes_by_stream(void **state)
{
    struct plan *p = tiny_plan();
    struct plan_bytes b;

    (void)state;
    plan_count_device_bytes(p, PROGRAM_CYCLE, 0, &b);
    assert_bytes(&b, &(struct plan_bytes){
                         .in = 5120,
                         .out = 4096,
                         .peer = 512,
                         .state_in = 4096,
                         .state_out = 4096,
                         .data_in = 1024,
                     });
    plan_count_device_bytes(p, PROGRAM_CYCLE, 1, &b);
    assert_bytes(&b, &(struct plan_bytes){.in = 64, .out = 16, .peer = 512, .data_in = 64, .data_out = 16});
    plan_destroy(p);
}

/* A copy inside a device does not count as traffic of any kind, whatever tensor it copies. */
static void test_count_bytes_leaves_out_copies_inside_a_device(void **state)
{
    struct plan *p = tiny_plan();
    struct plan_bytes before, after;

    (void)state;
    for (uint32_t t = 0; t < TINY_TENSORS; t++)
        tiny_move(p, PROGRAM_FLUSH, INSTR_COPY, plan_stream(1, LANE_PEER), t, 1, 0, 1, 4096);
    plan_count_bytes(p, PROGRAM_FLUSH, &after);
    assert_bytes(&after, &(struct plan_bytes){.out = 2048, .state_out = 2048});
    plan_count_device_bytes(p, PROGRAM_FLUSH, 1, &after);
    assert_bytes(&after, &(struct plan_bytes){.out = 2048, .state_out = 2048});
    plan_count_device_bytes(p, PROGRAM_CYCLE, 0, &before);
    tiny_move(p, PROGRAM_CYCLE, INSTR_COPY, plan_stream(0, LANE_PEER), TINY_X1, 0, 0, 0, 4096);
    plan_count_device_bytes(p, PROGRAM_CYCLE, 0, &after);
    assert_bytes(&after, &before);
    plan_destroy(p);
}

/* Gives the fetched W0 each kind of tensor in turn, with a home in host memory and without. An output Y with
 * a home is a result. */
static void test_count_bytes_classes(void **state)
{
    struct plan *p = tiny_plan();
    struct plan_bytes b;

    (void)state;
    for (int kind = 0; kind < TENSOR_KIND_COUNT; kind++) {
        for (uint32_t home = 0; home < 2; home++) {
            p->tensors[TINY_W1].kind = (enum tensor_kind)kind;
            p->tensors[TINY_W1].host_slots = home;
            plan_count_bytes(p, PROGRAM_ENTRY, &b);
            assert_int_equal(b.in, 2048);
            assert_int_equal(b.state_in + b.stash_in + b.data_in, 2048);
            bool data = kind == TENSOR_TARGET || kind == TENSOR_RESULT || kind == TENSOR_DECISION ||
                        kind == TENSOR_GROUP || kind == TENSOR_X || (kind == TENSOR_Y && home);
            bool stash = (kind == TENSOR_Y && !home) || kind == TENSOR_DX || kind == TENSOR_S ||
                         kind == TENSOR_STAT || kind == TENSOR_WORK || kind == TENSOR_ROOM ||
                         kind == TENSOR_SCRATCH;
            assert_int_equal(b.data_in != 0, data);
            assert_int_equal(b.stash_in != 0, stash);
        }
    }
    plan_destroy(p);
}

/* In the tiny plan nothing is dropped before all tensors are there, so the peak is their sum. An earlier drop
 * lowers the peak. */
static void test_live_peak_by_hand(void **state)
{
    struct plan *p = tiny_plan();
    uint64_t live[DEVICE_MAX];

    (void)state;
    plan_live_peak(p, live);
    assert_int_equal(live[0], 4096 + 1024 + 512 + 512 + 4096);
    assert_int_equal(live[1], 2048 + 512 + 256 + 256 + 256 + 512 + 2048); /* W1 is there from before */
    p->programs[PROGRAM_CYCLE].operands[4].access = ACCESS_DROP;          /* FWD l0 ends W0 */
    plan_live_peak(p, live);
    assert_int_equal(live[0], 1024 + 512 + 512 + 4096);
    plan_destroy(p);
}

static void test_equal_itself(void **state)
{
    struct plan *a = tiny_plan(), *b = tiny_plan();

    (void)state;
    assert_true(plan_equal(a, b));
    plan_destroy(a);
    plan_destroy(b);
}

/* Where operands and waits lie in their arrays is not part of the plan. */
static void test_equal_ignores_layout(void **state)
{
    struct plan *a = tiny_plan(), *b = tiny_plan();
    struct plan_program *prog = &b->programs[PROGRAM_CYCLE];
    struct plan_instr *in = &prog->instrs[2];

    (void)state;
    assert_true(prog->n_waits + in->n_waits <= TINY_MAX);
    memcpy(&prog->waits[prog->n_waits], &prog->waits[in->wait], in->n_waits * sizeof *prog->waits);
    in->wait = prog->n_waits;
    assert_true(plan_equal(a, b));
    plan_destroy(a);
    plan_destroy(b);
}

#define ASSERT_MATTERS(change)                                                                               \
    do {                                                                                                     \
        struct plan *a = tiny_plan(), *b = tiny_plan();                                                      \
        struct plan_program *cycle = &b->programs[PROGRAM_CYCLE];                                            \
        (void)cycle;                                                                                         \
        change;                                                                                              \
        assert_false(plan_equal(a, b));                                                                      \
        assert_false(plan_equal(b, a));                                                                      \
        plan_destroy(a);                                                                                     \
        plan_destroy(b);                                                                                     \
    } while (0)

static void test_equal_sees_every_field(void **state)
{
    (void)state;
    ASSERT_MATTERS(b->policy[0] = 'x');
    ASSERT_MATTERS(b->n_devices--);
    ASSERT_MATTERS(b->n_layers++);
    ASSERT_MATTERS(b->n_micro++);
    ASSERT_MATTERS(b->n_replicas++);
    ASSERT_MATTERS(b->rows++);
    ASSERT_MATTERS(b->steps++);
    ASSERT_MATTERS(b->host_lease_bytes++);
    ASSERT_MATTERS(b->host_bytes++);
    ASSERT_MATTERS(b->devices[1].lease_bytes++);
    ASSERT_MATTERS(b->devices[1].peak_bytes++);
    ASSERT_MATTERS(b->n_tensors--);
    ASSERT_MATTERS(b->tensors[3].kind = TENSOR_K);
    ASSERT_MATTERS(b->tensors[3].layer++);
    ASSERT_MATTERS(b->tensors[3].micro = 0);
    ASSERT_MATTERS(b->tensors[3].replica++);
    ASSERT_MATTERS(b->tensors[3].bytes++);
    ASSERT_MATTERS(b->tensors[3].host_offset = 0);
    ASSERT_MATTERS(b->tensors[3].host_slots++);
    ASSERT_MATTERS(b->n_boundary = 0);
    ASSERT_MATTERS(b->boundary[0].tensor = 0);
    ASSERT_MATTERS(b->boundary[0].device = 0);
    ASSERT_MATTERS(b->boundary[0].begin++);
    ASSERT_MATTERS(b->boundary[0].end--);
    ASSERT_MATTERS(b->boundary[0].addr += 256);
    ASSERT_MATTERS(cycle->n_instrs--);
    ASSERT_MATTERS(cycle->instrs[2].kind = INSTR_REC);
    ASSERT_MATTERS(cycle->instrs[2].stream = 4);
    ASSERT_MATTERS(cycle->instrs[2].layer++);
    ASSERT_MATTERS(cycle->instrs[2].micro++);
    ASSERT_MATTERS(cycle->instrs[2].replica++);
    ASSERT_MATTERS(cycle->instrs[2].step++);
    ASSERT_MATTERS(cycle->instrs[2].n_operands--);
    ASSERT_MATTERS(cycle->instrs[2].n_waits--);
    ASSERT_MATTERS(cycle->operands[5].tensor++);
    ASSERT_MATTERS(cycle->operands[5].loc = PLAN_HOST);
    ASSERT_MATTERS(cycle->operands[5].begin++);
    ASSERT_MATTERS(cycle->operands[5].end--);
    ASSERT_MATTERS(cycle->operands[5].addr++);
    ASSERT_MATTERS(cycle->operands[5].access = ACCESS_RW);
    ASSERT_MATTERS(cycle->waits[1].instr--);
    ASSERT_MATTERS(cycle->waits[1].distance++);
}

static void test_rate_rounds_up(void **state)
{
    (void)state;
    assert_int_equal(rate_ns(0, 7), 0);
    assert_int_equal(rate_ns(1, 1000000000), 1);
    assert_int_equal(rate_ns(1, 1000000001), 1);
    assert_int_equal(rate_ns(512, 3000000000), 171);
    assert_int_equal(rate_ns(1ull << 53, 1000000000), 1ull << 53); /* the product needs 83 bits */
    assert_int_equal(rate_ns(1ull << 53, 1), UINT64_MAX);          /* saturates */
    assert_int_equal(rate_ns(5, 0), 0);                            /* unlimited */
    assert_int_equal(ns_add(UINT64_MAX, 1), UINT64_MAX);
}

static void test_machine_cpu_round_figures(void **state)
{
    struct machine m;

    (void)state;
    machine_init_cpu(&m, 3, 1000, 2000);
    assert_int_equal(m.n_devices, 3);
    assert_int_equal(m.capacity_bytes[0], 1000);
    assert_int_equal(m.capacity_bytes[2], 1000);
    assert_int_equal(m.capacity_bytes[3], 0);
    assert_int_equal(m.host_bytes, 2000);
    assert_int_equal(m.device_flops_per_s, 100000000000);
    assert_int_equal(m.device_bytes_per_s, 10000000000);
    assert_int_equal(m.host_bytes_per_s, 10000000000);
    assert_int_equal(m.link_bytes_per_s, 8000000000);
    assert_int_equal(m.peer_bytes_per_s, 8000000000);
    assert_int_equal(m.launch_ns, 5000);
}

/* Rates of the cpu machine: 0.01 ns a FLOP, 0.1 ns a byte, 5000 ns a launch; the host is half as fast. */
static void test_profile_analytic_roofline(void **state)
{
    struct graph_layer layers[2] = {
        {.size = {.w = 1001},
         .dw_bytes = 1001,
         .k_bytes = 2002,
         .cost = {.fwd_flops = 1000001, .fwd_bytes = 10, .bwd_flops = 1, .bwd_bytes = 55}},
        {.size = {.w = 0}, .cost = {.fwd_flops = 100, .fwd_bytes = 1000, .bwd_flops = 0, .bwd_bytes = 0}},
    };
    struct graph g = {.n_layers = 2, .layers = layers};
    struct machine m;

    (void)state;
    machine_init_cpu(&m, 1, 0, 0);
    m.host_bytes_per_s /= 2;
    struct profile *p = profile_analytic(&g, &m);
    assert_int_equal(p->n_layers, 2);
    assert_int_equal(p->layers[0].fwd_ns, 10001 + 5000); /* compute-bound: ceil(10000.01) */
    assert_int_equal(p->layers[0].bwd_ns, 6 + 5000);     /* memory-bound: ceil(5.5) */
    assert_int_equal(p->layers[0].norm_device_ns, 101 + 5000);
    assert_int_equal(p->layers[0].norm_host_ns, 201 + 5000);
    assert_int_equal(p->layers[0].upd_device_ns, 701 + 5000); /* 2*1001 + 1001 + 2*2002 = 7007 bytes */
    assert_int_equal(p->layers[0].upd_host_ns, 1402 + 5000);
    assert_int_equal(p->layers[1].fwd_ns, 100 + 5000);
    assert_int_equal(p->layers[1].bwd_ns, 5000);
    assert_int_equal(p->layers[1].upd_device_ns, 0);
    assert_int_equal(p->decide_ns, 4 + 5000); /* two doubles at 0.2 ns a byte: ceil(3.2) */

    assert_int_equal(profile_task_ns(p, INSTR_FWD, 0, false), 15001);
    assert_int_equal(profile_task_ns(p, INSTR_REC, 0, false), 15001);
    assert_int_equal(profile_task_ns(p, INSTR_BWD, 0, false), 5006);
    assert_int_equal(profile_task_ns(p, INSTR_NORM, 0, true), 5201);
    assert_int_equal(profile_task_ns(p, INSTR_UPD, 0, false), 5701);
    assert_int_equal(profile_task_ns(p, INSTR_UPD, 0, true), 6402);
    assert_int_equal(profile_task_ns(p, INSTR_DECIDE, PLAN_NONE, true), 5004);
    assert_int_equal(profile_task_ns(p, INSTR_FWD, PLAN_NONE, false), 0);
    assert_int_equal(profile_task_ns(p, INSTR_FETCH, 0, false), 0);
    profile_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_complete),
        cmocka_unit_test(test_destroy_takes_null),
        cmocka_unit_test(test_count_bytes_exact),
        cmocka_unit_test(test_count_device_bytes_by_stream),
        cmocka_unit_test(test_count_bytes_leaves_out_copies_inside_a_device),
        cmocka_unit_test(test_count_bytes_classes),
        cmocka_unit_test(test_live_peak_by_hand),
        cmocka_unit_test(test_equal_itself),
        cmocka_unit_test(test_equal_ignores_layout),
        cmocka_unit_test(test_equal_sees_every_field),
        cmocka_unit_test(test_rate_rounds_up),
        cmocka_unit_test(test_machine_cpu_round_figures),
        cmocka_unit_test(test_profile_analytic_roofline),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
