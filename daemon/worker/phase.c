/* Implements phase.h: makes lists of phases, checks them, and answers questions about them.
 *
 * check_list has the rules that every method must follow. A violation is a mistake in the method and not of
 * the user, so the rules are assertions. The most important one: while a phase reads kept outputs, nobody
 * trains the layers that made them. A resumed run computes kept outputs again and must get the same bits.
 *
 * All calls come from one thread.
 */
#include "daemon/worker/phase.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

void phases_init(struct phase_list *list, const struct spec *s)
{
    *list = (struct phase_list){.all = s->model,
                                .n_model = s->model.n_layers,
                                .dtype = spec_dtype(s->precision),
                                .arena = arena_create()};
}

static bool is_loss(const struct layer *l)
{
    return layer_type(l)->is_loss;
}

/* Returns whether phase `p` changes the weights of layer `l`. */
static bool trains(const struct phase *p, const struct layer *l)
{
    return p->training && phase_find_layer(p, l->id) != PLAN_NONE && layer_type(l)->params(l, NULL) > 0;
}

/* Checks the inputs of a phase, unless they come from the data set. An earlier forward-only phase must
 * compute the inputs, and the inputs must fit the phase's first layer. The layers that compute the inputs
 * must not be trained until the phase has ended. */
static void check_inputs(const struct phase_list *list, const struct phase *p)
{
    if (p->inputs == PHASE_DATA)
        return;
    assert(p->inputs < p->number);
    const struct phase *from = &list->at[p->inputs];
    assert(!from->training);
    assert(shape_same_elements(&from->model.layers[from->model.n_layers - 1].out, &p->model.layers[0].in));
    for (uint32_t i = from->number + 1; i <= p->number; i++)
        for (uint32_t l = 0; l < from->model.n_layers; l++)
            assert(!trains(&list->at[i], &from->model.layers[l]));
}

/* Checks the decision groups of a phase. The state of all optimizers must have the same parts, because
 * checkpoints store the state of every layer in the same way. */
static void check_groups(const struct phase *p)
{
    assert(p->n_groups >= 1);
    for (uint32_t l = 0; l < p->model.n_layers; l++)
        assert(phase_group(p, l) < p->n_groups);
    for (uint32_t g = 1; g < p->n_groups; g++) {
        assert(p->optimizer[g].kind == p->optimizer[0].kind);
        assert((p->optimizer[g].momentum > 0) == (p->optimizer[0].momentum > 0));
    }
}

static void check_list(const struct phase_list *list)
{
    assert(list->n > 0 && list->at[list->n - 1].training);
    for (uint32_t i = 0; i < list->n; i++) {
        const struct phase *p = &list->at[i];
        assert(p->model.n_layers > 0 && p->batch > 0);
        assert(is_loss(&p->model.layers[p->model.n_layers - 1]) == p->training);
        assert((p->steps > 0) == p->training);
        assert(p->cycle_steps >= 1);
        assert(p->sizes_as <= i && list->at[p->sizes_as].batch == p->batch);
        assert(p->eval == PHASE_EVAL_NONE || p->training);
        check_groups(p);
        check_inputs(list, p);
    }
}

int phases_make(const struct spec *s, struct phase_list *ret, struct err *err)
{
    phases_init(ret, s);
    int r = methods[s->method].make_phases(s, ret, err);
    for (uint32_t i = 0; r == 0 && i < ret->n; i++)
        if (!ret->at[i].training)
            ret->at[i].cycle_steps = 1;
    if (r == 0)
        check_list(ret);
    return r;
}

void phase_drop_graphs(struct phase *p)
{
    graph_destroy(p->graph);
    graph_destroy(p->eval_graph);
    p->graph = p->eval_graph = NULL;
}

void phases_finish(struct phase_list *list)
{
    for (uint32_t i = 0; i < list->n; i++) {
        struct phase *p = &list->at[i];
        plan_destroy(p->plan);
        phase_drop_graphs(p);
        plan_destroy(p->single.plan);
        graph_destroy(p->single.graph);
        graph_destroy(p->single.eval_graph);
    }
    arena_destroy(list->arena);
    *list = (struct phase_list){0};
}

/* Makes space for one more layer in the list of all layers. The arena keeps the old arrays, so the size of
 * the array doubles each time. The memory of all arrays then stays proportional to the number of layers. */
static void reserve_layer(struct phase_list *list)
{
    uint32_t n = list->all.n_layers;
    if (n < list->room)
        return;
    list->room = 2 * n;
    struct layer *all = arena_alloc_array(list->arena, list->room, sizeof *all);
    memcpy(all, list->all.layers, n * sizeof *all);
    list->all.layers = all;
}

int phases_add_layer(struct phase_list *list, const struct layer *layer, const char *name,
                     const struct layer **ret, struct err *err)
{
    uint32_t id = list->all.n_layers;
    assert(layer->n_inner == 0); /* the keys of inner layers depend on the id */
    if (id > LAYER_MAX_ID)
        return err_set_at(err, -EINVAL, "method",
                          "the model and the layers that the method adds are more than %u layers together; "
                          "use fewer parts",
                          LAYER_MAX_ID + 1);
    reserve_layer(list);
    struct layer *added = &list->all.layers[id];
    *added = *layer;
    layer_set_types(added, list->dtype);
    added->id = added->key = id;
    added->name = name;
    list->all.n_layers++;
    *ret = added;
    return 0;
}

