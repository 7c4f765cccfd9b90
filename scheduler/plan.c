/* Implements plan.h: the names of enum values, the comparison of two plans, and functions that count bytes.
 *
 * Dumps, traces, JSON and the messages of the verifier all use the short names of tensor kinds below.
 */
#include "scheduler/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/sort.h"
#include "base/vec.h"

const char *const tensor_kind_names[TENSOR_KIND_COUNT] = {
    [TENSOR_W] = "W",         [TENSOR_DW] = "dW",     [TENSOR_K] = "K",       [TENSOR_B] = "B",
    [TENSOR_X] = "X",         [TENSOR_Y] = "Y",       [TENSOR_DX] = "dX",     [TENSOR_S] = "S",
    [TENSOR_WORK] = "work",   [TENSOR_ROOM] = "room", [TENSOR_STAT] = "stat", [TENSOR_SCRATCH] = "scratch",
    [TENSOR_TARGET] = "T",    [TENSOR_RESULT] = "R",  [TENSOR_SUMSQ] = "N",   [TENSOR_DECISION] = "decision",
    [TENSOR_GROUP] = "group",
};

const char *const instr_kind_names[INSTR_KIND_COUNT] = {
    [INSTR_FWD] = "FWD",     [INSTR_BWD] = "BWD",       [INSTR_REC] = "REC",   [INSTR_RED] = "RED",
    [INSTR_NORM] = "NORM",   [INSTR_DECIDE] = "DECIDE", [INSTR_UPD] = "UPD",   [INSTR_FETCH] = "FETCH",
    [INSTR_SPILL] = "SPILL", [INSTR_SEND] = "SEND",     [INSTR_COPY] = "COPY", [INSTR_DROP] = "DROP",
};

const char *const program_kind_names[PROGRAM_COUNT] = {
    [PROGRAM_ENTRY] = "entry", [PROGRAM_CYCLE] = "cycle", [PROGRAM_FLUSH] = "flush",
    [PROGRAM_EXIT] = "exit",   [PROGRAM_EVAL] = "eval",
};

const char *const role_names[ROLE_COUNT] = {
#define ROLE(name, short_name, words) [ROLE_##name] = (short_name),
    PLAN_ROLES(ROLE)
#undef ROLE
};

void plan_destroy(struct plan *p)
{
    if (p)
        arena_destroy(p->arena);
}

enum byte_class tensor_byte_class(const struct plan_tensor *t)
{
    switch (t->kind) {
    /* X is data, because the loader fills it in every step. An output Y that only the step itself reads is
     * not. */
    case TENSOR_X:
    case TENSOR_TARGET:
    case TENSOR_RESULT:
    case TENSOR_DECISION:
    case TENSOR_GROUP:
        return BYTES_DATA;
    case TENSOR_Y:
        /* An output with a home is a result: the trainer reads it. */
        return t->host_slots > 0 ? BYTES_DATA : BYTES_STASH;
    case TENSOR_STAT:
    case TENSOR_DX:
    case TENSOR_S:
    case TENSOR_WORK:
    case TENSOR_ROOM:
    case TENSOR_SCRATCH:
        return BYTES_STASH;
    default:
        return BYTES_STATE;
    }
}

static void count_in(struct plan_bytes *ret, enum byte_class c, uint64_t bytes)
{
    ret->in += bytes;
    *(c == BYTES_STATE ? &ret->state_in : c == BYTES_STASH ? &ret->stash_in : &ret->data_in) += bytes;
}

static void count_out(struct plan_bytes *ret, enum byte_class c, uint64_t bytes)
{
    ret->out += bytes;
    *(c == BYTES_STATE ? &ret->state_out : c == BYTES_STASH ? &ret->stash_out : &ret->data_out) += bytes;
}

static void count_instr(const struct plan *p, const struct plan_program *prog, const struct plan_instr *in,
                        struct plan_bytes *ret)
{
    if (!instr_is_move(in->kind) || in->n_operands == 0)
        return;
    const struct plan_operand *o = &prog->operands[in->operand];
    enum byte_class c = tensor_byte_class(&p->tensors[o->tensor]);
    if (in->kind == INSTR_FETCH && p->tensors[o->tensor].kind == TENSOR_GROUP)
        ret->group_in += operand_bytes(o);
    if (in->kind == INSTR_FETCH)
        count_in(ret, c, operand_bytes(o));
    else if (in->kind == INSTR_SPILL)
        count_out(ret, c, operand_bytes(o));
    else if (in->kind == INSTR_SEND) /* a COPY uses no link */
        ret->peer += operand_bytes(o);
}

void plan_count_bytes(const struct plan *p, enum program_kind k, struct plan_bytes *ret)
{
    const struct plan_program *prog = &p->programs[k];

    *ret = (struct plan_bytes){0};
    for (uint32_t i = 0; i < prog->n_instrs; i++)
        count_instr(p, prog, &prog->instrs[i], ret);
}

