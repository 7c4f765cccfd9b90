/* Memory: allocations of devices and of the host, and the way from an address to its bytes.
 *
 * A device address is only a number: it lies in a range that is reserved and never mapped, and the bytes
 * are elsewhere. So the host cannot touch device memory by mistake, and every access of an operation
 * passes through memory_access, which knows bounds, reach (own memory, enabled peers, pinned host memory)
 * and races.
 *
 * New memory is full of NaN (0xff). Allocations have gaps of GUARD between them, and addresses are used
 * again as late as possible, so that an old pointer stays wrong. Host memory ends at a page that cannot be
 * touched. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

#define ALIGN    256
#define GRANULE  512 /* device memory is given out in pieces of this */
#define GUARD    (256 << 10)
#define PAGE     4096
#define WINDOW   (1ULL << 36) /* addresses of one device */
#define REMEMBER 64           /* freed ranges */
#define RECENT   64           /* a power of two */

static uint64_t window_base; /* device d has window_base + d * WINDOW */

/* Sorted by address. */
static struct allocation **allocations;
static uint64_t n_allocations, room;
/* Found lately, by address / GUARD: a kernel goes back and forth between a few. NULL: nothing. */
static struct allocation *recent[RECENT];

static struct {
    uint64_t address, bytes;
} freed[REMEMBER];
static uint32_t n_freed;

void memory_start(void)
{
    uint64_t bytes = WINDOW * (uint64_t)(sim.n_devices ? sim.n_devices : 1);
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED) {
        perror("cudasim: reserving addresses");
        abort();
    }
    window_base = (uint64_t)(uintptr_t)p;
    for (int i = 0; i < sim.n_devices; i++)
        sim.devices[i].next_address = window_base + (uint64_t)i * WINDOW + GUARD;
}

bool memory_is_device_address(uint64_t address)
{
    return window_base && address >= window_base && address < window_base + WINDOW * (uint64_t)sim.n_devices;
}

/* ---- the table ---------------------------------------------------------- */

