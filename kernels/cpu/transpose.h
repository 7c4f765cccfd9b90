/* Inside the cpu backend: a matrix, transposed. */
#ifndef KERNELS_CPU_TRANSPOSE_H
#define KERNELS_CPU_TRANSPOSE_H

#include <stddef.h>

/* to[j * ld_to + i] = from[i * ld + j] for i < rows, j < columns. They do not overlap. In the calling thread. */
void transpose_f32(const float *from, size_t ld, size_t rows, size_t columns, float *to, size_t ld_to);

#endif
