/* The main program of tutti: finds the command in the table of commands, parses the command's options, and
 * runs the command. */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "client/client.h"

const struct client_command *const commands[] = {
    &cmd_backup, &cmd_cancel, &cmd_check,   &cmd_devices, &cmd_export, &cmd_help,
    &cmd_logs,   &cmd_ls,     &cmd_plan,    &cmd_profile, &cmd_run,    &cmd_sample,
    &cmd_show,   &cmd_submit, &cmd_version, &cmd_wait,    &cmd_watch,  NULL,
};

/* The names of commands that are planned but do not exist yet. The error message for such a name says that it
 * is planned. */
static const char *const later[] = {"doctor",  "drain",  "hold", "metrics", "pause",
                                    "release", "resume", "top",  "users",   NULL};

const struct opt common_opts[] = {
    {"help", 'h', NULL, "show this help"},
    {"json", 0, NULL, "print the result and errors as JSON on standard output"},
    {"quiet", 'q', NULL, "print only the id, or nothing if there is none"},
    {"socket", 0, "PATH", "the socket of the daemon"},
    {0},
};

static const struct opt global_opts[] = {
    {"version", 'V', NULL, "show the version"},
    {0},
};

/* Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed. Otherwise, the next open file would
 * get such a descriptor, and messages for the user would go into that file. */
static void open_standard_descriptors(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    } while (fd >= 0 && fd <= STDERR_FILENO && fcntl(fd, F_SETFD, 0) == 0);
    if (fd > STDERR_FILENO)
        close(fd);
}

/* Returns true if --json is among the arguments. This must be known before the options are parsed, because
 * mistakes in the options are reported as JSON too. */
static bool asks_for_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            return true;
    return false;
}

static const struct client_command *find_command(const char *name)
{
    for (int i = 0; commands[i] != NULL; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

int command_unknown(const struct client *c, const char *name)
{
    const char *names[64], *near;
    struct err err = {0};
    int n = 0;
    for (int i = 0; later[i] != NULL; i++) {
        if (strcmp(later[i], name) == 0) {
            err_set(&err, -EINVAL, "`tutti %s` does not exist yet; `tutti help` lists the commands that do",
                    name);
            return client_fail_as(c, CLIENT_USAGE, &err);
        }
    }
    for (; commands[n] != NULL; n++)
        names[n] = commands[n]->name;
    near = json_did_you_mean(name, names, n);
    err_set(&err, -EINVAL, "unknown command \"%s\"%s%s%s (see `tutti help`)", name,
            near != NULL ? "; did you mean \"" : "", near != NULL ? near : "", near != NULL ? "\"?" : "");
    return client_fail_as(c, CLIENT_USAGE, &err);
}

/* Checks that the number of arguments, not counting options, lies within the limits of the command. */
static int check_words(const struct client_command *cmd, const struct args *a, struct err *err)
{
    if (a->n_rest < cmd->least)
        return err_set(err, -EINVAL, "usage: tutti %s %s; see `tutti help %s`", cmd->name, cmd->args,
                       cmd->name);
    if (cmd->most >= 0 && a->n_rest > cmd->most)
        return err_set(err, -EINVAL, "unexpected argument \"%s\"; usage: tutti %s %s", a->rest[cmd->most],
                       cmd->name, cmd->args);
    return 0;
}

static void take_common(struct client *c, const struct args *a)
{
    c->json = c->json || opts_has(a, "json");
    c->quiet = c->quiet || opts_has(a, "quiet");
    if (opts_has(a, "socket"))
        c->socket = opts_get(a, "socket");
}

static int run_command(struct client *c, const struct client_command *cmd, int argc, char **argv)
{
    struct args a;
    struct err err = {0};
    if (opts_parse(cmd->opts, common_opts, argc, argv, false, &a, &err) < 0) {
        err_set(&err, -EINVAL, "%s (see `tutti help %s`)", err.msg, cmd->name);
        return client_fail(c, &err);
    }
    if (opts_has(&a, "help"))
        return help_command(cmd);
    take_common(c, &a);
    if (check_words(cmd, &a, &err) < 0)
        return client_fail(c, &err);
    return cmd->run(c, &a);
}

static int run_line(struct client *c, int argc, char **argv)
{
    struct args a;
    struct err err = {0};
    if (opts_parse(global_opts, common_opts, argc, argv, true, &a, &err) < 0)
        return client_fail(c, &err);
    take_common(c, &a);
    if (opts_has(&a, "version"))
        return cmd_version.run(c, &a);
    if (opts_has(&a, "help"))
        return help_overview();
    if (a.n_rest == 0) {
        err_set(&err, -EINVAL, "no command was given; see `tutti help`");
        return client_fail(c, &err);
    }
    const struct client_command *cmd = find_command(a.rest[0]);
    return cmd != NULL ? run_command(c, cmd, a.n_rest - 1, a.rest + 1) : command_unknown(c, a.rest[0]);
}

int main(int argc, char **argv)
{
    struct client c = {.json = asks_for_json(argc, argv)};
    open_standard_descriptors();
    /* Set only LC_CTYPE. LC_NUMERIC stays "C", so that numbers in JSON get a decimal point in every
     * locale. */
    setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_IGN);
    return client_end(run_line(&c, argc > 0 ? argc - 1 : 0, argv + 1));
}
