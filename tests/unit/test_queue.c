/* Tests the queue: which job runs next, on which devices and with how much memory, and which jobs can never
 * run on this machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "daemon/queue.h"

#define NOW 1000

struct table {
    struct job jobs[8], *at[8];
    size_t n;
    uint64_t devices[DEVICE_MAX];
    struct queue_machine machine;
};

static void machine(struct table *t, uint32_t n_devices)
{
    *t = (struct table){0};
    t->machine = (struct queue_machine){n_devices, 1000, 600, t->devices};
}

static struct job *add(struct table *t, uint32_t least, uint32_t most)
{
    struct job *j = &t->jobs[t->n];
    *j = (struct job){.id = 10 + t->n, .state = JOB_QUEUED, .on_disk = true};
    j->ask = (struct job_ask){.devices_min = least, .devices_max = most};
    t->at[t->n++] = j;
    return j;
}

static struct job *next(struct table *t, struct job_lease *lease)
{
    return queue_next(t->at, t->n, &t->machine, NOW, lease);
}

static void check_devices(const struct job_lease *l, uint32_t n, ...)
{
    va_list ap;
    assert_int_equal(l->n_devices, n);
    va_start(ap, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(l->devices[i], va_arg(ap, uint32_t));
    va_end(ap);
}

static void test_an_empty_queue_has_nobody(void **state)
{
    struct table t;
    struct job_lease lease;
    (void)state;
    machine(&t, 2);
    assert_null(next(&t, &lease));
    assert_null(queue_next(NULL, 0, &t.machine, NOW, &lease));
}

static void test_the_first_come_is_served_first(void **state)
{
    struct table t;
    struct job_lease lease;
    (void)state;
    machine(&t, 2);
    struct job *a = add(&t, 1, 1), *b = add(&t, 1, 1);
    assert_ptr_equal(next(&t, &lease), a);
    a->state = JOB_RUNNING;
    t.devices[0] = a->id;
    assert_ptr_equal(next(&t, &lease), b);
    check_devices(&lease, 1, 1);
}

static void test_the_order_is_of_ids_not_of_places(void **state)
{
    struct table t;
    struct job_lease lease;
    (void)state;
    machine(&t, 2);
    struct job *a = add(&t, 1, 1), *b = add(&t, 1, 1);
    a->id = 9;
    b->id = 4;
    assert_ptr_equal(next(&t, &lease), b);
    assert_true(queue_before(b, a));
    assert_false(queue_before(a, b));
    assert_false(queue_before(a, a));
}

static void test_only_jobs_that_wait_are_served(void **state)
{
    struct table t;
    struct job_lease lease;
    (void)state;
    for (int s = 0; s < JOB_STATE_COUNT; s++) {
        machine(&t, 1);
        add(&t, 1, 1)->state = (enum job_state)s;
        assert_true((next(&t, &lease) != NULL) == (s == JOB_QUEUED));
    }
    machine(&t, 1);
    struct job *j = add(&t, 1, 1);
    j->on_disk = false; /* not acknowledged */
    assert_null(next(&t, &lease));
    j->on_disk = true;
    j->cancel = true;
    assert_null(next(&t, &lease));
    j->cancel = false;
    j->worker = (struct worker *)&t; /* spawned, has not said hello */
    assert_null(next(&t, &lease));
    j->worker = NULL;
    assert_ptr_equal(next(&t, &lease), j);
}

static void test_a_job_gets_as_many_devices_as_are_free_up_to_its_most(void **state)
{
    struct table t;
    struct job_lease lease;
    (void)state;
    machine(&t, 4);
    struct job *j = add(&t, 2, 3);
    assert_ptr_equal(next(&t, &lease), j);
    check_devices(&lease, 3, 0, 1, 2);
    t.devices[0] = t.devices[2] = 99; /* holes */
    assert_ptr_equal(next(&t, &lease), j);
    check_devices(&lease, 2, 1, 3);
    t.devices[3] = 98;
    assert_null(next(&t, &lease)); /* one is free, two are needed */
    t.devices[0] = 0;
    assert_ptr_equal(next(&t, &lease), j);
    check_devices(&lease, 2, 0, 1);
}

static void test_nobody_overtakes_the_first(void **state)
{
    struct table t;
    struct job_lease lease;
    (void)state;
    machine(&t, 2);
    struct job *wide = add(&t, 2, 2), *narrow = add(&t, 1, 1);
    t.devices[0] = 99;
    assert_null(next(&t, &lease)); /* although narrow would fit */
    wide->cancel = true;
    assert_ptr_equal(next(&t, &lease), narrow);
    check_devices(&lease, 1, 1);
}

static void test_a_job_that_waits_for_its_restart_holds_up_nobody(void **state)
{
    struct table t;
    struct job_lease lease;
    (void)state;
    machine(&t, 1);
    struct job *a = add(&t, 1, 1), *b = add(&t, 1, 1);
    a->not_before_ms = NOW + 1;
    assert_ptr_equal(next(&t, &lease), b);
    a->not_before_ms = NOW; /* its time has come */
    assert_ptr_equal(next(&t, &lease), a);
    b->not_before_ms = a->not_before_ms = NOW + 1;
    assert_null(next(&t, &lease));
}

