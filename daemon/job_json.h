/* Converts job records to JSON and back. On disk, a job consists of two JSON texts, its body and its status.
 * Clients get a job in a short form or in a long form. */
#ifndef DAEMON_JOB_JSON_H
#define DAEMON_JOB_JSON_H

#include "base/err.h"
#include "base/strbuf.h"
#include "daemon/daemon.h"
#include "daemon/job_record.h"
#include "daemon/state.h"

/* Adds the body of the job to `b`, that is, the facts that never change after the submit. The spec is stored
 * separately. */
void job_body_json(const struct job *j, struct strbuf *b);

/* Adds the status of the job to `b`, that is, all facts that can change. If the job has ended, the status
 * includes its worker's last messages. */
void job_status_json(const struct job *j, struct strbuf *b);

/* Fills *ret from the JSON texts in `disk`. The caller must first set the fields loss, samples_per_s and
 * eta_s, because the texts may lack them. Returns -EBADMSG if a text cannot be read. The caller must free
 * *ret with job_destroy, even after an error. */
int job_from_disk(const struct state_job *disk, struct job *ret, struct err *err);

/* Creates a job record from the job's JSON texts in the database. The record belongs to no table, and the
 * caller frees it with job_destroy. Any thread may call this function. */
int job_read(const struct state_job *disk, struct job **ret, struct err *err);

/* Adds the short form of a job to `b`, as clients see it. Leaves out the closing brace, so that the caller
 * can add members. If the job has ended and is not in the table of live jobs, any thread may call this
 * function. */
void job_short_json(const struct daemon *d, const struct job *j, struct strbuf *b);

/* Appends everything that `tutti show` prints about a job to `b`, as JSON. `disk` is the same job as stored
 * in the database, with its spec. `seq` is the number of the job's newest event. If the job has ended and is
 * no longer in memory, any thread may call this function. */
void job_long_json(const struct daemon *d, const struct job *j, const struct state_job *disk, uint64_t seq,
                   struct strbuf *b);

#endif
