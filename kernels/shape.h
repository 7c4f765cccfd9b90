/* The shape of one row of a tensor. A row is one sample, so a shape does not contain the number of rows.
 *
 *     a vector of 784 elements             {1, {784}}
 *     a sequence of 64 tokens of width 32  {2, {64, 32}}
 *     an image of 3 channels               {3, {3, 28, 28}}
 *     no tensor, the output of a loss      {0}
 *
 * The last dimension is contiguous in memory. This is plain data with pure functions. */
#ifndef KERNELS_SHAPE_H
#define KERNELS_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#define SHAPE_MAX_RANK 4
/* The size of a buffer for the longest text: four numbers of ten digits, three "x" between the numbers, and a
 * NUL. */
#define SHAPE_TEXT_MAX 44

/* The dimensions of one row. The builder of a model makes the shapes of each layer, and the shapes do not
 * change afterwards. Only the first `rank` elements of `dim` are used. */
struct shape {
    uint32_t rank; /* number of dimensions, at most SHAPE_MAX_RANK */
    uint32_t dim[SHAPE_MAX_RANK];
};

static inline struct shape shape_vector(uint32_t n)
{
    return (struct shape){1, {n}};
}
static inline struct shape shape_sequence(uint32_t tokens, uint32_t width)
{
    return (struct shape){2, {tokens, width}};
}

/* Stores the number of elements of a row in *ret. A shape of rank 0 has 0 elements. Kernels count the
 * elements of a row in 32 bits. If the number does not fit, returns false and does not change *ret. */
bool shape_elements(const struct shape *s, uint32_t *ret);

/* Returns true if both shapes have the same rank and the same dimensions. */
bool shape_equal(const struct shape *a, const struct shape *b);

/* Returns true if a row of shape `a` can be read as a row of shape `b`, which requires the same number of
 * elements. For example, a row of the image shape {2, {28, 28}} can be read as a vector of 784 elements. */
bool shape_same_elements(const struct shape *a, const struct shape *b);

/* Writes the shape to `ret` for messages, such as "784" or "3x28x28", and returns `ret`. A shape of rank 0 is
 * written as "nothing". */
const char *shape_text(const struct shape *s, char ret[SHAPE_TEXT_MAX]);

#endif
