/* Optimizers: how much state a W block needs, and the launch that updates it. Pure, any thread. */
#include <assert.h>
#include <stddef.h>

#include "kernels/layer.h"

const char *const optimizer_names[OPTIMIZER_COUNT] = {
    [OPTIMIZER_ADAMW] = "adamw",
    [OPTIMIZER_SGD] = "sgd",
};

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
            .m = io->k[0],
            .v = io->k[1],
            .decision = io->decision,
            .n = n,
            .beta1 = o->beta1,
            .beta2 = o->beta2,
            .eps = o->eps,
            .weight_decay = o->weight_decay,
        };
        break;
    case OPTIMIZER_SGD:
        call.op = OP_sgd;
        call.sgd = (struct op_sgd){
            .w = io->w,
            .dw = io->dw,
            .v = has_momentum(o) ? io->k[0] : NULL,
            .decision = io->decision,
            .n = n,
            .momentum = o->momentum,
            .weight_decay = o->weight_decay,
        };
        break;
    case OPTIMIZER_COUNT:
        assert(!"no such optimizer");
    }
    return sink->launch(sink->ctx, &call);
}
