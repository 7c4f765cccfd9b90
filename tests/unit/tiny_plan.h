/* A plan written by hand, for tests that must not depend on the builder: two devices, two dense layers, one
 * micro-batch of four rows. Layer 0 is on device 0, its W comes from the host each cycle and is updated
 * there; layer 1 is on device 1, its W stays there (the boundary) and is updated there. All kinds of moves
 * occur, and waits of distance 1. It is small enough to work out by hand what everything about it must be.
 */
#ifndef TESTS_TINY_PLAN_H
#define TESTS_TINY_PLAN_H

#include <assert.h>
#include <string.h>

#include "base/arena.h"
#include "scheduler/plan.h"

enum {
    TINY_W0,
    TINY_W1,
    TINY_DW0,
    TINY_DW1,
    TINY_X0,
    TINY_X1,
    TINY_DX1,
    TINY_S1,
    TINY_T,
    TINY_R,
    TINY_TENSORS
};
enum { TINY_MAX = 48 }; /* instructions, operands, waits of a program, at most */

static inline struct plan_tensor tiny_tensor(enum tensor_kind kind, uint32_t layer, uint32_t micro,
                                             uint64_t bytes, uint64_t host_offset, uint32_t slots)
{
    const bool state = kind == TENSOR_W || kind == TENSOR_K || kind == TENSOR_B || kind == TENSOR_GROUP;
    const bool of_group = kind == TENSOR_DECISION || kind == TENSOR_GROUP;
    return (struct plan_tensor){.kind = kind,
                                .layer = layer,
                                .micro = micro,
                                .step = state ? PLAN_NONE : 0,
                                .group = of_group ? 0 : PLAN_NONE,
                                .dtype = DTYPE_F32,
                                .bytes = bytes,
                                .host_offset = host_offset,
                                .host_slots = slots};
}

static inline void tiny_tensors(struct plan *p)
{
    p->n_tensors = TINY_TENSORS;
    p->tensors = arena_alloc_array(p->arena, p->n_tensors, sizeof *p->tensors);
    p->tensors[TINY_W0] = tiny_tensor(TENSOR_W, 0, PLAN_NONE, 4096, 0, 1);
    p->tensors[TINY_W1] = tiny_tensor(TENSOR_W, 1, PLAN_NONE, 2048, 4096, 1);
    p->tensors[TINY_DW0] = tiny_tensor(TENSOR_DW, 0, PLAN_NONE, 4096, 6144, 1);
    p->tensors[TINY_DW1] = tiny_tensor(TENSOR_DW, 1, PLAN_NONE, 2048, PLAN_NO_HOST, 0);
    p->tensors[TINY_X0] = tiny_tensor(TENSOR_X, 0, 0, 1024, 10240, 2);
    p->tensors[TINY_X1] = tiny_tensor(TENSOR_Y, 0, 0, 512, PLAN_NO_HOST, 0);
    p->tensors[TINY_DX1] = tiny_tensor(TENSOR_DX, 1, 0, 512, PLAN_NO_HOST, 0);
    p->tensors[TINY_S1] = tiny_tensor(TENSOR_S, 1, 0, 256, PLAN_NO_HOST, 0);
    p->tensors[TINY_T] = tiny_tensor(TENSOR_TARGET, 1, 0, 64, 12288, 2);
    p->tensors[TINY_R] = tiny_tensor(TENSOR_RESULT, 1, 0, 16, 12800, 2);
}

/* Begins an instruction; its operands and waits follow. Returns its index. */
static inline uint32_t tiny_instr(struct plan *p, enum program_kind k, enum instr_kind kind, uint32_t stream,
                                  uint32_t layer, uint32_t micro)
{
    struct plan_program *prog = &p->programs[k];

    assert(prog->n_instrs < TINY_MAX);
    prog->instrs[prog->n_instrs] = (struct plan_instr){
        .kind = kind,
        .stream = stream,
        .layer = layer,
        .micro = micro,
        .replica = instr_is_move(kind) || kind == INSTR_DROP ? PLAN_NONE : 0,
        .operand = prog->n_operands,
        .wait = prog->n_waits,
    };
    return prog->n_instrs++;
}

static inline void tiny_part(struct plan *p, enum program_kind k, tensor_id t, uint32_t loc, uint64_t addr,
                             enum access access, uint64_t begin, uint64_t end)
{
    struct plan_program *prog = &p->programs[k];

    assert(prog->n_operands < TINY_MAX);
    prog->operands[prog->n_operands++] = (struct plan_operand){t, loc, begin, end, addr, access};
    prog->instrs[prog->n_instrs - 1].n_operands++;
}

