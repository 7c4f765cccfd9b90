/* The executor: interprets a verified plan. It enqueues the plan's instructions on the streams of a devset
 * and takes no decision itself: addresses, moves and waits all come from the plan.
 *
 * Order of calls, all from one thread:
 *     exec_create
 *     exec_run(ENTRY)
 *     exec_cycle ... exec_wait, exec_wait_next ...     any number of times; consecutive runs overlap
 *     exec_run(FLUSH)                    before a checkpoint: brings W and K on the host up to date
 *     exec_run(EXIT), exec_run(EVAL)*, exec_run(ENTRY)     evaluation
 *     exec_run(EXIT)
 *     exec_destroy
 * To measure times, call exec_trace before the runs and exec_traced after them.
 *
 * exec_run drains all streams before and after the program. exec_cycle only enqueues. A call out of this
 * order returns -EPROTO.
 *
 * Ring slots: the host copies of inputs, targets and results have PLAN_RING slots, which the runs of the
 * cycle use in rotation. exec_slot computes the number that selects the slot of a run. A run covers
 * plan->steps training steps, and each step has tensors of its own.
 *
 * The loader fills X and TARGET in the slot of run r. It may begin when exec_wait has returned for the last
 * step of run r - PLAN_RING, and it must be done before exec_cycle is called for run r. The trainer may read
 * RESULT, DECISION and the outputs of run r when exec_wait has returned for the last step of run r. It must
 * be done before exec_cycle is called for run r + PLAN_RING. exec_cycle itself waits until run r - PLAN_RING
 * is complete, because the two runs share a slot.
 *
 * The executor allocates no heap memory after exec_create.
 */
#ifndef SWAP_EXEC_H
#define SWAP_EXEC_H

#include "base/err.h"
#include "kernels/layer.h"
#include "scheduler/plan.h"
#include "swap/store.h"

struct exec;

/* The inputs of an executor. Everything that the config points to must live longer than the executor. */
struct exec_config {
    const struct plan *plan; /* verified */
    const struct model *model;
    /* An array with one optimizer for each decision group of the plan. */
    const struct optimizer *optimizer;
    struct devset *devices;
    struct store *store;
};

/* Creates an executor for a plan. Returns -EINVAL if the plan does not belong to this model and optimizer. */
int exec_create(const struct exec_config *config, struct exec **ret, struct err *err);
/* Returns the bytes of host memory that an executor of this plan takes, in addition to the plan->host_bytes
 * bytes of the tensors. */
uint64_t exec_bytes(const struct plan *p);
/* Waits until all streams are empty and frees the executor. `e` may be NULL. */
void exec_destroy(struct exec *e);

/* Runs one program other than the cycle, and waits for its end. Eval needs `args` with `training` = 0, and
 * uses the host slots of exec_slot(plan, args->step). */
int exec_run(struct exec *e, enum program_kind program, const struct step_args *args);

/* Returns the number that selects the host slots of a run of the cycle, for store_ptr. `first_step` is the
 * first training step of the run. */
static inline uint64_t exec_slot(const struct plan *p, uint64_t first_step)
{
    return first_step / p->steps;
}

/* Enqueues one run of the cycle, for the steps after the previous run. Copies `args`: args[step *
 * plan->n_groups + group] is for one step and decision group. */
int exec_cycle(struct exec *e, const struct step_args *args);

/* Waits until training step `step` is complete. Returns immediately if an entry program has run since that
 * step, because entry waits for all earlier steps. */
int exec_wait(struct exec *e, uint64_t step);

/* Waits until the next run of the cycle could begin to fetch: until the stream that makes the first fetch of
 * a run has ended its part of the newest run. A caller that enqueues the next run then keeps the streams
 * busy, and can decide late whether there will be a next run. Returns immediately if no run is in progress.
 * */
int exec_wait_next(struct exec *e);

/* Measures the next `runs` runs of the cycle. The first of them is the first run that begins at step
 * `first_step` or later. For every instruction, `spans` gets the time when all its waits were done and the
 * time when it ended. `spans` is filled run by run. It must have space for `runs` times the number of
 * instructions of the cycle.
 *
 * Other programs may run in between, but they are not measured. Runs outside of this window enqueue no extra
 * commands. `spans` belongs to the executor until all runs are complete, or until exec_destroy. Returns
 * -EBUSY while an earlier window is incomplete. */
int exec_trace(struct exec *e, uint64_t first_step, uint32_t runs, struct plan_span *spans);

/* Returns how many of the measured runs are complete. The caller may read the spans of these runs. The number
 * grows only during calls of exec_wait, exec_cycle and exec_run. */
uint32_t exec_traced(const struct exec *e);

#endif
