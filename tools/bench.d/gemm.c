/* bench_gemm: GFLOP/s of our matrix products beside the library's own threading, for shapes of MLPs.
 *
 * Prints one line per shape and op: ours on 1 and on N threads, dnnl_sgemm on 1 and on N of its own, and the
 * ratio on N threads. Best of several repetitions of one run: compare columns of one run, not figures of two.
 * Usage: bench_gemm [threads], 2 unless told.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"

#define REPEAT   5
#define LEAST_NS 10000000.0 /* of one repetition */

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void run_library(const struct gemm *g)
{
    dnnl_sgemm(g->a_trans ? 'T' : 'N', g->b_trans ? 'T' : 'N', g->m, g->n, g->k, 1.0f, g->a,
               g->a_trans ? g->m : g->k, g->b, g->b_trans ? g->k : g->n, g->accumulate ? 1.0f : 0.0f, g->c,
               g->n);
}

static double once_ns(const struct gemm *g, struct pool *pool, int times)
{
    double begin = now_ns();
    for (int i = 0; i < times; i++) {
        if (pool)
            gemm_run(g, pool);
        else
            run_library(g);
    }
    return (now_ns() - begin) / times;
}

/* pool NULL: the library on `threads`. */
static double gflops(const struct gemm *g, struct pool *pool, int threads)
{
    double best = 0, flop = 2.0 * g->m * g->n * g->k;

    omp_set_num_threads(pool ? 1 : threads);
    once_ns(g, pool, 1);
    int times = 1 + (int)(LEAST_NS / (once_ns(g, pool, 1) + 1));
    for (int i = 0; i < REPEAT; i++) {
        double rate = flop / once_ns(g, pool, times);
        best = rate > best ? rate : best;
    }
    return best;
}

static float *random_floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    if (!x)
        abort();
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((i * 2654435761u >> 7) % 2001) / 1000.0f - 1.0f;
    return x;
}

static void bench(const char *what, struct gemm g, struct pool *one, struct pool *many, int threads)
{
    double ours1 = gflops(&g, one, 1), theirs1 = gflops(&g, NULL, 1);
    double ours = gflops(&g, many, threads), theirs = gflops(&g, NULL, threads);

    printf("%-11s %5u %5u %5u  %8.1f %8.1f  %8.1f %8.1f  %6.2f\n", what, g.m, g.n, g.k, ours1, theirs1, ours,
           theirs, ours / theirs);
    fflush(stdout);
}

static void bench_layer(uint32_t rows, uint32_t in, uint32_t out, struct pool *one, struct pool *many,
                        int threads)
{
    float *x = random_floats((size_t)rows * in), *w = random_floats((size_t)out * in);
    float *y = random_floats((size_t)rows * out);

    bench("fwd", (struct gemm){x, w, y, rows, out, in, false, true, false}, one, many, threads);
    bench("bwd_data", (struct gemm){y, w, x, rows, in, out, false, false, false}, one, many, threads);
    bench("bwd_weight", (struct gemm){y, x, w, out, in, rows, true, false, true}, one, many, threads);
    free(x);
    free(w);
    free(y);
}

int main(int argc, char **argv)
{
    static const uint32_t shapes[][3] = {{32, 1024, 1024},  {64, 784, 1024},   {128, 784, 1024},
                                         {128, 1024, 1024}, {512, 1024, 1024}, {256, 4096, 1024},
                                         {512, 4096, 4096}, {32, 256, 256},    {128, 1024, 10},
                                         {512, 1024, 10},   {8, 1024, 4096}};
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    struct pool *one, *many;

    if (threads < 1 || threads > 1024) {
        fprintf(stderr, "usage: bench_gemm [threads]\n");
        return 2;
    }
    cpu_thread_init();
    if (pool_create(1, &one) < 0 || pool_create((uint32_t)threads, &many) < 0) {
        fprintf(stderr, "bench_gemm: cannot create threads\n");
        return 1;
    }
    printf("# %s; GFLOP/s on 1 and on %d threads\n", cpu_numerics(), threads);
    printf("%-11s %5s %5s %5s  %8s %8s  %8s %8s  %6s\n", "op", "m", "n", "k", "ours 1", "dnnl 1", "ours N",
           "dnnl N", "ratio");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        bench_layer(shapes[i][0], shapes[i][1], shapes[i][2], one, many, threads);
    pool_destroy(many);
    pool_destroy(one);
    return 0;
}
