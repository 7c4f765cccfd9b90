/* Simulates schedules of Harmony (VLDB '22) by the rules of Harmony's own simulator, on our timeline.
 * This makes it possible to check the timeline against published times. docs/simulator.md has the
 * rules and the comparison.
 *
 * Each forward pack and each backward pack is one task for all micro-batches. In the pipeline form (PP) the
 * tasks go round the devices. In the data-parallel form (DP) every device has all tasks, for its part of the
 * batch; all devices do the same, so only one is simulated. The last backward pack contains the loss and does
 * its own forward pass. A device has six streams: in, out, peer in, peer out, compute and cpu. No tensor
 * stays on a device from one task to the next, and nothing carries over from one iteration to the next.
 */
#ifndef SCHEDULER_PREDICT_HARMONY_RULES_H
#define SCHEDULER_PREDICT_HARMONY_RULES_H

#include <stdint.h>

#include "base/err.h"
#include "scheduler/table.h"

enum rules_form { RULES_PP, RULES_DP, RULES_FORM_COUNT };
extern const char *const rules_form_names[RULES_FORM_COUNT + 1]; /* "pp", "dp"; NULL-terminated */

/* How devices share the bandwidth of the host link, and the bandwidth of copies within host memory. */
enum rules_sharing {
    /* Static: each of n busy devices always gets 1/n of the bandwidth, even while the others move nothing.
     * Harmony's own simulator works this way. */
    RULES_STATIC,
    /* Fair: transfers that run at the same time share the bandwidth equally. A single transfer gets all of
     * it. */
    RULES_FAIR,
    RULES_SHARING_COUNT
};

/* A division of consecutive layers into packs. */
struct rules_packs {
    const uint32_t *ends; /* last layer of each pack, ascending */
    uint32_t n;
};

/* A schedule as Harmony describes it: the number of devices, the batch, the micro-batches and the packs. The
 * caller sets all fields. */
struct rules_schedule {
    enum rules_form form;
    uint32_t devices;
    uint32_t batch; /* samples of all devices together */
    /* Number of samples in a micro-batch of a forward task, and in a micro-batch of a backward task. */
    uint32_t micro_fwd, micro_bwd;
    /* The packs of the forward pass. They end where the last backward pack begins, because the last backward
     * pack runs its own forward pass. */
    struct rules_packs fwd;
    struct rules_packs bwd; /* backward packs: cover all layers */
    /* Extra time on the compute stream at the end of every task. It stands for the time that freeing memory
     * takes. */
    uint64_t task_ns;
};

/* The prediction for one iteration. */
struct rules_result {
    uint64_t iteration_ns;
    double compute_share;                     /* share of device time spent computing */
    uint64_t in_bytes, out_bytes, peer_bytes; /* bytes over links, of all devices */
    uint32_t n_tasks, n_ops;                  /* simulated tasks and operations */
};

/* Checks that a schedule is valid for the profile table. If not, returns -EINVAL, and `err` names the path of
 * the wrong value, such as "packs_fwd[3]". */
int rules_check(const struct rules_schedule *s, const struct table *t, struct err *err);

/* Checks a schedule and simulates it. Returns 0 or an error of rules_check. Returns -EDEADLK if some tasks
 * wait for each other forever. */
int rules_simulate(const struct rules_schedule *s, const struct table *t, enum rules_sharing sharing,
                   struct rules_result *ret, struct err *err);

#endif
