/* Launchers of the test kernels. */
#ifndef CUDASIM_TESTS_KERNELS_H
#define CUDASIM_TESTS_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

struct mixed {
    float by;
    float values[4];
    int which;
    int8_t bytes[3];
};

enum wrong {
    WRONG_BARRIER,
    WRONG_BEYOND,
    WRONG_LANE,
    WRONG_MASK,
    WRONG_MISALIGNED,
    WRONG_SHARED,
    WRONG_TRAP
};

#ifdef __cplusplus
extern "C" {
#endif

void launch_add(const float *a, const float *b, float *c, uint64_t n, cudaStream_t s);
void launch_scale4(float *x, float by, uint64_t n, cudaStream_t s);
void launch_ieee(const float *a, const float *b, const float *c, float *out, uint64_t n, cudaStream_t s);
void launch_ieee_double(const double *a, const double *b, const double *c, double *out, uint64_t n,
                        cudaStream_t s);
void launch_functions(const float *x, float *out, uint64_t n, cudaStream_t s);
void launch_integers(const uint32_t *x, const uint32_t *y, uint64_t *out, uint64_t n, cudaStream_t s);
void launch_convert(const float *x, int64_t *out, uint64_t n, cudaStream_t s);
void launch_philox(uint32_t *out, uint64_t n, uint64_t seed, cudaStream_t s);
void launch_reduce(const float *x, double *out, uint64_t n, int barriers, cudaStream_t s);
void launch_warp(const uint32_t *x, uint32_t *out, unsigned lanes, cudaStream_t s);
void launch_atomics(uint32_t *x, float *f, unsigned long long *w, cudaStream_t s);
cudaError_t launch_mixed(float *out, const struct mixed *m, int n, size_t shared_bytes, cudaStream_t s);
cudaError_t allow_shared(int bytes);
void launch_wrong(enum wrong what, float *x, uint64_t n, cudaStream_t s);
void launch_exact(const float *a, const float *b, const float *c, float *out, uint64_t n, cudaStream_t s);

#ifdef __cplusplus
}
#endif
#endif
