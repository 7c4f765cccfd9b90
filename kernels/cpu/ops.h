/* Inside the cpu backend: the ops' functions, and what their loops share.
 *
 * Loops over elements are compiled for several instruction sets (CPU_CLONES) and must give the same bits on
 * each: no contraction, no reassociation, sums over an array of LANES partial sums that is folded in one
 * fixed way.
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

/* The sanitizers instrument the resolver of a clone, which runs before they are ready; clang has no clones
 * here. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(CPU_SANITIZED)
#define CPU_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CPU_CLONES
#endif

#define CPU_INLINE static inline __attribute__((always_inline))

/* Before a loop whose iterations are independent although input and output may be the same array. */
#if defined(__clang__)
#define CPU_INDEPENDENT /* its own form warns wherever it is not obeyed, under the sanitizers for one */
#else
#define CPU_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* y = act(x), y may be x; dx = dy * act'(x), dx may be dy. */
void cpu_act_fwd(enum act act, const float *x, float *y, size_t n);
void cpu_act_bwd(enum act act, const float *x, const float *dy, float *dx, size_t n);

/* keep[i] = 1 where the dropout of scores (see op_attention_fwd) keeps element first + i of the row at position q, else 0. */
struct cpu_dropout {
    const struct step_args *step;
    uint32_t layer, q;
    float p;
};
void cpu_dropout_keep(const struct cpu_dropout *d, uint64_t first, float *keep, size_t n);

/* Elements per piece of the pool: several times what waking a thread costs. */
#define PIECE 32768u

CPU_INLINE uint32_t piece_count(uint64_t n)
{
    return (uint32_t)((n + PIECE - 1) / PIECE);
}

/* Of piece i of n elements: where it begins, how many it has. */
CPU_INLINE uint64_t piece_begin(uint32_t i)
{
    return (uint64_t)i * PIECE;
}

CPU_INLINE size_t piece_size(uint32_t i, uint64_t n)
{
    uint64_t left = n - piece_begin(i);
    return left < PIECE ? (size_t)left : PIECE;
}

/* The same for rows of n elements: a piece is whole rows. */
CPU_INLINE uint32_t piece_rows(uint32_t n)
{
    return n < PIECE ? PIECE / n : 1;
}

#endif
