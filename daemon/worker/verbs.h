/* The verbs of tutti-worker, the options that each verb takes, and the exit codes.
 *
 * A verb is one file, verb_NAME.c, that defines one constant struct worker_verb: the verb's word on the
 * command line, its options, its checks, its line of the help, and the function that does the work. The array
 * worker_verbs (verbs.c) lists all verbs. Parsing, the help text and the refusal of an option that does not
 * belong to the verb all follow from these structs, so a new verb or option needs no other code.
 *
 * How a command line is read, in this order:
 *     1. main.c splits argv into options with their values and finds the one verb among them.
 *     2. Each option is looked up with verb_find_option. An option that the verb does not take is refused,
 *        with a message that names the verbs that take it.
 *     3. options_store (options.c) parses the value and stores it in a struct verb_options.
 *     4. verb_check checks that the options in `needs` were given, and then calls the verb's own `check`.
 *     5. The verb's `run` does the work and returns the exit code.
 */
#ifndef WORKER_VERBS_H
#define WORKER_VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strbuf.h"
#include "daemon/worker/job.h"
#include "scheduler/predict/harmony_rules.h"

/* Exit codes of tutti-worker. A job that a signal stopped ends with 128 plus the signal's number, as
 * shells expect. */
enum exit_code {
    EXIT_DONE = 0,
    EXIT_FAILED = 1,    /* the job or the verb failed while it ran */
    EXIT_INVALID = 2,   /* wrong usage, or an invalid spec */
    EXIT_MISFIT = 5,    /* the job does not fit the devices or the host memory */
    EXIT_NOT_FOUND = 6, /* --export, --sample: the directory or the checkpoint does not exist */
};

#define TIME_MAX_SIZES 32 /* micro-batch sizes that --time measures at most */

/* ---- the values of the options ---- */

/* Options of --plan and --plan-profile: what to plan and what to print of the plan. */
struct plan_options {
    bool all_policies;      /* --policy all: plan with every policy and compare the plans */
    bool dump;              /* print every instruction */
    bool no_what_if;        /* do not plan again with more memory or another device */
    const char *json_path;  /* --out: file for the plan as JSON; NULL: not written */
    const char *svg_path;   /* file for a picture of one iteration; NULL: not drawn */
    const char *trace_path; /* file for a Chrome trace of the simulated plan; NULL: not written */
};

/* Options of --plan-profile alone. */
struct profile_plan_options {
    const char *profile_path; /* the profile to plan from */
    uint32_t batch;           /* samples of a step */
    uint32_t micro_batch;     /* samples of a micro-batch; 0: the best size is chosen */
};

/* Options of --export. Exactly one of file_path and hf_dir is given. */
struct export_options {
    const char *dir;       /* a job's output directory */
    const char *file_path; /* --out: the safetensors file to write */
    const char *hf_dir;    /* the Hugging Face folder to write */
    uint64_t shard_bytes;  /* with hf_dir: bytes of tensors in one file at most; 0: the default of hf_save */
    const char *step;      /* which weights: see weights_open */
    bool force;            /* replace what exists */
};

/* Options of --probe. */
struct probe_options {
    bool measure;              /* time the copies between host and devices */
    uint64_t only;             /* bit i: ask device i how much of its memory is free; 0: ask all devices */
    const char *topology_path; /* --out: the topology file to write; NULL: no file is written */
};

/* Options of --rules: a schedule, most of it as text that verb_rules.c parses. */
struct rules_options {
    int system; /* whose rules: an index into rules_names of verb_rules.c; 0: Harmony */
    enum rules_form form;
    const char *packs_fwd, *packs_bwd; /* last layer of each pack, such as "4,9,14" */
    const char *task_overhead;         /* time at the end of every task, such as "40ms"; NULL: the default */
    uint32_t batch;                    /* samples of a step */
    uint32_t micro_fwd, micro_bwd;     /* samples of a forward and of a backward micro-batch */
};

/* Options of --sample: the text to continue, and how to choose its tokens. */
struct sample_options {
    const char *source;              /* a job's output directory, or a Hugging Face folder */
    const char *step;                /* which weights of a job: see weights_open */
    const char *prompt, *prompt_ids; /* the beginning, as text or as token ids; both NULL: a new text */
    const char *tokenizer;           /* folder with vocab.json and merges.txt; NULL: the source's folder */
    uint32_t tokens;                 /* number of tokens to sample at most */
    double temperature;              /* 0: always take the likeliest token */
    uint32_t top_k;                  /* sample among the K likeliest tokens; 0: among all tokens */
    uint64_t seed;                   /* of the random choices */
    bool logits;                     /* print the logits of the next token and sample nothing */
};

/* Options of --serve. */
struct serve_options {
    const char *socket; /* the daemon's worker.sock */
    uint64_t job;       /* the job's id, from 1 */
    uint64_t attempt;   /* the number of this launch of the job, from 1 */
};

/* Options of --time. */
struct time_options {
    uint32_t n_sizes;               /* 0: verb_time.c chooses the sizes */
    uint32_t sizes[TIME_MAX_SIZES]; /* micro-batch sizes to measure, ascending */
    bool force;                     /* measure again what the cache already has */
    const char *profile_path;       /* --out: the profile to write; NULL: not written */
};

/* The values of all options of one command line. main.c fills it before the verb runs, and nobody changes
 * it afterwards. Its strings are those of argv. Only the members of the verb at hand have a meaning. */
