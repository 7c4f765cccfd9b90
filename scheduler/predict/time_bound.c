/* Computes a lower bound on the time of a training step. docs/bound.md has the full proof; this is a summary.
 *
 * A step has to share the compute streams, the links in each direction, the host's stream, and the memory of
 * the devices over time. Of each resource, time T has so much: N compute streams have N * T of compute,
 * links of R bytes per nanosecond carry R * T bytes, C bytes of memory hold C * T bytes times nanoseconds.
 * Give every resource a share of 1, a weight, and let a unit of the resource cost
 *
 *     price = weight / what the resource offers in a nanosecond
 *
 * Then all that a plan uses in a step costs at most T. So T is at least the cheapest cost of a step, for any
 * weights. With all weight on compute, this is the compute spread over the devices.
 *
 * The cheapest cost is a sum over layers, because every layer may choose for itself:
 *
 *     the state      updated on the host, or on a device; and there always on a device, or moved
 *     S and Y        kept on a device until the backward pass reads them, moved to the host and back, or
 *                    computed again
 *
 * As in the bound on bytes (bound.c), whatever is kept has to fit in memory at certain moments: at the turns,
 * which are the backward tasks of the loss, and at the end, which is the last backward task of the first
 * layer. A byte on a device pays a rent at each turn, a further rent at the last turn, and a rent at the end.
 * All bytes together pay at most each rent times the room at its moments. So T is at least the cheapest cost
 * with rents, minus these products, for any rents.
 *
 * If a layer has no task between r turns in a row, it needs its W only once for them: W must be on a device
 * at the last of these turns, or come in after it. But then S and Y of the micro-batches of all r turns must
 * be kept through all r turns. This is the trade between bytes of W and memory for activations.
 *
 * Any weights and rents give a bound. The search for good ones is a matter of quality, not of truth. All
 * arithmetic is in doubles, and the result is lowered by more than their error.
 */
#include "scheduler/predict/time_bound.h"

#include <math.h>

#include "base/bounded.h"
#include "scheduler/predict/time_bound_private.h"

/* Indices in the array of numbers that the search varies: first the weights of the shared resources, then the
 * rents of a byte on a device at three moments. */
#define TURN TIME_BOUND_SHARED
#define LAST (TURN + 1)
#define END  (TURN + 2)
#define N    (TURN + 3)

const char *const time_bound_names[TIME_BOUND_KIND_COUNT] = {
    [TIME_BOUND_COMPUTE] = "compute",         [TIME_BOUND_LINK_IN] = "link in",
    [TIME_BOUND_LINK_OUT] = "link out",       [TIME_BOUND_HOST] = "host",
    [TIME_BOUND_HOST_MEMORY] = "host memory", [TIME_BOUND_CORES] = "cores",
    [TIME_BOUND_MEMORY] = "memory",           [TIME_BOUND_CHAIN] = "chain",
};

/* The price of each resource that a step uses. The unit of all prices is a nanosecond of the step. */
struct prices {
    /* Price of one nanosecond of a task on a device, and on the host. */
    double compute, host;
    /* Price of one byte moved from the host to a device, and from a device to the host. */
    double in, out;
    /* Price of one byte of host memory that a host task reads or writes. */
    double traffic;
    /* Price of keeping one byte on a device at each turn, at the last turn, and at the end. */
    double turn_rent, last_rent, end_rent;
    /* Price of keeping one byte on a device for one nanosecond. */
    double memory;
    /* The best lower bound on the time of the step that is already known. */
    double step_ns;
};

/* Returns the price of each resource. `x` has the weights of the resources and the rents. `step_ns` is the
 * best bound so far. */
static struct prices set_prices(const struct step_work *w, const double *x, double step_ns)
{
    double unit[TIME_BOUND_SHARED];
    for (int i = 0; i < TIME_BOUND_SHARED; i++)
        unit[i] = w->per_ns[i] > 0 ? x[i] / w->per_ns[i] : 0;
    double copy = unit[TIME_BOUND_CORES] * w->copy_cores + unit[TIME_BOUND_HOST_MEMORY];
    return (struct prices){
        .compute = unit[TIME_BOUND_COMPUTE] + unit[TIME_BOUND_CORES] * w->device_cores,
        .host = unit[TIME_BOUND_HOST] + unit[TIME_BOUND_CORES] * w->host_cores,
        .in = unit[TIME_BOUND_LINK_IN] + copy,
        .out = unit[TIME_BOUND_LINK_OUT] + copy,
        .traffic = unit[TIME_BOUND_HOST_MEMORY],
        .turn_rent = x[TURN],
        .last_rent = x[LAST],
        .end_rent = x[END],
        .memory = unit[TIME_BOUND_MEMORY],
        .step_ns = step_ns,
    };
}

