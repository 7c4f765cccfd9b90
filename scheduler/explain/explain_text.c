/* Implements plan_dump, which prints the whole plan as text, and the names that all reports share.
 *
 * The same plan always gives the same text, so dumps can be compared and kept as golden files. The text
 * contains everything that has an effect when the plan runs.
 *
 * How to read a line:
 *
 *   12  d0.compute  BWD     l1 m0   W1@0..4096 dX2.0@8192..9216 -> +dW1@16384..20480   wait d0.in#9 host#3-1
 *
 * This is instruction 12 of its program, on device 0's compute stream. Operands left of the arrow are read,
 * operands right of it are written, and "+" marks an operand that is both read and written. After the "@" is
 * the operand's address range on the device of the stream. For an operand elsewhere, the location comes
 * first: W1@host:0..4096, Y1.0@d1:0..512. A part of a tensor has its byte range in brackets:
 * W1[0..2048]@0..2048. The instruction waits for instruction 9, which is on d0.in, and for instruction 3 on
 * the host, one run of the program earlier (-1).
 */
#include "scheduler/explain/explain.h"

#include "scheduler/explain/explain_parts.h"

/* Adds the name of a tensor, such as "Y3.1" for the output of layer 3 and micro-batch 1, "dW3/r1" for a dW of
 * replica 1, or "X0.1/s2" for an input of training step 2 of the cycle. Numbers that tell nothing are left
 * out: the layer of targets and results if the last layer is their loss, and the number of group 0. */
void explain_add_tensor(struct strbuf *out, const struct plan *p, tensor_id id)
{
    const struct plan_tensor *t = &p->tensors[id];

    strbuf_add(out, tensor_kind_names[t->kind]);
    const bool of_loss = t->kind == TENSOR_TARGET || t->kind == TENSOR_RESULT;
    if (t->layer != PLAN_NONE && !(of_loss && t->layer == p->n_layers - 1))
        strbuf_addf(out, "%u", t->layer);
    if (t->group != PLAN_NONE && t->group > 0)
        strbuf_addf(out, "%u", t->group);
    if (t->micro != PLAN_NONE)
        strbuf_addf(out, ".%u", t->micro);
    if (t->replica != PLAN_NONE && p->n_replicas > 1)
        strbuf_addf(out, "/r%u", t->replica);
    if (t->step != PLAN_NONE && p->steps > 1)
        strbuf_addf(out, "/s%u", t->step);
}

void explain_add_stream(struct strbuf *out, const struct plan *p, uint32_t stream)
{
    if (stream == plan_host_stream(p))
        strbuf_add(out, "host");
    else
        strbuf_addf(out, "d%u.%s", stream / LANE_COUNT, lane_names[stream % LANE_COUNT]);
}

/* Adds the numbers that identify an instruction, such as "l1 m0" for layer 1 and micro-batch 0. If the plan
 * has several replicas, adds the replica, as in " r0". If the cycle has several training steps, adds the
 * step, as in " s0". */
static void add_coordinates(struct strbuf *out, const struct plan *p, const struct plan_instr *in)
{
    const char *gap = "";
    const struct {
        char letter;
        uint32_t value;
    } parts[] = {
        {'l', in->layer},
        {'m', in->micro},
        {'r', p->n_replicas > 1 ? in->replica : PLAN_NONE},
        {'s', p->steps > 1 ? in->step : PLAN_NONE},
        {'g', in->kind == INSTR_DECIDE && p->n_groups > 1 ? in->group : PLAN_NONE},
    };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].value == PLAN_NONE)
            continue;
        strbuf_addf(out, "%s%c%u", gap, parts[i].letter, parts[i].value);
        gap = " ";
    }
}

bool explain_is_event(const struct plan_instr *in)
{
    return in->kind != INSTR_DROP;
}

const struct plan_operand *explain_moved(const struct plan_program *prog, const struct plan_instr *in)
{
    return instr_is_move(in->kind) && in->n_operands ? &prog->operands[in->operand] : NULL;
}

const char *explain_kind_word(enum instr_kind k)
{
    switch (k) {
    case INSTR_FETCH:
        return "fetch";
    case INSTR_SPILL:
        return "spill";
    case INSTR_SEND:
        return "send";
    default:
        return instr_kind_names[k];
    }
}

void explain_add_event(struct strbuf *out, const struct plan *p, const struct plan_program *prog,
                       const struct plan_instr *in)
{
    const struct plan_operand *moved = explain_moved(prog, in);

    strbuf_addf(out, "%s ", explain_kind_word(in->kind));
    if (moved)
        explain_add_tensor(out, p, moved->tensor);
    else
        add_coordinates(out, p, in);
    if (out->at[out->n - 1] == ' ') /* DECIDE has neither layer nor micro-batch */
        out->at[--out->n] = '\0';
}

/* Pads the line that starts at offset `start` of `out` with spaces to `width` columns. Adds at least one
 * space. */
static void pad_to(struct strbuf *out, size_t start, size_t width)
{
    do
        strbuf_addn(out, " ", 1);
    while (out->n - start < width);
}

static void add_location(struct strbuf *out, uint32_t loc)
{
    if (loc == PLAN_HOST)
        strbuf_add(out, "host:");
    else
        strbuf_addf(out, "d%u:", loc);
}

/* Adds an operand and its address. `instr_loc` is the location at which the instruction runs. If the operand
 * is at another location, adds this location too. */
