/* Tests the SVG picture of a plan. The picture must be well-formed for any name of a plan, have one row per
 * stream, show areas equal to the simulator's times by kind, have no overlapping marks, show the right
 * window, and not grow in size with the plan. A small parser, which accepts only well-formed XML, reads the
 * pictures back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "base/vec.h"
#include "scheduler/explain/explain.h"
#include "scheduler/policy/policy.h"
#include "tests/unit/tiny_plan.h"

enum { PLOT = 1364, MAX_ROWS = DEVICE_MAX * LANE_COUNT + 1, LIMIT = 2000000 };

static const char *const colours[INSTR_KIND_COUNT] = {
    [INSTR_FWD] = "#4477aa",   [INSTR_BWD] = "#ee6677",   [INSTR_REC] = "#ccbb44",    [INSTR_RED] = "#882255",
    [INSTR_COPY] = "#999933",  [INSTR_NORM] = "#aa3377",  [INSTR_DECIDE] = "#222255", [INSTR_UPD] = "#228833",
    [INSTR_FETCH] = "#2299cc", [INSTR_SPILL] = "#dd7722", [INSTR_SEND] = "#7755bb",
};

/* ---- reading a picture ---- */

struct rect {
    double x, y, w, h;
    enum instr_kind kind;
    uint32_t mark; /* which of its row, from 0 */
};

struct drawn_row {
    VEC(struct rect) rects;
    uint32_t marks;
};

struct drawn {
    struct drawn_row rows[MAX_ROWS];
    uint32_t n_rows;
};

static void expect(bool ok, const char *at, const char *what)
{
    if (!ok)
        fail_msg("%s at: %.60s", what, at);
}

/* Text up to one of these: entities that are known, characters that XML allows. */
static const char *read_text(const char *at, const char *end_chars)
{
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;"};

    while (*at && !strchr(end_chars, *at)) {
        size_t n = utf8_char_bytes(at, strnlen(at, 4));
        bool known = *at != '&';
        for (size_t i = 0; i < sizeof entities / sizeof *entities; i++)
            known |= strncmp(at, entities[i], strlen(entities[i])) == 0;
        expect(known && *at != '<' && *at != '>', at, "an unescaped character");
        expect(n > 0 && ((unsigned char)*at >= 0x20 || *at == '\n'), at, "not a character of XML");
        at += n;
    }
    expect(*at != '\0', at, "the end");
    return at;
}

/* Those of a rectangle; of text x and y, of the whole width and height. */
static void read_place(const char *name, size_t name_n, const char *value, size_t n, struct rect *r)
{
    const struct {
        const char *name;
        double *ret;
    } places[] = {{"x", &r->x}, {"y", &r->y}, {"width", &r->w}, {"height", &r->h}};

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char *end;
        if (strlen(places[i].name) != name_n || strncmp(places[i].name, name, name_n) != 0)
            continue;
        *places[i].ret = strtod(value, &end);
        expect(end == value + n && *places[i].ret >= 0, value, "not a place");
    }
}

/* From behind a tag's name to behind its ">"; true in *closed for "/>". */
static const char *read_attributes(const char *at, struct rect *r, char id[32], bool *closed)
{
    id[0] = '\0';
    *closed = false;
    while (*at == ' ') {
        const char *name = ++at;
        at += strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-");
        size_t name_n = (size_t)(at - name);
        expect(name_n > 0 && at[0] == '=' && at[1] == '"', at, "not an attribute");
        const char *value = at + 2;
        at = read_text(value, "\"");
        size_t n = (size_t)(at++ - value);
        read_place(name, name_n, value, n, r);
        if (name_n == 2 && strncmp(name, "id", 2) == 0)
            snprintf(id, 32, "%.*s", (int)n, value);
        for (int k = 0; k < INSTR_KIND_COUNT; k++)
            if (colours[k] && n == strlen(colours[k]) && strncmp(value, colours[k], n) == 0)
                r->kind = (enum instr_kind)k;
    }
    *closed = *at == '/';
    at += *closed;
    expect(*at == '>', at, "no end of the tag");
    return at + 1;
}

static void row_id(uint32_t s, uint32_t n_rows, char *id)
{
    if (s == n_rows - 1)
        strcpy(id, "host");
    else
        sprintf(id, "d%u.%s", s / LANE_COUNT, lane_names[s % LANE_COUNT]);
}

/* Reads the whole document. Fails when it is not well-formed, or when its rows are not the plan's streams in
 * order. */
