/* Injects faults. CUDASIM_FAULT is a list of faults, separated by commas:
 *
 *   malloc:3          the third call of kind malloc fails and does nothing; the next call works
 *   launch:5:sticky   the fifth launch is accepted, but the device breaks when that launch runs. From then on
 *                     every call for the device returns the error, until cudaDeviceReset. A call without an
 *                     operation (malloc, sync, ...) breaks the device at once
 *   device:1:gone@40  device 1 disappears when its 40th operation would run; a reset does not bring it back
 *
 * The kinds are event, gemm, hostalloc (cudaHostAlloc, cudaHostRegister), hostfunc, launch, malloc, memcpy,
 * memset, record, stream, sync (stream, event and device synchronize) and wait. Each kind has one counter for
 * all devices.
 */
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FAULTS 16

static const struct {
    const char *name;
    cudaError_t now, sticky;
} sites[FAULT_SITE_COUNT] = {
    [FAULT_EVENT] = {"event", cudaErrorMemoryAllocation, cudaErrorUnknown},
    [FAULT_GEMM] = {"gemm", cudaErrorLaunchOutOfResources, cudaErrorLaunchFailure},
    [FAULT_HOSTALLOC] = {"hostalloc", cudaErrorMemoryAllocation, cudaErrorUnknown},
    [FAULT_HOSTFUNC] = {"hostfunc", cudaErrorUnknown, cudaErrorUnknown},
    [FAULT_LAUNCH] = {"launch", cudaErrorLaunchOutOfResources, cudaErrorLaunchFailure},
    [FAULT_MALLOC] = {"malloc", cudaErrorMemoryAllocation, cudaErrorUnknown},
    [FAULT_MEMCPY] = {"memcpy", cudaErrorUnknown, cudaErrorECCUncorrectable},
    [FAULT_MEMSET] = {"memset", cudaErrorUnknown, cudaErrorECCUncorrectable},
    [FAULT_RECORD] = {"record", cudaErrorUnknown, cudaErrorUnknown},
    [FAULT_STREAM] = {"stream", cudaErrorMemoryAllocation, cudaErrorUnknown},
    [FAULT_SYNC] = {"sync", cudaErrorUnknown, cudaErrorLaunchFailure},
    [FAULT_WAIT] = {"wait", cudaErrorUnknown, cudaErrorUnknown},
};
static const cudaError_t gone_error = cudaErrorDevicesUnavailable;

struct fault {
    char spec[48];
    enum fault_site site; /* FAULT_SITE_COUNT: a device disappears */
    uint64_t nth;
    bool sticky;
    int device;
    bool happened;
};

static struct fault faults[MAX_FAULTS];
static uint32_t n_faults;
static uint64_t calls[FAULT_SITE_COUNT];
static struct fault_event events[MAX_FAULTS];
static uint32_t n_events;

static int parse_one(const char *spec, struct fault *f)
{
    char name[16] = "", how[16] = "";
    unsigned long long nth = 0;
    int end = 0;

    *f = (struct fault){.site = FAULT_SITE_COUNT};
    snprintf(f->spec, sizeof f->spec, "%s", spec);
    if (sscanf(spec, "device:%d:gone@%llu%n", &f->device, &nth, &end) == 2) {
        f->nth = nth;
        return !spec[end] && nth > 0 && f->device >= 0 && f->device < SIM_DEVICES ? 0 : -EINVAL;
    }
    if (sscanf(spec, "%15[a-z]:%llu%n:%15[a-z]", name, &nth, &end, how) < 2 || nth == 0)
        return -EINVAL;
    if (spec[end] && strcmp(spec + end, ":sticky") != 0)
        return -EINVAL;
    f->nth = nth;
    f->sticky = spec[end] != '\0';
    for (f->site = 0; f->site < FAULT_SITE_COUNT && strcmp(sites[f->site].name, name) != 0;)
        f->site++;
    return f->site == FAULT_SITE_COUNT ? -EINVAL : 0;
}

int fault_parse(const char *text, char *error, size_t size)
{
    while (*text) {
        size_t length = strcspn(text, ",");
        char spec[48];

        snprintf(spec, sizeof spec, "%.*s", (int)length, text);
        if (n_faults == MAX_FAULTS || length >= sizeof spec || parse_one(spec, &faults[n_faults]) < 0) {
            snprintf(error, size, "do not understand \"%s\"", spec);
            return -EINVAL;
        }
        n_faults++;
        text += length + (text[length] == ',');
    }
    return 0;
}

static void note(struct fault *f, int device, cudaError_t error)
{
    f->happened = true;
    events[n_events].device = device;
    events[n_events].error = error;
    memcpy(events[n_events].spec, f->spec, sizeof f->spec);
    n_events++;
    fprintf(stderr, "cudasim: fault %s on device %d: error %d\n", f->spec, device, (int)error);
    report_write();
}

cudaError_t fault_call(enum fault_site site, int device, cudaError_t *ret_later)
{
    cudaError_t error;

    calls[site]++;
    if (ret_later)
        *ret_later = cudaSuccess;
    error = sim_device_error(device);
    if (error != cudaSuccess)
        return error;
    for (uint32_t i = 0; i < n_faults; i++) {
        struct fault *f = &faults[i];
        if (f->happened || f->site != site || f->nth != calls[site])
            continue;
        error = f->sticky ? sites[site].sticky : sites[site].now;
        note(f, device, error);
        if (!f->sticky)
            return error;
        if (ret_later) {
            *ret_later = error;
            return cudaSuccess;
        }
        sim_poison(device, error);
        return error;
    }
    return cudaSuccess;
}

void fault_ran(int device)
{
    for (uint32_t i = 0; i < n_faults; i++) {
        struct fault *f = &faults[i];
        if (f->happened || f->site != FAULT_SITE_COUNT || f->device != device ||
            sim.devices[device].operations + 1 < f->nth)
            continue;
        sim.devices[device].gone = true;
        sim.devices[device].error = gone_error;
        note(f, device, gone_error);
    }
}

uint32_t fault_events(const struct fault_event **ret)
{
    *ret = events;
    return n_events;
}
