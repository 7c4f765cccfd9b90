/* Products of BF16 matrices by oneDNN's matmul primitive.
 *
 * oneDNN has no function for such a product. It has primitives: objects that can compute products of one
 * shape. Making a primitive takes up to several milliseconds, because oneDNN then generates machine code. So
 * each thread keeps the primitives that it made, in a cache. The cache belongs to the thread and needs no
 * lock. It holds at most CACHE_PRIMITIVES primitives, and the one that was used least recently makes room for
 * a new one. The threads share the generated code, because oneDNN itself keeps it in a cache for the process.
 *
 * A primitive is made for one OpenMP thread, because every thread calls cpu_thread_init first. So its order
 * of summation depends on the shape alone.
 *
 * Any thread may call these functions after cpu_thread_init.
 */
#include "kernels/cpu/gemm_bf16.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#include "base/log.h"
#include "kernels/cpu/gemm.h"

/* A step of a transformer uses about fifty shapes of tiles. */
#define CACHE_PRIMITIVES 128
#define CACHE_LINE       64

/* A primitive for products of one shape, and its arguments. find_primitive makes it. The memory objects a, b
 * and c get the addresses of the matrices before each use. */
struct primitive {
    struct gemm_bf16_shape shape;
    dnnl_primitive_t run;
    dnnl_memory_t a, b, c, scratch;
    size_t scratch_bytes;
    uint64_t last_use; /* value of `uses` in the cache */
};

/* The primitives of one thread. The thread makes the cache when it computes its first BF16 product, and the
 * cache is freed when the thread ends. */
struct primitive_cache {
    dnnl_stream_t stream;
    void *scratch; /* memory in which primitives work */
    size_t scratch_bytes;
    uint64_t uses; /* number of products so far */
    uint32_t n;
    struct primitive primitives[CACHE_PRIMITIVES];
};

static dnnl_engine_t engine; /* written once, by process_once */
static pthread_key_t at_exit;
static pthread_once_t process_once = PTHREAD_ONCE_INIT;
static _Thread_local struct primitive_cache *own_cache;

/* Ends the process if a call into oneDNN failed. oneDNN fails here only if it cannot allocate memory. An op
 * cannot return an error. */
static void check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return;
    log_error("%s failed with status %d", what, (int)status);
    abort();
}

static void *check_memory(void *at)
{
    if (at)
        return at;
    log_error("out of memory: a thread needs workspace for a product of BF16 matrices");
    abort();
}

static void finish_primitive(struct primitive *p)
{
    dnnl_primitive_destroy(p->run);
    dnnl_memory_destroy(p->a);
    dnnl_memory_destroy(p->b);
    dnnl_memory_destroy(p->c);
    dnnl_memory_destroy(p->scratch);
}

static void destroy_cache(void *arg)
{
    struct primitive_cache *c = arg;

    for (uint32_t i = 0; i < c->n; i++)
        finish_primitive(&c->primitives[i]);
    dnnl_stream_destroy(c->stream);
    free(c->scratch);
    free(c);
}

static void init_process(void)
{
    check(dnnl_engine_create(&engine, dnnl_cpu, 0), "dnnl_engine_create");
    if (pthread_key_create(&at_exit, destroy_cache) != 0)
        abort();
}

static struct primitive_cache *thread_cache(void)
{
    if (own_cache)
        return own_cache;
    pthread_once(&process_once, init_process);
    own_cache = check_memory(calloc(1, sizeof *own_cache));
    check(dnnl_stream_create(&own_cache->stream, engine, dnnl_stream_default_flags), "dnnl_stream_create");
    if (pthread_setspecific(at_exit, own_cache) != 0)
        check_memory(NULL);
    return own_cache;
}

/* Returns the description of a matrix with `rows` rows and `columns` columns. If `trans` is true, its columns
 * are contiguous in memory, and otherwise its rows. */
static dnnl_memory_desc_t matrix(uint32_t rows, uint32_t columns, uint32_t ld, bool trans,
                                 dnnl_data_type_t type)
{
    dnnl_dims_t dims = {rows, columns}, strides = {trans ? 1 : ld, trans ? ld : 1};
    dnnl_memory_desc_t ret;

    check(dnnl_memory_desc_init_by_strides(&ret, 2, dims, type, strides), "dnnl_memory_desc_init_by_strides");
    return ret;
}

/* Returns the attributes of a primitive: its scratch memory is ours, and it adds to the old c if `accumulate`
 * is true. */
