/* A plan for people and for other programs: text, JSON both ways, Chrome trace, a picture. Pure: strings in,
 * strings out. */
#ifndef SCHEDULER_EXPLAIN_EXPLAIN_H
#define SCHEDULER_EXPLAIN_EXPLAIN_H

#include "base/err.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "scheduler/graph.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/predict/why.h"

/* The whole program as text, one line per instruction, stable across runs: for diffs, golden files and the
 * curious.
 *
 *     12  d0.compute  FWD   l1 m0   W1@0..4096 X1.0@4096..8192 -> X2.0@8192..12288   wait d0.in#9
 */
void plan_dump(const struct plan *p, struct strbuf *out);

/* The page that `tutti-worker --plan` prints: what a person wants to know before running. Machine, policy,
 * packs (which layers which device computes), what stays resident, bytes per iteration by kind (state, stash,
 * data) and direction beside the lower bound (bound.h), peak against capacity per device, predicted time
 * split in compute and stall. `times`: by what it was predicted; NULL: the analytic profile. */
void plan_summary(const struct plan *p, const struct graph *g, const struct sim_result *cycle,
                  const char *times, struct strbuf *out);

/* The same in figures, as one JSON object: what `tutti plan --json` prints. For a verified plan. Averages
 * over devices; activation_bytes are stash in and out and what devices send each other; bound_bytes is the
 * least that state and stash of this plan could move. plan_s: how long planning took. */
void plan_summary_json(const struct plan *p, const struct sim_result *cycle, double plan_s,
                       struct strbuf *out);

/* The figures of a plan that people compare: what plan_summary_json prints, for tables. */
struct plan_figures {
    const char *form;                    /* "single", "pp" or "dp": how the devices share the work */
    uint64_t iteration_ns;               /* predicted */
    uint64_t compute_ns, stall_ns;       /* averages over the devices */
    uint64_t moved_bytes, bound_bytes;   /* state and stash, in and out; the least that these could be */
    uint64_t peak_bytes, capacity_bytes; /* of the device that is fullest */
};
void plan_figures(const struct plan *p, const struct sim_result *cycle, struct plan_figures *ret);

/* The last block of the page: what binds, the parts of the critical path, and, where they were asked, what more memory and
 * another device would bring and what the decision costs. */
void plan_why(const struct why_report *r, struct strbuf *out);
/* The same as one JSON object. Shares of the iteration; null for what has no plan. */
void plan_why_json(const struct why_report *r, struct strbuf *out);

/* JSON both ways: plan_from_json(plan_to_json(p)) equals p. Loading checks structure and ranges (no index out
 * of bounds, counts sane), not meaning: that is plan_verify's. */
void plan_to_json(const struct plan *p, struct strbuf *out);
int plan_from_json(const char *text, size_t bytes, struct plan **ret, struct err *err);

/* A timeline of the program: the simulator's prediction, or what the executor measured. */
struct trace_part {
    const char *name;              /* "plan", "run": the viewer shows "device 0 (plan)" */
    const struct plan_span *spans; /* runs * n_instrs of the program; the earliest becomes time 0 */
    uint32_t runs;
};

/* Chrome/Perfetto trace of one or more timelines of program `k`, below each other: of each part one process
 * per device, with tracks compute, in, out, peer; its host last. Every instruction but drops is an event,
 * once per run, with the same name and arguments in every part. */
void plan_trace(const struct plan *p, enum program_kind k, const struct trace_part *parts, uint32_t n_parts,
                struct strbuf *out);

/* The cycle in its steady state as a picture: a standalone SVG of one iteration, a row per stream, time from left to
 * right, with busy shares, legend and axis; pointing at something tells what it is. Areas are times by kind of
 * instruction, however many instructions share a pixel. Below 2 MB for every plan. `cycle`: three runs or more, so
 * that the last but one has others on either side; fewer are drawn from a cold start. */
void plan_svg(const struct plan *p, const struct sim_result *cycle, struct strbuf *out);

#endif
