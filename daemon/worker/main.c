/* tutti-worker: trains one job in the foreground. Parses the command line and calls one verb. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/print.h"
#include "base/strbuf.h"
#include "daemon/worker/report.h"
#include "daemon/worker/verbs.h"
#include "scheduler/policy/policy.h"

static const char usage[] =
    "usage: tutti-worker --check JOB.json [options]   validate the spec, its files, and that it fits\n"
    "       tutti-worker --plan JOB.json [options]    print the plan: who computes what, bytes, memory, "
    "time\n"
    "       tutti-worker --run JOB.json [options]     train, from the newest checkpoint where there is one\n"
    "       tutti-worker --export DIR --out FILE      write the weights of a job's output as safetensors\n"
    "       tutti-worker --export DIR --hf FOLDER     write a gpt2 or llama model as a Hugging Face folder\n"
    "       tutti-worker --probe [--measure] [--out FILE]    what this machine has, and which backend jobs "
    "use\n"
    "       tutti-worker --rules harmony --profile FILE [options]    time a schedule of Harmony by its own "
    "rules\n"
    "       tutti-worker --sample DIR [options]       go on with a text: a job's output, or a Hugging Face "
    "folder\n"
    "       tutti-worker --time JOB.json [options]    time the job's layers here, for the plans of later "
    "runs\n"
    "       tutti-worker --plan-profile FILE --device-memory SIZE --batch N [options]    a plan from a "
    "profile\n"
    "       tutti-worker --serve SOCKET --job ID --attempt N    train a job of tuttid, which starts it so\n"
    "JOB.json may be - for standard input.\n"
    "\n"
    "where to run (over the spec's resources and memory; none of these changes the results):\n"
    "  --backend NAME         auto, cpu, cuda (default: $TUTTI_BACKEND or auto: cuda where it can be used)\n"
    "  --machine FILE         a topology file (or its text) in place of what is here, e.g. to plan for "
    "elsewhere\n"
    "  --devices N            number of devices; cpu devices are virtual, there are as many as one likes\n"
    "  --device-memory SIZE   bytes of each, e.g. 64MiB\n"
    "  --host-memory SIZE     host memory the job may use\n"
    "  --planning-memory SIZE memory that planning may use (default: the host memory that the data leave)\n"
    "  --policy NAME          auto, resident, stream, lru, harmony-pp; with --plan also all: side by side\n"
    "  --objective WHAT       what plans are chosen by: time (default), bytes\n"
    "  --profile FILE|none    times of the layers: a profile, or none but computed ones (default: "
    "$TUTTI_PROFILE,\n"
    "                         else what --time has kept of such layers)\n"
    "  --optimizer-on WHERE   auto, host, device (also: --update)\n"
    "  --threads N            threads that share one operation (default: one per core)\n"
    "  --link SIZE            pace host copies to SIZE bytes per second, each device and direction\n"
    "  --peer SIZE            pace copies between devices\n"
    "  --delay-seed N         delay every stream at random, to shake out races\n"
    "  --output DIR           instead of the spec's output\n"
    "  --trace-steps N        with --run: measure N steps for trace.json (default: 3; 0: no trace)\n"
    "  --dir DIR              where relative paths of the spec begin (default: the current directory)\n"
    "what to export:\n"
    "  --step N|best|last     the weights of a checkpoint; `best` goes by the job's checkpoint.best\n"
    "                         (default: of the finished job, else of the newest checkpoint)\n"
    "  --force                replace FILE, or FOLDER where it is an export\n"
    "  --shard SIZE           with --hf: tensors of at most SIZE in a file (default: 5GB)\n"
    "what to plan from a profile:\n"
    "  --batch N              samples of a step\n"
    "  --micro-batch N|auto   of these so many at once; auto: the best divisor that was measured\n"
    "what to sample:\n"
    "  --prompt TEXT          the text to go on with, or --prompt-ids 1,2,3: its tokens (default: a new "
    "text)\n"
    "  --tokens N             at most so many (default: 200)\n"
    "  --temperature T        0: always the likeliest token; 1: by the model's probabilities (default: 0.8)\n"
    "  --top-k K              of the K likeliest alone; 0: of all (default: 0)\n"
    "  --seed S               the same seed, the same text (default: 0)\n"
    "  --step N|best|last     of that checkpoint, as with --export\n"
    "  --tokenizer DIR        where vocab.json and merges.txt are (default: the Hugging Face folder)\n"
    "  --logits               print the logits of the next token, and sample nothing\n"
    "what to time:\n"
    "  --micro-batches LIST   sizes, e.g. 1,2,4,8 (default: powers of two up to the batch that fit)\n"
    "  --force                also what is kept from before\n"
    "what to time by rules (see docs/simulator.md):\n"
    "  --form pp|dp           pipeline or data parallel, on --devices N\n"
    "  --micro-batch-fwd N    samples of a forward micro-batch; --micro-batch-bwd N: of a backward one\n"
    "  --packs-fwd LIST       last layer of each forward pack, e.g. 4,9,14; --packs-bwd LIST: backward\n"
    "  --task-overhead TIME   at the end of every task (default: 40ms)\n"
    "what to look for:\n"
    "  --measure              with --probe: time copies between host and devices, and keep the result for "
    "later\n"
    "  --only LIST            with --probe: look at the free memory of these devices alone, such as 0,2\n"
    "what to print:\n"
    "  --json                 the result as JSON on standard output\n"
    "  --quiet                no progress\n"
    "  --dump                 with --plan: every instruction\n"
    "  --no-what-if           with --plan: not what one more GB or device would bring, which takes time\n"
    "  --out FILE             with --plan: write the plan as JSON; with --export: the weights; with --probe: "
    "a\n"
    "                         topology file; with --time: a profile\n"
    "  --svg FILE             with --plan: draw the timeline of an iteration, as the plan is simulated\n"
    "  --trace FILE           with --plan: write a Chrome trace of the simulated plan\n"
    "  --help, --version\n";

enum option_id {
    OPT_ATTEMPT = 256,
    OPT_BACKEND,
    OPT_BATCH,
    OPT_CHECK,
    OPT_DELAY_SEED,
    OPT_DEVICES,
    OPT_DEVICE_MEMORY,
    OPT_DIR,
    OPT_DUMP,
    OPT_EXPORT,
    OPT_FORCE,
    OPT_FORM,
    OPT_HELP,
    OPT_HF,
    OPT_HOST_MEMORY,
    OPT_JOB,
    OPT_JSON,
    OPT_LINK,
    OPT_LOGITS,
    OPT_MACHINE,
    OPT_MEASURE,
    OPT_MICRO_BATCH,
    OPT_MICRO_BATCHES,
    OPT_MICRO_BATCH_BWD,
    OPT_MICRO_BATCH_FWD,
    OPT_NO_WHAT_IF,
    OPT_OBJECTIVE,
    OPT_ONLY,
    OPT_OPTIMIZER_ON,
    OPT_OUT,
    OPT_OUTPUT,
    OPT_PACKS_BWD,
    OPT_PACKS_FWD,
    OPT_PEER,
    OPT_PLAN,
    OPT_PLANNING_MEMORY,
    OPT_PLAN_PROFILE,
    OPT_POLICY,
    OPT_PROBE,
    OPT_PROFILE,
    OPT_PROMPT,
    OPT_PROMPT_IDS,
    OPT_QUIET,
    OPT_RULES,
    OPT_RUN,
    OPT_SAMPLE,
    OPT_SEED,
    OPT_SERVE,
    OPT_SHARD,
    OPT_STEP,
    OPT_SVG,
    OPT_TASK_OVERHEAD,
    OPT_TEMPERATURE,
    OPT_THREADS,
    OPT_TIME,
    OPT_TOKENIZER,
    OPT_TOKENS,
    OPT_TOP_K,
    OPT_TRACE,
    OPT_TRACE_STEPS,
    OPT_VERSION,
};

static const struct option options[] = {
    {"attempt", required_argument, NULL, OPT_ATTEMPT},
    {"backend", required_argument, NULL, OPT_BACKEND},
    {"batch", required_argument, NULL, OPT_BATCH},
    {"check", required_argument, NULL, OPT_CHECK},
    {"delay-seed", required_argument, NULL, OPT_DELAY_SEED},
    {"device-memory", required_argument, NULL, OPT_DEVICE_MEMORY},
    {"devices", required_argument, NULL, OPT_DEVICES},
    {"dir", required_argument, NULL, OPT_DIR},
    {"dump", no_argument, NULL, OPT_DUMP},
    {"export", required_argument, NULL, OPT_EXPORT},
    {"force", no_argument, NULL, OPT_FORCE},
    {"form", required_argument, NULL, OPT_FORM},
    {"help", no_argument, NULL, OPT_HELP},
    {"hf", required_argument, NULL, OPT_HF},
    {"host-memory", required_argument, NULL, OPT_HOST_MEMORY},
    {"job", required_argument, NULL, OPT_JOB},
    {"json", no_argument, NULL, OPT_JSON},
    {"link", required_argument, NULL, OPT_LINK},
    {"logits", no_argument, NULL, OPT_LOGITS},
    {"machine", required_argument, NULL, OPT_MACHINE},
    {"measure", no_argument, NULL, OPT_MEASURE},
    {"micro-batch", required_argument, NULL, OPT_MICRO_BATCH},
    {"micro-batch-bwd", required_argument, NULL, OPT_MICRO_BATCH_BWD},
    {"micro-batch-fwd", required_argument, NULL, OPT_MICRO_BATCH_FWD},
    {"micro-batches", required_argument, NULL, OPT_MICRO_BATCHES},
    {"no-what-if", no_argument, NULL, OPT_NO_WHAT_IF},
    {"objective", required_argument, NULL, OPT_OBJECTIVE},
    {"only", required_argument, NULL, OPT_ONLY},
    {"optimizer-on", required_argument, NULL, OPT_OPTIMIZER_ON},
    {"out", required_argument, NULL, OPT_OUT},
    {"output", required_argument, NULL, OPT_OUTPUT},
    {"packs-bwd", required_argument, NULL, OPT_PACKS_BWD},
    {"packs-fwd", required_argument, NULL, OPT_PACKS_FWD},
    {"peer", required_argument, NULL, OPT_PEER},
    {"plan", required_argument, NULL, OPT_PLAN},
    {"planning-memory", required_argument, NULL, OPT_PLANNING_MEMORY},
    {"plan-profile", required_argument, NULL, OPT_PLAN_PROFILE},
    {"policy", required_argument, NULL, OPT_POLICY},
    {"probe", no_argument, NULL, OPT_PROBE},
    {"profile", required_argument, NULL, OPT_PROFILE},
    {"prompt", required_argument, NULL, OPT_PROMPT},
    {"prompt-ids", required_argument, NULL, OPT_PROMPT_IDS},
    {"quiet", no_argument, NULL, OPT_QUIET},
    {"rules", required_argument, NULL, OPT_RULES},
    {"run", required_argument, NULL, OPT_RUN},
    {"sample", required_argument, NULL, OPT_SAMPLE},
    {"seed", required_argument, NULL, OPT_SEED},
    {"serve", required_argument, NULL, OPT_SERVE},
    {"shard", required_argument, NULL, OPT_SHARD},
    {"step", required_argument, NULL, OPT_STEP},
    {"svg", required_argument, NULL, OPT_SVG},
    {"task-overhead", required_argument, NULL, OPT_TASK_OVERHEAD},
    {"temperature", required_argument, NULL, OPT_TEMPERATURE},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"time", required_argument, NULL, OPT_TIME},
    {"tokenizer", required_argument, NULL, OPT_TOKENIZER},
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"top-k", required_argument, NULL, OPT_TOP_K},
    {"trace", required_argument, NULL, OPT_TRACE},
    {"trace-steps", required_argument, NULL, OPT_TRACE_STEPS},
    {"update", required_argument, NULL, OPT_OPTIMIZER_ON},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

struct command {
    int verb;         /* OPT_CHECK, OPT_EXPORT, OPT_PLAN, OPT_PLAN_PROFILE, ...; 0: none yet */
    bool trace_steps; /* were given */
    bool backend;     /* was given */
    bool micro_batch; /* was given */
    bool sample;      /* an option of --sample was given */
    struct verb_options o;
};

