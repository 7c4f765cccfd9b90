/* The method "devices": lists the devices that this daemon gives to jobs, and the job that currently uses
 * each device. */
#include <inttypes.h>

#include "daemon/devices.h"
#include "daemon/server_verbs.h"

static void add_name(struct strbuf *b, const char *key, const char *text)
{
    strbuf_addf(b, ",\"%s\":", key);
    strbuf_add_json(b, text);
}

/* Adds what the last probe found out about a real device: its name, its bus id and its memory. */
static void add_real(struct strbuf *b, const struct inventory *o, uint32_t i)
{
    const struct device_info *info = &o->topology.devices[i];
    add_name(b, "name", info->name);
    add_name(b, "bus_id", info->bus_id);
    strbuf_addf(b, ",\"total_bytes\":%" PRIu64 ",\"free_bytes\":%" PRIu64, info->total_bytes,
                info->free_bytes);
}

static void add_device(struct strbuf *b, const struct daemon *d, uint32_t i)
{
    strbuf_addf(b, "%s{\"index\":%u,\"memory_bytes\":%" PRIu64, i > 0 ? "," : "", i,
                d->inventory.real ? d->inventory.each_bytes[i] : d->config.device_bytes);
    if (d->inventory.real) {
        add_real(b, &d->inventory, i);
        health_add_json(&d->health[i], b);
    }
    if (d->device_job[i] != 0)
        strbuf_addf(b, ",\"job\":%" PRIu64 "}", d->device_job[i]);
    else
        strbuf_add(b, ",\"job\":null}");
}

void verb_devices(struct request *rq)
{
    const struct daemon *d = rq->daemon;
    struct strbuf b = {.mode = STRBUF_FAILS};
    if (!request_no_params(rq))
        return;
    strbuf_add(&b, "{");
    inventory_add_json(&d->inventory, &b);
    const struct queue_machine m = devices_machine(d);
    const struct job_ask anything = {.devices_min = 1, .devices_max = 1};
    strbuf_addf(
        &b, ",\"auto\":%s,\"host_memory_bytes\":%" PRIu64 ",\"host_bytes_each\":%" PRIu64 ",\"devices\":[",
        d->config.n_devices == 0 ? "true" : "false", d->config.host_bytes, queue_host_each(&anything, &m));
    for (uint32_t i = 0; i < d->config.n_devices; i++)
        add_device(&b, d, i);
    strbuf_add(&b, "],\"launch_pause\":");
    launch_pause_add_json(&d->pause, &b);
    strbuf_add(&b, "}");
    request_reply(rq, &b);
    strbuf_finish(&b);
}
