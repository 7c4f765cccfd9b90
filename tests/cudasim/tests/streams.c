/* Programs that use streams and events, right and wrong. test_cudasim.py runs them under many seeds and
 * reads the simulator's report. */
#include <cublas_v2.h>
#include <pthread.h>
#include <string.h>

#include "../cudasim.h"
#include "kernels.h"
#include "program.h"

#define N     1000u
#define BYTES (N * sizeof(float))

struct average {
    const float *from;
    float *to;
};

/* A host function as the product has them: reads and writes pinned memory, and says so. */
static void halve(void *data)
{
    const struct average *a = data;

    if (cudasim_host_access) {
        cudasim_host_access(a->from, BYTES, 0);
        cudasim_host_access(a->to, BYTES, 1);
    }
    for (size_t i = 0; i < N; i++)
        a->to[i] = a->from[i] / 2;
}

/* Two inputs go to device 0, are added there, the sum goes to device 1, is scaled, comes back, is halved
 * by a host function, and goes in again. Each step is in a stream of its own. The argument leaves out one
 * of the waits. */
static void case_pipeline(int argc, char **argv)
{
    int missing = argc > 0 ? atoi(argv[0]) : -1, wrong = 0;
    float *a = pinned(BYTES), *b = pinned(BYTES), *r = pinned(BYTES), *half = pinned(BYTES), *da, *db, *dc,
          *peer, *end;
    struct average average = {r, half};
    cudaStream_t in, compute, to_peer, compute1, out1, host;
    cudaEvent_t e[5];

    CHECK(cudaSetDevice(1));
    compute1 = new_stream();
    out1 = new_stream();
    peer = device_memory(BYTES);
    e[2] = new_event();
    e[3] = new_event();
    CHECK(cudaSetDevice(0));
    in = new_stream();
    compute = new_stream();
    to_peer = new_stream();
    host = new_stream();
    da = device_memory(BYTES);
    db = device_memory(BYTES);
    dc = device_memory(BYTES);
    end = device_memory(BYTES);
    e[0] = new_event();
    e[1] = new_event();
    e[4] = new_event();

    for (int round = 0; round < 3; round++) {
        cudaEvent_t copied;
        for (size_t i = 0; i < N; i++) {
            a[i] = (float)(i + (size_t)round);
            b[i] = (float)(2 * i);
        }
        CHECK(cudaMemcpyAsync(da, a, BYTES, cudaMemcpyHostToDevice, in));
        CHECK(cudaMemcpyAsync(db, b, BYTES, cudaMemcpyDefault, in));
        CHECK(cudaEventRecord(e[0], in));
        if (missing != 0)
            CHECK(cudaStreamWaitEvent(compute, e[0], 0));
        launch_add(da, db, dc, N, compute);
        CHECK(cudaEventRecord(e[1], compute));
        if (missing != 1)
            CHECK(cudaStreamWaitEvent(to_peer, e[1], 0));
        CHECK(cudaMemcpyPeerAsync(peer, 1, dc, 0, BYTES, to_peer));
        copied = new_event();
        CHECK(cudaEventRecord(copied, to_peer));
        CHECK(cudaSetDevice(1));
        if (missing != 2)
            CHECK(cudaStreamWaitEvent(compute1, copied, 0));
        launch_scale4(peer, 3, N, compute1);
        CHECK(cudaEventRecord(e[2], compute1));
        if (missing != 3)
            CHECK(cudaStreamWaitEvent(out1, e[2], 0));
        CHECK(cudaMemcpyAsync(r, peer, BYTES, cudaMemcpyDeviceToHost, out1));
        CHECK(cudaEventRecord(e[3], out1));
        CHECK(cudaSetDevice(0));
        if (missing != 4)
            CHECK(cudaStreamWaitEvent(host, e[3], 0));
        CHECK(cudaLaunchHostFunc(host, halve, &average));
        CHECK(cudaEventRecord(e[4], host));
        if (missing != 5)
            CHECK(cudaStreamWaitEvent(in, e[4], 0));
        CHECK(cudaMemcpyAsync(end, half, BYTES, cudaMemcpyHostToDevice, in));
        CHECK(cudaStreamSynchronize(in));
        if (missing >= 0) { /* only the one race that was made */
            CHECK(cudaDeviceSynchronize());
            CHECK(cudaSetDevice(1));
            CHECK(cudaDeviceSynchronize());
            CHECK(cudaSetDevice(0));
        }
        CHECK(cudaMemcpy(r, end, BYTES, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < N; i++)
            wrong += r[i] != (float)(3 * i + (size_t)round) * 3 / 2;
        CHECK(cudaEventDestroy(copied));
    }
    printf("%d wrong\n", wrong);
    REQUIRE(missing >= 0 || wrong == 0);
}

/* The host thread changes pinned memory while a copy may still read it. With "sync" it waits first. */
static void case_host_thread(int argc, char **argv)
{
    float *a = pinned(BYTES), *d = device_memory(BYTES);
    cudaStream_t s = new_stream();

    memset(a, 0, BYTES);
    CHECK(cudaMemcpyAsync(d, a, BYTES, cudaMemcpyHostToDevice, s));
    if (argc > 0 && strcmp(argv[0], "sync") == 0)
        CHECK(cudaStreamSynchronize(s));
    cudasim_host_access(a, 4, 1);
    CHECK(cudaMemcpyAsync(d, a, BYTES, cudaMemcpyHostToDevice, s)); /* after the access: no race with it */
    CHECK(cudaDeviceSynchronize());
    cudasim_host_access(a, BYTES, 1);
    printf("%llu races, %llu problems\n", (unsigned long long)cudasim_races(),
           (unsigned long long)cudasim_problems());
}

/* Two cases in one program: the same race, and copies, in each. */
static void case_begin(int argc, char **argv)
{
    float *a = pinned(BYTES), *d = device_memory(BYTES);
    cudaStream_t s = new_stream();
    struct cudasim_copied copied;

    (void)argc, (void)argv;
    for (int i = 0; i < 4; i++) {
        if (i == 2)
            cudasim_begin(99);
        CHECK(cudaMemcpyAsync(d, a, BYTES, cudaMemcpyHostToDevice, s));
        cudasim_host_access(a, 4, 1);
        CHECK(cudaMemcpyAsync(a, d, BYTES, cudaMemcpyDeviceToHost, s));
        CHECK(cudaDeviceSynchronize());
        printf("%llu races\n", (unsigned long long)cudasim_races());
    }
    cudasim_copied(0, &copied);
    REQUIRE(copied.in_bytes == 4 * BYTES && copied.out_bytes == 4 * BYTES && copied.peer_bytes == 0);
    cudasim_copied(1, &copied);
    REQUIRE(copied.in_bytes == 0 && copied.out_bytes == 0);
}

/* Two products with one workspace, in two streams. With "sync" one after the other. */
static void case_workspace(int argc, char **argv)
{
    float *a = device_memory(BYTES), *c = device_memory(BYTES), *d = device_memory(BYTES), one = 1, zero = 0;
    void *workspace = device_memory(1 << 16);
    cublasHandle_t h[2];

    CHECK(cudaMemset(a, 0, BYTES));
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 2; i++) {
        REQUIRE(cublasCreate(&h[i]) == CUBLAS_STATUS_SUCCESS);
        REQUIRE(cublasSetStream(h[i], new_stream()) == CUBLAS_STATUS_SUCCESS);
        REQUIRE(cublasSetWorkspace(h[i], workspace, 1 << 16) == CUBLAS_STATUS_SUCCESS);
        REQUIRE(cublasSgemm(h[i], CUBLAS_OP_N, CUBLAS_OP_T, 8, 8, 8, &one, a, 8, a, 8, &zero, i ? c : d, 8) ==
                CUBLAS_STATUS_SUCCESS);
        if (argc > 0 && strcmp(argv[0], "sync") == 0)
            CHECK(cudaDeviceSynchronize());
    }
    CHECK(cudaDeviceSynchronize());
}

