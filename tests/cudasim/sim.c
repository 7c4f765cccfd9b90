/* The machine: its start, the lock around calls, and the loop that runs operations.
 *
 * Why lazily, in the thread that waits: a run is then a function of the program and the seed alone, so a
 * failure seen once can be seen again. The price is that two operations never overlap in real time; what
 * overlap could do is found by the race detector instead (race.c).
 *
 * Threads: calls may come from several; the lock makes them take turns, and then the history also depends
 * on who comes first. A host function runs in the thread that waits, without the lock, because it may have
 * helpers. */
#include "sim.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudasim.h"

#define QUEUE_LONG                                                                                           \
    1024 /* operations in a stream; then half of them run. A real queue blocks at this length too */

struct sim sim = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .idle = PTHREAD_COND_INITIALIZER,
};

static _Thread_local cudaError_t last_error;
static _Thread_local int current_device;
static _Thread_local bool in_host_function;

const char *sim_name(enum op_kind kind)
{
    static const char *const names[OP_KIND_COUNT] = {
        [OP_COPY] = "memcpy",     [OP_GEMM] = "GEMM",           [OP_HOST] = "host function",
        [OP_KERNEL] = "kernel",   [OP_RECORD] = "event record", [OP_SET] = "memset",
        [OP_WAIT] = "event wait",
    };
    return names[kind];
}

uint64_t sim_random(void)
{
    uint64_t x = sim.random;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    sim.random = x;
    return (x * 0x2545f4914f6cdd1dULL) >> 16;
}

/* ---- start -------------------------------------------------------------- */

static void __attribute__((noreturn)) bad_setting(const char *name, const char *text, const char *why)
{
    fprintf(stderr, "cudasim: %s=%s: %s\n", name, text, why);
    exit(2);
}

/* "64M"; *ret_end: behind it, or `text` where there is no number. */
static uint64_t parse_bytes(const char *text, const char **ret_end)
{
    char *end;
    uint64_t value = strtoull(text, &end, 0);

    switch (*end) {
    case 'G':
        value <<= 10; /* fallthrough */
    case 'M':
        value <<= 10; /* fallthrough */
    case 'K':
        value <<= 10;
        end++;
    }
    *ret_end = end;
    return value;
}

static uint64_t setting_number(const char *name, uint64_t fallback)
{
    const char *text = getenv(name), *end;
    uint64_t value;

    if (!text || !*text)
        return fallback;
    value = parse_bytes(text, &end);
    if (*end || end == text)
        bad_setting(name, text, "not a number");
    return value;
}

/* A list, of SIM_DEVICES at most; devices beyond it have none. */
static void read_used(void)
{
    const char *text = getenv("CUDASIM_USED"), *at = text, *end;

    for (int i = 0; at && *at; i++) {
        uint64_t bytes = parse_bytes(at, &end);
        if (end == at || (*end && *end != ',') || i == SIM_DEVICES)
            bad_setting("CUDASIM_USED", text, "not a list of numbers");
        if (i < sim.n_devices && bytes > sim.devices[i].capacity_bytes)
            bad_setting("CUDASIM_USED", text, "more than CUDASIM_MEMORY");
        sim.devices[i].others_bytes = bytes;
        at = end + (*end == ',');
    }
}

static void read_settings(void)
{
    const char *text;
    char why[128];

    sim.n_devices = (int)setting_number("CUDASIM_DEVICES", 1);
    if (sim.n_devices < 0 || sim.n_devices > SIM_DEVICES)
        bad_setting("CUDASIM_DEVICES", getenv("CUDASIM_DEVICES"), "at most 16");
    for (int i = 0; i < sim.n_devices; i++)
        sim.devices[i].capacity_bytes = setting_number("CUDASIM_MEMORY", 256 << 20);
    read_used();
    sim.seed = setting_number("CUDASIM_SEED", 1);
    sim.races = setting_number("CUDASIM_RACE", 1) != 0;
    sim.abort = setting_number("CUDASIM_ABORT", 0) != 0;
    sim.peer_possible = setting_number("CUDASIM_PEER", 1) != 0;
    sim.report_path = getenv("CUDASIM_REPORT");

    text = getenv("CUDASIM_ORDER");
    sim.order = ORDER_RANDOM;
    if (text && *text) {
        for (sim.order = 0; sim.order < ORDER_COUNT && strcmp(text, order_names[sim.order]) != 0;)
            sim.order++;
        if (sim.order == ORDER_COUNT)
            bad_setting("CUDASIM_ORDER", text, "random, fifo, lifo, pct or timed");
    }
    text = getenv("CUDASIM_CLOCK");
    if (clock_parse(text ? text : "", &sim.rates, why, sizeof why) < 0)
        bad_setting("CUDASIM_CLOCK", text, why);
    text = getenv("CUDASIM_FAULT");
    if (text && fault_parse(text, why, sizeof why) < 0)
        bad_setting("CUDASIM_FAULT", text, why);
}

