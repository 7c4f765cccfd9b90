/* Chooses the steps of trace.json, and writes the file.
 *
 * The window is a few steps early in the run, but not the first ones: these find cold caches and, on a GPU,
 * code that is not loaded yet. No evaluation and no checkpoint lies between two steps of the window, because
 * it would leave a gap in the picture. A job without such steps gets a shorter window. If a cycle has several
 * steps, the window consists of whole runs of the cycle, and the steps under the plan of one step are not
 * measured.
 *
 * The prediction is simulated from the same start as the measurement: after as many runs since the devices
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

/* A job is in the steady state after this many runs of the cycle. The window starts after them if the phase
 * has enough steps left. */
#define WARM_UP 2
/* The search for a window moves the start of the window forward by at most this many runs of the cycle. */
#define SEARCH 64
/* A window may have at most this many instructions. Their start and end times take 1 MB of memory, and a
 * trace.json with so many instructions has about 20 MB. */
#define RUN_TRACE_INSTRS 60000u

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Returns whether `runs` full runs of the cycle, one after another, begin at step `first`. No evaluation and
 * no checkpoint may be between them. */
static bool is_whole(const struct prepared_job *j, const struct phase *p, uint64_t first, uint32_t runs)
{
    for (uint32_t i = 0; i < runs; i++) {
        uint64_t step = first + (uint64_t)i * p->cycle_steps;
        if ((i > 0 && job_is_break(j, p, step)) || job_run_steps(j, p, step) != p->cycle_steps)
            return false;
    }
    return true;
}

/* Chooses the first possible window of `runs` runs of the cycle. The window lies between step `from` and step
 * `total`, the end of the phase. It begins `warm_up` runs after `from`, or fewer if the phase is too short
 * for these. Returns false if there is no such window. */
static bool choose_first(struct run_trace *t, const struct prepared_job *j, const struct phase *p,
                         uint64_t from, uint64_t total, uint32_t runs, uint32_t warm_up)
{
    uint64_t k = p->cycle_steps, after = total - from - runs * k;
    uint64_t first = from + least(warm_up * k, after / k * k), last = least(from + after, first + SEARCH * k);

    for (uint64_t s = from; s <= last; s += job_run_steps(j, p, s)) {
        if (s < first || !is_whole(j, p, s, runs))
            continue;
        t->first_step = s;
        t->runs = runs;
        return true;
    }
    return false;
}

/* Chooses the longest possible window of consecutive runs of the cycle between step `from` and the end of the
 * phase. If several windows are equally long, chooses the earliest. If the only whole runs of the cycle come
 * before the warm-up is over, the warm-up is shorter. */
static void choose_window(struct run_trace *t, const struct prepared_job *j, const struct phase *p,
                          uint64_t from)
{
    uint64_t k = p->cycle_steps;
    uint64_t most =
        least((t->max_steps + k - 1) / k, RUN_TRACE_INSTRS / p->plan->programs[PROGRAM_CYCLE].n_instrs);
    uint64_t total = p->steps > from ? p->steps : from;

    for (uint32_t warm_up = WARM_UP + 1; warm_up-- > 0;)
        for (uint32_t n = (uint32_t)least(most, (total - from) / k); n > 0; n--)
            if (choose_first(t, j, p, from, total, n, warm_up))
                return;
}

void run_trace_start(struct run_trace *t, const struct prepared_job *j, const struct phase *p, struct exec *e,
                     uint64_t step)
{
    choose_window(t, j, p, step);
    if (t->runs == 0)
        return;
    while (t->warm_up < WARM_UP && t->first_step - (uint64_t)t->warm_up * p->cycle_steps > step &&
           !job_is_break(j, p, t->first_step - (uint64_t)t->warm_up * p->cycle_steps))
        t->warm_up++;
    t->spans = xcalloc((size_t)t->runs * p->plan->programs[PROGRAM_CYCLE].n_instrs, sizeof *t->spans);
    /* exec_trace fails only if another window is already open. This cannot happen here, because this run
     * opens one window only. */
    if (exec_trace(e, t->first_step, t->runs, t->spans) < 0)
        run_trace_finish(t);
}

void run_trace_end(struct run_trace *t, const struct exec *e)
{
    t->complete = t->spans != NULL && exec_traced(e) == t->runs;
}

/* The work of a compute stream within the window: when it began its first task, when it ended its last task,
 * and how long it was busy. */
struct stream_work {
    uint64_t first_ns, last_ns, busy_ns;
};

static struct stream_work work_of(const struct run_trace *t, const struct plan_program *cycle,
                                  uint32_t stream)
{
    struct stream_work w = {.first_ns = UINT64_MAX};

    for (uint32_t run = 0; run < t->runs; run++)
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
    const struct phase *p = job_largest_phase(j);
    struct profile *prof = job_times(j, p);
    struct sim_result *sim = plan_simulate(p->plan, PROGRAM_CYCLE, t->warm_up + t->runs, prof, &j->machine);
    const struct trace_part parts[] = {
        {"run", t->spans, t->runs},
        {"plan", sim->spans + (size_t)t->warm_up * sim->n_instrs, t->runs},
    };

    plan_trace(p->plan, PROGRAM_CYCLE, parts, sizeof parts / sizeof *parts, out);
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
