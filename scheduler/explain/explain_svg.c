/* Implements plan_svg, which draws one iteration of a plan.
 *
 * Window. The picture shows a window of the simulation that is as long as an iteration (sim->cycle_ns). It
 * starts with the first forward task of the last run but one. Runs of the cycle overlap, so the window also
 * shows the last updates of the previous run at its left, and the first fetches of the next run at its right.
 * Instructions that cross an edge are cut there. In the steady state, the part that is cut off at the right
 * appears at the left, so each row contains exactly the work of one iteration. The first run is not drawn,
 * because it starts with idle links.
 *
 * Marks. The coloured area is proportional to time. An instruction that is wide enough is a rectangle as high
 * as its row. Narrower instructions are collected in a mark of about half a pixel. The mark is as high as its
 * stream is busy in that time, and the kinds in it are stacked, each with its share of the height. A narrow
 * gap is added to the mark before it, and a mark that stands alone is widened to a pixel; both make the mark
 * lower. A mark is at least one pixel high, so that it can be seen. A row has therefore at most a few
 * thousand marks. If the file is still too large, marks are made twice as wide, until it is small enough.
 *
 * Positions are in hundredths of a pixel and rounded down. Marks of a row may touch but do not overlap, and
 * the same plan always gives the same file. Edges are drawn without anti-aliasing, because otherwise the
 * background would show through where marks touch.
 */
#include "scheduler/explain/explain.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/utf8.h"
#include "scheduler/explain/explain_parts.h"

enum {
    LEFT = 96,
    PLOT = 1364, /* width of the timeline */
    WIDTH = 1600,
    TOP = 96, /* y of the first row */
    BOTTOM = 56,
    TASKS_HEIGHT = 22, /* height of a row with tasks */
    MOVES_HEIGHT = 14, /* height of a row with moves */
    ROW_GAP = 3,
    DEVICE_GAP = 10,
    LEGEND_WIDTH = 84, /* width of an entry */
    HUNDREDTHS = 100,  /* units of a pixel */
    MAX_TICKS = 14,
    /* Maximum number of bytes in the SVG text of all marks together. */
    MARKS_BYTES = 1800000,
};

static const char *const colours[INSTR_KIND_COUNT] = {
    [INSTR_FWD] = "#4477aa",   [INSTR_BWD] = "#ee6677",   [INSTR_REC] = "#ccbb44",    [INSTR_RED] = "#882255",
    [INSTR_COPY] = "#999933",  [INSTR_NORM] = "#aa3377",  [INSTR_DECIDE] = "#222255", [INSTR_UPD] = "#228833",
    [INSTR_FETCH] = "#2299cc", [INSTR_SPILL] = "#dd7722", [INSTR_SEND] = "#7755bb",
};

static const char *colour_of(enum instr_kind k)
{
    return colours[k] ? colours[k] : "#000000";
}

/* A coloured mark in the picture. It shows one instruction, or several instructions that are too narrow to be
 * drawn separately. */
struct svg_mark {
    uint32_t n; /* number of instructions */
    /* Indices of the first and the last instruction that the mark shows. */
    uint32_t first, last;
    uint64_t begin_ns, end_ns; /* on the simulation's clock */
    /* Start and end time of the visible part, which ends at the edges of the window. */
    uint64_t from_ns, to_ns;
    uint64_t busy_ns[INSTR_KIND_COUNT]; /* time of each kind within the window */
    uint64_t bytes;                     /* bytes moved, including parts outside the window */
};

/* A row of the picture: one stream. */
struct svg_row {
    uint32_t y, height; /* in pixels */
    uint64_t busy_ns;   /* time within the window */
    /* The last mark of the row. The mark is not drawn yet, because the next instruction may become part of
     * the mark. */
    struct svg_mark open;
    struct strbuf marks; /* text of the finished marks */
};

