/* Implements needs.h. The client, the daemon and its database pass the needs around only as JSON, and the
 * functions here write and read this JSON. All functions are pure. */
#include "daemon/spec/needs.h"

#include <errno.h>
#include <inttypes.h>

const char *const job_profile_names[JOB_PROFILE_COUNT + 1] = {
    [JOB_ANALYTIC] = "analytic", [JOB_FILE] = "file", [JOB_MEASURED] = "measured"};

void needs_to_json(const struct job_needs *n, struct strbuf *b)
{
    strbuf_addf(b, "{\"steps\":%" PRIu64 ",\"step_ns\":%" PRIu64 ",\"times\":\"%s\",\"device_bytes\":[",
                n->steps, n->step_ns, job_profile_names[n->times]);
    for (uint32_t i = 0; i < n->n_devices; i++)
        strbuf_addf(b, "%s%" PRIu64, i > 0 ? "," : "", n->device_bytes[i]);
    strbuf_addf(b,
                "],\"host_bytes\":{\"planning\":%" PRIu64 ",\"loading\":%" PRIu64 ",\"running\":%" PRIu64
                ",\"saving\":%" PRIu64 "}}",
                n->host.planning, n->host.loading, n->host.running, n->host.saving);
}

static void take_devices(struct json_obj *o, struct job_needs *ret)
{
    const struct json *list;
    char at[sizeof o->path];
    if (!json_take(o, "device_bytes", JSON_REQUIRED, &list))
        return;
    if (json_type(list) != JSON_ARRAY || json_array_size(list) == 0 || json_array_size(list) > DEVICE_MAX) {
        json_fail(o, "device_bytes", -EINVAL, "must be a list of 1 to %u numbers", DEVICE_MAX);
        return;
    }
    json_path_key(at, sizeof at, o->path, "device_bytes");
    for (const struct json *d = json_array_first(list); d != NULL && o->status == 0; d = json_array_next(d)) {
        char path[sizeof at];
        json_path_index(path, sizeof path, at, ret->n_devices);
        o->status = json_u64(d, path, &ret->device_bytes[ret->n_devices++], o->err);
    }
}

static int read_host(const struct json *node, const char *path, struct needs_host *ret, struct err *err)
{
    struct json_obj o;
    json_obj_begin(&o, node, path, err);
    json_take_u64(&o, "planning", JSON_REQUIRED, &ret->planning);
    json_take_u64(&o, "loading", JSON_REQUIRED, &ret->loading);
    json_take_u64(&o, "running", JSON_REQUIRED, &ret->running);
    json_take_u64(&o, "saving", JSON_REQUIRED, &ret->saving);
    return json_obj_end(&o);
}

int needs_read(const struct json *node, const char *path, struct job_needs *ret, struct err *err)
{
    struct json_obj o;
    const struct json *host = NULL;
    char at[256];
    int times = JOB_ANALYTIC;
    *ret = (struct job_needs){0};
    json_obj_begin(&o, node, path, err);
    json_take_u64(&o, "steps", JSON_REQUIRED, &ret->steps);
    json_take_u64(&o, "step_ns", JSON_REQUIRED, &ret->step_ns);
    json_take_enum(&o, "times", JSON_REQUIRED, job_profile_names, &times);
    take_devices(&o, ret);
    json_take(&o, "host_bytes", JSON_REQUIRED, &host);
    ret->times = (enum job_profile)times;
    int r = json_obj_end(&o);
    json_path_key(at, sizeof at, path, "host_bytes");
    return r < 0 ? r : read_host(host, at, &ret->host, err);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t needs_host_bytes(const struct job_needs *n)
{
    return larger(larger(n->host.planning, n->host.loading), larger(n->host.running, n->host.saving));
}

double needs_left_s(const struct job_needs *n, uint64_t steps_done)
{
    return steps_done < n->steps ? (double)(n->steps - steps_done) * (double)n->step_ns * 1e-9 : 0;
}