static void read_picture(const char *at, const struct plan *p, struct drawn *d)
{
    char names[8][16], id[32], wanted[32];
    uint32_t depth = 0, row_depth = 0, n_rows = plan_n_streams(p);
    struct drawn_row *row = NULL;

    memset(d, 0, sizeof *d);
    expect(strncmp(at, "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 40) == 0, at, "no SVG");
    do {
        at = read_text(at, "<") + 1;
        bool ends = *at == '/', closed;
        at += ends;
        size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyz");
        expect(n > 0 && n < 16, at, "no name of a tag");
        if (ends) {
            expect(depth > 0 && strlen(names[depth - 1]) == n && strncmp(names[depth - 1], at, n) == 0, at,
                   "the end of another tag");
            expect(at[n] == '>', at, "no end of the tag");
            at += n + 1;
            if (--depth < row_depth)
                row = NULL;
            continue;
        }
        struct rect r = {.kind = INSTR_DROP};
        expect(depth < 8, at, "too deep");
        sprintf(names[depth], "%.*s", (int)n, at);
        at = read_attributes(at + n, &r, id, &closed);
        if (row && strcmp(names[depth], "g") == 0)
            row->marks++;
        if (row && strcmp(names[depth], "rect") == 0) {
            r.mark = row->marks - 1;
            vec_push(&row->rects, r);
        }
        depth += !closed;
        if (id[0]) {
            expect(d->n_rows < n_rows, at, "a row too many");
            row_id(d->n_rows, n_rows, wanted);
            assert_string_equal(id, wanted);
            row = &d->rows[d->n_rows++];
            row_depth = depth;
        }
    } while (depth > 0);
    assert_string_equal(at, "\n");
    assert_int_equal(d->n_rows, n_rows);
}

static void drawn_finish(struct drawn *d)
{
    for (uint32_t s = 0; s < d->n_rows; s++)
        vec_free(&d->rows[s].rects);
}

static double row_height(uint32_t stream)
{
    return stream % LANE_COUNT == LANE_COMPUTE ? 22 : 14;
}

/* ---- what must be in it ---- */

/* The window that the picture must show, worked out again from the spans. */
struct window {
    uint64_t from_ns, to_ns;
};

static struct window window_of(const struct plan *p, const struct sim_result *sim)
{
    const struct plan_program *prog = &p->programs[PROGRAM_CYCLE];
    uint64_t from = UINT64_MAX;

    for (uint32_t i = 0; i < sim->n_instrs; i++)
        if (prog->instrs[i].kind == INSTR_FWD) {
            uint64_t start = sim->spans[(size_t)(sim->runs - 2) * sim->n_instrs + i].start_ns;
            from = start < from ? start : from;
        }
    assert_true(from < UINT64_MAX);
    return (struct window){from, from + sim->cycle_ns};
}

static void busy_times(const struct plan *p, const struct sim_result *sim, struct window w,
                       double (*ret_ns)[INSTR_KIND_COUNT])
{
    for (uint32_t at = 0; at < sim->runs * sim->n_instrs; at++) {
        const struct plan_instr *in = &p->programs[PROGRAM_CYCLE].instrs[at % sim->n_instrs];
        uint64_t from = sim->spans[at].start_ns, to = sim->spans[at].end_ns;
        from = from > w.from_ns ? from : w.from_ns;
        to = to < w.to_ns ? to : w.to_ns;
        if (from < to)
            ret_ns[in->stream][in->kind] += (double)(to - from);
    }
}

/* Checks that the marks of a row follow each other without overlap, and that the rectangles of one mark have
 * the same width and are stacked from the bottom up. */
static void check_places(const struct drawn_row *row, double height)
{
    for (size_t i = 0; i < row->rects.n; i++) {
        const struct rect *r = &row->rects.at[i], *before = i > 0 ? r - 1 : NULL;
        double below = height;
        assert_true(r->w > 0 && r->h > 0 && r->y >= 0 && r->x + r->w <= PLOT + 1e-6);
        assert_true(r->kind != INSTR_DROP);
        if (before && before->mark == r->mark) {
            assert_true(before->x == r->x && before->w == r->w && before->kind < r->kind);
            below = before->y;
        } else if (before) {
            assert_true(r->x >= before->x + before->w - 1e-6);
        }
        assert_true(r->y + r->h > below - 1e-6 && r->y + r->h < below + 1e-6);
    }
}

/* Checks that the area drawn for each kind corresponds to its time. Two deviations are allowed: hundredths of
 * a pixel at the edges of each mark, and rectangles that are enlarged to a height of one pixel. */
static void check_areas(const struct drawn_row *row, double height, const double *busy_ns, double cycle_ns)
{
    double area[INSTR_KIND_COUNT] = {0}, slack[INSTR_KIND_COUNT] = {0}, missing = 0;

    for (size_t i = 0; i < row->rects.n; i++) {
        const struct rect *r = &row->rects.at[i];
        area[r->kind] += r->w * r->h;
        slack[r->kind] += 0.02 * r->h + 0.02 * r->w + (r->y >= height - 1 ? r->w * r->h : 0);
        missing += 0.02 * height + 0.02 * r->w; /* of what is too little to be drawn, beside this one */
    }
    for (int k = 0; k < INSTR_KIND_COUNT; k++) {
        double want = busy_ns[k] / cycle_ns * PLOT * height;
        if (area[k] > want + slack[k] + 1e-6 || area[k] < want - slack[k] - missing - 0.02 * height)
            fail_msg("%s: %f pixels are drawn where %f should be", instr_kind_names[k], area[k], want);
    }
}

static void check_picture(const struct plan *p, const struct sim_result *sim, struct window w)
{
    struct strbuf out = {0}, again = {0};
    struct drawn *d = malloc(sizeof *d);
    double(*busy_ns)[INSTR_KIND_COUNT] = calloc(plan_n_streams(p), sizeof *busy_ns);

    assert_true(d && busy_ns);
    plan_svg(p, sim, &out);
    plan_svg(p, sim, &again);
    assert_string_equal(out.at, again.at);
    assert_true(out.n < LIMIT);
    read_picture(out.at, p, d);
    busy_times(p, sim, w, busy_ns);
    for (uint32_t s = 0; s < d->n_rows; s++) {
        check_places(&d->rows[s], row_height(s));
        check_areas(&d->rows[s], row_height(s), busy_ns[s], (double)sim->cycle_ns);
    }
    drawn_finish(d);
    free(d);
    free(busy_ns);
    strbuf_finish(&out);
    strbuf_finish(&again);
}

static void assert_contains(const struct strbuf *out, const char *text)
{
    if (!out->at || !strstr(out->at, text))
        fail_msg("expected \"%s\" in:\n%s", text, out->at ? out->at : "");
}

static void assert_lacks(const struct strbuf *out, const char *text)
{
    if (strstr(out->at, text))
        fail_msg("did not expect \"%s\" in:\n%s", text, out->at);
}

/* ---- the plan that is written by hand ---- */

static const struct machine slow = {
    .n_devices = 2, .link_bytes_per_s = 1000000000, .peer_bytes_per_s = 3000000000, .launch_ns = 100};
static struct profile_layer times[2] = {
    {.fwd_ns = 1000, .bwd_ns = 2000, .upd_host_ns = 700},
    {.fwd_ns = 300, .bwd_ns = 600, .upd_device_ns = 150},
};
static const struct profile profile = {.n_layers = 2, .layers = times};

static void test_picture_tells_what_a_plan_does(void **state)
{
    struct plan *p = tiny_plan();
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, 4, &profile, &slow);
    struct strbuf out = {0};

    (void)state;
    plan_svg(p, sim, &out);
    /* Everything waits for everything else: two fetches, FWD, send, FWD, BWD, send, BWD, spill, update. */
    assert_int_equal(sim->cycle_ns, 4196 + 1124 + 1000 + 271 + 300 + 600 + 271 + 2000 + 4196 + 700);
    assert_contains(
        &out, ">policy by-hand on 2 devices, 1 micro-batch of 4 rows: 14.658 us per iteration, predicted<");
    assert_contains(&out,
                    ">per iteration 5.06 KiB from the host, 4.02 KiB to the host, 1.00 KiB between devices<");
    static const char *const labels[] = {">d0 compute<", ">d0 in<",  ">d0 out<",  ">d0 peer<", ">d1 compute<",
                                         ">d1 in<",      ">d1 out<", ">d1 peer<", ">host<"};
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++)
        assert_contains(&out, labels[i]);
    static const char *const legend[] = {">FWD<", ">BWD<", ">UPD<", ">fetch<", ">spill<", ">send<"};
    for (size_t i = 0; i < sizeof legend / sizeof *legend; i++)
        assert_contains(&out, legend[i]);
    assert_lacks(&out, ">REC<");
    assert_lacks(&out, ">NORM<");
    assert_lacks(&out, "DROP");
    /* 3000 ns of compute; 5120 bytes at a byte per ns and two launches of 100 ns */
    assert_contains(&out, ">20.5 %<");
    assert_contains(&out, ">36.3 %<");
    assert_contains(&out, ">5.00 KiB<");
    assert_contains(&out, ">0 us<");
    assert_contains(&out, ">14 us<");
    assert_lacks(&out, ">15 us<");
    assert_contains(&out, "<title>FWD l0 m0\nat 0.000 us for 1.000 us</title>"
                          "<rect x=\"0\" y=\"0\" width=\"93.05\" height=\"22\" fill=\"#4477aa\"/>");
    assert_contains(&out, "<title>send Y0.0, 512 B\nat 1.000 us for 0.271 us</title>");
    assert_contains(&out, "<title>UPD l0\n");
    strbuf_finish(&out);
    sim_destroy(sim);
    plan_destroy(p);
}

