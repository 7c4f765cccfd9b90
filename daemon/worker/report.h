/* The output of tutti-worker: errors, checks, progress, and the final report. Everything can be text for
 * people or JSON for programs. */
#ifndef WORKER_REPORT_H
#define WORKER_REPORT_H

#include "base/strbuf.h"
#include "daemon/worker/job.h"
#include "daemon/worker/train.h"
#include "daemon/worker/verbs.h"

/* Prints an error on stderr, or as JSON on stdout if o->json is set. Returns the exit code. `early` is
 * true if nothing has run yet, so that the spec or its files are the cause. `least_bytes` is 0 or the
 * memory that would be enough. */
int report_error(const struct verb_options *o, int code, const struct err *err, uint64_t least_bytes,
                 bool early);

/* Prints an error like report_error, but returns the exit code `exit`. */
int report_failure(const struct verb_options *o, int exit, int code, const struct err *err,
                   uint64_t least_bytes);

/* Returns the exit code for an error. `early` has the same meaning as in report_error. */
int report_exit_code(int code, bool early);

/* Appends "errno":...,"path":...,"message":... to a JSON object. Also appends "least_device_bytes" if
 * least_bytes is not 0. */
void report_error_members(int code, const struct err *err, uint64_t least_bytes, struct strbuf *b);

/* Prints the result of --check on stdout. `least_bytes` is the least memory per device, or 0 if unknown.
 * Returns EXIT_DONE, or EXIT_FAILED if stdout cannot be written. */
int report_check(const struct prepared_job *j, uint64_t least_bytes, bool json);

/* Progress on stderr. A terminal gets one line that is overwritten. A file or pipe gets a line every few
 * seconds. */
struct progress {
    uint64_t every_ns; /* shortest time between lines about steps */
    /* Time and number of the first reported step. 0 if no step was reported yet. */
    uint64_t first_ns, first_step;
    /* Time at which the last line about steps was printed. */
    uint64_t shown_ns;
};
void progress_init(struct progress *p);
/* Prints one event of the training loop. `ctx` points to a struct progress. */
void progress_event(void *ctx, const struct train_progress *e);
/* Ends the line about steps, so that other output starts on a new line. */
void progress_end(void);

/* Appends the final report of a run as text. */
void report_text(const struct prepared_job *j, const struct train_report *r, struct strbuf *b);
/* Appends the final report of a run as a JSON object with a newline. This is the content of result.json. */
void report_json(const struct prepared_job *j, const struct train_report *r, struct strbuf *b);
/* Appends a JSON object that describes the plan for the daemon's clients, without a newline. */
void report_planned(const struct prepared_job *j, struct strbuf *b);

/* Appends ,"backend":"cpu","backend_reason":"..." to a JSON object. */
void report_backend_members(const struct prepared_job *j, struct strbuf *b);

/* Appends ,"profile":"analytic","profile_reason":"..." to a JSON object. */
void report_profile_members(const struct prepared_job *j, struct strbuf *b);

/* Writes `b` to stdout and frees it. Returns EXIT_DONE, or EXIT_FAILED with a message. */
int print_buffer(struct strbuf *b);

#endif
