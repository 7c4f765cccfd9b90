/* Tests what the client displays: text, numbers, progress bar, curve, table, report and live display. Tests
 * with golden text draw in ASCII. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/show.h"
#include "client/view.h"
#include "tests/skip.h"

static const struct style ascii = {.utf8 = true}, drawn = {.unicode = true, .utf8 = true, .width = 80};

static struct json *parse(const char *text)
{
    struct json *doc = NULL;
    struct err err = {0};
    if (json_parse(text, strlen(text), "test", false, &doc, &err) < 0)
        fail_msg("%s", err.msg);
    return doc;
}

static void check(struct strbuf *b, const char *want)
{
    assert_string_equal(b->at != NULL ? b->at : "", want);
    strbuf_finish(b);
}

/* ---- text and numbers ---- */

static void test_duration_is_short_at_every_size(void **state)
{
    static const struct {
        double seconds;
        const char *want;
    } cases[] = {{0, "0.0 s"},      {0.0019, "1.9 ms"}, {0.42, "0.4 s"},   {9.94, "9.9 s"}, {17.2, "17 s"},
                 {59.7, "1m00s"},   {185, "3m05s"},     {3599.9, "1h00m"}, {3720, "1h02m"}, {86400, "1d00h"},
                 {183600, "2d03h"}, {-1, "?"},          {NAN, "?"},        {INFINITY, "?"}, {1e300, "?"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct strbuf b = {0};
        show_duration(&b, cases[i].seconds);
        check(&b, cases[i].want);
    }
}

static void test_count_and_loss_keep_their_digits(void **state)
{
    struct strbuf b = {0};
    (void)state;
    show_count(&b, 950);
    strbuf_add(&b, " ");
    show_count(&b, 2111.5);
    strbuf_add(&b, " ");
    show_count(&b, 12345);
    strbuf_add(&b, " ");
    show_count(&b, 2913290);
    strbuf_add(&b, " ");
    show_count(&b, 999999);
    check(&b, "950 2112 12.3k 2.91M 1.00M");
    show_loss(&b, 0.2345);
    strbuf_add(&b, " ");
    show_loss(&b, 7.4e-6);
    strbuf_add(&b, " ");
    show_loss(&b, 123.456);
    strbuf_add(&b, " ");
    show_loss(&b, NAN);
    check(&b, "0.2345 7.400e-06 123.5 ?");
}

static void test_foreign_text_cannot_steer_the_terminal(void **state)
{
    struct strbuf b = {0};
    struct style plain = {0};
    (void)state;
    show_text(&b, &ascii,
              "a\033[2Jb\nc\xff\xe2\x80\xae"
              "d\xc3\xa9");
    check(&b, "a\\u001b[2Jb\\nc\\xff\\u202ed\xc3\xa9");
    show_text(&b, &plain, "d\xc3\xa9");
    check(&b, "d\\u00e9");
    show_log_text(&b, "one\r\ntwo\t\033]0;x\007\nthree");
    check(&b, "one\ntwo\t\\u001b]0;x\\u0007\nthree");
}

static void test_cell_is_cut_and_padded_to_its_columns(void **state)
{
    struct strbuf b = {0};
    (void)state;
    show_cell(&b, &ascii, "abc", 5, false);
    strbuf_add(&b, "|");
    show_cell(&b, &ascii, "abc", 5, true);
    strbuf_add(&b, "|");
    show_cell(&b, &ascii, "abcdefgh", 5, false);
    strbuf_add(&b, "|");
    show_cell(&b, &drawn, "abcdefgh", 5, false);
    strbuf_add(&b, "|");
    show_cell(&b, &ascii, "abcdefgh", 0, false);
    check(&b, "abc  |  abc|abc..|abcd\u2026|");
}

static void test_wide_characters_take_two_columns(void **state)
{
    struct strbuf b = {0};
    (void)state;
    if (setlocale(LC_CTYPE, "C.UTF-8") == NULL)
        SKIP_TEST("C.UTF-8 is not installed");
    assert_int_equal(show_columns("\u6570\u5b57"), 4);
    assert_int_equal(show_columns("\033[31mab\033[0m"), 2);
    show_cell(&b, &drawn, "\u6570\u5b57\u6570", 4, false); /* a half character is not shown: a blank fills */
    check(&b, "\u6570\u2026 ");
}

/* ---- the bar ---- */

static void test_bar_has_its_width_at_every_share(void **state)
{
    (void)state;
    for (int width = 3; width < 40; width++) {
        for (int i = -2; i <= 12; i++) {
            struct strbuf b = {0};
            show_bar(&b, i % 2 ? &drawn : &ascii, i / 10.0, width);
            assert_int_equal(show_columns(b.at), width);
            strbuf_finish(&b);
        }
    }
}

static void test_bar_fills_in_eighths(void **state)
{
    struct strbuf b = {0};
    (void)state;
    show_bar(&b, &ascii, 0.5, 12);
    check(&b, "[#####     ]");
    show_bar(&b, &ascii, 0.999, 12); /* not full before the end */
    check(&b, "[######### ]");
    show_bar(&b, &ascii, 1, 12);
    check(&b, "[##########]");
    show_bar(&b, &drawn, 0.5 + 0.1 * 3 / 8, 12);
    check(&b, "\u2595\u2588\u2588\u2588\u2588\u2588\u258d    \u258f");
    show_bar(&b, &ascii, NAN, 5);
    check(&b, "[   ]");
}

/* ---- the curve ---- */

static void test_curve_in_ascii_is_golden(void **state)
{
    struct curve c = {0};
    struct strbuf b = {0};
    (void)state;
    for (uint64_t i = 1; i <= 100; i++)
        curve_add(&c, i, 2.0 / (1.0 + 0.05 * (double)i));
    show_curve(&b, &ascii, &c, &(struct plot){50, 6, ""});
    check(&b, "   1.9048 +'.\n"
              "          |  :\n"
              "          |   ''.\n"
              "          |      ''...\n"
              "          |           ''''......\n"
              "   0.3333 +                     '''''''''.........\n"
              "          +---------------------------------------\n"
              "           1                              step 100\n");
}

static void test_curve_takes_a_log_scale_when_the_range_is_large(void **state)
{
    struct curve c = {0};
    struct strbuf b = {0};
    (void)state;
    for (uint64_t i = 0; i <= 60; i++)
        curve_add(&c, i, exp(-0.2 * (double)i));
    show_curve(&b, &ascii, &c, &(struct plot){40, 4, ""});
    assert_non_null(strstr(b.at, "      log +---"));
    assert_non_null(strstr(b.at, "6.144e-06 +"));
    strbuf_finish(&b);
}

static void test_curve_of_odd_values_stays_inside(void **state)
{
    static const double values[][3] = {
        {1, 1, 1}, {0, 0, 0}, {-1e308, 1e308, 0}, {1e-308, 1e308, 1}, {-5, -6, -7}};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        for (int unicode = 0; unicode < 2; unicode++) {
            struct curve c = {.n = 3}; /* not by curve_add, which is choosy */
            struct strbuf b = {0};
            for (uint64_t k = 0; k < 3; k++)
                c.points[k] = (struct curve_point){1 + k * 1000000007, values[i][k]};
            show_curve(&b, unicode ? &drawn : &ascii, &c, &(struct plot){60, 5, "  "});
            assert_non_null(b.at);
            strbuf_finish(&b);
        }
    }
}

