/* Tests the host store: where it puts the copies of tensors, how a copy is found, and which requests it
 * refuses. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "swap/store.h"
#include "tests/unit/handmade_plan.h"

enum { LEASE = 1 << 16 };

static int open_devices(void **state)
{
    const struct devset_config config = {
        .backend = "cpu", .n_devices = 1, .capacity_bytes = {LEASE}, .threads = 1};
    return devset_open(&config, (struct devset **)state, NULL);
}

static int close_devices(void **state)
{
    devset_close(*state);
    return 0;
}

static void test_store_places_slots_and_finds_tensors(void **state)
{
    struct handmade h;
    struct store *s;
    struct devset *devices = *state;

    hm_init(&h, 1, LEASE);
    const tensor_id w1 = hm_tensor(&h, TENSOR_W, 1, PLAN_NONE, 300, 1);
    const tensor_id x2 = hm_tensor(&h, TENSOR_X, 0, 2, 100, 2);
    const tensor_id x1 = hm_tensor(&h, TENSOR_X, 0, 1, 100, 2);
    const tensor_id s0 = hm_tensor(&h, TENSOR_S, 0, 1, 64, 0);
    const tensor_id w0 = hm_tensor(&h, TENSOR_W, 0, PLAN_NONE, 300, 1);
    const tensor_id decision = hm_tensor(&h, TENSOR_DECISION, PLAN_NONE, PLAN_NONE, 16, 2);
    assert_int_equal(store_create(devices, hm_finish(&h), &s, NULL), 0);

    char *pool = store_ptr(s, w1, 0);
    assert_ptr_equal(store_ptr(s, w1, 9), pool);
    assert_ptr_equal(store_ptr(s, x2, 4), pool + 512);
    assert_ptr_equal(store_ptr(s, x2, 5), pool + 512 + 256);
    assert_ptr_equal(store_ptr(s, x1, 0), pool + 1024);
    assert_ptr_equal(store_at(s, 512, 256), pool + 512);
    assert_non_null(store_at(s, 2560 - 256, 256));
    assert_null(store_at(s, 2560 - 255, 256));
    assert_null(store_at(s, UINT64_MAX, 256));
    assert_null(store_ptr(s, s0, 0));
    assert_null(store_ptr(s, 6, 0));
    assert_null(store_ptr(s, PLAN_NONE, 0));

    assert_int_equal(store_find(s, TENSOR_W, 0, PLAN_NONE, 0), w0);
    assert_int_equal(store_find(s, TENSOR_W, 1, PLAN_NONE, 0), w1);
    assert_int_equal(store_find(s, TENSOR_X, 0, 1, 0), x1);
    assert_int_equal(store_find(s, TENSOR_X, 0, 2, 0), x2);
    assert_int_equal(store_find(s, TENSOR_S, 0, 1, 0), s0);
    assert_int_equal(store_find(s, TENSOR_DECISION, 0, PLAN_NONE, 0), decision);
    assert_int_equal(store_find(s, TENSOR_DECISION, 1, PLAN_NONE, 0), PLAN_NONE);
    assert_int_equal(store_find(s, TENSOR_X, 0, 1, 1), PLAN_NONE);
    assert_int_equal(store_find(s, TENSOR_W, 2, PLAN_NONE, 0), PLAN_NONE);
    assert_int_equal(store_find(s, TENSOR_X, 0, PLAN_NONE, 0), PLAN_NONE);
    assert_int_equal(store_find(s, TENSOR_KIND_COUNT, 0, 0, 0), PLAN_NONE);

    hm_free(&h); /* the store does not need the plan any more */
    assert_ptr_equal(store_ptr(s, w0, 0), pool + 1536);
    assert_int_equal(store_find(s, TENSOR_X, 0, 2, 0), x2);
    store_destroy(s);
    store_destroy(NULL);
}

/* Plans of one and of two steps: the group state has another offset in each, and the second plan has a tensor
 * where the first has its group state. */
static void make_cycle(struct handmade *h, uint32_t steps, tensor_id *ret_w, tensor_id *ret_groups)
{
    hm_init(h, 1, LEASE);
    h->plan.steps = steps;
    *ret_w = hm_tensor(h, TENSOR_W, 0, PLAN_NONE, 300, 1);
    for (uint32_t s = 0; s < steps; s++) {
        const tensor_id x = hm_tensor(h, TENSOR_X, 0, 0, 100, 1);
        h->tensors.at[x].step = s;
    }
    for (uint32_t g = 0; g < 2; g++) {
        ret_groups[g] = hm_tensor(h, TENSOR_GROUP, PLAN_NONE, PLAN_NONE, sizeof(struct group_state), 1);
        h->tensors.at[ret_groups[g]].group = g;
    }
}

