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

/* The exit codes of tutti-worker. If a signal ended the work, the exit code is 128 plus the signal's number,
 * as shells expect. */
enum exit_code {
    EXIT_DONE = 0,
    /* The job or another verb failed while it was running. */
    EXIT_FAILED = 1,
    EXIT_INVALID = 2, /* wrong usage, or an invalid spec */
    /* The job does not fit into the memory of the devices or of the host. */
    EXIT_MISFIT = 5,
    /* The directory or the checkpoint does not exist. Only --export and --sample return this code. */
    EXIT_NOT_FOUND = 6,
};

#define TIME_MAX_SIZES 32 /* most sizes that --time measures */

/* ---- the values of the options ---- */

/* The options of --plan and --plan-profile. They say what to plan and which parts of the plan to print. */
struct plan_options {
    /* True for --policy all: plan with every policy and compare the plans. */
    bool all_policies;
    bool dump; /* print every instruction */
    /* True if --no-what-if was given: do not plan again to see what more memory or one more device would
     * gain. */
    bool no_what_if;
    /* The option --out: the path of the file to which the plan is written as JSON. NULL if it is not
     * written. */
    const char *json_path;
    /* The option --svg: the path of the file to which a picture of one training step is written. NULL if no
     * picture is drawn. */
    const char *svg_path;
    /* The option --trace: the path of the file to which a Chrome trace of the simulated plan is written. NULL
     * if it is not written. */
    const char *trace_path;
};

/* Options of --plan-profile alone. */
struct profile_plan_options {
    const char *profile_path; /* the profile to plan from */
    uint32_t batch;           /* number of samples in a step */
    /* The option --micro-batch: the number of samples in a micro-batch. With 0, the verb chooses the best
     * number. */
    uint32_t micro_batch;
    /* The option --replicas: the number of replicas. With 0, the policy chooses the number. */
    uint32_t replicas;
};

/* The options of --export. The user gives either file_path or hf_dir, but not both. */
struct export_options {
    const char *dir;       /* a job's output directory */
    const char *file_path; /* --out: the safetensors file to write */
    const char *hf_dir;    /* the Hugging Face folder to write */
    /* Most bytes of tensors in one weight file of the Hugging Face folder hf_dir. 0 means the default of
     * hf_save. */
    uint64_t shard_bytes;
    const char *step; /* which weights: see weights_open */
    bool force;       /* replace existing files */
    bool heads;       /* keep the heads of local updates */
    int dtype;        /* index of the value of --dtype; -1 means the type of the job's precision */
};

/* Options of --probe. */
struct probe_options {
    bool measure; /* time the copies between host and devices */
    /* The devices that are asked for their free memory, as a bit set: bit i stands for device i. 0 means all
     * devices. */
    uint64_t only;
    /* The option --out: the path of the file to which the topology is written. NULL if it is not written. */
    const char *topology_path;
};

/* The options of --rules. They describe a schedule of another system. Most of them are text that verb_rules.c
 * parses. */
struct rules_options {
    /* The system whose rules are used, as an index into rules_names of verb_rules.c. 0 means Harmony. */
    int system;
    enum rules_form form;
    /* The last layer of each pack in the forward and in the backward pass, such as "4,9,14". */
    const char *packs_fwd, *packs_bwd;
    /* How long every task takes in addition to its work, such as "40ms". NULL means the default. */
    const char *task_overhead;
    uint32_t batch; /* number of samples in a step */
    /* Number of samples in a micro-batch of the forward pass, and of the backward pass. */
    uint32_t micro_fwd, micro_bwd;
};

