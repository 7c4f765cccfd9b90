/* Tests the JSON description of a machine: reading and writing, every kind of refusal, the memory that is
 * left on a device, and the rates that a plan uses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "scheduler/topology.h"

#define HEAD "{\"schema\":\"machine/v1\",\"backend\":\"cuda\",\"devices\":"

static struct topology t; /* 50 KiB */

static int parse(const char *text, struct err *err)
{
    return topology_parse(text, strlen(text), "m.json", &t, err);
}

static void check_good(const char *text)
{
    struct err err = {0};
    if (parse(text, &err) < 0)
        fail_msg("%s: %s", err.path, err.msg);
}

static void check_bad(const char *text, const char *path, const char *says)
{
    struct err err = {0};
    assert_int_equal(parse(text, &err), -EINVAL);
    assert_string_equal(err.path, path);
    if (strstr(err.msg, says) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", err.msg, says);
}

static void check_round_trip(const char *text)
{
    static struct topology before;
    struct strbuf a = {0}, b = {0};
    check_good(text);
    before = t;
    topology_to_json(&t, &a);
    check_good(a.at);
    assert_memory_equal(&t, &before, sizeof t);
    topology_to_json(&t, &b);
    assert_string_equal(a.at, b.at);
    strbuf_finish(&a);
    strbuf_finish(&b);
}

static const char full[] =
    "{\"schema\":\"machine/v1\",\"backend\":\"cuda\",\"devices\":["
    "{\"index\":2,\"memory_bytes\":\"16GiB\",\"free_bytes\":\"15GiB\",\"name\":\"NVIDIA "
    "\\u00b5\",\"bus_id\":\"0000:3b:00.0\","
    "\"uuid\":\"GPU-1\",\"numa_node\":0,\"pcie\":{\"generation\":4,\"width\":16}},"
    "{\"memory_bytes\":17179869184}],"
    "\"link_bytes_per_s\":{\"in\":\"11GB\",\"out\":12000000000},\"peer_bytes_per_s\":8000000000,"
    "\"all_links_bytes_per_s\":{\"in\":\"20GB\",\"out\":\"18GB\"},\"peers_by_link\":true,"
    "\"peers\":[[false,8000000000],[true,false]],\"host_memory_bytes\":\"64GiB\",\"host_bytes_per_s\":"
    "\"20GB\","
    "\"device_bytes_per_s\":\"900GB\",\"device_flops_per_s\":15000000000000,\"launch_ns\":7000,"
    "\"cores\":8,\"device_cores\":1,\"host_cores\":2,\"core_copy_bytes_per_s\":\"9GB\"}";

static void test_everything_is_read(void **state)
{
    (void)state;
    check_good(full);
    assert_int_equal(t.backend, BACKEND_CUDA);
    assert_int_equal(t.n_devices, 2);
    assert_int_equal(t.devices[0].index, 2);
    assert_int_equal(t.devices[0].total_bytes, 16ull << 30);
    assert_int_equal(t.devices[0].free_bytes, 15ull << 30);
    assert_string_equal(t.devices[0].bus_id, "0000:3b:00.0");
    assert_string_equal(t.devices[0].uuid, "GPU-1");
    assert_int_equal(t.devices[0].numa_node, 0);
    assert_int_equal(t.devices[0].pcie_generation, 4);
    assert_int_equal(t.devices[0].pcie_width, 16);
    assert_int_equal(t.devices[1].index, 1); /* its place */
    assert_int_equal(t.devices[1].free_bytes, 16ull << 30);
    assert_int_equal(t.devices[1].numa_node, -1);
    assert_int_equal(t.link_in_bytes_per_s, 11000000000);
    assert_int_equal(t.link_out_bytes_per_s, 12000000000);
    assert_int_equal(t.all_links_in_bytes_per_s, 20000000000);
    assert_int_equal(t.all_links_out_bytes_per_s, 18000000000);
    assert_true(t.peers_by_link);
    assert_true(t.has_peers);
    assert_int_equal(t.peers[0][1], 8000000000);
    assert_int_equal(t.peers[1][0], TOPOLOGY_PEER_DIRECT);
    assert_int_equal(t.peers[0][0], 0);
    assert_int_equal(t.host_memory_bytes, 64ull << 30);
    assert_int_equal(t.launch_ns, 7000);
    assert_int_equal(t.cores, 8);
    assert_int_equal(t.device_cores, 1);
    assert_int_equal(t.host_cores, 2);
    assert_int_equal(t.core_copy_bytes_per_s, 9000000000);
}

static void test_writing_and_reading_give_the_same(void **state)
{
    (void)state;
    check_round_trip(full);
    check_round_trip("{\"schema\":\"machine/v1\",\"backend\":\"cpu\",\"devices\":[]}");
    check_round_trip(HEAD "[{\"memory_bytes\":256}],\"all_links_bytes_per_s\":7,\"peers_by_link\":false}");
    check_round_trip(HEAD "[{\"memory_bytes\":256}],\"cores\":2,\"host_cores\":1}");
    check_round_trip("// comments are fine\n" HEAD "[{\"memory_bytes\":256}],\"link_bytes_per_s\":5}");
    check_round_trip(
        HEAD
        "[{\"memory_bytes\":256,\"free_bytes\":0}],\"link_bytes_per_s\":{\"out\":5},\"peers\":[[true]]}");
}

static void test_the_most_devices_fit(void **state)
{
    struct strbuf b = {0};
    (void)state;
    strbuf_add(&b, HEAD "[{\"memory_bytes\":256}");
    for (int i = 1; i < DEVICE_MAX; i++)
        strbuf_add(&b, ",{\"memory_bytes\":256}");
    size_t n = b.n;
    strbuf_add(&b, "]}");
    check_round_trip(b.at);
    assert_int_equal(t.n_devices, DEVICE_MAX);
    b.n = n;
    b.at[n] = '\0';
    strbuf_add(&b, ",{\"memory_bytes\":256}]}");
    check_bad(b.at, "devices", "at most 64");
    strbuf_finish(&b);
}

static void test_mistakes_are_named_with_their_place(void **state)
{
    (void)state;
    check_bad("{}", "schema", "");
    check_bad("[]", "", "");
    check_bad("{\"schema\":\"machine/v2\",\"backend\":\"cpu\",\"devices\":[]}", "schema", "machine/v1");
    check_bad("{\"schema\":\"machine/v1\",\"backend\":\"cud\",\"devices\":[]}", "backend",
              "did you mean \"cuda\"");
    check_bad("{\"schema\":\"machine/v1\",\"backend\":\"cpu\"}", "devices", "");
    check_bad(HEAD "[]}", "devices", "only cpu devices are virtual");
    check_bad(HEAD "{}}", "devices", "expected an array");
    check_bad(HEAD "[7]}", "devices[0]", "");
    check_bad(HEAD "[{\"memory_bytes\":255}]}", "devices[0].memory_bytes", "at least 256");
    check_bad(HEAD "[{\"memory_bytes\":512},{}]}", "devices[1].memory_bytes", "");
    check_bad(HEAD "[{\"memory_byte\":512}]}", "devices[0].memory_byte", "did you mean \"memory_bytes\"");
    check_bad(HEAD "[{\"memory_bytes\":512,\"nane\":\"x\"}]}", "devices[0].nane", "did you mean \"name\"");
    check_bad(HEAD "[{\"memory_bytes\":512,\"free_bytes\":513}]}", "devices[0].free_bytes", "memory_bytes");
    check_bad(HEAD "[{\"memory_bytes\":512},{\"memory_bytes\":512,\"index\":0}]}", "devices[1]", "index");
    check_bad(HEAD "[{\"memory_bytes\":512,\"numa_node\":-1}]}", "devices[0].numa_node", "");
    check_bad(HEAD "[{\"memory_bytes\":512,\"pcie\":{\"gen\":3}}]}", "devices[0].pcie.gen", "unknown key");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"link_bytes_per_s\":0}", "link_bytes_per_s", "more than 0");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"link_bytes_per_s\":{\"inn\":1}}", "link_bytes_per_s.inn",
              "did you mean");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"peers\":[]}", "peers", "array of 1");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"peers\":[[1,2]]}", "peers[0]", "array of 1");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"peers\":[[null]]}", "peers[0][0]", "");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"launch_ns\":0}", "launch_ns", "more than 0");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"all_links_bytes_per_s\":0}", "all_links_bytes_per_s",
              "more than 0");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"all_links_bytes_per_s\":{\"up\":1}}",
              "all_links_bytes_per_s.up", "unknown key");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"peers_by_link\":1}", "peers_by_link", "");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"cores\":5000}", "cores", "at most 4096");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"cores\":2,\"device_cores\":3}", "device_cores", "at most 2");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"host_cores\":1}", "host_cores", "at most 0");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"core_copy_bytes_per_s\":1}", "core_copy_bytes_per_s", "cores");
    check_bad(HEAD "[{\"memory_bytes\":512}],\"link_bytes_per_sec\":1}", "link_bytes_per_sec",
              "did you mean \"link_bytes_per_s\"");
}

