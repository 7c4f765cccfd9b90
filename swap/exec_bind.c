/* Binding: turns plan instructions into bound instructions, once, when an executor is created.
 *
 * Three things are resolved here, so that the interpreter's loop has nothing left to look up:
 *   operands  each gets its address; its role, which the plan gives, is checked;
 *   waits     waits that the stream order or the ring implies are left out (see wait_is_implied);
 *   events    an instruction that others wait for gets a ring of events, long enough that a wait of
 *             distance d in run r finds the record of run r - d.
 *
 * plan_verify has already checked the plan, but only against the graph. Here plan, model and optimizer meet
 * for the first time, and a plan for another model must cause an error message, not a stray write. So each
 * instruction is checked for the right operands, of the right sizes, at addresses that exist. Whether shares
 * cover a tensor exactly once is left to the verifier.
 *
 * exec_create calls this on its own thread. No state is kept.
 */
#include "swap/exec_bind.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/checked.h"

/* The names of programs and instructions, for messages. The names that plan.h declares are defined in
 * scheduler/, with which swap/ is not linked. */
static const char *const program_names[PROGRAM_COUNT] = {
    [PROGRAM_ENTRY] = "entry", [PROGRAM_CYCLE] = "cycle", [PROGRAM_FLUSH] = "flush",
    [PROGRAM_EXIT] = "exit",   [PROGRAM_EVAL] = "eval",
};
static const char *const instr_names[INSTR_KIND_COUNT] = {
    [INSTR_FWD] = "FWD",     [INSTR_BWD] = "BWD",       [INSTR_REC] = "REC",   [INSTR_RED] = "RED",
    [INSTR_NORM] = "NORM",   [INSTR_DECIDE] = "DECIDE", [INSTR_UPD] = "UPD",   [INSTR_FETCH] = "FETCH",
    [INSTR_SPILL] = "SPILL", [INSTR_SEND] = "SEND",     [INSTR_COPY] = "COPY", [INSTR_DROP] = "DROP",
};
static const char *const role_words[ROLE_COUNT] = {
#define ROLE(name, short_name, words) [ROLE_##name] = (words),
    PLAN_ROLES(ROLE)
#undef ROLE
};

/* The program being bound. */
struct binder {
    const struct exec_config *config;
    const struct plan *plan;
    const struct plan_program *from;
    enum program_kind kind;
    uint32_t at; /* index of the current instruction, for messages */
    struct bound_program *to;
    struct arena *arena;
    struct err *err;
};

/* Records an error whose message names the instruction that is being bound. Always returns -EINVAL. */
__attribute__((format(printf, 2, 3))) static int bind_fail(const struct binder *b, const char *fmt, ...)
{
    const struct plan_instr *in = &b->from->instrs[b->at];
    char path[96];
    va_list ap;

    int n = snprintf(path, sizeof path, "%s[%" PRIu32 "]", program_names[b->kind], b->at);
    if ((uint32_t)in->kind < INSTR_KIND_COUNT)
        n += snprintf(path + n, sizeof path - (size_t)n, " %s", instr_names[in->kind]);
    if (in->layer != PLAN_NONE)
        snprintf(path + n, sizeof path - (size_t)n, " of layer %" PRIu32, in->layer);
    va_start(ap, fmt);
    const int r = err_setv(b->err, -EINVAL, path, fmt, ap);
    va_end(ap);
    return r;
}

/* ---- roles ---- */

#define T(name) (1u << INSTR_##name)

/* role_tasks[role] is a bit mask of the kinds of tasks that can have an operand with this role. */
static const uint32_t role_tasks[ROLE_COUNT] = {
    [ROLE_W] = T(FWD) | T(REC) | T(BWD) | T(UPD),
    [ROLE_DW] = T(BWD) | T(RED) | T(NORM) | T(UPD),
    [ROLE_DW_OTHER] = T(RED),
    [ROLE_K] = T(UPD),
    [ROLE_B] = T(FWD) | T(REC) | T(BWD) | T(UPD),
    [ROLE_STAT] = T(FWD) | T(UPD),
    [ROLE_X] = T(FWD) | T(REC) | T(BWD),
    [ROLE_Y] = T(FWD) | T(REC),
    [ROLE_DX] = T(BWD),
    [ROLE_DY] = T(BWD),
    [ROLE_S] = T(FWD) | T(REC) | T(BWD),
    [ROLE_SCRATCH] = T(FWD) | T(REC) | T(BWD),
    [ROLE_SAVE_WORK] = T(FWD) | T(REC),
    [ROLE_TARGET] = T(FWD) | T(REC) | T(BWD),
    [ROLE_RESULT] = T(FWD) | T(REC) | T(BWD),
    [ROLE_SUMSQ] = T(NORM) | T(DECIDE),
    [ROLE_DECISION] = T(DECIDE),
    [ROLE_GROUP] = T(DECIDE) | T(UPD) | T(BWD),
};