void plan_step_bytes(const struct plan *p, struct plan_bytes *ret)
{
    struct plan_bytes b;

    plan_count_bytes(p, PROGRAM_CYCLE, &b);
    *ret = (struct plan_bytes){
        .in = b.in / p->steps,
        .out = b.out / p->steps,
        .peer = b.peer / p->steps,
        .state_in = b.state_in / p->steps,
        .state_out = b.state_out / p->steps,
        .stash_in = b.stash_in / p->steps,
        .stash_out = b.stash_out / p->steps,
        .data_in = b.data_in / p->steps,
        .data_out = b.data_out / p->steps,
        .group_in = b.group_in / p->steps,
    };
}

/* A move counts for the device whose stream runs it. For a SEND, this is the sender. */
void plan_count_device_bytes(const struct plan *p, enum program_kind k, uint32_t device,
                             struct plan_bytes *ret)
{
    const struct plan_program *prog = &p->programs[k];

    *ret = (struct plan_bytes){0};
    for (uint32_t i = 0; i < prog->n_instrs; i++)
        if (prog->instrs[i].stream / LANE_COUNT == device)
            count_instr(p, prog, &prog->instrs[i], ret);
}

static bool tensors_equal(const struct plan_tensor *a, const struct plan_tensor *b)
{
    return a->kind == b->kind && a->layer == b->layer && a->micro == b->micro && a->replica == b->replica &&
           a->step == b->step && a->group == b->group && a->dtype == b->dtype && a->bytes == b->bytes &&
           a->host_offset == b->host_offset && a->host_slots == b->host_slots;
}

static bool copies_equal(const struct plan_copy *a, const struct plan_copy *b)
{
    return a->tensor == b->tensor && a->device == b->device && a->begin == b->begin && a->end == b->end &&
           a->addr == b->addr;
}

static bool operands_equal(const struct plan_operand *a, const struct plan_operand *b)
{
    return a->tensor == b->tensor && a->loc == b->loc && a->begin == b->begin && a->end == b->end &&
           a->addr == b->addr && a->access == b->access && a->role == b->role;
}

/* Returns whether two instructions are equal and have equal operands and waits. The indices at which the
 * programs store the operands and waits may differ. */
static bool instrs_equal(const struct plan_program *pa, const struct plan_instr *a,
                         const struct plan_program *pb, const struct plan_instr *b)
{
    if (a->kind != b->kind || a->stream != b->stream || a->layer != b->layer || a->micro != b->micro ||
        a->replica != b->replica || a->step != b->step || a->group != b->group ||
        a->n_operands != b->n_operands || a->n_waits != b->n_waits)
        return false;
    for (uint32_t i = 0; i < a->n_operands; i++)
        if (!operands_equal(&pa->operands[a->operand + i], &pb->operands[b->operand + i]))
            return false;
    for (uint32_t i = 0; i < a->n_waits; i++) {
        const struct plan_wait *wa = &pa->waits[a->wait + i], *wb = &pb->waits[b->wait + i];
        if (wa->instr != wb->instr || wa->distance != wb->distance)
            return false;
    }
    return true;
}

static bool programs_equal(const struct plan_program *a, const struct plan_program *b)
{
    if (a->n_instrs != b->n_instrs)
        return false;
    for (uint32_t i = 0; i < a->n_instrs; i++)
        if (!instrs_equal(a, &a->instrs[i], b, &b->instrs[i]))
            return false;
    return true;
}

static bool headers_equal(const struct plan *a, const struct plan *b)
{
    if (strcmp(a->policy, b->policy) != 0 || a->n_devices != b->n_devices || a->n_layers != b->n_layers ||
        a->n_micro != b->n_micro || a->n_replicas != b->n_replicas || a->n_groups != b->n_groups ||
        a->rows != b->rows || a->steps != b->steps || a->host_lease_bytes != b->host_lease_bytes ||
        a->host_bytes != b->host_bytes || a->n_tensors != b->n_tensors || a->n_boundary != b->n_boundary)
        return false;
    for (uint32_t d = 0; d < a->n_devices; d++)
        if (a->devices[d].lease_bytes != b->devices[d].lease_bytes ||
            a->devices[d].peak_bytes != b->devices[d].peak_bytes)
            return false;
    return true;
}

bool plan_equal(const struct plan *a, const struct plan *b)
{
    if (!headers_equal(a, b))
        return false;
    for (uint32_t i = 0; i < a->n_tensors; i++)
        if (!tensors_equal(&a->tensors[i], &b->tensors[i]))
            return false;
    for (uint32_t i = 0; i < a->n_boundary; i++)
        if (!copies_equal(&a->boundary[i], &b->boundary[i]))
            return false;
    for (int k = 0; k < PROGRAM_COUNT; k++)
        if (!programs_equal(&a->programs[k], &b->programs[k]))
            return false;
    return true;
}