static void test_long_names_are_refused_not_cut(void **state)
{
    char text[512];
    (void)state;
    snprintf(text, sizeof text, HEAD "[{\"memory_bytes\":512,\"name\":\"%0100d\"}]}", 7);
    check_bad(text, "devices[0].name", "too long");
}

static void test_names_have_no_hidden_characters(void **state)
{
    (void)state;
    check_bad(HEAD "[{\"memory_bytes\":512,\"name\":\"a\\u202eb\"}]}", "devices[0].name", "contains U+202E");
    check_bad(HEAD "[{\"memory_bytes\":512,\"bus_id\":\"\\u001b[2J\"}]}", "devices[0].bus_id",
              "contains U+001B");
    check_bad(HEAD "[{\"memory_bytes\":512,\"uuid\":\"\\u009b\"}]}", "devices[0].uuid", "contains U+009B");
}

static void test_a_cut_or_changed_text_never_crashes(void **state)
{
    char text[sizeof full];
    (void)state;
    for (size_t n = 0; n < sizeof full - 1; n++) {
        assert_true(topology_parse(full, n, "m.json", &t, NULL) < 0);
        for (int bit = 0; bit < 8; bit++) {
            memcpy(text, full, sizeof text);
            text[n] = (char)(text[n] ^ 1 << bit);
            (void)topology_parse(text, sizeof text - 1, "m.json", &t, NULL);
        }
    }
}

