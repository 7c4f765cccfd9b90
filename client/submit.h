/* Handing a job to the daemon. */
#ifndef CLIENT_SUBMIT_H
#define CLIENT_SUBMIT_H

#include "client/client.h"

/* Submits with a key (NULL: a random one); when the connection breaks before the answer, again with the
 * same key, for some seconds. *t is replaced then. ret_since: the newest event before the submission, for
 * following it. */
int submit_job(const struct client *c, struct tutti **t, const char *spec, const char *key,
               struct wire_msg *ret, uint64_t *ret_since, struct err *err);

#endif
