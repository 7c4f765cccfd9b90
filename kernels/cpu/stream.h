/* A stream of the cpu backend: a thread that runs the commands of a queue in order.
 *
 * Positions are how streams refer to each other. Position p of a stream is reached when its first p commands
 * are done; it only grows. An event is a (stream, position) pair, so recording one costs nothing and needs no
 * command, and a wait that has captured a position cannot be confused by a later record of the same event.
 *
 * A wait can only name a position that is already enqueued. So whatever is in the queues gets done without
 * further help from the enqueuing thread, which may therefore sleep while a queue is full: no deadlock.
 */
#ifndef KERNELS_CPU_STREAM_H
#define KERNELS_CPU_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/op.h"

#define STREAM_QUEUE 256 /* commands that are enqueued and not done, at most */

struct stream;

enum command_kind {
    COMMAND_COPY,
    COMMAND_DISCARD,
    COMMAND_LAUNCH,
    COMMAND_MARK,
    COMMAND_WAIT,
    COMMAND_COUNT
};

struct command {
    enum command_kind kind;
    union {
        struct {
            void *dst;
            const void *src;
            uint64_t bytes;
            bool stays; /* inside a device */
        } copy;
        struct {
            void *at;
            uint64_t bytes;
        } discard;
        struct op_call launch;
        uint64_t *mark; /* where the time goes */
        struct {
            struct stream *on;
            uint64_t position;
        } wait;
    };
};

typedef void stream_run_fn(void *ctx, const struct command *c);

/* The stream's thread calls run(ctx, command) for one command after another. `name` is for debuggers. Fails
 * with what pthread_create fails with. */
int stream_create(const char *name, stream_run_fn *run, void *ctx, struct stream **ret);
void stream_destroy(struct stream *s); /* lets the queue run empty first; takes NULL */

/* Enqueueing thread. Sleeps while the queue is full, then copies the command in. */
void stream_push(struct stream *s, const struct command *c);
/* Enqueueing thread. The position that is reached when all that was pushed so far is done. */
uint64_t stream_pushed(const struct stream *s);

/* Any thread but the stream's own. Sleeps until `position` (at most stream_pushed) is reached. */
void stream_await(struct stream *s, uint64_t position);

#endif