/* The state of one plan_svg. */
struct picture {
    const struct plan *plan;
    const struct plan_program *program;
    const struct sim_result *sim;
    struct strbuf *out;
    uint64_t zero_ns, length_ns; /* start and length of the window */
    uint64_t narrow_ns;          /* shorter instructions are not drawn separately */
    struct svg_row *rows;        /* one per stream */
    size_t marks_bytes;          /* size of the text of all marks */
    uint32_t bottom;             /* y where the last row ends */
};

/* ---- text and numbers ---- */

/* Adds text that comes from a user, such as a name, to the XML. Replaces control characters and other unsafe
 * characters by escapes. */
static void add_text(struct strbuf *out, const char *s)
{
    char shown[UTF8_SHOWN_BYTES];

    for (size_t left = strlen(s), n; left > 0; s += n, left -= n) {
        n = utf8_show(s, left, shown);
        if (*s == '&')
            strbuf_add(out, "&amp;");
        else if (*s == '<')
            strbuf_add(out, "&lt;");
        else if (*s == '>')
            strbuf_add(out, "&gt;");
        else
            strbuf_add(out, shown);
    }
}

/* Returns of * part / whole, rounded down. For example, portion(1, 4, 200) is 50. Returns 0 if `whole` is
 * 0. */
static uint64_t portion(uint64_t part, uint64_t whole, uint64_t of)
{
    return whole ? (uint64_t)((unsigned __int128)part * of / whole) : 0;
}

/* Adds a length in pixels. `parts` is the length in hundredths of a pixel: 250 gives "2.50", and 200 gives
 * "2". */
static void add_hundredths(struct strbuf *out, uint64_t parts)
{
    strbuf_addf(out, "%u", (unsigned)(parts / HUNDREDTHS));
    if (parts % HUNDREDTHS)
        strbuf_addf(out, ".%02u", (unsigned)(parts % HUNDREDTHS));
}

static void add_pixels(struct strbuf *out, const char *attribute, uint64_t parts)
{
    strbuf_addf(out, " %s=\"", attribute);
    add_hundredths(out, parts);
    strbuf_add(out, "\"");
}

static void add_percent(struct strbuf *out, uint64_t part, uint64_t whole)
{
    uint64_t tenths = (portion(part, whole, 2000) + 1) / 2;
    strbuf_addf(out, "%u.%u %%", (unsigned)(tenths / 10), (unsigned)(tenths % 10));
}

/* ---- marks ---- */

static uint64_t busy_of(const struct svg_mark *m)
{
    uint64_t ns = 0;

    for (int k = 0; k < INSTR_KIND_COUNT; k++)
        ns += m->busy_ns[k];
    return ns;
}

static void add_instr(const struct picture *c, struct strbuf *out, uint32_t i)
{
    explain_add_event(out, c->plan, c->program, &c->program->instrs[i]);
}

/* Adds the text that the viewer shows when the mouse is over a mark, such as "fetch W3, 40.00 MiB / at 1.250
 * ms for 3.000 ms". The text gives the times of the whole instruction, even if the picture shows only a part
 * of the instruction. */
static void add_tip(const struct picture *c, struct strbuf *out, const struct svg_mark *m)
{
    bool before = m->begin_ns < c->zero_ns;

    strbuf_add(out, "<title>");
    if (m->n > 1)
        strbuf_addf(out, "%u instructions, ", m->n);
    add_instr(c, out, m->first);
    if (m->n > 1) {
        strbuf_add(out, " to ");
        add_instr(c, out, m->last);
    }
    if (m->bytes > 0) {
        strbuf_add(out, ", ");
        strbuf_add_bytes(out, m->bytes);
    }
    strbuf_add(out, before ? "\nat -" : "\nat ");
    explain_add_time(out, before ? c->zero_ns - m->begin_ns : m->begin_ns - c->zero_ns);
    strbuf_add(out, " for ");
    explain_add_time(out, m->end_ns - m->begin_ns);
    if (m->n > 1) {
        strbuf_add(out, ", busy ");
        add_percent(out, busy_of(m), m->to_ns - m->from_ns);
    }
    strbuf_add(out, "</title>");
}

/* Draws a mark from the horizontal position `left` to `right`. Each kind of instruction in the mark gets one
 * rectangle. The rectangles are stacked from the bottom. Together they are at least one pixel high, so that
 * the mark can be seen. */