static const struct optimizer *optimizer_of(const struct binder *b, uint32_t group)
{
    return &b->config->optimizer[group];
}

/* Returns the largest number of operands with one role that a task may have. `parts` is the number of parts
 * of the optimizer state. */
static uint32_t most_of_role(enum instr_kind kind, enum role role, uint32_t parts)
{
    if ((role == ROLE_SUMSQ && kind == INSTR_DECIDE) || (role == ROLE_STAT && kind == INSTR_UPD))
        return UINT32_MAX;
    if (role == ROLE_DW && (kind == INSTR_NORM || kind == INSTR_UPD))
        return OPTIMIZER_USES;
    return role == ROLE_K ? parts : 1;
}

/* Sets ret[role] to the size in bytes that a tensor with this role must have, or to 0 if the layer has no
 * such tensor. */
static void role_bytes(const struct binder *b, const struct bound_instr *in, const struct layer_sizes *size,
                       uint64_t ret[ROLE_COUNT])
{
    ret[ROLE_W] = size->w;
    ret[ROLE_DW] = ret[ROLE_DW_OTHER] = layer_dw_bytes(size);
    ret[ROLE_K] = optimizer_k_bytes(optimizer_of(b, in->group), layer_w_elements(size));
    ret[ROLE_B] = ret[ROLE_STAT] = size->b;
    ret[ROLE_X] = ret[ROLE_DX] = size->x;
    ret[ROLE_Y] = ret[ROLE_DY] = size->y;
    ret[ROLE_S] = size->s;
    ret[ROLE_SCRATCH] = in->kind == INSTR_BWD ? size->scratch_bwd : size->scratch_fwd;
    ret[ROLE_SAVE_WORK] = size->room;
    ret[ROLE_TARGET] = size->target;
    ret[ROLE_RESULT] = size->result;
    ret[ROLE_SUMSQ] = sizeof(double);
    ret[ROLE_DECISION] = sizeof(struct step_decision);
    ret[ROLE_GROUP] = optimizer_group_bytes(optimizer_of(b, in->group), true);
    ret[ROLE_NONE] = 0;
}

/* Returns the element type that a tensor with this role must have. */
static enum dtype role_dtype(enum role role, const struct layer_sizes *size)
{
    switch (role) {
    case ROLE_W:
        return size->w_dtype;
    case ROLE_DW:
    case ROLE_DW_OTHER:
        return LAYER_DW_DTYPE;
    case ROLE_X:
    case ROLE_DX:
        return size->x_dtype;
    case ROLE_Y:
    case ROLE_DY:
        return size->y_dtype;
    case ROLE_TARGET:
        return size->target_dtype;
    case ROLE_SUMSQ:
        return DTYPE_F64;
    /* The other tensors are structs, or blocks of bytes that a layer or the optimizer divides into arrays. */
    default:
        return DTYPE_U8;
    }
}

/* Returns a bit mask of the roles that a task must have. `have` is the mask of the roles that it has. A role
 * may still be missing if the layer has no tensor for it (size 0).
 *
 * Some operands are optional. S of a FWD, and Y and S of a REC, are written only if the plan wants them. dX
 * is written only if an earlier layer is trained, and BWD reads W only in this case. DECIDE reads squared
 * norms only if it writes a decision, which it must do if gradients are clipped. An UPD that folds statistics
 * into buffers need not update weights. */