static inline void tiny_operand(struct plan *p, enum program_kind k, tensor_id t, uint32_t loc, uint64_t addr,
                                enum access access)
{
    tiny_part(p, k, t, loc, addr, access, 0, p->tensors[t].bytes);
}

static inline void tiny_wait(struct plan *p, enum program_kind k, uint32_t instr, uint32_t distance)
{
    struct plan_program *prog = &p->programs[k];

    assert(prog->n_waits < TINY_MAX);
    prog->waits[prog->n_waits++] = (struct plan_wait){instr, distance};
    prog->instrs[prog->n_instrs - 1].n_waits++;
}

/* A move of a whole tensor between `from` and `to`. */
static inline void tiny_move(struct plan *p, enum program_kind k, enum instr_kind kind, uint32_t stream,
                             tensor_id t, uint32_t from, uint64_t from_addr, uint32_t to, uint64_t to_addr)
{
    tiny_instr(p, k, kind, stream, PLAN_NONE, PLAN_NONE);
    tiny_operand(p, k, t, from, from_addr, ACCESS_READ);
    tiny_operand(p, k, t, to, to_addr, ACCESS_WRITE);
}

static inline void tiny_drop(struct plan *p, enum program_kind k, uint32_t device, tensor_id t, uint64_t addr)
{
    tiny_instr(p, k, INSTR_DROP, plan_stream(device, LANE_COMPUTE), PLAN_NONE, PLAN_NONE);
    tiny_operand(p, k, t, device, addr, ACCESS_DROP);
}

/* Device 0: W0 at 0, X0 at 4096, X1 at 5120, dX1 at 5632, dW0 at 6144. Device 1: W1 at 0, X1 at 2048, T at
 * 2560, S1 at 2816, R at 3072, dX1 at 3328, dW1 at 3840. */
static inline void tiny_cycle(struct plan *p)
{
    enum program_kind k = PROGRAM_CYCLE;

    /* 0, 1 */
    tiny_move(p, k, INSTR_FETCH, plan_stream(0, LANE_IN), TINY_W0, PLAN_HOST, 0, 0, 0);
    tiny_wait(p, k, 11, 1); /* the update of the cycle before */
    tiny_move(p, k, INSTR_FETCH, plan_stream(0, LANE_IN), TINY_X0, PLAN_HOST, 10240, 0, 4096);
    /* 2 */
    tiny_instr(p, k, INSTR_FWD, plan_stream(0, LANE_COMPUTE), 0, 0);
    tiny_operand(p, k, TINY_W0, 0, 0, ACCESS_READ);
    tiny_operand(p, k, TINY_X0, 0, 4096, ACCESS_READ);
    tiny_operand(p, k, TINY_X1, 0, 5120, ACCESS_WRITE);
    tiny_wait(p, k, 1, 0);
    /* 3 */
    tiny_move(p, k, INSTR_SEND, plan_stream(0, LANE_PEER), TINY_X1, 0, 5120, 1, 2048);
    tiny_wait(p, k, 2, 0);
    /* 4 */
    tiny_move(p, k, INSTR_FETCH, plan_stream(1, LANE_IN), TINY_T, PLAN_HOST, 12288, 1, 2560);
    tiny_wait(p, k, 6, 1); /* whose target it overwrites */
    /* 5 */
    tiny_instr(p, k, INSTR_FWD, plan_stream(1, LANE_COMPUTE), 1, 0);
    tiny_operand(p, k, TINY_W1, 1, 0, ACCESS_READ);
    tiny_operand(p, k, TINY_X1, 1, 2048, ACCESS_READ);
    tiny_operand(p, k, TINY_T, 1, 2560, ACCESS_READ);
    tiny_operand(p, k, TINY_S1, 1, 2816, ACCESS_WRITE);
    tiny_operand(p, k, TINY_R, 1, 3072, ACCESS_WRITE);
    tiny_wait(p, k, 3, 0);
    tiny_wait(p, k, 4, 0);
    /* 6 */
    tiny_instr(p, k, INSTR_BWD, plan_stream(1, LANE_COMPUTE), 1, 0);
    tiny_operand(p, k, TINY_W1, 1, 0, ACCESS_READ);
    tiny_operand(p, k, TINY_S1, 1, 2816, ACCESS_READ);
    tiny_operand(p, k, TINY_DX1, 1, 3328, ACCESS_WRITE);
    tiny_operand(p, k, TINY_DW1, 1, 3840, ACCESS_WRITE);
    /* 7, 8 */
    tiny_move(p, k, INSTR_SPILL, plan_stream(1, LANE_OUT), TINY_R, 1, 3072, PLAN_HOST, 12800);
    tiny_wait(p, k, 5, 0);
    tiny_move(p, k, INSTR_SEND, plan_stream(1, LANE_PEER), TINY_DX1, 1, 3328, 0, 5632);
    tiny_wait(p, k, 6, 0);
    /* 9 */
    tiny_instr(p, k, INSTR_BWD, plan_stream(0, LANE_COMPUTE), 0, 0);
    tiny_operand(p, k, TINY_X0, 0, 4096, ACCESS_READ);
    tiny_operand(p, k, TINY_DX1, 0, 5632, ACCESS_READ);
    tiny_operand(p, k, TINY_DW0, 0, 6144, ACCESS_WRITE);
    tiny_wait(p, k, 8, 0);
    /* 10 */
    tiny_move(p, k, INSTR_SPILL, plan_stream(0, LANE_OUT), TINY_DW0, 0, 6144, PLAN_HOST, 6144);
    tiny_wait(p, k, 9, 0);
    /* 11 */
    tiny_instr(p, k, INSTR_UPD, plan_host_stream(p), 0, PLAN_NONE);
    tiny_operand(p, k, TINY_W0, PLAN_HOST, 0, ACCESS_RW);
    tiny_operand(p, k, TINY_DW0, PLAN_HOST, 6144, ACCESS_READ);
    tiny_wait(p, k, 10, 0);
    /* 12 */
    tiny_instr(p, k, INSTR_UPD, plan_stream(1, LANE_COMPUTE), 1, PLAN_NONE);
    tiny_operand(p, k, TINY_W1, 1, 0, ACCESS_RW);
    tiny_operand(p, k, TINY_DW1, 1, 3840, ACCESS_READ);
    /* 13 */
    tiny_drop(p, k, 0, TINY_W0, 0);
}

