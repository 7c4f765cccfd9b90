/* Chooses the part of the machine that a job gets: which devices, how many bytes of each, how much host
 * memory.
 *
 * Virtual devices: the job gets as many as it asks for. Together they have half of the host's memory, unless
 * the job asks for a size.
 *
 * Real devices may have other users. The job gets the devices with the most free memory, and of each device
 * at most the free memory minus the reserve of the backend. A job that asks for more than is free is refused
 * with a message that says how much is free.
 *
 * Leased devices: the daemon's lease names the devices and limits the bytes of each. The spec may ask for
 * less than the limit.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/strbuf.h"
#include "base/utf8.h"
#include "daemon/worker/job.h"
#include "daemon/worker/probe/time_cache.h"

/* The devices and the memory that the job asks for. The spec gives these numbers, and options override
 * them. */
struct wish {
    uint32_t least, most; /* number of devices */
    /* Bytes that the job wants on each device. 0 means all memory that can be used. */
    uint64_t device_bytes;
    /* The most bytes of each device that the daemon's lease allows. 0 means no limit. */
    uint64_t limit_bytes;
    uint64_t host_bytes; /* 0 means all that can be used */
};

static struct wish wish_of(const struct job_options *o, const struct spec *s)
{
    struct spec_demand demand = spec_demand(s);
    struct wish w = {demand.devices_min, demand.devices_max, demand.device_bytes, 0, demand.host_bytes};
    if (o->devices > 0)
        w.least = w.most = o->devices;
    if (o->host_bytes > 0)
        w.host_bytes = o->host_bytes;
    if (o->leased)
        w.limit_bytes = o->device_bytes;
    else if (o->device_bytes > 0)
        w.device_bytes = o->device_bytes;
    return w;
}

/* ---- virtual devices ---- */

static int choose_virtual(const struct wish *w, const struct topology *t, struct machine *m, struct err *err)
{
    uint64_t bytes = w->limit_bytes > 0 ? w->limit_bytes : w->device_bytes;
    if (w->most > DEVICE_MAX)
        return err_set_at(err, -EINVAL, "resources.devices", "at most %u devices", DEVICE_MAX);
    if (bytes == 0)
        bytes = t->host_memory_bytes / w->most;
    if (bytes < PLAN_ALIGN)
        return err_set_at(err, -EINVAL, "resources.device_memory", "%llu bytes: must be at least %d",
                          (unsigned long long)bytes, PLAN_ALIGN);
    m->n_devices = w->most;
    for (uint32_t i = 0; i < w->most; i++)
        m->capacity_bytes[i] = bytes & ~(uint64_t)(PLAN_ALIGN - 1);
    return 0;
}

/* Tells the simulator that virtual devices, host updates and copies share the cores of the processor. Counts
 * one core for each device, whatever the computer has, so that every computer makes the same plan.
 * job_profile.c replaces these numbers if durations were measured here. */
static void share_cores(struct machine *m)
{
    m->cores_by_devices = true;
    m->cores = m->host_cores = m->n_devices;
    m->device_cores = 1;
    m->core_copy_bytes_per_s = m->link_bytes_per_s;
}

/* ---- real devices ---- */

/* A selection of the devices of a topology. at[i] is the position of a selected device in the topology. */
struct picks {
    uint32_t n, at[DEVICE_MAX];
};

static void blame_index(struct job_blame *b, uint32_t index, const char *why)
{
    if (b->n == 0)
        snprintf(b->why, sizeof b->why, "%.*s", (int)sizeof b->why - 1, why);
    if (b->n < DEVICE_MAX)
        b->index[b->n++] = index;
}

void job_blame_devices(struct prepared_job *j, const struct device_blame *blame, struct err *err)
{
    struct strbuf b = {0};
    for (uint32_t d = 0; d < j->machine.n_devices; d++) {
        if (!(blame->devices >> d & 1))
            continue;
        blame_index(&j->blame, j->real_devices ? j->device_index[d] : d, blame->why);
        strbuf_addf(&b, "%s%" PRIu32, b.n > 0 ? ", " : "", j->blame.index[j->blame.n - 1]);
    }
    if (j->blame.n > 0 && err != NULL && err->code < 0)
        err_set_at(err, err->code, err->path, "%s (device %s: %s)", err->msg, b.at, blame->why);
    strbuf_finish(&b);
}

