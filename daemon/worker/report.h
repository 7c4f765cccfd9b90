/* Output of tutti-worker: errors, checks, progress, the final report; as text for people, as JSON for
 * programs. */
#ifndef WORKER_REPORT_H
#define WORKER_REPORT_H

#include "base/strbuf.h"
#include "daemon/worker/job.h"
#include "daemon/worker/train.h"
#include "daemon/worker/verbs.h"

/* Prints an error as text, or with --json as an object on stdout; returns the exit code for it. `early`:
 * before anything ran, so that the spec or its files are to blame. */
int report_error(const struct verb_options *o, int code, const struct err *err, uint64_t least_bytes,
                 bool early);

/* The same with a given exit code. */
int report_failure(const struct verb_options *o, int exit, int code, const struct err *err,
                   uint64_t least_bytes);
/* The exit code alone. */
int report_exit_code(int code, bool early);
/* "errno":...,"path":...,"message":... and, unless it is 0, "least_device_bytes": members of a JSON object. */
void report_error_members(int code, const struct err *err, uint64_t least_bytes, struct strbuf *b);

/* These print on stdout; EXIT_DONE, or EXIT_FAILED when that cannot be written. */
int report_check(const struct prepared_job *j, uint64_t least_bytes, bool json);

/* Progress on stderr: one line that renews itself on a terminal, a line now and then elsewhere. */
struct progress {
    uint64_t every_ns; /* between two lines about steps */
    uint64_t first_ns, first_step, shown_ns;
};
void progress_init(struct progress *p);
void progress_event(void *ctx, const struct train_progress *e); /* ctx: a struct progress */
void progress_end(void);                                        /* ends the line about steps */

void report_text(const struct prepared_job *j, const struct train_report *r, struct strbuf *b);
/* What a client shows while the job runs: parameters, resolved, plan, output. An object, no newline. */
void report_planned(const struct prepared_job *j, struct strbuf *b);
void report_json(const struct prepared_job *j, const struct train_report *r, struct strbuf *b);

/* ,"backend":"cpu","backend_reason":"...": members of a JSON object. */
void report_backend_members(const struct prepared_job *j, struct strbuf *b);

/* ,"profile":"analytic","profile_reason":"...": likewise. */
void report_profile_members(const struct prepared_job *j, struct strbuf *b);

int print_buffer(struct strbuf *b); /* frees it; returns as report_check */

#endif
