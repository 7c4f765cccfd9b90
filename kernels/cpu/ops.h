/* The op functions of the cpu backend, and helpers that they share. The loops are compiled for several
 * instruction sets (CPU_CLONES), and all versions must give the same bits. Therefore the compiler must not
 * fuse operations or change their order. Every sum uses LANES partial sums, which are added up in one fixed
 * order. */
#ifndef KERNELS_CPU_OPS_H
#define KERNELS_CPU_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/clones.h"
#include "kernels/cpu/cpu.h"

#define OP(name) cpu_op_fn cpu_op_##name;
#include "kernels/ops.def"
#undef OP

#define CPU_INLINE static inline __attribute__((always_inline))

/* Put CPU_INDEPENDENT before a loop whose iterations do not depend on each other. The compiler may then use
 * vectors even if input and output are the same array. */
#if defined(__clang__)
/* For clang, CPU_INDEPENDENT is empty, because clang's own pragma causes a warning for every loop that clang
 * does not turn into vector code. */
#define CPU_INDEPENDENT
#else
#define CPU_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* cpu_act_fwd computes y = act(x), and `y` may be equal to `x`. cpu_act_bwd computes dx = dy * act'(x), and
 * `dx` may be equal to `dy`. */
void cpu_act_fwd(enum act act, const float *x, float *y, size_t n);
void cpu_act_bwd(enum act act, const float *x, const float *dy, float *dx, size_t n);

/* The settings of the dropout of attention scores. `q` is the row's position in the global batch. The
 * function cpu_dropout_keep below sets keep[i] to 1 if score number first + i is kept, and to 0 if it is
 * dropped. */
struct cpu_dropout {
    const struct step_args *step;
    uint32_t layer, q;
    float p;
};
void cpu_dropout_keep(const struct cpu_dropout *d, uint64_t first, float *keep, size_t n);

/* The number of elements in one piece of work. Computing a piece takes several times as long as waking up a
 * thread, so it pays to share the pieces among threads. */
#define PIECE 32768u

/* Returns the number of pieces of work into which `n` elements are cut. */
CPU_INLINE uint32_t piece_count(uint64_t n)
{
    return (uint32_t)((n + PIECE - 1) / PIECE);
}

/* `n` elements are cut into pieces. piece_begin returns the index of the first element of piece `i`.
 * piece_size returns the number of elements of piece `i`. */
CPU_INLINE uint64_t piece_begin(uint32_t i)
{
    return (uint64_t)i * PIECE;
}

CPU_INLINE size_t piece_size(uint32_t i, uint64_t n)
{
    uint64_t left = n - piece_begin(i);
    return left < PIECE ? (size_t)left : PIECE;
}

/* Returns the number of rows in one piece of work, for a matrix with `n` columns. A piece has at least one
 * row. */
CPU_INLINE uint32_t piece_rows(uint32_t n)
{
    return n < PIECE ? PIECE / n : 1;
}

#endif
