/* Tests lists of phases, and the outputs that forward-only phases keep. tests/cli/cases_phases.py runs jobs
 * with several phases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/crc32c.h"
#include "daemon/worker/kept.h"
#include "daemon/worker/phase.h"

/* ---- lists ---- */

static struct spec *make_spec(void)
{
    static const char text[] =
        "{\"schema\":\"job/v1\",\"model\":{\"type\":\"mlp\",\"input\":4,\"hidden\":[8,6,5],\"classes\":3},"
        "\"data\":{\"format\":\"synthetic\",\"samples\":64},\"train\":{\"steps\":7,\"global_batch\":8},"
        "\"optimizer\":{\"type\":\"sgd\",\"lr\":0.5}}";
    struct spec *s;
    struct err err;
    if (spec_parse(text, strlen(text), "job", &(struct spec_options){.base_dir = "/base"}, &s, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(spec_resolve(s, (struct spec_sizes){0}, 64, 0, NULL), 0);
    return s;
}

static void test_backprop_is_one_phase(void **state)
{
    struct spec *s = make_spec();
    struct phase_list list;
    (void)state;
    assert_int_equal(phases_make(s, &list, NULL), 0);
    assert_int_equal(list.n, 1);
    const struct phase *p = &list.at[0];
    assert_ptr_equal(p->model.layers, s->model.layers);
    assert_true(p->training && p->eval == PHASE_EVAL_MODEL && p->inputs == PHASE_DATA);
    assert_true(p->steps == 7 && p->batch == 8 && p->rate[0].lr == 0.5);
    assert_int_equal(phases_steps_before(&list, 0), 0);
    assert_int_equal(phases_steps_before(&list, 1), 7);
    phases_finish(&list);
    phases_finish(&list);
    spec_destroy(s);
}

static void test_every_method_has_its_name(void **state)
{
    (void)state;
    for (int i = 0; i < METHOD_COUNT; i++) {
        assert_string_equal(methods[i].name, method_names[i]);
        assert_non_null(methods[i].make_phases);
    }
    assert_null(method_names[METHOD_COUNT]);
}

static void test_part_of_a_model_keeps_its_ids(void **state)
{
    struct spec *s = make_spec();
    struct phase_list list;
    const struct layer *loss = &s->model.layers[4];
    (void)state;
    phases_init(&list, s);
    phase_take_layers(&list, phase_add(&list, s, "a"), 0, 2, loss);
    phase_take_layers(&list, phase_add(&list, s, "b"), 1, 3, NULL);
    list.at[1].steps = 0;
    phase_add(&list, s, "c")->inputs = 1;
    phase_add(&list, s, "d");
    const struct phase *a = &list.at[0], *b = &list.at[1];
    assert_int_equal(a->model.n_layers, 3);
    assert_ptr_equal(a->model.layers[2].type, loss->type);
    assert_int_equal(b->model.n_layers, 2);
    assert_true(b->model.layers[0].id == 1 && b->model.layers[1].key == 2);
    assert_int_equal(phase_find_layer(a, 1), 1);
    assert_int_equal(phase_find_layer(a, 2), PLAN_NONE);
    assert_int_equal(phase_find_layer(b, 0), PLAN_NONE);
    assert_int_equal(phase_find_layer(b, 2), 1);
    assert_int_equal(phases_steps_before(&list, 4), 21);
    assert_int_equal(phases_last_reader(&list, 1), 2);
    assert_int_equal(phases_last_reader(&list, 0), 0);
    phases_finish(&list);
    spec_destroy(s);
}

static void test_largest_phase_needs_the_most_memory(void **state)
{
    struct graph_layer small = {.rows = 2, .n_uses = 1, .size = {.w = 100, .x = 10}}, wide = small;
    struct graph a = {.n_layers = 1, .layers = &small, .rows = 2, .n_micro = 3, .n_replicas = 1}, b = a;
    struct phase phases[] = {{.graph = &a}, {.graph = &b}, {0}};
    struct phase_list list = {.at = phases, .n = 3};
    (void)state;
    assert_int_equal(phase_everything_bytes(&phases[0]), 2 * 100 + 3 * 10);
    assert_int_equal(phases_largest(&list), 0);
    wide.size.x = 11;
    b.layers = &wide;
    assert_int_equal(phases_largest(&list), 1);
}

/* ---- kept outputs ---- */

static void test_kept_rows_are_found_by_sample(void **state)
{
    char dir[] = "/tmp/tutti-phases-XXXXXX";
    float rows[5][3], batch[4][3];
    static const uint64_t indices[] = {4, 0, 2};
    struct kept *k;
    (void)state;
    assert_non_null(mkdtemp(dir));
    struct outdir out = {open(dir, O_RDONLY | O_DIRECTORY), dir};
    const struct kept_place place = {.out = &out};
    for (int i = 0; i < 5; i++)
        for (int c = 0; c < 3; c++)
            rows[i][c] = (float)(10 * i + c);
    assert_int_equal(kept_create(&place, 5, sizeof rows[0], &k, NULL), 0);
    kept_put(k, 3, 2, rows[3]);
    kept_put(k, 0, 3, rows[0]);
    assert_int_equal(kept_seal(k, NULL), 0);
    assert_int_equal(kept_crc(k), crc32c(0, rows, sizeof rows));
    memset(batch, 0xff, sizeof batch);
    kept_fill(k, indices, 3, 4, batch);
    assert_memory_equal(batch[0], rows[4], sizeof rows[0]);
    assert_memory_equal(batch[1], rows[0], sizeof rows[0]);
    assert_memory_equal(batch[2], rows[2], sizeof rows[0]);
    for (int c = 0; c < 3; c++)
        assert_true(batch[3][c] == 0); /* padding */
    kept_destroy(k);
    kept_destroy(NULL);
    close(out.fd);
    assert_int_equal(rmdir(dir), 0); /* nothing has a name */
}

/* Reads the file `name` in the directory `dir`. Returns its size, or -1 if there is no such file. */
static long read_rows(const char *dir, const char *name, void *ret, size_t most)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return -1;
    size_t n = fread(ret, 1, most, f);
    fclose(f);
    return (long)n;
}

static void test_kept_rows_stay_in_a_file_or_in_memory(void **state)
{
    char dir[] = "/tmp/tutti-phases-XXXXXX", path[64];
    float rows[2][3] = {{1, 2, 3}, {4, 5, 6}}, found[3][3];
    struct kept *k;
    (void)state;
    assert_non_null(mkdtemp(dir));
    struct outdir out = {open(dir, O_RDONLY | O_DIRECTORY), dir};
    const struct kept_place named = {.out = &out, .name = "rows"}, memory = {.out = &out, .in_memory = true};
    assert_int_equal(kept_create(&named, 2, sizeof rows[0], &k, NULL), 0);
    kept_put(k, 0, 2, rows);
    assert_int_equal(read_rows(dir, "rows", found, sizeof found), -1); /* it is not complete */
    assert_int_equal(kept_seal(k, NULL), 0);
    kept_destroy(k);
    assert_int_equal(read_rows(dir, "rows", found, sizeof found), sizeof rows);
    assert_memory_equal(found, rows, sizeof rows);
    assert_int_equal(kept_create(&named, 2, sizeof rows[0], &k, NULL), 0);
    kept_destroy(k); /* the old file stays until a new one is complete */
    assert_int_equal(read_rows(dir, "rows", found, sizeof found), sizeof rows);
    assert_int_equal(kept_create(&memory, 2, sizeof rows[0], &k, NULL), 0);
    kept_put(k, 0, 2, rows);
    assert_int_equal(kept_seal(k, NULL), 0);
    assert_int_equal(kept_crc(k), crc32c(0, rows, sizeof rows));
    kept_destroy(k);
    snprintf(path, sizeof path, "%s/rows", dir);
    assert_int_equal(remove(path), 0);
    close(out.fd);
    assert_int_equal(rmdir(dir), 0); /* nothing else has a name */
}

static void test_kept_rows_that_do_not_fit_the_disk_are_refused(void **state)
{
    char dir[] = "/tmp/tutti-phases-XXXXXX";
    struct kept *k = NULL;
    struct err err = {0};
    (void)state;
    assert_non_null(mkdtemp(dir));
    struct outdir out = {open(dir, O_RDONLY | O_DIRECTORY), dir};
    const struct kept_place place = {.out = &out};
    int r = kept_create(&place, 1ull << 50, 1ull << 10, &k, &err);
    assert_true(r == -ENOSPC || r == -EFBIG || r == -ENOMEM);
    assert_non_null(strstr(err.msg, "cannot keep"));
    assert_int_equal(kept_create(&place, UINT64_MAX, 8, &k, &err), -EOVERFLOW);
    assert_null(k);
    close(out.fd);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backprop_is_one_phase),
        cmocka_unit_test(test_every_method_has_its_name),
        cmocka_unit_test(test_part_of_a_model_keeps_its_ids),
        cmocka_unit_test(test_largest_phase_needs_the_most_memory),
        cmocka_unit_test(test_kept_rows_are_found_by_sample),
        cmocka_unit_test(test_kept_rows_stay_in_a_file_or_in_memory),
        cmocka_unit_test(test_kept_rows_that_do_not_fit_the_disk_are_refused),
    };
    return cmocka_run_group_tests_name("phases", tests, NULL, NULL);
}
