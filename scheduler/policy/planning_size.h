/* The cost of planning, computed before anything is built: the tasks of a step, and the memory that planning
 * needs for graphs, candidates, the plan and its verification. A job is admitted by this estimate.
 *
 * The memory grows with the operands of the tasks, because each operand may become a move, a drop and a wait.
 * It grows with the number of devices, because the verifier keeps one vector clock per instruction. Devices
 * that share state exchange every layer with one another, which adds instructions that no task has. So
 *
 *     shares = min(devices, replicas)
 *     bytes = 4 MiB + (operands + 2 * layers * shares^2) * (1500 + 60 * devices)
 *
 * with half of the second term for the policy `resident`, which moves almost nothing.
 *
 * The constants are measured, not derived: tests/unit/test_planning_size.c plans random jobs under every
 * policy. It checks that the bytes used never exceed the estimate and, for large jobs, are at least a quarter
 * of it. The estimate is not a guard: the scope in which the planner runs (base/bounded.h) enforces the
 * limit.
 *
 * All functions are pure.
 */
#ifndef SCHEDULER_POLICY_PLANNING_SIZE_H
#define SCHEDULER_POLICY_PLANNING_SIZE_H

#include "base/err.h"
#include "scheduler/graph.h"
#include "scheduler/policy/policy.h"

/* If planning needs at most this many bytes, they do not count as host memory of the job. */
#define PLANNING_FREE_BYTES (64ull << 20)

/* The size of a training graph, from which the cost of planning is estimated. planning_measure fills it
 * in. */
struct planning_size {
    uint32_t n_layers, n_micro, n_replicas;
    uint64_t tasks, operands; /* upper bounds for one training step */
};

/* Computes the size of the graph that graph_build would make, without making it. Returns the same errors as
 * graph_build. */
int planning_measure(const struct graph_config *config, struct planning_size *ret, struct err *err);

/* Returns an upper bound on the memory that planning needs, in bytes. `s` is the size of the training graph.
 * The result also covers the evaluation graph. */
uint64_t planning_bytes(const struct planning_size *s, enum policy_id policy, uint32_t n_devices);

/* Returns an upper bound on the bytes of planning memory that a job keeps while it trains. Returns 0 if
 * `planning_bytes` is at most PLANNING_FREE_BYTES. */
uint64_t planning_kept_bytes(uint64_t planning_bytes);

#endif
