/* Policy `auto`: the planner's own search. Its plans run on one device, as a pipeline that wraps around N
 * devices, on data-parallel devices that share the host's traffic, or on data-parallel teams that are
 * pipelines.
 *
 * The chain is cut into packs and a fused segment at its end. Pack k runs on device k mod N, forward and
 * backward, so that the state of a layer can stay on one device. With `onward`, the backward packs continue
 * around the devices instead, as Harmony's do; then no device waits at the turn. The fused segment runs on
 * the device after the last pack. It runs forward, loss and backward for one micro-batch after another and
 * recomputes nothing. The other packs recompute their inside from their input.
 *
 * The batch passes through the chain in one wave or several. The state of some layers is pinned: it never
 * leaves its device and is updated there. The other layers are updated on the host. Memory that is left over
 * retains copies that would be fetched again (retain.c).
 *
 * For data-parallel devices without pipelines, outlines (outline.h) say which candidates to build. The search
 * for pipelines starts with the fewest packs that fit and improves one parameter after another: packs, fused
 * segment, pins, waves. Every candidate is built with addresses and simulated.
 */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "scheduler/policy/candidate.h"
#include "scheduler/policy/outline.h"

/* The settings to try. The first lets the most moves overlap with compute, and the last needs the least
 * memory. */
static const struct knobs variants[] = {
    {.keep = KEEP_UNIT, .retain = true, .lead_state = 1, .lead_items = 1},
    {.keep = KEEP_UNIT, .retain = true, .lead_state = 0, .lead_items = 1},
    {.keep = KEEP_UNIT, .retain = true, .lead_state = 0, .lead_items = 0},
};
#define N_VARIANTS (sizeof variants / sizeof variants[0])

/* ---- the order of a candidate ---- */

/* Returns the number of devices in each team. All teams have the same number. */
static uint32_t team_devices(const struct plan_request *r, const struct candidate *c)
{
    return c->single ? 1 : r->machine->n_devices / (c->teams > 1 ? c->teams : 1);
}

/* Returns the device on which a pack runs. The devices of a team take the packs in turn. */
static uint32_t team_device(const struct plan_request *r, const struct candidate *c, uint32_t team,
                            uint32_t pack)
{
    uint32_t each = team_devices(r, c);
    return team * each + pack % each;
}

static uint32_t pack_start(const struct candidate *c, uint32_t pack)
{
    return c->starts != NULL ? c->starts[pack] : pack;
}

/* Sets the owner of every share. The devices that compute the same layer for different teams share the state
 * of this layer, so each of them owns one share. */
static void own_shares(const struct plan_request *r, const struct candidate *c, struct order *o)
{
    order_own(o, c->teams);
    for (uint32_t l = 0, k = 0; l < o->graph->n_layers; l++) {
        while (k < c->packs && l >= pack_start(c, k + 1))
            k++;
        for (uint32_t s = 0; s < c->teams; s++)
            o->owners[(size_t)l * c->teams + s] = team_device(r, c, s, k);
    }
}

/* Returns the first row of a wave, counted from the first row of its team. The result is a multiple of
 * c->unit, so that no micro-batch is split between two waves. */
static uint32_t wave_begin(const struct candidate *c, uint32_t rows, uint32_t wave)
{
    uint32_t unit = c->unit > 0 ? c->unit : 1;
    return (uint32_t)((uint64_t)wave * (rows / unit) / c->waves) * unit;
}

/* The rows [from, to) of the batch that one team processes in one wave. */
struct wave {
    uint32_t team, from, to;
};

static struct wave wave_of(const struct plan_request *r, const struct candidate *c, uint32_t team,
                           uint32_t wave)
{
    const struct graph *g = r->train;
    uint32_t each = g->n_micro / (c->teams > 1 ? c->teams : 1) * g->rows, begin = team * each;
    return (struct wave){team, begin + wave_begin(c, each, wave), begin + wave_begin(c, each, wave + 1)};
}

/* Adds the forward passes of a wave through all packs. */
static void wave_forward(struct passes *p, const struct plan_request *r, const struct candidate *c,
                         const struct wave *w)
{
    /* With `snake`, choose the directions so that the last forward pass ends with the first micro-batch. The
     * fused pass then starts with this micro-batch while it is still on the device. */
    for (uint32_t d = 0; c->snake && d < r->machine->n_devices; d++)
        p->back[d] = c->packs % 2 == 1;
    for (uint32_t k = 0; k < c->packs; k++)
        pass_forward(p, pack_start(c, k), pack_start(c, k + 1), w->from, w->to,
                     team_device(r, c, w->team, k));
}

