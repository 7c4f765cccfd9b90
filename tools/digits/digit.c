/* Draws a digit: bends and moves the strokes of a glyph, draws them with ink into 28 x 28 pixels, and then
 * spoils the image.
 *
 * These changes are made to an image, in this order, each by a random amount:
 *
 * The strokes are bent by a smooth field (a cubic spline over a lattice of random offsets), scaled, sheared,
 * rotated and moved. Each stroke has a width of its own, and the glyph is one of the digit's four styles.
 *
 * The page gets ends of foreign strokes at its border, thin lines across it, and specks.
 *
 * The scan has soft edges, ink and paper of varying brightness, a scratch without ink, and noise.
 *
 * Every number is the same on every machine. The code computes with floats, but uses only + - * / and sqrtf,
 * which IEEE 754 rounds in one way. No operations are contracted (a compiler flag of the whole project). A
 * rotation uses the rational form of sine and cosine. No expression draws two random numbers, because the
 * compiler would choose their order.
 */
#include "tools/digits/digit.h"

#include <float.h>
#include <math.h>

#include "base/rng.h"
#include "tools/digits/glyphs.h"

_Static_assert(FLT_EVAL_METHOD == 0, "floats are computed as floats");

/* To bend a digit, a lattice of LATTICE x LATTICE random offsets is laid over it. A curve is drawn as
 * straight lines: PIECES lines between two neighbouring points. */
enum { LATTICE = 5, PIECES = 4 };

/* Numbers of two independent sequences of random numbers. The shape of an image is drawn from one sequence,
 * and its noise from the other. */
enum { SEQUENCE_DRAW, SEQUENCE_NOISE };

struct dice {
    uint64_t seed;
    uint32_t split, index, at;
    struct rng_block block;
};

struct point {
    float x, y;
};

/* Maps points of the glyph's box, which goes from -0.5 to 0.5 on both axes, to pixels. */
struct warp {
    struct point offset[LATTICE][LATTICE];
    float xx, xy, yx, yy;
    struct point centre;
};

/* The page and the pen. `ink` has a number from 0 to 1 for each pixel, and the other fields describe the
 * pen. */
struct page {
    float ink[DIGIT_PIXELS];
    float radius;   /* pixels */
    float strength; /* 0 to 1; negative: takes ink away */
    float softness; /* pixels from full ink to none */
};

/* ------------------------------------------------------------------------------------------ chance */

static struct rng_block block_at(const struct dice *d, uint32_t at, uint32_t sequence)
{
    return rng_philox(d->seed, at, d->index, rng_word2(RNG_DATA, d->split), sequence);
}

/* Returns a random number that is uniform in [lo, hi). */
static float between(struct dice *d, float lo, float hi)
{
    if (d->at % 4 == 0)
        d->block = block_at(d, d->at / 4, SEQUENCE_DRAW);
    return lo + (hi - lo) * rng_unit(d->block.v[d->at++ % 4]);
}

/* Returns a random number from -most to most. Numbers near 0 are more frequent. */
static float about(struct dice *d, float most)
{
    float a = between(d, -0.5f, 0.5f);

    return most * (a + between(d, -0.5f, 0.5f));
}

static int below(struct dice *d, int n)
{
    return (int)between(d, 0, (float)n);
}

static struct point near(struct dice *d, struct point p, float most_x, float most_y)
{
    p.x += about(d, most_x);
    p.y += about(d, most_y);
    return p;
}

/* ------------------------------------------------------------------------------------------ warp */

static void warp_draw(struct warp *w, struct dice *d)
{
    /* `half` is the tangent of half the rotation angle. The angle is between about -20 and 20 degrees. */
    float half = about(d, 0.18f);
    float cosine = (1 - half * half) / (1 + half * half), sine = 2 * half / (1 + half * half);
    float size = between(d, 0.85f, 1.05f), shear = about(d, 0.30f);
    float wide = size * between(d, 12, 17), high = size * between(d, 18, 21);

    for (int r = 0; r < LATTICE; r++)
        for (int c = 0; c < LATTICE; c++)
            w->offset[r][c] = near(d, (struct point){0, 0}, 0.28f, 0.22f);
    /* The matrix applies three changes in this order: it scales both axes, adds a multiple of y to x (a
     * shear), and rotates. */
    w->xx = cosine * wide;
    w->xy = cosine * shear * high - sine * high;
    w->yx = sine * wide;
    w->yy = sine * shear * high + cosine * high;
    w->centre = near(d, (struct point){0.5f * DIGIT_SIDE, 0.5f * DIGIT_SIDE}, 4, 3);
}

