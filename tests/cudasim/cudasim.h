/* What a program may ask of the simulator besides CUDA itself. The stand-in libcudart.so.13 exports these;
 * the real one does not, so declare them weak (as here) and test them before use:
 *
 *     if (cudasim_host_access)
 *         cudasim_host_access(weights, bytes, 1);
 *
 * or look the name up with dlsym(RTLD_DEFAULT, "cudasim_host_access"). All may be called from any thread. */
#ifndef CUDASIM_H
#define CUDASIM_H

#include <stddef.h>
#include <stdint.h>

/* "I read (write: I write) these bytes of host memory." Inside a host function (cudaLaunchHostFunc) the
 * access belongs to that operation, also when a helper thread of it calls; elsewhere to the host thread.
 * Only memory from cudaHostAlloc or cudaHostRegister is watched, anything else is ignored. */
void cudasim_host_access(const void *p, size_t bytes, int write) __attribute__((weak));

/* Starts a new case in a program that runs many cases. From now on `seed` determines the order of operations,
 * and a race that was reported before is reported again. All streams must be idle. */
void cudasim_begin(uint64_t seed) __attribute__((weak));

/* Bytes that copies of this device have moved so far: from the host, to the host, to other devices. */
struct cudasim_copied {
    uint64_t in_bytes, out_bytes, peer_bytes;
};
void cudasim_copied(int device, struct cudasim_copied *ret) __attribute__((weak));

/* Distinct races, and problems of all kinds (races too), reported so far. */
uint64_t cudasim_races(void) __attribute__((weak));
uint64_t cudasim_problems(void) __attribute__((weak));

#endif
