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
 *
 * With `concurrent`, which is not part of the paper, one phase trains all partitions at once. Each partition
 * after the first has the label vectors of the partition before as its inputs, not the outputs:
 *
 *     data    -> partition 1 -> labels 1
 *     labels 1 -> partition 2 -> labels 2
 *     labels 2 -> partition 3 -> loss of the model
 *
 * So nothing goes from one partition to another, and each partition is a decision group. In evaluations the
 * partitions are joined.
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
        phase_set_labels(list, p, 1, sil->kappa, s->classes);
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

/* ---- all partitions at once ---- */

/* The layers of the phase that trains all partitions, while the phase is being made. */
struct joint {
    struct layer *layers;
    struct graph_link *links, *eval_links;
    struct phase_source *sources;
    uint32_t n;
};

/* Adds a layer of partition `part`. `input` is the layer that it reads in evaluations. `source` is not 0 if
 * the layer begins a partition: in training it reads label vectors. */
static void add_joint_layer(struct joint *c, const struct layer *l, uint32_t part, uint32_t input,
                            uint32_t source, uint32_t owner)
{
    const struct graph_link link = {
        .input = input, .source = source, .twin_of = PLAN_NONE, .owner = owner, .group = part};
    c->layers[c->n] = *l;
    c->layers[c->n].owner = owner != PLAN_NONE ? owner : 0;
    c->links[c->n] = c->eval_links[c->n] = link;
    if (source > 0) {
        c->links[c->n].input = PLAN_NONE;
        c->eval_links[c->n].stop = true;
    }
    c->n++;
}

/* Adds partition `part`, which has the layers `first` to `end` - 1 of the model, and its loss. */
static int add_joint_part(struct joint *c, struct phase_list *list, const struct spec *s, uint32_t part,
                          uint32_t first, uint32_t end, struct err *err)
{
    uint32_t input = part > 0 ? c->n - 2 : PLAN_NONE; /* the layer before the loss of the partition before */
    const struct layer *loss;
    if (part > 0)
        c->sources[part - 1] = (struct phase_source){.reader = c->n, .loss = c->n - 1};
    for (uint32_t l = first; l < end; l++) {
        const struct layer *layer = &s->model.layers[l];
        /* Each earlier partition has added a loss, so layer l has the index l + part in the phase. */
        add_joint_layer(c, layer, part, l == first ? input : c->n - 1, l == first ? part : 0,
                        layer->tied ? layer->owner + part : PLAN_NONE);
    }
    if (part + 1 == s->sil.partitions)
        return 0;
    int r = add_label_loss(list, s, part, &s->model.layers[end - 1], &loss, err);
    if (r == 0)
        add_joint_layer(c, loss, part, c->n - 1, 0, PLAN_NONE);
    return r;
}

/* Adds the phase that trains all partitions at once. */
static int add_concurrent(struct phase_list *list, const struct spec *s, struct err *err)
{
    const struct spec_sil *sil = &s->sil;
    uint32_t most = s->model.n_layers + sil->partitions;
    struct phase *p = phase_add(list, s, "all partitions at once");
    struct joint c = {.layers = arena_alloc_array(list->arena, most, sizeof *c.layers),
                      .links = arena_alloc_array(list->arena, most, sizeof *c.links),
                      .eval_links = arena_alloc_array(list->arena, most, sizeof *c.eval_links),
                      .sources = arena_alloc_array(list->arena, sil->partitions, sizeof *c.sources)};
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < sil->partitions; i++)
        r = add_joint_part(&c, list, s, i, sil->cuts[i],
                           i + 1 < sil->partitions ? sil->cuts[i + 1] : s->model.n_layers, err);
    if (r < 0)
        return r;
    p->model = (struct model){c.layers, c.n};
    p->links = c.links;
    p->eval_links = c.eval_links;
    p->sources = c.sources;
    p->n_sources = sil->partitions - 1;
    phase_set_labels(list, p, sil->partitions - 1, sil->kappa, s->classes);
    phase_set_groups(list, p, sil->partitions);
    for (uint32_t i = 0; i < sil->partitions; i++) {
        p->optimizer[i] = sil->each[i].optimizer;
        p->rate[i] = sil->each[i].rate;
    }
    return 0;
}

/* Adds the phases that train one partition after another. */
static int add_sequence(struct phase_list *list, const struct spec *s, struct err *err)
{
    const struct spec_sil *sil = &s->sil;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < sil->partitions; i++) {
        bool last = i + 1 == sil->partitions;
        uint32_t first = sil->cuts[i], end = last ? s->model.n_layers : sil->cuts[i + 1];
        r = add_training(list, s, i, first, end, err);
        if (r == 0 && !last)
            add_outputs(list, s, i, first, end);
    }
    return r;
}

int method_sil(const struct spec *s, struct phase_list *ret, struct err *err)
{
    const struct spec_sil *sil = &s->sil;
    int r = sil->concurrent ? add_concurrent(ret, s, err) : add_sequence(ret, s, err);
    if (r < 0 || sil->recovery_epochs == 0)
        return r;
    struct phase *p = phase_add(ret, s, "recovery");
    return take_part(p, s, &sil->recovery, "method.recovery_epochs", err);
}
