/* Checks a Harmony schedule and makes its tasks. Assigns each pack to a device. Also finds the inputs that
 * forward packs have to save for backward packs. harmony_rules.h describes the schedules. */
#include "scheduler/predict/harmony_private.h"

#include <errno.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/json.h"
#include "kernels/device.h"

/* Maximum number of operations of a schedule. Simulating a larger schedule would take too long, so it is
 * refused. */
#define MAX_OPS 10000000ull

const char *const rules_form_names[RULES_FORM_COUNT + 1] = {[RULES_PP] = "pp", [RULES_DP] = "dp"};

/* ---- checks ---- */

static int check_packs(const struct rules_packs *p, const char *name, uint32_t n_layers, const char *what,
                       struct err *err)
{
    if (n_layers == 0 && p->n > 0)
        return err_set_at(err, -EINVAL, name,
                          "must be empty, because the only backward pack contains all layers");
    for (uint32_t i = 0; i < p->n; i++) {
        char at[64];
        json_path_index(at, sizeof at, name, i);
        if (p->ends[i] >= n_layers)
            return err_set_at(err, -EINVAL, at, "is layer %u, which comes after layer %u, %s", p->ends[i],
                              n_layers - 1, what);
        if (i > 0 && p->ends[i] <= p->ends[i - 1])
            return err_set_at(
                err, -EINVAL, at,
                "is layer %u, which does not come after layer %u; the last layers of packs must "
                "ascend",
                p->ends[i], p->ends[i - 1]);
    }
    if (n_layers > 0 && (p->n == 0 || p->ends[p->n - 1] != n_layers - 1))
        return err_set_at(err, -EINVAL, name, "must end with layer %u, %s", n_layers - 1, what);
    return 0;
}

static int check_micro(uint32_t micro, const char *name, uint32_t batch, struct err *err)
{
    if (micro == 0 || batch % micro != 0)
        return err_set_at(err, -EINVAL, name, "%u does not divide the %u samples of a device's batch", micro,
                          batch);
    return 0;
}

static uint32_t batch_of_device(const struct rules_schedule *s)
{
    return s->form == RULES_DP ? s->batch / s->devices : s->batch;
}

static int check_batch(const struct rules_schedule *s, struct err *err)
{
    if (s->devices == 0 || s->devices > DEVICE_MAX)
        return err_set_at(err, -EINVAL, "devices", "is %u; it must be from 1 to %d", s->devices, DEVICE_MAX);
    if (s->batch == 0)
        return err_set_at(err, -EINVAL, "batch", "must be at least 1");
    if (s->form == RULES_DP && s->batch % s->devices != 0)
        return err_set_at(err, -EINVAL, "batch", "is %u, which %u devices do not divide equally", s->batch,
                          s->devices);
    int r = check_micro(s->micro_fwd, "micro_batch_fwd", batch_of_device(s), err);
    return r < 0 ? r : check_micro(s->micro_bwd, "micro_batch_bwd", batch_of_device(s), err);
}

static int check_size(const struct rules_schedule *s, struct err *err)
{
    uint64_t batch = batch_of_device(s);
    uint64_t forward = batch / s->micro_fwd * (3ull * s->fwd.n + 2ull * s->bwd.n);
    uint64_t backward = batch / s->micro_bwd * (7ull * s->bwd.n);
    if (forward + backward > MAX_OPS)
        return err_set_at(err, -EINVAL, "batch", "makes more than %llu operations; use larger micro-batches",
                          MAX_OPS);
    return 0;
}

static int check_links(const struct rules_schedule *s, const struct table *t, struct err *err)
{
    if (t->link_bytes_per_s == 0)
        return err_set_at(err, -EINVAL, "link.swap_bytes_per_s", "is missing in the profile");
    if (s->devices > 1 && t->peer_bytes_per_s == 0)
        return err_set_at(err, -EINVAL, "link.p2p_bytes_per_s", "is missing in the profile");
    if (s->devices > 1 && s->form == RULES_PP && t->host_copy_bytes_per_s == 0)
        return err_set_at(err, -EINVAL, "link.host_copy_bytes_per_s", "is missing in the profile");
    return 0;
}

