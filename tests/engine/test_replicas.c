/* Tests data parallelism in the executor with the plans of shared_plan.h, where devices share state and each
 * device has one or several replicas. The results must equal the reference, which runs one op after the
 * other, bit for bit. The harness of engine.h also checks that counted bytes equal planned bytes, that times
 * follow the plan, and that delays and interleavings change nothing.
 *
 * test_replicas [BACKEND DEVICES...] runs on this backend with these numbers of devices. The default is cpu
 * with any number.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cases.h"
#include "tests/engine/engine.h"
#include "tests/engine/shared_plan.h"

static const struct shared_form forms[] = {
    /* devices, replicas, cuts; share_fetches, pinned, host_reduction, host_update */
    {"one device", 1, 2, 1, false, false, false, false},
    {"one device, host", 1, 2, 1, false, false, true, true},
    {"one device, host in shares", 1, 3, 4, false, false, true, true},
    {"one device, reduction there, update on the host", 1, 2, 2, false, false, false, true},
    {"one device, pinned in shares", 1, 2, 3, false, true, false, false},
    {"two devices", 2, 2, 2, true, false, false, false},
    {"two devices, everyone fetches all", 2, 2, 2, false, false, false, false},
    {"two devices, pinned", 2, 2, 2, true, true, false, false},
    {"two devices, update on the host", 2, 2, 2, true, false, false, true},
    {"two devices, host", 2, 2, 2, false, false, true, true},
    {"two devices of two replicas, pinned", 2, 4, 4, true, true, false, false},
    {"two devices of three replicas", 2, 6, 2, true, false, false, false},
    {"four devices", 4, 4, 4, true, false, false, false},
    {"four devices, pinned", 4, 4, 4, true, true, false, false},
    {"four devices, pinned, owners of several shares", 4, 4, 8, true, true, false, false},
    {"four devices, update on the host", 4, 4, 4, true, false, false, true},
    {"four devices of two replicas, host", 4, 8, 4, true, false, true, true},
};

static uint64_t device_counts = UINT64_MAX; /* bit n: with n devices */

static bool on_cpu(void)
{
    return strcmp(engine_backend, "cpu") == 0;
}

static uint32_t n_cases(uint32_t on_the_cpu, uint32_t elsewhere)
{
    return random_cases(on_cpu() ? on_the_cpu : elsewhere);
}

static void random_case(struct engine_case *c, uint32_t seed, uint32_t replicas)
{
    struct rng r = {.seed = seed};
    *c = (struct engine_case){.seed = seed};
    random_chain(&c->chain, &r, 60);
    /* Half of the cases have weights in bf16. The plans of this test bring no group state to a loss, which
     * the loss scale of fp16 would need. */
    random_precision(&c->chain, seed % 2 ? DTYPE_BF16 : DTYPE_F32);
    c->chain.n_replicas = replicas;
    c->chain.n_micro = replicas * (1 + rng_below(&r, 2));
    c->chain.rows = 1 + rng_below(&r, 6);
    if (c->chain.skip_nonfinite)
        c->nan_steps = 1u << 2;
}

/* Bytes of W that a cycle fetches, and instructions of a kind in it. */
static uint64_t fetched_weights(const struct plan *p)
{
    const struct plan_program *cycle = &p->programs[PROGRAM_CYCLE];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < cycle->n_instrs; i++) {
        const struct plan_operand *o = &cycle->operands[cycle->instrs[i].operand];
        if (cycle->instrs[i].kind == INSTR_FETCH && p->tensors[o->tensor].kind == TENSOR_W)
            bytes += operand_bytes(o);
    }
    return bytes;
}

static uint32_t count_instrs(const struct plan *p, enum instr_kind kind)
{
    const struct plan_program *cycle = &p->programs[PROGRAM_CYCLE];
    uint32_t n = 0;
    for (uint32_t i = 0; i < cycle->n_instrs; i++)
        n += cycle->instrs[i].kind == kind;
    return n;
}

/* Checks that the plan has the properties of its form. Otherwise the test would test another plan than
 * intended. */
