/* tutti sample: continues a text with a trained gpt2 or llama model. tutti-worker replaces this process and
 * does the work. */
#include <stdio.h>
#include <stdlib.h>

#include "client/worker_opts.h"

static const struct opt opts[] = {
    {"logits", 0, NULL, "print the logits of the next token instead of text"},
    {"prompt", 'p', "TEXT", "the text to continue"},
    {"prompt-ids", 0, "1,2,3", "the text to continue, as token ids"},
    {"seed", 0, "S", "random seed; the same seed gives the same text (default: 0)"},
    {"step", 0, "N|best|last", "the checkpoint to use (default: the newest weights)"},
    {"temperature", 't', "T", "0: always the likeliest token; 1: the model's probabilities (default: 0.8)"},
    {"threads", 0, "N", "threads that share one operation (default: one per core)"},
    {"tokenizer", 0, "DIR", "the folder with vocab.json and merges.txt"},
    {"tokens", 'n', "N", "the most tokens to generate (default: 200)"},
    {"top-k", 'k', "K", "choose only among the K likeliest tokens; 0: among all (default: 0)"},
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
        "A number is the id of a job of the daemon. Anything else is a job's output directory or a Hugging "
        "Face folder,\n"
        "and needs no daemon. Tokens are printed as they are generated, without the prompt: as text when "
        "each byte is a\n"
        "token (vocab 256) or the folder has GPT-2's vocab.json and merges.txt, otherwise as token ids.\n",
    .opts = opts,
    .least = 1,
    .most = 1,
    .run = run_sample,
};