/* The options of --sample. They give the text to continue, and say how the next tokens are chosen. */
struct sample_options {
    /* Where the model comes from: the output directory of a job, or a Hugging Face folder. */
    const char *source;
    const char *step; /* which weights of a job: see weights_open */
    /* The beginning of the text, given as text or as token ids. If both are NULL, the model starts a new
     * text. */
    const char *prompt, *prompt_ids;
    /* The folder with the tokenizer files vocab.json and merges.txt. NULL means the folder `source`. */
    const char *tokenizer;
    uint32_t tokens;    /* maximum number of tokens to sample */
    double temperature; /* 0 means the likeliest token */
    /* The next token is drawn from this many of the likeliest tokens. 0 means from all tokens. */
    uint32_t top_k;
    uint64_t seed; /* seed of the random choices */
    /* True to print the logits of the next token instead of sampling tokens. */
    bool logits;
};

/* Options of --check. */
struct check_options {
    /* What a daemon offers to jobs, as JSON text (offer.h). NULL to check the job for this computer. */
    const char *offer;
};

/* Options of --serve. */
struct serve_options {
    const char *socket; /* the daemon's worker.sock */
    uint64_t job;       /* id of the job, from 1 */
    /* The number of this attempt: how often the daemon has started a worker for the job. The first attempt
     * has number 1. */
    uint64_t attempt;
};

/* Options of --time. */
struct time_options {
    uint32_t n_sizes;               /* 0 means that verb_time.c chooses them */
    uint32_t sizes[TIME_MAX_SIZES]; /* micro-batch sizes to measure, ascending */
    bool force;                     /* measure again even if cached */
    /* The option --out: the path of the file to which the profile table is written. NULL if it is not
     * written. */
    const char *profile_path;
};

/* The values of all options on one command line. main.c fills the struct in, and nothing changes it
 * afterwards. The strings point into argv. Members for other verbs than the current verb have no meaning. */
struct verb_options {
    /* The option --json: if true, the result and the errors are printed as JSON on stdout. */
    bool json;
    bool quiet; /* print no progress */
    /* The options that say where a job runs, such as --devices. where_table lists them. */
    struct job_options job;
    struct plan_options plan;
    struct profile_plan_options profile_plan;
    struct export_options export;
    struct probe_options probe;
    struct rules_options rules;
    /* Number of training steps that --run measures for trace.json. With 0, no trace is written. */
    uint32_t trace_steps;
    struct check_options check;
    struct sample_options sample;
    struct serve_options serve;
    struct time_options time;
};

/* ---- options ---- */

/* How the value of an option is parsed, and the type of the member of struct verb_options that stores it. */
enum option_kind {
    OPTION_FLAG, /* no value; stores true in a bool */
    /* The value is any text. A pointer to the text is stored in a const char *. */
    OPTION_TEXT,
    /* The value is a whole number from `least` to `most`. It is stored in a uint32_t. */
    OPTION_U32,
    /* The value is a whole number from `least` to `most`. It is stored in a uint64_t. */
    OPTION_U64,
    /* The value is a number of bytes above 0, such as 64MiB. It is stored in a uint64_t. */
    OPTION_SIZE,
    /* The value is one of the strings in `names`. The index of the string is stored in an int or an enum. */
    OPTION_NAME,
    /* The option's own function `parse` reads the value and stores it. */
    OPTION_PARSED,
};

/* One option of tutti-worker. The help shows `--name value`, the choices in `names`, and `help`. An option
 * whose `help` is NULL is not in the help, because another row with the same name describes it. */
struct worker_option {
    /* Name of the option without the dashes, such as "devices". NULL marks the end of a table. */
    const char *name;
    /* Name of the option's value in the help, such as "N" in "--devices N". NULL for OPTION_FLAG. */
    const char *value;
    const char *help;
    enum option_kind kind;
    /* Where the value is stored: its offset in struct verb_options, written OPTION_AT(member). Not used if
     * there is a `parse` function. */
    size_t at;
    uint64_t least, most;
    /* The strings that OPTION_NAME accepts, with NULL at the end. If there is a `parse` function, the strings
     * are only printed in the help. */
    const char *const *names;
    int (*parse)(const char *text, struct verb_options *o, struct err *err);
};

