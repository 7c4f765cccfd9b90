/* Declarations that only the files of scheduler/explain/ use: names of tensors, streams and tasks,
 * packs, and the vocabulary of the JSON format. */
#ifndef SCHEDULER_EXPLAIN_EXPLAIN_PARTS_H
#define SCHEDULER_EXPLAIN_EXPLAIN_PARTS_H

#include "base/strbuf.h"
#include "scheduler/plan.h"

/* Adds the name of a tensor, such as "W3", "X3.1" (layer 3, micro-batch 1), "T.1" or "decision". If the
 * plan has several replicas, the name of a dW includes its replica: "dW3/r1". */
void explain_add_tensor(struct strbuf *out, const struct plan *p, tensor_id id);

/* Adds the name of a stream, such as "d0.compute" or "host". */
void explain_add_stream(struct strbuf *out, const struct plan *p, uint32_t stream);

/* Returns whether traces and pictures show an instruction. They show all instructions except drops,
 * which take no time. */
bool explain_is_event(const struct plan_instr *in);

/* Returns the operand that a move transfers. Returns NULL if the instruction is not a move or has no
 * operands. */
const struct plan_operand *explain_moved(const struct plan_program *prog, const struct plan_instr *in);

/* Returns the word for a kind of instruction in traces and pictures. The words "fetch", "spill" and
 * "send" are in lower case, and all others in upper case. */
const char *explain_kind_word(enum instr_kind k);

/* Adds the name that an instruction has in traces and pictures, such as "FWD l1 m0" or "fetch W3". */
void explain_add_event(struct strbuf *out, const struct plan *p, const struct plan_program *prog,
                       const struct plan_instr *in);

/* Starts a line of the page with a label. Returns the position in `out` at which the line starts. */
size_t explain_label(struct strbuf *out, const char *text);

/* Adds a duration in a suitable unit, such as "1.234 s", "12.345 ms" or "1.000 us". */
void explain_add_time(struct strbuf *out, uint64_t ns);

/* Returns the plural ending of a noun after the number `n`: "" for 1, otherwise "s". */
static inline const char *explain_plural(uint32_t n)
{
    return n == 1 ? "" : "s";
}

/* Tells whether a device runs one kind of task for a layer, and whether a pack starts at the layer. */
struct layer_use {
    /* Whether the device runs this task for this layer. */
    bool used;
    bool begins; /* the layer starts a pack */
};

/* A pack, given by its first and last layer in the order of the pass. Backward packs have first >= last. */
struct pack {
    uint32_t first, last;
};

/* Determines for every layer whether a stream runs tasks of this kind for the layer, and whether a pack
 * starts at the layer. `use` must have one element per layer. */
void explain_find_use(const struct plan *p, uint32_t stream, enum instr_kind kind, struct layer_use *use);

/* Lists the packs in the order of the pass. `way` is 1 for ascending layers and -1 for descending
 * layers. Returns the number of packs. `ret` must have space for one pack per layer. */
uint32_t explain_find_packs(const struct plan *p, const struct layer_use *use, int way, struct pack *ret);

/* The vocabulary of the JSON format, which the writer and the reader share (explain_json.c). */
#define PLAN_JSON_SCHEMA "plan/v1"
enum { PLAN_JSON_ACCESS_COUNT = ACCESS_DROP + 1 };
extern const char plan_json_columns[];
extern const char *const plan_json_access[PLAN_JSON_ACCESS_COUNT]; /* indexed by enum access; may be NULL */

#endif