static void test_areas_are_the_times_of_the_lanes(void **state)
{
    struct plan *p = tiny_plan();
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, 4, &profile, &slow);
    struct strbuf out = {0};
    struct drawn *d = malloc(sizeof *d);

    (void)state;
    assert_non_null(d);
    check_picture(p, sim, window_of(p, sim));
    plan_svg(p, sim, &out);
    read_picture(out.at, p, d);
    for (uint32_t s = 0; s < d->n_rows; s++) { /* nothing shares a link: each run takes the same time */
        bool host = s == plan_host_stream(p);
        uint64_t lane_ns = (host ? sim->host_ns : sim->lane_ns[s / LANE_COUNT][s % LANE_COUNT]) / sim->runs;
        double area = 0, want = (double)lane_ns / (double)sim->cycle_ns * PLOT * row_height(s);
        for (size_t i = 0; i < d->rows[s].rects.n; i++)
            area += d->rows[s].rects.at[i].w * d->rows[s].rects.at[i].h;
        assert_true(area > want - 2 && area < want + 2);
    }
    drawn_finish(d);
    free(d);
    strbuf_finish(&out);
    sim_destroy(sim);
    plan_destroy(p);
}

static void test_picture_is_added_to_what_is_there(void **state)
{
    struct plan *p = tiny_plan();
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, 3, &profile, &slow);
    struct strbuf out = {0};

    (void)state;
    strbuf_add(&out, "before");
    plan_svg(p, sim, &out);
    assert_memory_equal(out.at, "before<svg ", 11);
    strbuf_finish(&out);
    sim_destroy(sim);
    plan_destroy(p);
}

