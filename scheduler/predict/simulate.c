/* Implements the simulator: translates each instruction of a plan into an operation on the timeline
 * (timeline.h), and turns the timeline's result into a prediction. This file models the machine: it decides
 * which resources there are, and which of them an instruction uses.
 *
 * A limit that the machine does not have becomes no resource. A plan on a machine without shared limits is
 * therefore as cheap to simulate as its instructions.
 *
 * Cores. Tasks and moves that share the cores are expressed in one unit: bytes, with `full_per_s` bytes per
 * second as the full speed. A task of D ns becomes as many bytes as flow in D ns at full speed. Per byte it
 * takes its number of cores from the shared resource, and a move takes the part of a core that it keeps busy,
 * both in hundredths of a core. If they need more cores than there are, all of them slow down by the same
 * factor. A fair thread scheduler has the same effect when a task has one thread per core.
 *
 * A plan that was not verified may contain a deadlock. Instructions that never start then get the end time of
 * the whole simulation. The prediction is meaningless, but nothing crashes.
 */
#include "scheduler/predict/simulate.h"

#include <assert.h>

#include "base/arena.h"
#include "base/bounded.h"
#include "scheduler/predict/timeline.h"
#include "scheduler/rate.h"

#define UNLIMITED UINT32_MAX
#define CORE      100 /* units of one core: hundredths */
#define GIGA      1000000000u

/* The links of one device. */
struct device_links {
    uint32_t in, out, peer_in, peer_out; /* numbers of resources, or UNLIMITED */
};

/* The state of one plan_simulate. */
struct sim {
    const struct plan *plan;
    const struct plan_program *program;
    const struct profile *profile;
    const struct machine *machine;
    struct device_links links[DEVICE_MAX];
    uint32_t shared[SHARED_COUNT]; /* numbers of resources, or UNLIMITED */
    /* Full speed of a task. The simulation expresses the duration of a task as bytes that flow at this rate,
     * in bytes per second. */
    uint64_t full_per_s;
    uint64_t per_s[4 * DEVICE_MAX + SHARED_COUNT]; /* rates of the resources */
    uint32_t n_resources;
};

/* ---- the machine ---- */

/* Adds a resource that carries `per_s` bytes per second, and returns its number. 0 bytes per second stand for
 * no limit: then adds nothing and returns UNLIMITED. */
static uint32_t add_resource(struct sim *s, uint64_t per_s)
{
    if (per_s == 0)
        return UNLIMITED;
    s->per_s[s->n_resources] = per_s;
    return s->n_resources++;
}

static uint64_t or_else(uint64_t per_s, uint64_t otherwise)
{
    return per_s > 0 ? per_s : otherwise;
}

/* Returns the rate, in bytes per second, at which the simulator turns durations into bytes. The rate of all
 * cores together stays below 2^53. */
static uint64_t full_speed(const struct machine *m)
{
    uint64_t most = m->cores > 0 ? (UINT64_C(1) << 53) / CORE / m->cores : UINT64_MAX;
    uint64_t per_s = m->link_bytes_per_s < most ? m->link_bytes_per_s : most;
    return per_s > GIGA ? per_s : GIGA;
}

static void add_resources(struct sim *s)
{
    const struct machine *m = s->machine;
    for (uint32_t d = 0; d < s->plan->n_devices; d++) {
        s->links[d].in = add_resource(s, m->link_bytes_per_s);
        s->links[d].out = add_resource(s, or_else(m->link_out_bytes_per_s, m->link_bytes_per_s));
        s->links[d].peer_in = add_resource(s, m->peer_bytes_per_s);
        s->links[d].peer_out = add_resource(s, m->peer_bytes_per_s);
    }
    s->shared[SHARED_LINKS_IN] = add_resource(s, m->all_links_bytes_per_s);
    s->shared[SHARED_LINKS_OUT] =
        add_resource(s, or_else(m->all_links_out_bytes_per_s, m->all_links_bytes_per_s));
    s->shared[SHARED_HOST_MEMORY] = add_resource(s, m->host_shared_bytes_per_s);
    s->full_per_s = full_speed(m);
    s->shared[SHARED_CORES] = add_resource(s, (uint64_t)m->cores * CORE * s->full_per_s);
}

