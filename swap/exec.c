/* The plan interpreter. It walks a bound program (exec_bind.h) in issue order and enqueues, for each
 * instruction, its waits, its work and the record of its event. It does nothing else while a job trains.
 *
 * One thread enqueues. It never looks ahead, because waits within a run point backwards. It blocks in two
 * places only: when the queue of a stream is full, and in exec_cycle, which allows at most PLAN_RING runs to
 * be incomplete. This limit is what makes every ring safe. The slots of tensors, step_args and events are all
 * reused after PLAN_RING runs, and by then the run that used them before is known to be complete.
 *
 * Runs are counted from the last entry. Each run ends with one event record per stream, in ring slot run %
 * PLAN_RING. A run is complete when all these events are. Streams are ordered, so all earlier runs are then
 * complete as well, and the single number `done` suffices.
 *
 * Measured runs (exec_trace) have two time marks per instruction: one after its waits and before its work,
 * and one after its work and before its event is recorded. So a span begins only after the spans that the
 * instruction waits for have ended.
 *
 * States: STATE_OUT, after creation and after exit, allows entry and eval. Nothing is on the devices then,
 * and the host copies are the newest. STATE_IN, after entry, allows cycle, flush and exit. If a device
 * command fails, the contents of the devices are unknown; from then on every call returns that error.
 *
 * exec.h gives the order of calls. All calls come from one thread, which owns all fields. Streams touch only
 * the memory that they were given: tensors, the step_args in `ring` and `once`, and the spans of the window.
 */
#include "swap/exec.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "base/arena.h"
#include "swap/exec_bind.h"
#include "swap/exec_window.h"

/* Host memory for the events of one instruction. Most instructions have one or two. */
#define EVENT_BYTES 256

enum exec_state { STATE_OUT, STATE_IN };

/* An executor. Only the thread that calls the exec_* functions uses the fields, so they need no lock. */
struct exec {
    struct exec_config config;
    struct bound_program programs[PROGRAM_COUNT];
    struct event **events[PROGRAM_COUNT]; /* programs[k].n_events each; NULL if creation failed earlier */
    /* ends[r % PLAN_RING] is an array of events that mark the end of run r of the cycle, one event for each
     * stream. */
    struct event **ends[PLAN_RING];
    uint32_t *norm_groups;  /* [plan->n_layers]: the decision group of each layer's NORM, or PLAN_NONE */
    struct step_args *ring; /* [PLAN_RING][plan->steps][plan->n_groups], for cycle runs */
    struct step_args once;  /* for exec_run; streams read it */

    enum exec_state state;
    int failed;    /* first device error; 0: none */
    uint64_t runs; /* cycle runs enqueued since the last entry */
    /* The number of runs that are known to be complete, counted from the last entry program. Runs complete in
     * order. */
    uint64_t done;
    uint64_t first_step; /* first step of run 0, if any */
    struct window window;
    struct arena *arena; /* owns this struct and all arrays */
};

/* ---- work of one instruction ---- */

/* The context of launch_on_stream: the stream on which it launches an op. */
struct stream_ref {
    struct devset *devices;
    uint32_t stream;
};

static int launch_on_stream(void *ctx, const struct op_call *call)
{
    const struct stream_ref *on = ctx;

    return devset_launch(on->devices, on->stream, call);
}

/* The values that all instructions of one run of a program share. The struct exists only until all
 * instructions of the run are enqueued. */
struct run_ref {
    /* The number of this run, counted from the last entry program. The first run has number 0. */
    uint64_t number;
    /* Selects the host slots of this run, for tensors with several slots in host memory (see exec_slot). */
    uint64_t slot;
    const struct step_args *args;
};

/* Returns the address of an operand in a run. The address depends on `slot` only for tensors with several
 * host slots. */
static void *address(const struct exec *e, const struct bound_operand *o, uint64_t slot)
{
    return o->ring ? (char *)store_ptr(e->config.store, o->tensor, slot) + o->begin : o->at;
}

/* The addresses of the operands of one task in one run. gather_addresses fills in this struct. */
struct task_addresses {
    /* at[role] is the address of the first operand with this role, or NULL if there is none. */
    void *at[ROLE_COUNT];
    /* The addresses of all gradients dW and of all parts of the optimizer state K, in the order of the
     * operands. The task UPD may have several of each. */
    void *dw[OPTIMIZER_USES], *k[OPTIMIZER_PARTS];
    uint32_t n_dw;
};

