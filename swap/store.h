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

/* Allocates host memory, filled with zeros, for all tensors of the plan. The store keeps no pointer to
 * `plan`. Returns -ENOMEM if there is too little memory, or -EINVAL if the plan has a wrong offset. */
int store_create(struct devset *devices, const struct plan *plan, struct store **ret, struct err *err);
/* Frees the store. All commands on the devices must be done, because they could still use the memory. `s` may
 * be NULL. */
void store_destroy(struct store *s);

/* Returns the address of a tensor's host copy, or NULL if the tensor has none. If the tensor has several
 * slots, `step` selects the slot. Otherwise `step` is ignored. */
void *store_ptr(const struct store *s, tensor_id tensor, uint64_t step);

/* Returns the tensor with this kind, layer and micro-batch, or PLAN_NONE if there is none. For a kind without
 * a layer or micro-batch, pass PLAN_NONE for it. */
tensor_id store_find(const struct store *s, enum tensor_kind kind, uint32_t layer, uint32_t micro);

#endif
