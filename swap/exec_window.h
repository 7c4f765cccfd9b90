/* The window of cycle runs that exec_trace measures, and its progress. This header is private to the
 * executor.
 *
 * The runs of a window follow each other. An entry between two of them resets the run numbers, but it also
 * drains all streams. So the runs that are still incomplete are always the last ones of the window, and they
 * are all numbered from the same entry. Used from one thread, as exec.h says.
 */
#ifndef SWAP_EXEC_WINDOW_H
#define SWAP_EXEC_WINDOW_H

#include <stddef.h>

#include "scheduler/plan.h"

/* The window: consecutive runs of the cycle that are measured. All fields are zero until the first call of
 * exec_trace. */
struct window {
    struct plan_span *spans; /* the caller's array */
    uint64_t first_step;     /* the window opens at this step */
    uint32_t runs;           /* number of runs to measure */
    uint32_t enqueued;       /* number of measured runs enqueued so far */
    /* The number of the last measured run, plus 1. Runs are counted from the last entry program. */
    uint64_t end;
};

/* Returns where to store the start and end times of the instructions of the run that starts with `step`. NULL
 * if the run is not measured. */
static inline struct plan_span *window_spans(const struct window *w, uint64_t step, uint32_t n_instrs)
{
    if (w->enqueued == w->runs || (w->enqueued == 0 && step < w->first_step))
        return NULL;
    return w->spans + (size_t)w->enqueued * n_instrs;
}

/* Records that run number `run` has been enqueued as the next measured run. */
static inline void window_advance(struct window *w, uint64_t run)
{
    w->enqueued++;
    w->end = run + 1;
}

/* Returns how many of the measured runs are complete. `done` is the number of complete runs since the last
 * entry program. */
static inline uint32_t window_complete(const struct window *w, uint64_t done)
{
    const uint64_t under_way = w->end > done ? w->end - done : 0; /* may include runs before the window */

    return under_way < w->enqueued ? w->enqueued - (uint32_t)under_way : 0;
}

#endif
