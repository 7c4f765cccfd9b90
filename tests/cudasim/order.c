/* Which of the operations that are ready runs next. Every choice is one that a GPU may take: an operation
 * is ready when it is the head of its stream and, if it is a wait, its mark is done.
 *
 *   random  any of them
 *   pct     the one whose stream has the highest priority; priorities are random and change now and then, so
 *           that one stream runs far ahead of the others (probabilistic concurrency testing)
 *   fifo    the one enqueued first: what a sequential program would do
 *   lifo    the one enqueued last
 *   timed   the one that can begin first by the virtual clock: what a GPU of those speeds would do */
#include "sim.h"

const char *const order_names[ORDER_COUNT] = {
    [ORDER_FIFO] = "fifo",     [ORDER_LIFO] = "lifo",   [ORDER_PCT] = "pct",
    [ORDER_RANDOM] = "random", [ORDER_TIMED] = "timed",
};

static bool ready(const struct op *op)
{
    return op && (op->kind != OP_WAIT || mark_done(op->mark));
}

static bool better(const struct op *a, const struct op *b)
{
    switch (sim.order) {
    case ORDER_FIFO:
        return a->number < b->number;
    case ORDER_LIFO:
        return a->number > b->number;
    case ORDER_PCT:
        return a->stream->priority > b->stream->priority;
    case ORDER_TIMED:
        return clock_ready_ns(a) < clock_ready_ns(b);
    case ORDER_RANDOM:
    case ORDER_COUNT:
        break;
    }
    return false;
}

struct op *order_pick(void)
{
    struct op *heads[SIM_STREAMS], *best = NULL;
    uint32_t n = 0;

    for (int i = 0; i < SIM_HOST; i++)
        if (ready(sim.streams[i].head))
            heads[n++] = sim.streams[i].head;
    if (n == 0)
        return NULL;
    if (sim.order == ORDER_RANDOM)
        return heads[sim_random() % n];
    for (uint32_t i = 0; i < n; i++) {
        if (sim.order == ORDER_PCT && sim_random() % 24 == 0)
            heads[i]->stream->priority = (int32_t)(sim_random() % 1000);
        if (!best || better(heads[i], best))
            best = heads[i];
    }
    return best;
}
