/* Writes a plan as JSON, and documents the format. explain_load.c reads it.
 *
 * A plan has up to 100,000 instructions. Therefore its tables are arrays of rows and not of objects: the text
 * has a tenth of the size and loads in a fraction of a second. The key "columns" names the values of a row
 * once; the reader refuses a file with other columns. The operands and waits of an instruction are inside its
 * row. Thus the file has no index ranges that could be wrong, and moving a row moves the whole instruction.
 *
 *     {"schema":"plan/v1","policy":"stream","n_devices":2, ... ,
 *      "columns":{...},
 *      "devices":[[lease_bytes,peak_bytes], ...],
 *      "tensors":[["W",0,null,null,"F32",4096,0,1], ...],
 *      "boundary":[[tensor,device,begin,end,addr], ...],
 *      "programs":{"entry":[...],
 *                  "cycle":[["FWD",0,1,0,0,0,
 *                            [[3,0,"r","w",4096],[5,0,"w","y",8192,0,512]],[[9,0]]], ...], ...}}
 *
 * null means PLAN_NONE (does not apply), PLAN_HOST (the host) or PLAN_NO_HOST (no home on the host). An
 * operand without begin and end is the whole tensor. The number of a stream is 4 * device + lane (compute,
 * in, out, peer), and 4 * n_devices for the host.
 */
#include "scheduler/explain/explain.h"
#include "scheduler/explain/explain_parts.h"

const char plan_json_columns[] =
    "{\"devices\":[\"lease_bytes\",\"peak_bytes\"],"
    "\"tensors\":[\"kind\",\"layer\",\"micro\",\"replica\",\"step\",\"group\",\"dtype\",\"bytes\","
    "\"host_offset\",\"host_slots\"],"
    "\"boundary\":[\"tensor\",\"device\",\"begin\",\"end\",\"addr\"],"
    "\"instrs\":[\"kind\",\"stream\",\"layer\",\"micro\",\"replica\",\"step\",\"group\",\"operands\","
    "\"waits\"],"
    "\"operands\":[\"tensor\",\"device\",\"access\",\"role\",\"addr\",\"begin\",\"end\"],"
    "\"waits\":[\"instr\",\"distance\"]}";

const char *const plan_json_access[PLAN_JSON_ACCESS_COUNT] = {
    [ACCESS_READ] = "r", [ACCESS_WRITE] = "w", [ACCESS_RW] = "rw", [ACCESS_DROP] = "drop"};

/* Adds a comma before the next value of an array, unless that value is the first. */
static void put_comma(struct strbuf *out)
{
    if (out->at[out->n - 1] != '[')
        strbuf_addn(out, ",", 1);
}

static void put_open(struct strbuf *out)
{
    put_comma(out);
    strbuf_addn(out, "[", 1);
}

/* Starts a row of a table. Each row is on a line of its own, so that diff can compare two files row by
 * row. */
static void put_open_row(struct strbuf *out)
{
    put_comma(out);
    strbuf_addn(out, "\n[", 2);
}

static void put_close(struct strbuf *out)
{
    strbuf_addn(out, "]", 1);
}

/* Adds a number to the text. A plan has millions of numbers, so this is done without printf, which is much
 * slower. */
static void put_u64(struct strbuf *out, uint64_t v)
{
    char digits[20];
    size_t at = sizeof digits;

    put_comma(out);
    do
        digits[--at] = (char)('0' + v % 10);
    while (v /= 10);
    strbuf_addn(out, digits + at, sizeof digits - at);
}

static void put_id(struct strbuf *out, uint32_t v)
{
    if (v != PLAN_NONE) {
        put_u64(out, v);
        return;
    }
    put_comma(out);
    strbuf_add(out, "null");
}

static void put_name(struct strbuf *out, const char *name)
{
    put_comma(out);
    strbuf_add_json(out, name);
}

static void write_operand(const struct plan *p, const struct plan_operand *o, struct strbuf *out)
{
    put_open(out);
    put_u64(out, o->tensor);
    put_id(out, o->loc);
    put_name(out, plan_json_access[o->access]);
    put_name(out, role_names[o->role]);
    put_u64(out, o->addr);
    if (o->begin != 0 || o->end != p->tensors[o->tensor].bytes) {
        put_u64(out, o->begin);
        put_u64(out, o->end);
    }
    put_close(out);
}

