/* Inside the interpreter: the window of cycle runs whose times are wanted (exec_trace), and how far it is.
 *
 * Runs of a window follow each other; an entry between two of them starts their numbers anew, but it also
 * drains, so what is under way is always at the end and belongs to one entry. One thread, as exec.h.
 */
#ifndef SWAP_EXEC_WINDOW_H
#define SWAP_EXEC_WINDOW_H

#include <stddef.h>

#include "scheduler/plan.h"

/* Zero: there never was one. */
struct window {
    struct plan_span *spans;
    uint64_t first_step;
    uint32_t runs, enqueued; /* asked for; of these enqueued */
    uint64_t end;            /* the number of the run after the last of them; 0 after an entry */
};

/* Where the times of a run that begins at `step` go; NULL outside of the window. */
static inline struct plan_span *window_spans(const struct window *w, uint64_t step, uint32_t n_instrs)
{
    if (w->enqueued == w->runs || (w->enqueued == 0 && step < w->first_step))
        return NULL;
    return w->spans + (size_t)w->enqueued * n_instrs;
}

/* A run with spans was enqueued. */
static inline void window_advance(struct window *w, uint64_t run)
{
    w->enqueued++;
    w->end = run + 1;
}

/* Runs of the window that are complete when all runs before `done` are. */
static inline uint32_t window_complete(const struct window *w, uint64_t done)
{
    const uint64_t under_way = w->end > done ? w->end - done : 0; /* some may be from before the window */

    return under_way < w->enqueued ? w->enqueued - (uint32_t)under_way : 0;
}

#endif
