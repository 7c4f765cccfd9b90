/* Runs one grid on the CPU: blocks one after the other, the threads of a block as fibres.
 *
 * A fibre is a stack. It takes threads of the block and runs them one by one, each by a plain call of the
 * kernel's body, until one blocks at a barrier or a warp collective; then another fibre takes over. So a
 * kernel without barriers costs a call per thread. The switch is a few instructions of assembly: ucontext
 * makes two system calls.
 *
 * The order of blocks, of the threads in a block and of their resumption is drawn from a seed (orders
 * random and pct), backward (lifo) or forward: a kernel that forgets a barrier gives different bits. */
#include "simt_grid.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef __x86_64__
#error "simt_switch is written for x86-64"
#endif

struct grid grid;
uint8_t grid_shared[SIMT_SHARED_BYTES] __attribute__((aligned(128)));
struct simt_place simt_here;
uint64_t simt_instructions;
uint8_t *const simt_shared_base = grid_shared;

/* 0..n-1. By a multiplication: a division for each thread would cost more than most threads do. */
static uint32_t draw(uint64_t n)
{
    grid.random ^= grid.random << 13;
    grid.random ^= grid.random >> 7;
    grid.random ^= grid.random << 17;
    return (uint32_t)((grid.random >> 32) * n >> 32);
}

static bool is_random(void)
{
    return grid.order == ORDER_RANDOM || grid.order == ORDER_PCT;
}

/* ---- fibres ------------------------------------------------------------- */

/* Saves the callee-saved registers and the stack pointer to *save and goes on at `to`. A jump and not a
 * return: the processor's prediction of returns would always miss. */
void simt_switch(void **save, void *to) __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".hidden simt_switch\n"
        ".globl simt_switch\n"
        ".type simt_switch, @function\n"
        "simt_switch:\n"
        "    push %rbp\n"
        "    push %rbx\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbx\n"
        "    pop %rbp\n"
        "    pop %rcx\n"
        "    jmp *%rcx\n"
        ".size simt_switch, .-simt_switch\n");

/* The next fibre to run, in grid.fibre: a fresh one while threads have not begun, then that of a ready
 * thread. */
static bool choose(void)
{
    uint32_t i;

    if (grid.n_started < grid.n_threads) {
        grid.fibre = grid.free_fibres[--grid.n_free_fibres];
        return true;
    }
    if (grid.n_ready == 0)
        return false;
    i = is_random() ? draw(grid.n_ready) : grid.order == ORDER_LIFO ? grid.n_ready - 1 : 0;
    grid.fibre = grid.threads[grid.ready[i]].fibre;
    grid.n_ready--;
    if (is_random())
        grid.ready[i] = grid.ready[grid.n_ready];
    else
        memmove(&grid.ready[i], &grid.ready[i + 1], (grid.n_ready - i) * sizeof *grid.ready);
    return true;
}

static void leave_fibre(void)
{
    uint32_t self = grid.fibre;
    bool more = choose();

    if (more && grid.fibre == self)
        return;
    simt_switch(&grid.fibres[self], more ? grid.fibres[grid.fibre] : grid.main_stack);
}

void grid_block(void)
{
    uint32_t self = grid.current;

    leave_fibre();
    grid.current = self;
    memcpy(simt_here.tid, grid.threads[self].tid, sizeof simt_here.tid);
}

void grid_wake(uint32_t thread)
{
    grid.threads[thread].state = STATE_RUNNING;
    grid.ready[grid.n_ready++] = thread;
}

/* They should have come to the same place. */
void grid_open_barrier(void)
{
    const struct kernel *k = grid.launch->kernel;
    uint32_t loc = 0;
    bool first = true;
    char one[128], other[128];

    for (uint32_t t = 0; t < grid.n_threads; t++) {
        if (grid.threads[t].state != STATE_BARRIER)
            continue;
        if (!first && grid.threads[t].loc != loc && grid.error == cudaSuccess) {
            report_problem(
                PROBLEM_BARRIER, "kernel %s, block %u,%u,%u: threads meet at different barriers, %s and %s",
                k->name, simt_here.ctaid[0], simt_here.ctaid[1], simt_here.ctaid[2],
                kernel_loc(k, loc, one, sizeof one), kernel_loc(k, grid.threads[t].loc, other, sizeof other));
            grid.error = cudaErrorLaunchFailure;
        }
        first = false;
        loc = grid.threads[t].loc;
        grid_wake(t);
    }
    grid.n_at_barrier = 0;
}

static void run_thread(uint32_t t)
{
    grid.current = t;
    grid.threads[t].fibre = grid.fibre;
    memcpy(simt_here.tid, grid.threads[t].tid, sizeof simt_here.tid);
    grid.launch->kernel->body->body(grid.launch->args);
    t = grid.current;
    grid.threads[t].state = STATE_DONE;
    grid.n_alive--;
    if (grid.n_alive > 0 && grid.n_at_barrier == grid.n_alive)
        grid_open_barrier();
}

static void fibre_main(void)
{
    for (;;) {
        while (grid.n_started < grid.n_threads)
            run_thread(grid.start_order[grid.n_started++]);
        grid.free_fibres[grid.n_free_fibres++] = grid.fibre;
        leave_fibre();
    }
}

