/* First come, first served. See queue.h. */
#include "daemon/queue.h"

#include <errno.h>

bool queue_before(const struct job *a, const struct job *b)
{
    return a->id < b->id;
}

int queue_admits(const struct job_ask *ask, const struct queue_machine *m, struct err *err)
{
    if (m->n_devices > 0 && ask->devices_min > m->n_devices)
        return err_set_at(err, -ENOSPC, "resources.devices", "asks for %u devices; this machine has %u",
                          ask->devices_min, m->n_devices);
    if (m->n_devices > 0 && ask->device_bytes > m->device_bytes)
        return err_set_at(err, -ENOSPC, "resources.device_memory",
                          "asks for %llu bytes; a device here has %llu",
                          (unsigned long long)ask->device_bytes, (unsigned long long)m->device_bytes);
    if (ask->host_bytes > m->host_bytes)
        return err_set_at(err, -ENOSPC, "resources.host_memory", "asks for %llu bytes; this machine has %llu",
                          (unsigned long long)ask->host_bytes, (unsigned long long)m->host_bytes);
    return 0;
}

/* Virtual devices without end: numbers mean nothing, and neither do other jobs. */
static void lease_auto(const struct job_ask *ask, const struct queue_machine *m, struct job_lease *ret)
{
    *ret = (struct job_lease){.n_devices = ask->devices_max, .device_bytes = ask->device_bytes};
    for (uint32_t i = 0; i < ret->n_devices; i++)
        ret->devices[i] = i;
    if (ret->device_bytes == 0)
        ret->device_bytes = m->device_bytes / ret->n_devices;
    ret->host_bytes = ask->host_bytes > 0 ? ask->host_bytes : m->host_bytes;
}

static bool lease_free(const struct job_ask *ask, const struct queue_machine *m, struct job_lease *ret)
{
    *ret = (struct job_lease){.device_bytes = ask->device_bytes > 0 ? ask->device_bytes : m->device_bytes};
    for (uint32_t i = 0; i < m->n_devices && ret->n_devices < ask->devices_max; i++)
        if (m->device_job[i] == 0)
            ret->devices[ret->n_devices++] = i;
    /* Host memory is shared out by devices. */
    ret->host_bytes = ask->host_bytes > 0 ? ask->host_bytes : m->host_bytes / m->n_devices * ret->n_devices;
    return ret->n_devices >= ask->devices_min;
}

struct job *queue_next(struct job *const *jobs, size_t n, const struct queue_machine *m, uint64_t now_ms,
                       struct job_lease *ret)
{
    struct job *first = NULL;
    for (size_t i = 0; i < n; i++) {
        struct job *j = jobs[i];
        if (j->state != JOB_QUEUED || !j->on_disk || j->worker != NULL || j->cancel ||
            j->not_before_ms > now_ms)
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
