/* Converts job records to JSON and back. On disk a job has two texts, body and status. For clients there is a
 * short form and a long form. */
#ifndef DAEMON_JOB_JSON_H
#define DAEMON_JOB_JSON_H

#include "base/err.h"
#include "base/strbuf.h"
#include "daemon/daemon.h"
#include "daemon/job_record.h"
#include "daemon/state.h"

/* Adds the job's body to `b`. The body has the facts that never change after the submit. The spec is not part
 * of the body. */
void job_body_json(const struct job *j, struct strbuf *b);

/* Adds the job's status to `b`. The status has all facts that can change. For an ended job it also has the
 * worker's last messages. */
void job_status_json(const struct job *j, struct strbuf *b);

/* Fills *ret from the body and the status in `disk`. The caller must have set loss, samples_per_s and eta_s,
 * because the texts may leave them out. Returns -EBADMSG when this version cannot read a text. Even then the
 * caller must free *ret with job_destroy. */
int job_from_disk(const struct state_job *disk, struct job *ret, struct err *err);

/* Makes a record of a live or ended job from its texts in the state. The record is in no table, and the
 * caller frees it with job_destroy. May be called on any thread. */
int job_read(const struct state_job *disk, struct job **ret, struct err *err);

/* Adds the short form for clients to `b`. The closing brace is left out, so that the caller can add members.
 * May be called on any thread if the job has ended and is not in the table. */
void job_short_json(const struct daemon *d, const struct job *j, struct strbuf *b);

/* Adds the long form for clients to `b`. `disk` is the job as read from the state, with its spec. `seq` is
 * the number of the newest event. May be called on any thread if the job has ended and is not in the table.
 */
void job_long_json(const struct daemon *d, const struct job *j, const struct state_job *disk, uint64_t seq,
                   struct strbuf *b);

#endif
