/* The stand-in libcublas.so.13: handles and the matrix products, each one operation of the handle's
 * stream.
 *
 * alpha and beta are read at the call (host pointer mode) or when the product runs (device pointer mode).
 * A product also counts as a write to the handle's workspace: two handles that share one and are not
 * ordered are a race, as with the real library. A matrix whose addresses are wrong poisons the device. */
#include <cublas_v2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "gemm.h"
#include "sim.h"

#define HANDLE_ALIVE    0x424c4153u
#define WORKSPACE_TOUCH 256u /* bytes of it that stand for all */

struct cublasContext {
    uint32_t magic;
    cudaStream_t stream;
    cublasPointerMode_t pointer_mode;
    cublasMath_t math_mode;
    void *workspace;
    size_t workspace_bytes;
};

struct matrix {
    const void *p;
    enum gemm_type type;
    bool transpose;
    uint32_t rows, columns; /* as stored, column-major */
    uint32_t ld;
    long long stride; /* elements from one of the batch to the next */
};

struct product {
    uint32_t m, n, k, batch;
    struct matrix a, b, c;
    float alpha, beta;
    const float *alpha_at, *beta_at; /* device pointer mode, or NULL */
    void *workspace;
    size_t workspace_bytes;
};

/* Checks and finds the i-th matrix of a batch. Columns are checked one by one: what lies between them is
 * not touched. */
static void *resolve(const struct matrix *x, uint32_t i, bool read, bool write)
{
    const uint32_t size = gemm_bytes(x->type);
    const char *p = (const char *)x->p + (long long)i * x->stride * size;
    void *first = NULL;

    for (uint32_t j = 0; j < x->columns; j++) {
        const char *column = p + (uint64_t)j * x->ld * size;
        void *data = NULL;

        if (read)
            data = cudasim_access(column, (size_t)x->rows * size, 0);
        if (write && (data || !read))
            data = cudasim_access(column, (size_t)x->rows * size, 1);
        if (!data)
            return NULL;
        if (j == 0)
            first = data;
    }
    return first;
}

static bool scalar(const float *at, float *value)
{
    const float *p = at ? cudasim_access(at, sizeof *p, 0) : value;

    if (p)
        *value = *p;
    return p != NULL;
}

static void run(void *data)
{
    struct product *p = data;

    if (!scalar(p->alpha_at, &p->alpha) || !scalar(p->beta_at, &p->beta))
        return;
    if (p->workspace && !cudasim_access(p->workspace, p->workspace_bytes, 1))
        return;
    for (uint32_t i = 0; i < p->batch; i++) {
        const struct gemm_factor a = {p->k ? resolve(&p->a, i, true, false) : NULL, p->a.ld, p->a.transpose,
                                      p->a.type},
                                 b = {p->k ? resolve(&p->b, i, true, false) : NULL, p->b.ld, p->b.transpose,
                                      p->b.type};
        void *c = resolve(&p->c, i, p->beta != 0, true);

        if (!c || (p->k && (!a.p || !b.p)))
            return;
        gemm(p->m, p->n, p->k, p->alpha, &a, &b, p->beta, c, p->c.ld, p->c.type);
    }
}

static cublasStatus_t status_of(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return CUBLAS_STATUS_SUCCESS;
    case cudaErrorMemoryAllocation:
    case cudaErrorLaunchOutOfResources:
        return CUBLAS_STATUS_ALLOC_FAILED;
    case cudaErrorInvalidResourceHandle:
        return CUBLAS_STATUS_INVALID_VALUE;
    default:
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
}

static bool alive(cublasHandle_t h)
{
    return h && h->magic == HANDLE_ALIVE;
}

static struct matrix matrix(const void *p, enum gemm_type type, cublasOperation_t op, int rows, int columns,
                            int ld, long long stride)
{
    bool transpose = op != CUBLAS_OP_N;

    return (struct matrix){p,
                           type,
                           transpose,
                           (uint32_t)(transpose ? columns : rows),
                           (uint32_t)(transpose ? rows : columns),
                           (uint32_t)ld,
                           stride};
}

