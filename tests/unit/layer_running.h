/* A layer type for tests that has buffers B, which no layer of the product has yet. The layer computes
 * y = x + B + w for each row x. The statistics of a micro-batch are the column sums of its input, and `fold`
 * adds the statistics to B. So the bits of B depend on the order in which the micro-batches are folded. The
 * layer is made of existing ops and runs on every backend. */
#ifndef TESTS_LAYER_RUNNING_H
#define TESTS_LAYER_RUNNING_H

#include "kernels/layer_impl.h"

static inline void running_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    *ret = layer_sizes_of(l, rows);
    ret->w = layer_w_bytes(l, 1, layer_in(l));
    ret->b = layer_stat_bytes(1, layer_in(l));
}

static inline void running_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    const uint64_t n = (uint64_t)rows * layer_in(l);
    *ret =
        (struct layer_cost){.fwd_flops = 3 * n, .bwd_flops = 2 * n, .fwd_bytes = 24 * n, .bwd_bytes = 16 * n};
}

static inline uint32_t running_params(const struct layer *l, struct layer_param *ret)
{
    struct layer_params p = {.l = l, .at = ret, .dtype = l->w_dtype};
    layer_add_param(&p, "weight", PARAM_MATRIX, layer_in(l), 0, 0, layer_in(l));
    return p.n;
}

static inline uint32_t running_buffers(const struct layer *l, struct layer_param *ret)
{
    struct layer_params p = {.l = l, .at = ret, .dtype = DTYPE_F32};
    layer_add_param(&p, "running", PARAM_MATRIX, layer_in(l), 0, 0, layer_in(l));
    return p.n;
}

static inline int running_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    const uint32_t n = layer_in(l);
    int r = 0;
    if (io->y != NULL)
        r = LAYER_LAUNCH(io, sink, bias_fwd, .x = io->x, .b = io->b, .y = io->y, .rows = io->rows, .n = n,
                         .dtype = l->dtype, .w_dtype = DTYPE_F32);
    if (r == 0 && io->y != NULL)
        r = LAYER_LAUNCH(io, sink, bias_fwd, .x = io->y, .b = io->w, .y = io->y, .rows = io->rows, .n = n,
                         .dtype = l->dtype, .w_dtype = l->w_dtype);
    if (r == 0 && io->stat != NULL)
        r = LAYER_LAUNCH(io, sink, bias_bwd, .dy = io->x, .db = io->stat, .rows = io->rows, .n = n,
                         .dtype = l->dtype);
    return r;
}

static inline int running_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    const uint32_t n = layer_in(l);
    int r = LAYER_LAUNCH(io, sink, bias_bwd, .dy = io->dy, .db = io->dw, .rows = io->rows, .n = n,
                         .accumulate = io->accumulate, .dtype = l->dtype);
    if (r == 0 && io->dx != NULL)
        r = LAYER_LAUNCH(io, sink, act_fwd, .x = io->dy, .y = io->dx, .n = (uint64_t)io->rows * n,
                         .act = ACT_NONE, .dtype = l->dtype);
    return r;
}

static inline int running_fold(const struct layer *l, const struct step_args *step, float *b,
                               const float *stat, const struct op_sink *sink)
{
    const struct layer_io io = {.step = step};
    return LAYER_LAUNCH(&io, sink, add, .y = b, .x = stat, .n = layer_in(l), .dtype = DTYPE_F32);
}

static const struct layer_type layer_running = {
    .name = "running",
    .sizes = running_sizes,
    .cost = running_cost,
    .params = running_params,
    .buffers = running_buffers,
    .fwd = running_fwd,
    .bwd = running_bwd,
    .fold = running_fold,
};

#endif
