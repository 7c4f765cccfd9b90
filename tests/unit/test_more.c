/* Tests that a plan of policy `auto` is not slower on a machine with more devices. Plans random models on
 * machines with 1 to 4 devices, with little and with much memory. A machine with more devices must have a
 * plan if one with fewer has. Its plan may be at most 1 percent slower, or 1 percent above the bound on time,
 * where a search ends. A failure names its seed. TUTTI_CASES=N tries the first N seeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>

#include "scheduler/policy/policy.h"
#include "tests/cases.h"
#include "tests/unit/random_chain.h"

#define CASES   12
#define DEVICES 4
#define PLENTY  (1ull << 44)

/* One model, planned on several machines. */
struct job {
    uint32_t seed;
    struct graph *train;
    uint64_t least; /* bytes of device memory that one device needs */
    bool cuda;      /* the rates of a GPU, not of a cpu device */
};

static void start_job(struct job *j, uint32_t seed)
{
    struct rng rng = {.seed = seed};
    struct random_chain c;
    struct machine m;
    *j = (struct job){.seed = seed};
    if (seed % 4 == 0)
        random_transformer(&c, &rng);
    else
        random_chain(&c, &rng, seed % 2 ? 300 : 3000);
    c.rows = 1u << rng_below(&rng, 8);
    c.n_replicas = 1 + rng_below(&rng, DEVICES);
    c.n_micro = c.n_replicas << rng_below(&rng, 4);
    j->cuda = rng_below(&rng, 2);
    assert_int_equal(random_graph(&c, true, &j->train), 0);
    machine_init_cpu(&m, 1, 0, PLENTY);
    const struct plan_request r = {.train = j->train, .machine = &m, .policy = POLICY_auto};
    assert_int_equal(plan_least_capacity(&r, &j->least, NULL), 0);
}

static struct machine machine_of(const struct job *j, uint32_t devices, uint64_t capacity, uint64_t host)
{
    struct machine m;
    machine_init_cpu(&m, devices, capacity, host);
    if (!j->cuda)
        return m;
    machine_init_cuda(&m);
    m.n_devices = devices;
    m.host_bytes = host;
    for (uint32_t d = 0; d < devices; d++)
        m.capacity_bytes[d] = capacity;
    return m;
}

/* Returns the time of a step on a machine, or 0 if there is no plan. Sets *ret_floor_ns to the bound on
 * time. */
static uint64_t step_ns(const struct job *j, const struct machine *m, uint64_t *ret_floor_ns)
{
    struct plan_report report = {0};
    struct plan *p = NULL;
    const struct plan_request r = {.train = j->train,
                                   .machine = m,
                                   .policy = POLICY_auto,
                                   .objective = OBJECTIVE_TIME,
                                   .report = &report};
    int e = plan_make(&r, &p, NULL, NULL);
    assert_true(e == 0 || e == -ENOSPC);
    if (e == 0)
        assert_int_equal(p->n_devices, m->n_devices);
    plan_destroy(p);
    *ret_floor_ns = report.floor_ns;
    return e == 0 ? report.score.ns : 0;
}

/* Checks that a job that takes `smaller_ns` on a smaller machine is not slower on machine `m`. Returns the
 * time on `m`. */
static uint64_t check_more(const struct job *j, const struct machine *m, uint64_t smaller_ns)
{
    uint64_t floor_ns, ns = step_ns(j, m, &floor_ns);
    bool slower = ns == 0 || (ns > smaller_ns + smaller_ns / 100 && ns > floor_ns + floor_ns / 100);
    if (smaller_ns > 0 && slower)
        fail_msg("seed %u: %llu ns on %u devices of %llu and a host of %llu bytes, and %llu ns on a smaller "
                 "machine",
                 j->seed, (unsigned long long)ns, m->n_devices, (unsigned long long)m->capacity_bytes[0],
                 (unsigned long long)m->host_bytes, (unsigned long long)smaller_ns);
    return ns;
}

/* Returns the least host memory with which the job has a plan on one device with endless memory. */
static uint64_t least_host(const struct job *j)
{
    struct machine m = machine_of(j, 1, PLENTY, 1);
    const struct plan_request r = {.train = j->train, .machine = &m, .policy = POLICY_auto};
    struct plan *p;
    struct err err = {0};
    assert_int_equal(plan_make(&r, &p, NULL, &err), -ENOSPC);
    const char *at = strstr(err.msg, " needs ");
    assert_non_null(at);
    return strtoull(at + strlen(" needs "), NULL, 10);
}

/* More devices, with plenty of host memory or little. */
static void test_more_devices_are_not_slower(void **state)
{
    (void)state;
    uint32_t n = random_cases(CASES), made = 0;
    for (uint32_t seed = 1; seed <= n; seed++) {
        struct job j;
        start_job(&j, seed);
        uint64_t hosts[] = {least_host(&j), PLENTY};
        for (int h = 0; h < 2; h++)
            for (uint64_t part = 2; part <= 8; part *= 2) { /* 1, 2 and 4 times the least capacity */
                uint64_t ns = 0;
                for (uint32_t devices = 1; devices <= DEVICES; devices++) {
                    struct machine m = machine_of(&j, devices, j.least / 2 * part, hosts[h]);
                    ns = check_more(&j, &m, ns);
                    made += ns > 0;
                }
            }
        graph_destroy(j.train);
    }
    print_message("# %u plans\n", made);
    assert_true(made >= 12 * n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_more_devices_are_not_slower),
    };
    return cmocka_run_group_tests_name("more", tests, NULL, NULL);
}