static void check_plan(const struct plan *p, const struct graph *g, const struct shared_form *form)
{
    uint64_t weights = 0, biggest = 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        weights += g->layers[l].size.w;
        biggest = g->layers[l].size.w > biggest ? g->layers[l].size.w : biggest;
    }
    assert_int_equal(fetched_weights(p), form->pinned          ? 0
                                         : form->share_fetches ? weights
                                                               : form->n_devices * weights);
    if (biggest < form->cuts * PLAN_ALIGN)
        return;
    assert_true(count_instrs(p, INSTR_RED) >= form->cuts * (form->n_replicas - 1));
    assert_true(count_instrs(p, INSTR_UPD) >= form->cuts);
    assert_true(!form->pinned || count_instrs(p, INSTR_COPY) >= form->cuts);
    assert_true(form->n_devices == 1 || form->host_reduction || count_instrs(p, INSTR_SEND) > 0);
}

static void run_form(const struct engine_case *c, const struct shared_form *form,
                     const struct engine_machine *m, struct engine_result *ret)
{
    struct graph *train, *eval;
    struct handmade h;

    assert_int_equal(random_graph(&c->chain, true, &train), 0);
    assert_int_equal(random_graph(&c->chain, false, &eval), 0);
    shared_plan(train, eval, form, &h);
    check_plan(&h.plan, train, form);
    engine_run_plan(c, m, &h.plan, ret);
    hm_free(&h);
    graph_destroy(train);
    graph_destroy(eval);
}

static void check_form(const struct engine_case *c, const struct shared_form *form, uint64_t delay_seed,
                       const struct engine_result *want)
{
    const struct engine_machine m = {.n_devices = form->n_devices,
                                     .capacity_bytes = UINT64_MAX,
                                     .policy = POLICY_auto,
                                     .threads = 2,
                                     .delay_seed = delay_seed};
    struct engine_result got;
    char what[160];

    snprintf(what, sizeof what, "%s, seed %llu, delays %llu", form->name, (unsigned long long)c->seed,
             (unsigned long long)delay_seed);
    run_form(c, form, &m, &got);
    engine_assert_equal(&got, want, what);
}

static void test_replicas_every_form_same_bits(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        if (!(device_counts >> forms[f].n_devices & 1))
            continue;
        for (uint32_t seed = 1; seed <= n_cases(5, 2); seed++) {
            struct engine_case c;
            struct engine_result want;
            random_case(&c, seed, forms[f].n_replicas);
            engine_reference(&c, &want);
            check_form(&c, &forms[f], 0, &want);
            check_form(&c, &forms[f], seed,
                       &want); /* on the cpu with delays, elsewhere another interleaving */
        }
    }
}

/* Four replicas: whatever the number of devices, and who reduces and updates. */
static void test_replicas_are_no_devices(void **state)
{
    (void)state;
    for (uint32_t seed = 20; seed < 20 + n_cases(3, 1); seed++) {
        struct engine_case c;
        struct engine_result want;
        random_case(&c, seed, 4);
        engine_reference(&c, &want);
        for (uint32_t n = 1; n <= 4; n *= 2)
            for (uint32_t way = 0; (device_counts >> n & 1) && way < 3; way++) {
                const struct shared_form form = {.name = "four replicas",
                                                 .n_devices = n,
                                                 .n_replicas = 4,
                                                 .cuts = way == 2 ? 1 : n,
                                                 .share_fetches = way != 2,
                                                 .pinned = way == 1,
                                                 .host_reduction = way == 2,
                                                 .host_update = way == 2};
                check_form(&c, &form, seed + n, &want);
            }
    }
}

/* They are part of the spec because they change the order of sums; or they would not show here. */
static void test_replicas_change_bits_of_the_reference(void **state)
{
    (void)state;
    struct engine_case c;
    struct engine_result one, four;
    random_case(&c, 4, 4);
    c.chain.n_micro = 8;
    c.nan_steps = 0;
    engine_reference(&c, &four);
    c.chain.n_replicas = 1;
    engine_reference(&c, &one);
    assert_int_equal(memcmp(&one.loss[0], &four.loss[0], sizeof one.loss[0]),
                     0); /* the first step's is before any sum */
    assert_true(one.state_hash != four.state_hash);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replicas_every_form_same_bits),
        cmocka_unit_test(test_replicas_are_no_devices),
        cmocka_unit_test(test_replicas_change_bits_of_the_reference),
    };
    if (argc > 1)
        engine_backend = argv[1];
    for (int i = 2; i < argc; i++)
        device_counts = (i == 2 ? 0 : device_counts) | UINT64_C(1) << (atoi(argv[i]) & 63);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