static uint32_t roles_needed(const struct binder *b, const struct bound_instr *in, uint32_t have)
{
#define R(name) (1u << ROLE_##name)
    const bool late = in->layer && layer_type(in->layer)->loss_in_bwd;
    const bool scales = optimizer_of(b, in->group)->scaling.growth_steps > 0;
    const bool clips = optimizer_of(b, in->group)->clip > 0 || scales;
    uint32_t update = 0;
    switch (in->kind) {
    case INSTR_FWD:
    case INSTR_REC:
        if (late && b->kind != PROGRAM_EVAL)
            return R(X);
        return R(W) | R(B) | R(X) | R(TARGET) | R(RESULT) | (in->kind == INSTR_FWD ? R(Y) : 0) |
               (have & R(S) ? R(SAVE_WORK) : R(SCRATCH));
    case INSTR_BWD:
        return R(X) | R(S) | R(DY) | R(DW) | R(SCRATCH) | R(TARGET) | (have & R(DX) || late ? R(W) : 0) |
               (late ? R(RESULT) : 0) | (scales && layer_type(in->layer)->is_loss ? R(GROUP) : 0);
    case INSTR_RED:
        return R(DW) | R(DW_OTHER);
    case INSTR_NORM:
        return R(DW) | R(SUMSQ);
    case INSTR_DECIDE:
        return R(GROUP) | (have & (R(SUMSQ) | R(DECISION)) || clips ? R(SUMSQ) | R(DECISION) : 0);
    case INSTR_UPD:
        if (have & R(B))
            update = R(B) | R(STAT);
        if (update == 0 || have & (R(W) | R(DW) | R(K)))
            update |= R(W) | R(DW) | R(K) |
                      (optimizer_group_bytes(optimizer_of(b, in->group), clips) > 0 ? R(GROUP) : 0);
        return update;
    default:
        return 0;
    }
#undef R
}

/* ---- operands ---- */

/* Binds an operand that is in host memory, but not in the place that belongs to its tensor (the tensor's
 * home). */
static int bind_away_from_home(const struct binder *b, const struct plan_operand *o,
                               struct bound_operand *ret)
{
    ret->ring = false;
    ret->tensor = o->tensor;
    ret->begin = o->begin;
    ret->at = store_at(b->config->store, o->addr, operand_bytes(o));
    if (!ret->at)
        return bind_fail(b,
                         "tensor %" PRIu32 ": %" PRIu64 " bytes at %" PRIu64
                         " of host memory go beyond the plan's %" PRIu64 " bytes",
                         o->tensor, operand_bytes(o), o->addr, b->plan->host_bytes);
    return 0;
}

static int bind_host_place(const struct binder *b, const struct plan_operand *o, struct bound_operand *ret)
{
    const struct plan_tensor *t = &b->plan->tensors[o->tensor];
    char *slot0 = store_ptr(b->config->store, o->tensor, 0);

    if (!slot0)
        return bind_away_from_home(b, o, ret);
    if (o->addr != t->host_offset + o->begin)
        return bind_fail(b, "tensor %" PRIu32 " is at %" PRIu64 " in host memory, the operand says %" PRIu64,
                         o->tensor, t->host_offset + o->begin, o->addr);
    ret->ring = t->host_slots > 1;
    ret->tensor = o->tensor;
    ret->begin = o->begin;
    ret->at = ret->ring ? NULL : slot0 + o->begin;
    if (ret->ring)
        b->to->needs_args = true;
    return 0;
}

static int bind_device_place(const struct binder *b, const struct plan_operand *o, struct bound_operand *ret)
{
    uint64_t end;

    if (o->loc >= b->plan->n_devices)
        return bind_fail(b, "device %" PRIu32 " does not exist", o->loc);
    if (!checked_add(o->addr, operand_bytes(o), &end) || end > b->plan->devices[o->loc].lease_bytes)
        return bind_fail(b,
                         "tensor %" PRIu32 ": %" PRIu64 " bytes at %" PRIu64 " of device %" PRIu32
                         " go beyond its lease of %" PRIu64 " bytes",
                         o->tensor, operand_bytes(o), o->addr, o->loc, b->plan->devices[o->loc].lease_bytes);
    ret->ring = false;
    ret->tensor = o->tensor;
    ret->at = devset_address(b->config->devices, o->loc, o->addr);
    return 0;
}

/* Checks the byte range of an operand, and sets the operand's address. The caller sets the role. */
static int bind_place(const struct binder *b, const struct plan_operand *o, struct bound_operand *ret)
{
    if (o->tensor >= b->plan->n_tensors)
        return bind_fail(b, "tensor %" PRIu32 " does not exist", o->tensor);
    if (o->begin > o->end || o->end > b->plan->tensors[o->tensor].bytes)
        return bind_fail(b, "bytes %" PRIu64 "..%" PRIu64 " are not inside tensor %" PRIu32, o->begin, o->end,
                         o->tensor);
    return o->loc == PLAN_HOST ? bind_host_place(b, o, ret) : bind_device_place(b, o, ret);
}

