/* Declarations that only the files in scheduler/explain/ use: how to name tensors, streams and tasks, how to
 * find packs, and the fixed words of the JSON format. */
#ifndef SCHEDULER_EXPLAIN_EXPLAIN_PARTS_H
#define SCHEDULER_EXPLAIN_EXPLAIN_PARTS_H

#include "base/strbuf.h"
#include "scheduler/plan.h"

/* Adds the name of a tensor. For example, "W3" is the weights of layer 3, and "Y3.1" is the output of layer 3
 * for micro-batch 1. If the plan has several replicas, "dW3/r1" is the weight gradient of layer 3 in replica
 * 1. */
void explain_add_tensor(struct strbuf *out, const struct plan *p, tensor_id id);

/* Adds the name of a stream, such as "d0.compute" for device 0, or "host". */
void explain_add_stream(struct strbuf *out, const struct plan *p, uint32_t stream);

/* Returns whether traces and pictures show instruction `in`. They show every instruction except drops, which
 * take no time. */
bool explain_is_event(const struct plan_instr *in);

/* Returns the operand whose bytes a move transfers, or NULL if the instruction has no such operand. */
const struct plan_operand *explain_moved(const struct plan_program *prog, const struct plan_instr *in);

/* Returns the word that traces and pictures use for a kind of instruction. Moves between host and devices or
 * between devices are in lower case, such as "fetch". All other kinds are in upper case, such as "FWD". */
const char *explain_kind_word(enum instr_kind k);

/* Adds the name that an instruction has in traces and pictures, such as "FWD l1 m0" or "fetch W3". */
void explain_add_event(struct strbuf *out, const struct plan *p, const struct plan_program *prog,
                       const struct plan_instr *in);

/* Starts a new line of the summary page with the label `text`. Returns the offset in `out` at which the line
 * starts. */
size_t explain_label(struct strbuf *out, const char *text);

/* Adds a duration in a suitable unit, for example "1.234 s", "12.345 ms" or "1.000 us". */
void explain_add_time(struct strbuf *out, uint64_t ns);

/* Returns the ending of a noun that follows the number `n`: "" if n is 1, otherwise "s". */
static inline const char *explain_plural(uint32_t n)
{
    return n == 1 ? "" : "s";
}

/* Whether a device runs tasks of one kind, such as FWD, for a layer, and whether the layer starts a pack. */
struct layer_use {
    /* Whether the device runs this kind of task for the layer. */
    bool used;
    bool begins; /* the layer starts a pack */
};

/* A pack: a range of layers that run one after another, from `first` to `last`. In the backward pass, layers
 * run in descending order, so first >= last. */
struct pack {
    uint32_t first, last;
};

/* Finds the layers for which a stream runs tasks of kind `kind`, and the layers that are the first of a pack.
 * Stores the result in `use`, an array with one element for each layer. */
void explain_find_use(const struct plan *p, uint32_t stream, enum instr_kind kind, struct layer_use *use);

/* Lists the packs in the order in which they run, and returns how many there are. `way` is 1 if layers run in
 * ascending order, and -1 if they run in descending order. `ret` must have space for as many packs as there
 * are layers. */
uint32_t explain_find_packs(const struct plan *p, const struct layer_use *use, int way, struct pack *ret);

/* The name and the fixed words of the JSON format. explain_json.c writes the format, and explain_load.c reads
 * it. */
#define PLAN_JSON_SCHEMA "plan/v1"
enum { PLAN_JSON_ACCESS_COUNT = ACCESS_DROP + 1 };
extern const char plan_json_columns[];
extern const char *const plan_json_access[PLAN_JSON_ACCESS_COUNT]; /* indexed by enum access; may be NULL */

#endif
