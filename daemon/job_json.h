/* Turns job records into JSON and back: the two texts on disk (body and status), and the two forms for
 * clients. */
#ifndef DAEMON_JOB_JSON_H
#define DAEMON_JOB_JSON_H

#include "base/err.h"
#include "base/strbuf.h"
#include "daemon/daemon.h"
#include "daemon/job_record.h"
#include "daemon/state.h"

/* Adds the job's body to `b`: the facts that never change after the submit, without the spec. */
void job_body_json(const struct job *j, struct strbuf *b);

/* Adds the job's status to `b`: everything that changes. The status of an ended job also has the worker's
 * last messages. */
void job_status_json(const struct job *j, struct strbuf *b);

/* Fills *ret from the body and status of `disk`. The caller has set the numbers that the texts may leave out
 * (loss, samples_per_s, eta_s). Returns -EBADMSG when this version cannot read a text; *ret may then hold
 * some texts, which job_destroy frees. */
int job_from_disk(const struct state_job *disk, struct job *ret, struct err *err);

/* Makes a record of a job that is in the state, whether it is live or ended. The record is in no table; the
 * caller frees it with job_destroy. May be called on any thread. */
int job_read(const struct state_job *disk, struct job **ret, struct err *err);

/* Adds the short form for clients to `b`, without the closing brace, so that the caller can add members. For
 * a job that has ended and is not in the table, this may be called on any thread. */
void job_short_json(const struct daemon *d, const struct job *j, struct strbuf *b);

/* Adds the long form for clients to `b`. `disk` is the job as read from the state, with its spec. `seq` is
 * the number of the newest event. For a job that has ended and is not in the table, this may be called on any
 * thread. */
void job_long_json(const struct daemon *d, const struct job *j, const struct state_job *disk, uint64_t seq,
                   struct strbuf *b);

#endif
