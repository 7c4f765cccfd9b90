/* Implements the optimizers: the sizes and parts of their state, and the launch that updates W. The
 * functions keep no state, so any thread may call them. */
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/arena.h"
#include "kernels/layer.h"

const char *const optimizer_names[OPTIMIZER_COUNT] = {
    [OPTIMIZER_ADAMW] = "adamw",
    [OPTIMIZER_SGD] = "sgd",
};

/* The table of all parts of the group state. Only AdamW uses the first GROUP_PARTS_ADAMW rows of the
 * table. */
static const struct group_part group_parts[] = {
    {"t", GROUP_U64, offsetof(struct group_state, t), true},
    {"bias_correct1", GROUP_F32, offsetof(struct group_state, bias_correct1), false},
    {"bias_correct2", GROUP_F32, offsetof(struct group_state, bias_correct2), false},
    {"scale", GROUP_F32, offsetof(struct group_state, scale), false},
    {"apply", GROUP_U32, offsetof(struct group_state, apply), false},
};
#define GROUP_PARTS       (sizeof group_parts / sizeof *group_parts)
#define GROUP_PARTS_ADAMW 3

uint32_t optimizer_group_parts(const struct optimizer *o, bool decision, const struct group_part **ret)
{
    const uint32_t first = o->kind == OPTIMIZER_ADAMW ? 0 : decision ? GROUP_PARTS_ADAMW : GROUP_PARTS;

    *ret = &group_parts[first];
    return (uint32_t)GROUP_PARTS - first;
}

uint64_t optimizer_group_bytes(const struct optimizer *o, bool decision)
{
    const struct group_part *parts;

    return optimizer_group_parts(o, decision, &parts) > 0 ? sizeof(struct group_state) : 0;
}

static bool has_momentum(const struct optimizer *o)
{
    return o->momentum != 0.0f;
}

uint32_t optimizer_parts(const struct optimizer *o)
{
    switch (o->kind) {
    case OPTIMIZER_ADAMW:
        return 2;
    case OPTIMIZER_SGD:
        return has_momentum(o) ? 1 : 0;
    case OPTIMIZER_COUNT:
        break;
    }
    assert(!"no such optimizer");
    return 0;
}

uint64_t optimizer_state_bytes(const struct optimizer *o, uint64_t w_bytes)
{
    return optimizer_parts(o) * w_bytes;
}

void optimizer_split(const struct optimizer *o, float *k, struct optimizer_io *io)
{
    for (uint32_t p = 0; p < optimizer_parts(o); p++)
        io->k[p] = k + p * (io->w_bytes / sizeof *k);
}

static bool has_no_decay(const struct optimizer *o, const struct layer_param *p)
{
    return (o->no_decay & 1u << p->class) != 0;
}

/* Relies on the fact that the parameters of a layer fill W without gaps, in the order in which `params`
 * lists them. */
uint32_t optimizer_ranges(const struct optimizer *o, const struct layer *l, uint64_t begin, uint64_t end,
                          struct optimizer_range *ret)
{
    uint32_t n_params = layer_type(l)->params(l, NULL), n = 0;
    struct layer_param *params = xcalloc(n_params + 1, sizeof *params);
    struct optimizer_range last = {begin, begin, false};

    layer_type(l)->params(l, params);
    for (uint32_t i = 0; i <= n_params; i++) {
        const struct layer_param *p = &params[i];
        uint64_t to = i < n_params ? p->offset + p->count * sizeof(float) : end;
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
    struct optimizer_io part = *io;
    uint64_t at = begin / sizeof *io->w;

    part.w += at;
    part.dw += at;
    if (part.dw2)
        part.dw2 += at;
    for (uint32_t p = 0; p < optimizer_parts(o); p++)
        part.k[p] += at;
    part.w_bytes = end - begin;
    return part;
}

int optimizer_update(const struct optimizer *o, const struct step_args *step, const struct optimizer_io *io,
                     const struct op_sink *sink)
{
    uint64_t n = io->w_bytes / sizeof *io->w;
    struct op_call call = {.step = step};

    switch (o->kind) {
    case OPTIMIZER_ADAMW:
        call.op = OP_adamw;
        call.adamw = (struct op_adamw){
            .w = io->w,
            .dw = io->dw,
            .dw2 = io->dw2,
            .m = io->k[0],
            .v = io->k[1],
            .group = io->group,
            .n = n,
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
            .dw = io->dw,
            .dw2 = io->dw2,
            .v = has_momentum(o) ? io->k[0] : NULL,
            .group = io->group,
            .n = n,
            .momentum = o->momentum,
            .weight_decay = io->no_decay ? 0.0f : o->weight_decay,
        };
        break;
    case OPTIMIZER_COUNT:
        assert(!"no such optimizer");
    }
    return sink->launch(sink->ctx, &call);
}