static void test_curve_of_too_little_is_nothing(void **state)
{
    struct curve c = {0};
    struct strbuf b = {0};
    (void)state;
    show_curve(&b, &ascii, &c, &(struct plot){60, 5, ""});
    curve_add(&c, 1, 1);
    show_curve(&b, &ascii, &c, &(struct plot){60, 5, ""});
    curve_add(&c, 2, 1);
    show_curve(&b, &ascii, &c, &(struct plot){15, 5, ""});
    assert_int_equal(b.n, 0);
}

/* ---- the table ---- */

static const struct column columns[] = {{.title = "ID", .right = true},
                                        {.title = "NAME", .least = 6},
                                        {.title = "USER", .drop = 1},
                                        {.title = "STATE"}};

static void print_table(int width, const char *want)
{
    struct style s = {.utf8 = true, .width = width};
    struct show_table *t = show_table_create(columns, 4);
    struct strbuf b = {0};
    const char *const cells[] = {"1",     "digits", "ada", "done", "12", "a-rather-long-name",
                                 "grace", "running"};
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++)
        show_table_cell(t, &s, INK_NONE, cells[i]);
    show_table_print(t, &s, &b);
    show_table_destroy(t);
    check(&b, want);
}

static void test_table_shrinks_and_drops_to_fit(void **state)
{
    (void)state;
    print_table(0, "ID  NAME                USER   STATE\n"
                   " 1  digits              ada    done\n"
                   "12  a-rather-long-name  grace  running\n");
    print_table(30, "ID  NAME        USER   STATE\n"
                    " 1  digits      ada    done\n"
                    "12  a-rather..  grace  running\n");
    print_table(22, "ID  NAME       STATE\n"
                    " 1  digits     done\n"
                    "12  a-rathe..  running\n");
    print_table(1, "ID  NAME    STATE\n" /* no narrower than this */
                   " 1  digits  done\n"
                   "12  a-ra..  running\n");
}

