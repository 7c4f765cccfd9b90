/* This file defines the names of all ops and activation functions. The names are constant data, so any
 * thread may read them. */
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
