/* Programs about memory, devices and errors, right and wrong. test_cudasim.py runs them and reads the
 * simulator's report. */
#include <string.h>

#include "kernels.h"
#include "program.h"

#define N     1000u
#define BYTES (N * sizeof(float))

/* ---- memory ------------------------------------------------------------- */

static void case_out_of_memory(int argc, char **argv)
{
    size_t piece = 1 << 20, free_bytes, total_bytes;
    void *p[64], *one_more;
    int n = 0;

    (void)argc, (void)argv;
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    REQUIRE(free_bytes == total_bytes);
    while (cudaMalloc(&p[n], piece) == cudaSuccess)
        n++;
    REQUIRE(cudaGetLastError() == cudaErrorMemoryAllocation && p[n] == NULL);
    REQUIRE((size_t)n == total_bytes / piece);
    CHECK(cudaFree(p[0]));
    CHECK(cudaMalloc(&one_more, piece)); /* not sticky */
    REQUIRE(one_more != p[0]);           /* an old pointer stays wrong */
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    REQUIRE(free_bytes == total_bytes - (size_t)n * piece);
    for (int i = 1; i < n; i++)
        CHECK(cudaFree(p[i]));
    CHECK(cudaFree(one_more));
}

/* Byte counters: what test_cudasim.py expects is in it. */
static void case_counters(int argc, char **argv)
{
    char *a = pinned(10000), *d, *f;
    void *registered = aligned_alloc(4096, 8192);
    cudaStream_t s;

    (void)argc, (void)argv;
    CHECK(cudaSetDevice(1));
    f = device_memory(10000);
    CHECK(cudaSetDevice(0));
    d = device_memory(10000);
    s = new_stream();
    CHECK(cudaHostRegister(registered, 8192, cudaHostRegisterPortable));
    REQUIRE(cudaHostRegister(registered, 10, 0) == cudaErrorHostMemoryAlreadyRegistered);
    memset(registered, 1, 8192);
    CHECK((cudaGetLastError(), cudaMemcpyAsync(d, a, 1001, cudaMemcpyHostToDevice, s)));
    CHECK(cudaMemcpyAsync(d, registered, 8000, cudaMemcpyHostToDevice, s));
    CHECK(cudaMemcpyAsync(a, d + 1, 333, cudaMemcpyDeviceToHost, s));
    CHECK(cudaMemcpyAsync(d, d + 5000, 500, cudaMemcpyDeviceToDevice, s));
    CHECK(cudaMemcpyPeerAsync(f, 1, d, 0, 700, s));
    CHECK(cudaMemcpyAsync(d, f, 70, cudaMemcpyDefault, s));
    CHECK(cudaMemsetAsync(d, 0, 9, s));
    CHECK(cudaMemcpyAsync(a, registered, 4000, cudaMemcpyHostToHost, s)); /* counted nowhere */
    CHECK(cudaStreamSynchronize(s));
    CHECK(cudaMemcpy(d, "text", 5, cudaMemcpyHostToDevice)); /* not pinned */
    CHECK(cudaHostUnregister(registered));
}

static void case_leaks(int argc, char **argv)
{
    (void)argc, (void)argv;
    device_memory(1000);
    CHECK(cudaFree(device_memory(5000)));
    pinned(300);
    CHECK(cudaFreeHost(pinned(300)));
    new_stream();
    new_event();
    CHECK(cudaEventDestroy(new_event()));
}

static void case_deref(int argc, char **argv)
{
    volatile float *d = device_memory(64);

    (void)argc, (void)argv;
    printf("%f\n", (double)d[0]);
}

