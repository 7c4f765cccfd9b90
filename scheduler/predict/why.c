/* Implements why.h.
 *
 * The critical path starts at the instruction that ends last in the last run and goes backwards. From each
 * instruction it goes to the one that it waited for last: its predecessor in the stream or one of its waits.
 * It stops one cycle earlier. Every moment of the cycle then belongs to exactly one instruction.
 *
 * The path does not show what waiting for memory costs, because an instruction that waits for a drop also
 * waits for everything before the drop. Therefore the cycle is replayed with the simulated durations: each
 * instruction waits for its stream and for the data that it reads, but never for free addresses. The time
 * that this saves is the cost of waiting for memory.
 */
#include "scheduler/predict/why.h"

#include <string.h>

#include "base/arena.h"

/* If the critical path is mostly compute, and one device does at least 90% of this compute, compute is the
 * limit. */
#define BUSY_SHARE 0.9
/* Memory is the limit if more than 20% of the cycle is lost by waiting for free memory. */
#define MEMORY_WAIT_SHARE 0.2
/* Memory is also the limit if the cycle would be more than 10% shorter with more memory. */
#define MORE_SHARE 0.1

const char *const path_part_names[PATH_PART_COUNT] = {
    [PATH_COMPUTE] = "compute", [PATH_IN] = "in",     [PATH_OUT] = "out",
    [PATH_PEER] = "peer",       [PATH_HOST] = "host",
};
const char *const binding_names[BINDING_COUNT] = {
    [BINDING_COMPUTE] = "compute", [BINDING_BUBBLE] = "bubble", [BINDING_LINK] = "link",
    [BINDING_PEER] = "peer",       [BINDING_HOST] = "host",     [BINDING_MEMORY] = "memory",
};

/* ---- the critical path ---- */

/* A simulated cycle that is being analysed. */
struct path_walk {
    const struct plan *plan;
    const struct plan_program *program;
    const struct sim_result *sim;
    /* before[i] is the instruction before instruction i in the same stream, or PLAN_NONE. */
    uint32_t *before;
    uint32_t *last_of_stream; /* per stream: its last instruction */
};

static const struct plan_span *span(const struct path_walk *w, uint32_t run, uint32_t instr)
{
    return &w->sim->spans[(size_t)run * w->sim->n_instrs + instr];
}

static void link_streams(struct path_walk *w, struct arena *a)
{
    uint32_t n_streams = plan_n_streams(w->plan);
    w->before = arena_alloc_array(a, w->program->n_instrs + 1, sizeof *w->before);
    w->last_of_stream = arena_alloc_array(a, n_streams, sizeof *w->last_of_stream);
    memset(w->last_of_stream, 0xff, n_streams * sizeof *w->last_of_stream);
    for (uint32_t i = 0; i < w->program->n_instrs; i++) {
        uint32_t stream = w->program->instrs[i].stream;
        w->before[i] = w->last_of_stream[stream];
        w->last_of_stream[stream] = i;
    }
}

/* Moves *run and *instr to the instruction that ended last, of all those that *instr waited for. Returns
 * false if there is none. */
static bool step_back(const struct path_walk *w, uint32_t *run, uint32_t *instr)
{
    const struct plan_instr *in = &w->program->instrs[*instr];
    uint32_t from_run = *run, from = w->before[*instr];
    bool found = true;
    if (from == PLAN_NONE) {
        from = w->last_of_stream[in->stream];
        found = from_run > 0;
        from_run -= found;
    }
    uint64_t latest = found ? span(w, from_run, from)->end_ns : 0;
    for (uint32_t i = 0; i < in->n_waits; i++) {
        const struct plan_wait *wait = &w->program->waits[in->wait + i];
        if (wait->distance > *run)
            continue;
        uint64_t end = span(w, *run - wait->distance, wait->instr)->end_ns;
        if (found && end <= latest)
            continue;
        found = true;
        latest = end;
        from_run = *run - wait->distance;
        from = wait->instr;
    }
    *run = from_run;
    *instr = from;
    return found;
}

static enum path_part part_of(const struct plan *p, uint32_t stream)
{
    return stream == plan_host_stream(p) ? PATH_HOST : (enum path_part)(stream % LANE_COUNT);
}

static void walk_path(const struct path_walk *w, uint64_t path_ns[PATH_PART_COUNT])
{
    uint32_t run = w->sim->runs - 1, at = 0;
    for (uint32_t i = 1; i < w->sim->n_instrs; i++)
        if (span(w, run, i)->end_ns > span(w, run, at)->end_ns)
            at = i;
    uint64_t until = span(w, run, at)->end_ns, cycle = w->sim->cycle_ns;
    uint64_t begin = until > cycle ? until - cycle : 0;
    for (bool more = true; more && until > begin;) {
        uint64_t start = span(w, run, at)->start_ns;
        enum path_part part = part_of(w->plan, w->program->instrs[at].stream);
        if (start < begin)
            start = begin;
        if (start < until) {
            path_ns[part] += until - start;
            until = start;
        }
        more = step_back(w, &run, &at);
    }
}