static void add_rectangles(struct strbuf *out, const struct svg_mark *m, uint64_t wide_ns, uint64_t left,
                           uint64_t right, uint32_t row_height)
{
    uint64_t busy_ns = busy_of(m), sum_ns = 0, below = 0;
    uint64_t height = portion(busy_ns, wide_ns, (uint64_t)row_height * HUNDREDTHS);

    if (height < HUNDREDTHS)
        height = HUNDREDTHS;
    for (int k = 0; k < INSTR_KIND_COUNT; k++) {
        sum_ns += m->busy_ns[k];
        uint64_t top = portion(sum_ns, busy_ns, height);
        if (top == below)
            continue;
        strbuf_add(out, "<rect");
        add_pixels(out, "x", left);
        add_pixels(out, "y", (uint64_t)row_height * HUNDREDTHS - top);
        add_pixels(out, "width", right - left);
        add_pixels(out, "height", top - below);
        strbuf_addf(out, " fill=\"%s\"/>", colour_of((enum instr_kind)k));
        below = top;
    }
}

/* Returns the time at which the drawn mark ends. The mark is at least one pixel wide, but ends no later than
 * free_until_ns, where the next mark begins. If the gap before the next mark is narrow, the mark also covers
 * the gap. */
static uint64_t end_of(const struct picture *c, const struct svg_mark *m, uint64_t free_until_ns)
{
    uint64_t end_ns = m->from_ns + c->length_ns / PLOT;

    if (free_until_ns < m->to_ns + c->narrow_ns || free_until_ns < end_ns)
        return free_until_ns;
    return end_ns > m->to_ns ? end_ns : m->to_ns;
}

/* Finishes the last mark of a row and adds its SVG text to the row. */
static void close_mark(struct picture *c, struct svg_row *row, uint64_t free_until_ns)
{
    const struct svg_mark *m = &row->open;
    uint64_t end_ns = end_of(c, m, free_until_ns);
    uint64_t left = portion(m->from_ns, c->length_ns, (uint64_t)PLOT * HUNDREDTHS);
    uint64_t right = portion(end_ns, c->length_ns, (uint64_t)PLOT * HUNDREDTHS);
    size_t before = row->marks.n;

    if (left < right) {
        strbuf_add(&row->marks, "<g>");
        add_tip(c, &row->marks, m);
        add_rectangles(&row->marks, m, end_ns - m->from_ns, left, right, row->height);
        strbuf_add(&row->marks, "</g>\n");
    }
    c->marks_bytes += row->marks.n - before;
    row->open = (struct svg_mark){0};
}

/* Returns whether an instruction becomes part of mark `m`. For this, the instruction, the mark and the gap
 * between them must all be narrow. */
static bool takes(const struct picture *c, const struct svg_mark *m, uint64_t from_ns, uint64_t to_ns)
{
    return to_ns - from_ns < c->narrow_ns && m->to_ns - m->from_ns < c->narrow_ns &&
           from_ns < m->to_ns + c->narrow_ns;
}

static void add_to_row(struct picture *c, uint32_t i, const struct plan_span *span)
{
    const struct plan_instr *in = &c->program->instrs[i];
    const struct plan_operand *moved = explain_moved(c->program, in);
    struct svg_row *row = &c->rows[in->stream];
    struct svg_mark *m = &row->open;
    uint64_t end_ns = c->zero_ns + c->length_ns;

    if (!explain_is_event(in) || span->end_ns <= c->zero_ns || span->start_ns >= end_ns ||
        span->start_ns == span->end_ns)
        return;
    uint64_t from_ns = span->start_ns > c->zero_ns ? span->start_ns - c->zero_ns : 0;
    uint64_t to_ns = (span->end_ns < end_ns ? span->end_ns : end_ns) - c->zero_ns;
    if (m->n > 0 && !takes(c, m, from_ns, to_ns))
        close_mark(c, row, from_ns);
    if (m->n == 0)
        *m = (struct svg_mark){.first = i, .begin_ns = span->start_ns, .from_ns = from_ns};
    m->n++;
    m->last = i;
    m->end_ns = span->end_ns;
    m->to_ns = to_ns;
    m->busy_ns[in->kind] += to_ns - from_ns;
    m->bytes += moved ? operand_bytes(moved) : 0;
    row->busy_ns += to_ns - from_ns;
}

