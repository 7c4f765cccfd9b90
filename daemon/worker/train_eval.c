/* Evaluates the current phase on the validation data.
 *
 * The program `eval` runs once for every batch of validation samples, between the programs `exit` and
 * `entry` of the plan in use. What an evaluation means depends on the phase (enum phase_eval). For the
 * whole model, it is the validation loss and the accuracy. For a part of the model that is trained on label
 * vectors, it is the error against these vectors, and how often the nearest vector is that of the right
 * class.
 */
#include <errno.h>
#include <math.h>

#include "daemon/worker/train_private.h"

static int eval_batch(struct trainer *t, uint64_t first, struct step_result *sums, uint64_t *targets,
                      struct err *err)
{
    const struct train_source from = train_source_of(t, DATA_VAL);
    const struct train_place at = {0};
    uint32_t batch = t->phase->batch;
    uint64_t left = from.data->n_samples - first, counted = 0;
    uint32_t valid = left < batch ? (uint32_t)left : batch;
    for (uint32_t i = 0; i < valid; i++)
        t->indices[i] = first + i;
    int r = train_fill(t, &from, valid, at, &counted, err);
    if (r < 0)
        return r;
    struct step_args args = {.valid_rows = valid, .grad_scale = 1.0f};
    r = train_run_program(t, PROGRAM_EVAL, &args, err);
    for (uint32_t i = 0; i < t->n_losses; i++) {
        struct step_result s = train_result(t, i, at);
        sums[i].loss += s.loss;
        sums[i].correct += s.correct;
    }
    *targets += counted;
    return r;
}

double train_perplexity(const struct trainer *t, double loss)
{
    return t->spec->tokens ? exp(loss) : NAN;
}

/* Records an evaluation of the whole model, whose results are in t->blocks. */
static int record_model(struct trainer *t, struct err *err)
{
    struct train_report *rep = t->report;
    const struct metrics_block *last = &t->blocks[t->n_losses - 1];
    const struct metrics_eval e = {.loss = last->loss,
                                   .accuracy = last->accuracy,
                                   .perplexity = train_perplexity(t, last->loss),
                                   .blocks = t->blocks,
                                   .n_blocks = t->spec->eval_heads && t->n_losses > 1 ? t->n_losses : 0};
    t->eval = (struct checkpoint_eval){true, e.loss, e.accuracy};
    t->eval_step = train_steps_done(t);
    rep->evaluated = true;
    rep->val_loss = e.loss;
    rep->val_accuracy = e.accuracy;
    rep->val_perplexity = e.perplexity;
    int r = metrics_eval(t->metrics, t->eval_step, &e, err);
    train_tell(t, &(struct train_progress){.event = PROGRESS_EVAL,
                                           .step = t->eval_step,
                                           .val_loss = e.loss,
                                           .val_accuracy = e.accuracy,
                                           .val_perplexity = e.perplexity,
                                           .blocks = e.blocks,
                                           .n_blocks = e.n_blocks});
    return r;
}

static int record_labels(struct trainer *t, struct labels *l, double error, double nearest, struct err *err)
{
    l->known = true;
    l->over = t->known == t->phase->steps;
    l->step = train_steps_known(t);
    l->error = error;
    l->nearest = nearest;
    int r = metrics_labels(t->metrics, l, t->phase->n_labels, err);
    train_tell(t,
               &(struct train_progress){
                   .event = PROGRESS_LABELS, .step = l->step, .labels = l, .n_labels = t->phase->n_labels});
    return r;
}

int train_record_labels(struct trainer *t, bool evaluated, struct err *err)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < t->phase->n_labels; i++) {
        const struct metrics_block *b = &t->blocks[i]; /* these losses come first */
        r = record_labels(t, &t->phase->labels[i], b->loss, evaluated ? b->accuracy : NAN, err);
    }
    return r;
}

int train_evaluate(struct trainer *t, struct err *err)
{
    uint64_t n = t->job->val->n_samples, targets = 0;
    for (uint32_t i = 0; i < t->n_losses; i++)
        t->sums[i] = (struct step_result){0};
    int r = train_run_program(t, PROGRAM_EXIT, NULL, err);
    for (uint64_t first = 0; r == 0 && first < n; first += t->phase->batch)
        r = eval_batch(t, first, t->sums, &targets, err);
    if (r == 0 && targets == 0)
        r = train_fail_no_targets("data.val", err);
    if (r == 0)
        r = train_enter_cycle(t, err);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < t->n_losses; i++)
        t->blocks[i] = (struct metrics_block){.loss = t->sums[i].loss / (double)targets,
                                              .accuracy = t->sums[i].correct / (double)targets};
    if (t->phase->eval == PHASE_EVAL_MODEL)
        r = record_model(t, err);
    return r == 0 ? train_record_labels(t, true, err) : r;
}
