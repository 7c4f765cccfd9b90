/* The parts that a run through a plan and the reference have in common: data, step arguments, and the hash of
 * the compared results. Nothing else is shared, so that a mistake cannot hide in both. Everything is a
 * function of the case. Pure. */
#ifndef TESTS_ENGINE_PROBLEM_H
#define TESTS_ENGINE_PROBLEM_H

#include "tests/engine/engine.h"

#define EVAL_STEP 1000 /* the number of the evaluation's data */

/* Input and target of one micro-batch, for the loss layer `loss`. */
void problem_fill(const struct engine_case *c, uint64_t step, uint32_t loss, uint32_t micro, void *x,
                  void *target);

/* Sets the initial weights of a layer. `master` is the first part of its optimizer state, if that part is the
 * master weights and the layer has an optimizer state, and NULL otherwise. */
void problem_init(const struct engine_case *c, uint32_t layer, void *w, float *master);
/* Sets the loss scale of a decision group's state, if losses are scaled. */
void problem_init_group(const struct engine_case *c, uint32_t group, struct group_state *state);

/* The arguments of a training step for one decision group: the groups have different learning rates. */
struct step_args problem_args(const struct engine_case *c, uint64_t step, uint32_t group);
/* Of the evaluation batch: the last rows are padding. */
struct step_args problem_eval_args(const struct engine_case *c);

#define HASH_START UINT64_C(0xcbf29ce484222325)
uint64_t problem_hash(uint64_t h, const void *p, uint64_t bytes);

#endif
