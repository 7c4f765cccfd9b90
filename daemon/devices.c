/* Implements devices.h: how the queue sees the devices, which errors they had, and when they are probed
 * again. */
#include "daemon/devices.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/reprobe.h"

static enum queue_use use_of(const struct health *h, uint64_t now)
{
    switch (health_state(h)) {
    case HEALTH_SUSPECT:
        return health_rests(h, now) ? QUEUE_USE_LATER : QUEUE_USE_LAST;
    case HEALTH_FAILED:
        return QUEUE_USE_NEVER;
    case HEALTH_OK:
    case HEALTH_STATE_COUNT:
        break;
    }
    return QUEUE_USE_GLADLY;
}

struct queue_machine devices_machine(const struct daemon *d)
{
    const struct config *c = &d->config;
    struct queue_machine m = {
        .n_devices = c->n_devices,
        .device_bytes = c->device_bytes,
        .host_bytes = c->host_bytes,
        .device_job = d->device_job,
        .each_bytes = d->inventory.real ? d->inventory.each_bytes : NULL,
        .one_job = d->inventory.real && c->private_fd >= 0,
    };
    for (uint32_t i = 0; i < c->n_devices; i++)
        m.use[i] = use_of(&d->health[i], daemon_now_ms(d));
    return m;
}

struct queue_machine devices_at_best(const struct daemon *d)
{
    struct queue_machine m = devices_machine(d);
    if (d->inventory.real)
        m.each_bytes = d->inventory.most_bytes;
    return m;
}

bool devices_rest(const struct daemon *d)
{
    for (uint32_t i = 0; i < d->config.n_devices; i++)
        if (d->health[i].errors > 0 && health_rests(&d->health[i], daemon_now_ms(d)))
            return true;
    return false;
}

/* ---- devices that fail ---- */

/* Returns the health record of the device whose number in the backend is `index`, and sets *ret_device to the
 * device's number in the inventory. Returns NULL if the device is not leased to this job. */
static struct health *leased(struct daemon *d, const struct job *j, uint64_t index, uint32_t *ret_device)
{
    for (uint32_t i = 0; d->inventory.real && i < j->lease.n_devices; i++) {
        *ret_device = j->lease.devices[i];
        if (*ret_device < d->config.n_devices && d->inventory.topology.devices[*ret_device].index == index)
            return &d->health[*ret_device];
    }
    return NULL;
}

void devices_blame(struct daemon *d, const struct job *j, uint64_t index, const char *reason)
{
    uint32_t device;
    struct health *h = leased(d, j, index, &device);
    if (h == NULL)
        return;
    health_error(h, j->id, reason, daemon_now_ms(d), clock_wall_ns() / 1000000, d->config.restart_delay_ms);
    log_warning("device %" PRIu32 " (%s) is %s, errors in a row: %" PRIu32 "; job %" PRIu64 " reported: %s",
                device, d->inventory.topology.devices[device].name, health_state_names[health_state(h)],
                h->errors, j->id, h->reason);
}

void devices_praise(struct daemon *d, const struct job *j)
{
    for (uint32_t i = 0; i < j->lease.n_devices; i++) {
        const uint32_t device = j->lease.devices[i];
        if (device >= d->config.n_devices || d->health[device].errors == 0)
            continue;
        health_success(&d->health[device]);
        log_info("device %" PRIu32 " is ok again: job %" PRIu64 " has completed on it", device, j->id);
    }
}

/* Adds to `b` the reason why jobs cannot get this device, such as "device 1 (NVIDIA A100) is out of service
 * (3 errors, the last: ...)". */
static void add_withheld(const struct daemon *d, uint32_t device, struct strbuf *b)
{
    const struct device_info *info = &d->inventory.topology.devices[device];
    const struct health *h = &d->health[device];
    strbuf_addf(b, "device %" PRIu32, device);
    if (info->name[0] != '\0')
        strbuf_addf(b, " (%s)", info->name);
    if (health_state(h) == HEALTH_FAILED) {
        strbuf_addf(b, " is out of service (%" PRIu32 " errors, the last: %s)", h->errors, h->reason);
        return;
    }
    strbuf_add(b, " has ");
    strbuf_add_bytes(b, d->inventory.real ? d->inventory.each_bytes[device] : d->config.device_bytes);
    strbuf_add(b, " for jobs");
}

