/* How the cuda backend reports a failed CUDA call.
 *
 * The first failure of a devset is logged with the source line, the call and CUDA's own message, and the
 * error that the runtime stores is cleared. The caller gets an errno: -ENOMEM if memory ran out, -ENODEV
 * if a device is missing or gone, -EIO for anything else. After a failure the state of the devices' queues
 * is unknown. So the devset remembers the first code and returns it from every later call.
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
/* The functions of the program that this module calls. tutti_backend sets the pointer before any other
 * function of the module runs. */
extern const struct backend_host *cuda_host;

/* The first failed CUDA call of a devset, if there was one. Only the enqueueing thread uses this struct. */
struct cuda_fault {
    int code; /* errno of the first failure, or 0 */
};

/* Returns the negative errno for CUDA error `e`, or 0 for cudaSuccess. The CUDA runtime stores its last
 * error. This function clears the stored error, so that no later call reports it again. */
int cuda_errno(cudaError_t e);

/* cuda_check and cublas_check return 0 if the call succeeded, and a negative errno if it failed. The first
 * failure is logged and stored in `f`. */
int cuda_check(struct cuda_fault *f, cudaError_t e, const char *call, const char *file, int line);
int cublas_check(struct cuda_fault *f, int status, const char *call, const char *file, int line);

#define CUDA_CHECK(fault, call)   cuda_check(fault, call, #call, __FILE__, __LINE__)
#define CUBLAS_CHECK(fault, call) cublas_check(fault, (int)(call), #call, __FILE__, __LINE__)

/* CUDA_TRY and CUBLAS_TRY make a call. If the call fails, they return its errno from the function in which
 * they are used. */
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