static void wave_fused(struct passes *p, const struct plan_request *r, const struct candidate *c,
                       const struct wave *w)
{
    pass_fused(p, c->fused, r->train->n_layers, w->from, w->to, team_device(r, c, w->team, c->packs));
}

static void wave_backward(struct passes *p, const struct plan_request *r, const struct candidate *c,
                          const struct wave *w)
{
    for (uint32_t k = c->packs; k-- > 0;)
        pass_backward(p, pack_start(c, k), pack_start(c, k + 1), w->from, w->to,
                      team_device(r, c, w->team, c->onward ? 2 * c->packs - k : k));
}

/* Adds all passes of a team whose waves overlap. Each team has one device. */
static void pass_overlapping(struct passes *p, const struct plan_request *r, const struct candidate *c,
                             uint32_t team)
{
    struct wave before = wave_of(r, c, team, 0);
    wave_forward(p, r, c, &before);
    wave_fused(p, r, c, &before);
    for (uint32_t i = 1; i < c->waves; i++) {
        struct wave w = wave_of(r, c, team, i);
        for (uint32_t k = 0; k < c->packs; k++) {
            uint32_t back = c->packs - 1 - k;
            pass_both(
                p, &(struct pass_part){pack_start(c, k), pack_start(c, k + 1), w.from, w.to},
                &(struct pass_part){pack_start(c, back), pack_start(c, back + 1), before.from, before.to},
                team_device(r, c, team, 0));
        }
        wave_fused(p, r, c, &w);
        before = w;
    }
    wave_backward(p, r, c, &before);
}

/* Adds all passes of a team, one wave after another. */
static void pass_waves(struct passes *p, const struct plan_request *r, const struct candidate *c,
                       uint32_t team)
{
    for (uint32_t i = 0; i < c->waves; i++) {
        struct wave w = wave_of(r, c, team, i);
        wave_forward(p, r, c, &w);
        wave_fused(p, r, c, &w);
        wave_backward(p, r, c, &w);
    }
}

/* Returns the first layer that saves nothing for the backward pass. The packs from this layer on come just
 * before the fused segment. Values that they saved would still occupy memory that the segment needs. */
static uint32_t save_end(const struct plan_request *r, const struct candidate *c)
{
    if (c->save_last_packs)
        return c->fused;
    uint32_t items =
        graph_micros(r->train, 0) / (c->teams > 1 ? c->teams : 1) / (c->waves > 1 ? c->waves : 1);
    uint32_t packs = c->knobs.lead_items / (items > 0 ? items : 1) + 1;
    return c->packs > packs ? pack_start(c, c->packs - packs) : 0;
}

static void auto_order(const struct plan_request *r, const struct profile *prof, const struct candidate *c,
                       struct order *ret)
{
    const struct graph *g = r->train;
    uint32_t teams = c->teams > 1 ? c->teams : 1;
    order_init(ret, g, r->machine->n_devices);
    ret->pinned = c->knobs.pinned;
    if (teams > 1)
        own_shares(r, c, ret);
    struct passes p;
    passes_begin(&p, ret, r, prof);
    p.snake = c->snake;
    p.save = c->save;
    p.save_from = c->overlap ? wave_of(r, c, 0, 0).to : 0;
    p.save_end = save_end(r, c);
    if (c->packs_bwd > 0)
        harmony_passes(&p, c, 0, g->rows * g->n_micro, 0, r->machine->n_devices);
    for (uint32_t team = 0; team < teams && c->packs_bwd == 0; team++)
        (c->overlap ? pass_overlapping : pass_waves)(&p, r, c, team);
    passes_end(&p);
}