static dnnl_primitive_attr_t attributes(bool accumulate)
{
    dnnl_primitive_attr_t ret;
    dnnl_post_ops_t after;

    check(dnnl_primitive_attr_create(&ret), "dnnl_primitive_attr_create");
    check(dnnl_primitive_attr_set_scratchpad_mode(ret, dnnl_scratchpad_mode_user),
          "dnnl_primitive_attr_set_scratchpad_mode");
    check(dnnl_post_ops_create(&after), "dnnl_post_ops_create");
    if (accumulate)
        check(dnnl_post_ops_append_sum(after, 1.0f), "dnnl_post_ops_append_sum");
    check(dnnl_primitive_attr_set_post_ops(ret, after), "dnnl_primitive_attr_set_post_ops");
    check(dnnl_post_ops_destroy(after), "dnnl_post_ops_destroy");
    return ret;
}

static dnnl_memory_t memory(const dnnl_memory_desc_t *desc)
{
    dnnl_memory_t ret;
    check(dnnl_memory_create(&ret, desc, engine, DNNL_MEMORY_NONE), "dnnl_memory_create");
    return ret;
}

static void init_primitive(struct primitive *p, const struct gemm_bf16_shape *s)
{
    dnnl_memory_desc_t a = matrix(s->m, s->k, s->lda, s->a_trans, dnnl_bf16);
    dnnl_memory_desc_t b = matrix(s->k, s->n, s->ldb, s->b_trans, dnnl_bf16);
    dnnl_memory_desc_t c = matrix(s->m, s->n, s->ldc, false, dnnl_f32);
    dnnl_primitive_attr_t attr = attributes(s->accumulate);
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t desc;

    check(dnnl_matmul_desc_init(&matmul, &a, &b, NULL, &c), "dnnl_matmul_desc_init");
    check(dnnl_primitive_desc_create(&desc, &matmul, attr, engine, NULL), "dnnl_primitive_desc_create");
    *p = (struct primitive){.shape = *s, .a = memory(&a), .b = memory(&b), .c = memory(&c)};
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    p->scratch = memory(scratch);
    p->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    check(dnnl_primitive_create(&p->run, desc), "dnnl_primitive_create");
    check(dnnl_primitive_desc_destroy(desc), "dnnl_primitive_desc_destroy");
    check(dnnl_primitive_attr_destroy(attr), "dnnl_primitive_attr_destroy");
}

/* Returns a free place in the cache. If the cache is full, the primitive that was used least recently makes
 * room. */
static struct primitive *free_place(struct primitive_cache *c)
{
    struct primitive *oldest = &c->primitives[0];

    if (c->n < CACHE_PRIMITIVES)
        return &c->primitives[c->n++];
    for (uint32_t i = 1; i < c->n; i++)
        if (c->primitives[i].last_use < oldest->last_use)
            oldest = &c->primitives[i];
    finish_primitive(oldest);
    return oldest;
}

/* Returns the thread's primitive for the shape *s. Makes the primitive if there is none. */
static struct primitive *find_primitive(struct primitive_cache *c, const struct gemm_bf16_shape *s)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (memcmp(&c->primitives[i].shape, s, sizeof *s) == 0)
            return &c->primitives[i];
    struct primitive *p = free_place(c);
    init_primitive(p, s);
    return p;
}

/* Makes the thread's scratch memory at least `bytes` bytes long. */
static void grow_scratch(struct primitive_cache *c, size_t bytes)
{
    if (bytes <= c->scratch_bytes)
        return;
    free(c->scratch);
    c->scratch_bytes = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    c->scratch = check_memory(aligned_alloc(CACHE_LINE, c->scratch_bytes));
}

/* Gives an address to a memory object. oneDNN does not write to operands, although its function takes a
 * pointer that is not const. */
static void set_address(dnnl_memory_t memory, const void *at)
{
    check(dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)at), "dnnl_memory_set_data_handle");
}

void gemm_bf16_run(const struct gemm_bf16 *g)
{
    struct primitive_cache *c = thread_cache();
    struct primitive *p = find_primitive(c, &g->shape);

    p->last_use = ++c->uses;
    grow_scratch(c, p->scratch_bytes);
    set_address(p->a, g->a);
    set_address(p->b, g->b);
    set_address(p->c, g->c);
    set_address(p->scratch, c->scratch);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->a},
                                    {DNNL_ARG_WEIGHTS, p->b},
                                    {DNNL_ARG_DST, p->c},
                                    {DNNL_ARG_SCRATCHPAD, p->scratch}};
    check(dnnl_primitive_execute(p->run, c->stream, sizeof args / sizeof args[0], args),
          "dnnl_primitive_execute");
}

bool gemm_bf16_in_hardware(void)
{
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    return (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}
