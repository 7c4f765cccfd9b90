/* The method `sil`: trains a model in partitions, with synthetic intermediate labels (Karadag and Topaloglu,
 * 2024). docs/methods.md says when to use it.
 *
 * Each partition but the last is trained on its own, with the mean squared error against one random vector
 * for each class. The vectors are the buffers of a loss that is added to the model, so a checkpoint has
 * them. Then the outputs of the partition are computed once for all samples and kept, and the next
 * partition is trained on these outputs. The last partition is trained on the true labels. For three
 * partitions:
 *
 *     phase 0   trains partition 1 on the samples, with label vectors
 *     phase 1   keeps the outputs of partition 1
 *     phase 2   trains partition 2 on the kept outputs, with label vectors
 *     phase 3   keeps the outputs of partition 2, computed from those of partition 1
 *     phase 4   trains partition 3 on the kept outputs, with the loss of the model
 *     phase 5   trains the whole model (only with recovery_epochs)
 *
 * In phase 4, the validation outputs of partition 2 are kept too. The evaluations of partition 3 on them are
 * evaluations of the whole model.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/arena.h"
#include "daemon/worker/methods.h"

/* Formats a name with `part` and `parts`. The returned text lives as long as `list`. */
static const char *make_name(struct phase_list *list, const char *format, uint32_t part, uint32_t parts)
{
    char text[64];
    snprintf(text, sizeof text, format, part, parts);
    return arena_strdup(list->arena, text);
}

/* Gives a training phase the length, the batch, the optimizer and the learning rate of a part. */
static int take_part(struct phase *p, const struct spec *s, const struct spec_part *part, const char *path,
                     struct err *err)
{
    p->batch = part->global_batch;
    p->asked = (struct spec_sizes){part->micro_batch, part->replicas};
    p->optimizer[0] = part->optimizer;
    p->rate[0] = part->rate;
    return spec_count_steps(part->epochs, part->steps, part->global_batch, s->resolved.train_samples, path,
                            &p->steps, err);
}

/* Adds the loss of partition `part`. It compares the outputs of `end`, the partition's last layer, with label
 * vectors. */
static int add_label_loss(struct phase_list *list, const struct spec *s, uint32_t part,
                          const struct layer *end, const struct layer **ret, struct err *err)
{
    const struct layer loss = {
        .type = &layer_label_vectors,
        .in = end->out,
        .label_vectors = {.classes = s->classes, .scale = (float)s->sil.kappa},
    };
    return phases_add_layer(list, &loss, make_name(list, "labels.%" PRIu32, part, 0), ret, err);
}

/* Adds the phase that trains partition `part`, which has the layers `first` to `end` - 1. */
static int add_training(struct phase_list *list, const struct spec *s, uint32_t part, uint32_t first,
                        uint32_t end, struct err *err)
{
    const struct spec_sil *sil = &s->sil;
    const struct layer *loss = NULL;
    bool last = part + 1 == sil->partitions;
    char path[64];
    int r = last ? 0 : add_label_loss(list, s, part, &s->model.layers[end - 1], &loss, err);
    if (r < 0)
        return r;
    uint32_t inputs = list->n > 0 ? list->n - 1 : PHASE_DATA;
    struct phase *p =
        phase_add(list, s, make_name(list, "partition %" PRIu32 " of %" PRIu32, part + 1, sil->partitions));
    p->inputs = inputs;
    phase_take_layers(list, p, first, end, loss);
    if (!last) {
        p->eval = PHASE_EVAL_LABELS;
        p->labels = (struct labels){.kappa = sil->kappa, .classes = s->classes};
    }
    snprintf(path, sizeof path, "method.each[%" PRIu32 "]", part);
    return take_part(p, s, &sil->each[part], path, err);
}

/* Adds a forward-only phase that keeps the outputs of partition `part`, which the phase before has trained.
 * Both phases have the same micro-batch size, so that the layers compute the same bits as in training. */
static void add_outputs(struct phase_list *list, const struct spec *s, uint32_t part, uint32_t first,
                        uint32_t end)
{
    uint32_t trained = list->n - 1;
    struct phase *p = phase_add(list, s, make_name(list, "outputs of partition %" PRIu32, part + 1, 0));
    const struct phase *before = &list->at[trained];
    phase_take_layers(list, p, first, end, NULL);
    p->training = false;
    p->eval = PHASE_EVAL_NONE;
    p->steps = 0;
    p->batch = before->batch;
    p->asked = before->asked;
    p->sizes_as = trained;
    p->inputs = before->inputs;
    if (s->sil.keep_outputs)
        p->keep_as = make_name(list, "outputs-%" PRIu32, part + 1, 0);
}

int method_sil(const struct spec *s, struct phase_list *ret, struct err *err)
{
    const struct spec_sil *sil = &s->sil;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < sil->partitions; i++) {
        bool last = i + 1 == sil->partitions;
        uint32_t first = sil->cuts[i], end = last ? s->model.n_layers : sil->cuts[i + 1];
        r = add_training(ret, s, i, first, end, err);
        if (r == 0 && !last)
            add_outputs(ret, s, i, first, end);
    }
    if (r < 0 || sil->recovery_epochs == 0)
        return r;
    struct phase *p = phase_add(ret, s, "recovery");
    return take_part(p, s, &sil->recovery, "method.recovery_epochs", err);
}
