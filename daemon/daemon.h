/* The daemon's one object, and who belongs to whom. Everything here lives on the loop thread; what blocks (SQLite,
 * reading logs) goes to libuv's pool and comes back by callback.
 *
 *     main.c      starts and ends it: options, locks, signals
 *     notify.c    tells the service manager
 *     inventory.c     what it hands out: devices that tutti-worker --probe (child.c) or a file tells of, or virtual ones
 *     reprobe.c      looks at the devices again, while it runs
 *     sockets.c   listens, also after somebody removed a socket      lock.c    one daemon a directory
 *     connection.c      a connection that speaks lines: limits, deadlines, back-pressure
 *     server.c    tutti.sock: greeting, requests, answers          verb_*.c  one method each
 *     fair_pool.c     large lines, parsed in the pool, users in turn   users.c   names of users, looked up in the pool
 *     quota.c     what one user may take: bytes of state, submits a second (pure)
 *     jobs.c      the table of jobs: what is known of each, and its changes of state; job_json.c: how a job looks as JSON
 *     state.c     what is durable: SQLite, group commit in the pool
 *     events.c    numbered events for watchers
 *     queue.c     who runs next on which devices (pure)
 *     devices.c   which devices are withheld and why               health.c  which can be trusted (pure)
 *     workers.c   who is started, what happens when a worker ends  launch.c  processes: start, adopt, signal, reap
 *     launch_pause.c  when workers can be started at all (pure)
 *     worker_msgs.c  worker.sock: what workers say and are told
 */
#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H

#include <uv.h>

#include "daemon/config.h"
#include "daemon/health.h"
#include "daemon/inventory.h"
#include "daemon/launch_pause.h"
#include "kernels/device.h"

struct backup_copy;
struct events;
struct jobs;
struct reprobe;
struct quota;
struct server;
struct sockets;
struct state;
struct users;
struct workers;

struct daemon {
    uv_loop_t *loop;
    struct config config;
    struct inventory inventory;
    struct state *state;
    struct jobs *jobs;
    struct events *events;
    struct sockets *sockets;
    struct server *server;
    struct workers *workers;
    struct backup_copy *backup; /* verb_backup.c; NULL: none was asked for yet */
    struct quota *quota;
    struct users *users;
    struct reprobe *reprobe;         /* under way; NULL: none */
    uint64_t probed_ms;              /* when the devices were last looked at; loop clock */
    uint32_t reprobe_failure;        /* checksum of why the last look failed; 0: it did not */
    uint64_t device_job[DEVICE_MAX]; /* the job that has it, 0: free */
    struct health health[DEVICE_MAX];
    struct launch_pause pause; /* workers cannot be started at the moment */
    bool stopping;             /* shutting down: nothing is admitted */
    int exit_code;
};

/* Ends the process: a failure that must not be retried (the state cannot be written). Workers live on. */
void daemon_die(struct daemon *d, const char *why);
/* Stops admitting, asks every job for a checkpoint, and ends when all workers are gone or the deadline has passed. */
void daemon_stop(struct daemon *d, const char *why);
/* The last worker is gone and everything is on disk: leaves the loop. */
void daemon_maybe_finished(struct daemon *d);

static inline uint64_t daemon_now_ms(const struct daemon *d)
{
    return uv_now(d->loop); /* monotonic */
}

#endif
