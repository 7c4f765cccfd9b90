/* Implements labels.h. Each verdict covers a wide range of errors, because the error approaches the values in
 * the table of labels.h only slowly. */
#include "daemon/worker/labels.h"

#include <math.h>
#include <stddef.h>

/* Errors, divided by kappa^2. */
#define WORKING_BELOW 0.02
#define DEAD_ABOVE    0.30 /* outputs of 0 give 1/3 */
/* A part counts as collapsed if its error differs from the error of a constant output by at most this
 * fraction of the latter. */
#define COLLAPSED_WITHIN 0.1
/* A part is learning if the share of its samples that are nearest to the right vector is more than this many
 * times the share that chance would give. */
#define BETTER_THAN_CHANCE 2
/* With kappa outside this range, the advice is to change kappa and not the learning rate. */
#define LEAST_KAPPA 1.0
#define MOST_KAPPA  30.0

const char *const labels_verdict_names[LABELS_VERDICT_COUNT] = {
    [LABELS_LEARNING] = "learning",
    [LABELS_WORKING] = "working",
    [LABELS_DEAD] = "dead",
    [LABELS_COLLAPSED] = "collapsed",
};

enum labels_verdict labels_judge(const struct labels *l)
{
    double error = l->error / (l->kappa * l->kappa);
    double constant = (1.0 - 1.0 / l->classes) / 12;
    if (error < WORKING_BELOW)
        return LABELS_WORKING;
    if (l->nearest * l->classes > BETTER_THAN_CHANCE) /* false if `nearest` is NaN */
        return LABELS_LEARNING;
    if (error > DEAD_ABOVE || isnan(error))
        return LABELS_DEAD;
    return fabs(error - constant) < COLLAPSED_WITHIN * constant ? LABELS_COLLAPSED : LABELS_LEARNING;
}

/* Returns whether kappa is far from the values with which partitions learn. With a kappa of 0.1, for example,
 * the outputs soon become 0 and stay so. */
static bool is_odd(double kappa)
{
    return kappa < LEAST_KAPPA || kappa > MOST_KAPPA;
}

const char *labels_advice(const struct labels *l)
{
    switch (labels_judge(l)) {
    case LABELS_DEAD:
        if (is_odd(l->kappa))
            return "the outputs of this part are nearly all 0; set method.kappa between 3 and 10";
        return "the outputs of this part are nearly all 0; lower its learning rate, give it a warm-up, or "
               "move "
               "the cut";
    case LABELS_COLLAPSED:
        return "the outputs of this part are the same for all classes; train it longer, raise its learning "
               "rate, "
               "or set method.kappa between 3 and 10";
    case LABELS_LEARNING:
        return l->over
                   ? "this part was still learning when its training ended; train it longer, or raise its "
                     "learning rate"
                   : NULL;
    default:
        return NULL;
    }
}
