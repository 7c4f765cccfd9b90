/* Harmony's schedules by Harmony's rules: what its own simulator makes of packs and micro-batches, on our timeline, so
 * that the timeline can be held against published figures (docs/simulator.md has the rules and the comparison).
 *
 * A forward pack and a backward pack are a task each, for all micro-batches. In the pipeline form (PP) the tasks go round
 * the devices; in the data-parallel form (DP) every device has them all, for its part of the batch, and since all do the
 * same one is simulated. The last backward pack holds the loss and does its own forward. A device has six streams: in,
 * out, peer in, peer out, compute, cpu. Nothing is kept on a device from task to task, and nothing is carried over from
 * one iteration to the next.
 *
 * Pure: a table in, times out.
 */
#ifndef SCHEDULER_PREDICT_HARMONY_RULES_H
#define SCHEDULER_PREDICT_HARMONY_RULES_H

#include <stdint.h>

#include "base/err.h"
#include "scheduler/table.h"

enum rules_form { RULES_PP, RULES_DP, RULES_FORM_COUNT };
extern const char *const rules_form_names[RULES_FORM_COUNT + 1]; /* "pp", "dp"; NULL-terminated */

/* How devices share the host link and the host's own copies. */
enum rules_sharing {
    RULES_STATIC, /* as Harmony has it: each gets 1/n for good, n being the devices that have work */
    RULES_FAIR,   /* equally among what is under way */
    RULES_SHARING_COUNT
};

struct rules_packs {
    const uint32_t *ends; /* the last layer of each pack, ascending */
    uint32_t n;
};

struct rules_schedule {
    enum rules_form form;
    uint32_t devices, batch; /* batch: of all devices together */
    uint32_t micro_fwd, micro_bwd;
    struct rules_packs fwd, bwd; /* bwd: of all layers; fwd: of those before the last of them */
    uint64_t task_ns;            /* at the end of every task, on the compute stream: memory is freed */
};

/* Of one iteration. */
struct rules_result {
    uint64_t iteration_ns;
    double compute_share;                     /* of the devices' time: forward, again forward, backward */
    uint64_t in_bytes, out_bytes, peer_bytes; /* of all devices */
    uint32_t n_tasks, n_ops;                  /* as simulated */
};

/* -EINVAL with its place: "packs_fwd[3]", "micro_batch_bwd". */
int rules_check(const struct rules_schedule *s, const struct table *t, struct err *err);
/* Checks, then simulates. -EDEADLK when tasks wait for each other. */
int rules_simulate(const struct rules_schedule *s, const struct table *t, enum rules_sharing sharing,
                   struct rules_result *ret, struct err *err);

#endif