/* Spills W1 in two halves, so that the plan also has operands that are parts of tensors. */
static inline void tiny_spill_w1(struct plan *p, enum program_kind k)
{
    for (uint64_t begin = 0; begin < 2048; begin += 1024) {
        tiny_instr(p, k, INSTR_SPILL, plan_stream(1, LANE_OUT), PLAN_NONE, PLAN_NONE);
        tiny_part(p, k, TINY_W1, 1, begin, ACCESS_READ, begin, begin + 1024);
        tiny_part(p, k, TINY_W1, PLAN_HOST, 4096 + begin, ACCESS_WRITE, begin, begin + 1024);
    }
}

static inline struct plan *tiny_plan(void)
{
    struct arena *arena = arena_create();
    struct plan *p = arena_alloc(arena, sizeof *p);

    p->arena = arena;
    strcpy(p->policy, "by-hand");
    p->n_devices = 2;
    p->n_layers = 2;
    p->n_micro = 1;
    p->n_replicas = 1;
    p->n_groups = 1;
    p->rows = 4;
    p->steps = 1;
    p->host_lease_bytes = 1 << 20;
    p->host_bytes = 13312;
    p->devices[0] = (struct plan_device){16384, 10240};
    p->devices[1] = (struct plan_device){8192, 5888};
    tiny_tensors(p);
    p->n_boundary = 1;
    p->boundary = arena_alloc_array(arena, 1, sizeof *p->boundary);
    p->boundary[0] = (struct plan_copy){TINY_W1, 1, 0, 2048, 0};
    for (int k = 0; k < PROGRAM_COUNT; k++) {
        p->programs[k].instrs = arena_alloc_array(arena, TINY_MAX, sizeof *p->programs[k].instrs);
        p->programs[k].operands = arena_alloc_array(arena, TINY_MAX, sizeof *p->programs[k].operands);
        p->programs[k].waits = arena_alloc_array(arena, TINY_MAX, sizeof *p->programs[k].waits);
    }
    tiny_move(p, PROGRAM_ENTRY, INSTR_FETCH, plan_stream(1, LANE_IN), TINY_W1, PLAN_HOST, 4096, 1, 0);
    tiny_cycle(p);
    tiny_spill_w1(p, PROGRAM_FLUSH);
    tiny_spill_w1(p, PROGRAM_EXIT);
    tiny_drop(p, PROGRAM_EXIT, 1, TINY_W1, 0);
    tiny_wait(p, PROGRAM_EXIT, 1, 0);
    return p; /* no eval program */
}

#endif