static void add_operand(struct strbuf *out, const struct plan *p, const struct plan_operand *o,
                        uint32_t instr_loc)
{
    if (o->access == ACCESS_RW)
        strbuf_add(out, "+");
    explain_add_tensor(out, p, o->tensor);
    if (o->begin != 0 || o->end != p->tensors[o->tensor].bytes)
        strbuf_addf(out, "[%llu..%llu]", (unsigned long long)o->begin, (unsigned long long)o->end);
    strbuf_add(out, "@");
    if (o->loc != instr_loc)
        add_location(out, o->loc);
    strbuf_addf(out, "%llu..%llu", (unsigned long long)o->addr,
                (unsigned long long)(o->addr + operand_bytes(o)));
}

static bool writes(const struct plan_operand *o)
{
    return (o->access & ACCESS_WRITE) != 0;
}

static void add_operands(struct strbuf *out, const struct plan *p, const struct plan_program *prog,
                         const struct plan_instr *in)
{
    uint32_t instr_loc = in->stream == plan_host_stream(p) ? PLAN_HOST : in->stream / LANE_COUNT;
    const char *gap = "", *arrow = "->";

    for (int side = 0; side < 2; side++) {
        for (uint32_t i = 0; i < in->n_operands; i++) {
            const struct plan_operand *o = &prog->operands[in->operand + i];
            if (writes(o) != (side == 1))
                continue;
            if (side == 1 && arrow) {
                strbuf_addf(out, "%s%s", gap, arrow);
                arrow = NULL;
                gap = " ";
            }
            strbuf_add(out, gap);
            add_operand(out, p, o, instr_loc);
            gap = " ";
        }
    }
}

static void add_waits(struct strbuf *out, const struct plan *p, const struct plan_program *prog,
                      const struct plan_instr *in)
{
    if (in->n_waits == 0)
        return;
    strbuf_add(out, "   wait");
    for (uint32_t i = 0; i < in->n_waits; i++) {
        const struct plan_wait *w = &prog->waits[in->wait + i];
        strbuf_add(out, " ");
        explain_add_stream(out, p, prog->instrs[w->instr].stream);
        strbuf_addf(out, "#%u", w->instr);
        if (w->distance)
            strbuf_addf(out, "-%u", w->distance);
    }
}

static void dump_instr(struct strbuf *out, const struct plan *p, const struct plan_program *prog, uint32_t i)
{
    const struct plan_instr *in = &prog->instrs[i];
    size_t start = out->n;

    strbuf_addf(out, "%6u  ", i);
    explain_add_stream(out, p, in->stream);
    pad_to(out, start, 20);
    strbuf_addf(out, "%-6s  ", instr_kind_names[in->kind]);
    add_coordinates(out, p, in);
    pad_to(out, start, 36);
    add_operands(out, p, prog, in);
    add_waits(out, p, prog, in);
    strbuf_add(out, "\n");
}

static void dump_tensor(struct strbuf *out, const struct plan *p, tensor_id id)
{
    const struct plan_tensor *t = &p->tensors[id];
    size_t start = out->n;

    strbuf_addf(out, "%6u  ", id);
    explain_add_tensor(out, p, id);
    pad_to(out, start, 20);
    strbuf_addf(out, "%12llu", (unsigned long long)t->bytes);
    if (t->host_offset != PLAN_NO_HOST)
        strbuf_addf(out, "  host@%llu", (unsigned long long)t->host_offset);
    if (t->host_offset != PLAN_NO_HOST && t->host_slots != 1)
        strbuf_addf(out, " x%u", t->host_slots);
    strbuf_add(out, "\n");
}

static void dump_boundary(struct strbuf *out, const struct plan *p)
{
    strbuf_addf(out, "\nboundary: %u copies\n", p->n_boundary);
    for (uint32_t i = 0; i < p->n_boundary; i++) {
        const struct plan_copy *c = &p->boundary[i];
        struct plan_operand o = {
            .tensor = c->tensor, .loc = c->device, .begin = c->begin, .end = c->end, .addr = c->addr};
        strbuf_addf(out, "        d%u  ", c->device);
        add_operand(out, p, &o, c->device);
        strbuf_add(out, "\n");
    }
}

static void dump_header(struct strbuf *out, const struct plan *p)
{
    strbuf_addf(out, "plan %s: devices %u, layers %u, micro-batches %u, rows %u, replicas %u, steps %u\n",
                p->policy, p->n_devices, p->n_layers, p->n_micro, p->rows, p->n_replicas, p->steps);
    for (uint32_t d = 0; d < p->n_devices; d++)
        strbuf_addf(out, "d%u: peak %llu of %llu bytes\n", d, (unsigned long long)p->devices[d].peak_bytes,
                    (unsigned long long)p->devices[d].lease_bytes);
    strbuf_addf(out, "host: %llu of %llu bytes\n", (unsigned long long)p->host_bytes,
                (unsigned long long)p->host_lease_bytes);
}

void plan_dump(const struct plan *p, struct strbuf *out)
{
    dump_header(out, p);
    strbuf_addf(out, "\ntensors: %u\n", p->n_tensors);
    for (tensor_id t = 0; t < p->n_tensors; t++)
        dump_tensor(out, p, t);
    dump_boundary(out, p);
    for (int k = 0; k < PROGRAM_COUNT; k++) {
        const struct plan_program *prog = &p->programs[k];
        strbuf_addf(out, "\nprogram %s: %u instructions\n", program_kind_names[k], prog->n_instrs);
        for (uint32_t i = 0; i < prog->n_instrs; i++)
            dump_instr(out, p, prog, i);
    }
}
