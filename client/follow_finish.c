/* Implements follow_finish: prints the curve and the report of a job that has ended. If the job failed, also
 * prints the end of its log. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/get.h"
#include "client/follow.h"
#include "client/show.h"
#include "client/term.h"

#define CURVE_ROWS  10
#define CURVE_WIDTH 78
#define TAIL_BYTES  2048

static void add_curve(struct strbuf *b, const struct style *s, const struct json *job)
{
    struct curve *curve = xcalloc(1, sizeof *curve);
    curve_from_json(curve, get_array(job, "curve"));
    show_curve(
        b, s, curve,
        &(struct plot){s->width > 0 && s->width <= CURVE_WIDTH ? s->width - 1 : CURVE_WIDTH, CURVE_ROWS, ""});
    free(curve);
}

/* Appends the last 2 KiB of the job's log. If this text begins in the middle of a line, leaves out the rest
 * of that line. */
static void add_log_tail(struct strbuf *b, const struct style *s, struct tutti *t, const struct json *job)
{
    uint64_t bytes = get_count_or(job, "log_bytes", 0), from = bytes > TAIL_BYTES ? bytes - TAIL_BYTES : 0;
    struct strbuf params = {0};
    struct wire_msg m = {0};
    if (bytes == 0 || t == NULL || tutti_lost(t))
        return;
    strbuf_addf(&params, "{\"id\":%" PRIu64 ",\"offset\":%" PRIu64 ",\"limit\":%d}",
                get_count_or(job, "id", 0), from, TAIL_BYTES);
    int r = tutti_call(t, "logs", params.at, &m, NULL);
    strbuf_finish(&params);
    if (r < 0)
        return;
    const char *text = get_text(m.result, "text"), *newline = from > 0 ? strchr(text, '\n') : NULL;
    text = newline != NULL ? newline + 1 : text;
    if (text[0] != '\0') {
        strbuf_addf(b, "  %sthe end of its log:%s\n", show_ink(s, INK_DIM), show_plain(s));
        show_log_text(b, text);
        if (b->at[b->n - 1] != '\n')
            strbuf_add(b, "\n");
    }
    wire_msg_finish(&m);
}

int follow_finish(const struct client *c, struct tutti *t, const struct json *job)
{
    struct style s = term_style(STDOUT_FILENO);
    struct strbuf b = {0};
    if (c->json) {
        show_outcome_json(&b, job);
        strbuf_add(&b, "\n");
    } else if (!c->quiet) {
        add_curve(&b, &s, job);
        show_report(&b, &s, job);
        /* Show the log only if the training itself failed. The log does not help if the job's spec was
         * wrong. */
        if (follow_exit(job) == CLIENT_FAILED)
            add_log_tail(&b, &s, t, job);
    }
    client_print(&b);
    return follow_exit(job);
}
