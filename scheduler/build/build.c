/* Turns the task order of a policy into a plan.
 *
 * Two of the five programs of a plan, the cycle and the eval program, go through the stages that build.h
 * lists. The other three only handle the copies that stay on a device from one cycle to the next. Entry
 * fetches these copies. Flush writes the changed ones back to the host. Exit writes them back too, and then
 * drops all copies.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "base/checked.h"
#include "base/sort.h"
#include "scheduler/build/build.h"

/* ---- programs ---- */

static void fill_operand(const struct plan *p, const struct draft *d, const struct draft_operand *from,
                         struct plan_operand *to)
{
    *to = (struct plan_operand){.tensor = from->tensor,
                                .begin = from->of.begin,
                                .end = from->of.end,
                                .access = from->access,
                                .role = from->role};
    if (from->segment == SEGMENT_NONE) {
        to->loc = PLAN_HOST;
        to->addr = p->tensors[from->tensor].host_offset + to->begin;
    } else {
        const struct segment *s = &d->segments.at[from->segment];
        to->loc = s->device;
        to->addr = s->addr + (to->begin - s->of.begin);
    }
}

static void fill_program(struct plan *p, enum program_kind k, const struct draft *d)
{
    struct plan_program *prog = &p->programs[k];
    prog->n_instrs = (uint32_t)d->instrs.n;
    prog->n_operands = (uint32_t)d->operands.n;
    prog->n_waits = (uint32_t)d->waits.n;
    prog->instrs = arena_memdup(p->arena, d->instrs.at, d->instrs.n * sizeof *d->instrs.at);
    prog->waits = arena_memdup(p->arena, d->waits.at, d->waits.n * sizeof *d->waits.at);
    prog->operands = arena_alloc_array(p->arena, d->operands.n, sizeof *prog->operands);
    for (size_t i = 0; i < d->operands.n; i++) {
        bounded_poll();
        fill_operand(p, d, &d->operands.at[i], &prog->operands[i]);
    }
}

static int compare_boundary(const void *pa, const void *pb)
{
    const struct segment *a = *(const struct segment *const *)pa, *b = *(const struct segment *const *)pb;
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    return a->addr < b->addr ? -1 : a->addr > b->addr;
}

static void add_instr(struct draft *d, enum instr_kind kind, const struct segment *s, enum lane lane)
{
    uint32_t segment = (uint32_t)(s - d->segments.at);
    struct plan_instr in = {.kind = kind,
                            .stream = plan_stream(s->device, lane),
                            .layer = PLAN_NONE,
                            .micro = PLAN_NONE,
                            .replica = PLAN_NONE,
                            .operand = (uint32_t)d->operands.n};
    struct draft_operand device = {s->tensor, segment, ACCESS_READ, ROLE_NONE, s->of},
                         host = {s->tensor, SEGMENT_NONE, ACCESS_WRITE, ROLE_NONE, s->of};
    if (kind == INSTR_FETCH) {
        device.access = ACCESS_WRITE;
        host.access = ACCESS_READ;
        vec_push(&d->operands, host);
    } else if (kind == INSTR_DROP) {
        device.access = ACCESS_DROP;
    }
    vec_push(&d->operands, device);
    if (kind == INSTR_SPILL)
        vec_push(&d->operands, host);
    in.n_operands = (uint32_t)d->operands.n - in.operand;
    vec_push(&d->instrs, in);
}

/* Makes the entry, flush and exit programs. Their instructions need no waits, because each copy is used on
 * only one stream. */
static void fill_boundary_programs(struct plan *p, const struct draft *cycle)
{
    struct draft entry = {.segments = cycle->segments}, flush = entry,
                 leave = entry; /* all three borrow the cycle's segments */
    VEC(const struct segment *) kept = {0};
    for (size_t i = 0; i < cycle->segments.n; i++)
        if (cycle->segments.at[i].boundary)
            vec_push(&kept, &cycle->segments.at[i]);
    if (kept.n > 0)
        sort_array(kept.at, kept.n, sizeof *kept.at, compare_boundary);
    p->boundary = arena_alloc_array(p->arena, kept.n, sizeof *p->boundary);
    p->n_boundary = (uint32_t)kept.n;
    for (size_t i = 0; i < kept.n; i++) {
        const struct segment *s = kept.at[i];
        p->boundary[i] = (struct plan_copy){s->tensor, s->device, s->of.begin, s->of.end, s->addr};
        add_instr(&entry, INSTR_FETCH, s, LANE_IN);
        if (s->dirty)
            add_instr(&flush, INSTR_SPILL, s, LANE_OUT);
        if (s->dirty)
            add_instr(&leave, INSTR_SPILL, s, LANE_OUT);
        add_instr(&leave, INSTR_DROP, s, LANE_OUT);
    }
    fill_program(p, PROGRAM_ENTRY, &entry);
    fill_program(p, PROGRAM_FLUSH, &flush);
    fill_program(p, PROGRAM_EXIT, &leave);
    struct draft *all[] = {&entry, &flush, &leave};
    for (int i = 0; i < 3; i++) {
        vec_free(&all[i]->instrs);
        vec_free(&all[i]->operands);
    }
    vec_free(&kept);
}

