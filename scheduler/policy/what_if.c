/* Implements what_if.h. Every what-if question is answered by making a plan. */
#include "scheduler/policy/what_if.h"

#include <errno.h>

int what_if_machine(const struct machine *m, uint64_t more_bytes, uint32_t more_devices, struct machine *ret)
{
    if (m->n_devices + more_devices > DEVICE_MAX)
        return -ERANGE;
    *ret = *m;
    ret->n_devices += more_devices;
    if (ret->cores_by_devices)
        ret->cores = ret->host_cores = ret->n_devices;
    for (uint32_t d = 0; d < ret->n_devices; d++) {
        uint32_t like = d < m->n_devices ? d : m->n_devices - 1;
        ret->capacity_bytes[d] = m->capacity_bytes[like] + more_bytes / PLAN_ALIGN * PLAN_ALIGN;
    }
    return 0;
}

void what_if_plan(const struct plan_request *request, struct what_if *ret)
{
    struct plan *p;
    struct plan_request brief = *request;
    struct plan_report report = {0};
    brief.most_work = WHAT_IF_WORK;
    brief.report = &report;
    *ret = (struct what_if){0};
    if (plan_make(&brief, &p, NULL, NULL) < 0)
        return;
    struct profile *prof = plan_profile(request);
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, SIM_RUNS, prof, request->machine);
    *ret = (struct what_if){true, sim->cycle_ns, sim->bytes.in + sim->bytes.out, report.work > WHAT_IF_WORK};
    sim_destroy(sim);
    profile_destroy(prof);
    plan_destroy(p);
}

void what_if_keep(struct what_if *w, const struct what_if *at_hand, enum plan_objective objective)
{
    bool worse =
        objective == OBJECTIVE_BYTES ? w->host_bytes > at_hand->host_bytes : w->cycle_ns > at_hand->cycle_ns;
    if (!w->fits || worse)
        *w = *at_hand;
}
