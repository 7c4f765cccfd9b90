/* Tests of fair_pool.h and users.h with a real loop. Work in the thread pool: users take turns, and only a
 * few pieces of work run at once. User names: each is looked up once, by one thread at a time, and the
 * answers come in the order of the requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "daemon/fair_pool.h"
#include "daemon/users.h"

static uv_loop_t loop;

static int begin(void **state)
{
    (void)state;
    return uv_loop_init(&loop);
}

static int end(void **state)
{
    (void)state;
    return uv_loop_close(&loop);
}

/* ---- fair pool ---- */

static atomic_int inside, most_inside;
static char
    order[64]; /* of the starts: one letter a user; with one piece at a time that is the order of `run` */
static atomic_int n_order;
static uv_sem_t gate; /* the first piece waits here until all are added */
static int n_done;

static void run_piece(struct fair_pool_task *t)
{
    int now = atomic_fetch_add(&inside, 1) + 1;
    if (now > atomic_load(&most_inside))
        atomic_store(&most_inside, now);
    int place = atomic_fetch_add(&n_order, 1);
    order[place] = (char)t->uid;
    if (place == 0)
        uv_sem_wait(&gate);
    atomic_fetch_sub(&inside, 1);
}

static void piece_done(struct fair_pool_task *t)
{
    (void)t;
    n_done++;
}

static void run_all(struct fair_pool_task *tasks, const char *uids, uint32_t most)
{
    struct fair_pool h;
    size_t n = strlen(uids);
    atomic_store(&inside, 0);
    atomic_store(&most_inside, 0);
    atomic_store(&n_order, 0);
    memset(order, 0, sizeof order);
    n_done = 0;
    uv_sem_init(&gate, 0);
    fair_pool_init(&h, &loop, most);
    for (size_t i = 0; i < n; i++) {
        tasks[i] = (struct fair_pool_task){.uid = (uid_t)uids[i], .run = run_piece, .done = piece_done};
        fair_pool_add(&h, &tasks[i]);
    }
    uv_sem_post(&gate);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(n_done, n);
    assert_int_equal(h.running, 0);
    assert_null(h.first);
    fair_pool_finish(&h);
    uv_sem_destroy(&gate);
}

static void test_users_take_turns(void **state)
{
    struct fair_pool_task tasks[16];
    (void)state;
    run_all(tasks, "aaaaaab", 1);
    assert_string_equal(order, "abaaaaa"); /* the seventh to come is the second to start */
    run_all(tasks, "aaabbbccc", 1);
    assert_string_equal(order, "abcabcabc");
    run_all(tasks, "aaaa", 1);
    assert_string_equal(order, "aaaa");
}

static void test_no_more_than_the_limit_run_at_once(void **state)
{
    struct fair_pool_task tasks[16];
    (void)state;
    run_all(tasks, "aaaabbbbcccc", 2);
    assert_true(atomic_load(&most_inside) <= 2);
}

/* ---- users ---- */

static atomic_int lookups, looking;

static void slow_name(uid_t uid, char *buf, size_t size)
{
    assert_int_equal(atomic_fetch_add(&looking, 1), 0); /* one at a time */
    atomic_fetch_add(&lookups, 1);
    snprintf(buf, size, "user%u", (unsigned)uid);
    atomic_fetch_sub(&looking, 1);
}

static char told[128];

static void tell(struct users_ask *ask, const char *name)
{
    size_t n = strlen(told);
    (void)ask;
    snprintf(told + n, sizeof told - n, "%s ", name);
}

static void test_names_are_looked_up_once_and_kept(void **state)
{
    struct users *u = users_create(&loop, slow_name);
    struct users_ask a = {.uid = 1, .done = tell}, b = {.uid = 1, .done = tell}, c = {.uid = 2, .done = tell};
    (void)state;
    atomic_store(&lookups, 0);
    told[0] = '\0';
    users_ask(u, &a);
    users_ask(u, &b);
    users_ask(u, &c);
    assert_string_equal(told, ""); /* never on the loop's thread */
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_string_equal(told, "user1 user1 user2 ");
    users_ask(u, &a);
    users_ask(u, &c);
    assert_string_equal(told, "user1 user1 user2 user1 user2 "); /* at once */
    assert_int_equal(atomic_load(&lookups), 2);
    uv_run(&loop, UV_RUN_DEFAULT);
    users_destroy(u);
}

static void test_a_user_without_a_name_is_called_by_number(void **state)
{
    struct users *u = users_create(&loop, NULL);
    struct users_ask a = {.uid = 3999999999u, .done = tell};
    (void)state;
    told[0] = '\0';
    users_ask(u, &a);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_string_equal(told, "3999999999 ");
    users_destroy(u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_users_take_turns, begin, end),
        cmocka_unit_test_setup_teardown(test_no_more_than_the_limit_run_at_once, begin, end),
        cmocka_unit_test_setup_teardown(test_names_are_looked_up_once_and_kept, begin, end),
        cmocka_unit_test_setup_teardown(test_a_user_without_a_name_is_called_by_number, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
