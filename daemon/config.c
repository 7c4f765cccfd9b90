/* Parses the command line of tuttid, and finds the default paths. */
#include "daemon/config.h"

#include <errno.h>
#include <getopt.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/json.h"
#include "base/print.h"
#include "kernels/device.h"

#define DEFAULT_CONNECTIONS 1000 /* clients at once */
#define SPARE_DESCRIPTORS   64ul /* file descriptors that are not for clients */

static const char usage[] =
    "usage: tuttid --user [options]   serve training jobs for one user, without privileges\n"
    "\n"
    "  --socket PATH          where clients connect (default: $TUTTI_SOCKET, "
    "$XDG_RUNTIME_DIR/tutti/tutti.sock,\n"
    "                         or run/tutti.sock in the state directory); worker.sock lies beside it\n"
    "  --state DIR            durable state and logs (default: $XDG_STATE_HOME/tutti or "
    "~/.local/state/tutti)\n"
    "  --backend NAME         auto, cpu, cuda (default: $TUTTI_BACKEND or auto: cuda where it can be used; "
    "cpu\n"
    "                         when --devices or --device-memory is given)\n"
    "  --machine FILE         a topology file: the machine to hand out, in place of what is found\n"
    "  --devices N|auto       cpu: virtual devices to hand out (default 2); auto: a job gets what it asks "
    "for.\n"
    "                         Otherwise the first N, or all\n"
    "  --device-memory SIZE   cpu: memory of each (default: half of the machine's, shared out). Otherwise no "
    "more\n"
    "                         than that of each\n"
    "  --host-memory SIZE     host memory for jobs (default: half of the machine's)\n"
    "  --worker PATH          the worker program (default: $TUTTI_WORKER, or tutti-worker beside this "
    "program)\n"
    "  --hang-timeout SEC     kill a worker that says nothing for so long (default 60)\n"
    "  --step-timeout SEC     kill a worker that speaks but makes no step for so long (default 3600)\n"
    "  --stop-timeout SEC     at SIGTERM, time for checkpoints (default 90)\n"
    "  --restart-delay MS     before a failed worker's first restart; doubles (default 1000)\n"
    "  --max-queued N         jobs that may wait (default 10000)\n"
    "  --keep-days N          forget jobs that ended longer ago (default 90; 0: never)\n"
    "  --keep-jobs N          forget the oldest ended jobs beyond so many (default 100000; 0: no limit)\n"
    "  --keep-bytes SIZE      forget the oldest ended jobs of a user beyond that much state (default 1GiB; "
    "0: no "
    "limit)\n"
    "  --accept-older-state   start although acknowledged changes are gone from the state (see tuttid(8))\n"
    "  --user-state-bytes SIZE  state that the unfinished jobs of one user may take: specs above all\n"
    "                         (default 256MiB; 0: no limit)\n"
    "  --user-submit-rate N   submits a second of one user, in the long run (default 2000; 0: no limit)\n"
    "  --user-submit-burst N  submits of one user at once, before the rate counts (default 10000)\n"
    "  --private FD           end, with all jobs, at end of file on this descriptor (tutti run)\n"
    "  --help, --version\n"
    "\n"
    "SIGTERM or SIGINT: every job writes a checkpoint and goes back to the queue; a second one ends at "
    "once.\n"
    "SIGUSR2: end and leave the workers running; the next tuttid adopts them (for upgrades).\n";

enum daemon_option {
    OPT_ACCEPT_OLDER_STATE = 256,
    OPT_BACKEND,
    OPT_DEVICES,
    OPT_DEVICE_MEMORY,
    OPT_HANG_TIMEOUT,
    OPT_HELP,
    OPT_HOST_MEMORY,
    OPT_KEEP_BYTES,
    OPT_KEEP_DAYS,
    OPT_KEEP_JOBS,
    OPT_MACHINE,
    OPT_MAX_QUEUED,
    OPT_PRIVATE,
    OPT_RESTART_DELAY,
    OPT_SOCKET,
    OPT_STATE,
    OPT_STEP_TIMEOUT,
    OPT_STOP_TIMEOUT,
    OPT_USER,
    OPT_USER_STATE_BYTES,
    OPT_USER_SUBMIT_BURST,
    OPT_USER_SUBMIT_RATE,
    OPT_VERSION,
    OPT_WORKER,
};

