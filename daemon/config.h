/* The daemon's configuration: paths, devices, timeouts and limits. The values come from the command line and
 * the environment. They do not change after the daemon has started. */
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
    /* Path of a topology file that describes the machine in place of a probe. "" if no such file was
     * given. */
    char machine[PATH_MAX];
    bool devices_given; /* n_devices is from the command line */
    /* inventory_make fills in n_devices, device_bytes and host_bytes if the command line does not set
     * them. */
    /* The number of devices that jobs can use. 0 means that every job gets as many virtual devices as it asks
     * for. */
    uint32_t n_devices;
    /* The number of bytes on each virtual device. If the devices are real, the number of bytes on the largest
     * device. */
    uint64_t device_bytes;
    uint64_t host_bytes; /* bytes of host memory for jobs */
    /* File descriptor whose other end `tutti run` holds open. At end of file, this private daemon and its
     * jobs end. -1 for a daemon that serves until it is stopped. */
    int private_fd;
    uint64_t hang_timeout_ms, step_timeout_ms, stop_timeout_ms, restart_delay_ms;
    uint64_t max_connections, max_queued;
    /* Set by the option --accept-older-state. The daemon then starts even if the database on disk has lost
     * changes that were acknowledged. */
    bool accept_older;
    /* keep_days, keep_jobs and keep_bytes limit how many records of ended jobs are kept. While a limit is
     * exceeded, the jobs that ended first are removed. A value of 0 means no limit. */
    uint64_t keep_days, keep_jobs;
    uint64_t keep_bytes;       /* bytes of one user's ended jobs */
    struct quota_limits quota; /* limits of each user */
};

/* Fills *ret from the command line, the environment and the defaults. If the option is --help or --version,
 * prints the text and returns 1. Returns a negative errno if an option or a path cannot be used. */
int config_parse(int argc, char **argv, struct config *ret, struct err *err);

#endif