static void test_the_hash_is_of_the_devices(void **state)
{
    (void)state;
    check_good(full);
    uint64_t hash = topology_hash(&t);
    t.devices[0].free_bytes = 1; /* neither use nor speed */
    t.link_in_bytes_per_s = 1;
    t.host_memory_bytes = 1;
    assert_int_equal(topology_hash(&t), hash);
    t.devices[1].total_bytes++;
    assert_int_not_equal(topology_hash(&t), hash);
    check_good(full);
    strcpy(t.devices[0].uuid, "GPU-2");
    assert_int_not_equal(topology_hash(&t), hash);
    check_good(full);
    t.n_devices = 1;
    assert_int_not_equal(topology_hash(&t), hash);
}

static void test_what_is_free_less_the_reserve_can_be_used(void **state)
{
    (void)state;
    check_good(full);
    assert_int_equal(topology_usable_bytes(&t, 0), (15ull << 30) - TOPOLOGY_CUDA_RESERVE_BYTES);
    t.devices[0].free_bytes = TOPOLOGY_CUDA_RESERVE_BYTES + 300;
    assert_int_equal(topology_usable_bytes(&t, 0), 256); /* aligned */
    t.devices[0].free_bytes = TOPOLOGY_CUDA_RESERVE_BYTES;
    assert_int_equal(topology_usable_bytes(&t, 0), 0);
    t.devices[0].free_bytes = 5;
    assert_int_equal(topology_usable_bytes(&t, 0), 0);
    t.backend = BACKEND_CPU;
    t.devices[0].free_bytes = 512;
    assert_int_equal(topology_usable_bytes(&t, 0), 512);
}

