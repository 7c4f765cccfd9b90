/* The op functions of the cpu backend, and helpers that their loops share.
 *
 * Loops over elements are compiled for several instruction sets (CPU_CLONES) and must give the same bits
 * on each of them. So they use neither contraction nor reassociation. Every sum goes over an array of
 * LANES partial sums, which are added up in one fixed order.
 */
#ifndef KERNELS_CPU_OPS_H
#define KERNELS_CPU_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/cpu.h"

#define OP(name) cpu_op_fn cpu_op_##name;
#include "kernels/ops.def"
#undef OP

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CPU_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CPU_SANITIZED 1
#endif

/* Compiles a function for several instruction sets. The loader selects one at program start. This is off
 * under the sanitizers, which are not ready at that time, and with clang, which does not support it here. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(CPU_SANITIZED)
#define CPU_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CPU_CLONES
#endif

#define CPU_INLINE static inline __attribute__((always_inline))

/* Put this before a loop whose iterations are independent. The compiler may then use vectors even if input
 * and output are one array. */
#if defined(__clang__)
/* Empty for clang, because clang warns about each loop on which its own pragma has no effect. */
#define CPU_INDEPENDENT
#else
#define CPU_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* cpu_act_fwd computes y = act(x). y may be x. cpu_act_bwd computes dx = dy * act'(x). dx may be dy. */
void cpu_act_fwd(enum act act, const float *x, float *y, size_t n);
void cpu_act_bwd(enum act act, const float *x, const float *dy, float *dx, size_t n);

/* Settings for the dropout of attention scores. cpu_dropout_keep sets keep[i] to 1 if element first + i is
 * kept, and to 0 if not. `q` is the row's position in the global batch. */
struct cpu_dropout {
    const struct step_args *step;
    uint32_t layer, q;
    float p;
};
void cpu_dropout_keep(const struct cpu_dropout *d, uint64_t first, float *keep, size_t n);

/* The number of elements in one piece of work. A piece takes several times as long as waking a thread. */
#define PIECE 32768u

/* Returns the number of pieces that n elements are cut into. */
CPU_INLINE uint32_t piece_count(uint64_t n)
{
    return (uint32_t)((n + PIECE - 1) / PIECE);
}

/* piece_begin returns the first element of piece `i`. piece_size returns its number of elements, out of
 * `n` in total. */
CPU_INLINE uint64_t piece_begin(uint32_t i)
{
    return (uint64_t)i * PIECE;
}

CPU_INLINE size_t piece_size(uint32_t i, uint64_t n)
{
    uint64_t left = n - piece_begin(i);
    return left < PIECE ? (size_t)left : PIECE;
}

/* Returns the number of rows in one piece of a matrix with `n` columns. */
CPU_INLINE uint32_t piece_rows(uint32_t n)
{
    return n < PIECE ? PIECE / n : 1;
}

#endif
