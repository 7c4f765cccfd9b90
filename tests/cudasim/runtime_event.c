/* Events. An event points at its last mark, which is one record in one stream; a wait holds the mark, so a
 * later record of the same event does not change what was waited for, as in CUDA. A destroyed event is
 * never freed: its use is reported. */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "sim.h"

#define EVENT_ALIVE 0x45564e54u

/* ---- marks -------------------------------------------------------------- */

struct mark *mark_push(struct CUstream_st *s)
{
    struct op *op = stream_new_op(s, OP_RECORD, "");
    struct mark *m = calloc(1, sizeof *m);

    if (!m)
        abort();
    m->refs = 2;
    m->stream = s;
    op->mark = m;
    stream_push(op);
    return m;
}

void mark_wait_push(struct CUstream_st *s, struct mark *m)
{
    struct op *op = stream_new_op(s, OP_WAIT, "");

    m->refs++;
    op->mark = m;
    stream_push(op);
}

bool mark_done(const struct mark *m)
{
    return m->stream->done >= m->seq;
}

void mark_unref(struct mark *m)
{
    if (m && --m->refs == 0)
        free(m);
}

/* ---- the calls ---------------------------------------------------------- */

static bool alive(cudaEvent_t e)
{
    if (e && e->magic == EVENT_ALIVE)
        return true;
    report_problem(PROBLEM_BAD_CALL, "%p is no event (any more)", (void *)e);
    return false;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
    cudaError_t e;

    sim_enter();
    *ret = NULL;
    e = fault_call(FAULT_EVENT, sim_device(), NULL);
    if (e != cudaSuccess)
        return sim_leave(e);
    *ret = calloc(1, sizeof **ret);
    if (!*ret)
        abort();
    (*ret)->magic = EVENT_ALIVE;
    (*ret)->device = sim_device();
    (*ret)->timing = !(flags & cudaEventDisableTiming);
    sim.n_events++;
    return sim_leave(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *ret)
{
    return cudaEventCreateWithFlags(ret, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    sim_enter();
    if (!alive(event))
        return sim_leave(cudaErrorInvalidResourceHandle);
    event->magic = 0;
    mark_unref(event->last);
    event->last = NULL;
    sim.n_events--;
    return sim_leave(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    struct CUstream_st *s;
    struct mark *old;
    cudaError_t e;

    sim_enter();
    s = stream_of(stream);
    if (!s || !alive(event))
        return sim_leave(cudaErrorInvalidResourceHandle);
    if (s->device != event->device) {
        report_problem(PROBLEM_BAD_CALL, "an event of device %d is recorded in a stream of device %d",
                       event->device, s->device);
        return sim_leave(cudaErrorInvalidResourceHandle);
    }
    e = fault_call(FAULT_RECORD, s->device, NULL);
    if (e != cudaSuccess)
        return sim_leave(e);
    old = event->last;
    event->last = mark_push(s);
    mark_unref(old);
    return sim_leave(cudaSuccess);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    (void)flags;
    return cudaEventRecord(event, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    struct CUstream_st *s;
    cudaError_t e;

    (void)flags;
    sim_enter();
    s = stream_of(stream);
    if (!s || !alive(event))
        return sim_leave(cudaErrorInvalidResourceHandle);
    e = fault_call(FAULT_WAIT, s->device, NULL);
    if (e == cudaSuccess && event->last)
        mark_wait_push(s, event->last);
    return sim_leave(e);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t e;

    sim_enter();
    if (!alive(event))
        return sim_leave(cudaErrorInvalidResourceHandle);
    e = fault_call(FAULT_SYNC, event->device, NULL);
    if (e == cudaSuccess && event->last)
        e = sim_await_mark(event->last);
    return sim_leave(e);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t e;

    sim_enter();
    if (!alive(event))
        return sim_leave(cudaErrorInvalidResourceHandle);
    sim_peek();
    e = sim_device_error(event->device);
    if (e != cudaSuccess || !event->last)
        return sim_leave(e);
    if (!mark_done(event->last)) {
        sim_leave(cudaSuccess); /* an answer, not an error to remember */
        return cudaErrorNotReady;
    }
    sim_learn(&event->last->after, event->last->at_ns);
    return sim_leave(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t begin, cudaEvent_t end)
{
    sim_enter();
    if (!alive(begin) || !alive(end) || !begin->timing || !end->timing || !begin->last || !end->last)
        return sim_leave(cudaErrorInvalidResourceHandle);
    if (!mark_done(begin->last) || !mark_done(end->last))
        return sim_leave(cudaErrorNotReady);
    *ret_ms = (float)(((double)end->last->at_ns - (double)begin->last->at_ns) / 1e6);
    return sim_leave(sim_device_error(begin->device));
}
