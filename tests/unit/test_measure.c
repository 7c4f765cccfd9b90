/* Tests the measurement of links, on virtual devices, and the cache of measured values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "daemon/worker/probe/discover.h"
#include "daemon/worker/probe/measure.h"

static struct topology t, other; /* 50 KiB each */
static char dir[] = "/tmp/test-measure-XXXXXX", path[PATH_MAX];

static int set_up(void **state)
{
    (void)state;
    log_init(LOG_ERROR, 0);
    if (mkdtemp(dir) == NULL)
        return -1;
    return setenv("XDG_CACHE_HOME", dir, 1);
}

static int tear_down(void **state)
{
    char command[PATH_MAX];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

/* A cuda machine of paper. */
static void two_devices(struct topology *to)
{
    *to = (struct topology){.backend = BACKEND_CUDA, .n_devices = 2, .has_peers = true};
    for (uint32_t i = 0; i < 2; i++)
        to->devices[i] = (struct device_info){
            .index = i, .name = "paper", .total_bytes = 1 << 30, .free_bytes = 1 << 30, .numa_node = -1};
    to->peers[0][1] = TOPOLOGY_PEER_DIRECT;
}

static void measured(struct topology *to)
{
    two_devices(to);
    to->link_in_bytes_per_s = 11;
    to->link_out_bytes_per_s = 12;
    to->peer_bytes_per_s = 13;
    to->peers[0][1] = 14;
}

static void test_virtual_devices_are_measured(void **state)
{
    struct err err = {0};
    (void)state;
    t = (struct topology){.backend = BACKEND_CPU};
    assert_int_equal(measure(&t, 2, &err), 0);
    assert_true(t.link_in_bytes_per_s > 1 && t.link_out_bytes_per_s > 1 && t.peer_bytes_per_s > 1);
    assert_int_equal(t.n_devices, 0);
    assert_false(t.has_peers);
    assert_int_equal(measure(&t, 1, &err), 0);
    assert_int_equal(t.peer_bytes_per_s, 0); /* nobody to copy to */
}

static void test_listed_devices_are_measured_pair_by_pair(void **state)
{
    struct err err = {0};
    (void)state;
    two_devices(&t);
    t.backend = BACKEND_CPU; /* as many as are listed */
    assert_int_equal(measure(&t, 7, &err), 0);
    assert_true(t.peers[0][1] > TOPOLOGY_PEER_DIRECT);
    assert_int_equal(t.peers[1][0], 0); /* measured, but still not direct */
    assert_true(t.peer_bytes_per_s > 1 && t.peer_bytes_per_s <= t.peers[0][1]);
}

static void test_a_device_without_room_is_not_measured(void **state)
{
    struct err err = {0};
    (void)state;
    two_devices(&t);
    t.devices[1].free_bytes = TOPOLOGY_CUDA_RESERVE_BYTES + MEASURE_BYTES - 1;
    assert_int_equal(measure(&t, 1, &err), -ENOSPC);
    assert_non_null(strstr(err.msg, "device 1"));
}

static void test_what_was_measured_is_found_again(void **state)
{
    struct err err = {0};
    struct stat st;
    (void)state;
    measured(&t);
    two_devices(&other);
    assert_false(cache_load(&other));
    assert_int_equal(cache_store(&t, &err), 0);
    assert_int_equal(cache_path(&t, path, sizeof path, &err), 0);
    assert_int_equal(stat(path, &st), 0);
    two_devices(&other);
    other.devices[0].free_bytes = 5; /* does not matter */
    assert_true(cache_load(&other));
    assert_int_equal(other.link_in_bytes_per_s, 11);
    assert_int_equal(other.link_out_bytes_per_s, 12);
    assert_int_equal(other.peer_bytes_per_s, 13);
    assert_int_equal(other.peers[0][1], 14);
    assert_int_equal(other.devices[0].free_bytes, 5);
    strcpy(other.devices[1].uuid, "GPU-other");
    assert_false(cache_load(&other));
}

static void write_cache(const char *text, size_t bytes)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static void test_a_damaged_cache_is_as_none(void **state)
{
    struct strbuf b = {0};
    (void)state;
    measured(&t);
    assert_int_equal(cache_path(&t, path, sizeof path, NULL), 0);
    topology_to_json(&t, &b);
    for (size_t n = 0; n < b.n; n += 7) {
        write_cache(b.at, n);
        two_devices(&other);
        assert_false(cache_load(&other));
        assert_int_equal(other.link_in_bytes_per_s, 0);
        assert_int_equal(other.peers[0][1], TOPOLOGY_PEER_DIRECT);
    }
    strbuf_finish(&b);
    two_devices(&t); /* of these devices, but without rates */
    topology_to_json(&t, &b);
    write_cache(b.at, b.n);
    assert_false(cache_load(&other));
    strbuf_finish(&b);
    strcpy(t.devices[0].name, "others");
    t.link_in_bytes_per_s = 9;
    topology_to_json(&t, &b); /* of other devices, under this name */
    write_cache(b.at, b.n);
    assert_false(cache_load(&other));
    strbuf_finish(&b);
}

static void test_a_cache_that_cannot_be_written_is_an_error(void **state)
{
    struct err err = {0};
    char file[PATH_MAX];
    (void)state;
    measured(&t);
    snprintf(file, sizeof file, "%s/file", dir);
    assert_true(close(open(file, O_CREAT | O_WRONLY, 0600)) == 0);
    assert_int_equal(setenv("XDG_CACHE_HOME", file, 1), 0); /* no directory */
    assert_int_equal(cache_store(&t, &err), -ENOTDIR);
    assert_false(cache_load(&t));
    unsetenv("XDG_CACHE_HOME");
    char *home = strdup(getenv("HOME") != NULL ? getenv("HOME") : "/");
    unsetenv("HOME");
    assert_int_equal(cache_store(&t, &err), -ENOENT);
    setenv("HOME", home, 1);
    free(home);
    setenv("XDG_CACHE_HOME", dir, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_virtual_devices_are_measured),
        cmocka_unit_test(test_listed_devices_are_measured_pair_by_pair),
        cmocka_unit_test(test_a_device_without_room_is_not_measured),
        cmocka_unit_test(test_what_was_measured_is_found_again),
        cmocka_unit_test(test_a_damaged_cache_is_as_none),
        cmocka_unit_test(test_a_cache_that_cannot_be_written_is_an_error),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
