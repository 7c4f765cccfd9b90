/* Cuts a model into the partitions of the method `sil` or the blocks of the method `local`, and checks that
 * the method can train the model.
 *
 * A model is cut between units. A unit is a run of layers that belong together: a layer with weights, such
 * as a dense layer or a transformer block, with the embedding or the norm before it and the layers without
 * weights after it. The end of the model, which turns the outputs of the last unit into the loss, belongs
 * to the last unit: the classifier of a multilayer perceptron, or the last norm and the projection of a
 * transformer.
 *
 * If the job gives a number of parts, the parts get about equal numbers of arithmetic operations, counted by
 * the formulas of the layers. So the cut depends on the model alone. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/arena.h"
#include "daemon/spec/spec_private.h"

/* The units of a model. A unit is a group of consecutive layers between which the model is never cut. Unit i
 * has the layers first[i] to first[i + 1] - 1. */
struct unit_cut {
    uint32_t n;
    uint32_t *first; /* [n + 1] */
    double *flops;   /* [n] */
};

static bool has_weights(const struct layer *l)
{
    return layer_type(l)->params(l, NULL) > 0;
}

/* Returns whether a layer is an embedding, a layer of positions or a norm. Such a layer is in the same unit
 * as the layer after it. */
static bool is_prelude(const struct layer *l)
{
    return l->type == &layer_embedding || l->type == &layer_positions || l->type == &layer_norm;
}

static double flops_of(const struct layer *l)
{
    struct layer_cost cost;

    layer_type(l)->cost(l, 1, &cost);
    return (double)cost.fwd_flops + (double)cost.bwd_flops;
}

/* Returns the index of the first layer of the model's end: the classifier, or the last norm and the
 * projection of a transformer. These layers belong to the last unit. */
static uint32_t find_end(const struct model *m)
{
    uint32_t end = m->n_layers - 1;

    if (!has_weights(&m->layers[end]))
        while (end > 0 && !has_weights(&m->layers[end]))
            end--;
    while (end > 0 && is_prelude(&m->layers[end - 1]) && m->layers[end - 1].type == &layer_norm)
        end--;
    return end;
}

static struct unit_cut find_units(const struct spec *s)
{
    const struct model *m = &s->model;
    uint32_t end = find_end(m);
    struct unit_cut u = {.first = arena_alloc_array(s->arena, m->n_layers + 1, sizeof *u.first),
                         .flops = arena_alloc_array(s->arena, m->n_layers, sizeof *u.flops)};
    bool has_main = false;

    u.first[0] = 0;
    u.flops[0] = 0;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct layer *l = &m->layers[i];
        if (i < end && has_main && has_weights(l)) {
            u.first[++u.n] = i;
            u.flops[u.n] = 0;
            has_main = false;
        }
        has_main |= has_weights(l) && !is_prelude(l);
        u.flops[u.n] += flops_of(l);
    }
    u.first[++u.n] = m->n_layers;
    return u;
}

/* Divides the first `n_units` units into `n` parts of about equal work. ret[i] receives the first unit of
 * part i. Each part has at least one unit. */
static void divide(const struct unit_cut *u, uint32_t n_units, uint32_t n, uint32_t *ret)
{
    double total = 0, before = 0;
    uint32_t at = 0;

    for (uint32_t i = 0; i < n_units; i++)
        total += u->flops[i];
    ret[0] = 0;
    for (uint32_t p = 1; p < n; p++) {
        double want = total * p / n;
        uint32_t most = n_units - (n - p); /* leave a unit for every later part */
        before += u->flops[at++];
        while (at < most && before + u->flops[at] - want <= want - before)
            before += u->flops[at++];
        ret[p] = at;
    }
}

static int fail_few_units(const char *path, const struct unit_cut *u, uint32_t most, struct err *err)
{
    return err_set_at(err, -EINVAL, path,
                      "the model has %" PRIu32 " layers that can begin a part, so write at most %" PRIu32,
                      u->n, most);
}

/* Sets the error for a part of the model that has no weights of its own. */
static int fail_no_weights(const char *path, uint32_t first, uint32_t end, struct err *err)
{
    return err_set_at(err, -EINVAL, path,
                      "layers %" PRIu32 " to %" PRIu32 " have no weights to train; choose other parts", first,
                      end - 1);
}

/* Returns whether one of the layers `first` to `end` - 1 has weights of its own. */
static bool any_weights(const struct spec *s, uint32_t first, uint32_t end)
{
    for (uint32_t l = first; l < end; l++)
        if (has_weights(&s->model.layers[l]) && !s->model.layers[l].tied)
            return true;
    return false;
}