/* Makes the candidate that an outline describes. The arrays of the candidate are allocated from arena `a`. */
static struct candidate outline_candidate(const struct plan_request *r, const struct outline *o,
                                          struct arena *a)
{
    uint32_t n = r->train->n_layers, *starts = arena_alloc_array(a, (size_t)n + 1, sizeof *starts);
    bool *pinned = arena_alloc_array(a, n, sizeof *pinned);
    for (uint32_t l = 0; l < o->pins; l++)
        pinned[l] = true;
    struct candidate c = {.starts = starts,
                          .packs = outline_packs(o, starts),
                          .fused = o->fused,
                          .waves = o->waves,
                          .teams = o->n_devices,
                          .single = true,
                          .unit = o->rows,
                          /* If some micro-batches save S for the backward pass, they must be evenly spaced.
                           * Reversing the order of micro-batches would change the spacing. */
                          .snake = o->save.of == 0,
                          .save = o->save,
                          .overlap = o->overlap,
                          .save_last_packs = o->save_last_packs,
                          .knobs = variants[0]};
    c.knobs.pinned = o->pins > 0 ? pinned : NULL;
    c.knobs.lead_items = outline_lead(o);
    return c;
}

int plan_outline(const struct plan_request *r, const struct outline *o, const struct profile *prof,
                 struct plan **ret, struct plan_need *ret_need, struct err *err)
{
    struct arena *a = arena_create();
    struct candidate c = outline_candidate(r, o, a);
    struct order made;
    auto_order(r, prof, &c, &made);
    int e = plan_build(r, policy_auto.name, &made, &c.knobs, prof, ret, ret_need, err);
    order_finish(&made);
    arena_destroy(a);
    return e;
}

static void auto_leanest(const struct plan_request *r, struct candidate *ret)
{
    uint32_t before = r->train->n_layers - 1;
    *ret = (struct candidate){.packs = before,
                              .fused = before,
                              .waves = 1,
                              .unit = r->train->rows,
                              .knobs = variants[N_VARIANTS - 1]};
    ret->knobs.retain = false;
}

/* Returns the number of packs of lean candidate `i`. Each candidate has three quarters of the packs of the
 * candidate before, or one pack less if that one had at most 8 packs. The candidate before candidate 0 would
 * have `most` packs. */
static uint32_t lean_packs(uint32_t most, uint32_t i)
{
    uint32_t packs = most;
    for (uint32_t k = 0; k <= i && packs > 0; k++)
        packs = packs > 8 ? packs * 3 / 4 : packs - 1;
    return packs;
}

/* Makes lean candidate number `i`. From candidate to candidate, the chain is cut into fewer packs of about
 * the same length. Fewer packs leave less on the host. The last candidate has only the fused segment. */
static bool auto_lean(const struct plan_request *r, uint32_t i, struct arena *a, struct candidate *ret)
{
    uint32_t before = r->train->n_layers - 1, packs = lean_packs(before, i);
    bool past_last = i > 0 ? lean_packs(before, i - 1) == 0 : before == 0;
    if (past_last)
        return false;
    auto_leanest(r, ret);
    uint32_t *starts = arena_alloc_array(a, packs + 1, sizeof *starts);
    for (uint32_t k = 0; k <= packs; k++)
        starts[k] = packs > 0 ? (uint32_t)((uint64_t)before * k / packs) : 0;
    ret->packs = packs;
    ret->starts = starts;
    ret->fused = packs > 0 ? before : 0;
    return true;
}

/* ---- the search ---- */

/* The state of a search for the best pipeline with a fixed number of teams. */
struct pipeline_search {
    const struct plan_request *r;
    struct trial *t;
    /* The best candidate with the memory settings (knobs) that are being tried, and its score. plan_make
     * keeps the best plans over all settings. */
    struct candidate best;
    struct score best_score;
    /* Whether some candidate fitted the devices, even if it gave no plan because the host memory was too
     * small. */
    bool found;
    /* Whether some candidate has a score, so that best_score is valid, and whether some candidate gave a
     * plan. */
    bool scored, made;
    uint32_t *packs; /* scratch for partitions: n_layers + 1 entries */
    struct arena *arena;
};

/* Tries a candidate, and stores it in s->best if it is the best so far. Returns 1 if the candidate fits the
 * devices, 0 if it does not, or a negative errno. */
static int attempt(struct pipeline_search *s, const struct candidate *c)
{
    int e = s->t->run(s->t, c);
    /* A candidate that is too slow to be made has a score too: the time that it computes. It is worse than
     * any that was made. */
    bool has_score = s->t->made || (s->t->too_slow && e > 0 && !s->made);
    bool better = has_score && (!s->scored || (s->t->made && !s->made) ||
                                score_is_better(s->r->objective, &s->t->score, &s->best_score));
    if (e > 0 && (better || !s->found)) {
        s->best = *c;
        s->found = true;
    }
    if (better) {
        s->best_score = s->t->score;
        s->scored = true;
        s->made |= s->t->made;
    }
    return e;
}

