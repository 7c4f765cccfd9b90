/* Reads a job file, applies the command's options to the job, and checks the job with tutti-worker. */
#ifndef CLIENT_JOB_FILE_H
#define CLIENT_JOB_FILE_H

#include "base/err.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "client/client.h"
#include "client/spawn.h"

/* JOB_FILE_OPTS is a list of rows for a command's table of options. The options in these rows override parts
 * of a job file. */
#define JOB_FILE_OPT(name, value, help)                                                                      \
    {                                                                                                        \
        name, 0, value, help                                                                                 \
    }
#define JOB_FILE_OPTS                                                                                        \
    JOB_FILE_OPT("backend", "NAME", "the kind of devices: auto, cpu, cuda"),                                 \
        JOB_FILE_OPT("machine", "FILE", "use the machine that a topology file describes"),                   \
        JOB_FILE_OPT("devices", "N", "number of devices"),                                                   \
        JOB_FILE_OPT("device-memory", "SIZE", "memory of each device, e.g. 64MiB"),                          \
        JOB_FILE_OPT("host-memory", "SIZE", "host memory that the job may use"),                             \
        JOB_FILE_OPT("optimizer-on", "WHERE", "where updates are computed: auto, host, device"),             \
        JOB_FILE_OPT("output", "DIR", "output directory, in place of the job file's"),                       \
        JOB_FILE_OPT("policy", "NAME", "planning policy (default: auto); tutti-job(5) lists them")

/* Reads the job file at `path`, or standard input if `path` is "-", and applies the options in `a`. The file
 * may contain // comments. The result *ret is strict JSON, which the caller frees. */
int job_file_read(const char *path, const struct args *a, char **ret, struct err *err);

/* Adds those options of JOB_FILE_OPTS that the user gave to `to`, the arguments for tutti-worker. */
void job_file_pass_flags(const struct args *a, struct spawn_args *to);

/* Checks the spec by running `tutti-worker --check` as this user. `offer` is the daemon's answer to
 * `devices`, or NULL if there is no daemon. The worker then checks whether the daemon could run the job. If
 * the user gave the option --machine, the job is checked for the machine in that file instead. Returns
 * CLIENT_DONE, and stores what the job needs (the member "needs" of the worker's answer) in *ret_needs as
 * JSON, which the caller frees. After a failure, reports the reason and returns another exit code. */
int job_file_check(const struct client *c, const char *spec, const struct args *a, const struct json *offer,
                   char **ret_needs);

#endif
