/* The output of tutti-worker: errors, the results of checks, progress, and the final report. All of it can be
 * text for people or JSON for programs. */
#ifndef WORKER_REPORT_H
#define WORKER_REPORT_H

#include "base/strbuf.h"
#include "daemon/worker/job.h"
#include "daemon/worker/train.h"
#include "daemon/worker/verbs.h"

/* Prints an error on stderr, or as JSON on stdout if o->json is set. Returns the exit code. `early` is true
 * if the work has not begun, which means that the spec or its files caused the error. `least_bytes` is the
 * number of bytes of device memory that would be enough, or 0 if no such number is known. */
int report_error(const struct verb_options *o, int code, const struct err *err, uint64_t least_bytes,
                 bool early);

/* Prints an error in the same way as report_error, but returns `exit` as the exit code. */
int report_failure(const struct verb_options *o, int exit, int code, const struct err *err,
                   uint64_t least_bytes);

/* Returns the exit code of tutti-worker for the error `code`. `early` is true if the work has not begun, as
 * in report_error. */
int report_exit_code(int code, bool early);

/* Appends the members "errno":...,"path":...,"message":... to a JSON object. If least_bytes is not 0, also
 * appends "least_device_bytes". */
void report_error_members(int code, const struct err *err, uint64_t least_bytes, struct strbuf *b);

/* Prints the result of --check on stdout. `least_bytes` is the least memory per device with which the job can
 * run, or 0 if it is unknown. Returns EXIT_DONE, or EXIT_FAILED if stdout cannot be written. */
int report_check(const struct prepared_job *j, uint64_t least_bytes, bool json);

/* The state of the progress display on stderr. On a terminal, one line is overwritten again and again. A file
 * or pipe gets a new line every few seconds. */
struct progress {
    uint64_t every_ns; /* shortest time between lines about steps */
    /* Time and number of the first training step that was reported. Both are 0 if no step was reported
     * yet. */
    uint64_t first_ns, first_step;
    /* Time at which the last progress line was printed, in nanoseconds. */
    uint64_t shown_ns;
};
void progress_init(struct progress *p);
/* Prints the event `e` of the training loop. `ctx` points to a struct progress. */
void progress_event(void *ctx, const struct train_progress *e);
/* Ends the progress line on a terminal, so that other output starts on a new line. */
void progress_end(void);

/* Appends the final report of a run to `b`, as text for people. */
void report_text(const struct prepared_job *j, const struct train_report *r, struct strbuf *b);
/* Appends the final report of a run to `b`, as a JSON object with a newline. The file result.json has this
 * content. */
void report_json(const struct prepared_job *j, const struct train_report *r, struct strbuf *b);
/* Appends a JSON object that describes the plan, without a newline. The daemon passes it on to its
 * clients. */
void report_planned(const struct prepared_job *j, struct strbuf *b);

/* Appends ,"backend":"cpu","backend_reason":"..." to a JSON object. */
void report_backend_members(const struct prepared_job *j, struct strbuf *b);

/* If the job has several phases, appends ,"phase":0,"phases":[...] to a JSON object. "phase" is the number of
 * the largest phase, which the other members of the object describe. "phases" is a list with a summary of
 * each phase. `largest` is the plan of the largest phase. */
void report_phase_members(const struct prepared_job *j, const struct plan *largest, struct strbuf *b);

/* If the job has several phases, appends a line of text for each: its steps, the most memory that it needs of
 * any device, and the bytes that it moves in a step. Each line begins with a line break and with `indent`.
 * The other lines of such texts describe the largest phase. */
void report_phases(const struct prepared_job *j, const struct plan *largest, const char *indent,
                   struct strbuf *b);

/* Appends ,"needs":{...}, which is what the job needs of a machine (daemon/spec/needs.h), to a JSON
 * object. */
void report_needs_members(const struct job_needs *n, struct strbuf *b);

/* Appends the host memory that the job needs to a line of text: the maximum, and the memory at each of the
 * four times in struct needs_host. */
void report_host_needs(const struct job_needs *n, struct strbuf *b);

/* ---- what is special about a training method: report_method.c ---- */

/* Appends the method and the parts into which it cuts the model, such as "local chunked, 2 blocks of layers
 * 0-3, 4-7". report_cut_members appends JSON members. Neither appends anything for backpropagation. */
void report_cut(const struct prepared_job *j, struct strbuf *b);
void report_cut_members(const struct prepared_job *j, struct strbuf *b);

/* Appends the number of training steps in a cycle of the largest phase. If the planner chose the number, also
 * appends what kept it from choosing more. For local updates, also appends the bytes that a step moves, and
 * the bytes of outputs that wait for the next block. `plan` is the plan of the largest phase, or NULL if it
 * has none.
 *
 * report_cycle appends lines of text, and report_cycle_members appends JSON members. Neither appends anything
 * if the job has one step in a cycle because it never asked for more. */
void report_cycle(const struct prepared_job *j, const struct plan *plan, struct strbuf *b);
void report_cycle_members(const struct prepared_job *j, const struct plan *plan, struct strbuf *b);

/* Appends three numbers of floating-point operations for the whole training: all operations, the longest
 * sequence that must run one after another, and the operations of backpropagation for the steps of the
 * section `train`. report_work appends a line of text, or nothing for backpropagation. report_work_members
 * appends JSON members. */
void report_work(const struct prepared_job *j, struct strbuf *b);
void report_work_members(const struct prepared_job *j, struct strbuf *b);

/* Appends ,"profile":"analytic","profile_reason":"..." to a JSON object. */
void report_profile_members(const struct prepared_job *j, struct strbuf *b);

/* Writes `b` to stdout and frees `b`. Returns EXIT_DONE. If stdout cannot be written, prints a message and
 * returns EXIT_FAILED. */
int print_buffer(struct strbuf *b);

#endif
