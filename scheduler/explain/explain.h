/* Shows a plan to people and to other programs: as text, JSON, a Chrome trace or a picture. All
 * functions append to a string buffer and have no other effects. plan_from_json reads a plan back. */
#ifndef SCHEDULER_EXPLAIN_EXPLAIN_H
#define SCHEDULER_EXPLAIN_EXPLAIN_H

#include "base/err.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "scheduler/graph.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/predict/why.h"

/* Prints the whole plan as text, one line per instruction, for diffs and golden files. Equal plans give the
 * same text. A line looks like this:
 *
 *     12  d0.compute  FWD   l1 m0   W1@0..4096 X1.0@4096..8192 -> X2.0@8192..12288   wait d0.in#9
 */
void plan_dump(const struct plan *p, struct strbuf *out);

/* Prints the page of `tutti-worker --plan`. `times` names the source of the predicted times; NULL means the
 * analytic profile. If `cycle` is NULL, the page has no times. */
void plan_summary(const struct plan *p, const struct graph *g, const struct sim_result *cycle,
                  const char *times, struct strbuf *out);

/* Prints the figures of a verified plan as one JSON object. Times are averages over devices. The figure
 * "activation_bytes" counts the stash and all bytes between devices. `plan_s` is the planning time in
 * seconds. */
void plan_summary_json(const struct plan *p, const struct sim_result *cycle, double plan_s,
                       struct strbuf *out);

/* The figures of a plan for comparison with other plans. plan_summary_json prints the same figures. */
struct plan_figures {
    /* How the devices share the work: "single", "pp" or "dp". */
    const char *form;
    uint64_t iteration_ns; /* predicted time of an iteration */
    /* Compute time of an iteration, averaged over the devices. */
    uint64_t compute_ns;
    uint64_t stall_ns;       /* the rest of the iteration */
    uint64_t moved_bytes;    /* state and stash, in and out */
    uint64_t bound_bytes;    /* lower bound for moved_bytes */
    uint64_t peak_bytes;     /* peak of the device that is fullest */
    uint64_t capacity_bytes; /* capacity of the same device */
};

/* Computes the figures of a plan from its simulated cycle. */
void plan_figures(const struct plan *p, const struct sim_result *cycle, struct plan_figures *ret);

/* Prints why the plan is not faster: its limit, and the parts of its critical path. If the what-if questions
 * were asked, also prints their answers. */
void plan_why(const struct why_report *r, struct strbuf *out);

/* Prints a why_report as one JSON object. Times on the critical path are fractions of the iteration. A
 * what-if question without a plan has the answer null. */
void plan_why_json(const struct why_report *r, struct strbuf *out);

/* Prints a plan as JSON. plan_from_json converts the JSON back into an equal plan. */
void plan_to_json(const struct plan *p, struct strbuf *out);

/* Reads a plan from JSON. Checks only that indices and counts are in range; plan_verify must check the rest.
 * Returns -EINVAL or -E2BIG for a bad file. The caller frees *ret with plan_destroy. */
int plan_from_json(const char *text, size_t bytes, struct plan **ret, struct err *err);

/* One timeline of a program, for plan_trace. It is either the simulator's prediction or the executor's
 * measurement. */
struct trace_part {
    /* "plan" or "run". It is part of the process names in the viewer. */
    const char *name;
    /* The spans of all runs. Instruction `i` of run `r` is at index r * n_instrs + i. The trace starts with
     * the earliest span. */
    const struct plan_span *spans;
    uint32_t runs;
};

/* Prints a trace for Chrome and Perfetto. Each timeline has one process per device and one for the host. Each
 * instruction gives one event per run; drops give none. */
void plan_trace(const struct plan *p, enum program_kind k, const struct trace_part *parts, uint32_t n_parts,
                struct strbuf *out);

/* Prints a picture of one iteration in the steady state, as a standalone SVG of less than 2 MB. Each stream
 * has a row, and time runs from left to right. `cycle` should have at least three runs; with fewer, the
 * picture shows a cold start. */
void plan_svg(const struct plan *p, const struct sim_result *cycle, struct strbuf *out);

#endif
