/* bench_gemm: measures GFLOP/s of our matrix products beside those of oneDNN, for the shapes of MLPs and
 * GPTs.
 *
 * Prints one line per shape and op, on N threads: our product, the same product with the other choice of
 * copied operands, dnnl_sgemm with its own threads, and the ratio of ours to dnnl_sgemm. Each number is the
 * best of several repetitions, made alternately, so compare columns of one run and not numbers of two runs.
 * Usage: bench_gemm [threads], default 2.
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

static void run_dnnl(const struct gemm *g, struct pool *pool)
{
    (void)pool;
    dnnl_sgemm(g->a_trans ? 'T' : 'N', g->b_trans ? 'T' : 'N', g->m, g->n, g->k, 1.0f, g->a,
               g->a_trans ? g->m : g->k, g->b, g->b_trans ? g->k : g->n, g->accumulate ? 1.0f : 0.0f, g->c,
               g->n);
}

static void run_other(const struct gemm *g, struct pool *pool)
{
    gemm_run_variant(g, GEMM_OTHER_COPIES, pool);
}

/* One way to compute a matrix product, and the highest speed that was measured for it. */
struct way {
    void (*run)(const struct gemm *g, struct pool *pool);
    int dnnl_threads;
    double gflops;
};

static double once_ns(const struct gemm *g, const struct way *w, struct pool *pool, int times)
{
    double begin = now_ns();
    for (int i = 0; i < times; i++)
        w->run(g, pool);
    return (now_ns() - begin) / times;
}

static void measure(const struct gemm *g, struct way *w, struct pool *pool)
{
    omp_set_num_threads(w->dnnl_threads);
    int times = 1 + (int)(LEAST_NS / (once_ns(g, w, pool, 1) + 1));
    double rate = 2.0 * g->m * g->n * g->k / once_ns(g, w, pool, times < 1000 ? times : 1000);
    w->gflops = rate > w->gflops ? rate : w->gflops;
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

static void bench(const char *what, struct gemm g, struct pool *pool, int threads)
{
    struct way ways[] = {{gemm_run, 1, 0}, {run_other, 1, 0}, {run_dnnl, threads, 0}};

    gemm_run(&g, pool);
    for (int i = 0; i < REPEAT; i++)
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++)
            measure(&g, &ways[w], pool);
    printf("%-11s %5u %5u %5u  %8.1f %8.1f %8.1f  %6.2f\n", what, g.m, g.n, g.k, ways[0].gflops,
           ways[1].gflops, ways[2].gflops, ways[0].gflops / ways[2].gflops);
    fflush(stdout);
}

static void bench_layer(uint32_t rows, uint32_t in, uint32_t out, struct pool *pool, int threads)
{
    float *x = random_floats((size_t)rows * in), *w = random_floats((size_t)out * in);
    float *y = random_floats((size_t)rows * out);

    struct gemm fwd = {.a = x, .b = w, .c = y, .m = rows, .n = out, .k = in, .b_trans = true};
    struct gemm bwd_data = {.a = y, .b = w, .c = x, .m = rows, .n = in, .k = out};
    struct gemm bwd_weight = {.a = y, .b = x, .c = w, .m = out, .n = in, .k = rows, .a_trans = true};

    bwd_weight.accumulate = true;
    bench("fwd", fwd, pool, threads);
    bench("bwd_data", bwd_data, pool, threads);
    bench("bwd_weight", bwd_weight, pool, threads);
    free(x);
    free(w);
    free(y);
}

int main(int argc, char **argv)
{
    /* The shapes to measure, each as {rows, in, out}. They come from MLPs, from a GPT with 6 layers of width
     * 384 on 1 and 8 sequences of 256 tokens, and from GPT-2 124M on 1,024 tokens. The last shape is a part
     * of the output layer of GPT-2. */
    static const uint32_t shapes[][3] = {
        {32, 1024, 1024},  {128, 784, 1024},  {128, 1024, 1024}, {512, 1024, 1024}, {512, 4096, 4096},
        {128, 1024, 10},   {8, 1024, 4096},   {256, 384, 1152},  {256, 384, 384},   {256, 384, 1536},
        {256, 1536, 384},  {2048, 384, 384},  {2048, 384, 1536}, {1024, 768, 2304}, {1024, 768, 768},
        {1024, 768, 3072}, {1024, 3072, 768}, {128, 768, 50257}};
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    struct pool *pool;

    if (threads < 1 || threads > 1024) {
        fprintf(stderr, "usage: bench_gemm [threads]\n");
        return 2;
    }
    cpu_thread_init();
    if (pool_create((uint32_t)threads, &pool) < 0) {
        fprintf(stderr, "bench_gemm: cannot create threads\n");
        return 1;
    }
    printf("# %s; GFLOP/s on %d threads\n", cpu_numerics(), threads);
    printf("%-11s %5s %5s %5s  %8s %8s %8s  %6s\n", "op", "m", "n", "k", "ours", "other", "dnnl", "ratio");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        bench_layer(shapes[i][0], shapes[i][1], shapes[i][2], pool, threads);
    pool_destroy(pool);
    return 0;
}
