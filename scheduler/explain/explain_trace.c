/* Implements plan_trace, which prints timelines of a program for the trace viewers of Chrome and Perfetto.
 *
 * Predictions and measurements go through the same code, so differences in the picture are differences in
 * time. Each part has one process per device, with a track per stream, and the host last. Each part starts at
 * time 0, so that parts can be compared. Drops do not appear, because they take no time. Times are printed in
 * microseconds with three decimals, so nothing is lost by rounding.
 *
 * Process and thread ids start at 1 and are unique in the whole trace. Viewers treat id 0 as the idle task,
 * and they merge threads of different processes that have the same id.
 */
#include "scheduler/explain/explain.h"

#include "scheduler/explain/explain_parts.h"

/* The state of one call of plan_trace. The fields from `name` on belong to the timeline that is being
 * written. */
struct tracer {
    const struct plan *plan;
    const struct plan_program *program;
    struct strbuf *out;
    bool begun;       /* an event has been written */
    const char *name; /* name of the part */
    uint32_t first_pid, first_tid;
    uint64_t zero_ns; /* start of the part's first event */
};

static uint32_t pid_of(const struct tracer *t, uint32_t stream)
{
    return t->first_pid + stream / LANE_COUNT;
}

static uint32_t tid_of(const struct tracer *t, uint32_t stream)
{
    return t->first_tid + stream;
}

static void begin_event(struct tracer *t)
{
    strbuf_add(t->out, t->begun ? ",\n" : "\n");
    t->begun = true;
}

/* Writes the name of a process or thread. Also writes the number by which the viewer sorts processes and
 * threads. */
static void add_names(struct tracer *t, const char *what, uint32_t stream, const char *name)
{
    uint32_t pid = pid_of(t, stream), tid = tid_of(t, stream);

    begin_event(t);
    strbuf_addf(t->out, "{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"%s_name\",\"args\":{\"name\":", pid,
                tid, what);
    strbuf_add_json(t->out, name);
    strbuf_add(t->out, "}}");
    begin_event(t);
    strbuf_addf(
        t->out,
        "{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"%s_sort_index\",\"args\":{\"sort_index\":%u}}", pid,
        tid, what, tid);
}

static void add_metadata(struct tracer *t)
{
    struct strbuf name = {0};

    for (uint32_t s = 0; s < plan_n_streams(t->plan); s++) {
        if (s % LANE_COUNT == 0) {
            name.n = 0;
            if (s == plan_host_stream(t->plan))
                strbuf_addf(&name, "host (%s)", t->name);
            else
                strbuf_addf(&name, "device %u (%s)", s / LANE_COUNT, t->name);
            add_names(t, "process", s, name.at);
        }
        add_names(t, "thread", s, lane_names[s % LANE_COUNT]);
    }
    strbuf_finish(&name);
}

static void add_us(struct strbuf *out, const char *key, uint64_t ns)
{
    strbuf_addf(out, ",\"%s\":%llu.%03u", key, (unsigned long long)(ns / 1000), (unsigned)(ns % 1000));
}

static void add_id(struct strbuf *out, const char *key, uint32_t id)
{
    if (id != PLAN_NONE)
        strbuf_addf(out, ",\"%s\":%u", key, id);
}

/* Adds the details of an event, such as its layer and micro-batch. For a move, these are the layer and
 * micro-batch of the tensor that is moved. */
static void add_args(struct tracer *t, const struct plan_instr *in, const struct plan_operand *moved)
{
    const struct plan_tensor *tensor = moved ? &t->plan->tensors[moved->tensor] : NULL;

    add_id(t->out, "layer", tensor ? tensor->layer : in->layer);
    add_id(t->out, "micro", tensor ? tensor->micro : in->micro);
    if (moved) {
        strbuf_add(t->out, ",\"tensor\":\"");
        explain_add_tensor(t->out, t->plan, moved->tensor);
        strbuf_addf(t->out, "\",\"bytes\":%llu", (unsigned long long)operand_bytes(moved));
    }
}

static void add_trace_event(struct tracer *t, uint32_t run, uint32_t i, const struct plan_span *span)
{
    const struct plan_instr *in = &t->program->instrs[i];
    const struct plan_operand *moved = explain_moved(t->program, in);

    begin_event(t);
    strbuf_add(t->out, "{\"ph\":\"X\",\"name\":\"");
    explain_add_event(t->out, t->plan, t->program, in);
    strbuf_addf(t->out, "\",\"cat\":\"%s\",\"pid\":%u,\"tid\":%u", moved ? "move" : "task",
                pid_of(t, in->stream), tid_of(t, in->stream));
    add_us(t->out, "ts", span->start_ns - t->zero_ns);
    add_us(t->out, "dur", span->end_ns - span->start_ns);
    strbuf_addf(t->out, ",\"args\":{\"run\":%u,\"instr\":%u", run, i);
    add_args(t, in, moved);
    strbuf_add(t->out, "}}");
}

/* Returns the start of the first event. */
static uint64_t earliest_ns(const struct plan_program *prog, const struct trace_part *part)
{
    uint64_t least = UINT64_MAX;

    for (size_t at = 0; at < (size_t)part->runs * prog->n_instrs; at++)
        if (explain_is_event(&prog->instrs[at % prog->n_instrs]) && part->spans[at].start_ns < least)
            least = part->spans[at].start_ns;
    return least;
}

static void add_part(struct tracer *t, const struct trace_part *part)
{
    const uint32_t n = t->program->n_instrs;

    t->name = part->name;
    t->zero_ns = earliest_ns(t->program, part);
    add_metadata(t);
    for (uint32_t run = 0; run < part->runs; run++)
        for (uint32_t i = 0; i < n; i++)
            if (explain_is_event(&t->program->instrs[i]))
                add_trace_event(t, run, i, &part->spans[(size_t)run * n + i]);
    t->first_pid += t->plan->n_devices + 1;
    t->first_tid += plan_n_streams(t->plan);
}

void plan_trace(const struct plan *p, enum program_kind k, const struct trace_part *parts, uint32_t n_parts,
                struct strbuf *out)
{
    struct tracer t = {.plan = p, .program = &p->programs[k], .out = out, .first_pid = 1, .first_tid = 1};

    strbuf_add(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (uint32_t i = 0; i < n_parts; i++)
        add_part(&t, &parts[i]);
    strbuf_add(out, "\n]}\n");
}