/* Collects the devices of the daemon's lease, or all devices of the topology if there is no lease. If a
 * leased device is missing, stores the device in *blame and returns -ENODEV. */
static int find_candidates(const struct job_options *o, const struct topology *t, struct picks *ret,
                           struct job_blame *blame, struct err *err)
{
    ret->n = 0;
    if (o->device_index == NULL) {
        for (uint32_t i = 0; i < t->n_devices; i++)
            ret->at[ret->n++] = i;
        return 0;
    }
    for (uint32_t k = 0; k < o->devices; k++) {
        uint32_t i = 0;
        while (i < t->n_devices && t->devices[i].index != o->device_index[k])
            i++;
        if (i == t->n_devices)
            blame_index(blame, o->device_index[k], "it is not found any more");
        else
            ret->at[ret->n++] = i;
    }
    return blame->n == 0
               ? 0
               : err_set(err, -ENODEV, "device %u, which the job was given, is not there", blame->index[0]);
}

/* Moves the `n` devices with the most free memory to the front of `p`. These `n` devices stay in the order of
 * the topology. If two devices have equally much memory, the earlier device comes first. */
static void prefer_free(const struct topology *t, struct picks *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t best = i;
        for (uint32_t k = i + 1; k < p->n; k++) {
            uint64_t a = t->devices[p->at[k]].free_bytes, b = t->devices[p->at[best]].free_bytes;
            if (a > b || (a == b && p->at[k] < p->at[best]))
                best = k;
        }
        uint32_t swap = p->at[i];
        p->at[i] = p->at[best];
        p->at[best] = swap;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = i + 1; k < n; k++)
            if (p->at[k] < p->at[i]) {
                uint32_t swap = p->at[i];
                p->at[i] = p->at[k];
                p->at[k] = swap;
            }
}

/* Appends a text such as "device 0 (NVIDIA A100) has 3.20 GiB of 40.00 GiB free, ..." for every selected
 * device. */
static void say_free(const struct topology *t, const struct picks *p, struct strbuf *b)
{
    for (uint32_t i = 0; i < p->n; i++) {
        const struct device_info *d = &t->devices[p->at[i]];
        strbuf_addf(b, "%sdevice %" PRIu32 "%s%s%s has ", i > 0 ? ", " : "", d->index,
                    d->name[0] != '\0' ? " (" : "", d->name, d->name[0] != '\0' ? ")" : "");
        strbuf_add_bytes(b, d->free_bytes);
        strbuf_add(b, " of ");
        strbuf_add_bytes(b, d->total_bytes);
        strbuf_add(b, " free");
    }
}

/* Reports that a device has too little free memory. For a leased device the error is -EBUSY, which makes the
 * daemon probe the device again while the job waits. */
static int refuse_memory(const struct wish *w, const struct topology *t, const struct picks *p, uint32_t n,
                         bool leased, struct err *err)
{
    struct strbuf b = {0};
    int code = leased ? -EBUSY : -ENOSPC;
    if (w->device_bytes > 0) {
        strbuf_add(&b, "asks for ");
        strbuf_add_bytes(&b, w->device_bytes);
        strbuf_addf(&b, " on %u device%s; ", n, n == 1 ? "" : "s");
    } else {
        strbuf_add(&b, "too little is free: the backend itself needs ");
        strbuf_add_bytes(&b, topology_reserve_bytes(t->backend));
        strbuf_add(&b, " of a device; ");
    }
    say_free(t, p, &b);
    err_set_at(err, code, "resources.device_memory", "%s", b.at);
    strbuf_finish(&b);
    return code;
}

static int refuse_number(const struct wish *w, const struct topology *t, const struct picks *p,
                         const struct job_options *o, struct err *err)
{
    bool hint = t->backend != BACKEND_CPU && !o->leased && o->machine == NULL;
    return err_set_at(err, -ENOSPC, "resources.devices", "asks for %u devices; this machine has %u of %s%s",
                      w->least, p->n, backend_names[t->backend],
                      hint ? " (--backend cpu has any number of virtual devices)" : "");
}

