/* The verbs of tutti-worker, one file each, and how they end for the shell. */
#ifndef WORKER_VERBS_H
#define WORKER_VERBS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/worker/job.h"

/* 0 done, 1 the job failed, 2 usage or invalid spec, 5 cannot fit, 6 no such thing (--export, --sample). A job stopped by a signal ends
 * with 128 + its number, as shells expect. */
enum exit_code { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_INVALID = 2, EXIT_MISFIT = 5, EXIT_NOT_FOUND = 6 };

#define VERB_MAX_SIZES 32

/* --rules: a schedule, as words; verb_rules.c makes sense of them. */
struct rules_options {
    const char *name; /* NULL: --rules was not given */
    const char *form, *packs_fwd, *packs_bwd, *task_overhead;
    uint32_t micro_fwd, micro_bwd;
};

/* --sample: what to go on with, and how. */
struct sample_options {
    const char *source;              /* a job's output, or a Hugging Face folder */
    const char *prompt, *prompt_ids; /* at most one; NULL: a new text */
    const char *tokenizer;           /* folder with vocab.json and merges.txt; NULL: the source's */
    uint32_t tokens;                 /* at most so many */
    double temperature;              /* 0: always the likeliest token */
    uint32_t top_k;                  /* 0: all */
    uint64_t seed;
    bool logits; /* print those of the next token; nothing is sampled */
};

struct verb_options {
    struct job_options job;
    bool all_policies;     /* --plan: --policy all */
    bool json;             /* the result as JSON on stdout, nothing else there */
    bool quiet;            /* no progress */
    bool dump;             /* --plan: every instruction */
    bool no_what_if;       /* --plan: nothing but the plan is planned */
    const char *plan_path; /* --plan: the plan as JSON, NULL: not written */
    const char *svg_path;  /* --plan: a picture of an iteration, NULL: none is drawn */
    const char *trace_path;
    uint32_t trace_steps;     /* --run: measured steps in trace.json, 0: none is written */
    const char *socket;       /* --serve: worker.sock */
    uint64_t job_id, attempt; /* --serve; from 1 */
    const char *export_dir;   /* --export: a job's output; plan_path is the file to write */
    const char *hf_dir;       /* --export: a Hugging Face folder to write, in place of plan_path */
    uint64_t shard_bytes;     /* --export: of tensors in each of its files; 0: as usual */
    const char *export_step;  /* --export, --sample: see weights_open */
    bool force;               /* --export: replace the file; --time: measure what is kept, too */
    uint64_t only; /* --probe: devices of which it is asked how much is free (devset_probe); 0: all */
    bool measure;  /* --probe: time copies; plan_path is the topology file to write */
    struct rules_options rules;
    struct sample_options sample;
    const char *profile_path; /* --plan-profile */
    uint32_t batch;           /* --plan-profile, --rules: samples of a step */
    uint32_t micro_batch;     /* --plan-profile; 0: auto */
    uint32_t n_micro_batches; /* --time; 0: some; plan_path is the profile to write */
    uint32_t micro_batches[VERB_MAX_SIZES];
};

/* Each prints its result on stdout, progress and errors on stderr, and returns the exit code. */
int verb_check(const struct verb_options *o);
int verb_export(const struct verb_options *o);
int verb_plan(const struct verb_options *o);
int verb_plan_profile(const struct verb_options *o);
int verb_probe(const struct verb_options *o);
int verb_rules(const struct verb_options *o);
int verb_run(const struct verb_options *o);
int verb_sample(const struct verb_options *o);
int verb_serve(const struct verb_options *o);
int verb_time(const struct verb_options *o);

#endif