/* Returns true if a task on `stream` can use memory at location `loc`: host memory, or the memory of the
 * task's own device. */
static bool task_reaches(const struct plan *plan, uint32_t stream, uint32_t loc)
{
    return loc == PLAN_HOST || (stream != plan_host_stream(plan) && loc == stream / LANE_COUNT);
}

/* The task that is being bound. */
struct task_binding {
    const struct plan_instr *in;
    struct bound_instr *to;
    /* The sizes of the task's layer. The task DECIDE has no layer, so all its sizes are 0. */
    struct layer_sizes size;
    /* want[role] is the size in bytes that a tensor with this role must have. */
    uint64_t want[ROLE_COUNT];
    /* The parts of the layer's optimizer state. */
    struct state_part parts[OPTIMIZER_PARTS];
    uint32_t n_parts;
    /* The task works on the elements [begin, end) of the weights W and their gradient dW. Only RED and UPD
     * may work on a share. `elements` is the number of all weights of the layer. */
    uint64_t begin, end, elements;
    /* n[role] is the number of operands with this role that have been bound so far. */
    uint32_t n[ROLE_COUNT];
};

/* Returns true if operand `o` is the whole optimizer state and the task works on the whole weights. */
static bool is_whole_k(const struct task_binding *t, const struct plan_operand *o)
{
    return t->begin == 0 && t->end == t->elements && o->begin == 0 && o->end == t->want[ROLE_K];
}

/* Sets *ret_begin and *ret_end to the byte range that an operand must have, if it is number `nth` (from 0) of
 * the task's operands with the role `role`. */
static void wanted_range(const struct task_binding *t, enum role role, uint32_t nth, uint64_t *ret_begin,
                         uint64_t *ret_end)
{
    const bool share = role == ROLE_W || role == ROLE_DW || role == ROLE_DW_OTHER;
    const uint64_t each = dtype_size(role_dtype(role, &t->size));

    *ret_begin = share ? t->begin * each : 0;
    *ret_end = share ? t->end * each : t->want[role];
    if (t->to->split && role == ROLE_K) {
        const struct state_part *p = &t->parts[nth];
        *ret_begin = p->begin + t->begin * dtype_size(p->dtype);
        *ret_end = t->end == t->elements ? p->end : p->begin + t->end * dtype_size(p->dtype);
    }
}

static int check_range(const struct binder *b, const struct task_binding *t, uint32_t nth,
                       const struct plan_operand *o)
{
    const enum role role = o->role;
    const uint64_t bytes = b->plan->tensors[o->tensor].bytes;
    const enum dtype is = b->plan->tensors[o->tensor].dtype, should = role_dtype(role, &t->size);
    uint64_t begin, end;

    if (is != should)
        return bind_fail(b, "its %s must have elements of type %s, the plan says %s", role_words[role],
                         dtype_names[should], (uint32_t)is < DTYPE_COUNT ? dtype_names[is] : "unknown");
    wanted_range(t, role, nth, &begin, &end);
    if (bytes == t->want[role] && o->begin == begin && o->end == end)
        return 0;
    if (begin == 0 && end == t->want[role])
        return bind_fail(
            b, "its %s must be one block of %" PRIu64 " bytes, the operand is %" PRIu64 "..%" PRIu64,
            role_words[role], end, o->begin, o->end);
    return bind_fail(b,
                     "its %s must be bytes %" PRIu64 "..%" PRIu64 " of %" PRIu64 ", the operand is %" PRIu64
                     "..%" PRIu64 " of %" PRIu64,
                     role_words[role], begin, end, t->want[role], o->begin, o->end, bytes);
}

static int bind_task_operand(const struct binder *b, struct task_binding *t, const struct plan_operand *o,
                             struct bound_operand *ret)
{
    const struct plan_instr *in = t->in;
    int r;

