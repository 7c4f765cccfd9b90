/* CPU_CLONES compiles a function for several instruction sets, and the loader selects one of them at program
 * start. All versions give the same bits, because the files that use it are compiled without contraction of
 * a * b + c. */
#ifndef KERNELS_CLONES_H
#define KERNELS_CLONES_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CPU_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CPU_SANITIZED 1
#endif

/* The macro is empty under the sanitizers, because the sanitizers are not initialized yet when the
 * loader selects. The macro is also empty with clang, which does not support the attribute here. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(CPU_SANITIZED)
#define CPU_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CPU_CLONES
#endif

#endif
