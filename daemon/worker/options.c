/* The options that several verbs of tutti-worker share, and reading the value of any option.
 *
 * where_table has the options about where a job runs. None of them changes the results of a job. A verb that
 * takes only some of them lists their names in its `where`. common_table has the options that every verb
 * takes.
 *
 * All values are checked here, before a verb runs, so that a mistake on the command line has no side
 * effects.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "daemon/worker/verbs.h"

/* ---- the tables ---- */

/* Reads the name of a policy for verbs that plan with exactly one policy, so "all" is refused. --plan and
 * --plan-profile have their own option --policy, which accepts "all". */
static int parse_policy(const char *text, struct verb_options *o, struct err *err)
{
    static const struct worker_option policy = {"policy", "NAME", .kind = OPTION_NAME,
                                                .at = OPTION_AT(job.policy), .names = policy_names};
    if (strcmp(text, "all") == 0)
        return err_set_at(err, -EINVAL, "--policy",
                          "all compares the policies, which only --plan and --plan-profile do; name one "
                          "policy");
    return options_store(&policy, text, o, err);
}

static const struct worker_option where_rows[] = {
    {"backend", "NAME", " (default: $TUTTI_BACKEND, else auto: cuda if it works here)", OPTION_NAME,
     OPTION_AT(job.backend), .names = backend_choice_names},
    {"machine", "FILE",
     "use the machine of this topology file, or of this JSON text, e.g. to plan for another", OPTION_TEXT,
     OPTION_AT(job.machine)},
    {"devices", "N", "number of devices; cpu devices are virtual, so any number is possible", OPTION_U32,
     OPTION_AT(job.devices), 1, DEVICE_MAX},
    {"device-memory", "SIZE", "bytes of each device, e.g. 64MiB", OPTION_SIZE, OPTION_AT(job.device_bytes)},
    {"host-memory", "SIZE", "host memory that the job may use", OPTION_SIZE, OPTION_AT(job.host_bytes)},
    {"planning-memory", "SIZE",
     "memory that planning may use (default: the host memory that the data set leaves)", OPTION_SIZE,
     OPTION_AT(job.planning_bytes)},
    {"policy", "NAME", "; with --plan and --plan-profile also `all`, which compares them", OPTION_PARSED,
     .names = policy_names, .parse = parse_policy},
    {"objective", "WHAT", ": what the plan minimizes (default: memory.objective, else balanced)", OPTION_NAME,
     OPTION_AT(job.objective), .names = plan_objective_names},
    {"profile", "FILE|none",
     "take the times of layers from a profile; none: compute them (default: $TUTTI_PROFILE, else the times "
     "that --time measured)",
     OPTION_TEXT, OPTION_AT(job.profile)},
    {"optimizer-on", "WHERE", ": where updates are computed", OPTION_NAME, OPTION_AT(job.update),
     .names = update_place_names},
    {"update", "WHERE", " (the same as --optimizer-on)", OPTION_NAME, OPTION_AT(job.update),
     .names = update_place_names},
    {"threads", "N", "threads that share one operation (default: one per core)", OPTION_U32,
     OPTION_AT(job.threads), 1, 1024},
    {"link", "SIZE", "limit host copies to SIZE bytes per second, for each device and direction", OPTION_SIZE,
     OPTION_AT(job.link_bytes_per_s)},
    {"peer", "SIZE", "limit copies between devices to SIZE bytes per second", OPTION_SIZE,
     OPTION_AT(job.peer_bytes_per_s)},
    {"delay-seed", "N", "delay every stream by random times, for tests", OPTION_U64,
     OPTION_AT(job.delay_seed), 0, UINT64_MAX},
    {"output", "DIR", "output directory, in place of the one in the spec", OPTION_TEXT,
     OPTION_AT(job.output)},
    {"dir", "DIR", "relative paths of the spec start here (default: the current directory)", OPTION_TEXT,
     OPTION_AT(job.dir)},
    {0},
};

const struct option_table where_table = {
    "where to run (replaces the spec's resources and memory; no option here changes the results)",
    where_rows};

const char *const where_all[1] = {NULL};

static const struct worker_option common_rows[] = {
    {"json", NULL, "print the result and errors as JSON on standard output", OPTION_FLAG, OPTION_AT(json)},
    {"quiet", NULL, "no progress", OPTION_FLAG, OPTION_AT(quiet)},
    {0},
};

const struct option_table common_table = {"what to print", common_rows};

/* ---- reading values ---- */

static int read_number(const struct worker_option *option, const char *text, const char *path, uint64_t *ret,
                       struct err *err)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno != 0 || text[0] < '0' || text[0] > '9' || *end != '\0' || v < option->least || v > option->most)
        return err_set_at(err, -EINVAL, path, "expected a whole number from %llu to %llu, found \"%s\"",
                          (unsigned long long)option->least, (unsigned long long)option->most, text);
    *ret = v;
    return 0;
}

static int read_size(const char *text, const char *path, uint64_t *ret, struct err *err)
{
    int r = json_parse_bytes(text, path, ret, err);
    if (r == 0 && *ret == 0)
        r = err_set_at(err, -EINVAL, path, "must be more than 0; leave it out for the default");
    return r;
}

static int refuse_name(const char *text, const char *path, const char *const *names, int n, struct err *err)
{
    struct strbuf b = {0};
    const char *near = json_did_you_mean(text, names, n);
    for (int i = 0; i < n; i++)
        strbuf_addf(&b, "%s%s", i > 0 ? ", " : "", names[i]);
    err_set_at(err, -EINVAL, path, "unknown name \"%s\"%s%s%s; there are: %s", text,
               near != NULL ? " (did you mean \"" : "", near != NULL ? near : "", near != NULL ? "\"?)" : "",
               b.at);
    strbuf_finish(&b);
    return -EINVAL;
}

static int read_name(const char *text, const char *path, const char *const *names, int *ret, struct err *err)
{
    int n = 0;
    for (; names[n] != NULL; n++) {
        if (strcmp(names[n], text) != 0)
            continue;
        *ret = n;
        return 0;
    }
    return refuse_name(text, path, names, n, err);
}

int options_store(const struct worker_option *option, const char *text, struct verb_options *o,
                  struct err *err)
{
    char path[32];
    void *at = (char *)o + option->at;
    uint64_t v = 0;
    int name = 0, r = 0;
    snprintf(path, sizeof path, "--%s", option->name);
    switch (option->kind) {
    case OPTION_FLAG:
        *(bool *)at = true;
        break;
    case OPTION_TEXT:
        *(const char **)at = text;
        break;
    case OPTION_U32:
        r = read_number(option, text, path, &v, err);
        if (r == 0)
            *(uint32_t *)at = (uint32_t)v;
        break;
    case OPTION_U64:
        r = read_number(option, text, path, &v, err);
        if (r == 0)
            *(uint64_t *)at = v;
        break;
    case OPTION_SIZE:
        r = read_size(text, path, &v, err);
        if (r == 0)
            *(uint64_t *)at = v;
        break;
    case OPTION_NAME:
        r = read_name(text, path, option->names, &name, err);
        if (r == 0)
            *(int *)at = name;
        break;
    case OPTION_PARSED:
        r = option->parse(text, o, err);
        break;
    }
    return r;
}
