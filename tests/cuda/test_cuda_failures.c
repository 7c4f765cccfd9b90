/* Tests how the cuda backend handles failures. The tests run under the simulator, which can make the n-th
 * call of a kind fail or break its device (CUDASIM_FAULT, see tests/cudasim/fault.c).
 *
 * Whichever call fails, the backend must return an errno and must not hang. The devset must answer every
 * later call with the same error. Closing the devset must work, and must free everything unless the device is
 * broken.
 *
 * Every case runs in a child process, because the simulator reads its environment when it is loaded.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/rig.h"

#define N      64
#define ROUNDS 5

/* What a child found. */
enum verdict {
    PASSED_BY = 10, /* the fault was not met: everything worked */
    OPEN_FAILED,    /* cleanly */
    RUN_FAILED,     /* cleanly */
    WRONG_CODE,     /* not the errno that belongs to the error */
    NOT_REMEMBERED, /* a later call succeeded, or failed in another way */
    WRONG_NUMBERS,  /* worked, with wrong results */
};

static int wanted_code; /* of the failure; child only */

/* Rounds of copies, kernels, host functions and events over two devices. The first failure, or 0. */
static int run(struct devset *ds, struct event *e, float *y, const float *one)
{
    float *d0 = devset_address(ds, 0, 0), *d1 = devset_address(ds, 1, 0);
    const uint32_t chain[] = {STREAM(2, 0), STREAM(0, LANE_IN), STREAM(0, LANE_COMPUTE), STREAM(0, LANE_PEER),
                              STREAM(1, LANE_OUT)};
    const struct op_call add = rig_add(y, one, N), relu = rig_relu(d0, N);
    const struct op_call gemm = {
        .op = OP_linear_fwd, .linear_fwd = {.x = d0, .w = d0, .y = d0 + N, .rows = 4, .in = N / 4, .out = 4}};
    int r = 0;

    for (int i = 0; i < ROUNDS && r == 0; i++)
        for (int s = 0; s < 5 && r == 0; s++) {
            r = event_wait(ds, chain[s], e);
            if (r < 0)
                break;
            switch (s) {
            case 0:
                r = devset_launch(ds, chain[s], &add);
                break;
            case 1:
                r = devset_copy(ds, chain[s], d0, y, N * sizeof *y);
                break;
            case 2:
                r = devset_launch(ds, chain[s], &relu);
                if (r == 0)
                    r = devset_launch(ds, chain[s], &gemm);
                break;
            case 3:
                r = devset_copy(ds, chain[s], d1, d0, N * sizeof *y);
                break;
            default:
                r = devset_copy(ds, chain[s], y, d1, N * sizeof *y);
            }
            if (r == 0)
                r = event_record(ds, chain[s], e);
        }
    if (r == 0)
        r = event_sync(ds, e);
    return r == 0 ? devset_drain(ds) : r;
}

static enum verdict after_failure(struct devset *ds, struct event *e, float *y, int r)
{
    const struct op_call call = rig_relu(devset_address(ds, 0, 0), N);

    if (r != wanted_code)
        return WRONG_CODE;
    if (devset_launch(ds, 0, &call) != r || devset_launch(ds, STREAM(2, 0), &call) != r ||
        devset_copy(ds, STREAM(0, LANE_IN), devset_address(ds, 0, 0), y, 4) != r ||
        event_record(ds, 0, e) != r || event_wait(ds, 1, e) != r || event_sync(ds, e) != r ||
        devset_drain(ds) != r)
        return NOT_REMEMBERED;
    return RUN_FAILED;
}

#define PAGE 4096

static enum verdict open_and_run(void)
{
    struct devset_config c = rig_config("cuda", 2);
    struct devset *ds = NULL;
    struct event *e = NULL;
    struct err err = {0};
    void *y = NULL, *one = NULL;
    c.host_chunk_bytes = PAGE; /* host memory is pinned in several pieces */
    int r = devset_open(&c, &ds, &err);

    if (r < 0)
        return r == wanted_code && *err.msg ? OPEN_FAILED : WRONG_CODE;
    enum verdict v = PASSED_BY;
    r = event_create(ds, &e);
    if (r == 0)
        r = devset_host_alloc(ds, 3 * PAGE, &y, NULL);
    if (r == 0)
        r = devset_host_alloc(ds, 3 * PAGE, &one, NULL);
    if (r < 0) { /* refused, and the devset lives */
        v = r == wanted_code ? OPEN_FAILED : WRONG_CODE;
    } else {
        for (int i = 0; i < N; i++)
            ((float *)one)[i] = 1;
        r = run(ds, e, y, one);
        if (r < 0)
            v = after_failure(ds, e, y, r);
        else if (((float *)y)[0] != ROUNDS)
            v = WRONG_NUMBERS;
    }
    devset_drain(ds);
    event_destroy(ds, e);
    devset_host_free(ds, one, 3 * PAGE);
    devset_host_free(ds, y, 3 * PAGE);
    devset_close(ds);
    return v;
}

