/* Implements the references in double precision that reference.h declares. They are slow and plain, and
 * independent of the kernels: both share only the definition of the random numbers (base/rng.h). Any
 * thread. */
#include "reference.h"

#include <math.h>
#include <stdlib.h>

#include "base/rng.h"

#define REPEAT_AFTER 65537 /* long arrays repeat: filling them must not dominate a test */

void ref_fill(float *x, uint64_t n, uint32_t key, float scale)
{
    for (uint64_t i = 0; i < n; i++) {
        if (i >= REPEAT_AFTER) {
            x[i] = x[i - REPEAT_AFTER];
            continue;
        }
        struct rng_block b = rng_philox(1, (uint32_t)(i / 4), key, rng_word2(RNG_TEST, 0), 0);
        x[i] = (2.0f * rng_unit(b.v[i % 4]) - 1.0f) * scale;
    }
}

double *ref_to_double(const float *x, uint64_t n)
{
    double *d = malloc((n ? n : 1) * sizeof *d);
    if (!d)
        abort();
    for (uint64_t i = 0; i < n; i++)
        d[i] = (double)x[i];
    return d;
}

void ref_matmul(const struct ref_matmul *p, double *c, double *size)
{
    for (uint32_t i = 0; i < p->m; i++)
        for (uint32_t j = 0; j < p->n; j++) {
            double sum = 0, abs_sum = 0;
            for (uint32_t k = 0; k < p->k; k++) {
                double a = p->a[p->a_trans ? (size_t)k * p->m + i : (size_t)i * p->k + k];
                double b = p->b[p->b_trans ? (size_t)j * p->k + k : (size_t)k * p->n + j];
                sum += a * b;
                abs_sum += fabs(a * b);
            }
            c[(size_t)i * p->n + j] = sum;
            if (size)
                size[(size_t)i * p->n + j] = abs_sum;
        }
}

static double gelu_inner(double x)
{
    return sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
}

static double normal_below(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0));
}

double ref_act(enum act act, double x)
{
    switch (act) {
    case ACT_NONE:
        return x;
    case ACT_RELU:
        return x > 0 ? x : 0;
    case ACT_GELU: /* 0.5 x (1 + tanh u), without the cancellation */
        return x / (1.0 + exp(-2.0 * gelu_inner(x)));
    case ACT_TANH:
        return tanh(x);
    case ACT_GELU_ERF: /* 0.5 x (1 + erf(x / sqrt 2)), without the cancellation */
        return x * normal_below(x);
    case ACT_SILU:
        return x / (1.0 + exp(-x));
    case ACT_COUNT:
        break;
    }
    abort();
}

double ref_act_slope(enum act act, double x)
{
    switch (act) {
    case ACT_NONE:
        return 1;
    case ACT_RELU:
        return x > 0;
    case ACT_GELU: {
        double t = tanh(gelu_inner(x)), du = sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du;
    }
    case ACT_TANH:
        return 1.0 - tanh(x) * tanh(x);
    case ACT_GELU_ERF:
        return normal_below(x) + x * exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
    case ACT_SILU: {
        double s = 1.0 / (1.0 + exp(-x));
        return s + x * s * (1.0 - s);
    }
    case ACT_COUNT:
        break;
    }
    abort();
}

bool ref_dropout_keeps(const struct step_args *step, enum rng_purpose purpose, uint32_t layer,
                       uint32_t position, uint64_t element, float p)
{
    uint64_t quad = element / 4, key = step->seed + (quad & 0xffffffff00000000u);
    struct rng_block b =
        rng_philox(key, (uint32_t)quad, position, rng_word2(purpose, layer), (uint32_t)step->step);
    return rng_unit(b.v[element % 4]) >= p;
}

double ref_xent(const double *x, uint32_t n, uint32_t target)
{
    double max = x[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(x[i] - max);
    return log(sum) - (x[target] - max);
}

double ref_mse(const double *x, const double *target, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (x[i] - target[i]) * (x[i] - target[i]);
    return sum / n;
}

double ref_ulps(float got, double want)
{
    float at = fabsf((float)want);
    double unit = (double)nextafterf(at, INFINITY) - (double)at;
    return fabs((double)got - want) / unit;
}
