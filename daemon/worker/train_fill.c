/* Fills the inputs and the targets of a batch, and adds up the results of its losses.
 *
 * The inputs of a phase come from the data set, or from the outputs that an earlier phase has kept. The
 * targets always come from the data set. A phase with several losses has one target tensor for each loss, and
 * all of them get the same targets.
 */
#include <errno.h>
#include <string.h>

#include "daemon/worker/train_private.h"
#include "kernels/half.h"

struct train_source train_source_of(const struct trainer *t, enum data_split split)
{
    const struct train_outputs *kept = t->phase->inputs == PHASE_DATA ? NULL : &t->outputs[t->phase->inputs];
    if (split == DATA_TRAIN)
        return (struct train_source){t->job->train, kept != NULL ? kept->train : NULL};
    return (struct train_source){t->job->val, kept != NULL ? kept->val : NULL};
}

struct train_place train_place_of(const struct trainer *t, uint64_t first, uint32_t i)
{
    return (struct train_place){exec_slot(t->plan, first), i};
}

/* Returns the memory of the targets of loss number `loss` for one micro-batch. */
static void *target_of(const struct trainer *t, uint32_t loss, uint32_t micro, struct train_place at)
{
    return store_ptr(t->store, store_find(t->store, TENSOR_TARGET, t->losses[loss], micro, at.step), at.slot);
}

/* Copies the targets of the first loss to all other losses. */
static void copy_targets(const struct trainer *t, uint32_t micro, struct train_place at)
{
    tensor_id id = store_find(t->store, TENSOR_TARGET, t->losses[0], micro, at.step);
    for (uint32_t i = 1; i < t->n_losses; i++)
        memcpy(target_of(t, i, micro, at), target_of(t, 0, micro, at), t->plan->tensors[id].bytes);
}

/* Fills the inputs of a micro-batch that are label vectors. The vectors are floats, which are rounded if
 * inputs have 16 bits. The targets of the micro-batch must be known. A row without a target gets zeros. */
static void fill_sources(const struct trainer *t, uint32_t micro, struct train_place at)
{
    const int32_t *target = t->phase->n_sources > 0 ? target_of(t, 0, micro, at) : NULL;
    for (uint32_t i = 0; i < t->phase->n_sources; i++) {
        const struct phase_source *s = &t->phase->sources[i];
        tensor_id id = store_find(t->store, TENSOR_X, s->reader, micro, at.step);
        enum dtype dtype = t->phase->graph->layers[s->reader].size.x_dtype;
        uint64_t row = t->plan->tensors[id].bytes / t->plan->rows, n = dtype_elements(dtype, row);
        char *x = store_ptr(t->store, id, at.slot);
        const float *vectors = store_ptr(t->store, store_find(t->store, TENSOR_B, s->loss, PLAN_NONE, 0), 0);
        for (uint32_t r = 0; r < t->plan->rows; r++)
            if (target[r] >= 0)
                half_round(dtype, vectors + (uint64_t)target[r] * n, x + r * row, n);
            else
                memset(x + r * row, 0, row);
    }
}

/* Fills the input and the targets of micro-batch `micro` with `n` samples, whose numbers are in `indices`. */
static int fill_micro(struct trainer *t, const struct train_source *from, const uint64_t *indices, uint32_t n,
                      uint32_t micro, struct train_place at, uint64_t *ret_targets, struct err *err)
{
    uint32_t rows = t->plan->rows;
    void *x = store_ptr(t->store, store_find(t->store, TENSOR_X, 0, micro, at.step), at.slot);
    void *target = t->n_losses > 0 ? target_of(t, 0, micro, at) : NULL;
    if (from->inputs != NULL) {
        kept_fill(from->inputs, indices, n, rows, x);
        x = NULL;
    }
    int r = dataset_fill(from->data, indices, n, rows, x, target, ret_targets, err);
    if (r < 0)
        return r;
    copy_targets(t, micro, at);
    fill_sources(t, micro, at);
    return 0;
}

int train_fill(struct trainer *t, const struct train_source *from, uint32_t valid, struct train_place at,
               uint64_t *ret_targets, struct err *err)
{
    uint32_t rows = t->plan->rows;
    uint64_t sum = 0;
    for (uint32_t j = 0; j < t->plan->n_micro; j++) {
        uint32_t first = j * rows, left = valid > first ? valid - first : 0;
        uint64_t counted = 0;
        int r = fill_micro(t, from, t->indices + first, left < rows ? left : rows, j, at, &counted, err);
        if (r < 0)
            return r;
        sum += counted;
    }
    *ret_targets = sum;
    return 0;
}

int train_fail_no_targets(const char *of, struct err *err)
{
    return err_set_at(err, -EINVAL, "data.ignore",
                      "no target of %s counts: all are the token that is ignored; remove data.ignore, give "
                      "other data, or set train.global_batch to more",
                      of);
}

struct step_result train_result(const struct trainer *t, uint32_t loss, struct train_place at)
{
    struct step_result sum = {0};
    for (uint32_t j = 0; j < t->plan->n_micro; j++) {
        tensor_id id = store_find(t->store, TENSOR_RESULT, t->losses[loss], j, at.step);
        const struct step_result *r = store_ptr(t->store, id, at.slot);
        sum.loss += r->loss;
        sum.correct += r->correct;
    }
    return sum;
}