/* Compares the best score with the best score at an earlier time, which was `before`. If scored_before is
 * false, there was none at that time. Returns whether the best score has changed since then. */
static bool improved(const struct pipeline_search *s, bool scored_before, const struct score *before)
{
    return s->scored &&
           (!scored_before || s->best_score.ns != before->ns || s->best_score.bytes != before->bytes);
}

/* Returns how long one micro-batch takes in layers [first, last) if they form packs. A pack runs backward
 * once and forward twice, because the backward pass repeats the forward pass. */
static uint64_t pack_ns(const struct pipeline_search *s, uint32_t first, uint32_t last)
{
    uint64_t sum = 0;
    for (uint32_t l = first; l < last; l++)
        sum += 2 * s->t->profile->layers[l].fwd_ns + s->t->profile->layers[l].bwd_ns;
    return sum;
}

/* Returns how long one micro-batch takes in the fused layers, from layer `first` to the loss. Fused layers
 * recompute nothing. */
static uint64_t fused_ns(const struct pipeline_search *s, uint32_t first)
{
    uint64_t sum = 0;
    for (uint32_t l = first; l < s->r->train->n_layers; l++)
        sum += s->t->profile->layers[l].fwd_ns + s->t->profile->layers[l].bwd_ns;
    return sum;
}

/* Returns how long the busiest device of a team computes for one micro-batch. */
static uint64_t busiest_ns(const struct pipeline_search *s, const struct candidate *c)
{
    uint64_t sum[DEVICE_MAX] = {0}, most = 0;
    for (uint32_t k = 0; k < c->packs; k++)
        sum[team_device(s->r, c, 0, k)] += pack_ns(s, c->starts[k], c->starts[k + 1]);
    sum[team_device(s->r, c, 0, c->packs)] += fused_ns(s, c->fused);
    for (uint32_t d = 0; d < team_devices(s->r, c); d++)
        if (sum[d] > most)
            most = sum[d];
    return most;
}

/* Cuts the layers into packs so that all devices of a team compute for about the same time. The device that
 * also runs the fused segment gets shorter packs. */
static void cut_by_quota(const struct pipeline_search *s, const struct candidate *c, uint32_t *starts)
{
    uint32_t n = team_devices(s->r, c), fused_device = team_device(s->r, c, 0, c->packs);
    double fused = (double)fused_ns(s, c->fused), each = ((double)pack_ns(s, 0, c->fused) + fused) / n;
    double want = 0, have = 0;
    uint32_t l = 0;
    for (uint32_t k = 0; k < c->packs; k++) {
        uint32_t device = team_device(s->r, c, 0, k);
        uint32_t packs = (c->packs - device + n - 1) / n; /* number of packs on this device */
        double quota = (device == fused_device ? each - fused : each) / packs;
        want += quota > 0 ? quota : 0;
        starts[k] = l;
        uint32_t most = c->fused - (c->packs - k - 1); /* leaves a layer for each later pack */
        do
            have += (double)pack_ns(s, l, l + 1), l++;
        while (l < most && have + (double)pack_ns(s, l, l + 1) / 2 < want);
    }
    starts[c->packs] = c->fused;
}

/* Cuts the layers before c->fused into at most c->packs packs. Makes two different divisions, and keeps the
 * one in which the busiest device has less to do. */
static void cut_packs(struct pipeline_search *s, struct candidate *c)
{
    if (c->packs > c->fused)
        c->packs = c->fused;
    if (c->packs == 0 && c->fused > 0)
        c->packs = 1;
    uint32_t *even = arena_alloc_array(s->arena, c->packs + 1, sizeof *even);
    uint32_t *quota = arena_alloc_array(s->arena, c->packs + 1, sizeof *quota);
    c->starts = even;
    if (c->packs == 0)
        return;
    partition_layers(s->t->profile, 2, 0, c->fused, c->packs, even);
    uint64_t most = busiest_ns(s, c);
    if (team_devices(s->r, c) == 1)
        return;
    cut_by_quota(s, c, quota);
    quota[c->packs] = c->fused;
    c->starts = quota;
    if (busiest_ns(s, c) >= most)
        c->starts = even;
}

