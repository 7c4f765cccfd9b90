/* Implements plan_why and plan_why_json. They print what limits the speed of an iteration, and which changes
 * would make the iteration faster. */
#include "scheduler/explain/explain.h"
#include "scheduler/explain/explain_parts.h"

static double share(const struct why *y, uint64_t ns)
{
    return y->cycle_ns > 0 ? (double)ns / (double)y->cycle_ns : 0;
}

static double part(const struct why *y, enum path_part which)
{
    return 100 * share(y, y->path_ns[which]);
}

/* ---- the page ---- */

static double gain(const struct why *y, const struct what_if *w)
{
    return w->fits ? 100 * (1 - share(y, w->cycle_ns)) : 0;
}

/* Explains that memory is the limit. Shows the time that more memory would save, or the time that is spent
 * waiting for free memory, whichever is greater. */
static void add_memory_binding(struct strbuf *out, const struct why_report *r)
{
    double waiting = 100 * share(&r->why, r->why.memory_wait_ns),
           more = r->asked ? gain(&r->why, &r->memory) : 0;
    if (more > waiting)
        strbuf_addf(out, "memory: one more GB on each device would save %.0f%%", more);
    else
        strbuf_addf(out, "memory: %.0f%% of the time is waiting until some is free", waiting);
}

static void add_binding(struct strbuf *out, const struct why_report *r)
{
    const struct why *y = &r->why;
    explain_label(out, "binds");
    switch (y->binds) {
    case BINDING_COMPUTE:
        strbuf_addf(out, "compute: %.0f%% of the critical path", part(y, PATH_COMPUTE));
        break;
    case BINDING_BUBBLE:
        strbuf_addf(out, "bubble: compute is %.0f%% of the path, but of no device more than %.0f%%",
                    part(y, PATH_COMPUTE), 100 * y->busiest);
        break;
    case BINDING_LINK:
        strbuf_addf(out, "host link: %.0f%% of the critical path are copies in, %.0f%% copies out",
                    part(y, PATH_IN), part(y, PATH_OUT));
        break;
    case BINDING_PEER:
        strbuf_addf(out, "links between devices: %.0f%% of the critical path", part(y, PATH_PEER));
        break;
    case BINDING_HOST:
        strbuf_addf(out, "host: %.0f%% of the critical path are its updates", part(y, PATH_HOST));
        break;
    case BINDING_MEMORY:
        add_memory_binding(out, r);
        break;
    case BINDING_COUNT:
        break;
    }
    strbuf_add(out, "\n");
}

static void add_path(struct strbuf *out, const struct why *y)
{
    explain_label(out, "path");
    for (int i = 0; i < PATH_PART_COUNT; i++)
        strbuf_addf(out, "%s%s %.1f%%", i ? "   " : "", path_part_names[i], part(y, (enum path_part)i));
    strbuf_add(out, "\n");
    explain_label(out, "room");
    strbuf_addf(out, "%.1f%% of the time is waiting until memory is free\n",
                100 * share(y, y->memory_wait_ns));
}

/* Adds the answer to a what-if question, such as "12.300 s (-4.1%), 3.20 GiB less over the host link". An
 * estimate begins with "about". If no
 * plan was found, adds "no plan". */
static void add_what_if(struct strbuf *out, const struct why *y, const struct what_if *w, uint64_t host_bytes)
{
    if (!w->fits) {
        strbuf_add(out, "no plan\n");
        return;
    }
    bool more = w->host_bytes > host_bytes;
    strbuf_add(out, w->estimated ? "about " : "");
    explain_add_time(out, w->cycle_ns);
    strbuf_addf(out, " (%+.1f%%)", 0 - gain(y, w));
    if (w->host_bytes != host_bytes) {
        strbuf_add(out, ", ");
        strbuf_add_bytes(out, more ? w->host_bytes - host_bytes : host_bytes - w->host_bytes);
        strbuf_addf(out, " %s over the host link", more ? "more" : "less");
    }
    strbuf_add(out, "\n");
}

void plan_why(const struct why_report *r, struct strbuf *out)
{
    strbuf_add(out, "\n");
    explain_label(out, "WHY");
    strbuf_add(out, "what an iteration waits for\n");
    add_binding(out, r);
    add_path(out, &r->why);
    if (!r->asked)
        return;
    explain_label(out, "+1 GB each");
    add_what_if(out, &r->why, &r->memory, r->host_bytes);
    explain_label(out, "+1 device");
    add_what_if(out, &r->why, &r->device, r->host_bytes);
    if (!r->decision)
        return;
    explain_label(out, "decision");
    if (r->plain.fits) {
        explain_add_time(out, r->plain.cycle_ns);
        strbuf_addf(out, " (%+.1f%%) if no update waited for all gradients\n", 0 - gain(&r->why, &r->plain));
    } else {
        strbuf_add(out, "no plan without it\n");
    }
}

/* ---- JSON ---- */

static void add_json_what_if(struct strbuf *out, const char *name, const struct what_if *w)
{
    strbuf_addf(out, ",\"%s\":", name);
    if (w->fits)
        strbuf_addf(out, "{\"iteration_s\":%.9g,\"host_bytes\":%llu%s}", (double)w->cycle_ns * 1e-9,
                    (unsigned long long)w->host_bytes, w->estimated ? ",\"estimated\":true" : "");
    else
        strbuf_add(out, "null");
}

void plan_why_json(const struct why_report *r, struct strbuf *out)
{
    const struct why *y = &r->why;
    strbuf_addf(out, "{\"binds\":\"%s\",\"path\":{", binding_names[y->binds]);
    for (int i = 0; i < PATH_PART_COUNT; i++)
        strbuf_addf(out, "%s\"%s\":%.6g", i ? "," : "", path_part_names[i], share(y, y->path_ns[i]));
    strbuf_addf(out, "},\"waits_for_memory\":%.6g", share(y, y->memory_wait_ns));
    if (r->asked) {
        add_json_what_if(out, "one_more_gb", &r->memory);
        add_json_what_if(out, "one_more_device", &r->device);
    }
    /* Without the decision, the best plan is never slower. If the plan found without the decision is slower,
     * the search has only missed a better plan. The decision then costs 0 seconds. */
    if (r->asked && r->decision && r->plain.fits)
        strbuf_addf(out, ",\"clipping_s\":%.9g",
                    y->cycle_ns > r->plain.cycle_ns ? (double)(y->cycle_ns - r->plain.cycle_ns) * 1e-9 : 0.0);
    strbuf_add(out, "}");
}
