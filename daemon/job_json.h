/* Converts job records to JSON and back. The disk has two texts per job, body and status. Clients get a
 * short or a long form. */
#ifndef DAEMON_JOB_JSON_H
#define DAEMON_JOB_JSON_H

#include "base/err.h"
#include "base/strbuf.h"
#include "daemon/daemon.h"
#include "daemon/job_record.h"
#include "daemon/state.h"

/* Adds the job's body to `b`: the facts that never change after the submit, without the spec. */
void job_body_json(const struct job *j, struct strbuf *b);

/* Adds the job's status to `b`: all facts that can change. An ended job also has the worker's last
 * messages. */
void job_status_json(const struct job *j, struct strbuf *b);

/* Fills *ret from the texts in `disk`. The caller first sets loss, samples_per_s and eta_s, which the
 * texts may omit. Returns -EBADMSG if a text cannot be read. The caller always frees *ret with
 * job_destroy. */
int job_from_disk(const struct state_job *disk, struct job *ret, struct err *err);

/* Makes a job record from its texts in the state. The record is in no table. The caller frees it with
 * job_destroy. Any thread. */
int job_read(const struct state_job *disk, struct job **ret, struct err *err);

/* Adds the short form for clients to `b`, without the closing brace. The caller may add members. Any
 * thread may call it for an ended job that is not in the table. */
void job_short_json(const struct daemon *d, const struct job *j, struct strbuf *b);

/* Adds the long form for clients to `b`. `disk` is the job from the state, with its spec. `seq` is the
 * number of the newest event. Any thread may call it for an ended job that is not in the table.
 */
void job_long_json(const struct daemon *d, const struct job *j, const struct state_job *disk, uint64_t seq,
                   struct strbuf *b);

#endif