/* Makes the marks of all rows. The instructions of each stream must be sorted by time. Returns false if the
 * text of the marks gets too long. */
static bool make_marks(struct picture *c)
{
    const size_t n = c->sim->n_instrs;

    c->marks_bytes = 0;
    for (uint32_t s = 0; s < plan_n_streams(c->plan); s++) {
        c->rows[s].marks.n = 0;
        c->rows[s].busy_ns = 0;
        c->rows[s].open = (struct svg_mark){0};
    }
    for (size_t at = 0; at < c->sim->runs * n && c->marks_bytes <= MARKS_BYTES; at++)
        add_to_row(c, (uint32_t)(at % n), &c->sim->spans[at]);
    for (uint32_t s = 0; s < plan_n_streams(c->plan); s++)
        if (c->rows[s].open.n > 0)
            close_mark(c, &c->rows[s], c->length_ns);
    return c->marks_bytes <= MARKS_BYTES;
}

/* ---- layout ---- */

/* Returns the time at which a run of the cycle starts: the start of its first forward task, or of its first
 * instruction if it has no forward task. */
static uint64_t begin_of_run(const struct picture *c, uint32_t run)
{
    uint64_t forward_ns = UINT64_MAX, any_ns = UINT64_MAX;

    for (uint32_t i = 0; i < c->sim->n_instrs; i++) {
        const struct plan_instr *in = &c->program->instrs[i];
        uint64_t ns = c->sim->spans[(size_t)run * c->sim->n_instrs + i].start_ns;
        if (explain_is_event(in) && ns < any_ns)
            any_ns = ns;
        if (in->kind == INSTR_FWD && ns < forward_ns)
            forward_ns = ns;
    }
    /* If only one run was simulated, start at the first instruction of this run, so that the picture shows
     * the whole run. */
    uint64_t ns = forward_ns < UINT64_MAX && c->sim->runs > 1 ? forward_ns : any_ns;
    return ns < UINT64_MAX ? ns : 0;
}

static void lay_out_rows(struct picture *c)
{
    uint32_t y = TOP;

    for (uint32_t s = 0; s < plan_n_streams(c->plan); s++) {
        bool tasks = s % LANE_COUNT == LANE_COMPUTE;
        y += s > 0 ? (tasks ? DEVICE_GAP : ROW_GAP) : 0;
        c->rows[s].y = y;
        c->rows[s].height = tasks ? TASKS_HEIGHT : MOVES_HEIGHT;
        y += c->rows[s].height;
    }
    c->bottom = y;
}

/* ---- around the marks ---- */

static void add_title(const struct picture *c)
{
    const struct plan *p = c->plan;
    const struct plan_bytes *b = &c->sim->bytes;
    struct strbuf *out = c->out;

    strbuf_addf(out, "<text x=\"%d\" y=\"28\" font-size=\"17\" font-weight=\"bold\">policy ", LEFT);
    add_text(out, p->policy);
    strbuf_addf(out, " on %u device%s, %u micro-batch%s of %u row%s", p->n_devices,
                explain_plural(p->n_devices), p->n_micro, p->n_micro == 1 ? "" : "es", p->rows,
                explain_plural(p->rows));
    if (p->n_replicas > 1)
        strbuf_addf(out, ", %u replicas", p->n_replicas);
    strbuf_add(out, ": ");
    explain_add_time(out, c->sim->cycle_ns);
    strbuf_add(out, p->steps > 1 ? " per iteration of " : " per iteration");
    if (p->steps > 1)
        strbuf_addf(out, "%u steps", p->steps);
    strbuf_addf(out, ", predicted</text>\n<text x=\"%d\" y=\"50\">per iteration ", LEFT);
    strbuf_add_bytes(out, b->in);
    strbuf_add(out, " from the host, ");
    strbuf_add_bytes(out, b->out);
    strbuf_add(out, " to the host, ");
    strbuf_add_bytes(out, b->peer);
    strbuf_add(out, " between devices</text>\n");
}

