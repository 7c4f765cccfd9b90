/* References for the tests of ops and layers: the same mathematics in double precision, written as plainly as
 * possible. */
#ifndef TESTS_UNIT_REFERENCE_H
#define TESTS_UNIT_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "kernels/layer.h"

/* Random floats, a function of (key, index): uniform in [-scale, scale). */
void ref_fill(float *x, uint64_t n, uint32_t key, float scale);
double *ref_to_double(const float *x, uint64_t n); /* malloc'ed */

/* c[m][n] = op(a) op(b) as in gemm.h; size[m][n] (may be NULL) = the same of absolute values, for error
 * bounds. */
struct ref_matmul {
    const double *a, *b;
    uint32_t m, n, k;
    bool a_trans, b_trans;
};
void ref_matmul(const struct ref_matmul *p, double *c, double *size);

double ref_act(enum act act, double x);
double ref_act_slope(enum act act, double x);

/* purpose: RNG_DROPOUT or RNG_SCORES */
bool ref_dropout_keeps(const struct step_args *step, enum rng_purpose purpose, uint32_t layer,
                       uint32_t position, uint64_t element, float p);

/* Of one row. */
double ref_xent(const double *x, uint32_t n, uint32_t target);
double ref_mse(const double *x, const double *target, uint32_t n);

/* A layer's forward pass: y, or for a loss the sum over the valid rows. target: int32_t or float, as the
 * layer has. */
struct ref_layer {
    const struct layer *l;
    const struct step_args *step;
    uint32_t rows, first_row;
    const double *w, *x;
    const void *target;
    const float *b; /* the buffers, or NULL */
};
void ref_layer_fwd(const struct ref_layer *p, double *y);

/* Distance of got from want, in units of the last place of want as a float. */
double ref_ulps(float got, double want);

#endif
