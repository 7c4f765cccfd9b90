/* Defines the names of all ops and activation functions, and finds the element type that a call computes
 * with. The functions keep no state, so any thread may call them. */
#include "kernels/op.h"

const char *const op_names[OP_COUNT] = {
#define OP(name) [OP_##name] = #name,
#include "kernels/ops.def"
#undef OP
};

const char *const act_names[ACT_COUNT] = {
    [ACT_NONE] = "none", [ACT_RELU] = "relu",         [ACT_GELU] = "gelu",
    [ACT_TANH] = "tanh", [ACT_GELU_ERF] = "gelu_erf", [ACT_SILU] = "silu",
};

enum dtype op_dtype(const struct op_call *call)
{
    switch (call->op) {
    case OP_add:
        return call->add.dtype;
    case OP_adamw:
        return call->adamw.dtype;
    case OP_sgd:
        return call->sgd.dtype;
    case OP_sumsq:
        return call->sumsq.dtype;
    default:
        return DTYPE_F32;
    }
}
