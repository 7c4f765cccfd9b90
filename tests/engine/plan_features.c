/* Implements plan_features.h. Every feature is read from the cycle program alone. */
#include "tests/engine/plan_features.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"

static const char *const feature_names[FEATURE_COUNT] = {
#define X(id, devices, text) text,
    FEATURES(X)
#undef X
};
static const uint32_t feature_devices[FEATURE_COUNT] = {
#define X(id, devices, text) devices,
    FEATURES(X)
#undef X
};

struct view {
    const struct plan *p;
    const struct plan_program *cycle;
};

static const struct plan_operand *operand(const struct view *v, const struct plan_instr *in, uint32_t i)
{
    return &v->cycle->operands[in->operand + i];
}

static uint32_t device_of(const struct plan_instr *in)
{
    return in->stream / LANE_COUNT;
}

static bool on_host(const struct view *v, const struct plan_instr *in)
{
    return in->stream == plan_host_stream(v->p);
}

/* Less than the tensor. */
static bool is_part(const struct view *v, const struct plan_operand *o)
{
    return operand_bytes(o) < v->p->tensors[o->tensor].bytes;
}

static bool is_move_of(const struct view *v, const struct plan_instr *in, enum instr_kind move,
                       enum tensor_kind tensor)
{
    return in->kind == move && v->p->tensors[operand(v, in, 0)->tensor].kind == tensor;
}

static uint32_t count(const struct view *v, enum instr_kind kind, uint32_t layer, bool host, bool part)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->cycle->n_instrs; i++) {
        const struct plan_instr *in = &v->cycle->instrs[i];
        n += in->kind == kind && (layer == PLAN_NONE || in->layer == layer) && on_host(v, in) == host &&
             is_part(v, operand(v, in, 0)) == part;
    }
    return n;
}

static uint32_t count_moves(const struct view *v, enum instr_kind move, enum tensor_kind tensor, bool part)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->cycle->n_instrs; i++) {
        const struct plan_instr *in = &v->cycle->instrs[i];
        n += is_move_of(v, in, move, tensor) && is_part(v, operand(v, in, 0)) == part;
    }
    return n;
}

/* Devices that compute some micro-batch of the layer (PLAN_NONE: of any), or only this micro-batch. */
static uint64_t devices_of(const struct view *v, uint32_t layer, uint32_t micro)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < v->cycle->n_instrs; i++) {
        const struct plan_instr *in = &v->cycle->instrs[i];
        if (in->kind == INSTR_FWD && (layer == PLAN_NONE || in->layer == layer) &&
            (micro == PLAN_NONE || in->micro == micro))
            bits |= UINT64_C(1) << device_of(in);
    }
    return bits;
}

static uint32_t bits(uint64_t x)
{
    return (uint32_t)__builtin_popcountll(x);
}

static bool has_empty_share(const struct view *v)
{
    for (uint32_t l = 0; l < v->p->n_layers; l++) {
        uint32_t whole = count(v, INSTR_RED, l, false, false), part = count(v, INSTR_RED, l, false, true);
        uint32_t owners = bits(devices_of(v, l, PLAN_NONE));
        if (whole + part > 0 && whole + part < (v->p->n_replicas - 1) * owners)
            return true;
    }
    return false;
}

/* Several devices fetch all of the W of one layer. */
static bool has_alone(const struct view *v)
{
    for (uint32_t t = 0; t < v->p->n_tensors; t++) {
        uint64_t devices = 0;
        for (uint32_t i = 0; i < v->cycle->n_instrs; i++) {
            const struct plan_instr *in = &v->cycle->instrs[i];
            if (is_move_of(v, in, INSTR_FETCH, TENSOR_W) && operand(v, in, 0)->tensor == t &&
                !is_part(v, operand(v, in, 0)))
                devices |= UINT64_C(1) << device_of(in);
        }
        if (bits(devices) > 1)
            return true;
    }
    return false;
}

/* Returns whether an update of a share has several parts of K. */
static bool has_parts(const struct view *v)
{
    for (uint32_t i = 0; i < v->cycle->n_instrs; i++) {
        const struct plan_instr *in = &v->cycle->instrs[i];
        uint32_t parts = 0;
        for (uint32_t k = 0; in->kind == INSTR_UPD && k < in->n_operands; k++)
            parts += v->p->tensors[operand(v, in, k)->tensor].kind == TENSOR_K &&
                     is_part(v, operand(v, in, k)) && !on_host(v, in);
        if (parts > 1)
            return true;
    }
    return false;
}

static bool has_pinned_share(const struct view *v)
{
    bool stays = false;
    for (uint32_t i = 0; i < v->p->n_boundary; i++) {
        const struct plan_copy *c = &v->p->boundary[i];
        stays |=
            v->p->tensors[c->tensor].kind == TENSOR_W && c->end - c->begin < v->p->tensors[c->tensor].bytes;
    }
    return stays && count_moves(v, INSTR_COPY, TENSOR_W, true) > 0;
}

/* Returns whether the micro-batches of a layer run in several waves on this device: several forward tasks in
 * a row, and forward tasks after backward tasks. */