/* Computes the four weights of a uniform cubic B-spline at the position `t` within one span, from 0 to 1. */
static void spline_weights(float t, float w[4])
{
    float u = 1 - t;

    w[0] = u * u * u / 6;
    w[1] = (3 * t * t * t - 6 * t * t + 4) / 6;
    w[2] = (3 * u * u * u - 6 * u * u + 4) / 6;
    w[3] = t * t * t / 6;
}

/* Returns the number of the lattice span that contains the coordinate `p`, and writes the spline weights at
 * `p` to `w`. Coordinates go from -0.5 to 0.5. A coordinate outside this range counts as the nearest edge. */
static int spline_span(float p, float w[4])
{
    enum { SPANS = LATTICE - 3 };
    float at = (p < -0.5f ? 0 : p > 0.5f ? 1 : p + 0.5f) * SPANS;
    int span = at >= SPANS ? SPANS - 1 : (int)at;

    spline_weights(at - (float)span, w);
    return span;
}

static struct point warp_apply(const struct warp *w, struct point p)
{
    float wx[4], wy[4];
    int column = spline_span(p.x, wx), row = spline_span(p.y, wy);
    struct point q = p;

    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) {
            const struct point *o = &w->offset[row + r][column + c];
            q.x += wy[r] * wx[c] * o->x;
            q.y += wy[r] * wx[c] * o->y;
        }
    return (struct point){w->centre.x + w->xx * q.x + w->xy * q.y, w->centre.y + w->yx * q.x + w->yy * q.y};
}

/* ------------------------------------------------------------------------------------------ ink */

static int clamp_pixel(float v)
{
    return v < 0 ? 0 : v > DIGIT_SIDE - 1 ? DIGIT_SIDE - 1 : (int)v;
}

static float distance_to(struct point p, struct point a, struct point b)
{
    float dx = b.x - a.x, dy = b.y - a.y, length2 = dx * dx + dy * dy;
    float t = length2 > 0 ? ((p.x - a.x) * dx + (p.y - a.y) * dy) / length2 : 0;

    t = t < 0 ? 0 : t > 1 ? 1 : t;
    dx = p.x - (a.x + t * dx);
    dy = p.y - (a.y + t * dy);
    return sqrtf(dx * dx + dy * dy);
}

/* Draws a straight line with round ends. Where lines cross, the stronger ink counts. */
static void ink_line(struct page *g, struct point a, struct point b)
{
    float reach = g->radius + g->softness, inner = g->radius - 0.5f * g->softness;
    int x0 = clamp_pixel((a.x < b.x ? a.x : b.x) - reach), x1 = clamp_pixel((a.x > b.x ? a.x : b.x) + reach);
    int y0 = clamp_pixel((a.y < b.y ? a.y : b.y) - reach), y1 = clamp_pixel((a.y > b.y ? a.y : b.y) + reach);

    for (int y = y0; y <= y1; y++)
        for (int x = x0; x <= x1; x++) {
            float away = distance_to((struct point){(float)x + 0.5f, (float)y + 0.5f}, a, b);
            float cover = 1 - (away - inner) / g->softness, *ink = &g->ink[y * DIGIT_SIDE + x];
            if (cover <= 0)
                continue;
            cover = (cover < 1 ? cover : 1) * g->strength;
            if (g->strength < 0)
                *ink *= 1 + cover;
            else if (cover > *ink)
                *ink = cover;
        }
}

/* ------------------------------------------------------------------------------------------ strokes */

/* Returns point `i` of a stroke, scaled to the box from -0.5 to 0.5. Before the first and after the last
 * point, a closed stroke continues from its other end, and an open stroke repeats its end point. */
static struct point stroke_point(const struct stroke *s, int i)
{
    int last = s->points - 1;
    int closed = s->at[0][0] == s->at[last][0] && s->at[0][1] == s->at[last][1];

    if (i < 0)
        i = closed ? last - 1 : 0;
    else if (i > last)
        i = closed ? 1 : last;
    return (struct point){(float)s->at[i][0] * 0.01f - 0.5f, (float)s->at[i][1] * 0.01f - 0.5f};
}

static float catmull_rom(float a, float b, float c, float d, float t)
{
    return 0.5f * (2 * b + t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a))));
}

/* Returns a point on the stroke between its points i and i + 1. `t` goes from 0 at the first of these points
 * to 1 at the second. */
static struct point stroke_at(const struct stroke *s, int i, float t)
{
    struct point b = stroke_point(s, i), c = stroke_point(s, i + 1), a, d;

    if (!s->curved)
        return (struct point){b.x + t * (c.x - b.x), b.y + t * (c.y - b.y)};
    a = stroke_point(s, i - 1);
    d = stroke_point(s, i + 2);
    return (struct point){catmull_rom(a.x, b.x, c.x, d.x, t), catmull_rom(a.y, b.y, c.y, d.y, t)};
}