/* How many allocations begin at or below the address. */
static uint64_t position(uint64_t address)
{
    uint64_t low = 0, high = n_allocations;

    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (allocations[middle]->address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool contains(const struct allocation *a, uint64_t address)
{
    return address - a->address < a->bytes;
}

struct allocation *memory_find(uint64_t address)
{
    struct allocation **slot = &recent[address / GUARD % RECENT];
    uint64_t i;

    if (*slot && contains(*slot, address))
        return *slot;
    i = position(address);
    if (i == 0 || !contains(allocations[i - 1], address))
        return NULL;
    *slot = allocations[i - 1];
    return *slot;
}

bool memory_overlaps(uint64_t address, uint64_t bytes)
{
    uint64_t i = position(address + bytes - 1); /* the last that begins at or before its end */

    return i > 0 && allocations[i - 1]->address + allocations[i - 1]->bytes > address;
}

static struct allocation *add(const struct allocation *values)
{
    struct allocation *a = malloc(sizeof *a);
    uint64_t i = position(values->address);

    if (n_allocations == room) {
        room = room ? 2 * room : 64;
        allocations = realloc(allocations, room * sizeof *allocations);
    }
    if (!a || !allocations)
        abort();
    *a = *values;
    if (sim.races)
        a->shadow = race_shadow_create(a->bytes);
    memmove(&allocations[i + 1], &allocations[i], (n_allocations - i) * sizeof *allocations);
    allocations[i] = a;
    n_allocations++;
    return a;
}

static void drop(struct allocation *a)
{
    uint64_t i = position(a->address) - 1;

    memset(recent, 0, sizeof recent);
    n_allocations--;
    memmove(&allocations[i], &allocations[i + 1], (n_allocations - i) * sizeof *allocations);
    freed[n_freed % REMEMBER].address = a->address;
    freed[n_freed++ % REMEMBER].bytes = a->bytes;
    race_shadow_destroy(a->shadow, a->bytes);
    if (a->map)
        munmap(a->map, a->map_bytes);
    free(a);
}

static bool was_freed(uint64_t address)
{
    for (uint32_t i = 0; i < REMEMBER && i < n_freed; i++)
        if (address - freed[i].address < freed[i].bytes)
            return true;
    return false;
}

/* ---- access ------------------------------------------------------------- */

static bool reaches(int device, const struct allocation *a)
{
    return a->device < 0 || a->device == device || sim.devices[device].peer[a->device];
}

void *memory_access(int device, uint64_t address, uint64_t bytes, enum access access, uint32_t loc,
                    const char **ret_why)
{
    struct allocation *a = memory_find(address);

    if (!a) {
        *ret_why = was_freed(address) ? "in freed memory" : "outside every allocation";
        return NULL;
    }
    if (bytes > a->address + a->bytes - address) {
        *ret_why = "across the end of its allocation";
        return NULL;
    }
    if (!reaches(device, a)) {
        *ret_why = "in the memory of a device that is no enabled peer";
        return NULL;
    }
    race_access(a, address, bytes, access, loc);
    return a->data + (address - a->address);
}

void *cudasim_access(const void *p, size_t bytes, int write)
{
    struct op *op = sim.running;
    const char *why;
    void *data = memory_access(op->stream->device, (uint64_t)(uintptr_t)p, bytes,
                               write ? ACCESS_WRITE : ACCESS_READ, 0, &why);

    if (!data) {
        report_problem(PROBLEM_OUT_OF_BOUNDS, "%s on device %d touches %zu bytes at %p, %s", op->name,
                       op->stream->device, bytes, p, why);
        sim_poison(op->stream->device, cudaErrorIllegalAddress);
    }
    op->bytes += bytes;
    return data;
}

/* ---- device memory ------------------------------------------------------ */

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

/* An address with nothing else within GUARD of the range; 0: none. Goes on where the last one ended. */
static uint64_t find_gap(int device, uint64_t bytes)
{
    uint64_t begin = window_base + (uint64_t)device * WINDOW + GUARD, end = begin + WINDOW - 2 * GUARD;
    uint64_t address = sim.devices[device].next_address;
    bool wrapped = false;

    for (;;) {
        uint64_t i;
        if (address + bytes > end) {
            if (wrapped)
                return 0;
            wrapped = true;
            address = begin;
        }
        i = position(address + bytes + GUARD);
        if (i == 0 || allocations[i - 1]->address + allocations[i - 1]->bytes + GUARD <= address)
            return address;
        address = round_up(allocations[i - 1]->address + allocations[i - 1]->bytes + GUARD, ALIGN);
    }
}

static cudaError_t device_alloc(void **ret, uint64_t bytes, int device)
{
    struct device *d = &sim.devices[device];
    struct allocation a = {.bytes = bytes, .device = device, .map_bytes = round_up(bytes, PAGE)};
    uint64_t charge = round_up(bytes, GRANULE);

    if (charge < bytes || charge > d->capacity_bytes - d->others_bytes - d->used_bytes)
        return cudaErrorMemoryAllocation;
    a.address = find_gap(device, bytes);
    a.map =
        mmap(NULL, a.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a.address == 0 || a.map == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    a.data = a.map;
    memset(a.data, 0xff, bytes);
    d->next_address = round_up(a.address + bytes + GUARD, ALIGN);
    d->used_bytes += charge;
    if (d->peak_bytes < d->used_bytes)
        d->peak_bytes = d->used_bytes;
    add(&a);
    *ret = (void *)(uintptr_t)a.address; /* NOLINT: a device address */
    return cudaSuccess;
}

static void device_free(struct allocation *a)
{
    sim.devices[a->device].used_bytes -= round_up(a->bytes, GRANULE);
    drop(a);
}

void memory_free_device(int device)
{
    for (uint64_t i = n_allocations; i-- > 0;)
        if (allocations[i]->device == device)
            device_free(allocations[i]);
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    cudaError_t e;

    sim_enter();
    *p = NULL;
    e = fault_call(FAULT_MALLOC, sim_device(), NULL);
    if (e == cudaSuccess && bytes > 0)
        e = device_alloc(p, bytes, sim_device());
    return sim_leave(e);
}

/* The allocation that begins at p, for freeing it. */
static struct allocation *allocation_at(const void *p, bool of_device)
{
    struct allocation *a = memory_find((uint64_t)(uintptr_t)p);

    if (a && a->address == (uint64_t)(uintptr_t)p && (a->device >= 0) == of_device)
        return a;
    report_problem(was_freed((uint64_t)(uintptr_t)p) ? PROBLEM_FREED : PROBLEM_BAD_CALL,
                   "%p is freed, and is no allocation", p);
    return NULL;
}

cudaError_t cudaFree(void *p)
{
    struct allocation *a;
    cudaError_t e;

    if (!p)
        return cudaSuccess;
    sim_enter();
    a = allocation_at(p, true);
    if (!a)
        return sim_leave(cudaErrorInvalidValue);
    e = sim_await_device(a->device); /* as the real one does */
    device_free(a);
    return sim_leave(e);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    cudaError_t e;

    sim_enter();
    e = sim_device_error(sim_device());
    if (e == cudaSuccess) {
        const struct device *d = &sim.devices[sim_device()];
        *free_bytes = d->capacity_bytes - d->others_bytes - d->used_bytes;
        *total_bytes = d->capacity_bytes;
    }
    return sim_leave(e);
}

/* ---- host memory -------------------------------------------------------- */

static cudaError_t host_alloc(void **ret, uint64_t bytes)
{
    uint64_t padded = round_up(bytes, ALIGN);
    struct allocation a = {.bytes = bytes, .device = -1, .map_bytes = round_up(padded, PAGE) + PAGE};

    if (padded < bytes)
        return cudaErrorMemoryAllocation;
    a.map =
        mmap(NULL, a.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a.map == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    a.data = (uint8_t *)a.map + a.map_bytes - PAGE - padded;
    a.address = (uint64_t)(uintptr_t)a.data;
    mprotect((uint8_t *)a.map + a.map_bytes - PAGE, PAGE, PROT_NONE);
    memset(a.data, 0xff, bytes);
    add(&a);
    *ret = a.data;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    cudaError_t e;

    (void)flags;
    sim_enter();
    *p = NULL;
    e = fault_call(FAULT_HOSTALLOC, sim_device(), NULL);
    if (e == cudaSuccess && bytes > 0)
        e = host_alloc(p, bytes);
    return sim_leave(e);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return cudaHostAlloc(p, bytes, cudaHostAllocDefault);
}

/* Releases host memory. All devices finish first, because operations may still use the memory. */
static cudaError_t host_drop(void *p, bool registered)
{
    struct allocation *a = allocation_at(p, false);
    cudaError_t e = cudaSuccess;

    if (!a || a->registered != registered)
        return registered ? cudaErrorHostMemoryNotRegistered : cudaErrorInvalidValue;
    for (int i = 0; i < sim.n_devices; i++)
        if (sim_await_device(i) != cudaSuccess)
            e = sim_device_error(i);
    drop(a);
    return e;
}

cudaError_t cudaFreeHost(void *p)
{
    if (!p)
        return cudaSuccess;
    sim_enter();
    return sim_leave(host_drop(p, false));
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    struct allocation a = {
        .address = (uint64_t)(uintptr_t)p, .bytes = bytes, .data = p, .device = -1, .registered = true};
    cudaError_t e;

    (void)flags;
    sim_enter();
    e = fault_call(FAULT_HOSTALLOC, sim_device(), NULL);
    if (e == cudaSuccess && (!p || bytes == 0))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess && memory_overlaps(a.address, bytes))
        e = cudaErrorHostMemoryAlreadyRegistered;
    if (e == cudaSuccess)
        add(&a);
    return sim_leave(e);
}

cudaError_t cudaHostUnregister(void *p)
{
    sim_enter();
    return sim_leave(host_drop(p, true));
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    (void)flags;
    sim_enter();
    *device = host;
    return sim_leave(memory_find((uint64_t)(uintptr_t)host) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *ret, const void *p)
{
    const struct allocation *a;

    sim_enter();
    a = memory_find((uint64_t)(uintptr_t)p);
    memset(ret, 0, sizeof *ret);
    ret->type = !a ? cudaMemoryTypeUnregistered : a->device < 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    ret->device = a && a->device >= 0 ? a->device : sim_device();
    ret->devicePointer = a ? (void *)(uintptr_t)p : NULL;
    ret->hostPointer = a && a->device < 0 ? (void *)(uintptr_t)p : NULL;
    return sim_leave(cudaSuccess);
}

void memory_leaks(struct leaks *ret)
{
    *ret = (struct leaks){0};
    for (uint64_t i = 0; i < n_allocations; i++) {
        const struct allocation *a = allocations[i];
        if (a->device >= 0) {
            ret->device_allocations++;
            ret->device_bytes += a->bytes;
        } else if (a->registered) {
            ret->registrations++;
        } else {
            ret->host_allocations++;
            ret->host_bytes += a->bytes;
        }
    }
}
