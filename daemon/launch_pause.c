/* Implements launch_pause.h: pauses all launches after a failure that is no job's fault. */
#include "daemon/launch_pause.h"

#include <inttypes.h>
#include <string.h>

#include "base/utf8.h"

/* The delay is doubled at most this many times. After 20 doublings, even a delay of 1 ms reaches the longest
 * allowed delay, so more doublings would change nothing. They could only make the shift overflow. */
#define MOST_DOUBLINGS 20

bool launch_paused(const struct launch_pause *p)
{
    return p->reason[0] != '\0';
}

bool launch_pause_allows(const struct launch_pause *p, uint64_t now_ms)
{
    return !launch_paused(p) || (p->trying == 0 && now_ms >= p->until_ms);
}

void launch_pause_started(struct launch_pause *p, uint64_t job)
{
    if (launch_paused(p))
        p->trying = job;
}

static uint64_t delay_after(uint32_t failures, uint64_t delay_ms)
{
    uint32_t doublings = failures - 1 < MOST_DOUBLINGS ? failures - 1 : MOST_DOUBLINGS;
    if (delay_ms >= LAUNCH_PAUSE_MOST_MS)
        return LAUNCH_PAUSE_MOST_MS;
    /* Use at least 1 ms, because the next try must not happen in the same turn of the loop. */
    delay_ms = (delay_ms > 0 ? delay_ms : 1) << doublings;
    return delay_ms < LAUNCH_PAUSE_MOST_MS ? delay_ms : LAUNCH_PAUSE_MOST_MS;
}

bool launch_pause_failed(struct launch_pause *p, uint64_t job, const char *reason, uint64_t now_ms,
                         uint64_t wall_ms, uint64_t delay_ms)
{
    char before[sizeof p->reason];
    if (launch_paused(p) && job != p->trying)
        return false;
    memcpy(before, p->reason, sizeof before);
    utf8_copy(p->reason, sizeof p->reason, reason);
    p->trying = 0;
    if (p->failures++ == 0)
        p->since_ms = wall_ms;
    p->until_ms = now_ms + delay_after(p->failures, delay_ms);
    return strcmp(before, p->reason) != 0;
}

bool launch_pause_worked(struct launch_pause *p, uint64_t job)
{
    if (!launch_paused(p) || job != p->trying)
        return false;
    *p = (struct launch_pause){0};
    return true;
}

void launch_pause_dropped(struct launch_pause *p, uint64_t job)
{
    if (p->trying == job)
        p->trying = 0;
}

void launch_pause_add_json(const struct launch_pause *p, struct strbuf *b)
{
    if (!launch_paused(p)) {
        strbuf_add(b, "null");
        return;
    }
    strbuf_add(b, "{\"reason\":");
    strbuf_add_json(b, p->reason);
    strbuf_addf(b, ",\"failures\":%" PRIu32 ",\"since_ms\":%" PRIu64 "}", p->failures, p->since_ms);
}
