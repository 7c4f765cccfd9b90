/* tutti cancel: asks jobs to write a checkpoint and stop. With --now the jobs stop immediately, without a
 * checkpoint. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/get.h"
#include "client/client.h"
#include "client/follow.h"
#include "client/show.h"
#include "client/term.h"

static const struct opt opts[] = {
    {"now", 0, NULL, "stop at once; work since the last checkpoint is lost"},
    {0},
};

static void describe(struct strbuf *b, const struct json *job)
{
    struct style s = term_style(STDOUT_FILENO);
    const char *state = get_text(job, "state");
    strbuf_addf(b, "job %" PRIu64 " (", get_count_or(job, "id", 0));
    show_text(b, &s, get_text(job, "name"));
    strbuf_add(b, ") ");
    if (strcmp(state, "stopping") == 0) {
        strbuf_add(b, "stops after a checkpoint\n");
    } else {
        strbuf_add(b, follow_ended(job) && strcmp(state, "cancelled") != 0 ? "had already ended: " : "");
        show_text(b, &s, state);
        strbuf_add(b, "\n");
    }
}

static int cancel(const struct client *c, struct tutti *t, uint64_t id, bool now, struct strbuf *out)
{
    struct err err = {0};
    struct wire_msg m = {0};
    struct strbuf params = {0};
    strbuf_addf(&params, "{\"id\":%" PRIu64 "%s}", id, now ? ",\"now\":true" : "");
    int r = tutti_call(t, "cancel", params.at, &m, &err);
    strbuf_finish(&params);
    if (r < 0)
        return client_fail(c, &err);
    if (c->json) {
        char *text = json_print(m.result);
        strbuf_addf(out, "%s%s", out->n > 0 ? "," : "", text);
        free(text);
    } else if (!c->quiet) {
        describe(out, m.result);
    }
    wire_msg_finish(&m);
    return CLIENT_DONE;
}

static int run_cancel(struct client *c, const struct args *a)
{
    struct err err = {0};
    struct tutti *t = NULL;
    struct strbuf out = {0}, b = {0};
    uint64_t id;
    for (int i = 0; i < a->n_rest; i++)
        if (client_job_id(a->rest[i], &id, &err) < 0)
            return client_fail(c, &err);
    int exit = client_connect(c, &t);
    for (int i = 0; i < a->n_rest && exit == CLIENT_DONE; i++) {
        client_job_id(a->rest[i], &id, &err);
        exit = cancel(c, t, id, opts_has(a, "now"), &out);
    }
    tutti_close(t);
    /* With --json, a failed command must print the error object and nothing else, so do not print the
     * jobs. */
    if (!c->json)
        strbuf_add(&b, out.at != NULL ? out.at : "");
    else if (exit == CLIENT_DONE)
        strbuf_addf(&b, "[%s]\n", out.at != NULL ? out.at : "");
    strbuf_finish(&out);
    int printed = client_print_end(&b);
    return exit != CLIENT_DONE ? exit : printed;
}

const struct client_command cmd_cancel = {
    .name = "cancel",
    .args = "ID... [--now]",
    .summary = "stop jobs, after a checkpoint",
    .details = "A queued job ends at once. A job that does not stop within 60 s is killed.\n",
    .opts = opts,
    .least = 1,
    .most = -1,
    .run = run_cancel,
};