static bool has_groups(const struct view *v, uint32_t layer, uint32_t device)
{
    enum instr_kind before = INSTR_DROP;
    bool several = false, again = false;
    for (uint32_t i = 0; i < v->cycle->n_instrs; i++) {
        const struct plan_instr *in = &v->cycle->instrs[i];
        if (in->layer != layer || device_of(in) != device || (in->kind != INSTR_FWD && in->kind != INSTR_BWD))
            continue;
        several |= in->kind == INSTR_FWD && before == INSTR_FWD;
        again |= in->kind == INSTR_FWD && before == INSTR_BWD;
        before = in->kind;
    }
    return several && again;
}

static bool has_any_groups(const struct view *v)
{
    for (uint32_t l = 0; l < v->p->n_layers; l++)
        for (uint32_t d = 0; d < v->p->n_devices; d++)
            if (has_groups(v, l, d))
                return true;
    return false;
}

/* Between two backward tasks that add to it, a gradient is fetched again. */
static bool has_unfinished_sums(const struct view *v)
{
    bool fetched = false, *open = xcalloc(v->p->n_tensors, sizeof *open);
    for (uint32_t i = 0; i < v->cycle->n_instrs; i++) {
        const struct plan_instr *in = &v->cycle->instrs[i];
        if (is_move_of(v, in, INSTR_FETCH, TENSOR_DW))
            open[operand(v, in, 0)->tensor] = true;
        for (uint32_t k = 0; in->kind == INSTR_BWD && k < in->n_operands; k++)
            fetched |= operand(v, in, k)->access == ACCESS_RW && open[operand(v, in, k)->tensor];
    }
    free(open);
    return fetched;
}

static bool is_hybrid(const struct view *v)
{
    for (uint32_t j = 0; j < v->p->n_micro; j++)
        if (bits(devices_of(v, PLAN_NONE, j)) > 1)
            return true;
    return false;
}

uint32_t plan_features(const struct plan *p)
{
    const struct view view = {p, &p->programs[PROGRAM_CYCLE]}, *v = &view;
    uint32_t ret = 0;
    const bool shares = count(v, INSTR_RED, PLAN_NONE, false, true) > 0;
    const bool updates = count(v, INSTR_UPD, PLAN_NONE, false, true) > 0;
    const bool ours = strcmp(p->policy, "auto") == 0; /* `lru` has no plan to keep what it happens to keep */
    const bool paged = strcmp(p->policy, "lru") == 0;
    const bool kept = ours && count_moves(v, INSTR_SPILL, TENSOR_S, false) > 0;
    const bool has[FEATURE_COUNT] = {
        [FEATURE_REPLICAS_TOGETHER] = count(v, INSTR_RED, PLAN_NONE, false, false) > 0,
        [FEATURE_FEWER_DEVICES] =
            p->n_replicas > 1 && bits(devices_of(v, PLAN_NONE, PLAN_NONE)) < p->n_devices,
        [FEATURE_SHARES] = shares,
        [FEATURE_SHARED_FETCH] = shares && count_moves(v, INSTR_FETCH, TENSOR_W, true) > 0 &&
                                 count_moves(v, INSTR_SEND, TENSOR_W, true) > 0,
        [FEATURE_ALONE] = shares && has_alone(v),
        [FEATURE_PAGED_REPLICAS] = paged && p->n_replicas > 1 && has_alone(v),
        [FEATURE_EMPTY_SHARE] = shares && has_empty_share(v),
        [FEATURE_SHARED_UPDATE] = updates,
        [FEATURE_K_PARTS] = updates && has_parts(v),
        [FEATURE_PINNED_SHARE] = has_pinned_share(v),
        [FEATURE_CLIPPED_SHARES] = updates && count(v, INSTR_NORM, PLAN_NONE, true, false) > 0,
        [FEATURE_HYBRID] = shares && is_hybrid(v),
        [FEATURE_KEPT] = kept,
        [FEATURE_KEPT_SHARES] = kept && shares,
        [FEATURE_GROUPS] = ours && has_any_groups(v),
        [FEATURE_DEVICE_DECISION] = count(v, INSTR_DECIDE, PLAN_NONE, false, false) > 0,
        [FEATURE_UNFINISHED_SUMS] = ours && has_unfinished_sums(v),
    };
    for (int f = 0; f < FEATURE_COUNT; f++)
        ret |= has[f] ? UINT32_C(1) << f : 0;
    return ret;
}

void features_count(uint32_t seen[FEATURE_COUNT], uint32_t features)
{
    for (uint32_t f = 0; f < FEATURE_COUNT; f++)
        seen[f] += features >> f & 1;
}

bool features_rare(const uint32_t seen[FEATURE_COUNT], uint32_t features)
{
    for (uint32_t f = 0; f < FEATURE_COUNT; f++)
        if (features >> f & 1 && seen[f] < 2)
            return true;
    return false;
}

void features_assert_all(const uint32_t seen[FEATURE_COUNT], uint32_t n_devices)
{
    for (uint32_t f = 0; f < FEATURE_COUNT; f++)
        printf("# %4u plans: %s\n", seen[f], feature_names[f]);
    for (uint32_t f = 0; f < FEATURE_COUNT; f++)
        if (seen[f] == 0 && feature_devices[f] <= n_devices)
            fail_msg("in no plan: %s", feature_names[f]);
}