static void add_legend(const struct picture *c)
{
    bool occurs[INSTR_KIND_COUNT] = {false};
    uint32_t x = LEFT;

    for (uint32_t i = 0; i < c->program->n_instrs; i++)
        occurs[c->program->instrs[i].kind] |= explain_is_event(&c->program->instrs[i]);
    for (int k = 0; k < INSTR_KIND_COUNT; k++) {
        if (!occurs[k])
            continue;
        strbuf_addf(c->out,
                    "<rect x=\"%u\" y=\"63\" width=\"14\" height=\"14\" fill=\"%s\"/>"
                    "<text x=\"%u\" y=\"75\">%s</text>\n",
                    x, colour_of((enum instr_kind)k), x + 19, explain_kind_word((enum instr_kind)k));
        x += LEGEND_WIDTH;
    }
}

/* Returns the distance between two ticks on the time axis, in nanoseconds. This is the smallest number of the
 * series 1, 2, 5, 10, 20, 50, ... that gives at most MAX_TICKS ticks. */
static uint64_t tick_step(uint64_t length_ns)
{
    static const uint32_t times[] = {1, 2, 5};

    for (uint64_t power = 1;; power *= 10)
        for (size_t i = 0; i < sizeof times / sizeof *times; i++)
            if (power > UINT64_MAX / 100 || length_ns / (power * times[i]) <= MAX_TICKS)
                return power * times[i];
}

/* Adds the time axis, with a vertical line through all rows at each tick. All labels have the same unit and
 * the same number of decimals. */
static void add_axis(const struct picture *c)
{
    static const struct {
        const char *name;
        uint64_t ns;
    } units[] = {{"s", 1000000000}, {"ms", 1000000}, {"us", 1000}};
    uint64_t step_ns = tick_step(c->length_ns), last_digit_ns;
    size_t unit = 0;
    int decimals = 0;

    while (unit < 2 && c->length_ns < units[unit].ns)
        unit++;
    for (last_digit_ns = units[unit].ns; step_ns % last_digit_ns; last_digit_ns /= 10)
        decimals++;
    strbuf_add(c->out, "<g text-anchor=\"middle\">\n");
    for (uint64_t t = 0; t <= c->length_ns; t += step_ns) {
        strbuf_add(c->out, "<g transform=\"translate(");
        add_hundredths(c->out,
                       (uint64_t)LEFT * HUNDREDTHS + portion(t, c->length_ns, (uint64_t)PLOT * HUNDREDTHS));
        strbuf_addf(c->out, ",%d)\"><path d=\"M0 0V%u\" stroke=\"#bbbbbb\"/><text y=\"%u\">%llu", TOP - 4,
                    c->bottom - TOP + 8, c->bottom - TOP + 24, (unsigned long long)(t / units[unit].ns));
        if (decimals > 0)
            strbuf_addf(c->out, ".%0*llu", decimals,
                        (unsigned long long)(t % units[unit].ns / last_digit_ns));
        strbuf_addf(c->out, " %s</text></g>\n", units[unit].name);
    }
    strbuf_add(c->out, "</g>\n");
}

static void add_caption(const struct picture *c)
{
    strbuf_addf(c->out, "<text x=\"%d\" y=\"%u\" font-size=\"11\" fill=\"#666666\">", LEFT, c->bottom + 40);
    strbuf_add(c->out,
               "one iteration of many, from its first forward task on; areas are times: where instructions "
               "are narrower than a pixel, a row is as high as its stream is busy</text>\n");
}

/* Adds a grey background to each row. Where the background stays visible, the stream is idle. */
static void add_backgrounds(const struct picture *c)
{
    for (uint32_t s = 0; s < plan_n_streams(c->plan); s++)
        strbuf_addf(c->out, "<rect x=\"%d\" y=\"%u\" width=\"%d\" height=\"%u\" fill=\"#f3f3f3\"/>\n", LEFT,
                    c->rows[s].y, PLOT, c->rows[s].height);
}

