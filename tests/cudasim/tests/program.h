/* Shared by the test programs: one case each, run by name; it returns to say that all is well, and exits
 * with a message otherwise. */
#ifndef CUDASIM_TESTS_PROGRAM_H
#define CUDASIM_TESTS_PROGRAM_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(x)                                                                                           \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            printf("%s:%d: %s is not so\n", __FILE__, __LINE__, #x);                                         \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        cudaError_t e_ = (call);                                                                             \
        if (e_ != cudaSuccess) {                                                                             \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(e_));                      \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

struct program_case {
    const char *name;
    void (*run)(int argc, char **argv);
};

/* Runs the case argv[1] of the table, with the arguments after it. */
int program_main(const struct program_case *cases, size_t n, int argc, char **argv);

void *device_memory(size_t bytes);
void *to_device(const void *p, size_t bytes);
void *from_device(const void *p, size_t bytes); /* malloc'ed */
void *pinned(size_t bytes);
cudaStream_t new_stream(void);
cudaEvent_t new_event(void);

uint32_t random32(void);  /* the same sequence in every run */
float random_float(void); /* -8..8, with some zeros, denormals and large ones */

#endif
