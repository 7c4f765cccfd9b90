/* A stream of the cpu backend: a thread that runs the commands of a queue in order.
 *
 * Streams refer to each other by positions. Position p of a stream is reached when its first p commands
 * are done. The position only grows. An event is a (stream, position) pair. Recording an event therefore
 * costs nothing and needs no command. A wait stores the position when it is enqueued, so a later record of
 * the same event does not affect it.
 *
 * A wait can only name a position that is already enqueued. The commands in the queues therefore complete
 * without further help from the enqueueing thread. So there is no deadlock when that thread sleeps because
 * a queue is full.
 */
#ifndef KERNELS_CPU_STREAM_H
#define KERNELS_CPU_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/op.h"

#define STREAM_QUEUE 256 /* largest number of commands in a queue */

struct stream;

/* The kinds of commands. */
enum command_kind {
    COMMAND_COPY,
    COMMAND_DISCARD,
    COMMAND_LAUNCH,
    COMMAND_MARK,
    COMMAND_WAIT,
    COMMAND_COUNT
};

/* One command in a stream's queue. stream_push copies this struct, but not the memory that its pointers refer
 * to. The caller must keep that memory valid until the command has run. */
struct stream_command {
    enum command_kind kind;
    union {
        struct {
            void *dst;
            const void *src;
            uint64_t bytes;
            bool stays; /* the copy stays inside one device */
        } copy;
        struct {
            void *at;
            uint64_t bytes;
        } discard;
        struct op_call launch;
        uint64_t *mark; /* address for the time */
        struct {
            struct stream *on;
            uint64_t position;
        } wait;
    };
};

typedef void stream_run_fn(void *ctx, const struct stream_command *c);

/* Creates a stream with its own thread, which calls run(ctx, command) for one command after another.
 * Debuggers show the thread as `name`. Returns a negative errno if the thread cannot be started. */
int stream_create(const char *name, stream_run_fn *run, void *ctx, struct stream **ret);
/* Waits until the stream's queue is empty, then stops the thread and frees the stream. `s` may be NULL. */
void stream_destroy(struct stream *s);

/* Copies a command into the stream's queue. Sleeps while the queue is full. Only the enqueueing thread may
 * call this function. */
void stream_push(struct stream *s, const struct stream_command *c);
/* Returns the position that the stream reaches when all commands pushed so far are done. Only the enqueueing
 * thread may call this function. */
uint64_t stream_pushed(const struct stream *s);

/* Sleeps until the stream has reached `position`, which must be at most stream_pushed(s). The stream's own
 * thread must not call this function, because it would wait for itself forever. */
void stream_await(struct stream *s, uint64_t position);

#endif