    r = bind_place(b, o, ret);
    if (r < 0)
        return r;
    if ((uint32_t)o->role >= ROLE_COUNT || !(role_tasks[o->role] & (1u << in->kind)))
        return bind_fail(b, "tensor %" PRIu32 " cannot be its %s", o->tensor,
                         (uint32_t)o->role < ROLE_COUNT ? role_words[o->role] : "operand of an unknown role");
    ret->role = o->role;
    ret->nth = t->n[o->role]++;
    if (ret->nth >= most_of_role(in->kind, o->role, t->n_parts))
        return bind_fail(b, "it has %" PRIu32 " operands that are its %s, and can have only %" PRIu32,
                         ret->nth + 1, role_words[o->role], most_of_role(in->kind, o->role, t->n_parts));
    if (o->role == ROLE_K && ret->nth == 0)
        t->to->split = !is_whole_k(t, o);
    if (!task_reaches(b->plan, in->stream, o->loc))
        return bind_fail(b, "its %s is on device %" PRIu32 ", which its stream cannot reach",
                         role_words[ret->role], o->loc);
    return check_range(b, t, ret->nth, o);
}

/* ---- tasks ---- */

/* Checks the micro-batch of a forward or backward task. Sets first_row, the number of the micro-batch's first
 * row in the batch. Every replica has the same number of micro-batches. */
static int bind_rows(const struct binder *b, const struct plan_instr *in, struct bound_instr *ret)
{
    const struct plan *p = b->plan;
    uint64_t row;

    if (in->micro >= p->n_micro)
        return bind_fail(b, "micro-batch %" PRIu32 " does not exist", in->micro);
    const uint32_t replica = in->micro / (p->n_micro / p->n_replicas);
    if (in->replica != replica)
        return bind_fail(b, "micro-batch %" PRIu32 " is of replica %" PRIu32 ", not of %" PRIu32, in->micro,
                         replica, in->replica);
    if (!checked_mul(in->micro, p->rows, &row) || row > UINT32_MAX)
        return bind_fail(b, "its first row does not fit in 32 bits");
    ret->first_row = (uint32_t)row;
    return 0;
}

/* Checks that the operands with this role are in ascending order. Another order could change the bits of
 * their sum. */
static int check_ascending(const struct binder *b, const struct plan_instr *in, enum role role)
{
    const struct plan_tensor *last = NULL;

    for (uint32_t i = 0; i < in->n_operands; i++) {
        const struct plan_operand *o = &b->from->operands[in->operand + i];
        const struct plan_tensor *t = &b->plan->tensors[o->tensor];
        if (o->role != role)
            continue;
        if (last && (t->layer < last->layer || (t->layer == last->layer && t->micro <= last->micro)))
            return bind_fail(b, "layers must be added in ascending order, %" PRIu32 " comes after %" PRIu32,
                             t->layer, last->layer);
        if (last && role == ROLE_DW && t->layer == last->layer)
            return bind_fail(b, "layers must be added in ascending order, %" PRIu32 " comes twice", t->layer);
        last = t;
    }
    return 0;
}

static int bind_task_layer(const struct binder *b, const struct plan_instr *in, struct bound_instr *ret)
{
    if (in->kind == INSTR_DECIDE)
        return 0;
    if (in->layer >= b->config->model->n_layers)
        return bind_fail(b, "the model has only %" PRIu32 " layers", b->config->model->n_layers);
    ret->layer = &b->config->model->layers[in->layer];
    if (in->kind == INSTR_FWD || in->kind == INSTR_REC || in->kind == INSTR_BWD)
        return bind_rows(b, in, ret);
    if (in->kind == INSTR_RED && (in->replica == 0 || in->replica >= b->plan->n_replicas))
        return bind_fail(b, "of %" PRIu32 " replicas it adds number %" PRIu32 " to number 0",
                         b->plan->n_replicas, in->replica);
    return 0;
}

/* Sets the range of the weights and gradients that a task works on. RED and UPD may work on a share, all
 * other tasks work on everything. */
static int bind_share(const struct binder *b, struct task_binding *t)
{
    const uint64_t each = dtype_size(LAYER_DW_DTYPE), unit = plan_share_unit(t->size.w_dtype);

    t->begin = 0;
    t->end = t->elements = layer_w_elements(&t->size);
    for (uint32_t i = 0; (t->in->kind == INSTR_RED || t->in->kind == INSTR_UPD) && i < t->in->n_operands;
         i++) {
        const struct plan_operand *o = &b->from->operands[t->in->operand + i];
        if (o->role != ROLE_DW && o->role != ROLE_DW_OTHER)
            continue;
        if (o->begin % (unit * each) != 0 || (o->end % (unit * each) != 0 && o->end != t->want[ROLE_DW]) ||
            o->begin > o->end || (o->begin == o->end && t->elements > 0))
            return bind_fail(b,
                             "bytes %" PRIu64 "..%" PRIu64 " of %" PRIu64
                             " are not a share: a share begins and ends at a multiple of %" PRIu64
                             ", or ends with the tensor",
                             o->begin, o->end, t->want[ROLE_DW], unit * each);
        t->begin = o->begin / each;
        t->end = o->end / each;
        break;
    }
    return 0;
}