static char report_path[] = "/tmp/tutti-cudasim-XXXXXX";

/* Asserts that the simulator of the last child reports no memory that was never freed. */
static void assert_no_leaks(const char *what)
{
    static const char none[] = "\"leaks\": {\"device_allocations\": 0, \"device_bytes\": 0, "
                               "\"host_allocations\": 0, \"host_bytes\": 0, \"registrations\": 0, "
                               "\"streams\": 0, \"events\": 0}";
    static char text[1 << 16];
    FILE *f = fopen(report_path, "r");

    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    if (!strstr(text, none))
        fail_msg("%s: %s", what, text);
}

/* With one variable of the environment set. */
static enum verdict in_child(const char *variable, const char *value, int code, enum verdict (*child)(void))
{
    int status = 0;

    fflush(stdout);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(3600); /* a hang is a failure; no load on the machine comes near it */
        signal(SIGALRM, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        setenv(variable, value, 1);
        wanted_code = code;
        setenv("CUDASIM_REPORT", report_path, 1);
        if (!freopen("/dev/null", "w", stderr))
            exit(1);
        exit((int)child()); /* the simulator reports at the exit */
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status))
        fail_msg("%s=%s: ended by signal %d", variable, value, WTERMSIG(status));
    return (enum verdict)WEXITSTATUS(status);
}

/* Runs one case for each call of this kind: the first call fails, then the second, and so on, up to the last
 * call or `most`. */
static void fail_every(const char *kind, const char *how, int code, int most)
{
    int n;

    for (n = 1; n <= most; n++) {
        char value[96];
        snprintf(value, sizeof value, "%s:%d%s", kind, n, how);
        const enum verdict v = in_child("CUDASIM_FAULT", value, code, open_and_run);
        if (v == PASSED_BY)
            break;
        if (v != OPEN_FAILED && v != RUN_FAILED)
            fail_msg("%s: verdict %d", value, (int)v);
        if (!*how)
            assert_no_leaks(value);
    }
    printf("# %s%s: %d calls failed\n", kind, how, n - 1);
    assert_true(n > 1);
}

static void test_every_refused_resource_is_clean(void **state)
{
    (void)state;
    fail_every("malloc", "", -ENOMEM, 100);
    fail_every("hostalloc", "", -ENOMEM, 100);
    fail_every("stream", "", -ENOMEM, 100);
    fail_every("event", "", -ENOMEM, 100);
}

static void test_every_failed_call_is_clean(void **state)
{
    (void)state;
    fail_every("launch", "", -EIO, 60);
    fail_every("gemm", "", -ENOMEM, 10); /* cuBLAS says CUBLAS_STATUS_ALLOC_FAILED */
    fail_every("memcpy", "", -EIO, 30);
    fail_every("hostfunc", "", -EIO, 5);
    fail_every("record", "", -EIO, 60);
    fail_every("wait", "", -EIO, 60);
    fail_every("sync", "", -EIO, 60);
}

static void test_every_broken_device_is_clean(void **state)
{
    (void)state;
    fail_every("malloc", ":sticky", -EIO, 4);
    fail_every("launch", ":sticky", -EIO, 60);
    fail_every("gemm", ":sticky", -EIO, 10);
    fail_every("memcpy", ":sticky", -EIO, 10);
    fail_every("hostfunc", ":sticky", -EIO, 5);
    fail_every("sync", ":sticky", -EIO, 60);
}

static void test_device_that_is_gone_is_said(void **state)
{
    int n_failed = 0;

    (void)state;
    for (int n = 1; n < 90; n += 3) {
        char value[48];
        snprintf(value, sizeof value, "device:%d:gone@%d", n % 2, n);
        const enum verdict v = in_child("CUDASIM_FAULT", value, -ENODEV, open_and_run);
        if (v != PASSED_BY && v != OPEN_FAILED && v != RUN_FAILED)
            fail_msg("%s: verdict %d", value, (int)v);
        n_failed += v != PASSED_BY;
    }
    assert_true(n_failed > 5);
}

