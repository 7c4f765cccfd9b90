/* The verb --probe. It prints the devices of this machine, and which backend jobs would use and why. With
 * --measure, it also times copies between host and devices. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/strbuf.h"
#include "daemon/worker/probe/discover.h"
#include "daemon/worker/probe/measure.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"

/* Number of virtual devices between which copies are measured if --devices is not given. */
#define VIRTUAL_DEVICES 2

/* What the probe found. */
struct probe {
    struct discovery found;
    /* True once measuring has begun. A failure after that is not a mistake on the command line. */
    bool measuring;
    bool measured_now;
    /* Path of the cache file that has the measured rates. Empty if there is no cache. */
    char cache[PATH_MAX];
    /* Bit set of the devices whose free memory the user asked for, in which bit i stands for device i. 0
     * means all devices. */
    uint64_t only;
};

/* ---- as JSON ---- */

static void add_backends(struct strbuf *b, const struct discovery *d)
{
    for (int i = 0; i < BACKEND_COUNT; i++) {
        const char *why = d->found[i].why;
        strbuf_addf(b, "%s{\"name\":\"%s\",\"usable\":%s,\"reason\":", i > 0 ? "," : "", backend_names[i],
                    !d->found[i].looked ? "null"
                    : why[0] == '\0'    ? "true"
                                        : "false");
        strbuf_add_json(b, why);
        strbuf_add(b, "}");
    }
}

static void add_probe_json(struct strbuf *b, const struct probe *p)
{
    const struct discovery *d = &p->found;
    strbuf_addf(b, "{\"ok\":true,\"backend\":\"%s\",\"backend_reason\":", backend_names[d->topology.backend]);
    strbuf_add_json(b, d->reason);
    strbuf_add(b, ",\"backends\":[");
    add_backends(b, d);
    strbuf_addf(b, "],\"reserve_bytes\":%" PRIu64 ",\"measured\":%s,\"cache\":",
                topology_reserve_bytes(d->topology.backend),
                d->measured || p->measured_now ? "true" : "false");
    if (p->cache[0] != '\0')
        strbuf_add_json(b, p->cache);
    else
        strbuf_add(b, "null");
    strbuf_add(b, ",\"machine\":");
    topology_to_json(&d->topology, b);
    strbuf_add(b, "}\n");
}

/* ---- for people ---- */

static void add_device(struct strbuf *b, const struct topology *t, uint32_t i, bool asked)
{
    const struct device_info *d = &t->devices[i];
    strbuf_addf(b, "  device %-2" PRIu32 " %s%s", d->index, d->name, d->name[0] != '\0' ? ", " : "");
    strbuf_add_bytes(b, d->total_bytes);
    if (asked) {
        strbuf_add(b, ", free ");
        strbuf_add_bytes(b, d->free_bytes);
        strbuf_add(b, ", for jobs ");
        strbuf_add_bytes(b, topology_usable_bytes(t, i));
    }
    if (d->bus_id[0] != '\0')
        strbuf_addf(b, ", %s", d->bus_id);
    if (d->pcie_generation > 0)
        strbuf_addf(b, ", PCIe %" PRIu32 " x%" PRIu32, d->pcie_generation, d->pcie_width);
    if (d->numa_node >= 0)
        strbuf_addf(b, ", NUMA node %" PRId32, d->numa_node);
    strbuf_add(b, "\n");
}

static void add_rate(struct strbuf *b, const char *name, uint64_t rate)
{
    strbuf_addf(b, "  %s ", name);
    if (rate > 0) {
        strbuf_add_bytes(b, rate);
        strbuf_add(b, "/s");
    } else {
        strbuf_add(b, "not measured");
    }
}

static void add_links(struct strbuf *b, const struct probe *p)
{
    const struct topology *t = &p->found.topology;
    add_rate(b, "links     in", t->link_in_bytes_per_s);
    add_rate(b, "out", t->link_out_bytes_per_s);
    add_rate(b, "peer", t->peer_bytes_per_s);
    strbuf_add(b, p->measured_now     ? "  (measured now)\n"
                  : p->found.measured ? "  (measured before)\n"
                                      : "\n");
}

static void add_cache(struct strbuf *b, const char *path)
{
    strbuf_add(b, "  cache     ");
    strbuf_add_text(b, path);
    strbuf_add(b, "\n");
}

static void add_probe_text(struct strbuf *b, const struct probe *p)
{
    const struct discovery *d = &p->found;
    const struct topology *t = &d->topology;
    strbuf_addf(b, "backend %s: %s\n", backend_names[t->backend], d->reason);
    for (int i = 0; i < BACKEND_COUNT; i++) {
        const char *why = d->found[i].why;
        strbuf_addf(b, "  %-9s %s%s\n", backend_names[i],
                    !d->found[i].looked ? ""
                    : why[0] == '\0'    ? "can be used"
                                        : "cannot be used: ",
                    why);
    }
    if (t->n_devices == 0)
        strbuf_add(b, "  devices   virtual ones, as many as a job asks for\n");
    for (uint32_t i = 0; i < t->n_devices; i++)
        add_device(b, t, i, p->only == 0 || (t->devices[i].index < 64 && p->only >> t->devices[i].index & 1));
    strbuf_add(b, "  host      ");
    strbuf_add_bytes(b, t->host_memory_bytes);
    strbuf_add(b, " of memory for jobs\n");
    add_links(b, p);
    if (p->measured_now && p->cache[0] != '\0')
        add_cache(b, p->cache);
}

