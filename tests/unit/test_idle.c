/* Tests that no thread of a devset spins. While nothing can proceed, every thread must sleep: a stream that
 * waits for an event, for commands or in a paced copy, the pool when it waits for work, and a caller when a
 * queue is full.
 *
 * The test decides when work can proceed: paced copies sleep through the clock's hooks, and the hook here
 * sleeps until the test releases it. The test observes threads through /proc, where a spinning thread shows
 * as running in some sample.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "kernels/device.h"
#include "tests/skip.h"

#define SAMPLES 300
#define COPIES  2000 /* more than a stream's queue holds */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static bool is_open;    /* guarded by lock */
static uint64_t now_ns; /* guarded by lock */

static uint64_t fake_now(void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&lock);
    uint64_t t = now_ns;
    pthread_mutex_unlock(&lock);
    return t;
}

static void fake_sleep(void *ctx, uint64_t ns)
{
    (void)ctx;
    pthread_mutex_lock(&lock);
    while (!is_open)
        pthread_cond_wait(&opened, &lock);
    now_ns += ns;
    pthread_mutex_unlock(&lock);
}

static void open_gate(void)
{
    pthread_mutex_lock(&lock);
    is_open = true;
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&lock);
}

/* The state letter of a thread: the field after the name, which may itself hold spaces and parentheses. */
static char thread_state(const char *tid)
{
    char path[300], buf[512];
    snprintf(path, sizeof path, "/proc/self/task/%s/stat", tid);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return 'X';
    size_t n = fread(buf, 1, sizeof buf - 1, f);
    fclose(f);
    buf[n] = '\0';
    const char *end = strrchr(buf, ')');
    return end != NULL && end[1] == ' ' ? end[2] : '?';
}

/* How many threads other than the caller run, and how many there are. */
static uint32_t count_running(uint32_t *ret_threads)
{
    uint32_t running = 0;
    long self = syscall(SYS_gettid);
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    *ret_threads = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.' || atol(e->d_name) == self)
            continue;
        ++*ret_threads;
        running += thread_state(e->d_name) == 'R';
    }
    closedir(d);
    return running;
}

/* Asserts that all threads fall asleep and stay asleep: no later sample may show a running thread. */
static void assert_all_sleep(uint32_t least_threads)
{
    uint32_t threads, tries = 0;
    while (count_running(&threads) > 0 && ++tries < 100000)
        sched_yield();
    uint32_t seen = 0;
    for (int i = 0; i < SAMPLES; i++) {
        seen += count_running(&threads);
        usleep(100);
    }
    assert_true(threads >= least_threads);
    assert_int_equal(seen, 0);
}

struct feeder {
    struct devset *ds;
    char *host;
};

/* Blocks when the queue is full. */
static void *feed(void *arg)
{
    struct feeder *f = arg;
    for (int i = 0; i < COPIES; i++)
        devset_copy(f->ds, LANE_IN, devset_address(f->ds, 0, 0), f->host, 256);
    return NULL;
}

static void test_idle_devices_sleep(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    SKIP_TEST("the thread sanitizer has a thread of its own that wakes now and then");
#endif
    struct clock_hooks hooks = {.monotonic_ns = fake_now, .wall_ns = fake_now, .sleep_ns = fake_sleep};
    struct devset_config config = {.backend = "cpu",
                                   .n_devices = 2,
                                   .capacity_bytes = {4096, 4096},
                                   .threads = 3,
                                   .link_bytes_per_s = 1};
    struct devset *ds;
    struct event *e;
    char host[256] = {0};
    clock_set_hooks(&hooks);
    assert_int_equal(devset_open(&config, &ds, NULL), 0);
    assert_int_equal(event_create(ds, &e), 0);
    assert_all_sleep(9 + 2); /* nothing to do: nine streams, two helpers */

    /* The in stream of device 0 sleeps in a paced copy. The compute streams of both devices wait for that
     * copy, and the feeder thread waits for a free entry in the queue. */
    assert_int_equal(devset_copy(ds, LANE_IN, devset_address(ds, 0, 0), host, 256), 0);
    assert_int_equal(event_record(ds, LANE_IN, e), 0);
    assert_int_equal(event_wait(ds, LANE_COMPUTE, e), 0);
    assert_int_equal(event_wait(ds, LANE_COUNT + LANE_COMPUTE, e), 0);
    struct feeder f = {ds, host};
    pthread_t feeder;
    assert_int_equal(pthread_create(&feeder, NULL, feed, &f), 0);
    assert_all_sleep(9 + 2 + 1);

    open_gate();
    pthread_join(feeder, NULL);
    assert_int_equal(devset_drain(ds), 0);
    struct device_counters c;
    devset_counters(ds, 0, &c);
    assert_int_equal(c.in_bytes, (COPIES + 1) * 256);
    assert_all_sleep(9 + 2);
    event_destroy(ds, e);
    devset_close(ds);
    clock_set_hooks(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_devices_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