#define OPTION_AT(member) offsetof(struct verb_options, member)

/* A list of options that has its own heading in the help. */
struct option_table {
    const char *title;
    const struct worker_option *rows;
};

/* The options that say where a job runs, such as --devices. Each verb takes all, some or none of them. */
extern const struct option_table where_table;
/* The value of worker_verb.where for a verb that takes all options of where_table. */
extern const char *const where_all[1];
/* The options that --plan and --plan-profile share (verb_plan.c). plan_options_check returns -EINVAL if they
 * contradict each other. */
extern const struct option_table plan_table;
int plan_options_check(const struct verb_options *o, struct err *err);
/* The option --precision, which --plan and --check share. */
extern const struct option_table precision_table;
/* The options that every verb takes: --json and --quiet. */
extern const struct option_table common_table;

/* Parses `text`, the value of an option, and stores the result in *o. For OPTION_FLAG, `text` is ignored.
 * Returns -EINVAL for a wrong value, with the option's name as the path of `err`. */
int options_store(const struct worker_option *option, const char *text, struct verb_options *o,
                  struct err *err);

/* ---- verbs ---- */

/* One form of a verb's command line, such as "JOB.json [options]", and a short description of what the verb
 * does in this form. */
struct verb_form {
    const char *args, *summary;
};

/* A verb of tutti-worker, such as --plan. */
struct worker_verb {
    /* The verb itself as an option of the command line, such as --run JOB.json. Its value is stored like the
     * value of any other option. */
    struct worker_option word;
    /* The forms of the command line that the help prints. An entry without args ends the list. */
    struct verb_form forms[3];
    const struct option_table *tables[3]; /* the verb's own options; NULL-terminated */
    /* Names of the options in where_table that the verb takes. where_all means all of them, and NULL means
     * none. */
    const char *const *where;
    /* Names of the options that the command line must have for this verb. NULL if there are none. */
    const char *const *needs;
    /* A function that sets those defaults of the verb that are not zero. May be NULL. */
    void (*set_defaults)(struct verb_options *o);
    /* A function that checks whether the stored options contradict each other. It returns 0 or -EINVAL. May
     * be NULL. */
    int (*check)(const struct verb_options *o, struct err *err);
    /* The function that does the verb's work. It prints the result on stdout, and progress and errors on
     * stderr, and returns the exit code. */
    int (*run)(const struct verb_options *o);
};

extern const struct worker_verb verb_check, verb_export, verb_plan, verb_plan_profile, verb_probe, verb_rules,
    verb_run, verb_sample, verb_serve, verb_time;

#define VERB_COUNT 10
/* All verbs in alphabetical order. */
extern const struct worker_verb *const worker_verbs[VERB_COUNT];

/* Returns the verb with the name `name`, which has no dashes, such as "run". Returns NULL if there is no such
 * verb. */
const struct worker_verb *verb_find(const char *name);

/* Finds an option of the verb by its name, first among the verb's own options and then in where_table and
 * common_table. Returns NULL if the verb does not take the option. */
const struct worker_option *verb_find_option(const struct worker_verb *v, const char *name);

/* Returns -EINVAL for an option that verb `v` does not take. The message names the verbs that take the
 * option. */
int verb_refuse_option(const struct worker_verb *v, const char *name, struct err *err);

/* Checks that the command line has every option in v->needs, then calls v->check. The function `given`
 * returns whether the command line `line` has an option. Returns 0 or -EINVAL. */
int verb_check_options(const struct worker_verb *v, const struct verb_options *o,
                       bool (*given)(const void *line, const char *name), const void *line, struct err *err);

/* Appends the names of all verbs, such as "--check, --export, ... and --time". `conjunction` is the word
 * before the last name, such as "and". */
void verb_add_names(struct strbuf *b, const char *conjunction);

/* Appends the text of --help. */
void verb_add_help(struct strbuf *b);

#endif
