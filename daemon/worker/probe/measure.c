/* Implements measure.h: times copies over links.
 *
 * One copy runs at a time while the devices are otherwise idle. Marks on the copy's stream give its duration
 * without the time to start it. The slowest device or pair of devices determines the rate of the machine,
 * because a plan waits for the slowest.
 *
 * Virtual devices are host memory, and the processor's caches may still hold the bytes of the last copy. In
 * training every copy moves other bytes. Therefore copies between virtual devices cycle through
 * MEASURE_COLD_BYTES of memory.
 */
#include "daemon/worker/probe/measure.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The devices and the memory that a measurement of copy speeds uses. */
struct bench {
    struct devset *devices;
    /* The block of host memory that is copied from and to. It is page-locked if the backend supports this. */
    void *host;
    uint64_t bytes; /* size of one copy */
    /* How many areas of `bytes` bytes the copies use in turn, so that the data are not in the processor's
     * caches. */
    uint32_t n_areas;
};

static int compare_durations(const void *pa, const void *pb)
{
    uint64_t a = *(const uint64_t *)pa, b = *(const uint64_t *)pb;
    return a < b ? -1 : a > b;
}

/* Measures the durations of MEASURE_REPEATS copies and stores the median rate in *ret, in bytes per second.
 * The rate is at least 2, because a rate of 1 has a special meaning (TOPOLOGY_PEER_DIRECT). */
static int time_copy(const struct bench *b, uint32_t stream, void *dst, const void *src, uint64_t *ret)
{
    uint64_t took[MEASURE_REPEATS + 1];
    for (uint32_t i = 0; i <= MEASURE_REPEATS; i++) {
        uint64_t begin = 0, end = 0, at = i % b->n_areas * b->bytes;
        int r = devset_mark(b->devices, stream, &begin);
        if (r == 0)
            r = devset_copy(b->devices, stream, (char *)dst + at, (const char *)src + at, b->bytes);
        if (r == 0)
            r = devset_mark(b->devices, stream, &end);
        int d = devset_drain(b->devices);
        if (r < 0 || d < 0)
            return r < 0 ? r : d;
        took[i] = end > begin ? end - begin : 1;
    }
    qsort(took + 1, MEASURE_REPEATS, sizeof *took, compare_durations); /* the first copy only warms up */
    uint64_t rate = (uint64_t)((double)b->bytes * 1e9 / (double)took[1 + MEASURE_REPEATS / 2]);
    *ret = rate > 2 ? rate : 2;
    return 0;
}

static void keep_least(uint64_t *least, uint64_t v)
{
    if (*least == 0 || v < *least)
        *least = v;
}

static int measure_link(const struct bench *b, uint32_t device, struct topology *t)
{
    void *at = devset_address(b->devices, device, 0);
    uint32_t stream = LANE_COUNT * device;
    uint64_t rate = 0;
    int r = time_copy(b, stream + LANE_IN, at, b->host, &rate);
    if (r < 0)
        return r;
    keep_least(&t->link_in_bytes_per_s, rate);
    r = time_copy(b, stream + LANE_OUT, b->host, at, &rate);
    if (r == 0)
        keep_least(&t->link_out_bytes_per_s, rate);
    return r;
}

/* Measures copies from device `from` to device `to`, and stores the rate in t->peer_bytes_per_s if it is the
 * lowest so far. If the devices have a direct connection, also stores the rate in t->peers. Otherwise the
 * copies go through the host, and t->peers keeps 0, which means "not direct". */
static int measure_peer(const struct bench *b, uint32_t from, uint32_t to, struct topology *t)
{
    uint64_t rate = 0;
    int r = time_copy(b, LANE_COUNT * from + LANE_PEER, devset_address(b->devices, to, 0),
                      devset_address(b->devices, from, 0), &rate);
    if (r < 0)
        return r;
    keep_least(&t->peer_bytes_per_s, rate);
    if (t->has_peers && t->peers[from][to] != 0)
        t->peers[from][to] = rate;
    return 0;
}

static int measure_all(const struct bench *b, uint32_t n, struct topology *t)
{
    int r = 0;
    t->link_in_bytes_per_s = t->link_out_bytes_per_s = t->peer_bytes_per_s = 0;
    for (uint32_t i = 0; r == 0 && i < n; i++)
        r = measure_link(b, i, t);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; r == 0 && k < n; k++)
            r = i == k ? 0 : measure_peer(b, i, k, t);
    return r;
}

static int open_bench(const struct topology *t, uint32_t n, uint64_t bytes, struct bench *ret,
                      struct err *err)
{
    uint32_t index[DEVICE_MAX];
    struct devset_config c = {.backend = backend_names[t->backend], .n_devices = n, .threads = 1};
    uint64_t area;
    ret->bytes = bytes;
    ret->n_areas =
        t->n_devices == 0 && bytes < MEASURE_COLD_BYTES ? (uint32_t)(MEASURE_COLD_BYTES / bytes) : 1;
    area = ret->n_areas * bytes;
    for (uint32_t i = 0; i < t->n_devices; i++) {
        index[i] = t->devices[i].index;
        if (topology_usable_bytes(t, i) < ret->bytes)
            return err_set(err, -ENOSPC,
                           "device %u has %llu bytes free; measuring needs %llu and a reserve of %llu", i,
                           (unsigned long long)t->devices[i].free_bytes, (unsigned long long)bytes,
                           (unsigned long long)topology_reserve_bytes(t->backend));
    }
    if (t->n_devices > 0)
        c.device_index = index;
    for (uint32_t i = 0; i < n; i++)
        c.capacity_bytes[i] = area;
    int r = devset_open(&c, &ret->devices, err);
    if (r < 0)
        return r;
    r = devset_host_alloc(ret->devices, area, &ret->host, err);
    if (r < 0)
        return r;
    /* Write to every page of the memory before the copies are timed, because the first access to a page
     * causes a slow page fault. */
    memset(ret->host, 1, area);
    for (uint32_t i = 0; r == 0 && i < n; i++)
        r = devset_copy(ret->devices, LANE_COUNT * i + LANE_IN, devset_address(ret->devices, i, 0), ret->host,
                        area);
    int d = devset_drain(ret->devices);
    if (r < 0 || d < 0)
        return err_set(err, r < 0 ? r : d, "a copy failed before measuring: %s", strerror(r < 0 ? -r : -d));
    return 0;
}

int measure(struct topology *t, uint32_t virtual_devices, struct err *err)
{
    return measure_copies(t, virtual_devices, MEASURE_BYTES, err);
}

int measure_copies(struct topology *t, uint32_t virtual_devices, uint64_t bytes, struct err *err)
{
    struct bench b = {0};
    uint32_t n = t->n_devices > 0 ? t->n_devices : virtual_devices;
    int r = open_bench(t, n, bytes, &b, err);
    if (r == 0) {
        r = measure_all(&b, n, t);
        if (r < 0)
            err_set(err, r, "a copy failed while measuring: %s", strerror(-r));
    }
    if (b.devices != NULL)
        devset_host_free(b.devices, b.host, b.n_areas * b.bytes);
    devset_close(b.devices);
    return r;
}
