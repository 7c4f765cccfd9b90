/* Implements inventory.h: chooses the devices that this daemon hands out.
 *
 * --devices or --device-memory without --backend mean virtual cpu devices, even on a machine with GPUs,
 * because the user has described devices that do not exist. Otherwise the probe decides.
 *
 * If the probe fails and the user did not insist on a backend, the daemon serves cpu devices and says why,
 * because a broken driver is no reason to refuse service. If the probe cannot even be run, the daemon does
 * not start. The worker program is then missing, perhaps only for a moment during an upgrade. A daemon that
 * started anyway would serve cpu devices on a machine with GPUs, even after the upgrade.
 */
#include "daemon/inventory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/get.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/child.h"

#define DEFAULT_DEVICES 2
#define PROBE_MS        30000

/* ---- virtual devices ---- */

static void inventory_virtual(struct config *c, const char *why, struct inventory *ret)
{
    snprintf(ret->backend, sizeof ret->backend, "cpu");
    snprintf(ret->reason, sizeof ret->reason, "%s", why);
    ret->real = false;
    if (!c->devices_given)
        c->n_devices = DEFAULT_DEVICES;
    if (c->device_bytes == 0)
        c->device_bytes = topology_default_host_bytes() / (c->n_devices > 0 ? c->n_devices : 1);
    if (c->host_bytes == 0)
        c->host_bytes = ret->topology.host_memory_bytes > 0 ? ret->topology.host_memory_bytes
                                                            : topology_default_host_bytes();
}

/* ---- the result of a probe ---- */

int inventory_parse_probe(const char *text, size_t bytes, int exit, struct inventory *ret, struct err *err)
{
    struct json *doc = NULL;
    int r = json_parse(text, bytes, "the probe", false, &doc, NULL);
    const struct json *machine = r == 0 && json_type(doc) == JSON_OBJECT ? json_get(doc, "machine") : NULL;
    if (r == 0 && exit != 0 && get_text(doc, "message")[0] != '\0') {
        r = err_set_at(err, -ENODEV, get_text(doc, "path"), "%s", get_text(doc, "message"));
    } else if (exit != 0 || machine == NULL) {
        r = err_set(err, -ENODEV, "tutti-worker --probe ended with code %d and without a result", exit);
    } else {
        char *inner = json_print(machine);
        snprintf(ret->backend, sizeof ret->backend, "%s", get_text(doc, "backend"));
        snprintf(ret->reason, sizeof ret->reason, "%s", get_text(doc, "backend_reason"));
        r = topology_parse(inner, strlen(inner), "the probe", &ret->topology, err);
        free(inner);
    }
    json_free(doc);
    return r;
}

void inventory_probe_command(const struct config *c, const char *only, const char *ret[INVENTORY_PROBE_WORDS])
{
    int n = 0;
    ret[n++] = c->worker_program;
    ret[n++] = "--probe";
    ret[n++] = "--json";
    if (c->backend[0] != '\0') {
        ret[n++] = "--backend";
        ret[n++] = c->backend;
    }
    if (c->machine[0] != '\0') {
        ret[n++] = "--machine";
        ret[n++] = c->machine;
    }
    if (only != NULL) {
        ret[n++] = "--only";
        ret[n++] = only;
    }
    ret[n] = NULL;
}

/* Runs the probe and reads its result. *ret_ran becomes true if the program tutti-worker could be executed,
 * even if the probe itself failed. */
static int run_probe(const struct config *c, struct inventory *ret, bool *ret_ran, struct err *err)
{
    const char *argv[INVENTORY_PROBE_WORDS];
    struct strbuf out = {0};
    int exit = 0;
    inventory_probe_command(c, NULL, argv);
    int r = child_collect((char *const *)argv, PROBE_MS, &out, &exit, err);
    if (r == 0)
        r = inventory_parse_probe(out.at, out.n, exit, ret, err);
    *ret_ran = exit != CHILD_NOT_RUN;
    strbuf_finish(&out);
    return r;
}

/* ---- real devices ---- */

static void set_bytes(struct inventory *o, uint32_t device, uint64_t usable)
{
    o->each_bytes[device] = o->limit_bytes > 0 && o->limit_bytes < usable ? o->limit_bytes : usable;
    if (o->most_bytes[device] < o->each_bytes[device])
        o->most_bytes[device] = o->each_bytes[device];
}

static int inventory_real(struct config *c, struct inventory *o, struct err *err)
{
    const struct topology *t = &o->topology;
    if (c->devices_given && c->n_devices > t->n_devices)
        return err_set_at(err, -EINVAL, "--devices", "is %u, but this machine has %u of %s; ask for fewer",
                          c->n_devices, t->n_devices, o->backend);
    if (!c->devices_given || c->n_devices == 0)
        c->n_devices = t->n_devices;
    o->real = true;
    o->n_devices = c->n_devices;
    o->limit_bytes = c->device_bytes;
    c->device_bytes = 0;
    for (uint32_t i = 0; i < c->n_devices; i++) {
        set_bytes(o, i, topology_usable_bytes(t, i));
        if (o->each_bytes[i] > c->device_bytes)
            c->device_bytes = o->each_bytes[i];
        if (o->each_bytes[i] == 0)
            log_warning("device %" PRIu32 " (%s) is not handed out until more of its memory is free",
                        t->devices[i].index, t->devices[i].name);
    }
    if (c->host_bytes == 0)
        c->host_bytes = t->host_memory_bytes > 0 ? t->host_memory_bytes : topology_default_host_bytes();
    return 0;
}

