/* The host's compute stream: a CUDA stream of device 0. Its launches are host functions that run the cpu
 * backend's ops. So the host and the devices wait for each other through CUDA events alone, and no thread
 * sits in a synchronizing call.
 *
 * A host function gets one pointer, and the data behind it must not change until the function has run. So
 * each call is copied into a slot of a ring. The ring has two halves. An event is recorded after the last
 * call of a half, and the enqueueing thread waits for that event before it uses the first slot of the half
 * again. This wait is the full queue that device.h describes. (A counter and a condition variable would
 * not work when a device fails: CUDA then runs no more host functions, whereas waiting for an event
 * returns the error.)
 *
 * Threads: run_slot runs in a thread of the driver, where no CUDA call is allowed. Everything else runs in
 * the enqueueing thread.
 */
#include <errno.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/watch.h"

#define HALF (HOST_QUEUE / 2)

static void run_slot(void *arg)
{
    const struct host_slot *s = arg;

    watch_op(&s->call);
    cuda_host->run_op(&s->call, s->pool);
}

int host_queue_init(struct host_queue *q, uint32_t threads, struct cuda_fault *f, struct err *err)
{
    int r = cuda_host->pool_create(threads, &q->pool);

    if (r < 0)
        return err_set(err, r, "cannot start %u threads: %s", threads, strerror(-r));
    for (int h = 0; h < 2; h++) {
        r = CUDA_CHECK(
            f, cudaEventCreateWithFlags(&q->half_done[h], cudaEventDisableTiming | cudaEventBlockingSync));
        if (r < 0)
            return err_set(err, r, "cannot create the events of the host's stream");
    }
    return 0;
}

void host_queue_finish(struct host_queue *q)
{
    for (int h = 0; h < 2; h++)
        if (q->half_done[h])
            cuda_errno(cudaEventDestroy(q->half_done[h]));
    if (q->pool)
        cuda_host->pool_destroy(q->pool);
}

int host_queue_launch(struct host_queue *q, cudaStream_t stream, const struct op_call *call,
                      struct cuda_fault *f)
{
    const uint64_t at = q->pushed % HOST_QUEUE;
    struct host_slot *s = &q->slots[at];

    /* Before the first slot of a half is used again, wait until the last call in this half is done. In the
     * first round, the event has never been recorded, and the wait returns immediately. */
    if (at % HALF == 0)
        CUDA_TRY(f, cudaEventSynchronize(q->half_done[at / HALF]));
    s->call = *call;
    s->pool = q->pool;
    if (call->step) {
        s->step = *call->step;
        s->call.step = &s->step;
    }
    CUDA_TRY(f, cudaLaunchHostFunc(stream, run_slot, s));
    q->pushed++;
    if (at % HALF == HALF - 1)
        CUDA_TRY(f, cudaEventRecord(q->half_done[at / HALF], stream));
    return 0;
}
