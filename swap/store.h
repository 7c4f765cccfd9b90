/* The host store: one pool of host memory (pinned where the backend needs it) that holds the home copy of
 * every tensor, at the offsets that the plan assigned. It decides nothing and frees nothing piecemeal.
 *
 * Threads: the pointers are shared by loader, trainer and streams; who may touch which bytes when follows
 * from the plan's waits and from exec.h's contract on ring slots.
 */
#ifndef SWAP_STORE_H
#define SWAP_STORE_H

#include "base/err.h"
#include "scheduler/plan.h"

struct store;

/* plan->host_bytes of memory, zeroed. -ENOMEM with the number of bytes when it cannot be had. */
int store_create(struct devset *devices, const struct plan *plan, struct store **ret, struct err *err);
void store_destroy(struct store *s); /* takes NULL; devices must be drained */

/* The host copy of a tensor as step `step` uses it (matters for ring tensors only). NULL without one. */
void *store_ptr(const struct store *s, tensor_id tensor, uint64_t step);

/* The tensor of that kind, layer and micro-batch (PLAN_NONE where it does not apply), or PLAN_NONE. */
tensor_id store_find(const struct store *s, enum tensor_kind kind, uint32_t layer, uint32_t micro);

#endif
