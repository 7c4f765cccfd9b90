/* The daemon's one object, and a map of its parts. Everything here belongs to the loop thread. Work that
 * blocks (SQLite, reading logs) goes to libuv's pool and comes back by callback.
 *
 * A part calls only parts below it in this list; callbacks lead upwards.
 *
 *     main.c            starts and ends the daemon: options, locks, signals
 *     server.c          accepts clients on tutti.sock
 *     verb_*.c          one method of tutti.sock each
 *     request.c         parses lines, finds methods, answers      request_find.c  finds the job of a request
 *     server_client.c   one client: sending, requests under way, watching
 *     workers.c         decides which jobs start, and when workers are stopped or killed
 *     worker_msgs.c     messages of workers on worker.sock
 *     attempt.c         what becomes of a job when its worker ends
 *     devices.c         how the queue sees the devices, and when they are probed again
 *     reprobe.c         runs tutti-worker --probe while the daemon serves
 *     queue.c           which job runs next on which devices (pure)
 *     jobs.c            the table of live jobs
 *     job_json.c        jobs as JSON
 *     events.c          numbered events for watchers
 *     launch.c          worker processes
 *     job_record.c      what is known about one job
 *     state*.c          the state on disk: SQLite, group commit in the pool; wal.c reads SQLite's log
 *     inventory.c       the devices to hand out; child.c runs the probe at the start
 *     sockets.c         listens, and listens again when a socket's file is removed
 *     connection.c      a connection that speaks lines: limits, deadlines, back-pressure
 *     fair_pool.c       long work in libuv's pool, users in turn
 *     users.c           names of users, looked up in the pool
 *     quota.c           limits of one user: bytes of state, submits a second (pure)
 *     health.c          which devices can be trusted (pure)
 *     launch_pause.c    whether workers can be started at all (pure)
 *     daemon.c          ends the process when the state cannot be written
 *     config.c, lock.c, notify.c   options; lock files; messages to the service manager
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
struct quota;
struct reprobe;
struct server;
struct sockets;
struct state;
struct users;
struct workers;

/* The daemon itself. There is only one struct daemon, and it lives as long as the process. Only the loop
 * thread uses the struct, but any thread may read `config`. */
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
    struct backup_copy *backup; /* NULL before the first backup (verb_backup.c) */
    struct quota *quota;
    struct users *users;
    struct reprobe *reprobe; /* the probe that is running; NULL: none */
    /* Time of the last probe of the devices, on the loop's clock in milliseconds. */
    uint64_t probed_ms;
    /* A checksum of the error message of the last probe, or 0 if that probe succeeded. With this checksum, an
     * error that repeats is logged only once. */
    uint32_t reprobe_failure;
    /* For each device, the id of the job that uses it, or 0 if the device is free. */
    uint64_t device_job[DEVICE_MAX];
    struct health health[DEVICE_MAX]; /* of each device in the inventory */
    /* Tells whether the daemon can start workers at the moment, and why not. */
    struct launch_pause pause;
    /* Set when the daemon is shutting down. From then on, no job can be submitted and no job starts. */
    bool stopping;
    /* Set when the signal SIGUSR2 shuts the daemon down. In this case the workers keep running, and the next
     * daemon takes them over. */
    bool keep_workers;
};

/* Ends the daemon's process at once. The workers keep running. Called when the database cannot be written,
 * because a failed write to disk must not be tried again. */
void daemon_die(struct daemon *d, const char *why);

/* Returns the time in milliseconds on the loop's monotonic clock. This clock stands still during one turn of
 * the loop. */
static inline uint64_t daemon_now_ms(const struct daemon *d)
{
    return uv_now(d->loop);
}

#endif
