/* Implements offer.h. Follows the rules by which daemon/queue.c makes leases. */
#include "daemon/worker/offer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/get.h"
#include "base/json.h"
#include "base/vec.h"
#include "daemon/worker/probe/discover.h"
#include "scheduler/topology.h"

#define OPTION "--offer"

/* Reads from the topology how many bytes a job can get on each real device. The free bytes in this topology
 * are the most that were ever free. */
static int read_real(struct offer *f, const struct json *machine, struct err *err)
{
    struct topology *t = malloc(sizeof *t); /* 50 KiB */
    if (t == NULL)
        return err_set(err, -ENOMEM, "no memory for the offer of the daemon");
    f->machine = json_print(machine);
    int r = topology_parse(f->machine, strlen(f->machine), OPTION, t, err);
    for (uint32_t i = 0; r == 0 && i < t->n_devices; i++)
        f->device_bytes[i] = topology_usable_bytes(t, i);
    if (r == 0)
        f->n_devices = t->n_devices;
    free(t);
    return r;
}

static int read_virtual(struct offer *f, const struct json *devices, struct err *err)
{
    if (devices == NULL || json_array_size(devices) > DEVICE_MAX)
        return err_set_at(err, -EINVAL, OPTION, "has no list of at most %u devices", DEVICE_MAX);
    for (const struct json *d = json_array_first(devices); d != NULL; d = json_array_next(d))
        f->device_bytes[f->n_devices++] = get_count_or(d, "memory_bytes", 0);
    return 0;
}

static int read_backend(struct offer *f, const char *name, struct err *err)
{
    for (int i = 0; i < CHOICE_COUNT; i++)
        if (strcmp(backend_choice_names[i], name) == 0) {
            f->backend = (enum backend_choice)i;
            return 0;
        }
    return err_set_at(err, -EINVAL, OPTION, "names an unknown backend");
}

int offer_read(const char *text, struct offer *ret, struct err *err)
{
    struct json *doc = NULL;
    *ret = (struct offer){0};
    int r = json_parse(text, strlen(text), OPTION, false, &doc, err);
    if (r < 0)
        return r;
    const struct json *machine = get_object(doc, "machine");
    r = read_backend(ret, get_text(doc, "backend"), err);
    if (r == 0)
        r = machine != NULL ? read_real(ret, machine, err)
                            : read_virtual(ret, get_array(doc, "devices"), err);
    ret->host_bytes = get_count_or(doc, "host_memory_bytes", 0);
    ret->host_bytes_each = get_count_or(doc, "host_bytes_each", 0);
    json_free(doc);
    return r;
}

void offer_finish(struct offer *f)
{
    free(f->machine);
    *f = (struct offer){0};
}

/* Chooses at most `most` devices, those with the most memory among the devices that have enough for the job.
 * Returns their number. *ret_bytes becomes the number of bytes on the smallest of them. */
static uint32_t choose(const struct offer *f, const struct spec_demand *d, uint32_t most, uint64_t *ret_bytes)
{
    bool taken[DEVICE_MAX] = {0};
    uint32_t n = 0;
    for (; n < most; n++) {
        uint32_t best = f->n_devices;
        for (uint32_t i = 0; i < f->n_devices; i++)
            if (!taken[i] && f->device_bytes[i] > 0 && f->device_bytes[i] >= d->device_bytes &&
                (best == f->n_devices || f->device_bytes[i] > f->device_bytes[best]))
                best = i;
        if (best == f->n_devices)
            break;
        taken[best] = true;
        *ret_bytes = f->device_bytes[best];
    }
    return n;
}

static int refuse_devices(const struct spec_demand *d, uint32_t n, struct err *err)
{
    if (d->device_bytes == 0)
        return err_set_at(err, -ENOSPC, "resources.devices", "asks for %u devices; the daemon has %u",
                          d->devices_min, n);
    return err_set_at(err, -ENOSPC, "resources.devices",
                      "asks for %u devices with %llu bytes each; the daemon has %u such devices",
                      d->devices_min, (unsigned long long)d->device_bytes, n);
}

int offer_lease(const struct offer *f, const struct spec_demand *d, struct job_options *o, struct err *err)
{
    uint64_t bytes = 0;
    uint32_t n;
    o->backend = f->backend;
    o->machine = f->machine;
    if (d->host_bytes > f->host_bytes && f->host_bytes > 0)
        return err_set_at(err, -ENOSPC, "resources.host_memory", "asks for %llu bytes; the daemon has %llu",
                          (unsigned long long)d->host_bytes, (unsigned long long)f->host_bytes);
    o->host_bytes = d->host_bytes > 0 ? d->host_bytes : f->host_bytes;
    if (f->n_devices == 0)
        return 0;
    n = choose(f, d, d->devices_max, &bytes);
    if (n < d->devices_min)
        return refuse_devices(d, n, err);
    o->leased = true;
    o->all_devices = f->n_devices;
    o->devices = n;
    o->device_bytes = d->device_bytes > 0 ? d->device_bytes : bytes;
    o->host_bytes_each = d->host_bytes > 0 ? 0 : f->host_bytes_each;
    if (o->host_bytes_each > 0)
        o->host_bytes = o->host_bytes_each * n;
    return 0;
}
