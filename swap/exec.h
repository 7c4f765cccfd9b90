/* The executor: interprets a verified plan. It enqueues the plan's instructions on the streams of a devset
 * and takes no decision itself: addresses, moves and waits all come from the plan.
 *
 * Order of calls, all from one thread:
 *     exec_create
 *     exec_run(ENTRY)
 *     exec_cycle ... exec_wait ...       any number of times; consecutive runs overlap
 *     exec_run(FLUSH)                    before a checkpoint: brings W and K on the host up to date
 *     exec_run(EXIT), exec_run(EVAL)*, exec_run(ENTRY)     evaluation
 *     exec_run(EXIT)
 *     exec_destroy
 * To measure times, call exec_trace before the runs and exec_traced after them.
 *
 * exec_run drains all streams before and after the program. exec_cycle only enqueues. A call out of this
 * order returns -EPROTO.
 *
 * Ring slots: the host copies of inputs, targets and results have PLAN_RING slots, which the steps use in
 * rotation. The loader may fill the slot of step s (X of layer 0, TARGET) once exec_wait(s - PLAN_RING) has
 * returned, and must have filled it before exec_cycle(s). The trainer may read RESULT and DECISION of step s
 * between exec_wait(s) and exec_cycle(s + PLAN_RING). To keep this safe, exec_cycle first waits, for each
 * step s of its run, until the run of step s - PLAN_RING is complete.
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
    const struct optimizer *optimizer;
    struct devset *devices;
    struct store *store;
};

/* Creates an executor for a plan. Returns -EINVAL if the plan was made for another model or optimizer.
 * Returns the device's error if it cannot create an event. */
int exec_create(const struct exec_config *config, struct exec **ret, struct err *err);
/* Waits until all streams are empty and frees the executor. `e` may be NULL. */
void exec_destroy(struct exec *e);

/* Runs one program other than the cycle, and waits until the program is complete. Only eval needs `args`,
 * with `training` = 0 and `valid_rows` set. The executor copies `args`. */
int exec_run(struct exec *e, enum program_kind program, const struct step_args *args);

/* Enqueues one run of the cycle. `args` has one entry for each training step of the run, and the executor
 * copies it. The first step must be the one after the last step of the previous run. */
int exec_cycle(struct exec *e, const struct step_args *args);

/* Waits until training step `step` is complete. Returns at once if an entry program ran after that step,
 * because entry waits for all earlier steps. */
int exec_wait(struct exec *e, uint64_t step);

/* Measures the next `runs` runs of the cycle. The first of them is the first run that begins at step
 * `first_step` or later. For every instruction, `spans` gets the time when all its waits were done and the
 * time when it ended. `spans` is filled run by run. It must have space for `runs` times the number of
 * instructions of the cycle.
 *
 * Other programs may run in between, but they are not measured. Runs outside of this window enqueue no extra
 * commands. `spans` belongs to the executor until all runs are complete, or until exec_destroy. Returns
 * -EBUSY while an earlier window is incomplete. */
int exec_trace(struct exec *e, uint64_t first_step, uint32_t runs, struct plan_span *spans);

/* Returns how many of the measured runs are complete. The caller may read their spans. The number grows only
 * in calls of exec_wait, exec_cycle and exec_run. */
uint32_t exec_traced(const struct exec *e);

#endif
