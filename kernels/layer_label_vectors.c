/* The label_vectors layer is a loss. It trains a part of a model before the rest of the model is trained.
 * Each class has a vector of random numbers, and the targets of a row are the vector of its class. The loss
 * is the mean of (x - target)^2 over the elements of a row, as in the mse layer. The target T of a row is the
 * number of its class, an int32.
 *
 * The vectors are drawn once and never change, so they are buffers B: "vectors" is an array [classes][in],
 * and "offsets" is an array [classes] with -|v|^2 / 2 for each vector v. An evaluation also counts the rows
 * whose nearest vector is that of their class. The nearest vector v of a row x is the one with the largest
 * x v - |v|^2 / 2, because |x - v|^2 = |x|^2 - 2 (x v - |v|^2 / 2), and |x|^2 is the same for all vectors.
 *
 * The forward pass saves nothing. All functions run in the caller's thread. */
#include "kernels/layer_impl.h"

static uint64_t vectors_bytes(const struct layer *l)
{
    return layer_stat_bytes(l->label_vectors.classes, layer_in(l));
}

/* Returns the size in bytes of the target vectors of all rows, which are floats at the start of the
 * workspace. In an evaluation, one number for each row and class follows. */
static uint64_t targets_bytes(const struct layer *l, uint32_t rows)
{
    return layer_round(layer_stat_bytes(rows, layer_in(l)));
}

static void label_vectors_sizes(const struct layer *l, uint32_t rows, struct layer_sizes *ret)
{
    *ret = layer_sizes_of(l, rows);
    ret->b = vectors_bytes(l) + layer_stat_bytes(1, l->label_vectors.classes);
    ret->scratch_fwd = targets_bytes(l, rows) + layer_stat_bytes(rows, l->label_vectors.classes);
    ret->scratch_bwd = targets_bytes(l, rows);
    ret->target = layer_bytes_of(DTYPE_I32, rows, 1);
    ret->target_dtype = DTYPE_I32;
    ret->result = sizeof(struct step_result);
}

static void label_vectors_cost(const struct layer *l, uint32_t rows, struct layer_cost *ret)
{
    uint64_t n = (uint64_t)rows * layer_in(l), x = layer_act_bytes(l, rows, layer_in(l));

    *ret = (struct layer_cost){
        .fwd_flops = 4 * n,
        .bwd_flops = 4 * n,
        .fwd_bytes = 4 * x,
        .bwd_bytes = 5 * x,
    };
}

static uint32_t label_vectors_buffers(const struct layer *l, struct layer_param *ret)
{
    struct layer_params p = {.l = l, .at = ret, .dtype = DTYPE_F32};

    layer_add_param(&p, "vectors", PARAM_MATRIX, l->label_vectors.classes, layer_in(l), 0, layer_in(l));
    layer_add_param(&p, "offsets", PARAM_BIAS, l->label_vectors.classes, 0, 0, layer_in(l));
    return p.n;
}

static void label_vectors_init(const struct layer *l, uint64_t seed, void *b)
{
    uint32_t n = layer_in(l), classes = l->label_vectors.classes;
    float *vectors = b, *offsets = vectors + (uint64_t)classes * n;

    layer_uniform(seed, l->key, (uint64_t)classes * n, vectors);
    for (uint32_t c = 0; c < classes; c++) {
        double sum = 0;
        float *v = vectors + (uint64_t)c * n;
        for (uint32_t i = 0; i < n; i++) {
            v[i] *= l->label_vectors.scale;
            sum += (double)v[i] * (double)v[i];
        }
        offsets[c] = (float)(-sum / 2);
    }
}

/* Copies the vector of each row's class to the workspace. The op's two types are F32, because buffers such as
 * the vectors are float in every layer. */
static int gather(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    return LAYER_LAUNCH(io, sink, embedding_fwd, .ids = io->target, .table = io->b, .y = io->scratch,
                        .rows = io->rows, .n = layer_in(l), .vocab = l->label_vectors.classes,
                        .dtype = DTYPE_F32, .w_dtype = DTYPE_F32);
}

/* Counts the rows whose nearest vector is that of their class. */
static int count_nearest(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    uint32_t classes = l->label_vectors.classes;
    void *closeness = layer_at(io->scratch, targets_bytes(l, io->rows));
    int r = LAYER_LAUNCH(io, sink, linear_fwd, .x = io->x, .w = io->b,
                         .b = layer_at_const(io->b, vectors_bytes(l)), .y = closeness, .rows = io->rows,
                         .in = layer_in(l), .out = classes, .act = ACT_NONE, .dtype = l->dtype,
                         .w_dtype = DTYPE_F32, .y_dtype = DTYPE_F32);
    if (r)
        return r;
    return LAYER_LAUNCH(io, sink, softmax_xent, .x = closeness, .target = io->target, .result = io->result,
                        .rows = io->rows, .n = classes, .first_row = io->first_row, .seq = 1,
                        .dtype = DTYPE_F32, .dx_dtype = DTYPE_F32);
}

static int label_vectors_fwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    bool counts = !io->step->training;
    int r = counts ? count_nearest(l, io, sink) : 0;

    if (!r)
        r = gather(l, io, sink);
    if (r)
        return r;
    return LAYER_LAUNCH(io, sink, mse_fwd, .x = io->x, .target = io->scratch, .result = io->result,
                        .rows = io->rows, .n = layer_in(l), .first_row = io->first_row,
                        .keep_correct = counts, .dtype = l->dtype);
}

static int label_vectors_bwd(const struct layer *l, const struct layer_io *io, const struct op_sink *sink)
{
    if (!io->dx)
        return 0;
    int r = gather(l, io, sink);
    if (r)
        return r;
    return LAYER_LAUNCH(io, sink, mse_bwd, .x = io->x, .target = io->scratch, .dx = io->dx, .rows = io->rows,
                        .n = layer_in(l), .first_row = io->first_row, .group = io->group, .dtype = l->dtype);
}

const struct layer_type layer_label_vectors = {
    .name = "label_vectors",
    .is_loss = true,
    .sizes = label_vectors_sizes,
    .cost = label_vectors_cost,
    .params = layer_no_params,
    .buffers = label_vectors_buffers,
    .init_buffers = label_vectors_init,
    .fwd = label_vectors_fwd,
    .bwd = label_vectors_bwd,
};
