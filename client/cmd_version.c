/* tutti version: prints the version of this program. */
#include "client/client.h"

static int run_version(struct client *c, const struct args *a)
{
    struct strbuf b = {0};
    (void)a;
    if (c->json)
        strbuf_addf(&b, "{\"version\":\"%s\",\"protocol\":%d}\n", TUTTI_VERSION, WIRE_PROTOCOL);
    else
        strbuf_addf(&b, "tutti %s\n", TUTTI_VERSION);
    return client_print_end(&b);
}

const struct client_command cmd_version = {
    .name = "version",
    .args = "",
    .summary = "print the version of this program",
    .run = run_version,
};
