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
 *     4. verb_check_options checks that the options in `needs` were given. It calls the verb's own `check`
 *        after that.
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

/* Exit codes of tutti-worker. After a signal it is 128 plus the signal's number, as shells expect. */
enum exit_code {
    EXIT_DONE = 0,
    /* The job or the verb failed while it was running. */
    EXIT_FAILED = 1,
    EXIT_INVALID = 2, /* wrong usage, or an invalid spec */
    /* The job does not fit the devices or the host memory. */
    EXIT_MISFIT = 5,
    /* The directory or the checkpoint does not exist (--export and --sample only). */
    EXIT_NOT_FOUND = 6,
};

#define TIME_MAX_SIZES 32 /* most sizes that --time measures */

/* ---- the values of the options ---- */

/* Options of --plan and --plan-profile. They say what to plan and which parts of the plan to print. */
struct plan_options {
    /* --policy all: plan with every policy and compare the plans. */
    bool all_policies;
    bool dump; /* print every instruction */
    /* Do not plan again with more memory or another device. */
    bool no_what_if;
    /* --out: path of the plan as JSON. NULL if it is not written. */
    const char *json_path;
    /* Path of a picture of one iteration. NULL if it is not drawn. */
    const char *svg_path;
    /* Path of a Chrome trace of the simulated plan. NULL if it is not written. */
    const char *trace_path;
};

/* Options of --plan-profile alone. */
struct profile_plan_options {
    const char *profile_path; /* the profile to plan from */
    uint32_t batch;           /* number of samples in a step */
    /* Number of samples in a micro-batch. 0 to choose the best size. */
    uint32_t micro_batch;
};

/* Options of --export. Either file_path or hf_dir is given, but not both. */
struct export_options {
    const char *dir;       /* a job's output directory */
    const char *file_path; /* --out: the safetensors file to write */
    const char *hf_dir;    /* the Hugging Face folder to write */
    /* With hf_dir: most bytes of tensors in one file. 0 means the default of hf_save. */
    uint64_t shard_bytes;
    const char *step; /* which weights: see weights_open */
    bool force;       /* replace existing files */
};

/* Options of --probe. */
struct probe_options {
    bool measure; /* time the copies between host and devices */
    /* Bit i is set to ask device i for its free memory. 0 to ask all devices. */
    uint64_t only;
    /* --out: path of the topology file. NULL if the file is not written. */
    const char *topology_path;
};

/* Options of --rules. They describe a schedule. Most of them are text that verb_rules.c parses. */
struct rules_options {
    /* Whose rules to use: an index into rules_names of verb_rules.c. 0 means Harmony. */
    int system;
    enum rules_form form;
    /* The last layer of each pack, such as "4,9,14". */
    const char *packs_fwd, *packs_bwd;
    /* Time at the end of every task, such as "40ms". NULL means the default. */
    const char *task_overhead;
    uint32_t batch; /* number of samples in a step */
    /* Number of samples in a forward and in a backward micro-batch. */
    uint32_t micro_fwd, micro_bwd;
};

/* Options of --sample. They give the text to continue, and say how to choose the next tokens. */
struct sample_options {
    /* A job's output directory, or a Hugging Face folder. */
    const char *source;
    const char *step; /* which weights of a job: see weights_open */
    /* The beginning of the text, as text or as token ids. If both are NULL, a new text is started. */
    const char *prompt, *prompt_ids;
    /* Folder with vocab.json and merges.txt. NULL means the folder of the source. */
    const char *tokenizer;
    uint32_t tokens;    /* maximum number of tokens to sample */
    double temperature; /* 0 means the likeliest token */
    /* Sample among this many of the likeliest tokens. 0 means all tokens. */
    uint32_t top_k;
    uint64_t seed; /* seed of the random choices */
    /* Print the logits of the next token, and do not sample. */
    bool logits;
};

/* Options of --serve. */
struct serve_options {
    const char *socket; /* the daemon's worker.sock */
    uint64_t job;       /* id of the job, from 1 */
    /* Number of this launch of the job, starting at 1. */
    uint64_t attempt;
};

/* Options of --time. */
struct time_options {
    uint32_t n_sizes;               /* 0 means that verb_time.c chooses them */
    uint32_t sizes[TIME_MAX_SIZES]; /* micro-batch sizes to measure, ascending */
    bool force;                     /* measure again even if cached */
    /* --out: path of the profile. NULL if it is not written. */
    const char *profile_path;
};

/* The values of all options on one command line. main.c fills them in, and they never change afterwards.
 * The strings point into argv. Only the members of the current verb have a meaning. */
struct verb_options {
    /* Print the result and the errors as JSON on stdout. */
    bool json;
    bool quiet; /* print no progress */
    /* The options about where a job runs (where_table). */
    struct job_options job;
    struct plan_options plan;
    struct profile_plan_options profile_plan;
    struct export_options export;
    struct probe_options probe;
    struct rules_options rules;
    /* --run: number of steps to measure for trace.json. 0 to write no trace. */
    uint32_t trace_steps;
    struct sample_options sample;
    struct serve_options serve;
    struct time_options time;
};