static cublasStatus_t product(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                              int k, const float *alpha, const void *a, int lda, long long stride_a,
                              const void *b, int ldb, long long stride_b, const float *beta, void *c, int ldc,
                              long long stride_c, int batch, enum gemm_type type, enum gemm_type c_type)
{
    struct product p;

    if (!alive(h))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || k < 0 || batch < 0 || !alpha || !beta)
        return CUBLAS_STATUS_INVALID_VALUE;
    p = (struct product){.m = (uint32_t)m,
                         .n = (uint32_t)n,
                         .k = (uint32_t)k,
                         .batch = (uint32_t)batch,
                         .a = matrix(a, type, op_a, m, k, lda, stride_a),
                         .b = matrix(b, type, op_b, k, n, ldb, stride_b),
                         .c = matrix(c, c_type, CUBLAS_OP_N, m, n, ldc, stride_c),
                         .workspace = h->workspace,
                         .workspace_bytes = h->workspace_bytes};
    if (lda < 1 || ldb < 1 || ldc < 1 || p.a.ld < p.a.rows || p.b.ld < p.b.rows || p.c.ld < p.c.rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (m == 0 || n == 0 || batch == 0)
        return CUBLAS_STATUS_SUCCESS;
    if (h->pointer_mode == CUBLAS_POINTER_MODE_HOST) {
        p.alpha = *alpha;
        p.beta = *beta;
    } else {
        p.alpha_at = alpha;
        p.beta_at = beta;
    }
    return status_of(cudasim_enqueue(h->stream, "gemm", run, &p, sizeof p, 2.0 * m * n * k * batch));
}

/* ---- the calls ---------------------------------------------------------- */

cublasStatus_t cublasSgemm_v2(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                              int k, const float *alpha, const float *a, int lda, const float *b, int ldb,
                              const float *beta, float *c, int ldc)
{
    return product(h, op_a, op_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1, GEMM_F32,
                   GEMM_F32);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b,
                                         int m, int n, int k, const float *alpha, const float *a, int lda,
                                         long long stride_a, const float *b, int ldb, long long stride_b,
                                         const float *beta, float *c, int ldc, long long stride_c, int batch)
{
    return product(h, op_a, op_b, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc, stride_c,
                   batch, GEMM_F32, GEMM_F32);
}

static bool type_of(cudaDataType type, enum gemm_type *ret)
{
    *ret = type == CUDA_R_16BF ? GEMM_BF16 : type == CUDA_R_16F ? GEMM_F16 : GEMM_F32;
    return type == CUDA_R_32F || type == CUDA_R_16BF || type == CUDA_R_16F;
}

/* The combinations of types that compute in float. The real library has more, which are refused here. */
static bool is_supported(enum gemm_type type, enum gemm_type c_type, cublasComputeType_t compute)
{
    if (c_type != type && c_type != GEMM_F32)
        return false;
    return compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
           (compute == CUBLAS_COMPUTE_32F_FAST_TF32 && type == GEMM_F32);
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                            int k, const void *alpha, const void *a, cudaDataType type_a, int lda,
                            const void *b, cudaDataType type_b, int ldb, const void *beta, void *c,
                            cudaDataType type_c, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t algorithm)
{
    enum gemm_type type, c_gemm_type;

    (void)algorithm;
    if (type_a != type_b || !type_of(type_a, &type) || !type_of(type_c, &c_gemm_type) ||
        !is_supported(type, c_gemm_type, compute))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (compute == CUBLAS_COMPUTE_32F_FAST_TF32)
        type = GEMM_TF32;
    return product(h, op_a, op_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1, type,
                   c_gemm_type);
}

cublasStatus_t cublasCreate_v2(cublasHandle_t *h)
{
    *h = calloc(1, sizeof **h);
    if (!*h)
        return CUBLAS_STATUS_ALLOC_FAILED;
    (*h)->magic = HANDLE_ALIVE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t h)
{
    if (!alive(h))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    h->magic = 0;
    free(h);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t stream)
{
    if (!alive(h))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    h->stream = stream;
    h->workspace = NULL; /* the real one forgets it here too */
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t h, cudaStream_t *stream)
{
    if (!alive(h))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *stream = h->stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t h, void *workspace, size_t bytes)
{
    if (!alive(h))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if ((uintptr_t)workspace % 256 != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    h->workspace = bytes > 0 ? workspace : NULL;
    h->workspace_bytes = bytes < WORKSPACE_TOUCH ? bytes : WORKSPACE_TOUCH;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t mode)
{
    if (!alive(h))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (mode == CUBLAS_TF32_TENSOR_OP_MATH)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    h->math_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t h, cublasMath_t *mode)
{
    if (!alive(h))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *mode = h->math_mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t mode)
{
    if (!alive(h))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    h->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t h, cublasAtomicsMode_t mode)
{
    (void)mode;
    return alive(h) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t h, int *version)
{
    (void)h;
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value)
{
    *value = type == MAJOR_VERSION   ? CUBLAS_VER_MAJOR
             : type == MINOR_VERSION ? CUBLAS_VER_MINOR
                                     : CUBLAS_VER_PATCH;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    return cublasGetStatusName(status);
}