/* A name from a plan's file may be anything. */
static void test_names_are_escaped(void **state)
{
    static const char *const names[][2] = {
        {"a<b>&\"c'", "policy a&lt;b&gt;&amp;\"c' on"},
        {"\x01\x1f\ttab", "policy \\u0001\\u001f\\ttab on"},
        {"\xff\xc3", "policy \\xff\\xc3 on"},
        {"\xEF\xBF\xBE\xEF\xBF\xBF", "policy \\ufffe\\uffff on"},
        {"\x7f\xC2\x9B\xE2\x80\xAE", "policy \\u007f\\u009b\\u202e on"},
        {"]]></text>", "policy ]]&gt;&lt;/text&gt; on"},
        {"\xC3\xBC\xE2\x82\xAC", "policy \xC3\xBC\xE2\x82\xAC on"},
    };
    struct plan *p = tiny_plan();
    struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, 3, &profile, &slow);
    struct drawn *d = malloc(sizeof *d);

    (void)state;
    assert_non_null(d);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct strbuf out = {0};
        strcpy(p->policy, names[i][0]);
        plan_svg(p, sim, &out);
        assert_contains(&out, names[i][1]);
        read_picture(out.at, p, d);
        drawn_finish(d);
        strbuf_finish(&out);
    }
    free(d);
    sim_destroy(sim);
    plan_destroy(p);
}

/* ---- times that are written by hand ---- */

/* A plan of tasks and drops without operands, and when they begin and end. */
struct handmade {
    struct plan plan;
    struct sim_result sim;
    VEC(struct plan_instr) instrs;
    VEC(struct plan_span) spans; /* of the first run */
    VEC(struct plan_span) all;
};

