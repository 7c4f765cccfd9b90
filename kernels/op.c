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

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static uint64_t at_most(uint64_t n, uint64_t most)
{
    return n < most ? n : most;
}

/* All of the sequence, or a power of two; its scores stay in a cache. */
uint32_t attention_strip(uint32_t seq)
{
    uint32_t strip = ATTENTION_STRIP;

    while (strip > 8 && (uint64_t)strip * seq > 131072)
        strip /= 2;
    return (uint32_t)at_most(round_up(seq, 8), strip);
}

/* Forward: keys and values, and of a strip the queries, the outputs and the scores. Backward: keys and values, both also
 * transposed or their gradients, and of some queries three vectors and two blocks of scores. All rows are padded. */
uint64_t attention_lane(uint32_t seq, uint32_t head)
{
    uint64_t keys = round_up(seq, 16), width = round_up(head, 16);
    uint64_t queries = at_most(round_up(seq, 8), ATTENTION_QUERIES), block = at_most(keys, ATTENTION_KEYS);
    uint64_t fwd = 2 * keys * width + attention_strip(seq) * (2 * width + keys + 16);
    uint64_t bwd = 5 * keys * width + queries * (3 * width + 2 * (block + 16));
    return (fwd > bwd ? fwd : bwd) + 16; /* to begin at a line of the cache */
}

/* The cpu's lanes, or on cuda a number for each query of each head. */
uint64_t attention_scratch(uint32_t rows, uint32_t seq, uint32_t heads, uint32_t kv_heads, uint32_t head)
{
    uint64_t cpu = at_most((uint64_t)rows * kv_heads, ATTENTION_LANES) * attention_lane(seq, head);
    uint64_t cuda = (uint64_t)rows * heads * seq;
    return cpu > cuda ? cpu : cuda;
}