static void test_memory_is_what_was_asked_for_or_a_share(void **state)
{
    struct table t;
    struct job_lease lease;
    (void)state;
    machine(&t, 4);
    struct job *j = add(&t, 1, 3);
    next(&t, &lease);
    assert_int_equal(lease.device_bytes, 1000);
    assert_int_equal(lease.host_bytes, 600 / 4 * 3);
    j->ask.device_bytes = 77;
    j->ask.host_bytes = 88;
    next(&t, &lease);
    assert_int_equal(lease.device_bytes, 77);
    assert_int_equal(lease.host_bytes, 88);
}

static void test_auto_gives_what_is_asked_for_at_once(void **state)
{
    struct table t;
    struct job_lease lease;
    (void)state;
    machine(&t, 0);
    struct job *j = add(&t, 2, 5);
    add(&t, 64, 64);
    t.devices[0] = 99; /* means nothing */
    assert_ptr_equal(next(&t, &lease), j);
    check_devices(&lease, 5, 0, 1, 2, 3, 4);
    assert_int_equal(lease.device_bytes, 200);
    assert_int_equal(lease.host_bytes, 600);
    j->ask = (struct job_ask){1, DEVICE_MAX, 5000, 7, 0};
    assert_ptr_equal(next(&t, &lease), j);
    assert_int_equal(lease.n_devices, DEVICE_MAX);
    assert_int_equal(lease.device_bytes, 5000);
    assert_int_equal(lease.host_bytes, 7);
    j->state = JOB_RUNNING;
    assert_ptr_equal(next(&t, &lease), t.at[1]);
}

static void test_the_most_devices_fit_a_lease(void **state)
{
    struct table t;
    struct job_lease lease;
    (void)state;
    machine(&t, DEVICE_MAX);
    add(&t, DEVICE_MAX, DEVICE_MAX);
    assert_non_null(next(&t, &lease));
    assert_int_equal(lease.n_devices, DEVICE_MAX);
    assert_int_equal(lease.devices[DEVICE_MAX - 1], DEVICE_MAX - 1);
}

static void check_refused(const struct job_ask *ask, uint32_t n_devices, const char *path, const char *msg)
{
    uint64_t devices[DEVICE_MAX] = {0};
    const struct queue_machine m = {n_devices, 1000, 600, devices};
    struct err err = {0};
    assert_int_equal(queue_admits(ask, &m, &err), -ENOSPC);
    assert_int_equal(err.code, -ENOSPC);
    assert_string_equal(err.path, path);
    assert_string_equal(err.msg, msg);
    assert_int_equal(queue_admits(ask, &m, NULL), -ENOSPC);
}

static void check_admitted(const struct job_ask *ask, uint32_t n_devices)
{
    uint64_t devices[DEVICE_MAX] = {5, 5, 5}; /* who has them now does not matter */
    const struct queue_machine m = {n_devices, 1000, 600, devices};
    assert_int_equal(queue_admits(ask, &m, NULL), 0);
}

static void test_what_can_never_run_is_refused_with_what_it_lacks(void **state)
{
    (void)state;
    check_refused(&(struct job_ask){.devices_min = 3, .devices_max = 3}, 2, "resources.devices",
                  "asks for 3 devices; this machine has 2");
    check_refused(&(struct job_ask){.devices_min = 1, .devices_max = 1, .device_bytes = 1001}, 2,
                  "resources.device_memory", "asks for 1001 bytes; the largest device here has 1000");
    check_refused(&(struct job_ask){.devices_min = 1, .devices_max = 1, .host_bytes = 601}, 2,
                  "resources.host_memory", "asks for 601 bytes; this machine has 600");
    check_refused(&(struct job_ask){.devices_min = 1, .devices_max = 1, .host_bytes = 601}, 0,
                  "resources.host_memory", "asks for 601 bytes; this machine has 600");
}

static void test_what_fits_to_the_byte_is_admitted(void **state)
{
    (void)state;
    check_admitted(
        &(struct job_ask){.devices_min = 2, .devices_max = 2, .device_bytes = 1000, .host_bytes = 600}, 2);
    check_admitted(&(struct job_ask){.devices_min = 1, .devices_max = 9},
                   2); /* fewer than its most will do */
    check_admitted(&(struct job_ask){.devices_min = 64, .devices_max = 64, .device_bytes = 1ull << 50}, 0);
}

