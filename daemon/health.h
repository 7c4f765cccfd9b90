/* Which devices can be trusted. Pure: what workers told of a device in, how it is used out. Loop thread only.
 *
 * The rule, for administrators too (docs/machine.md, "Devices that fail"). A worker's outcome names the devices that
 * broke under it. An error makes a device `suspect`: it rests for as long as a failed worker does (1 s, 2 s), and is
 * then given to a job only when the devices without a mark do not suffice. With the third error in a row it is
 * `failed` and is given to nobody; when a probe finds it in order, not before HEALTH_RETRY_RESTS rests have passed,
 * it is suspect again, one error away from failed. A job that is done clears all of its devices. Marks are forgotten
 * when the daemon ends.
 */
#ifndef DAEMON_HEALTH_H
#define DAEMON_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/strbuf.h"

/* That many errors in a row and a device is failed; it may be tried again after so many --restart-delay: 10 min. */
#define HEALTH_MOST_ERRORS 3
#define HEALTH_RETRY_RESTS 600

enum health_state { HEALTH_OK, HEALTH_SUSPECT, HEALTH_FAILED, HEALTH_STATE_COUNT };
extern const char *const health_state_names[HEALTH_STATE_COUNT];

struct health {
    uint32_t errors;        /* since a job was last done on it */
    uint64_t since_ms;      /* the first of them; wall clock */
    uint64_t rest_until_ms; /* loop clock */
    uint64_t job;           /* whose worker told of the last one */
    char reason[128];       /* of the last one */
};

enum health_state health_state(const struct health *h);
bool health_rests(const struct health *h, uint64_t now_ms);
/* `rest_ms`: of a first error. */
void health_error(struct health *h, uint64_t job, const char *reason, uint64_t now_ms, uint64_t wall_ms,
                  uint64_t rest_ms);
void health_success(struct health *h);
/* Of a failed device: whether its rest is over and a probe may bring it back; and that it has. */
bool health_may_return(const struct health *h, uint64_t now_ms);
void health_return(struct health *h);

/* ,"state":...,"errors":...,"since_ms":...,"error_job":...,"reason":... : members of a device. */
void health_add_json(const struct health *h, struct strbuf *b);

#endif