static void use(struct timeline_op *op, uint32_t resource)
{
    if (resource != UNLIMITED)
        op->uses[op->n_uses++] = resource;
}

/* Returns how much of the shared resource "cores" each byte of an operation uses that occupies `parts`
 * hundredths of a core at `per_s` bytes per second. */
static uint32_t core_weight(uint64_t parts, uint64_t full_per_s, uint64_t per_s)
{
    unsigned __int128 weight = (unsigned __int128)parts * full_per_s / (per_s > 0 ? per_s : 1);
    return weight == 0 ? 1 : weight > UINT32_MAX ? UINT32_MAX : (uint32_t)weight;
}

/* Makes an operation use `parts` hundredths of a core while it runs at its full rate of `per_s` bytes per
 * second. */
static void use_cores(const struct sim *s, struct timeline_op *op, uint64_t parts, uint64_t per_s)
{
    if (s->shared[SHARED_CORES] == UNLIMITED || parts == 0)
        return;
    op->weights[op->n_uses] = core_weight(parts, s->full_per_s, per_s);
    use(op, s->shared[SHARED_CORES]);
}

double sim_copy_cores(const struct machine *m)
{
    const uint64_t full_per_s = full_speed(m);
    if (m->cores == 0 || m->core_copy_bytes_per_s == 0)
        return 0;
    return (double)core_weight(CORE, full_per_s, m->core_copy_bytes_per_s) / CORE / (double)full_per_s;
}

/* ---- instructions ---- */

static void translate_send(const struct sim *s, const struct plan_instr *in, struct timeline_op *op)
{
    const struct plan_operand *o = &s->program->operands[in->operand];
    uint32_t from = o[0].loc, to = o[1].loc;
    if (from >= s->plan->n_devices || to >= s->plan->n_devices) /* the plan may be unverified */
        return;
    use(op, s->links[from].peer_out);
    use(op, s->links[to].peer_in);
    if (s->machine->peers_by_link) {
        use(op, s->links[from].out);
        use(op, s->links[to].in);
    }
}

/* Adds `ns`, the time without sharing, to the duration of an operation. `traffic` is the number of bytes of
 * host memory that the operation reads or writes. */
static void set_duration(const struct sim *s, struct timeline_op *op, uint64_t ns, uint32_t cores,
                         uint64_t traffic)
{
    unsigned __int128 full = cores > 0 ? (unsigned __int128)ns * s->full_per_s / GIGA : 0;
    unsigned __int128 bytes = traffic > 0 ? traffic : full;
    unsigned __int128 per_s = ns > 0 ? (bytes * GIGA + ns - 1) / ns : 0;
    if (per_s == 0 || per_s > UINT64_MAX || bytes > UINT64_MAX) {
        op->fixed_ns = ns_add(op->fixed_ns, ns);
        return;
    }
    op->bytes = (uint64_t)bytes;
    op->most_per_s = (uint64_t)per_s;
    if (traffic > 0)
        use(op, s->shared[SHARED_HOST_MEMORY]);
    use_cores(s, op, (uint64_t)cores * CORE, op->most_per_s);
}

/* Simulates a COPY. It reads and writes device memory and uses no link. On a virtual device it also keeps one
 * core busy. */
static void translate_copy(const struct sim *s, uint64_t bytes, struct timeline_op *op)
{
    const bool by_core = s->machine->cores > 0 && s->machine->core_copy_bytes_per_s > 0;
    set_duration(s, op, rate_ns(2 * bytes, s->machine->device_bytes_per_s), by_core ? 1 : 0, 0);
}