static int parse_number(const char *text, const char *option, uint64_t least, uint64_t most, uint64_t *ret,
                        struct err *err)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || v < least || v > most)
        return err_set_at(err, -EINVAL, option, "expected a whole number from %llu to %llu, found \"%s\"",
                          (unsigned long long)least, (unsigned long long)most, text);
    *ret = v;
    return 0;
}

static int parse_name(const char *text, const char *option, const char *const *names, int *ret,
                      struct err *err)
{
    int n = 0;
    for (; names[n] != NULL; n++) {
        if (strcmp(names[n], text) != 0)
            continue;
        *ret = n;
        return 0;
    }
    const char *near = json_did_you_mean(text, names, n);
    return err_set_at(err, -EINVAL, option, "unknown name \"%s\"%s%s%s; see --help", text,
                      near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static int parse_u32(const char *text, const char *option, uint32_t least, uint32_t most, uint32_t *ret,
                     struct err *err)
{
    uint64_t v = 0;
    int r = parse_number(text, option, least, most, &v, err);
    if (r == 0)
        *ret = (uint32_t)v;
    return r;
}

static int parse_size(const char *text, const char *option, uint64_t *ret, struct err *err)
{
    uint64_t v = 0;
    int r = json_parse_bytes(text, option, &v, err);
    if (r == 0 && v == 0)
        r = err_set_at(err, -EINVAL, option, "must be more than 0; leave it out for the spec's");
    if (r == 0)
        *ret = v;
    return r;
}

/* "0,2": a bit for each. */
static int parse_list(const char *text, const char *option, uint64_t *ret, struct err *err)
{
    uint64_t all = 0;
    for (const char *at = text;; at++) {
        char *end;
        unsigned long v = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : DEVICE_MAX;
        if (v >= DEVICE_MAX || (*end != ',' && *end != '\0'))
            return err_set_at(err, -EINVAL, option,
                              "expected numbers below %d, separated by commas, found \"%s\"", DEVICE_MAX,
                              text);
        all |= UINT64_C(1) << v;
        at = end;
        if (*at == '\0')
            break;
    }
    *ret = all;
    return 0;
}

#define VERBS                                                                                                \
    "--check, --plan and --run, or --export, or --plan-profile, or --probe, or --rules, or --sample, or "    \
    "--serve, or --time"

static int set_verb(struct command *c, int verb, const char *path, struct err *err)
{
    if (c->verb != 0)
        return err_set(err, -EINVAL, "only one of " VERBS);
    c->verb = verb;
    if (verb == OPT_EXPORT)
        c->o.export_dir = path;
    else if (verb == OPT_PLAN_PROFILE)
        c->o.profile_path = path;
    else if (verb == OPT_SERVE)
        c->o.socket = path;
    else if (verb == OPT_RULES)
        c->o.rules.name = path;
    else if (verb == OPT_SAMPLE)
        c->o.sample.source = path;
    else if (verb != OPT_PROBE)
        c->o.job.spec_path = path;
    return 0;
}

static int parse_temperature(const char *text, double *ret, struct err *err)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end != '\0' || !(v >= 0 && v <= 1000))
        return err_set_at(err, -EINVAL, "--temperature", "expected a number from 0 to 1000, found \"%s\"",
                          text);
    *ret = v;
    return 0;
}