static void ink_stroke(struct page *g, const struct warp *w, const struct stroke *s)
{
    struct point from = warp_apply(w, stroke_at(s, 0, 0));

    for (int i = 0; i + 1 < s->points; i++)
        for (int piece = 1; piece <= PIECES; piece++) {
            struct point to = warp_apply(w, stroke_at(s, i, (float)piece / PIECES));
            ink_line(g, from, to);
            from = to;
        }
}

static void ink_glyph(struct page *g, struct dice *d, const struct glyph *glyph)
{
    float radius = between(d, 0.8f, 1.7f);
    struct warp w;

    warp_draw(&w, d);
    for (int i = 0; i < GLYPH_MAX_STROKES && glyph->strokes[i].points > 0; i++) {
        g->radius = radius * between(d, 0.85f, 1.15f);
        g->strength = between(d, 0.8f, 1);
        ink_stroke(g, &w, &glyph->strokes[i]);
    }
}

/* ------------------------------------------------------------------------------------------ page and scan */

static struct point anywhere(struct dice *d)
{
    float x = between(d, 0, DIGIT_SIDE);

    return (struct point){x, between(d, 0, DIGIT_SIDE)};
}

/* Draws a stroke of a neighbouring digit that reaches into the page at the left or the right. */
static void ink_neighbour(struct page *g, struct dice *d)
{
    float edge = below(d, 2) ? DIGIT_SIDE : 0;
    struct point a = {edge, between(d, 0, DIGIT_SIDE)};

    g->radius = between(d, 0.6f, 1.5f);
    g->strength = between(d, 0.5f, 1);
    ink_line(g, a, near(d, a, 8, 14));
}

/* Draws a thin line across the page. A negative strength makes the line a scratch that takes ink away. */
static void ink_across(struct page *g, struct dice *d, float strength)
{
    struct point a = anywhere(d), b = anywhere(d);

    g->radius = between(d, 0.3f, 0.7f);
    g->strength = strength;
    ink_line(g, a, b);
}

static void ink_speck(struct page *g, struct dice *d)
{
    struct point a = anywhere(d);

    g->radius = between(d, 0.3f, 1.1f);
    g->strength = between(d, 0.3f, 0.9f);
    ink_line(g, a, near(d, a, 1.5f, 1.5f));
}

static void spoil(struct page *g, struct dice *d)
{
    for (int n = below(d, 2); n > 0; n--)
        ink_neighbour(g, d);
    for (int n = below(d, 4); n > 0; n--)
        ink_speck(g, d);
    if (below(d, 3) == 0)
        ink_across(g, d, between(d, 0.3f, 0.8f));
    if (below(d, 3) == 0)
        ink_across(g, d, -between(d, 0.6f, 1));
}

static uint8_t to_byte(float v)
{
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v + 0.5f);
}

/* Returns a random number around 0 that is nearly normally distributed. The number is the sum of the four
 * bytes of `bits`, minus 510, which is the mean of such a sum. */
static float grain_of(uint32_t bits)
{
    int sum = (int)((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24));

    return (float)(sum - 510);
}

/* Turns the ink into pixels. The paper is brighter towards one side, the ink has a random brightness, and
 * noise is added. */
static void scan(const struct page *g, struct dice *d, uint8_t *pixels)
{
    float paper = between(d, 0, 40), ink = between(d, 150, 255), grain = between(d, 0.02f, 0.12f);
    float along_x = about(d, 1), along_y = about(d, 1);
    struct rng_block noise = {0};

    for (int i = 0; i < DIGIT_PIXELS; i++) {
        float shade = paper + along_x * (float)(i % DIGIT_SIDE) + along_y * (float)(i / DIGIT_SIDE);
        if (i % 4 == 0)
            noise = block_at(d, (uint32_t)i / 4, SEQUENCE_NOISE);
        pixels[i] = to_byte(shade + (ink - shade) * g->ink[i] + grain * grain_of(noise.v[i % 4]));
    }
}

int digit_label(uint64_t seed, enum digit_split split, uint32_t index)
{
    return (int)rng_permute(seed, index / 10 * DIGIT_SPLIT_COUNT + split, index % 10, 10);
}

void digit_draw(uint64_t seed, enum digit_split split, uint32_t index, uint8_t ret_pixels[DIGIT_PIXELS])
{
    struct dice d = {.seed = seed, .split = split, .index = index};
    struct page g = {.softness = between(&d, 0.7f, 1.8f)};
    int style = below(&d, GLYPH_STYLES);

    ink_glyph(&g, &d, &glyphs[digit_label(seed, split, index)][style]);
    spoil(&g, &d);
    scan(&g, &d, ret_pixels);
}
