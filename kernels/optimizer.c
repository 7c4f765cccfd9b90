/* Implements the optimizers: the sizes and parts of their state, and the launch of the op that updates
 * weights. The functions keep no state, so any thread may call them. */
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/checked.h"
#include "kernels/layer.h"

const char *const optimizer_names[OPTIMIZER_COUNT] = {
    [OPTIMIZER_ADAMW] = "adamw",
    [OPTIMIZER_SGD] = "sgd",
};

/* All parts of the group state. The first GROUP_PARTS_ADAMW rows are parts that only AdamW has. The last
 * GROUP_PARTS_SCALING rows are parts that only jobs with loss scaling have. */
static const struct group_part group_parts[] = {
    {"t", DTYPE_U64, offsetof(struct group_state, t), true},
    {"bias_correct1", DTYPE_F32, offsetof(struct group_state, bias_correct1), false},
    {"bias_correct2", DTYPE_F32, offsetof(struct group_state, bias_correct2), false},
    {"scale", DTYPE_F32, offsetof(struct group_state, scale), false},
    {"apply", DTYPE_U32, offsetof(struct group_state, apply), false},
    {"loss_scale", DTYPE_F32, offsetof(struct group_state, loss_scale), true},
    {"good_steps", DTYPE_U32, offsetof(struct group_state, good_steps), true},
};
#define GROUP_PARTS         (sizeof group_parts / sizeof *group_parts)
#define GROUP_PARTS_ADAMW   3
#define GROUP_PARTS_SCALING 2

static bool scales_loss(const struct optimizer *o)
{
    return o->scaling.growth_steps > 0;
}

uint32_t optimizer_group_parts(const struct optimizer *o, bool decision, const struct group_part **ret)
{
    const uint32_t end = (uint32_t)GROUP_PARTS - (scales_loss(o) ? 0 : GROUP_PARTS_SCALING);
    const uint32_t first = o->kind == OPTIMIZER_ADAMW   ? 0
                           : decision || scales_loss(o) ? GROUP_PARTS_ADAMW
                                                        : end;

    *ret = &group_parts[first];
    return end - first;
}

uint64_t optimizer_group_bytes(const struct optimizer *o, bool decision)
{
    const struct group_part *parts;

    if (optimizer_group_parts(o, decision, &parts) == 0)
        return 0;
    return scales_loss(o) ? sizeof(struct group_state) : offsetof(struct group_state, loss_scale);
}

static bool has_momentum(const struct optimizer *o)
{
    return o->momentum != 0.0f;
}

/* The name and the type of one part of the optimizer state. The part has one element for each weight. */
struct part_kind {
    const char *name; /* as in PyTorch's optimizers */
    enum dtype dtype;
    bool is_master;
};

/* Lists the kinds of parts in the order in which they are stored, and returns their number. */
static uint32_t part_kinds(const struct optimizer *o, struct part_kind ret[OPTIMIZER_PARTS])
{
    uint32_t n = 0;

    if (o->master)
        ret[n++] = (struct part_kind){"master", DTYPE_F32, true};
    switch (o->kind) {
    case OPTIMIZER_ADAMW:
        ret[n++] = (struct part_kind){"exp_avg", DTYPE_F32, false};
        ret[n++] = (struct part_kind){"exp_avg_sq", DTYPE_F32, false};
        break;
    case OPTIMIZER_SGD:
        if (has_momentum(o))
            ret[n++] = (struct part_kind){"momentum_buffer", DTYPE_F32, false};
        break;
    case OPTIMIZER_COUNT:
        assert(!"no such optimizer");
    }
    return n;
}

uint32_t optimizer_parts(const struct optimizer *o, uint64_t w_elements,
                         struct state_part ret[OPTIMIZER_PARTS])
{
    struct part_kind kinds[OPTIMIZER_PARTS];
    const uint32_t n = part_kinds(o, kinds);
    uint64_t at = 0;

    for (uint32_t p = 0; p < n; p++) {
        const uint64_t end = at + w_elements * dtype_size(kinds[p].dtype);
        const uint64_t next = p + 1 < n ? dtype_size(kinds[p + 1].dtype) : 1;
        ret[p] = (struct state_part){kinds[p].name,       kinds[p].dtype,    w_elements, at,
                                     round_up(end, next), kinds[p].is_master};
        at = ret[p].end;
    }
    return n;
}