/* ---- the verb ---- */

/* Stores the measured rates in the cache. If this fails, the function only prints a warning, because the
 * rates themselves are printed anyway. */
static void save_rates(struct probe *p)
{
    struct err err = {0};
    char text[sizeof err];
    if (cache_store(&p->found.topology, &err) == 0 &&
        cache_path(&p->found.topology, p->cache, sizeof p->cache, &err) == 0)
        return;
    p->cache[0] = '\0';
    log_warning("the measurements could not be saved: %s", err_text(&err, text, sizeof text));
}

static int look_at_machine(const struct verb_options *o, struct probe *p, struct err *err)
{
    struct discovery *d = &p->found;
    p->only = o->probe.only;
    int r =
        discover(o->job.backend, o->job.machine, o->probe.only != 0 ? o->probe.only : DEVICES_ALL, d, err);
    if (r < 0)
        return r;
    if (o->probe.measure && d->from_file)
        return err_set(err, -EINVAL, "--measure measures this machine, so it does not go with --machine");
    if (!d->from_file && !d->measured && d->topology.n_devices == 0)
        d->measured = cache_load(&d->topology); /* for display only; cpu plans ignore it */
    if (!o->probe.measure) {
        if (d->measured)
            (void)cache_path(&d->topology, p->cache, sizeof p->cache, NULL);
        return 0;
    }
    p->measuring = true;
    r = measure(&d->topology, o->job.devices > 0 ? o->job.devices : VIRTUAL_DEVICES, err);
    if (r == 0) {
        p->measured_now = true;
        save_rates(p);
    }
    return r;
}

static int write_topology(const struct verb_options *o, const struct probe *p, struct err *err)
{
    struct strbuf b = {0};
    if (o->probe.topology_path == NULL)
        return 0;
    topology_to_json(&p->found.topology, &b);
    strbuf_add(&b, "\n");
    int r = discover_write_file(o->probe.topology_path, b.at, b.n, err);
    strbuf_finish(&b);
    return r;
}

static int run_probe(const struct verb_options *o)
{
    struct probe *p = calloc(1, sizeof *p);
    struct err err = {0};
    struct strbuf b = {0};
    if (p == NULL)
        return report_error(o, -ENOMEM, &err, 0, false);
    int r = look_at_machine(o, p, &err), code;
    bool early = r < 0 && !p->measuring;
    if (r == 0)
        r = write_topology(o, p, &err);
    if (r < 0) {
        code = report_error(o, r, &err, 0, early);
    } else {
        if (o->json)
            add_probe_json(&b, p);
        else
            add_probe_text(&b, p);
        code = print_buffer(&b);
    }
    free(p);
    return code;
}

/* Reads a list of device numbers such as "0,2" as a bit set, in which bit i stands for device i. */
static int parse_only(const char *text, struct verb_options *o, struct err *err)
{
    uint64_t all = 0;
    for (const char *at = text;; at++) {
        char *end;
        unsigned long v = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : DEVICE_MAX;
        if (v >= DEVICE_MAX || (*end != ',' && *end != '\0'))
            return err_set_at(err, -EINVAL, "--only",
                              "expected numbers below %d, separated by commas, found \"%s\"", DEVICE_MAX,
                              text);
        all |= UINT64_C(1) << v;
        at = end;
        if (*at == '\0')
            break;
    }
    o->probe.only = all;
    return 0;
}

static int check_probe(const struct verb_options *o, struct err *err)
{
    if (o->probe.only != 0 && o->probe.measure)
        return err_set(err, -EINVAL, "--only does not go with --measure, which measures all devices");
    return 0;
}

static const struct worker_option rows[] = {
    {"measure", NULL, "time copies between host and devices, and store the result for later runs",
     OPTION_FLAG, OPTION_AT(probe.measure)},
    {"only", "LIST", "look only at the free memory of these devices, e.g. 0,2", OPTION_PARSED,
     .parse = parse_only},
    {"out", "FILE", "write a topology file", OPTION_TEXT, OPTION_AT(probe.topology_path)},
    {0},
};

static const struct option_table options = {"what to look for with --probe", rows};

static const char *const where[] = {"backend", "devices", "machine", NULL};

const struct worker_verb verb_probe = {
    .word = {"probe"},
    .forms = {{"[--measure] [--out FILE]", "print the devices and the backend"}},
    .tables = {&options},
    .where = where,
    .check = check_probe,
    .run = run_probe,
};
