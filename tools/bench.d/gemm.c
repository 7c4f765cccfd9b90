/* bench_gemm: measures GFLOP/s of our matrix products in F32 and BF16 beside those of oneDNN, for the shapes
 * of MLPs and GPTs.
 *
 * Prints one line per shape and op, on N threads: our F32 product, the same product with the other choice of
 * copied operands, dnnl_sgemm with its own threads, our product of BF16 operands, the same product with
 * operands that are widened to float, and two ratios: our F32 product to dnnl_sgemm, and our BF16 product to
 * our F32 product. The products of BF16 operands have a BF16 result, except for the gradient of weights,
 * which is F32. Each number is the best of several repetitions, made alternately, so compare columns of one
 * run and not numbers of two runs. Usage: bench_gemm [threads [shape]], default 2 threads and all shapes.
 * `shape` is the number of a row of `shapes` below, from 0.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/half.h"

#define REPEAT   7
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

static void run_widened(const struct gemm *g, struct pool *pool)
{
    gemm_run_variant(g, GEMM_WIDENED, pool);
}

/* One way to compute a matrix product, and the highest speed that was measured for it. */
struct way {
    void (*run)(const struct gemm *g, struct pool *pool);
    const struct gemm *g;
    int dnnl_threads;
    double gflops;
};

static double once_ns(const struct way *w, struct pool *pool, int times)
{
    double begin = now_ns();
    for (int i = 0; i < times; i++)
        w->run(w->g, pool);
    return (now_ns() - begin) / times;
}

static void measure(struct way *w, struct pool *pool)
{
    omp_set_num_threads(w->dnnl_threads);
    int times = 1 + (int)(LEAST_NS / (once_ns(w, pool, 1) + 1));
    double rate = 2.0 * w->g->m * w->g->n * w->g->k / once_ns(w, pool, times < 1000 ? times : 1000);
    w->gflops = rate > w->gflops ? rate : w->gflops;
}

static void *allocate(size_t bytes)
{
    void *ret = malloc(bytes);
    if (!ret)
        abort();
    return ret;
}

static float *random_floats(size_t n)
{
    float *x = allocate(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((i * 2654435761u >> 7) % 2001) / 1000.0f - 1.0f;
    return x;
}

static void *rounded(const float *x, size_t n)
{
    void *ret = allocate(n * sizeof(uint16_t));
    half_round(DTYPE_BF16, x, ret, n);
    return ret;
}

/* Measures the F32 product `g` and the same product `half` of BF16 operands. */
static void bench(const char *what, const struct gemm *g, const struct gemm *half, struct pool *pool,
                  int threads)
{
    struct way ways[] = {{gemm_run, g, 1, 0},
                         {run_other, g, 1, 0},
                         {run_dnnl, g, threads, 0},
                         {gemm_run, half, 1, 0},
                         {run_widened, half, 1, 0}};
    const size_t n = sizeof ways / sizeof ways[0];

    for (int i = 0; i < REPEAT; i++)
        for (size_t w = 0; w < n; w++)
            measure(&ways[w], pool);
    printf("%-11s %5u %5u %5u ", what, g->m, g->n, g->k);
    for (size_t w = 0; w < n; w++)
        printf(" %8.1f", ways[w].gflops);
    printf("  %6.2f %6.2f\n", ways[0].gflops / ways[2].gflops, ways[3].gflops / ways[0].gflops);
    fflush(stdout);
}

/* The arrays of a linear layer, all of one type. */
struct arrays {
    void *x, *w, *y, *dw;
    enum dtype type;
};

/* Returns the product of op number `op` of a linear layer: 0 is the forward pass, 1 the gradient of its
 * input, and 2 the gradient of its weights, which is always F32. */
static struct gemm product(int op, const struct arrays *a, uint32_t rows, uint32_t in, uint32_t out)
{
    struct gemm g = {.a_type = a->type, .b_type = a->type, .c_type = a->type};

    if (op == 0)
        g.a = a->x, g.b = a->w, g.c = a->y, g.m = rows, g.n = out, g.k = in, g.b_trans = true;
    else if (op == 1)
        g.a = a->y, g.b = a->w, g.c = a->x, g.m = rows, g.n = in, g.k = out;
    else {
        g.a = a->y, g.b = a->x, g.c = a->dw, g.m = out, g.n = in, g.k = rows;
        g.a_trans = g.accumulate = true;
        g.c_type = DTYPE_F32;
    }
    return g;
}

static void bench_layer(uint32_t rows, uint32_t in, uint32_t out, struct pool *pool, int threads)
{
    static const char *const names[] = {"fwd", "bwd_data", "bwd_weight"};
    size_t n_x = (size_t)rows * in, n_w = (size_t)out * in, n_y = (size_t)rows * out;
    float *dw = random_floats(n_w);
    struct arrays f = {random_floats(n_x), random_floats(n_w), random_floats(n_y), dw, DTYPE_F32};
    struct arrays h = {rounded(f.x, n_x), rounded(f.w, n_w), rounded(f.y, n_y), dw, DTYPE_BF16};

    for (int op = 0; op < 3; op++) {
        struct gemm full = product(op, &f, rows, in, out), half = product(op, &h, rows, in, out);
        bench(names[op], &full, &half, pool, threads);
    }
    free(f.x), free(f.w), free(f.y);
    free(h.x), free(h.w), free(h.y);
    free(dw);
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
    int threads = argc > 1 ? atoi(argv[1]) : 2, only = argc > 2 ? atoi(argv[2]) : -1;
    struct pool *pool;

    if (threads < 1 || threads > 1024) {
        fprintf(stderr, "usage: bench_gemm [threads [shape]]\n");
        return 2;
    }
    cpu_thread_init();
    if (pool_create((uint32_t)threads, &pool) < 0) {
        fprintf(stderr, "bench_gemm: cannot create threads\n");
        return 1;
    }
    printf("# F32: %s; BF16: %s; GFLOP/s on %d threads\n", cpu_numerics(), cpu_numerics_bf16(), threads);
    printf("%-11s %5s %5s %5s  %8s %8s %8s %8s %8s  %6s %6s\n", "op", "m", "n", "k", "ours", "other", "dnnl",
           "bf16", "widened", "ours/d", "bf16/o");
    for (int i = 0; i < (int)(sizeof shapes / sizeof shapes[0]); i++)
        if (only < 0 || only == i)
            bench_layer(shapes[i][0], shapes[i][1], shapes[i][2], pool, threads);
    pool_destroy(pool);
    return 0;
}
