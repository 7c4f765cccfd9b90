/* The plan interpreter: enqueues instructions of a verified plan on the streams of a devset, and nothing
 * more. It takes no decision: addresses, moves and waits are the plan's.
 *
 * Order of calls, all from one thread:
 *     exec_create
 *     exec_run(ENTRY)
 *     exec_cycle ... exec_wait ...       any number, runs overlap
 *     exec_run(FLUSH)                    checkpoint: host copies of W and K are the newest afterwards
 *     exec_run(EXIT), exec_run(EVAL)*, exec_run(ENTRY)     evaluation
 *     exec_run(EXIT)
 *     exec_destroy
 * and, where times are wanted, exec_trace before the runs and exec_traced after them.
 *
 * exec_run drains all streams before and after; exec_cycle only enqueues. Calls out of this order fail with
 * -EPROTO.
 *
 * Ring slots: exec_cycle first waits, for each step s of its run, until the run of step s - PLAN_RING is
 * complete. So the loader may fill the slot of step s (X of layer 0, TARGET) only after exec_wait(s -
 * PLAN_RING) returned, and must have filled it before exec_cycle(s) is called; the trainer reads RESULT and
 * DECISION of step s between exec_wait(s) and exec_cycle(s + PLAN_RING).
 *
 * No heap allocation after exec_create.
 */
#ifndef SWAP_EXEC_H
#define SWAP_EXEC_H

#include "base/err.h"
#include "kernels/layer.h"
#include "scheduler/plan.h"
#include "swap/store.h"

struct exec;

struct exec_config {
    const struct plan *plan; /* verified; must outlive the executor, as all of these */
    const struct model *model;
    const struct optimizer *optimizer;
    struct devset *devices;
    struct store *store;
};

int exec_create(const struct exec_config *config, struct exec **ret, struct err *err);
void exec_destroy(struct exec *e); /* drains; takes NULL */

/* Entry, flush, exit or eval. `args` may be NULL except for eval (training = 0, valid_rows set); it is
 * copied. */
int exec_run(struct exec *e, enum program_kind program, const struct step_args *args);

/* Enqueues one run of the cycle. plan->steps entries of args (copied); args[0].step is the first step of the
 * run and must follow the last run's. */
int exec_cycle(struct exec *e, const struct step_args *args);

/* Blocks until the run that contains training step `step` is complete. Steps before the last entry return at
 * once. */
int exec_wait(struct exec *e, uint64_t step);

/* Opens a window on the clock: of the next `runs` runs of the cycle, from the one that begins at step
 * `first_step` or later, the beginning (its waits are done) and the end of every instruction are written to
 * `spans`, which has room for runs * n_instrs of the cycle, run after run. Other programs may run in between
 * and are not measured; a run outside of the window has not one command more. spans belongs to the executor
 * until all runs are complete, or else until exec_destroy. -EBUSY while there is such a window. */
int exec_trace(struct exec *e, uint64_t first_step, uint32_t runs, struct plan_span *spans);

/* How many runs of the window are known to be complete, by exec_wait, exec_cycle or exec_run: the spans of
 * these may be read. */
uint32_t exec_traced(const struct exec *e);

#endif
