/* The simulator: one pass over runs x instructions.
 *
 * Issue order is a topological order of a program (plan.h: streams are subsequences of it and waits of
 * distance 0 point backwards), and runs follow each other. So when an instruction is reached, whatever it
 * waits for has its times already, and its own start is
 *
 *     max(end of the instruction before it in its stream, ends of its waits)
 *
 * where a wait of distance d looks d runs back, and before run 0 everything was done at time 0. No event
 * queue is needed, and nothing depends on anything but the plan, the profile and the machine.
 *
 * A plan that has not been verified may wait forwards. It then gets meaningless times (a span not yet reached
 * counts as done at 0), never a crash.
 */
#include "scheduler/simulate.h"

#include <assert.h>

#include "base/arena.h"
#include "scheduler/rate.h"

struct sim {
    const struct plan *plan;
    const struct plan_program *program;
    const struct profile *profile;
    const struct machine *machine;
    struct sim_result *result;
    uint64_t *stream_free_ns; /* when the last instruction of each stream ends */
};

static uint64_t move_ns(const struct sim *s, const struct plan_instr *in)
{
    const struct machine *m = s->machine;
    uint64_t bytes = in->n_operands ? operand_bytes(&s->program->operands[in->operand]) : 0;
    uint64_t per_s = m->link_bytes_per_s;
    if (in->kind == INSTR_SEND)
        per_s = m->peer_bytes_per_s;
    else if (in->kind == INSTR_SPILL && m->link_out_bytes_per_s > 0)
        per_s = m->link_out_bytes_per_s;
    return ns_add(rate_ns(bytes, per_s), m->launch_ns);
}

static uint64_t duration_ns(const struct sim *s, const struct plan_instr *in)
{
    if (in->kind == INSTR_DROP)
        return 0;
    if (instr_is_move(in->kind))
        return move_ns(s, in);
    return profile_task_ns(s->profile, in->kind, in->layer, in->stream == plan_host_stream(s->plan));
}

static uint64_t start_ns(const struct sim *s, const struct plan_instr *in, uint32_t run)
{
    uint64_t start = s->stream_free_ns[in->stream];
    for (uint32_t i = 0; i < in->n_waits; i++) {
        const struct plan_wait *w = &s->program->waits[in->wait + i];
        if (w->distance > run) /* before run 0: done */
            continue;
        size_t at = (size_t)(run - w->distance) * s->program->n_instrs + w->instr;
        start = ns_max(start, s->result->spans[at].end_ns);
    }
    return start;
}

/* Returns when the run ends: the latest end of its instructions. */
static uint64_t simulate_run(struct sim *s, uint32_t run)
{
    struct plan_span *spans = s->result->spans + (size_t)run * s->program->n_instrs;
    uint64_t run_end = 0;

    for (uint32_t i = 0; i < s->program->n_instrs; i++) {
        const struct plan_instr *in = &s->program->instrs[i];
        uint64_t start = start_ns(s, in, run), busy = duration_ns(s, in);
        spans[i] = (struct plan_span){.start_ns = start, .end_ns = ns_add(start, busy)};
        s->stream_free_ns[in->stream] = spans[i].end_ns;
        run_end = ns_max(run_end, spans[i].end_ns);

        uint32_t device = in->stream / LANE_COUNT;
        if (device < s->plan->n_devices && in->stream % LANE_COUNT == LANE_COMPUTE)
            s->result->compute_ns[device] = ns_add(s->result->compute_ns[device], busy);
    }
    return run_end;
}

struct sim_result *plan_simulate(const struct plan *p, enum program_kind k, uint32_t runs,
                                 const struct profile *prof, const struct machine *m)
{
    assert(runs >= 1 && (runs == 1 || k == PROGRAM_CYCLE));

    struct arena *arena = arena_create();
    struct sim_result *r = arena_alloc(arena, sizeof *r);
    struct sim s = {.plan = p, .program = &p->programs[k], .profile = prof, .machine = m, .result = r};

    r->arena = arena;
    r->runs = runs;
    r->n_instrs = s.program->n_instrs;
    r->spans = arena_alloc_array(arena, (size_t)runs * r->n_instrs, sizeof *r->spans);
    s.stream_free_ns = arena_alloc_array(arena, plan_n_streams(p), sizeof *s.stream_free_ns);

    uint64_t first_end = 0, last_end = 0;
    for (uint32_t run = 0; run < runs; run++) {
        last_end = simulate_run(&s, run);
        if (run == 0)
            first_end = last_end;
    }
    r->total_ns = last_end; /* streams run in order, so no earlier run ends later */
    r->cycle_ns = runs > 1 ? (last_end - first_end) / (runs - 1) : last_end;
    for (uint32_t d = 0; d < p->n_devices; d++)
        r->stall_ns[d] = r->total_ns - r->compute_ns[d];
    plan_count_bytes(p, k, &r->bytes);
    return r;
}

void sim_destroy(struct sim_result *r)
{
    if (r)
        arena_destroy(r->arena);
}
