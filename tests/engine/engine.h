/* Runs a random chain on a machine through planner, verifier and executor, and collects the results that must
 * not depend on the machine: losses, evaluation, weights, optimizer state.
 *
 * engine_reference computes the same results without planner and executor, task by task in the method's
 * order. Every run must equal this reference bit for bit. Works with every backend. Main thread only.
 */
#ifndef TESTS_ENGINE_H
#define TESTS_ENGINE_H

#include "kernels/device.h"
#include "scheduler/graph.h"
#include "scheduler/machine.h"
#include "scheduler/policy/policy.h"
#include "tests/unit/random_chain.h"

#define ENGINE_CYCLES    5
#define ENGINE_MAX_STEPS (7 * ENGINE_CYCLES)

extern const char *engine_backend; /* of all machines and of the reference; "cpu" until main says otherwise */

struct engine_case {
    struct random_chain chain;
    uint64_t seed;      /* of data, weights, dropout */
    uint32_t nan_steps; /* a bit 1 << s for each step s that has an input which is not a number */
};

/* The number of training steps: ENGINE_CYCLES runs of the cycle. */
static inline uint64_t engine_steps(const struct engine_case *c)
{
    return ENGINE_CYCLES * (c->chain.steps > 0 ? c->chain.steps : 1);
}

struct engine_machine {
    uint32_t n_devices;
    uint64_t capacity_bytes;
    enum policy_id policy;
    enum update_place update;
    uint32_t threads;
    uint64_t delay_seed; /* cpu: of delays on every stream; under the simulator one part of the seed */
    enum plan_objective objective;
    bool scarce_host;  /* with little more host memory than the plan needs, so that tensors share addresses */
    bool slow_compute; /* so the planner thinks: then links have time for what would be computed again */
};

struct engine_result {
    /* Per training step: sums over all losses, and over all decision groups. */
    double loss[ENGINE_MAX_STEPS], sumsq[ENGINE_MAX_STEPS];
    double eval_loss, eval_correct;
    uint64_t state_hash; /* W, K and B of all layers, and the group states */
    uint64_t updates;    /* of the reference: t of the group state */
    bool finite;         /* all of W is */
    char policy[32];     /* of the plan */
    uint32_t features;   /* of the plan: plan_features.h */
};

/* Plans the case for machine m, trains and evaluates it, and stores the results in *ret. Every program of the
 * plan runs, in every allowed order.
 *
 * Asserts (cmocka) that the plan verifies, that the peak stays within the capacity, and that for every
 * program, device and direction the counted bytes equal the planned bytes. Under the CUDA simulator it also
 * asserts that no race and no other problem was reported.
 */
void engine_run(const struct engine_case *c, const struct engine_machine *m, struct engine_result *ret);

/* Does the same as engine_run with a plan that the caller supplies. The policy and the update place of `m`
 * are ignored; the other fields of `m` apply. */
void engine_run_plan(const struct engine_case *c, const struct engine_machine *m, const struct plan *plan,
                     struct engine_result *ret);

/* An engine_run in separate steps, for tests that change the plan: open, train any number of times from the
 * same initial weights, close. The caller checks what the simulator reports. */
struct engine {
    const struct engine_case *c;
    const struct engine_machine *machine;
    struct graph *graph, *eval;
    struct machine planned_for;
    struct plan_request request;
    const struct plan *plan;
    struct plan *made; /* the same, where it was planned here */
    struct devset *ds;
    struct store *store; /* while it trains */
    struct exec *exec;   /* while it trains */
};
void engine_open(struct engine *e, const struct engine_case *c, const struct engine_machine *m);
void engine_open_plan(struct engine *e, const struct engine_case *c, const struct engine_machine *m,
                      const struct plan *plan);
void engine_train(struct engine *e, struct engine_result *ret);
void engine_close(struct engine *e);

void engine_reference(const struct engine_case *c, struct engine_result *ret);

void engine_assert_equal(const struct engine_result *a, const struct engine_result *b, const char *what);

/* Least capacity that the planner accepts for this case. */
uint64_t engine_least_capacity(const struct engine_case *c, const struct engine_machine *m);

#endif