/* Cuts the chain into `total` parts that take about the same time. The last part becomes the fused segment,
 * and the others become packs. */
static void cut(struct pipeline_search *s, uint32_t total, struct candidate *c)
{
    const struct profile *prof = s->t->profile;
    uint32_t n = s->r->train->n_layers, best = n - 1;
    uint64_t fused = 0, least = UINT64_MAX;
    for (uint32_t f = n; f-- > total - 1;) {
        fused += prof->layers[f].fwd_ns + prof->layers[f].bwd_ns;
        uint64_t packs = total > 1 ? partition_layers(prof, 2, 0, f, total - 1, s->packs)
                         : f > 0   ? UINT64_MAX
                                   : 0;
        uint64_t longest = packs > fused ? packs : fused;
        if (longest <= least) {
            least = longest;
            best = f;
        }
        if (fused > packs)
            /* The fused segment is now the longest part. Making it even longer could not help. */
            break;
    }
    c->packs = total - 1;
    c->fused = best;
    cut_packs(s, c);
}

/* Finds the smallest number of packs that fits into memory. Sets *ret_total to this number, counting the
 * fused segment as a pack, or to 0 if no number fits. */
static int fewest_packs(struct pipeline_search *s, struct candidate *c, uint32_t *ret_total)
{
    uint32_t low = 1, high = s->r->train->n_layers;
    cut(s, high, c);
    int e = attempt(s, c);
    *ret_total = e > 0 ? high : 0;
    while (e > 0 && low < high) {
        uint32_t mid = low + (high - low) / 2;
        cut(s, mid, c);
        int fits = attempt(s, c);
        if (fits < 0)
            return fits;
        if (fits)
            high = *ret_total = mid;
        else
            low = mid + 1;
    }
    return e < 0 ? e : 0;
}

/* Tries more packs than necessary, because smaller packs leave memory for pinned layers and retained copies.
 * In a pipeline, uses multiples of the number of devices, because then every device gets equally many
 * packs. */
static int try_packs(struct pipeline_search *s, uint32_t fewest)
{
    const uint32_t n = team_devices(s->r, &s->best), most = s->r->train->n_layers;
    uint32_t tried = 0;
    for (uint32_t i = 1; i <= 8; i++) {
        uint32_t total = fewest + fewest * i / 4 + (i < 3 ? i : 0);
        if (n > 1)
            total = (total + n - 1) / n * n;
        if (total <= tried || total > most)
            continue;
        struct candidate c = s->best;
        cut(s, total, &c);
        int e = attempt(s, &c);
        if (e < 0)
            return e;
        tried = total;
    }
    return 0;
}

/* Tries longer fused segments, because fused layers recompute nothing. In a pipeline, only one device runs
 * the segment, so a segment that is too long makes the plan slower. */
static int try_fused(struct pipeline_search *s)
{
    uint32_t low = 0, high = s->best.fused;
    for (int tries = 0; tries < 6 && low < high; tries++) {
        struct candidate c = s->best;
        c.fused = low + (high - low) / 2;
        cut_packs(s, &c);
        bool scored = s->scored;
        struct score before = s->best_score;
        int e = attempt(s, &c);
        if (e < 0)
            return e;
        if (improved(s, scored, &before))
            high = c.fused;
        else
            low = c.fused + 1;
    }
    return 0;
}

/* Tries the shortest possible fused segments, because they leave memory for pinned layers and retained
 * copies. */
static int try_short_fused(struct pipeline_search *s)
{
    const uint32_t last = s->r->train->n_layers - 1;
    for (uint32_t f = last; f + 3 > last && f > s->best.fused; f--) {
        struct candidate c = s->best;
        c.fused = f;
        cut_packs(s, &c);
        int e = attempt(s, &c);
        if (e < 0)
            return e;
    }
    return 0;
}

/* Tries a candidate whose backward packs continue in turn over the devices, instead of returning to the
 * device of the forward pass. */
static int try_onward(struct pipeline_search *s)
{
    struct candidate c = s->best;
    /* With several teams, the device that owns a share of a layer must run both passes of the layer, so this
     * form is not possible. */
    if (s->r->machine->n_devices == 1 || c.teams > 1)
        return 0;
    c.onward = true;
    /* A layer's forward and backward pass now run on different devices, so its state cannot be pinned to one
     * device. */
    c.knobs.pinned = NULL;
    int e = attempt(s, &c);
    return e < 0 ? e : 0;
}