/* ---- the cheapest cost ---- */

static double either(const struct prices *p, struct either_ns ns)
{
    return work_least(p->compute * ns.device, p->host * ns.host);
}

/* Returns the least a * turns / r + b * r over all whole numbers `r` from 1 to `turns`: the cost of weights
 * that are used once in `r` turns. */
static double cheapest_turns(double a, double b, double turns)
{
    double r = b > 0 ? floor(sqrt(a * turns / b)) : turns;
    r = r < 1 ? 1 : r > turns ? turns : r;
    double next = r < turns ? r + 1 : r;
    return work_least(a * turns / r + b * r, a * turns / next + b * next);
}

/* Returns the lowest cost of a layer's S and Y, which a plan keeps, moves or computes again. Each use of the
 * weights costs `use`. */
static double stash_cost(const struct prices *p, const struct layer_work *l, double use, double turns)
{
    double move = p->in + p->out, s = p->turn_rent * l->s, y = p->turn_rent * l->y;
    double s_wait = p->memory * l->s * l->s_wait_ns, y_wait = p->memory * l->y * l->y_wait_ns;
    double cost = use + work_least(p->compute * l->fwd_ns, move * (l->s + l->y));
    if (l->s + l->y == 0)
        return use;
    cost = work_least(cost, s_wait + y_wait + cheapest_turns(use, s + y, turns));
    cost = work_least(cost, s_wait + move * l->y + cheapest_turns(use, s, turns));
    return work_least(cost, y_wait + move * l->s + cheapest_turns(use, y, turns));
}

/* Returns the lowest cost of one layer. The cost covers the layer's update, and the layer's weights,
 * optimizer state and activations. */
static double layer_cost(const struct prices *p, const struct layer_work *l, double turns)
{
    if (!l->trained)
        return either(p, l->upd) + stash_cost(p, l, 0, turns);
    double move = p->in + p->out, turn = work_least(p->in, p->turn_rent) * l->w,
           last = work_least(p->in, p->turn_rent + p->last_rent) * l->w,
           always = p->turn_rent * turns + p->last_rent + p->end_rent, stay = p->memory * p->step_ns,
           in_use = p->memory * l->w * l->pass_ns, moved = stash_cost(p, l, turn, turns) + last - turn;
    double host = p->in * l->w + p->out * l->dw + p->host * l->upd.host + p->traffic * l->upd_traffic,
           device = p->compute * l->upd.device + l->k * work_least(move, always + stay) +
                    l->waiting * work_least(move, p->end_rent);
    double kept = l->w * (always + p->memory * (p->step_ns > l->pass_ns ? p->step_ns : l->pass_ns)) +
                  stash_cost(p, l, 0, turns);
    double gone = l->w * (p->out + work_least(p->in, p->end_rent)) + in_use + moved;
    return work_least(host + in_use + moved, device + work_least(kept, gone));
}

/* Returns the lower bound on the step's time that follows from the weights and rents in `x`. `step_ns` is a
 * lower bound that is already known. */
static double bound_with(const struct step_work *w, const double *x, double step_ns)
{
    struct prices p = set_prices(w, x, step_ns);
    double cost =
        p.in * w->data_in + p.out * w->data_out + either(&p, w->decide) + p.memory * w->in_use_byte_ns;
    double rent =
        (w->turns * p.turn_rent + p.last_rent) * w->turn_free_bytes + p.end_rent * w->end_free_bytes;
    bounded_poll_steps(w->n_layers);
    for (uint32_t i = 0; i < w->n_layers; i++) {
        const struct layer_work *l = &w->layers[i];
        double each = p.compute * l->pass_ns + either(&p, l->other) + layer_cost(&p, l, w->turns);
        cost += l->count * each;
    }
    return cost - rent - 1e-9 * (cost + rent);
}

/* ---- the search for weights and rents ---- */

/* The best weights and rents so far. */
struct best {
    const struct step_work *w;
    /* The weights of the shared resources, which add up to 1, and then the three rents. */
    double x[N];
    double ns; /* the bound that they give */
};

/* If the weights and rents in `x` give a larger bound, stores them in `b` and returns true. */
static bool try_numbers(struct best *b, const double *x)
{
    double ns = bound_with(b->w, x, b->ns > 0 ? b->ns : 0);
    if (!(ns > b->ns))
        return false;
    b->ns = ns;
    for (int i = 0; i < N; i++)
        b->x[i] = x[i];
    return true;
}

