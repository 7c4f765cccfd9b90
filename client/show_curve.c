/* Draws a curve with characters. The curve is first drawn as dots. Each character then shows a small block of
 * dots: 2 x 4 in braille, or 1 x 2 in ASCII (' for the upper dot, . for the lower dot, : for both).
 *
 * The value of a column of dots is the mean of the points that fall on it. A column without points is
 * interpolated between its neighbours. The dots of neighbouring columns are connected, so that a steep fall
 * looks like a line.
 *
 * The scale is logarithmic when the highest value is at least 20 times the lowest. Otherwise the high losses
 * of the first steps would flatten the rest of the curve.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "client/show.h"

#define LOG_RATIO     20.0
#define LABEL_COLUMNS 9

struct canvas {
    int width, height; /* in dots */
    unsigned char *dots;
};

/* The range of training steps and the range of values that the drawing shows. */
struct curve_scale {
    uint64_t first, last; /* steps, from left to right */
    double low, high;     /* values, from bottom to top */
    bool log;             /* the scale of the values is logarithmic */
};

/* The points of a curve, and possibly one more. If the newest values of the curve are not enough for a point
 * yet, their mean is added here as the last point. */
struct points {
    struct curve_point at[CURVE_POINTS + 1];
    int n;
};

static void collect_points(const struct curve *c, struct points *ret)
{
    ret->n = 0;
    for (uint32_t i = 0; i < c->n && i < CURVE_POINTS; i++)
        ret->at[ret->n++] = c->points[i];
    if (c->pending > 0)
        ret->at[ret->n++] = (struct curve_point){c->step, c->sum / c->pending};
}

static struct curve_scale scale_of(const struct points *p)
{
    struct curve_scale s = {
        .first = p->at[0].step, .last = p->at[p->n - 1].step, .low = p->at[0].value, .high = p->at[0].value};
    for (int i = 1; i < p->n; i++) {
        s.low = fmin(s.low, p->at[i].value);
        s.high = fmax(s.high, p->at[i].value);
    }
    s.log = s.low > 0 && s.high / s.low >= LOG_RATIO;
    return s;
}

static double at_scale(const struct curve_scale *s, double v)
{
    return s->log ? log(v) : v;
}

/* Returns the row of dots in which the value `v` is drawn. Row 0 is at the top. */
static int dot_row(const struct curve_scale *s, double v, int height)
{
    /* Halve all values before subtracting them, because the difference of two huge values could overflow. */
    double low = at_scale(s, s->low) / 2, high = at_scale(s, s->high) / 2;
    double share = high > low ? (at_scale(s, v) / 2 - low) / (high - low) : 0.5;
    return (int)lround((1 - fmax(0, fmin(1, share))) * (height - 1));
}

/* Stores in ret[x] the mean value of the points that fall into the dot column `x`. If there is no such point,
 * ret[x] becomes NAN. */
static void spread(const struct points *p, const struct curve_scale *s, int width, double *ret)
{
    int *n = xcalloc((size_t)width, sizeof *n);
    for (int x = 0; x < width; x++)
        ret[x] = NAN;
    for (int i = 0; i < p->n; i++) {
        double share = (double)(p->at[i].step - s->first) / (double)(s->last - s->first);
        int x = (int)lround(share * (width - 1));
        ret[x] = n[x] == 0 ? p->at[i].value : ret[x] + (p->at[i].value - ret[x]) / (n[x] + 1);
        n[x]++;
    }
    free(n);
}

/* Interpolates: gives every column without points a value between those of its neighbours. The first and the
 * last column always have points. */
static void fill_gaps(double *v, int width)
{
    for (int x = 1, left = 0; x < width; x++) {
        if (isnan(v[x]))
            continue;
        for (int i = left + 1; i < x; i++)
            v[i] = v[left] + (v[x] - v[left]) * (i - left) / (x - left);
        left = x;
    }
}

/* Draws the curve. If the curve jumps between two neighbouring columns, connects them by a vertical line. */
static void draw_line(struct canvas *c, const struct curve_scale *s, const double *v)
{
    for (int x = 0, before = 0; x < c->width; x++) {
        int y = dot_row(s, v[x], c->height), from = y, to = y;
        if (x > 0 && before < y - 1)
            from = before + 1;
        if (x > 0 && before > y + 1)
            to = before - 1;
        for (int i = from; i <= to; i++)
            c->dots[i * c->width + x] = 1;
        before = y;
    }
}

static bool dot(const struct canvas *c, int x, int y)
{
    return c->dots[y * c->width + x] != 0;
}

