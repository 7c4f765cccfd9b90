/* The output of tutti-worker: errors, the result of a check, progress, and the final report of a run. Each
 * is printed as text for people or as JSON for programs. */
#ifndef WORKER_REPORT_H
#define WORKER_REPORT_H

#include "base/strbuf.h"
#include "daemon/worker/job.h"
#include "daemon/worker/train.h"
#include "daemon/worker/verbs.h"

/* Prints an error: as text on stderr, or with o->json as an object on stdout. Returns the exit code for
 * it. `early` says that nothing ran yet, so that the spec or its files are to blame. least_bytes is
 * printed for a job that does not fit; 0 leaves it out. */
int report_error(const struct verb_options *o, int code, const struct err *err, uint64_t least_bytes,
                 bool early);

/* Prints an error like report_error, but returns the given exit code. */
int report_failure(const struct verb_options *o, int exit, int code, const struct err *err,
                   uint64_t least_bytes);

/* Returns the exit code for an error. `early` has the same meaning as in report_error. */
int report_exit_code(int code, bool early);

/* Adds "errno":...,"path":...,"message":... to a JSON object, and "least_device_bytes" unless it is 0. */
void report_error_members(int code, const struct err *err, uint64_t least_bytes, struct strbuf *b);

/* Prints the result of --check on stdout. least_bytes is the least memory per device that would be enough;
 * 0: not known. Returns EXIT_DONE, or EXIT_FAILED when stdout cannot be written. */
int report_check(const struct prepared_job *j, uint64_t least_bytes, bool json);

/* Progress on stderr. On a terminal it is one line that is overwritten again and again; elsewhere a new
 * line now and then. */
struct progress {
    uint64_t every_ns;             /* least time between two lines about steps */
    uint64_t first_ns, first_step; /* time and number of the first reported step; 0: none yet */
    uint64_t shown_ns;             /* when the last line about steps was printed */
};
void progress_init(struct progress *p);
/* Prints one event of the training loop. `ctx` is a struct progress. */
void progress_event(void *ctx, const struct train_progress *e);
/* Ends the line about steps, so that other output begins a new line. */
void progress_end(void);

/* Adds the final report of a run as text. */
void report_text(const struct prepared_job *j, const struct train_report *r, struct strbuf *b);
/* Adds the final report of a run as a JSON object with a newline: the content of result.json. */
void report_json(const struct prepared_job *j, const struct train_report *r, struct strbuf *b);
/* Adds a JSON object, without a newline, that tells the daemon's clients about the plan: parameters,
 * resolved sizes, bytes, predicted time, and the output directory. */
void report_planned(const struct prepared_job *j, struct strbuf *b);

/* Adds ,"backend":"cpu","backend_reason":"..." to a JSON object. */
void report_backend_members(const struct prepared_job *j, struct strbuf *b);

/* Adds ,"profile":"analytic","profile_reason":"..." to a JSON object. */
void report_profile_members(const struct prepared_job *j, struct strbuf *b);

/* Writes b to stdout and frees it. Returns EXIT_DONE, or EXIT_FAILED with a message when stdout cannot be
 * written. */
int print_buffer(struct strbuf *b);

#endif
