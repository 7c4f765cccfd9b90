/* Transposes matrices inside the cpu backend. */
#ifndef KERNELS_CPU_TRANSPOSE_H
#define KERNELS_CPU_TRANSPOSE_H

#include <stddef.h>

/* Transposes a matrix in the calling thread: to[j * ld_to + i] = from[i * ld + j] for i < rows and j <
 * columns. The two matrices must not overlap. */
void transpose_f32(const float *from, size_t ld, size_t rows, size_t columns, float *to, size_t ld_to);

#endif