void inventory_count_own(struct inventory *o, uint32_t device)
{
    uint64_t reserve = topology_reserve_bytes(o->topology.backend);
    if (!o->real || o->from_file || device >= o->topology.n_devices)
        return;
    uint64_t total = o->topology.devices[device].total_bytes;
    set_bytes(o, device, total > reserve ? (total - reserve) & ~(uint64_t)(DEVICE_ALIGN - 1) : 0);
}

/* ---- probed again ---- */

static bool same_device(const struct device_info *a, const struct device_info *b)
{
    return a->uuid[0] != '\0' || b->uuid[0] != '\0' ? strcmp(a->uuid, b->uuid) == 0 : a->index == b->index;
}

static bool was_asked(const struct inventory *o, uint64_t devices, uint32_t index)
{
    for (uint32_t i = 0; i < o->n_devices; i++)
        if (devices >> i & 1 && o->topology.devices[i].index == index)
            return true;
    return false;
}

static void tell_change(const struct inventory *o, uint32_t device, uint64_t before)
{
    struct strbuf b = {0};
    if (o->each_bytes[device] == before)
        return;
    strbuf_add_bytes(&b, o->each_bytes[device]);
    log_info("device %" PRIu32 " (%s) has %s for jobs now", device, o->topology.devices[device].name, b.at);
    strbuf_finish(&b);
}

void inventory_refresh(struct inventory *o, uint64_t devices, const struct topology *now)
{
    /* was_asked below needs the old device numbers. Keep a copy of *o, because the loop changes the numbers
     * in *o. */
    const struct inventory before = *o;
    for (uint32_t i = 0; i < o->n_devices; i++) {
        struct device_info *info = &o->topology.devices[i];
        uint32_t k = 0;
        if (!(devices >> i & 1))
            continue;
        while (k < now->n_devices && !same_device(info, &now->devices[k]))
            k++;
        info->free_bytes = k < now->n_devices ? now->devices[k].free_bytes : 0;
        if (k < now->n_devices)
            info->index = now->devices[k].index;
        if (k < now->n_devices && !was_asked(&before, devices, info->index))
            /* The driver has renumbered this device, and the probe did not look at the device with the new
             * number. So keep the old number of free bytes. */
            info->free_bytes = before.topology.devices[i].free_bytes;
        else
            set_bytes(o, i, k < now->n_devices ? topology_usable_bytes(now, k) : 0);
        tell_change(o, i, before.each_bytes[i]);
    }
}

/* ---- the decision ---- */

static bool insisted(const struct config *c)
{
    return c->machine[0] != '\0' || (c->backend[0] != '\0' && strcmp(c->backend, "auto") != 0);
}

int inventory_make(struct config *c, struct inventory *ret, struct err *err)
{
    struct err why = {0};
    char text[sizeof why], reason[sizeof ret->reason];
    bool made_up = c->devices_given || c->device_bytes > 0, ran;
    *ret = (struct inventory){0};
    if (c->machine[0] == '\0' && (strcmp(c->backend, "cpu") == 0 || (c->backend[0] == '\0' && made_up))) {
        inventory_virtual(c, c->backend[0] == '\0' ? "virtual devices were asked for" : "it was asked for",
                          ret);
        return 0;
    }
    int r = run_probe(c, ret, &ran, &why);
    ret->from_file = c->machine[0] != '\0';
    if (!ran)
        return err_set_at(err, r, c->worker_program,
                          "%s; no job can be started without the worker program: install it, or name it with "
                          "--worker",
                          why.msg);
    if (r < 0 && insisted(c))
        return err_set_at(err, r, why.path, "%s", why.msg);
    if (r < 0) {
        snprintf(reason, sizeof reason, "the devices of this machine could not be probed: %.700s",
                 err_text(&why, text, sizeof text));
        log_warning("%s; serving cpu devices", reason);
    } else {
        snprintf(reason, sizeof reason, "%s", ret->reason);
    }
    if (r == 0 && ret->topology.n_devices > 0)
        return inventory_real(c, ret, err);
    inventory_virtual(c, reason, ret);
    return 0;
}

/* ---- as JSON ---- */

static void add_backend(const struct inventory *o, struct strbuf *b)
{
    strbuf_add(b, "\"backend\":");
    strbuf_add_json(b, o->backend);
}

void inventory_add_json(const struct inventory *o, struct strbuf *b)
{
    add_backend(o, b);
    strbuf_add(b, ",\"backend_reason\":");
    strbuf_add_json(b, o->reason);
    if (!o->real)
        return;
    struct topology t = o->topology;
    t.n_devices = o->n_devices;
    for (uint32_t i = 0; i < t.n_devices; i++)
        if (o->most_bytes[i] > 0)
            t.devices[i].free_bytes = o->most_bytes[i] + topology_reserve_bytes(t.backend);
    strbuf_add(b, ",\"machine\":");
    topology_to_json(&t, b);
}

void inventory_add_lease(const struct inventory *o, const uint32_t *devices, uint32_t n, struct strbuf *b)
{
    add_backend(o, b);
    if (o->real) {
        strbuf_add(b, ",\"indices\":[");
        for (uint32_t i = 0; i < n; i++)
            strbuf_addf(b, "%s%" PRIu32, i > 0 ? "," : "", o->topology.devices[devices[i]].index);
        strbuf_add(b, "]");
    }
    if (!o->from_file)
        return;
    strbuf_add(b, ",\"machine\":");
    topology_to_json(&o->topology, b);
}