/* Tries to divide the batch into 2, 4, 8 and more waves, which go through the chain one after another. Stops
 * as soon as more waves do not give a better candidate. */
static int try_waves(struct pipeline_search *s)
{
    uint32_t most = s->r->train->n_micro / (s->best.teams > 1 ? s->best.teams : 1); /* no wave is empty */
    for (uint32_t waves = 2; waves <= most; waves *= 2) {
        struct candidate c = s->best;
        bool scored = s->scored;
        struct score before = s->best_score;
        c.waves = waves;
        int e = attempt(s, &c);
        if (e < 0)
            return e;
        if (!improved(s, scored, &before))
            break;
    }
    return 0;
}

/* Returns the number of bytes that a layer's state occupies if the layer is pinned, including alignment. */
static uint64_t state_bytes(const struct graph_layer *l)
{
    return l->size.w + l->k_bytes + l->b_bytes + 3ull * PLAN_ALIGN;
}

/* Pins layers in ascending order until the memory budget of each device is used up. The first layers gain the
 * most: their update comes last, and the next training step needs them first. */
static void pin(struct pipeline_search *s, struct candidate *c, const uint64_t *budget)
{
    const struct graph *g = s->r->train;
    bool *pinned = arena_alloc_array(s->arena, g->n_layers, sizeof *pinned);
    uint64_t used[DEVICE_MAX] = {0};
    uint32_t k = 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        while (k < c->packs && l >= c->starts[k + 1])
            k++;
        uint32_t device = team_device(s->r, c, 0, k);
        uint64_t bytes = state_bytes(&g->layers[l]) / (c->teams > 1 ? c->teams : 1);
        if (used[device] + bytes > budget[device])
            continue;
        used[device] += bytes;
        pinned[l] = true;
    }
    c->knobs.pinned = pinned;
}

/* Sets ret[d] to the number of bytes that device d can use for pinned state. To find out, tries the candidate
 * without pinned layers and without retained copies. */
static int spare_bytes(struct pipeline_search *s, const struct candidate *c, uint64_t *ret)
{
    struct candidate bare = *c;
    bare.knobs.retain = false;
    bare.knobs.pinned = NULL;
    int e = attempt(s, &bare);
    for (uint32_t d = 0; d < s->r->machine->n_devices; d++) {
        uint64_t has = s->r->machine->capacity_bytes[d], needs = s->t->need.peak[d];
        ret[d] = has > needs ? has - needs : 0;
    }
    return e;
}

/* Tries to pin as many layers as fit into the free memory of each device, then as many as fit into a half,
 * and then into a quarter. */
static int try_pins(struct pipeline_search *s)
{
    uint64_t spare[DEVICE_MAX], budget[DEVICE_MAX];
    struct candidate c = s->best;
    if (s->r->update == UPDATE_HOST || c.onward)
        return 0;
    int e = spare_bytes(s, &c, spare);
    for (int part = 4; part >= 1 && e >= 0; part /= 2) { /* all spare bytes, a half, a quarter */
        for (uint32_t d = 0; d < DEVICE_MAX; d++)
            budget[d] = spare[d] / 4 * (uint64_t)part;
        pin(s, &c, budget);
        e = attempt(s, &c);
    }
    return e < 0 ? e : 0;
}

static int attempt_pinned(struct pipeline_search *s, struct candidate *c, const uint64_t *budget)
{
    pin(s, c, budget);
    return attempt(s, c);
}

/* Tries to pin the state of all layers of candidate `first`, so that no state is moved. If this fits,
 * tries fewer packs as long as the candidate still fits. */