static void gather_addresses(const struct exec *e, const struct bound_program *p,
                             const struct bound_instr *in, uint64_t slot, struct task_addresses *ret)
{
    *ret = (struct task_addresses){0};
    for (uint32_t i = 0; i < in->n_operands; i++) {
        const struct bound_operand *o = &p->operands[in->operand + i];
        void *at = address(e, o, slot);
        if (o->nth == 0)
            ret->at[o->role] = at;
        if (o->role == ROLE_DW)
            ret->dw[ret->n_dw++] = at;
        else if (o->role == ROLE_K)
            ret->k[o->nth] = at;
    }
}

static struct layer_io layer_io(const struct exec *e, const struct bound_instr *in,
                                const struct step_args *step, const struct task_addresses *a)
{
    return (struct layer_io){
        .step = step,
        .rows = e->config.plan->rows,
        .first_row = in->first_row,
        .accumulate = in->accumulate,
        .w = a->at[ROLE_W],
        .b = a->at[ROLE_B],
        .stat = a->at[ROLE_STAT],
        .x = a->at[ROLE_X],
        .y = a->at[ROLE_Y],
        .s = a->at[ROLE_S],
        .dw = a->at[ROLE_DW],
        .dx = a->at[ROLE_DX],
        .dy = a->at[ROLE_DY],
        .scratch = a->at[ROLE_SCRATCH] ? a->at[ROLE_SCRATCH] : a->at[ROLE_SAVE_WORK],
        .group = a->at[ROLE_GROUP],
        .target = a->at[ROLE_TARGET],
        .result = a->at[ROLE_RESULT],
    };
}

static int launch_red(const struct bound_instr *in, const struct step_args *step,
                      const struct task_addresses *a, const struct op_sink *sink)
{
    const struct op_call call = {
        .op = OP_add,
        .step = step,
        .add = {.y = a->at[ROLE_DW], .x = a->at[ROLE_DW_OTHER], .n = in->elements, .dtype = LAYER_DW_DTYPE},
    };
    return sink->launch(sink->ctx, &call);
}

/* Returns the gradients that the task NORM or UPD combines, one from each layer that uses the weights. */
static struct op_gradients gradients(const struct bound_instr *in, const struct task_addresses *a)
{
    struct op_gradients g = {.n = a->n_dw, .mean = in->layer->mean_uses};

    for (uint32_t u = 0; u < a->n_dw; u++)
        g.dw[u] = a->dw[u];
    return g;
}

static int launch_norm(const struct bound_instr *in, const struct step_args *step,
                       const struct task_addresses *a, const struct op_sink *sink)
{
    const struct op_call call = {
        .op = OP_sumsq,
        .step = step,
        .sumsq = {.g = gradients(in, a), .sum = a->at[ROLE_SUMSQ], .n = in->elements},
    };
    return sink->launch(sink->ctx, &call);
}

/* Returns whether a squared norm that the DECIDE `in` reads is that of a layer in another decision group. */
static bool is_of_other_group(const struct exec *e, const struct bound_instr *in,
                              const struct bound_operand *sum)
{
    const uint32_t group = e->norm_groups[e->config.plan->tensors[sum->tensor].layer];

    return group != PLAN_NONE && group != in->group;
}

/* Enqueues the ops that decide whether the update of a training step is applied. Without squared norms, the
 * update is always applied. */
static int launch_decide(const struct exec *e, const struct bound_program *p, const struct bound_instr *in,
                         const struct run_ref *run, const struct task_addresses *a,
                         const struct op_sink *sink)
{
    const struct optimizer *optimizer = &e->config.optimizer[in->group];
    const struct step_args *step = &run->args[in->args];
    bool first = true;
    int r;

    for (uint32_t i = 0; i < in->n_operands; i++) {
        const struct bound_operand *o = &p->operands[in->operand + i];
        if (o->role != ROLE_SUMSQ)
            continue;
        const struct op_call add = {
            .op = OP_norm_add,
            .step = step,
            .norm_add = {.sum = address(e, o, run->slot),
                         .decision = a->at[ROLE_DECISION],
                         .first = first,
                         .other = is_of_other_group(e, in, o),
                         .layer = e->config.model->layers[e->config.plan->tensors[o->tensor].layer].id},
        };
        r = sink->launch(sink->ctx, &add);
        if (r < 0)
            return r;
        first = false;
    }
    const struct op_call decide = {
        .op = OP_decide,
        .step = step,
        .decide = {.decision = a->at[ROLE_DECISION],
                   .group = a->at[ROLE_GROUP],
                   .clip = optimizer->clip,
                   .beta1 = optimizer->beta1,
                   .beta2 = optimizer->beta2,
                   .growth_steps = optimizer->scaling.growth_steps},
    };
    return sink->launch(sink->ctx, &decide);
}