/* ---- the plan ---- */

/* Maximum number of attempts to keep copies in free memory. After each attempt that does not fit, the next
 * attempt keeps fewer bytes. */
#define RETAIN_TRIES 4
/* With more than LEAVE_WASTE_ABOVE instructions, 1/64 of the memory is left unused, which makes placement
 * faster. With more than RETAIN_BELOW instructions, free memory is not used to keep copies. */
#define LEAVE_WASTE_ABOVE 20000
#define RETAIN_BELOW      200000

/* Lowers budget[d], the bytes that draft_retain may fill, for every device d whose peak exceeds its capacity.
 * Returns whether there is such a device. */
static bool lower_budget(const struct draft *d, const struct machine *m, uint64_t *budget)
{
    bool over = false;
    for (uint32_t i = 0; i < d->n_devices; i++) {
        if (d->peak[i] <= m->capacity_bytes[i])
            continue;
        uint64_t excess = d->peak[i] - m->capacity_bytes[i];
        budget[i] -= excess < budget[i] ? excess : budget[i];
        over = true;
    }
    return over;
}

/* Makes the draft of a program, with addresses. Keeps more copies in free memory if the result fits the
 * devices. */
static void draft_retained(struct draft *d, const struct order *o, const struct knobs *knobs,
                           const struct machine *m, bool cyclic)
{
    uint64_t budget[DEVICE_MAX];
    gap_list gaps = {0};
    struct draft bare;
    bool over;
    memcpy(budget, m->capacity_bytes, sizeof budget);
    draft_residency(&bare, o, knobs, cyclic, NULL, &gaps);
    draft_place(&bare, NULL);
    over = lower_budget(&bare, m, budget) || bare.instrs.n > RETAIN_BELOW;
    for (uint32_t i = 0; i < o->n_devices && bare.instrs.n > LEAVE_WASTE_ABOVE; i++)
        budget[i] -= budget[i] / 64;
    bool large = bare.instrs.n > LEAVE_WASTE_ABOVE;
    for (int tries = 0; tries < (large ? RETAIN_TRIES / 2 : RETAIN_TRIES) && !over; tries++) {
        draft_retain(&bare, budget, &gaps);
        draft_residency(d, o, knobs, cyclic, &gaps, NULL);
        draft_place(d, m->capacity_bytes);
        if (!lower_budget(d, m, budget)) {
            draft_finish(&bare);
            vec_free(&gaps);
            return;
        }
        draft_finish(d);
    }
    *d = bare;
    vec_free(&gaps);
}

static void draft_program(struct draft *d, const struct order *o, const struct knobs *knobs,
                          const struct machine *m, bool cyclic)
{
    if (knobs->keep == KEEP_LRU) {
        draft_paging(d, o, m, knobs->least_cache, cyclic);
        return;
    }
    if (knobs->retain) {
        draft_retained(d, o, knobs, m, cyclic);
        return;
    }
    draft_residency(d, o, knobs, cyclic, NULL, NULL);
    draft_place(d, NULL);
}

static int draft_eval(const struct plan_request *r, const struct order *cycle, const struct knobs *knobs,
                      const struct profile *prof, struct draft *ret, struct err *err)
{
    struct order eval;
    if (r->eval == NULL) {
        *ret = (struct draft){.graph = r->train, .n_devices = r->machine->n_devices, .n_shares = 1};
        return 0;
    }
    /* The eval program reads every weight only once, so it would save nothing to keep copies in free
     * memory. */
    struct knobs plain = *knobs;
    plain.retain = false;
    order_forward_only(cycle, r->eval, &eval);
    int e = order_merge(&eval, prof, err);
    if (e == 0)
        draft_program(ret, &eval, &plain, r->machine, false);
    order_finish(&eval);
    return e;
}

