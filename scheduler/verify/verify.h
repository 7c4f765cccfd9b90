/* Checks a plan against ten invariants. No plan runs unless plan_verify accepts it.
 *
 * The verifier shares no code with the builder. It works from the plan, the graph and the leases alone.
 * First it checks numbers, operands, tasks and waits. Then it executes the programs abstractly: entry,
 * several runs of the cycle, flush, another cycle and exit, and separately eval. Meanwhile it tracks where
 * each version of each tensor is, and which instructions are ordered before others. docs/plan.md states the
 * invariants.
 */
#ifndef SCHEDULER_VERIFY_VERIFY_H
#define SCHEDULER_VERIFY_VERIFY_H

#include "base/err.h"
#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/plan.h"

enum invariant {
    /* When a task starts, all bytes of its operands are on the device of the task and have the right
     * version. */
    INVARIANT_RESIDENT = 1,
    /* Two copies that are on a device at the same time never share an address. */
    INVARIANT_OVERLAP = 2,
    INVARIANT_LEASE = 3, /* copies are aligned and inside the lease */
    /* If two instructions access the same bytes and one of them writes, waits and streams ensure that one is
     * done before the other starts. */
    INVARIANT_ORDERED = 4,
    /* No drop or move destroys the only copy of the newest value of W or K. */
    INVARIANT_DIRTY = 5,
    /* Every task runs exactly once per training step. The terms of a sum are always added in the same
     * order. */
    INVARIANT_TASKS = 6,
    /* When a run of the cycle ends, the devices have the same copies as when it started. */
    INVARIANT_BOUNDARY = 7,
    INVARIANT_DEADLOCK = 8, /* waits of distance 0 point backwards */
    /* Entry puts the boundary copies on the devices. Flush and exit bring all updated values to the host. */
    INVARIANT_HOME = 9,
    /* The tensors and operands of the plan are those of the graph. The plan uses no more host memory than the
     * lease allows. */
    INVARIANT_AGREES = 10,
};

/* One violation of an invariant: its place in the plan, and a description for people. */
struct violation {
    int invariant; /* 1..10 */
    enum program_kind program;
    uint32_t instr; /* index in the program, or PLAN_NONE */
    /* A sentence about what is wrong. It names the instruction, the tensor and the addresses. */
    char text[320];
};

/* All violations that were found in one plan. The caller provides the array `violations`, with space for
 * `max` elements. plan_verify sets all other fields. */
struct verify_report {
    struct violation *violations; /* in the order found */
    uint32_t n, max;              /* elements used, and size of the array */
    uint32_t total;               /* violations found, including those beyond max */
    uint32_t by_number[11];       /* number of violations, indexed by invariant */
};

/* Returns 0 if the plan satisfies all invariants, and otherwise -EBADMSG. `eval` may be NULL if the plan's
 * eval program is empty. `report` may be NULL. */
int plan_verify(const struct plan *p, const struct graph *train, const struct graph *eval,
                const struct machine *m, struct verify_report *report, struct err *err);

#endif