uint64_t optimizer_k_bytes(const struct optimizer *o, uint64_t w_elements)
{
    struct state_part parts[OPTIMIZER_PARTS];
    const uint32_t n = optimizer_parts(o, w_elements, parts);

    return n > 0 ? parts[n - 1].end : 0;
}

void optimizer_split(const struct optimizer *o, void *k, struct optimizer_io *io)
{
    struct state_part parts[OPTIMIZER_PARTS];
    const uint32_t n = optimizer_parts(o, io->n, parts);

    for (uint32_t p = 0; p < n; p++)
        io->k[p] = (char *)k + parts[p].begin;
}

static bool has_no_decay(const struct optimizer *o, const struct layer_param *p)
{
    return (o->no_decay & 1u << p->class) != 0;
}

/* This function relies on parameters that fill the weights without gaps, in the order in which `params` lists
 * them. */
uint32_t optimizer_ranges(const struct optimizer *o, const struct layer *l, uint64_t begin, uint64_t end,
                          struct optimizer_range *ret)
{
    uint32_t n_params = layer_type(l)->params(l, NULL), n = 0;
    struct layer_param *params = xcalloc(n_params + 1, sizeof *params);
    struct optimizer_range last = {begin, begin, false};

    layer_type(l)->params(l, params);
    for (uint32_t i = 0; i <= n_params; i++) {
        const struct layer_param *p = &params[i];
        uint64_t to = i < n_params ? dtype_elements(p->dtype, p->offset) + p->count : end;
        bool no_decay = i < n_params && has_no_decay(o, p);
        to = to > end ? end : to;
        if (to <= last.end)
            continue;
        if (last.end > last.begin && no_decay != last.no_decay) {
            if (ret)
                ret[n] = last;
            n++;
            last.begin = last.end;
        }
        last.no_decay = no_decay;
        last.end = to;
    }
    if (last.end > last.begin) {
        if (ret)
            ret[n] = last;
        n++;
    }
    free(params);
    return n;
}

struct optimizer_io optimizer_part(const struct optimizer *o, const struct optimizer_io *io, uint64_t begin,
                                   uint64_t end)
{
    struct part_kind kinds[OPTIMIZER_PARTS];
    const uint32_t n = part_kinds(o, kinds);
    struct optimizer_io part = *io;

    part.w = (char *)io->w + begin * dtype_size(io->dtype);
    for (uint32_t u = 0; u < io->g.n; u++)
        part.g.dw[u] = io->g.dw[u] + begin;
    for (uint32_t p = 0; p < n; p++)
        part.k[p] = (char *)io->k[p] + begin * dtype_size(kinds[p].dtype);
    part.n = end - begin;
    return part;
}

int optimizer_update(const struct optimizer *o, const struct step_args *step, const struct optimizer_io *io,
                     const struct op_sink *sink)
{
    struct op_call call = {.step = step};
    void *const *k = o->master ? &io->k[1] : &io->k[0]; /* the parts after the master weights */
    float *master = o->master ? io->k[0] : NULL;

    assert(o->master == (io->dtype != DTYPE_F32));

    switch (o->kind) {
    case OPTIMIZER_ADAMW:
        call.op = OP_adamw;
        call.adamw = (struct op_adamw){
            .w = io->w,
            .master = master,
            .g = io->g,
            .m = k[0],
            .v = k[1],
            .group = io->group,
            .n = io->n,
            .dtype = io->dtype,
            .beta1 = o->beta1,
            .beta2 = o->beta2,
            .eps = o->eps,
            .weight_decay = io->no_decay ? 0.0f : o->weight_decay,
        };
        break;
    case OPTIMIZER_SGD:
        call.op = OP_sgd;
        call.sgd = (struct op_sgd){
            .w = io->w,
            .master = master,
            .g = io->g,
            .v = has_momentum(o) ? k[0] : NULL,
            .group = io->group,
            .n = io->n,
            .dtype = io->dtype,
            .momentum = o->momentum,
            .weight_decay = io->no_decay ? 0.0f : o->weight_decay,
        };
        break;
    case OPTIMIZER_COUNT:
        assert(!"no such optimizer");
    }
    return sink->launch(sink->ctx, &call);
}