/* ---- pages ---- */

#define REPORT                                                                                               \
    "{\"steps\":300,\"total_steps\":300,\"loss\":0.0690,\"val_loss\":0.07,\"val_accuracy\":0.9712,"          \
    "\"seconds\":4,"                                                                                         \
    "\"samples_per_s\":2111.5,\"stall_share\":0.083,\"policy\":\"harmony-pp\",\"micro_batch\":64,"           \
    "\"step_bytes\":{\"in\":12345678,\"out\":4567890,\"peer\":700000,\"state_in\":10000000,\"state_out\":"   \
    "3000000,"                                                                                               \
    "\"stash_in\":2000000,\"stash_out\":1500000},\"bound_bytes\":15000000,"                                  \
    "\"lru_bytes\":{\"in\":60000000,\"out\":45000000,\"peer\":0},"                                           \
    "\"devices\":[{\"peak_bytes\":60000000,\"capacity_bytes\":67108864}],\"weights_hash\":"                  \
    "\"0123456789abcdef\"}"

static void test_report_says_where_the_stalls_are_from(void **state)
{
    struct json *job =
        parse("{\"id\":1,\"name\":\"x\",\"state\":\"done\",\"exit\":0,\"report\":{\"steps\":3,"
              "\"total_steps\":3,\"seconds\":4,\"stall_share\":0.25,\"stall_traced_steps\":3}}");
    struct strbuf b = {0};
    (void)state;
    show_report(&b, &ascii, job);
    assert_non_null(strstr(b.at, "stalled 25.0 % (from 3 traced steps)\n"));
    strbuf_finish(&b);
    json_free(job);
    job = parse("{\"id\":1,\"name\":\"x\",\"state\":\"done\",\"exit\":0,\"report\":{\"steps\":3,"
                "\"total_steps\":3,\"seconds\":4,\"stall_share\":null}}");
    show_report(&b, &ascii, job);
    assert_null(strstr(b.at, "stalled"));
    strbuf_finish(&b);
    json_free(job);
}

static void test_report_says_replicas_when_there_are_several(void **state)
{
    static const char *const says[] = {"micro-batch 8\n", "micro-batch 8, 2 replicas\n"};
    char text[256];
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct strbuf b = {0};
        snprintf(text, sizeof text,
                 "{\"id\":1,\"name\":\"x\",\"state\":\"done\",\"exit\":0,\"report\":{\"steps\":3,\"total_"
                 "steps\":3,"
                 "\"seconds\":4,\"policy\":\"auto\",\"micro_batch\":8,\"replicas\":%d}}",
                 i + 1);
        struct json *job = parse(text);
        show_report(&b, &ascii, job);
        assert_non_null(strstr(b.at, says[i]));
        strbuf_finish(&b);
        json_free(job);
    }
}

static void test_report_is_golden(void **state)
{
    struct json *job =
        parse("{\"id\":1,\"name\":\"digits\",\"state\":\"done\",\"exit\":0,\"output\":\"/runs/digits\","
              "\"report\":" REPORT "}");
    struct strbuf b = {0};
    (void)state;
    show_report(&b, &ascii, job);
    check(&b,
          "digits: done at step 300 of 300\n"
          "  plan        policy harmony-pp, micro-batch 64\n"
          "  time        4.0 s   2112 samples/s   stalled 8.3 %\n"
          "  loss        0.0690   val loss 0.0700   val accuracy 97.12 %\n"
          "  bytes per iteration       in         out        peer    in + out\n"
          "    this plan        11.77 MiB    4.36 MiB  683.59 KiB   16.13 MiB\n"
          "    lower bound                                          14.31 MiB  plan 1.10x (state and stash)\n"
          "    demand paging    57.22 MiB   42.92 MiB         0 B  100.14 MiB  6.21x plan\n"
          "  device 0    peak   57.22 MiB of 64.00 MiB  [#################   ] 89.4 %\n"
          "  weights     0123456789abcdef\n"
          "  output      /runs/digits\n");
    json_free(job);
}

