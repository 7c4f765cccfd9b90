/* What the bodies of kernels call: access to memory, barriers, the collectives of a warp. See simt.h for
 * the contracts and simt_grid.c for how threads run. */
#include "simt_grid.h"

/* ---- memory ------------------------------------------------------------- */

static void __attribute__((noreturn)) bad_access(enum problem kind, uint64_t address, uint32_t bytes,
                                                 enum simt_access access, uint32_t loc, const char *why)
{
    const struct kernel *k = grid.launch->kernel;
    char where[128];

    report_problem(kind, "kernel %s (%s), block %u,%u,%u thread %u,%u,%u: %s of %u bytes at %#llx, %s",
                   k->name, kernel_loc(k, loc, where, sizeof where), simt_here.ctaid[0], simt_here.ctaid[1],
                   simt_here.ctaid[2], simt_here.tid[0], simt_here.tid[1], simt_here.tid[2],
                   access == SIMT_READ    ? "read"
                   : access == SIMT_WRITE ? "write"
                                          : "atomic",
                   bytes, (unsigned long long)address, why);
    grid_fail(kind == PROBLEM_MISALIGNED ? cudaErrorMisalignedAddress : cudaErrorIllegalAddress);
}

static void *in_variables(uint64_t address, uint32_t bytes)
{
    const struct simt_module *m = grid.launch->kernel->module;

    for (uint32_t i = 0; i < m->n_variables; i++) {
        uint64_t offset = address - (uint64_t)(uintptr_t)m->variables[i].data;
        if (offset < m->variables[i].bytes && bytes <= m->variables[i].bytes - offset)
            return (void *)(uintptr_t)address;
    }
    return NULL;
}

void *simt_global(uint64_t address, uint32_t bytes, enum simt_access access, uint32_t loc)
{
    const char *why = NULL;
    void *p;

    if (address & (bytes - 1))
        bad_access(PROBLEM_MISALIGNED, address, bytes, access, loc, "not a multiple of its size");
    grid.bytes += bytes;
    p = memory_access(sim.running->stream->device, address, bytes, (enum access)access, loc, &why);
    if (!p)
        p = in_variables(address, bytes);
    if (!p)
        bad_access(PROBLEM_OUT_OF_BOUNDS, address, bytes, access, loc, why);
    return p;
}

void *simt_shared(uint32_t offset, uint32_t bytes, uint32_t loc)
{
    if (offset & (bytes - 1))
        bad_access(PROBLEM_MISALIGNED, offset, bytes, SIMT_READ, loc, "of shared memory");
    if (offset >= grid.shared_bytes || bytes > grid.shared_bytes - offset)
        bad_access(PROBLEM_OUT_OF_BOUNDS, offset, bytes, SIMT_READ, loc, "beyond the block's shared memory");
    return grid_shared + offset;
}

/* A generic address is that of shared memory or of a local variable (on a fibre's stack), or else global. */
void *simt_generic(uint64_t address, uint32_t bytes, enum simt_access access, uint32_t loc)
{
    uint64_t shared = address - (uint64_t)(uintptr_t)grid_shared;
    uint64_t local = address - (uint64_t)(uintptr_t)grid.stacks;

    if (shared < sizeof grid_shared)
        return simt_shared((uint32_t)shared, bytes, loc);
    if (local < (uint64_t)SIMT_THREADS * STACK_BYTES)
        return (void *)(uintptr_t)address;
    return simt_global(address, bytes, access, loc);
}

/* ---- barriers and warps ------------------------------------------------- */

void simt_barrier(uint32_t loc)
{
    struct thread *t = &grid.threads[grid.current];

    t->state = STATE_BARRIER;
    t->loc = loc;
    if (++grid.n_at_barrier == grid.n_alive)
        grid_open_barrier(); /* wakes this thread too: it comes back through the ready list */
    grid_block();
}

uint32_t simt_lane(void)
{
    return grid.current % WARP;
}

/* The lanes that the warp of the current thread has: the last one of a block may be ragged. */
static uint32_t warp_lanes(void)
{
    uint32_t rest = grid.n_threads - grid.current / WARP * WARP;

    return rest >= WARP ? ~0u : (1u << rest) - 1;
}

static struct meeting *meeting_of(uint32_t mask)
{
    struct meeting *all = grid.meetings[grid.current / WARP];

    for (int i = 0; i < MEETINGS; i++)
        if (all[i].mask == mask)
            return &all[i];
    for (int i = 0; i < MEETINGS; i++)
        if (all[i].arrived == 0) { /* free, or over */
            all[i].mask = mask;
            return &all[i];
        }
    return NULL;
}

static void warp_problem(enum problem kind, uint32_t loc, uint32_t mask, const char *what)
{
    const struct kernel *k = grid.launch->kernel;
    char where[128];

    report_problem(kind, "kernel %s (%s), block %u,%u,%u: %s; lane %u, mask %08x", k->name,
                   kernel_loc(k, loc, where, sizeof where), simt_here.ctaid[0], simt_here.ctaid[1],
                   simt_here.ctaid[2], what, simt_lane(), mask);
    grid_fail(cudaErrorLaunchFailure);
}

/* Brings a value to the meeting of the mask's lanes; returns the values of all, valid until the round
 * after next. */
static const uint64_t *meet(uint32_t mask, uint64_t value, uint32_t loc)
{
    uint32_t lane = simt_lane(), first = grid.current / WARP * WARP, round;
    struct thread *self = &grid.threads[grid.current];
    struct meeting *m;

    mask &= warp_lanes();
    if (!(mask >> lane & 1))
        warp_problem(PROBLEM_WARP, loc, mask, "a lane is not in its own mask");
    m = meeting_of(mask);
    if (!m)
        warp_problem(PROBLEM_WARP, loc, mask, "too many masks at the same time");
    round = m->round;
    m->values[round & 1][lane] = value;
    m->arrived |= 1u << lane;
    if (m->arrived != mask) {
        self->state = STATE_MEETING;
        self->loc = loc;
        self->meeting = m;
        self->round = round;
        grid_block();
        return m->values[round & 1];
    }
    m->arrived = 0;
    m->round++;
    for (uint32_t t = first; t < first + WARP && t < grid.n_threads; t++)
        if (grid.threads[t].state == STATE_MEETING && grid.threads[t].meeting == m &&
            grid.threads[t].round == round)
            grid_wake(t);
    return m->values[round & 1];
}

uint64_t simt_exchange(uint32_t mask, uint64_t value, uint32_t from, uint32_t loc)
{
    uint32_t lanes = mask & warp_lanes();
    const uint64_t *values = meet(mask, value, loc);

    return lanes >> (from % WARP) & 1 ? values[from % WARP] : 0xdeadbeefdeadbeefULL; /* undefined on a GPU */
}

uint32_t simt_ballot(uint32_t mask, int predicate, uint32_t loc)
{
    uint32_t lanes = mask & warp_lanes(), votes = 0;
    const uint64_t *values = meet(mask, predicate != 0, loc);

    for (uint32_t i = 0; i < WARP; i++)
        if (lanes >> i & 1 && values[i])
            votes |= 1u << i;
    return votes;
}

void simt_trap(uint32_t loc)
{
    const struct kernel *k = grid.launch->kernel;
    char where[128];

    report_problem(PROBLEM_TRAP, "kernel %s (%s) traps", k->name, kernel_loc(k, loc, where, sizeof where));
    grid_fail(cudaErrorLaunchFailure);
}