static void translate_move(const struct sim *s, const struct plan_instr *in, struct timeline_op *op)
{
    uint32_t device = in->stream / LANE_COUNT;
    op->fixed_ns = s->machine->launch_ns;
    if (in->n_operands < 2 || device >= s->plan->n_devices)
        return;
    const uint64_t bytes = operand_bytes(&s->program->operands[in->operand]);
    if (in->kind == INSTR_COPY) {
        translate_copy(s, bytes, op);
        return;
    }
    op->bytes = bytes;
    if (s->machine->core_copy_bytes_per_s > 0)
        use_cores(s, op, CORE, s->machine->core_copy_bytes_per_s);
    if (in->kind == INSTR_SEND) {
        translate_send(s, in, op);
        return;
    }
    bool fetch = in->kind == INSTR_FETCH;
    use(op, fetch ? s->links[device].in : s->links[device].out);
    use(op, s->shared[fetch ? SHARED_LINKS_IN : SHARED_LINKS_OUT]);
    use(op, s->shared[SHARED_HOST_MEMORY]);
}

/* Returns the number of bytes that a task on the host reads from and writes to host memory. */
static uint64_t host_traffic(const struct sim *s, const struct plan_instr *in)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < in->n_operands; i++) {
        const struct plan_operand *o = &s->program->operands[in->operand + i];
        bytes += operand_bytes(o) * (o->access == ACCESS_RW ? 2 : 1);
    }
    return bytes;
}

/* Returns the duration of a task. The time of a share of a RED or UPD is proportional to its bytes. */
static uint64_t task_ns(const struct sim *s, const struct plan_instr *in, bool on_host)
{
    const uint64_t ns = profile_task_ns(s->profile, in->kind, in->layer, on_host);
    for (uint32_t i = 0; (in->kind == INSTR_RED || in->kind == INSTR_UPD) && i < in->n_operands; i++) {
        const struct plan_operand *o = &s->program->operands[in->operand + i];
        if (o->tensor >= s->plan->n_tensors || s->plan->tensors[o->tensor].kind != TENSOR_DW)
            continue;
        const uint64_t part = operand_bytes(o), whole = s->plan->tensors[o->tensor].bytes;
        if (part >= whole) /* not a share, or an unverified plan */
            break;
        return (uint64_t)(((unsigned __int128)ns * part + whole - 1) / whole);
    }
    return ns;
}

/* Returns the number of cores that a task uses if nothing else runs. DECIDE is a small task and uses at most
 * one core. */
static uint32_t cores_of(const struct machine *m, enum instr_kind kind, bool on_host)
{
    uint32_t wanted = on_host ? m->host_cores : m->device_cores;
    if (kind == INSTR_DECIDE && wanted > 1)
        wanted = 1;
    return wanted < m->cores ? wanted : m->cores;
}

static void translate_task(const struct sim *s, const struct plan_instr *in, struct timeline_op *op)
{
    bool on_host = in->stream == plan_host_stream(s->plan);
    uint32_t cores = cores_of(s->machine, in->kind, on_host);
    uint64_t traffic = on_host && s->shared[SHARED_HOST_MEMORY] != UNLIMITED ? host_traffic(s, in) : 0;
    set_duration(s, op, task_ns(s, in, on_host), cores, traffic);
}

static struct timeline_op *translate(const struct sim *s, struct arena *scratch)
{
    uint32_t n = s->program->n_instrs;
    struct timeline_op *ops = arena_alloc_array(scratch, n, sizeof *ops);
    for (uint32_t i = 0; i < n; i++) {
        const struct plan_instr *in = &s->program->instrs[i];
        bounded_poll();
        ops[i] = (struct timeline_op){.stream = in->stream, .wait = in->wait, .n_waits = in->n_waits};
        if (instr_is_move(in->kind))
            translate_move(s, in, &ops[i]);
        else if (in->kind != INSTR_DROP)
            translate_task(s, in, &ops[i]);
    }
    return ops;
}

/* ---- runs in progress ---- */

/* Returns the waits of the program's instructions, in the order of `ops`, and lets the first operation of
 * each stream also wait for the last operation of each stream PLAN_RING runs ago. The executor enqueues a run
 * of the cycle only when the run PLAN_RING before is complete. */
