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
 * `dtype`, and TWO_TYPES for an op with the fields `dtype` and `other`. */
/* NOLINTBEGIN(bugprone-macro-parentheses): the name of a member takes no parentheses. */
#define NO_TYPE(op)  [OP_##op] = {0}
#define ONE_TYPE(op) [OP_##op] = {1, {offsetof(struct op_call, op.dtype)}}
#define TWO_TYPES(op, other)                                                                                 \
    [OP_##op] = {2, {offsetof(struct op_call, op.dtype), offsetof(struct op_call, op.other)}}
/* NOLINTEND(bugprone-macro-parentheses) */

const struct op_dtypes op_dtypes[OP_COUNT] = {
    ONE_TYPE(act_bwd),
    ONE_TYPE(act_fwd),
    ONE_TYPE(adamw),
    ONE_TYPE(add),
    ONE_TYPE(attention_bwd),
    ONE_TYPE(attention_fwd),
    ONE_TYPE(bias_bwd),
    TWO_TYPES(bias_fwd, w_dtype),
    NO_TYPE(decide),
    ONE_TYPE(dropout),
    ONE_TYPE(embedding_bwd),
    TWO_TYPES(embedding_fwd, w_dtype),
    TWO_TYPES(linear_bwd_data, w_dtype),
    ONE_TYPE(linear_bwd_weight),
    [OP_linear_fwd] = {3,
                       {offsetof(struct op_call, linear_fwd.dtype),
                        offsetof(struct op_call, linear_fwd.w_dtype),
                        offsetof(struct op_call, linear_fwd.y_dtype)}},
    ONE_TYPE(mse_bwd),
    ONE_TYPE(mse_fwd),
    NO_TYPE(norm_add),
    ONE_TYPE(rope),
    TWO_TYPES(rownorm_bwd, w_dtype),
    TWO_TYPES(rownorm_fwd, w_dtype),
    ONE_TYPE(sgd),
    TWO_TYPES(softmax_xent, dx_dtype),
    NO_TYPE(sumsq),
    ONE_TYPE(swiglu_bwd),
    ONE_TYPE(swiglu_fwd),
    NO_TYPE(zero),
};

bool op_has_only(const struct op_call *call, uint32_t types)
{
    const struct op_dtypes *fields = &op_dtypes[call->op];

    for (uint32_t i = 0; i < fields->n; i++) {
        enum dtype found;
        memcpy(&found, (const char *)call + fields->at[i], sizeof found);
        if ((uint32_t)found >= DTYPE_COUNT || !(types & 1u << found))
            return false;
    }
    return true;
}
