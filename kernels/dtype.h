/* The types that the elements of a tensor can have, with their names and sizes.
 *
 * The graph, the plan, the parameters of a layer, the parts of the optimizer state and the files with weights
 * all name types by this enum. Code that needs a number of bytes multiplies a number of elements by
 * dtype_size, or calls dtype_bytes if a user chose the number of elements.
 *
 * A tensor whose layout something else describes has the type DTYPE_U8: it is a block of bytes. Examples are
 * a struct such as the group state, the workspace of a layer, and the optimizer state, whose parts have types
 * of their own.
 *
 * Training computes with F32 and reads I32. The other types occur in files with weights.
 */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/* All element types. Each row has the name of the type and the number of bytes of one element. The names are
 * those of safetensors files. */
#define DTYPES(DTYPE)                                                                                        \
    DTYPE(F32, 4)                                                                                            \
    DTYPE(F64, 8)                                                                                            \
    DTYPE(I32, 4)                                                                                            \
    DTYPE(BF16, 2)                                                                                           \
    DTYPE(F16, 2)                                                                                            \
    DTYPE(U8, 1)                                                                                             \
    DTYPE(BOOL, 1)                                                                                           \
    DTYPE(I8, 1)                                                                                             \
    DTYPE(I16, 2)                                                                                            \
    DTYPE(U16, 2)                                                                                            \
    DTYPE(U32, 4)                                                                                            \
    DTYPE(I64, 8)                                                                                            \
    DTYPE(U64, 8)

enum dtype {
#define DTYPE(name, bytes) DTYPE_##name,
    DTYPES(DTYPE)
#undef DTYPE
        DTYPE_COUNT
};

extern const char *const dtype_names[DTYPE_COUNT]; /* "F32", "F64", "I32", ... */
extern const uint8_t dtype_sizes[DTYPE_COUNT];     /* bytes of one element */

/* Returns the number of bytes of one element. */
static inline uint64_t dtype_size(enum dtype d)
{
    return dtype_sizes[d];
}

/* Returns the number of whole elements in a block of `bytes` bytes. */
static inline uint64_t dtype_elements(enum dtype d, uint64_t bytes)
{
    return bytes / dtype_size(d);
}

/* Stores the number of bytes of `elements` elements in *ret and returns true. If the number exceeds 64 bits,
 * returns false and does not change *ret. */
bool dtype_bytes(enum dtype d, uint64_t elements, uint64_t *ret);

/* Finds the type with the name `name`, such as "BF16". Returns false if there is no such type. */
bool dtype_find(const char *name, enum dtype *ret);

#endif