/* Lists the ranges of weights that the task UPD updates. Positions count from the first weight of the
 * task's share. */
static void bind_ranges(const struct binder *b, const struct task_binding *t)
{
    const struct optimizer *o = optimizer_of(b, t->to->group);
    struct bound_instr *to = t->to;

    to->n_ranges = optimizer_ranges(o, to->layer, t->begin, t->end, NULL);
    to->ranges = arena_alloc_array(b->arena, to->n_ranges, sizeof *to->ranges);
    optimizer_ranges(o, to->layer, t->begin, t->end, to->ranges);
    for (uint32_t i = 0; i < to->n_ranges; i++) {
        to->ranges[i].begin -= t->begin;
        to->ranges[i].end -= t->begin;
    }
}

/* Checks that no operand is missing. */
static int check_complete(const struct binder *b, const struct task_binding *t)
{
    uint32_t have = 0;

    for (uint32_t role = 0; role < ROLE_COUNT; role++)
        have |= t->n[role] > 0 ? 1u << role : 0;
    const uint32_t missing = roles_needed(b, t->to, have) & ~have;
    for (uint32_t role = 0; role < ROLE_COUNT; role++)
        if (missing & (1u << role) && t->want[role] > 0)
            return bind_fail(b, "it has no %s", role_words[role]);
    if (t->to->split && t->n[ROLE_K] < t->n_parts)
        return bind_fail(b, "it has %" PRIu32 " of the %" PRIu32 " parts of its optimizer state",
                         t->n[ROLE_K], t->n_parts);
    return 0;
}

static int bind_task(const struct binder *b, const struct plan_instr *in, struct bound_instr *ret)
{
    struct task_binding t = {.in = in, .to = ret};
    int r;

    if (in->stream != plan_host_stream(b->plan) && in->stream % LANE_COUNT != LANE_COMPUTE)
        return bind_fail(b, "stream %" PRIu32 " does not compute", in->stream);
    r = bind_task_layer(b, in, ret);
    if (r < 0)
        return r;
    if (ret->layer)
        layer_type(ret->layer)->sizes(ret->layer, b->plan->rows, &t.size);
    role_bytes(b, ret, &t.size, t.want);
    t.n_parts = optimizer_parts(optimizer_of(b, ret->group), layer_w_elements(&t.size), t.parts);
    r = bind_share(b, &t);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < in->n_operands; i++) {
        const struct plan_operand *o = &b->from->operands[in->operand + i];
        struct bound_operand *to = &b->to->operands[ret->operand + i];
        r = bind_task_operand(b, &t, o, to);
        if (r < 0)
            return r;
        if (to->role == ROLE_DW && in->kind == INSTR_BWD)
            ret->accumulate = o->access == ACCESS_RW;
    }

    r = check_complete(b, &t);
    if (r < 0)
        return r;
    ret->elements = t.end - t.begin;
    ret->w_dtype = t.size.w_dtype;
    if (in->kind == INSTR_UPD)
        bind_ranges(b, &t);
    b->to->needs_args = true;
    r = check_ascending(b, in, ROLE_SUMSQ);
    if (r == 0)
        r = check_ascending(b, in, ROLE_STAT);
    return r < 0 ? r : check_ascending(b, in, ROLE_DW);
}

/* ---- moves ---- */

/* Returns the stream on which a move from `src` to `dst` must run. Returns UINT32_MAX if a move of this kind
 * is not possible between the two locations. */
static uint32_t move_stream(enum instr_kind kind, uint32_t src, uint32_t dst)
{
    switch (kind) {
    case INSTR_FETCH:
        return src == PLAN_HOST && dst != PLAN_HOST ? plan_stream(dst, LANE_IN) : UINT32_MAX;
    case INSTR_SPILL:
        return src != PLAN_HOST && dst == PLAN_HOST ? plan_stream(src, LANE_OUT) : UINT32_MAX;
    case INSTR_COPY:
        return src != PLAN_HOST && src == dst ? plan_stream(src, LANE_PEER) : UINT32_MAX;
    default:
        return src != PLAN_HOST && dst != PLAN_HOST && src != dst ? plan_stream(src, LANE_PEER) : UINT32_MAX;
    }
}