static const struct option options[] = {
    {"accept-older-state", no_argument, NULL, OPT_ACCEPT_OLDER_STATE},
    {"backend", required_argument, NULL, OPT_BACKEND},
    {"device-memory", required_argument, NULL, OPT_DEVICE_MEMORY},
    {"devices", required_argument, NULL, OPT_DEVICES},
    {"hang-timeout", required_argument, NULL, OPT_HANG_TIMEOUT},
    {"help", no_argument, NULL, OPT_HELP},
    {"host-memory", required_argument, NULL, OPT_HOST_MEMORY},
    {"keep-bytes", required_argument, NULL, OPT_KEEP_BYTES},
    {"keep-days", required_argument, NULL, OPT_KEEP_DAYS},
    {"keep-jobs", required_argument, NULL, OPT_KEEP_JOBS},
    {"machine", required_argument, NULL, OPT_MACHINE},
    {"max-queued", required_argument, NULL, OPT_MAX_QUEUED},
    {"private", required_argument, NULL, OPT_PRIVATE},
    {"restart-delay", required_argument, NULL, OPT_RESTART_DELAY},
    {"socket", required_argument, NULL, OPT_SOCKET},
    {"state", required_argument, NULL, OPT_STATE},
    {"step-timeout", required_argument, NULL, OPT_STEP_TIMEOUT},
    {"stop-timeout", required_argument, NULL, OPT_STOP_TIMEOUT},
    {"user", no_argument, NULL, OPT_USER},
    {"user-state-bytes", required_argument, NULL, OPT_USER_STATE_BYTES},
    {"user-submit-burst", required_argument, NULL, OPT_USER_SUBMIT_BURST},
    {"user-submit-rate", required_argument, NULL, OPT_USER_SUBMIT_RATE},
    {"version", no_argument, NULL, OPT_VERSION},
    {"worker", required_argument, NULL, OPT_WORKER},
    {NULL, 0, NULL, 0},
};

/* Values of command-line options that are used only after all options have been parsed. A pointer is NULL if
 * its option was not given. */
struct words {
    bool user;
    const char *socket, *state, *worker, *machine;
};

static int parse_number(const char *text, const char *option, uint64_t most, uint64_t *ret, struct err *err)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || v > most)
        return err_set_at(err, -EINVAL, option, "expected a whole number from 0 to %llu, found \"%s\"",
                          (unsigned long long)most, text);
    *ret = v;
    return 0;
}

static int parse_seconds(const char *text, const char *option, uint64_t *ret_ms, struct err *err)
{
    int r = parse_number(text, option, 86400, ret_ms, err);
    *ret_ms *= 1000;
    return r;
}

static int parse_devices(const char *text, uint32_t *ret, struct err *err)
{
    uint64_t v = 0;
    int r = strcmp(text, "auto") == 0 ? 0 : parse_number(text, "--devices", DEVICE_MAX, &v, err);
    if (r == 0 && v == 0 && strcmp(text, "auto") != 0)
        r = err_set_at(err, -EINVAL, "--devices", "must be at least 1, or auto");
    *ret = (uint32_t)v;
    return r;
}

