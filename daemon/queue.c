/* Implements queue.h: starts jobs in the order in which they were submitted. */
#include "daemon/queue.h"

#include <errno.h>

bool queue_before(const struct job *a, const struct job *b)
{
    return a->id < b->id;
}

static uint64_t bytes_of(const struct queue_machine *m, uint32_t device)
{
    return m->each_bytes != NULL ? m->each_bytes[device] : m->device_bytes;
}

/* Returns true if the device has memory for jobs, and at least as many bytes as the job asks for. */
static bool suits(const struct job_ask *ask, const struct queue_machine *m, uint32_t device)
{
    uint64_t bytes = bytes_of(m, device);
    return bytes > 0 && bytes >= ask->device_bytes;
}

static int admits_memory(const struct job_ask *ask, const struct queue_machine *m, struct err *err)
{
    uint32_t n = 0;
    uint64_t most = 0;
    for (uint32_t i = 0; i < m->n_devices; i++) {
        n += suits(ask, m, i);
        if (bytes_of(m, i) > most)
            most = bytes_of(m, i);
    }
    if (n >= ask->devices_min)
        return 0;
    if (ask->device_bytes > most)
        return err_set_at(err, -ENOSPC, "resources.device_memory",
                          "asks for %llu bytes; the largest device here has %llu",
                          (unsigned long long)ask->device_bytes, (unsigned long long)most);
    if (ask->device_bytes == 0)
        return err_set_at(err, -ENOSPC, "resources.device_memory",
                          "asks for %u devices; enough memory is free on only %u here", ask->devices_min, n);
    return err_set_at(err, -ENOSPC, "resources.device_memory",
                      "asks for %llu bytes on each of %u devices; only %u here can provide that",
                      (unsigned long long)ask->device_bytes, ask->devices_min, n);
}

int queue_admits(const struct job_ask *ask, const struct queue_machine *m, struct err *err)
{
    if (m->n_devices > 0 && ask->devices_min > m->n_devices)
        return err_set_at(err, -ENOSPC, "resources.devices", "asks for %u devices; this machine has %u",
                          ask->devices_min, m->n_devices);
    if (m->n_devices > 0 && admits_memory(ask, m, err) < 0)
        return -ENOSPC;
    if (ask->host_bytes > m->host_bytes)
        return err_set_at(err, -ENOSPC, "resources.host_memory", "asks for %llu bytes; this machine has %llu",
                          (unsigned long long)ask->host_bytes, (unsigned long long)m->host_bytes);
    return 0;
}

/* Makes a lease for a daemon whose number of virtual devices is unlimited. Every job gets its own virtual
 * devices, numbered from 0. */
static void lease_auto(const struct job_ask *ask, const struct queue_machine *m, struct job_lease *ret)
{
    *ret = (struct job_lease){.n_devices = ask->devices_max, .device_bytes = ask->device_bytes};
    for (uint32_t i = 0; i < ret->n_devices; i++)
        ret->devices[i] = i;
    if (ret->device_bytes == 0)
        ret->device_bytes = m->device_bytes / ret->n_devices;
    ret->host_bytes = ask->host_bytes > 0 ? ask->host_bytes : m->host_bytes;
}

static bool better(const struct queue_machine *m, uint32_t a, uint32_t b)
{
    return m->use[a] != m->use[b] ? m->use[a] < m->use[b] : bytes_of(m, a) > bytes_of(m, b);
}

/* Takes the best free device for the job. A device without errors is better than a device with errors. After
 * that, a device with more memory is better, and then a device with a lower number. If the device has fewer
 * than *ret_bytes bytes, sets *ret_bytes to the bytes of the device. Returns false if no free device is
 * suitable. */
static bool take_best(const struct job_ask *ask, const struct queue_machine *m, enum queue_use worst,
                      bool taken[DEVICE_MAX], uint64_t *ret_bytes)
{
    uint32_t best = m->n_devices;
    for (uint32_t i = 0; i < m->n_devices; i++)
        if (m->device_job[i] == 0 && !taken[i] && suits(ask, m, i) && m->use[i] <= worst &&
            (best == m->n_devices || better(m, i, best)))
            best = i;
    if (best == m->n_devices)
        return false;
    taken[best] = true;
    if (bytes_of(m, best) < *ret_bytes)
        *ret_bytes = bytes_of(m, best);
    return true;
}

uint64_t queue_host_each(const struct job_ask *ask, const struct queue_machine *m)
{
    return ask->host_bytes > 0 || m->one_job || m->n_devices == 0 ? 0 : m->host_bytes / m->n_devices;
}

static bool lease_free(const struct job_ask *ask, const struct queue_machine *m, struct job_lease *ret)
{
    bool taken[DEVICE_MAX] = {0};
    uint64_t least = UINT64_MAX;
    *ret = (struct job_lease){0};
    for (uint32_t n = 0; n < ask->devices_max; n++)
        if (!take_best(ask, m, n < ask->devices_min ? QUEUE_USE_LAST : QUEUE_USE_GLADLY, taken, &least))
            break;
    for (uint32_t i = 0; i < m->n_devices; i++)
        if (taken[i])
            ret->devices[ret->n_devices++] = i;
    /* A lease grants the same number of bytes on each of its devices. So the device with the least memory
     * decides this number. */
    ret->device_bytes = ask->device_bytes > 0 ? ask->device_bytes : least;
    /* A job that does not ask for a number of bytes of host memory gets a share of the host memory. The share
     * is in proportion to the number of devices. For example, a job with 2 of 8 devices gets a quarter of the
     * host memory. */
    ret->host_bytes = ask->host_bytes > 0 ? ask->host_bytes
                      : m->one_job        ? m->host_bytes
                                          : queue_host_each(ask, m) * ret->n_devices;
    return ret->n_devices >= ask->devices_min;
}

bool queue_withheld(const struct job_ask *ask, const struct queue_machine *m, uint32_t device)
{
    return m->use[device] == QUEUE_USE_NEVER || !suits(ask, m, device);
}

bool queue_stuck(const struct job_ask *ask, const struct queue_machine *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_devices; i++)
        n += !queue_withheld(ask, m, i);
    return m->n_devices > 0 && n < ask->devices_min;
}

struct job *queue_next(struct job *const *jobs, size_t n, const struct queue_machine *m, uint64_t now_ms,
                       struct job_lease *ret)
{
    struct job *first = NULL;
    for (size_t i = 0; i < n; i++) {
        struct job *j = jobs[i];
        if (j->state != JOB_QUEUED || !j->on_disk || j->worker != NULL || j->cancel ||
            j->not_before_ms > now_ms || queue_stuck(&j->ask, m))
            continue;
        if (first == NULL || queue_before(j, first))
            first = j;
    }
    if (first == NULL)
        return NULL;
    if (m->n_devices == 0) {
        lease_auto(&first->ask, m, ret);
        return first;
    }
    return lease_free(&first->ask, m, ret) ? first : NULL;
}
