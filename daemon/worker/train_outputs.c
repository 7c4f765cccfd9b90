/* Runs a forward-only phase: computes the outputs of the phase's last layer for all training samples, and
 * keeps them for a later phase (kept.h). If a later phase evaluates, the outputs for the validation samples
 * are kept as well.
 *
 * The loop is that of training without its breaks: a run of the cycle is one forward pass over a batch, and
 * its result is the output of the last layer. It writes no checkpoint, because it changes no state.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "daemon/worker/train_private.h"

/* Samples whose outputs are being computed. */
struct pass {
    struct train_source from;
    uint64_t samples;
    struct kept *kept;
    /* The value of t->step and t->known at the start of this pass. Both count the batches of all passes of
     * the phase. */
    uint64_t first;
};

static uint32_t valid_rows(const struct trainer *t, const struct pass *pass, uint64_t batch_number)
{
    uint32_t batch = t->phase->batch;
    uint64_t left = pass->samples - (batch_number - pass->first) * batch;
    return left < batch ? (uint32_t)left : batch;
}

/* Enqueues the next batch, in the order of the data set. */
static int enqueue_batch(struct trainer *t, const struct pass *pass, struct err *err)
{
    uint32_t valid = valid_rows(t, pass, t->step);
    uint64_t targets;
    for (uint32_t i = 0; i < valid; i++)
        t->indices[i] = (t->step - pass->first) * t->phase->batch + i;
    int r = train_fill(t, &pass->from, valid, train_place_of(t, t->step, 0), &targets, err);
    if (r < 0)
        return r;
    struct step_args args = {.step = t->step, .valid_rows = valid, .grad_scale = 1.0f};
    return train_enqueue_cycle(t, &args, err);
}

/* Waits for the oldest batch whose outputs were not read yet, and keeps its outputs. */
static int read_batch(struct trainer *t, const struct pass *pass, struct err *err)
{
    uint32_t rows = t->plan->rows, valid = valid_rows(t, pass, t->known), last = t->plan->n_layers - 1;
    uint64_t first = (t->known - pass->first) * t->phase->batch;
    int r = train_wait(t, t->known, err);
    for (uint32_t j = 0; r == 0 && j < t->plan->n_micro && j * rows < valid; j++) {
        const void *y = store_ptr(t->store, store_find(t->store, TENSOR_Y, last, j, 0), t->known);
        uint32_t left = valid - j * rows;
        kept_put(pass->kept, first + (uint64_t)j * rows, left < rows ? left : rows, y);
    }
    if (r < 0)
        return r;
    t->known++;
    if (pass->from.data == t->job->train)
        train_tell(t, &(struct train_progress){.event = PROGRESS_OUTPUTS,
                                               .step = t->before,
                                               .samples = first + valid,
                                               .total_samples = pass->samples});
    return 0;
}

/* Returns the suffix of files whose elements have this type. */
static const char *file_suffix(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? "bf16" : dtype == DTYPE_F16 ? "f16" : "f32";
}

/* Runs the samples of one split of the data through the phase's layers and keeps the outputs in *ret. If a
 * stop is requested, the outputs are incomplete and are not kept. */
static int keep_split(struct trainer *t, enum data_split split, struct kept **ret, struct err *err)
{
    const struct phase *p = t->phase;
    struct layer_sizes size;
    const struct layer *last = &p->model.layers[p->model.n_layers - 1];
    struct pass pass = {.from = train_source_of(t, split), .first = t->step};
    pass.samples = pass.from.data->n_samples;
    uint64_t end = t->step + (pass.samples + p->batch - 1) / p->batch;
    layer_type(last)->sizes(last, 1, &size);
    char name[64];
    struct kept_place place = {.out = t->out, .in_memory = job_outputs_in_memory(t->job)};
    if (p->keep_as != NULL) {
        snprintf(name, sizeof name, "%s-%s.%s", p->keep_as, split == DATA_TRAIN ? "train" : "val",
                 file_suffix(size.y_dtype));
        place.name = name;
    }
    int r = kept_create(&place, pass.samples, size.y, &pass.kept, err);
    if (r < 0)
        return r;
    while (r == 0 && t->step < end && !train_stop_requested()) {
        r = enqueue_batch(t, &pass, err);
        if (r == 0 && t->step - t->known >= PLAN_RING)
            r = read_batch(t, &pass, err);
    }
    while (r == 0 && t->known < t->step)
        r = read_batch(t, &pass, err);
    if (r < 0 || t->step < end) {
        t->report->stopped = r == 0;
        kept_destroy(pass.kept);
        return r;
    }
    r = kept_seal(pass.kept, err);
    if (r < 0)
        kept_destroy(pass.kept);
    else
        *ret = pass.kept;
    return r;
}

int train_check_disk(const struct trainer *t, struct err *err)
{
    uint64_t need = job_most_outputs_bytes(t->job);
    struct statvfs disk;
    if (need == 0 || job_outputs_in_memory(t->job))
        return 0;
    if (fstatvfs(t->out->fd, &disk) < 0)
        return fs_fail(err, -errno, NULL, t->out->name, "find out how much space is free for");
    uint64_t has = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (has >= need)
        return 0;
    return err_set_at(err, -ENOSPC, t->out->name,
                      "the outputs that the partitions keep take up to %" PRIu64
                      " bytes, but the disk has only %" PRIu64
                      " bytes free; free some space, choose another output, or raise resources.host_memory",
                      need, has);
}

int train_keep_outputs(struct trainer *t, struct err *err)
{
    struct train_outputs *outputs = &t->outputs[t->phase->number];
    int r = keep_split(t, DATA_TRAIN, &outputs->train, err);
    if (r == 0 && !t->report->stopped && t->job->val != NULL &&
        phases_keep_val(&t->job->phases, t->phase->number))
        r = keep_split(t, DATA_VAL, &outputs->val, err);
    t->step = t->known = 0; /* batches are no training steps */
    return r;
}