/* The default stream and blocking streams wait for each other. */
static void case_default_stream(int argc, char **argv)
{
    float *a = pinned(BYTES), *d = device_memory(BYTES), *r;
    cudaStream_t s;

    (void)argc, (void)argv;
    for (size_t i = 0; i < N; i++)
        a[i] = 1;
    CHECK(cudaStreamCreate(&s));
    CHECK(cudaMemcpyAsync(d, a, BYTES, cudaMemcpyHostToDevice, s));
    launch_scale4(d, 2, N, NULL);
    launch_scale4(d, 3, N, s);
    r = from_device(d, BYTES);
    REQUIRE(r[0] == 6 && r[N - 1] == 6);
}

/* A thousand times the same event, waited for by others; queries; destroyed streams still finish. */
static void case_events(int argc, char **argv)
{
    float *d = device_memory(BYTES), *r;
    cudaStream_t s[2] = {new_stream(), new_stream()};
    cudaEvent_t e = new_event(), never = new_event();
    int polls = 0;

    (void)argc, (void)argv;
    CHECK(cudaEventSynchronize(never));
    CHECK(cudaEventQuery(never));
    CHECK(cudaStreamWaitEvent(s[0], never, 0));
    CHECK(cudaMemsetAsync(d, 0, BYTES, s[0]));
    for (int i = 0; i < 1000; i++) {
        CHECK(cudaEventRecord(e, s[i % 2]));
        CHECK(cudaStreamWaitEvent(s[(i + 1) % 2], e, 0));
        CHECK(cudaMemsetAsync(d, i % 50, BYTES, s[(i + 1) % 2]));
    }
    CHECK(cudaEventRecord(e, s[0]));
    while (cudaEventQuery(e) == cudaErrorNotReady)
        polls++;
    CHECK(cudaGetLastError());
    CHECK(cudaStreamDestroy(s[1]));
    REQUIRE(cudaStreamSynchronize(s[1]) == cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    CHECK(cudaStreamSynchronize(s[0]));
    r = from_device(d, BYTES);
    REQUIRE(((uint8_t *)r)[17] == 999 % 50);
    printf("%d polls\n", polls);
}

/* Two copies in two directions and a kernel that depends on neither: they overlap in virtual time. */
static void case_overlap(int argc, char **argv)
{
    size_t bytes = 1 << 20;
    float *a = pinned(bytes), *b = pinned(bytes), *d = device_memory(bytes), *f = device_memory(bytes);
    cudaStream_t in = new_stream(), out = new_stream();
    cudaEvent_t begin = new_event(), end_in = new_event(), end_out = new_event();
    float in_ms, out_ms;

    (void)argc, (void)argv;
    memset(a, 0, bytes);
    CHECK(cudaMemset(f, 0, bytes));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaEventRecord(begin, in));
    CHECK(cudaMemcpyAsync(d, a, bytes, cudaMemcpyHostToDevice, in));
    CHECK(cudaMemcpyAsync(b, f, bytes, cudaMemcpyDeviceToHost, out));
    CHECK(cudaEventRecord(end_in, in));
    CHECK(cudaEventRecord(end_out, out));
    REQUIRE(cudaEventElapsedTime(&in_ms, begin, end_in) == cudaErrorNotReady);
    CHECK((cudaGetLastError(), cudaDeviceSynchronize()));
    CHECK(cudaEventElapsedTime(&in_ms, begin, end_in));
    CHECK(cudaEventElapsedTime(&out_ms, begin, end_out));
    printf("%f %f\n", (double)in_ms, (double)out_ms);
}