/* The memory of a phase is that of the device that needs most. */
static void test_report_has_a_row_for_each_phase(void **state)
{
    struct json *job =
        parse("{\"id\":1,\"name\":\"x\",\"state\":\"done\",\"exit\":0,\"report\":{\"steps\":3,"
              "\"total_steps\":3,\"phase\":0,\"phases\":["
              "{\"name\":\"partition 1 of 2\",\"steps\":340,\"step_bytes\":{\"in\":1024,\"out\":512,"
              "\"peer\":9},\"device_peak_bytes\":[1024,3072]},"
              "{\"name\":\"outputs of partition 1\",\"steps\":0,\"step_bytes\":{\"in\":0,\"out\":512},"
              "\"device_peak_bytes\":[2048]}]}}");
    struct strbuf b = {0};
    (void)state;
    show_report(&b, &ascii, job);
    assert_non_null(
        strstr(b.at, "  phase 0     partition 1 of 2   340 steps   peak 3.00 KiB   moved in a step 1.50 KiB"
                     "   (the largest: bytes below)\n"));
    assert_non_null(
        strstr(b.at, "  phase 1     outputs of partition 1   peak 2.00 KiB   moved in a batch 512 B\n"));
    strbuf_finish(&b);
    json_free(job);
}

/* Partitions that are trained at once count from 1, and only the last one has an accuracy. */
static void test_report_has_partitions_that_are_trained_at_once(void **state)
{
    struct json *job = parse("{\"id\":1,\"name\":\"x\",\"state\":\"done\",\"exit\":0,\"report\":{\"steps\":3,"
                             "\"total_steps\":3,\"method\":\"sil\",\"blocks\":["
                             "{\"block\":0,\"loss\":0.5,\"accuracy\":null},"
                             "{\"block\":1,\"loss\":0.25,\"accuracy\":0.875}]}}");
    struct strbuf b = {0};
    (void)state;
    show_report(&b, &ascii, job);
    assert_non_null(strstr(b.at, "  partition 1 loss 0.5000 (of the last step)\n"));
    assert_non_null(strstr(b.at, "  partition 2 loss 0.2500   accuracy 87.50 % (of the last step)\n"));
    strbuf_finish(&b);
    json_free(job);
}

static void test_report_has_blocks_labels_and_work(void **state)
{
    struct json *job = parse(
        "{\"id\":1,\"name\":\"x\",\"state\":\"done\",\"exit\":0,\"report\":{\"steps\":3,\"total_steps\":3,"
        "\"method\":\"local\",\"blocks\":[{\"block\":0,\"loss\":0.5,\"accuracy\":0.75},"
        "{\"block\":1,\"loss\":0.25,\"accuracy\":0.875}],"
        "\"labels\":[{\"phase\":0,\"error\":3,\"nearest\":0.125,\"verdict\":\"dead\",\"advice\":\"move the "
        "cut\"}],"
        "\"flops\":{\"total\":3e9,\"sequential\":1.5e9,\"backprop\":2e9}}}");
    static const char *const says[] = {
        "  block 0     loss 0.5000   accuracy 75.00 % (of the last step)\n",
        "  block 1     loss 0.2500   accuracy 87.50 % (of the last step)\n",
        "nearest label right for 12.50 %   dead: move the cut\n",
        "  work        3 GFLOP, one after another 1.5 GFLOP; backpropagation 2 GFLOP\n",
    };
    struct strbuf b = {0};
    (void)state;
    show_report(&b, &ascii, job);
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++)
        if (strstr(b.at, says[i]) == NULL)
            fail_msg("no line %s in\n%s", says[i], b.at);
    strbuf_finish(&b);
    json_free(job);
}

static void test_pages_take_whatever_is_missing_or_wrong(void **state)
{
    static const char *const jobs[] = {
        "{}",
        "[]",
        "null",
        "{\"name\":7,\"state\":null,\"report\":[],\"curve\":{},\"evals\":[1,[],[1],[\"x\",2,3]],\"plan\":3}",
        "{\"error\":{},\"report\":{\"devices\":[1,{}],\"step_bytes\":{\"in\":-1},\"lru_bytes\":{\"in\":1}},"
        "\"plan\":{\"device_peak_bytes\":[-5,1e300,\"x\"]},\"curve\":[[1,2],[3],[2,1],\"x\",[1e300,1]],"
        "\"devices\":[\"a\",1e300],\"resolved\":{\"a\":[],\"b\":null,\"c\":\"d\"},\"step\":1e300}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        struct json *job = parse(jobs[i]);
        struct strbuf b = {0};
        struct view *v = calloc(1, sizeof *v);
        show_report(&b, &ascii, job);
        show_job(&b, &drawn, job, 0);
        show_outcome_json(&b, job);
        show_event(&b, &ascii, job);
        view_from_job(v, job);
        view_event(v, job);
        view_draw(&b, &drawn, v, 24);
        view_line(&b, &ascii, v);
        assert_non_null(b.at);
        strbuf_finish(&b);
        free(v);
        json_free(job);
    }
}