static struct plan *assemble(const struct plan_request *r, const char *policy, struct draft *cycle,
                             struct draft *eval, const struct plan_tensor *tensors, uint64_t host_bytes)
{
    struct arena *arena = arena_create();
    struct plan *p = arena_alloc(arena, sizeof *p);
    const struct graph *g = r->train;
    *p = (struct plan){
        .n_devices = r->machine->n_devices,
        .n_layers = g->n_layers,
        .n_micro = g->n_micro,
        .n_replicas = g->n_replicas,
        .n_groups = g->n_groups,
        .rows = g->rows,
        .steps = g->steps,
        .host_lease_bytes = r->machine->host_bytes - r->machine->host_taken_bytes,
        .host_bytes = host_bytes,
        .tensors = arena_memdup(arena, tensors, g->n_tensors * sizeof *tensors),
        .n_tensors = g->n_tensors,
        .arena = arena,
    };
    snprintf(p->policy, sizeof p->policy, "%s", policy);
    for (uint32_t i = 0; i < p->n_devices; i++) {
        uint64_t a = cycle->peak[i], b = eval->peak[i];
        p->devices[i] = (struct plan_device){r->machine->capacity_bytes[i], a > b ? a : b};
    }
    draft_waits(cycle);
    draft_waits(eval);
    fill_program(p, PROGRAM_CYCLE, cycle);
    fill_program(p, PROGRAM_EVAL, eval);
    fill_boundary_programs(p, cycle);
    return p;
}

/* Gives addresses from `homes` on to the copies that are in host memory only for a while. Returns the host
 * memory that either program needs at most. */
static uint64_t place_on_host(const struct machine *m, struct draft *cycle, struct draft *eval,
                              uint64_t homes)
{
    uint64_t has = m->host_bytes > m->host_taken_bytes ? m->host_bytes - m->host_taken_bytes : 0;
    draft_host(cycle, homes, has);
    draft_host(eval, homes, has);
    return cycle->host_peak > eval->host_peak ? cycle->host_peak : eval->host_peak;
}

static bool fits(const struct machine *m, const struct draft *cycle, const struct draft *eval,
                 struct plan_need *need)
{
    bool ok = true;
    for (uint32_t i = 0; i < m->n_devices; i++) {
        uint64_t peak = cycle->peak[i] > eval->peak[i] ? cycle->peak[i] : eval->peak[i];
        need->peak[i] = peak;
        ok &= peak <= m->capacity_bytes[i];
        if (peak > need->device_bytes)
            need->device_bytes = peak;
    }
    need->devices_fit = ok;
    return ok && need->host_bytes + m->host_taken_bytes <= m->host_bytes;
}

/* The time that draft_waits takes grows with the number of streams of the plan. With CLOCK_STREAMS streams,
 * draft_waits takes as long as all other stages of the build together. */
#define CLOCK_STREAMS 64

/* Estimates the time to build both drafts. The unit is the time that one instruction takes in a plan for a
 * single device. */
static uint64_t work_of(const struct draft *cycle, const struct draft *eval)
{
    uint64_t streams = (uint64_t)cycle->n_devices * LANE_COUNT + 1;
    return (cycle->instrs.n + eval->instrs.n) * (CLOCK_STREAMS + streams) / CLOCK_STREAMS;
}

int plan_build(const struct plan_request *request, const char *policy, struct order *cycle,
               const struct knobs *knobs, const struct profile *prof, struct plan **ret,
               struct plan_need *ret_need, struct err *err)
{
    struct draft dc, de;
    if (ret != NULL)
        *ret = NULL;
    order_repeat(cycle);
    int r = order_merge(cycle, prof, err);
    if (r < 0)
        return r;
    r = draft_eval(request, cycle, knobs, prof, &de, err);
    if (r < 0)
        return r;
    draft_program(&dc, cycle, knobs, request->machine, true);

    const struct graph *g = request->train;
    struct plan_tensor *tensors = xcalloc(g->n_tensors, sizeof *tensors);
    *ret_need = (struct plan_need){.work = work_of(&dc, &de)};
    ret_need->host_bytes = place_on_host(request->machine, &dc, &de, host_homes(tensors, g));
    if (fits(request->machine, &dc, &de, ret_need) && ret != NULL)
        *ret = assemble(request, policy, &dc, &de, tensors, ret_need->host_bytes);
    xfree(tensors);
    draft_finish(&dc);
    draft_finish(&de);
    return 0;
}
