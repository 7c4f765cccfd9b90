/* Reads and writes topologies as JSON (schema machine/v1, described in docs/machine.md). The reader is
 * strict: unknown keys, wrong types and sizes that contradict each other are errors. Each error message names
 * the place in the JSON text. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "scheduler/topology.h"

#define RATE_MAX (1ull << 53)

/* ---- reading ---- */

/* Reads a number that must not be 0, such as a rate. If the key is missing, leaves *ret as it is. */
static void take_positive(struct json_obj *o, const char *key, uint64_t *ret)
{
    if (json_take_bytes(o, key, JSON_OPTIONAL, ret) && (*ret == 0 || *ret > RATE_MAX))
        json_fail(o, key, -EINVAL,
                  "is %" PRIu64 "; it must be more than 0 and at most 2^53; omit the key if it is not known",
                  *ret);
}

static void take_device_text(struct json_obj *o, const char *key, char *ret, size_t size)
{
    const char *text;
    if (!json_take_name(o, key, JSON_OPTIONAL, &text))
        return;
    if (strlen(text) >= size)
        json_fail(o, key, -EINVAL, "is too long: %zu bytes, but at most %zu are allowed", strlen(text),
                  size - 1);
    else
        strcpy(ret, text);
}

static void take_small(struct json_obj *o, const char *key, uint32_t most, uint32_t *ret)
{
    uint64_t v;
    if (!json_take_u64(o, key, JSON_OPTIONAL, &v))
        return;
    if (v > most)
        json_fail(o, key, -EINVAL, "is %" PRIu64 "; it must be at most %u", v, most);
    else
        *ret = (uint32_t)v;
}

static int read_pcie(const struct json *node, const char *path, struct device_info *d, struct err *err)
{
    struct json_obj o;
    json_obj_begin(&o, node, path, err);
    take_small(&o, "generation", 16, &d->pcie_generation);
    take_small(&o, "width", 64, &d->pcie_width);
    return json_obj_end(&o);
}

static int read_device(const struct json *node, const char *path, struct device_info *d, struct err *err)
{
    struct json_obj o;
    const struct json *pcie = NULL;
    uint32_t numa = 0;
    char at[256];
    json_obj_begin(&o, node, path, err);
    if (json_take_bytes(&o, "memory_bytes", JSON_REQUIRED, &d->total_bytes) && d->total_bytes < PLAN_ALIGN)
        json_fail(&o, "memory_bytes", -EINVAL, "is %" PRIu64 "; it must be at least %d", d->total_bytes,
                  PLAN_ALIGN);
    d->free_bytes = d->total_bytes;
    if (json_take_bytes(&o, "free_bytes", JSON_OPTIONAL, &d->free_bytes) && d->free_bytes > d->total_bytes)
        json_fail(&o, "free_bytes", -EINVAL,
                  "is %" PRIu64 "; it must not be more than memory_bytes, %" PRIu64, d->free_bytes,
                  d->total_bytes);
    take_small(&o, "index", UINT32_MAX, &d->index);
    take_device_text(&o, "name", d->name, sizeof d->name);
    take_device_text(&o, "bus_id", d->bus_id, sizeof d->bus_id);
    take_device_text(&o, "uuid", d->uuid, sizeof d->uuid);
    d->numa_node = -1;
    numa = UINT32_MAX;
    take_small(&o, "numa_node", INT32_MAX, &numa);
    if (numa != UINT32_MAX)
        d->numa_node = (int32_t)numa;
    json_take(&o, "pcie", JSON_OPTIONAL, &pcie);
    int r = json_obj_end(&o);
    json_path_key(at, sizeof at, path, "pcie");
    return r == 0 && pcie != NULL ? read_pcie(pcie, at, d, err) : r;
}

static bool index_is_taken(const struct topology *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (t->devices[i].index == t->devices[n].index)
            return true;
    return false;
}

static int read_devices(const struct json *list, struct topology *t, struct err *err)
{
    char path[64];
    if (json_type(list) != JSON_ARRAY)
        return err_set_at(err, -EINVAL, "devices", "expected an array, found %s",
                          json_type_name(json_type(list)));
    if (json_array_size(list) > DEVICE_MAX)
        return err_set_at(err, -EINVAL, "devices", "has %zu devices; at most %d are allowed",
                          json_array_size(list), DEVICE_MAX);
    if (json_array_size(list) == 0 && t->backend != BACKEND_CPU)
        return err_set_at(err, -EINVAL, "devices", "must not be empty, because only cpu devices are virtual");
    for (const struct json *n = json_array_first(list); n != NULL; n = json_array_next(n)) {
        uint32_t i = t->n_devices;
        json_path_index(path, sizeof path, "devices", i);
        t->devices[i].index = i;
        int r = read_device(n, path, &t->devices[i], err);
        if (r < 0)
            return r;
        if (index_is_taken(t, i))
            return err_set_at(err, -EINVAL, path, "has the same index as an earlier device: %" PRIu32,
                              t->devices[i].index);
        t->n_devices++;
    }
    return 0;
}