static const struct plan_wait *limit_runs(const struct sim *s, struct timeline_op *ops, struct arena *arena)
{
    const struct plan_program *prog = s->program;
    uint32_t n = 0, streams = plan_n_streams(s->plan),
             *last = arena_alloc_array(arena, streams, sizeof *last);
    struct plan_wait *waits =
        arena_alloc_array(arena, (size_t)prog->n_waits + (size_t)streams * streams + 1, sizeof *waits);
    bool *begun = arena_alloc_array(arena, streams, sizeof *begun);
    for (uint32_t i = 0; i < streams; i++)
        last[i] = PLAN_NONE;
    for (uint32_t i = 0; i < prog->n_instrs; i++)
        last[ops[i].stream] = i;
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        struct timeline_op *op = &ops[i];
        uint32_t first = n;
        for (uint32_t k = 0; k < op->n_waits; k++)
            waits[n++] = prog->waits[op->wait + k];
        for (uint32_t k = 0; !begun[op->stream] && k < streams; k++)
            if (last[k] != PLAN_NONE)
                waits[n++] = (struct plan_wait){.instr = last[k], .distance = PLAN_RING};
        begun[op->stream] = true;
        op->wait = first;
        op->n_waits = n - first;
    }
    return waits;
}

/* ---- the prediction ---- */

/* Sets the start and end of every instruction that never started to the time at which the simulation ended.
 * Such instructions exist only if the plan has a deadlock. */
static void end_all(struct timeline_result *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (t->spans[i].end_ns == TIMELINE_NEVER)
            t->spans[i] = (struct plan_span){t->total_ns, t->total_ns};
}

static void add_streams(struct sim_result *r, const struct plan *p, const struct timeline_result *t)
{
    for (uint32_t d = 0; d < p->n_devices; d++) {
        for (uint32_t lane = 0; lane < LANE_COUNT; lane++)
            r->lane_ns[d][lane] = t->stream_ns[plan_stream(d, lane)];
        r->compute_ns[d] = r->lane_ns[d][LANE_COMPUTE];
        r->stall_ns[d] = r->total_ns - r->compute_ns[d];
    }
    r->host_ns = t->stream_ns[plan_host_stream(p)];
}

static void add_times(struct sim_result *r, const struct sim *s, struct timeline_result *t)
{
    r->total_ns = t->total_ns;
    r->cycle_ns = r->runs > 1 ? (t->total_ns - t->first_ns) / (r->runs - 1) : t->total_ns;
    r->spans = t->spans;
    add_streams(r, s->plan, t);
    for (uint32_t i = 0; i < SHARED_COUNT; i++)
        if (s->shared[i] != UNLIMITED)
            r->bound_ns[i] = t->bound_ns[s->shared[i]];
}

struct sim_result *plan_simulate(const struct plan *p, enum program_kind k, uint32_t runs,
                                 const struct profile *prof, const struct machine *m)
{
    assert(runs >= 1 && (runs == 1 || k == PROGRAM_CYCLE));

    struct arena *arena = arena_create(), *scratch = arena_create();
    struct sim_result *r = arena_alloc(arena, sizeof *r);
    struct sim s = {.plan = p, .program = &p->programs[k], .profile = prof, .machine = m};
    struct timeline_result times;

    r->arena = arena;
    r->runs = runs;
    r->n_instrs = s.program->n_instrs;
    add_resources(&s);
    struct timeline_op *ops = translate(&s, scratch);
    const struct timeline t = {
        .waits = limit_runs(&s, ops, scratch),
        .ops = ops,
        .per_s = s.per_s,
        .n_ops = r->n_instrs,
        .n_streams = plan_n_streams(p),
        .n_resources = s.n_resources,
    };
    if (timeline_run(&t, runs, arena, &times) < 0)
        end_all(&times, (size_t)runs * r->n_instrs);
    add_times(r, &s, &times);
    plan_count_bytes(p, k, &r->bytes);
    arena_destroy(scratch);
    return r;
}

void sim_destroy(struct sim_result *r)
{
    if (r)
        arena_destroy(r->arena);
}