/* Resets all fibres and abandons what they were doing. */
static void reset_fibres(void)
{
    grid.n_free_fibres = 0;
    for (uint32_t f = 0; f < SIMT_THREADS; f++) {
        void **top = (void **)(void *)(grid.stacks + (size_t)(f + 1) * STACK_BYTES - 64);

        *--top = NULL; /* where a return address would be: keeps the stack aligned as after a call */
        *--top = (void *)fibre_main;
        for (int i = 0; i < 6; i++)
            *--top = NULL;
        grid.fibres[f] = top;
        grid.free_fibres[grid.n_free_fibres++] = SIMT_THREADS - 1 - f;
    }
}

void grid_fail(cudaError_t error)
{
    void *forgotten;

    grid.error = error;
    grid.n_alive = 0;
    simt_switch(&forgotten, grid.main_stack);
    __builtin_unreachable();
}

/* ---- the grid ----------------------------------------------------------- */

static void order_threads(void)
{
    uint32_t n = grid.n_threads;

    for (uint32_t t = 0; t < n; t++)
        grid.start_order[t] = grid.order == ORDER_LIFO ? n - 1 - t : t;
    for (uint32_t t = n - 1; is_random() && t > 0; t--) {
        uint32_t other = draw(t + 1), x = grid.start_order[t];
        grid.start_order[t] = grid.start_order[other];
        grid.start_order[other] = x;
    }
}

static void report_hang(void)
{
    const struct kernel *k = grid.launch->kernel;
    char where[128];

    for (uint32_t t = 0; t < grid.n_threads; t++) {
        if (grid.threads[t].state != STATE_BARRIER && grid.threads[t].state != STATE_MEETING)
            continue;
        report_problem(PROBLEM_HANG, "kernel %s, block %u,%u,%u: thread %u waits for ever at %s (%s)",
                       k->name, simt_here.ctaid[0], simt_here.ctaid[1], simt_here.ctaid[2], t,
                       kernel_loc(k, grid.threads[t].loc, where, sizeof where),
                       grid.threads[t].state == STATE_BARRIER ? "a barrier"
                                                              : "a lane of the mask does not come");
        return;
    }
}

static void run_block(void)
{
    grid.n_started = grid.n_at_barrier = grid.n_ready = 0;
    grid.n_alive = grid.n_threads;
    for (uint32_t t = 0; t < grid.n_threads; t++)
        grid.threads[t].state = STATE_RUNNING;
    memset(grid.meetings, 0, (grid.n_threads + WARP - 1) / WARP * sizeof grid.meetings[0]);
    memset(grid_shared, 0xff, grid.shared_bytes);
    order_threads();
    while (grid.n_alive > 0 && choose())
        simt_switch(&grid.main_stack, grid.fibres[grid.fibre]);
    if (grid.n_alive > 0) {
        report_hang();
        grid.error = cudaErrorLaunchFailure;
    }
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

static void start_grid(const struct launch *l, uint64_t seed, enum order order)
{
    if (!grid.stacks) {
        grid.stacks = mmap(NULL, (size_t)SIMT_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (grid.stacks == MAP_FAILED)
            abort();
        reset_fibres();
    }
    grid.launch = l;
    grid.random = seed * 0x9e3779b97f4a7c15ULL + 0x1234567;
    grid.order = order;
    grid.bytes = 0;
    grid.shared_bytes = l->kernel->body->shared_bytes + (uint32_t)l->shared_bytes;
    grid.error = cudaSuccess;
    grid.n_threads = l->block.x * l->block.y * l->block.z;
    simt_here = (struct simt_place){.ntid = {l->block.x, l->block.y, l->block.z},
                                    .nctaid = {l->grid.x, l->grid.y, l->grid.z}};
    for (uint32_t t = 0; t < grid.n_threads; t++) {
        grid.threads[t].tid[0] = t % l->block.x;
        grid.threads[t].tid[1] = t / l->block.x % l->block.y;
        grid.threads[t].tid[2] = t / (l->block.x * l->block.y);
    }
    simt_instructions = 0;
}

cudaError_t simt_run(const struct launch *l, uint64_t seed, enum order order, uint64_t *ret_instructions,
                     uint64_t *ret_bytes)
{
    uint64_t n = (uint64_t)l->grid.x * l->grid.y * l->grid.z, first = 0, stride = 1;

    start_grid(l, seed, order);
    if (is_random()) {
        first = draw(n < UINT32_MAX ? n : UINT32_MAX);
        do
            stride = (uint64_t)draw(n < UINT32_MAX ? n : UINT32_MAX) + 1;
        while (common_divisor(stride, n) != 1);
    } else if (order == ORDER_LIFO) {
        first = n - 1;
        stride = n - 1;
    }
    for (uint64_t i = 0; i < n && grid.error == cudaSuccess; i++) {
        uint64_t b = (first + i * stride) % n;
        simt_here.ctaid[0] = (uint32_t)(b % l->grid.x);
        simt_here.ctaid[1] = (uint32_t)(b / l->grid.x % l->grid.y);
        simt_here.ctaid[2] = (uint32_t)(b / ((uint64_t)l->grid.x * l->grid.y));
        run_block();
    }
    if (grid.error != cudaSuccess)
        reset_fibres();
    *ret_instructions = simt_instructions;
    *ret_bytes = grid.bytes;
    return grid.error;
}