static int try_all_pinned(struct pipeline_search *s, const struct candidate *first)
{
    uint64_t endless[DEVICE_MAX], sum = 0, has = 0;
    if (s->r->update == UPDATE_HOST)
        return 0;
    for (uint32_t l = 0; l < s->r->train->n_layers; l++)
        sum += state_bytes(&s->r->train->layers[l]);
    for (uint32_t d = 0; d < s->r->machine->n_devices; d++)
        has += s->r->machine->capacity_bytes[d];
    if (sum > has)
        return 0;
    for (uint32_t d = 0; d < DEVICE_MAX; d++)
        endless[d] = UINT64_MAX / 2;
    const uint32_t n = team_devices(s->r, first), most = s->r->train->n_layers;
    bool fitted = false;
    for (uint32_t rounds = most / n; rounds >= 1; rounds = rounds > 8 ? rounds * 3 / 4 : rounds - 1) {
        struct candidate c = *first;
        c.onward = false;
        cut(s, rounds * n, &c);
        int e = attempt_pinned(s, &c, endless);
        for (uint32_t f = most - 1;
             e >= 0 && s->r->objective == OBJECTIVE_BYTES && f > c.fused && f + 3 >= most; f--) {
            struct candidate shorter = c;
            shorter.fused = f;
            cut_packs(s, &shorter);
            int fits = attempt_pinned(s, &shorter, endless);
            e = fits < 0 ? fits : e | fits;
        }
        if (e < 0)
            return e;
        if (e == 0 && fitted)
            break;
        fitted |= e > 0;
    }
    return 0;
}

/* Improves s->best along one parameter after another. */
static int improve(struct pipeline_search *s, uint32_t fewest)
{
    int (*const axes[])(struct pipeline_search *) = {try_fused, try_short_fused, try_pins, try_waves,
                                                     try_onward};
    int e = try_packs(s, fewest);
    for (size_t i = 0; i < sizeof axes / sizeof axes[0] && e == 0 && !s->t->over; i++)
        e = axes[i](s);
    return e;
}

/* Searches for the best pipeline. With several teams, the devices of each team form a pipeline of their
 * own. */
static int search_pipeline(const struct plan_request *r, struct trial *t, uint32_t teams)
{
    struct pipeline_search s = {.r = r, .t = t, .arena = arena_create()};
    s.packs = arena_alloc_array(s.arena, r->train->n_layers + 1, sizeof *s.packs);
    int e = 0;
    for (size_t i = 0; i < N_VARIANTS && e == 0 && !t->over; i++) {
        struct candidate c = {.waves = 1, .teams = teams, .unit = r->train->rows, .knobs = variants[i]};
        uint32_t fewest;
        s.found = s.scored = s.made = false;
        e = try_all_pinned(&s, &c);
        if (e == 0)
            e = fewest_packs(&s, &c, &fewest);
        if (e < 0 || fewest == 0)
            continue;
        e = improve(&s, fewest);
        if (r->objective != OBJECTIVE_BYTES && s.scored)
            /* Stop here. The remaining variants let fewer moves overlap with compute. They can save bytes,
             * but no time. */
            break;
    }
    arena_destroy(s.arena);
    return e;
}

/* Maximum number of outlines (estimated plans) that are built, for data-parallel devices. */
#define OUTLINES 3

/* Builds the plan of an outline. Sets *ret_excess to the number of bytes by which the plan exceeds the memory
 * of a device, or to 0 if only host memory is too small. If several devices are too small, the largest excess
 * counts. */
static int try_outline(const struct plan_request *r, struct trial *t, const struct outline *o,
                       uint32_t lead_state, uint64_t *ret_excess)
{
    struct arena *a = arena_create();
    struct candidate c = outline_candidate(r, o, a);
    c.knobs.lead_state = lead_state;
    int e = t->run(t, &c);
    arena_destroy(a);
    *ret_excess = 0;
    for (uint32_t d = 0; e == 0 && d < o->n_devices; d++)
        if (t->need.peak[d] > r->machine->capacity_bytes[d] + *ret_excess)
            *ret_excess = t->need.peak[d] - r->machine->capacity_bytes[d];
    return e;
}

/* Builds the plan of an outline, and makes the outline smaller until the plan fits. If that is not enough,
 * fetches weights later, which needs less memory but overlaps less. */
static int try_outline_shrunk(const struct outline_request *q, const struct plan_request *r, struct trial *t,
                              struct outline *o)
{
    uint64_t excess;
    int e;
    do
        e = try_outline(r, t, o, variants[0].lead_state, &excess);
    while (e == 0 && excess > 0 && outline_shrink(q, o, excess));
    if (e == 0 && excess > 0) /* it cannot shrink any further */
        e = try_outline(r, t, o, 0, &excess);
    return e;
}

/* Lists the best outlines for `teams` data-parallel devices and builds each of them. Lowers *fastest_ns to
 * the time of the fastest plan. */
