/* The job file on its way to the daemon: read, with the command line's wishes written into it, and
 * checked. */
#ifndef CLIENT_JOB_FILE_H
#define CLIENT_JOB_FILE_H

#include "base/err.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "client/client.h"
#include "client/spawn.h"

/* Rows of the resource flags, for a table of options. */
#define JOB_FILE_OPT(name, value, help)                                                                      \
    {                                                                                                        \
        name, 0, value, help                                                                                 \
    }
#define JOB_FILE_OPTS                                                                                        \
    JOB_FILE_OPT("backend", "NAME", "auto, cpu, cuda"),                                                      \
        JOB_FILE_OPT("machine", "FILE", "a topology file in place of the machine that is here"),             \
        JOB_FILE_OPT("devices", "N", "number of devices"),                                                   \
        JOB_FILE_OPT("device-memory", "SIZE", "bytes of each device, e.g. 64MiB"),                           \
        JOB_FILE_OPT("host-memory", "SIZE", "host memory the job may use"),                                  \
        JOB_FILE_OPT("optimizer-on", "WHERE", "where updates are computed: auto, host, device"),             \
        JOB_FILE_OPT("output", "DIR", "instead of the spec's output"),                                       \
        JOB_FILE_OPT("policy", "NAME", "auto, resident, stream, harmony-pp, ...")

/* Reads a file ("-": standard input), // comments allowed, applies the flags, and gives strict JSON.
 * malloc'ed. */
int job_file_read(const char *path, const struct args *a, char **ret, struct err *err);

/* The flags as arguments of tutti-worker, as they were given. */
void job_file_pass_flags(const struct args *a, struct spawn_args *to);

/* Runs the worker's check of the spec as this user. `machine`: what `devices` answered; NULL: what the
 * flags and the spec say. --machine goes over both. 0, or an exit code; then the reason has been reported. */
int job_file_check(const struct client *c, const char *spec, const struct args *a,
                   const struct json *machine);

/* Arguments that make the check assume the server's machine (for tests). */
void job_file_machine_args(const struct json *spec, const struct json *machine, struct spawn_args *to);

#endif