/* Those of --sample. 1: it is none of them. */
static int parse_sample_option(struct sample_options *s, int id, const char *arg, struct err *err)
{
    switch (id) {
    case OPT_LOGITS:
        s->logits = true;
        return 0;
    case OPT_PROMPT:
        s->prompt = arg;
        return 0;
    case OPT_PROMPT_IDS:
        s->prompt_ids = arg;
        return 0;
    case OPT_SEED:
        return parse_number(arg, "--seed", 0, UINT64_MAX, &s->seed, err);
    case OPT_TEMPERATURE:
        return parse_temperature(arg, &s->temperature, err);
    case OPT_TOKENIZER:
        s->tokenizer = arg;
        return 0;
    case OPT_TOKENS:
        return parse_u32(arg, "--tokens", 1, 1u << 24, &s->tokens, err);
    case OPT_TOP_K:
        return parse_u32(arg, "--top-k", 0, UINT32_MAX, &s->top_k, err);
    }
    return 1;
}

/* Those of --rules. */
static int parse_rules_option(struct verb_options *o, int id, const char *arg, struct err *err)
{
    struct rules_options *r = &o->rules;
    switch (id) {
    case OPT_FORM:
        r->form = arg;
        return 0;
    case OPT_MICRO_BATCH_BWD:
        return parse_u32(arg, "--micro-batch-bwd", 1, INT32_MAX, &r->micro_bwd, err);
    case OPT_MICRO_BATCH_FWD:
        return parse_u32(arg, "--micro-batch-fwd", 1, INT32_MAX, &r->micro_fwd, err);
    case OPT_PACKS_BWD:
        r->packs_bwd = arg;
        return 0;
    case OPT_PACKS_FWD:
        r->packs_fwd = arg;
        return 0;
    case OPT_TASK_OVERHEAD:
        r->task_overhead = arg;
        return 0;
    }
    return err_set(err, -EINVAL, "see tutti-worker --help");
}

