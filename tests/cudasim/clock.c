/* The two clocks.
 *
 * Vector clocks say what is ordered before what; race.c reads them.
 *
 * The virtual clock says how long a GPU of the given speeds might have taken, so that a test can see
 * whether two things overlap. An operation begins when it is enqueued, its stream is free, its mark is
 * done and its engine (compute, copies in, copies out, copies to peers; one of each per device) is free;
 * it takes a latency plus the largest of what it does over the speed of that. Crude on purpose: it ranks
 * schedules, it does not predict. */
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const engine_names[ENGINE_COUNT] = {"compute", "in", "out", "peer"};

void vclock_join(struct vclock *into, const struct vclock *from)
{
    for (int i = 0; i < SIM_STREAMS; i++)
        if (into->at[i] < from->at[i])
            into->at[i] = from->at[i];
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t clock_ready_ns(const struct op *op)
{
    uint64_t at = later(op->enqueued_ns, op->stream->free_ns);

    if (op->kind == OP_WAIT)
        at = later(at, op->mark->at_ns);
    if (op->engine != ENGINE_COUNT)
        at = later(at, sim.devices[op->stream->device].free_ns[op->engine]);
    return at;
}

static double cost_ns(const struct op *op)
{
    const struct rates *r = &sim.rates;
    const double speeds[ENGINE_COUNT] = {r->memory_per_s, r->in_per_s, r->out_per_s, r->peer_per_s};
    double seconds;

    if (op->kind == OP_RECORD || op->kind == OP_WAIT)
        return 0;
    seconds = (double)op->bytes / (op->engine == ENGINE_COUNT ? r->host_per_s : speeds[op->engine]);
    if (seconds < op->flops / r->flops_per_s)
        seconds = op->flops / r->flops_per_s;
    if (seconds < (double)op->instructions / r->instructions_per_s)
        seconds = (double)op->instructions / r->instructions_per_s;
    return r->latency_ns + seconds * 1e9;
}

void clock_advance(const struct op *op)
{
    struct device *d = &sim.devices[op->stream->device];
    uint64_t cost = (uint64_t)cost_ns(op), end = clock_ready_ns(op) + cost;

    op->stream->free_ns = end;
    if (op->engine != ENGINE_COUNT) {
        d->free_ns[op->engine] = end;
        d->busy_ns[op->engine] += cost;
    }
    if (op->kind == OP_RECORD)
        op->mark->at_ns = end;
}

/* "in=25e9,latency=5000": bytes, flops or instructions per second; latency and call in ns. */
int clock_parse(const char *text, struct rates *rates, char *error, size_t size)
{
    const struct {
        const char *name;
        double *value;
    } table[] = {
        {"call", &rates->call_ns},
        {"flops", &rates->flops_per_s},
        {"host", &rates->host_per_s},
        {"in", &rates->in_per_s},
        {"instructions", &rates->instructions_per_s},
        {"latency", &rates->latency_ns},
        {"memory", &rates->memory_per_s},
        {"out", &rates->out_per_s},
        {"peer", &rates->peer_per_s},
    };

    *rates = (struct rates){.in_per_s = 25e9,
                            .out_per_s = 25e9,
                            .peer_per_s = 50e9,
                            .memory_per_s = 900e9,
                            .host_per_s = 20e9,
                            .instructions_per_s = 5e12,
                            .flops_per_s = 15e12,
                            .latency_ns = 5000,
                            .call_ns = 2000};
    while (*text) {
        size_t length = strcspn(text, "="), i;
        char *end;

        for (i = 0; i < sizeof table / sizeof *table; i++)
            if (strlen(table[i].name) == length && strncmp(table[i].name, text, length) == 0)
                break;
        if (i == sizeof table / sizeof *table || text[length] != '=') {
            snprintf(error, size, "unknown name at \"%.20s\"", text);
            return -EINVAL;
        }
        *table[i].value = strtod(text + length + 1, &end);
        if (end == text + length + 1 || (*end && *end != ',') || !(*table[i].value > 0)) {
            snprintf(error, size, "not a positive number at \"%.20s\"", text);
            return -EINVAL;
        }
        text = *end ? end + 1 : end;
    }
    return 0;
}