static void test_devices_of_different_sizes(void **state)
{
    static const uint64_t each[] = {500, 0, 1000, 800}; /* of one too little is free */
    struct table t;
    struct job_lease lease;
    struct err err = {0};
    (void)state;
    machine(&t, 4);
    t.machine.each_bytes = each;
    struct job *j = add(&t, 1, 4);
    assert_ptr_equal(next(&t, &lease), j);
    check_devices(&lease, 3, 0, 2, 3);
    assert_int_equal(lease.device_bytes, 500); /* what all of them have */
    j->ask.devices_max = 2;
    assert_ptr_equal(next(&t, &lease), j);
    check_devices(&lease, 2, 2, 3); /* the largest */
    assert_int_equal(lease.device_bytes, 800);
    j->ask.devices_max = 4;
    j->ask.device_bytes = 600;
    assert_ptr_equal(next(&t, &lease), j);
    check_devices(&lease, 2, 2, 3);
    assert_int_equal(lease.device_bytes, 600);
    assert_int_equal(queue_admits(&j->ask, &t.machine, &err), 0);
    t.devices[2] = t.devices[3] = 99;
    assert_null(next(&t, &lease)); /* the one that is free is too small */
    assert_int_equal(queue_admits(&j->ask, &t.machine, &err), 0);
    j->ask.devices_min = 3;
    assert_int_equal(queue_admits(&j->ask, &t.machine, &err), -ENOSPC);
    assert_string_equal(err.msg, "asks for 600 bytes on each of 3 devices; only 2 here can provide that");
    j->ask.device_bytes = 0;
    j->ask.devices_min = 4;
    assert_int_equal(queue_admits(&j->ask, &t.machine, &err), -ENOSPC);
    assert_string_equal(err.msg, "asks for 4 devices; enough memory is free on only 3 here");
    j->ask.device_bytes = 1001;
    assert_int_equal(queue_admits(&j->ask, &t.machine, &err), -ENOSPC);
    assert_string_equal(err.msg, "asks for 1001 bytes; the largest device here has 1000");
}

static void test_the_only_job_gets_all_of_the_host(void **state)
{
    struct table t;
    struct job_lease lease;
    (void)state;
    machine(&t, 4);
    t.machine.one_job = true;
    add(&t, 1, 1);
    assert_non_null(next(&t, &lease));
    assert_int_equal(lease.host_bytes, 600);
}

static void test_marked_devices_are_given_last_later_or_never(void **state)
{
    struct table t;
    struct job_lease lease;
    (void)state;
    machine(&t, 3);
    t.machine.use[0] = QUEUE_USE_LAST;
    struct job *j = add(&t, 1, 1);
    assert_ptr_equal(next(&t, &lease), j);
    check_devices(&lease, 1, 1);
    j->ask.devices_max = 3; /* it can do without */
    assert_ptr_equal(next(&t, &lease), j);
    check_devices(&lease, 2, 1, 2);
    j->ask.devices_min = 3;
    assert_ptr_equal(next(&t, &lease), j);
    check_devices(&lease, 3, 0, 1, 2);
    t.machine.use[0] = QUEUE_USE_LATER; /* it waits, and whoever is behind it */
    struct job *behind = add(&t, 1, 1);
    assert_null(next(&t, &lease));
    assert_false(queue_stuck(&j->ask, &t.machine));
    t.machine.use[0] = QUEUE_USE_NEVER; /* then it waits for nobody's end, and holds up nobody */
    assert_true(queue_stuck(&j->ask, &t.machine));
    assert_true(queue_withheld(&j->ask, &t.machine, 0));
    assert_false(queue_withheld(&j->ask, &t.machine, 1));
    assert_ptr_equal(next(&t, &lease), behind);
    check_devices(&lease, 1, 1);
    assert_int_equal(queue_admits(&j->ask, &t.machine, NULL), 0); /* at submit: the device may come back */
}

static void test_a_job_that_the_memory_of_no_device_suits_holds_up_nobody(void **state)
{
    static const uint64_t each[] = {500, 1000};
    struct table t;
    struct job_lease lease;
    (void)state;
    machine(&t, 2);
    t.machine.each_bytes = each;
    struct job *a = add(&t, 2, 2), *b = add(&t, 1, 1);
    a->ask.device_bytes = 600;
    assert_true(queue_stuck(&a->ask, &t.machine));
    assert_ptr_equal(next(&t, &lease), b);
    t.devices[0] = t.devices[1] = 99; /* whoever has them */
    b->ask.device_bytes = 600;
    assert_false(queue_stuck(&b->ask, &t.machine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_empty_queue_has_nobody),
        cmocka_unit_test(test_the_first_come_is_served_first),
        cmocka_unit_test(test_the_order_is_of_ids_not_of_places),
        cmocka_unit_test(test_only_jobs_that_wait_are_served),
        cmocka_unit_test(test_a_job_gets_as_many_devices_as_are_free_up_to_its_most),
        cmocka_unit_test(test_nobody_overtakes_the_first),
        cmocka_unit_test(test_a_job_that_waits_for_its_restart_holds_up_nobody),
        cmocka_unit_test(test_memory_is_what_was_asked_for_or_a_share),
        cmocka_unit_test(test_auto_gives_what_is_asked_for_at_once),
        cmocka_unit_test(test_the_most_devices_fit_a_lease),
        cmocka_unit_test(test_what_can_never_run_is_refused_with_what_it_lacks),
        cmocka_unit_test(test_what_fits_to_the_byte_is_admitted),
        cmocka_unit_test(test_devices_of_different_sizes),
        cmocka_unit_test(test_the_only_job_gets_all_of_the_host),
        cmocka_unit_test(test_marked_devices_are_given_last_later_or_never),
        cmocka_unit_test(test_a_job_that_the_memory_of_no_device_suits_holds_up_nobody),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
