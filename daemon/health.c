/* Implements health.h: counts the errors of a device and decides how the device may be used. */
#include "daemon/health.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/utf8.h"

const char *const health_state_names[HEALTH_STATE_COUNT] = {
    [HEALTH_OK] = "ok", [HEALTH_SUSPECT] = "suspect", [HEALTH_FAILED] = "failed"};

enum health_state health_state(const struct health *h)
{
    if (h->errors == 0)
        return HEALTH_OK;
    return h->errors < HEALTH_MOST_ERRORS ? HEALTH_SUSPECT : HEALTH_FAILED;
}

bool health_rests(const struct health *h, uint64_t now_ms)
{
    return now_ms < h->rest_until_ms;
}

void health_error(struct health *h, uint64_t job, const char *reason, uint64_t now_ms, uint64_t wall_ms,
                  uint64_t rest_ms)
{
    if (h->errors == 0)
        h->since_ms = wall_ms;
    h->errors++;
    h->job = job;
    utf8_scrub(h->reason, sizeof h->reason, reason[0] != '\0' ? reason : "it failed");
    h->rest_until_ms =
        now_ms + rest_ms * (h->errors < HEALTH_MOST_ERRORS ? 1u << (h->errors - 1) : HEALTH_RETRY_RESTS);
}

void health_success(struct health *h)
{
    *h = (struct health){0};
}

bool health_may_return(const struct health *h, uint64_t now_ms)
{
    return health_state(h) == HEALTH_FAILED && !health_rests(h, now_ms);
}

void health_return(struct health *h)
{
    h->errors = HEALTH_MOST_ERRORS - 1;
}

void health_add_json(const struct health *h, struct strbuf *b)
{
    strbuf_addf(b, ",\"state\":\"%s\",\"errors\":%" PRIu32, health_state_names[health_state(h)], h->errors);
    if (h->errors == 0) {
        strbuf_add(b, ",\"since_ms\":null,\"error_job\":null,\"reason\":\"\"");
        return;
    }
    strbuf_addf(b, ",\"since_ms\":%" PRIu64 ",\"error_job\":%" PRIu64 ",\"reason\":", h->since_ms, h->job);
    strbuf_add_json(b, h->reason);
}
