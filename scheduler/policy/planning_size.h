/* What planning takes, known before anything is built: the tasks of a step, and the memory for graphs, candidates, the plan
 * and its verification.
 *
 * The memory grows with the operands of the tasks, because each operand may become a move, a drop and a wait. It also grows
 * with the number of devices, because happens-before is kept as one vector clock per instruction. Devices that share state
 * exchange each layer with one another, which adds instructions that no task has. So
 *
 *     bytes = 4 MiB + (operands + 2 * layers * shares^2) * (1500 + 60 * devices)      shares = min(devices, replicas)
 *
 * and half of the second term for policy `resident`, which moves almost nothing.
 *
 * The numbers are measured, not derived: tests/unit/test_planning_size.c plans random jobs under every policy and checks that
 * the bytes counted are never more than the estimate and, for large jobs, at least a quarter of it. The estimate is what a
 * job is admitted by. What holds the planner to the limit is the scope that it runs in (base/bounded.h).
 *
 * Pure.
 */
#ifndef SCHEDULER_POLICY_PLANNING_SIZE_H
#define SCHEDULER_POLICY_PLANNING_SIZE_H

#include "base/err.h"
#include "scheduler/graph.h"
#include "scheduler/policy/policy.h"

/* Planning memory that is not counted in the host memory of a job. It is like the memory of the program itself. */
#define PLANNING_FREE_BYTES (64ull << 20)

struct planning_size {
    uint32_t n_layers, n_micro, n_replicas;
    uint64_t tasks, operands; /* of a training step; at most */
};

/* The size of the graph that graph_build would make of this config; fails as graph_build would. */
int planning_measure(const struct graph_config *config, struct planning_size *ret, struct err *err);

/* An upper bound, in bytes, on the memory that planning takes for a graph of this size and its evaluation graph. */
uint64_t planning_bytes(const struct planning_size *s, enum policy_id policy, uint32_t n_devices);

/* Of these bytes, an upper bound of what a job keeps while it trains: the graphs, the plan and the bound instructions. 0
 * where all of planning is not counted. */
uint64_t planning_kept_bytes(uint64_t planning_bytes);

#endif
