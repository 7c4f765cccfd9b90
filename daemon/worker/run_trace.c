/* Chooses the steps of trace.json, and writes the file.
 *
 * The window is a few steps early in the run, but not the first ones: these find cold caches and, on a GPU,
 * code that is not loaded yet. No evaluation and no checkpoint lies between two steps of the window, because
 * it would leave a gap in the picture. A job without such steps gets a shorter window.
 *
 * The prediction is simulated from the same start as the measurement: after as many steps since the devices
 * were last drained, up to WARM_UP, which is enough to reach the steady state.
 *
 * The executor writes the times into an array that is allocated before the first step. While the job
 * trains, the trace allocates nothing, waits for nothing and writes no file.
 */
#include "daemon/worker/run_trace.h"

#include <math.h>
#include <stdlib.h>

#include "base/arena.h"
#include "scheduler/explain/explain.h"
#include "scheduler/predict/simulate.h"

#define WARM_UP 2 /* steps until the steady state */
/* How many training steps are tried as the first step of the window. */
#define SEARCH 64
/* Most instructions in a window. Their times need 1 MB of memory, and their trace.json has about 20 MB. */
#define RUN_TRACE_INSTRS 60000u

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Returns whether the training loop evaluates the model or writes a checkpoint after `steps_done` steps. */
static bool is_break(const struct prepared_job *j, uint64_t steps_done)
{
    const struct spec *s = j->spec;

    return spec_due(s, &s->checkpoint.every, steps_done) ||
           (j->val != NULL && spec_due(s, &s->eval, steps_done));
}

static bool is_whole(const struct prepared_job *j, uint64_t first, uint32_t steps)
{
    for (uint32_t i = 1; i < steps; i++)
        if (is_break(j, first + i))
            return false;
    return true;
}

/* Chooses the longest possible window of consecutive training steps between `from` and `total`. If several
 * are equally long, chooses the earliest. */
static void choose_window(struct run_trace *t, const struct prepared_job *j, uint64_t from, uint64_t total)
{
    uint64_t most = least(t->max_steps, RUN_TRACE_INSTRS / j->plan->programs[PROGRAM_CYCLE].n_instrs);

    for (uint32_t n = (uint32_t)least(most, total - from); n > 0; n--) {
        uint64_t first = from + least(WARM_UP, total - from - n), last = least(total - n, first + SEARCH);
        for (; first <= last; first++) {
            if (!is_whole(j, first, n))
                continue;
            t->first_step = first;
            t->steps = n;
            return;
        }
    }
}

void run_trace_start(struct run_trace *t, const struct prepared_job *j, struct exec *e, uint64_t step)
{
    choose_window(t, j, step, j->spec->resolved.total_steps);
    if (t->steps == 0)
        return;
    while (t->warm_up < WARM_UP && t->first_step - t->warm_up > step &&
           !is_break(j, t->first_step - t->warm_up))
        t->warm_up++;
    t->spans = xcalloc((size_t)t->steps * j->plan->programs[PROGRAM_CYCLE].n_instrs, sizeof *t->spans);
    /* exec_trace fails only if another window is already open. This cannot happen here, because this run
     * opens one window only. */
    if (exec_trace(e, t->first_step, t->steps, t->spans) < 0)
        run_trace_finish(t);
}

void run_trace_end(struct run_trace *t, const struct exec *e)
{
    t->complete = t->spans != NULL && exec_traced(e) == t->steps;
}

/* When a compute stream did its first and its last work within the window, and how long it was busy. */
struct stream_work {
    uint64_t first_ns, last_ns, busy_ns;
};

static struct stream_work work_of(const struct run_trace *t, const struct plan_program *cycle,
                                  uint32_t stream)
{
    struct stream_work w = {.first_ns = UINT64_MAX};

    for (uint32_t run = 0; run < t->steps; run++)
        for (uint32_t i = 0; i < cycle->n_instrs; i++) {
            const struct plan_span *s = &t->spans[(size_t)run * cycle->n_instrs + i];
            if (cycle->instrs[i].stream != stream)
                continue;
            w.first_ns = least(w.first_ns, s->start_ns);
            w.last_ns = s->end_ns > w.last_ns ? s->end_ns : w.last_ns;
            w.busy_ns += s->end_ns - s->start_ns;
        }
    return w;
}

double run_trace_stall(const struct run_trace *t, const struct plan *plan)
{
    uint64_t all_ns = 0, busy_ns = 0;

    for (uint32_t d = 0; t->complete && d < plan->n_devices; d++) {
        const struct stream_work w = work_of(t, &plan->programs[PROGRAM_CYCLE], plan_stream(d, LANE_COMPUTE));
        if (w.first_ns >= w.last_ns) /* this device has no task */
            continue;
        all_ns += w.last_ns - w.first_ns;
        busy_ns += w.busy_ns;
    }
    return all_ns > 0 ? (double)(all_ns - busy_ns) / (double)all_ns : NAN;
}

static void print(const struct run_trace *t, const struct prepared_job *j, struct strbuf *out)
{
    struct profile *prof = job_times(j);
    struct sim_result *sim = plan_simulate(j->plan, PROGRAM_CYCLE, t->warm_up + t->steps, prof, &j->machine);
    const struct trace_part parts[] = {
        {"run", t->spans, t->steps},
        {"plan", sim->spans + (size_t)t->warm_up * sim->n_instrs, t->steps},
    };

    plan_trace(j->plan, PROGRAM_CYCLE, parts, sizeof parts / sizeof *parts, out);
    sim_destroy(sim);
    profile_destroy(prof);
}

int run_trace_write(const struct run_trace *t, const struct prepared_job *j, const struct outdir *out,
                    struct err *err)
{
    struct strbuf b = {0};
    int r;

    if (!t->complete) {
        /* Remove the temporary file of trace.json that a killed run may have left behind. */
        fs_remove_tree(out->fd, RUN_TRACE_FILE ".tmp");
        return 0;
    }
    print(t, j, &b);
    r = fs_replace(out, RUN_TRACE_FILE, b.at, b.n, err);
    strbuf_finish(&b);
    return r;
}

void run_trace_finish(struct run_trace *t)
{
    free(t->spans);
    t->spans = NULL;
}