/* Returns the number of bytes that a stream moves during one run of the cycle. */
static uint64_t bytes_of(const struct picture *c, uint32_t stream)
{
    struct plan_bytes b = {0};

    if (stream != plan_host_stream(c->plan))
        plan_count_device_bytes(c->plan, PROGRAM_CYCLE, stream / LANE_COUNT, &b);
    switch ((enum lane)(stream % LANE_COUNT)) {
    case LANE_IN:
        return b.in;
    case LANE_OUT:
        return b.out;
    case LANE_PEER:
        return b.peer;
    default:
        return 0;
    }
}

/* Adds a row of the picture. The stream's name is on the left, its marks are in the middle, and its totals
 * are on the right. */
static void add_row(const struct picture *c, uint32_t stream)
{
    const struct svg_row *row = &c->rows[stream];
    uint32_t base = row->y + row->height / 2 + 4;
    uint64_t bytes = bytes_of(c, stream);

    strbuf_addf(c->out, "<text x=\"%d\" y=\"%u\" text-anchor=\"end\">", LEFT - 8, base);
    if (stream == plan_host_stream(c->plan))
        strbuf_add(c->out, "host");
    else
        strbuf_addf(c->out, "d%u %s", stream / LANE_COUNT, lane_names[stream % LANE_COUNT]);
    strbuf_addf(c->out, "</text>\n<text x=\"%d\" y=\"%u\" text-anchor=\"end\">", LEFT + PLOT + 56, base);
    add_percent(c->out, row->busy_ns, c->length_ns);
    strbuf_add(c->out, "</text>\n");
    if (bytes > 0) {
        strbuf_addf(c->out, "<text x=\"%d\" y=\"%u\" text-anchor=\"end\">", WIDTH - 6, base);
        strbuf_add_bytes(c->out, bytes);
        strbuf_add(c->out, "</text>\n");
    }
    strbuf_add(c->out, "<g id=\"");
    explain_add_stream(c->out, c->plan, stream);
    strbuf_addf(c->out, "\" transform=\"translate(%d,%u)\" shape-rendering=\"crispEdges\">\n", LEFT, row->y);
    if (row->marks.n > 0)
        strbuf_addn(c->out, row->marks.at, row->marks.n);
    strbuf_add(c->out, "</g>\n");
}

static void draw(const struct picture *c)
{
    uint32_t height = c->bottom + BOTTOM;

    strbuf_addf(c->out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%u\" viewBox=\"0 0 %d %u\" "
                "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222222\">\n"
                "<rect width=\"%d\" height=\"%u\" fill=\"#ffffff\"/>\n",
                WIDTH, height, WIDTH, height, WIDTH, height);
    add_title(c);
    add_legend(c);
    add_backgrounds(c);
    add_axis(c);
    add_caption(c);
    for (uint32_t s = 0; s < plan_n_streams(c->plan); s++)
        add_row(c, s);
    strbuf_add(c->out, "</svg>\n");
}

void plan_svg(const struct plan *p, const struct sim_result *cycle, struct strbuf *out)
{
    struct picture c = {
        .plan = p,
        .program = &p->programs[PROGRAM_CYCLE],
        .sim = cycle,
        .out = out,
        .length_ns = cycle->cycle_ns,
        .narrow_ns = cycle->cycle_ns / (2ull * PLOT),
        .rows = xcalloc(plan_n_streams(p), sizeof *c.rows),
    };

    c.zero_ns = begin_of_run(&c, cycle->runs > 1 ? cycle->runs - 2 : 0);
    lay_out_rows(&c);
    while (!make_marks(&c))
        c.narrow_ns = c.narrow_ns ? 2 * c.narrow_ns : 1;
    draw(&c);
    for (uint32_t s = 0; s < plan_n_streams(p); s++)
        strbuf_finish(&c.rows[s].marks);
    xfree(c.rows);
}
