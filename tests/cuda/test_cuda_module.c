/* Tests how the program finds the module of the cuda backend and when it refuses it, and its message on a
 * machine without a driver. The test uses the real libcudart and needs no simulator. On a machine with a GPU
 * the last test is skipped.
 *
 * Every case opens the devset in a child process, because a module is never unloaded and reads its
 * environment when it is loaded.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/rig.h"
#include "tests/skip.h"

/* What a child says about opening a devset with TUTTI_CUDA_MODULE set to `module` (NULL: not set). */
struct answer {
    int code;
    char text[2048];
};

static struct answer open_in_child(const char *module)
{
    struct answer a = {0};
    int fds[2], status = 0;

    assert_int_equal(pipe(fds), 0);
    fflush(stdout);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct devset_config c = rig_config("cuda", 1);
        struct devset *ds = NULL;
        struct err err = {0};
        if (module)
            setenv("TUTTI_CUDA_MODULE", module, 1);
        else
            unsetenv("TUTTI_CUDA_MODULE");
        a.code = devset_open(&c, &ds, &err);
        err_text(&err, a.text, sizeof a.text);
        const bool said = write(fds[1], &a, sizeof a) == (ssize_t)sizeof a;
        devset_close(ds);
        _exit(said ? 0 : 1);
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], &a, sizeof a), sizeof a);
    close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    printf("# %s\n", a.text);
    return a;
}

static void assert_answer(const char *module, int code, const char *says)
{
    const struct answer a = open_in_child(module);

    if (a.code != code || !strstr(a.text, says))
        fail_msg("want %d and \"%s\", got %d and \"%s\"", code, says, a.code, a.text);
}

static void test_no_module_says_how_to_get_one(void **state)
{
    (void)state;
    assert_answer("/nowhere/libtutti-cuda.so", -ENOENT, "/nowhere/libtutti-cuda.so");
    assert_answer("/nowhere/libtutti-cuda.so", -ENOENT, "-Dcuda=enabled");
}

static void test_file_that_is_no_library_refused(void **state)
{
    char path[] = "/tmp/tutti-module-XXXXXX";
    const int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "no library\n", 11), 11);
    close(fd);
    assert_answer(path, -ELIBACC, "cannot be loaded");
    unlink(path);
}

static void test_library_that_is_no_backend_refused(void **state)
{
    (void)state;
    assert_answer("libm.so.6", -ENOENT, "libm.so.6"); /* a path, not a name to look up */
    assert_answer(MODULE_FOREIGN, -EPROTO, "not a backend");
}

static void test_module_of_another_version_refused(void **state)
{
    (void)state;
    assert_answer(MODULE_STALE, -EPROTO, "another version");
}

/* It needs a library that is not here, as the real one does on a machine without the CUDA runtime. */
static void test_missing_runtime_is_named(void **state)
{
    (void)state;
    assert_answer(MODULE_ORPHAN, -ELIBACC, "libabsent-cudart.so.13");
    assert_answer(MODULE_ORPHAN, -ELIBACC, "LD_LIBRARY_PATH");
}

/* The real module, found beside the program, with the real runtime. */
static void test_no_driver_is_said(void **state)
{
    (void)state;
    const struct answer a = open_in_child(NULL);
    if (a.code == 0)
        SKIP_TEST("there is a GPU here");
    assert_int_equal(a.code, -ENODEV);
    assert_true(strstr(a.text, "driver") || strstr(a.text, "devices"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_that_is_no_library_refused),
        cmocka_unit_test(test_library_that_is_no_backend_refused),
        cmocka_unit_test(test_missing_runtime_is_named),
        cmocka_unit_test(test_module_of_another_version_refused),
        cmocka_unit_test(test_no_driver_is_said),
        cmocka_unit_test(test_no_module_says_how_to_get_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
