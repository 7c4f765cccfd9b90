/* See program.h. */
#include "program.h"

#include <math.h>
#include <string.h>

int program_main(const struct program_case *cases, size_t n, int argc, char **argv)
{
    for (size_t i = 0; i < n && argc > 1; i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run(argc - 2, argv + 2);
            return 0;
        }
    fprintf(stderr, "usage: %s CASE [ARGUMENTS]\n", argv[0]);
    return 2;
}

void *device_memory(size_t bytes)
{
    void *p;

    CHECK(cudaMalloc(&p, bytes));
    return p;
}

void *to_device(const void *p, size_t bytes)
{
    void *d = device_memory(bytes);

    CHECK(cudaMemcpy(d, p, bytes, cudaMemcpyHostToDevice));
    return d;
}

void *from_device(const void *p, size_t bytes)
{
    void *h = malloc(bytes);

    REQUIRE(h);
    CHECK(cudaMemcpy(h, p, bytes, cudaMemcpyDeviceToHost));
    return h;
}

void *pinned(size_t bytes)
{
    void *p;

    CHECK(cudaHostAlloc(&p, bytes, cudaHostAllocPortable));
    return p;
}

cudaStream_t new_stream(void)
{
    cudaStream_t s;

    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

cudaEvent_t new_event(void)
{
    cudaEvent_t e;

    CHECK(cudaEventCreateWithFlags(&e, cudaEventDefault));
    return e;
}

uint32_t random32(void)
{
    static uint64_t x = 88172645463325252ULL;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return (uint32_t)(x >> 20);
}

float random_float(void)
{
    float v = (float)(int32_t)random32() / 268435456.0f;

    switch (random32() % 32) {
    case 0:
        return 0;
    case 1:
        return v * 0x1p-128f;
    case 2:
        return v * 0x1p100f;
    default:
        return v;
    }
}
