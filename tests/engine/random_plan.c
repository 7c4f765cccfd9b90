/* See random_plan.h. */
#include "tests/engine/random_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "scheduler/build/build.h"
#include "scheduler/policy/candidate.h"

struct drawn {
    struct candidate c;
    bool decide_on_devices;
    uint32_t starts[LINKED_MAX_LAYERS + 1];
    bool pinned[LINKED_MAX_LAYERS];
};

/* Groups of devices, each a pipeline: as many as replicas and devices allow, or fewer. */
static uint32_t random_shares(const struct graph *g, uint32_t n_devices, struct rng *r)
{
    uint32_t n = order_replica_devices(g->n_replicas, n_devices);
    if (rng_below(r, 3) > 0)
        return n;
    do
        n = 1 + rng_below(r, n_devices);
    while (g->n_replicas % n != 0);
    return n;
}

static void random_cut(const struct graph *g, struct drawn *d, struct rng *r)
{
    d->c.fused = rng_below(r, g->n_layers);
    d->c.packs = 0;
    for (uint32_t l = 0; l < d->c.fused; l++)
        if (l == 0 || rng_below(r, 3) > 0)
            d->starts[d->c.packs++] = l;
    d->starts[d->c.packs] = d->c.fused;
    d->c.starts = d->starts;
}

static bool has_tied(const struct graph *g)
{
    for (uint32_t l = 0; l < g->n_layers; l++)
        if (g->layers[l].tied)
            return true;
    return false;
}

/* Draws a candidate that obeys the same rules as the search. Nothing is pinned when the two passes of a layer
 * run on different devices (`onward`) or when all updates run on the host. Saved micro-batches come at even
 * distances. A team that shares tied weights with other teams has one device. */
static void random_candidate(const struct graph *g, const struct engine_machine *m, struct drawn *d,
                             struct rng *r)
{
    struct candidate *c = &d->c;
    *d = (struct drawn){.c = {.unit = g->rows}};
    random_cut(g, d, r);
    c->teams = random_shares(g, m->n_devices, r);
    c->single = rng_below(r, 3) == 0 || (c->teams > 1 && has_tied(g));
    const uint32_t micros = g->n_micro / c->teams;
    c->waves = rng_below(r, 3) == 0 ? 1 + rng_below(r, micros) : 1;
    c->onward = c->teams == 1 && rng_below(r, 4) == 0;
    if (!c->onward && rng_below(r, 3) == 0)
        c->save.of = 1 + rng_below(r, 4);
    c->save.count = c->save.of > 0 ? 1 + rng_below(r, c->save.of) : 0;
    const bool alone = c->teams > 1 ? c->single : m->n_devices == 1;
    c->overlap = c->waves > 1 && alone && c->packs > 0 && rng_below(r, 2);
    c->snake = c->save.of == 0 && !c->overlap && rng_below(r, 2);
    c->knobs = (struct knobs){.keep = KEEP_UNIT,
                              .retain = rng_below(r, 3) > 0,
                              .lead_state = rng_below(r, 2),
                              .lead_items = c->save.of > 2 ? c->save.of - 1 : rng_below(r, 2)};
    d->decide_on_devices = rng_below(r, 3) == 0;
    if (m->update == UPDATE_HOST || c->onward || rng_below(r, 3) == 0)
        return;
    const uint32_t of_ten = rng_below(r, 11);
    for (uint32_t l = 0; l < g->n_layers; l++)
        d->pinned[l] = rng_below(r, 10) < of_ten;
    c->knobs.pinned = d->pinned;
}

/* Moves each DECIDE from the host to the device of the next task in the order. The DECIDE joins the span and
 * the item of that task. Policies always decide on the host, but a plan may decide on any device. */
static void decide_on_devices(struct order *o)
{
    for (size_t i = 0; i < o->todos.n; i++) {
        size_t n = i + 1;
        if (o->todos.at[i].kind != INSTR_DECIDE)
            continue;
        while (n < o->todos.n && o->todos.at[n].loc == PLAN_HOST)
            n++;
        if (n == o->todos.n)
            continue;
        o->todos.at[i].loc = o->todos.at[n].loc;
        o->todos.at[i].span = o->todos.at[n].span;
        o->todos.at[i].item = o->todos.at[n].item;
    }
}

static struct plan *build(const struct plan_request *request, const struct drawn *d,
                          struct plan_need *ret_need)
{
    struct profile *prof = profile_analytic(request->train, request->machine);
    struct order order;
    struct plan *p;
    struct err err = {0};

    policy_auto.order(request, prof, &d->c, &order);
    if (d->decide_on_devices)
        decide_on_devices(&order);
    if (plan_build(request, policy_auto.name, &order, &d->c.knobs, prof, &p, ret_need, &err) < 0)
        fail_msg("%s", err.msg);
    order_finish(&order);
    profile_destroy(prof);
    return p;
}

/* Returns the device memory that the candidate needs when the planner retains nothing beyond what the
 * candidate asks for. */
static uint64_t least_bytes(const struct plan_request *request, const struct drawn *d)
{
    struct drawn bare = *d;
    struct plan_need need;
    bare.c.starts = bare.starts;
    bare.c.knobs.retain = false;
    plan_destroy(build(request, &bare, &need));
    return need.device_bytes;
}

static void set_capacity(struct machine *machine, uint64_t bytes)
{
    for (uint32_t i = 0; i < machine->n_devices; i++)
        machine->capacity_bytes[i] = bytes;
}

struct plan *random_plan(const struct engine_case *c, struct rng *r, struct engine_machine *m)
{
    struct graph *train, *eval;
    struct machine machine;
    struct drawn d;
    struct plan_need need;

    assert_int_equal(random_graph(&c->chain, true, &train), 0);
    assert_int_equal(random_graph(&c->chain, false, &eval), 0);
    machine_init_cpu(&machine, m->n_devices, UINT64_C(1) << 40, UINT64_C(1) << 32);
    const struct plan_request request = {
        .train = train, .eval = eval, .machine = &machine, .update = m->update};
    random_candidate(train, m, &d, r);
    const uint64_t least = least_bytes(&request, &d);
    m->capacity_bytes = least + rng_below(r, 3) * (least / 4 / PLAN_ALIGN * PLAN_ALIGN);
    set_capacity(&machine, m->capacity_bytes);
    struct plan *p = build(&request, &d, &need);
    assert_non_null(p);
    graph_destroy(train);
    graph_destroy(eval);
    return p;
}