static int parse_backend(const char *text, const char *option, struct config *c, struct err *err)
{
    static const char *const names[] = {"auto", "cpu", "cuda"};
    const int n = sizeof names / sizeof names[0];
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i], text) != 0)
            continue;
        strcpy(c->backend, text);
        return 0;
    }
    const char *near = json_did_you_mean(text, names, n);
    return err_set_at(err, -EINVAL, option, "unknown name \"%s\"%s%s%s; expected auto, cpu or cuda", text,
                      near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static int parse_size(const char *text, const char *option, uint64_t *ret, struct err *err)
{
    int r = json_parse_bytes(text, option, ret, err);
    return r == 0 && *ret == 0 ? err_set_at(err, -EINVAL, option, "must be more than 0") : r;
}

static int parse_option(int id, const char *arg, struct words *w, struct config *c, struct err *err)
{
    uint64_t v = 0;
    int r;
    switch (id) {
    case OPT_USER:
        w->user = true;
        return 0;
    case OPT_SOCKET:
        w->socket = arg;
        return 0;
    case OPT_STATE:
        w->state = arg;
        return 0;
    case OPT_WORKER:
        w->worker = arg;
        return 0;
    case OPT_BACKEND:
        return parse_backend(arg, "--backend", c, err);
    case OPT_MACHINE:
        w->machine = arg;
        return 0;
    case OPT_DEVICES:
        c->devices_given = true;
        return parse_devices(arg, &c->n_devices, err);
    case OPT_DEVICE_MEMORY:
        return parse_size(arg, "--device-memory", &c->device_bytes, err);
    case OPT_HOST_MEMORY:
        return parse_size(arg, "--host-memory", &c->host_bytes, err);
    case OPT_HANG_TIMEOUT:
        return parse_seconds(arg, "--hang-timeout", &c->hang_timeout_ms, err);
    case OPT_STEP_TIMEOUT:
        return parse_seconds(arg, "--step-timeout", &c->step_timeout_ms, err);
    case OPT_STOP_TIMEOUT:
        return parse_seconds(arg, "--stop-timeout", &c->stop_timeout_ms, err);
    case OPT_RESTART_DELAY:
        return parse_number(arg, "--restart-delay", 3600000, &c->restart_delay_ms, err);
    case OPT_MAX_QUEUED:
        return parse_number(arg, "--max-queued", 1000000, &c->max_queued, err);
    case OPT_KEEP_BYTES:
        return json_parse_bytes(arg, "--keep-bytes", &c->keep_bytes, err);
    case OPT_KEEP_DAYS:
        return parse_number(arg, "--keep-days", 36500, &c->keep_days, err);
    case OPT_KEEP_JOBS:
        return parse_number(arg, "--keep-jobs", 100000000, &c->keep_jobs, err);
    case OPT_ACCEPT_OLDER_STATE:
        c->accept_older = true;
        return 0;
    case OPT_USER_STATE_BYTES:
        return json_parse_bytes(arg, "--user-state-bytes", &c->quota.state_bytes, err);
    case OPT_USER_SUBMIT_BURST:
        r = parse_number(arg, "--user-submit-burst", 1000000000, &c->quota.submit_burst, err);
        return r == 0 && c->quota.submit_burst == 0
                   ? err_set_at(err, -EINVAL, "--user-submit-burst", "must be at least 1")
                   : r;
    case OPT_USER_SUBMIT_RATE:
        return parse_number(arg, "--user-submit-rate", 1000000000, &c->quota.submits_per_s, err);
    case OPT_PRIVATE:
        r = parse_number(arg, "--private", INT_MAX, &v, err);
        c->private_fd = (int)v;
        return r;
    }
    return err_set(err, -EINVAL, "see tuttid --help");
}

/* ---- defaults ---- */

static int set_path(char ret[PATH_MAX], const char *option, struct err *err, const char *fmt, const char *a,
                    const char *b)
{
    int n = snprintf(ret, PATH_MAX, fmt, a, b);
    return n < 0 || n >= PATH_MAX ? err_set_at(err, -ENAMETOOLONG, option, "the path is too long") : 0;
}

/* Makes a relative path absolute, so that the path stays valid when the daemon changes its working
 * directory. */
static int absolute(char path[PATH_MAX], const char *option, struct err *err)
{
    char dir[PATH_MAX], copy[PATH_MAX];
    if (path[0] == '/')
        return 0;
    if (getcwd(dir, sizeof dir) == NULL)
        return err_set_at(err, -errno, option, "cannot find the current directory: %s", strerror(errno));
    snprintf(copy, sizeof copy, "%s", path);
    return set_path(path, option, err, "%s/%s", dir, copy);
}

static int place_state(struct config *c, const struct words *w, struct err *err)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int r;
    if (w->state != NULL)
        r = set_path(c->state_dir, "--state", err, "%s%s", w->state, "");
    else if (xdg != NULL && xdg[0] == '/')
        r = set_path(c->state_dir, "--state", err, "%s/%s", xdg, "tutti");
    else if (home != NULL && home[0] == '/')
        r = set_path(c->state_dir, "--state", err, "%s/%s", home, ".local/state/tutti");
    else
        r = err_set_at(err, -EINVAL, "--state",
                       "neither XDG_STATE_HOME nor HOME is set; name the directory with --state");
    return r == 0 ? absolute(c->state_dir, "--state", err) : r;
}

static int place_sockets(struct config *c, const struct words *w, struct err *err)
{
    const char *env = getenv("TUTTI_SOCKET"), *xdg = getenv("XDG_RUNTIME_DIR"), *slash;
    char dir[PATH_MAX];
    int r;
    if (w->socket != NULL || (env != NULL && env[0] != '\0'))
        r = set_path(c->socket, "--socket", err, "%s%s", w->socket != NULL ? w->socket : env, "");
    else if (xdg != NULL && xdg[0] == '/')
        r = set_path(c->socket, "--socket", err, "%s/%s", xdg, "tutti/tutti.sock");
    else
        r = set_path(c->socket, "--socket", err, "%s/%s", c->state_dir, "run/tutti.sock");
    if (r == 0)
        r = absolute(c->socket, "--socket", err);
    if (r < 0)
        return r;
    snprintf(dir, sizeof dir, "%s", c->socket);
    slash = strrchr(dir, '/');
    dir[slash - dir] = '\0';
    return set_path(c->worker_socket, "--socket", err, "%s/%s", dir, "worker.sock");
}

/* Finds the worker program. The option --worker or the environment variable TUTTI_WORKER may name the
 * program. Otherwise this function tries the paths in `places`, which are relative to the directory of
 * tuttid. */