static void write_instr(const struct plan *p, const struct plan_program *prog, const struct plan_instr *in,
                        struct strbuf *out)
{
    put_open_row(out);
    put_name(out, instr_kind_names[in->kind]);
    put_u64(out, in->stream);
    put_id(out, in->layer);
    put_id(out, in->micro);
    put_id(out, in->replica);
    put_u64(out, in->step);
    put_u64(out, in->group);
    put_open(out);
    for (uint32_t i = 0; i < in->n_operands; i++)
        write_operand(p, &prog->operands[in->operand + i], out);
    put_close(out);
    put_open(out);
    for (uint32_t i = 0; i < in->n_waits; i++) {
        put_open(out);
        put_u64(out, prog->waits[in->wait + i].instr);
        put_u64(out, prog->waits[in->wait + i].distance);
        put_close(out);
    }
    put_close(out);
    put_close(out);
}

static void write_programs(const struct plan *p, struct strbuf *out)
{
    strbuf_add(out, "\"programs\":{");
    for (int k = 0; k < PROGRAM_COUNT; k++) {
        strbuf_addf(out, "%s\"%s\":[", k ? ",\n" : "", program_kind_names[k]);
        for (uint32_t i = 0; i < p->programs[k].n_instrs; i++)
            write_instr(p, &p->programs[k], &p->programs[k].instrs[i], out);
        put_close(out);
    }
    strbuf_add(out, "}");
}

static void write_tensor(const struct plan_tensor *t, struct strbuf *out)
{
    put_open_row(out);
    put_name(out, tensor_kind_names[t->kind]);
    put_id(out, t->layer);
    put_id(out, t->micro);
    put_id(out, t->replica);
    put_id(out, t->step);
    put_id(out, t->group);
    put_name(out, dtype_names[t->dtype]);
    put_u64(out, t->bytes);
    if (t->host_offset != PLAN_NO_HOST)
        put_u64(out, t->host_offset);
    else
        put_id(out, PLAN_NONE);
    put_u64(out, t->host_slots);
    put_close(out);
}

static void write_tables(const struct plan *p, struct strbuf *out)
{
    strbuf_add(out, "\"devices\":[");
    for (uint32_t d = 0; d < p->n_devices; d++) {
        put_open_row(out);
        put_u64(out, p->devices[d].lease_bytes);
        put_u64(out, p->devices[d].peak_bytes);
        put_close(out);
    }
    strbuf_add(out, "],\n\"tensors\":[");
    for (uint32_t i = 0; i < p->n_tensors; i++)
        write_tensor(&p->tensors[i], out);
    strbuf_add(out, "],\n\"boundary\":[");
    for (uint32_t i = 0; i < p->n_boundary; i++) {
        const struct plan_copy *c = &p->boundary[i];
        put_open_row(out);
        put_u64(out, c->tensor);
        put_u64(out, c->device);
        put_u64(out, c->begin);
        put_u64(out, c->end);
        put_u64(out, c->addr);
        put_close(out);
    }
    strbuf_add(out, "],\n");
}

void plan_to_json(const struct plan *p, struct strbuf *out)
{
    strbuf_add(out, "{\"schema\":\"" PLAN_JSON_SCHEMA "\",\"policy\":");
    strbuf_add_json(out, p->policy);
    strbuf_addf(out, ",\n\"n_devices\":%u,\"n_layers\":%u,\"n_micro\":%u,\"n_replicas\":%u,\"n_groups\":%u,",
                p->n_devices, p->n_layers, p->n_micro, p->n_replicas, p->n_groups);
    strbuf_addf(out, "\"rows\":%u,\"steps\":%u,\"host_lease_bytes\":%llu,\"host_bytes\":%llu,\n", p->rows,
                p->steps, (unsigned long long)p->host_lease_bytes, (unsigned long long)p->host_bytes);
    strbuf_addf(out, "\"columns\":%s,\n", plan_json_columns);
    write_tables(p, out);
    write_programs(p, out);
    strbuf_add(out, "}\n");
}
