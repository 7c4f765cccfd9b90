/* Implements check.h: logs the first failed CUDA call, clears CUDA's stored error, and returns an errno.
 * Only the enqueueing thread runs this code. */
#include "kernels/cuda/check.h"

#include <errno.h>

#include <cublas_v2.h>

#include "base/log.h"
#include "kernels/backend.h"

const struct backend_host *cuda_host;

/* If this is the first failure of the devset, logs it and stores it in `f`. Returns `code`, which is a
 * negative errno. */
static int remember_fault(struct cuda_fault *f, int code, const char *call, const char *what,
                          const char *file, int line)
{
    if (f->code == 0) {
        cuda_host->log(LOG_ERROR, "cuda: %s:%d: %s: %s", file, line, call, what);
        f->code = code;
    }
    return code;
}

int cuda_errno(cudaError_t e)
{
    if (e == cudaSuccess)
        return 0;
    /* Clear the error that the CUDA runtime has stored. Otherwise a later call would report this error
     * again. */
    cudaGetLastError();
    switch (e) {
    case cudaErrorMemoryAllocation:
        return -ENOMEM;
    case cudaErrorContextIsDestroyed:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorNoDevice:
        return -ENODEV;
    default:
        return -EIO;
    }
}

int cuda_check(struct cuda_fault *f, cudaError_t e, const char *call, const char *file, int line)
{
    return e == cudaSuccess ? 0 : remember_fault(f, cuda_errno(e), call, cudaGetErrorString(e), file, line);
}

int cublas_check(struct cuda_fault *f, int status, const char *call, const char *file, int line)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    cudaGetLastError();
    return remember_fault(f, status == CUBLAS_STATUS_ALLOC_FAILED ? -ENOMEM : -EIO, call,
                          cublasGetStatusString((cublasStatus_t)status), file, line);
}
