/* A loss curve in bounded space: at most CURVE_POINTS points, each the mean over `stride` consecutive values. When it is
 * full, neighbours are merged and the stride doubles. Exact and deterministic for the values that were added. */
#ifndef BASE_CURVE_H
#define BASE_CURVE_H

#include <stdint.h>

#include "base/json.h"
#include "base/strbuf.h"

#define CURVE_POINTS 256
#define CURVE_MOST   1e290 /* of a value: sums of as many as there are steps stay finite */

struct curve_point {
    uint64_t step; /* of the last value in it */
    double value;  /* mean */
};

struct curve { /* zero-initialized: empty */
    struct curve_point points[CURVE_POINTS];
    uint32_t n;
    uint32_t stride;  /* values per point; 0 is taken for 1 */
    uint32_t pending; /* values in `sum`, fewer than stride */
    uint64_t step;    /* of the last value added */
    double sum;
};

/* A value that is not finite, or beyond CURVE_MOST, is left out. Steps ascend; a step not beyond the last first drops the points from it on
 * (a run that resumed from an earlier checkpoint). */
void curve_add(struct curve *c, uint64_t step, double value);
/* The points, and last the pending mean: [[step,value],...]. */
void curve_json(const struct curve *c, struct strbuf *b);
/* Reads what curve_json wrote; whatever is not of that form is skipped. */
void curve_from_json(struct curve *c, const struct json *points);

#endif
