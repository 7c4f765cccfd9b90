/* tutti sample: goes on with a text, by a trained gpt2 or llama model. The worker does it, as this user. */
#include <stdio.h>
#include <stdlib.h>

#include "client/worker_opts.h"

static const struct opt opts[] = {
    {"logits", 0, NULL, "print the logits of the next token, and sample nothing"},
    {"prompt", 'p', "TEXT", "the text to go on with"},
    {"prompt-ids", 0, "1,2,3", "the same as token ids"},
    {"seed", 0, "S", "the same seed, the same text (0)"},
    {"step", 0, "N|best|last", "of that checkpoint (default: the newest weights)"},
    {"temperature", 't', "T", "0: always the likeliest token; 1: as the model says (0.8)"},
    {"threads", 0, "N", "threads that share one operation (one per core)"},
    {"tokenizer", 0, "DIR", "where vocab.json and merges.txt are"},
    {"tokens", 'n', "N", "at most so many (200)"},
    {"top-k", 'k', "K", "of the K likeliest tokens alone; 0: of all (0)"},
    {0},
};

static void pass_options(const struct args *a, struct spawn_args *to)
{
    static const char *const passed[] = {"prompt",  "prompt-ids", "seed",   "step", "temperature",
                                         "threads", "tokenizer",  "tokens", "top-k"};
    for (size_t i = 0; i < sizeof passed / sizeof passed[0]; i++) {
        char option[32];
        snprintf(option, sizeof option, "--%s", passed[i]);
        spawn_add_value(to, option, opts_get(a, passed[i]));
    }
    spawn_add_option(to, "--logits", opts_get(a, "logits"));
}

static int run_sample(struct client *c, const struct args *a)
{
    struct spawn_args args = {0};
    char *dir = NULL;
    int exit = client_find_output(c, a->rest[0], &dir);
    if (exit == CLIENT_DONE) {
        spawn_add_value(&args, "--sample", dir);
        pass_options(a, &args);
        exit = worker_become(c, &args);
    }
    free(dir);
    return exit;
}

const struct client_command cmd_sample = {
    .name = "sample",
    .args = "ID|DIR [options]",
    .summary = "generate text with a trained gpt2 or llama model",
    .details =
        "A number is a job of the daemon; anything else is a job's output directory or a Hugging Face "
        "folder, "
        "and needs no\n"
        "daemon. Only what follows the prompt is printed, as it comes: text, where each byte is a token "
        "(vocab 256) or the\n"
        "folder has GPT-2's vocab.json and merges.txt; else token ids.\n",
    .opts = opts,
    .least = 1,
    .most = 1,
    .run = run_sample,
};
