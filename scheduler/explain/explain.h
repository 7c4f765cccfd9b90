/* Shows a plan to people and to other programs: as text, as JSON, as a trace for Chrome, or as a picture. The
 * functions that print only append to a string buffer. plan_from_json reads a plan from JSON. */
#ifndef SCHEDULER_EXPLAIN_EXPLAIN_H
#define SCHEDULER_EXPLAIN_EXPLAIN_H

#include "base/err.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "scheduler/graph.h"
#include "scheduler/predict/simulate.h"
#include "scheduler/predict/time_bound.h"
#include "scheduler/predict/why.h"

/* Prints the whole plan as text, with one line for each instruction. Equal plans give the same text, so the
 * text can be compared with diff and kept as a golden file. A line looks like this:
 *
 *     12  d0.compute  FWD   l1 m0   W1@0..4096 X1.0@4096..8192 -> X2.0@8192..12288   wait d0.in#9
 */
void plan_dump(const struct plan *p, struct strbuf *out);

/* Prints the page that `tutti-worker --plan` shows. `times` names the source of the predicted times, or is
 * NULL if they come from formulas. The page has no times if `cycle` is NULL, and no bound on the time if
 * `bound` is NULL. */
void plan_summary(const struct plan *p, const struct graph *g, const struct sim_result *cycle,
                  const struct time_bound *bound, const char *times, struct strbuf *out);

/* Prints a description of a verified plan as one JSON object. Times are averages over all devices.
 * "activation_bytes" counts the activations moved to and from the host, and all bytes moved between devices.
 * `bound` is the bound on the time of a training step. `plan_s` is the time spent on planning, in seconds. */
void plan_summary_json(const struct plan *p, const struct sim_result *cycle, const struct time_bound *bound,
                       double plan_s, struct strbuf *out);

/* The predicted times, the bytes and the memory by which plans are compared. plan_summary_json prints them
 * too. */
struct plan_figures {
    /* How the devices divide the work: "single" (one device), "pp" (pipeline) or "dp" (data parallel). */
    const char *form;
    uint64_t iteration_ns; /* predicted time of an iteration */
    /* Time that a device computes in one iteration, averaged over all devices. */
    uint64_t compute_ns;
    uint64_t stall_ns;       /* the rest of the iteration */
    uint64_t moved_bytes;    /* state and stash, in and out */
    uint64_t bound_bytes;    /* lower bound for moved_bytes */
    uint64_t peak_bytes;     /* peak of the device that is fullest */
    uint64_t capacity_bytes; /* capacity of the same device */
};

/* Computes the times, bytes and memory of plan `p`. `cycle` is the simulation of the plan's cycle. */
void plan_figures(const struct plan *p, const struct sim_result *cycle, struct plan_figures *ret);

/* Explains why the plan is not faster: what limits its speed, and how the time of its critical path is spent.
 * Also prints the answers to what-if questions, if the report has them. */
void plan_why(const struct why_report *r, struct strbuf *out);

/* Prints a why_report as one JSON object. The times on the critical path are fractions of an iteration. The
 * answer to a what-if question is null if no plan was found for it. */
void plan_why_json(const struct why_report *r, struct strbuf *out);

/* Prints a plan as JSON text. plan_from_json turns the text back into an equal plan. */
void plan_to_json(const struct plan *p, struct strbuf *out);

/* Reads a plan from JSON text. Checks only that indices and counts are in range. The caller must check
 * everything else with plan_verify. Returns -EINVAL or -E2BIG if the text is not valid. The caller frees *ret
 * with plan_destroy. */
int plan_from_json(const char *text, size_t bytes, struct plan **ret, struct err *err);

/* One timeline of a program, as input of plan_trace. The simulator has predicted the timeline, or the
 * executor has measured it. */
struct trace_part {
    /* Either "plan" or "run". The viewer shows this word after the names of processes, as in "device 0
     * (plan)". */
    const char *name;
    /* Start and end time of each instruction in each run of the program. Instruction `i` of run `r` is at
     * index r * n_instrs + i. The trace begins at the earliest start, which becomes its time 0. */
    const struct plan_span *spans;
    uint32_t runs;
};

/* Prints a trace for the viewers of Chrome and Perfetto. Each timeline in `parts` gets one process for each
 * device and one for the host. Each instruction is one event in each run of the program. Drops are left out,
 * because they take no time. */
void plan_trace(const struct plan *p, enum program_kind k, const struct trace_part *parts, uint32_t n_parts,
                struct strbuf *out);

/* Prints a picture of one iteration as an SVG file of less than 2 MB. Each stream is a row, and time goes
 * from left to right. `cycle` should have at least three simulated runs. With fewer runs, the picture shows
 * how training starts, when the links are still idle. */
void plan_svg(const struct plan *p, const struct sim_result *cycle, struct strbuf *out);

#endif