static int place_worker(struct config *c, const struct words *w, struct err *err)
{
    static const char *const places[] = {"tutti-worker", "worker/tutti-worker",
                                         "../libexec/tutti/tutti-worker"};
    const char *env = getenv("TUTTI_WORKER");
    char self[PATH_MAX];
    if (w->worker != NULL || (env != NULL && env[0] != '\0')) {
        int r = set_path(c->worker_program, "--worker", err, "%s%s", w->worker != NULL ? w->worker : env, "");
        return r == 0 ? absolute(c->worker_program, "--worker", err) : r;
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    const char *dir = dirname(self);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (set_path(c->worker_program, "--worker", err, "%s/%s", dir, places[i]) == 0 &&
            access(c->worker_program, X_OK) == 0)
            return 0;
    return err_set_at(err, -ENOENT, "--worker",
                      "tutti-worker is not in the directory of tuttid; name it with --worker");
}

/* Takes the backend from the environment variable TUTTI_BACKEND. The variable is ignored if an option already
 * decides the backend. This is also the case if an option asks for virtual devices or names a topology file.
 * Virtual devices always use the cpu backend, and a topology file names its own backend. */
static int default_backend(struct config *c, struct err *err)
{
    const char *env = getenv("TUTTI_BACKEND");
    if (c->backend[0] != '\0' || c->machine[0] != '\0' || c->devices_given || c->device_bytes > 0)
        return 0;
    if (env == NULL || env[0] == '\0')
        return 0;
    return parse_backend(env, "TUTTI_BACKEND", c, err);
}

static int place_machine(struct config *c, const struct words *w, struct err *err)
{
    if (w->machine == NULL)
        return 0;
    if (w->machine[0] == '\0')
        return err_set_at(err, -EINVAL, "--machine", "must name a file");
    int r = set_path(c->machine, "--machine", err, "%s%s", w->machine, "");
    return r == 0 ? absolute(c->machine, "--machine", err) : r;
}

static void fill_in(struct config *c)
{
    struct rlimit files;
    c->max_connections = DEFAULT_CONNECTIONS;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return;
    files.rlim_cur = files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < DEFAULT_CONNECTIONS + SPARE_DESCRIPTORS)
        c->max_connections =
            files.rlim_cur > 2 * SPARE_DESCRIPTORS ? files.rlim_cur - SPARE_DESCRIPTORS : SPARE_DESCRIPTORS;
}

static int refuse_word(int id, char **argv, struct err *err)
{
    const char *word = argv[optind - 1], *names[sizeof options / sizeof options[0]], *near;
    int n = 0;
    if (id == ':')
        return err_set(err, -EINVAL, "%s needs a value; see tuttid --help", word);
    for (; options[n].name != NULL; n++)
        names[n] = options[n].name;
    near = strncmp(word, "--", 2) == 0 ? json_did_you_mean(word + 2, names, n) : NULL;
    return err_set(err, -EINVAL, "unknown option %s%s%s%s; see tuttid --help", word,
                   near ? "; did you mean --" : "", near ? near : "", near ? "?" : "");
}

int config_parse(int argc, char **argv, struct config *ret, struct err *err)
{
    struct words w = {0};
    int id, r = 0;
    *ret =
        (struct config){.private_fd = -1,
                        .hang_timeout_ms = 60000,
                        .step_timeout_ms = 3600000,
                        .stop_timeout_ms = 90000,
                        .restart_delay_ms = 1000,
                        .max_queued = 10000,
                        .keep_days = 90,
                        .keep_jobs = 100000,
                        .keep_bytes = UINT64_C(1) << 30,
                        .quota = {.state_bytes = 256u << 20, .submits_per_s = 2000, .submit_burst = 10000}};
    opterr = 0;
    while (r == 0 && (id = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        if (id == OPT_HELP || id == OPT_VERSION) {
            const char *text = id == OPT_HELP ? usage : "tuttid " TUTTI_VERSION "\n";
            print_text(STDOUT_FILENO, text, strlen(text));
            return 1;
        }
        r = id == '?' || id == ':' ? refuse_word(id, argv, err) : parse_option(id, optarg, &w, ret, err);
    }
    if (r == 0 && optind < argc)
        r = err_set(err, -EINVAL, "unexpected argument \"%s\"; see tuttid --help", argv[optind]);
    if (r == 0 && !w.user)
        r = err_set(err, -EINVAL, "--user is required: tuttid cannot serve several users yet");
    if (r == 0)
        r = place_state(ret, &w, err);
    if (r == 0)
        r = place_sockets(ret, &w, err);
    if (r == 0)
        r = place_worker(ret, &w, err);
    if (r == 0)
        r = place_machine(ret, &w, err);
    if (r == 0)
        r = default_backend(ret, err);
    if (r == 0)
        fill_in(ret);
    return r;
}
