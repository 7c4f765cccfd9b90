/* Inside the execution of a grid: its state, shared by simt_grid.c (fibres, blocks) and simt.c (what
 * bodies call). All of it belongs to the one grid that runs, and to the thread that runs it, which holds
 * sim.lock. */
#ifndef CUDASIM_SIMT_GRID_H
#define CUDASIM_SIMT_GRID_H

#include "sim.h"

#define WARP        32
#define WARPS       (SIMT_THREADS / WARP)
#define MEETINGS    4                 /* masks in use by one warp at the same time */
#define STACK_BYTES (64 * 1024 + 576) /* no power of two: the tops of stacks must not share a cache set */

enum state { STATE_RUNNING, STATE_BARRIER, STATE_MEETING, STATE_DONE };

/* A rendezvous of the lanes of a mask; `round` tells one from the next. */
struct meeting {
    uint32_t mask, arrived, round;
    uint64_t values[2][WARP]; /* of this round and the last: a slow lane still reads that one */
};

struct thread {
    uint32_t tid[3];
    enum state state;
    uint32_t fibre;
    uint32_t loc; /* where it waits */
    const struct meeting *meeting;
    uint32_t round;
};

struct grid {
    const struct launch *launch;
    uint64_t random;
    enum order order;
    uint64_t bytes; /* of global memory, touched */
    uint32_t shared_bytes;
    cudaError_t error;

    /* the block */
    uint32_t n_threads, n_started, n_alive, n_at_barrier;
    uint32_t current; /* thread */
    struct thread threads[SIMT_THREADS];
    uint32_t start_order[SIMT_THREADS];
    uint32_t ready[SIMT_THREADS], n_ready; /* threads that have blocked and may go on */
    struct meeting meetings[WARPS][MEETINGS];

    /* fibres */
    uint8_t *stacks;
    void *main_stack;
    void *fibres[SIMT_THREADS];
    uint32_t free_fibres[SIMT_THREADS], n_free_fibres;
    uint32_t fibre; /* that runs */
};
extern struct grid grid;
extern uint8_t grid_shared[SIMT_SHARED_BYTES];

void grid_block(void); /* lets others run; returns when the current thread is ready again */
void grid_wake(uint32_t thread);
void grid_open_barrier(void);                                /* all that live have come */
void grid_fail(cudaError_t error) __attribute__((noreturn)); /* the kernel is over */

#endif