/* Sets the error for a layer that uses the weights of a layer in another part of the model. */
static int fail_tied(const char *path, uint32_t layer, uint32_t owner, struct err *err)
{
    return err_set_at(
        err, -EINVAL, path,
        "layer %" PRIu32 " uses the weights of layer %" PRIu32
        ", which is in another part, so a gradient would cross the cut; write \"tied\": false in "
        "the model, or \"tie_word_embeddings\": false in its config.json, or choose other parts",
        layer, owner);
}

/* ------------------------------------------------------------------------------------------ sil */

static int check_sil_model(const struct spec *s, struct err *err)
{
    if (s->tokens)
        return err_set_at(
            err, -EINVAL, "method.type",
            "\"sil\" needs one class per sample: a model of tokens would need a label vector for "
            "every token of the vocabulary and every position; use \"local\" or \"backprop\"");
    if (s->mse)
        return err_set_at(
            err, -EINVAL, "method.type",
            "\"sil\" is for the loss softmax_xent, and the model has the loss mse; write \"loss\": "
            "\"softmax_xent\"");
    return 0;
}

/* Checks that partition `i` has weights, that its last output is a vector, and that no layer uses the weights
 * of an earlier partition. */
static int check_partition(const struct spec *s, uint32_t i, struct err *err)
{
    const struct spec_sil *sil = &s->sil;
    uint32_t first = sil->cuts[i], end = i + 1 < sil->partitions ? sil->cuts[i + 1] : s->model.n_layers;
    char path[64];

    json_path_index(path, sizeof path, "method.partitions", i > 0 ? i - 1 : 0);
    for (uint32_t l = first; l < end; l++) {
        const struct layer *layer = &s->model.layers[l];
        if (layer->tied && layer->owner < first)
            return fail_tied(path, l, layer->owner, err);
    }
    if (!any_weights(s, first, end))
        return fail_no_weights(path, first, end, err);
    if (i + 1 < sil->partitions && s->model.layers[end - 1].out.rank != 1)
        return err_set_at(err, -EINVAL, path,
                          "layer %" PRIu32
                          " has no units that a label vector could be compared with; move the cut",
                          end - 1);
    return 0;
}

static int settle_sil(struct spec *s, struct err *err)
{
    struct spec_sil *sil = &s->sil;
    int r = check_sil_model(s, err);

    if (r < 0)
        return r;
    if (sil->cuts == NULL) {
        struct unit_cut u = find_units(s);
        uint32_t *cuts = arena_alloc_array(s->arena, sil->partitions, sizeof *cuts);
        if (sil->partitions > u.n)
            return fail_few_units("method.partitions", &u, u.n, err);
        divide(&u, u.n, sil->partitions, cuts);
        for (uint32_t i = 0; i < sil->partitions; i++)
            cuts[i] = u.first[cuts[i]];
        sil->cuts = cuts;
    }
    if (sil->cuts[sil->partitions - 1] >= s->model.n_layers)
        return err_set_at(err, -EINVAL, "method.partitions",
                          "layer %" PRIu32 " does not exist: the model has the layers 0 to %" PRIu32,
                          sil->cuts[sil->partitions - 1], s->model.n_layers - 1);
    for (uint32_t i = 0; r == 0 && i < sil->partitions; i++)
        r = check_partition(s, i, err);
    return r;
}

/* ------------------------------------------------------------------------------------------ local */

/* Cuts the model into s->local.n_blocks blocks. With the scheme `greedy`, each unit becomes one block
 * instead. */
static int cut_blocks(struct spec *s, struct err *err)
{
    struct spec_local *local = &s->local;
    bool overlap = local->scheme == LOCAL_OVERLAPPING;
    struct unit_cut u = find_units(s);
    uint32_t n = local->scheme == LOCAL_GREEDY ? u.n : local->n_blocks;
    /* Overlapping blocks: the first unit of a block is also the last unit of the block before. Therefore no
     * block begins at the last unit. */
    uint32_t n_units = overlap && n > 1 ? u.n - 1 : u.n;
    struct spec_block *blocks;
    uint32_t *first;

    if (n > n_units)
        return fail_few_units("method.blocks", &u, n_units, err);
    first = arena_alloc_array(s->arena, n + 1, sizeof *first);
    blocks = arena_alloc_array(s->arena, n, sizeof *blocks);
    divide(&u, n_units, n, first);
    first[n] = u.n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t end = first[i + 1] + (overlap && i + 1 < n);
        blocks[i] = (struct spec_block){u.first[first[i]], u.first[end] - 1};
    }
    local->n_blocks = n;
    local->blocks = blocks;
    if (local->scheme != LOCAL_GREEDY)
        return 0;
    local->rates = arena_alloc_array(s->arena, n, sizeof *local->rates);
    for (uint32_t i = 0; i < n; i++)
        local->rates[i] = s->rate;
    return 0;
}