/* Updates the layer's buffers with the statistics of all micro-batches, in the order in which the operands
 * list them. */
static int launch_folds(const struct exec *e, const struct bound_program *p, const struct bound_instr *in,
                        const struct run_ref *run, void *b, const struct op_sink *sink)
{
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < in->n_operands; i++) {
        const struct bound_operand *o = &p->operands[in->operand + i];
        if (o->role == ROLE_STAT)
            r = layer_type(in->layer)->fold(in->layer, &run->args[in->args], b, address(e, o, run->slot),
                                            sink);
    }
    return r;
}

static int launch_update(const struct exec *e, const struct bound_instr *in, const struct step_args *step,
                         const struct task_addresses *a, const struct op_sink *sink)
{
    const struct optimizer *o = &e->config.optimizer[in->group];
    struct optimizer_io io = {.w = a->at[ROLE_W],
                              .g = gradients(in, a),
                              .group = a->at[ROLE_GROUP],
                              .n = in->elements,
                              .dtype = in->w_dtype};
    int r = 0;

    if (!io.w) /* the UPD only folds statistics into buffers */
        return 0;

    if (in->split)
        for (uint32_t p = 0; p < OPTIMIZER_PARTS; p++)
            io.k[p] = a->k[p];
    else
        optimizer_split(o, a->at[ROLE_K], &io);
    for (uint32_t i = 0; !r && i < in->n_ranges; i++) {
        const struct optimizer_range *range = &in->ranges[i];
        struct optimizer_io part = optimizer_part(o, &io, range->begin, range->end);
        part.no_decay = range->no_decay;
        r = optimizer_update(o, step, &part, sink);
    }
    return r;
}

/* Enqueues the work of one instruction. The caller enqueues the instruction's waits before this call, and its
 * event afterwards. */
static int issue_work(struct exec *e, const struct bound_program *p, const struct bound_instr *in,
                      const struct run_ref *run)
{
    const struct step_args *step = &run->args[in->args];
    struct stream_ref on = {e->config.devices, in->stream};
    const struct op_sink sink = {launch_on_stream, &on};
    const struct bound_operand *move = &p->operands[in->operand]; /* the source, then the destination */
    struct task_addresses a = {.n_dw = 0};
    struct layer_io io;
    int r;

    if (in->kind <= INSTR_UPD)
        gather_addresses(e, p, in, run->slot, &a);
    switch (in->kind) {
    case INSTR_FWD:
    case INSTR_REC:
        io = layer_io(e, in, step, &a);
        return layer_type(in->layer)->fwd(in->layer, &io, &sink);
    case INSTR_BWD:
        io = layer_io(e, in, step, &a);
        return layer_type(in->layer)->bwd(in->layer, &io, &sink);
    case INSTR_RED:
        return launch_red(in, step, &a, &sink);
    case INSTR_NORM:
        return launch_norm(in, step, &a, &sink);
    case INSTR_DECIDE:
        return launch_decide(e, p, in, run, &a, &sink);
    case INSTR_UPD:
        r = launch_update(e, in, step, &a, &sink);
        return r < 0 ? r : launch_folds(e, p, in, run, a.at[ROLE_B], &sink);
    case INSTR_FETCH:
    case INSTR_SPILL:
    case INSTR_SEND:
    case INSTR_COPY:
        return devset_copy(e->config.devices, in->stream, address(e, move + 1, run->slot),
                           address(e, move, run->slot), in->bytes);
    /* A drop needs no work on a real device. In tests, some backends overwrite the dropped bytes, so that a
     * later read of them is noticed. */
    case INSTR_DROP:
        return devset_discard(e->config.devices, in->stream, address(e, move, run->slot), in->bytes);
    case INSTR_KIND_COUNT:
        break;
    }
    return 0;
}

/* ---- one run of a program ---- */

