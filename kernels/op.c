/* Names of the ops and activations, for dumps, traces and specs, and what both backends must agree on. Any thread. */
#include "kernels/op.h"

const char *const op_names[OP_COUNT] = {
#define OP(name) [OP_##name] = #name,
#include "kernels/ops.def"
#undef OP
};

const char *const act_names[ACT_COUNT] = {
    [ACT_NONE] = "none",
    [ACT_RELU] = "relu",
    [ACT_GELU] = "gelu",
    [ACT_TANH] = "tanh",
    [ACT_GELU_ERF] = "gelu_erf",
    [ACT_SILU] = "silu",
};

/* The cpu's lanes (see cpu/ops_attention.c): each a head's keys and values, their gradients, and two strips of scores;
 * cuda has a number for each query of each head. */
uint64_t attention_scratch(uint32_t rows, uint32_t seq, uint32_t heads, uint32_t kv_heads, uint32_t head)
{
    uint64_t tasks = (uint64_t)rows * kv_heads, lanes = tasks < ATTENTION_LANES ? tasks : ATTENTION_LANES;
    uint64_t cpu = lanes * (4 * (uint64_t)seq * head + 2 * (uint64_t)attention_strip(seq) * seq);
    uint64_t cuda = (uint64_t)rows * heads * seq;
    return cpu > cuda ? cpu : cuda;
}
