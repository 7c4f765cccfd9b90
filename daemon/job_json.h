/* How a job looks as JSON: on disk (body and status), and back. The forms for clients are declared in jobs.h. */
#ifndef DAEMON_JOB_JSON_H
#define DAEMON_JOB_JSON_H

#include "daemon/jobs.h"

void job_body_json(const struct job *j, struct strbuf *b); /* what never changes */
void job_status_json(const struct job *j,
                     struct strbuf *b); /* what changes; of an ended job also what its worker said */
int job_from_disk(const struct state_job *disk, struct job *ret, struct err *err);

#endif
