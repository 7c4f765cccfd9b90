/* plan_verify: the ten invariants, checked independently of whoever built the plan. No plan runs without it.
 *
 * It shares no code with the builder: from the plan, the graph and the leases alone it unrolls entry,
 * max(distance) + 2 cycles, flush, one more cycle and exit, and eval on its own, with one vector clock per
 * stream.
 */
#ifndef SCHEDULER_VERIFY_VERIFY_H
#define SCHEDULER_VERIFY_VERIFY_H

#include "base/err.h"
#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/plan.h"

enum invariant {
    INVARIANT_RESIDENT = 1, /* operands resident, complete, right version */
    INVARIANT_OVERLAP = 2,  /* live ranges do not overlap */
    INVARIANT_LEASE = 3,    /* inside the lease, aligned */
    INVARIANT_ORDERED = 4,  /* conflicting accesses ordered by happens-before */
    INVARIANT_DIRTY = 5,    /* dirty state is never lost */
    INVARIANT_TASKS = 6,    /* the method's tasks, each once, sums in order */
    INVARIANT_BOUNDARY = 7, /* boundary after a cycle = before */
    INVARIANT_DEADLOCK = 8, /* distance-0 waits point backwards */
    INVARIANT_HOME = 9,     /* entry establishes the boundary; flush and exit bring every update home */
    INVARIANT_AGREES = 10,  /* ids, sizes, operand lists agree with the graph; host bytes within the lease */
};

struct violation {
    int invariant; /* 1..10 */
    enum program_kind program;
    uint32_t instr; /* index in the program, or PLAN_NONE */
    char text[320]; /* with tensor, instruction and addresses */
};

struct verify_report {
    struct violation *violations; /* in the order found; at most `max` are kept */
    uint32_t n, max;
    uint32_t total;         /* found, kept or not */
    uint32_t by_number[11]; /* how many of each */
};

/* 0 when the plan holds; -EBADMSG with the first violation in err ("invariant 4: ...") otherwise. `eval` is
 * the forward-only graph of the same model; NULL when the plan has no eval program (then it must be empty).
 * `report` may be NULL; else the caller supplies violations and max. */
int plan_verify(const struct plan *p, const struct graph *train, const struct graph *eval,
                const struct machine *m, struct verify_report *report, struct err *err);

#endif
