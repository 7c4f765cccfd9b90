/* Declarations that only the files of scheduler/explain/ use: names of tensors, streams and tasks,
 * packs, and the vocabulary of the JSON format. */
#ifndef SCHEDULER_EXPLAIN_EXPLAIN_PARTS_H
#define SCHEDULER_EXPLAIN_EXPLAIN_PARTS_H

#include "base/strbuf.h"
#include "scheduler/plan.h"

/* Adds the name of a tensor, such as "W3" or "decision". "X3.1" is X of layer 3 and micro-batch 1. If there
 * are several replicas, "dW3/r1" is the dW of replica 1. */
void explain_add_tensor(struct strbuf *out, const struct plan *p, tensor_id id);

/* Adds the name of a stream, such as "d0.compute" or "host". */
void explain_add_stream(struct strbuf *out, const struct plan *p, uint32_t stream);

/* Returns whether traces and pictures show an instruction. They show all but drops, which take no time. */
bool explain_is_event(const struct plan_instr *in);

/* Returns the operand that a move transfers. Returns NULL if there is no such operand. */
const struct plan_operand *explain_moved(const struct plan_program *prog, const struct plan_instr *in);

/* Returns the word for a kind of instruction in traces and pictures. The words "fetch", "spill" and "send"
 * are in lower case. All others are in upper case, such as "FWD". */
const char *explain_kind_word(enum instr_kind k);

/* Adds the name that an instruction has in traces and pictures, such as "FWD l1 m0" or "fetch W3". */
void explain_add_event(struct strbuf *out, const struct plan *p, const struct plan_program *prog,
                       const struct plan_instr *in);

/* Starts a line of the page with a label. Returns the offset of the line in `out`. */
size_t explain_label(struct strbuf *out, const char *text);

/* Adds a duration in a suitable unit, such as "1.234 s", "12.345 ms" or "1.000 us". */
void explain_add_time(struct strbuf *out, uint64_t ns);

/* Returns the plural ending of a noun after the number `n`: "" for 1, otherwise "s". */
static inline const char *explain_plural(uint32_t n)
{
    return n == 1 ? "" : "s";
}

/* What a device does for one layer: whether it runs a kind of task, and whether a pack starts there. */
struct layer_use {
    /* Whether the device runs this task for this layer. */
    bool used;
    bool begins; /* the layer starts a pack */
};

/* A pack of consecutive layers. `first` is the layer that the pass reaches first, so backward packs have
 * first >= last. */
struct pack {
    uint32_t first, last;
};

/* Finds the layers for which a stream runs tasks of this kind, and the layers where packs start. `use` must
 * have one element per layer. */
void explain_find_use(const struct plan *p, uint32_t stream, enum instr_kind kind, struct layer_use *use);

/* Lists the packs in the order of the pass, and returns their number. `way` is 1 for ascending layers and -1
 * for descending layers. `ret` must have space for one pack per layer. */
uint32_t explain_find_packs(const struct plan *p, const struct layer_use *use, int way, struct pack *ret);

/* The vocabulary of the JSON format, which the writer and the reader share (explain_json.c). */
#define PLAN_JSON_SCHEMA "plan/v1"
enum { PLAN_JSON_ACCESS_COUNT = ACCESS_DROP + 1 };
extern const char plan_json_columns[];
extern const char *const plan_json_access[PLAN_JSON_ACCESS_COUNT]; /* indexed by enum access; may be NULL */

#endif
