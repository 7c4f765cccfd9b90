/* Reports what is special about a training method: how it cuts the model, how much it computes, and how many
 * bytes of outputs wait between blocks. */
#include <inttypes.h>
#include <string.h>

#include "daemon/worker/report.h"
#include "scheduler/graph.h"

/* ---- the cut ---- */

static void add_range(struct strbuf *b, const char *format, uint32_t i, uint32_t first, uint32_t last)
{
    strbuf_add(b, i > 0 ? "," : "");
    strbuf_addf(b, format, first, last);
}

/* Appends the range of layers of each part of the model. `format` is the printf format of one range. Returns
 * the number of parts. */
static uint32_t add_parts(const struct spec *s, const char *format, struct strbuf *b)
{
    const struct spec_sil *sil = &s->sil;
    const struct spec_local *local = &s->local;
    uint32_t last_layer = s->model.n_layers - 1;
    if (s->method == METHOD_local) {
        for (uint32_t i = 0; i < local->n_blocks; i++)
            add_range(b, format, i, local->blocks[i].first,
                      i + 1 < local->n_blocks ? local->blocks[i].last : last_layer);
        return local->n_blocks;
    }
    for (uint32_t i = 0; i < sil->partitions; i++)
        add_range(b, format, i, sil->cuts[i], i + 1 < sil->partitions ? sil->cuts[i + 1] - 1 : last_layer);
    return sil->partitions;
}

void report_cut(const struct prepared_job *j, struct strbuf *b)
{
    const struct spec *s = j->spec;
    struct strbuf parts = {0};
    if (s->method == METHOD_backprop)
        return;
    bool local = s->method == METHOD_local;
    uint32_t n = add_parts(s, " %" PRIu32 "-%" PRIu32, &parts);
    strbuf_addf(b, "%s", method_names[s->method]);
    if (local)
        strbuf_addf(b, " %s", local_scheme_names[s->local.scheme]);
    strbuf_addf(b, ", %" PRIu32 " %s%s of layers%s", n, local ? "block" : "partition", n == 1 ? "" : "s",
                parts.at);
    if (!local)
        strbuf_addf(b, ", kappa %g%s", s->sil.kappa, s->sil.concurrent ? ", concurrent" : "");
    strbuf_finish(&parts);
}

void report_cut_members(const struct prepared_job *j, struct strbuf *b)
{
    const struct spec *s = j->spec;
    if (s->method == METHOD_backprop)
        return;
    strbuf_addf(b, ",\"method\":\"%s\",\"parts\":[", method_names[s->method]);
    add_parts(s, "[%" PRIu32 ",%" PRIu32 "]", b);
    strbuf_add(b, "]");
}

/* ---- the cycle ---- */

static bool has_cycle(const struct phase *p)
{
    return p->cycle_steps > 1 || p->cycle_auto;
}

static bool updates_on_host(const struct plan *plan)
{
    const struct plan_program *cycle = &plan->programs[PROGRAM_CYCLE];
    for (uint32_t i = 0; i < cycle->n_instrs; i++)
        if (cycle->instrs[i].kind == INSTR_UPD && cycle->instrs[i].stream == plan_host_stream(plan))
            return true;
    return false;
}

/* Returns whether the plan keeps the state of each block on its device for all steps of the cycle. */
static bool keeps_blocks(const struct plan *plan)
{
    return plan != NULL && strcmp(plan->policy, policy_names[POLICY_blocks]) == 0 && !updates_on_host(plan);
}

/* Returns the most bytes of outputs that wait between two blocks. These are the outputs of all steps of a
 * cycle. */
static uint64_t waiting_bytes(const struct phase *p)
{
    uint64_t most = 0;
    for (uint32_t l = 0; p->links != NULL && p->graph != NULL && l < p->graph->n_layers; l++) {
        const struct graph_layer *from = p->links[l].stop ? &p->graph->layers[p->links[l].input] : NULL;
        uint64_t bytes =
            from == NULL ? 0 : from->size.y * graph_micros(p->graph, p->links[l].input) * p->graph->steps;
        most = bytes > most ? bytes : most;
    }
    return most;
}

void report_cycle_members(const struct prepared_job *j, const struct plan *plan, struct strbuf *b)
{
    const struct phase *p = job_largest_phase(j);
    if (!has_cycle(p))
        return;
    strbuf_addf(b, ",\"cycle_steps\":%" PRIu32, p->cycle_steps);
    if (p->cycle_auto)
        strbuf_addf(b, ",\"cycle_limit\":\"%s\"", phase_limit_names[p->cycle_limit]);
    if (p->n_groups > 1)
        strbuf_addf(b, ",\"blocks_stay\":%s,\"waiting_bytes\":%" PRIu64,
                    keeps_blocks(plan) ? "true" : "false", waiting_bytes(p));
}