/* "1,2,4,8": ascending. */
static int parse_sizes(const char *text, struct verb_options *o, struct err *err)
{
    const char *at = text;
    o->n_micro_batches = 0;
    for (;;) {
        char *end;
        errno = 0;
        unsigned long v = strtoul(at, &end, 10);
        bool ascends = o->n_micro_batches == 0 || v > o->micro_batches[o->n_micro_batches - 1];
        if (errno != 0 || at[0] < '0' || at[0] > '9' || v < 1 || v > SPEC_MAX_DIM || !ascends ||
            (*end != ',' && *end != '\0'))
            return err_set_at(err, -EINVAL, "--micro-batches",
                              "expected sizes that ascend, such as 1,2,4,8; found \"%s\"", text);
        if (o->n_micro_batches == VERB_MAX_SIZES)
            return err_set_at(err, -EINVAL, "--micro-batches", "at most %d sizes", VERB_MAX_SIZES);
        o->micro_batches[o->n_micro_batches++] = (uint32_t)v;
        if (*end == '\0')
            return 0;
        at = end + 1;
    }
}

static int parse_policy(struct command *c, const char *arg, struct err *err)
{
    c->o.all_policies = strcmp(arg, "all") == 0;
    return c->o.all_policies ? 0 : parse_name(arg, "--policy", policy_names, &c->o.job.policy, err);
}