/* ---- the live display ---- */

static void feed(struct view *v, const char *text)
{
    struct json *e = parse(text);
    view_event(v, e);
    json_free(e);
}

static void make_view(struct view *v)
{
    struct json *job = parse(
        "{\"id\":1,\"name\":\"digits\",\"state\":\"queued\",\"reason\":\"waits for devices\",\"seq\":5}");
    view_from_job(v, job);
    json_free(job);
    feed(v, "{\"seq\":4,\"event\":\"ended\",\"state\":\"failed\"}"); /* older than what `show` said */
    assert_string_equal(v->state, "queued");
    feed(v, "{\"seq\":6,\"event\":\"started\"}");
    for (int i = 1; i <= 150; i++) {
        char text[300];
        snprintf(text, sizeof text,
                 "{\"seq\":%d,\"event\":\"progress\",\"step\":%d,\"total_steps\":300,\"loss\":%g,\"samples_"
                 "per_s\":2111.5,"
                 "\"eta_s\":17.2,\"in_bytes\":1048576,\"out_bytes\":2048,\"peer_bytes\":1024,\"stall_share\":"
                 "0.08}",
                 6 + i, i, 2.0 - i * 0.01);
        feed(v, text);
    }
    feed(v, "{\"seq\":200,\"event\":\"eval\",\"step\":100,\"loss\":0.3,\"accuracy\":0.91}");
    feed(v, "{\"seq\":201,\"event\":\"eval\",\"step\":150,\"loss\":0.3,\"accuracy\":0.93}");
}

static void test_live_display_is_golden(void **state)
{
    struct style s = {.utf8 = true, .width = 61};
    struct view *v = calloc(1, sizeof *v);
    struct strbuf b = {0};
    (void)state;
    make_view(v);
    view_draw(&b, &s, v, 12);
    check(&b, "digits [############            ]  50 %  150/300  17 s left\n"
              "loss 0.5000   2112 samples/s   stalled 8.0 %\n"
              "in 1.00 MiB  out 2.00 KiB  peer 1.00 KiB\n"
              "   1.9900 +''''.......\n"
              "          |           '''''''.......\n"
              "          |                         ''''''.......\n"
              "   0.5000 +                                      '''''''....\n"
              "          +-------------------------------------------------\n"
              "           1                                        step 150\n"
              "val accuracy 91.00 -> 93.00 %   at step 150\n");
    free(v);
}

static void test_live_display_fits_every_size(void **state)
{
    struct view *v = calloc(1, sizeof *v);
    (void)state;
    make_view(v);
    for (int width = 1; width < 200; width += 3) {
        for (int rows = 1; rows < 40; rows += 3) {
            struct style s = {.unicode = width % 2 == 0, .utf8 = true, .color = true, .width = width};
            struct strbuf b = {0};
            int lines = 0;
            view_draw(&b, &s, v, rows);
            for (char *save = NULL, *line = strtok_r(b.at, "\n", &save); line != NULL;
                 line = strtok_r(NULL, "\n", &save)) {
                assert_true(show_columns(line) < width || width < 10);
                lines++;
            }
            assert_true(lines <= rows || rows < 6);
            strbuf_finish(&b);
        }
    }
    free(v);
}

static void test_progress_line_for_a_pipe(void **state)
{
    struct view *v = calloc(1, sizeof *v);
    struct strbuf b = {0};
    (void)state;
    make_view(v);
    view_line(&b, &ascii, v);
    check(&b,
          "step 150/300   50 %   loss 0.5000   2112 samples/s   stalled 8.0 %   in 1.00 MiB  out 2.00 KiB  "
          "peer 1.00 KiB   17 s left");
    free(v);
}

