/* Inside the cuda backend: how a failed CUDA call is reported.
 *
 * A failure is logged once per devset, with the place, the call and CUDA's own words; the error that the
 * runtime keeps is cleared; and the caller gets an errno: -ENOMEM out of memory, -ENODEV a device that is not
 * there or gone, -EIO anything else. What is queued on the devices after a failure is in no known state, so
 * the devset remembers the first code and answers every later call with it.
 *
 * Included by C and by CUDA C.
 */
#ifndef KERNELS_CUDA_CHECK_H
#define KERNELS_CUDA_CHECK_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

struct backend_host;
extern const struct backend_host *cuda_host; /* what the program lends the module; set before anything else */

struct cuda_fault { /* enqueueing thread only */
    int code;       /* of the first failure, or 0 */
};

/* Clears the runtime's stored error. 0 for cudaSuccess. */
int cuda_errno(cudaError_t e);

/* Logs, remembers and returns; 0 for cudaSuccess. */
int cuda_check(struct cuda_fault *f, cudaError_t e, const char *call, const char *file, int line);
int cublas_check(struct cuda_fault *f, int status, const char *call, const char *file, int line);

#define CUDA_CHECK(fault, call)   cuda_check(fault, call, #call, __FILE__, __LINE__)
#define CUBLAS_CHECK(fault, call) cublas_check(fault, (int)(call), #call, __FILE__, __LINE__)

/* Returns from the function when the call fails. */
#define CUDA_TRY(fault, call)                                                                                \
    do {                                                                                                     \
        int try_result = CUDA_CHECK(fault, call);                                                            \
        if (try_result < 0)                                                                                  \
            return try_result;                                                                               \
    } while (0)
#define CUBLAS_TRY(fault, call)                                                                              \
    do {                                                                                                     \
        int try_result = CUBLAS_CHECK(fault, call);                                                          \
        if (try_result < 0)                                                                                  \
            return try_result;                                                                               \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