static int search_outlines_of(const struct plan_request *r, struct trial *t, uint32_t teams,
                              enum plan_objective objective, uint64_t *fastest_ns)
{
    struct outline list[OUTLINES];
    struct outline_model *model = outline_model_graph(r->train, t->profile);
    const struct outline_request q = {
        model, r->machine, r->train->rows * r->train->n_micro, teams, objective, r->update, SAVING_NONE};
    uint32_t n = outline_list(&q, list, OUTLINES);
    int e = 0;
    for (uint32_t i = 0; i < n && e >= 0 && !t->over; i++) {
        e = try_outline_shrunk(&q, r, t, &list[i]);
        if (t->made && t->score.ns < *fastest_ns)
            *fastest_ns = t->score.ns;
    }
    outline_model_destroy(model);
    return e < 0 ? e : 0;
}

/* Maximum number of times that an outline that saves S is made smaller. */
#define SAVE_SHRINKS 4

/* Builds the best outline that saves S on the host, unless it seems slower than the fastest plan. If the
 * waves do not overlap, builds it a second time with save_last_packs set. */
static int search_saving(const struct plan_request *r, struct trial *t, uint32_t teams,
                         enum outline_saving saving, uint64_t *fastest_ns)
{
    struct outline best;
    struct outline_model *model = outline_model_graph(r->train, t->profile);
    const struct outline_request q = {
        model, r->machine, r->train->rows * r->train->n_micro, teams, OBJECTIVE_TIME, r->update, saving};
    uint32_t n = outline_list(&q, &best, 1), most = saving == SAVING_WAVES ? 2 : 1;
    int e = 0;
    for (uint32_t i = 0; n > 0 && i < most && e >= 0 && !t->over; i++) {
        uint64_t excess = 1;
        best.save_last_packs = i > 0;
        for (uint32_t k = 0; k <= SAVE_SHRINKS && e == 0 && excess > 0 && best.ns < *fastest_ns; k++) {
            e = try_outline(r, t, &best, variants[0].lead_state, &excess);
            if (e == 0 && excess > 0 && !outline_shrink(&q, &best, excess))
                break;
        }
        if (e > 0)
            e = 0;
        if (t->made && t->score.ns < *fastest_ns)
            *fastest_ns = t->score.ns;
    }
    outline_model_destroy(model);
    return e;
}

static bool has_tied(const struct graph *g)
{
    for (uint32_t l = 0; l < g->n_layers; l++)
        if (g->layers[l].tied)
            return true;
    return false;
}

/* Searches for the best plan in which `teams` devices each process their part of the batch. */
static int search_parallel(const struct plan_request *r, struct trial *t, uint32_t teams)
{
    uint64_t fastest_ns = UINT64_MAX;
    int e = 0;
    if (r->objective != OBJECTIVE_BYTES)
        e = search_outlines_of(r, t, teams, OBJECTIVE_TIME, &fastest_ns);
    if (e == 0 && r->objective != OBJECTIVE_BYTES)
        e = search_saving(r, t, teams, SAVING_WAVES, &fastest_ns);
    if (e == 0 && teams == 1 && r->objective != OBJECTIVE_BYTES)
        e = search_saving(r, t, teams, SAVING_OVERLAP, &fastest_ns);
    if (e == 0 && r->objective != OBJECTIVE_TIME)
        e = search_outlines_of(r, t, teams, OBJECTIVE_BYTES, &fastest_ns);
    return e;
}

static int auto_search(const struct plan_request *r, struct trial *t)
{
    const uint32_t n = r->machine->n_devices, replicas = r->train->n_replicas;
    int e = 0;
    for (uint32_t teams = order_replica_devices(replicas, n); teams >= 1 && e == 0 && !t->over; teams--) {
        if (replicas % teams != 0 || (teams > 1 && n / teams > 1 && has_tied(r->train)))
            continue;
        if (n / teams == 1)
            e = search_parallel(r, t, teams);
        if (e == 0 && (teams == 1 || n / teams > 1))
            e = search_pipeline(r, t, teams);
    }
    for (int retain = 1; retain >= 0 && e == 0 && !t->over; retain--)
        e = harmony_search(r, t, retain);
    return e;
}

const struct policy policy_auto = {
    .name = "auto",
    .default_update = UPDATE_AUTO,
    .search = auto_search,
    .leanest = auto_leanest,
    .lean = auto_lean,
    .order = auto_order,
};
