/* Defines the names of all ops and activation functions. The table op_dtypes says which fields of an op's
 * arguments give the types of array elements. The functions keep no state, so any thread may call them. */
#include "kernels/op.h"

#include <stddef.h>
#include <string.h>

const char *const op_names[OP_COUNT] = {
#define OP(name) [OP_##name] = #name,
#include "kernels/ops.def"
#undef OP
};

const char *const act_names[ACT_COUNT] = {
    [ACT_NONE] = "none", [ACT_RELU] = "relu",         [ACT_GELU] = "gelu",
    [ACT_TANH] = "tanh", [ACT_GELU_ERF] = "gelu_erf", [ACT_SILU] = "silu",
};

/* Each macro makes a row of op_dtypes. NO_TYPE is for an op without types, ONE_TYPE for an op with the field
 * `dtype`, and TWO_TYPES for an op with the fields `dtype` and `w_dtype`. */
/* NOLINTBEGIN(bugprone-macro-parentheses): the name of a member takes no parentheses. */
#define NO_TYPE(op)  [OP_##op] = {0}
#define ONE_TYPE(op) [OP_##op] = {1, {offsetof(struct op_call, op.dtype)}}
#define TWO_TYPES(op)                                                                                        \
    [OP_##op] = {2, {offsetof(struct op_call, op.dtype), offsetof(struct op_call, op.w_dtype)}}
/* NOLINTEND(bugprone-macro-parentheses) */

const struct op_dtypes op_dtypes[OP_COUNT] = {
    ONE_TYPE(act_bwd),
    ONE_TYPE(act_fwd),
    ONE_TYPE(adamw),
    ONE_TYPE(add),
    ONE_TYPE(attention_bwd),
    ONE_TYPE(attention_fwd),
    TWO_TYPES(bias_bwd),
    TWO_TYPES(bias_fwd),
    NO_TYPE(decide),
    ONE_TYPE(dropout),
    TWO_TYPES(embedding_bwd),
    TWO_TYPES(embedding_fwd),
    TWO_TYPES(linear_bwd_data),
    TWO_TYPES(linear_bwd_weight),
    TWO_TYPES(linear_fwd),
    ONE_TYPE(mse_bwd),
    ONE_TYPE(mse_fwd),
    NO_TYPE(norm_add),
    ONE_TYPE(rope),
    TWO_TYPES(rownorm_bwd),
    TWO_TYPES(rownorm_fwd),
    ONE_TYPE(sgd),
    ONE_TYPE(softmax_xent),
    ONE_TYPE(sumsq),
    ONE_TYPE(swiglu_bwd),
    ONE_TYPE(swiglu_fwd),
    NO_TYPE(zero),
};

bool op_has_only(const struct op_call *call, enum dtype dtype)
{
    const struct op_dtypes *types = &op_dtypes[call->op];

    for (uint32_t i = 0; i < types->n; i++) {
        enum dtype found;
        memcpy(&found, (const char *)call + types->at[i], sizeof found);
        if (found != dtype)
            return false;
    }
    return true;
}