#define MOST_WITHHELD 4 /* devices that job->stuck names */

static void say_stuck(const struct daemon *d, const struct queue_machine *m, struct job *j)
{
    struct strbuf b = {0};
    uint32_t named = 0;
    strbuf_addf(&b, "waits for %" PRIu32 " device%s", j->ask.devices_min, j->ask.devices_min == 1 ? "" : "s");
    if (j->ask.device_bytes > 0) {
        strbuf_add(&b, " with ");
        strbuf_add_bytes(&b, j->ask.device_bytes);
    }
    for (uint32_t i = 0; i < m->n_devices && named < MOST_WITHHELD; i++)
        if (queue_withheld(&j->ask, m, i)) {
            strbuf_add(&b, named++ == 0 ? ": " : ", ");
            add_withheld(d, i, &b);
        }
    if (j->stuck == NULL)
        log_warning("job %" PRIu64 ": %s", j->id, b.at);
    job_set_text(&j->stuck, b.at);
    strbuf_finish(&b);
}

void devices_find_stuck(struct daemon *d, const struct queue_machine *m)
{
    for (size_t i = 0; i < d->jobs->live.n; i++) {
        struct job *j = d->jobs->live.at[i];
        if (j->state == JOB_QUEUED && j->worker == NULL && queue_stuck(&j->ask, m))
            say_stuck(d, m, j);
        else if (j->stuck != NULL)
            job_set_text(&j->stuck, NULL);
    }
}

/* ---- probing again ---- */

bool devices_change(const struct daemon *d)
{
    return d->inventory.real && !d->inventory.from_file;
}

/* The daemon probes the devices again while jobs wait for devices. The time between two probes is this number
 * of restart delays. With the default restart delay of 1 s, the daemon probes every 10 s. */
#define REPROBE_DELAYS 10

static bool somebody_is_stuck(const struct daemon *d)
{
    for (size_t i = 0; i < d->jobs->live.n; i++)
        if (d->jobs->live.at[i]->stuck != NULL)
            return true;
    return false;
}

static uint64_t idle_devices(const struct daemon *d)
{
    uint64_t devices = 0;
    for (uint32_t i = 0; i < d->config.n_devices; i++)
        if (d->device_job[i] == 0)
            devices |= UINT64_C(1) << i;
    return devices;
}

int devices_reprobe_first(struct daemon *d, const struct job *next, void (*reprobed)(struct daemon *d),
                          struct err *err)
{
    uint64_t age = daemon_now_ms(d) - d->probed_ms, delay = d->config.restart_delay_ms;
    uint64_t idle = idle_devices(d);
    if (!devices_change(d) || d->stopping)
        return 0;
    if (reprobe_under_way(d))
        return 1;
    if ((next == NULL || age < delay) && (age < REPROBE_DELAYS * delay || !somebody_is_stuck(d)))
        return 0;
    if (idle == 0) {
        d->probed_ms = daemon_now_ms(d);
        return 0;
    }
    int r = reprobe_start(d, idle, reprobed, err);
    if (r == 0)
        d->probed_ms = daemon_now_ms(d);
    return r < 0 ? r : 1;
}

void devices_reprobed(struct daemon *d)
{
    d->probed_ms = daemon_now_ms(d);
    for (uint32_t i = 0; i < d->config.n_devices; i++) {
        struct health *h = &d->health[i];
        if (d->device_job[i] != 0 || d->inventory.each_bytes[i] == 0 ||
            !health_may_return(h, daemon_now_ms(d)))
            continue;
        health_return(h);
        log_info("device %" PRIu32 " works again in a probe: it is suspect now, no longer failed", i);
    }
}
