/* How well a part of a model learns the label vectors that are its targets.
 *
 * With the method `sil`, all parts of a model but the last are trained with the mean squared error against
 * label vectors (layer_label_vectors). The elements of the vectors are drawn from kappa * U(0, 1). The error
 * divided by kappa^2 therefore shows what went wrong, whatever kappa is:
 *
 *     about 1/3                        the outputs are all 0: the last layer of the part is dead
 *     about 1/12 * (1 - 1/classes)     the outputs are the same for all samples: the mean of the vectors
 *     below 0.02                       the part has learned to tell the classes apart
 *
 * A part that has just begun to learn has such errors, too. So a part is neither dead nor collapsed if many
 * samples are nearest to the vector of their class.
 *
 * Everything here is a pure function, and any thread may call it.
 */
#ifndef WORKER_LABELS_H
#define WORKER_LABELS_H

#include <stdbool.h>
#include <stdint.h>

/* The verdicts on a part of a model, judged by its error against the label vectors. */
enum labels_verdict { LABELS_LEARNING, LABELS_WORKING, LABELS_DEAD, LABELS_COLLAPSED, LABELS_VERDICT_COUNT };
extern const char *const labels_verdict_names[LABELS_VERDICT_COUNT]; /* such as "collapsed" */

/* How well a part of a model has learned its label vectors, by the newest evaluation. Each phase has one of
 * these structs for each such part that it trains. The trainer fills the struct in at evaluations. In a phase
 * without evaluations, the trainer fills the struct in ten times, from the loss of a training step. */
struct labels {
    double kappa;
    uint32_t classes; /* number of vectors */
    uint32_t part;    /* the number of the part, from 0, among the parts that the phase trains at once */
    bool known;       /* the members below are valid */
    bool over;        /* the training of the part is over */
    uint64_t step;    /* number of training steps that the job had done */
    double error;     /* mean squared error against the vectors */
    /* The share of validation samples whose nearest vector is that of their class. NaN without validation
     * data; `error` is then that of a training step. */
    double nearest;
};

/* Returns the verdict on the part that `l` describes. l->known must be true. */
enum labels_verdict labels_judge(const struct labels *l);

/* Returns a sentence that says what to change, or NULL if nothing is wrong. l->known must be true. */
const char *labels_advice(const struct labels *l);

#endif