/* A copy of a tensor or of a part of a tensor, as plan_live_peak sees it. Several copies of a tensor on one
 * device have different values of `base`. */
struct live_copy {
    uint32_t device;
    tensor_id tensor;
    /* The address of byte 0 of the tensor. If the copy does not contain byte 0, this is the address that byte
     * 0 would have, modulo 2^64. */
    uint64_t base;
    uint64_t bytes; /* size, rounded up to PLAN_ALIGN */
    /* Whether the copy exists on the device at the current instruction of the walk. */
    bool alive;
};

typedef VEC(struct live_copy) live_list;

static int compare_live(const void *pa, const void *pb)
{
    const struct live_copy *a = pa, *b = pb;
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    return a->base < b->base ? -1 : a->base > b->base;
}

/* Makes a sorted list of all copies that a program uses. Copies of a tensor that have the same address, one
 * after another, have one entry together. */
static void list_live(const struct plan *p, enum program_kind k, live_list *ret)
{
    const struct plan_program *prog = &p->programs[k];
    for (uint32_t i = 0; k == PROGRAM_CYCLE && i < p->n_boundary; i++) {
        const struct plan_copy *c = &p->boundary[i];
        vec_push(ret, (struct live_copy){c->device, c->tensor, c->addr - c->begin,
                                         round_up(c->end - c->begin, PLAN_ALIGN), true});
    }
    for (uint32_t i = 0; i < prog->n_operands; i++) {
        const struct plan_operand *o = &prog->operands[i];
        if (o->loc < p->n_devices)
            vec_push(ret, (struct live_copy){o->loc, o->tensor, o->addr - o->begin,
                                             round_up(operand_bytes(o), PLAN_ALIGN), false});
    }
    size_t n = 0;
    if (ret->n > 0)
        sort_array(ret->at, ret->n, sizeof *ret->at, compare_live);
    for (size_t i = 0; i < ret->n; i++) {
        struct live_copy *last = n > 0 ? &ret->at[n - 1] : NULL;
        if (last == NULL || compare_live(last, &ret->at[i]) != 0) {
            ret->at[n++] = ret->at[i];
            continue;
        }
        last->alive |= ret->at[i].alive;
        last->bytes = ret->at[i].bytes > last->bytes ? ret->at[i].bytes : last->bytes;
    }
    ret->n = n;
}

static struct live_copy *find_live(const live_list *copies, const struct plan_operand *o)
{
    const struct live_copy key = {.device = o->loc, .tensor = o->tensor, .base = o->addr - o->begin};
    return o->loc != PLAN_HOST && copies->n > 0
               ? bsearch(&key, copies->at, copies->n, sizeof key, compare_live)
               : NULL;
}

/* Returns an array with one element for each operand: the size of the copy that the operand uses. Afterwards
 * `copies` has the size of the first copy at each address. */
static uint64_t *live_bytes(const struct plan_program *prog, live_list *copies)
{
    uint64_t *bytes = xcalloc((size_t)prog->n_operands + 1, sizeof *bytes);
    /* The full size of a copy is known only from the DROP that ends the copy, so begin with the last
     * operand. */
    for (uint32_t i = prog->n_operands; i-- > 0;) {
        struct live_copy *c = find_live(copies, &prog->operands[i]);
        if (c != NULL && prog->operands[i].access == ACCESS_DROP)
            c->bytes = round_up(operand_bytes(&prog->operands[i]), PLAN_ALIGN);
        bytes[i] = c != NULL ? c->bytes : 0;
    }
    return bytes;
}

static void live_peak_of(const struct plan *p, enum program_kind k, uint64_t ret[DEVICE_MAX])
{
    const struct plan_program *prog = &p->programs[k];
    uint64_t live[DEVICE_MAX] = {0};
    live_list copies = {0};
    list_live(p, k, &copies);
    uint64_t *bytes = live_bytes(prog, &copies);
    for (size_t i = 0; i < copies.n; i++)
        live[copies.at[i].device] += copies.at[i].alive ? copies.at[i].bytes : 0;
    for (uint32_t i = 0; i < prog->n_operands; i++) {
        const struct plan_operand *o = &prog->operands[i]; /* operands are stored in issue order */
        struct live_copy *c = find_live(&copies, o);
        if (c == NULL)
            continue;
        bool now = o->access != ACCESS_DROP;
        if (now != c->alive)
            live[o->loc] += now ? bytes[i] : -bytes[i];
        c->alive = now;
        if (live[o->loc] > ret[o->loc])
            ret[o->loc] = live[o->loc];
    }
    xfree(bytes);
    vec_free(&copies);
}

void plan_live_peak(const struct plan *p, uint64_t ret[DEVICE_MAX])
{
    memset(ret, 0, DEVICE_MAX * sizeof *ret);
    live_peak_of(p, PROGRAM_CYCLE, ret);
    live_peak_of(p, PROGRAM_EVAL, ret);
}
