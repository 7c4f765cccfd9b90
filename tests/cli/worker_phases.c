/* The table of methods of a test program: tutti-worker, in which the method "backprop" trains in three
 * phases. The product has no method with several phases yet, and its worker does not know this one.
 *
 *     phase 0   trains the first half of the layers, with the loss of the model over their outputs
 *     phase 1   runs these layers forward over all training samples, and keeps the outputs
 *     phase 2   trains the rest of the model on these outputs
 *
 * Each phase differs from the spec in batch, steps or learning rate, so that a mistake between "of the job"
 * and "of the phase" shows. If the environment variable TUTTI_TEST_RECOVERY is set, phase 3 trains the
 * whole model.
 */
#include <stdlib.h>

#include "daemon/worker/phase.h"

static void add_first_half(const struct spec *s, struct phase_list *ret, uint32_t cut)
{
    const struct layer *end = &s->model.layers[s->model.n_layers - 1];
    struct layer loss = *end; /* the same kind of loss over the outputs at the cut */
    loss.in = s->model.layers[cut - 1].out;
    struct phase *p = phase_add(ret, s, "first half");
    phase_take_layers(ret, p, 0, cut, &loss);
    p->eval = PHASE_EVAL_NONE;
    p->steps = s->resolved.total_steps + 2;
    p->rate[0].lr = 2 * s->rate.lr;
}

static void add_outputs(const struct spec *s, struct phase_list *ret, uint32_t cut)
{
    struct phase *p = phase_add(ret, s, "outputs of the first half");
    phase_take_layers(ret, p, 0, cut, NULL);
    p->training = false;
    p->eval = PHASE_EVAL_NONE;
    p->steps = 0;
    p->sizes_as = 0;
}

static void add_second_half(const struct spec *s, struct phase_list *ret, uint32_t cut)
{
    struct phase *p = phase_add(ret, s, "second half");
    phase_take_layers(ret, p, cut, s->model.n_layers, NULL);
    p->eval = PHASE_EVAL_NONE;
    p->inputs = 1;
    p->batch = s->train.global_batch / 2;
    p->asked.micro_batch /= 2;
}

/* In this program, stands for the method of the product. */
static int three_phases(const struct spec *s, struct phase_list *ret, struct err *err)
{
    uint32_t cut = s->model.n_layers / 2;
    (void)err;
    add_first_half(s, ret, cut);
    add_outputs(s, ret, cut);
    add_second_half(s, ret, cut);
    if (getenv("TUTTI_TEST_RECOVERY") != NULL)
        phase_add(ret, s, "recovery");
    return 0;
}

const struct method methods[METHOD_COUNT] = {[METHOD_backprop] = {"backprop", three_phases}};