struct verb_options {
    bool json;              /* print the result, and errors, as JSON on stdout */
    bool quiet;             /* print no progress */
    struct job_options job; /* the options about where a job runs (where_table) */
    struct plan_options plan;
    struct profile_plan_options profile_plan;
    struct export_options export;
    struct probe_options probe;
    struct rules_options rules;
    uint32_t trace_steps; /* --run: steps to measure for trace.json; 0: write none */
    struct sample_options sample;
    struct serve_options serve;
    struct time_options time;
};

/* ---- options ---- */

/* How the value of an option is read, and the type of the member that stores it. */
enum option_kind {
    OPTION_FLAG,   /* no value; stores true in a bool */
    OPTION_TEXT,   /* any text; stores a pointer to it in a const char * */
    OPTION_U32,    /* a whole number from `least` to `most`, in a uint32_t */
    OPTION_U64,    /* a whole number from `least` to `most`, in a uint64_t */
    OPTION_SIZE,   /* a number of bytes above 0, such as 64MiB, in a uint64_t */
    OPTION_NAME,   /* one of `names`; stores the index of the name in an int or an enum */
    OPTION_PARSED, /* the function `parse` reads it and stores it */
};

/* One option of tutti-worker. The help prints `--name value`, and beside it the names in `names`,
 * separated by commas and directly followed by `help`. An option without `help` is not listed, because a
 * row of the same name is. */
struct worker_option {
    const char *name;  /* without the dashes, such as "devices"; NULL ends a table */
    const char *value; /* what the help calls the value, such as "N"; NULL for OPTION_FLAG */
    const char *help;
    enum option_kind kind;
    size_t at; /* OPTION_AT(member): where in struct verb_options the value is stored; unused with `parse` */
    uint64_t least, most;
    const char *const *names; /* NULL-terminated; with OPTION_NAME, or with `parse` for the help alone */
    int (*parse)(const char *text, struct verb_options *o, struct err *err);
};

#define OPTION_AT(member) offsetof(struct verb_options, member)

/* A list of options with a heading of its own in the help. */
struct option_table {
    const char *title;
    const struct worker_option *rows;
};

/* Options about where a job runs, such as --devices: each verb takes some of them. */
extern const struct option_table where_table;
/* The value of `where` in a verb that takes all of them. */
extern const char *const where_all[1];
/* Options that --plan and --plan-profile share (verb_plan.c), and the check of these options against each
 * other. */
extern const struct option_table plan_table;
int plan_options_check(const struct verb_options *o, struct err *err);
/* Options that every verb takes: --json and --quiet. */
extern const struct option_table common_table;

/* Reads `text`, the value of an option (ignored for OPTION_FLAG), and stores it in *o. Returns -EINVAL,
 * with the option's name as the path of err, when the option does not accept the text. */
int options_store(const struct worker_option *option, const char *text, struct verb_options *o,
                  struct err *err);

/* ---- verbs ---- */

/* A form of a verb's command line: "JOB.json [options]", and what it does. */
struct verb_form {
    const char *args, *summary;
};

/* A verb of tutti-worker, such as --plan. */
struct worker_verb {
    struct worker_option word; /* the verb as an option; its value, if any, is stored like any other value */
    struct verb_form forms[3]; /* for the help; ends with a form without args */
    const struct option_table *tables[3]; /* the verb's own options; NULL-terminated */
    const char *const *where; /* names in where_table that the verb takes; where_all: all; NULL: none */
    const char *const *needs; /* names of the options that must be given; NULL: none */
    /* Sets the defaults that are not zero. May be NULL. */
    void (*set_defaults)(struct verb_options *o);
    /* Checks options against each other, after each of them was stored. Returns 0 or -EINVAL. May be NULL. */
    int (*check)(const struct verb_options *o, struct err *err);
    /* Prints the result on stdout, progress and errors on stderr. Returns the exit code. */
    int (*run)(const struct verb_options *o);
};

extern const struct worker_verb verb_check, verb_export, verb_plan, verb_plan_profile, verb_probe, verb_rules,
    verb_run, verb_sample, verb_serve, verb_time;

#define VERB_COUNT 10
/* All verbs in alphabetical order. */
extern const struct worker_verb *const worker_verbs[VERB_COUNT];

/* Returns the verb whose word is `name` (without the dashes), or NULL. */
const struct worker_verb *verb_find(const char *name);

/* Returns the verb's option of that name, the verb's own options first, or NULL when the verb does not
 * take it. */
const struct worker_option *verb_find_option(const struct worker_verb *v, const char *name);

/* Refuses an option that exists but that the verb does not take. Returns -EINVAL; the message names the
 * verbs that take the option. */
int verb_refuse_option(const struct worker_verb *v, const char *name, struct err *err);

/* Checks that every option in v->needs was given (`given` says so of one name), then calls v->check.
 * Returns 0 or -EINVAL. */
int verb_check_options(const struct worker_verb *v, const struct verb_options *o,
                       bool (*given)(const void *line, const char *name), const void *line, struct err *err);

/* Adds the names of all verbs, such as "--check, --export, ... and --time". `conjunction` is the word
 * before the last name. */
void verb_add_names(struct strbuf *b, const char *conjunction);

/* Adds the text of --help. */
void verb_add_help(struct strbuf *b);

#endif
