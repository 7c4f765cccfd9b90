/* The method "watch": sends the client all events after a given event number, or only new events. */
#include <errno.h>
#include <inttypes.h>

#include "base/get.h"
#include "daemon/events.h"
#include "daemon/jobs.h"
#include "daemon/request_find.h"
#include "daemon/server_verbs.h"

static void watch_from(struct request *rq, uint64_t id)
{
    request_watch(rq, id, get_count_or(rq->params, "since", events_newest(rq->daemon->events)) + 1);
}

static void watch_job(struct request *rq, struct job *j)
{
    watch_from(rq, j->id);
}

void verb_watch(struct request *rq)
{
    struct json_obj o;
    struct err err = {0};
    uint64_t newest = events_newest(rq->daemon->events), since = newest, id = 0;
    json_obj_begin(&o, rq->params, "", &err);
    bool one = json_take_u64(&o, "id", JSON_OPTIONAL, &id);
    if (json_take_u64(&o, "since", JSON_OPTIONAL, &since) && since > newest)
        json_fail(&o, "since", -EINVAL, "is beyond the newest event, which is %" PRIu64, newest);
    if (json_obj_end(&o) < 0)
        request_refuse(rq, &err);
    else if (one)
        request_find(rq, id, watch_job);
    else
        watch_from(rq, 0);
}
