/* Finds the job that a request names, in the table of live jobs or in the state, and answers when it cannot
 * be found. Loop thread only. */
#ifndef DAEMON_REQUEST_FIND_H
#define DAEMON_REQUEST_FIND_H

#include "daemon/job_record.h"
#include "daemon/request.h"

/* Finds a job, live or ended, and calls `then` with it: at once for a live job, later for a job that has to
 * be read from the state. The job is valid during that call. When no job has this id, the request is answered
 * with an error, and `then` is not called. */
void request_find(struct request *rq, uint64_t id, void (*then)(struct request *rq, struct job *j));

/* Answers with the job in short form. */
void request_reply_job(struct request *rq, uint64_t id);

/* Answers that no job has this id. */
void request_no_job(struct request *rq, uint64_t id);

/* Answers that the job could not be read from the state. `status` is the errno of the read. */
void request_unreadable(struct request *rq, int status);

#endif
