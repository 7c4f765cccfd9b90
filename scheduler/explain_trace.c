/* plan_trace: a simulated run for Chrome's and Perfetto's trace viewer.
 *
 * One process per device with a track per stream, the host last. Only instructions that take time appear: a
 * drop is an order of events, not an event. Times are microseconds with three decimals, so no nanosecond is
 * lost.
 *
 * Process and thread ids start at 1 and thread ids are unique over the whole trace: viewers give 0 a meaning
 * of its own (the idle task), and take equal thread ids of two processes for one thread.
 */
#include "scheduler/explain.h"

#include "scheduler/explain_parts.h"

static void begin_event(struct strbuf *out, bool *first)
{
    strbuf_add(out, *first ? "\n" : ",\n");
    *first = false;
}

/* Names a process or thread and fixes its place from top to bottom. */
static void add_names(struct strbuf *out, bool *first, const char *what, uint32_t pid, uint32_t tid,
                      const char *name)
{
    begin_event(out, first);
    strbuf_addf(out, "{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"%s_name\",\"args\":{\"name\":", pid, tid,
                what);
    strbuf_add_json(out, name);
    strbuf_add(out, "}}");
    begin_event(out, first);
    strbuf_addf(
        out, "{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"%s_sort_index\",\"args\":{\"sort_index\":%u}}",
        pid, tid, what, tid);
}

static void add_metadata(struct strbuf *out, bool *first, const struct plan *p)
{
    struct strbuf name = {0};

    for (uint32_t s = 0; s < plan_n_streams(p); s++) {
        bool host = s == plan_host_stream(p);
        uint32_t pid = s / LANE_COUNT + 1, tid = s + 1;
        if (s % LANE_COUNT == 0) {
            name.n = 0;
            if (host)
                strbuf_add(&name, "host");
            else
                strbuf_addf(&name, "device %u", s / LANE_COUNT);
            add_names(out, first, "process", pid, tid, name.at);
        }
        add_names(out, first, "thread", pid, tid, lane_names[s % LANE_COUNT]);
    }
    strbuf_finish(&name);
}

static const char *move_word(enum instr_kind k)
{
    return k == INSTR_FETCH ? "fetch" : k == INSTR_SPILL ? "spill" : "send";
}

/* "FWD l1 m0", "fetch W3". */
static void add_title(struct strbuf *out, const struct plan *p, const struct plan_instr *in,
                      const struct plan_operand *moved)
{
    if (moved) {
        strbuf_addf(out, "%s ", move_word(in->kind));
        explain_add_tensor(out, p, moved->tensor);
        return;
    }
    size_t start = out->n;
    strbuf_addf(out, "%s ", instr_kind_names[in->kind]);
    explain_add_place(out, p, in);
    if (out->n > start && out->at[out->n - 1] == ' ') /* DECIDE has no place */
        out->at[--out->n] = '\0';
}

static void add_us(struct strbuf *out, const char *key, uint64_t ns)
{
    strbuf_addf(out, ",\"%s\":%llu.%03u", key, (unsigned long long)(ns / 1000), (unsigned)(ns % 1000));
}

static void add_span(struct strbuf *out, const struct plan *p, const struct plan_program *prog, uint32_t i,
                     const struct sim_span *span)
{
    const struct plan_instr *in = &prog->instrs[i];
    const struct plan_operand *moved =
        instr_is_move(in->kind) && in->n_operands ? &prog->operands[in->operand] : NULL;

    strbuf_add(out, "{\"ph\":\"X\",\"name\":\"");
    add_title(out, p, in, moved);
    strbuf_addf(out, "\",\"cat\":\"%s\",\"pid\":%u,\"tid\":%u", moved ? "move" : "task",
                in->stream / LANE_COUNT + 1, in->stream + 1);
    add_us(out, "ts", span->start_ns);
    add_us(out, "dur", span->end_ns - span->start_ns);
    strbuf_addf(out, ",\"args\":{\"run\":%u,\"instr\":%u", span->run, i);
    if (moved) {
        strbuf_add(out, ",\"tensor\":\"");
        explain_add_tensor(out, p, moved->tensor);
        strbuf_addf(out, "\",\"bytes\":%llu", (unsigned long long)operand_bytes(moved));
    }
    strbuf_add(out, "}}");
}

void plan_trace(const struct plan *p, enum program_kind k, const struct sim_result *sim, struct strbuf *out)
{
    const struct plan_program *prog = &p->programs[k];
    bool first = true;

    strbuf_add(out, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    add_metadata(out, &first, p);
    for (uint32_t run = 0; run < sim->runs; run++) {
        for (uint32_t i = 0; i < sim->n_instrs; i++) {
            const struct sim_span *span = &sim->spans[(size_t)run * sim->n_instrs + i];
            if (span->end_ns == span->start_ns)
                continue;
            begin_event(out, &first);
            add_span(out, p, prog, i, span);
        }
    }
    strbuf_add(out, "\n]}\n");
}
