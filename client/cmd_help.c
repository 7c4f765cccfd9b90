/* tutti help: prints an overview of all commands, or the help page of one command. */
#include <string.h>

#include "client/client.h"

int help_overview(void)
{
    struct strbuf b = {0};
    strbuf_add(&b, "usage: tutti COMMAND [options]\n\n");
    for (int i = 0; commands[i] != NULL; i++)
        strbuf_addf(&b, "  %-9s %s\n", commands[i]->name, commands[i]->summary);
    strbuf_add(&b, "\noptions of every command:\n");
    opts_help(common_opts, &b);
    strbuf_add(
        &b,
        "\nexit codes: 0 done, 1 the job failed, 2 usage or invalid job, 3 daemon unreachable, 4 denied,\n"
        "            5 cannot fit, 6 not found\n"
        "`tutti help COMMAND` shows the help of a command.\n");
    return client_print_end(&b);
}

int help_command(const struct client_command *command)
{
    struct strbuf b = {0};
    strbuf_addf(&b, "usage: tutti %s%s%s\n\n%s\n", command->name, command->args[0] != '\0' ? " " : "",
                command->args, command->summary);
    if (command->details != NULL)
        strbuf_add(&b, command->details);
    strbuf_add(&b, "\n");
    opts_help(command->opts, &b);
    opts_help(common_opts, &b);
    return client_print_end(&b);
}

static int run_help(struct client *c, const struct args *a)
{
    if (a->n_rest == 0)
        return help_overview();
    for (int i = 0; commands[i] != NULL; i++)
        if (strcmp(commands[i]->name, a->rest[0]) == 0)
            return help_command(commands[i]);
    return command_unknown(c, a->rest[0]);
}

const struct client_command cmd_help = {
    .name = "help",
    .args = "[COMMAND]",
    .summary = "print this overview, or the help of a command",
    .most = 1,
    .run = run_help,
};
