/* A loss curve of at most CURVE_POINTS points. Each point is the mean of `stride` consecutive values. When
 * the curve is full, each pair of neighbouring points becomes one point, and the stride doubles. The same
 * losses always give the same curve. */
#ifndef BASE_CURVE_H
#define BASE_CURVE_H

#include <stdint.h>

#include "base/json.h"
#include "base/strbuf.h"

#define CURVE_POINTS 256
/* The largest absolute value that a curve accepts. Larger values are ignored, because a sum of them could
 * overflow to infinity. */
#define CURVE_MOST 1e290

struct curve_point {
    uint64_t step; /* step of the last value */
    double value;  /* the mean of the point's values */
};

/* A curve that grows with each call of curve_add. A zeroed struct is an empty curve. */
struct curve {
    struct curve_point points[CURVE_POINTS];
    uint32_t n;      /* points in use */
    uint32_t stride; /* values per point; 0 means 1 */
    /* The number of values in `sum`, which have not become a point yet. This number is always less than
     * `stride`. */
    uint32_t pending;
    uint64_t step; /* the step of the last value added */
    double sum;    /* the sum of the pending values */
};

/* Adds the value of training step `step` to the curve. If the step is a repeated one, because a job has
 * resumed, the points from this step on are dropped first. A value is ignored if it is NaN, or if its
 * absolute value is larger than CURVE_MOST. */
void curve_add(struct curve *c, uint64_t step, double value);
/* Appends the points to `b` as JSON: [[step,value],...]. If some values do not form a complete point yet,
 * their mean is the last element. */
void curve_json(const struct curve *c, struct strbuf *b);
/* Reads a JSON array that curve_json wrote, and sets the curve to its points. Elements that are not
 * [step,value] pairs are skipped. If `points` is NULL, the curve becomes empty. */
void curve_from_json(struct curve *c, const struct json *points);

#endif
