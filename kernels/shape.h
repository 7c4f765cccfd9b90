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
/* Enough space for the longest text: four numbers of ten digits, three "x" between them, and a zero byte. */
#define SHAPE_TEXT_MAX 44

/* The dimensions of one row. The builder of a model makes the shapes of each layer, and they do not change
 * afterwards. Dimensions from `rank` on are not used. */
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

/* Stores the number of elements of a row in *ret. The shape of no tensor has 0 elements. Returns false, and
 * leaves *ret unchanged, if the number does not fit into 32 bits, in which kernels count the elements of a
 * row. */
bool shape_elements(const struct shape *s, uint32_t *ret);

/* Returns true if both shapes have the same rank and the same dimensions. */
bool shape_equal(const struct shape *a, const struct shape *b);

/* Returns true if a row of shape `a` can be read as a row of shape `b`, because both have the same number of
 * elements. For example, a vector of 784 elements can be read from an image {2, {28, 28}}. */
bool shape_same_elements(const struct shape *a, const struct shape *b);

/* Writes the shape to `ret` for messages, such as "784" or "3x28x28", and returns `ret`. The shape of no
 * tensor is "nothing". */
const char *shape_text(const struct shape *s, char ret[SHAPE_TEXT_MAX]);

#endif