/* Reads the two rates of a link. `node` is either one number for both directions, or an object with the keys
 * "in" and "out". */
static int read_link_rates(const struct json *node, const char *path, uint64_t *ret_in, uint64_t *ret_out,
                           struct err *err)
{
    struct json_obj o;
    if (json_type(node) != JSON_OBJECT) {
        int r = json_bytes(node, path, ret_in, err);
        if (r == 0 && *ret_in == 0)
            r = err_set_at(err, -EINVAL, path,
                           "is 0; it must be more than 0; omit the key if it is not known");
        *ret_out = *ret_in;
        return r;
    }
    json_obj_begin(&o, node, path, err);
    take_positive(&o, "in", ret_in);
    take_positive(&o, "out", ret_out);
    return json_obj_end(&o);
}

/* Reads one element of "peers": the rate of a direct connection, true if the rate is unknown, or false if
 * there is no direct connection. */
static int read_peer(const struct json *node, const char *path, uint64_t *ret, struct err *err)
{
    bool direct = false;
    if (json_type(node) != JSON_BOOL)
        return json_bytes(node, path, ret, err);
    int r = json_bool(node, path, &direct, err);
    *ret = direct ? TOPOLOGY_PEER_DIRECT : 0;
    return r;
}

static int check_square(const struct json *node, const char *path, uint32_t n, struct err *err)
{
    if (json_type(node) == JSON_ARRAY && json_array_size(node) == n)
        return 0;
    return err_set_at(err, -EINVAL, path, "expected an array of %u elements, one for each device", n);
}

static int read_peers(const struct json *rows, struct topology *t, struct err *err)
{
    char path[64], cell[96];
    uint32_t from = 0;
    int r = check_square(rows, "peers", t->n_devices, err);
    for (const struct json *row = json_array_first(rows); r == 0 && row != NULL;
         row = json_array_next(row), from++) {
        uint32_t to = 0;
        json_path_index(path, sizeof path, "peers", from);
        r = check_square(row, path, t->n_devices, err);
        for (const struct json *n = json_array_first(row); r == 0 && n != NULL;
             n = json_array_next(n), to++) {
            json_path_index(cell, sizeof cell, path, to);
            r = read_peer(n, cell, &t->peers[from][to], err);
        }
    }
    t->has_peers = r == 0;
    return r;
}

/* Reads the numbers of cores. Fails if a single task uses more cores than the machine has. */
static void take_cores(struct json_obj *o, struct topology *t)
{
    take_small(o, "cores", TOPOLOGY_MAX_CORES, &t->cores);
    take_small(o, "device_cores", t->cores, &t->device_cores);
    take_small(o, "host_cores", t->cores, &t->host_cores);
    take_positive(o, "core_copy_bytes_per_s", &t->core_copy_bytes_per_s);
    if (t->core_copy_bytes_per_s > 0 && t->cores == 0)
        json_fail(o, "core_copy_bytes_per_s", -EINVAL,
                  "has no effect without \"cores\"; add \"cores\" or omit it");
}

static int read_topology(const struct json *doc, struct topology *t, struct err *err)
{
    struct json_obj o;
    const struct json *devices = NULL, *link = NULL, *all_links = NULL, *peers = NULL;
    const char *schema = "";
    int backend = BACKEND_CPU;
    json_obj_begin(&o, doc, "", err);
    if (json_take_string(&o, "schema", JSON_REQUIRED, &schema) && strcmp(schema, TOPOLOGY_SCHEMA) != 0)
        json_fail(&o, "schema", -EINVAL, "expected \"" TOPOLOGY_SCHEMA "\", found \"%s\"", schema);
    json_take_enum(&o, "backend", JSON_REQUIRED, backend_names, &backend);
    json_take(&o, "devices", JSON_REQUIRED, &devices);
    json_take(&o, "link_bytes_per_s", JSON_OPTIONAL, &link);
    json_take(&o, "all_links_bytes_per_s", JSON_OPTIONAL, &all_links);
    take_positive(&o, "peer_bytes_per_s", &t->peer_bytes_per_s);
    json_take_bool(&o, "peers_by_link", JSON_OPTIONAL, &t->peers_by_link);
    json_take(&o, "peers", JSON_OPTIONAL, &peers);
    take_positive(&o, "host_memory_bytes", &t->host_memory_bytes);
    take_positive(&o, "host_bytes_per_s", &t->host_bytes_per_s);
    take_positive(&o, "device_bytes_per_s", &t->device_bytes_per_s);
    take_positive(&o, "device_flops_per_s", &t->device_flops_per_s);
    take_positive(&o, "launch_ns", &t->launch_ns);
    take_cores(&o, t);
    int r = json_obj_end(&o);
    t->backend = (enum backend_id)backend;
    if (r == 0)
        r = read_devices(devices, t, err);
    if (r == 0 && link != NULL)
        r = read_link_rates(link, "link_bytes_per_s", &t->link_in_bytes_per_s, &t->link_out_bytes_per_s, err);
    if (r == 0 && all_links != NULL)
        r = read_link_rates(all_links, "all_links_bytes_per_s", &t->all_links_in_bytes_per_s,
                            &t->all_links_out_bytes_per_s, err);
    if (r == 0 && peers != NULL)
        r = read_peers(peers, t, err);
    return r;
}

