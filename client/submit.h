/* Submitting a job to the daemon. */
#ifndef CLIENT_SUBMIT_H
#define CLIENT_SUBMIT_H

#include "client/client.h"

/* Submits a job and stores the daemon's answer in *ret. `key` identifies the submission; NULL chooses a
 * random key. `needs` is what the job needs, as job_file_check found it; NULL if the job was not checked.
 * When the connection breaks before the answer arrives, submit_job reconnects (and replaces *t)
 * and submits again with the same key, for up to 10 seconds. The daemon accepts a key only once, so the job
 * is not duplicated.
 *
 * *ret_since is the number of the newest event before the submission. A caller that follows
 * the job starts there. */
int submit_job(const struct client *c, struct tutti **t, const char *spec, const char *needs, const char *key,
               struct wire_msg *ret, uint64_t *ret_since, struct err *err);

#endif