static void hand_init(struct handmade *h, uint32_t devices)
{
    memset(h, 0, sizeof *h);
    h->plan = (struct plan){.policy = "hand",
                            .n_devices = devices,
                            .n_layers = 1,
                            .n_micro = 1,
                            .n_replicas = 1,
                            .n_groups = 1,
                            .steps = 1,
                            .rows = 1};
}

static void hand_add(struct handmade *h, uint32_t stream, enum instr_kind kind, uint64_t start_ns,
                     uint64_t end_ns)
{
    vec_push(&h->instrs, (struct plan_instr){.kind = kind, .stream = stream, .micro = PLAN_NONE});
    vec_push(&h->spans, (struct plan_span){start_ns, end_ns});
}

/* Makes `runs` runs of the added instructions, each one period later than the previous run. */
static void hand_finish(struct handmade *h, uint32_t runs, uint64_t cycle_ns)
{
    for (uint32_t r = 0; r < runs; r++)
        for (size_t i = 0; i < h->spans.n; i++)
            vec_push(&h->all, (struct plan_span){h->spans.at[i].start_ns + r * cycle_ns,
                                                 h->spans.at[i].end_ns + r * cycle_ns});
    h->plan.programs[PROGRAM_CYCLE] =
        (struct plan_program){.instrs = h->instrs.at, .n_instrs = (uint32_t)h->instrs.n};
    h->sim = (struct sim_result){
        .cycle_ns = cycle_ns, .spans = h->all.at, .runs = runs, .n_instrs = (uint32_t)h->instrs.n};
}

static void hand_free(struct handmade *h)
{
    vec_free(&h->instrs);
    vec_free(&h->spans);
    vec_free(&h->all);
}

/* Each run lasts 2600 ns and begins 1364 ns after the previous run, so the runs overlap. The first forward
 * task of a run starts 800 ns after the run begins. */
static void test_window_is_one_period_of_overlapping_runs(void **state)
{
    struct handmade h;
    struct strbuf out = {0};

    (void)state;
    hand_init(&h, 1);
    hand_add(&h, 1, INSTR_FETCH, 0, 800); /* the previous run is still active */
    hand_add(&h, 0, INSTR_FWD, 800, 1300);
    hand_add(&h, 0, INSTR_BWD, 1300, 1800);
    hand_add(&h, 4, INSTR_UPD, 1900, 2600);
    hand_add(&h, 0, INSTR_DROP, 2600, 2600);
    hand_finish(&h, 3, 1364); /* a nanosecond is a pixel */
    plan_svg(&h.plan, &h.sim, &out);
    /* The window begins at 1364 + 800. */
    assert_contains(&out,
                    "<title>FWD l0\nat 0.000 us for 0.500 us</title><rect x=\"0\" y=\"0\" width=\"500\"");
    assert_contains(&out,
                    "<title>BWD l0\nat 0.500 us for 0.500 us</title><rect x=\"500\" y=\"0\" width=\"500\"");
    /* the fetch of the run after, which begins 800 before the window ends; nothing of the one before */
    assert_contains(&out,
                    "<title>fetch l0\nat 0.564 us for 0.800 us</title><rect x=\"564\" y=\"0\" width=\"800\"");
    /* The update of the previous run is cut off at the left, and the update of this run is cut off at the
     * right. The visible parts of both add up to one update. */
    assert_contains(&out,
                    "<title>UPD l0\nat -0.264 us for 0.700 us</title><rect x=\"0\" y=\"0\" width=\"436\"");
    assert_contains(&out,
                    "<title>UPD l0\nat 1.100 us for 0.700 us</title><rect x=\"1100\" y=\"0\" width=\"264\"");
    assert_contains(&out, ">73.3 %<"); /* 1000 of 1364 */
    assert_contains(&out, ">51.3 %<"); /* 700 of 1364 */
    assert_lacks(&out, "DROP");
    check_picture(&h.plan, &h.sim, window_of(&h.plan, &h.sim));
    strbuf_finish(&out);

    h.sim.runs = 1; /* from where it begins */
    h.sim.cycle_ns = 2728;
    plan_svg(&h.plan, &h.sim, &out);
    assert_contains(&out,
                    "<title>fetch l0\nat 0.000 us for 0.800 us</title><rect x=\"0\" y=\"0\" width=\"400\"");
    assert_contains(&out,
                    "<title>UPD l0\nat 1.900 us for 0.700 us</title><rect x=\"950\" y=\"0\" width=\"350\"");
    check_picture(&h.plan, &h.sim, (struct window){0, 2728});
    strbuf_finish(&out);
    hand_free(&h);
}

