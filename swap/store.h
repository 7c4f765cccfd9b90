/* The host store: one block of host memory that holds the home copy of every tensor, at the offsets that the
 * plan assigned. The memory is page-locked where the backend needs that. The store takes no decisions, and
 * frees everything at once.
 *
 * Threads: loader, trainer and streams all use the pointers. The plan's waits and the rules on ring slots in
 * exec.h say who may touch which bytes when.
 */
#ifndef SWAP_STORE_H
#define SWAP_STORE_H

#include "base/err.h"
#include "scheduler/plan.h"

struct store;

/* Allocates plan->host_bytes of zeroed memory. The store does not refer to the plan afterwards. Returns
 * -ENOMEM, with the number of bytes in `err`, if there is too little memory, and -EINVAL if a tensor lies
 * outside it. */
int store_create(struct devset *devices, const struct plan *plan, struct store **ret, struct err *err);
/* Frees the store. The devices must be drained. Takes NULL. */
void store_destroy(struct store *s);

/* Returns the host copy of a tensor, or NULL if the tensor has none. For ring tensors this is the slot that
 * training step `step` uses; all other tensors have one address for every step. */
void *store_ptr(const struct store *s, tensor_id tensor, uint64_t step);

/* Returns the tensor of the given kind, layer and micro-batch, or PLAN_NONE if there is none. Pass PLAN_NONE
 * as layer or micro for kinds that have no layer or no micro-batch. */
tensor_id store_find(const struct store *s, enum tensor_kind kind, uint32_t layer, uint32_t micro);

#endif
