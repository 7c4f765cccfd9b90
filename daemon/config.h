/* The daemon's configuration: paths, devices, timeouts and limits. It comes from the command line and the
 * environment. It is constant after the start. */
#ifndef DAEMON_CONFIG_H
#define DAEMON_CONFIG_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/quota.h"

struct config {
    char state_dir[PATH_MAX];      /* directory with state.db, lock and logs/ */
    char socket[PATH_MAX];         /* path of tutti.sock */
    char worker_socket[PATH_MAX];  /* path of worker.sock, in the same directory */
    char worker_program[PATH_MAX]; /* path of tutti-worker */
    char backend[8];               /* "auto", "cpu", "cuda"; "": not given */
    /* Path of a topology file that the worker program reads. "" if there is no such file. */
    char machine[PATH_MAX];
    bool devices_given; /* n_devices is from the command line */
    /* inventory_make fills in the next three fields if they were not given. */
    /* Number of devices to hand out. 0 means that each job gets as many virtual devices as it wants. */
    uint32_t n_devices;
    /* Number of bytes on each virtual device, or on the largest real device. */
    uint64_t device_bytes;
    uint64_t host_bytes; /* bytes of host memory for jobs */
    /* The daemon and its jobs end when this descriptor reaches end of file. -1 for none. */
    int private_fd;
    uint64_t hang_timeout_ms, step_timeout_ms, stop_timeout_ms, restart_delay_ms;
    uint64_t max_connections, max_queued;
    /* Makes the daemon start even if acknowledged changes are missing from the state (--accept-older-state).
     */
    bool accept_older;
    /* Ended jobs are removed, oldest first, while any of the next three limits is exceeded. 0 means no limit.
     */
    uint64_t keep_days, keep_jobs;
    uint64_t keep_bytes;       /* bytes of one user's ended jobs */
    struct quota_limits quota; /* limits of each user */
};

/* Fills *ret from the defaults and the command line. Returns 1 after printing --help or --version. Returns
 * a negative errno if an option or a path cannot be used. */
int config_parse(int argc, char **argv, struct config *ret, struct err *err);

#endif