static void note_order(void *data)
{
    printf("%s\n", (const char *)data);
}

/* A long operation is enqueued first, a short one in another stream second: who is first depends on the
 * order. */
static void case_timed(int argc, char **argv)
{
    size_t bytes = 8 << 20;
    float *a = pinned(bytes), *d = device_memory(bytes);
    cudaStream_t slow = new_stream(), fast = new_stream();

    (void)argc, (void)argv;
    CHECK(cudaMemcpyAsync(d, a, bytes, cudaMemcpyHostToDevice, slow));
    CHECK(cudaLaunchHostFunc(slow, note_order, (void *)"slow"));
    CHECK(cudaLaunchHostFunc(fast, note_order, (void *)"fast"));
    CHECK(cudaDeviceSynchronize());
}

struct helped {
    pthread_t helper;
    float *memory;
};

static void *help(void *data)
{
    cudasim_host_access(((struct helped *)data)->memory, BYTES, 1);
    memset(((struct helped *)data)->memory, 0, BYTES);
    return NULL;
}

/* A host function with a helper thread, whose accesses are the function's. */
static void with_helper(void *data)
{
    struct helped *h = data;

    REQUIRE(pthread_create(&h->helper, NULL, help, h) == 0);
    REQUIRE(pthread_join(h->helper, NULL) == 0);
}

static void *enqueue_and_wait(void *data)
{
    struct helped h = {.memory = pinned(BYTES)};
    float *d = device_memory(BYTES), *r;
    cudaStream_t s = new_stream();

    (void)data;
    for (int i = 0; i < 20; i++) {
        CHECK(cudaLaunchHostFunc(s, with_helper, &h));
        CHECK(cudaMemcpyAsync(d, h.memory, BYTES, cudaMemcpyHostToDevice, s));
        launch_add(d, d, d, N, s);
        CHECK(cudaStreamSynchronize(s));
    }
    r = from_device(d, BYTES);
    REQUIRE(r[N - 1] == 0);
    return NULL;
}

/* Threads that use CUDA at the same time, each with a stream of its own. */
static void case_threads(int argc, char **argv)
{
    pthread_t t[4];

    (void)argc, (void)argv;
    for (int i = 0; i < 4; i++)
        REQUIRE(pthread_create(&t[i], NULL, enqueue_and_wait, NULL) == 0);
    for (int i = 0; i < 4; i++)
        REQUIRE(pthread_join(t[i], NULL) == 0);
}

static void call_cuda(void *data)
{
    REQUIRE(cudaStreamSynchronize(data) == cudaErrorNotPermitted);
}

static void case_host_function_calls(int argc, char **argv)
{
    cudaStream_t s = new_stream();

    (void)argc, (void)argv;
    CHECK(cudaLaunchHostFunc(s, call_cuda, s));
    CHECK(cudaStreamSynchronize(s));
}

int main(int argc, char **argv)
{
    static const struct program_case cases[] = {
        {"begin", case_begin},
        {"default-stream", case_default_stream},
        {"events", case_events},
        {"host-function-calls", case_host_function_calls},
        {"host-thread", case_host_thread},
        {"overlap", case_overlap},
        {"pipeline", case_pipeline},
        {"threads", case_threads},
        {"timed", case_timed},
        {"workspace", case_workspace},
    };

    return program_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