static void case_bad_copies(int argc, char **argv)
{
    char *a = pinned(1000), *d = device_memory(1000), *old = device_memory(1000);

    (void)argc, (void)argv;
    CHECK(cudaFree(old));
    REQUIRE(cudaMemcpy(d, a, 1001, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    REQUIRE(cudaMemcpy(d, a, 10, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    REQUIRE(cudaMemcpy(old, a, 10, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    REQUIRE(cudaMemsetAsync(d + 999, 0, 2, NULL) == cudaErrorInvalidValue);
    REQUIRE(cudaFree(old) == cudaErrorInvalidValue);
    REQUIRE(cudaMemcpyPeerAsync(d, 1, d, 0, 10, NULL) == cudaErrorInvalidValue);
    cudaGetLastError();
    CHECK(cudaMemcpy(d, a, 1000, cudaMemcpyHostToDevice));
}

/* Neighbours that are registered one by one: a copy lies in one of them, or in none. */
static void case_registered(int argc, char **argv)
{
    char *host = aligned_alloc(4096, 4 * 4096), *d = device_memory(4 * 4096);
    cudaStream_t s = new_stream();

    (void)argc, (void)argv;
    memset(host, 1, 4 * 4096);
    CHECK(cudaHostRegister(host + 4096, 4096, cudaHostRegisterPortable));
    CHECK(cudaHostRegister(host + 2 * 4096, 4096, cudaHostRegisterPortable));
    REQUIRE(cudaHostRegister(host, 4 * 4096, 0) ==
            cudaErrorHostMemoryAlreadyRegistered); /* they lie inside */
    REQUIRE(cudaHostRegister(host, 4097, 0) == cudaErrorHostMemoryAlreadyRegistered);
    cudaGetLastError();
    CHECK(cudaMemcpyAsync(d, host + 4096, 4096, cudaMemcpyHostToDevice, s));
    CHECK(cudaMemcpyAsync(d, host + 2 * 4096, 4096, cudaMemcpyHostToDevice, s));
    CHECK(cudaMemcpyAsync(d, host + 3 * 4096, 4096, cudaMemcpyHostToDevice, s)); /* pageable: staged */
    REQUIRE(cudaMemcpyAsync(d, host + 4096, 4097, cudaMemcpyHostToDevice, s) == cudaErrorInvalidValue);
    REQUIRE(cudaMemcpyAsync(host + 2 * 4096 - 1, d, 2, cudaMemcpyDeviceToHost, s) == cudaErrorInvalidValue);
    REQUIRE(cudaMemcpyAsync(d, host + 3 * 4096 - 1, 2, cudaMemcpyHostToDevice, s) == cudaErrorInvalidValue);
    REQUIRE(cudaMemcpyAsync(host + 4095, d, 2, cudaMemcpyDeviceToHost, s) == cudaErrorInvalidValue);
    REQUIRE(cudaMemcpyAsync(d, host, 4 * 4096, cudaMemcpyHostToDevice, s) == cudaErrorInvalidValue);
    cudaGetLastError();
    REQUIRE(cudaHostUnregister(host) == cudaErrorHostMemoryNotRegistered);
    REQUIRE(cudaFreeHost(host + 4096) == cudaErrorInvalidValue);
    cudaGetLastError();
    CHECK(cudaHostUnregister(host + 4096));
    CHECK(cudaHostUnregister(host + 2 * 4096));
    CHECK(cudaMemcpyAsync(d, host, 4 * 4096, cudaMemcpyHostToDevice, s)); /* all of it pageable again */
    CHECK(cudaStreamSynchronize(s));
    free(host);
}

/* A kernel that reads freed memory, or memory of a device that is no peer yet. */
static void case_reach(int argc, char **argv)
{
    int free_it = argc > 0 && strcmp(argv[0], "freed") == 0;
    float *d = device_memory(BYTES), *f;

    CHECK(cudaSetDevice(1));
    f = device_memory(BYTES);
    CHECK(cudaMemset(f, 0, BYTES));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaSetDevice(0));
    if (argc > 0 && strcmp(argv[0], "peer") == 0)
        CHECK(cudaDeviceEnablePeerAccess(1, 0));
    if (free_it)
        CHECK(cudaFree(f));
    launch_add(f, f, d, N, NULL);
    printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
}

/* ---- errors ------------------------------------------------------------- */

static void case_wrong(int argc, char **argv)
{
    static const char *const names[] = {"barrier", "beyond", "lane", "mask", "misaligned", "shared", "trap"};
    float *x = device_memory(64 * 4);
    void *more;

    REQUIRE(argc == 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], argv[0]) == 0)
            launch_wrong((enum wrong)i, x, 64, NULL);
    CHECK(cudaGetLastError()); /* a launch does not know yet */
    printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    printf("%s\n", cudaGetErrorName(cudaMalloc(&more, 16))); /* sticky */
    printf("%s\n", cudaGetErrorName(cudaDeviceReset()));
    printf("%s\n", cudaGetErrorName(cudaMalloc(&more, 16)));
}

static int host_functions;

static void count_calls(void *data)
{
    (void)data;
    host_functions++;
}

static void note(int n, const char *what, cudaError_t e)
{
    if (e != cudaSuccess)
        printf("%d %s %s\n", n, what, cudaGetErrorName(e));
    cudaGetLastError();
}

/* Twenty rounds of one of each call, on two devices; prints what fails. Ends with what each device says. */
static void case_faults(int argc, char **argv)
{
    float *a = pinned(BYTES);
    cudaStream_t s[2];
    cudaEvent_t e[2];
    float *d[2];

    (void)argc, (void)argv;
    memset(a, 0, BYTES);
    for (int i = 0; i < 2; i++) {
        CHECK(cudaSetDevice(i));
        s[i] = new_stream();
        e[i] = new_event();
        d[i] = device_memory(BYTES);
    }
    for (int n = 1; n <= 20; n++)
        for (int i = 0; i < 2; i++) {
            void *p = NULL;

            cudaSetDevice(i);
            note(n, "malloc", cudaMalloc(&p, 100));
            note(n, "free", cudaFree(p));
            note(n, "memcpy", cudaMemcpyAsync(d[i], a, BYTES, cudaMemcpyHostToDevice, s[i]));
            launch_add(d[i], d[i], d[i], N, s[i]);
            note(n, "launch", cudaGetLastError());
            note(n, "hostfunc", cudaLaunchHostFunc(s[i], count_calls, NULL));
            note(n, "record", cudaEventRecord(e[i], s[i]));
            note(n, "sync", cudaEventSynchronize(e[i]));
        }
    for (int i = 0; i < 2; i++) {
        cudaSetDevice(i);
        printf("device %d: %s\n", i, cudaGetErrorName(cudaDeviceSynchronize()));
        cudaDeviceReset();
        printf("after reset: %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    }
    printf("%d host functions\n", host_functions);
}

static void case_devices(int argc, char **argv)
{
    struct cudaDeviceProp p;
    int n = -1, v;
    char text[32];

    (void)argc, (void)argv;
    CHECK(cudaGetDeviceCount(&n));
    REQUIRE(n == 3);
    CHECK(cudaGetDeviceProperties(&p, 2));
    REQUIRE(p.totalGlobalMem == 8 << 20 && p.major == 8 && p.warpSize == 32);
    REQUIRE(cudaGetDeviceProperties(&p, 3) == cudaErrorInvalidDevice &&
            cudaSetDevice(-1) == cudaErrorInvalidDevice);
    CHECK((cudaGetLastError(), cudaDeviceGetAttribute(&v, cudaDevAttrComputeCapabilityMajor, 0)));
    REQUIRE(v == 8);
    CHECK(cudaDeviceGetPCIBusId(text, sizeof text, 1));
    REQUIRE(strcmp(text, "0000:02:00.0") == 0);
    CHECK(cudaDeviceCanAccessPeer(&v, 0, 1));
    REQUIRE(v == 1);
    CHECK(cudaRuntimeGetVersion(&v));
    REQUIRE(v == CUDART_VERSION);
    CHECK(cudaDeviceEnablePeerAccess(1, 0));
    REQUIRE(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessAlreadyEnabled);
}

/* What is free of each; and that no more can be had. */
static void case_free(int argc, char **argv)
{
    size_t free_bytes, total_bytes;
    int n;
    void *p;

    (void)argc, (void)argv;
    CHECK(cudaGetDeviceCount(&n));
    for (int i = 0; i < n; i++) {
        CHECK(cudaSetDevice(i));
        CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
        printf("%zu of %zu\n", free_bytes, total_bytes);
        REQUIRE(cudaMalloc(&p, free_bytes + 1) == cudaErrorMemoryAllocation);
        CHECK((cudaGetLastError(), cudaMalloc(&p, free_bytes)));
    }
}

int main(int argc, char **argv)
{
    static const struct program_case cases[] = {
        {"bad-copies", case_bad_copies}, {"counters", case_counters},
        {"deref", case_deref},           {"devices", case_devices},
        {"faults", case_faults},         {"free", case_free},
        {"leaks", case_leaks},           {"out-of-memory", case_out_of_memory},
        {"reach", case_reach},           {"registered", case_registered},
        {"wrong", case_wrong},
    };

    return program_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