/* Each pixel covers about a hundred tasks of two kinds, and the stream is idle for a third of the time. */
static void test_narrow_instructions_stand_together(void **state)
{
    enum { N = 100000, SLOT = 30 };
    struct handmade h;
    struct strbuf out = {0};
    struct drawn *d = malloc(sizeof *d);

    (void)state;
    assert_non_null(d);
    hand_init(&h, 1);
    for (uint32_t i = 0; i < N; i++)
        hand_add(&h, 0, i % 2 ? INSTR_BWD : INSTR_FWD, SLOT * i, SLOT * i + (i % 2 ? 25 : 15));
    hand_finish(&h, 3, N * SLOT);
    check_picture(&h.plan, &h.sim, window_of(&h.plan, &h.sim));
    plan_svg(&h.plan, &h.sim, &out);
    read_picture(out.at, &h.plan, d);
    assert_in_range(d->rows[0].marks, PLOT, 2 * PLOT + 1);
    assert_int_equal(d->rows[0].rects.n, 2 * d->rows[0].marks);
    for (size_t i = 2; i + 2 < d->rows[0].rects.n;
         i++) { /* 15 and 25 of 60; a mark may hold one more of a kind */
        const struct rect *r = &d->rows[0].rects.at[i];
        assert_true(r->kind == INSTR_FWD ? r->h > 5 && r->h < 6.1 : r->h > 8.5 && r->h < 9.8);
    }
    assert_contains(&out, " instructions, FWD l0 to BWD l0\n");
    drawn_finish(d);
    free(d);
    strbuf_finish(&out);
    hand_free(&h);
}

/* The tip of several moves has the bytes of all. */
static void test_bytes_of_moves_that_stand_together_add_up(void **state)
{
    struct plan_tensor tensors[] = {tiny_tensor(TENSOR_W, 0, PLAN_NONE, 512, 0, 1),
                                    tiny_tensor(TENSOR_X, 0, 0, 1024, 512, 1)};
    struct plan_operand operands[] = {{.tensor = 0, .end = 512}, {.tensor = 1, .end = 1024}};
    struct handmade h;
    struct strbuf out = {0};

    (void)state;
    hand_init(&h, 1);
    hand_add(&h, 0, INSTR_FWD, 0, 1000);
    hand_add(&h, 1, INSTR_FETCH, 2000, 2020);
    hand_add(&h, 1, INSTR_FETCH, 2030, 2050);
    hand_add(&h, 2, INSTR_SPILL, 3000, 4000);
    hand_finish(&h, 3, 136400); /* a hundred nanoseconds are a pixel */
    h.plan.tensors = tensors;
    h.plan.n_tensors = 2;
    h.plan.programs[PROGRAM_CYCLE].operands = operands;
    for (uint32_t i = 1; i < 4; i++) {
        h.instrs.at[i].operand = i / 2;
        h.instrs.at[i].n_operands = 1;
    }
    plan_svg(&h.plan, &h.sim, &out);
    assert_contains(&out, "<title>2 instructions, fetch W0 to fetch X0.0, 1.50 KiB\n"
                          "at 2.000 us for 0.050 us, busy 80.0 %</title>");
    assert_contains(&out, "<title>spill X0.0, 1.00 KiB\nat 3.000 us for 1.000 us</title>");
    assert_contains(&out, ">1.50 KiB</text>"); /* behind the row */
    strbuf_finish(&out);
    hand_free(&h);
}