/* ---- options ---- */

/* How the value of an option is parsed, and the type of the member that stores the value. */
enum option_kind {
    OPTION_FLAG, /* no value; stores true in a bool */
    /* Any text. A pointer to the text is stored in a const char *. */
    OPTION_TEXT,
    /* A whole number from `least` to `most`, stored in a uint32_t. */
    OPTION_U32,
    /* A whole number from `least` to `most`, stored in a uint64_t. */
    OPTION_U64,
    /* A number of bytes above 0, such as 64MiB, stored in a uint64_t. */
    OPTION_SIZE,
    /* One of `names`. The index of the name is stored in an int or an enum. */
    OPTION_NAME,
    /* The function `parse` reads the value and stores it. */
    OPTION_PARSED,
};

/* One option of tutti-worker. The help shows `--name value`, the choices in `names`, and `help`. An option
 * without `help` is not listed, because another row has the same name. */
struct worker_option {
    /* Name without the dashes, such as "devices". NULL marks the end of a table. */
    const char *name;
    /* Name of the value in the help, such as "N". NULL for OPTION_FLAG. */
    const char *value;
    const char *help;
    enum option_kind kind;
    /* OPTION_AT(member): offset of the value in struct verb_options. Not used if there is a `parse`
     * function. */
    size_t at;
    uint64_t least, most;
    /* NULL-terminated. Used by OPTION_NAME. With `parse`, the names are only printed in the help. */
    const char *const *names;
    int (*parse)(const char *text, struct verb_options *o, struct err *err);
};

#define OPTION_AT(member) offsetof(struct verb_options, member)

/* A list of options with its own heading in the help. */
struct option_table {
    const char *title;
    const struct worker_option *rows;
};

/* Options about where a job runs, such as --devices. Each verb takes some of them. */
extern const struct option_table where_table;
/* The value of `where` for a verb that takes all options of where_table. */
extern const char *const where_all[1];
/* Options that --plan and --plan-profile share (verb_plan.c), and a function that checks whether these
 * options contradict each other. */
extern const struct option_table plan_table;
int plan_options_check(const struct verb_options *o, struct err *err);
/* Options that every verb takes: --json and --quiet. */
extern const struct option_table common_table;

/* Parses `text`, the value of an option, and stores it in *o. OPTION_FLAG ignores it. Returns -EINVAL for
 * a wrong value, and the option's name is the path of `err`. */
int options_store(const struct worker_option *option, const char *text, struct verb_options *o,
                  struct err *err);

/* ---- verbs ---- */

/* One form of a verb's command line, such as "JOB.json [options]", and a summary of what it does. */
struct verb_form {
    const char *args, *summary;
};

/* A verb of tutti-worker, such as --plan. */
struct worker_verb {
    /* The verb as an option. Its value, if any, is stored like that of other options. */
    struct worker_option word;
    /* Forms for the help. The last form has no args. */
    struct verb_form forms[3];
    const struct option_table *tables[3]; /* the verb's own options; NULL-terminated */
    /* Names of the options in where_table that the verb takes. where_all means all, and NULL means none. */
    const char *const *where;
    /* Names of the options that must be given. NULL if there are none. */
    const char *const *needs;
    /* Sets the defaults that are not zero. May be NULL. */
    void (*set_defaults)(struct verb_options *o);
    /* Checks whether the stored options contradict each other. Returns 0 or -EINVAL. May be NULL. */
    int (*check)(const struct verb_options *o, struct err *err);
    /* Prints the result on stdout, and progress and errors on stderr. Returns the exit code. */
    int (*run)(const struct verb_options *o);
};

extern const struct worker_verb verb_check, verb_export, verb_plan, verb_plan_profile, verb_probe, verb_rules,
    verb_run, verb_sample, verb_serve, verb_time;

#define VERB_COUNT 10
/* All verbs in alphabetical order. */
extern const struct worker_verb *const worker_verbs[VERB_COUNT];

/* Returns the verb whose word is `name`, without dashes, or NULL if there is none. */
const struct worker_verb *verb_find(const char *name);

/* Finds an option of the verb by its name. Returns NULL if the verb does not take it. The verb's own
 * options come first. */
const struct worker_option *verb_find_option(const struct worker_verb *v, const char *name);

/* Refuses an option that this verb does not take. Returns -EINVAL. The message names the verbs that take
 * it. */
int verb_refuse_option(const struct worker_verb *v, const char *name, struct err *err);

/* Checks that every option in v->needs was given, then calls v->check. `given` tells whether an option was
 * given. Returns 0 or -EINVAL. */
int verb_check_options(const struct worker_verb *v, const struct verb_options *o,
                       bool (*given)(const void *line, const char *name), const void *line, struct err *err);

/* Appends the names of all verbs, such as "--check, --export, ... and --time". `conjunction` is the word
 * before the last name. */
void verb_add_names(struct strbuf *b, const char *conjunction);

/* Appends the text of --help. */
void verb_add_help(struct strbuf *b);

#endif