static void test_rates_come_from_the_best_that_is_known(void **state)
{
    struct machine m, round;
    (void)state;
    check_good(full);
    topology_machine(&t, &m);
    assert_int_equal(m.link_bytes_per_s, 11000000000);
    assert_int_equal(m.link_out_bytes_per_s, 12000000000);
    assert_int_equal(m.all_links_bytes_per_s, 20000000000);
    assert_int_equal(m.all_links_out_bytes_per_s, 18000000000);
    assert_int_equal(m.peer_bytes_per_s, 8000000000);
    assert_true(m.peers_by_link);
    assert_int_equal(m.host_bytes_per_s, 20000000000);
    assert_int_equal(m.host_shared_bytes_per_s, 20000000000); /* as it was said; a round figure is no limit */
    assert_int_equal(m.device_bytes_per_s, 900000000000);
    assert_int_equal(m.device_flops_per_s, 15000000000000);
    assert_int_equal(m.launch_ns, 7000);

    machine_init_cuda(&round);
    check_good(HEAD "[{\"memory_bytes\":512}]}"); /* nothing */
    topology_machine(&t, &m);
    assert_memory_equal(&m, &round, sizeof m);
    check_good(HEAD "[{\"memory_bytes\":512,\"pcie\":{\"generation\":3,\"width\":16}},"
                    "{\"memory_bytes\":512,\"pcie\":{\"generation\":4,\"width\":4}}],\"peers\":[[false,false]"
                    ",[false,false]]}");
    topology_machine(&t, &m);
    assert_int_equal(m.link_bytes_per_s, 1969200000ull * 4 / 5 * 4); /* the slower */
    assert_int_equal(m.peer_bytes_per_s, m.link_bytes_per_s / 2);    /* by way of the host */
    check_good(HEAD
               "[{\"memory_bytes\":512,\"pcie\":{\"generation\":3,\"width\":16}},{\"memory_bytes\":512}]}");
    topology_machine(&t, &m);
    assert_int_equal(m.link_bytes_per_s, round.link_bytes_per_s); /* of one it is not known */

    machine_init_cpu(&round, 1, 0, 0);
    round.n_devices = 0;
    check_good("{\"schema\":\"machine/v1\",\"backend\":\"cpu\",\"devices\":[]}");
    topology_machine(&t, &m);
    assert_memory_equal(&m, &round, sizeof m);
}

static void test_cores_that_are_not_said_are_all(void **state)
{
    struct machine m;
    (void)state;
    check_good(full);
    topology_machine(&t, &m);
    assert_int_equal(m.cores, 8);
    assert_int_equal(m.device_cores, 1);
    assert_int_equal(m.host_cores, 2);
    assert_int_equal(m.core_copy_bytes_per_s, 9000000000);
    check_good("{\"schema\":\"machine/v1\",\"backend\":\"cpu\",\"devices\":[],\"cores\":4}");
    topology_machine(&t, &m);
    assert_int_equal(m.device_cores, 4);
    assert_int_equal(m.host_cores, 4);
    assert_int_equal(m.core_copy_bytes_per_s, m.link_bytes_per_s);
    check_good(HEAD "[{\"memory_bytes\":512}],\"cores\":4}"); /* a GPU computes and copies by itself */
    topology_machine(&t, &m);
    assert_int_equal(m.device_cores, 0);
    assert_int_equal(m.host_cores, 4);
    assert_int_equal(m.core_copy_bytes_per_s, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_is_read),
        cmocka_unit_test(test_writing_and_reading_give_the_same),
        cmocka_unit_test(test_the_most_devices_fit),
        cmocka_unit_test(test_mistakes_are_named_with_their_place),
        cmocka_unit_test(test_long_names_are_refused_not_cut),
        cmocka_unit_test(test_names_have_no_hidden_characters),
        cmocka_unit_test(test_a_cut_or_changed_text_never_crashes),
        cmocka_unit_test(test_the_hash_is_of_the_devices),
        cmocka_unit_test(test_what_is_free_less_the_reserve_can_be_used),
        cmocka_unit_test(test_rates_come_from_the_best_that_is_known),
        cmocka_unit_test(test_cores_that_are_not_said_are_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