/* A wide instruction keeps its own mark and tooltip, even between narrow instructions and narrow gaps. */
static void test_wide_instructions_stand_alone(void **state)
{
    struct handmade h;
    struct strbuf out = {0};

    (void)state;
    hand_init(&h, 1);
    hand_add(&h, 0, INSTR_FWD, 0, 1000);
    hand_add(&h, 0, INSTR_FWD, 1000, 2000);  /* touches: two all the same */
    hand_add(&h, 0, INSTR_NORM, 2000, 2010); /* a tenth of a pixel */
    hand_add(&h, 0, INSTR_BWD, 2020, 3000);
    hand_add(&h, 0, INSTR_UPD, 9000, 9005);      /* alone */
    hand_add(&h, 0, INSTR_DECIDE, 20000, 20000); /* takes no time */
    hand_finish(&h, 3, 136400);                  /* a hundred nanoseconds are a pixel */
    check_picture(&h.plan, &h.sim, window_of(&h.plan, &h.sim));
    plan_svg(&h.plan, &h.sim, &out);
    assert_contains(&out, "at 0.000 us for 1.000 us</title><rect x=\"0\" y=\"0\" width=\"10\" height=\"22\"");
    assert_contains(&out,
                    "at 1.000 us for 1.000 us</title><rect x=\"10\" y=\"0\" width=\"10\" height=\"22\"");
    assert_contains(&out, "<title>NORM l0\nat 2.000 us for 0.010 us</title>"
                          "<rect x=\"20\" y=\"11\" width=\"0.20\" height=\"11\"");
    assert_contains(&out, "<title>BWD l0\nat 2.020 us for 0.980 us</title>"
                          "<rect x=\"20.20\" y=\"0\" width=\"9.80\" height=\"22\"");
    /* a twentieth of a pixel, a pixel wide: 1.1 high */
    assert_contains(&out, "<title>UPD l0\nat 9.000 us for 0.005 us</title>"
                          "<rect x=\"90\" y=\"20.90\" width=\"1\" height=\"1.10\"");
    assert_lacks(&out, "<title>DECIDE");
    assert_contains(&out, ">DECIDE<"); /* in the legend */
    strbuf_finish(&out);
    hand_free(&h);
}

/* The plan has the maximum number of devices, and each lane has more random instructions than the picture has
 * pixels. */
static void test_picture_of_a_large_plan_is_small(void **state)
{
    enum { PER_STREAM = 1500, SLOT = 1000 };
    static const enum instr_kind kinds[] = {INSTR_FWD, INSTR_BWD,  INSTR_REC,   INSTR_NORM, INSTR_DECIDE,
                                            INSTR_UPD, INSTR_SEND, INSTR_FETCH, INSTR_SPILL};
    struct rng rng = {.seed = 3};
    struct handmade h;
    struct strbuf out = {0};

    (void)state;
    hand_init(&h, DEVICE_MAX);
    for (uint32_t s = 0; s < plan_n_streams(&h.plan); s++)
        for (uint32_t i = 0; i < PER_STREAM; i++) {
            uint64_t start = i * SLOT + rng_below(&rng, SLOT);
            enum instr_kind kind = i == 0 ? INSTR_FWD : kinds[rng_below(&rng, sizeof kinds / sizeof *kinds)];
            hand_add(&h, s, kind, start, start + rng_below(&rng, (uint32_t)((i + 1) * SLOT - start)));
        }
    hand_finish(&h, 3, PER_STREAM * SLOT);
    check_picture(&h.plan, &h.sim, window_of(&h.plan, &h.sim));
    plan_svg(&h.plan, &h.sim, &out);
    assert_in_range(out.n, LIMIT / 4, LIMIT); /* as detailed as may be */
    strbuf_finish(&out);
    hand_free(&h);
}

/* An iteration may have fewer nanoseconds than the picture has pixels, or none, because times are whole
 * nanoseconds. */
static void test_short_and_empty_iterations_are_drawn(void **state)
{
    struct strbuf out = {0};
    struct drawn *d = malloc(sizeof *d);
    struct handmade h;

    (void)state;
    assert_non_null(d);
    hand_init(&h, DEVICE_MAX);
    for (uint32_t s = 0; s < plan_n_streams(&h.plan); s++)
        for (uint32_t i = 0; i < 200; i++)
            hand_add(&h, s, INSTR_FWD, i, i + 1);
    hand_finish(&h, 3, 200);
    check_picture(&h.plan, &h.sim, window_of(&h.plan, &h.sim));
    hand_free(&h);

    for (uint64_t end = 0; end < 2; end++) {
        hand_init(&h, 1);
        hand_add(&h, 0, INSTR_FWD, 5, 5 + end);
        hand_finish(&h, 2, 0);
        plan_svg(&h.plan, &h.sim, &out);
        read_picture(out.at, &h.plan, d);
        assert_int_equal(d->rows[0].marks, 0);
        assert_contains(&out, ">0.0 %<");
        drawn_finish(d);
        strbuf_finish(&out);
        hand_free(&h);
    }
    hand_init(&h, 1);
    hand_finish(&h, 3, 0); /* no instructions */
    plan_svg(&h.plan, &h.sim, &out);
    read_picture(out.at, &h.plan, d);
    drawn_finish(d);
    strbuf_finish(&out);
    free(d);
}

