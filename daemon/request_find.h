/* Finds the job that a request names, in memory or in the database. If the job does not exist, the request is
 * answered with an error. Loop thread only. */
#ifndef DAEMON_REQUEST_FIND_H
#define DAEMON_REQUEST_FIND_H

#include "daemon/job_record.h"
#include "daemon/request.h"

/* Finds a live or ended job and calls then(rq, job). If the job must be read from the database, the call
 * comes later. The job is valid only during the call. If there is no such job, the request is answered with
 * an error, and `then` is never called. */
void request_find(struct request *rq, uint64_t id, void (*then)(struct request *rq, struct job *j));

/* Answers with the job in short form. */
void request_reply_job(struct request *rq, uint64_t id);

/* Answers that no job has this id. */
void request_no_job(struct request *rq, uint64_t id);

/* Answers the request with the error that the job could not be read from the database. `status` is the
 * negative errno of the failed read. */
void request_unreadable(struct request *rq, int status);

#endif
