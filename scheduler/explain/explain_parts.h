/* What the files of explain share: the names of tensors, streams and tasks, and the words of the JSON form. Private to
 * scheduler/explain/; the contract is explain.h. */
#ifndef SCHEDULER_EXPLAIN_EXPLAIN_PARTS_H
#define SCHEDULER_EXPLAIN_EXPLAIN_PARTS_H

#include "base/strbuf.h"
#include "scheduler/plan.h"

/* "W3", "X3.1" (layer.micro), "T.1", "decision"; with more than one replica "dW3/r1". */
void explain_add_tensor(struct strbuf *out, const struct plan *p, tensor_id id);
/* "d0.compute", or "host". */
void explain_add_stream(struct strbuf *out, const struct plan *p, uint32_t stream);
/* "l1 m0" as far as it applies; " r0" with more than one replica, " s0" with more than one step. */
void explain_add_place(struct strbuf *out, const struct plan *p, const struct plan_instr *in);

/* Timelines show every instruction but drops, which are an order of events and not an event. */
bool explain_is_event(const struct plan_instr *in);
/* What a move moves; NULL for everything else, and for a move that lacks it. */
const struct plan_operand *explain_moved(const struct plan_program *prog, const struct plan_instr *in);
/* "FWD", "fetch": tasks are shouted, moves are not. */
const char *explain_kind_word(enum instr_kind k);
/* "FWD l1 m0", "fetch W3". */
void explain_add_event(struct strbuf *out, const struct plan *p, const struct plan_program *prog,
                       const struct plan_instr *in);

/* Lines of a page (explain_summary.c): the label that a line begins with; returns where the line begins. */
size_t explain_label(struct strbuf *out, const char *text);
/* "1.234 s", "12.345 ms". */
void explain_add_time(struct strbuf *out, uint64_t ns);

/* Per layer, for one device and one kind of task. */
struct layer_use {
    bool used;   /* the device runs this task for this layer */
    bool begins; /* it begins a pack: for some micro-batch it does not follow the neighbour's task */
};
struct pack {
    uint32_t first, last; /* in the order of the pass: backward packs have first >= last */
};
void explain_find_use(const struct plan *p, uint32_t stream, enum instr_kind kind, struct layer_use *use);
/* In the order of the pass: way is 1 or -1. Returns how many; `ret` has room for one per layer. */
uint32_t explain_find_packs(const struct plan *p, const struct layer_use *use, int way, struct pack *ret);

/* What the writer and the reader of JSON agree on (explain_json.c). */
#define PLAN_JSON_SCHEMA "plan/v1"
enum { PLAN_JSON_ACCESS_COUNT = ACCESS_DROP + 1 };
extern const char plan_json_columns[];
extern const char *const plan_json_access[PLAN_JSON_ACCESS_COUNT]; /* NULL where there is no such access */

#endif
