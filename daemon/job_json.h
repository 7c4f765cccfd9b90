/* Converts job records to JSON and back. On disk, a job has two JSON texts: its body and its status. Clients
 * get a short form or a long form. */
#ifndef DAEMON_JOB_JSON_H
#define DAEMON_JOB_JSON_H

#include "base/err.h"
#include "base/strbuf.h"
#include "daemon/daemon.h"
#include "daemon/job_record.h"
#include "daemon/state.h"

/* Adds the job's body to `b`: the facts that never change after the submit. The spec is stored apart. */
void job_body_json(const struct job *j, struct strbuf *b);

/* Adds the job's status to `b`: all facts that can change. The status of an ended job also has the worker's
 * last messages. */
void job_status_json(const struct job *j, struct strbuf *b);

/* Fills *ret from the JSON texts in `disk`. The caller must first set loss, samples_per_s and eta_s of *ret,
 * which the texts may omit. Returns -EBADMSG if a text cannot be read. The caller always frees *ret with
 * job_destroy, even after an error. */
int job_from_disk(const struct state_job *disk, struct job *ret, struct err *err);

/* Makes a job record from its JSON texts in the state. The new record is in no table, and the caller frees it
 * with job_destroy. Any thread may call this function. */
int job_read(const struct state_job *disk, struct job **ret, struct err *err);

/* Adds the short form of a job for clients to `b`, without the closing brace, so that the caller may add
 * members. For an ended job that is not in the table, any thread may call this function. */
void job_short_json(const struct daemon *d, const struct job *j, struct strbuf *b);

/* Appends everything that `tutti show` prints about a job to `b`, as JSON. `disk` is the same job as read
 * from the database, with its spec. `seq` is the number of the job's newest event. Any thread may call this
 * for an ended job that is no longer in memory. */
void job_long_json(const struct daemon *d, const struct job *j, const struct state_job *disk, uint64_t seq,
                   struct strbuf *b);

#endif