struct phase *phase_add(struct phase_list *list, const struct spec *s, const char *name)
{
    struct phase *all = arena_alloc_array(list->arena, list->n + 1, sizeof *all), *p = &all[list->n];
    if (list->n > 0)
        memcpy(all, list->at, list->n * sizeof *all);
    *p = (struct phase){
        .number = list->n,
        .name = name,
        .model = s->model,
        .training = true,
        .batch = s->train.global_batch,
        .asked = {s->train.micro_batch, s->train.replicas},
        .sizes_as = list->n,
        .steps = s->resolved.total_steps,
        .cycle_steps = s->memory.cycle_steps,
        .skip_nonfinite = s->train.skip_nonfinite,
        .eval = PHASE_EVAL_MODEL,
        .inputs = PHASE_DATA,
    };
    p->optimizer = arena_alloc_array(list->arena, 1, sizeof *p->optimizer);
    p->rate = arena_alloc_array(list->arena, 1, sizeof *p->rate);
    p->optimizer[0] = s->optimizer;
    p->rate[0] = s->rate;
    p->n_groups = 1;
    list->at = all;
    list->n++;
    return p;
}

void phase_set_labels(struct phase_list *list, struct phase *p, uint32_t n, double kappa, uint32_t classes)
{
    p->labels = arena_alloc_array(list->arena, n + 1, sizeof *p->labels);
    p->n_labels = n;
    for (uint32_t i = 0; i < n; i++)
        p->labels[i] = (struct labels){.kappa = kappa, .classes = classes, .part = i};
}

void phase_set_groups(struct phase_list *list, struct phase *p, uint32_t n)
{
    struct optimizer *optimizer = arena_alloc_array(list->arena, n, sizeof *optimizer);
    struct spec_rate *rate = arena_alloc_array(list->arena, n, sizeof *rate);
    for (uint32_t g = 0; g < n; g++) {
        optimizer[g] = p->optimizer[0];
        rate[g] = p->rate[0];
    }
    p->optimizer = optimizer;
    p->rate = rate;
    p->n_groups = n;
}

void phase_take_layers(struct phase_list *list, struct phase *p, uint32_t first, uint32_t end,
                       const struct layer *loss)
{
    uint32_t n = end - first;
    assert(first < end && end <= list->n_model);
    p->model.layers = arena_alloc_array(list->arena, n + 1, sizeof *p->model.layers);
    memcpy(p->model.layers, list->all.layers + first, n * sizeof *p->model.layers);
    for (uint32_t i = 0; i < n; i++) {
        struct layer *l = &p->model.layers[i];
        assert(!l->tied || (l->owner >= first && l->owner < end));
        /* `owner` is an index in the whole model. Turn it into an index in the phase's chain. */
        l->owner -= l->tied ? first : 0;
    }
    if (loss != NULL)
        p->model.layers[n++] = *loss;
    p->model.n_layers = n;
}

uint32_t phase_losses(const struct phase *p, uint32_t *ret)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < p->model.n_layers; l++) {
        if (!is_loss(&p->model.layers[l]))
            continue;
        if (ret != NULL)
            ret[n] = l;
        n++;
    }
    return n;
}

uint32_t phase_group(const struct phase *p, uint32_t layer)
{
    return p->links != NULL ? p->links[layer].group : 0;
}

/* Returns whether layer number `layer` of the phase is a twin. A twin has the same id as its original
 * layer. */
static bool is_twin(const struct phase *p, uint32_t layer)
{
    return p->links != NULL && p->links[layer].twin_of != PLAN_NONE;
}

uint32_t phase_find_layer(const struct phase *p, uint32_t id)
{
    uint32_t guess = id - p->model.layers[0].id; /* right unless layers are missing in between */
    if (guess < p->model.n_layers && p->model.layers[guess].id == id && !is_twin(p, guess))
        return guess;
    for (uint32_t i = 0; i < p->model.n_layers; i++)
        if (p->model.layers[i].id == id && !is_twin(p, i))
            return i;
    return PLAN_NONE;
}

uint64_t phase_everything_bytes(const struct phase *p)
{
    const struct graph *g = p->graph;
    uint64_t n = 0;
    for (uint32_t l = 0; g != NULL && l < g->n_layers; l++) {
        const struct graph_layer *gl = &g->layers[l];
        n += gl->size.w + (graph_trains(g, l) ? layer_dw_bytes(&gl->size) : 0) + gl->k_bytes;
        n += graph_micros(g, l) * (gl->size.x + gl->size.s + gl->size.room);
    }
    return n;
}

uint64_t phase_host_bytes(const struct phase *p)
{
    const struct plan *single = p->single.plan;
    return single != NULL && single->host_bytes > p->plan->host_bytes ? single->host_bytes
                                                                      : p->plan->host_bytes;
}

uint32_t phases_largest(const struct phase_list *list)
{
    uint32_t largest = 0;
    for (uint32_t i = 1; i < list->n; i++)
        if (phase_everything_bytes(&list->at[i]) > phase_everything_bytes(&list->at[largest]))
            largest = i;
    return largest;
}

uint64_t phases_steps_before(const struct phase_list *list, uint32_t phase)
{
    uint64_t steps = 0;
    for (uint32_t i = 0; i < phase; i++)
        steps += list->at[i].steps;
    return steps;
}

uint32_t phases_last_reader(const struct phase_list *list, uint32_t phase)
{
    uint32_t last = phase;
    for (uint32_t i = phase + 1; i < list->n; i++)
        if (list->at[i].inputs == phase)
            last = i;
    return last;
}

bool phases_keep_val(const struct phase_list *list, uint32_t phase)
{
    for (uint32_t i = phase + 1; i < list->n; i++)
        if (list->at[i].inputs == phase &&
            (list->at[i].training ? list->at[i].eval != PHASE_EVAL_NONE : phases_keep_val(list, i)))
            return true;
    return false;
}