static int choose_real(const struct job_options *o, const struct wish *w, const struct topology *t,
                       struct prepared_job *j, struct err *err)
{
    struct picks p;
    struct machine *m = &j->machine;
    int r = find_candidates(o, t, &p, &j->blame, err);
    if (r < 0)
        return r;
    if (p.n < w->least)
        return refuse_number(w, t, &p, o, err);
    m->n_devices = w->most < p.n ? w->most : p.n;
    prefer_free(t, &p, m->n_devices);
    /* device_kind has space for one name only, so the name of the first device stands for all devices of the
     * job. */
    snprintf(j->device_kind, sizeof j->device_kind, "%s", t->devices[p.at[0]].name);
    for (uint32_t i = 0; i < m->n_devices; i++) {
        const struct device_info *d = &t->devices[p.at[i]];
        uint64_t bytes = topology_usable_bytes(t, p.at[i]);
        if (bytes == 0 || w->device_bytes > d->free_bytes)
            return refuse_memory(w, t, &p, m->n_devices, o->leased, err);
        if (w->device_bytes > 0 && w->device_bytes < bytes)
            bytes = w->device_bytes;
        if (w->limit_bytes > 0 && w->limit_bytes < bytes)
            bytes = w->limit_bytes;
        if (bytes < PLAN_ALIGN)
            return err_set_at(err, -EINVAL, "resources.device_memory", "%llu bytes: must be at least %d",
                              (unsigned long long)bytes, PLAN_ALIGN);
        m->capacity_bytes[i] = bytes & ~(uint64_t)(PLAN_ALIGN - 1);
        j->device_index[i] = d->index;
    }
    return 0;
}

/* ---- the machine ---- */

/* Returns the number of bytes that a job can use on each of the devices in `m`, if no other program uses
 * them. */
static uint64_t described_bytes(const struct wish *w, const struct topology *t, const struct machine *m)
{
    uint64_t least = UINT64_MAX, reserve = topology_reserve_bytes(t->backend);
    if (w->device_bytes > 0 || t->n_devices == 0)
        return w->device_bytes > 0 ? w->device_bytes & ~(uint64_t)(PLAN_ALIGN - 1) : m->capacity_bytes[0];
    for (uint32_t i = 0; i < t->n_devices; i++) {
        uint64_t total = t->devices[i].total_bytes, bytes = total > reserve ? total - reserve : 0;
        least = bytes < least ? bytes : least;
    }
    return least & ~(uint64_t)(PLAN_ALIGN - 1);
}

/* Sets j->described and j->least_devices. The described machine does not follow the lease, which may have
 * fewer devices than the job can use and less memory than a device has. If host memory grows with the number
 * of leased devices, the described machine gets the host memory of the smallest lease. Sizes that fit this
 * machine then fit every lease. */
static void describe_machine(const struct job_options *o, const struct wish *w, const struct topology *t,
                             struct prepared_job *j)
{
    const struct spec_demand demand = spec_demand(j->spec);
    struct machine *m = &j->described;
    uint32_t all = o->all_devices > 0 ? o->all_devices : DEVICE_MAX;
    *m = j->machine;
    j->least_devices = m->n_devices;
    if (o->leased) {
        m->n_devices = demand.devices_max < all ? demand.devices_max : all;
        j->least_devices = demand.devices_min;
        if (o->host_bytes_each > 0)
            m->host_bytes = o->host_bytes_each * demand.devices_min;
    }
    if (m->n_devices < j->machine.n_devices)
        m->n_devices = j->machine.n_devices;
    uint64_t bytes = described_bytes(w, t, &j->machine);
    j->is_described = m->n_devices == j->machine.n_devices && m->host_bytes == j->machine.host_bytes;
    for (uint32_t d = 0; d < m->n_devices; d++) {
        j->is_described &= m->capacity_bytes[d] == bytes;
        m->capacity_bytes[d] = bytes;
    }
    if (t->n_devices == 0 && !j->elsewhere)
        share_cores(m);
}