/* ---- without waits for memory ---- */

/* Replays one run of the cycle without waits for free memory, and returns its end. Updates free_at (by
 * stream) and there_at (by tensor and location) for the next run. */
static uint64_t run_without_memory_waits(const struct path_walk *w, uint32_t run, uint64_t *free_at,
                                         uint64_t *there_at)
{
    const struct plan_program *prog = w->program;
    uint32_t places = w->plan->n_devices + 1;
    uint64_t end = 0;
    for (uint32_t i = 0; i < prog->n_instrs; i++) {
        const struct plan_instr *in = &prog->instrs[i];
        const struct plan_operand *ops = &prog->operands[in->operand];
        uint64_t at = free_at[in->stream];
        if (in->kind == INSTR_DROP)
            continue;
        for (uint32_t k = 0; k < in->n_operands; k++) {
            uint32_t loc = ops[k].loc == PLAN_HOST ? w->plan->n_devices : ops[k].loc;
            uint64_t there = there_at[(size_t)ops[k].tensor * places + loc];
            if (ops[k].access & ACCESS_READ && there > at)
                at = there;
        }
        at += span(w, run, i)->end_ns - span(w, run, i)->start_ns;
        free_at[in->stream] = at;
        for (uint32_t k = 0; k < in->n_operands; k++) {
            uint32_t loc = ops[k].loc == PLAN_HOST ? w->plan->n_devices : ops[k].loc;
            if (ops[k].access & ACCESS_WRITE)
                there_at[(size_t)ops[k].tensor * places + loc] = at;
        }
        end = at > end ? at : end;
    }
    return end;
}

static uint64_t cost_of_memory_waits(const struct path_walk *w, struct arena *a)
{
    uint64_t *free_at = arena_alloc_array(a, plan_n_streams(w->plan), sizeof *free_at);
    uint64_t *there_at =
        arena_alloc_array(a, (size_t)w->plan->n_tensors * (w->plan->n_devices + 1), sizeof *there_at);
    uint64_t first = 0, last = 0;
    for (uint32_t run = 0; run < w->sim->runs; run++) {
        last = run_without_memory_waits(w, run, free_at, there_at);
        first = run == 0 ? last : first;
    }
    uint64_t cycle = w->sim->runs > 1 ? (last - first) / (w->sim->runs - 1) : last;
    return w->sim->cycle_ns > cycle ? w->sim->cycle_ns - cycle : 0;
}

/* ---- what binds ---- */

static enum binding binding_of(const struct why *y)
{
    uint64_t link = y->path_ns[PATH_IN] + y->path_ns[PATH_OUT];
    uint64_t compute = y->path_ns[PATH_COMPUTE], peer = y->path_ns[PATH_PEER], host = y->path_ns[PATH_HOST];
    double cycle = (double)y->cycle_ns;
    if ((double)y->memory_wait_ns > MEMORY_WAIT_SHARE * cycle)
        return BINDING_MEMORY;
    if (compute >= link && compute >= peer && compute >= host)
        return y->busiest * cycle >= BUSY_SHARE * (double)compute ? BINDING_COMPUTE : BINDING_BUBBLE;
    return link >= peer && link >= host ? BINDING_LINK : peer >= host ? BINDING_PEER : BINDING_HOST;
}

void why_of(const struct plan *p, const struct sim_result *cycle, struct why *ret)
{
    struct arena *a = arena_create();
    struct path_walk w = {.plan = p, .program = &p->programs[PROGRAM_CYCLE], .sim = cycle};
    *ret = (struct why){.cycle_ns = cycle->cycle_ns};
    link_streams(&w, a);
    if (cycle->n_instrs > 0) {
        walk_path(&w, ret->path_ns);
        ret->memory_wait_ns = cost_of_memory_waits(&w, a);
    }
    for (uint32_t d = 0; d < p->n_devices && cycle->cycle_ns > 0; d++) {
        double share = (double)cycle->compute_ns[d] / cycle->runs / (double)cycle->cycle_ns;
        ret->busiest = share > ret->busiest ? share : ret->busiest;
    }
    ret->binds = binding_of(ret);
    arena_destroy(a);
}

void why_report_settle(struct why_report *r)
{
    double now = (double)r->why.cycle_ns;
    if (r->asked && r->memory.fits && (double)r->memory.cycle_ns < (1 - MORE_SHARE) * now)
        r->why.binds = BINDING_MEMORY;
}
