/* The critical path: from the instruction that ends the last run backwards, always to what the start waited for (the one
 * before in its stream, or one of its waits: whichever ended last), until the run before. Every moment of the
 * iteration is then on the account of one instruction. */
#include "scheduler/why.h"

#include <string.h>

#include "base/arena.h"

#define SIM_RUNS   3
#define BUSY_SHARE 0.9

const char *const binding_names[BINDING_COUNT] = {
    [BINDING_COMPUTE] = "compute", [BINDING_BUBBLE] = "bubble", [BINDING_LINK] = "link",
    [BINDING_PEER] = "peer",       [BINDING_HOST] = "host",
};

struct walk {
    const struct plan *plan;
    const struct plan_program *program;
    const struct sim_result *sim;
    uint32_t *
        before; /* the instruction before in its stream; PLAN_NONE for the first, which follows the last of the run
                       * before */
    uint32_t *last_of_stream;
};

static const struct plan_span *span(const struct walk *w, uint32_t run, uint32_t instr)
{
    return &w->sim->spans[(size_t)run * w->sim->n_instrs + instr];
}

static void link_streams(struct walk *w, struct arena *a)
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

/* What the instruction waited for longest: it moves to that. False at the beginning. *ret_room: it was a drop, so what
 * lacked was memory. */
static bool step_back(const struct walk *w, uint32_t *run, uint32_t *instr, bool *ret_room)
{
    const struct plan_instr *in = &w->program->instrs[*instr];
    uint32_t from_run = *run, from = w->before[*instr];
    bool found = true;
    *ret_room = false;
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
        *ret_room = w->program->instrs[from].kind == INSTR_DROP;
    }
    *run = from_run;
    *instr = from;
    return found;
}

static enum path_part part_of(const struct plan *p, uint32_t stream)
{
    return stream == plan_host_stream(p) ? PATH_HOST : (enum path_part)(stream % LANE_COUNT);
}

static enum binding binding_of(const struct why *y)
{
    uint64_t link = y->path_ns[PATH_IN] + y->path_ns[PATH_OUT];
    uint64_t compute = y->path_ns[PATH_COMPUTE], peer = y->path_ns[PATH_PEER], host = y->path_ns[PATH_HOST];
    if (compute >= link && compute >= peer && compute >= host)
        return y->busiest >= BUSY_SHARE ? BINDING_COMPUTE : BINDING_BUBBLE;
    return link >= peer && link >= host ? BINDING_LINK : peer >= host ? BINDING_PEER : BINDING_HOST;
}

void why_of(const struct plan *p, const struct sim_result *cycle, struct why *ret)
{
    struct arena *a = arena_create();
    struct walk w = {.plan = p, .program = &p->programs[PROGRAM_CYCLE], .sim = cycle};
    *ret = (struct why){0};
    link_streams(&w, a);
    uint32_t run = cycle->runs - 1, at = 0;
    for (uint32_t i = 1; i < cycle->n_instrs; i++)
        if (span(&w, run, i)->end_ns > span(&w, run, at)->end_ns)
            at = i;
    uint64_t until = cycle->n_instrs ? span(&w, run, at)->end_ns : 0;
    uint64_t begin = until > cycle->cycle_ns ? until - cycle->cycle_ns : 0;
    for (bool more = cycle->n_instrs > 0, room; more && until > begin;) {
        uint64_t start = span(&w, run, at)->start_ns;
        enum path_part part = part_of(p, w.program->instrs[at].stream);
        if (start < begin)
            start = begin;
        uint64_t busy = until > start ? until - start : 0;
        more = step_back(&w, &run, &at, &room);
        ret->path_ns[part] += busy;
        ret->room_ns += room ? busy : 0;
        if (start < until)
            until = start;
    }
    for (uint32_t d = 0; d < p->n_devices; d++) {
        double share = cycle->total_ns ? (double)cycle->compute_ns[d] / (double)cycle->total_ns : 0;
        ret->busiest = share > ret->busiest ? share : ret->busiest;
    }
    ret->binds = binding_of(ret);
    arena_destroy(a);
}

void what_if(const struct plan_request *request, uint64_t more_bytes, uint32_t more_devices,
             struct what_if *ret)
{
    struct machine m = *request->machine;
    struct plan_request r = *request;
    struct plan *p;
    *ret = (struct what_if){0};
    if (m.n_devices + more_devices > DEVICE_MAX)
        return;
    for (uint32_t d = m.n_devices; d < m.n_devices + more_devices; d++)
        m.capacity_bytes[d] = m.capacity_bytes[m.n_devices - 1];
    m.n_devices += more_devices;
    for (uint32_t d = 0; d < m.n_devices; d++)
        m.capacity_bytes[d] += more_bytes / PLAN_ALIGN * PLAN_ALIGN;
    r.machine = &m;
    if (plan_make(&r, &p, NULL, NULL) < 0)
        return;
    struct profile *prof = plan_profile(&r);
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, SIM_RUNS, prof, &m);
    *ret = (struct what_if){true, sim->cycle_ns, sim->bytes.in + sim->bytes.out + sim->bytes.peer};
    sim_destroy(sim);
    profile_destroy(prof);
    plan_destroy(p);
}
