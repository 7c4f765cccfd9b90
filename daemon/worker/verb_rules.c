/* The verb --rules. It computes how long a schedule of the system Harmony takes by Harmony's own rules, so
 * that our simulator can be compared with published numbers. The command line gives packs and sizes, and a
 * profile gives the task durations. Nothing is planned or run.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/strbuf.h"
#include "base/vec.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"
#include "scheduler/predict/harmony_rules.h"

/* Time that Harmony needs at the end of every task to free the task's memory: 40 ms, in nanoseconds. */
#define TASK_NS    40000000u
#define TASK_MAX_S 1e6

typedef VEC(uint32_t) layers;

static const char *const rules_names[] = {"harmony", NULL}; /* indexed by rules_options.system */

/* ---- options ---- */

/* Reads a list such as "4,9,14", in which each number is the last layer of a pack. An empty text means that
 * there are no packs. */
static int parse_ends(const char *text, const char *option, layers *ret, struct err *err)
{
    while (*text != '\0') {
        char *end;
        errno = 0;
        unsigned long long v = strtoull(text, &end, 10);
        bool whole = errno == 0 && text[0] >= '0' && text[0] <= '9' && v < TABLE_MAX_LAYERS;
        if (!whole || (*end != ',' && *end != '\0') || (*end == ',' && end[1] == '\0'))
            return err_set_at(err, -EINVAL, option,
                              "expected the last layer of each pack, e.g. 4,9,14; cannot read \"%s\"", text);
        vec_push(ret, (uint32_t)v);
        text = *end == ',' ? end + 1 : end;
    }
    return 0;
}

/* Reads a time such as "40ms", "0.04s", "500us" or "0" and stores it in nanoseconds. */
static int parse_time(const char *text, const char *option, uint64_t *ret_ns, struct err *err)
{
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}};
    char *end;
    double v = strtod(text, &end), ns = v == 0 && *end == '\0' ? 0 : -1;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (end != text && strcmp(end, units[i].name) == 0)
            ns = v * units[i].ns;
    if (end == text || !(ns >= 0 && ns <= TASK_MAX_S * 1e9))
        return err_set_at(err, -EINVAL, option, "expected a time such as 40ms, 0.04s or 500us, found \"%s\"",
                          text);
    *ret_ns = (uint64_t)(ns + 0.5);
    return 0;
}

/* Fills in the schedule `ret` from the options. `ret` points into the lists `fwd` and `bwd`, so it is valid
 * only as long as these lists. */
static int parse_schedule(const struct verb_options *o, layers *fwd, layers *bwd, struct rules_schedule *ret,
                          struct err *err)
{
    const struct rules_options *r = &o->rules;
    *ret = (struct rules_schedule){.form = r->form,
                                   .devices = o->job.devices,
                                   .batch = r->batch,
                                   .micro_fwd = r->micro_fwd,
                                   .micro_bwd = r->micro_bwd,
                                   .task_ns = TASK_NS};
    int code = 0;
    if (r->packs_fwd != NULL)
        code = parse_ends(r->packs_fwd, "--packs-fwd", fwd, err);
    if (code == 0)
        code = parse_ends(r->packs_bwd, "--packs-bwd", bwd, err);
    if (code == 0 && r->task_overhead != NULL)
        code = parse_time(r->task_overhead, "--task-overhead", &ret->task_ns, err);
    ret->fwd = (struct rules_packs){fwd->at, (uint32_t)fwd->n};
    ret->bwd = (struct rules_packs){bwd->at, (uint32_t)bwd->n};
    return code;
}

/* Replaces the name of a member in an error about the schedule by the name of the option. For example,
 * packs_bwd[1] becomes --packs-bwd[1]. */
static void name_option(struct err *err)
{
    static const char *const places[] = {"batch",           "devices",   "micro_batch_bwd",
                                         "micro_batch_fwd", "packs_bwd", "packs_fwd"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        size_t n = strlen(places[i]);
        if (strncmp(err->path, places[i], n) != 0 || (err->path[n] != '\0' && err->path[n] != '['))
            continue;
        memmove(err->path + 2, err->path, strnlen(err->path, sizeof err->path - 3) + 1);
        memcpy(err->path, "--", 2);
        for (char *p = err->path; *p != '\0'; p++)
            *p = *p == '_' ? '-' : *p;
        return;
    }
}

/* ---- the profile ---- */

static int read_profile(const struct verb_options *o, struct table **ret, struct err *err)
{
    int r = job_read_profile(o->job.profile, ret, err);
    if (r == 0 && o->job.link_bytes_per_s > 0)
        (*ret)->link_bytes_per_s = o->job.link_bytes_per_s;
    if (r == 0 && o->job.peer_bytes_per_s > 0)
        (*ret)->peer_bytes_per_s = o->job.peer_bytes_per_s;
    return r;
}

/* ---- output ---- */

static void add_packs(struct strbuf *b, const char *key, const struct rules_packs *p)
{
    strbuf_addf(b, ",\"%s\":[", key);
    for (uint32_t i = 0, first = 0; i < p->n; first = p->ends[i++] + 1)
        strbuf_addf(b, "%s[%u,%u]", i > 0 ? "," : "", first, p->ends[i]);
    strbuf_add(b, "]");
}