static void test_progress_has_the_blocks_of_local_updates(void **state)
{
    struct style s = {.utf8 = true, .width = 80};
    struct view *v = calloc(1, sizeof *v);
    struct strbuf b = {0};
    (void)state;
    make_view(v);
    feed(v, "{\"seq\":300,\"event\":\"progress\",\"step\":151,\"total_steps\":300,\"loss\":0.25,"
            "\"blocks\":[0.5,0.25],\"block_accuracies\":[0.75,0.875]}");
    view_draw(&b, &s, v, 12);
    assert_non_null(strstr(b.at, "loss of blocks 0.5000 0.2500\n"));
    assert_non_null(strstr(b.at, "accuracy of blocks 75.0 87.5 %\n"));
    strbuf_finish(&b);
    view_line(&b, &ascii, v);
    assert_non_null(strstr(b.at, "loss of blocks 0.5000 0.2500   accuracy of blocks 75.0 87.5 %"));
    strbuf_finish(&b);
    /* A partition that learns label vectors has no accuracy. */
    feed(v, "{\"seq\":301,\"event\":\"progress\",\"step\":152,\"total_steps\":300,\"loss\":0.25,"
            "\"blocks\":[0.5,0.25],\"block_accuracies\":[null,0.875]}");
    view_line(&b, &ascii, v);
    assert_non_null(strstr(b.at, "accuracy of blocks - 87.5 %"));
    strbuf_finish(&b);
    free(v);
}

static void test_events_are_told(void **state)
{
    static const struct {
        const char *event, *want;
    } cases[] = {
        {"{\"event\":\"started\",\"attempt\":2,\"devices\":[0,1]}", "started on devices 0, 1, attempt 2"},
        {"{\"event\":\"eval\",\"step\":100,\"loss\":0.25,\"accuracy\":0.9312}",
         "step 100  val loss 0.2500  accuracy 93.12 %"},
        {"{\"event\":\"eval\",\"step\":100,\"loss\":0.25,\"accuracy\":0.9312,\"block_accuracies\":[0.5,0."
         "9312]}",
         "step 100  val loss 0.2500  accuracy 93.12 %  of blocks 50.00 93.12 %"},
        {"{\"event\":\"labels\",\"step\":7,\"error\":3,\"nearest\":0.125,\"verdict\":\"dead\",\"advice\":"
         "\"move it\"}",
         "step 7  label error 3.000000  nearest label right for 12.50 %  dead: move it"},
        {"{\"event\":\"checkpoint\",\"step\":100}", "step 100  checkpoint written"},
        {"{\"event\":\"restarting\",\"why\":\"signal\\u0007 9\",\"failures\":1,\"in_s\":2}",
         "the worker failed (signal\\u0007 9), failure 1; it will restart in 2.0 s"},
        {"{\"event\":\"gap\"}", "(some events were missed)"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct json *e = parse(cases[i].event);
        struct strbuf b = {0};
        assert_true(show_event(&b, &ascii, e));
        check(&b, cases[i].want);
        json_free(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_duration_is_short_at_every_size),
        cmocka_unit_test(test_count_and_loss_keep_their_digits),
        cmocka_unit_test(test_foreign_text_cannot_steer_the_terminal),
        cmocka_unit_test(test_cell_is_cut_and_padded_to_its_columns),
        cmocka_unit_test(test_wide_characters_take_two_columns),
        cmocka_unit_test(test_bar_has_its_width_at_every_share),
        cmocka_unit_test(test_bar_fills_in_eighths),
        cmocka_unit_test(test_curve_in_ascii_is_golden),
        cmocka_unit_test(test_curve_takes_a_log_scale_when_the_range_is_large),
        cmocka_unit_test(test_curve_of_odd_values_stays_inside),
        cmocka_unit_test(test_curve_of_too_little_is_nothing),
        cmocka_unit_test(test_table_shrinks_and_drops_to_fit),
        cmocka_unit_test(test_report_is_golden),
        cmocka_unit_test(test_report_says_replicas_when_there_are_several),
        cmocka_unit_test(test_report_says_where_the_stalls_are_from),
        cmocka_unit_test(test_pages_take_whatever_is_missing_or_wrong),
        cmocka_unit_test(test_live_display_is_golden),
        cmocka_unit_test(test_live_display_fits_every_size),
        cmocka_unit_test(test_progress_line_for_a_pipe),
        cmocka_unit_test(test_progress_has_the_blocks_of_local_updates),
        cmocka_unit_test(test_report_has_blocks_labels_and_work),
        cmocka_unit_test(test_report_has_partitions_that_are_trained_at_once),
        cmocka_unit_test(test_report_has_a_row_for_each_phase),
        cmocka_unit_test(test_events_are_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
