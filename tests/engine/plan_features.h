/* Finds out which features a plan uses, such as shares or several replicas on one device, from its
 * instructions alone. Tests count these features to prove that their random plans covered all of them. Main
 * thread only. */
#ifndef TESTS_ENGINE_PLAN_FEATURES_H
#define TESTS_ENGINE_PLAN_FEATURES_H

#include "scheduler/plan.h"

/* X(name, devices that it takes, in words) */
#define FEATURES(X)                                                                                          \
    X(REPLICAS_TOGETHER, 1, "replicas of one device, added up there")                                        \
    X(FEWER_DEVICES, 2, "replicas, and a device without work")                                               \
    X(SHARES, 2, "gradients added up in shares, by several devices")                                         \
    X(SHARED_FETCH, 2, "each device fetches a share of W and sends it to others")                            \
    X(ALONE, 2, "shares, but each device fetches all of W")                                                  \
    X(PAGED_REPLICAS, 2, "demand paging on devices that all fetch the same W")                               \
    X(EMPTY_SHARE, 2, "a layer that is too small for a share for every device")                              \
    X(SHARED_UPDATE, 2, "updates on devices, in shares")                                                     \
    X(K_PARTS, 2, "the same, with several parts of K")                                                       \
    X(PINNED_SHARE, 2, "shares of W that stay, and are copied from within the device")                       \
    X(CLIPPED_SHARES, 2, "norms on the host, updates in shares on devices")                                  \
    X(HYBRID, 4, "replicas of pipelines: shares, and a micro-batch goes through several devices")            \
    X(KEPT, 1, "S on the host in place of recomputation")                                                    \
    X(KEPT_SHARES, 2, "the same, data parallel")                                                             \
    X(GROUPS, 1, "groups of micro-batches go through packs one after another")                               \
    X(DEVICE_DECISION, 1, "a decision on a device")                                                          \
    X(UNFINISHED_SUMS, 1, "gradients that are spilled and fetched before they are complete")

enum feature {
#define X(id, devices, text) FEATURE_##id,
    FEATURES(X)
#undef X
        FEATURE_COUNT
};

uint32_t plan_features(const struct plan *p); /* bits: 1 << feature */

/* features_count adds a plan to the number of plans seen with each feature. features_rare returns whether one
 * of these features has hardly been seen yet. */
void features_count(uint32_t seen[FEATURE_COUNT], uint32_t features);
bool features_rare(const uint32_t seen[FEATURE_COUNT], uint32_t features);
/* Prints all counts. Fails (cmocka) if a feature that is possible with n_devices devices was never seen. */
void features_assert_all(const uint32_t seen[FEATURE_COUNT], uint32_t n_devices);

#endif