static void add_rules_json(struct strbuf *b, const struct verb_options *o, const struct rules_schedule *s,
                           const struct rules_result *at)
{
    const struct rules_result *r = &at[RULES_STATIC], *fair = &at[RULES_FAIR];
    strbuf_addf(b, "{\"rules\":\"%s\",\"form\":\"%s\",\"devices\":%u,\"batch\":%u",
                rules_names[o->rules.system], rules_form_names[s->form], s->devices, s->batch);
    strbuf_addf(b, ",\"micro_batch_fwd\":%u,\"micro_batch_bwd\":%u", s->micro_fwd, s->micro_bwd);
    add_packs(b, "packs_fwd", &s->fwd);
    add_packs(b, "packs_bwd", &s->bwd);
    strbuf_addf(b, ",\"task_overhead_s\":%.9g,\"iteration_s\":%.9f,\"compute_share\":%.6f",
                (double)s->task_ns * 1e-9, (double)r->iteration_ns * 1e-9, r->compute_share);
    strbuf_addf(b, ",\"fair\":{\"iteration_s\":%.9f,\"compute_share\":%.6f}",
                (double)fair->iteration_ns * 1e-9, fair->compute_share);
    strbuf_addf(b, ",\"host_in_bytes\":%" PRIu64 ",\"host_out_bytes\":%" PRIu64 ",\"peer_bytes\":%" PRIu64,
                r->in_bytes, r->out_bytes, r->peer_bytes);
    strbuf_addf(b, ",\"tasks\":%u,\"ops\":%u}\n", r->n_tasks, r->n_ops);
}

static void add_iteration(struct strbuf *b, const struct rules_result *r, const char *how)
{
    strbuf_addf(b, "iteration  %.3f s, compute %.1f %% of the devices' time; %s\n",
                (double)r->iteration_ns * 1e-9, 100 * r->compute_share, how);
}

static void add_rules_text(struct strbuf *b, const struct table *t, const struct rules_schedule *s,
                           const struct rules_result *at)
{
    const struct rules_result *r = &at[RULES_STATIC];
    strbuf_addf(b, "%s on %u devices by Harmony's rules, form %s\n",
                t->model[0] != '\0' ? t->model : "the profile", s->devices, rules_form_names[s->form]);
    strbuf_addf(b, "batch      %u; micro-batches of %u forward, %u backward\n", s->batch, s->micro_fwd,
                s->micro_bwd);
    strbuf_addf(b, "packs      %u forward, %u backward\n", s->fwd.n, s->bwd.n);
    add_iteration(b, r, "each device a fixed part of the link, as Harmony has it");
    add_iteration(b, &at[RULES_FAIR], "the link shared fairly");
    strbuf_add(b, "bytes      ");
    strbuf_add_bytes(b, r->in_bytes);
    strbuf_add(b, " in, ");
    strbuf_add_bytes(b, r->out_bytes);
    strbuf_add(b, " out, ");
    strbuf_add_bytes(b, r->peer_bytes);
    strbuf_add(b, " between devices\n");
}

/* ---- the verb ---- */

static int simulate_rules(const struct verb_options *o, const struct rules_schedule *s, const struct table *t,
                          struct strbuf *b, struct err *err)
{
    struct rules_result at[RULES_SHARING_COUNT];
    for (int i = 0; i < RULES_SHARING_COUNT; i++) {
        int r = rules_simulate(s, t, (enum rules_sharing)i, &at[i], err);
        if (r < 0)
            return r;
    }
    if (o->json)
        add_rules_json(b, o, s, at);
    else
        add_rules_text(b, t, s, at);
    return 0;
}

static int run_rules(const struct verb_options *o)
{
    struct err err = {0};
    struct rules_schedule s;
    struct table *t = NULL;
    struct strbuf b = {0};
    layers fwd = {0}, bwd = {0};
    int r = parse_schedule(o, &fwd, &bwd, &s, &err);
    if (r == 0)
        r = read_profile(o, &t, &err);
    if (r == 0)
        r = simulate_rules(o, &s, t, &b, &err);
    name_option(&err);
    int code = r < 0 ? report_error(o, r, &err, 0, true) : print_buffer(&b);
    table_destroy(t);
    vec_free(&fwd);
    vec_free(&bwd);
    return code;
}

static const struct worker_option rows[] = {
    {"batch", "N", "samples per step", OPTION_U32, OPTION_AT(rules.batch), 1, SPEC_MAX_DIM},
    {"form", "pp|dp", ": pipeline or data parallel, on --devices N", OPTION_NAME, OPTION_AT(rules.form),
     .names = rules_form_names},
    {"micro-batch-fwd", "N", "samples of a forward micro-batch", OPTION_U32, OPTION_AT(rules.micro_fwd), 1,
     INT32_MAX},
    {"micro-batch-bwd", "N", "samples of a backward micro-batch", OPTION_U32, OPTION_AT(rules.micro_bwd), 1,
     INT32_MAX},
    {"packs-fwd", "LIST", "last layer of each forward pack, e.g. 4,9,14", OPTION_TEXT,
     OPTION_AT(rules.packs_fwd)},
    {"packs-bwd", "LIST", "last layer of each backward pack", OPTION_TEXT, OPTION_AT(rules.packs_bwd)},
    {"task-overhead", "TIME", "time added after every task (default: 40ms)", OPTION_TEXT,
     OPTION_AT(rules.task_overhead)},
    {0},
};

static const struct option_table options = {"what to simulate with --rules (see docs/simulator.md)", rows};

static const char *const where[] = {"devices", "link", "peer", "profile", NULL};
static const char *const needs[] = {"profile",         "form",      "devices", "batch", "micro-batch-fwd",
                                    "micro-batch-bwd", "packs-bwd", NULL};

const struct worker_verb verb_rules = {
    .word = {"rules", "NAME", .kind = OPTION_NAME, .at = OPTION_AT(rules.system), .names = rules_names},
    .forms = {{"harmony --profile FILE [options]", "simulate a schedule of Harmony"}},
    .tables = {&options},
    .where = where,
    .needs = needs,
    .run = run_rules,
};
