/* bench_planner: measures the processor time of making one plan without any search: ordering tasks, deciding
 * what stays on a device, assigning addresses, finding waits, and a simulation. All layers of the model are
 * equal, and the devices can hold only a fraction of its state. Prints the best of several repetitions. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/strbuf.h"
#include "scheduler/build/build.h"
#include "scheduler/policy/candidate.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/verify/verify.h"

#define REPEAT 5
#define MIB    (1ull << 20)

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static struct table *even_table(uint32_t layers)
{
    struct strbuf b = {0};
    struct table *t = NULL;
    strbuf_add(&b, "{\"micro_batch_fwd\":[1],\"micro_batch_bwd\":[1],\"micro_batch_fwd_bytes\":[1],"
                   "\"micro_batch_bwd_bytes\":[1],\"micro_batch_input\":[1],\"layers\":[");
    for (uint32_t l = 0; l < layers; l++)
        strbuf_addf(&b,
                    "%s{\"weight_bytes\":%llu,\"optimizer_bytes\":%llu,"
                    "\"optimizer_part_bytes\":[%llu,%llu],\"input_bytes\":[1048576],\"fwd_s\":[1e-3],"
                    "\"bwd_s\":[3e-3],\"fwd_bytes\":[%llu],\"bwd_bytes\":[%llu],\"update_cpu_s\":1e-3}",
                    l ? "," : "", l + 1 < layers ? 16 * MIB : 0, l + 1 < layers ? 32 * MIB : 0,
                    l + 1 < layers ? 16 * MIB : 0, l + 1 < layers ? 16 * MIB : 0, 20 * MIB, 50 * MIB);
    strbuf_add(&b, "]}");
    if (table_parse(b.at, b.n, "even", &t, NULL) < 0)
        abort();
    strbuf_finish(&b);
    return t;
}

static void bench(uint32_t layers, uint32_t micros, uint32_t devices)
{
    struct table *t = even_table(layers);
    struct graph *g;
    struct machine m;
    struct err err = {0};
    if (graph_build_table(t, 1, micros, true, &g, &err) < 0)
        abort();
    machine_init_cuda(&m);
    m.n_devices = devices;
    for (uint32_t d = 0; d < devices; d++)
        m.capacity_bytes[d] = (400 + layers * 16 / devices) * MIB;
    m.host_bytes = 1ull << 50;
    m.all_links_bytes_per_s = m.link_bytes_per_s;
    struct plan_request r = {.train = g, .machine = &m, .table = t};
    struct profile *prof = plan_profile(&r);
    struct candidate c;
    policy_auto.leanest(&r, &c);
    c.knobs.retain = true;
    c.knobs.lead_state = c.knobs.lead_items = 1;
    double best = 1e30, simulate = 0, verify = 0;
    uint32_t instrs = 0;
    for (int i = 0; i < REPEAT; i++) {
        struct order order;
        struct plan *p;
        struct plan_need need;
        double begin = cpu_ms();
        policy_auto.order(&r, prof, &c, &order);
        if (plan_build(&r, "auto", &order, &c.knobs, prof, &p, &need, &err) < 0 || p == NULL)
            abort();
        double built = cpu_ms();
        struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, SIM_RUNS, prof, &m);
        double simulated = cpu_ms();
        if (plan_verify(p, g, NULL, &m, NULL, &err) < 0)
            abort();
        if (built - begin < best) {
            best = built - begin;
            simulate = simulated - built;
            verify = cpu_ms() - simulated;
        }
        instrs = p->programs[PROGRAM_CYCLE].n_instrs;
        sim_destroy(sim);
        plan_destroy(p);
        order_finish(&order);
    }
    printf("%8u %8u %8u %13u %10.1f %10.1f %10.1f\n", layers, micros, devices, instrs, best, simulate,
           verify);
    profile_destroy(prof);
    graph_destroy(g);
    table_destroy(t);
}

int main(void)
{
    printf("one plan, no search; processor time in ms, best of %d\n", REPEAT);
    printf("%8s %8s %8s %13s %10s %10s %10s\n", "layers", "micros", "devices", "instructions", "plan",
           "simulate", "verify");
    static const uint32_t rows[][3] = {{100, 1, 1},  {100, 4, 1}, {100, 16, 1}, {100, 4, 4},
                                       {100, 16, 4}, {400, 4, 4}, {1000, 4, 4}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        bench(rows[i][0], rows[i][1], rows[i][2]);
    return 0;
}
