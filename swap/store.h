/* The host store. It is one block of host memory that holds the home copy of every tensor, at the offsets
 * that the plan assigned. The memory is page-locked if the backend needs that. All memory is freed at once.
 *
 * Threads: loader, trainer and streams all use the pointers. The plan's waits and the rules on ring slots in
 * exec.h say who may touch which bytes when.
 */
#ifndef SWAP_STORE_H
#define SWAP_STORE_H

#include "base/err.h"
#include "scheduler/plan.h"

struct store;

/* Allocates plan->host_bytes bytes of zeroed memory. The store does not use the plan afterwards. If there is
 * too little memory, returns -ENOMEM and names the number of bytes in `err`. Returns -EINVAL if a tensor lies
 * outside of the memory. */
int store_create(struct devset *devices, const struct plan *plan, struct store **ret, struct err *err);
/* Frees the store. The devices must be drained. `s` may be NULL. */
void store_destroy(struct store *s);

/* Returns the host copy of a tensor, or NULL if the tensor has no host copy. For a ring tensor this is the
 * slot that training step `step` uses. All other tensors have the same address in every step. */
void *store_ptr(const struct store *s, tensor_id tensor, uint64_t step);

/* Returns the tensor of the given kind, layer and micro-batch, or PLAN_NONE if there is no such tensor. Pass
 * PLAN_NONE as layer or micro for kinds that have no layer or no micro-batch. */
tensor_id store_find(const struct store *s, enum tensor_kind kind, uint32_t layer, uint32_t micro);

#endif