static void add_braille_cell(struct strbuf *b, const struct canvas *c, int x, int y)
{
    static const unsigned char bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    unsigned pattern = 0;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++)
            if (dot(c, 2 * x + j, 4 * y + i))
                pattern |= bits[i][j];
    if (pattern == 0) {
        strbuf_add(b, " ");
        return;
    }
    /* The character U+2800 + pattern in UTF-8. */
    const char text[3] = {(char)0xE2, (char)(0xA0 | pattern >> 6), (char)(0x80 | (pattern & 0x3F))};
    strbuf_addn(b, text, 3);
}

static void add_ascii_cell(struct strbuf *b, const struct canvas *c, int x, int y)
{
    bool upper = dot(c, x, 2 * y), lower = dot(c, x, 2 * y + 1);
    strbuf_add(b, upper && lower ? ":" : upper ? "'" : lower ? "." : " ");
}

/* Appends one line of the curve. The line ends after its last dot, so that it has no trailing blanks. */
static void add_dot_row(struct strbuf *b, const struct style *s, const struct canvas *c, int columns, int y)
{
    size_t end = b->n;
    for (int x = 0; x < columns; x++) {
        size_t before = b->n;
        if (s->unicode)
            add_braille_cell(b, c, x, y);
        else
            add_ascii_cell(b, c, x, y);
        if (b->n > before && b->at[b->n - 1] != ' ')
            end = b->n;
    }
    b->n = end;
    b->at[end] = '\0';
}

static void add_label(struct strbuf *b, double v, bool shown)
{
    struct strbuf text = {0};
    strbuf_add(&text, "");
    if (shown)
        show_loss(&text, v);
    strbuf_addf(b, "%*s ", LABEL_COLUMNS, text.at);
    strbuf_finish(&text);
}

static void add_axis(struct strbuf *b, const struct style *s, const struct curve_scale *scale,
                     const struct plot *p, int columns)
{
    struct strbuf last = {0};
    int used;
    strbuf_addf(b, "%s%*s %s%s", p->indent, LABEL_COLUMNS, scale->log ? "log" : "", show_ink(s, INK_DIM),
                s->unicode ? "\u2514" : "+");
    for (int x = 0; x < columns; x++)
        strbuf_add(b, s->unicode ? "\u2500" : "-");
    strbuf_addf(b, "%s\n", show_plain(s));
    strbuf_addf(&last, "step %llu", (unsigned long long)scale->last);
    size_t begin = b->n;
    strbuf_addf(b, "%s%*s%llu", p->indent, LABEL_COLUMNS + 2, "", (unsigned long long)scale->first);
    used = (int)(b->n - begin - strlen(p->indent)) - LABEL_COLUMNS - 2;
    if (used + 1 + (int)last.n <= columns)
        strbuf_addf(b, "%*s", columns - used, last.at);
    strbuf_add(b, "\n");
    strbuf_finish(&last);
}

void show_curve(struct strbuf *b, const struct style *s, const struct curve *c, const struct plot *p)
{
    struct points points;
    collect_points(c, &points);
    int columns = p->width - (int)strlen(p->indent) - LABEL_COLUMNS - 2;
    if (points.n < 2 || points.at[points.n - 1].step <= points.at[0].step || columns < 8 || p->height < 2)
        return;
    struct curve_scale scale = scale_of(&points);
    struct canvas canvas = {columns * (s->unicode ? 2 : 1), p->height * (s->unicode ? 4 : 2), NULL};
    canvas.dots = xcalloc((size_t)canvas.width * (size_t)canvas.height, 1);
    double *values = xcalloc((size_t)canvas.width, sizeof *values);
    spread(&points, &scale, canvas.width, values);
    fill_gaps(values, canvas.width);
    draw_line(&canvas, &scale, values);
    for (int y = 0; y < p->height; y++) {
        bool end = y == 0 || y == p->height - 1;
        strbuf_add(b, p->indent);
        add_label(b, y == 0 ? scale.high : scale.low, end);
        strbuf_addf(b, "%s%s%s%s", show_ink(s, INK_DIM),
                    s->unicode ? (end ? "\u2524" : "\u2502") : (end ? "+" : "|"), show_plain(s),
                    show_ink(s, INK_GREEN));
        add_dot_row(b, s, &canvas, columns, y);
        strbuf_addf(b, "%s\n", show_plain(s));
    }
    add_axis(b, s, &scale, p, columns);
    free(values);
    free(canvas.dots);
}
