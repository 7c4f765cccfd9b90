/* Transposes matrices inside the cpu backend. */
#ifndef KERNELS_CPU_TRANSPOSE_H
#define KERNELS_CPU_TRANSPOSE_H

#include <stddef.h>

/* Transposes a matrix: to[j * ld_to + i] = from[i * ld + j] for i < rows and j < columns. The calling thread
 * does all the work. The two matrices must not overlap. */
void transpose_f32(const float *from, size_t ld, size_t rows, size_t columns, float *to, size_t ld_to);

#endif
