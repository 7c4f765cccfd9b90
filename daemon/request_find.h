/* Finds the job that a request names, in memory or in the state. If there is no such job, the request is
 * answered with an error. Loop thread only. */
#ifndef DAEMON_REQUEST_FIND_H
#define DAEMON_REQUEST_FIND_H

#include "daemon/job_record.h"
#include "daemon/request.h"

/* Finds a live or ended job and calls `then` with it, later if the job must be read from the state. The job
 * is valid only during that call. If there is no such job, the request is answered with an error and `then`
 * is never called. */
void request_find(struct request *rq, uint64_t id, void (*then)(struct request *rq, struct job *j));

/* Answers with the job in short form. */
void request_reply_job(struct request *rq, uint64_t id);

/* Answers that no job has this id. */
void request_no_job(struct request *rq, uint64_t id);

/* Answers that the job could not be read from the state. `status` is the negative errno of the failed
 * read. */
void request_unreadable(struct request *rq, int status);

#endif
