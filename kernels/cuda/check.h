/* How the cuda backend reports a failed CUDA call.
 *
 * The first failure of a devset is logged with the source line, the call and CUDA's own words, and the
 * error that the runtime stores is cleared. The caller gets an errno: -ENOMEM if memory ran out, -ENODEV
 * if a device is missing or gone, -EIO for anything else. After a failure the state of the devices' queues
 * is unknown. So the devset remembers the first code and answers every later call with it.
 *
 * C and CUDA C files include this header.
 */
#ifndef KERNELS_CUDA_CHECK_H
#define KERNELS_CUDA_CHECK_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

struct backend_host;
/* The table of functions that the program lends to the module. It is set before anything else runs. */
extern const struct backend_host *cuda_host;

/* Whether a devset has failed. Enqueueing thread only. */
struct cuda_fault {
    int code; /* errno of the first failure, or 0 */
};

/* Returns the errno for e, or 0 for cudaSuccess. Clears the runtime's stored error. */
int cuda_errno(cudaError_t e);

/* cuda_check and cublas_check return 0 for success. Otherwise they log the failure if it is the first one,
 * remember it in f, and return its errno. */
int cuda_check(struct cuda_fault *f, cudaError_t e, const char *call, const char *file, int line);
int cublas_check(struct cuda_fault *f, int status, const char *call, const char *file, int line);

#define CUDA_CHECK(fault, call)   cuda_check(fault, call, #call, __FILE__, __LINE__)
#define CUBLAS_CHECK(fault, call) cublas_check(fault, (int)(call), #call, __FILE__, __LINE__)

/* CUDA_TRY and CUBLAS_TRY return from the calling function if the call fails. */
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
