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

uint64_t optimizer_state_bytes(const struct optimizer *o, uint64_t w_bytes)
{
    switch (o->kind) {
    case OPTIMIZER_ADAMW:
        return 2 * w_bytes;
    case OPTIMIZER_SGD:
        return has_momentum(o) ? w_bytes : 0;
    case OPTIMIZER_COUNT:
        break;
    }
    assert(!"no such optimizer");
    return 0;
}

int optimizer_update(const struct optimizer *o, const struct step_args *step, float *w, const float *dw,
                     float *k, const struct step_decision *decision, uint64_t w_bytes,
                     const struct op_sink *sink)
{
    uint64_t n = w_bytes / sizeof *w;
    struct op_call call = {.step = step};

    switch (o->kind) {
    case OPTIMIZER_ADAMW:
        call.op = OP_adamw;
        call.adamw = (struct op_adamw){
            .w = w,
            .dw = dw,
            .m = k,
            .v = k + n,
            .decision = decision,
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
            .w = w,
            .dw = dw,
            .v = has_momentum(o) ? k : NULL,
            .decision = decision,
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