int rules_check(const struct rules_schedule *s, const struct table *t, struct err *err)
{
    int r = check_packs(&s->bwd, "packs_bwd", t->n_layers, "the loss", err);
    uint32_t before = s->bwd.n > 1 ? s->bwd.ends[s->bwd.n - 2] + 1 : 0;
    if (r == 0)
        r = check_packs(&s->fwd, "packs_fwd", before, "the one before the last backward pack", err);
    if (r == 0)
        r = check_batch(s, err);
    if (r == 0)
        r = check_size(s, err);
    return r < 0 ? r : check_links(s, t, err);
}

/* ---- tasks ---- */

static uint32_t pack_first(const struct rules_packs *p, uint32_t pack)
{
    return pack > 0 ? p->ends[pack - 1] + 1 : 0;
}

static void add_tasks(struct rules_tasks *g)
{
    const struct rules_schedule *s = g->schedule;
    uint32_t batch = batch_of_device(s);
    for (uint32_t i = 0; i < s->fwd.n; i++)
        g->at[g->n++] = (struct rules_task){.kind = TASK_FWD,
                                            .first = pack_first(&s->fwd, i),
                                            .last = s->fwd.ends[i],
                                            .micro = s->micro_fwd,
                                            .n_micro = batch / s->micro_fwd};
    for (uint32_t i = s->bwd.n; i-- > 0;)
        g->at[g->n++] = (struct rules_task){.kind = i + 1 == s->bwd.n ? TASK_LOSS : TASK_BWD,
                                            .first = pack_first(&s->bwd, i),
                                            .last = s->bwd.ends[i],
                                            .micro = s->micro_bwd,
                                            .n_micro = batch / s->micro_bwd};
    g->n_fwd = s->fwd.n;
}

/* Assigns the tasks to the devices in turn: task 0 to device 0, task 1 to device 1, and so on. */
static void assign_devices(struct rules_tasks *g)
{
    for (uint32_t i = 0; i < g->n; i++) {
        struct rules_task *t = &g->at[i];
        t->device = i % g->n_devices;
        t->left = i >= g->n_devices ? &g->at[i - g->n_devices] : NULL;
        t->left2 = t->left != NULL ? t->left->left : NULL;
    }
}

/* Cuts forward task `f` into parts, one part for each layer at which a backward pack starts. Links each part
 * with the backward task that needs the part's input. */
static void cut_task(struct rules_tasks *g, struct rules_task *f, struct arena *a)
{
    f->parts = arena_alloc_array(a, f->last - f->first + 1, sizeof *f->parts);
    f->parts[f->n_parts++] = (struct rules_part){.first = f->first, .taker = NO_OP};
    for (uint32_t i = g->n; i-- > g->n_fwd;) { /* backwards, so that layers ascend */
        struct rules_task *b = &g->at[i];
        if (b->kind != TASK_BWD || b->first < f->first || b->first > f->last)
            continue;
        if (b->first > f->first)
            f->parts[f->n_parts++].first = b->first;
        f->parts[f->n_parts - 1].taker = i;
        b->source = f;
        b->source_part = f->n_parts - 1;
    }
    for (uint32_t i = 0; i < f->n_parts; i++)
        f->parts[i].last = i + 1 < f->n_parts ? f->parts[i + 1].first - 1 : f->last;
}

void rules_make_tasks(const struct rules_schedule *s, const struct table *t, struct arena *a,
                      struct rules_tasks *ret)
{
    uint32_t n = s->fwd.n + s->bwd.n;
    bool pipeline = s->form == RULES_PP && s->devices > 1;
    *ret = (struct rules_tasks){
        .schedule = s,
        .table = t,
        .pipeline = pipeline,
        .last_by_host = pipeline && s->micro_fwd != s->micro_bwd,
        .n_devices = pipeline ? s->devices : 1,
        .n_busy = pipeline && n < s->devices ? n : s->devices,
        .at = arena_alloc_array(a, n, sizeof *ret->at),
    };
    add_tasks(ret);
    assign_devices(ret);
    for (uint32_t i = 0; i < ret->n_fwd; i++)
        cut_task(ret, &ret->at[i], a);
}

uint32_t rules_forward_micro(const struct rules_tasks *g, uint32_t backward_micro)
{
    const struct rules_schedule *s = g->schedule;
    return (uint32_t)((((uint64_t)backward_micro + 1) * s->micro_bwd - 1) / s->micro_fwd);
}