static int bind_move(const struct binder *b, const struct plan_instr *in, struct bound_instr *ret)
{
    int r;

    if (in->n_operands != 2)
        return bind_fail(b, "a move has two operands, not %" PRIu32, in->n_operands);
    const struct plan_operand *src = &b->from->operands[in->operand], *dst = src + 1;
    struct bound_operand *to = &b->to->operands[ret->operand];
    r = bind_place(b, src, &to[0]);
    if (r == 0)
        r = bind_place(b, dst, &to[1]);
    if (r < 0)
        return r;
    if (src->tensor != dst->tensor || src->begin != dst->begin || src->end != dst->end)
        return bind_fail(b, "source and destination are not the same bytes of the same tensor");
    if (in->stream != move_stream(in->kind, src->loc, dst->loc))
        return bind_fail(b, "stream %" PRIu32 " cannot carry it", in->stream);
    if (in->kind == INSTR_COPY && src->addr < dst->addr + operand_bytes(dst) &&
        dst->addr < src->addr + operand_bytes(src))
        return bind_fail(b, "source and destination overlap");
    ret->bytes = operand_bytes(src);
    return 0;
}

static int bind_drop(const struct binder *b, const struct plan_instr *in, struct bound_instr *ret)
{
    int r;

    if (in->n_operands != 1)
        return bind_fail(b, "a drop has one operand, not %" PRIu32, in->n_operands);
    const struct plan_operand *o = &b->from->operands[in->operand];
    struct bound_operand *to = &b->to->operands[ret->operand];
    r = bind_place(b, o, to);
    if (r < 0)
        return r;
    if (in->stream / LANE_COUNT != o->loc)
        return bind_fail(b, "stream %" PRIu32 " belongs to another device than the copy to drop", in->stream);
    ret->bytes = operand_bytes(o);
    return 0;
}

/* ---- waits and events ---- */

/* Returns true if a wait is always fulfilled: by the order of its stream, or because exec_cycle has already
 * waited for a run that old. */
static bool wait_is_implied(const struct plan_program *p, const struct plan_instr *in,
                            const struct plan_wait *w)
{
    return p->instrs[w->instr].stream == in->stream || w->distance >= PLAN_RING;
}

static int bind_waits(const struct binder *b, const struct plan_instr *in, struct bound_instr *ret)
{
    ret->wait = b->to->n_waits;
    for (uint32_t i = 0; i < in->n_waits; i++) {
        const struct plan_wait *w = &b->from->waits[in->wait + i];
        if (w->instr >= b->from->n_instrs || (w->distance == 0 && w->instr >= b->at))
            return bind_fail(b, "it waits for instruction %" PRIu32 ", which is not before it", w->instr);
        if (w->distance > 0 && b->kind != PROGRAM_CYCLE)
            return bind_fail(b, "it waits for an earlier run, but only the cycle has earlier runs");
        if (wait_is_implied(b->from, in, w))
            continue;
        struct bound_instr *target = &b->to->instrs[w->instr];
        if (target->n_events < w->distance + 1)
            target->n_events = w->distance + 1;
        b->to->waits[b->to->n_waits++] = (struct bound_wait){w->instr, w->distance};
        ret->n_waits++;
    }
    return 0;
}

/* Gives every instruction its own range of events. Call this function after all waits are bound, because they
 * determine the number of events of each instruction. */
static void number_events(struct bound_program *p)
{
    for (uint32_t i = 0; i < p->n_instrs; i++) {
        p->instrs[i].event = p->n_events;
        p->n_events += p->instrs[i].n_events;
    }
}

static void list_streams(const struct plan *plan, struct bound_program *p, struct arena *arena)
{
    const uint32_t n = plan_n_streams(plan);
    bool used[DEVICE_MAX * LANE_COUNT + 1] = {false};

    p->streams = arena_alloc_array(arena, n, sizeof *p->streams);
    for (uint32_t i = 0; i < p->n_instrs; i++)
        used[p->instrs[i].stream] = true;
    for (uint32_t s = 0; s < n; s++)
        if (used[s])
            p->streams[p->n_streams++] = s;
}

