/* What the daemon was told: where its files are, what machine it hands out, how patient it is. Const after start. */
#ifndef DAEMON_CONFIG_H
#define DAEMON_CONFIG_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/quota.h"

struct config {
    char state_dir[PATH_MAX];     /* state.db, lock, logs/ */
    char socket[PATH_MAX];        /* tutti.sock */
    char worker_socket[PATH_MAX]; /* worker.sock, beside it */
    char worker_program[PATH_MAX];
    char backend[8];        /* "auto", "cpu", "cuda"; "": not said */
    char machine[PATH_MAX]; /* a topology file, which the worker program reads; "": none */
    bool devices_given;     /* n_devices is from the command line */
    /* What was not given is settled by inventory_make. */
    uint32_t n_devices; /* 0: auto, a job gets what it asks for */
    uint64_t device_bytes, host_bytes;
    int private_fd; /* -1: none; EOF on it ends the daemon and its jobs */
    uint64_t hang_timeout_ms, step_timeout_ms, stop_timeout_ms, restart_delay_ms;
    uint64_t max_connections, max_queued;
    bool accept_older; /* go on although acknowledged changes are gone from the state */
    /* Ended jobs are removed beyond any of these; 0: no such limit. */
    uint64_t keep_days, keep_jobs;
    uint64_t keep_bytes;       /* of the ended jobs of one user */
    struct quota_limits quota; /* of each user */
};

/* Defaults, then the command line. Returns 0; 1: --help or --version was printed; -EINVAL. */
int config_parse(int argc, char **argv, struct config *ret, struct err *err);

#endif