int topology_parse(const char *text, size_t bytes, const char *name, struct topology *ret, struct err *err)
{
    struct json *doc = NULL;
    *ret = (struct topology){0};
    int r = json_parse(text, bytes, name, true, &doc, err);
    if (r == 0)
        r = read_topology(doc, ret, err);
    json_free(doc);
    return r;
}

/* ---- writing ---- */

static void add_text(struct strbuf *b, const char *key, const char *text)
{
    if (text[0] == '\0')
        return;
    strbuf_addf(b, ",\"%s\":", key);
    strbuf_add_json(b, text);
}

static void add_known(struct strbuf *b, const char *key, uint64_t v)
{
    if (v > 0)
        strbuf_addf(b, ",\"%s\":%" PRIu64, key, v);
}

static void add_device(struct strbuf *b, const struct device_info *d)
{
    strbuf_addf(b, "{\"index\":%" PRIu32 ",\"memory_bytes\":%" PRIu64 ",\"free_bytes\":%" PRIu64, d->index,
                d->total_bytes, d->free_bytes);
    add_text(b, "name", d->name);
    add_text(b, "bus_id", d->bus_id);
    add_text(b, "uuid", d->uuid);
    if (d->numa_node >= 0)
        strbuf_addf(b, ",\"numa_node\":%" PRId32, d->numa_node);
    if (d->pcie_generation > 0 && d->pcie_width > 0)
        strbuf_addf(b, ",\"pcie\":{\"generation\":%" PRIu32 ",\"width\":%" PRIu32 "}", d->pcie_generation,
                    d->pcie_width);
    strbuf_add(b, "}");
}

static void add_link(struct strbuf *b, const char *key, uint64_t in, uint64_t out)
{
    if (in == 0 && out == 0)
        return;
    strbuf_addf(b, ",\"%s\":{", key);
    if (in > 0)
        strbuf_addf(b, "\"in\":%" PRIu64 "%s", in, out > 0 ? "," : "");
    if (out > 0)
        strbuf_addf(b, "\"out\":%" PRIu64, out);
    strbuf_add(b, "}");
}

static void add_peers(struct strbuf *b, const struct topology *t)
{
    if (!t->has_peers)
        return;
    strbuf_add(b, ",\"peers\":[");
    for (uint32_t i = 0; i < t->n_devices; i++) {
        strbuf_add(b, i > 0 ? ",[" : "[");
        for (uint32_t k = 0; k < t->n_devices; k++) {
            uint64_t v = t->peers[i][k];
            strbuf_add(b, k > 0 ? "," : "");
            if (v > TOPOLOGY_PEER_DIRECT)
                strbuf_addf(b, "%" PRIu64, v);
            else
                strbuf_add(b, v == TOPOLOGY_PEER_DIRECT ? "true" : "false");
        }
        strbuf_add(b, "]");
    }
    strbuf_add(b, "]");
}

void topology_to_json(const struct topology *t, struct strbuf *b)
{
    strbuf_addf(b, "{\"schema\":\"" TOPOLOGY_SCHEMA "\",\"backend\":\"%s\",\"devices\":[",
                backend_names[t->backend]);
    for (uint32_t i = 0; i < t->n_devices; i++) {
        strbuf_add(b, i > 0 ? "," : "");
        add_device(b, &t->devices[i]);
    }
    strbuf_add(b, "]");
    add_link(b, "link_bytes_per_s", t->link_in_bytes_per_s, t->link_out_bytes_per_s);
    add_link(b, "all_links_bytes_per_s", t->all_links_in_bytes_per_s, t->all_links_out_bytes_per_s);
    add_known(b, "peer_bytes_per_s", t->peer_bytes_per_s);
    if (t->peers_by_link)
        strbuf_add(b, ",\"peers_by_link\":true");
    add_peers(b, t);
    add_known(b, "host_memory_bytes", t->host_memory_bytes);
    add_known(b, "host_bytes_per_s", t->host_bytes_per_s);
    add_known(b, "device_bytes_per_s", t->device_bytes_per_s);
    add_known(b, "device_flops_per_s", t->device_flops_per_s);
    add_known(b, "launch_ns", t->launch_ns);
    add_known(b, "cores", t->cores);
    add_known(b, "device_cores", t->device_cores);
    add_known(b, "host_cores", t->host_cores);
    add_known(b, "core_copy_bytes_per_s", t->core_copy_bytes_per_s);
    strbuf_add(b, "}");
}