static int choose_devices(const struct job_options *o, const struct discovery *d, struct prepared_job *j,
                          struct err *err)
{
    const struct topology *t = &d->topology;
    struct wish w = wish_of(o, j->spec);
    struct machine *m = &j->machine;
    topology_machine(t, m);
    j->backend = backend_names[t->backend];
    utf8_scrub(j->backend_reason, sizeof j->backend_reason, d->reason);
    j->elsewhere = d->from_file;
    if (t->n_devices == 0 && !j->elsewhere)
        time_cache_cpu(j->device_kind, sizeof j->device_kind);
    j->real_devices = t->n_devices > 0;
    int r = j->real_devices ? choose_real(o, &w, t, j, err) : choose_virtual(&w, t, m, err);
    m->host_bytes = w.host_bytes > 0 ? w.host_bytes : t->host_memory_bytes;
    m->host_taken_bytes = j->data_bytes = j->train->bytes + (j->val != NULL ? j->val->bytes : 0);
    if (o->link_bytes_per_s > 0) {
        m->link_bytes_per_s = o->link_bytes_per_s;
        m->link_out_bytes_per_s = 0;
    }
    if (o->peer_bytes_per_s > 0)
        m->peer_bytes_per_s = o->peer_bytes_per_s;
    if (r == 0 && t->n_devices == 0 && !j->elsewhere)
        share_cores(m);
    if (r == 0)
        describe_machine(o, &w, t, j);
    return r;
}

/* Returns the devices to probe as a bit set, in which bit i stands for device i. Only leased devices are
 * probed, because other devices may belong to other jobs. */
static uint64_t leased_devices(const struct job_options *o)
{
    uint64_t asked = 0;
    if (o->device_index == NULL)
        return DEVICES_ALL;
    for (uint32_t k = 0; k < o->devices; k++)
        if (o->device_index[k] < 64)
            asked |= UINT64_C(1) << o->device_index[k];
    return asked;
}

uint32_t job_allowed_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (uint32_t)CPU_COUNT(&set);
    /* sched_getaffinity fails if the computer has more cores than fit into a cpu_set_t. Then the number of
     * all online cores is used instead. */
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (uint32_t)cores : 1;
}

/* Checks that the devices can compute with the precision of the job. */
static int check_precision(const struct prepared_job *j, struct err *err)
{
    if (j->spec->precision != PRECISION_TF32 || strcmp(j->backend, backend_names[BACKEND_CUDA]) == 0)
        return 0;
    return err_set_at(
        err, -EOPNOTSUPP, "precision",
        "tf32 needs the tensor cores of cuda devices, and the devices of this job are %s; write "
        "\"fp32\" or \"bf16\", or choose a machine with cuda devices",
        j->backend);
}

int job_choose_machine(const struct job_options *o, struct prepared_job *j, struct err *err)
{
    struct discovery *d = malloc(sizeof *d); /* 50 KiB */
    if (d == NULL)
        return err_set(err, -ENOMEM, "no memory to look at the machine");
    int r = discover(o->backend, o->machine, leased_devices(o), d, err);
    for (uint32_t k = 0; r == -ENODEV && o->device_index != NULL && k < o->devices; k++)
        blame_index(&j->blame, o->device_index[k], d->found[BACKEND_CUDA].why);
    if (r == 0)
        r = choose_devices(o, d, j, err);
    if (r == 0)
        r = check_precision(j, err);
    j->threads = o->threads > 0 ? o->threads : job_allowed_cores();
    free(d);
    return r;
}

int job_check_backend(const struct prepared_job *j, struct err *err)
{
    struct device_info found[DEVICE_MAX];
    struct err why = {0};
    char text[sizeof why];
    uint32_t n;
    if (!j->elsewhere || devset_probe(j->backend, 0, found, DEVICE_MAX, &n, &why) == 0)
        return 0;
    return err_set_at(err, -ENODEV, "--machine", "describes a machine with %s, which cannot be used here: %s",
                      j->backend, err_text(&why, text, sizeof text));
}