static int parse_option(struct command *c, int id, const char *arg, struct err *err)
{
    struct job_options *j = &c->o.job;
    int name = 0, r;
    switch (id) {
    case OPT_CHECK:
    case OPT_EXPORT:
    case OPT_PLAN:
    case OPT_PLAN_PROFILE:
    case OPT_PROBE:
    case OPT_RULES:
    case OPT_RUN:
    case OPT_SAMPLE:
    case OPT_SERVE:
    case OPT_TIME:
        return set_verb(c, id, arg, err);
    case OPT_BATCH:
        return parse_u32(arg, "--batch", 1, SPEC_MAX_DIM, &c->o.batch, err);
    case OPT_MICRO_BATCH:
        c->micro_batch = true;
        return strcmp(arg, "auto") == 0
                   ? 0
                   : parse_u32(arg, "--micro-batch", 1, SPEC_MAX_DIM, &c->o.micro_batch, err);
    case OPT_MICRO_BATCHES:
        return parse_sizes(arg, &c->o, err);
    case OPT_OBJECTIVE:
        r = parse_name(arg, "--objective", plan_objective_names, &name, err);
        j->objective = (enum plan_objective)name;
        return r;
    case OPT_PROFILE:
        j->profile = arg;
        return 0;
    case OPT_JOB:
        return parse_number(arg, "--job", 1, 1ull << 53, &c->o.job_id, err);
    case OPT_ATTEMPT:
        return parse_number(arg, "--attempt", 1, 1ull << 53, &c->o.attempt, err);
    case OPT_BACKEND:
        r = parse_name(arg, "--backend", backend_choice_names, &name, err);
        j->backend = (enum backend_choice)name;
        c->backend = true;
        return r;
    case OPT_MACHINE:
        j->machine = arg;
        return 0;
    case OPT_MEASURE:
        c->o.measure = true;
        return 0;
    case OPT_ONLY:
        return parse_list(arg, "--only", &c->o.only, err);
    case OPT_DEVICES:
        return parse_u32(arg, "--devices", 1, DEVICE_MAX, &j->devices, err);
    case OPT_THREADS:
        return parse_u32(arg, "--threads", 1, 1024, &j->threads, err);
    case OPT_DELAY_SEED:
        return parse_number(arg, "--delay-seed", 0, UINT64_MAX, &j->delay_seed, err);
    case OPT_DEVICE_MEMORY:
        return parse_size(arg, "--device-memory", &j->device_bytes, err);
    case OPT_HOST_MEMORY:
        return parse_size(arg, "--host-memory", &j->host_bytes, err);
    case OPT_PLANNING_MEMORY:
        return parse_size(arg, "--planning-memory", &j->planning_bytes, err);
    case OPT_LINK:
        return parse_size(arg, "--link", &j->link_bytes_per_s, err);
    case OPT_PEER:
        return parse_size(arg, "--peer", &j->peer_bytes_per_s, err);
    case OPT_POLICY:
        return parse_policy(c, arg, err);
    case OPT_OPTIMIZER_ON:
        return parse_name(arg, "--optimizer-on", update_place_names, &j->update, err);
    case OPT_OUTPUT:
        j->output = arg;
        return 0;
    case OPT_DIR:
        j->dir = arg;
        return 0;
    case OPT_STEP:
        c->o.export_step = arg;
        return 0;
    case OPT_OUT:
        c->o.plan_path = arg;
        return 0;
    case OPT_HF:
        c->o.hf_dir = arg;
        return 0;
    case OPT_SHARD:
        return parse_size(arg, "--shard", &c->o.shard_bytes, err);
    case OPT_SVG:
        c->o.svg_path = arg;
        return 0;
    case OPT_TRACE:
        c->o.trace_path = arg;
        return 0;
    case OPT_TRACE_STEPS:
        c->trace_steps = true;
        return parse_u32(arg, "--trace-steps", 0, 1000, &c->o.trace_steps, err);
    case OPT_JSON:
        c->o.json = true;
        return 0;
    case OPT_QUIET:
        c->o.quiet = true;
        return 0;
    case OPT_DUMP:
        c->o.dump = true;
        return 0;
    case OPT_NO_WHAT_IF:
        c->o.no_what_if = true;
        return 0;
    case OPT_FORCE:
        c->o.force = true;
        return 0;
    }
    r = parse_sample_option(&c->o.sample, id, arg, err);
    c->sample |= r <= 0;
    return r <= 0 ? r : parse_rules_option(&c->o, id, arg, err);
}

