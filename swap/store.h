/* The host store. It is one block of host memory. It holds the tensors that have a home, at the offsets that
 * the plan's table of tensors gives, and for a while all others that the plan brings to the host, at the
 * addresses that operands give. The memory is page-locked if the backend needs that. All memory is freed at
 * once.
 *
 * Two plans of the same model can take turns on the same memory: each has a store of its own, with its own
 * offsets, and store_move carries the state of training from one to the other.
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
 * `plan`. */
int store_create(struct devset *devices, const struct plan *plan, struct store **ret, struct err *err);
/* Makes a store for another plan that uses the memory of `owner`, which must outlive the new store. Returns
 * -EINVAL if a tensor does not fit. */
int store_share(const struct store *owner, const struct plan *plan, struct store **ret, struct err *err);
/* Frees the store, and its memory if store_create made the store. No command on a device may still use the
 * memory. `s` may be NULL. */
void store_destroy(struct store *s);

/* Moves every tensor that keeps its value from step to step (W, K, B and GROUP) from its place in `from` to
 * its place in `to`. Both stores must have the same memory. Afterwards `from` has no valid values until
 * store_move moves them back. All commands on the devices must be done, and the host must have the newest
 * values. W, K and B have the same offsets in all plans of a model, so that only the small group state really
 * moves. */
void store_move(const struct store *from, const struct store *to);

/* Returns the address of a tensor's home in host memory, or NULL. Of several slots, `run` selects number run
 * % slots. exec_slot (exec.h) returns `run`. */
void *store_ptr(const struct store *s, tensor_id tensor, uint64_t run);

/* Returns the address of `bytes` bytes at the offset `offset` in the store's memory. Returns NULL if these
 * bytes are not all inside the memory. */
void *store_at(const struct store *s, uint64_t offset, uint64_t bytes);

/* Returns the tensor with this kind and these numbers, or PLAN_NONE if there is no such tensor. `of` is a
 * layer. For the kinds GROUP and DECISION, `of` is a decision group. `micro` is PLAN_NONE for a kind without
 * micro-batches. `step` is the training step within the cycle, or 0 for a tensor that keeps its value from
 * step to step. */
tensor_id store_find(const struct store *s, enum tensor_kind kind, uint32_t of, uint32_t micro,
                     uint32_t step);

#endif