/* The host may not touch device memory: its addresses are reserved and never mapped. */
static void on_segv(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    if (memory_is_device_address((uint64_t)(uintptr_t)info->si_addr))
        report_problem(PROBLEM_HOST_ACCESS, "the host touches device memory at %p", info->si_addr);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void watch_segv(void)
{
    struct sigaction old, action = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_NODEFER};

    if (sigaction(SIGSEGV, NULL, &old) == 0 && !(old.sa_flags & SA_SIGINFO) && old.sa_handler == SIG_DFL)
        sigaction(SIGSEGV, &action, NULL);
}

static void set_seed(uint64_t seed)
{
    sim.seed = seed;
    sim.random = seed * 0x9e3779b97f4a7c15ULL + 88172645463325252ULL;
    if (!sim.random)
        sim.random = 1;
    for (int i = 0; i < 8; i++)
        sim_random();
    sim.eager = sim.order == ORDER_FIFO || sim.order == ORDER_TIMED ? 0 : (int)(sim_random() % 3);
}

static void start(void)
{
    read_settings();
    set_seed(sim.seed);
    sim.host.at[SIM_HOST] = 1;
    memory_start();
    for (int i = 0; i < sim.n_devices; i++)
        stream_create_default(i);
    watch_segv();
    atexit(report_write);
    if (getenv("CUDASIM_KERNELS"))
        kernels_load(getenv("CUDASIM_KERNELS"));
}

void sim_enter(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, start);
    pthread_mutex_lock(&sim.lock);
    if (in_host_function)
        report_problem(PROBLEM_BAD_CALL, "a host function calls CUDA; it may not");
}