/* What getopt could not make sense of: an unknown option, or one without its value. */
static int refuse_option(int id, char **argv, struct err *err)
{
    const char *word = argv[optind - 1], *names[sizeof options / sizeof options[0]], *near;
    int n = 0;
    if (id == ':')
        return err_set(err, -EINVAL, "%s needs a value; see tutti-worker --help", word);
    for (; options[n].name != NULL; n++)
        names[n] = options[n].name;
    near = strncmp(word, "--", 2) == 0 ? json_did_you_mean(word + 2, names, n) : NULL;
    return err_set(err, -EINVAL, "unknown option %s%s%s%s; see tutti-worker --help", word,
                   near ? "; did you mean --" : "", near ? near : "", near ? "?" : "");
}

static int fail(const struct command *c, int code, const struct err *err)
{
    return report_error(&c->o, code, err, 0, true);
}

/* A file that gets the number 0, 1 or 2 would be written to by whoever prints. */
static void open_standard_descriptors(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

/* How mistakes are reported must be known before the first one is met. */
static bool asks_for_json(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--json") == 0)
            return true;
    return false;
}

/* Options that mean something to one verb only. */
static int check_options(const struct command *c, struct err *err)
{
    const struct verb_options *o = &c->o;
    bool plans = c->verb == OPT_PLAN || c->verb == OPT_PLAN_PROFILE;
    bool out = o->plan_path != NULL && c->verb != OPT_EXPORT && c->verb != OPT_PROBE && c->verb != OPT_TIME;
    bool drawn = o->svg_path != NULL || o->trace_path != NULL;
    if (!plans && (o->dump || o->no_what_if || drawn || out))
        return err_set(err, -EINVAL,
                       "--dump, --no-what-if, --out, --svg and --trace go with --plan (--out also with "
                       "--export, --probe and --time)");
    if (o->all_policies && (!plans || o->dump || drawn || out))
        return err_set_at(
            err, -EINVAL, "--policy",
            "all goes with --plan, and without --dump, --out, --svg and --trace, which are of one plan");
    if (c->verb != OPT_PLAN_PROFILE && ((o->batch > 0 && c->verb != OPT_RULES) || c->micro_batch))
        return err_set(err, -EINVAL,
                       "--batch and --micro-batch go with --plan-profile; a job file gives its own");
    if (c->verb == OPT_PLAN_PROFILE && (c->backend || o->job.machine != NULL || o->job.profile != NULL))
        return err_set(err, -EINVAL,
                       "--plan-profile uses no machine; remove --backend, --machine and --profile");
    if (c->verb != OPT_TIME && o->n_micro_batches > 0)
        return err_set(err, -EINVAL, "--micro-batches goes with --time");
    if (c->verb != OPT_PROBE && o->measure)
        return err_set(err, -EINVAL, "--measure goes with --probe");
    if (o->only != 0 && (c->verb != OPT_PROBE || o->measure))
        return err_set(err, -EINVAL, "--only goes with --probe, without --measure");
    if ((o->export_step != NULL && c->verb != OPT_EXPORT && c->verb != OPT_SAMPLE) ||
        (o->force && c->verb != OPT_EXPORT && c->verb != OPT_TIME))
        return err_set(err, -EINVAL, "--step and --force go with --export (--step also with --sample)");
    if (o->hf_dir != NULL && c->verb != OPT_EXPORT)
        return err_set(err, -EINVAL, "--hf goes with --export");
    if (o->shard_bytes > 0 && o->hf_dir == NULL)
        return err_set(err, -EINVAL, "--shard goes with --export and --hf; a single file is not split");
    if (c->verb == OPT_EXPORT && (o->plan_path == NULL) == (o->hf_dir == NULL))
        return o->hf_dir == NULL
                   ? err_set(err, -EINVAL, "--export needs --out FILE, or --hf FOLDER")
                   : err_set(err, -EINVAL, "--out writes a file and --hf a folder; give one of them");
    if (c->verb != OPT_SAMPLE && c->sample)
        return err_set(err, -EINVAL,
                       "--logits, --prompt, --prompt-ids, --seed, --temperature, --tokenizer, --tokens and "
                       "--top-k go with --sample");
    if (o->sample.prompt != NULL && o->sample.prompt_ids != NULL)
        return err_set(err, -EINVAL, "--prompt and --prompt-ids both give the prompt; give one of them");
    if ((c->verb == OPT_SERVE) != (o->job_id != 0) || (c->verb == OPT_SERVE) != (o->attempt != 0))
        return err_set(err, -EINVAL, "--serve, --job and --attempt go together");
    const struct rules_options *r = &o->rules;
    if (c->verb != OPT_RULES && (r->form != NULL || r->packs_fwd != NULL || r->packs_bwd != NULL ||
                                 r->task_overhead != NULL || r->micro_fwd != 0 || r->micro_bwd != 0))
        return err_set(err, -EINVAL,
                       "--form, --micro-batch-fwd, --micro-batch-bwd, --packs-fwd, --packs-bwd and "
                       "--task-overhead go with --rules");
    if (c->verb != OPT_RUN && c->trace_steps)
        return err_set(err, -EINVAL, "--trace-steps goes with --run");
    return 0;
}

static int run_verb(const struct command *c)
{
    struct err err = {0};
    int r = check_options(c, &err);
    if (r < 0)
        return fail(c, r, &err);
    switch (c->verb) {
    case OPT_CHECK:
        return verb_check(&c->o);
    case OPT_EXPORT:
        return verb_export(&c->o);
    case OPT_PLAN:
        return verb_plan(&c->o);
    case OPT_PLAN_PROFILE:
        return verb_plan_profile(&c->o);
    case OPT_PROBE:
        return verb_probe(&c->o);
    case OPT_RULES:
        return verb_rules(&c->o);
    case OPT_RUN:
        return verb_run(&c->o);
    case OPT_SAMPLE:
        return verb_sample(&c->o);
    case OPT_SERVE:
        return verb_serve(&c->o);
    case OPT_TIME:
        return verb_time(&c->o);
    }
    if (c->o.json)
        return fail(c, err_set(&err, -EINVAL, "one of " VERBS " is needed; see --help"), &err);
    print_error("%s", usage);
    return EXIT_INVALID;
}

static int print_words(const char *text)
{
    struct strbuf b = {0};
    strbuf_add(&b, text);
    return print_buffer(&b);
}

int main(int argc, char **argv)
{
    struct command c = {.o.job = {.policy = -1, .update = -1},
                        .o.json = asks_for_json(argc, argv),
                        .o.trace_steps = RUN_TRACE_STEPS,
                        .o.sample = {.tokens = 200, .temperature = 0.8}};
    struct err err = {0};
    int id;
    open_standard_descriptors();
    log_init(LOG_INFO, getenv("JOURNAL_STREAM") != NULL);
    opterr = 0;
    while ((id = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        if (id == OPT_HELP) {
            return print_words(usage);
        }
        if (id == OPT_VERSION) {
            return print_words("tutti-worker " TUTTI_VERSION "\n");
        }
        int r = id == '?' || id == ':' ? refuse_option(id, argv, &err) : parse_option(&c, id, optarg, &err);
        if (r < 0)
            return fail(&c, r, &err);
    }
    if (optind < argc)
        return fail(
            &c, err_set(&err, -EINVAL, "unexpected argument \"%s\"; see tutti-worker --help", argv[optind]),
            &err);
    /* A topology file names its backend; what the environment would rather have does not matter then. */
    if (!c.backend && c.o.job.machine == NULL && discover_default(&c.o.job.backend, &err) < 0)
        return fail(&c, err.code, &err);
    return run_verb(&c);
}