static void test_axis_has_round_times(void **state)
{
    static const struct {
        uint64_t cycle_ns;
        const char *has[3], *lacks;
    } cases[] = {
        {7, {">0.000 us<", ">0.001 us<", ">0.007 us<"}, ">0.008 us<"},
        {999, {">0.0 us<", ">0.1 us<", ">0.9 us<"}, ">1.0 us<"},
        {14999, {">0 us<", ">1 us<", ">14 us<"}, ">15 us<"},
        {15000, {">0 us<", ">2 us<", ">14 us<"}, ">1 us<"},
        {655479238, {">0 ms<", ">50 ms<", ">650 ms<"}, ">100.0 ms<"},
        {1000000000, {">0.0 s<", ">0.1 s<", ">1.0 s<"}, "ms<"},
        {41103346328, {">0 s<", ">5 s<", ">40 s<"}, ">45 s<"},
        {870602000000, {">0 s<", ">100 s<", ">800 s<"}, ">50 s<"},
        {UINT64_MAX / 4, {">0 s<", ">500000000 s<", ">4500000000 s<"}, ">5000000000 s<"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct handmade h;
        struct strbuf out = {0};
        hand_init(&h, 1);
        hand_add(&h, 0, INSTR_FWD, 0, cases[i].cycle_ns);
        hand_finish(&h, 3, cases[i].cycle_ns);
        plan_svg(&h.plan, &h.sim, &out);
        for (int j = 0; j < 3; j++)
            assert_contains(&out, cases[i].has[j]);
        assert_lacks(&out, cases[i].lacks);
        strbuf_finish(&out);
        hand_free(&h);
    }
}

/* ---- every policy ---- */

static struct layer policy_layers[] = {
    {.type = &layer_dense, .id = 0, .in = {1, {48}}, .out = {1, {40}}, .dense = {.bias = true}},
    {.type = &layer_dense, .id = 1, .in = {1, {40}}, .out = {1, {40}}, .dense = {.bias = true}},
    {.type = &layer_dense, .id = 2, .in = {1, {40}}, .out = {1, {10}}, .dense = {.bias = true}},
    {.type = &layer_softmax_xent, .id = 3, .in = {1, {10}}},
};

static void test_every_policy_can_be_drawn(void **state)
{
    static const struct model model = {policy_layers, sizeof policy_layers / sizeof *policy_layers};
    static const struct optimizer optimizer = {.kind = OPTIMIZER_ADAMW, .clip = 1};
    struct graph *g = NULL;

    (void)state;
    assert_int_equal(
        graph_build(
            &(struct graph_config){
                .model = &model, .optimizer = &optimizer, .rows = 8, .n_micro = 6, .training = true},
            &g, NULL),
        0);
    for (uint32_t devices = 1; devices <= 3; devices++) {
        struct machine m;
        machine_init_cpu(&m, devices, 1 << 15, 1 << 26);
        struct profile *prof = profile_analytic(g, &m);
        for (int policy = 0; policy < POLICY_COUNT; policy++) {
            struct plan_request request = {.train = g, .machine = &m, .policy = (enum policy_id)policy};
            struct plan *p = NULL;
            if (plan_make(&request, &p, NULL, NULL) <
                0) { /* one device is too small for all that is resident */
                assert_true(policy == POLICY_resident || policy == POLICY_blocks);
                continue;
            }
            for (uint32_t runs = 2; runs <= 4; runs++) {
                struct sim_result *sim = plan_simulate(p, PROGRAM_CYCLE, runs, prof, &m);
                check_picture(p, sim, window_of(p, sim));
                sim_destroy(sim);
            }
            plan_destroy(p);
        }
        profile_destroy(prof);
    }
    graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_picture_tells_what_a_plan_does),
        cmocka_unit_test(test_areas_are_the_times_of_the_lanes),
        cmocka_unit_test(test_picture_is_added_to_what_is_there),
        cmocka_unit_test(test_names_are_escaped),
        cmocka_unit_test(test_window_is_one_period_of_overlapping_runs),
        cmocka_unit_test(test_narrow_instructions_stand_together),
        cmocka_unit_test(test_bytes_of_moves_that_stand_together_add_up),
        cmocka_unit_test(test_wide_instructions_stand_alone),
        cmocka_unit_test(test_picture_of_a_large_plan_is_small),
        cmocka_unit_test(test_short_and_empty_iterations_are_drawn),
        cmocka_unit_test(test_axis_has_round_times),
        cmocka_unit_test(test_every_policy_can_be_drawn),
    };
    return cmocka_run_group_tests_name("explain_svg", tests, NULL, NULL);
}