void report_cycle(const struct prepared_job *j, const struct plan *plan, struct strbuf *b)
{
    const struct phase *p = job_largest_phase(j);
    struct plan_bytes step;
    if (!has_cycle(p))
        return;
    strbuf_addf(b, "cycle   %" PRIu32 " training step%s", p->cycle_steps, p->cycle_steps == 1 ? "" : "s");
    if (p->cycle_steps > 1 && p->n_groups > 1)
        strbuf_add(b, keeps_blocks(plan) ? ", for which a block stays on its device"
                                         : "; but with this plan, no block stays on its device");
    if (p->cycle_auto)
        strbuf_addf(b, "; limit: %s", phase_limit_names[p->cycle_limit]);
    strbuf_add(b, "\n");
    if (plan == NULL || p->n_groups < 2)
        return;
    plan_step_bytes(plan, &step);
    strbuf_add(b, "        a step moves ");
    strbuf_add_bytes(b, step.state_in + step.state_out);
    strbuf_add(b, " of state and ");
    strbuf_add_bytes(b, step.stash_in + step.stash_out);
    strbuf_add(b, " of stash; up to ");
    strbuf_add_bytes(b, waiting_bytes(p));
    strbuf_add(b, " of outputs wait for the next block\n");
}

/* ---- the work ---- */

/* Numbers of floating-point operations. `total` is what the training costs. `sequential` is the longest run
 * of operations that must follow one another, so it says how long the training takes if enough devices share
 * the work. */
struct work {
    double total, sequential;
};

/* Returns the work of one training step of a phase, or of one batch of a forward-only phase, by the formulas
 * of the layers. Layers that send gradients to one another work one after another. Two parts of the model
 * without a gradient in between work side by side. */
static struct work step_work(const struct phase *p)
{
    struct work w = {0};
    uint32_t *part = xcalloc(p->model.n_layers, sizeof *part); /* the first layer of the layer's part */
    double *sum = xcalloc(p->model.n_layers, sizeof *sum);     /* the work of the part that begins here */
    for (uint32_t l = 0; l < p->model.n_layers; l++) {
        const struct graph_link link = p->links != NULL ? p->links[l] : graph_chain_link(&p->model, l);
        const struct layer *layer = &p->model.layers[l];
        struct layer_cost cost;
        layer_type(layer)->cost(layer, p->batch, &cost);
        double flops = (link.twin_of == PLAN_NONE ? (double)cost.fwd_flops : 0) +
                       (p->training ? (double)cost.bwd_flops : 0);
        part[l] = link.input == PLAN_NONE || link.stop ? l : part[link.input];
        sum[part[l]] += flops;
        w.total += flops;
        w.sequential = sum[part[l]] > w.sequential ? sum[part[l]] : w.sequential;
    }
    xfree(part);
    xfree(sum);
    return w;
}

/* Returns the number of batches that a phase computes. */
static double batches_of(const struct prepared_job *j, const struct phase *p)
{
    if (p->training)
        return (double)p->steps;
    return (double)((j->train->n_samples + p->batch - 1) / p->batch);
}

/* Returns the work of all phases of the job. The phases come one after another. */
static struct work job_work(const struct prepared_job *j)
{
    struct work sum = {0};
    for (uint32_t i = 0; i < j->phases.n; i++) {
        const struct phase *p = &j->phases.at[i];
        struct work step = step_work(p);
        sum.total += step.total * batches_of(j, p);
        sum.sequential += step.sequential * batches_of(j, p);
    }
    return sum;
}

/* Returns the work of backpropagation of the whole model, for as many steps as the section `train` of the job
 * asks for. */
static double backprop_work(const struct prepared_job *j)
{
    const struct spec *s = j->spec;
    struct phase p = {.model = s->model, .batch = s->train.global_batch, .training = true};
    return step_work(&p).total * (double)s->resolved.total_steps;
}

void report_work_members(const struct prepared_job *j, struct strbuf *b)
{
    struct work w = job_work(j);
    strbuf_addf(b, ",\"flops\":{\"total\":%.17g,\"sequential\":%.17g,\"backprop\":%.17g}", w.total,
                w.sequential, backprop_work(j));
}

/* Appends a number of operations, such as "1.23 TFLOP". */
static void add_flops(struct strbuf *b, double v)
{
    static const char *const units[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"};
    uint32_t unit = 0;
    for (; v >= 999.5 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        v /= 1000;
    strbuf_addf(b, "%.3g %s", v, units[unit]);
}

void report_work(const struct prepared_job *j, struct strbuf *b)
{
    struct work w = job_work(j);
    if (j->spec->method == METHOD_backprop)
        return;
    strbuf_add(b, "  work      ");
    add_flops(b, w.total);
    strbuf_add(b, ", of which ");
    add_flops(b, w.sequential);
    strbuf_add(b, " one after another; backpropagation: ");
    add_flops(b, backprop_work(j));
    strbuf_add(b, "\n");
}