/* A kernel that writes outside of every allocation: on a GPU an illegal address, which breaks the context. */
static enum verdict write_far_away(void)
{
    const struct devset_config c = rig_config("cuda", 1);
    struct devset *ds = NULL;
    struct event *e = NULL;
    enum verdict v = WRONG_CODE;

    if (devset_open(&c, &ds, NULL) < 0 || event_create(ds, &e) < 0)
        return WRONG_NUMBERS;
    const struct op_call call = rig_relu((float *)(uintptr_t)4096, N);
    if (devset_launch(ds, 0, &call) == 0 && devset_drain(ds) == -EIO)
        v = devset_launch(ds, 0, &call) == -EIO && devset_drain(ds) == -EIO ? RUN_FAILED : NOT_REMEMBERED;
    event_destroy(ds, e);
    devset_close(ds);
    return v;
}

static void test_kernel_outside_of_memory_fails_the_devset(void **state)
{
    (void)state;
    assert_int_equal(in_child("CUDASIM_SEED", "1", -EIO, write_far_away), RUN_FAILED);
}

/* Pinning the fourth chunk of host memory fails. The error message must say how many bytes were pinned and
 * what the user can do. The chunks pinned before must be released, and a second allocation must succeed. */
static enum verdict pin_too_much(void)
{
    struct devset_config c = rig_config("cuda", 1);
    struct devset *ds = NULL;
    struct err err = {0};
    void *p = &c;
    enum verdict v = WRONG_CODE;

    c.host_chunk_bytes = PAGE;
    if (devset_open(&c, &ds, NULL) < 0)
        return WRONG_NUMBERS;
    if (devset_host_alloc(ds, 6 * PAGE, &p, &err) == -ENOMEM && p == &c &&
        strstr(err.msg, "only 12288 of 24576 bytes of host memory could be pinned") &&
        strstr(err.msg, "out of memory") && strstr(err.msg, "ulimit -l") && strstr(err.msg, "LimitMEMLOCK="))
        v = devset_host_alloc(ds, 6 * PAGE, &p, &err) == 0 && devset_drain(ds) == 0 ? RUN_FAILED
                                                                                    : NOT_REMEMBERED;
    devset_close(ds); /* frees what nobody did */
    return v;
}

static void test_memory_that_cannot_be_pinned_is_given_back(void **state)
{
    (void)state;
    assert_int_equal(in_child("CUDASIM_FAULT", "hostalloc:4", 0, pin_too_much), RUN_FAILED);
    assert_no_leaks("hostalloc:4");
}

/* The parent has not loaded the simulator; these do, in a child that asserts. */
static void refuse_in_child(const char *devices, uint32_t n_devices, uint64_t capacity, int code,
                            const char *says)
{
    int status = 0;

    fflush(stdout);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct devset_config c = rig_config("cuda", n_devices);
        struct devset *ds = NULL;
        struct err err = {0};
        setenv("CUDASIM_DEVICES", devices, 1);
        c.capacity_bytes[n_devices - 1] = capacity;
        const int r = devset_open(&c, &ds, &err);
        printf("# %d: %s\n", r, err.msg);
        fflush(stdout);
        _exit(r == code && strstr(err.msg, says) && !ds ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_what_is_not_there_is_said(void **state)
{
    (void)state;
    refuse_in_child("0", 1, RIG_CAPACITY, -ENODEV, "no device");
    refuse_in_child("1", 2, RIG_CAPACITY, -ENODEV, "2 devices were requested but CUDA has 1");
    refuse_in_child("2", 2, UINT64_C(1) << 40, -ENOMEM, "device 1 cannot provide 1099511627776 bytes");
}

static int make_report(void **state)
{
    const int fd = mkstemp(report_path);

    (void)state;
    return fd < 0 ? -1 : close(fd);
}

static int remove_report(void **state)
{
    (void)state;
    return unlink(report_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_that_is_gone_is_said),
        cmocka_unit_test(test_every_broken_device_is_clean),
        cmocka_unit_test(test_every_failed_call_is_clean),
        cmocka_unit_test(test_every_refused_resource_is_clean),
        cmocka_unit_test(test_kernel_outside_of_memory_fails_the_devset),
        cmocka_unit_test(test_memory_that_cannot_be_pinned_is_given_back),
        cmocka_unit_test(test_what_is_not_there_is_said),
    };

    return cmocka_run_group_tests(tests, make_report, remove_report);
}
