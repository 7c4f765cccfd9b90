/* Implements the loss curve of curve.h. New values are added to `sum`. When `stride` values have been added,
 * their mean becomes a point of the curve. Only one thread at a time may use a curve. */
#include "base/curve.h"

#include <inttypes.h>
#include <math.h>

static uint32_t stride_of(const struct curve *c)
{
    return c->stride > 0 ? c->stride : 1;
}

/* Drops all points from training step `step` on. A job that resumes from a checkpoint repeats these steps and
 * reports their losses again. */
static void drop_from(struct curve *c, uint64_t step)
{
    while (c->n > 0 && c->points[c->n - 1].step >= step)
        c->n--;
    c->pending = 0;
    c->sum = 0;
}

/* Replaces each pair of neighbouring points by one point, which is their mean, and doubles the stride. */
static void halve(struct curve *c)
{
    for (size_t i = 0; i < CURVE_POINTS / 2; i++)
        c->points[i] = (struct curve_point){c->points[2 * i + 1].step,
                                            (c->points[2 * i].value + c->points[2 * i + 1].value) / 2};
    c->n = CURVE_POINTS / 2;
    c->stride = 2 * stride_of(c);
}

void curve_add(struct curve *c, uint64_t step, double value)
{
    if (step <= c->step)
        drop_from(c, step);
    c->step = step;
    if (!(fabs(value) <= CURVE_MOST)) /* true for NaN too */
        return;
    c->sum += value;
    if (++c->pending < stride_of(c))
        return;
    c->points[c->n++] = (struct curve_point){step, c->sum / c->pending};
    c->sum = 0;
    c->pending = 0;
    if (c->n == CURVE_POINTS)
        halve(c);
}

void curve_json(const struct curve *c, struct strbuf *b)
{
    strbuf_add(b, "[");
    for (uint32_t i = 0; i < c->n; i++)
        strbuf_addf(b, "%s[%" PRIu64 ",%.6g]", i > 0 ? "," : "", c->points[i].step, c->points[i].value);
    if (c->pending > 0)
        strbuf_addf(b, "%s[%" PRIu64 ",%.6g]", c->n > 0 ? "," : "", c->step, c->sum / c->pending);
    strbuf_add(b, "]");
}

void curve_from_json(struct curve *c, const struct json *points)
{
    *c = (struct curve){0};
    if (points == NULL || json_type(points) != JSON_ARRAY)
        return;
    for (const struct json *p = json_array_first(points); p != NULL; p = json_array_next(p)) {
        const struct json *step = json_type(p) == JSON_ARRAY ? json_array_first(p) : NULL;
        const struct json *value = step != NULL ? json_array_next(step) : NULL;
        uint64_t s;
        double v;
        if (value != NULL && json_u64(step, "", &s, NULL) == 0 && json_double(value, "", &v, NULL) == 0)
            curve_add(c, s, v);
    }
}