/* Checks that the blocks in the job file cover the model. Each layer must be in one block, or in at most two
 * if blocks overlap. The last block may omit the loss. */
static int check_cover(struct spec *s, struct err *err)
{
    const struct spec_local *local = &s->local;
    uint32_t last_layer = s->model.n_layers - 1;
    char path[64];

    for (uint32_t i = 0; i < local->n_blocks; i++) {
        const struct spec_block *b = &local->blocks[i], *before = i > 0 ? b - 1 : NULL;
        uint32_t want = before ? before->last + 1 : 0;
        bool shares = local->scheme == LOCAL_OVERLAPPING && before;
        json_path_index(path, sizeof path, "method.blocks", i);
        if (!shares && b->first != want)
            return err_set_at(err, -EINVAL, path,
                              "begins at layer %" PRIu32 ", but must begin at layer %" PRIu32
                              ", so that every layer is in one block",
                              b->first, want);
        if (shares && (b->first > before->last || b->first <= before->first ||
                       (i > 1 && b->first <= before[-1].last) || b->last <= before->last))
            return err_set_at(err, -EINVAL, path,
                              "begins at layer %" PRIu32 ", but must begin with the last layers of the block "
                              "before it, such as layer %" PRIu32 ", and reach beyond that block",
                              b->first, before->last);
        if (b->last > last_layer)
            return err_set_at(err, -EINVAL, path,
                              "layer %" PRIu32 " does not exist: the model has the layers 0 to %" PRIu32,
                              b->last, last_layer);
    }
    const struct spec_block *end = &local->blocks[local->n_blocks - 1];
    bool loss_alone = !has_weights(&s->model.layers[last_layer]);
    if (end->last == last_layer || (loss_alone && end->last + 1 == last_layer))
        return 0;
    json_path_index(path, sizeof path, "method.blocks", local->n_blocks - 1);
    return err_set_at(err, -EINVAL, path, "ends at layer %" PRIu32 ", but the model ends at layer %" PRIu32,
                      end->last, loss_alone ? last_layer - 1 : last_layer);
}

/* Returns the block that trains the weights of a layer: the first block that contains the layer. */
static uint32_t block_of(const struct spec_local *local, uint32_t layer)
{
    for (uint32_t i = 0; i < local->n_blocks; i++)
        if (layer <= local->blocks[i].last)
            return i;
    return local->n_blocks - 1; /* the loss */
}

static int check_block_layers(const struct spec *s, struct err *err)
{
    const struct spec_local *local = &s->local;
    char path[64];

    for (uint32_t l = 0; l < s->model.n_layers; l++) {
        const struct layer *layer = &s->model.layers[l];
        uint32_t b = block_of(local, l);
        bool shared = b + 1 < local->n_blocks && local->blocks[b + 1].first <= l;
        if (layer->tied && (shared || block_of(local, layer->owner) != b))
            return fail_tied("method.blocks", l, layer->owner, err);
    }
    for (uint32_t i = 0; i < local->n_blocks; i++) {
        bool last = i + 1 == local->n_blocks;
        uint32_t first =
            i > 0 ? local->blocks[i - 1].last + 1 : 0; /* the layers before belong to that block */
        const struct layer *end = &s->model.layers[local->blocks[i].last];
        json_path_index(path, sizeof path, "method.blocks", i);
        if (!any_weights(s, first, last ? s->model.n_layers : local->blocks[i].last + 1))
            return fail_no_weights(path, first, local->blocks[i].last + 1, err);
        if (!last && end->out.rank != (s->tokens ? 2 : 1))
            return err_set_at(err, -EINVAL, path, "layer %" PRIu32 " has no outputs that a head could take",
                              local->blocks[i].last);
    }
    return 0;
}

static int settle_local(struct spec *s, struct err *err)
{
    struct spec_local *local = &s->local;
    int r = local->blocks ? check_cover(s, err) : cut_blocks(s, err);

    if (r == 0)
        r = check_block_layers(s, err);
    if (r == 0 && local->head_hidden > 0 && local->n_blocks == 1)
        r = err_set_at(err, -EINVAL, "method.head",
                       "there is one block, whose head is the end of the model itself; remove \"head\"");
    if (r == 0 && s->memory.cycle_steps > 1)
        r = err_set_at(err, -EINVAL, "memory.cycle_steps",
                       "the method \"local\" has method.resident_steps instead; use that");
    return r;
}

/* ------------------------------------------------------------------------------------------ method */

int spec_settle_method(struct spec *s, struct err *err)
{
    if (s->model.n_layers == 0)
        return 0;
    switch (s->method) {
    case METHOD_local:
        return settle_local(s, err);
    case METHOD_sil:
        return settle_sil(s, err);
    default:
        return 0;
    }
}