static void test_stores_of_two_plans_share_memory(void **state)
{
    struct handmade one, two;
    struct store *owner, *other;
    tensor_id w1, w2, g1[2], g2[2];
    char want[2][sizeof(struct group_state)];

    make_cycle(&one, 1, &w1, g1);
    make_cycle(&two, 2, &w2, g2);
    assert_int_equal(store_create(*state, hm_finish(&two), &owner, NULL), 0);
    assert_int_equal(store_share(owner, hm_finish(&one), &other, NULL), 0);
    assert_ptr_equal(store_ptr(owner, w2, 0), store_ptr(other, w1, 0));
    /* The places of the two group states overlap: the first state of one plan is where the other plan has
     * its second. */
    assert_ptr_equal(store_ptr(owner, g2[0], 0), store_ptr(other, g1[1], 0));
    memset(store_ptr(owner, w2, 0), 3, 300);
    for (int g = 0; g < 2; g++) {
        memset(want[g], 10 + g, sizeof want[g]);
        memcpy(store_ptr(owner, g2[g], 0), want[g], sizeof want[g]);
    }
    for (int turn = 0; turn < 2; turn++) {
        store_move(owner, other);
        for (int g = 0; g < 2; g++)
            assert_memory_equal(store_ptr(other, g1[g], 0), want[g], sizeof want[g]);
        store_move(other, owner);
        for (int g = 0; g < 2; g++)
            assert_memory_equal(store_ptr(owner, g2[g], 0), want[g], sizeof want[g]);
    }
    for (int i = 0; i < 300; i++)
        assert_int_equal(((char *)store_ptr(owner, w2, 0))[i], 3);
    store_destroy(other);
    store_destroy(owner);
    hm_free(&one);
    hm_free(&two);
}

static void test_store_refuses_to_share_too_little_memory(void **state)
{
    struct handmade one, two;
    struct store *owner, *other;
    tensor_id w, groups[2];
    struct err err = {0};

    make_cycle(&one, 1, &w, groups);
    make_cycle(&two, 2, &w, groups);
    assert_int_equal(store_create(*state, hm_finish(&one), &owner, NULL), 0);
    assert_int_equal(store_share(owner, hm_finish(&two), &other, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "do not fit"));
    store_destroy(owner);
    hm_free(&one);
    hm_free(&two);
}

static void test_store_of_nothing_is_empty(void **state)
{
    struct handmade h;
    struct store *s;
    struct devset *devices = *state;

    hm_init(&h, 1, LEASE);
    assert_int_equal(store_create(devices, hm_finish(&h), &s, NULL), 0);
    assert_null(store_ptr(s, 0, 0));
    assert_int_equal(store_find(s, TENSOR_W, 0, PLAN_NONE, 0), PLAN_NONE);
    store_destroy(s);
}

static int try_store(struct devset *devices, struct handmade *h, struct err *err)
{
    struct store *s = NULL;
    const int r = store_create(devices, hm_finish(h), &s, err);
    store_destroy(s);
    return r;
}

static void test_store_refuses_what_does_not_fit(void **state)
{
    struct err err = {0};
    struct handmade h;
    struct devset *devices = *state;

    hm_init(&h, 1, LEASE);
    hm_tensor(&h, TENSOR_W, 0, PLAN_NONE, 300, 1);
    hm_tensor(&h, TENSOR_X, 0, 0, 300, 2);
    assert_int_equal(try_store(devices, &h, &err), 0);
    h.tensors.at[1].host_slots = 3;
    assert_int_equal(try_store(devices, &h, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "tensor 1"));
    h.tensors.at[1].host_slots = 2;
    h.tensors.at[1].host_offset += 8;
    assert_int_equal(try_store(devices, &h, &err), -EINVAL);
    h.tensors.at[1].host_offset = UINT64_MAX - 255;
    assert_int_equal(try_store(devices, &h, &err), -EINVAL);
    h.tensors.at[1].host_offset = 0;
    h.tensors.at[1].bytes = UINT64_MAX;
    assert_int_equal(try_store(devices, &h, &err), -EINVAL);
    hm_free(&h);
}

static void test_store_names_the_bytes_it_could_not_get(void **state)
{
    struct err err = {0};
    struct handmade h;
    struct devset *devices = *state;

    hm_init(&h, 1, LEASE);
    h.plan.host_bytes = 1ull << 60;
    assert_int_equal(try_store(devices, &h, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "1152921504606846976"));
    hm_free(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_places_slots_and_finds_tensors),
        cmocka_unit_test(test_stores_of_two_plans_share_memory),
        cmocka_unit_test(test_store_refuses_to_share_too_little_memory),
        cmocka_unit_test(test_store_of_nothing_is_empty),
        cmocka_unit_test(test_store_refuses_what_does_not_fit),
        cmocka_unit_test(test_store_names_the_bytes_it_could_not_get),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
