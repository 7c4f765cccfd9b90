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
    /* The operands of a task are on its device, complete, and of the right version. */
    INVARIANT_RESIDENT = 1,
    /* Copies that are alive at the same time do not overlap in address. */
    INVARIANT_OVERLAP = 2,
    INVARIANT_LEASE = 3, /* copies are aligned and inside the lease */
    /* Conflicting accesses to the same bytes are ordered by happens-before. */
    INVARIANT_ORDERED = 4,
    /* The newest value of W or K is never lost. */
    INVARIANT_DIRTY = 5,
    /* Every task runs exactly once per step, and sums are added in order. */
    INVARIANT_TASKS = 6,
    /* After a cycle, the devices have the same copies as before it. */
    INVARIANT_BOUNDARY = 7,
    INVARIANT_DEADLOCK = 8, /* waits of distance 0 point backwards */
    /* Entry creates the boundary copies. Flush and exit bring every update to the host. */
    INVARIANT_HOME = 9,
    /* Ids, sizes and operands agree with the graph. Host bytes are within the lease. */
    INVARIANT_AGREES = 10,
};

/* A violation of one invariant, with its place in the plan and a description. */
struct violation {
    int invariant; /* 1..10 */
    enum program_kind program;
    uint32_t instr; /* index in the program, or PLAN_NONE */
    /* A sentence that names the instruction, the tensor and the addresses. */
    char text[320];
};

/* All violations of one plan. The caller provides the array `violations` with space for `max` elements.
 * plan_verify sets the other fields. */
struct verify_report {
    struct violation *violations; /* in the order found */
    uint32_t n, max;              /* elements used, and size of the array */
    uint32_t total;               /* violations found, including those beyond max */
    uint32_t by_number[11];       /* number of violations, indexed by invariant */
};

/* Returns 0 if the plan satisfies all invariants. Otherwise returns -EBADMSG and describes the first
 * violation in `err`. `eval` may be NULL if the eval program is empty. `report` may be NULL. */
int plan_verify(const struct plan *p, const struct graph *train, const struct graph *eval,
                const struct machine *m, struct verify_report *report, struct err *err);

#endif