/* Returns the event that an instruction records in run number `run` of the program. */
static struct event *event_of(const struct exec *e, enum program_kind k, const struct bound_instr *in,
                              uint64_t run)
{
    return e->events[k][in->event + run % in->n_events];
}

/* Enqueues the waits, the work and the event of one instruction. If `span` is not NULL, the streams store the
 * times of the work in *span. */
static int issue(struct exec *e, enum program_kind k, const struct bound_instr *in, const struct run_ref *run,
                 struct plan_span *span)
{
    const struct bound_program *p = &e->programs[k];
    int r;

    for (uint32_t i = 0; i < in->n_waits; i++) {
        const struct bound_wait *w = &p->waits[in->wait + i];
        if (w->distance > run->number)
            continue; /* runs before the first count as done */
        r = event_wait(e->config.devices, in->stream,
                       event_of(e, k, &p->instrs[w->instr], run->number - w->distance));
        if (r < 0)
            return r;
    }
    r = span ? devset_mark(e->config.devices, in->stream, &span->start_ns) : 0;
    if (r == 0)
        r = issue_work(e, p, in, run);
    if (r == 0 && span)
        r = devset_mark(e->config.devices, in->stream, &span->end_ns);
    if (r < 0 || in->n_events == 0)
        return r;
    return event_record(e->config.devices, in->stream, event_of(e, k, in, run->number));
}

/* Enqueues all instructions of a program. The streams read run->args later, so run->args must not change
 * until the run is complete. */