cudaError_t sim_leave(cudaError_t error)
{
    pthread_mutex_unlock(&sim.lock);
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

void cudasim_begin(uint64_t seed)
{
    sim_enter();
    set_seed(seed);
    race_forget();
    sim_leave(cudaSuccess);
}

/* ---- errors ------------------------------------------------------------- */

int sim_device(void)
{
    return current_device;
}

cudaError_t sim_device_error(int device)
{
    if (device < 0 || device >= sim.n_devices)
        return sim.n_devices == 0 ? cudaErrorNoDevice : cudaErrorInvalidDevice;
    return sim.devices[device].error;
}

void sim_poison(int device, cudaError_t error)
{
    if (sim.devices[device].error == cudaSuccess)
        sim.devices[device].error = error;
}

cudaError_t cudaSetDevice(int device)
{
    sim_enter();
    if (device < 0 || device >= sim.n_devices)
        return sim_leave(sim.n_devices == 0 ? cudaErrorNoDevice : cudaErrorInvalidDevice);
    current_device = device;
    return sim_leave(sim_device_error(device));
}

cudaError_t cudaGetDevice(int *device)
{
    sim_enter();
    *device = current_device;
    return sim_leave(sim.n_devices == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;

    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

/* ---- running ------------------------------------------------------------ */

static void run_host_function(struct op *op)
{
    sim.busy = true;
    sim.n_host_functions++;
    pthread_mutex_unlock(&sim.lock);
    in_host_function = true;
    op->run(op->data);
    in_host_function = false;
    pthread_mutex_lock(&sim.lock);
    sim.busy = false;
    pthread_cond_broadcast(&sim.idle);
}

/* On a device with an error nothing runs any more, host functions included; records and waits pass. */
static bool prepare(struct op *op)
{
    if (op->kind == OP_RECORD || op->kind == OP_WAIT)
        return false;
    fault_ran(op->stream->device);
    if (op->fails != cudaSuccess)
        sim_poison(op->stream->device, op->fails);
    return sim_device_error(op->stream->device) == cudaSuccess;
}

static void run(struct op *op)
{
    struct CUstream_st *s = op->stream;
    bool works = prepare(op);

    sim.running = op;
    race_begin(op);
    if (works) {
        sim.devices[s->device].operations++;
        switch (op->kind) {
        case OP_COPY:
        case OP_SET:
            copy_run(op);
            break;
        case OP_KERNEL:
            launch_run(op);
            break;
        case OP_GEMM:
            sim.devices[s->device].gemms++;
            op->run(op->data);
            break;
        case OP_HOST:
            run_host_function(op);
            break;
        case OP_RECORD:
        case OP_WAIT:
        case OP_KIND_COUNT:
            break;
        }
    }
    race_begin(NULL);
    sim.running = NULL;
    clock_advance(op);
    s->head = op->next;
    if (!s->head)
        s->tail = NULL;
    s->done = op->seq;
    op_free(op);
}

/* Runs one operation, or waits for another thread's host function. false: none can run. */
static bool step(void)
{
    struct op *op;

    if (sim.busy) {
        pthread_cond_wait(&sim.idle, &sim.lock);
        return true;
    }
    op = order_pick();
    if (!op)
        return false;
    run(op);
    return true;
}

static void run_until(struct CUstream_st *s, uint32_t seq)
{
    while (s->done < seq)
        if (!step()) {
            report_problem(PROBLEM_DEADLOCK, "waiting for operation %u of stream %d: nothing can run", seq,
                           s->id);
            abort();
        }
}

void sim_learn(const struct vclock *clock, uint64_t at_ns)
{
    vclock_join(&sim.host, clock);
    if (sim.host_ns < at_ns)
        sim.host_ns = at_ns;
}

cudaError_t sim_await(struct CUstream_st *s)
{
    if (in_host_function)
        return cudaErrorNotPermitted;
    run_until(s, s->seq);
    sim_learn(&s->clock, s->free_ns);
    return sim_device_error(s->device);
}

cudaError_t sim_await_mark(const struct mark *m)
{
    if (in_host_function)
        return cudaErrorNotPermitted;
    run_until(m->stream, m->seq);
    sim_learn(&m->after, m->at_ns);
    return sim_device_error(m->stream->device);
}

cudaError_t sim_await_device(int device)
{
    for (int i = 0; i < SIM_HOST; i++)
        if (sim.streams[i].used && sim.streams[i].device == device)
            sim_await(&sim.streams[i]);
    return sim_device_error(device);
}

void sim_drain(struct CUstream_st *s)
{
    if (!in_host_function)
        run_until(s, s->seq);
}

void sim_peek(void)
{
    if (!sim.busy && (sim.order == ORDER_TIMED || sim_random() % 2))
        step();
}

/* ---- enqueueing --------------------------------------------------------- */

struct op *stream_new_op(struct CUstream_st *s, enum op_kind kind, const char *name)
{
    struct op *op = calloc(1, sizeof *op);

    if (!op)
        abort();
    op->stream = s;
    op->kind = kind;
    op->name = name;
    op->engine = ENGINE_COUNT;
    return op;
}

void stream_push(struct op *op)
{
    struct CUstream_st *s = op->stream;
    int steps = sim.eager == 0 ? 0 : sim.eager == 1 ? sim_random() % 4 == 0 : (int)(sim_random() % 4);

    op->seq = ++s->seq;
    op->number = ++sim.n_ops;
    sim.host_ns += (uint64_t)sim.rates.call_ns;
    op->enqueued_ns = sim.host_ns;
    /* After its stream's operations, after what the host knows, and, for a wait, after the mark. */
    vclock_join(&s->clock, &sim.host);
    if (op->kind == OP_WAIT)
        vclock_join(&s->clock, &op->mark->after);
    s->clock.at[s->id] = op->seq;
    op->clock = s->clock;
    if (op->kind == OP_RECORD) {
        op->mark->seq = op->seq;
        op->mark->after = s->clock;
    }
    sim.host.at[SIM_HOST]++;
    if (s->tail)
        s->tail->next = op;
    else
        s->head = op;
    s->tail = op;

    if (in_host_function)
        return;
    while (steps-- > 0 && !sim.busy && step())
        ;
    if (s->seq - s->done > QUEUE_LONG)
        run_until(s, s->seq - QUEUE_LONG / 2);
}

void op_free(struct op *op)
{
    mark_unref(op->mark);
    launch_free(op->launch);
    free(op->staged);
    if (op->kind == OP_GEMM)
        free(op->data);
    free(op);
}
