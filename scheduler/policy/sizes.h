/* The choice of sizes: how many rows a micro-batch has, and how many replicas there are.
 *
 * Both sizes change the bits of the result. They are chosen once per job, together with the plan, and then
 * frozen. So the choice must not depend on the moment: the caller describes the machine as it is, not what
 * happens to be free, and computes durations with formulas, not from measurements. For a model that is known
 * only by its profile table nothing is frozen, and the same search runs with the durations of the table.
 *
 *   1. List all pairs (rows, replicas) in which rows * replicas divides the batch. Replicas are useful up to
 *      the number of devices.
 *   2. Estimate the time of a step for every pair, from sums over layers (outline.h). This takes microseconds
 *      per pair.
 *   3. Plan the pairs with the best estimates, until no estimate is left that could win.
 *   4. Choose the fastest pair. Among pairs that are at most 2 percent slower, choose the one that moves the
 *      fewest bytes, and then the one with the larger micro-batches.
 *
 * Products with few rows are slow on every device, which the formulas do not know. So the time of a pair
 * counts as longer if its products have few rows: with 32 rows, nearly twice as long as with 512 or more.
 */
#ifndef SCHEDULER_POLICY_SIZES_H
#define SCHEDULER_POLICY_SIZES_H

#include "base/err.h"
#include "scheduler/policy/outline.h"
#include "scheduler/policy/policy.h"

struct plan_sizes {
    /* Micro-batch size and number of replicas. In struct sizes_request, 0 means that the search chooses. */
    uint32_t rows, replicas;
};

/* One pair of micro-batch size and number of replicas that the search considered. */
struct sizes_trial {
    struct plan_sizes sizes;
    /* Estimated time of a step, and a time that no plan can beat. Both are longer if matrix products have few
     * rows. The estimate is UINT64_MAX if nothing seems to fit. */
    uint64_t estimate_ns, floor_ns;
    bool planned;
    /* The fields from here on are valid only if `planned` is true. */
    bool fits;
    struct score score; /* with the adjusted time */
    /* If the pair does not fit: the bytes per device that would be enough, or UINT64_MAX if device memory
     * alone does not help. */
    uint64_t least_bytes;
};

/* The input of sizes_choose. Everything that the request points to belongs to the caller. */
struct sizes_request {
    uint32_t batch, n_layers;
    struct plan_sizes asked;
    /* Number of rows that a matrix product has for each row of a micro-batch: the length of a sequence, or 1.
     * 0 means that durations are measured, so that times need no adjustment. */
    uint32_t product_rows;
    /* The micro-batch sizes that may be chosen, in ascending order. NULL means every divisor of the batch. */
    const uint32_t *allowed;
    uint32_t n_allowed;
    const struct machine *machine;
    enum policy_id policy;
    enum update_place update;
    enum plan_objective objective;
    /* The score of a plan that the caller already has. Pairs that cannot beat it are not planned. May be
     * NULL. */
    const struct score *to_beat;
    void *ctx; /* passed to the functions below */
    /* Makes the model from which times are estimated. The search destroys it. A negative result other than
     * -ENOMEM and -ECANCELED means that the pair cannot be planned. */
    int (*model)(void *ctx, struct plan_sizes sizes, struct outline_model **ret);
    /* Makes a plan with these sizes. Returns -ENOSPC if no plan fits, and then sets *ret_least as plan_make
     * does. `most_work` is meant for plan_request.most_work. */
    int (*plan)(void *ctx, struct plan_sizes sizes, uint64_t most_work, struct plan_report *ret,
                uint64_t *ret_least, struct err *err);
    /* Called if the plan that `plan` made last is the best so far. The caller keeps that plan, and may
     * destroy the one that it kept before. */
    void (*keep)(void *ctx);
};

/* Maximum number of pairs in the result. */
#define SIZES_SHOWN 8

/* The result of sizes_choose. */
struct sizes_choice {
    /* The chosen sizes. If no pair of sizes fits, the pair that comes closest. */
    struct plan_sizes sizes;
    bool fits;
    /* The pairs of sizes with the best estimates. They explain the choice, and the chosen pair is among
     * them. */
    struct sizes_trial shown[SIZES_SHOWN];
    uint32_t n_shown, n_considered;
};

/* Chooses the sizes. Returns -ENOSPC if no pair of sizes fits or if all have too many tasks. Otherwise
 * returns 0 or an error of q->plan. */
int sizes_choose(const struct sizes_request *q, struct sizes_choice *ret, struct err *err);

/* No number below 2^32 has more divisors than this. */
#define SIZES_MAX_DIVISORS 1536
/* Stores the divisors of the number `of` in `ret`, in ascending order. Returns how many there are. */
uint32_t sizes_divisors(uint32_t of, uint32_t ret[SIZES_MAX_DIVISORS]);

#endif