/* ---- the whole program ---- */

static int check_ranges(const struct binder *b, const struct plan_instr *in)
{
    const struct plan_program *p = b->from;

    if ((uint32_t)in->kind >= INSTR_KIND_COUNT)
        return bind_fail(b, "unknown kind %d", (int)in->kind);
    if (in->stream >= plan_n_streams(b->plan))
        return bind_fail(b, "stream %" PRIu32 " does not exist", in->stream);
    if (b->kind == PROGRAM_CYCLE && in->step >= b->plan->steps)
        return bind_fail(b, "step %" PRIu32 " is not within the cycle", in->step);
    if (in->group >= b->plan->n_groups)
        return bind_fail(b, "decision group %" PRIu32 " does not exist", in->group);
    if (in->operand > p->n_operands || in->n_operands > p->n_operands - in->operand)
        return bind_fail(b, "its operands lie outside the program's");
    if (in->wait > p->n_waits || in->n_waits > p->n_waits - in->wait)
        return bind_fail(b, "its waits lie outside the program's");
    return 0;
}

static int bind_instr(const struct binder *b)
{
    const struct plan_instr *in = &b->from->instrs[b->at];
    struct bound_instr *to = &b->to->instrs[b->at];
    int r;

    r = check_ranges(b, in);
    if (r < 0)
        return r;
    to->kind = in->kind;
    to->stream = in->stream;
    to->group = in->group;
    /* In the cycle, each training step and each decision group has its own arguments. A run of any other
     * program has only one struct of arguments, at index 0. */
    to->args = b->kind == PROGRAM_CYCLE ? in->step * b->plan->n_groups + in->group : 0;
    to->operand = b->to->n_operands;
    to->n_operands = in->n_operands;
    b->to->n_operands += in->n_operands;
    if (in->kind == INSTR_DROP)
        return bind_drop(b, in, to);
    return instr_is_move(in->kind) ? bind_move(b, in, to) : bind_task(b, in, to);
}

/* Adds up the numbers of operands and waits of all instructions. Bound instructions share none, so shared
 * operands and waits count several times. */
static void count(const struct plan_program *from, uint64_t *ret_operands, uint64_t *ret_waits)
{
    *ret_operands = *ret_waits = 0;
    for (uint32_t i = 0; i < from->n_instrs; i++) {
        *ret_operands += from->instrs[i].n_operands <= from->n_operands ? from->instrs[i].n_operands : 0;
        *ret_waits += from->instrs[i].n_waits <= from->n_waits ? from->instrs[i].n_waits : 0;
    }
}

uint64_t bound_program_bytes(const struct plan_program *from)
{
    uint64_t n_operands, n_waits;

    count(from, &n_operands, &n_waits);
    return from->n_instrs * sizeof(struct bound_instr) + n_operands * sizeof(struct bound_operand) +
           n_waits * sizeof(struct bound_wait);
}

/* Allocates the arrays of a bound program. */
static void allocate(const struct plan_program *from, struct arena *arena, struct bound_program *ret)
{
    uint64_t n_operands, n_waits;

    count(from, &n_operands, &n_waits);
    ret->instrs = arena_alloc_array(arena, from->n_instrs, sizeof *ret->instrs);
    ret->n_instrs = from->n_instrs;
    ret->operands = arena_alloc_array(arena, n_operands, sizeof *ret->operands);
    ret->waits = arena_alloc_array(arena, n_waits, sizeof *ret->waits);
}

int bind_program(const struct exec_config *config, enum program_kind kind, struct arena *arena,
                 struct bound_program *ret, struct err *err)
{
    const struct plan_program *from = &config->plan->programs[kind];
    struct binder b = {.config = config,
                       .plan = config->plan,
                       .from = from,
                       .kind = kind,
                       .to = ret,
                       .arena = arena,
                       .err = err};
    int r;

    *ret = (struct bound_program){0};
    allocate(from, arena, ret);
    for (b.at = 0; b.at < from->n_instrs; b.at++) {
        r = bind_instr(&b);
        if (r < 0)
            return r;
    }
    for (b.at = 0; b.at < from->n_instrs; b.at++) {
        r = bind_waits(&b, &from->instrs[b.at], &ret->instrs[b.at]);
        if (r < 0)
            return r;
    }
    number_events(ret);
    list_streams(config->plan, ret, arena);
    return 0;
}
