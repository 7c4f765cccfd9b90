/* Implements lean.h. */
#include "scheduler/policy/lean.h"

#include <errno.h>
#include <stdio.h>

#include "base/checked.h"
#include "base/strbuf.h"
#include "scheduler/policy/policy.h"

/* ---- the candidates ---- */

static int visit_policy(const struct plan_request *r, enum policy_id id, lean_visit *visit, void *ctx)
{
    const struct policy *p = policy_of(id);
    struct candidate c = {0};
    p->leanest(r, &c);
    int e = visit(ctx, id, &c);
    for (uint32_t i = 0; e == LEAN_ON && p->lean != NULL; i++) {
        struct arena *a = arena_create();
        c = (struct candidate){0};
        bool more = p->lean(r, i, a, &c);
        if (more)
            e = visit(ctx, id, &c);
        arena_destroy(a);
        if (!more)
            break;
    }
    return e;
}

int lean_each(const struct plan_request *r, const enum policy_id *ids, uint32_t n_ids, lean_visit *visit,
              void *ctx)
{
    int e = LEAN_ON;
    for (uint32_t i = 0; i < n_ids && e >= 0 && e != LEAN_END; i++)
        e = visit_policy(r, ids[i], visit, ctx);
    return e < 0 || e == LEAN_END ? e : LEAN_ON;
}

/* ---- the least memory ---- */

uint64_t lean_least_device(const struct lean_needs *l, uint64_t host_bytes)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->at[i].host_bytes <= host_bytes && l->at[i].device_bytes < least)
            least = l->at[i].device_bytes;
    return least;
}

/* Returns the least host memory, in bytes, that is enough for some candidate that fits devices with
 * `device_bytes` bytes each. */
static uint64_t least_host_for(const struct lean_needs *l, uint64_t device_bytes)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->at[i].device_bytes <= device_bytes && l->at[i].host_bytes < least)
            least = l->at[i].host_bytes;
    return least;
}

/* ---- the message ---- */

static void size_text(char *buf, size_t size, uint64_t bytes)
{
    struct strbuf b = {0};
    strbuf_add_bytes(&b, bytes);
    snprintf(buf, size, "%llu bytes (%s)", (unsigned long long)bytes, b.at);
    strbuf_finish(&b);
}

uint64_t plan_largest_task(const struct graph *g, const struct graph_task **ret)
{
    uint64_t most = 0;
    *ret = NULL;
    for (uint32_t i = 0; i < g->n_tasks; i++) {
        const struct graph_task *t = &g->tasks[i];
        uint64_t bytes = 0;
        for (uint32_t k = 0; t->place == PLACE_DEVICE && k < t->n_operands; k++) {
            const struct graph_operand *op = &g->operands[t->operand + k];
            if (!op->optional)
                bytes += round_up(g->tensors[op->tensor].bytes, PLAN_ALIGN);
        }
        if (bytes > most || (bytes == most && *ret != NULL && t->layer < (*ret)->layer)) {
            most = bytes;
            *ret = t;
        }
    }
    return most;
}

/* Writes a part of a message: which task needs the most memory. For example, writes "; layer 2 (dense) needs
 * most, 5120 bytes (5.00 KiB) in its backward pass". */
static void largest_text(char *buf, size_t size, const struct graph *g)
{
    const struct graph_task *t;
    char bytes[64];
    size_text(bytes, sizeof bytes, plan_largest_task(g, &t));
    buf[0] = '\0';
    if (t != NULL)
        snprintf(buf, size, "; layer %u (%s) needs most, %s in its %s pass", t->layer,
                 g->layers[t->layer].type, bytes, t->kind == INSTR_BWD ? "backward" : "forward");
}

/* Writes a part of a message: for what the `need` bytes of host memory are needed. Besides the weights and
 * the optimizer state, these are gradients and activations that wait for the backward pass. */
static void host_text(char *buf, size_t size, const struct graph *g, const struct machine *m, uint64_t need)
{
    uint64_t state = 0;
    char home[64], rest[64], taken[96] = "";
    for (uint32_t t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].persistent)
            state += round_up(g->tensors[t].bytes, PLAN_ALIGN);
    size_text(home, sizeof home, state);
    if (m->host_taken_bytes > 0) {
        size_text(rest, sizeof rest, m->host_taken_bytes);
        snprintf(taken, sizeof taken, ", the data and planning %s", rest);
    }
    uint64_t known = state + m->host_taken_bytes;
    size_text(rest, sizeof rest, need > known ? need - known : 0);
    snprintf(buf, size, "weights and optimizer state take %s%s, and gradients and saved activations %s", home,
             taken, rest);
}

static int refuse_host(const struct plan_request *r, uint64_t need, struct err *err)
{
    const struct machine *m = r->machine;
    char have[64], want[64], parts[384];
    size_text(have, sizeof have, m->host_bytes);
    size_text(want, sizeof want, need);
    host_text(parts, sizeof parts, r->train, m, need);
    return err_set_at(err, -ENOSPC, "resources.host_memory",
                      "policy %s needs %s of host memory, but the job may use %s; %s; raise "
                      "resources.host_memory or use a smaller model or batch",
                      policy_names[r->policy], want, have, parts);
}

static uint64_t smallest_capacity(const struct machine *m)
{
    uint64_t least = m->capacity_bytes[0];
    for (uint32_t i = 1; i < m->n_devices; i++)
        if (m->capacity_bytes[i] < least)
            least = m->capacity_bytes[i];
    return least;
}

static int refuse_device(const struct plan_request *r, uint64_t need, struct err *err)
{
    const struct machine *m = r->machine;
    char have[64], want[64], largest[192];
    size_text(have, sizeof have, smallest_capacity(m));
    size_text(want, sizeof want, need);
    largest_text(largest, sizeof largest, r->train);
    return err_set_at(
        err, -ENOSPC, "resources.device_memory",
        "policy %s does not fit: it needs at least %s on each of %u device%s, but has %s%s; give "
        "at least that, or use a smaller train.micro_batch%s",
        policy_names[r->policy], want, m->n_devices, m->n_devices == 1 ? "" : "s", have, largest,
        r->policy == POLICY_auto ? "" : " or memory.policy \"auto\"");
}

/* Reports that neither the device memory nor the host memory is enough. With this host memory, not even
 * unlimited device memory would be enough. */
static int refuse_both(const struct plan_request *r, const struct lean_needs *l, struct err *err)
{
    const struct machine *m = r->machine;
    uint64_t device = lean_least_device(l, UINT64_MAX);
    char have[64], want[64], host[64], has[64];
    size_text(want, sizeof want, device);
    size_text(have, sizeof have, smallest_capacity(m));
    size_text(host, sizeof host, least_host_for(l, device));
    size_text(has, sizeof has, m->host_bytes);
    return err_set_at(err, -ENOSPC, "resources.device_memory",
                      "policy %s does not fit: it needs at least %s on each of %u device%s, but has %s, and "
                      "with that %s of host memory, but the job may use %s; give at least both",
                      policy_names[r->policy], want, m->n_devices, m->n_devices == 1 ? "" : "s", have, host,
                      has);
}

int lean_refuse(const struct lean_needs *l, uint64_t least_host, const struct plan_request *r,
                uint64_t *ret_least, struct err *err)
{
    uint64_t device = lean_least_device(l, r->machine->host_bytes);
    if (least_host < UINT64_MAX)
        return refuse_host(r, least_host, err);
    if (device == UINT64_MAX)
        return refuse_both(r, l, err);
    if (ret_least != NULL)
        *ret_least = device;
    return refuse_device(r, device, err);
}