static int enqueue(struct exec *e, enum program_kind k, const struct run_ref *run, struct plan_span *spans)
{
    const struct bound_program *p = &e->programs[k];

    for (uint32_t i = 0; i < p->n_instrs; i++) {
        const int r = issue(e, k, &p->instrs[i], run, spans ? &spans[i] : NULL);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Records the end of run number `run`: enqueues an event on every stream that the cycle uses. */
static int record_end(struct exec *e, uint64_t run)
{
    const struct bound_program *p = &e->programs[PROGRAM_CYCLE];

    for (uint32_t i = 0; i < p->n_streams; i++) {
        const int r = event_record(e->config.devices, p->streams[i], e->ends[run % PLAN_RING][i]);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Waits until the runs 0 to `run` of the cycle are complete. `run` must be less than e->runs. */
static int wait_run(struct exec *e, uint64_t run)
{
    if (run < e->done)
        return 0;
    assert(run < e->runs && e->runs - run <= PLAN_RING); /* no later run has reused its events */
    for (uint32_t i = 0; i < e->programs[PROGRAM_CYCLE].n_streams; i++) {
        const int r = event_sync(e->config.devices, e->ends[run % PLAN_RING][i]);
        if (r < 0)
            return r;
    }
    e->done = run + 1;
    return 0;
}

static int drain(struct exec *e)
{
    const int r = devset_drain(e->config.devices);

    if (r == 0)
        e->done = e->runs;
    return r;
}

/* Returns `r`. Stores `r` if it is the executor's first error, because all later calls must return this
 * error. */
static int remember_failure(struct exec *e, int r)
{
    if (r < 0 && e->failed == 0)
        e->failed = r;
    return r;
}

/* ---- the calls ---- */

static int run_drained(struct exec *e, enum program_kind k, const struct step_args *args)
{
    int r = drain(e);

    if (r < 0)
        return r;
    e->once = args ? *args : (struct step_args){0};
    const struct run_ref run = {0, exec_slot(e->config.plan, e->once.step), &e->once};
    r = enqueue(e, k, &run, NULL);
    return r < 0 ? r : drain(e);
}

int exec_run(struct exec *e, enum program_kind program, const struct step_args *args)
{
    const bool from_out = program == PROGRAM_ENTRY || program == PROGRAM_EVAL;
    int r;

    if (e->failed < 0)
        return e->failed;
    if ((uint32_t)program >= PROGRAM_COUNT || program == PROGRAM_CYCLE)
        return -EINVAL;
    if ((e->state == STATE_OUT) != from_out)
        return -EPROTO;
    if (!args && (program == PROGRAM_EVAL || e->programs[program].needs_args))
        return -EINVAL;

    r = remember_failure(e, run_drained(e, program, args));
    if (r < 0)
        return r;
    if (program == PROGRAM_ENTRY) {
        e->state = STATE_IN;
        e->runs = e->done = e->window.end = 0;
    } else if (program == PROGRAM_EXIT) {
        e->state = STATE_OUT;
    }
    return 0;
}

/* Returns true if the training steps in `args` are consecutive and start where the previous run ended. The
 * first run may start at any step. */
static bool args_follow(const struct exec *e, const struct step_args *args)
{
    const uint32_t steps = e->config.plan->steps, groups = e->config.plan->n_groups;

    if (e->runs > 0 && args[0].step != e->first_step + e->runs * steps)
        return false;
    for (uint32_t i = 1; i < steps * groups; i++)
        if (args[i].step != args[0].step + i / groups)
            return false;
    return true;
}

/* Waits until the host slots that the next run of the cycle uses are free, and enqueues this run. */
static int enqueue_cycle(struct exec *e, const struct step_args *args)
{
    const uint64_t number = e->runs;
    const uint32_t n_args = e->config.plan->steps * e->config.plan->n_groups;
    struct step_args *slot = &e->ring[number % PLAN_RING * n_args];
    struct plan_span *spans = window_spans(&e->window, args[0].step, e->programs[PROGRAM_CYCLE].n_instrs);
    const struct run_ref run = {number, exec_slot(e->config.plan, args[0].step), slot};
    int r;

    if (number >= PLAN_RING) {
        r = wait_run(e, number - PLAN_RING);
        if (r < 0)
            return r;
    }
    for (uint32_t i = 0; i < n_args; i++)
        slot[i] = args[i];
    r = enqueue(e, PROGRAM_CYCLE, &run, spans);
    if (r == 0)
        r = record_end(e, number);
    if (r < 0)
        return r;
    if (number == 0)
        e->first_step = args[0].step;
    e->runs++;
    if (spans)
        window_advance(&e->window, number);
    return 0;
}

int exec_cycle(struct exec *e, const struct step_args *args)
{
    if (e->failed < 0)
        return e->failed;
    if (!args)
        return -EINVAL;
    if (e->state != STATE_IN || !args_follow(e, args))
        return -EPROTO;
    return remember_failure(e, enqueue_cycle(e, args));
}

int exec_wait(struct exec *e, uint64_t step)
{
    if (e->failed < 0)
        return e->failed;
    if (e->runs == 0 || step < e->first_step)
        /* The step ran before the last entry program. So it is complete, because the entry program waits for
         * all streams. */
        return 0;
    const uint64_t run = (step - e->first_step) / e->config.plan->steps;
    if (run >= e->runs)
        return -EPROTO;
    return remember_failure(e, wait_run(e, run));
}

/* Returns the index in p->streams of the stream that makes the first fetch. Returns 0 if there is no fetch.
 * */
static uint32_t first_fetching(const struct bound_program *p)
{
    uint32_t i = 0, at = 0;

    while (i < p->n_instrs && p->instrs[i].kind != INSTR_FETCH)
        i++;
    while (i < p->n_instrs && at + 1 < p->n_streams && p->streams[at] != p->instrs[i].stream)
        at++;
    return at;
}

int exec_wait_next(struct exec *e)
{
    if (e->failed < 0)
        return e->failed;
    if (e->runs == e->done)
        return 0;
    const uint32_t stream = first_fetching(&e->programs[PROGRAM_CYCLE]);
    return remember_failure(e, event_sync(e->config.devices, e->ends[(e->runs - 1) % PLAN_RING][stream]));
}

int exec_trace(struct exec *e, uint64_t first_step, uint32_t runs, struct plan_span *spans)
{
    if (runs == 0 || !spans)
        return -EINVAL;
    if (exec_traced(e) < e->window.runs)
        return -EBUSY;
    e->window = (struct window){.spans = spans, .first_step = first_step, .runs = runs};
    return 0;
}

uint32_t exec_traced(const struct exec *e)
{
    return window_complete(&e->window, e->done);
}

/* ---- create, destroy ---- */

static int check_config(const struct exec_config *c, struct err *err)
{
    const struct plan *p = c->plan;

    if (p->n_devices < 1 || p->n_devices > DEVICE_MAX)
        return err_set(err, -EINVAL, "the plan has %" PRIu32 " devices, but must have 1 to %d", p->n_devices,
                       DEVICE_MAX);
    if (p->n_layers != c->model->n_layers)
        return err_set(err, -EINVAL, "the plan is for %" PRIu32 " layers, but the model has %" PRIu32,
                       p->n_layers, c->model->n_layers);
    if (p->steps < 1 || p->rows < 1 || p->n_groups < 1)
        return err_set(err, -EINVAL,
                       "a plan needs at least one step, one row and one decision group, but this plan has "
                       "%" PRIu32 ", %" PRIu32 " and %" PRIu32,
                       p->steps, p->rows, p->n_groups);
    if (p->n_replicas < 1 || p->n_micro % p->n_replicas != 0)
        return err_set(err, -EINVAL,
                       "the plan has %" PRIu32 " micro-batches for %" PRIu32
                       " replicas, which do not divide evenly",
                       p->n_micro, p->n_replicas);
    return 0;
}

/* Returns the decision group of each layer's NORM in the cycle, or PLAN_NONE for a layer without one. */
static uint32_t *find_norm_groups(const struct plan *p, struct arena *arena)
{
    const struct plan_program *cycle = &p->programs[PROGRAM_CYCLE];
    uint32_t *groups = arena_alloc_array(arena, p->n_layers, sizeof *groups);

    for (uint32_t l = 0; l < p->n_layers; l++)
        groups[l] = PLAN_NONE;
    for (uint32_t i = 0; i < cycle->n_instrs; i++)
        if (cycle->instrs[i].kind == INSTR_NORM && cycle->instrs[i].layer < p->n_layers)
            groups[cycle->instrs[i].layer] = cycle->instrs[i].group;
    return groups;
}

static int create_events(struct exec *e, uint32_t n, struct event ***ret)
{
    struct event **events = arena_alloc_array(e->arena, n, sizeof(struct event *)); /* NULL until created */

    *ret = events;
    for (uint32_t i = 0; i < n; i++) {
        const int r = event_create(e->config.devices, &events[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

static int create_all_events(struct exec *e)
{
    int r;

    for (uint32_t k = 0; k < PROGRAM_COUNT; k++) {
        r = create_events(e, e->programs[k].n_events, &e->events[k]);
        if (r < 0)
            return r;
    }
    for (uint32_t i = 0; i < PLAN_RING; i++) {
        r = create_events(e, e->programs[PROGRAM_CYCLE].n_streams, &e->ends[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

static void destroy_events(struct exec *e, struct event **events, uint32_t n)
{
    for (uint32_t i = 0; events && i < n; i++)
        event_destroy(e->config.devices, events[i]);
}

uint64_t exec_bytes(const struct plan *p)
{
    uint64_t bytes = p->n_tensors * (sizeof(struct plan_tensor) + sizeof(tensor_id));

    for (uint32_t k = 0; k < PROGRAM_COUNT; k++)
        bytes += bound_program_bytes(&p->programs[k]) + p->programs[k].n_instrs * (uint64_t)EVENT_BYTES;
    return bytes;
}

int exec_create(const struct exec_config *config, struct exec **ret, struct err *err)
{
    struct arena *arena;
    struct exec *e;
    int r;

    r = check_config(config, err);
    if (r < 0)
        return r;
    arena = arena_create();
    e = arena_alloc(arena, sizeof *e);
    e->config = *config;
    e->arena = arena;
    e->norm_groups = find_norm_groups(config->plan, arena);
    e->ring = arena_alloc_array(arena, (size_t)PLAN_RING * config->plan->steps * config->plan->n_groups,
                                sizeof *e->ring);
    for (uint32_t k = 0; k < PROGRAM_COUNT; k++) {
        r = bind_program(config, (enum program_kind)k, arena, &e->programs[k], err);
        if (r < 0)
            goto fail;
    }
    r = create_all_events(e);
    if (r < 0) {
        err_set(err, r, "cannot create the events of the plan");
        goto fail;
    }
    *ret = e;
    return 0;

fail:
    exec_destroy(e);
    return r;
}

void exec_destroy(struct exec *e)
{
    if (!e)
        return;
    devset_drain(e->config.devices); /* an error no longer matters here */
    for (uint32_t k = 0; k < PROGRAM_COUNT; k++)
        destroy_events(e, e->events[k], e->programs[k].n_events);
    for (uint32_t i = 0; i < PLAN_RING; i++)
        destroy_events(e, e->ends[i], e->programs[PROGRAM_CYCLE].n_streams);
    arena_destroy(e->arena);
}
