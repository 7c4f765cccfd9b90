/* The parts of a policy: its candidates, its search, and the table of all policies.
 *
 * search.c walks over the policies and gives each a struct trial. The policy proposes candidates to the
 * trial, and makes the task order of each. Everything after the order is the work of scheduler/build/.
 */
#ifndef SCHEDULER_POLICY_CANDIDATE_H
#define SCHEDULER_POLICY_CANDIDATE_H

#include "scheduler/build/build.h"
#include "scheduler/policy/score.h"

/* A candidate is one choice of all parameters of a policy: how the chain is cut into packs, how the packs
 * are dealt out to devices, how the batch is divided, and what stays in memory. The search of a policy
 * fills it in and hands it to trial.run. That function turns it into an order (policy.order), builds the
 * plan, simulates it, and remembers the plan if it fits and is the best so far. A candidate lives as long
 * as the search tries it; `starts` and knobs.pinned are arrays of the search.
 *
 * Every policy reads `knobs`. Only `blocks` reads `update_on_device`. Only `auto` and the Harmony policies
 * read the other fields. A candidate of `auto` has either Harmony's packs (packs_bwd > 0; the fields from
 * `packs` to `unit` are then unused) or its own.
 *
 * Example: a chain of 10 layers on 2 devices, with packs = 4, starts = {0, 2, 4, 6, 8}, fused = 8, waves =
 * 1, teams = 1. Pack k runs on device k mod 2. All micro-batches pass forward through layers 0..1 on
 * device 0, through 2..3 on device 1, and so on. Layers 8..9 are the fused segment, on device 0: each
 * micro-batch passes forward and at once backward through them. Then the packs run backward: 6..7 on
 * device 1, 4..5 on device 0, and so on. Before the backward pass of a pack, its inside is computed again
 * from its stored input, unless `save` says that this micro-batch saved S. With waves = 2, the first half
 * of the micro-batches goes through all of this before the second half starts. With `overlap` as well, the
 * second half passes forward while the first half passes backward: 0..1 of the second half with 6..7 of
 * the first. With teams = 2, each device runs all layers for its half of the batch, and the two devices
 * share the state of every layer. */
struct candidate {
    /* Number of packs in the forward pass, and in the backward pass. Both numbers are 0 if the candidate does
     * not use Harmony's packs. */
    uint32_t packs_fwd, packs_bwd;
    uint32_t packs; /* number of packs before the fused segment */
    /* Pack k has the layers from starts[k] to starts[k + 1] - 1. If `starts` is NULL, pack k has only layer
     * k. */
    const uint32_t *starts;
    uint32_t fused; /* first layer of the fused segment */
    /* Where backward packs run. If true, they continue in turn over the devices after the forward packs. If
     * false, each pack runs backward on the device that ran it forward. */
    bool onward;
    /* Number of waves into which the batch is divided. A wave finishes its forward and backward passes before
     * the next wave starts. */
    uint32_t waves;
    /* Number of teams. A team is a group of devices that trains its own part of the batch, which is data
     * parallelism. If the number is 0 or 1, all devices form one pipeline. */
    uint32_t teams;
    /* Whether each team has only one device. All other devices of the machine are then idle. */
    bool single;
    /* Number of rows in the largest micro-batch. Each wave starts at a multiple of this number of rows, so
     * that no micro-batch is split between waves. */
    uint32_t unit;
    /* Whether a device takes the micro-batches in descending order in every second forward pass. The last
     * micro-batch of one pass is then the first of the next pass, so its values may still be on the
     * device. */
    bool snake;
    /* How many micro-batches save the values that the backward pass needs (S) in their forward pass. All
     * others compute S again later. */
    struct save_rate save;
    /* Whether waves overlap: the forward passes of a wave alternate with the backward passes of the wave
     * before. The first wave, whose forward passes run alone, then saves no S. Needs at least two waves. */
    bool overlap;
    /* Whether `save` also holds for the last packs before the fused segment. If false, these packs save
     * nothing for the backward pass, and compute S again. */
    bool save_last_packs;
    /* Where weights are updated. The same as in the request, if the request says it. */
    bool update_on_device;
    struct knobs knobs;
};

/* The interface through which the search of a policy tries candidates. plan_make makes it for the policy.
 * Tests replace `run` to see every candidate. The fields from `need` to `moves_data_only` describe the last
 * candidate that was tried. */
struct trial {
    /* Builds and simulates a candidate. Returns 1 if the candidate fits the devices, even if the host memory
     * is too small. Returns 0 if it does not fit, or a negative errno. */
    int (*run)(struct trial *t, const struct candidate *c);
    const struct profile *profile;
    struct plan_need need;
    /* Whether the candidate gave a plan. If so, `score` is the score of this plan. */
    bool made;
    struct score score;
    bool moves_data_only; /* the plan moves neither state nor stash */
    /* Whether the candidate gave no plan because a device computes for at least request.to_beat_ns. `score`
     * then has this time. */
    bool too_slow;
    /* Whether the search of the policy should end: further candidates cannot be better, or the search has
     * built enough. From then on, `run` builds nothing and returns 0. */
    bool over;
    /* Whether `over` was set because too much was built. */
    bool cut_short;
    /* Estimated work of building all candidates so far, which is the sum of their plan_need.work. */
    uint64_t work;
};

/* A policy proposes candidates for a graph and a machine, and makes the task order of each candidate. Each
 * row of policies.def names one object of this type. */
struct policy {
    const char *name;
    enum update_place default_update; /* the meaning of UPDATE_AUTO under this policy */
    /* Tries every promising candidate. Returns 0, or the error that t->run returned. */
    int (*search)(const struct plan_request *r, struct trial *t);
    /* Sets *ret to the candidate of this policy that needs the least device memory. */
    void (*leanest)(const struct plan_request *r, struct candidate *ret);
    /* Further lean candidates, numbered from 0: each needs more device memory and less host memory than the
     * one before. Sets *ret to candidate `i`, whose arrays are allocated from `a`, or returns false if there
     * is none. NULL if the policy has no such candidates.
     *
     * What the lean candidates need must not depend on the memory of the machine (lean.h). */
    bool (*lean)(const struct plan_request *r, uint32_t i, struct arena *a, struct candidate *ret);
    /* Makes the task order of candidate `c`. If the job leaves open where weights are updated, r->update must
     * be the policy's default_update. The caller frees the order with order_finish. */
    void (*order)(const struct plan_request *r, const struct profile *prof, const struct candidate *c,
                  struct order *ret);
};

#define POLICY(id, name) extern const struct policy policy_##id;
#include "scheduler/policies.def"
#undef POLICY
const struct policy *policy_of(enum policy_id id);

/* Divides the model into Harmony's packs. Searches for the smallest number of packs with which the plan fits
 * the devices. Tries only candidates whose knobs.retain is `retain`. Returns 0, or the error that t->run
 * returned. */
int harmony_search(const struct plan_request *r, struct trial *t, bool retain);
/* Adds Harmony's passes for rows [from, to) of the batch. The packs run in turn on `n` devices, starting with
 * device number `device`. */
void harmony_passes(struct passes *p, const struct candidate *c, uint32_t from, uint32_t to, uint32_t device,
                    uint32_t n);

struct outline;
/* Builds the plan that outline `o` describes. The micro-batch sizes of r->train must be the same as those of
 * the outline. Returns the same values as plan_build. */
int plan_outline(const struct plan_request *r, const struct outline *o, const struct profile *prof,
                 struct plan **ret, struct plan_need *ret_need, struct err *err);

#endif