/* For each pair of resources, tries to move `step` of the weight from one resource to the other. Returns
 * whether the bound became larger. */
static bool improve_weights(struct best *b, double step)
{
    bool better = false;
    for (int from = 0; from < TIME_BOUND_SHARED; from++)
        for (int to = 0; to < TIME_BOUND_SHARED; to++) {
            double x[N], moved = work_least(step, b->x[from]);
            if (from == to || b->w->per_ns[to] == 0 || moved == 0)
                continue;
            for (int i = 0; i < N; i++)
                x[i] = b->x[i];
            x[from] -= moved;
            x[to] += moved;
            better |= try_numbers(b, x);
        }
    return better;
}

/* Tries higher and lower rents, in changes that `step` and `unit` set. Returns whether the bound became
 * larger. */
static bool improve_rents(struct best *b, double step, double unit)
{
    bool better = false;
    for (int rent = TURN; rent <= END && b->w->turns > 0; rent++)
        for (int up = 0; up < 2; up++) {
            double x[N];
            for (int i = 0; i < N; i++)
                x[i] = b->x[i];
            x[rent] = up ? x[rent] * (1 + 2 * step) + unit * step / 16 : x[rent] / (1 + 2 * step);
            better |= try_numbers(b, x);
        }
    return better;
}

/* Improves the weights and rents in many rounds. The changes become smaller from round to round. */
static void improve_all(struct best *b, double unit)
{
    for (double step = 0.25; step > 0.0005; step /= 2)
        for (int i = 0; i < 16; i++) {
            bool weights = improve_weights(b, step), rents = improve_rents(b, step, unit);
            if (!weights && !rents)
                break;
        }
}

/* Returns the bound that follows from one resource alone, without rents. */
static double alone(const struct step_work *w, int resource)
{
    double x[N] = {0};
    x[resource] = 1;
    return w->per_ns[resource] > 0 ? bound_with(w, x, 0) : 0;
}

/* Searches the best weights and rents. Starts from several mixtures of weights for compute, memory and links,
 * each with several rents. */
static void search(struct best *b)
{
    static const double mixtures[][3] = {
        {1, 0, 0}, {0.7, 0.3, 0}, {0.6, 0, 0.2}, {0.4, 0.2, 0.2}, {0.2, 0, 0.4}};
    double unit = b->w->turn_free_bytes > 0 ? b->ns / b->w->turns / b->w->turn_free_bytes : 0;
    for (size_t i = 0; i < sizeof mixtures / sizeof *mixtures; i++) {
        struct best tried = {.w = b->w};
        for (int k = -1; k < 12; k++) {
            double x[N] = {[TIME_BOUND_COMPUTE] = mixtures[i][0], [TIME_BOUND_MEMORY] = mixtures[i][1]};
            x[TIME_BOUND_LINK_IN] = x[TIME_BOUND_LINK_OUT] = mixtures[i][2];
            x[TURN] = k < 0 ? 0 : 2 * unit / (double)(1 << k);
            try_numbers(&tried, x);
            x[END] = x[TURN];
            try_numbers(&tried, x);
            x[LAST] = x[TURN] * b->w->turns;
            x[TURN] = x[END] = 0;
            try_numbers(&tried, x);
        }
        improve_all(&tried, unit);
        if (tried.ns > b->ns)
            *b = tried;
    }
    improve_all(b, unit);
}

void time_bound(const struct graph *g, const struct machine *m, const struct profile *prof,
                struct time_bound *ret)
{
    struct step_work w;
    work_list(g, m, prof, &w);
    struct best b = {.w = &w};
    for (int i = 0; i < TIME_BOUND_SHARED; i++) {
        double x[N] = {0};
        x[i] = w.per_ns[i] > 0;
        try_numbers(&b, x);
    }
    search(&b);
    *ret = (struct time_bound){.ns = b.ns > 0 ? (uint64_t)b.ns : 0};
    for (int i = 1; i < TIME_BOUND_SHARED; i++)
        if (b.x[i] > b.x[ret->kind])
            ret->kind = (enum time_bound_kind)i;
    ret->traded = b.ns > 1.0001 * alone(&w, ret->kind);
    if (w.chain_ns * (1 - 1e-9) > b.ns)
        *ret = (struct time_bound){.ns = (uint64_t)(w.chain_ns * (1 - 1e-9)), .kind = TIME_BOUND_CHAIN};
    work_finish(&w);
}

uint64_t time_bound_ns(const struct graph *g, const struct machine *m, const struct profile *prof)
{
    struct time_bound b;
    time_bound(g, m, prof, &b);
    return b.ns;
}
